// The driver's hardware, emulated. ATTUNE_EMULATOR_CC sets the first device's compute capability,
// ATTUNE_EMULATOR_SEED the order of threads and of asynchronous work.
#include "tests/cuda/fake/hardware.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "tests/cuda/fake/fake.hpp"
#include "tests/emulator/gpu.hpp"

namespace attune::cuda::fake {
namespace {

// As the driver numbers them.
constexpr int kUint8 = 0, kFloat32 = 7;
constexpr int kSwizzle64 = 2, kSwizzle128 = 3;

int number_of(const char* variable, int standard) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : standard;
}

// The bytes of a shared object: its section headers stand at its end.
size_t bytes_of(const void* image) {
  Elf64_Ehdr head;
  std::memcpy(&head, image, sizeof(head));
  return head.e_shoff + size_t(head.e_shnum) * head.e_shentsize;
}

class Emulated final : public Hardware {
 public:
  bool runs_kernels() const override { return true; }
  int compute_capability(CUdevice device) const override {
    return device == 0 ? number_of("ATTUNE_EMULATOR_CC", 90) : 80;
  }
  const char* name(CUdevice) const override { return "an emulated GPU"; }

  void allocated(CUdeviceptr address, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    memory_[address] = bytes;
  }
  void freed(CUdeviceptr address) override {
    const std::lock_guard lock(mutex_);
    memory_.erase(address);
  }
  bool owns(CUdeviceptr address) const override {
    const std::lock_guard lock(mutex_);
    auto next = memory_.upper_bound(address);
    if (next == memory_.begin()) return false;
    --next;
    return address < next->first + next->second;
  }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void fill(CUdeviceptr at, unsigned value, size_t size, size_t count) override {
    auto* to = reinterpret_cast<uint8_t*>(uintptr_t(at));
    for (size_t n = 0; n < count; ++n) std::memcpy(to + n * size, &value, size);
  }

  CUresult load(const void* image, void** module) override;
  void unload(void* module) override { dlclose(module); }
  CUresult find(void* module, const char* name, void** function) override;
  CUresult launch(const CUlaunchConfig& config, void* function, void** params) override;
  CUresult encode(void* map, int type, unsigned rank, void* address, const uint64_t* sizes,
                  const uint64_t* strides, const uint32_t* box, int swizzle) override;

 private:
  mutable std::mutex mutex_;
  std::map<CUdeviceptr, size_t> memory_;
  std::mutex running_;
  emulator::Gpu gpu_{unsigned(number_of("ATTUNE_EMULATOR_SEED", 1))};
};

// From a file of its own: the loader takes files of one name for the same.
CUresult Emulated::load(const void* image, void** module) {
  char path[] = "/tmp/attune-emulated-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return kOutOfMemory;
  const size_t bytes = bytes_of(image);
  if (write(file, image, bytes) == ssize_t(bytes)) *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  close(file);
  unlink(path);
  if (*module == nullptr) std::fprintf(stderr, "emulator: %s\n", dlerror());
  return *module != nullptr ? kSuccess : kInvalidValue;
}

CUresult Emulated::find(void* module, const char* name, void** function) {
  *function = dlsym(module, (std::string("attune_emulated_") + name).c_str());
  return *function != nullptr ? kSuccess : kInvalidValue;
}

// The kernel's object exports one function an entry: it takes the machine, and the arguments.
CUresult Emulated::launch(const CUlaunchConfig& config, void* function, void** params) {
  const std::lock_guard lock(running_);
  const auto entry = reinterpret_cast<void (*)(emulator::Machine*, void**)>(function);
  const std::string fault = gpu_.run({.blocks = config.grid[0],
                                      .threads = config.block[0],
                                      .shared_bytes = config.smem,
                                      .bind = [&](emulator::Machine* m) { entry(m, nullptr); },
                                      .kernel = [&] { entry(nullptr, params); }});
  if (fault.empty()) return kSuccess;
  std::fprintf(stderr, "emulator: %s\n", fault.c_str());
  return kLaunchFailure;
}

// What the driver refuses, this one refuses.
CUresult Emulated::encode(void* map, int type, unsigned rank, void* address, const uint64_t* sizes,
                          const uint64_t* strides, const uint32_t* box, int swizzle) {
  emulator::TensorMapBits bits{};
  bits.data = address;
  bits.rank = uint8_t(rank);
  bits.element_bytes = type == kUint8 ? 1 : type == kFloat32 ? 4 : 2;
  bits.swizzle_bytes = swizzle == kSwizzle128 ? 128 : swizzle == kSwizzle64 ? 64 : 0;
  if (rank < 3 || rank > 5 || uintptr_t(address) % 16 != 0) return kInvalidValue;
  if (box[0] * bits.element_bytes > bits.swizzle_bytes || box[0] * bits.element_bytes % 16 != 0)
    return kInvalidValue;
  for (unsigned d = 0; d < rank; ++d) {
    if (sizes[d] == 0 || sizes[d] > UINT32_MAX || box[d] == 0 || box[d] > 256) return kInvalidValue;
    bits.sizes[d] = uint32_t(sizes[d]);
    bits.box[d] = box[d];
    if (d == 0) continue;
    if (strides[d - 1] % 16 != 0 || strides[d - 1] >= uint64_t{1} << 40) return kInvalidValue;
    bits.strides[d - 1] = strides[d - 1];
  }
  static_assert(sizeof(bits) <= sizeof(TensorMap));
  std::memcpy(map, &bits, sizeof(bits));
  return kSuccess;
}

}  // namespace

Hardware& hardware() {
  static Hardware* const the_hardware = new Emulated;
  return *the_hardware;
}

}  // namespace attune::cuda::fake
