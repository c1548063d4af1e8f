#include "src/api/validate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "src/api/args.hpp"
#include "src/api/tensor_check.hpp"
#include "src/select/select.hpp"

namespace attune {
namespace {

constexpr int64_t kMaxSequence = (int64_t{1} << 31) - 1;
constexpr int32_t kMaxThreads = 1024;
constexpr uintptr_t kWorkspaceAlignment = 256;  // as every allocator of device memory gives it

Status check_range(const char* name, int64_t value, int64_t least, int64_t most,
                   const char* meaning) {
  if (value >= least && value <= most) return {};
  return Status::invalid(text(name, " is ", value, "; expected ", least, "..", most, meaning));
}

// 0 stands for the default (scale) or for off (softcap).
Status check_not_negative(const char* name, double value) {
  if (std::isfinite(value) && value >= 0) return {};
  return Status::invalid(text(name, " is ", value, "; expected 0 or a finite positive number"));
}

Status check_scalars(const attune_args& a) {
  ATTUNE_TRY(check_range("device", a.device, ATTUNE_CPU, ATTUNE_CUDA, " (attune_device)"));
  ATTUNE_TRY(check_range("mode", a.mode, ATTUNE_AUTO, last_mode(), " (attune_mode)"));
  ATTUNE_TRY(check_range("alignment", a.alignment, ATTUNE_ALIGN_UNSPECIFIED,
                         ATTUNE_ALIGN_BOTTOM_RIGHT, " (attune_alignment)"));
  ATTUNE_TRY(
      check_range("threads", a.threads, 0, kMaxThreads, " (0: all that the process may use)"));
  ATTUNE_TRY(check_range("window_left", a.window_left, kNoLimit, INT64_MAX, " (-1: no limit)"));
  ATTUNE_TRY(check_range("window_right", a.window_right, kNoLimit, INT64_MAX, " (-1: no limit)"));
  ATTUNE_TRY(check_not_negative("scale", a.scale));
  ATTUNE_TRY(check_not_negative("softcap", a.softcap));
  ATTUNE_TRY(check_not_negative("scale_f64", a.scale_f64));
  ATTUNE_TRY(check_not_negative("softcap_f64", a.softcap_f64));
  if (!(a.dropout_p >= 0 && a.dropout_p < 1))
    return Status::invalid(text("dropout_p is ", a.dropout_p, "; expected 0 <= p < 1"));
  return {};
}

Status not_on(const char* device, const char* name) {
  return Status::invalid(
      text(name, " is given, but device is ", device, ", which has no use for it"));
}

// A field of the other device is a mistake of the caller, and ignoring it would hide that.
Status check_cpu_fields(const attune_args& a) {
  constexpr const char* kHere = "ATTUNE_CPU";
  if (a.stream != nullptr) return not_on(kHere, "stream");
  if (a.workspace != nullptr) return not_on(kHere, "workspace");
  if (a.workspace_bytes != 0) return not_on(kHere, "workspace_bytes");
  if (a.max_seq_q != 0) return not_on(kHere, "max_seq_q");
  if (a.max_seq_k != 0) return not_on(kHere, "max_seq_k");
  if (a.user_data != nullptr) return not_on(kHere, "user_data");
  for (const char* name : {a.score_mod != nullptr ? "score_mod" : nullptr,
                           a.mask_mod != nullptr ? "mask_mod" : nullptr})
    if (name != nullptr)
      return Status::unsupported(text(name,
                                      " is given, but device is ATTUNE_CPU, which compiles no "
                                      "code of the caller; ATTUNE_CUDA does"));
  return {};
}

Status check_cuda_fields(const attune_args& a) {
  constexpr const char* kHere = "ATTUNE_CUDA";
  if (a.threads != 0) return not_on(kHere, "threads");
  if (a.parallel_for != nullptr) return not_on(kHere, "parallel_for");
  if (a.parallel_user != nullptr) return not_on(kHere, "parallel_user");
  if (a.score_mod != nullptr && *a.score_mod == '\0')
    return Status::invalid("score_mod is an empty text; NULL means none");
  if (a.mask_mod != nullptr && *a.mask_mod == '\0')
    return Status::invalid("mask_mod is an empty text; NULL means none");
  if (a.user_data != nullptr && a.score_mod == nullptr && a.mask_mod == nullptr)
    return Status::invalid("user_data is given, but neither score_mod nor mask_mod reads it");
  return {};
}

Status check_workspace(const void* workspace, size_t bytes, Pointers pointers) {
  if (workspace == nullptr && bytes > 0 && pointers == Pointers::required)
    return Status::invalid(text("workspace is NULL, but workspace_bytes is ", bytes));
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0)
    return Status::invalid(
        text("workspace is at ", workspace, ", not aligned to ", kWorkspaceAlignment, " bytes"));
  if (bytes > size_t(INT64_MAX))
    return Status::invalid(text("workspace_bytes is ", bytes, "; expected at most ", INT64_MAX));
  return {};
}

// Where batch, head, sequence and head dimension stand in a tensor's shape; -1: no such axis.
struct Axes {
  int b, h, s, d;
};
constexpr Axes kRows = {0, 1, 2, 3}, kRaggedRows = {-1, 1, 0, 2};
constexpr Axes kLse = {0, 1, 2, -1}, kRaggedLse = {-1, 0, 1, -1};

View view(const attune_tensor& t, const Axes& axes) {
  return {t.data, axes.b < 0 ? 0 : step(t, axes.b), step(t, axes.h), step(t, axes.s)};
}

// Strides over four dimensions, 0 along those that the tensor lacks or repeats.
View4 broadcast_view(const attune_tensor& t) {
  View4 v{t.data, {}};
  for (int axis = 0; axis < t.rank; ++axis) v.stride[axis + 4 - t.rank] = step(t, axis);
  return v;
}

MaskKind mask_kind(int32_t dtype) {
  switch (dtype) {
    case ATTUNE_F32:
      return MaskKind::f32;
    case ATTUNE_F16:
      return MaskKind::f16;
    case ATTUNE_BF16:
      return MaskKind::bf16;
    case ATTUNE_F64:
      return MaskKind::f64;
    default:
      return MaskKind::boolean;
  }
}

// One call on its way through the checks. The order of the steps matters: each relies on what those
// before it settled.
class Checker {
 public:
  Checker(const attune_args& args, Pointers pointers, Call* call)
      : a_(args),
        call_(*call),
        p_(call->problem),
        m_(call->params),
        pointers_(pointers),
        memory_(pointers) {}

