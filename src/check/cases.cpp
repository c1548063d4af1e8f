#include "src/check/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "src/check/random.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/half.hpp"
#include "src/cpu/reference.hpp"

namespace attune::check {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- Tensors between canaries ----

// Every byte that nobody set is this one: as a float of any width it is NaN, so that reading a gap
// shows in the result, and an output element that was not written shows as well.
constexpr uint8_t kPoison = 0xff;

// The address sanitizer's own red zones catch reads too, but only when they follow the data at
// once.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kCanaryBytes = 0;
#else
constexpr size_t kCanaryBytes = 256;
#endif

int64_t element_size(int32_t dtype) {
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

  // Of all bytes, canaries and gaps included (FNV-1a).
  uint64_t hash() const {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint8_t byte : bytes_) h = (h ^ byte) * 0x100000001b3u;
    return h;
  }

  // Whether canaries and gaps between rows are as they were.
  bool surroundings_intact() const {
    std::vector<uint8_t> rest = bytes_;
    const int64_t size = element_size(view.dtype);
    uint8_t* first = rest.data() + (static_cast<uint8_t*>(view.data) - bytes_.data());
    for_each([&](int64_t at) { std::memset(first + at * size, kPoison, size_t(size)); });
    return std::all_of(rest.begin(), rest.end(), [](uint8_t b) { return b == kPoison; });
  }

  attune_tensor view{};

 private:
  std::vector<uint8_t> bytes_;
};

// ---- From a case to its tensors ----

int32_t as_dtype(MaskKind kind) {
  switch (kind) {
    case MaskKind::boolean:
      return ATTUNE_BOOL;
    case MaskKind::f16:
      return ATTUNE_F16;
    case MaskKind::bf16:
      return ATTUNE_BF16;
    default:
      return ATTUNE_F32;
  }
}

struct Data {
  explicit Data(const Case& c);

  Tensor activation(int64_t heads, bool query, int64_t dim) const;
  Tensor lse_like() const;
  Tensor mask_like(int32_t dtype, int64_t rows, int64_t keys) const;
  Params params() const;
  attune_args args() const;
  std::vector<const Tensor*> inputs() const {
    return {&q, &k, &v, &mask, &block_mask, &slopes, &sinks, &cu_q, &cu_k};
  }

  const Case& c;
  const Problem& p;
  int64_t total_q = 0, total_k = 0;  // ragged: rows in all
  Tensor q, k, v, out, lse, mask, block_mask, slopes, sinks, cu_q, cu_k;

 private:
  void fill_mask(Tensor* t, int64_t rows, int64_t keys, Random* random) const;
  void fill_qkv(Random* random);
  void dominate_rows();
  void poison_keys();
  bool reachable(const Params& a, int64_t b, int64_t head_kv, int64_t j) const;
};

// [B,H,S,D] or, strided, [B,S,H,D] in memory; ragged [T,H,D] or, strided, [H,T,D].
Tensor Data::activation(int64_t heads, bool query, int64_t dim) const {
  const int32_t dtype = int32_t(p.dtype);
  const int64_t pad = c.strided ? 3 : 0, offset = c.strided ? 1 : 0;
  if (p.ragged) {
    const std::vector<int> order = c.strided ? std::vector{1, 0, 2} : std::vector{0, 1, 2};
    return Tensor(dtype, {query ? total_q : total_k, heads, dim}, order, pad, offset);
  }
  const std::vector<int> order = c.strided ? std::vector{0, 2, 1, 3} : std::vector{0, 1, 2, 3};
  return Tensor(dtype, {p.batch, heads, query ? p.seq_q : p.seq_k, dim}, order, pad, offset);
}

Tensor Data::lse_like() const {
  const int64_t pad = c.strided ? 3 : 0;
  if (p.ragged) return Tensor(ATTUNE_F32, {p.heads_q, total_q}, {0, 1}, pad, pad);
  return Tensor(ATTUNE_F32, {p.batch, p.heads_q, p.seq_q}, {0, 1, 2}, pad, pad);
}

