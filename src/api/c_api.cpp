// The C ABI: nothing but its border. Every function turns a Status into a code and a message, and
// lets no exception out.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "src/api/args.hpp"
#include "src/api/plan.hpp"
#include "src/api/report.hpp"
#include "src/api/validate.hpp"
#include "src/cpu/fused.hpp"
#include "src/per_thread.hpp"

#define ATTUNE_STRING_OF(x) #x
#define ATTUNE_STRING(x) ATTUNE_STRING_OF(x)

namespace attune {
namespace {

// What attune_last_error returns: a thread's own text, or this one where there is no memory for it.
constexpr size_t kLongestError = 1024;
char g_no_memory[] = "out of memory";
const ThreadPointer g_last_error([](void* text) {
  if (text != g_no_memory) std::free(text);
});

void set_last_error(std::string_view message) {
  auto* text = static_cast<char*>(g_last_error.get());
  if (text == nullptr || text == g_no_memory) {
    text = static_cast<char*>(std::malloc(kLongestError));
    if (text == nullptr || !g_last_error.set(text)) {
      std::free(text);
      g_last_error.set(g_no_memory);
      return;
    }
  }
  const size_t length = std::min(message.size(), kLongestError - 1);
  std::memcpy(text, message.data(), length);
  text[length] = '\0';
}

template <class Fn>
attune_status guarded(const Fn& fn) noexcept {
  // The C++ library has variables of each thread too. It is asked to make them here and not by the
  // first exception, which may be thrown for want of memory.
  static_cast<void>(std::current_exception());
  try {
    const Status status = fn();
    if (!status.ok()) set_last_error(status.message);
    return status.code;
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return ATTUNE_OUT_OF_MEMORY;
  } catch (const std::length_error&) {  // what containers say of a size that no memory could hold
    set_last_error("out of memory");
    return ATTUNE_OUT_OF_MEMORY;
  } catch (const cpu::HookError& e) {
    set_last_error(e.what());
    return ATTUNE_INVALID_ARGUMENT;
  } catch (const std::exception& e) {
    set_last_error(e.what());
    return ATTUNE_INTERNAL;
  } catch (...) {
    set_last_error("unknown exception");
    return ATTUNE_INTERNAL;
  }
}

// The call without its workspace, which is asked for or comes later.
Status make_call_without_workspace(const attune_args* args, Pointers pointers, Call* call) {
  attune_args copy;
  ATTUNE_TRY(copy_args("args", args, &copy));
  copy.struct_size = sizeof(copy);
  copy.workspace = nullptr;
  copy.workspace_bytes = 0;
  return make_call(&copy, pointers, call);
}

Status make_backward_call_without_workspace(const attune_backward_args* args, Pointers pointers,
                                            Call* call) {
  attune_backward_args copy;
  ATTUNE_TRY(copy_args("args", args, &copy));
  attune_args forward;
  ATTUNE_TRY(copy_args("args.forward", copy.forward, &forward));
  copy.struct_size = sizeof(copy);
  forward.struct_size = sizeof(forward);
  forward.workspace = nullptr;
  forward.workspace_bytes = 0;
  copy.forward = &forward;
  return make_backward_call(&copy, pointers, call);
}

// As much of the message as fits, always closed, and how much room all of it needs.
Status write_text(std::string_view message, char* out, size_t capacity, size_t* needed) {
  if (out == nullptr && capacity > 0)
    return Status::invalid(text("text is NULL, but capacity is ", capacity));
  if (needed != nullptr) *needed = message.size() + 1;
  if (capacity == 0) return {};
  const size_t length = std::min(message.size(), capacity - 1);
  std::memcpy(out, message.data(), length);
  out[length] = '\0';
  return {};
}

// A backward plan's tensors are those of its creation.
Status give_other_memory(const attune_args* args, PlannedCall* planned) {
  if (planned->call.problem.pass == Pass::backward)
    return Status::unsupported(
        "args is given, but the plan is of a backward pass, which runs on the tensors that it was "
        "made with: give NULL");
  Call call;
  ATTUNE_TRY(make_call_without_workspace(args, Pointers::required, &call));
  return take_other_call(call, planned);
}

}  // namespace
}  // namespace attune

using namespace attune;

// Never changes once it is made, so that any number of threads can use it.
struct attune_plan {
  PlannedCall planned;
  std::string score_mod, mask_mod;  // what the call points to
};

namespace {

template <class MakeCall>
Status create_plan(attune_plan** plan, size_t most_workspace, const MakeCall& make_call) {
  if (plan == nullptr) return Status::invalid("plan is NULL");
  *plan = nullptr;
  auto fresh = std::make_unique<attune_plan>();
  Call& call = fresh->planned.call;
  ATTUNE_TRY(make_call(&call));
  for (const auto& [text, copy] :
       {std::pair{&call.score_mod, &fresh->score_mod}, std::pair{&call.mask_mod, &fresh->mask_mod}})
    if (*text != nullptr) {
      *copy = *text;
      *text = copy->c_str();
    }
  ATTUNE_TRY(choose_kernel(most_workspace, &fresh->planned));
  *plan = fresh.release();
  return {};
}

}  // namespace

attune_status attune_args_init(attune_args* args, size_t size) {
  return guarded([&] { return init_args(args, size); });
}

attune_status attune_backward_args_init(attune_backward_args* args, size_t size) {
  return guarded([&] { return init_args(args, size); });
}

attune_status attune_forward(const attune_args* args) {
  return guarded([&]() -> Status {
    PlannedCall planned;
    ATTUNE_TRY(make_call(args, Pointers::required, &planned.call));
    return choose_and_run(&planned);
  });
}

