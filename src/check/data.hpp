// The tensors of a case: fresh memory between canaries, filled from the case's seed.
#pragma once

#include <attune/attune.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/check/cases.hpp"
#include "src/check/random.hpp"
#include "src/cpu/half.hpp"

namespace attune::check {

// ---- Tensors between canaries ----

// Every byte that nobody set is this one: as a float of any width it is NaN, so that reading a gap
// shows in the result, and an output element that was not written shows as well.
inline constexpr uint8_t kPoison = 0xff;

// The address sanitizer's own red zones catch reads too, but only when they follow the data at
// once.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr size_t kCanaryBytes = 0;
#else
inline constexpr size_t kCanaryBytes = 256;
#endif

inline int64_t element_size(int32_t dtype) {
  switch (dtype) {
    case ATTUNE_BOOL:
      return 1;
    case ATTUNE_F16:
    case ATTUNE_BF16:
      return 2;
    default:
      return 4;
  }
}

// A tensor with memory of its own. Strides follow `order` (outermost first), with `pad` elements
// between neighbours of every dimension but the innermost, and `offset` elements before the first.
class Tensor {
 public:
  Tensor() = default;
  Tensor(int32_t dtype, const std::vector<int64_t>& shape, const std::vector<int>& order,
         int64_t pad, int64_t offset) {
    view.dtype = dtype;
    view.rank = int32_t(shape.size());
    int64_t elements = 1;  // from the first to the last in memory
    int64_t step = 1;
    for (size_t n = order.size(); n-- > 0;) {
      const size_t d = size_t(order[n]);
      view.shape[d] = shape[d];
      view.stride[d] = step;
      elements += (shape[d] - 1) * step;
      step = step * std::max<int64_t>(shape[d], 1) + pad;
    }
    if (std::count(shape.begin(), shape.end(), 0) > 0) elements = 0;
    bytes_.assign(size_t((elements + offset) * element_size(dtype)) + 2 * kCanaryBytes, kPoison);
    view.data = bytes_.data() + kCanaryBytes + offset * element_size(dtype);
  }
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  bool given() const { return view.rank != 0; }

  // Before anything is written: the last of dimension d comes first in memory.
  void turn_round(int d) {
    if (std::count(view.shape, view.shape + view.rank, 0) > 0) return;
    const int64_t last = (view.shape[d] - 1) * view.stride[d];
    view.data = static_cast<uint8_t*>(view.data) + last * element_size(view.dtype);
    view.stride[d] = -view.stride[d];
  }
  // One stands for all of dimension d; the others' memory is a gap.
  void repeat(int d) { view.stride[d] = 0; }

  int64_t at(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    return a * view.stride[0] + b * view.stride[1] + c * view.stride[2] + d * view.stride[3];
  }

  void set(int64_t at, float x) {
    switch (view.dtype) {
      case ATTUNE_BOOL:
        static_cast<uint8_t*>(view.data)[at] = x != 0;
        break;
      case ATTUNE_F16:
        static_cast<uint16_t*>(view.data)[at] = cpu::float_to_f16(x);
        break;
      case ATTUNE_BF16:
        static_cast<uint16_t*>(view.data)[at] = cpu::float_to_bf16(x);
        break;
      default:
        static_cast<float*>(view.data)[at] = x;
    }
  }

  float get(int64_t at) const {
    switch (view.dtype) {
      case ATTUNE_BOOL:
        return static_cast<const uint8_t*>(view.data)[at];
      case ATTUNE_F16:
        return cpu::f16_to_float(static_cast<const uint16_t*>(view.data)[at]);
      case ATTUNE_BF16:
        return cpu::bf16_to_float(static_cast<const uint16_t*>(view.data)[at]);
      default:
        return static_cast<const float*>(view.data)[at];
    }
  }

  // fn(the place in memory) for each element.
  template <class Fn>
  void for_each(const Fn& fn) const {
    if (!given()) return;
    int64_t n[4] = {1, 1, 1, 1};
    for (int d = 0; d < view.rank; ++d) n[d] = view.shape[d];
    for (int64_t a = 0; a < n[0]; ++a)
      for (int64_t b = 0; b < n[1]; ++b)
        for (int64_t c = 0; c < n[2]; ++c)
          for (int64_t d = 0; d < n[3]; ++d) fn(at(a, b, c, d));
  }

  // fn(the place of the first, how many) for elements that lie one after another.
  template <class Fn>
  void for_each_run(const Fn& fn) const {
    int64_t begin = 0, count = 0;
    for_each([&](int64_t at) {
      if (count > 0 && at != begin + count) {
        fn(begin, count);
        count = 0;
      }
      if (count++ == 0) begin = at;
    });
    if (count > 0) fn(begin, count);
  }

  // Of all bytes, canaries and gaps included. By words: under sanitizers and emulators a loop over
  // bytes took much of a test. Every step can be undone, so one word that differs always shows.
  uint64_t hash() const {
    constexpr size_t kWord = sizeof(uint64_t);
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t at = 0; at < bytes_.size(); at += kWord) {
      uint64_t word = 0;
      std::memcpy(&word, bytes_.data() + at, std::min(kWord, bytes_.size() - at));
      h = (h ^ word) * 0x9e3779b97f4a7c15u;
      h ^= h >> 32;
    }
    return h;
  }

  // Whether canaries and gaps between rows are as they were.
  bool surroundings_intact() const {
    std::vector<uint8_t> rest = bytes_;
    const int64_t size = element_size(view.dtype);
    for_each_run([&](int64_t at, int64_t count) {
      std::memset(rest.data() + first() + at * size, kPoison, size_t(count * size));
    });
    return rest.empty() ||
           (rest[0] == kPoison && std::memcmp(rest.data(), rest.data() + 1, rest.size() - 1) == 0);
  }

  // Everything, canaries and gaps included.
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  std::vector<uint8_t>& bytes() { return bytes_; }
  ptrdiff_t first() const { return static_cast<const uint8_t*>(view.data) - bytes_.data(); }

  attune_tensor view{};

 private:
  std::vector<uint8_t> bytes_;
};

// ---- From a case to its tensors ----

int32_t as_dtype(MaskKind kind);

struct Data {
  explicit Data(const Case& c);

  Tensor activation(int64_t heads, bool query, int64_t dim) const;
  Tensor lse_like() const;
  Tensor mask_like(int32_t dtype, int64_t rows, int64_t keys) const;
  Params params() const;
  attune_args args() const;
  // All of them, given or not.
  std::vector<Tensor*> tensors() {
    return {&q,          &k,      &v,     &out,  &lse,  &mask,
            &block_mask, &slopes, &sinks, &cu_q, &cu_k, &key_lengths};
  }
  std::vector<const Tensor*> inputs() const {
    return {&q, &k, &v, &mask, &block_mask, &slopes, &sinks, &cu_q, &cu_k, &key_lengths};
  }

  const Case& c;
  const Problem& p;
  int64_t total_q = 0, total_k = 0;  // ragged: rows in all
  Tensor q, k, v, out, lse, mask, block_mask, slopes, sinks, cu_q, cu_k, key_lengths;

 private:
  void fill_mask(Tensor* t, int64_t rows, int64_t keys, Random* random) const;
  void fill_qkv(Random* random);
  void dominate_rows();
  void poison_keys();
  void poison_unused_keys();
  void poison(const Params& a, int64_t b, int64_t head_kv, int64_t row, float bad);
  bool reachable(const Params& a, int64_t b, int64_t head_kv, int64_t j) const;
};

View as_view(const Tensor& t, bool ragged);
View lse_view(const Tensor& t, bool ragged);

}  // namespace attune::check