  Status forward() {
    ATTUNE_TRY(inputs());
    ATTUNE_TRY(outputs(Access::write));
    if (on_cuda()) ATTUNE_TRY(workspace());
    return memory();
  }

  Status backward(const attune_backward_args& b) {
    ATTUNE_TRY(inputs());
    ATTUNE_TRY(outputs(Access::read));
    ATTUNE_TRY(gradients(b, &call_.grads));
    if (on_cuda()) ATTUNE_TRY(workspace());
    call_.asked = {given(b.dq), given(b.dk), given(b.dv), given(b.dsinks)};
    p_.pass = Pass::backward;
    return memory();
  }

 private:
  Status memory() {
    ATTUNE_TRY(memory_.check_overlaps());
    call_.shapes_only = memory_.shapes_only();
    if (on_cuda()) call_.place_count = memory_.places(&call_.places);
    return {};
  }

  Status inputs() {
    ATTUNE_TRY(check_scalars(a_));
    ATTUNE_TRY(on_cuda() ? check_cuda_fields(a_) : check_cpu_fields(a_));
    ATTUNE_TRY(qkv());
    if (p_.ragged) ATTUNE_TRY(ragged());
    if (given(a_.key_lengths)) ATTUNE_TRY(key_lengths());
    if (!p_.ragged && (a_.max_seq_q != 0 || a_.max_seq_k != 0))
      return Status::invalid(text("max_seq_q and max_seq_k are ", a_.max_seq_q, " and ",
                                  a_.max_seq_k,
                                  ", but cu_seqlens_q and cu_seqlens_k are not given"));
    ATTUNE_TRY(masks());
    ATTUNE_TRY(per_head());
    ATTUNE_TRY(options());
    call_.mode = attune_mode(a_.mode);
    call_.device = attune_device(a_.device);
    if (on_cuda())
      user_code();
    else
      call_.executor = {a_.threads != 0 ? a_.threads : cpu::usable_threads(), a_.parallel_for,
                        a_.parallel_user};
    return {};
  }

