#include "src/select/select.hpp"

#include <algorithm>
#include <span>

#include "src/cpu/fused.hpp"
#include "src/cpu/fused_task.hpp"
#include "src/per_thread.hpp"
#include "src/rungs/rung.hpp"
#include "src/select/tuned.hpp"

namespace attune {
namespace {

// The tuned row for the fused rung, if there is one; its config goes into *choice.
TunedAnswer tuned_cpu_config(const Problem& p, int threads, CpuChoice* choice) {
  const TunedTable* table = tuned_table();
  if (table == nullptr || table->silent()) return {};
  TunedQuery query = tuned_query(p, "cpu");
  query.machine = {cpu::isa_name(), table->processor, threads};
  return find_tuned(*table, query, [&](const TunedRow& row) -> std::string {
    const auto tuned = cpu::parse_isa_config(row.config);
    if (!tuned) return "its config cannot be read";
    std::string reason = why_untuned(p);
    const cpu::IsaTable* isa = tuned->isa.empty() ? choice->isa : cpu::isa_table(tuned->isa);
    if (isa == nullptr) return tuned->isa + " does not run here";
    if (reason.empty()) reason = cpu::invalid_reason(tuned->config, p, isa->arch);
    if (!reason.empty()) return reason;
    choice->config = tuned->config;
    choice->isa = isa;
    return "";
  });
}

// A thread's last selection, and all that it depends on. Tables are never freed, so another one has
// another address.
struct Answer {
  Problem problem;
  attune_mode mode = ATTUNE_AUTO;
  int threads = 0;
  const TunedTable* table = nullptr;
  const cpu::IsaTable* isa = nullptr;  // null: no answer yet

