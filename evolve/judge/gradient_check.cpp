#include "evolve/judge/gradient_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "evolve/judge/timed_set.hpp"
#include "src/check/gradients.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/fused_backward.hpp"
#include "src/cpu/reference.hpp"
#include "src/select/select.hpp"

namespace attune::evolve {
namespace {

constexpr double kFloatRounding = 0x1p-24;
constexpr double kMostProducts = double(1 << 27);  // of a head that is compared with float64 anyway
constexpr size_t kMostDoubtfulHeads = 2;           // heads that are compared with it after all

int64_t number_size(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

View begins_at(const View& v, int64_t b, int64_t h, int64_t i, int64_t size) {
  if (v.data == nullptr) return {};
  const int64_t at = b * v.stride_b + h * v.stride_h + i * v.stride_s;
  return {static_cast<std::byte*>(v.data) + at * size, v.stride_b, v.stride_h, v.stride_s};
}

// What two kernels that are right may differ by, relative to the largest element of a head: both
// sum in float32, and each sum of n terms is off by about sqrt(n) roundings. Large scores are
// rounded, and weights with them.
double tolerance(const Problem& p, bool hard) {
  const double terms = double(std::max(p.seq_q * p.group(), p.seq_k));
  return kFloatRounding * (hard ? 0x1p14 : 32 + 2 * std::sqrt(terms));
}

// Of an element's last place, in its dtype.
double last_place(DType dtype) {
  return dtype == DType::f32 ? 0 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
}

}  // namespace

// One of the three, as the call has it.
struct GradientCheck::Tensor {
  const char* name;
  View view;
  int64_t heads, rows, dim;  // heads: of one key head
};

GradientCheck::GradientCheck(const Problem& problem, const Params& params, const GradParams& grads,
                             bool hard)
    : p_(problem), a_(params), g_(grads), hard_(hard) {}

namespace {

// The elements of one head against float64.
struct Compared {
  const char* name;
  const View& view;
  int64_t heads, rows, dim;
  DType dtype;
  int64_t b, h, i;  // where the first of them is, for the message