// Strided: every other one stands transposed in memory, so that neighbouring keys are not
// neighbours.
Tensor Data::mask_like(int32_t dtype, int64_t rows, int64_t keys) const {
  std::vector<int64_t> shape = {p.batch, p.heads_q, rows, keys};
  for (size_t d = 0; d < 4; ++d)
    if ((c.mask_broadcast >> d & 1) != 0) shape[d] = 1;
  const bool transposed = c.strided && c.seed % 2 == 0;
  const std::vector<int> order = transposed ? std::vector{1, 0, 3, 2} : std::vector{0, 1, 2, 3};
  return Tensor(dtype, shape, order, c.strided ? 1 : 0, c.strided ? 1 : 0);
}

Data::Data(const Case& the_case) : c(the_case), p(the_case.problem) {
  Random random(c.seed);
  const int64_t spread = c.strided ? 1 : 0;
  for (int32_t n : c.lengths_q) total_q += n;
  for (int32_t n : c.lengths_k) total_k += n;
  q = activation(p.heads_q, true, p.dim);
  k = activation(p.heads_kv, false, p.dim);
  v = activation(p.heads_kv, false, p.dim_v);
  out = activation(p.heads_q, true, p.dim_v);
  if (p.lse) lse = lse_like();
  if (p.mask != MaskKind::none) {
    mask = mask_like(as_dtype(p.mask), p.seq_q, p.seq_k);
    fill_mask(&mask, mask.view.shape[2], mask.view.shape[3], &random);
  }
  if (p.block_mask_q != 0) {
    const int64_t rows = (p.seq_q + p.block_mask_q - 1) / p.block_mask_q;
    const int64_t keys = (p.seq_k + p.block_mask_k - 1) / p.block_mask_k;
    block_mask = mask_like(ATTUNE_BOOL, rows, keys);
    block_mask.for_each(
        [&](int64_t at) { block_mask.set(at, random.chance(c.mask_density) ? 1 : 0); });
  }
  if (p.alibi) {
    slopes = c.seed % 2 == 0 ? Tensor(ATTUNE_F32, {p.heads_q}, {0}, 0, spread)
                             : Tensor(ATTUNE_F32, {p.batch, p.heads_q}, {1, 0}, spread, spread);
    slopes.for_each([&](int64_t at) { slopes.set(at, std::exp2(-8 * random.uniform())); });
  }
  if (p.sinks) {
    sinks = Tensor(ATTUNE_F32, {p.heads_q}, {0}, 0, spread);
    sinks.for_each([&](int64_t at) { sinks.set(at, 2 * random.normal()); });
  }
  if (p.ragged) {
    cu_q = Tensor(ATTUNE_I32, {p.batch + 1}, {0}, 0, 0);
    cu_k = Tensor(ATTUNE_I32, {p.batch + 1}, {0}, 0, 0);
    int32_t *at_q = static_cast<int32_t*>(cu_q.view.data),
            *at_k = static_cast<int32_t*>(cu_k.view.data);
    at_q[0] = at_k[0] = 0;
    for (size_t b = 0; b < size_t(p.batch); ++b) {
      at_q[b + 1] = at_q[b] + c.lengths_q[b];
      at_k[b + 1] = at_k[b] + c.lengths_k[b];
    }
  }
  fill_qkv(&random);
}

