#include "evolve/judge/row_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/cpu/fused.hpp"
#include "src/cpu/half.hpp"
#include "src/cpu/reference.hpp"
#include "src/select/select.hpp"

namespace attune::evolve {
namespace {

constexpr size_t kMostDoubtful = 16;  // rows that are compared with float64 after all
constexpr double kRounding = 0x1p-24;

int64_t row_at(const View& v, const RowCheck::Place& at) {
  return at.b * v.stride_b + at.h * v.stride_h + at.i * v.stride_s;
}

// How far from its exact value, where that is finite; else 0 for the very value.
double distance(double got, double exact) {
  if (!std::isfinite(exact)) return got == exact ? 0 : INFINITY;
  const double error = std::abs(got - exact);
  return std::isnan(error) ? INFINITY : error;
}

// Where the naive loops fail altogether, their error allows nothing.
double finite(double error) { return std::isfinite(error) ? error : 0; }

}  // namespace

// One row: its errors, those of the naive loops, and what rounding may do to it.
struct RowCheck::Row {
  Place at{};
  double error = 0, naive = 0, largest_v = 0, sensitivity = 0;
  double lse_error = 0, lse_naive = 0, lse = 0, lse_sensitivity = 0;
  std::string worst;
};

// The largest of several rows.
struct RowCheck::Limits {
  double naive = 0, largest_v = 0, sensitivity = 0, lse_naive = 0, lse = 0, lse_sensitivity = 0;

