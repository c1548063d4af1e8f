#include "src/select/cuda_select.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "src/select/tuned.hpp"

namespace attune {
namespace {

constexpr int64_t kMaxGrid = 2147483647;  // blocks of a launch
// Kernels count rows and keys in 32 bits, and look up to a tile past the last one.
constexpr int64_t kMaxLength = 2147483647 - 1024;

// ---- layout ----

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

// ---- launches ----

// 0 stands for: more than memory has addresses.
size_t score_bytes(const Problem& p) {
  size_t bytes = sizeof(float);
  for (int64_t n : {p.batch, p.heads_q, p.seq_q, p.seq_k})
    if (__builtin_mul_overflow(bytes, size_t(n), &bytes)) return 0;
  return bytes;
}

struct Grid {
  const char* entry;
  int64_t blocks;
};

std::vector<Grid> grids_of(const Problem& p, const LadderConfig& c) {
  const int64_t heads = p.batch * p.heads_q;
  const int64_t tiles_q = ceil_div(p.seq_q, c.block_q), tiles_k = ceil_div(p.seq_k, c.block_k);
  switch (c.rung) {
    case Rung::naive:
      return {{"attune_naive", ceil_div(heads * p.seq_q, kNaiveRows)}};
    case Rung::tiled:
      return {{"attune_scores", heads * tiles_q * tiles_k},
              {"attune_softmax", ceil_div(heads * p.seq_q, kSoftmaxRows)},
              {"attune_output", heads * tiles_q * ceil_div(p.dim_v, c.block_q)}};
    case Rung::fused:
      return {{"attune_fused", heads * tiles_q}};
  }
  return {};
}

std::string too_many_blocks(int64_t blocks) {
  if (blocks <= kMaxGrid) return "";
  return fmt::format("needs {} blocks; a launch has at most {}", blocks, kMaxGrid);
}

// Heads of a group share a tile only where their rows together are few: they add nothing here.
std::string too_long(const Problem& p) {
  if (std::max(p.seq_k, p.seq_q) <= kMaxLength) return "";
  return fmt::format("takes sequences of at most {}", kMaxLength);
}

// What the sizes of the call forbid; what they do not decide is invalid_reason's.
std::string too_large(const Problem& p, const LadderConfig& c) {
  for (const Grid& g : grids_of(p, c))
    if (std::string reason = too_many_blocks(g.blocks); !reason.empty()) return reason;
  if (c.rung == Rung::tiled && score_bytes(p) == 0 && p.seq_k != 0)
    return "the scores would need more memory than there are addresses";
  return "";
}

// ---- selection ----

std::string old_device(const Arch& arch, int needed) {
  return fmt::format("needs compute capability {}.{}; this device has {}.{}", needed / 10,
                     needed % 10, arch.cc / 10, arch.cc % 10);
}

std::string workspace_reason(const jit::Plan& plan, const CudaRequest& r) {
  if (plan.workspace_bytes <= r.workspace_bytes) return "";
  return fmt::format("needs a workspace of {} bytes; workspace_bytes is {}", plan.workspace_bytes,
                     r.workspace_bytes);
}

// A rung with its config: a tuned row's, or the library's own. The plan is made only where nothing
// speaks against it.
struct Option {
  attune_mode mode;
  std::string config;
  std::string cannot;     // empty: it can run
  std::string workspace;  // empty: the caller's workspace is large enough
  jit::Plan plan;
  std::string config_from = "";
  std::vector<std::string> passed_over = {};
};

std::string cannot_run(const CudaRequest& r, const LadderConfig& config) {
  std::string reason = invalid_reason(config, r.problem, r.arch);
  if (reason.empty()) reason = too_long(r.problem);
  return reason.empty() ? too_large(r.problem, config) : reason;
}

std::string cannot_run(const CudaRequest& r, const MmaConfig& config) {
  std::string reason = invalid_reason(config, r.problem, r.arch);
  if (reason.empty()) reason = too_long(r.problem);
  return reason.empty() ? too_many_blocks(mma_blocks(r, config)) : reason;
}

std::string cannot_run(const CudaRequest& r, const WgmmaConfig& config) {
  std::string reason = invalid_reason(config, r.problem, r.arch);
  if (reason.empty()) reason = too_long(r.problem);
  if (reason.empty() && r.problem.seq_k == 0) reason = "there are no keys";
  return reason.empty() ? too_many_blocks(wgmma_blocks(r.problem, config)) : reason;
}

jit::Plan make_plan(const CudaRequest& r, const LadderConfig& c) { return ladder_plan(r, c); }
jit::Plan make_plan(const CudaRequest& r, const MmaConfig& c) { return mma_plan(r, c); }
jit::Plan make_plan(const CudaRequest& r, const WgmmaConfig& c) { return wgmma_plan(r, c); }

// What the defaults heed by themselves.
std::string misfit(const CudaRequest& r, const LadderConfig& c) {
  return c.vector && !r.layout.rows16 ? "its 16-byte loads need aligned rows" : "";
}
std::string misfit(const CudaRequest& r, const WgmmaConfig& c) {
  if (c.tma() && !r.layout.tma()) return "TMA needs aligned rows, one after another";
  if (c.copy > r.layout.step) return "its copies need aligned rows";
  return c.stage_mask && !r.layout.mask16 ? "its staged mask needs aligned rows" : "";
}
std::string misfit(const CudaRequest& r, const MmaConfig& c) {
  if (c.stage_mask && !r.layout.mask16) return "its staged mask needs aligned rows";
  return c.vector && !r.layout.rows16 ? "its 16-byte copies need aligned rows" : "";
}

// The tuned row of the rung that `config` belongs to, if there is one; its config replaces it.
template <class Config>
void use_tuned_row(const CudaRequest& r, Config* config, Option* o) {
  o->config_from = "default";
  if (r.tuned == nullptr || r.tuned->silent()) return;
  const TunedQuery query{cuda_problem_id(r.problem, r.arch),
                         {fmt::format("sm{}", r.arch.cc), r.device, 0},
                         TunedSizes::of(r.problem),
                         mode_name(o->mode)};
  TunedAnswer answer = find_tuned(*r.tuned, query, [&](const TunedRow& row) -> std::string {
    jit::Config parsed;
    if (!parse_cuda_config(row.config, &parsed)) return "its config cannot be read";
    const Config* tuned = std::get_if<Config>(&parsed);
    if (tuned == nullptr) return "its config is of another rung";
    std::string reason = why_untuned(r.problem);
    if (reason.empty()) reason = misfit(r, *tuned);
    if (reason.empty()) reason = cannot_run(r, *tuned);
    if (reason.empty()) reason = workspace_reason(make_plan(r, *tuned), r);
    if (reason.empty()) *config = *tuned;
    return reason;
  });
  if (answer.row != nullptr) o->config_from = answer.from;
  o->passed_over = std::move(answer.passed_over);
}

template <class Config>
void settle(const CudaRequest& r, Config config, Option* o) {
  use_tuned_row(r, &config, o);
  o->config = to_string(config);
  o->cannot = cannot_run(r, config);
  if (!o->cannot.empty()) return;
  o->plan = make_plan(r, config);
  o->workspace = workspace_reason(o->plan, r);
}

Option ladder_option(const CudaRequest& r, attune_mode mode, Rung rung) {
  const LadderConfig config = default_ladder_config(r, rung);
  Option o{mode, to_string(config), "", "", {}};
  if (r.arch.cc < 75)
    o.cannot = old_device(r.arch, 75);
  else
    settle(r, config, &o);
  return o;
}

Option mma_option(const CudaRequest& r) {
  Option o{ATTUNE_MMA, "mma", "", "", {}};
  if (r.arch.cc < 80)
    o.cannot = old_device(r.arch, 80);
  else if (r.problem.dtype == DType::f32 && r.problem.strict_fp32)
    o.cannot = "strict_fp32 keeps fp32 on CUDA cores";
  if (o.cannot.empty()) settle(r, default_mma_config(r), &o);
  return o;
}

Option wgmma_option(const CudaRequest& r) {
  Option o{ATTUNE_WGMMA, "wgmma", "", "", {}};
  if (r.arch.cc != 90)
    o.cannot = "needs compute capability 9.0: its instructions exist there alone";
  else if (r.problem.dtype == DType::f32 && r.problem.strict_fp32)
    o.cannot = "strict_fp32 keeps fp32 on CUDA cores";
  else if (r.problem.dtype == DType::f32 && !r.layout.rows16)
    o.cannot = "TMA needs rows that start at multiples of 16 bytes";
  else if (r.problem.dtype == DType::f32 && !r.layout.forward)
    o.cannot = "TMA needs tensors that neither repeat nor run backwards";
  else if (r.problem.batch_invariant)
    o.cannot = "not batch-invariant";
  if (o.cannot.empty()) settle(r, default_wgmma_config(r), &o);
  return o;
}

// ---- what ships ----

Problem sample(DType dtype, int dim) {
  Problem p;
  p.dtype = dtype;
  p.batch = 16;  // enough tiles for every multiprocessor
  p.heads_q = p.heads_kv = 8;
  p.seq_q = p.seq_k = 1024;
  p.dim = p.dim_v = dim;
  return p;
}

// As if the caller's tensors were contiguous, or a few bytes off.
CudaRequest sample_request(const Problem& p, const Arch& arch, bool aligned) {
  CudaRequest r{p,
                ATTUNE_AUTO,
                arch,
                {false, false, true, element_bytes(p.dtype)},
                std::numeric_limits<size_t>::max(),
                "",
                ""};
  if (!aligned) return r;
  Params contiguous;
  contiguous.mask.stride[3] = 1;
  r.layout = layout_of(p, contiguous);
  return r;
}

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
    {[](Problem* p) { p->dropout = true; }},
    {[](Problem* p) { p->dim_v = 128; }},
    {[](Problem* p) {
      p->heads_kv = 2, p->seq_q = 1;
    }},  // decoding, with query heads that share K and V
    {[](Problem* p) { p->score_mod = true; }, "return score + 0.125f * (i - j);"},
    {[](Problem* p) { p->mask_mod = true; }, "", "return i / 128 == j / 128;"},
};

constexpr Feature kLimits[] = {
    {[](Problem*) {}},
    {[](Problem* p) { p->causal = true; }},
    {[](Problem* p) { p->lse = true; }},
    {[](Problem* p) { p->causal = p->lse = true; }},
    {[](Problem* p) { p->window_left = p->window_right = 128; }},
    {[](Problem* p) { p->causal = p->ragged = true; }},
    {[](Problem* p) { p->ragged = true, p->window_left = p->window_right = 128; }},
    {[](Problem* p) { p->mask = MaskKind::f16; }},
    {[](Problem* p) { p->causal = true, p->mask = MaskKind::f16; }},
    {[](Problem* p) { p->causal = p->dropout = true; }},
    {[](Problem* p) { p->causal = true, p->block_mask_q = p->block_mask_k = 128; }},
};

CudaRequest with_feature(const Feature& feature, DType dtype, const Arch& arch) {
  Problem p = sample(dtype, 64);
  feature.add(&p);
  CudaRequest r = sample_request(p, arch, true);
  r.score_mod = feature.score_mod;
  r.mask_mod = feature.mask_mod;
  return r;
}

// The plans of one arch, each kernel once.
class Shipment {
 public:
  void add_ladder(const CudaRequest& r, Rung rung) {
    const LadderConfig config = default_ladder_config(r, rung);
    if (*invalid_reason(config, r.problem, r.arch) == '\0') add(ladder_plan(r, config));
  }