// Beside random rows: rows without any key, and rows that begin or end with a long masked stretch,
// where a running maximum starts from nothing. Some keys are masked for all.
void Data::fill_mask(Tensor* t, int64_t rows, int64_t keys, Random* random) const {
  const bool boolean = t->view.dtype == ATTUNE_BOOL;
  std::vector<bool> masked_for_all(static_cast<size_t>(keys));
  for (int64_t j = 0; j < keys; ++j) masked_for_all[size_t(j)] = random->chance(0.1f);
  for (int64_t b = 0; b < t->view.shape[0]; ++b)
    for (int64_t h = 0; h < t->view.shape[1]; ++h)
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t kind = random->below(12);
        for (int64_t j = 0; j < keys; ++j) {
          bool keep = random->chance(c.mask_density) && !masked_for_all[size_t(j)];
          if (kind == 0 || (kind == 1 && j < keys / 2) || (kind == 2 && j >= keys / 2))
            keep = false;
          const float bias = 2 * random->normal();
          const float additive = c.infinite_mask && !keep ? -kInfinity : bias;
          t->set(t->at(b, h, i, j), boolean ? float(keep) : additive);
        }
      }
}

void Data::fill_qkv(Random* random) {
  float factor_qk = 1, factor_v = 1;
  if (c.fill == Fill::huge_logits) factor_qk = 100;
  if (c.fill == Fill::tiny) factor_qk = factor_v = 1e-4f;
  q.for_each([&](int64_t at) { q.set(at, factor_qk * random->normal()); });
  k.for_each([&](int64_t at) { k.set(at, factor_qk * random->normal()); });
  v.for_each([&](int64_t at) { v.set(at, factor_v * random->normal()); });
  if (c.fill == Fill::vast_logits) {
    // -1, 0 or 1 times a power of two: sums of products are exact, so every kernel sees one winner.
    const auto value = [&] {
      return 0x1p15f * std::clamp(std::round(random->normal()), -1.f, 1.f);
    };
    q.for_each([&](int64_t at) { q.set(at, value()); });
    k.for_each([&](int64_t at) { k.set(at, value()); });
  }
  if (c.fill == Fill::one_hot_v) {
    const Params a = params();
    for (int64_t b = 0; b < p.batch; ++b) {
      const Sequence s = Sequence::of(p, a, b);
      for (int64_t h = 0; h < p.heads_kv; ++h)
        for (int64_t j = 0; j < s.sk; ++j)
          for (int64_t d = 0; d < p.dim_v; ++d)
            v.set(b * a.v.stride_b + h * a.v.stride_h + (s.k0 + j) * a.v.stride_s + d,
                  j % p.dim_v == d ? 1.f : 0.f);
    }
  }
  if (c.fill == Fill::peaked) dominate_rows();
  if (c.fill == Fill::nan_in_masked || c.fill == Fill::nan_key) poison_keys();
}

// Row i points along one key.
void Data::dominate_rows() {
  const Params a = params();
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = Sequence::of(p, a, b);
    for (int64_t h = 0; h < p.heads_q && s.sk > 0; ++h)
      for (int64_t i = 0; i < s.sq; ++i)
        for (int64_t d = 0; d < p.dim; ++d) {
          const int64_t j = i * 7 % s.sk;
          const float key = k.get(b * a.k.stride_b + h / p.group() * a.k.stride_h +
                                  (s.k0 + j) * a.k.stride_s + d);
          q.set(b * a.q.stride_b + h * a.q.stride_h + (s.q0 + i) * a.q.stride_s + d, 4 * key);
        }
  }
}

void Data::poison_keys() {
  const Params a = params();
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = Sequence::of(p, a, b);
    for (int64_t h = 0; h < p.heads_kv; ++h)
      for (int64_t j = 0; j < s.sk; ++j) {
        if (c.fill == Fill::nan_key ? j != s.sk / 2 : reachable(a, b, h, j)) continue;
        const float bad = c.fill == Fill::nan_in_masked && j % 2 == 0 ? kInfinity : kNaN;
        for (int64_t d = 0; d < p.dim; ++d)
          k.set(b * a.k.stride_b + h * a.k.stride_h + (s.k0 + j) * a.k.stride_s + d, bad);
        for (int64_t d = 0; d < p.dim_v; ++d)
          v.set(b * a.v.stride_b + h * a.v.stride_h + (s.k0 + j) * a.v.stride_s + d, bad);
      }
  }
}

