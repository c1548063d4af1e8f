#include "src/cuda/device.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <memory>
#include <new>

#include "src/cuda/driver.hpp"

namespace attune::cuda {
namespace {

constexpr int kOldestCapability = 75;
constexpr int kMaxDevices = 64;  // as CUDA itself
constexpr size_t kNameCapacity = 256;

// What was found, once. Never freed: a thread may still be in a call when the process ends.
struct Found {
  std::string problem;
  int count = 0;
  std::array<Device, kMaxDevices> devices;
  std::array<std::atomic<void*>, kMaxDevices> primary{};  // contexts that we hold
};

Status query(const Driver& d, int ordinal, Device* device) {
  CUdevice handle = 0;
  ATTUNE_CUDA_TRY(d, cuDeviceGet, &handle, ordinal);
  char name[kNameCapacity] = "";
  ATTUNE_CUDA_TRY(d, cuDeviceGetName, name, int(sizeof(name)), handle);
  size_t bytes = 0;
  ATTUNE_CUDA_TRY(d, cuDeviceTotalMem, &bytes, handle);
  int major = 0, minor = 0, l2 = 0;
  Arch arch;
  const struct {
    int attribute;
    int* value;
  } wanted[] = {{kComputeMajor, &major},
                {kComputeMinor, &minor},
                {kL2CacheSize, &l2},
                {kSharedMemoryPerBlockOptin, &arch.smem_block},
                {kSharedMemoryPerMultiprocessor, &arch.smem_sm},
                {kMultiprocessors, &arch.sms}};
  for (const auto& w : wanted)
    ATTUNE_CUDA_TRY(d, cuDeviceGetAttribute, w.value, w.attribute, handle);
  arch.cc = 10 * major + minor;
  int bus = 0;  // a fact for people: a driver without it is a driver all the same
  if (d.cuDeviceGetAttribute(&bus, kMemoryBusWidth, handle) != kSuccess) bus = 0;
  *device = {ordinal, name, arch, int64_t(bytes), l2, bus};
  return {};
}

std::string too_old(const Device& device) {
  return fmt::format("device {} ({}) has compute capability {}.{}, but {}.{} is needed",
                     device.ordinal, device.name, device.arch.cc / 10, device.arch.cc % 10,
                     kOldestCapability / 10, kOldestCapability % 10);
}

void look(Found* found) {
  const Driver* d = driver();
  if (d == nullptr) {
    found->problem = driver_problem();
    return;
  }
  const CUresult result = d->cuDeviceGetCount(&found->count);
  if (result == kOutOfMemory) throw std::bad_alloc();  // no answer: a later call asks again
  if (result != kSuccess) {
    found->problem = cuda_status(result, "cuDeviceGetCount").message;
    found->count = 0;
    return;
  }
  if (found->count > kMaxDevices) found->count = kMaxDevices;
  if (found->count == 0) found->problem = "the driver finds no device (CUDA_VISIBLE_DEVICES?)";
  int usable = 0;
  for (int i = 0; i < found->count; ++i) {
    Device& device = found->devices[size_t(i)];
    if (Status s = query(*d, i, &device); !s.ok()) {
      if (s.code == ATTUNE_OUT_OF_MEMORY) throw std::bad_alloc();
      found->problem = s.message;
    } else if (device.arch.cc < kOldestCapability) {
      found->problem = too_old(device);
    } else {
      ++usable;
    }
  }
  if (usable > 0) found->problem.clear();
}

std::atomic<Found*> g_found{nullptr};

Found& found() {
  if (Found* f = g_found.load(std::memory_order_acquire)) return *f;
  // No lock: two threads that look at once find the same, and the second throws its copy away.
  auto fresh = std::make_unique<Found>();
  look(fresh.get());
  Found* expected = nullptr;
  if (g_found.compare_exchange_strong(expected, fresh.get())) return *fresh.release();
  return *expected;
}

// Holds the device's primary context for as long as the process lives: giving it back after each
// call would destroy and make it every time where nobody else holds it.
Status primary_context(const Driver& d, int ordinal, CUcontext* context) {
  std::atomic<void*>& slot = found().primary[size_t(ordinal)];
  if (void* held = slot.load(std::memory_order_acquire)) {
    *context = static_cast<CUcontext>(held);
    return {};
  }
  CUdevice handle = 0;
  ATTUNE_CUDA_TRY(d, cuDeviceGet, &handle, ordinal);
  ATTUNE_CUDA_TRY(d, cuDevicePrimaryCtxRetain, context, handle);
  void* expected = nullptr;
  if (!slot.compare_exchange_strong(expected, *context)) d.cuDevicePrimaryCtxRelease(handle);
  return {};
}

struct PointerFacts {
  unsigned memory_type = 0;  // 0: nothing that CUDA knows
  unsigned managed = 0;
  int ordinal = 0;
};

PointerFacts facts_of(const Driver& d, const void* pointer) {
  PointerFacts facts;
  int attributes[] = {kPointerMemoryType, kPointerIsManaged, kPointerDeviceOrdinal};
  void* values[] = {&facts.memory_type, &facts.managed, &facts.ordinal};
  const auto address = CUdeviceptr(reinterpret_cast<uintptr_t>(pointer));
  if (d.cuPointerGetAttributes(3, attributes, values, address) != kSuccess) return {};
  return facts;
}

}  // namespace

const std::string& why_unusable() { return found().problem; }

int device_count() { return found().count; }

Status device(int ordinal, Device* device) {
  const Found& f = found();
  if (f.count == 0) return Status::unsupported("CUDA cannot be used: " + f.problem);
  if (ordinal < 0 || ordinal >= f.count)
    return Status::invalid(fmt::format("there is no CUDA device {}, only {}", ordinal, f.count));
  *device = f.devices[size_t(ordinal)];
  return {};
}

Scope::~Scope() {
  if (!pushed_) return;
  CUcontext popped = nullptr;
  driver()->cuCtxPopCurrent(&popped);
}

Status Scope::enter(void* stream, const void* pointer) {
  const Driver* d = nullptr;
  if (Status s = need_driver(&d); !s.ok()) return s;
  if (const std::string& why = why_unusable(); !why.empty())
    return Status::unsupported("CUDA cannot be used: " + why);
  stream_ = stream;
  CUcontext current = nullptr, wanted = nullptr;
  ATTUNE_CUDA_TRY(*d, cuCtxGetCurrent, &current);
  if (reinterpret_cast<uintptr_t>(stream) > kLastSpecialStream) {
    ATTUNE_CUDA_TRY(*d, cuStreamGetCtx, static_cast<CUstream>(stream), &wanted);
  } else if (current != nullptr) {
    wanted = current;
  } else {
    const PointerFacts facts = pointer != nullptr ? facts_of(*d, pointer) : PointerFacts{};
    const bool known =
        facts.memory_type != 0 && facts.ordinal >= 0 && facts.ordinal < device_count();
    if (Status s = primary_context(*d, known ? facts.ordinal : 0, &wanted); !s.ok()) return s;
  }
  if (wanted != current) {
    ATTUNE_CUDA_TRY(*d, cuCtxPushCurrent, wanted);
    pushed_ = true;
  }
  CUdevice handle = 0;
  ATTUNE_CUDA_TRY(*d, cuCtxGetDevice, &handle);
  context_ = wanted;
  // The driver numbers its device handles as it numbers the devices.
  if (handle < 0 || handle >= device_count())
    return {ATTUNE_INTERNAL,
            fmt::format("the context's device is {} of {}", handle, device_count())};
  device_ = &found().devices[size_t(handle)];
  if (device_->arch.cc < kOldestCapability) return Status::unsupported(too_old(*device_));
  return {};
}

std::string why_not_here(const void* pointer, const Scope& scope) {
  const PointerFacts facts = facts_of(*driver(), pointer);
  if (facts.memory_type == 0) return "is not memory that CUDA knows: host memory, or already freed";
  if (facts.managed != 0) return "";
  if (facts.memory_type == kMemoryHost) return "is host memory";
  if (facts.ordinal != scope.device().ordinal)
    return fmt::format("lies on device {}, but the call runs on device {}", facts.ordinal,
                       scope.device().ordinal);
  return "";
}

}  // namespace attune::cuda
