#include "tests/fuzz/oracle.hpp"

#include <cmath>
#include <limits>

#include "kernels/tile/philox.h"

namespace attune::fuzz {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 0x1p-24;  // of float32

struct Sequence {
  int64_t q0, sq, k0, sk;
};

// What is computed, from the tensors of an accepted call.
struct Geometry {
  explicit Geometry(const Case& c) : ragged(given(c.args.cu_seqlens_q)) {
    const attune_args& a = c.args;
    const int heads_at = 1, dim_at = ragged ? 2 : 3;
    heads = a.q.shape[heads_at];
    heads_kv = a.k.shape[heads_at];
    dim = int(a.q.shape[dim_at]);
    dim_v = int(a.v.shape[dim_at]);
    batch = ragged ? a.cu_seqlens_q.shape[0] - 1 : a.q.shape[0];
    for (int64_t b = 0; b < batch; ++b) {
      const auto number = [&](const attune_tensor& t, int64_t i) {
        return int64_t(get_element(t, i * step(t, 0)));
      };
      if (ragged) {
        const int64_t q0 = number(a.cu_seqlens_q, b), k0 = number(a.cu_seqlens_k, b);
        sequences.push_back(
            {q0, number(a.cu_seqlens_q, b + 1) - q0, k0, number(a.cu_seqlens_k, b + 1) - k0});
      } else {
        sequences.push_back({0, a.q.shape[2], 0, a.k.shape[2]});
      }
      if (given(a.key_lengths)) sequences.back().sk = number(a.key_lengths, b);
    }
  }

  int64_t group() const { return heads / heads_kv; }
  // The first element of row `s` (in memory) of a head.
  int64_t row(const attune_tensor& t, int64_t b, int64_t h, int64_t s) const {
    return ragged ? s * step(t, 0) + h * step(t, 1)
                  : b * step(t, 0) + h * step(t, 1) + s * step(t, 2);
  }
  int64_t lse(const attune_tensor& t, int64_t b, int64_t h, int64_t s) const {
    return ragged ? h * step(t, 0) + s * step(t, 1) : row(t, b, h, s);
  }

  bool ragged;
  int64_t batch, heads, heads_kv;
  int dim, dim_v;
  std::vector<Sequence> sequences;
};

// A tensor that broadcasts to four dimensions.
int64_t broadcast(const attune_tensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t index[4] = {a, b, c, d};
  int64_t at = 0;
  for (int i = 0; i < t.rank; ++i) at += index[i + 4 - t.rank] * step(t, i);
  return at;
}

struct Key {
  int64_t j;
  double product;  // scale * q.k
  double score = 0;
  double weight = 0;  // of the softmax
  double kept = 1;    // dropout's factor
};

// The keys that one row looks at.
struct Row {
  std::vector<Key> keys;
  double sink_weight = 0;
  double lse = -kInfinity;
  double terms = 0;      // the largest sum of |terms| of a finite score
  bool unclear = false;  // its weights are NaN, and dropout may hide that
};

class Rows {
 public:
  explicit Rows(const Case& c) : a(c.args), g(c) {
    scale = a.scale > 0 ? double(a.scale) : double(float(1 / std::sqrt(double(g.dim))));
  }

  Row row(int64_t b, int64_t h, int64_t i) const {
    const Sequence& s = g.sequences[size_t(b)];
    const int64_t position = i + (a.alignment == ATTUNE_ALIGN_BOTTOM_RIGHT ? s.sk - s.sq : 0);
    Row row;
    for (int64_t j = 0; j < s.sk; ++j) add_key(b, h, i, j, position, &row);
    weigh(h, &row);
    if (a.dropout_p > 0)
      for (Key& key : row.keys) key.kept = dropout(b, h, i, key.j);
    return row;
  }

  // fn(b, h, i, the row's place in q and out).
  template <class Fn>
  void each(const Fn& fn) const {
    for (int64_t b = 0; b < g.batch; ++b)
      for (int64_t h = 0; h < g.heads; ++h)
        for (int64_t i = 0; i < g.sequences[size_t(b)].sq; ++i)
          fn(b, h, i, g.sequences[size_t(b)].q0 + i);
  }

  int64_t key_row(const attune_tensor& t, int64_t b, int64_t h, int64_t j) const {
    return g.row(t, b, h / g.group(), g.sequences[size_t(b)].k0 + j);
  }

