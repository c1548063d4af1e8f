#include "src/api/tensor_check.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace attune {
namespace {

// Bytes from a tensor's first to its last; two of them still add up in 64 bits.
constexpr int64_t kMaxSpan = int64_t{1} << 62;

std::string axis_name(const char* tensor, int axis) { return text(tensor, ".shape[", axis, "]"); }

std::string origin_of(const Dim& d) {
  return d.axis < 0 ? std::string(d.origin) : axis_name(d.origin, d.axis);
}

Status check_sizes(const char* name, const attune_tensor& t) {
  int64_t elements = 1;
  for (int axis = 0; axis < t.rank; ++axis) {
    const int64_t size = t.shape[axis];
    if (size < 0)
      return Status::invalid(text(axis_name(name, axis), " is ", size, "; a size is at least 0"));
    // An empty tensor's other sizes count too: loops run over them.
    if (__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements))
      return Status::invalid(
          text(name, " has more than 2^63 - 1 elements: ", axis_name(name, axis), " is ", size));
  }
  return {};
}

}  // namespace

bool has_elements(const attune_tensor& t) {
  return std::all_of(t.shape, t.shape + t.rank, [](int64_t size) { return size > 0; });
}

int64_t step(const attune_tensor& t, int axis) {
  return has_elements(t) && t.shape[axis] > 1 ? t.stride[axis] : 0;
}

int64_t element_size(int32_t dtype) {
  switch (dtype) {
    case ATTUNE_F64:
      return 8;
    case ATTUNE_F32:
    case ATTUNE_I32:
      return 4;
    case ATTUNE_F16:
    case ATTUNE_BF16:
      return 2;
    case ATTUNE_BOOL:
      return 1;
    default:
      return 0;
  }
}

std::string dtype_name(int32_t dtype) {
  switch (dtype) {
    case ATTUNE_F32:
      return "F32";
    case ATTUNE_F16:
      return "F16";
    case ATTUNE_BF16:
      return "BF16";
    case ATTUNE_BOOL:
      return "BOOL";
    case ATTUNE_I32:
      return "I32";
    case ATTUNE_F64:
      return "F64";
    default:
      return text(dtype, " (no attune_dtype)");
  }
}

Status check_shape(const char* name, const attune_tensor& t, const Shape& want) {
  if (t.rank != want.rank)
    return Status::invalid(text(name, ".rank is ", t.rank, "; expected ", want.rank));
  ATTUNE_TRY(check_sizes(name, t));
  for (int axis = 0; axis < t.rank; ++axis) {
    const Dim& d = want.dims[axis];
    if (d.size != kAnySize && t.shape[axis] != d.size)
      return Status::invalid(text(axis_name(name, axis), " is ", t.shape[axis], ", but ",
                                  origin_of(d), " is ", d.size));
  }
  return {};
}

Status check_broadcast(const char* name, const attune_tensor& t, const Shape& want) {
  if (t.rank < 0 || t.rank > want.rank)
    return Status::invalid(text(name, ".rank is ", t.rank, "; expected at most ", want.rank));
  ATTUNE_TRY(check_sizes(name, t));
  for (int axis = 0; axis < t.rank; ++axis) {
    const Dim& d = want.dims[axis + want.rank - t.rank];
    if (d.size != kAnySize && t.shape[axis] != d.size && t.shape[axis] != 1)
      return Status::invalid(text(axis_name(name, axis), " is ", t.shape[axis],
                                  " and does not broadcast: ", origin_of(d), " is ", d.size));
  }
  return {};
}

Status check_dtype(const char* name, const attune_tensor& t,
                   std::initializer_list<attune_dtype> allowed) {
  if (std::find(allowed.begin(), allowed.end(), t.dtype) != allowed.end()) return {};
  std::string list;
  for (attune_dtype dtype : allowed) list += (list.empty() ? "" : " or ") + dtype_name(dtype);
  return Status::invalid(text(name, ".dtype is ", dtype_name(t.dtype), "; expected ", list));
}

void Memory::Region::add(Axis axis) {
  int place = axis_count++;
  for (; place > 0 && axes[size_t(place - 1)].stride < axis.stride; --place)
    axes[size_t(place)] = axes[size_t(place - 1)];
  axes[size_t(place)] = axis;
}