  bool on_cuda() const { return a_.device == ATTUNE_CUDA; }
  bool f64() const { return a_.q.dtype == ATTUNE_F64; }

  // What stands beside q, k, v and out as F32 is F64 where they are.
  attune_dtype real() const { return f64() ? ATTUNE_F64 : ATTUNE_F32; }

  void user_code() {
    call_.stream = a_.stream;
    call_.score_mod = a_.score_mod;
    call_.mask_mod = a_.mask_mod;
    p_.score_mod = a_.score_mod != nullptr;
    p_.mask_mod = a_.mask_mod != nullptr;
    m_.user_data = a_.user_data;
  }

  // Where only shapes count, bytes without memory ask what would run with as much.
  Status workspace() {
    ATTUNE_TRY(check_workspace(a_.workspace, a_.workspace_bytes, pointers_));
    const attune_tensor bytes{a_.workspace, ATTUNE_BOOL, 1, {int64_t(a_.workspace_bytes)}, {1}};
    if (a_.workspace != nullptr)
      ATTUNE_TRY(memory_.add("workspace", bytes, Access::write, LastStride::one));
    m_.workspace = a_.workspace;
    call_.workspace_bytes = a_.workspace_bytes;
    return {};
  }

  static Dim dim_of(const char* origin, const attune_tensor& t, int axis) {
    return {t.shape[axis], origin, axis};
  }

  Shape rows(Dim b, Dim h, Dim s, Dim d) const {
    return p_.ragged ? Shape{3, {s, h, d}} : Shape{4, {b, h, s, d}};
  }

  Status add_rows(const char* name, const attune_tensor& t, const Shape& want, Access access,
                  View* v) {
    if (t.rank != want.rank)
      return Status::invalid(text(name, ".rank is ", t.rank, "; expected ", want.rank,
                                  p_.ragged ? " (cu_seqlens is given: [total,heads,dim])"
                                            : " ([batch,heads,sequence,dim])"));
    ATTUNE_TRY(check_dtype(name, t, {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64}));
    if (f64() && on_cuda())
      return Status::unsupported(
          text(name, ".dtype is F64, but device is ATTUNE_CUDA, which has no float64 kernels: ",
               "convert to F32, or call on the CPU, whose reference computes in float64"));
    if (t.dtype != a_.q.dtype)
      return Status::invalid(text(name, ".dtype is ", dtype_name(t.dtype), ", but q.dtype is ",
                                  dtype_name(a_.q.dtype)));
    ATTUNE_TRY(check_shape(name, t, want));
    ATTUNE_TRY(memory_.add(name, t, access, LastStride::one));
    *v = view(t, axes_);
    return {};
  }

  Status qkv() {
    const attune_tensor &q = a_.q, &k = a_.k, &v = a_.v;
    p_.ragged = given(a_.cu_seqlens_q) || given(a_.cu_seqlens_k);
    axes_ = p_.ragged ? kRaggedRows : kRows;
    const Dim any{kAnySize, ""};

    ATTUNE_TRY(add_rows("q", q, rows(any, any, any, any), Access::read, &m_.q));
    if (!p_.ragged) batch_ = dim_of("q", q, axes_.b);  // else cu_seqlens has it
    heads_ = dim_of("q", q, axes_.h);
    rows_q_ = dim_of("q", q, axes_.s);
    const Dim dim = dim_of("q", q, axes_.d);
    ATTUNE_TRY(check_range("q's head dimension", dim.size, 1, kMaxHeadDim, ""));
    ATTUNE_TRY(check_range("q's sequence length", rows_q_.size, 0, kMaxSequence, ""));

    ATTUNE_TRY(add_rows("k", k, rows(batch_, any, any, dim), Access::read, &m_.k));
    rows_k_ = dim_of("k", k, axes_.s);
    const Dim heads_kv = dim_of("k", k, axes_.h);
    ATTUNE_TRY(check_range("k's sequence length", rows_k_.size, 0, kMaxSequence, ""));
    if (heads_kv.size == 0 ? heads_.size != 0 : heads_.size % heads_kv.size != 0)
      return Status::invalid(text("q.shape[", axes_.h, "] is ", heads_.size,
                                  " heads, not a multiple of k.shape[", axes_.h, "], which is ",
                                  heads_kv.size));

    ATTUNE_TRY(add_rows("v", v, rows(batch_, heads_kv, rows_k_, any), Access::read, &m_.v));
    dim_v_ = dim_of("v", v, axes_.d);
    ATTUNE_TRY(check_range("v's head dimension", dim_v_.size, 1, kMaxHeadDim, ""));

    p_.dtype = DType(q.dtype);
    p_.batch = batch_.size;
    p_.heads_q = heads_.size;
    p_.heads_kv = heads_kv.size;
    p_.seq_q = rows_q_.size;
    p_.seq_k = rows_k_.size;
    p_.dim = int32_t(dim.size);
    p_.dim_v = int32_t(dim_v_.size);
    m_.rows_q = rows_q_.size;
    m_.rows_k = rows_k_.size;
    longest_q_ = rows_q_;
    longest_k_ = rows_k_;
    lengths_differ_ = p_.seq_q != p_.seq_k && p_.seq_q > 0 && p_.seq_k > 0;
    call_.empty = !has_elements(q);
    return {};
  }

