#include <cstring>
#include <iterator>
#include <memory>
#include <new>

#include "tests/cuda/fake/fake.hpp"
#include "tests/cuda/fake/hardware.hpp"

#define ATTUNE_FAKE(name) extern "C" __attribute__((visibility("default"))) CUresult name

namespace attune::cuda {

struct CUctx_st {
  int device;
  unsigned long long id;
};
struct CUstream_st {
  CUcontext context;
  bool capturing = false;
};
struct CUfunc_st {
  std::string name;
  void* loaded = nullptr;  // of the hardware
  int smem = 48 << 10;
};
struct CUmod_st {
  CUcontext context;
  void* loaded = nullptr;
  std::mutex mutex = {};
  std::vector<std::unique_ptr<CUfunc_st>> functions = {};  // which end with it
};

namespace fake {
namespace {

constexpr CUresult kInvalidContext = 201;
CUctx_st g_primary[2] = {{0, 100}, {1, 101}};
std::atomic<unsigned long long> g_next_id{200};
// Without a destructor, which a thread would need memory to register.
struct ContextStack {
  bool empty() const { return count == 0; }
  CUcontext back() const { return contexts[count - 1]; }
  void pop_back() { --count; }
  bool push_back(CUcontext context) {
    if (count == std::size(contexts)) return false;
    contexts[count++] = context;
    return true;
  }
  CUcontext contexts[64];
  size_t count;
};
thread_local ContextStack t_stack;
thread_local int t_mode = kCaptureGlobal;

CUcontext current() { return t_stack.empty() ? nullptr : t_stack.back(); }

// What a driver says when the host has no memory.
template <class Fn>
CUresult guarded(const Fn& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(uintptr_t(address)); }

// Loading is what a capture forbids.
bool forbidden() { return books().capturing > 0 && t_mode != kCaptureRelaxed; }

}  // namespace

Books& books() {
  static Books* const the_books = new Books;
  return *the_books;
}

}  // namespace fake

using namespace fake;

extern "C" __attribute__((visibility("default"))) Books* attune_fake_books() { return &books(); }

ATTUNE_FAKE(cuInit)(unsigned) { return kSuccess; }
// NVRTC looks into the driver too; without this one it does without.
ATTUNE_FAKE(cuGetExportTable)(const void** table, const CUuuid*) {
  *table = nullptr;
  return kInvalidValue;
}
ATTUNE_FAKE(cuDriverGetVersion)(int* version) {
  *version = 13000;
  return kSuccess;
}
ATTUNE_FAKE(cuGetErrorName)(CUresult result, const char** text) {
  *text = result == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return kSuccess;
}
ATTUNE_FAKE(cuGetErrorString)(CUresult result, const char** text) {
  *text = result == kLaunchFailure ? "unspecified launch failure" : "some failure";
  return kSuccess;
}
ATTUNE_FAKE(cuDeviceGet)(CUdevice* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
ATTUNE_FAKE(cuDeviceGetCount)(int* count) {
  *count = 2;
  return kSuccess;
}
ATTUNE_FAKE(cuDeviceGetName)(char* name, int, CUdevice device) {
  std::strcpy(name, hardware().name(device));
  return kSuccess;
}
ATTUNE_FAKE(cuDeviceGetAttribute)(int* value, int attribute, CUdevice device) {
  const Arch arch = arch_of(hardware().compute_capability(device));
  switch (attribute) {
    case kComputeMajor:
      *value = arch.cc / 10;
      break;
    case kComputeMinor:
      *value = arch.cc % 10;
      break;
    case kSharedMemoryPerBlockOptin:
      *value = arch.smem_block;
      break;
    case kSharedMemoryPerMultiprocessor:
      *value = arch.smem_sm;
      break;
    case kMultiprocessors:
      *value = arch.sms;
      break;
    default:
      *value = 1 << 20;
  }
  return kSuccess;
}
ATTUNE_FAKE(cuDeviceTotalMem_v2)(size_t* bytes, CUdevice) {
  *bytes = size_t{16} << 30;
  return kSuccess;
}
ATTUNE_FAKE(cuDeviceGetUuid)(CUuuid*, CUdevice) { return kSuccess; }
ATTUNE_FAKE(cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device) {
  ++books().primary_retains;
  *context = &g_primary[device];
  return kSuccess;
}
ATTUNE_FAKE(cuDevicePrimaryCtxRelease_v2)(CUdevice) {
  --books().primary_retains;
  return kSuccess;
}

ATTUNE_FAKE(cuCtxCreate_v2)(CUcontext* context, unsigned, CUdevice device) {
  return guarded([&] {
    *context = new CUctx_st{device, g_next_id++};
    return t_stack.push_back(*context) ? kSuccess : kInvalidValue;
  });
}
ATTUNE_FAKE(cuCtxDestroy_v2)(CUcontext context) {
  if (current() == context) t_stack.pop_back();
  delete context;
  return kSuccess;
}
ATTUNE_FAKE(cuCtxGetCurrent)(CUcontext* context) {
  *context = current();
  return kSuccess;
}
ATTUNE_FAKE(cuCtxSetCurrent)(CUcontext context) {
  if (!t_stack.empty()) t_stack.pop_back();
  return context == nullptr || t_stack.push_back(context) ? kSuccess : kInvalidValue;
}
ATTUNE_FAKE(cuCtxPushCurrent_v2)(CUcontext context) {
  return t_stack.push_back(context) ? kSuccess : kInvalidValue;
}
ATTUNE_FAKE(cuCtxPopCurrent_v2)(CUcontext* context) {
  if (t_stack.empty()) return kInvalidContext;
  *context = t_stack.back();
  t_stack.pop_back();
  return kSuccess;
}
ATTUNE_FAKE(cuCtxGetDevice)(CUdevice* device) {
  if (current() == nullptr) return kInvalidContext;
  *device = current()->device;
  return kSuccess;
}
ATTUNE_FAKE(cuCtxGetId)(CUcontext context, unsigned long long* id) {
  *id = context->id;
  return kSuccess;
}
ATTUNE_FAKE(cuCtxSynchronize)() { return kSuccess; }

ATTUNE_FAKE(cuStreamCreate)(CUstream* stream, unsigned) {
  return guarded([&] {
    *stream = new CUstream_st{current()};
    return kSuccess;
  });
}
ATTUNE_FAKE(cuStreamDestroy_v2)(CUstream stream) {
  delete stream;
  return kSuccess;
}
ATTUNE_FAKE(cuStreamGetCtx)(CUstream stream, CUcontext* context) {
  *context = stream->context;
  return kSuccess;
}
ATTUNE_FAKE(cuStreamSynchronize)(CUstream) { return kSuccess; }
ATTUNE_FAKE(cuStreamBeginCapture_v2)(CUstream stream, int) {
  stream->capturing = true;
  ++books().capturing;
  return kSuccess;
}
ATTUNE_FAKE(cuStreamEndCapture)(CUstream stream, CUgraph* graph) {
  stream->capturing = false;
  --books().capturing;
  *graph = nullptr;
  return kSuccess;
}
ATTUNE_FAKE(cuStreamIsCapturing)(CUstream stream, int* status) {
  *status = stream->capturing ? kCapturing : kNotCapturing;
  return kSuccess;
}
ATTUNE_FAKE(cuThreadExchangeStreamCaptureMode)(int* mode) {
  std::swap(*mode, t_mode);
  return kSuccess;
}
ATTUNE_FAKE(cuGraphInstantiateWithFlags)(CUgraphExec*, CUgraph, unsigned long long) {
  return kSuccess;
}
ATTUNE_FAKE(cuGraphLaunch)(CUgraphExec, CUstream) { return kSuccess; }
ATTUNE_FAKE(cuGraphDestroy)(CUgraph) { return kSuccess; }
ATTUNE_FAKE(cuGraphExecDestroy)(CUgraphExec) { return kSuccess; }

ATTUNE_FAKE(cuModuleLoadData)(CUmodule* module, const void* image) {
  if (forbidden()) return kCaptureUnsupported;
  if (const int failure = books().fail_module) return failure;
  if (current() == nullptr) return kInvalidContext;
  if (std::memcmp(image,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return kInvalidValue;
  return guarded([&] {
    auto made = std::make_unique<CUmod_st>(current());
    if (const CUresult r = hardware().load(image, &made->loaded); r != kSuccess) return r;
    *module = made.release();
    ++books().modules;
    return kSuccess;
  });
}
ATTUNE_FAKE(cuModuleUnload)(CUmodule module) {
  --books().modules;
  hardware().unload(module->loaded);
  delete module;
  return kSuccess;
}
ATTUNE_FAKE(cuModuleGetFunction)(CUfunction* function, CUmodule module, const char* name) {
  if (forbidden()) return kCaptureUnsupported;
  return guarded([&] {
    std::lock_guard lock(module->mutex);
    module->functions.push_back(std::make_unique<CUfunc_st>(name));
    if (const CUresult r = hardware().find(module->loaded, name, &module->functions.back()->loaded);
        r != kSuccess)
      return r;
    *function = module->functions.back().get();
    return kSuccess;
  });
}
ATTUNE_FAKE(cuFuncSetAttribute)(CUfunction function, int attribute, int value) {
  if (attribute != kFunctionMaxDynamicSharedBytes) return kInvalidValue;
  function->smem = value;
  ++books().smem_raises;
  return kSuccess;
}
ATTUNE_FAKE(cuFuncGetAttribute)(int* value, int, CUfunction) {
  if (forbidden()) return kCaptureUnsupported;
  *value = 32;
  return kSuccess;
}
ATTUNE_FAKE(cuLaunchKernelEx)
(const CUlaunchConfig* config, CUfunction function, void** params, void**) {
  if (const int failure = books().fail_launch) return failure;
  if (int(config->smem) > function->smem) return kInvalidValue;
  if (hardware().runs_kernels()) return hardware().launch(*config, function->loaded, params);
  return guarded([&] {
    KernelArgs args{};
    if (!function->name.starts_with("attune_peak"))  // that has other arguments
      args = *static_cast<const KernelArgs*>(params[0]);
    GradParams grads;
    if (args.problem.pass == Pass::backward)
      grads = static_cast<const GradientArgs*>(params[0])->grads;
    std::lock_guard lock(books().mutex);
    books().launched.push_back({function->name, config->grid[0], config->block[0], config->smem,
                                config->stream, current(), args, grads});
    return kSuccess;
  });
}

ATTUNE_FAKE(cuMemAlloc_v2)(CUdeviceptr* address, size_t bytes) {
  // Aligned as the driver's memory is.
  void* memory = ::operator new(bytes, std::align_val_t(256), std::nothrow);
  *address = CUdeviceptr(reinterpret_cast<uintptr_t>(memory));
  if (memory == nullptr) return kOutOfMemory;
  return guarded([&] {
    hardware().allocated(*address, bytes);
    return kSuccess;
  });
}
ATTUNE_FAKE(cuMemFree_v2)(CUdeviceptr address) {
  hardware().freed(address);
  ::operator delete(reinterpret_cast<void*>(uintptr_t(address)), std::align_val_t(256));
  return kSuccess;
}
ATTUNE_FAKE(cuMemGetInfo_v2)(size_t* available, size_t* total) {
  *available = *total = size_t{1} << 30;
  return kSuccess;
}
ATTUNE_FAKE(cuMemcpyHtoD_v2)(CUdeviceptr to, const void* from, size_t bytes) {
  hardware().copy(pointer(to), from, bytes);
  return kSuccess;
}
ATTUNE_FAKE(cuMemcpyDtoH_v2)(void* to, CUdeviceptr from, size_t bytes) {
  hardware().copy(to, pointer(from), bytes);
  return kSuccess;
}
ATTUNE_FAKE(cuMemcpyHtoDAsync_v2)(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}
ATTUNE_FAKE(cuMemcpyDtoHAsync_v2)(void* to, CUdeviceptr from, size_t bytes, CUstream) {
  return cuMemcpyDtoH_v2(to, from, bytes);
}
ATTUNE_FAKE(cuMemsetD8_v2)(CUdeviceptr at, unsigned char value, size_t count) {
  hardware().fill(at, value, 1, count);
  return kSuccess;
}
ATTUNE_FAKE(cuMemsetD8Async)(CUdeviceptr at, unsigned char value, size_t count, CUstream) {
  return cuMemsetD8_v2(at, value, count);
}
ATTUNE_FAKE(cuMemsetD32Async)(CUdeviceptr at, unsigned value, size_t count, CUstream) {
  hardware().fill(at, value, 4, count);
  return kSuccess;
}
ATTUNE_FAKE(cuTensorMapEncodeTiled)
(void* map, int type, unsigned rank, void* address, const uint64_t* sizes, const uint64_t* strides,
 const uint32_t* box, const uint32_t*, int, int swizzle, int, int) {
  return hardware().encode(map, type, rank, address, sizes, strides, box, swizzle);
}
ATTUNE_FAKE(cuEventCreate)(CUevent*, unsigned) { return kSuccess; }
ATTUNE_FAKE(cuEventDestroy_v2)(CUevent) { return kSuccess; }
ATTUNE_FAKE(cuEventRecord)(CUevent, CUstream) { return kSuccess; }
ATTUNE_FAKE(cuEventSynchronize)(CUevent) { return kSuccess; }
ATTUNE_FAKE(cuEventElapsedTime)(float*, CUevent, CUevent) { return kSuccess; }

// Attributes in the order of the library's one question: memory type, managed, device.
ATTUNE_FAKE(cuPointerGetAttributes)
(unsigned count, int* attributes, void** values, CUdeviceptr address) {
  for (unsigned i = 0; i < count; ++i) {
    unsigned value = 0;
    const bool known = (address >= kOnDevice0 && address <= kManaged) || hardware().owns(address);
    if (attributes[i] == kPointerMemoryType && known)
      value = address == kPinned ? unsigned{kMemoryHost} : unsigned{kMemoryDevice};
    if (attributes[i] == kPointerIsManaged) value = address == kManaged;
    if (attributes[i] == kPointerDeviceOrdinal) value = address == kOnDevice1;
    std::memcpy(values[i], &value, sizeof(value));
  }
  return kSuccess;
}

}  // namespace attune::cuda