  void add_mma(const CudaRequest& r) {
    if (r.arch.cc < 80) return;
    const MmaConfig config = default_mma_config(r);
    if (*invalid_reason(config, r.problem, r.arch) == '\0') add(mma_plan(r, config));
  }

  void add_wgmma(const CudaRequest& r) {
    if (r.arch.cc != 90) return;
    const WgmmaConfig config = default_wgmma_config(r);
    if (*invalid_reason(config, r.problem, r.arch) == '\0') add(wgmma_plan(r, config));
  }

  void add_all(const CudaRequest& r) {
    for (Rung rung : {Rung::naive, Rung::tiled, Rung::fused}) add_ladder(r, rung);
    add_mma(r);
    if (r.layout.tma()) add_wgmma(r);
  }

  std::vector<jit::Plan> plans;

 private:
  void add(jit::Plan plan) {
    for (const jit::Plan& other : plans)
      if (other.spec == plan.spec) return;
    plans.push_back(std::move(plan));
  }
};

// Tensors that TMA cannot reach: head dimensions, and how much of a row is copied at once.
constexpr struct {
  int dim, step;
} kCopied[] = {{64, 16}, {128, 16}, {256, 16}, {100, 8}, {34, 4}, {33, 2}, {128, 2}, {256, 2}};

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr int kDims[] = {64, 128, 256, 96, 40};

}  // namespace

