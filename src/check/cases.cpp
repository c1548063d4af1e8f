#include "src/check/cases.hpp"

#include <fmt/format.h>

#include <functional>

#include "src/check/data.hpp"
#include "src/check/judge.hpp"
#include "src/cpu/fused.hpp"

namespace attune::check {
namespace {

Verdict judge(const Data& data, const cpu::Executor& executor,
              const std::function<Status()>& candidate) {
  const std::vector<uint64_t> hashes = hashes_of_inputs(data);
  const Status status = candidate();
  Verdict failed;
  failed.status = status.code;
  failed.why = status.ok() ? damage(data, hashes)
                           : fmt::format("{}: {}", attune_status_name(status.code), status.message);
  if (!failed.why.empty()) return failed;
  return compare(data, expect(data, executor));
}

const char* fill_name(Fill fill) {
  switch (fill) {
    case Fill::normal:
      return "";
    case Fill::huge_logits:
      return ".huge";
    case Fill::vast_logits:
      return ".vast";
    case Fill::tiny:
      return ".tiny";
    case Fill::one_hot_v:
      return ".onehot";
    case Fill::peaked:
      return ".peaked";
    case Fill::nan_in_masked:
      return ".nanmasked";
    case Fill::nan_key:
      return ".nankey";
  }
  return "";
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case ATTUNE_F16:
      return "f16";
    case ATTUNE_BF16:
      return "bf16";
    case ATTUNE_BOOL:
      return "bool";
    default:
      return "f32";
  }
}

}  // namespace

std::string Case::name() const {
  const Problem& p = problem;
  std::string s = fmt::format("{}.b{}.h{}", dtype_name(int32_t(p.dtype)), p.batch, p.heads_q);
  if (p.heads_kv != p.heads_q) s += fmt::format("kv{}", p.heads_kv);
  s += fmt::format(".q{}.k{}.d{}", p.seq_q, p.seq_k, p.dim);
  if (p.dim_v != p.dim) s += fmt::format("v{}", p.dim_v);
  const bool diagonal =
      p.causal || p.alibi || p.window_left != kNoLimit || p.window_right != kNoLimit;
  if (p.causal) s += ".causal";
  if (p.window_left != kNoLimit || p.window_right != kNoLimit)
    s += fmt::format(".win{},{}", p.window_left, p.window_right);
  if (p.alibi) s += ".alibi";
  if (diagonal && p.alignment == Alignment::bottom_right) s += ".br";
  if (p.mask != MaskKind::none)
    s += fmt::format(".mask_{}{}", dtype_name(as_dtype(p.mask)), infinite_mask ? "_inf" : "");
  if (p.block_mask_q != 0) s += fmt::format(".block{}x{}", p.block_mask_q, p.block_mask_k);
  if (mask_broadcast != 0) s += fmt::format(".bc{:x}", mask_broadcast);
  if (p.softcap) s += fmt::format(".cap{:g}", softcap);
  if (p.sinks) s += ".sinks";
  if (p.ragged) s += ".ragged";
  if (p.key_lengths) s += ".lengths";
  if (p.dropout) s += fmt::format(".drop{:g}", dropout_p);
  if (scale != 0) s += fmt::format(".scale{:g}", scale);
  if (p.lse) s += ".lse";
  if (p.batch_invariant) s += ".inv";
  if (strided) s += ".strided";
  if (backwards) s += ".backwards";
  if (repeated) s += ".repeated";
  return s + fill_name(fill) + fmt::format(".s{}", seed);
}

Verdict run_case(const Case& c, const cpu::Executor& executor, Forward forward, const void* user) {
  const Data data(c);
  return judge(data, executor, [&] { return forward(c.problem, data.params(), executor, user); });
}

Verdict run_case_api(const Case& c, int threads, attune_mode mode) {
  const Data data(c);
  attune_args args = data.args();
  args.mode = mode;
  args.threads = threads;
  cpu::Executor executor;
  executor.threads = threads > 0 ? threads : cpu::usable_threads();
  return judge(data, executor, [&] {
    const attune_status code = attune_forward(&args);
    return Status{code, code == ATTUNE_OK ? "" : attune_last_error()};
  });
}

Verdict run_case_config(const Case& c, const cpu::Executor& executor,
                        const cpu::CpuConfig& config) {
  const std::string reason = invalid_reason(config, c.problem, cpu::arch());
  if (!reason.empty()) {
    Verdict verdict;
    verdict.why = "the config cannot run here: " + reason;
    return verdict;
  }
  const Forward forward = [](const Problem& problem, const Params& params,
                             const cpu::Executor& threads, const void* user) {
    return cpu::fused_forward(problem, params, *static_cast<const cpu::CpuConfig*>(user), threads);
  };
  return run_case(c, executor, forward, &config);
}

}  // namespace attune::check
