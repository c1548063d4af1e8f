#include "src/select/cuda_select.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/select/tuned.hpp"

namespace attune {
namespace {

std::string workspace_reason(const Plan& plan, const CudaRequest& r) {
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
  Plan plan;
  std::string config_from = "";
  std::vector<std::string> passed_over = {};
};

// The tuned row of the rung, if there is one; its config replaces *config.
void use_tuned_row(const CudaRequest& r, Config* config, Option* o) {
  o->config_from = "default";
  if (r.tuned == nullptr || r.tuned->silent()) return;
  const Rung& rung = *config->rung;
  const std::string machine = fmt::format("sm{}", r.arch.cc);
  TunedQuery query = tuned_query(r.problem, machine);
  query.machine.arch = machine;
  query.machine.device = r.device;
  query.rung = rung.name;
  TunedAnswer answer = find_tuned(*r.tuned, query, [&](const TunedRow& row) -> std::string {
    Config tuned;
    if (!parse_config(row.config, &tuned, rung.pass)) return "its config cannot be read";
    if (tuned.rung != &rung) return "its config is of another rung";
    std::string reason = why_untuned(r.problem);
    if (reason.empty()) reason = rung.misfit(r, tuned);
    if (reason.empty()) reason = rung.cannot_run(r, tuned);
    if (reason.empty()) reason = workspace_reason(rung.plan(r, tuned), r);
    if (reason.empty()) *config = tuned;
    return reason;
  });
  if (answer.row != nullptr) o->config_from = answer.from;
  o->passed_over = std::move(answer.passed_over);
}

Option option_of(const CudaRequest& r, const Rung& rung) {
  Option o{rung.mode, rung.name, rung.refusal(r), "", {}};
  if (!o.cannot.empty()) return o;
  Config config = rung.standard(r);
  use_tuned_row(r, &config, &o);
  o.config = to_string(config);
  o.cannot = rung.cannot_run(r, config);
  if (!o.cannot.empty()) return o;
  o.plan = rung.plan(r, config);
  o.workspace = workspace_reason(o.plan, r);
  return o;
}

// All rungs, fastest first, and the reference.
std::vector<Option> options_of(const CudaRequest& r) {
  const std::span<const Rung* const> all = rungs(r.problem.pass);
  std::vector<const Rung*> order(all.begin(), all.end());
  std::sort(order.begin(), order.end(),
            [&](const Rung* a, const Rung* b) { return a->rank(r) > b->rank(r); });
  std::vector<Option> options;
  options.reserve(order.size() + 1);
  for (const Rung* rung : order) options.push_back(option_of(r, *rung));
  options.push_back(
      {ATTUNE_REFERENCE, "reference", "the float64 reference runs on the CPU", "", {}});
  return options;
}

}  // namespace

Status select_cuda(const CudaRequest& r, CudaChoice* choice) {
  const std::string id = cuda_problem_id(r.problem, r.arch) + "/";
  std::vector<Option> options = options_of(r);
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
  if (chosen == nullptr && r.problem.pass == Pass::backward && r.mode != ATTUNE_AUTO)
    return Status::unsupported(
        fmt::format("no backward pass of mode {} on CUDA", mode_name(r.mode)));
  if (chosen == nullptr) {
    const auto lacks = std::find_if(options.begin(), options.end(), [](const Option& o) {
      return o.cannot.empty() && !o.workspace.empty();
    });
    const bool could = r.mode == ATTUNE_AUTO && lacks != options.end();
    const std::string why = could ? lacks->workspace : choice->candidates.front().reason;
    return {
        could ? ATTUNE_INVALID_ARGUMENT : ATTUNE_UNSUPPORTED,
        fmt::format("no rung of mode {} can run this problem on CUDA: {}", mode_name(r.mode), why)};
  }
  choice->mode = chosen->mode;
  choice->plan = std::move(chosen->plan);
  return {};
}

}  // namespace attune
