// The floating-point mode of a thread: rounding, flushing of denormals, traps.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace attune::cpu {

// The default mode while it lives: round to nearest, denormals kept, no traps. Every thread of a
// call computes in it. Otherwise the bits of a row would depend on which thread computed it: a
// caller's mode (torch.set_flush_denormal, a library built with -ffast-math) is that of one thread.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(read()), changed_((saved_ & kMode) != kDefault) {
    if (changed_) write(kDefault);
  }
  ~DefaultFloatMode() {
    if (changed_) write(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;
  static constexpr Word kMode = 0xffc0, kDefault = 0x1f80;  // MXCSR without its sticky flags
  static Word read() { return _mm_getcsr(); }
  static void write(Word mode) { _mm_setcsr(mode); }
#else
  using Word = uint64_t;
  static constexpr Word kMode = 0xffffffff, kDefault = 0;  // FPCR
  static Word read() {
    Word mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(Word mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#endif

  const Word saved_;
  const bool changed_;
};

}  // namespace attune::cpu
