// A CUDA program as a candidate: one .cu that keeps to candidate.h, compiled by the toolkit's nvcc.
#pragma once

#include <string>

#include "evolve/host_compile.hpp"

namespace attune::evolve {

const HostCompiler& cuda_compiler();  // nvcc: $CUDA_HOME, $CUDA_PATH, $PATH, /usr/local/cuda

// For compute capability `cc`, into `folder`, killed after `limit_seconds`. It may link the C and
// C++ libraries and CUDA's own run time, which is put into it, and no other.
Built build_cuda_program(const std::string& source, int cc, const std::string& folder,
                         double limit_seconds);

}  // namespace attune::evolve
