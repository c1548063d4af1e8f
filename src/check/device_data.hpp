// The tensors of a case on a CUDA device.
#pragma once

#include <attune/attune.h>

#include <mutex>
#include <string>
#include <vector>

#include "src/check/data.hpp"
#include "src/cuda/memory.hpp"
#include "src/status.hpp"

namespace attune::check {

// The candidates take turns on the device, so that a failure belongs to one of them.
std::mutex& device_turn();

Status status_of(attune_status code);  // with attune_last_error()

// A tensor's whole memory on the device, at the same place relative to 256 bytes.
class DeviceTensor {
 public:
  Status upload(const Tensor& host);
  Status download(std::vector<uint8_t>* bytes) const;
  // The host tensor's view, on the device.
  void place(const Tensor& host, attune_tensor* view) const;

 private:
  cuda::Buffer buffer_;
};

// Tensors that a call reads and does not write, with their names.
class DeviceInputs {
 public:
  Status upload(const std::vector<const Tensor*>& hosts);
  void place(size_t n, attune_tensor* view) const { tensors_[n].place(*hosts_[n], view); }
  // The first that differs from the host's, which is then uploaded anew; -1: none.
  Status find_damage(ptrdiff_t* damaged);

 private:
  std::vector<const Tensor*> hosts_;
  std::vector<DeviceTensor> tensors_;
};

// Device memory without a tensor: poisoned, between canaries.
class Workspace {
 public:
  Status allocate(size_t bytes);
  Status poison() const;
  void* data() const;
  Status surroundings_intact(bool* intact) const;

 private:
  cuda::Buffer buffer_;
  size_t bytes_ = 0;
};

// The forward call of the case, with its inputs (in the order of Data::inputs()) on the device; out
// and lse are still the host's.
attune_args device_args(const Data& data, const DeviceInputs& inputs, bool strict_fp32);

}  // namespace attune::check
