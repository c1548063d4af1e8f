// Clock and power of a GPU while it works, where NVIDIA's management library is there to ask.
#pragma once

#include <optional>
#include <string>

#include "src/cuda/device.hpp"

namespace attune::cli {

struct Vitals {
  std::optional<double> sm_mhz, watts;
};

struct Limits {  // of the clocks
  std::optional<double> sm_mhz, memory_mhz;
};

// What NVML knows the device by; empty where the driver does not say.
std::string uuid_of(const cuda::Device& device);

class Nvml {
 public:
  // The device by its UUID ("GPU-..."): the numbers of CUDA and of NVML need not agree.
  explicit Nvml(const std::string& uuid);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  Vitals now() const;  // empty where nothing is known
  Limits most() const;

 private:
  using Device = void*;
  void* library_ = nullptr;
  Device device_ = nullptr;
  int (*shutdown_)() = nullptr;
  int (*clock_)(Device, int kind, unsigned* mhz) = nullptr;
  int (*most_clock_)(Device, int kind, unsigned* mhz) = nullptr;
  int (*power_)(Device, unsigned* milliwatts) = nullptr;
};

}  // namespace attune::cli