// Whether some row may look at key j.
bool Data::reachable(const Params& a, int64_t b, int64_t head_kv, int64_t j) const {
  const Sequence s = Sequence::of(p, a, b);
  const auto kept = [](const Tensor& t, const View4& view, int64_t n0, int64_t n1, int64_t n2,
                       int64_t n3) {
    const float x = t.get(n0 * view.stride[0] + n1 * view.stride[1] + n2 * view.stride[2] +
                          n3 * view.stride[3]);
    return t.view.dtype == ATTUNE_BOOL ? x != 0 : x != -kInfinity;
  };
  for (int64_t h = head_kv * p.group(); h < (head_kv + 1) * p.group(); ++h)
    for (int64_t i = 0; i < s.sq; ++i) {
      const KeyRange range = key_range(p, s, i);
      if (j < range.begin || j >= range.end) continue;
      if (mask.given() && !kept(mask, a.mask, b, h, i, j)) continue;
      if (block_mask.given() &&
          !kept(block_mask, a.block_mask, b, h, i / p.block_mask_q, j / p.block_mask_k))
        continue;
      return true;
    }
  return false;
}

View as_view(const Tensor& t, bool ragged) {
  if (ragged) return {t.view.data, 0, t.view.stride[1], t.view.stride[0]};
  return {t.view.data, t.view.stride[0], t.view.stride[1], t.view.stride[2]};
}

View lse_view(const Tensor& t, bool ragged) {
  if (ragged) return {t.view.data, 0, t.view.stride[0], t.view.stride[1]};
  return {t.view.data, t.view.stride[0], t.view.stride[1], t.view.stride[2]};
}

View4 mask_view(const Tensor& t) {
  View4 view{t.view.data, {}};
  for (int d = 0; d < 4; ++d) view.stride[d] = t.view.shape[d] == 1 ? 0 : t.view.stride[d];
  return view;
}

Params Data::params() const {
  Params a;
  a.q = as_view(q, p.ragged);
  a.k = as_view(k, p.ragged);
  a.v = as_view(v, p.ragged);
  a.out = as_view(out, p.ragged);
  if (lse.given()) a.lse = lse_view(lse, p.ragged);
  if (mask.given()) a.mask = mask_view(mask);
  if (block_mask.given()) a.block_mask = mask_view(block_mask);
  if (slopes.given()) {
    const bool per_batch = slopes.view.rank == 2;
    a.alibi_slopes = static_cast<const float*>(slopes.view.data);
    a.alibi_stride_b = per_batch ? slopes.view.stride[0] : 0;
    a.alibi_stride_h = slopes.view.stride[per_batch ? 1 : 0];
  }
  if (sinks.given()) {
    a.sinks = static_cast<const float*>(sinks.view.data);
    a.sinks_stride = sinks.view.stride[0];
  }
  if (p.ragged) {
    a.cu_seqlens_q = static_cast<const int32_t*>(cu_q.view.data);
    a.cu_seqlens_k = static_cast<const int32_t*>(cu_k.view.data);
  }
  a.scale = c.scale != 0 ? c.scale : 1 / std::sqrt(float(p.dim));
  a.softcap = c.softcap;
  a.dropout_p = c.dropout_p;
  a.dropout_seed = c.seed * 0x9e3779b97f4a7c15u;
  a.dropout_offset = c.seed << 16;
  return a;
}

