// What stands behind the driver without a GPU. By itself, nothing: it keeps no memory and runs no
// kernel (idle.cpp). tests/emulator runs them on the CPU.
#pragma once

#include <cstddef>

#include "src/cuda/driver.hpp"

namespace attune::cuda::fake {

class Hardware {
 public:
  virtual ~Hardware() = default;

  virtual bool runs_kernels() const { return false; }
  virtual int compute_capability(CUdevice device) const { return device == 0 ? 90 : 80; }
  virtual const char* name(CUdevice device) const {
    return device == 0 ? "Fake Hopper" : "Fake Ampere";
  }

  virtual void allocated(CUdeviceptr, size_t) {}
  virtual void freed(CUdeviceptr) {}
  virtual bool owns(CUdeviceptr) const { return false; }
  virtual void copy(void*, const void*, size_t) {}
  virtual void fill(CUdeviceptr, unsigned, size_t /*bytes of the value*/, size_t /*count*/) {}

  virtual CUresult load(const void* /*image*/, void** /*module*/) { return kSuccess; }
  virtual void unload(void*) {}
  virtual CUresult find(void* /*module*/, const char*, void** /*function*/) { return kSuccess; }
  virtual CUresult launch(const CUlaunchConfig&, void* /*function*/, void** /*params*/) {
    return kSuccess;
  }
  virtual CUresult encode(void* /*map*/, int /*type*/, unsigned /*rank*/, void* /*address*/,
                          const uint64_t* /*sizes*/, const uint64_t* /*strides*/,
                          const uint32_t* /*box*/, int /*swizzle*/) {
    return kSuccess;
  }
};

Hardware& hardware();

}  // namespace attune::cuda::fake
