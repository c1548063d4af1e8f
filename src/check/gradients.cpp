#include "src/check/gradients.hpp"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>

#include "src/check/judge.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/fused_backward.hpp"
#include "src/cpu/reference.hpp"

namespace attune::check {
namespace {

constexpr double kFloatRounding = 0x1p-24;  // of float32

View4 view4(const Tensor& t) {
  View4 view{t.view.data, {}};
  for (int d = 0; d < 4; ++d) view.stride[d] = t.view.shape[d] == 1 ? 0 : t.view.stride[d];
  return view;
}

// Half the distance to a number's neighbour: relative, and absolute near 0.
std::pair<double, double> rounding_of(int32_t dtype) {
  if (dtype == ATTUNE_F16) return {0x1p-11, 0x1p-25};
  if (dtype == ATTUNE_BF16) return {0x1p-8, 1e-40};
  return {kFloatRounding, 2e-45};
}

// The element that came nearest to its limit, and the first that is wrong.
struct Worst {
  double used = -1, error = 0, limit = 0;
  std::string why;

  void add(double got, double reference, double roundings, int32_t dtype,
           const std::function<std::string()>& where) {
    const auto tell = [&](const std::string& more) {
      if (why.empty())
        why = fmt::format("{} is {:.9g}, the reference {:.9g}{}", where(), got, reference, more);
    };
    const double allowed = allowed_of_gradient(reference, roundings, dtype);
    const double difference = std::abs(got - reference);
    const bool right = is_right_gradient(got, reference, allowed, dtype);
    if (!right)
      tell(std::isfinite(reference)
               ? fmt::format(": off by {:.3g}, allowed is {:.3g}", difference, allowed)
               : "");
    if (!std::isfinite(reference) || (right && std::isinf(got))) return;
    if (!(difference / allowed <= used)) {
      used = difference / allowed;
      error = difference;
      limit = allowed;
    }
  }
};

struct Sums {
  std::vector<double> dq, dk, dv, dmask, dsinks;

  Sums(const Gradients& g, const Problem& p) {
    const auto make = [](const Tensor& t, std::vector<double>* to, int64_t count) {
      if (t.given()) to->assign(size_t(count), 0.0);
    };
    make(g.dq, &dq, p.batch * p.heads_q * p.seq_q * p.dim);
    make(g.dk, &dk, p.batch * p.heads_kv * p.seq_k * p.dim);
    make(g.dv, &dv, p.batch * p.heads_kv * p.seq_k * p.dim_v);
    const int64_t* n = g.dmask.view.shape;
    make(g.dmask, &dmask, n[0] * n[1] * n[2] * n[3]);
    make(g.dsinks, &dsinks, p.heads_q);
  }

  cpu::ExactGradients pointers() {
    const auto at = [](std::vector<double>& sums) { return sums.empty() ? nullptr : sums.data(); };
    return {at(dq), at(dk), at(dv), at(dmask), at(dsinks)};
  }
};

// Rows of dq, dk or dv.
void compare_rows(const Gradients& g, const char* name, const Tensor& t, bool query, int64_t heads,
                  int dim, const std::vector<double>& exact, const std::vector<double>& roundings,
                  Worst* worst) {
  if (!t.given()) return;
  const Problem& p = g.data.p;
  Problem whole = p;  // gradients of unused keys are 0
  whole.key_lengths = false;
  const View view = as_view(t, p.ragged);
  const int64_t longest = query ? p.seq_q : p.seq_k;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = Sequence::of(whole, g.data.params(), b);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < (query ? s.sq : s.sk); ++i)
        for (int d = 0; d < dim; ++d) {
          const size_t n = size_t(((b * heads + h) * longest + i) * dim + d);
          const int64_t at = b * view.stride_b + h * view.stride_h +
                             ((query ? s.q0 : s.k0) + i) * view.stride_s + d;
          worst->add(t.get(at), exact[n], roundings[n], t.view.dtype,
                     [&] { return fmt::format("{}[{},{},{},{}]", name, b, h, i, d); });
        }
  }
}

void compare_all(const char* name, const Tensor& t, const std::vector<double>& exact,
                 const std::vector<double>& roundings, Worst* worst) {
  size_t n = 0;
  t.for_each([&](int64_t at) {
    worst->add(t.get(at), exact[n], roundings[n], t.view.dtype,
               [&] { return fmt::format("{}, element {}", name, n); });
    ++n;
  });
}

