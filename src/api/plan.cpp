#include "src/api/plan.hpp"

#include <array>
#include <string_view>

#include "src/api/report.hpp"
#include "src/api/tensor_check.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/fused_backward.hpp"
#include "src/cpu/reference.hpp"
#include "src/jit/forward.hpp"
#include "src/per_thread.hpp"
#include "src/problem.hpp"
#include "src/select/tuned.hpp"

namespace attune {
namespace {

// ---- CUDA ----

Status enter(const Call& call, cuda::Scope* scope) {
  if (!cuda::why_unusable().empty())
    return Status::unsupported("device is ATTUNE_CUDA, but " + cuda::why_unusable());
  // Of a backward pass, q may have no element where others do.
  const void* some = call.params.q.data;
  if (some == nullptr && call.place_count > 0) some = call.places[0].address;
  return scope->enter(call.stream, some);
}

Status check_places(const Call& call, const cuda::Scope& scope) {
  for (int i = 0; i < call.place_count; ++i) {
    const Place& place = call.places[size_t(i)];
    const std::string reason = cuda::why_not_here(place.address, scope);
    if (!reason.empty()) return Status::invalid(text(place.name, " ", reason));
  }
  return {};
}

Wanted wanted_of(const Call& call) {
  if (call.problem.pass == Pass::forward) return {};
  const int64_t* n = call.grads.dmask_shape;
  const Asked& asked = call.asked;
  return {call.results_given, asked.dq, asked.dk, asked.dv, asked.dsinks, {n[0], n[1], n[2], n[3]}};
}

CudaRequest request_of(const Call& call, size_t workspace_bytes, const cuda::Device& device) {
  return {{call.problem, device.arch, layout_of(call.problem, call.params, call.grads),
           workspace_bytes, call.score_mod != nullptr ? call.score_mod : "",
           call.mask_mod != nullptr ? call.mask_mod : "", wanted_of(call)},
          call.mode,
          device.name,
          tuned_table()};
}

// The plans of this thread's last calls. Selection is a pure function, but it writes down every
// reason in words; the layers of a model ask it the same question again and again.
class Plans {
 public:
  Status find(const Call& call, size_t workspace_bytes, const cuda::Device& device,
              std::shared_ptr<const Plan>* plan) {
    const Layout layout = layout_of(call.problem, call.params, call.grads);
    for (const Entry& entry : entries_)
      if (entry.plan != nullptr && answers(entry.request, call, workspace_bytes, device, layout)) {
        *plan = entry.plan;
        return {};
      }
    CudaRequest request = request_of(call, workspace_bytes, device);
    CudaChoice choice;
    ATTUNE_TRY(select_cuda(request, &choice));
    *plan = std::make_shared<const Plan>(std::move(choice.plan));
    Entry& slot = entries_[next_++ % entries_.size()];
    slot.request = std::move(request);
    slot.plan = *plan;
    return {};
  }

 private:
  struct Entry {
    CudaRequest request;
    std::shared_ptr<const Plan> plan;  // null: none yet
  };

  static std::string_view view(const char* code) { return code != nullptr ? code : ""; }

  static bool answers(const CudaRequest& r, const Call& call, size_t workspace_bytes,
                      const cuda::Device& device, const Layout& layout) {
    return r.workspace_bytes == workspace_bytes && r.mode == call.mode && r.layout == layout &&
           r.problem == call.problem && r.arch == device.arch && r.device == device.name &&
           r.tuned == tuned_table() && r.score_mod == view(call.score_mod) &&
           r.mask_mod == view(call.mask_mod) && r.wanted == wanted_of(call);
  }

