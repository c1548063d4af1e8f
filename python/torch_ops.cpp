// The torch ops. A tensor becomes a view of the C ABI, the call is made on torch's stream or on
// torch's threads, and that is all: what attention is, the library knows.
//
// Only torch's stable ABI is used (TORCH_TARGET_VERSION in CMakeLists.txt): one binary serves every
// torch from there on, with and without CUDA.
#include <attune/attune.h>
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Optional = std::optional<Tensor>;

// The values of the op's argument `layout`.
enum Layout : int64_t { kBhsd = 0, kBshd = 1, kRagged = 2 };

// The status comes first: _torch.py makes the package's exceptions of it.
[[noreturn]] void refuse(const std::string& why, attune_status status = ATTUNE_INVALID_ARGUMENT) {
  throw std::runtime_error(std::string("attune: ") + attune_status_name(status) + ": " + why);
}

attune_dtype dtype_of(const Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return ATTUNE_F32;
    case ScalarType::Half:
      return ATTUNE_F16;
    case ScalarType::BFloat16:
      return ATTUNE_BF16;
    case ScalarType::Bool:
      return ATTUNE_BOOL;
    case ScalarType::Int:
      return ATTUNE_I32;
    case ScalarType::Double:
      return ATTUNE_F64;
    default:
      refuse(std::string(name) +
             " has a dtype that is not supported: float32, float16, bfloat16 and (on the CPU) "
             "float64 are, masks also bool, cu_seqlens and key_lengths int32; convert it, for "
             "instance with .to(torch.float32)");
  }
}

// [B,H,S,D] whatever the order in memory is said to be.
attune_tensor view(const Tensor& t, const char* name, int64_t layout = kBhsd) {
  attune_tensor v{};
  v.dtype = dtype_of(t, name);
  v.rank = int32_t(t.dim());
  if (v.rank > 4) refuse(std::string(name) + " has more than 4 dimensions");
  int64_t *sizes = nullptr, *strides = nullptr;  // sizes() and strides() ask for the rank each time
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(t.get(), &sizes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(t.get(), &strides));
  std::copy_n(sizes, v.rank, v.shape);
  std::copy_n(strides, v.rank, v.stride);
  if (layout == kBshd && v.rank == 4) {
    std::swap(v.shape[1], v.shape[2]);
    std::swap(v.stride[1], v.stride[2]);
  }
  v.data = t.data_ptr();
  return v;
}

// Each of torch's threads takes the next task until none is left: cut into shares beforehand, a
// causal problem's would not be equally long, nor the threads equally fast.
void on_torch_threads(void*, int64_t count, attune_task task, void* arg) {
  std::atomic<int64_t> next{0};
  const int64_t workers = std::min<int64_t>(count, torch::stable::get_num_threads());
  torch::stable::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin)
      for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(arg, n);
  });
}

// Where a tensor lies. Asked once a tensor: every question is a call into torch.
struct Place {
  int32_t type = 0, index = 0;
  bool operator==(const Place&) const = default;

  static Place of(const Tensor& t) {
    Place place;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &place.type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(t.get(), &place.index));
    return place;
  }
  bool is_cpu() const { return type == aoti_torch_device_type_cpu(); }
  bool is_cuda() const { return type == aoti_torch_device_type_cuda(); }
};

// torch's CUDA part is not there in a CPU build: it is asked for by name.
void* current_stream(int32_t device) {
  using Function = AOTITorchError (*)(int32_t, void**);
  static const Function function = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<Function>(
        library != nullptr ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr);
  }();
  void* stream = nullptr;
  if (function == nullptr || function(device, &stream) != AOTI_TORCH_SUCCESS)
    refuse("torch does not tell its current CUDA stream");
  return stream;
}

void need(attune_status status) {
  if (status != ATTUNE_OK) refuse(attune_last_error(), status);
}

struct Outputs {
  Tensor out;
  Optional lse;
};

// What torch said of its last failure; versions before 2.12 keep it to themselves.
const char* torch_words() {
  using Function = const char* (*)();
  static const Function function = [] {
    void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<Function>(
        library != nullptr ? dlsym(library, "torch_exception_get_what_without_backtrace")
                           : nullptr);
  }();
  return function != nullptr ? function() : nullptr;
}