Verdict failed(const Status& status) {
  Verdict verdict;
  verdict.status = status.code;
  verdict.why = fmt::format("{}: {}", attune_status_name(status.code), status.message);
  return verdict;
}

Verdict judge(const Gradients& g, const cpu::Executor& executor,
              const std::function<Status()>& candidate) {
  const attune_args forward = g.forward_args();
  if (const attune_status code = attune_forward(&forward); code != ATTUNE_OK)
    return failed({code, attune_last_error()});
  const std::vector<uint64_t> inputs = hashes_of_inputs(g.data);
  const std::vector<uint64_t> more = g.hashes_of_inputs();
  if (const Status status = candidate(); !status.ok()) return failed(status);
  Verdict verdict;
  verdict.why = check::damage(g.data, inputs);
  if (verdict.why.empty()) verdict.why = g.damage(more);
  if (!verdict.why.empty()) return verdict;
  return compare(g, executor);
}

}  // namespace

Gradients::Gradients(const Data& the_data) : data(the_data) {
  const Case& c = data.c;
  const Problem& p = data.p;
  Random random(c.seed + 1);
  const auto fill = [&](Tensor& t) { t.for_each([&](int64_t at) { t.set(at, random.normal()); }); };
  out = data.activation(p.heads_q, true, p.dim_v);
  dout = data.activation(p.heads_q, true, p.dim_v);
  lse = data.lse_like();
  // One in four cases asks for some of the gradients.
  const uint64_t asked = c.seed % 4 == 3 ? 1 + c.seed / 4 % 7 : 7;
  if ((asked & 1) != 0) dq = data.activation(p.heads_q, true, p.dim);
  if ((asked & 2) != 0) dk = data.activation(p.heads_kv, false, p.dim);
  if ((asked & 4) != 0) dv = data.activation(p.heads_kv, false, p.dim_v);
  if (c.backwards)
    for (Tensor* t : {&out, &dout, &dq, &dk, &dv})
      if (t->given()) t->turn_round(1), t->turn_round(p.ragged ? 0 : 2);
  fill(dout);
  // Not with dropout: a row that lost all its keys has an output of 0, and 0 * Inf would count.
  if (c.fill == Fill::nan_in_masked && c.seed % 2 == 0 && !p.dropout) poison_dout();
  if (c.seed % 3 != 0) {
    dlse = data.lse_like();
    fill(dlse);
  }
  if (p.mask != MaskKind::none && p.mask != MaskKind::boolean) {
    const attune_tensor mask = data.args().mask;
    dmask = Tensor(ATTUNE_F32, std::vector<int64_t>(mask.shape, mask.shape + 4),
                   c.strided ? std::vector{0, 2, 1, 3} : std::vector{0, 1, 2, 3}, 0, 0);
  }
  if (p.sinks) dsinks = Tensor(ATTUNE_F32, {p.heads_q}, {0}, 0, 0);
}

// One number of the first head's rows: it reaches the keys that the row looks at, and no others.
void Gradients::poison_dout() {
  const View view = as_view(dout, data.p.ragged);
  for (int64_t b = 0; b < data.p.batch; ++b) {
    const Sequence s = Sequence::of(data.p, data.params(), b);
    if (s.sq > 0)
      dout.set(b * view.stride_b + (s.q0 + s.sq / 3) * view.stride_s,
               std::numeric_limits<float>::infinity());
  }
}

attune_args Gradients::forward_args() const {
  attune_args args = data.args();
  args.out = out.view;
  args.lse = lse.view;
  return args;
}

attune_backward_args Gradients::args(const attune_args* forward) const {
  attune_backward_args args;
  (void)attune_backward_args_init(&args, sizeof(args));  // cannot fail: the size is right
  args.forward = forward;
  args.dout = dout.view;
  args.dlse = dlse.view;
  args.dq = dq.view;
  args.dk = dk.view;
  args.dv = dv.view;
  args.dmask = dmask.view;
  args.dsinks = dsinks.view;
  return args;
}

Problem Gradients::problem() const {
  Problem problem = data.p;
  problem.pass = Pass::backward;
  problem.lse = true;
  return problem;
}

