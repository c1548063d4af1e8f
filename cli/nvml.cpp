#include "cli/nvml.hpp"

#include <dlfcn.h>

namespace attune::cli {
namespace {

constexpr int kSuccess = 0;
constexpr int kSmClock = 1;  // NVML_CLOCK_SM

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

Nvml::Nvml(const std::string& uuid) {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  int (*init)() = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  const bool complete = find(library_, "nvmlInit_v2", &init) &&
                        find(library_, "nvmlDeviceGetHandleByUUID", &by_uuid) &&
                        find(library_, "nvmlDeviceGetClockInfo", &clock_) &&
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

}  // namespace attune::cli