  std::string wrong(const std::vector<double>& exact, const std::vector<double>& roundings) const {
    size_t n = 0;
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t d = 0; d < dim; ++d, ++n) {
          const auto* at = static_cast<const std::byte*>(view.data) +
                           (head * view.stride_h + row * view.stride_s + d) * number_size(dtype);
          const double got = number_at(dtype, at);
          const double allowed = check::allowed_of_gradient(exact[n], roundings[n], int32_t(dtype));
          if (!check::is_right_gradient(got, exact[n], allowed, int32_t(dtype)))
            return fmt::format(
                "{}[{},{},{},{}] is {:.9g}, the reference {:.9g}: off by {:.3g}, allowed is {:.3g}",
                name, b, h + head, i + row, d, got, exact[n], std::abs(got - exact[n]), allowed);
        }
    return "";
  }
};

}  // namespace

// One query is a call of its own, over the keys that it may see.
Fault GradientCheck::row(int64_t b, int64_t h, int64_t i) const {
  const Sequence s{p_.seq_q, p_.seq_k, 0, 0,
                   p_.alignment == Alignment::bottom_right ? p_.seq_k - p_.seq_q : 0};
  const int64_t size = number_size(p_.dtype);
  Problem row = p_;
  row.batch = row.heads_q = row.heads_kv = row.seq_q = 1;
  row.seq_k = std::max<int64_t>(key_range(p_, s, i).end, 0);
  row.causal = false;
  Params a = a_;
  a.q = begins_at(a_.q, b, h, i, size);
  a.k = begins_at(a_.k, b, h / p_.group(), 0, size);
  a.v = begins_at(a_.v, b, h / p_.group(), 0, size);
  a.rows_q = 1;
  a.rows_k = row.seq_k;
  GradParams g;
  g.dout = begins_at(g_.dout, b, h, i, size);
  g.dlse = begins_at(g_.dlse, b, h, i, 4);
  std::vector<double> exact(size_t(p_.dim), 0), roundings(size_t(p_.dim), 0);
  cpu::reference_backward_f64(row, a, g, {}, {.dq = exact.data()}, {.dq = roundings.data()});
  const View dq = begins_at(g_.dq, b, h, i, size);
  return {false, Compared{"dq", dq, 1, 1, p_.dim, p_.dtype, b, h, i}.wrong(exact, roundings)};
}

Fault GradientCheck::rows(int count, Dice* dice) const {
  for (int n = 0; n < count; ++n) {
    const int64_t b = dice->below(p_.batch), h = dice->below(p_.heads_q),
                  i = n + 1 == count ? p_.seq_q - 1 : dice->below(p_.seq_q);
    if (Fault fault = row(b, h, i); !fault.why.empty()) return fault;
  }
  return {};
}

Fault GradientCheck::head(const Head& which, const cpu::Executor& executor) const {
  const int64_t size = number_size(p_.dtype), group = p_.group(), first = which.h * group;
  Problem one = p_;
  one.batch = one.heads_kv = 1;
  one.heads_q = group;
  Params a = a_;
  a.q = begins_at(a_.q, which.b, first, 0, size);
  a.k = begins_at(a_.k, which.b, which.h, 0, size);
  a.v = begins_at(a_.v, which.b, which.h, 0, size);
  GradParams g;
  g.dout = begins_at(g_.dout, which.b, first, 0, size);
  g.dlse = begins_at(g_.dlse, which.b, first, 0, 4);
  const auto zeros = [](int64_t count) { return std::vector<double>(size_t(count), 0.0); };
  auto dq = zeros(group * p_.seq_q * p_.dim), dk = zeros(p_.seq_k * p_.dim),
       dv = zeros(p_.seq_k * p_.dim_v), dq_off = dq, dk_off = dk, dv_off = dv;
  cpu::reference_backward_f64(one, a, g, executor, {dq.data(), dk.data(), dv.data()},
                              {dq_off.data(), dk_off.data(), dv_off.data()});
  const auto wrong = [&](const Tensor& t, int64_t h, const std::vector<double>& exact,
                         const std::vector<double>& roundings) {
    const View view = begins_at(t.view, which.b, h, 0, size);
    return Compared{t.name, view, t.heads, t.rows, t.dim, p_.dtype, which.b, h, 0}.wrong(exact,
                                                                                         roundings);
  };
  const std::vector<Tensor> all = tensors();
  std::string why = wrong(all[0], first, dq, dq_off);
  if (why.empty()) why = wrong(all[1], which.h, dk, dk_off);
  if (why.empty()) why = wrong(all[2], which.h, dv, dv_off);
  return {false, std::move(why)};
}

std::vector<GradientCheck::Tensor> GradientCheck::tensors() const {
  return {{"dq", g_.dq, p_.group(), p_.seq_q, p_.dim},
          {"dk", g_.dk, 1, p_.seq_k, p_.dim},
          {"dv", g_.dv, 1, p_.seq_k, p_.dim_v}};
}

// The largest difference of a head, in what two kernels may differ by.
double GradientCheck::distance(const Tensor& mine, const Tensor& its, const Head& head) const {
  const int64_t size = number_size(p_.dtype);
  const View a = begins_at(mine.view, head.b, head.h * mine.heads, 0, size),
             b = begins_at(its.view, head.b, head.h * its.heads, 0, size);
  const auto value = [&](const View& v, int64_t h, int64_t i, int64_t d) {
    return double(number_at(p_.dtype, static_cast<const std::byte*>(v.data) +
                                          (h * v.stride_h + i * v.stride_s + d) * size));
  };
  const auto for_each = [&](const auto& fn) {
    for (int64_t h = 0; h < mine.heads; ++h)
      for (int64_t i = 0; i < mine.rows; ++i)
        for (int64_t d = 0; d < mine.dim; ++d) fn(value(a, h, i, d), value(b, h, i, d));
  };
  double largest = 0, off = 0;
  for_each([&](double, double own) {
    if (std::isfinite(own)) largest = std::max(largest, std::abs(own));
  });
  const double of_all = tolerance(p_, hard_) * largest + 1e-300;
  for_each([&](double got, double own) {
    if (got == own) return;
    const double allowed = of_all + last_place(p_.dtype) * std::abs(own);
    const double share = std::abs(got - own) / allowed;
    off = std::isnan(share) ? INFINITY : std::max(off, share);
  });
  return off;
}

std::vector<GradientCheck::Head> GradientCheck::heads(const GradParams& own) const {
  const GradientCheck library(p_, a_, own, hard_);
  const std::vector<Tensor> mine = tensors(), its = library.tensors();
  std::vector<Head> all;
  for (int64_t b = 0; b < p_.batch; ++b)
    for (int64_t h = 0; h < p_.heads_kv; ++h) {
      Head head{b, h};
      for (size_t n = 0; n < mine.size(); ++n)
        head.off = std::max(head.off, distance(mine[n], its[n], head));
      all.push_back(head);
    }
  return all;
}

Fault GradientCheck::whole(int count, const cpu::Executor& executor, Dice* dice) const {
  if (Fault fault = rows(count, dice); !fault.why.empty()) return fault;
  const WrittenGradients sizes(p_);
  std::vector<std::byte> memory(size_t(sizes.bytes));
  GradParams own = g_;
  const auto place = [&](View* view, int64_t at, int64_t heads, int64_t rows, int64_t dim) {
    *view = {memory.data() + at, heads * rows * dim, rows * dim, dim};
  };
  place(&own.dq, 0, p_.heads_q, p_.seq_q, p_.dim);
  place(&own.dk, sizes.dk_at, p_.heads_kv, p_.seq_k, p_.dim);
  place(&own.dv, sizes.dv_at, p_.heads_kv, p_.seq_k, p_.dim_v);
  const cpu::CpuConfig config = default_backward_config(p_, cpu::arch());
  if (const Status status = cpu::fused_backward(*cpu::isa_table(), p_, a_, own, config, executor);
      !status.ok())
    return {false, "the library's own kernel does not run: " + status.message};
  std::vector<Head> all = heads(own);
  const size_t some = size_t(dice->below(int64_t(all.size())));
  const double products =
      double(p_.group()) * double(p_.seq_q) * double(p_.seq_k) * double(std::max(p_.dim, p_.dim_v));
  if (count >= kFirstLook && products <= kMostProducts)
    if (Fault fault = head(all[some], executor); !fault.why.empty()) return fault;
  const size_t most = std::min(all.size(), kMostDoubtfulHeads);
  std::partial_sort(all.begin(), all.begin() + ptrdiff_t(most), all.end(),
                    [](const Head& x, const Head& y) { return x.off > y.off; });
  for (size_t n = 0; n < most && all[n].off > 1; ++n)
    if (Fault fault = head(all[n], executor); !fault.why.empty()) return fault;
  return {};
}

}  // namespace attune::evolve