Status Memory::add(const char* name, const attune_tensor& t, Access access,
                   LastStride last_stride) {
  Region r{name, access, 0, 0, {}, 0};
  if (t.rank < 0 || size_t(t.rank) >= r.axes.size())
    return {ATTUNE_INTERNAL, text(name, ".rank is ", t.rank, ", and nobody checked it")};
  if (!has_elements(t)) return {};
  const int64_t bytes = element_size(t.dtype);
  int64_t below = 0, above = bytes - 1;  // from data to the region's first and last byte
  for (int axis = 0; axis < t.rank; ++axis) {
    const int64_t size = t.shape[axis], stride = t.stride[axis];
    if (size == 1) continue;
    if (axis == t.rank - 1 && last_stride == LastStride::one && stride != 1)
      return Status::invalid(
          text(name, ".stride[", axis, "] is ", stride, "; the last dimension needs stride 1"));
    int64_t byte_stride, reach;
    if (__builtin_mul_overflow(stride, bytes, &byte_stride) ||
        __builtin_mul_overflow(byte_stride, size - 1, &reach) ||
        __builtin_add_overflow(reach < 0 ? below : above, reach, reach < 0 ? &below : &above) ||
        below < -kMaxSpan / 2 || above > kMaxSpan / 2)
      return Status::invalid(text(name, " reaches beyond 64-bit addresses: ", axis_name(name, axis),
                                  " is ", size, ", ", name, ".stride[", axis, "] is ", stride));
    r.add({uint64_t(byte_stride < 0 ? -byte_stride : byte_stride), uint64_t(size - 1)});
  }
  if (t.data == nullptr && pointers_ == Pointers::required)
    return Status::invalid(text(name, ".data is NULL, but its shape has elements"));
  const uint64_t address = reinterpret_cast<uintptr_t>(t.data);
  if (address % uint64_t(bytes) != 0)
    return Status::invalid(text(name, ".data is at ", t.data, ", not aligned to the ", bytes,
                                " bytes of ", dtype_name(t.dtype)));
  if (t.data != nullptr && (__builtin_add_overflow(address, below, &r.first) ||
                            __builtin_add_overflow(address, above, &r.last)))
    return Status::invalid(text(name, ".data is at ", t.data, ", and the tensor reaches from byte ",
                                below, " to byte ", above, " of it: beyond the address space"));
  r.add({1, uint64_t(bytes - 1)});
  if (access == Access::write && overlaps_itself(r))
    return Status::invalid(text(name, " is written, but its strides let elements overlap"));
  if (t.data == nullptr) {
    shapes_only_ = true;
    return {};
  }
  if (size_t(count_) == regions_.size())
    return {ATTUNE_INTERNAL,
            text(name, " is one tensor more than the ", regions_.size(), " of a call")};
  regions_[size_t(count_++)] = r;
  return {};
}

// Each stride must step over everything that the smaller ones reach.
bool Memory::overlaps_itself(const Region& r) {
  uint64_t reach = 0;
  for (int i = r.axis_count - 1; i >= 0; --i) {
    const Axis& a = r.axes[size_t(i)];
    if (a.last > 0 && a.stride <= reach) return true;
    reach += a.stride * a.last;
  }
  return false;
}

Status Memory::check_overlaps() const {
  for (int i = 0; i < count_; ++i)
    for (int j = 0; j < i; ++j) {
      const Region &a = regions_[size_t(i)], &b = regions_[size_t(j)];
      if ((a.access == Access::write || b.access == Access::write) && overlap(a, b)) {
        const bool a_written = a.access == Access::write;
        return Status::invalid(
            text(a_written ? a.name : b.name, " is written, but shares memory with ",
                 a_written ? b.name : a.name, ": bytes ", std::hex, std::showbase, a.first, "..",
                 a.last, " and ", b.first, "..", b.last));
      }
    }
  return {};
}

int Memory::places(std::array<Place, kMostPlaces>* list) const {
  static_assert(std::tuple_size_v<decltype(regions_)> <= kMostPlaces);
  for (size_t i = 0; i < size_t(count_); ++i)
    (*list)[i] = {regions_[i].name, reinterpret_cast<const void*>(regions_[i].first),
                  regions_[i].last - regions_[i].first + 1};
  return count_;
}

// Ranges that meet do not prove an overlap: packed tensors (dq, dk, dv as slices of one buffer)
// interleave. A byte is shared when a.first + (steps of a) = b.last - (steps of b), so when some
// choice of indices makes all steps sum to b.last - a.first.
bool Memory::overlap(const Region& a, const Region& b) {
  if (a.last < b.first || b.last < a.first) return false;
  std::array<Axis, 10> axes;
  auto end = std::merge(a.axes.begin(), a.axes.begin() + a.axis_count, b.axes.begin(),
                        b.axes.begin() + b.axis_count, axes.begin(),
                        [](Axis x, Axis y) { return x.stride > y.stride; });
  // Equal strides act as one longer axis, which keeps the search from branching.
  size_t count = 0;
  for (auto axis = axes.begin(); axis != end; ++axis) {
    if (count > 0 && axes[count - 1].stride == axis->stride)
      axes[count - 1].last += axis->last;
    else
      axes[count++] = *axis;
  }
  int budget = 10000;
  return reaches(axes.data(), int(count), b.last - a.first, &budget);
}

// Whether indices exist with sum of stride * index == target. Out of budget counts as yes: refusing
// is the safe side.
bool Memory::reaches(const Axis* axes, int count, uint64_t target, int* budget) {
  if (count == 0) return target == 0;
  if (--*budget < 0) return true;
  if (axes->stride == 0) return reaches(axes + 1, count - 1, target, budget);
  uint64_t rest = 0;
  for (int i = 1; i < count; ++i) rest += axes[i].stride * axes[i].last;
  const uint64_t least = target > rest ? (target - rest + axes->stride - 1) / axes->stride : 0;
  const uint64_t most = std::min(axes->last, target / axes->stride);
  for (uint64_t index = least; index <= most; ++index)
    if (reaches(axes + 1, count - 1, target - index * axes->stride, budget)) return true;
  return false;
}

}  // namespace attune
