// Where workers cannot run: under an emulator, or where a sanitizer's runtime does not live with
// the limits of one.
#pragma once

#include <gtest/gtest.h>

#include "evolve/worker/sandbox.hpp"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ATTUNE_NEEDS_SANDBOX() GTEST_SKIP() << "a sanitizer's runtime does not live in the sandbox"
#else
#define ATTUNE_NEEDS_SANDBOX()                                                       \
  if (const attune::evolve::SandboxReport report = attune::evolve::sandbox_report(); \
      !report.seccomp)                                                               \
  GTEST_SKIP() << report.why_not
#endif
