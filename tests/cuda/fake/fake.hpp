// A CUDA driver without a GPU: it records the calls, for the tests. Two devices, of compute
// capability 9.0 and 8.0.
#pragma once

#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/config.h"
#include "kernels/params.h"
#include "src/cuda/driver.hpp"

namespace attune::cuda::fake {

struct Launched {
  std::string name;
  unsigned grid, block, smem;
  CUstream stream;
  CUcontext context;
  KernelArgs args;
  GradParams grads;  // of a backward pass
};

// What the driver did, and what it shall fail at.
struct Books {
  std::mutex mutex;
  std::vector<Launched> launched;
  std::atomic<int> modules{0};      // loaded
  std::atomic<int> smem_raises{0};  // cuFuncSetAttribute
  std::atomic<int> capturing{0};    // streams; forbids loading to threads that are not relaxed
  std::atomic<int> fail_launch{0};  // the result of the next launches
  std::atomic<int> fail_module{0};
  std::atomic<int> primary_retains{0};
};

Books& books();

// The addresses that the fake knows: which device they lie on, and as what.
inline constexpr CUdeviceptr kOnDevice0 = 0x10000, kOnDevice1 = 0x20000, kPinned = 0x30000,
                             kManaged = 0x40000;

// Where a fake library lies: beside the test's program, so that no path is compiled into it, which
// would keep the compiler cache from serving another clone.
inline std::string library_path(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fake" / name;
}

inline constexpr int kLaunchFailure = 719;
inline constexpr int kCaptureUnsupported = 900;

}  // namespace attune::cuda::fake

extern "C" attune::cuda::fake::Books* attune_fake_books();
