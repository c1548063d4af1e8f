#include "src/check/device_data.hpp"

#include <algorithm>
#include <array>

namespace attune::check {
namespace {

// Every size and start of a canary keeps what the driver's allocator gives: multiples of 256 bytes.
constexpr size_t kDeviceCanary = 256;

}  // namespace

std::mutex& device_turn() {
  static std::mutex mutex;
  return mutex;
}

Status status_of(attune_status code) {
  return {code, code == ATTUNE_OK ? "" : attune_last_error()};
}

Status DeviceTensor::upload(const Tensor& host) {
  if (!host.given()) return {};
  if (buffer_.data() == nullptr)
    if (Status s = buffer_.allocate(host.bytes().size()); !s.ok()) return s;
  return cuda::copy_to_device(buffer_.data(), host.bytes().data(), host.bytes().size());
}

Status DeviceTensor::download(std::vector<uint8_t>* bytes) const {
  bytes->resize(buffer_.bytes());
  return cuda::copy_to_host(bytes->data(), buffer_.data(), bytes->size());
}

void DeviceTensor::place(const Tensor& host, attune_tensor* view) const {
  if (host.given()) view->data = static_cast<uint8_t*>(buffer_.data()) + host.first();
}

Status DeviceInputs::upload(const std::vector<const Tensor*>& hosts) {
  hosts_ = hosts;
  tensors_ = std::vector<DeviceTensor>(hosts.size());
  for (size_t n = 0; n < hosts.size(); ++n)
    if (Status s = tensors_[n].upload(*hosts[n]); !s.ok()) return s;
  return {};
}

Status DeviceInputs::find_damage(ptrdiff_t* damaged) {
  *damaged = -1;
  std::vector<uint8_t> bytes;
  for (size_t n = 0; n < hosts_.size(); ++n) {
    if (!hosts_[n]->given()) continue;
    if (Status s = tensors_[n].download(&bytes); !s.ok()) return s;
    if (bytes == hosts_[n]->bytes()) continue;
    *damaged = ptrdiff_t(n);
    return tensors_[n].upload(*hosts_[n]);  // the next candidate gets it whole
  }
  return {};
}

Status Workspace::allocate(size_t bytes) {
  bytes_ = bytes;
  return buffer_.allocate(bytes + 2 * kDeviceCanary);
}

Status Workspace::poison() const {
  return cuda::fill_bytes(buffer_.data(), kPoison, buffer_.bytes(), nullptr);
}

void* Workspace::data() const { return static_cast<uint8_t*>(buffer_.data()) + kDeviceCanary; }

Status Workspace::surroundings_intact(bool* intact) const {
  std::array<uint8_t, kDeviceCanary> before, after;
  const auto* end = static_cast<const uint8_t*>(data()) + bytes_;
  if (Status s = cuda::copy_to_host(before.data(), buffer_.data(), before.size()); !s.ok())
    return s;
  if (Status s = cuda::copy_to_host(after.data(), end, after.size()); !s.ok()) return s;
  const auto poison = [](uint8_t byte) { return byte == kPoison; };
  *intact = std::all_of(before.begin(), before.end(), poison) &&
            std::all_of(after.begin(), after.end(), poison);
  return {};
}

attune_args device_args(const Data& data, const DeviceInputs& inputs, bool strict_fp32) {
  attune_args args = data.args();
  args.device = ATTUNE_CUDA;
  args.strict_fp32 = strict_fp32;
  attune_tensor* views[] = {&args.q,
                            &args.k,
                            &args.v,
                            &args.mask,
                            &args.block_mask,
                            &args.alibi_slopes,
                            &args.sinks,
                            &args.cu_seqlens_q,
                            &args.cu_seqlens_k,
                            &args.key_lengths};
  for (size_t n = 0; n < std::size(views); ++n) inputs.place(n, views[n]);
  if (data.p.ragged) {
    // The longest sequence, or any bound of it: masks have the shape of the former.
    const bool loose = data.c.seed % 3 == 0 && !data.mask.given() && !data.block_mask.given();
    args.max_seq_q = loose ? data.total_q : data.p.seq_q;
    args.max_seq_k = loose ? data.total_k : data.p.seq_k;
  }
  return args;
}

}  // namespace attune::check
