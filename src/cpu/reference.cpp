#include "src/cpu/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/tile/philox.h"
#include "src/cpu/half.hpp"

namespace attune::cpu {
namespace {

// What stands in memory, and its value.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

double value(double x) { return x; }
float value(float x) { return x; }
float value(F16 x) { return f16_to_float(x.bits); }
float value(BF16 x) { return bf16_to_float(x.bits); }

void store(double x, double* to) { *to = x; }
void store(double x, float* to) { *to = float(x); }
void store(double x, F16* to) { to->bits = float_to_f16(float(x)); }
void store(double x, BF16* to) { to->bits = float_to_bf16(float(x)); }

// What stands beside the storage type T: slopes, sinks, LSE.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The parameters, with scalars that are not rounded to float32.
struct Input : Params {
  Input(const Params& params, const ExactScalars& scalars)
      : Params(params),
        exact_scale(scalars.scale != 0 ? scalars.scale : double(params.scale)),
        exact_softcap(scalars.softcap != 0 ? scalars.softcap : double(params.softcap)) {}
  double exact_scale, exact_softcap;
};

// fn(a value of the storage type).
template <class Fn>
void with_storage(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::f16:
      return fn(F16{});
    case DType::bf16:
      return fn(BF16{});
    case DType::f64:
      return fn(double{});
    default:
      return fn(float{});
  }
}

// The first element of a row; the others follow it, as the last stride is 1.
template <class T>
T* row_of(const View& view, int64_t b, int64_t h, int64_t row) {
  return static_cast<T*>(view.data) + b * view.stride_b + h * view.stride_h + row * view.stride_s;
}

template <class T>
T element(const View4& view, int64_t b, int64_t h, int64_t i, int64_t j) {
  return static_cast<const T*>(
      view.data)[b * view.stride[0] + h * view.stride[1] + i * view.stride[2] + j * view.stride[3]];
}

// Which row of the result is computed.
struct Place {
  int64_t b, h, i;
  Sequence seq;

  int64_t position() const { return i + seq.shift; }
};

bool allowed(const Problem& p, const Input& a, const Place& at, int64_t j) {
  if (p.causal && j > at.position()) return false;
  if (p.window_left != kNoLimit && at.position() - j > p.window_left) return false;
  if (p.window_right != kNoLimit && j - at.position() > p.window_right) return false;
  if (p.mask == MaskKind::boolean && element<uint8_t>(a.mask, at.b, at.h, at.i, j) == 0)
    return false;
  if (p.block_mask_q != 0 &&
      element<uint8_t>(a.block_mask, at.b, at.h, at.i / p.block_mask_q, j / p.block_mask_k) == 0)
    return false;
  return true;
}

double additive_mask(const Problem& p, const Input& a, const Place& at, int64_t j) {
  switch (p.mask) {
    case MaskKind::f32:
      return element<float>(a.mask, at.b, at.h, at.i, j);
    case MaskKind::f16:
      return value(element<F16>(a.mask, at.b, at.h, at.i, j));
    case MaskKind::bf16:
      return value(element<BF16>(a.mask, at.b, at.h, at.i, j));
    case MaskKind::f64:
      return element<double>(a.mask, at.b, at.h, at.i, j);
    default:
      return 0;
  }
}

// What dropout multiplies a weight with: 0 or 1/(1-p).
template <class Acc>
Acc dropout_factor(const Problem& p, const Input& a, const Place& at, int64_t j) {
  if (!p.dropout) return 1;
  const Philox4 bits =
      dropout_bits(a.dropout_seed, a.dropout_offset, at.b, at.h, p.heads_q, at.i, j / 4);
  if (bits.word[j % 4] < dropout_threshold(a.dropout_p)) return 0;
  return 1 / (1 - Acc(a.dropout_p));
}

// One row of the softmax: the keys that it may look at, in order, and what each of them weighs.
template <class Acc>
struct Row {
  explicit Row(int64_t keys) {
    key.reserve(size_t(keys));
    product.reserve(size_t(keys));
    score.reserve(size_t(keys));
    weight.reserve(size_t(keys));
  }

