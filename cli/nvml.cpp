#include "cli/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "src/cuda/driver.hpp"

namespace attune::cli {
namespace {

constexpr int kSuccess = 0;
constexpr int kSmClock = 1, kMemoryClock = 2;  // NVML_CLOCK_SM, NVML_CLOCK_MEM

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

std::string uuid_of(const cuda::Device& device) {
  const cuda::Driver& d = *cuda::driver();
  cuda::CUdevice handle = 0;
  cuda::CUuuid id{};
  if (d.cuDeviceGet(&handle, device.ordinal) != cuda::kSuccess ||
      d.cuDeviceGetUuid(&id, handle) != cuda::kSuccess)
    return "";
  std::string text = "GPU";
  for (size_t n = 0; n < sizeof(id.bytes); ++n) {
    if (n == 0 || n == 4 || n == 6 || n == 8 || n == 10) text += '-';
    text += fmt::format("{:02x}", id.bytes[n]);
  }
  return text;
}

Nvml::Nvml(const std::string& uuid) {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  int (*init)() = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  const bool complete = find(library_, "nvmlInit_v2", &init) &&
                        find(library_, "nvmlDeviceGetHandleByUUID", &by_uuid) &&
                        find(library_, "nvmlDeviceGetClockInfo", &clock_) &&
                        find(library_, "nvmlDeviceGetMaxClockInfo", &most_clock_) &&
                        find(library_, "nvmlDeviceGetPowerUsage", &power_) &&
                        find(library_, "nvmlShutdown", &shutdown_);
  if (!complete || init() != kSuccess) {
    shutdown_ = nullptr;
    return;
  }
  if (by_uuid(uuid.c_str(), &device_) != kSuccess) device_ = nullptr;
}

Nvml::~Nvml() {
  if (shutdown_ != nullptr) shutdown_();
  if (library_ != nullptr) dlclose(library_);
}

Vitals Nvml::now() const {
  Vitals vitals;
  if (device_ == nullptr) return vitals;
  unsigned value = 0;
  if (clock_(device_, kSmClock, &value) == kSuccess) vitals.sm_mhz = value;
  if (power_(device_, &value) == kSuccess) vitals.watts = value / 1000.0;
  return vitals;
}

Limits Nvml::most() const {
  Limits limits;
  if (device_ == nullptr) return limits;
  unsigned value = 0;
  if (most_clock_(device_, kSmClock, &value) == kSuccess) limits.sm_mhz = value;
  if (most_clock_(device_, kMemoryClock, &value) == kSuccess) limits.memory_mhz = value;
  return limits;
}

}  // namespace attune::cli