  std::array<Entry, 16> entries_;
  size_t next_ = 0;
};

const PerThread<Plans> g_plans;

Status find_plan(const Call& call, size_t workspace_bytes, const cuda::Scope& scope,
                 std::shared_ptr<const Plan>* plan) {
  Plans* plans = g_plans.get();
  if (plans == nullptr) return {ATTUNE_OUT_OF_MEMORY, "out of memory"};
  return plans->find(call, workspace_bytes, scope.device(), plan);
}

// A plan may have been made for another device than the one that the tensors lie on.
Status check_device(const Plan& plan, const cuda::Scope& scope) {
  const Arch &wanted = plan.units.front().arch, &here = scope.device().arch;
  if (wanted == here) return {};
  return Status::invalid(text("the plan is for a device of compute capability ", wanted.cc / 10,
                              ".", wanted.cc % 10, " with ", wanted.sms,
                              " multiprocessors; this call runs on ", scope.device().name));
}

Status enqueue(const Plan& plan, const Call& call, const cuda::Scope& scope) {
  if (call.problem.pass == Pass::backward)
    return jit::backward(plan, call.problem, call.params, call.grads, scope);
  return jit::forward(plan, call.problem, call.params, scope);
}

Status run_on_cuda(const PlannedCall& planned) {
  cuda::Scope scope;
  ATTUNE_TRY(enter(planned.call, &scope));
  ATTUNE_TRY(check_places(planned.call, scope));
  ATTUNE_TRY(check_device(*planned.cuda, scope));
  return enqueue(*planned.cuda, planned.call, scope);
}

Status choose_and_run_on_cuda(const Call& call) {
  cuda::Scope scope;
  ATTUNE_TRY(enter(call, &scope));
  ATTUNE_TRY(check_places(call, scope));
  std::shared_ptr<const Plan> plan;
  ATTUNE_TRY(find_plan(call, call.workspace_bytes, scope, &plan));
  return enqueue(*plan, call, scope);
}

// ---- CPU ----

Status run_on_cpu(const PlannedCall& planned) {
  const Call& call = planned.call;
  const cpu::ExactScalars scalars{call.scale_f64, call.softcap_f64};
  // Also when out is empty: dk and dv may not be, and are then 0.
  if (call.problem.pass == Pass::backward) {
    if (planned.cpu.mode == ATTUNE_FUSED)
      return cpu::fused_backward(*planned.cpu.isa, call.problem, call.params, call.grads,
                                 planned.cpu.config, call.executor);
    cpu::reference_backward(call.problem, call.params, call.grads, call.executor, scalars);
    return {};
  }
  switch (planned.cpu.mode) {
    case ATTUNE_REFERENCE:
      cpu::reference_forward(call.problem, call.params, call.executor, scalars);
      return {};
    case ATTUNE_NAIVE:
      cpu::naive_forward(call.problem, call.params, call.executor);
      return {};
    case ATTUNE_FUSED:
      return cpu::fused_forward(*planned.cpu.isa, call.problem, call.params, planned.cpu.config,
                                call.executor);
    default:
      return {ATTUNE_INTERNAL, text("selection chose mode ", int(planned.cpu.mode))};
  }
}

// The CPU reads cu_seqlens and key_lengths, and what follows from them is part of its problem.
bool lengths_are_read(const Call& call) {
  return call.device == ATTUNE_CPU && call.problem.keys_vary();
}
bool follows_from_lengths(const ProblemField& f) {
  for (const char* name : {"seq_q", "seq_k", "alignment", "window_left", "window_right"})
    if (std::string_view(f.name) == name) return true;
  return false;
}

// Why other arguments are not those of the plan; empty: the plan can run them.
std::string why_other_call(const Call& own, const Call& call) {
  const auto differs = [](const char* name, const auto& theirs, const auto& ours) {
    return text(name, " is ", theirs, " here; the plan was made for ", ours);
  };
  if (call.device != own.device) return differs("device", int(call.device), int(own.device));
  if (call.mode != own.mode) return differs("mode", mode_name(call.mode), mode_name(own.mode));
  for (const ProblemField& f : problem_fields())
    if (f.get(call.problem) != f.get(own.problem) &&
        !(lengths_are_read(own) && follows_from_lengths(f)))
      return differs(f.name, f.get(call.problem), f.get(own.problem));
  const auto code = [](const char* body) { return std::string_view(body != nullptr ? body : ""); };
  if (code(call.score_mod) != code(own.score_mod)) return "score_mod is not the plan's";
  if (code(call.mask_mod) != code(own.mask_mod)) return "mask_mod is not the plan's";
  if (own.device == ATTUNE_CPU && call.executor.threads != own.executor.threads)
    return differs("threads", call.executor.threads, own.executor.threads);
  if (own.device == ATTUNE_CUDA &&
      !(layout_of(call.problem, call.params) == layout_of(own.problem, own.params)))
    return "the tensors lie otherwise in memory (strides, addresses) than those of the plan";
  return "";
}

bool nothing_to_do(const Call& call) { return call.empty && call.problem.pass == Pass::forward; }

}  // namespace

Status choose_on_cuda(const Call& call, size_t workspace_bytes, cuda::Scope* scope,
                      CudaChoice* choice) {
  ATTUNE_TRY(enter(call, scope));
  return select_cuda(request_of(call, workspace_bytes, scope->device()), choice);
}

Status choose_kernel(size_t workspace_bytes, PlannedCall* planned) {
  const Call& call = planned->call;
  if (nothing_to_do(call)) return {};
  if (call.device == ATTUNE_CUDA) {
    cuda::Scope scope;
    ATTUNE_TRY(enter(call, &scope));
    return find_plan(call, workspace_bytes, scope, &planned->cuda);
  }
  if (call.problem.pass == Pass::backward) {
    Choice choice;
    ATTUNE_TRY(select_backward(call.problem, call.results_given, call.mode, &choice));
    planned->cpu = choice;
    return {};
  }
  return select_quickly(call.problem, call.mode, call.executor.threads, &planned->cpu);
}

Status run(const PlannedCall& planned) {
  if (nothing_to_do(planned.call)) return {};
  return planned.cuda != nullptr ? run_on_cuda(planned) : run_on_cpu(planned);
}

Status choose_and_run(PlannedCall* planned) {
  const Call& call = planned->call;
  if (call.device == ATTUNE_CUDA && !nothing_to_do(call)) return choose_and_run_on_cuda(call);
  ATTUNE_TRY(choose_kernel(call.workspace_bytes, planned));
  return run(*planned);
}

Status prepare(const PlannedCall& planned) {
  if (planned.cuda == nullptr) return {};  // the CPU's kernels are there already
  cuda::Scope scope;
  ATTUNE_TRY(enter(planned.call, &scope));
  ATTUNE_TRY(check_device(*planned.cuda, scope));
  return jit::prepare(*planned.cuda, scope);
}

Status take_other_call(const Call& call, PlannedCall* planned) {
  const std::string why = why_other_call(planned->call, call);
  if (!why.empty()) return Status::invalid("args: " + why);
  planned->call = call;
  return lengths_are_read(call) ? choose_kernel(0, planned) : Status{};
}

}  // namespace attune