  std::vector<int64_t> key;
  std::vector<Acc> product;  // scale * q.k
  std::vector<Acc> score;    // after softcap, mask and ALiBi
  std::vector<Acc> weight;   // the softmax, before dropout
  Acc sink_weight = 0;       // the sink's part of the denominator
  Acc lse = 0;
};

template <class T, class Acc>
void compute_scores(const Problem& p, const Input& a, const Place& at, Row<Acc>* row) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const T* q = row_of<T>(a.q, at.b, at.h, at.seq.q0 + at.i);
  row->key.clear();
  row->product.clear();
  row->score.clear();
  for (int64_t j = 0; j < at.seq.sk; ++j) {
    if (!allowed(p, a, at, j)) continue;
    const double bias = additive_mask(p, a, at, j);
    if (bias == -kInfinity) continue;  // a mask too: K may hold NaN there

    const T* k = row_of<T>(a.k, at.b, at.h / p.group(), at.seq.k0 + j);
    Acc dot = 0;
    for (int d = 0; d < p.dim; ++d) dot += Acc(value(q[d])) * Acc(value(k[d]));
    const Acc product = Acc(a.exact_scale) * dot;

    Acc score = product;
    if (p.softcap) score = Acc(a.exact_softcap) * std::tanh(product / Acc(a.exact_softcap));
    score += Acc(bias);
    if (p.alibi) {
      const auto* slopes = reinterpret_cast<const Real<T>*>(a.alibi_slopes);
      const Real<T> slope = slopes[at.b * a.alibi_stride_b + at.h * a.alibi_stride_h];
      score -= Acc(slope) * Acc(std::abs(at.position() - j));
    }
    if (score == -Acc(kInfinity)) continue;

    row->key.push_back(j);
    row->product.push_back(product);
    row->score.push_back(score);
  }
}

template <class T, class Acc>
void compute_softmax(const Problem& p, const Input& a, const Place& at, Row<Acc>* row) {
  compute_scores<T>(p, a, at, row);
  const Acc minus_infinity = -std::numeric_limits<Acc>::infinity();
  const auto* sinks = reinterpret_cast<const Real<T>*>(a.sinks);
  const Acc sink = p.sinks ? Acc(sinks[at.h * a.sinks_stride]) : minus_infinity;
  row->weight.clear();
  row->sink_weight = 1;
  row->lse = sink;
  if (row->key.empty()) return;

  Acc largest = sink;
  for (Acc score : row->score) largest = std::max(largest, score);
  row->sink_weight = p.sinks ? std::exp(sink - largest) : 0;
  Acc sum = row->sink_weight;
  for (Acc score : row->score) {
    row->weight.push_back(std::exp(score - largest));
    sum += row->weight.back();
  }
  for (Acc& weight : row->weight) weight /= sum;
  row->sink_weight /= sum;
  row->lse = largest + std::log(sum);
}

template <class T, class Acc>
void weighted_sum_of_v(const Problem& p, const Input& a, const Place& at, const Row<Acc>& row,
                       std::vector<Acc>* out) {
  std::fill(out->begin(), out->end(), Acc(0));
  for (size_t n = 0; n < row.key.size(); ++n) {
    const Acc factor = dropout_factor<Acc>(p, a, at, row.key[n]);
    if (factor == 0) continue;
    const T* v = row_of<T>(a.v, at.b, at.h / p.group(), at.seq.k0 + row.key[n]);
    const Acc weight = row.weight[n] * factor;
    for (size_t d = 0; d < out->size(); ++d) (*out)[d] += weight * Acc(value(v[d]));
  }
}

// fn(index, scratch) for index in [0, count), dealt to the workers in turn. Every worker has a
// Scratch of its own, made here: an allocation that fails does so before any thread runs.
template <class Scratch, class Fn>
void for_each(const Executor& executor, int64_t most_workers, int64_t count, const Fn& fn,
              const auto&... scratch_of) {
  const int64_t workers = std::min(most_workers, count);
  std::vector<Scratch> scratch;
  scratch.reserve(size_t(workers));
  for (int64_t w = 0; w < workers; ++w) scratch.emplace_back(scratch_of...);
  executor.parallel_for(workers, [&](int64_t w) {
    for (int64_t index = w; index < count; index += workers) fn(index, scratch[size_t(w)]);
  });
}

template <class Acc>
struct ForwardScratch {
  explicit ForwardScratch(const Problem& p) : row(p.seq_k), out(size_t(p.dim_v)) {}
  Row<Acc> row;
  std::vector<Acc> out;
};