// The sizes are right: what fails here is memory, unless torch says otherwise.
[[noreturn]] void refuse_allocation(std::span<const int64_t> sizes) {
  std::string shape;
  for (const int64_t size : sizes) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  const char* words = torch_words();
  const std::string why = words != nullptr ? words : "its allocator failed";
  const bool memory = words == nullptr || why.find("memory") != std::string::npos ||
                      why.find("overflow") != std::string::npos;
  refuse("torch cannot allocate a tensor of shape (" + shape + "): " + why,
         memory ? ATTUNE_OUT_OF_MEMORY : ATTUNE_INTERNAL);
}

// Of a dense tensor, in the order of its dimensions, or with dimensions 1 and 2 in the other order.
std::array<int64_t, 4> dense_strides(std::span<const int64_t> sizes, bool swapped) {
  std::array<int64_t, 4> strides{};
  int64_t step = 1;
  for (size_t n = sizes.size(); n-- > 0;) {
    const size_t d = swapped && (n == 1 || n == 2) ? 3 - n : n;
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

// Not torch::stable::empty, which looks the op up by its name at every call.
Tensor empty(std::span<const int64_t> sizes, const Place& place, int32_t dtype,
             bool swapped = false) {
  const std::array<int64_t, 4> strides = dense_strides(sizes, swapped);
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(), dtype,
                               place.type, place.index, &handle) != AOTI_TORCH_SUCCESS)
    refuse_allocation(sizes);
  return Tensor(handle);
}

int32_t torch_dtype(const Tensor& t) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &dtype));
  return dtype;
}

// Where q is float64, nothing is rounded to less.
int32_t lse_dtype(const Tensor& q) {
  return q.scalar_type() == ScalarType::Double ? aoti_torch_dtype_float64()
                                               : aoti_torch_dtype_float32();
}

void set_scalars(attune_args* a, double scale, double softcap) {
  if (a->q.dtype == ATTUNE_F64) {
    a->scale_f64 = scale;
    a->softcap_f64 = softcap;
  } else {
    a->scale = float(scale);
    a->softcap = float(softcap);
  }
}

// One call of an op, as the library is told of it, and the tensors that it points into.
struct Request {
  Tensor q, k, v;  // with the elements of a row beside each other
  Place place;
  int64_t layout;
  bool swapped;  // q, as it was given, has dimensions 1 and 2 in the other order in memory
  attune_args a;
  bool want_lse = false;
};

// The sizes of out and, where it is wanted, of lse.
struct OutputSizes {
  std::array<int64_t, 4> out{};
  std::array<int64_t, 3> lse{};
  size_t rank = 4;  // of out; lse has one dimension less
};

OutputSizes output_sizes(const Request& r) {
  OutputSizes s;
  s.rank = r.layout == kRagged ? 3 : 4;
  if (size_t(r.a.q.rank) != s.rank || size_t(r.a.v.rank) != s.rank)
    refuse(s.rank == 4 ? "q, k and v need 4 dimensions"
                       : "q, k and v of a ragged batch need 3 dimensions");
  std::copy_n(r.a.q.shape, s.rank, s.out.begin());  // of the view: q may be repeated
  if (r.layout == kBshd) std::swap(s.out[1], s.out[2]);
  s.out[s.rank - 1] = r.a.v.shape[s.rank - 1];
  s.lse = {s.out[0], s.out[1], s.out[2]};
  if (r.layout == kBshd) std::swap(s.lse[1], s.lse[2]);
  if (r.layout == kRagged) std::swap(s.lse[0], s.lse[1]);
  return s;
}

// Where the work runs: torch's threads, or torch's stream.
void put_on_device(Request* r) {
  if (r->place.is_cpu()) {
    r->a.threads = int32_t(torch::stable::get_num_threads());
    r->a.parallel_for = on_torch_threads;
    return;
  }
  if (!r->place.is_cuda()) refuse("only CPU and CUDA tensors are supported");
  r->a.device = ATTUNE_CUDA;
  r->a.stream = current_stream(r->place.index);
}

// A call gets as much workspace as it likes.
using Plan = std::unique_ptr<attune_plan, decltype(&attune_plan_destroy)>;
Plan plan_of(const attune_args& a) {
  attune_plan* plan = nullptr;
  need(attune_plan_create(&a, SIZE_MAX, &plan));
  return {plan, &attune_plan_destroy};
}
Plan plan_of(const attune_backward_args& b) {
  attune_plan* plan = nullptr;
  need(attune_plan_create_backward(&b, SIZE_MAX, &plan));
  return {plan, &attune_plan_destroy};
}