Params Gradients::params() const {
  Params params = data.params();
  params.out = as_view(out, data.p.ragged);
  params.lse = lse_view(lse, data.p.ragged);
  return params;
}

GradParams Gradients::grads() const {
  const bool ragged = data.p.ragged;
  GradParams g;
  g.dout = as_view(dout, ragged);
  if (dlse.given()) g.dlse = lse_view(dlse, ragged);
  if (dq.given()) g.dq = as_view(dq, ragged);
  if (dk.given()) g.dk = as_view(dk, ragged);
  if (dv.given()) g.dv = as_view(dv, ragged);
  if (dmask.given()) {
    g.dmask = view4(dmask);
    std::copy_n(dmask.view.shape, 4, g.dmask_shape);
  }
  if (dsinks.given()) {
    g.dsinks = static_cast<float*>(dsinks.view.data);
    g.dsinks_stride = dsinks.view.stride[0];
  }
  return g;
}

std::vector<uint64_t> Gradients::hashes_of_inputs() const {
  std::vector<uint64_t> hashes;
  for (const Tensor* t : inputs()) hashes.push_back(t->hash());
  return hashes;
}

std::string Gradients::damage(const std::vector<uint64_t>& before) const {
  if (hashes_of_inputs() != before)
    return "out, lse, dout or dlse, or its surroundings, were written to";
  for (const Tensor* t : outputs())
    if (t->given() && !t->surroundings_intact()) return "memory around a gradient was written to";
  return "";
}

double allowed_of_gradient(double reference, double roundings, int32_t dtype) {
  const auto [relative, absolute] = rounding_of(dtype);
  return kFloatRounding * roundings + relative * std::abs(reference) + absolute;
}

bool is_right_gradient(double got, double reference, double allowed, int32_t dtype) {
  const double largest = dtype == ATTUNE_F16 ? 65504 : 3.4e38;
  if (!std::isfinite(reference)) return !std::isfinite(got);
  if (std::isinf(got) && std::abs(reference) + allowed >= largest) return true;
  return std::abs(got - reference) <= allowed;
}

Verdict compare(const Gradients& g, const cpu::Executor& executor, bool tensor_cores) {
  const Problem& p = g.data.p;
  Sums exact(g, p), roundings(g, p);
  cpu::reference_backward_f64(g.problem(), g.params(), g.grads(), executor, exact.pointers(),
                              roundings.pointers(), tensor_cores && p.dtype != DType::f32);
  Worst worst;
  compare_rows(g, "dq", g.dq, true, p.heads_q, p.dim, exact.dq, roundings.dq, &worst);
  compare_rows(g, "dk", g.dk, false, p.heads_kv, p.dim, exact.dk, roundings.dk, &worst);
  compare_rows(g, "dv", g.dv, false, p.heads_kv, p.dim_v, exact.dv, roundings.dv, &worst);
  compare_all("dmask", g.dmask, exact.dmask, roundings.dmask, &worst);
  compare_all("dsinks", g.dsinks, exact.dsinks, roundings.dsinks, &worst);
  Verdict verdict;
  verdict.error = worst.error;
  verdict.limit = worst.limit;
  verdict.why = worst.why;
  verdict.ok = worst.why.empty();
  return verdict;
}

Verdict run_gradients_api(const Case& c, int threads, attune_mode mode) {
  const Data data(c);
  const Gradients g(data);
  attune_args forward = g.forward_args();
  forward.mode = mode;
  forward.threads = threads;
  const attune_backward_args args = g.args(&forward);
  cpu::Executor executor;
  executor.threads = threads > 0 ? threads : cpu::usable_threads();
  return judge(g, executor, [&] {
    const attune_status code = attune_backward(&args);
    return Status{code, code == ATTUNE_OK ? "" : attune_last_error()};
  });
}

Verdict run_gradients_config(const Case& c, const cpu::Executor& executor,
                             const cpu::CpuConfig& config) {
  const Data data(c);
  const Gradients g(data);
  const Problem problem = g.problem();
  const std::string reason = cpu::invalid_reason(config, problem, cpu::arch());
  if (!reason.empty()) return failed(Status::unsupported("the config cannot run here: " + reason));
  return judge(g, executor, [&] {
    return cpu::fused_backward(*cpu::isa_table(), problem, g.params(), g.grads(), config, executor);
  });
}

}  // namespace attune::check
