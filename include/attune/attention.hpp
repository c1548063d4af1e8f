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
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

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

inline size_t workspace_size(const attune_backward_args& args) {
  size_t bytes = 0;
  throw_unless_ok(attune_backward_workspace_size(&args, &bytes));
  return bytes;
}

// The text that a function of the C ABI writes: write(text, capacity, needed).
template <class Write>
std::string text_of(const Write& write) {
  size_t needed = 0;
  throw_unless_ok(write(nullptr, 0, &needed));
  std::string text(needed, '\0');
  throw_unless_ok(write(text.data(), text.size(), nullptr));
  text.pop_back();
  return text;
}

// The kernel that forward(args) would run, and why every other one would not: JSON.
inline std::string explain(const attune_args& args) {
  return text_of([&](char* text, size_t capacity, size_t* needed) {
    return attune_explain(&args, text, capacity, needed);
  });
}

// A call that is checked once and whose kernel is chosen once, for many runs:
//
//   attune::PlanHandle plan(a);
//   plan.run(workspace, bytes);     // on the tensors of `a`
//   plan.run(b, workspace, bytes);  // on other tensors of the same shapes
class PlanHandle {
 public:
  explicit PlanHandle(const attune_args& args, size_t most_workspace = SIZE_MAX) {
    throw_unless_ok(attune_plan_create(&args, most_workspace, &plan_));
  }
  explicit PlanHandle(const attune_backward_args& args, size_t most_workspace = SIZE_MAX) {
    throw_unless_ok(attune_plan_create_backward(&args, most_workspace, &plan_));
  }
  PlanHandle(PlanHandle&& other) noexcept : plan_(std::exchange(other.plan_, nullptr)) {}
  PlanHandle& operator=(PlanHandle&& other) noexcept {
    std::swap(plan_, other.plan_);
    return *this;
  }
  ~PlanHandle() { attune_plan_destroy(plan_); }

  size_t workspace_size() const {
    size_t bytes = 0;
    throw_unless_ok(attune_plan_workspace_size(plan_, &bytes));
    return bytes;
  }
  void prepare() const { throw_unless_ok(attune_plan_prepare(plan_)); }
  void run(void* workspace = nullptr, size_t workspace_bytes = 0) const {
    throw_unless_ok(attune_plan_run(plan_, nullptr, workspace, workspace_bytes));
  }
  void run(const attune_args& args, void* workspace = nullptr, size_t workspace_bytes = 0) const {
    throw_unless_ok(attune_plan_run(plan_, &args, workspace, workspace_bytes));
  }
  std::string explain() const {
    return text_of([&](char* text, size_t capacity, size_t* needed) {
      return attune_plan_explain(plan_, text, capacity, needed);
    });
  }

 private:
  attune_plan* plan_ = nullptr;
};

// What the library found on this machine: JSON.
inline std::string info() {
  return text_of([](char* text, size_t capacity, size_t* needed) {
    return attune_info(text, capacity, needed);
  });
}

}  // namespace attune
