// What pointers and strides allow.
#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "src/rungs/rung.hpp"

namespace attune {
namespace {

// Bytes, at most 16, that the start of a view is a multiple of, and the strides that it really
// takes with these extents.
int row_step(const View& v, int bytes, bool batches, bool heads, bool rows) {
  uint64_t bits = 16 | reinterpret_cast<uintptr_t>(v.data);
  if (batches) bits |= uint64_t(v.stride_b) * uint64_t(bytes);
  if (heads) bits |= uint64_t(v.stride_h) * uint64_t(bytes);
  if (rows) bits |= uint64_t(v.stride_s) * uint64_t(bytes);
  return int(bits & (~bits + 1));
}

// Kernels count the bytes inside a tile of up to 128 rows in 32 bits.
bool rows_near(const View& v, int bytes, bool rows) {
  return !rows || std::abs(v.stride_s) < (int64_t{1} << 31) / (128 * bytes);
}

bool mask_aligned(const Problem& p, const View4& m) {
  const int bytes = element_bytes(p.mask);
  const int64_t extent[3] = {p.batch, p.heads_q, p.seq_q};
  for (int d = 0; d < 3; ++d)
    if (extent[d] > 1 && m.stride[d] * bytes % 16 != 0) return false;
  return m.stride[3] == 1 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

// Where more than one of a kind is counted along it, a stride goes forward; `repeats`: or is 0.
bool goes_forward(const int64_t* strides, std::initializer_list<int64_t> extents, bool repeats) {
  for (int64_t extent : extents) {
    const int64_t stride = *strides++;
    if (extent > 1 && stride <= (repeats ? -1 : 0)) return false;
  }
  return true;
}
bool goes_forward(const Problem& p, const View& v, int64_t heads, int64_t rows) {
  const int64_t strides[] = {v.stride_b, v.stride_h, v.stride_s};
  // Nothing at all was said of the tensor. NULL data with strides (explain) is judged by these.
  if (v.data == nullptr && std::count(strides, strides + 3, 0) == 3) return true;
  return goes_forward(strides, {p.ragged ? 1 : p.batch, heads, rows}, false);
}

}  // namespace

Layout layout_of(const Problem& p, const Params& a, const GradParams& g) {
  const int bytes = element_bytes(p.dtype);
  Layout layout;
  bool near = true;
  while (p.dim * bytes % layout.step != 0 || p.dim_v * bytes % layout.step != 0) layout.step /= 2;
  const auto heed = [&](const View& v, int64_t heads, int64_t length) {
    const bool batches = p.batch > 1 && !p.ragged, rows = length > 1 || p.ragged;
    layout.step = std::min(layout.step, row_step(v, bytes, batches, heads > 1, rows));
    near &= rows_near(v, bytes, rows);
  };
  heed(a.q, p.heads_q, p.seq_q);
  heed(a.k, p.heads_kv, p.seq_k);
  heed(a.v, p.heads_kv, p.seq_k);
  heed(a.out, p.heads_q, p.seq_q);
  heed(g.dout, p.heads_q, p.seq_q);  // those that are not given are aligned
  heed(g.dq, p.heads_q, p.seq_q);
  heed(g.dk, p.heads_kv, p.seq_k);
  heed(g.dv, p.heads_kv, p.seq_k);
  layout.rows16 = layout.step == 16 && near;
  layout.mask16 = p.mask == MaskKind::none || mask_aligned(p, a.mask);
  layout.forward =
      goes_forward(p, a.q, p.heads_q, a.rows_q) && goes_forward(p, a.k, p.heads_kv, a.rows_k) &&
      goes_forward(p, a.v, p.heads_kv, a.rows_k) && goes_forward(p, a.out, p.heads_q, a.rows_q) &&
      goes_forward(a.mask.stride, {p.batch, p.heads_q, p.seq_q}, true);
  return layout;
}

}  // namespace attune