attune_args Data::args() const {
  const Params a = params();
  attune_args x;
  (void)attune_args_init(&x, sizeof(x));  // cannot fail: the size is right
  x.q = q.view;
  x.k = k.view;
  x.v = v.view;
  x.out = out.view;
  x.lse = lse.view;
  x.scale = c.scale;
  x.softcap = c.softcap;
  x.causal = p.causal;
  x.alignment = int32_t(p.alignment);
  x.window_left = p.window_left;
  x.window_right = p.window_right;
  x.mask = mask.view;
  x.block_mask = block_mask.view;
  x.block_mask_q = p.block_mask_q;
  x.block_mask_k = p.block_mask_k;
  x.alibi_slopes = slopes.view;
  x.sinks = sinks.view;
  x.cu_seqlens_q = cu_q.view;
  x.cu_seqlens_k = cu_k.view;
  x.dropout_p = c.dropout_p;
  x.dropout_seed = a.dropout_seed;
  x.dropout_offset = a.dropout_offset;
  x.batch_invariant = p.batch_invariant;
  // A broadcast mask comes as size 1, or, strided, as the full size with stride 0.
  if (c.strided && mask.given()) {
    const int64_t full[4] = {p.batch, p.heads_q, p.seq_q, p.seq_k};
    for (int d = 0; d < 4; ++d) {
      x.mask.shape[d] = full[d];
      x.mask.stride[d] = a.mask.stride[d];
    }
  }
  return x;
}

// ---- The verdict ----

// The reference's result, its conditioning, and the naive loops' result on the same data.
struct Expected {
  std::vector<double> out, lse, sensitivity, lse_sensitivity;
  Tensor naive_out, naive_lse;
};

Expected expect(const Data& data, const cpu::Executor& executor) {
  const Problem& p = data.p;
  const size_t rows = size_t(p.batch * p.heads_q * p.seq_q);
  Expected e{std::vector<double>(rows * size_t(p.dim_v)),
             std::vector<double>(rows),
             std::vector<double>(rows),
             std::vector<double>(rows),
             data.activation(p.heads_q, true, p.dim_v),
             data.lse_like()};
  Params a = data.params();
  cpu::reference_forward_f64(
      p, a, executor, {e.out.data(), e.lse.data(), e.sensitivity.data(), e.lse_sensitivity.data()});
  a.out = as_view(e.naive_out, p.ragged);
  a.lse = lse_view(e.naive_lse, p.ragged);
  cpu::naive_forward(p, a, executor);
  return e;
}

// How far results are from the reference, over all elements where it is finite.
struct Distance {
  double value = 0;        // of the candidate
  double naive = 0;        // of the naive loops
  double largest = 0;      // |reference|
  std::string worst;       // the candidate's worst element
  std::string wrong_kind;  // the first that is finite where the reference is not, or the reverse
};

// where() names the element. `exact` asks for the very value: a row with nothing to look at is 0.
template <class Where>
void measure(double got, double naive, double reference, bool exact, const Where& where,
             Distance* distance) {
  const auto tell = [&] {
    return fmt::format("{} is {:.9g}, the reference {:.9g}", where(), got, reference);
  };
  if (exact || !std::isfinite(reference) || !std::isfinite(got)) {
    const bool same = std::isnan(reference) ? std::isnan(got) : got == reference;
    if (!same && distance->wrong_kind.empty()) distance->wrong_kind = tell();
    return;
  }
  distance->largest = std::max(distance->largest, std::abs(reference));
  if (std::isfinite(naive))
    distance->naive = std::max(distance->naive, std::abs(naive - reference));
  const double error = std::abs(got - reference);
  if (error > distance->value) {
    distance->value = error;
    distance->worst = tell();
  }
}

double largest_finite(const Tensor& t) {
  double largest = 0;
  t.for_each([&](int64_t at) {
    const double x = std::abs(t.get(at));
    if (std::isfinite(x)) largest = std::max(largest, x);
  });
  return largest;
}

double largest_finite(const std::vector<double>& values) {
  double largest = 0;
  for (double x : values)
    if (std::isfinite(x)) largest = std::max(largest, x);
  return largest;
}