// On torch's current stream.
void run_plan(const Plan& plan, const Place& place) {
  size_t bytes = 0;
  need(attune_plan_workspace_size(plan.get(), &bytes));
  Optional workspace;  // torch's allocator gives it to nobody else until the stream is through
  if (bytes > 0) {
    const int64_t size = int64_t(bytes);
    workspace = empty({&size, 1}, place, aoti_torch_dtype_uint8());
  }
  need(attune_plan_run(plan.get(), nullptr, workspace ? workspace->data_ptr() : nullptr, bytes));
}

std::string text_of(const Plan& plan) {
  size_t needed = 0;
  need(attune_plan_explain(plan.get(), nullptr, 0, &needed));
  std::string text(needed, '\0');
  need(attune_plan_explain(plan.get(), text.data(), text.size(), nullptr));
  text.pop_back();
  return text;
}

Outputs run(Request&& r) {
  attune_args* a = &r.a;
  const OutputSizes sizes = output_sizes(r);
  Outputs o{empty({sizes.out.data(), sizes.rank}, r.place, torch_dtype(r.q), r.swapped),
            std::nullopt};
  a->out = view(o.out, "out", r.layout);
  if (r.want_lse) {
    o.lse = empty({sizes.lse.data(), sizes.rank - 1}, r.place, lse_dtype(r.q));
    a->lse = view(*o.lse, "lse");
  }
  if (o.out.numel() == 0 && (!o.lse || o.lse->numel() == 0)) return o;

  put_on_device(&r);
  if (r.place.is_cpu()) {
    need(attune_forward(a));
    return o;
  }
  const torch::stable::accelerator::DeviceGuard guard(r.place.index);
  run_plan(plan_of(*a), r.place);
  return o;
}

// A dense tensor without memory.
attune_tensor shape_only(std::span<const int64_t> sizes, attune_dtype dtype, int64_t layout,
                         bool swapped = false) {
  attune_tensor t{};
  t.dtype = dtype;
  t.rank = int32_t(sizes.size());
  std::copy(sizes.begin(), sizes.end(), t.shape);
  std::ranges::copy(dense_strides(sizes, swapped), t.stride);
  if (layout == kBshd && t.rank == 4) {
    std::swap(t.shape[1], t.shape[2]);
    std::swap(t.stride[1], t.stride[2]);
  }
  return t;
}

// What stands beside q, k, v and out is float32, and float64 where these are.
attune_dtype real_dtype(const attune_args& a) {
  return a.q.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
}

void put_outputs_without_memory(Request* r) {
  const OutputSizes sizes = output_sizes(*r);
  r->a.out =
      shape_only({sizes.out.data(), sizes.rank}, attune_dtype(r->a.q.dtype), r->layout, r->swapped);
  if (r->want_lse)
    r->a.lse = shape_only({sizes.lse.data(), sizes.rank - 1}, real_dtype(r->a), kBhsd);
}

// What the library says of the call that `run` would make, with outputs that have no memory.
std::string explain(Request&& r) {
  put_outputs_without_memory(&r);
  put_on_device(&r);
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (r.place.is_cuda()) guard.emplace(r.place.index);
  return text_of(plan_of(r.a));
}

// The kernels need rows whose elements are neighbours; what lies otherwise is copied.
attune_tensor view_of_rows(Tensor* t, const char* name, int64_t layout) {
  const attune_tensor v = view(*t, name, layout);
  const int32_t last = v.rank - 1;
  if (last < 0 || v.stride[last] == 1 || v.shape[last] == 1) return v;
  *t = torch::stable::contiguous(*t);
  return view(*t, name, layout);
}

void must_be_at(const Place& place, const Tensor& t, const char* name) {
  if (!(Place::of(t) == place)) refuse(std::string(name) + " is not on the device of q");
}

// Whether memory has dimensions 1 and 2 in the other order: the output then has them so too, as
// torch's, and whoever merges the heads after attention needs no copy. _torch.py says the same.
bool swapped_in_memory(const attune_tensor& q, int64_t layout) {
  const bool heads_first = q.rank == 4 && q.stride[1] < q.stride[2];
  const bool rows_first = q.rank == 4 && q.stride[2] < q.stride[1];
  return layout == kBshd ? rows_first : heads_first;
}

