#include "src/rungs/samples.hpp"

#include <iterator>
#include <limits>

namespace attune {
namespace {

// Every feature once: what it does to a problem.
struct Feature {
  void (*add)(Problem*);
  const char* score_mod = "";
  const char* mask_mod = "";
};
constexpr Feature kFeatures[] = {
    {[](Problem* p) { p->window_left = p->window_right = 128; }},
    {[](Problem* p) { p->mask = MaskKind::boolean; }},
    {[](Problem* p) { p->mask = MaskKind::f32; }},
    {[](Problem* p) { p->mask = MaskKind::f16; }},
    {[](Problem* p) { p->mask = MaskKind::bf16; }},
    {[](Problem* p) { p->block_mask_q = p->block_mask_k = 64; }},
    {[](Problem* p) { p->softcap = true; }},
    {[](Problem* p) { p->alibi = true; }},
    {[](Problem* p) { p->sinks = true; }},
    {[](Problem* p) { p->ragged = true; }},
    {[](Problem* p) { p->key_lengths = true; }},
    {[](Problem* p) { p->dropout = true; }},
    {[](Problem* p) { p->lse = true; }},
    {[](Problem* p) { p->causal = p->lse = true; }},
    {[](Problem* p) { p->dim_v = 128; }},
    {[](Problem* p) {
      p->heads_kv = 2, p->seq_q = 1;
    }},  // decoding, with query heads that share K and V
    {[](Problem* p) { p->score_mod = true; }, "return score + 0.125f * (i - j);"},
    {[](Problem* p) { p->mask_mod = true; }, "", "return i / 128 == j / 128;"},
};

constexpr Limit kLimits[] = {
    [](Problem*) {},
    [](Problem* p) { p->causal = true; },
    [](Problem* p) { p->lse = true; },
    [](Problem* p) { p->causal = p->lse = true; },
    [](Problem* p) { p->window_left = p->window_right = 128; },
    [](Problem* p) { p->causal = p->ragged = true; },
    [](Problem* p) { p->ragged = true, p->window_left = p->window_right = 128; },
    [](Problem* p) { p->causal = p->key_lengths = true; },
    [](Problem* p) { p->key_lengths = true, p->window_left = p->window_right = 128; },
    [](Problem* p) { p->mask = MaskKind::f16; },
    [](Problem* p) { p->causal = true, p->mask = MaskKind::f16; },
    [](Problem* p) { p->causal = p->dropout = true; },
    [](Problem* p) { p->causal = true, p->block_mask_q = p->block_mask_k = 128; },
};

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr int kDims[] = {64, 128, 256, 96, 40};

// The plans of one arch, each kernel once.
class Shipment {
 public:
  void add(const Rung& rung, const Request& r) {
    if (!rung.refusal(r).empty()) return;
    const Config config = rung.standard(r);
    if (!rung.cannot_run(r, config).empty()) return;
    add(rung.plan(r, config));
  }
  void add(Plan plan) {
    for (const Plan& other : plans)
      if (other.units == plan.units) return;
    plans.push_back(std::move(plan));
  }

  std::vector<Plan> plans;
};

}  // namespace

Problem sample_problem(DType dtype, int dim) {
  Problem p;
  p.dtype = dtype;
  p.batch = 16;  // enough tiles for every multiprocessor
  p.heads_q = p.heads_kv = 8;
  p.seq_q = p.seq_k = 1024;
  p.dim = p.dim_v = dim;
  return p;
}

Request sample_request(const Problem& p, const Arch& arch, bool aligned) {
  Request r{
      p,  arch, {false, false, true, element_bytes(p.dtype)}, std::numeric_limits<size_t>::max(),
      "", ""};
  if (!aligned) return r;
  Params contiguous;
  contiguous.mask.stride[3] = 1;
  r.layout = layout_of(p, contiguous);
  return r;
}

std::vector<Request> feature_samples(DType dtype, const Arch& arch) {
  std::vector<Request> requests;
  for (const Feature& feature : kFeatures) {
    Problem p = sample_problem(dtype, 64);
    feature.add(&p);
    requests.push_back(sample_request(p, arch, true));
    requests.back().score_mod = feature.score_mod;
    requests.back().mask_mod = feature.mask_mod;
  }
  return requests;
}

std::span<const Limit> limit_samples() { return kLimits; }

std::vector<Request> common_samples(const Arch& arch) {
  std::vector<Request> requests;
  for (DType dtype : kTypes)
    for (int dim : kDims)
      for (bool causal : {false, true})
        for (bool aligned : {true, false}) {
          Problem p = sample_problem(dtype, dim);
          p.causal = causal;
          requests.push_back(sample_request(p, arch, aligned));
        }
  // Each feature once: the kernels for fp16 are those for bf16.
  for (Request& r : feature_samples(DType::bf16, arch)) requests.push_back(std::move(r));
  return requests;
}

// As a backward pass of the same call.
Request backward_of(Request r) {
  Problem& p = r.problem;
  p.pass = Pass::backward;
  p.lse = true;
  r.wanted.dsinks = p.sinks;
  if (p.mask > MaskKind::boolean) r.wanted.dmask = {1, p.heads_q, p.seq_q, p.seq_k};
  return r;
}

std::vector<Request> backward_samples(const Arch& arch) {
  std::vector<Request> requests;
  for (DType dtype : kTypes)
    for (int dim : {64, 128, 256})
      for (bool causal : {false, true}) {
        Problem p = sample_problem(dtype, dim);
        p.causal = causal;
        requests.push_back(backward_of(sample_request(p, arch, true)));
      }
  for (int dim : {64, 128, 40})
    requests.push_back(backward_of(sample_request(sample_problem(DType::f32, dim), arch, false)));
  for (const Request& r : feature_samples(DType::bf16, arch)) requests.push_back(backward_of(r));
  return requests;
}

std::vector<Plan> shipped_plans(const Arch& arch, bool quick) {
  Shipment shipment;
  // A rung that has tensor cores has other kernels for 16 bits.
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Rung* rung : rungs())
      if (dtype == DType::f32 || rung->tensor_cores)
        shipment.add(*rung, sample_request(sample_problem(dtype, 64), arch, true));
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Rung* rung : rungs(Pass::backward))
      if (dtype == DType::f32 || rung->tensor_cores)
        shipment.add(*rung, backward_of(sample_request(sample_problem(dtype, 64), arch, true)));
  if (quick) return std::move(shipment.plans);
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (const Rung* rung : rungs(pass))
      for (const Request& r : rung->ships(arch)) shipment.add(*rung, r);
  return std::move(shipment.plans);
}

std::vector<Plan> default_plans(const Arch& arch) {
  Shipment shipment;
  for (Plan& plan : shipped_plans(arch, false)) shipment.add(std::move(plan));
  const size_t shipped = shipment.plans.size();
  for (const Rung* rung : rungs())
    if (rung->runs_on(arch.cc))
      for (const DefaultCall& call : rung->default_calls(arch)) shipment.add(*rung, call.request);
  return {std::make_move_iterator(shipment.plans.begin() + ptrdiff_t(shipped)),
          std::make_move_iterator(shipment.plans.end())};
}

}  // namespace attune