Verdict compare(const Data& data, const Expected& expected) {
  const Problem& p = data.p;
  const Params a = data.params();
  const View naive_lse = lse_view(expected.naive_lse, p.ragged);
  Distance out, lse;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = Sequence::of(p, a, b);
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < s.sq; ++i) {
        const int64_t row = (b * p.heads_q + h) * p.seq_q + i;
        const int64_t at = b * a.out.stride_b + h * a.out.stride_h + (s.q0 + i) * a.out.stride_s;
        const double* reference = &expected.out[size_t(row * p.dim_v)];
        const bool zero =
            std::all_of(reference, reference + p.dim_v, [](double x) { return x == 0; });
        for (int64_t d = 0; d < p.dim_v; ++d)
          measure(
              data.out.get(at + d), expected.naive_out.get(at + d), reference[d], zero,
              [&] { return fmt::format("out[{},{},{},{}]", b, h, i, d); }, &out);
        if (!p.lse) continue;
        measure(
            data.lse.get(b * a.lse.stride_b + h * a.lse.stride_h + (s.q0 + i) * a.lse.stride_s),
            expected.naive_lse.get(b * naive_lse.stride_b + h * naive_lse.stride_h +
                                   (s.q0 + i) * naive_lse.stride_s),
            expected.lse[size_t(row)], false, [&] { return fmt::format("lse[{},{},{}]", b, h, i); },
            &lse);
      }
  }

  // The absolute term is what scores and sums that are each a few float32 roundings off can move
  // the result by: without it a case where the naive loops are lucky would fail every honest
  // kernel.
  constexpr double kRounding = 0x1p-24;
  const double amplify = p.dropout ? 1 / (1 - double(data.c.dropout_p)) : 1;
  Verdict verdict;
  verdict.error = out.value;
  verdict.limit = 2 * out.naive + kRounding * largest_finite(data.v) * amplify *
                                      (3 + 1.5 * largest_finite(expected.sensitivity));
  verdict.lse_error = lse.value;
  // What a 16-bit problem's lse is for (gradients, merging parts) is rounded far more coarsely.
  const double lse_roundings = p.dtype == DType::f32 ? 8 : 64;
  verdict.lse_limit = 2 * lse.naive + kRounding * (lse_roundings + 2 * lse.largest +
                                                   1.5 * largest_finite(expected.lse_sensitivity));
  if (!out.wrong_kind.empty())
    verdict.why = out.wrong_kind;
  else if (!lse.wrong_kind.empty())
    verdict.why = lse.wrong_kind;
  else if (!(verdict.error <= verdict.limit))
    verdict.why = fmt::format("{}: off by {:.3g}, allowed is {:.3g}", out.worst, verdict.error,
                              verdict.limit);
  else if (!(verdict.lse_error <= verdict.lse_limit))
    verdict.why = fmt::format("{}: off by {:.3g}, allowed is {:.3g}", lse.worst, verdict.lse_error,
                              verdict.lse_limit);
  verdict.ok = verdict.why.empty();
  return verdict;
}

// What the candidate touched that it must not; empty when nothing.
std::string damage(const Data& data, const std::vector<uint64_t>& hashes_before) {
  static constexpr const char* kNames[] = {
      "q", "k", "v", "mask", "block_mask", "alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k"};
  const std::vector<const Tensor*> inputs = data.inputs();
  for (size_t n = 0; n < inputs.size(); ++n)
    if (inputs[n]->hash() != hashes_before[n])
      return fmt::format("the input {} or its surroundings were written to", kNames[n]);
  if (!data.out.surroundings_intact()) return "memory around out was written to";
  if (!data.lse.surroundings_intact()) return "memory around lse was written to";
  return "";
}

Verdict judge(const Data& data, const cpu::Executor& executor,
              const std::function<Status()>& candidate) {
  std::vector<uint64_t> hashes;
  for (const Tensor* input : data.inputs()) hashes.push_back(input->hash());
  const Status status = candidate();
  Verdict failed;
  failed.why = status.ok() ? damage(data, hashes)
                           : fmt::format("{}: {}", attune_status_name(status.code), status.message);
  if (!failed.why.empty()) return failed;
  return compare(data, expect(data, executor));
}