// write(place, scratch) for every row of the result.
template <class T, class Acc, class Write>
void forward(const Problem& p, const Input& a, const Executor& executor, const Write& write) {
  const int64_t rows = p.batch * p.heads_q * p.seq_q;
  for_each<ForwardScratch<Acc>>(
      executor, executor.threads, rows,
      [&](int64_t index, ForwardScratch<Acc>& scratch) {
        const int64_t b = index / (p.heads_q * p.seq_q);
        const Place at{b, index / p.seq_q % p.heads_q, index % p.seq_q, Sequence::of(p, a, b)};
        if (at.i >= at.seq.sq) return;
        compute_softmax<T>(p, a, at, &scratch.row);
        weighted_sum_of_v<T>(p, a, at, scratch.row, &scratch.out);
        write(at, scratch);
      },
      p);
}

template <class Acc>
void forward_rounded(const Problem& p, const Input& a, const Executor& executor) {
  with_storage(p.dtype, [&](auto storage) {
    using T = decltype(storage);
    forward<T, Acc>(p, a, executor, [&](const Place& at, const ForwardScratch<Acc>& result) {
      T* out = row_of<T>(a.out, at.b, at.h, at.seq.q0 + at.i);
      for (int d = 0; d < p.dim_v; ++d) store(double(result.out[size_t(d)]), &out[d]);
      if (a.lse.data != nullptr)
        *row_of<Real<T>>(a.lse, at.b, at.h, at.seq.q0 + at.i) = Real<T>(result.row.lse);
    });
  });
}

// ---- Backward ----

// The sums over the rows of one K head, of what is asked for; the others stay empty.
struct BackwardScratch {
  BackwardScratch(const Problem& p, const GradParams& g)
      : row(p.seq_k),
        dweight(size_t(p.seq_k)),
        dq(g.dq.data != nullptr ? size_t(p.dim) : 0),
        dk(g.dk.data != nullptr ? size_t(p.seq_k * p.dim) : 0),
        dv(g.dv.data != nullptr ? size_t(p.seq_k * p.dim_v) : 0) {}
  Row<double> row;
  std::vector<double> dweight;
  std::vector<double> dq, dk, dv;
};

// Sums that rows share across tasks.
struct Shared {
  std::vector<double> dmask;   // contiguous over dmask_shape; empty where it is not asked for
  std::vector<double> dsinks;  // [b][h]; likewise
};

double* dmask_element(const GradParams& g, const Place& at, int64_t j, Shared* shared) {
  const int64_t place[4] = {at.b, at.h, at.i, j};
  int64_t index = 0;
  for (int d = 0; d < 4; ++d)
    index = index * g.dmask_shape[d] + (g.dmask_shape[d] == 1 ? 0 : place[d]);
  return &shared->dmask[size_t(index)];
}

