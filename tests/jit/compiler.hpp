// What tests need that compile: a compiler, or a word why they were skipped; and a cache of their
// own.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "src/jit/nvrtc.hpp"

#define ATTUNE_NEEDS_NVRTC() \
  if (!::attune::jit::nvrtc().problem.empty()) GTEST_SKIP() << ::attune::jit::nvrtc().problem

namespace attune::jit {

// ATTUNE_CACHE_DIR for as long as it lives.
class TemporaryCache {
 public:
  TemporaryCache() {
    char name[] = "/tmp/attune-kernels-test-XXXXXX";
    if (mkdtemp(name) != nullptr) made_ = name;
    use(made_);
  }
  explicit TemporaryCache(const std::string& dir) { use(dir); }
  ~TemporaryCache() {
    if (had_)
      setenv("ATTUNE_CACHE_DIR", before_.c_str(), 1);
    else
      unsetenv("ATTUNE_CACHE_DIR");
    if (!made_.empty()) std::filesystem::remove_all(made_);
  }
  TemporaryCache(const TemporaryCache&) = delete;
  TemporaryCache& operator=(const TemporaryCache&) = delete;

 private:
  void use(const std::string& dir) {
    const char* before = std::getenv("ATTUNE_CACHE_DIR");
    had_ = before != nullptr;
    if (had_) before_ = before;
    setenv("ATTUNE_CACHE_DIR", dir.c_str(), 1);
  }

  std::string made_, before_;
  bool had_ = false;
};

}  // namespace attune::jit