  Status ragged() {
    const attune_tensor &cu_q = a_.cu_seqlens_q, &cu_k = a_.cu_seqlens_k;
    if (given(cu_q) != given(cu_k))
      return Status::invalid(given(cu_q) ? "cu_seqlens_q is given, but cu_seqlens_k is not"
                                         : "cu_seqlens_k is given, but cu_seqlens_q is not");
    ATTUNE_TRY(check_dtype("cu_seqlens_q", cu_q, {ATTUNE_I32}));
    ATTUNE_TRY(check_dtype("cu_seqlens_k", cu_k, {ATTUNE_I32}));
    ATTUNE_TRY(check_shape("cu_seqlens_q", cu_q, {1, {{kAnySize, ""}}}));
    ATTUNE_TRY(
        check_range("cu_seqlens_q.shape[0]", cu_q.shape[0], 1, INT64_MAX, " (sequences + 1)"));
    ATTUNE_TRY(check_shape("cu_seqlens_k", cu_k, {1, {dim_of("cu_seqlens_q", cu_q, 0)}}));
    ATTUNE_TRY(memory_.add("cu_seqlens_q", cu_q, Access::read, LastStride::any));
    ATTUNE_TRY(memory_.add("cu_seqlens_k", cu_k, Access::read, LastStride::any));
    m_.cu_seqlens_q = static_cast<const int32_t*>(cu_q.data);
    m_.cu_seqlens_k = static_cast<const int32_t*>(cu_k.data);
    m_.cu_stride_q = step(cu_q, 0);
    m_.cu_stride_k = step(cu_k, 0);
    p_.batch = cu_q.shape[0] - 1;
    batch_ = {p_.batch, "the number of sequences in cu_seqlens_q"};
    if (on_cuda()) return ragged_on_cuda();
    longest_q_ = {kAnySize, "the longest sequence of cu_seqlens_q"};
    longest_k_ = {kAnySize, "the longest sequence of cu_seqlens_k"};
    // Explaining a call without its lengths: the totals bound them, and nothing is refused for a
    // length that is not known.
    lengths_known_ = cu_q.data != nullptr && cu_k.data != nullptr;
    if (!lengths_known_) {
      lengths_differ_ = true;
      return {};
    }
    ATTUNE_TRY(
        check_offsets("cu_seqlens_q", m_.cu_seqlens_q, m_.cu_stride_q, rows_q_, &longest_q_.size));
    ATTUNE_TRY(
        check_offsets("cu_seqlens_k", m_.cu_seqlens_k, m_.cu_stride_k, rows_k_, &longest_k_.size));
    p_.seq_q = longest_q_.size;
    p_.seq_k = longest_k_.size;
    compare_lengths();
    return {};
  }

