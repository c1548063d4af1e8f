#include "src/check/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/cpu/config.hpp"
#include "src/cpu/reference.hpp"

namespace attune::check {
namespace {

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

}  // namespace

Expected expect(const Data& data, const cpu::Executor& executor) {
  const Problem& p = data.p;
  const size_t rows = size_t(p.batch * p.heads_q * p.seq_q);
  Expected e{std::vector<double>(rows * size_t(p.dim_v)),
             std::vector<double>(rows),
             std::vector<double>(rows),
             std::vector<double>(rows),
             std::vector<double>(rows),
             data.activation(p.heads_q, true, p.dim_v),
             data.lse_like()};
  Params a = data.params();
  cpu::reference_forward_f64(p, a, executor,
                             {e.out.data(), e.lse.data(), e.sensitivity.data(),
                              e.term_sensitivity.data(), e.lse_sensitivity.data()});
  a.out = as_view(e.naive_out, p.ragged);
  a.lse = lse_view(e.naive_lse, p.ragged);
  cpu::naive_forward(p, a, executor);
  return e;
}

Verdict compare(const Data& data, const Expected& expected, const Allowance& allow) {
  const Problem& p = data.p;
  const Params a = data.params();
  const View naive_lse = lse_view(expected.naive_lse, p.ragged);
  const View naive_out = as_view(expected.naive_out, p.ragged);  // which never runs backwards
  Distance out, lse;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = Sequence::of(p, a, b);
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < s.sq; ++i) {
        const int64_t row = (b * p.heads_q + h) * p.seq_q + i;
        const int64_t at = b * a.out.stride_b + h * a.out.stride_h + (s.q0 + i) * a.out.stride_s;
        const int64_t naive =
            b * naive_out.stride_b + h * naive_out.stride_h + (s.q0 + i) * naive_out.stride_s;
        const double* reference = &expected.out[size_t(row * p.dim_v)];
        const bool zero =
            std::all_of(reference, reference + p.dim_v, [](double x) { return x == 0; });
        for (int64_t d = 0; d < p.dim_v; ++d)
          measure(
              data.out.get(at + d), expected.naive_out.get(naive + d), reference[d], zero,
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
  // Weights that are each off by a factor within 1 +- allow.weights move a row by at most that
  // part of the largest |V|: they sum to 1, or to `amplify` where dropout keeps all of them.
  const double largest_v = largest_finite(data.v) * amplify;
  double scores = (1.5 + allow.score_roundings) * largest_finite(expected.sensitivity);
  // Errors dS of a row's scores move it by sum w dS (v - O), and |v - O| <= 2 (1 - w) max|V|: by at
  // most 2 max|V| sum w(1-w)|dS|. Rounding i of a score is at most 2^-24 of the sum so far, which
  // consists of some of the q_d k_d, however small the score becomes: in the worst case dS is
  // D 2^-24 size, with size = scale * sum |q_d k_d|. Independent roundings do far better. A term's
  // rms is t, so size = 2/pi D t for products of normal numbers; sums on their way to a score of z
  // deviations have squares that add up to D^2 t^2 (z^2/3 + 1/6); a rounding's rms is 0.42 of its
  // bound. So dS has an rms of 0.67 sqrt(z^2/3 + 1/6) 2^-24 size whatever D is: 1.0 for z = 2.5, as
  // the first of some hundred keys has it. That for every |dS| gives the 2. Logits of 1e4 need it:
  // nothing else is as large there, and the naive loops' own error is one draw, which may be next
  // to nothing.
  if (data.c.fill == Fill::huge_logits)
    scores = std::max(scores, 2 * largest_finite(expected.term_sensitivity));
  // The sums behind a row, of weights and of weighted values, are a few roundings off where many
  // keys share the weight: partial sums are small for most of the way. A row that points along one
  // key, mostly the first, has its whole size from there on, and each further key rounds it again,
  // however little it adds: n roundings of at most 2^-24 of the row, with an rms of 0.42 of that.
  // Both sums together have an rms of 0.6 sqrt(n) 2^-24 of the row, with or without fused
  // multiply-adds. That of the largest |V| is two to three deviations of a row, which is one of the
  // values of V. Kernels keep sums of their own for each block of keys: n ends where blocks do.
  double roundings = 3;
  if (data.c.fill == Fill::peaked)
    roundings =
        std::max(roundings, 0.6 * std::sqrt(double(std::min<int64_t>(p.seq_k, cpu::kMaxBlockK))));
  verdict.limit =
      2 * out.naive + allow.weights * largest_v + kRounding * largest_v * (roundings + scores);
  verdict.lse_error = lse.value;
  // What a 16-bit problem's lse is for (gradients, merging parts) is rounded far more coarsely.
  const double lse_roundings = p.dtype == DType::f32 ? 8 : 64;
  verdict.lse_limit =
      2 * lse.naive + kRounding * (lse_roundings + (2 + allow.score_roundings) * lse.largest +
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

std::vector<uint64_t> hashes_of_inputs(const Data& data) {
  std::vector<uint64_t> hashes;
  for (const Tensor* input : data.inputs()) hashes.push_back(input->hash());
  return hashes;
}

const char* input_name(size_t n) {
  static constexpr const char* kNames[] = {"q",
                                           "k",
                                           "v",
                                           "mask",
                                           "block_mask",
                                           "alibi_slopes",
                                           "sinks",
                                           "cu_seqlens_q",
                                           "cu_seqlens_k",
                                           "key_lengths"};
  return kNames[n];
}

std::string damage(const Data& data, const std::vector<uint64_t>& hashes_before) {
  const std::vector<uint64_t> hashes = hashes_of_inputs(data);
  for (size_t n = 0; n < hashes.size(); ++n)
    if (hashes[n] != hashes_before[n])
      return fmt::format("the input {} or its surroundings were written to", input_name(n));
  return damage_around_outputs(data);
}

std::string damage_around_outputs(const Data& data) {
  if (!data.out.surroundings_intact()) return "memory around out was written to";
  if (!data.lse.surroundings_intact()) return "memory around lse was written to";
  return "";
}

}  // namespace attune::check