// With P the softmax, F the dropout factors and out = (P * F) V:
//   dV = (P * F)^T dout,  dP = F * (dout V^T),  dscore = P * (dP - sum(P * dP) + dlse).
// The sink has a weight and no value, so its dP is 0.
template <class T>
void backward_row(const Problem& p, const Input& a, const GradParams& g, const Place& at,
                  BackwardScratch& scratch, Shared* shared) {
  Row<double>& row = scratch.row;
  compute_softmax<T>(p, a, at, &row);
  const T* q = row_of<T>(a.q, at.b, at.h, at.seq.q0 + at.i);
  const T* dout = row_of<T>(g.dout, at.b, at.h, at.seq.q0 + at.i);

  double mean = 0;  // sum(P * dP)
  for (size_t n = 0; n < row.key.size(); ++n) {
    const double factor = dropout_factor<double>(p, a, at, row.key[n]);
    scratch.dweight[n] = 0;
    if (factor == 0) continue;
    const T* v = row_of<T>(a.v, at.b, at.h / p.group(), at.seq.k0 + row.key[n]);
    for (int d = 0; d < p.dim_v; ++d) scratch.dweight[n] += factor * value(dout[d]) * value(v[d]);
    if (!scratch.dv.empty()) {
      double* dv = &scratch.dv[size_t(row.key[n] * p.dim_v)];
      for (int d = 0; d < p.dim_v; ++d) dv[d] += row.weight[n] * factor * value(dout[d]);
    }
    mean += row.weight[n] * scratch.dweight[n];
  }
  // Taken off every dP, so the gradient of LSE joins it.
  if (g.dlse.data != nullptr && row.lse != -std::numeric_limits<double>::infinity())
    mean -= double(*row_of<Real<T>>(g.dlse, at.b, at.h, at.seq.q0 + at.i));

  std::fill(scratch.dq.begin(), scratch.dq.end(), 0.0);
  for (size_t n = 0; n < row.key.size(); ++n) {
    const double dscore = row.weight[n] * (scratch.dweight[n] - mean);
    if (g.dmask.data != nullptr) *dmask_element(g, at, row.key[n], shared) += dscore;
    double ddot = dscore * a.exact_scale;
    if (p.softcap) {
      const double t = std::tanh(row.product[n] / a.exact_softcap);
      ddot *= 1 - t * t;
    }
    const T* k = row_of<T>(a.k, at.b, at.h / p.group(), at.seq.k0 + row.key[n]);
    if (!scratch.dq.empty())
      for (int d = 0; d < p.dim; ++d) scratch.dq[size_t(d)] += ddot * value(k[d]);
    if (!scratch.dk.empty()) {
      double* dk = &scratch.dk[size_t(row.key[n] * p.dim)];
      for (int d = 0; d < p.dim; ++d) dk[d] += ddot * value(q[d]);
    }
  }
  if (g.dsinks != nullptr)
    shared->dsinks[size_t(at.b * p.heads_q + at.h)] -= row.sink_weight * mean;

  if (scratch.dq.empty()) return;
  T* dq = row_of<T>(g.dq, at.b, at.h, at.seq.q0 + at.i);
  for (int d = 0; d < p.dim; ++d) store(scratch.dq[size_t(d)], &dq[d]);
}

// The sequence's rows of K and V in memory, whether they are used or not.
int64_t key_rows(Problem p, const Input& a, int64_t b) {
  p.key_lengths = false;
  return Sequence::of(p, a, b).sk;
}

template <class T>
void write_rows(const std::vector<double>& from, const View& to, int64_t b, int64_t head,
                int64_t first_row, int64_t rows, int dim) {
  if (to.data == nullptr) return;
  for (int64_t j = 0; j < rows; ++j)
    for (int d = 0; d < dim; ++d)
      store(from[size_t(j * dim + d)], &row_of<T>(to, b, head, first_row + j)[d]);
}

// dQ, dK and dV of a call whose sequences have no queries, or no keys.
template <class T>
void write_zeros(const Problem& p, const Input& a, const GradParams& g) {
  const auto clear = [](const View& to, int64_t b, int64_t head, int64_t first_row, int64_t rows,
                        int dim) {
    for (int64_t row = 0; row < rows; ++row)
      for (int d = 0; d < dim; ++d) store(0.0, &row_of<T>(to, b, head, first_row + row)[d]);
  };
  const bool dq = g.dq.data != nullptr && p.seq_q > 0;
  const bool dk = g.dk.data != nullptr && p.seq_k > 0;
  const bool dv = g.dv.data != nullptr && p.seq_k > 0;
  if (!dq && !dk && !dv) return;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = Sequence::of(p, a, b);
    const int64_t keys = key_rows(p, a, b);
    for (int64_t h = 0; dq && h < p.heads_q; ++h) clear(g.dq, b, h, seq.q0, seq.sq, p.dim);
    for (int64_t h = 0; dk && h < p.heads_kv; ++h) clear(g.dk, b, h, seq.k0, keys, p.dim);
    for (int64_t h = 0; dv && h < p.heads_kv; ++h) clear(g.dv, b, h, seq.k0, keys, p.dim_v);
  }
}

// A row without keys has its sink alone: LSE is the sink, and so are their gradients.
template <class T>
void add_dlse_to_dsinks(const Problem& p, const Input& a, const GradParams& g, Shared* shared) {
  if (g.dsinks == nullptr || g.dlse.data == nullptr) return;
  shared->dsinks.resize(size_t(p.heads_q));
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = Sequence::of(p, a, b);
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < seq.sq; ++i)
        shared->dsinks[size_t(h)] += double(*row_of<Real<T>>(g.dlse, b, h, seq.q0 + i));
  }
}