  const attune_args& a;
  Geometry g;
  double scale;

 private:
  bool allowed(int64_t b, int64_t h, int64_t i, int64_t j, int64_t position) const {
    if (a.causal != 0 && j > position) return false;
    if (a.window_left != -1 && Wide(j) < Wide(position) - a.window_left) return false;
    if (a.window_right != -1 && Wide(j) > Wide(position) + a.window_right) return false;
    if (given(a.mask) && a.mask.dtype == ATTUNE_BOOL &&
        get_element(a.mask, broadcast(a.mask, b, h, i, j)) == 0)
      return false;
    return !given(a.block_mask) ||
           get_element(a.block_mask,
                       broadcast(a.block_mask, b, h, i / a.block_mask_q, j / a.block_mask_k)) != 0;
  }

  void add_key(int64_t b, int64_t h, int64_t i, int64_t j, int64_t position, Row* row) const {
    if (!allowed(b, h, i, j, position)) return;
    double bias = 0;
    if (given(a.mask) && a.mask.dtype != ATTUNE_BOOL)
      bias = get_element(a.mask, broadcast(a.mask, b, h, i, j));
    if (bias == -kInfinity) return;
    const int64_t q = g.row(a.q, b, h, g.sequences[size_t(b)].q0 + i), k = key_row(a.k, b, h, j);
    double dot = 0, size = 0;
    for (int d = 0; d < g.dim; ++d) {
      const double term = get_element(a.q, q + d) * get_element(a.k, k + d);
      dot += term;
      size += std::abs(term);
    }
    Key key{j, scale * dot};
    size *= scale;
    key.score = a.softcap > 0 ? a.softcap * std::tanh(key.product / a.softcap) : key.product;
    key.score += bias;
    size += std::abs(bias);
    if (given(a.alibi_slopes)) {
      const attune_tensor& t = a.alibi_slopes;
      const int64_t at = t.rank == 1 ? h * step(t, 0) : b * step(t, 0) + h * step(t, 1);
      const double part = get_element(t, at) * std::abs(double(position - j));
      key.score -= part;
      size += std::abs(part);
    }
    if (key.score == -kInfinity) return;
    if (std::isfinite(size)) row->terms = std::max(row->terms, size);
    if (!std::isfinite(key.score) && a.dropout_p > 0) row->unclear = true;
    row->keys.push_back(key);
  }

  void weigh(int64_t h, Row* row) const {
    const bool sinks = given(a.sinks);
    const double sink = sinks ? get_element(a.sinks, h * step(a.sinks, 0)) : -kInfinity;
    double largest = sink;
    for (const Key& key : row->keys) largest = std::max(largest, key.score);
    row->lse = sink;
    row->sink_weight = sinks ? 1 : 0;
    if (row->keys.empty()) return;
    double sum = sinks ? std::exp(sink - largest) : 0;
    row->sink_weight = sum;
    for (Key& key : row->keys) sum += key.weight = std::exp(key.score - largest);
    for (Key& key : row->keys) key.weight /= sum;
    row->sink_weight /= sum;
    row->lse = largest + std::log(sum);
  }

  double dropout(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Philox4 bits = dropout_bits(a.dropout_seed, a.dropout_offset, b, h, g.heads, i, j / 4);
    if (bits.word[j % 4] < dropout_threshold(a.dropout_p)) return 0;
    return 1 / (1 - double(a.dropout_p));
  }
};

// Sums of many terms, and of what a float32 kernel may be off by in each.
struct Sums {
  Sums(int tensor, const attune_tensor& view) : name(tensor), t(view) {
    if (!given(t)) return;
    offsets = offsets_of(t);
    if (offsets.empty()) return;
    const auto [low, high] = std::minmax_element(offsets.begin(), offsets.end());
    first = *low;
    value.resize(size_t(*high - first + 1));
    limit.resize(value.size());
  }
  void add(int64_t at, double term, double term_limit) {
    if (value.empty()) return;
    value[size_t(at - first)] += term;
    limit[size_t(at - first)] += term_limit;
  }
  void list(std::vector<ExpectedElement>* all) const {
    for (int64_t at : offsets) {
      const size_t i = size_t(at - first);
      all->push_back({name, at, {value[i], limit[i]}});
    }
  }

