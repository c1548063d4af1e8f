// What of a GPU a config depends on.
#pragma once

namespace attune {

// What of a GPU decides whether a config can run.
struct Arch {
  int cc = 0;          // compute capability: 75, 80, ... 121
  int smem_block = 0;  // shared memory that a block may ask for, bytes
  int smem_sm = 0;     // shared memory of a multiprocessor, bytes
  int sms = 0;         // multiprocessors

  bool operator==(const Arch&) const = default;
};

// By compute capability alone, where there is no device to ask (tests, warming a cache for others).
constexpr Arch arch_of(int cc) {
  constexpr int kKB = 1024;
  switch (cc) {
    case 75:
      return {75, 64 * kKB, 64 * kKB, 40};
    case 80:
      return {80, 163 * kKB, 164 * kKB, 108};
    case 86:
      return {86, 99 * kKB, 100 * kKB, 84};
    case 87:
      return {87, 163 * kKB, 164 * kKB, 16};
    case 89:
      return {89, 99 * kKB, 100 * kKB, 128};
    case 90:
      return {90, 227 * kKB, 228 * kKB, 132};
    case 100:
    case 103:
      return {cc, 227 * kKB, 228 * kKB, 148};
    case 120:
      return {120, 99 * kKB, 100 * kKB, 170};
    case 121:
      return {121, 99 * kKB, 100 * kKB, 48};
    default:
      return {cc, 48 * kKB, 48 * kKB, 16};
  }
}

}  // namespace attune