// A tensor that had to be copied becomes its copy.
Request request_of(Tensor q, Tensor k, Tensor v, int64_t alignment, int64_t layout) {
  if (layout < kBhsd || layout > kRagged) refuse("layout is " + std::to_string(layout));
  if (alignment < ATTUNE_ALIGN_UNSPECIFIED || alignment > ATTUNE_ALIGN_BOTTOM_RIGHT)
    refuse("alignment is " + std::to_string(alignment));
  const Place place = Place::of(q);
  must_be_at(place, k, "k");
  must_be_at(place, v, "v");
  Request r{std::move(q), std::move(k), std::move(v), place, layout, false, {}};
  need(attune_args_init(&r.a, sizeof(r.a)));
  r.swapped = swapped_in_memory(view(r.q, "q", layout), layout);
  r.a.q = view_of_rows(&r.q, "q", layout);
  r.a.k = view_of_rows(&r.k, "k", layout);
  r.a.v = view_of_rows(&r.v, "v", layout);
  r.a.alignment = int32_t(alignment);
  return r;
}

attune_tensor optional_view(const Optional& t, const Place& place, const char* name) {
  if (!t) return {};
  must_be_at(place, *t, name);
  return view(*t, name);
}

// As torch's function: a single batch or head stands for as many as the others have.
void broadcast(attune_args* a) {
  for (int d = 0; d < 2; ++d) {
    const int64_t size = std::max({a->q.shape[d], a->k.shape[d], a->v.shape[d]});
    for (attune_tensor* t : {&a->q, &a->k, &a->v})
      if (t->shape[d] == 1 && size > 1) {
        t->shape[d] = size;
        t->stride[d] = 0;
      }
  }
}

// What most calls are: few arguments, little to convert.
Request sdpa_request(Tensor q, Tensor k, Tensor v, const Optional& mask, bool causal, double scale,
                     bool gqa, int64_t alignment, int64_t layout) {
  Request r = request_of(std::move(q), std::move(k), std::move(v), alignment, layout);
  attune_args& a = r.a;
  if (!gqa && a.q.rank == 4 && a.k.rank == 4 && a.v.rank == 4) {
    broadcast(&a);
    if (a.q.shape[1] != a.k.shape[1])
      refuse("query has " + std::to_string(a.q.shape[1]) + " heads and key " +
             std::to_string(a.k.shape[1]) + ": with enable_gqa=True groups of heads share keys");
  }
  a.mask = optional_view(mask, r.place, "mask");
  a.causal = causal;
  set_scalars(&a, scale, 0);
  return r;
}

Tensor sdpa(Tensor q, Tensor k, Tensor v, Optional mask, bool causal, double scale, bool gqa,
            int64_t alignment, int64_t layout) {
  return run(sdpa_request(std::move(q), std::move(k), std::move(v), mask, causal, scale, gqa,
                          alignment, layout))
      .out;
}

std::string explain_sdpa(Tensor q, Tensor k, Tensor v, Optional mask, bool causal, double scale,
                         bool gqa, int64_t alignment, int64_t layout) {
  return explain(sdpa_request(std::move(q), std::move(k), std::move(v), mask, causal, scale, gqa,
                              alignment, layout));
}

// The arguments of attune::attention beside q, k and v: the schema's type, its name and its
// default, and our type. The schema, the struct and the order on torch's stack follow. Tensors come
// first: the rest is by keyword alone, which torch does not allow for tensors under vmap.
#define ATTUNE_ATTENTION_OPTIONS(X)            \
  X("Tensor?", mask, "None", Optional)         \
  X("Tensor?", block_mask, "None", Optional)   \
  X("Tensor?", alibi_slopes, "None", Optional) \
  X("Tensor?", sinks, "None", Optional)        \
  X("Tensor?", cu_seqlens_q, "None", Optional) \
  X("Tensor?", cu_seqlens_k, "None", Optional) \
  X("Tensor?", key_lengths, "None", Optional)  \
  X("Tensor?", user_data, "None", Optional)    \
  X("float", scale, "0.", double)              \
  X("float", softcap, "0.", double)            \
  X("bool", causal, "False", bool)             \
  X("int", alignment, "0", int64_t)            \
  X("int", window_left, "-1", int64_t)         \
  X("int", window_right, "-1", int64_t)        \
  X("int", block_q, "0", int64_t)              \
  X("int", block_k, "0", int64_t)              \
  X("int", max_seq_q, "0", int64_t)            \
  X("int", max_seq_k, "0", int64_t)            \
  X("float", dropout_p, "0.", double)          \
  X("int", seed, "0", int64_t)                 \
  X("int", offset, "0", int64_t)               \
  X("int", mode, "0", int64_t)                 \
  X("int", layout, "0", int64_t)               \
  X("bool", strict_fp32, "False", bool)        \
  X("bool", batch_invariant, "False", bool)    \
  X("bool", want_lse, "False", bool)           \
  X("str", score_mod, "\"\"", std::string)     \
  X("str", mask_mod, "\"\"", std::string)

