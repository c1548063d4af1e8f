// A small valid call with memory of its own, for tests to spoil.
#pragma once

#include <attune/attention.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace attune::testing {

constexpr float kUntouched = 12345;

inline std::vector<float> numbers(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (float& x : values) {
    seed = seed * 1664525u + 1013904223u;
    x = float(seed >> 8) / float(1 << 23) - 1;
  }
  return values;
}

struct Memory {
  static constexpr size_t kFloats = 1024;
  std::vector<float> q = numbers(kFloats, 1), k = numbers(kFloats, 2), v = numbers(kFloats, 3);
  std::vector<float> out = std::vector<float>(kFloats, kUntouched), lse = out;
  std::vector<float> mask = numbers(kFloats, 4), slopes = numbers(64, 5), sinks = numbers(64, 6);
  std::vector<uint8_t> block_mask = std::vector<uint8_t>(64, 1);
  std::vector<int32_t> cu_q, cu_k, key_lengths;
  std::vector<float> dout = numbers(kFloats, 7);
  std::vector<float> dq = out, dk = out, dv = out, dmask = out, dsinks = out;
};

// B=2, H=4, Hkv=2, Sq=5, Sk=7, D=8, Dv=6. The tensors point into the sample itself: it is not
// copied.
struct Sample {
  Memory m;
  Args a;
  BackwardArgs b{a};

  Sample() {
    a.q = tensor(m.q.data(), {2, 4, 5, 8});
    a.k = tensor(m.k.data(), {2, 2, 7, 8});
    a.v = tensor(m.v.data(), {2, 2, 7, 6});
    a.out = tensor(m.out.data(), {2, 4, 5, 6});
    a.lse = tensor(m.lse.data(), {2, 4, 5});
    a.threads = 1;
    b.dout = tensor(m.dout.data(), {2, 4, 5, 6});
    b.dq = tensor(m.dq.data(), {2, 4, 5, 8});
    b.dk = tensor(m.dk.data(), {2, 2, 7, 8});
    b.dv = tensor(m.dv.data(), {2, 2, 7, 6});
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  // Two sequences, with 3 and 2 queries and 2 and 5 keys.
  void make_ragged() {
    m.cu_q = {0, 3, 5};
    m.cu_k = {0, 2, 7};
    a.q = tensor(m.q.data(), {5, 4, 8});
    a.k = tensor(m.k.data(), {7, 2, 8});
    a.v = tensor(m.v.data(), {7, 2, 6});
    a.out = tensor(m.out.data(), {5, 4, 6});
    a.lse = tensor(m.lse.data(), {4, 5});
    a.cu_seqlens_q = tensor(m.cu_q.data(), {3});
    a.cu_seqlens_k = tensor(m.cu_k.data(), {3});
  }

  // Of 7 keys, or of 2 and 5.
  void add_key_lengths(int32_t first, int32_t second) {
    m.key_lengths = {first, second};
    a.key_lengths = tensor(m.key_lengths.data(), {2});
  }

  void add_mask() { a.mask = tensor(m.mask.data(), {2, 1, 5, 7}); }
  void add_block_mask() {
    a.block_mask = tensor(m.block_mask.data(), ATTUNE_BOOL, {2, 4, 3, 2});
    a.block_mask_q = 2;
    a.block_mask_k = 4;
  }
  void add_sinks() { a.sinks = tensor(m.sinks.data(), {4}); }

  bool written() const {
    for (const auto* values : {&m.out, &m.lse, &m.dq, &m.dk, &m.dv, &m.dmask, &m.dsinks})
      for (float x : *values)
        if (x != kUntouched) return true;
    return false;
  }
};

}  // namespace attune::testing
