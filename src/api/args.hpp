// The argument structs across versions: their defaults, and how a caller's struct of another size
// is read.
#pragma once

#include <attune/attune.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "src/api/tensor_check.hpp"
#include "src/status.hpp"

namespace attune {

template <class Args>
Args defaults() {
  Args a{};
  a.struct_size = sizeof(a);
  return a;
}

template <>
inline attune_args defaults() {
  attune_args a{};
  a.struct_size = sizeof(a);
  a.window_left = -1;
  a.window_right = -1;
  return a;
}

// A smaller struct lacks what every call needs; beyond the largest, the size was never set.
template <class Args>
inline constexpr size_t kMinSize = sizeof(Args);
template <>
inline constexpr size_t kMinSize<attune_args> = offsetof(attune_args, lse);
template <>
inline constexpr size_t kMinSize<attune_backward_args> = offsetof(attune_backward_args, dq);
inline constexpr size_t kMaxSize = 1 << 16;

template <class Args>
Status check_struct_size(const char* name, const char* field, size_t size) {
  if (size >= kMinSize<Args> && size <= kMaxSize) return {};
  return Status::invalid(text(name, field, " is ", size, "; expected ", kMinSize<Args>, "..",
                              kMaxSize, ", ", sizeof(Args),
                              " in this version: the init function sets it"));
}

template <class Args>
Status init_args(Args* args, size_t size) {
  if (args == nullptr) return Status::invalid("args is NULL");
  ATTUNE_TRY(check_struct_size<Args>("size", "", size));
  const Args fresh = defaults<Args>();
  std::memset(static_cast<void*>(args), 0, size);
  std::memcpy(static_cast<void*>(args), &fresh, std::min(size, sizeof(Args)));
  args->struct_size = size;
  return {};
}

// An older caller's struct ends early: the rest keeps its defaults. A newer one's is longer: what
// is not known here must be 0.
template <class Args>
Status copy_args(const char* name, const Args* args, Args* copy) {
  if (args == nullptr) return Status::invalid(text(name, " is NULL"));
  const size_t size = args->struct_size;
  ATTUNE_TRY(check_struct_size<Args>(name, ".struct_size", size));
  const auto* bytes = reinterpret_cast<const unsigned char*>(args);
  for (size_t i = sizeof(Args); i < size; ++i)
    if (bytes[i] != 0)
      return Status::unsupported(text(name, ".struct_size is ", size, " and byte ", i,
                                      " is not 0, but version ", attune_version(),
                                      " knows only the first ", sizeof(Args), " bytes"));
  *copy = defaults<Args>();
  std::memcpy(static_cast<void*>(copy), args, std::min(size, sizeof(Args)));
  return {};
}

}  // namespace attune