  // Lengths differ only where both sides have tokens.
  void compare_lengths() {
    lengths_differ_ = false;
    // Where nothing differs between sequences, one of them stands for all.
    const bool differ = (p_.ragged && (m_.cu_stride_q != 0 || m_.cu_stride_k != 0)) ||
                        (p_.key_lengths && m_.key_lengths_stride != 0);
    const int64_t some = differ ? p_.batch : std::min<int64_t>(p_.batch, 1);
    const int64_t sequences = p_.seq_q > 0 && p_.seq_k > 0 ? some : 0;
    for (int64_t b = 0; b < sequences; ++b) {
      const Sequence s = Sequence::of(p_, m_, b);
      lengths_differ_ |= s.sq != s.sk && s.sq > 0 && s.sk > 0;
    }
  }

  Status key_lengths() {
    const attune_tensor& t = a_.key_lengths;
    ATTUNE_TRY(check_dtype("key_lengths", t, {ATTUNE_I32}));
    ATTUNE_TRY(check_shape("key_lengths", t, {1, {batch_}}));
    ATTUNE_TRY(memory_.add("key_lengths", t, Access::read, LastStride::any));
    const auto* lengths = static_cast<const int32_t*>(t.data);
    const bool known = !on_cuda() && lengths_known_ && (lengths != nullptr || p_.batch == 0);
    if (known) ATTUNE_TRY(check_key_lengths(lengths, step(t, 0)));
    p_.key_lengths = true;
    m_.key_lengths = lengths;
    m_.key_lengths_stride = step(t, 0);
    if (known && !call_.empty) compare_lengths();
    if (!known) lengths_differ_ = true;  // they may
    lengths_known_ &= known || lengths != nullptr;
    return {};
  }

  Status check_key_lengths(const int32_t* lengths, int64_t stride) const {
    // Where nothing differs between sequences, one of them stands for all: they may be without end.
    const bool differ = stride != 0 || (p_.ragged && m_.cu_stride_k != 0);
    const int64_t sequences = differ ? p_.batch : std::min<int64_t>(p_.batch, 1);
    for (int64_t b = 0; b < sequences; ++b) {
      const int64_t length = lengths[b * stride], keys = Sequence::of(p_, m_, b).sk;
      if (length >= 0 && length <= keys) continue;
      const std::string limit = p_.ragged
                                    ? text("sequence ", b, " of cu_seqlens_k has ", keys, " keys")
                                    : text("k.shape[", axes_.s, "] is ", keys);
      return Status::invalid(text("key_lengths[", b, "] is ", length, ", but ", limit));
    }
    return {};
  }

  // The lengths are device memory. The caller says the longest; whether lengths differ is known
  // only where both sides share one cu_seqlens.
  Status ragged_on_cuda() {
    ATTUNE_TRY(check_longest("max_seq_q", a_.max_seq_q, rows_q_));
    ATTUNE_TRY(check_longest("max_seq_k", a_.max_seq_k, rows_k_));
    longest_q_ = {a_.max_seq_q, "max_seq_q"};
    longest_k_ = {a_.max_seq_k, "max_seq_k"};
    p_.seq_q = a_.max_seq_q;
    p_.seq_k = a_.max_seq_k;
    call_.empty |= p_.batch == 0;
    lengths_known_ = m_.cu_seqlens_q != nullptr && m_.cu_seqlens_k != nullptr;
    const bool shared = lengths_known_ && m_.cu_seqlens_q == m_.cu_seqlens_k &&
                        m_.cu_stride_q == m_.cu_stride_k && p_.seq_q == p_.seq_k;
    lengths_differ_ = !shared;
    return {};
  }

  static Status check_longest(const char* name, int64_t longest, Dim total) {
    if (longest >= (total.size > 0 ? 1 : 0) && longest <= total.size) return {};
    return Status::invalid(text(name, " is ", longest, ", but cu_seqlens is device memory and ",
                                total.origin, ".shape[", total.axis, "] is ", total.size,
                                ": give the longest sequence, at most that"));
  }

  Status check_offsets(const char* name, const int32_t* cu, int64_t stride, Dim total,
                       int64_t* longest) const {
    if (cu[0] != 0) return Status::invalid(text(name, "[0] is ", cu[0], "; expected 0"));
    *longest = 0;
    // One offset that repeats has no end in memory, but no length either.
    const int64_t sequences = stride != 0 ? p_.batch : 0;
    for (int64_t b = 0; b < sequences; ++b) {
      const int64_t begin = cu[b * stride], end = cu[(b + 1) * stride];
      if (end < begin)
        return Status::invalid(
            text(name, "[", b + 1, "] is ", end, ", below ", name, "[", b, "], which is ", begin));
      *longest = std::max(*longest, end - begin);
    }
    const int64_t end = cu[p_.batch * stride];
    if (end != total.size)
      return Status::invalid(text(name, " ends at ", end, ", but ", total.origin, ".shape[",
                                  total.axis, "] is ", total.size));
    return {};
  }