jit::Plan plan_of(const CudaRequest& r, const jit::Config& config) {
  return std::visit([&](const auto& c) { return make_plan(r, c); }, config);
}

Layout layout_of(const Problem& p, const Params& a) {
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
  layout.rows16 = layout.step == 16 && near;
  layout.mask16 = p.mask == MaskKind::none || mask_aligned(p, a.mask);
  layout.forward =
      goes_forward(p, a.q, p.heads_q, a.rows_q) && goes_forward(p, a.k, p.heads_kv, a.rows_k) &&
      goes_forward(p, a.v, p.heads_kv, a.rows_k) && goes_forward(p, a.out, p.heads_q, a.rows_q) &&
      goes_forward(a.mask.stride, {p.batch, p.heads_q, p.seq_q}, true);
  return layout;
}

std::string cuda_problem_id(const Problem& problem, const Arch& arch) {
  return problem_id(problem, fmt::format("sm{}", arch.cc));
}

// Where the numbers come from: docs/ladder.md.
LadderConfig default_ladder_config(const CudaRequest& r, Rung rung) {
  const Problem& p = r.problem;
  if (rung != Rung::fused) return {.rung = rung, .block_q = 64, .block_k = 64, .vector = false};
  // Features that bring much code into each of a thread's scores, or registers; and a wide output.
  const bool small = p.softcap || p.dropout || p.block_mask_q != 0 || p.score_mod || p.mask_mod ||
                     p.dim > 128 || p.dim_v > 128 || (p.seq_q <= 32 && !p.batch_invariant);
  constexpr struct { int q, k; } kTiles[] = {{64, 64}, {64, 32}, {32, 64}, {32, 32}, {32, 16}};
  LadderConfig c{.rung = rung, .vector = r.layout.rows16};
  for (const auto& tile : kTiles) {
    if (tile.q > 32 && small) continue;
    c.block_q = tile.q;
    c.block_k = tile.k;
    if (*invalid_reason(c, p, r.arch) == '\0') break;
  }
  return c;
}

