#include "src/api/cuda_call.hpp"

#include <array>
#include <optional>
#include <string_view>

#include "src/api/tensor_check.hpp"
#include "src/jit/forward.hpp"
#include "src/per_thread.hpp"
#include "src/select/tuned.hpp"

namespace attune {
namespace {

Status enter(const Call& call, cuda::Scope* scope) {
  if (!cuda::why_unusable().empty())
    return Status::unsupported("device is ATTUNE_CUDA, but " + cuda::why_unusable());
  return scope->enter(call.stream, call.params.q.data);
}

Status check_places(const Call& call, const cuda::Scope& scope) {
  for (int i = 0; i < call.place_count; ++i) {
    const Place& place = call.places[size_t(i)];
    const std::string reason = cuda::why_not_here(place.address, scope);
    if (!reason.empty()) return Status::invalid(text(place.name, " ", reason));
  }
  return {};
}

CudaRequest request_of(const Call& call, size_t workspace_bytes, const cuda::Device& device) {
  return {{call.problem, device.arch, layout_of(call.problem, call.params), workspace_bytes,
           call.score_mod != nullptr ? call.score_mod : "",
           call.mask_mod != nullptr ? call.mask_mod : ""},
          call.mode,
          device.name,
          tuned_table()};
}

// The plans of this thread's last calls. Selection is a pure function, but it writes down every
// reason in words; the layers of a model ask it the same question again and again.
class Plans {
 public:
  Status find(const Call& call, size_t workspace_bytes, const cuda::Device& device,
              const Plan** plan) {
    const Layout layout = layout_of(call.problem, call.params);
    for (const std::optional<Entry>& entry : entries_)
      if (entry && answers(entry->request, call, workspace_bytes, device, layout)) {
        *plan = &entry->plan;
        return {};
      }
    Entry fresh{request_of(call, workspace_bytes, device), {}};
    CudaChoice choice;
    ATTUNE_TRY(select_cuda(fresh.request, &choice));
    fresh.plan = std::move(choice.plan);
    std::optional<Entry>& slot = entries_[next_++ % entries_.size()];
    slot = std::move(fresh);
    *plan = &slot->plan;
    return {};
  }

 private:
  struct Entry {
    CudaRequest request;
    Plan plan;
  };

  static std::string_view view(const char* code) { return code != nullptr ? code : ""; }

  static bool answers(const CudaRequest& r, const Call& call, size_t workspace_bytes,
                      const cuda::Device& device, const Layout& layout) {
    return r.workspace_bytes == workspace_bytes && r.mode == call.mode && r.layout == layout &&
           r.problem == call.problem && r.arch == device.arch && r.device == device.name &&
           r.tuned == tuned_table() && r.score_mod == view(call.score_mod) &&
           r.mask_mod == view(call.mask_mod);
  }

  std::array<std::optional<Entry>, 16> entries_;
  size_t next_ = 0;
};

const PerThread<Plans> g_plans;

// The plan of this call; it lives until this thread asks for others.
Status find_plan(const Call& call, size_t workspace_bytes, const cuda::Device& device,
                 const Plan** plan) {
  Plans* plans = g_plans.get();
  if (plans == nullptr) return {ATTUNE_OUT_OF_MEMORY, "out of memory"};
  return plans->find(call, workspace_bytes, device, plan);
}

}  // namespace

Status choose_on_cuda(const Call& call, size_t workspace_bytes, cuda::Scope* scope,
                      CudaChoice* choice) {
  ATTUNE_TRY(enter(call, scope));
  return select_cuda(request_of(call, workspace_bytes, scope->device()), choice);
}

Status forward_on_cuda(const Call& call) {
  cuda::Scope scope;
  ATTUNE_TRY(enter(call, &scope));
  ATTUNE_TRY(check_places(call, scope));
  const Plan* plan = nullptr;
  ATTUNE_TRY(find_plan(call, call.workspace_bytes, scope.device(), &plan));
  return jit::forward(*plan, call.problem, call.params, scope);
}

Status prepare_on_cuda(const Call& call) {
  cuda::Scope scope;
  CudaChoice choice;
  ATTUNE_TRY(choose_on_cuda(call, call.workspace_bytes, &scope, &choice));
  return jit::prepare(choice.plan, scope);
}

Status workspace_on_cuda(const Call& call, size_t* bytes) {
  cuda::Scope scope;
  ATTUNE_TRY(enter(call, &scope));
  const Plan* plan = nullptr;
  ATTUNE_TRY(find_plan(call, kUnlimitedWorkspace, scope.device(), &plan));
  *bytes = plan->workspace_bytes;
  return {};
}

}  // namespace attune