attune_status attune_workspace_size(const attune_args* args, size_t* bytes) {
  return guarded([&]() -> Status {
    if (bytes == nullptr) return Status::invalid("bytes is NULL");
    PlannedCall planned;
    ATTUNE_TRY(make_call_without_workspace(args, Pointers::optional, &planned.call));
    if (planned.call.device == ATTUNE_CUDA)
      ATTUNE_TRY(choose_kernel(kUnlimitedWorkspace, &planned));
    *bytes = planned.workspace_bytes();
    return {};
  });
}

attune_status attune_prepare(const attune_args* args) {
  return guarded([&]() -> Status {
    PlannedCall planned;
    ATTUNE_TRY(make_call(args, Pointers::optional, &planned.call));
    ATTUNE_TRY(choose_kernel(planned.call.workspace_bytes, &planned));
    return prepare(planned);
  });
}

attune_status attune_backward(const attune_backward_args* args) {
  return guarded([&]() -> Status {
    PlannedCall planned;
    ATTUNE_TRY(make_backward_call(args, Pointers::required, &planned.call));
    return choose_and_run(&planned);
  });
}

attune_status attune_backward_workspace_size(const attune_backward_args* args, size_t* bytes) {
  return guarded([&]() -> Status {
    if (bytes == nullptr) return Status::invalid("bytes is NULL");
    PlannedCall planned;
    ATTUNE_TRY(make_backward_call_without_workspace(args, Pointers::optional, &planned.call));
    if (planned.call.device == ATTUNE_CUDA)
      ATTUNE_TRY(choose_kernel(kUnlimitedWorkspace, &planned));
    *bytes = planned.workspace_bytes();
    return {};
  });
}

attune_status attune_plan_create(const attune_args* args, size_t most_workspace,
                                 attune_plan** plan) {
  return guarded([&]() -> Status {
    return create_plan(plan, most_workspace, [&](Call* call) {
      return make_call_without_workspace(args, Pointers::optional, call);
    });
  });
}

attune_status attune_plan_create_backward(const attune_backward_args* args, size_t most_workspace,
                                          attune_plan** plan) {
  return guarded([&]() -> Status {
    return create_plan(plan, most_workspace, [&](Call* call) {
      return make_backward_call_without_workspace(args, Pointers::optional, call);
    });
  });
}

attune_status attune_plan_workspace_size(const attune_plan* plan, size_t* bytes) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return Status::invalid("plan is NULL");
    if (bytes == nullptr) return Status::invalid("bytes is NULL");
    *bytes = plan->planned.workspace_bytes();
    return {};
  });
}

attune_status attune_plan_prepare(const attune_plan* plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return Status::invalid("plan is NULL");
    return prepare(plan->planned);
  });
}

attune_status attune_plan_run(const attune_plan* plan, const attune_args* args, void* workspace,
                              size_t workspace_bytes) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return Status::invalid("plan is NULL");
    PlannedCall now = plan->planned;
    if (args != nullptr)
      ATTUNE_TRY(give_other_memory(args, &now));
    else if (now.call.shapes_only)
      return Status::invalid("args is NULL, but the plan was made for tensors without memory");
    ATTUNE_TRY(give_workspace(workspace, workspace_bytes, &now.call));
    if (workspace_bytes < now.workspace_bytes())
      return Status::invalid(
          text("workspace_bytes is ", workspace_bytes, "; the plan needs ", now.workspace_bytes()));
    return run(now);
  });
}

attune_status attune_plan_explain(const attune_plan* plan, char* text, size_t capacity,
                                  size_t* needed) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return Status::invalid("plan is NULL");
    Call call = plan->planned.call;
    call.workspace_bytes = plan->planned.workspace_bytes();  // what it runs with
    std::string json;
    ATTUNE_TRY(explain_json(call, &json));
    return write_text(json, text, capacity, needed);
  });
}

void attune_plan_destroy(attune_plan* plan) { delete plan; }

attune_status attune_explain(const attune_args* args, char* text, size_t capacity, size_t* needed) {
  return guarded([&]() -> Status {
    Call call;
    ATTUNE_TRY(make_call(args, Pointers::optional, &call));
    std::string json;
    ATTUNE_TRY(explain_json(call, &json));
    return write_text(json, text, capacity, needed);
  });
}

attune_status attune_info(char* text, size_t capacity, size_t* needed) {
  return guarded([&] { return write_text(info_json(), text, capacity, needed); });
}

const char* attune_last_error(void) {
  const auto* text = static_cast<const char*>(g_last_error.get());
  return text != nullptr ? text : "";
}

const char* attune_status_name(attune_status status) {
  switch (status) {
    case ATTUNE_OK:
      return "ok";
    case ATTUNE_INVALID_ARGUMENT:
      return "invalid argument";
    case ATTUNE_UNSUPPORTED:
      return "unsupported";
    case ATTUNE_OUT_OF_MEMORY:
      return "out of memory";
    case ATTUNE_INTERNAL:
      return "internal error";
    case ATTUNE_CUDA_ERROR:
      return "CUDA error";
  }
  return "unknown status";
}

const char* attune_version(void) {
  return ATTUNE_STRING(ATTUNE_VERSION_MAJOR) "." ATTUNE_STRING(
      ATTUNE_VERSION_MINOR) "." ATTUNE_STRING(ATTUNE_VERSION_PATCH);
}

int32_t attune_abi_version(void) { return ATTUNE_ABI_VERSION; }
