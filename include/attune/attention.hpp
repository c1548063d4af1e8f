// Attune for C++: a thin, header-only façade over the C ABI of attune.h, so that no C++ type
// crosses the library's border.
//
//   std::vector<float> q(1 * 8 * 512 * 64), k(q), v(q), out(q);
//   attune::Args a;
//   a.q = attune::tensor(q.data(), {1, 8, 512, 64});
//   a.k = attune::tensor(k.data(), {1, 8, 512, 64});
//   a.v = attune::tensor(v.data(), {1, 8, 512, 64});
//   a.out = attune::tensor(out.data(), {1, 8, 512, 64});
//   a.causal = true;
//   attune::forward(a);  // throws attune::Error
//
// attune.h says what each field means, and what holds for threads and for fork.
#pragma once

#include <attune/attune.h>

#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace attune {

class Error : public std::runtime_error {
 public:
  Error(attune_status status, const std::string& what)
      : std::runtime_error(what), status_(status) {}
  attune_status status() const { return status_; }

 private:
  attune_status status_;
};

inline void throw_unless_ok(attune_status status) {
  if (status != ATTUNE_OK) throw Error(status, attune_last_error());
}

struct Args : attune_args {
  Args() { throw_unless_ok(attune_args_init(this, sizeof(attune_args))); }
};

struct BackwardArgs : attune_backward_args {
  explicit BackwardArgs(const attune_args& forward_args) {
    throw_unless_ok(attune_backward_args_init(this, sizeof(attune_backward_args)));
    forward = &forward_args;
  }
};

// The dtype of plain C++ types; 16-bit floats are named by the caller.
template <class T>
constexpr attune_dtype dtype_of() {
  using U = std::remove_const_t<T>;
  static_assert(std::is_same_v<U, float> || std::is_same_v<U, double> || std::is_same_v<U, bool> ||
                    std::is_same_v<U, int32_t>,
                "name the dtype: tensor(pointer, ATTUNE_BF16, shape)");
  if (std::is_same_v<U, double>) return ATTUNE_F64;
  return std::is_same_v<U, float> ? ATTUNE_F32 : std::is_same_v<U, bool> ? ATTUNE_BOOL : ATTUNE_I32;
}

// A view with the given strides (in elements), or a contiguous one.
inline attune_tensor tensor(const void* data, attune_dtype dtype,
                            std::initializer_list<int64_t> shape,
                            std::initializer_list<int64_t> stride = {}) {
  attune_tensor t{const_cast<void*>(data), dtype, static_cast<int32_t>(shape.size()), {}, {}};
  if (shape.size() > 4 || (stride.size() != 0 && stride.size() != shape.size()))
    throw Error(ATTUNE_INVALID_ARGUMENT, "tensor: at most 4 dimensions, and one stride for each");
  int n = 0;
  for (int64_t s : shape) t.shape[n++] = s;
  if (stride.size() != 0) {
    n = 0;
    for (int64_t s : stride) t.stride[n++] = s;
  } else {
    int64_t step = 1;
    for (int d = t.rank - 1; d >= 0; --d) {
      t.stride[d] = step;
      step *= t.shape[d];
    }
  }
  return t;
}

template <class T>
attune_tensor tensor(const T* data, std::initializer_list<int64_t> shape,
                     std::initializer_list<int64_t> stride = {}) {
  return tensor(static_cast<const void*>(data), dtype_of<T>(), shape, stride);
}

inline void forward(const attune_args& args) { throw_unless_ok(attune_forward(&args)); }

// The device memory that forward(args) would like as its workspace, in bytes; 0 on the CPU.
inline size_t workspace_size(const attune_args& args) {
  size_t bytes = 0;
  throw_unless_ok(attune_workspace_size(&args, &bytes));
  return bytes;
}

// Compiles what forward(args) would run, or takes it from the cache, without running it.
inline void prepare(const attune_args& args) { throw_unless_ok(attune_prepare(&args)); }

inline void backward(const attune_backward_args& args) { throw_unless_ok(attune_backward(&args)); }

// The kernel that forward(args) would run, and why every other one would not: JSON.
inline std::string explain(const attune_args& args) {
  size_t needed = 0;
  throw_unless_ok(attune_explain(&args, nullptr, 0, &needed));
  std::string text(needed, '\0');
  throw_unless_ok(attune_explain(&args, text.data(), text.size(), nullptr));
  text.pop_back();
  return text;
}

// What the library found on this machine: JSON.
inline std::string info() {
  size_t needed = 0;
  throw_unless_ok(attune_info(nullptr, 0, &needed));
  std::string text(needed, '\0');
  throw_unless_ok(attune_info(text.data(), text.size(), nullptr));
  text.pop_back();
  return text;
}

}  // namespace attune