const char* fill_name(Fill fill) {
  switch (fill) {
    case Fill::normal:
      return "";
    case Fill::huge_logits:
      return ".huge";
    case Fill::vast_logits:
      return ".vast";
    case Fill::tiny:
      return ".tiny";
    case Fill::one_hot_v:
      return ".onehot";
    case Fill::peaked:
      return ".peaked";
    case Fill::nan_in_masked:
      return ".nanmasked";
    case Fill::nan_key:
      return ".nankey";
  }
  return "";
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case ATTUNE_F16:
      return "f16";
    case ATTUNE_BF16:
      return "bf16";
    case ATTUNE_BOOL:
      return "bool";
    default:
      return "f32";
  }
}

}  // namespace

std::string Case::name() const {
  const Problem& p = problem;
  std::string s = fmt::format("{}.b{}.h{}", dtype_name(int32_t(p.dtype)), p.batch, p.heads_q);
  if (p.heads_kv != p.heads_q) s += fmt::format("kv{}", p.heads_kv);
  s += fmt::format(".q{}.k{}.d{}", p.seq_q, p.seq_k, p.dim);
  if (p.dim_v != p.dim) s += fmt::format("v{}", p.dim_v);
  const bool diagonal =
      p.causal || p.alibi || p.window_left != kNoLimit || p.window_right != kNoLimit;
  if (p.causal) s += ".causal";
  if (p.window_left != kNoLimit || p.window_right != kNoLimit)
    s += fmt::format(".win{},{}", p.window_left, p.window_right);
  if (p.alibi) s += ".alibi";
  if (diagonal && p.alignment == Alignment::bottom_right) s += ".br";
  if (p.mask != MaskKind::none)
    s += fmt::format(".mask_{}{}", dtype_name(as_dtype(p.mask)), infinite_mask ? "_inf" : "");
  if (p.block_mask_q != 0) s += fmt::format(".block{}x{}", p.block_mask_q, p.block_mask_k);
  if (mask_broadcast != 0) s += fmt::format(".bc{:x}", mask_broadcast);
  if (p.softcap) s += fmt::format(".cap{:g}", softcap);
  if (p.sinks) s += ".sinks";
  if (p.ragged) s += ".ragged";
  if (p.dropout) s += fmt::format(".drop{:g}", dropout_p);
  if (scale != 0) s += fmt::format(".scale{:g}", scale);
  if (p.lse) s += ".lse";
  if (p.batch_invariant) s += ".inv";
  if (strided) s += ".strided";
  return s + fill_name(fill) + fmt::format(".s{}", seed);
}

Verdict run_case(const Case& c, const cpu::Executor& executor, Forward forward, const void* user) {
  const Data data(c);
  return judge(data, executor, [&] { return forward(c.problem, data.params(), executor, user); });
}

Verdict run_case_api(const Case& c, int threads, attune_mode mode) {
  const Data data(c);
  attune_args args = data.args();
  args.mode = mode;
  args.threads = threads;
  cpu::Executor executor;
  executor.threads = threads > 0 ? threads : cpu::usable_threads();
  return judge(data, executor, [&] {
    const attune_status code = attune_forward(&args);
    return Status{code, code == ATTUNE_OK ? "" : attune_last_error()};
  });
}

Verdict run_case_config(const Case& c, const cpu::Executor& executor,
                        const cpu::CpuConfig& config) {
  const std::string reason = invalid_reason(config, c.problem, cpu::arch());
  if (!reason.empty()) {
    Verdict verdict;
    verdict.why = "the config cannot run here: " + reason;
    return verdict;
  }
  const Forward forward = [](const Problem& problem, const Params& params,
                             const cpu::Executor& threads, const void* user) {
    return cpu::fused_forward(problem, params, *static_cast<const cpu::CpuConfig*>(user), threads);
  };
  return run_case(c, executor, forward, &config);
}

}  // namespace attune::check