  int name;
  const attune_tensor& t;
  std::vector<int64_t> offsets;
  int64_t first = 0;
  std::vector<double> value, limit;
};

// Whether rows or keys repeat, so that sums have many equal terms.
bool repeats(const attune_args& a, const attune_backward_args& g) {
  const int seq = a.q.rank == 4 ? 2 : 0;
  for (const attune_tensor* t : {&a.q, &a.k, &a.v, &g.dout})
    if (t->shape[seq] > 1 && t->stride[seq] == 0) return true;
  return false;
}

// What a sum of n equal terms, one after another, may be off by, of itself. Each addition is
// rounded to the same side, by at most half a unit in the last place of the sum so far. Where the
// sum has reached m times a power of two (1 <= m < 2), that is n (m - 2/3) / m^2 roundings in all,
// and at most 3/8 n, at m = 4/3. The sum of the weights has a fourth of the terms in each of its
// lanes, or fewer. Kernels fold their sums after at most 64 blocks of 256 keys.
double roundings_of_equal_terms(size_t n) {
  constexpr size_t kFolded = 64 * 256;
  return kRounding * 3 / 8 * (1 + 1.0 / 4) * double(std::min(n, kFolded));
}

}  // namespace

std::vector<ExpectedElement> expected_forward(const Case& c) {
  const Rows rows(c);
  const attune_args& a = c.args;
  const Geometry& g = rows.g;
  const double amplify = a.dropout_p > 0 ? 1 / (1 - double(a.dropout_p)) : 1;
  // Roundings of a score's terms: D/4 in sequence on vectors, and a few more.
  const double roundings = kRounding * (g.dim / 4.0 + 16);
  std::vector<ExpectedElement> all;
  rows.each([&](int64_t b, int64_t h, int64_t i, int64_t s) {
    const Row row = rows.row(b, h, i);
    std::vector<double> out(size_t(g.dim_v), 0.0);
    double largest_v = 0;
    for (const Key& key : row.keys) {
      const int64_t v = rows.key_row(a.v, b, h, key.j);
      for (int d = 0; d < g.dim_v; ++d) {
        const double x = get_element(a.v, v + d);
        if (std::isfinite(x)) largest_v = std::max(largest_v, std::abs(x));
        if (key.kept != 0) out[size_t(d)] += key.weight * key.kept * x;
      }
    }
    const bool repeats = row.keys.size() > 1 && rows.key_row(a.v, b, h, row.keys[0].j) ==
                                                    rows.key_row(a.v, b, h, row.keys[1].j);
    const double sums = 4e-6 + (repeats ? roundings_of_equal_terms(row.keys.size()) : 0);
    const double limit =
        row.unclear ? kInfinity : largest_v * amplify * (sums + 2 * roundings * row.terms);
    const int64_t at = g.row(a.out, b, h, s);
    for (int d = 0; d < g.dim_v; ++d) all.push_back({kOut, at + d, {out[size_t(d)], limit}});
    if (!given(a.lse)) return;
    const double size = std::isfinite(row.lse) ? std::abs(row.lse) : 0;
    all.push_back({kLse,
                   g.lse(a.lse, b, h, s),
                   {row.lse, 4e-6 + roundings * (row.terms + 1) + 4 * kRounding * size}});
  });
  return all;
}

