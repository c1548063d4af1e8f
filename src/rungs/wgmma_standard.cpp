// What Hopper's rung computes a call with where no tuned row says otherwise: the first row of the
// tables that is for the call, and what follows from the row and the call together.
#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include "src/rungs/registry.hpp"
#include "src/rungs/samples.hpp"
#include "src/rungs/wgmma_defaults.hpp"

namespace attune {
namespace {

using C = WgmmaChoice;
using Default = DefaultRow<C>;

// Registers of a producer that looks for the tiles that a block mask leaves.
constexpr int kSearching = 56;

bool sums_by_tensor_cores(const Problem& p) {
  return !p.lse && !p.dropout && p.dim_v % kPanel == 0 && std::max(p.dim, p.dim_v) <= 128;
}

// Where TMA cannot reach: a producer that copies needs registers of the consumers'.
C copied(C c, const Request& r) {
  const int wide = std::max(r.problem.dim, r.problem.dim_v);
  c.copy = r.layout.step;
  if (c.maxima == RowMaxima::first) c.maxima = RowMaxima::lazy;
  c.producer_registers = kCopyRegisters;
  const bool by_row =
      r.problem.window() || r.problem.keys_vary();  // limits, which take registers too
  c.warpgroups = std::min(c.warpgroups, wide > 64 && by_row ? 2 : 3);
  if (wide > 192) c.block_k = std::min(c.block_k, r.problem.window() ? 48 : 64);
  if (wide > 128 && r.problem.dropout) c.block_k = std::min(c.block_k, 32);
  return c;
}

// A row, and the table that has it; no row: none is for the call.
struct Place {
  WgmmaCalls calls;
  const Default* row;
};

// Counted through all tables.
int number_of(const Place& place) {
  const size_t table = size_t(place.calls);
  size_t before = 0;
  for (size_t n = 0; n < table; ++n) before += wgmma_defaults()[n].rows.size();
  return int(before) + int(place.row - wgmma_defaults()[table].rows.data());
}

Place first_in(WgmmaCalls calls, const Request& r) {
  const bool tensor_sums = sums_by_tensor_cores(r.problem);
  for (const Default& row : wgmma_defaults()[size_t(calls)].rows)
    if (is_for(row.when, r.problem, r.arch, tensor_sums)) return {calls, &row};
  return {calls, nullptr};
}

Place usual_place(const Request& r) {
  const Problem& p = r.problem;
  const int features = features_of(p);
  if (p.dtype == DType::f32)
    return first_in(features == 0 ? WgmmaCalls::fp32_plain : WgmmaCalls::fp32_by_element, r);
  if (wgmma_packs_heads(p) && r.layout.tma()) return first_in(WgmmaCalls::packed_heads, r);
  if (p.block_mask_q != 0 && features == 4) return first_in(WgmmaCalls::block_mask, r);
  if (features == 0) {
    const Place few = first_in(WgmmaCalls::few_tiles, r);
    return few.row != nullptr ? few : first_in(WgmmaCalls::plain, r);
  }
  const bool only_mask = p.mask != MaskKind::none && features == 1;
  if (only_mask && r.layout.mask16 && r.layout.tma()) return first_in(WgmmaCalls::mask, r);
  return first_in(WgmmaCalls::by_element, r);
}

// What a row leaves open of a call in 16 bits, before it is known whether its tiles fit.
C fitted(const Default& row, const Request& r) {
  const Problem& p = r.problem;
  C c = row.config;
  // Lengths that are found out row by row take registers.
  if (p.ragged && features_of(p) == 0) c.warpgroups = std::min(c.warpgroups, 3);
  if (c.sums == RowSums::tensor && !sums_by_tensor_cores(p)) c.sums = RowSums::fp32;
  return r.layout.tma() ? c : copied(c, r);
}

Place place_of(const Request& r) {
  const Place usual = usual_place(r);
  const bool fits = r.problem.dtype == DType::f32 ||
                    *invalid_reason(fitted(*usual.row, r), r.problem, r.arch) == '\0';
  return fits ? usual : first_in(WgmmaCalls::by_element, r);
}

C config_at(const Default& row, const Request& r) {
  const Problem& p = r.problem;
  if (p.dtype == DType::f32) {
    C c = row.config;
    if (p.block_mask_q != 0) c.producer_registers = kSearching;
    return c;
  }
  const int wide = std::max(p.dim, p.dim_v);
  C c = fitted(row, r);
  // Registers come in eights: 40 cost two consumers no more than 32 do. 24 are too few for masks.
  if (r.layout.tma() && c.warpgroups == 2)
    c.producer_registers = wide > 192 && features_of(p) == 0 ? 24 : 40;
  if (c.schedule == kDynamic && r.workspace_bytes < 256) c.schedule = kPersistent;
  if (p.block_mask_q != 0) c.producer_registers = kSearching;
  if (c.keeps_maxima() && c.sums == RowSums::fp32 && !p.lse && !p.dropout)
    c.sums = RowSums::rounded;
  return c;
}

// ---- a call for each row ----

using Change = void (*)(Problem*);
constexpr Change kLimited[] = {
    [](Problem*) {},
    [](Problem* p) { p->causal = true; },
    [](Problem* p) { p->window_left = p->window_right = 128; },
    [](Problem* p) { p->causal = true, p->window_left = 128; },
};
// The plain one first: of the calls that run one config of a row, the first is kept.
constexpr Change kWith[] = {
    [](Problem*) {},
    [](Problem* p) { p->ragged = true; },
    [](Problem* p) { p->key_lengths = true; },
    [](Problem* p) { p->mask = MaskKind::f16; },
    [](Problem* p) { p->mask = MaskKind::f32; },
    [](Problem* p) { p->mask = MaskKind::boolean; },
    [](Problem* p) { p->block_mask_q = p->block_mask_k = 128; },
    [](Problem* p) { p->softcap = true; },
    [](Problem* p) { p->softcap = true, p->block_mask_q = p->block_mask_k = 128; },
    [](Problem* p) { p->dropout = true; },
    [](Problem* p) { p->dropout = true, p->block_mask_q = p->block_mask_k = 128; },
    [](Problem* p) { p->heads_q = 32, p->seq_q = 16; },  // packed heads
};

// Those whose sizes and features the tables tell apart.
void each_problem(const std::function<void(const Problem&)>& visit) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32})
    for (const int dim : {64, 96, 128, 192, 256, 40, 104})  // no sums by tensor cores in the last
      for (const Change with : kWith)
        for (const Change limited : kLimited)
          for (const int64_t keys : {2048, 512, 8192})
            for (const int64_t batch : {64, 2, 4, 8})  // tiles enough, or few
              for (const bool lse : {false, true}) {
                Problem p = sample_problem(dtype, dim);
                if (dtype == DType::f32) p.dim_v = std::min(dim, 128);
                p.batch = batch;
                p.seq_q = p.seq_k = keys;
                p.lse = lse;
                limited(&p);
                with(&p);
                visit(p);
              }
}

}  // namespace

// Few queries, of heads that share keys: together they fill a tile.
bool wgmma_packs_heads(const Problem& p) {
  return p.dtype != DType::f32 && p.group() > 1 && 64 % p.group() == 0 && p.seq_q < 64 &&
         p.seq_q * p.group() >= 32 && features_of(p) == 0;
}

C wgmma_standard(const Request& r) { return config_at(*place_of(r).row, r); }

std::vector<DefaultCall> wgmma_default_calls(const Arch& arch) {
  std::vector<DefaultCall> calls;
  std::set<std::tuple<const Default*, DType, bool, decltype(Config::values)>> seen;
  each_problem([&](const Problem& p) {
    const Request r = sample_request(p, arch, true);
    const Place place = place_of(r);
    if (*invalid_reason(config_at(*place.row, r), p, arch) != '\0') return;
    const Config config = wgmma_rung().standard(r);
    if (!seen.insert({place.row, p.dtype, p.lse, config.values}).second) return;
    calls.push_back({number_of(place), wgmma_defaults()[size_t(place.calls)].name,
                     to_string(place.row->when), place.row->source, r});
  });
  return calls;
}

}  // namespace attune