template <class T>
void write_shared(const Problem& p, const GradParams& g, const Shared& shared) {
  const double* sum = shared.dmask.data();
  if (g.dmask.data != nullptr)
    for (int64_t b = 0; b < g.dmask_shape[0]; ++b)
      for (int64_t h = 0; h < g.dmask_shape[1]; ++h)
        for (int64_t i = 0; i < g.dmask_shape[2]; ++i)
          for (int64_t j = 0; j < g.dmask_shape[3]; ++j)
            static_cast<Real<T>*>(g.dmask.data)[b * g.dmask.stride[0] + h * g.dmask.stride[1] +
                                                i * g.dmask.stride[2] + j * g.dmask.stride[3]] =
                Real<T>(*sum++);
  if (g.dsinks != nullptr)
    for (int64_t h = 0; h < p.heads_q; ++h) {
      double total = 0;
      for (size_t n = size_t(h); n < shared.dsinks.size(); n += size_t(p.heads_q))
        total += shared.dsinks[n];
      reinterpret_cast<Real<T>*>(g.dsinks)[h * g.dsinks_stride] = Real<T>(total);
    }
}

// How much of the rounding of a product's terms a softcap lets through to the score: its slope
// times the size of the terms.
template <class T>
double rounded_size(const Problem& p, const Input& a, const Place& at, const Row<double>& row,
                    size_t n) {
  const T* q = row_of<T>(a.q, at.b, at.h, at.seq.q0 + at.i);
  const T* k = row_of<T>(a.k, at.b, at.h / p.group(), at.seq.k0 + row.key[n]);
  double size = 0;
  for (int d = 0; d < p.dim; ++d) size += std::abs(double(value(q[d])) * double(value(k[d])));
  const double t = p.softcap ? std::tanh(row.product[n] / a.exact_softcap) : 0;
  return (1 - t * t) * a.exact_scale * size;
}

// ---- Gradients in double, and what a float32 kernel may be off by ----

// A row and its gradients, with the sizes of the terms behind them. Roundings are those of float32:
// 1 is 2^-24.
struct ExactRow {
  explicit ExactRow(const Problem& p)
      : row(p.seq_k),
        out(size_t(p.dim_v)),
        of_score(size_t(p.seq_k)),
        of_weight(size_t(p.seq_k)),
        dweight(size_t(p.seq_k)),
        dweight_size(size_t(p.seq_k)) {}
  Row<double> row;
  std::vector<double> out;
  std::vector<double> of_score, of_weight;  // roundings
  double of_sink = 0;
  bool tensor_cores = false;
  std::vector<double> dweight, dweight_size;           // dP
  double mean = 0, mean_size = 0, mean_roundings = 0;  // sum(P * dP), less the gradient of LSE
};

// Of a product of n terms by tensor cores: they cut off where float32 rounds, twice for every 16
// terms (their sum, and its sum with what was there), each time up to two roundings.
double roundings_of_product(int n) { return 4.0 * ((n + 15) / 16); }

// Of a score: four times the sizes of what it is the sum of (twice what judge.cpp has, since LSE
// comes from scores too). A sum whose terms have one sign grows all the way, and its roundings with
// it: n of them have an rms of 0.42 sqrt(n/3) of the sum, and 0.75 sqrt(n) is three of these.
template <class T>
double roundings_of_score(const Problem& p, const Input& a, const Place& at, const Row<double>& row,
                          size_t n, bool tensor_cores) {
  const double products = rounded_size<T>(p, a, at, row, n);
  double size = products + std::abs(additive_mask(p, a, at, row.key[n]));
  if (p.alibi) {
    const auto* slopes = reinterpret_cast<const Real<T>*>(a.alibi_slopes);
    size += std::abs(double(slopes[at.b * a.alibi_stride_b + at.h * a.alibi_stride_h])) *
            double(std::abs(at.position() - row.key[n]));
  }
  if (tensor_cores) size += products * roundings_of_product(p.dim) / 4;
  return 4 * size + 0.75 * std::sqrt(double(p.dim)) * std::min(products, std::abs(row.product[n]));
}

