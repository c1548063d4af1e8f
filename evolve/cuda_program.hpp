// A CUDA program as a candidate: one .cu that keeps to candidate.h, compiled by the toolkit's nvcc.
#pragma once

#include <string>

#include "evolve/host_compile.hpp"

namespace attune::evolve {

const HostCompiler& cuda_compiler();  // nvcc: $CUDA_HOME, $CUDA_PATH, $PATH, /usr/local/cuda

// For compute capability `cc`, into `folder`, killed after `limit_seconds`. It may ask the same of
// the C and C++ libraries as other programs, anything of CUDA's own run time, and of no other.
Built build_cuda_program(const std::string& source, int cc, const std::string& folder,
                         double limit_seconds, const Stop& stop = {});

}  // namespace attune::evolve