  void add(const Row& r) {
    naive = std::max(naive, r.naive);
    largest_v = std::max(largest_v, r.largest_v);
    sensitivity = std::max(sensitivity, r.sensitivity);
    lse_naive = std::max(lse_naive, r.lse_naive);
    lse = std::max(lse, r.lse);
    lse_sensitivity = std::max(lse_sensitivity, r.lse_sensitivity);
  }
  double out_limit(const check::Allowance& allow) const {
    return 3 * naive + allow.weights * largest_v +
           kRounding * largest_v * (6 + (3 + allow.score_roundings) * sensitivity);
  }
  double lse_limit(const check::Allowance& allow, DType dtype) const {
    const double roundings = dtype == DType::f32 ? 16 : 128;
    return 3 * lse_naive +
           kRounding * (roundings + (4 + allow.score_roundings) * lse + 3 * lse_sensitivity);
  }
};

RowCheck::RowCheck(const Problem& problem, const Params& params, const check::Allowance& allow,
                   check::Fill fill)
    : p_(problem), a_(params), allow_(allow), huge_(fill == check::Fill::huge_logits) {}

float RowCheck::value(const void* data, int64_t at) const {
  switch (p_.dtype) {
    case DType::f16:
      return cpu::f16_to_float(static_cast<const uint16_t*>(data)[at]);
    case DType::bf16:
      return cpu::bf16_to_float(static_cast<const uint16_t*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

RowCheck::Place RowCheck::draw(Dice* dice) const {
  const int64_t b = dice->below(p_.batch), h = dice->below(p_.heads_q), i = dice->below(p_.seq_q);
  return {b, h, i};
}

RowCheck::Row RowCheck::measure(const Place& at) const {
  Row r;
  r.at = at;
  const int64_t size = p_.dtype == DType::f32 ? 4 : 2;
  const Sequence s{p_.seq_q, p_.seq_k, 0, 0,
                   p_.alignment == Alignment::bottom_right ? p_.seq_k - p_.seq_q : 0};
  Problem row = p_;  // one row over the keys that it may see
  row.batch = row.heads_q = row.heads_kv = row.seq_q = 1;
  row.seq_k = std::max<int64_t>(key_range(p_, s, at.i).end, 0);
  row.causal = false;
  row.lse = true;
  const Place keys{at.b, at.h / p_.group(), 0};
  const auto view = [&](const View& from, const Place& first) {
    return View{static_cast<std::byte*>(from.data) + row_at(from, first) * size, 0, 0,
                from.stride_s};
  };
  Params a;
  a.q = view(a_.q, at);
  a.k = view(a_.k, keys);
  a.v = view(a_.v, keys);
  a.scale = a_.scale;
  a.rows_q = 1;
  a.rows_k = row.seq_k;
  const cpu::Executor alone;
  std::vector<double> exact(size_t(p_.dim_v));
  double lse = 0, term_sensitivity = 0;
  cpu::reference_forward_f64(
      row, a, alone, {exact.data(), &lse, &r.sensitivity, &term_sensitivity, &r.lse_sensitivity});
  // See src/check/judge.cpp: nothing else is as large there.
  if (huge_) r.sensitivity = std::max(r.sensitivity, 2 * term_sensitivity);
  std::vector<std::byte> naive(size_t(p_.dim_v * size));
  float naive_lse = 0;
  a.out = {naive.data(), 0, 0, p_.dim_v};
  a.lse = {&naive_lse, 0, 0, 1};
  cpu::naive_forward(row, a, alone);
  for (int64_t j = 0; j < row.seq_k; ++j)
    for (int64_t d = 0; d < p_.dim_v; ++d)
      r.largest_v = std::max(r.largest_v, double(std::abs(value(a.v.data, j * a.v.stride_s + d))));
  for (int64_t d = 0; d < p_.dim_v; ++d) {
    const double got = value(a_.out.data, row_at(a_.out, at) + d);
    const double error = distance(got, exact[size_t(d)]);
    r.naive = std::max(r.naive, finite(distance(value(naive.data(), d), exact[size_t(d)])));
    if (error >= r.error) {
      r.error = error;
      r.worst = fmt::format("out[{},{},{},{}] is {:.9g}, the reference {:.9g}", at.b, at.h, at.i, d,
                            got, exact[size_t(d)]);
    }
  }
  if (a_.lse.data == nullptr) return r;
  r.lse_error = distance(static_cast<const float*>(a_.lse.data)[row_at(a_.lse, at)], lse);
  r.lse_naive = finite(distance(naive_lse, lse));
  if (std::isfinite(lse)) r.lse = std::abs(lse);
  return r;
}

RowCheck::Limits RowCheck::limits(const std::vector<Row>& rows) const {
  Limits all;
  for (const Row& r : rows) all.add(r);
  return all;
}

Fault RowCheck::judge(const Row& r, const Limits& limits) const {
  if (const double limit = limits.out_limit(allow_); !(r.error <= limit))
    return {false, fmt::format("{}: off by {:.3g}, allowed is {:.3g}", r.worst, r.error, limit)};
  if (const double limit = limits.lse_limit(allow_, p_.dtype); !(r.lse_error <= limit))
    return {false, fmt::format("lse[{},{},{}] is off by {:.3g}, allowed is {:.3g}", r.at.b, r.at.h,
                               r.at.i, r.lse_error, limit)};
  return {};
}

Fault RowCheck::rows(const std::vector<Place>& places) const {
  std::vector<Row> measured;
  for (const Place& at : places) measured.push_back(measure(at));
  const Limits all = limits(measured);
  for (const Row& r : measured)
    if (Fault fault = judge(r, all); !fault.why.empty()) return fault;
  return {};
}

Fault RowCheck::whole(int count, const cpu::Executor& executor, Dice* dice) const {
  std::vector<Row> drawn;
  for (int n = 0; n <= count; ++n) {
    Place at = draw(dice);
    if (n == count) at.i = p_.seq_q - 1;
    drawn.push_back(measure(at));
  }
  const Limits all = limits(drawn);
  for (const Row& r : drawn)
    if (Fault fault = judge(r, all); !fault.why.empty()) return fault;

  const int64_t size = p_.dtype == DType::f32 ? 4 : 2, rows = p_.batch * p_.heads_q * p_.seq_q;
  std::vector<std::byte> own(size_t(rows * p_.dim_v * size));
  std::vector<float> own_lse(a_.lse.data != nullptr ? size_t(rows) : 0);
  Params a = a_;
  a.out = {own.data(), p_.heads_q * p_.seq_q * p_.dim_v, p_.seq_q * p_.dim_v, p_.dim_v};
  if (!own_lse.empty()) a.lse = {own_lse.data(), p_.heads_q * p_.seq_q, p_.seq_q, 1};
  const cpu::CpuConfig config = default_cpu_config(p_, cpu::arch(), executor.threads);
  if (const Status status = cpu::fused_forward(p_, a, config, executor); !status.ok())
    return {false, "the library's own kernel does not run: " + status.message};

  const double limit = std::max(all.out_limit(allow_), 1e-300),  // 0: rows without a key
      lse_limit = std::max(all.lse_limit(allow_, p_.dtype), 1e-300);
  struct Doubt {
    double off;
    Place at;
  };
  std::vector<Doubt> doubts;
  for (int64_t n = 0; n < rows; ++n) {
    const Place at{n / p_.seq_q / p_.heads_q, n / p_.seq_q % p_.heads_q, n % p_.seq_q};
    const int64_t first = row_at(a_.out, at), mine = n * p_.dim_v;
    double off = 0;
    if (std::memcmp(static_cast<const std::byte*>(a_.out.data) + first * size,
                    own.data() + mine * size, size_t(p_.dim_v * size)) != 0)
      for (int64_t d = 0; d < p_.dim_v; ++d)
        off = std::max(off, distance(value(a_.out.data, first + d), value(own.data(), mine + d)));
    off /= limit;
    if (!own_lse.empty())
      off = std::max(off, distance(static_cast<const float*>(a_.lse.data)[row_at(a_.lse, at)],
                                   own_lse[size_t(n)]) /
                              lse_limit);
    if (off > 1) doubts.push_back({off, at});
  }
  const size_t most = std::min(doubts.size(), kMostDoubtful);
  std::partial_sort(doubts.begin(), doubts.begin() + ptrdiff_t(most), doubts.end(),
                    [](const Doubt& x, const Doubt& y) { return x.off > y.off; });
  for (size_t n = 0; n < most; ++n) {
    const Row row = measure(doubts[n].at);
    Limits its = all;  // the naive loops' error of one row may be next to nothing
    its.largest_v = row.largest_v;
    its.sensitivity = row.sensitivity;
    its.lse = row.lse;
    its.lse_sensitivity = row.lse_sensitivity;
    its.naive = std::max(its.naive, row.naive);
    its.lse_naive = std::max(its.lse_naive, row.lse_naive);
    if (Fault fault = judge(row, its); !fault.why.empty()) return fault;
  }
  return {};
}

}  // namespace attune::evolve