// Of the weights, and of the sink's: 16 of exp2, of products and of the sums that follow, and those
// of the exponent, whose scale is rounded. The errors of scores may be so large that any weight
// becomes 1. They move the other weights too, but the sum of all stays 1: a weight of 1 stays 1
// where no other can grow. That holds where a row's sum is found with its scores. Where it comes as
// LSE, it has the rounding of a float, and does not know of these scores; beyond 64 kernels do
// without LSE.
void find_roundings_of_weights(ExactRow* x) {
  constexpr double kOwn = 16, kCoarse = 64, kOne = 0x1p24;
  const Row<double>& row = x->row;
  const bool coarse = std::abs(row.lse) >= kCoarse;
  double of_sum = 0;
  for (size_t n = 0; n < row.key.size(); ++n) of_sum += row.weight[n] * x->of_score[n];
  const auto moved = [&](double w, double of_score) {
    return std::min(kOne, w * kOne * std::expm1(std::min(80.0, (of_score + of_sum) / kOne)));
  };
  double all = x->of_sink = moved(row.sink_weight, 0);
  for (size_t n = 0; n < row.key.size(); ++n)
    all += x->of_weight[n] = moved(row.weight[n], x->of_score[n]);
  const auto finish = [&](double w, double* roundings) {
    if (w == 0) return;
    if (coarse) *roundings = std::min(*roundings, all - *roundings);
    *roundings += w * (kOwn + (coarse ? 0 : std::abs(row.lse)) + 2 * std::abs(std::log(w)));
    if (w < 0x1p-125) *roundings += w * kOne;  // it may vanish
  };
  for (size_t n = 0; n < row.key.size(); ++n) finish(row.weight[n], &x->of_weight[n]);
  finish(row.sink_weight, &x->of_sink);
}

// Of an element of the result's dtype, in roundings of float32: relative, and absolute near 0.
std::pair<double, double> roundings_of(DType dtype) {
  if (dtype == DType::f16) return {0x1p13, 0.5};
  if (dtype == DType::bf16) return {0x1p16, 0};
  return {1, 0};
}

template <class T>
void find_exact_row(const Problem& p, const Input& a, const GradParams& g, const Place& at,
                    ExactRow* x) {
  compute_softmax<T>(p, a, at, &x->row);
  weighted_sum_of_v<T>(p, a, at, x->row, &x->out);
  const T* dout = row_of<T>(g.dout, at.b, at.h, at.seq.q0 + at.i);
  x->mean = x->mean_size = x->mean_roundings = 0;
  const Row<double>& row = x->row;
  for (size_t n = 0; n < row.key.size(); ++n)
    x->of_score[n] = roundings_of_score<T>(p, a, at, row, n, x->tensor_cores);
  find_roundings_of_weights(x);
  for (size_t n = 0; n < row.key.size(); ++n) {
    x->dweight[n] = x->dweight_size[n] = 0;
    const double factor = dropout_factor<double>(p, a, at, row.key[n]);
    if (factor == 0) continue;
    const T* v = row_of<T>(a.v, at.b, at.h / p.group(), at.seq.k0 + row.key[n]);
    for (int d = 0; d < p.dim_v; ++d) {
      const double term = factor * value(dout[d]) * value(v[d]);
      x->dweight[n] += term;
      x->dweight_size[n] += std::abs(term);
    }
    x->mean += row.weight[n] * x->dweight[n];
    x->mean_size += row.weight[n] * x->dweight_size[n];
    x->mean_roundings += x->of_weight[n] * x->dweight_size[n];
  }
  // Kernels take the mean from out, as it was rounded.
  const auto [relative, absolute] = roundings_of(p.dtype);
  for (int d = 0; d < p.dim_v && !row.key.empty(); ++d)
    x->mean_roundings +=
        std::abs(double(value(dout[d]))) * (relative * std::abs(x->out[size_t(d)]) + absolute);
  if (g.dlse.data != nullptr && row.lse != -std::numeric_limits<double>::infinity()) {
    const double dlse = double(*row_of<Real<T>>(g.dlse, at.b, at.h, at.seq.q0 + at.i));
    x->mean -= dlse;
    x->mean_size += std::abs(dlse);
  }
}