struct Arguments {
  Tensor q, k, v;
#define X(type, name, standard, ours) ours name;
  ATTUNE_ATTENTION_OPTIONS(X)
#undef X
};

// `before` and `after`: the schema of arguments in front of q, and behind the options.
std::string attention_schema(const char* op, const char* result, const char* before = "",
                             const char* after = "") {
  std::string text = std::string(op) + "(" + before + "Tensor q, Tensor k, Tensor v";
  bool by_place = true;
#define X(type, name, standard, ours)                             \
  if (by_place && !std::is_same_v<ours, Optional>) text += ", *"; \
  by_place = by_place && std::is_same_v<ours, Optional>;          \
  text += ", " type " " #name "=" standard;
  ATTUNE_ATTENTION_OPTIONS(X)
#undef X
  return text + after + ") -> " + result;
}

template <class T>
T take(StableIValue** stack) {
  return torch::stable::detail::to<T>(*(*stack)++);
}

// From torch's stack, whose references become ours.
Arguments take_arguments(StableIValue** stack) {
  return {take<Tensor>(stack), take<Tensor>(stack), take<Tensor>(stack),
#define X(type, name, standard, ours) take<ours>(stack),
          ATTUNE_ATTENTION_OPTIONS(X)
#undef X
  };
}

// The request points into score_mod and mask_mod.
Request attention_request(const Arguments& x) {
  Request r = request_of(x.q, x.k, x.v, x.alignment, x.layout);
  const Place& place = r.place;
  attune_args& a = r.a;
  a.mask = optional_view(x.mask, place, "mask");
  a.block_mask = optional_view(x.block_mask, place, "block_mask");
  if (x.block_mask) {
    a.block_mask_q = x.block_q;
    a.block_mask_k = x.block_k;
  }
  a.alibi_slopes = optional_view(x.alibi_slopes, place, "alibi_slopes");
  a.sinks = optional_view(x.sinks, place, "sinks");
  a.cu_seqlens_q = optional_view(x.cu_seqlens_q, place, "cu_seqlens_q");
  a.cu_seqlens_k = optional_view(x.cu_seqlens_k, place, "cu_seqlens_k");
  a.key_lengths = optional_view(x.key_lengths, place, "key_lengths");
  if (x.user_data) {
    must_be_at(place, *x.user_data, "user_data");
    a.user_data = x.user_data->data_ptr();
  }
  set_scalars(&a, x.scale, x.softcap);
  a.causal = x.causal;
  a.window_left = x.window_left;
  a.window_right = x.window_right;
  if (place.is_cuda()) {  // the CPU reads cu_seqlens
    a.max_seq_q = x.max_seq_q;
    a.max_seq_k = x.max_seq_k;
  }
  a.dropout_p = float(x.dropout_p);
  a.dropout_seed = uint64_t(x.seed);
  a.dropout_offset = uint64_t(x.offset);
  a.mode = int32_t(x.mode);
  a.strict_fp32 = x.strict_fp32;
  a.batch_invariant = x.batch_invariant;
  if (!x.score_mod.empty()) a.score_mod = x.score_mod.c_str();
  if (!x.mask_mod.empty()) a.mask_mod = x.mask_mod.c_str();
  r.want_lse = x.want_lse;
  return r;
}

// Boxed: torch's stack holds the arguments in the order of the schema, and then the results.
void attention(StableIValue* stack, uint64_t, uint64_t) {
  StableIValue* at = stack;
  const Arguments x = take_arguments(&at);
  Outputs o = run(attention_request(x));
  const int64_t none = 0;
  if (!o.lse) o.lse = empty({&none, 1}, Place::of(x.q), lse_dtype(x.q));
  stack[0] = torch::stable::detail::from(o.out);
  stack[1] = torch::stable::detail::from(*o.lse);
}