  CpuChoice choice;
};
const PerThread<Answer> g_last_answer;

struct Step {
  attune_mode mode;
  std::string config;
  std::string cannot;  // empty: it can run
  const char* slower;  // why an automatic call passes it over
};

constexpr const char* kReferenceIsSlow = "the float64 oracle: orders of magnitude slower";

std::string why_not_f64(const Problem& p) {
  return p.dtype == DType::f64 ? "computes in float32: float64 is the reference's alone" : "";
}

// The first rung that can run, or the one that was asked for.
Status take_first(std::span<const Step> rungs, const Problem& problem, attune_mode mode,
                  Choice* choice) {
  const Step* chosen = nullptr;
  for (const Step& rung : rungs) {
    const bool wanted = mode == ATTUNE_AUTO ? chosen == nullptr : mode == rung.mode;
    if (wanted && !rung.cannot.empty() && mode != ATTUNE_AUTO) {
      return Status::unsupported(std::string("mode ") + mode_name(mode) +
                                 " cannot run this problem: " + rung.cannot);
    }
    std::string reason = rung.cannot;
    if (wanted && reason.empty()) {
      chosen = &rung;
    } else if (reason.empty()) {
      reason = mode == ATTUNE_AUTO ? rung.slower
                                   : std::string("not asked for: mode is ") + mode_name(mode);
    }
    choice->candidates.push_back({rung.mode, problem_id(problem) + "/" + rung.config, reason});
  }
  if (chosen == nullptr)
    return Status::unsupported(std::string("no ") +
                               (problem.pass == Pass::backward ? "backward pass" : "rung") +
                               " of mode " + mode_name(mode) + " on the CPU");
  choice->mode = chosen->mode;
  return {};
}

}  // namespace

const char* mode_name(attune_mode mode) {
  if (mode == ATTUNE_AUTO) return "auto";
  if (mode == ATTUNE_REFERENCE) return "reference";
  const Rung* rung = rung_of(mode);
  return rung != nullptr ? rung->name : "unknown";
}

attune_mode last_mode() {
  attune_mode last = ATTUNE_REFERENCE;
  for (const Rung* rung : rungs()) last = std::max(last, rung->mode);
  return last;
}

// Where the numbers come from: docs/notes/2026-11-15-cpu-kernel.md.
cpu::CpuConfig default_cpu_config(const Problem& p, const cpu::CpuArch& arch, int threads) {
  cpu::CpuConfig c;
  c.mr = 6;
  c.nv = arch.registers == 32 ? 4 : 2;
  c.block_k = p.dim + p.dim_v > 256 ? 128 : 256;
  c.block_q = 384;
  // Enough tasks that threads end together, but not below the size where packing K begins to show.
  const auto tasks = [&] { return p.batch * p.heads_q * ((p.seq_q + c.block_q - 1) / c.block_q); };
  while (c.block_q > 96 && tasks() < int64_t{12} * threads) c.block_q /= 2;
  // Decoding: reading 16-bit K and V in place saves their conversion into panels, and pays for up
  // to four rows where a row of a head is at least four vectors, and vectors are long.
  if (p.dtype != DType::f32 && arch.lanes >= 8 && std::min(p.dim, p.dim_v) >= 4 * arch.lanes)
    c.dot_rows = 4;
  return c;
}

// Another config gives other bits, and which row is nearest depends on the batch.
std::string why_untuned(const Problem& p) {
  return p.batch_invariant ? "batch_invariant: which row is nearest depends on the batch" : "";
}

// Where the numbers come from: docs/notes/2026-11-19-cpu-backward.md.
cpu::CpuConfig default_backward_config(const Problem& p, const cpu::CpuArch& arch) {
  cpu::CpuConfig c;
  c.mr = 6;
  c.nv = arch.registers == 32 ? 4 : 2;
  c.block_k = p.dim + p.dim_v > 256 ? 128 : 256;
  c.block_q = 96;
  return c;
}

Status select(const Problem& problem, attune_mode mode, int threads, Choice* choice) {
  const cpu::IsaTable* usual = cpu::isa_table();
  choice->isa = usual;
  choice->config = default_cpu_config(problem, usual->arch, threads);
  TunedAnswer tuned = tuned_cpu_config(problem, threads, choice);
  const std::string isa = choice->isa == usual ? "" : cpu::isa_name(choice->isa);
  const std::string f64 = why_not_f64(problem);
  const Step rungs[] = {
      // fastest first
      {ATTUNE_FUSED, to_string(cpu::IsaConfig{isa, choice->config}),
       f64.empty() ? cpu::invalid_reason(choice->config, problem, choice->isa->arch) : f64, ""},
      {ATTUNE_NAIVE, "naive", f64, "slower than fused, and no more accurate"},
      {ATTUNE_REFERENCE, "reference", "", kReferenceIsSlow},
  };
  if (Status status = take_first(rungs, problem, mode, choice); !status.ok()) return status;
  Candidate& fused = choice->candidates.front();
  fused.config_from = tuned.row != nullptr ? tuned.from : "default";
  fused.passed_over = std::move(tuned.passed_over);
  return {};
}

Status select_backward(const Problem& problem, bool results_given, attune_mode mode,
                       Choice* choice) {
  choice->isa = cpu::isa_table();
  choice->config = default_backward_config(problem, choice->isa->arch);
  std::string cannot = why_not_f64(problem);
  if (cannot.empty()) cannot = cpu::invalid_reason(choice->config, problem, choice->isa->arch);
  if (cannot.empty() && !results_given)
    cannot = "reads the forward pass's results, but out and lse are not both given";
  const Step rungs[] = {
      {ATTUNE_FUSED, to_string(choice->config), cannot, ""},
      {ATTUNE_REFERENCE, "reference", "", kReferenceIsSlow},
  };
  if (Status status = take_first(rungs, problem, mode, choice); !status.ok()) return status;
  choice->candidates.front().config_from = "default";
  return {};
}

Status select_quickly(const Problem& problem, attune_mode mode, int threads, CpuChoice* choice) {
  Answer* last = g_last_answer.get();
  const TunedTable* table = tuned_table();
  const cpu::IsaTable* isa = cpu::isa_table();
  if (last == nullptr || last->isa != isa || last->table != table || last->mode != mode ||
      last->threads != threads || !(last->problem == problem)) {
    Choice chosen;
    if (Status status = select(problem, mode, threads, &chosen); !status.ok()) return status;
    *choice = chosen;
    if (last != nullptr) *last = {problem, mode, threads, table, isa, *choice};
    return {};
  }
  *choice = last->choice;
  return {};
}

}  // namespace attune