// What one row adds to every gradient, and to its roundings.
template <class T>
void add_exact_row(const Problem& p, const Input& a, const GradParams& g, const Place& at,
                   const ExactRow& x, const ExactGradients& to, const ExactGradients& off) {
  const auto add = [](double* sums, double* roundings, int64_t n, double term, double rounding) {
    if (sums == nullptr) return;
    sums[n] += term;
    roundings[n] += rounding;
  };
  const T* q = row_of<T>(a.q, at.b, at.h, at.seq.q0 + at.i);
  const T* dout = row_of<T>(g.dout, at.b, at.h, at.seq.q0 + at.i);
  const int64_t own = ((at.b * p.heads_q + at.h) * p.seq_q + at.i) * p.dim;
  // Tensor cores take P and dS in the inputs' dtype.
  const auto [relative, absolute] =
      x.tensor_cores ? roundings_of(p.dtype) : std::pair<double, double>{};
  const double of_dweight = x.tensor_cores ? roundings_of_product(p.dim_v) : 0;
  for (size_t n = 0; n < x.row.key.size(); ++n) {
    const int64_t j = x.row.key[n];
    const int64_t key = (at.b * p.heads_kv + at.h / p.group()) * p.seq_k + j;
    const double w = x.row.weight[n], of_weight = x.of_weight[n];
    const double factor = dropout_factor<double>(p, a, at, j);
    for (int d = 0; d < p.dim_v && factor != 0; ++d) {
      const double part = factor * value(dout[d]);
      add(to.dv, off.dv, key * p.dim_v + d, w * part,
          (of_weight + relative * w) * std::abs(part) + absolute * std::abs(value(dout[d])));
    }
    const double dscore = w * (x.dweight[n] - x.mean);
    const double off_by = of_weight * (x.dweight_size[n] + x.mean_size) +
                          w * (x.mean_roundings + of_dweight * x.dweight_size[n]);
    if (to.dmask != nullptr) {
      const int64_t place[4] = {at.b, at.h, at.i, j};
      int64_t index = 0;
      for (int d = 0; d < 4; ++d)
        index = index * g.dmask_shape[d] + (g.dmask_shape[d] == 1 ? 0 : place[d]);
      add(to.dmask, off.dmask, index, dscore, off_by);
    }
    // A softcap's slope is off by some roundings of 1, and follows the product.
    double slope = a.exact_scale, slope_off = 0;
    if (p.softcap) {
      const double t = std::tanh(x.row.product[n] / a.exact_softcap);
      slope *= 1 - t * t;
      slope_off = a.exact_scale * (8 + 2 * x.of_score[n] / a.exact_softcap);
    }
    const double ddot = dscore * slope;
    const double ddot_off =
        off_by * slope + std::abs(dscore) * slope_off + relative * std::abs(ddot) + absolute;
    const T* k = row_of<T>(a.k, at.b, at.h / p.group(), at.seq.k0 + j);
    for (int d = 0; d < p.dim; ++d) {
      const double of_k = value(k[d]), of_q = value(q[d]);
      add(to.dq, off.dq, own + d, ddot * of_k, ddot_off * std::abs(of_k));
      add(to.dk, off.dk, key * p.dim + d, ddot * of_q, ddot_off * std::abs(of_q));
    }
  }
  if (p.sinks)
    add(to.dsinks, off.dsinks, at.h, -x.row.sink_weight * x.mean,
        x.of_sink * x.mean_size + x.row.sink_weight * x.mean_roundings);
}

}  // namespace

void reference_forward(const Problem& problem, const Params& params, const Executor& executor,
                       const ExactScalars& scalars) {
  forward_rounded<double>(problem, {params, scalars}, executor);
}

void naive_forward(const Problem& problem, const Params& params, const Executor& executor) {
  forward_rounded<float>(problem, {params, {}}, executor);
}

void reference_forward_f64(const Problem& problem, const Params& params, const Executor& executor,
                           const Exact& exact) {
  const Problem& p = problem;
  const Input input(params, {});
  with_storage(p.dtype, [&](auto storage) {
    using T = decltype(storage);
    forward<T, double>(
        p, input, executor, [&](const Place& at, const ForwardScratch<double>& result) {
          const int64_t index = (at.b * p.heads_q + at.h) * p.seq_q + at.i;
          if (exact.out != nullptr)
            std::copy(result.out.begin(), result.out.end(), exact.out + index * p.dim_v);
          if (exact.lse != nullptr) exact.lse[index] = result.row.lse;
          if (exact.sensitivity != nullptr) exact.sensitivity[index] = 0;
          if (exact.term_sensitivity != nullptr) exact.term_sensitivity[index] = 0;
          if (exact.lse_sensitivity != nullptr) exact.lse_sensitivity[index] = 0;
          for (size_t n = 0; n < result.row.key.size(); ++n) {
            const double w = result.row.weight[n];
            const double rounded = rounded_size<T>(p, input, at, result.row, n);
            if (exact.sensitivity != nullptr)
              exact.sensitivity[index] +=
                  w * (1 - w) * std::max(std::abs(result.row.score[n]), p.softcap ? rounded : 0);
            if (exact.term_sensitivity != nullptr)
              exact.term_sensitivity[index] += w * (1 - w) * rounded;
            if (exact.lse_sensitivity != nullptr) exact.lse_sensitivity[index] += w * rounded;
          }
        });
  });
}