jit::Plan ladder_plan(const CudaRequest& r, const LadderConfig& config) {
  jit::Plan plan;
  plan.id = cuda_problem_id(r.problem, r.arch) + "/" + to_string(config);
  plan.spec = {kernel_key(r.problem), config, r.score_mod, r.mask_mod, r.arch};
  for (const Grid& g : grids_of(r.problem, config))
    if (g.blocks > 0)  // no keys: no scores to compute
      plan.launches.push_back({g.entry, uint32_t(g.blocks), uint32_t(block_threads(config)),
                               uint32_t(smem_bytes(config, r.problem))});
  if (config.rung == Rung::tiled) plan.workspace_bytes = score_bytes(r.problem);
  return plan;
}

// Where Hopper's rung reads what lies about in memory element by element, or has too few rows. And
// where it copies tiles element by element. Of fp32 it stages no mask; and with fewer tiles than
// half of the multiprocessors, mma, which can cut the keys into parts, has more of them at work.
bool mma_is_faster(const CudaRequest& r) {
  const Problem& p = r.problem;
  const bool split = p.dtype == DType::f32;
  const bool scattered = p.mask != MaskKind::none && (split || !r.layout.mask16);
  const bool small_cells =
      p.block_mask_q != 0 &&
      (split || std::min(p.block_mask_q, p.block_mask_k) < 16 || features_of(p) > 4);
  // Packed, a few queries fill tiles; where these are few, mma cuts the keys among blocks.
  const int64_t tiles = p.batch * p.heads_kv * ceil_div(p.seq_q * p.group(), 64);
  const bool few_rows = p.seq_q < 64 && !(packs_heads(p) && 2 * tiles >= r.arch.sms);
  const bool few = split && p.batch * p.heads_q * ceil_div(p.seq_q, 64) < r.arch.sms / 2;
  return small_cells || scattered || few_rows || few || (!r.layout.tma() && r.layout.step < 4);
}