  Status masks() {
    if (given(a_.mask)) {
      if (!f64() || a_.mask.dtype != ATTUNE_F64)
        ATTUNE_TRY(
            check_dtype("mask", a_.mask, {ATTUNE_BOOL, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16}));
      ATTUNE_TRY(check_broadcast("mask", a_.mask, {4, {batch_, heads_, longest_q_, longest_k_}}));
      ATTUNE_TRY(memory_.add("mask", a_.mask, Access::read, LastStride::any));
      p_.mask = mask_kind(a_.mask.dtype);
      m_.mask = broadcast_view(a_.mask);
    }
    if (given(a_.block_mask)) {
      ATTUNE_TRY(check_range("block_mask_q", a_.block_mask_q, 1, INT64_MAX, ""));
      ATTUNE_TRY(check_range("block_mask_k", a_.block_mask_k, 1, INT64_MAX, ""));
      ATTUNE_TRY(check_dtype("block_mask", a_.block_mask, {ATTUNE_BOOL}));
      const Dim blocks_q = {blocks(longest_q_.size, a_.block_mask_q),
                            "the number of query blocks, ceil(Sq / block_mask_q),"};
      const Dim blocks_k = {blocks(longest_k_.size, a_.block_mask_k),
                            "the number of key blocks, ceil(Sk / block_mask_k),"};
      ATTUNE_TRY(
          check_broadcast("block_mask", a_.block_mask, {4, {batch_, heads_, blocks_q, blocks_k}}));
      ATTUNE_TRY(memory_.add("block_mask", a_.block_mask, Access::read, LastStride::any));
      p_.block_mask_q = a_.block_mask_q;
      p_.block_mask_k = a_.block_mask_k;
      m_.block_mask = broadcast_view(a_.block_mask);
    }
    return {};
  }

  static int64_t blocks(int64_t length, int64_t block) {
    return length == kAnySize ? kAnySize : length / block + (length % block != 0);
  }

  Status per_head() {
    if (given(a_.alibi_slopes)) {
      const attune_tensor& t = a_.alibi_slopes;
      ATTUNE_TRY(check_dtype("alibi_slopes", t, {real()}));
      ATTUNE_TRY(check_range("alibi_slopes.rank", t.rank, 1, 2, " ([H] or [B,H])"));
      ATTUNE_TRY(check_shape("alibi_slopes", t,
                             t.rank == 1 ? Shape{1, {heads_}} : Shape{2, {batch_, heads_}}));
      ATTUNE_TRY(memory_.add("alibi_slopes", t, Access::read, LastStride::any));
      p_.alibi = true;
      m_.alibi_slopes = static_cast<const float*>(t.data);
      m_.alibi_stride_b = t.rank == 1 ? 0 : step(t, 0);
      m_.alibi_stride_h = step(t, t.rank - 1);
    }
    if (given(a_.sinks)) {
      ATTUNE_TRY(check_dtype("sinks", a_.sinks, {real()}));
      ATTUNE_TRY(check_shape("sinks", a_.sinks, {1, {heads_}}));
      ATTUNE_TRY(memory_.add("sinks", a_.sinks, Access::read, LastStride::any));
      p_.sinks = true;
      m_.sinks = static_cast<const float*>(a_.sinks.data);
      m_.sinks_stride = step(a_.sinks, 0);
    }
    return {};
  }