void reference_backward(const Problem& problem, const Params& params, const GradParams& grads,
                        const Executor& executor, const ExactScalars& scalars) {
  const Problem& p = problem;
  const Input input(params, scalars);
  Shared shared;
  if (grads.dmask.data != nullptr) {
    const int64_t* shape = grads.dmask_shape;
    shared.dmask.resize(size_t(shape[0] * shape[1] * shape[2] * shape[3]));
  }
  if (p.seq_q == 0 || p.seq_k == 0) {
    // No scores: every gradient is 0, but for sinks with dlse. K and V may be views of any length,
    // so nothing is walked that is not written.
    with_storage(p.dtype, [&](auto storage) {
      write_zeros<decltype(storage)>(p, input, grads);
      add_dlse_to_dsinks<decltype(storage)>(p, input, grads, &shared);
      write_shared<decltype(storage)>(p, grads, shared);
    });
    return;
  }
  if (grads.dsinks != nullptr) shared.dsinks.resize(size_t(p.batch * p.heads_q));
  // A task owns all that reads one K head, so dK and dV need no order among tasks. dmask would,
  // where the mask broadcasts: one worker then takes the tasks one after another.
  const int64_t workers = grads.dmask.data != nullptr ? 1 : executor.threads;
  with_storage(p.dtype, [&](auto storage) {
    using T = decltype(storage);
    for_each<BackwardScratch>(
        executor, workers, p.batch * p.heads_kv,
        [&](int64_t index, BackwardScratch& scratch) {
          const int64_t b = index / p.heads_kv;
          const int64_t head_kv = index % p.heads_kv;
          const Sequence seq = Sequence::of(p, input, b);
          std::fill(scratch.dk.begin(), scratch.dk.end(), 0.0);
          std::fill(scratch.dv.begin(), scratch.dv.end(), 0.0);
          for (int64_t h = head_kv * p.group(); h < (head_kv + 1) * p.group(); ++h)
            for (int64_t i = 0; i < seq.sq; ++i)
              backward_row<T>(p, input, grads, Place{b, h, i, seq}, scratch, &shared);
          const int64_t keys = key_rows(p, input, b);  // unused ones have gradients of 0
          write_rows<T>(scratch.dk, grads.dk, b, head_kv, seq.k0, keys, p.dim);
          write_rows<T>(scratch.dv, grads.dv, b, head_kv, seq.k0, keys, p.dim_v);
        },
        p, grads);
    write_shared<T>(p, grads, shared);
  });
}

void reference_backward_f64(const Problem& problem, const Params& params, const GradParams& grads,
                            const Executor& executor, const ExactGradients& exact,
                            const ExactGradients& roundings, bool tensor_cores) {
  const Problem& p = problem;
  const Input input(params, {});
  // dmask and dsinks are shared by tasks.
  const bool shared = exact.dmask != nullptr || exact.dsinks != nullptr;
  with_storage(p.dtype, [&](auto storage) {
    using T = decltype(storage);
    for_each<ExactRow>(
        executor, shared ? 1 : executor.threads, p.batch * p.heads_kv,
        [&](int64_t index, ExactRow& row) {
          const int64_t b = index / p.heads_kv, head_kv = index % p.heads_kv;
          const Sequence seq = Sequence::of(p, input, b);
          row.tensor_cores = tensor_cores;
          for (int64_t h = head_kv * p.group(); h < (head_kv + 1) * p.group(); ++h)
            for (int64_t i = 0; i < seq.sq; ++i) {
              const Place at{b, h, i, seq};
              find_exact_row<T>(p, input, grads, at, &row);
              add_exact_row<T>(p, input, grads, at, row, exact, roundings);
            }
        },
        p);
  });
}

}  // namespace attune::cpu