void explain_attention(StableIValue* stack, uint64_t, uint64_t) {
  StableIValue* at = stack;
  const Arguments x = take_arguments(&at);
  stack[0] = torch::stable::detail::from(explain(attention_request(x)));
}

// The gradients of a call, each by its name in attune_backward_args.
struct Wanted {
  bool dq, dk, dv, dmask, dsinks;
};
constexpr const char* kWanted =
    ", bool want_dq=True, bool want_dk=True, bool want_dv=True, bool want_dmask=False, bool "
    "want_dsinks=False";

Wanted take_wanted(StableIValue** stack) {
  return {take<bool>(stack), take<bool>(stack), take<bool>(stack), take<bool>(stack),
          take<bool>(stack)};
}

// One that is not wanted has no elements.
struct Gradients {
  Tensor dq, dk, dv, dmask, dsinks;
};

// Gradients lie in the order of memory of what they are the gradients of.
bool swapped_gradient(const attune_tensor& t) { return t.rank == 4 && t.stride[1] < t.stride[2]; }

Tensor gradient_of(const Tensor& t, bool wanted, const Place& place) {
  const attune_tensor like = view(t, "a tensor");
  const int64_t none = 0;
  if (!wanted) return empty({&none, 1}, place, torch_dtype(t));
  return empty({like.shape, size_t(like.rank)}, place, torch_dtype(t), swapped_gradient(like));
}

attune_tensor gradient_without_memory(const Tensor& t, int64_t layout) {
  const attune_tensor like = view(t, "a tensor");
  return shape_only({like.shape, size_t(like.rank)}, attune_dtype(like.dtype), layout,
                    swapped_gradient(like));
}

// Dense, float32 whatever t is (float64 where q is).
Tensor wide_gradient_of(const Optional& t, bool wanted, const Request& r) {
  const int64_t none = 0;
  if (!wanted || !t) return empty({&none, 1}, r.place, lse_dtype(r.q));
  const attune_tensor like = view(*t, "a tensor");
  return empty({like.shape, size_t(like.rank)}, r.place, lse_dtype(r.q));
}

void put_gradients(const Gradients& g, const Wanted& wanted, int64_t layout,
                   attune_backward_args* b) {
  if (wanted.dq) b->dq = view(g.dq, "dq", layout);
  if (wanted.dk) b->dk = view(g.dk, "dk", layout);
  if (wanted.dv) b->dv = view(g.dv, "dv", layout);
  if (wanted.dmask) b->dmask = view(g.dmask, "dmask");
  if (wanted.dsinks) b->dsinks = view(g.dsinks, "dsinks");
}

// The forward call's arguments with its results, as the backward pass reads them.
struct BackwardArguments {
  Tensor dout;
  Optional dlse;
  Tensor out, lse;
  Arguments x;
  Wanted wanted;
};

Gradients run_backward(BackwardArguments* y) {
  Request r = attention_request(y->x);
  for (const auto& [t, name] : {std::pair{&y->dout, "dout"}, {&y->out, "out"}, {&y->lse, "lse"}})
    must_be_at(r.place, *t, name);
  attune_backward_args b{};
  need(attune_backward_args_init(&b, sizeof(b)));
  b.forward = &r.a;
  r.a.out = view_of_rows(&y->out, "out", r.layout);
  r.a.lse = view(y->lse, "lse");
  b.dout = view_of_rows(&y->dout, "dout", r.layout);
  b.dlse = optional_view(y->dlse, r.place, "dlse");
  const Wanted& w = y->wanted;
  Gradients g{gradient_of(y->x.q, w.dq, r.place), gradient_of(y->x.k, w.dk, r.place),
              gradient_of(y->x.v, w.dv, r.place), wide_gradient_of(y->x.mask, w.dmask, r),
              wide_gradient_of(y->x.sinks, w.dsinks, r)};
  put_gradients(g, w, r.layout, &b);

  put_on_device(&r);
  if (r.place.is_cpu()) {
    need(attune_backward(&b));
    return g;
  }
  const torch::stable::accelerator::DeviceGuard guard(r.place.index);
  run_plan(plan_of(b), r.place);
  return g;
}