  Status options() {
    // A limit longer than every sequence limits nothing, and one way to say so keeps selection's
    // key unique.
    const int64_t longest = std::max(p_.seq_q, p_.seq_k);
    p_.window_left = a_.window_left < longest ? a_.window_left : kNoLimit;
    p_.window_right = a_.window_right < longest ? a_.window_right : kNoLimit;
    p_.causal = a_.causal != 0;
    const bool window = p_.window_left != kNoLimit || p_.window_right != kNoLimit;
    // Where lengths are values in memory, other values may differ.
    if ((lengths_differ_ || p_.keys_vary()) && (p_.causal || window || p_.alibi)) {
      if (a_.alignment != ATTUNE_ALIGN_UNSPECIFIED)
        p_.alignment = Alignment(a_.alignment);
      else if (lengths_differ_ && lengths_known_)
        return Status::invalid(text("alignment is unspecified, but ",
                                    p_.causal ? "causal"
                                    : window  ? "the window"
                                              : "alibi_slopes",
                                    " needs it: query and key lengths ",
                                    p_.keys_vary() && on_cuda() ? "may differ (" : "differ (",
                                    p_.seq_q, " and ", p_.seq_k,
                                    p_.keys_vary() ? " at the longest)" : ")"));
    }
    int64_t batch_heads;
    if (a_.dropout_p > 0 && (__builtin_mul_overflow(p_.batch, p_.heads_q, &batch_heads) ||
                             batch_heads >= int64_t{1} << 32))
      return Status::invalid(text("dropout_p is ", a_.dropout_p, ", but batch * heads is ",
                                  p_.batch, " * ", p_.heads_q,
                                  "; dropout's counter holds less than 2^32"));
    ATTUNE_TRY(f64_scalars());
    p_.softcap = a_.softcap > 0 || a_.softcap_f64 > 0;
    p_.dropout = a_.dropout_p > 0;
    p_.batch_invariant = a_.batch_invariant != 0;
    p_.strict_fp32 = a_.strict_fp32 != 0 && p_.dtype == DType::f32;  // 16 bits have nothing to keep
    m_.scale = a_.scale > 0 ? a_.scale : float(1 / std::sqrt(double(p_.dim)));
    m_.softcap = a_.softcap;
    m_.dropout_p = a_.dropout_p;
    m_.dropout_seed = a_.dropout_seed;
    m_.dropout_offset = a_.dropout_offset;
    return {};
  }

  Status f64_scalars() {
    if (!f64()) {
      for (const auto& [name, value] :
           {std::pair{"scale_f64", a_.scale_f64}, std::pair{"softcap_f64", a_.softcap_f64}})
        if (value != 0)
          return Status::invalid(text(name, " is ", value, ", but q.dtype is ",
                                      dtype_name(a_.q.dtype), "; it is for F64"));
      return {};
    }
    const double wanted = a_.scale_f64 > 0 ? a_.scale_f64 : double(a_.scale);
    call_.scale_f64 = wanted > 0 ? wanted : 1 / std::sqrt(double(p_.dim));
    call_.softcap_f64 = a_.softcap_f64 > 0 ? a_.softcap_f64 : double(a_.softcap);
    return {};
  }

  // The forward's results; a backward call reads them where it has them.
  Status outputs(Access access) {
    if (access == Access::write || given(a_.out))
      ATTUNE_TRY(add_rows("out", a_.out, out_rows(), access, &m_.out));
    if (!given(a_.lse)) return {};
    p_.lse = true;
    call_.results_given = given(a_.out);
    return add_lse("lse", a_.lse, access, &m_.lse);
  }

  Status add_lse(const char* name, const attune_tensor& t, Access access, View* v) {
    ATTUNE_TRY(check_dtype(name, t, {real()}));
    ATTUNE_TRY(check_shape(
        name, t, p_.ragged ? Shape{2, {heads_, rows_q_}} : Shape{3, {batch_, heads_, rows_q_}}));
    ATTUNE_TRY(memory_.add(name, t, access, LastStride::any));
    *v = view(t, p_.ragged ? kRaggedLse : kLse);
    return {};
  }

  Shape out_rows() const { return rows(batch_, heads_, rows_q_, dim_v_); }

  // Exactly the shape of a tensor that was checked already.
  static Shape shape_of(const char* name, const attune_tensor& t) {
    Shape s{t.rank, {}};
    for (int axis = 0; axis < t.rank; ++axis) s.dims[axis] = dim_of(name, t, axis);
    return s;
  }

