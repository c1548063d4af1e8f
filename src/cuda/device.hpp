// The CUDA devices of this machine, and the context that a call works in.
#pragma once

#include <string>

#include "kernels/config.h"
#include "src/status.hpp"

namespace attune::cuda {

struct Device {
  int ordinal = 0;
  std::string name;
  Arch arch;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int memory_bus_bits = 0;  // 0: not known
};

// Empty when there is a driver and at least one device of compute capability 7.5 or more; else the
// reason in words. Never changes once asked.
const std::string& why_unusable();
int device_count();
Status device(int ordinal, Device* device);

// The context of one call, current for as long as the scope lives: the stream's own; else the
// thread's current one; else the primary context of the device that `pointer` (may be NULL) lies
// on, or device 0.
class Scope {
 public:
  Scope() = default;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope();

  Status enter(void* stream, const void* pointer);

  const Device& device() const { return *device_; }  // once entered
  void* context() const { return context_; }         // CUcontext
  void* stream() const { return stream_; }           // CUstream

 private:
  const Device* device_ = nullptr;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  bool pushed_ = false;
};

// Why a pointer cannot be used in the scope ("is host memory", "lies on device 1, but the call runs
// on device 0"); empty when it can.
std::string why_not_here(const void* pointer, const Scope& scope);

}  // namespace attune::cuda