// With P the softmax, F the factors of dropout and out = (P F) V:
//   dV = (P F)^T dout, dP = F (dout V^T), dscore = P (dP - sum(P dP) + dlse); a sink has no value.
// Where out and lse are given, they hold the forward pass's results, as far off as those may be,
// and the gradients may come from them: sum(P dP) is dout . out, and P is exp(score - lse).
std::vector<ExpectedElement> expected_backward(const Case& c) {
  const Rows rows(c);
  const attune_args& a = c.args;
  const attune_backward_args& out = c.grads;
  const Geometry& g = rows.g;
  Sums dq(kDQ, out.dq), dk(kDK, out.dk), dv(kDV, out.dv), dmask(kDMask, out.dmask),
      dsinks(kDSinks, out.dsinks);
  const bool results = given(a.out) && given(a.lse);
  const double amplify = a.dropout_p > 0 ? 1 / (1 - double(a.dropout_p)) : 1;
  const double roundings = kRounding * (g.dim / 4.0 + 16);  // of a score's terms, as forward
  const double of_out = a.q.dtype == ATTUNE_F16    ? 0x1p-11
                        : a.q.dtype == ATTUNE_BF16 ? 0x1p-8
                                                   : kRounding;
  const double near_0 = a.q.dtype == ATTUNE_F16 ? 0x1p-25 : 0;
  rows.each([&](int64_t b, int64_t h, int64_t i, int64_t s) {
    const Row row = rows.row(b, h, i);
    const int64_t dout = g.row(out.dout, b, h, s), q = g.row(a.q, b, h, s);
    std::vector<Expected> dweight(row.keys.size());  // and its size
    Expected mean;
    // Of a weight and of sums, relative; LSE is a float, and knows other scores' roundings.
    const double lse = std::isfinite(row.lse) ? std::abs(row.lse) : 0;
    const double longest =
        double(std::max<int64_t>(int64_t(row.keys.size()), a.q.shape[g.ragged ? 0 : 2]));
    const double sums = repeats(a, out) ? roundings_of_equal_terms(size_t(longest)) : 0;
    const double relative = 4e-6 + sums + 2 * roundings * row.terms +
                            (results ? kRounding * lse + 2 * roundings * (row.terms + 1) : 0);
    // A weight that is no normal float vanishes.
    const auto off_by = [&](const Key& key) { return key.weight < 0x1p-125 ? 1 : relative; };
    double largest_v = 0;
    std::vector<double> value(size_t(g.dim_v), 0.0);  // out
    for (size_t n = 0; n < row.keys.size(); ++n) {
      const Key& key = row.keys[n];
      const int64_t v = rows.key_row(a.v, b, h, key.j);
      for (int d = 0; d < g.dim_v; ++d)
        largest_v = std::max(largest_v, std::abs(get_element(a.v, v + d)));
      if (key.kept == 0) continue;
      for (int d = 0; d < g.dim_v; ++d) {
        const double x = get_element(out.dout, dout + d);
        const double term = key.kept * x * get_element(a.v, v + d);
        dweight[n].value += term;
        dweight[n].limit += std::abs(term);
        const double part = key.weight * key.kept * x;
        value[size_t(d)] += key.weight * key.kept * get_element(a.v, v + d);
        if (given(out.dv))
          dv.add(rows.key_row(out.dv, b, h, key.j) + d, part, off_by(key) * std::abs(part));
      }
      mean.value += key.weight * dweight[n].value;
      mean.limit += key.weight * dweight[n].limit;
    }
    double mean_off = 0;  // by what out may be off by
    if (results && !row.keys.empty())
      for (int d = 0; d < g.dim_v; ++d)
        mean_off += std::abs(get_element(out.dout, dout + d)) *
                    (largest_v * amplify * relative + of_out * std::abs(value[size_t(d)]) + near_0);
    if (given(out.dlse) && row.lse != -kInfinity) {
      const double x = get_element(out.dlse, g.lse(out.dlse, b, h, s));
      mean.value -= x;
      mean.limit += std::abs(x);
    }
    for (size_t n = 0; n < row.keys.size(); ++n) {
      const Key& key = row.keys[n];
      const double dscore = key.weight * (dweight[n].value - mean.value);
      // Errors of the scores move the weights: hence the terms.
      const double off = key.weight * (off_by(key) * (dweight[n].limit + mean.limit) + mean_off);
      dmask.add(!given(out.dmask) ? 0 : broadcast(out.dmask, b, h, i, key.j), dscore, off);
      const double t = a.softcap > 0 ? std::tanh(key.product / a.softcap) : 0;
      const double slope = rows.scale * (1 - t * t);
      const int64_t k = rows.key_row(a.k, b, h, key.j);
      for (int d = 0; d < g.dim; ++d) {
        const double x = get_element(a.k, k + d), y = get_element(a.q, q + d);
        if (given(out.dq))
          dq.add(g.row(out.dq, b, h, s) + d, dscore * slope * x, off * rows.scale * std::abs(x));
        if (given(out.dk))
          dk.add(rows.key_row(out.dk, b, h, key.j) + d, dscore * slope * y,
                 off * rows.scale * std::abs(y));
      }
    }
    if (given(out.dsinks))
      dsinks.add(h * step(out.dsinks, 0), -row.sink_weight * mean.value,
                 row.sink_weight * (relative * mean.limit + mean_off));
  });
  std::vector<ExpectedElement> all;
  for (const Sums* sums : {&dq, &dk, &dv, &dmask, &dsinks}) sums->list(&all);
  return all;
}

}  // namespace attune::fuzz