  Status gradients(const attune_backward_args& b, GradParams* g) {
    ATTUNE_TRY(add_rows("dout", b.dout, out_rows(), Access::read, &g->dout));
    if (given(b.dlse)) ATTUNE_TRY(add_lse("dlse", b.dlse, Access::read, &g->dlse));
    if (given(b.dq)) ATTUNE_TRY(add_rows("dq", b.dq, shape_of("q", a_.q), Access::write, &g->dq));
    if (given(b.dk)) ATTUNE_TRY(add_rows("dk", b.dk, shape_of("k", a_.k), Access::write, &g->dk));
    if (given(b.dv)) ATTUNE_TRY(add_rows("dv", b.dv, shape_of("v", a_.v), Access::write, &g->dv));
    if (given(b.dmask)) {
      if (p_.mask == MaskKind::none || p_.mask == MaskKind::boolean)
        return Status::invalid(text("dmask is given, but mask is ",
                                    p_.mask == MaskKind::none ? "not given" : "BOOL",
                                    "; only an additive mask has a gradient"));
      ATTUNE_TRY(check_dtype("dmask", b.dmask, {real()}));
      ATTUNE_TRY(check_shape("dmask", b.dmask, shape_of("mask", a_.mask)));
      ATTUNE_TRY(memory_.add("dmask", b.dmask, Access::write, LastStride::any));
      g->dmask = broadcast_view(b.dmask);
      for (int axis = 0; axis < 4; ++axis)
        g->dmask_shape[axis] =
            axis < 4 - b.dmask.rank ? 1 : b.dmask.shape[axis - (4 - b.dmask.rank)];
    }
    if (given(b.dsinks)) {
      if (!p_.sinks) return Status::invalid("dsinks is given, but sinks is not given");
      ATTUNE_TRY(check_dtype("dsinks", b.dsinks, {real()}));
      ATTUNE_TRY(check_shape("dsinks", b.dsinks, shape_of("sinks", a_.sinks)));
      ATTUNE_TRY(memory_.add("dsinks", b.dsinks, Access::write, LastStride::any));
      g->dsinks = static_cast<float*>(b.dsinks.data);
      g->dsinks_stride = step(b.dsinks, 0);
    }
    return {};
  }

  const attune_args& a_;
  Call& call_;
  Problem& p_;
  Params& m_;
  Pointers pointers_;
  Memory memory_;
  Axes axes_ = kRows;
  Dim batch_{}, heads_{}, dim_v_{};
  Dim rows_q_{}, rows_k_{};        // of the tensors: all sequences together when ragged
  Dim longest_q_{}, longest_k_{};  // of one sequence
  bool lengths_differ_ = false;    // in a sequence that has both queries and keys
  bool lengths_known_ = true;
};

}  // namespace

Status make_call(const attune_args* args, Pointers pointers, Call* call) {
  attune_args copy;
  ATTUNE_TRY(copy_args("args", args, &copy));
  *call = {};
  return Checker(copy, pointers, call).forward();
}

Status make_backward_call(const attune_backward_args* args, Pointers pointers, Call* call) {
  attune_backward_args copy;
  ATTUNE_TRY(copy_args("args", args, &copy));
  attune_args forward;
  ATTUNE_TRY(copy_args("args.forward", copy.forward, &forward));
  *call = {};
  return Checker(forward, pointers, call).backward(copy);
}

Status give_workspace(void* workspace, size_t bytes, Call* call) {
  if (call->device != ATTUNE_CUDA) {
    if (workspace == nullptr && bytes == 0) return {};
    return Status::invalid("workspace is given, but device is ATTUNE_CPU, which needs none");
  }
  ATTUNE_TRY(check_workspace(workspace, bytes, Pointers::required));
  call->params.workspace = workspace;
  call->workspace_bytes = bytes;
  if (bytes == 0) return {};
  const auto first = [](const Place& p) { return reinterpret_cast<uintptr_t>(p.address); };
  const Place place{"workspace", workspace, bytes};
  for (int i = 0; i < call->place_count; ++i) {
    const Place& other = call->places[size_t(i)];
    if (first(place) < first(other) + other.bytes && first(other) < first(place) + place.bytes)
      return Status::invalid(
          text("workspace is written, but lies within the memory of ", other.name));
  }
  if (size_t(call->place_count) == kMostPlaces)
    return {ATTUNE_INTERNAL, "a call has more tensors than the library counts"};
  call->places[size_t(call->place_count++)] = place;
  return {};
}

}  // namespace attune
