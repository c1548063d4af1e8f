// The CUDA driver, opened at run time: the library builds and loads where there is none. The few
// types and constants that we use are declared here, so that no toolkit is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/status.hpp"

namespace attune::cuda {

// As in cuda.h.
using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
struct CUuuid {
  unsigned char bytes[16];
};

// One property of a launch: its number, and a value in a union of 64 bytes.
struct CUlaunchAttribute {
  int id;
  int pad;
  union {
    char bytes[64];
    int number;
  };
};
inline constexpr int kProgrammaticStreamSerialization = 6;
struct CUlaunchConfig {
  unsigned grid[3], block[3], smem;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
};

inline constexpr CUresult kSuccess = 0;
inline constexpr CUresult kInvalidValue = 1;
inline constexpr CUresult kOutOfMemory = 2;

enum DeviceAttribute : int {
  kClockRate = 13,  // kHz
  kMultiprocessors = 16,
  kMemoryClockRate = 36,  // kHz
  kMemoryBusWidth = 37,   // bits
  kL2CacheSize = 38,      // bytes
  kComputeMajor = 75,
  kComputeMinor = 76,
  kSharedMemoryPerMultiprocessor = 81,
  kSharedMemoryPerBlockOptin = 97,
};
enum PointerAttribute : int {
  kPointerMemoryType = 2,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
};
enum FunctionAttribute : int {
  kFunctionSharedBytes = 1,
  kFunctionLocalBytes = 3,
  kFunctionRegisters = 4,
  kFunctionMaxDynamicSharedBytes = 8,
};
enum MemoryType : unsigned { kMemoryHost = 1, kMemoryDevice = 2 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum CaptureStatus : int { kNotCapturing = 0, kCapturing = 1, kCaptureInvalidated = 2 };
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;

// The streams that have a number instead of a handle; they belong to whatever context is current.
inline constexpr uintptr_t kLastSpecialStream =
    2;  // 0 and 1: the legacy default stream, 2: per thread

// X(name, suffix of the symbol, parameters): the entry points, all of them in every driver from
// CUDA 12.0 on.
#define ATTUNE_CUDA_CALLS(X)                                                              \
  X(cuInit, , (unsigned flags))                                                           \
  X(cuDriverGetVersion, , (int* version))                                                 \
  X(cuGetErrorName, , (CUresult, const char** text))                                      \
  X(cuGetErrorString, , (CUresult, const char** text))                                    \
  X(cuDeviceGet, , (CUdevice*, int ordinal))                                              \
  X(cuDeviceGetCount, , (int* count))                                                     \
  X(cuDeviceGetName, , (char* name, int capacity, CUdevice))                              \
  X(cuDeviceGetAttribute, , (int* value, int attribute, CUdevice))                        \
  X(cuDeviceTotalMem, _v2, (size_t * bytes, CUdevice))                                    \
  X(cuDeviceGetUuid, , (CUuuid*, CUdevice))                                               \
  X(cuDevicePrimaryCtxRetain, , (CUcontext*, CUdevice))                                   \
  X(cuDevicePrimaryCtxRelease, _v2, (CUdevice))                                           \
  X(cuCtxCreate, _v2, (CUcontext*, unsigned flags, CUdevice))                             \
  X(cuCtxDestroy, _v2, (CUcontext))                                                       \
  X(cuCtxGetCurrent, , (CUcontext*))                                                      \
  X(cuCtxSetCurrent, , (CUcontext))                                                       \
  X(cuCtxPushCurrent, _v2, (CUcontext))                                                   \
  X(cuCtxPopCurrent, _v2, (CUcontext*))                                                   \
  X(cuCtxGetDevice, , (CUdevice*))                                                        \
  X(cuCtxGetId, , (CUcontext, unsigned long long* id))                                    \
  X(cuCtxSynchronize, , ())                                                               \
  X(cuStreamCreate, , (CUstream*, unsigned flags))                                        \
  X(cuStreamDestroy, _v2, (CUstream))                                                     \
  X(cuStreamGetCtx, , (CUstream, CUcontext*))                                             \
  X(cuStreamSynchronize, , (CUstream))                                                    \
  X(cuStreamBeginCapture, _v2, (CUstream, int mode))                                      \
  X(cuStreamEndCapture, , (CUstream, CUgraph*))                                           \
  X(cuStreamIsCapturing, , (CUstream, int* status))                                       \
  X(cuThreadExchangeStreamCaptureMode, , (int* mode))                                     \
  X(cuGraphInstantiateWithFlags, , (CUgraphExec*, CUgraph, unsigned long long))           \
  X(cuGraphLaunch, , (CUgraphExec, CUstream))                                             \
  X(cuGraphDestroy, , (CUgraph))                                                          \
  X(cuGraphExecDestroy, , (CUgraphExec))                                                  \
  X(cuModuleLoadData, , (CUmodule*, const void* image))                                   \
  X(cuModuleUnload, , (CUmodule))                                                         \
  X(cuModuleGetFunction, , (CUfunction*, CUmodule, const char* name))                     \
  X(cuFuncSetAttribute, , (CUfunction, int attribute, int value))                         \
  X(cuFuncGetAttribute, , (int* value, int attribute, CUfunction))                        \
  X(cuLaunchKernelEx, , (const CUlaunchConfig*, CUfunction, void** params, void** extra)) \
  X(cuMemAlloc, _v2, (CUdeviceptr*, size_t bytes))                                        \
  X(cuMemFree, _v2, (CUdeviceptr))                                                        \
  X(cuMemGetInfo, _v2, (size_t * available, size_t * total))                              \
  X(cuMemcpyHtoD, _v2, (CUdeviceptr, const void*, size_t bytes))                          \
  X(cuMemcpyDtoH, _v2, (void*, CUdeviceptr, size_t bytes))                                \
  X(cuMemcpyHtoDAsync, _v2, (CUdeviceptr, const void*, size_t bytes, CUstream))           \
  X(cuMemcpyDtoHAsync, _v2, (void*, CUdeviceptr, size_t bytes, CUstream))                 \
  X(cuMemsetD8, _v2, (CUdeviceptr, unsigned char value, size_t count))                    \
  X(cuMemsetD8Async, , (CUdeviceptr, unsigned char value, size_t count, CUstream))        \
  X(cuTensorMapEncodeTiled, ,                                                             \
    (void* map, int type, unsigned rank, void* address, const uint64_t* sizes,            \
     const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave, \
     int swizzle, int promotion, int fill))                                               \
  X(cuMemsetD32Async, , (CUdeviceptr, unsigned value, size_t count, CUstream))            \
  X(cuEventCreate, , (CUevent*, unsigned flags))                                          \
  X(cuEventDestroy, _v2, (CUevent))                                                       \
  X(cuEventRecord, , (CUevent, CUstream))                                                 \
  X(cuEventSynchronize, , (CUevent))                                                      \
  X(cuEventElapsedTime, , (float* milliseconds, CUevent begin, CUevent end))              \
  X(cuPointerGetAttributes, , (unsigned count, int* attributes, void** values, CUdeviceptr))

struct Driver {
#define ATTUNE_CUDA_MEMBER(name, suffix, parameters) CUresult(*name) parameters = nullptr;
  ATTUNE_CUDA_CALLS(ATTUNE_CUDA_MEMBER)
#undef ATTUNE_CUDA_MEMBER
  int version = 0;  // of CUDA that the driver supports: 12080 is 12.8
};

// The driver, initialised; or null, and driver_problem() says why. Safe from many threads; settled
// by the first call.
const Driver* driver();
const std::string& driver_problem();

// The same, for those who need it: the status says why there is none, or that this process is a
// fork of one that had used CUDA, in which the driver does not work.
Status need_driver(const Driver** driver);

// dlopen. Null: it failed, and `why` says why; but for want of memory, which is std::bad_alloc,
// since the next time may be better.
void* open_library(const char* path, int flags, std::string* why);

// A failed call in words: "cuLaunchKernelEx of <kernel>: CUDA_ERROR_... (text)". Success is ok.
Status cuda_status(CUresult result, const char* call, const std::string& kernel = {});

std::string version_text(int version);  // 12080 is "12.8"

}  // namespace attune::cuda

// Runs a driver call, and returns from the function with its status if it failed.
#define ATTUNE_CUDA_TRY(driver, call, ...)                                                       \
  do {                                                                                           \
    const auto result_ = (driver).call(__VA_ARGS__);                                             \
    if (result_ != ::attune::cuda::kSuccess) return ::attune::cuda::cuda_status(result_, #call); \
  } while (false)
