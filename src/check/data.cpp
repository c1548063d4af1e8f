#include "src/check/data.hpp"

#include <cmath>
#include <limits>

namespace attune::check {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

View4 mask_view(const Tensor& t) {
  View4 view{t.view.data, {}};
  for (int d = 0; d < 4; ++d) view.stride[d] = t.view.shape[d] == 1 ? 0 : t.view.stride[d];
  return view;
}

}  // namespace

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
  if (c.backwards)
    for (Tensor* t : {&q, &k, &v, &out}) t->turn_round(1), t->turn_round(p.ragged ? 0 : 2);
  if (c.repeated) {
    k.repeat(1);
    v.repeat(1);
    if (!p.ragged) q.repeat(0);
  }
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
  if (p.key_lengths) {
    key_lengths = Tensor(ATTUNE_I32, {p.batch}, {0}, 0, spread);
    std::copy(c.key_lengths.begin(), c.key_lengths.end(),
              static_cast<int32_t*>(key_lengths.view.data));
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
  if (p.key_lengths && c.seed % 2 == 0) poison_unused_keys();
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
        poison(a, b, h, s.k0 + j, c.fill == Fill::nan_in_masked && j % 2 == 0 ? kInfinity : kNaN);
      }
  }
}

void Data::poison_unused_keys() {
  const Params a = params();
  Problem whole = p;
  whole.key_lengths = false;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads_kv; ++h)
      for (int64_t j = Sequence::of(p, a, b).sk; j < Sequence::of(whole, a, b).sk; ++j)
        poison(a, b, h, Sequence::of(p, a, b).k0 + j, j % 2 == 0 ? kInfinity : kNaN);
}

void Data::poison(const Params& a, int64_t b, int64_t head_kv, int64_t row, float bad) {
  for (int64_t d = 0; d < p.dim; ++d)
    k.set(b * a.k.stride_b + head_kv * a.k.stride_h + row * a.k.stride_s + d, bad);
  for (int64_t d = 0; d < p.dim_v; ++d)
    v.set(b * a.v.stride_b + head_kv * a.v.stride_h + row * a.v.stride_s + d, bad);
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

Params Data::params() const {
  Params a;
  a.q = as_view(q, p.ragged);
  a.k = as_view(k, p.ragged);
  a.v = as_view(v, p.ragged);
  a.out = as_view(out, p.ragged);
  a.rows_q = q.view.shape[p.ragged ? 0 : 2];
  a.rows_k = k.view.shape[p.ragged ? 0 : 2];
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
  a.key_lengths = static_cast<const int32_t*>(key_lengths.view.data);
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
  x.key_lengths = key_lengths.view;
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

}  // namespace attune::check