Status select_cuda(const CudaRequest& r, CudaChoice* choice) {
  const std::string id = cuda_problem_id(r.problem, r.arch) + "/";
  std::array options = {
      // fastest first, but for what is said above
      wgmma_option(r),
      mma_option(r),
      ladder_option(r, ATTUNE_FUSED, Rung::fused),
      ladder_option(r, ATTUNE_TILED, Rung::tiled),
      ladder_option(r, ATTUNE_NAIVE, Rung::naive),
      Option{ATTUNE_REFERENCE, "reference", "the float64 reference runs on the CPU", "", {}},
  };
  if (mma_is_faster(r)) std::swap(options[0], options[1]);
  Option* chosen = nullptr;
  choice->candidates.clear();
  for (Option& o : options) {
    const bool by_name = r.mode == o.mode;
    if (by_name && !o.cannot.empty())
      return Status::unsupported(
          fmt::format("mode {} cannot run this problem: {}", mode_name(r.mode), o.cannot));
    if (by_name && !o.workspace.empty())
      return Status::invalid(fmt::format("mode {} {}", mode_name(r.mode), o.workspace));
    std::string reason = o.cannot.empty() ? o.workspace : o.cannot;
    if (reason.empty() && (by_name || (r.mode == ATTUNE_AUTO && chosen == nullptr)))
      chosen = &o;
    else if (reason.empty() && r.mode == ATTUNE_AUTO)
      reason = std::string("slower than ") + mode_name(chosen->mode);
    else if (reason.empty())
      reason = std::string("not asked for: mode is ") + mode_name(r.mode);
    choice->candidates.push_back({o.mode, id + o.config, reason, o.config_from, o.passed_over});
  }
  if (chosen == nullptr)
    return Status::unsupported(fmt::format("no rung of mode {} can run this problem on CUDA: {}",
                                           mode_name(r.mode), choice->candidates.front().reason));
  choice->mode = chosen->mode;
  choice->plan = std::move(chosen->plan);
  return {};
}

std::vector<jit::Plan> shipped_plans(const Arch& arch, bool quick) {
  Shipment shipment;
  shipment.add_all(sample_request(sample(DType::f32, 64), arch, true));
  shipment.add_mma(sample_request(sample(DType::bf16, 64), arch, true));
  shipment.add_wgmma(sample_request(sample(DType::bf16, 64), arch, true));
  if (quick) return std::move(shipment.plans);
  for (DType dtype : kTypes)
    for (int dim : kDims)
      for (bool causal : {false, true})
        for (bool aligned : {true, false}) {
          Problem p = sample(dtype, dim);
          p.causal = causal;
          shipment.add_all(sample_request(p, arch, aligned));
        }
  // Each feature once a rung; the tensor cores have one kernel for fp32, and another for the rest.
  for (const Feature& feature : kFeatures) {
    shipment.add_all(with_feature(feature, DType::bf16, arch));
    shipment.add_mma(with_feature(feature, DType::f32, arch));
    shipment.add_wgmma(with_feature(feature, DType::f32, arch));
  }
  // Hopper's rung has its own config for short rows, and other limits cost it other registers.
  for (int dim : {64, 96, 128, 192, 256})
    for (int seq : {512, 2048})
      for (const Feature& limit : kLimits) {
        Problem p = sample(DType::f16, dim);
        p.seq_q = p.seq_k = seq;
        limit.add(&p);
        shipment.add_wgmma(sample_request(p, arch, true));
        p.dtype = DType::f32;
        shipment.add_wgmma(sample_request(p, arch, true));
      }
  for (const auto& copied : kCopied)
    for (const Feature& limit : kLimits) {
      if (copied.dim != 128 && &limit - kLimits > 1) continue;
      Problem p = sample(DType::bf16, copied.dim);
      limit.add(&p);
      CudaRequest r = sample_request(p, arch, false);
      r.layout.step = copied.step;
      shipment.add_wgmma(r);
    }
  // Few tiles, and decoding.
  for (DType dtype : {DType::bf16, DType::f32})
    for (int dim : {64, 128, 256}) {
      Problem few = sample(dtype, dim);
      few.batch = 1;
      shipment.add_mma(sample_request(few, arch, true));
      shipment.add_wgmma(sample_request(few, arch, true));
      few.heads_kv = 2;
      few.seq_q = 1;
      few.seq_k = 8192;
      shipment.add_mma(sample_request(few, arch, true));
    }
  return std::move(shipment.plans);
}

}  // namespace attune
