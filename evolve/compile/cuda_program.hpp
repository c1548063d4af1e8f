// A CUDA program as a candidate: one .cu that keeps to a contract, compiled by the toolkit's nvcc.
#pragma once

#include <string>

#include "evolve/compile/host_compile.hpp"
#include "evolve/worker/landlock.hpp"

namespace attune::evolve {

// Of what ptxas prints with -v, each kernel once.
std::vector<KernelUse> kernels_of_ptxas(const std::string& output);

const HostCompiler& cuda_compiler();  // nvcc: $CUDA_HOME, $CUDA_PATH, $PATH, /usr/local/cuda

// For compute capability `cc`, into `folder`, killed after `limit_seconds`. It may ask the same of
// the C and C++ libraries as other programs, anything of CUDA's own run time, and of no other.
Built build_cuda_program(const std::string& source, int cc, const std::string& folder,
                         double limit_seconds, const Stop& stop = {});

// What the process of such a program opens from the time on when the driver is at work: the
// driver's devices, libraries and facts about the machine, CUDA's run time, and the program itself.
FileAccess cuda_program_files(const std::string& library);

}  // namespace attune::evolve