void attention_backward(StableIValue* stack, uint64_t, uint64_t) {
  StableIValue* at = stack;
  BackwardArguments y{take<Tensor>(&at), take<Optional>(&at), take<Tensor>(&at),
                      take<Tensor>(&at), take_arguments(&at), take_wanted(&at)};
  const Gradients g = run_backward(&y);
  for (const Tensor* t : {&g.dq, &g.dk, &g.dv, &g.dmask, &g.dsinks})
    *stack++ = torch::stable::detail::from(*t);
}

// What the library says of the backward pass of the call with these arguments; what only the pass
// itself makes has no memory.
std::string explain_gradients(const Arguments& x, const Wanted& wanted) {
  Request r = attention_request(x);
  r.want_lse = true;
  put_outputs_without_memory(&r);
  attune_backward_args b{};
  need(attune_backward_args_init(&b, sizeof(b)));
  b.forward = &r.a;
  b.dout = r.a.out;
  if (wanted.dq) b.dq = gradient_without_memory(x.q, r.layout);
  if (wanted.dk) b.dk = gradient_without_memory(x.k, r.layout);
  if (wanted.dv) b.dv = gradient_without_memory(x.v, r.layout);
  const auto wide = [&](const attune_tensor& t) {
    return shape_only({t.shape, size_t(t.rank)}, real_dtype(r.a), kBhsd);
  };
  if (wanted.dmask && x.mask) b.dmask = wide(r.a.mask);
  if (wanted.dsinks && x.sinks) b.dsinks = wide(r.a.sinks);
  put_on_device(&r);
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (r.place.is_cuda()) guard.emplace(r.place.index);
  return text_of(plan_of(b));
}

void explain_backward(StableIValue* stack, uint64_t, uint64_t) {
  StableIValue* at = stack;
  const Arguments x = take_arguments(&at);
  const Wanted wanted = take_wanted(&at);
  stack[0] = torch::stable::detail::from(explain_gradients(x, wanted));
}

#define ATTUNE_SDPA_ARGUMENTS                                                                  \
  "(Tensor q, Tensor k, Tensor v, Tensor? mask=None, bool causal=False, float scale=0., bool " \
  "gqa=False, "                                                                                \
  "int alignment=1, int layout=0)"

}  // namespace

STABLE_TORCH_LIBRARY(attune, m) {
  // The same twice: a graph holds the first, which _torch.py gives a half in autograd; calls that
  // need no gradient take the second, which has none, and is the faster for it.
  m.def("sdpa" ATTUNE_SDPA_ARGUMENTS " -> Tensor");
  m.def("sdpa_nograd" ATTUNE_SDPA_ARGUMENTS " -> Tensor");
  m.def(attention_schema("attention", "(Tensor, Tensor)").c_str());
  // dq, dk, dv, dmask and dsinks; out and lse are the forward call's.
  m.def(attention_schema("attention_backward", "(Tensor, Tensor, Tensor, Tensor, Tensor)",
                         "Tensor dout, Tensor? dlse, Tensor out, Tensor lse, ", kWanted)
            .c_str());
  // What the library says of the call with these arguments, as JSON.
  m.def("explain_sdpa" ATTUNE_SDPA_ARGUMENTS " -> str");
  m.def(attention_schema("explain_attention", "str").c_str());
  m.def(attention_schema("explain_backward", "str", "", kWanted).c_str());
}

STABLE_TORCH_LIBRARY_IMPL(attune, CPU, m) {
  m.impl("sdpa", TORCH_BOX(&sdpa));
  m.impl("sdpa_nograd", TORCH_BOX(&sdpa));
  m.impl("attention", &attention);
  m.impl("attention_backward", &attention_backward);
  m.impl("explain_sdpa", TORCH_BOX(&explain_sdpa));
  m.impl("explain_attention", &explain_attention);
  m.impl("explain_backward", &explain_backward);
}

STABLE_TORCH_LIBRARY_IMPL(attune, CUDA, m) {
  m.impl("sdpa", TORCH_BOX(&sdpa));
  m.impl("sdpa_nograd", TORCH_BOX(&sdpa));
  m.impl("attention", &attention);
  m.impl("attention_backward", &attention_backward);
  m.impl("explain_sdpa", TORCH_BOX(&explain_sdpa));
  m.impl("explain_attention", &explain_attention);
  m.impl("explain_backward", &explain_backward);
}
