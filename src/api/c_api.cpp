// The C ABI: nothing but its border. Every function turns a Status into a code and a message, and
// lets no exception out.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "src/api/args.hpp"
#include "src/api/cuda_call.hpp"
#include "src/api/report.hpp"
#include "src/api/validate.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/reference.hpp"
#include "src/per_thread.hpp"
#include "src/select/select.hpp"

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

Status run_forward(const Call& call) {
  if (call.device == ATTUNE_CUDA) return forward_on_cuda(call);
  CpuChoice choice;
  ATTUNE_TRY(select_quickly(call.problem, call.mode, call.executor.threads, &choice));
  switch (choice.mode) {
    case ATTUNE_REFERENCE:
      cpu::reference_forward(call.problem, call.params, call.executor,
                             {call.scale_f64, call.softcap_f64});
      return {};
    case ATTUNE_NAIVE:
      cpu::naive_forward(call.problem, call.params, call.executor);
      return {};
    case ATTUNE_FUSED:
      return cpu::fused_forward(*choice.isa, call.problem, call.params, choice.config,
                                call.executor);
    case ATTUNE_AUTO:
    case ATTUNE_TILED:
    case ATTUNE_MMA:
    case ATTUNE_WGMMA:
      break;
  }
  return {ATTUNE_INTERNAL, text("selection chose mode ", int(choice.mode))};
}

// The call without its workspace, which the question is about.
Status make_call_without_workspace(const attune_args* args, Call* call) {
  attune_args copy;
  ATTUNE_TRY(copy_args("args", args, &copy));
  copy.struct_size = sizeof(copy);
  copy.workspace = nullptr;
  copy.workspace_bytes = 0;
  return make_call(&copy, Pointers::optional, call);
}

Status run_prepare(const Call& call) {
  if (call.empty) return {};
  if (call.device == ATTUNE_CUDA) return prepare_on_cuda(call);
  Choice choice;  // the CPU's kernels are there already; a rung that cannot run is refused as usual
  return select(call.problem, call.mode, call.executor.threads, &choice);
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

}  // namespace
}  // namespace attune

using namespace attune;

attune_status attune_args_init(attune_args* args, size_t size) {
  return guarded([&] { return init_args(args, size); });
}

attune_status attune_backward_args_init(attune_backward_args* args, size_t size) {
  return guarded([&] { return init_args(args, size); });
}

attune_status attune_forward(const attune_args* args) {
  return guarded([&]() -> Status {
    Call call;
    ATTUNE_TRY(make_call(args, Pointers::required, &call));
    return call.empty ? Status{} : run_forward(call);
  });
}

attune_status attune_workspace_size(const attune_args* args, size_t* bytes) {
  return guarded([&]() -> Status {
    if (bytes == nullptr) return Status::invalid("bytes is NULL");
    Call call;
    ATTUNE_TRY(make_call_without_workspace(args, &call));
    size_t wanted = 0;
    if (call.device == ATTUNE_CUDA && !call.empty) ATTUNE_TRY(workspace_on_cuda(call, &wanted));
    *bytes = wanted;
    return {};
  });
}

attune_status attune_prepare(const attune_args* args) {
  return guarded([&]() -> Status {
    Call call;
    ATTUNE_TRY(make_call(args, Pointers::optional, &call));
    return run_prepare(call);
  });
}

attune_status attune_backward(const attune_backward_args* args) {
  return guarded([&]() -> Status {
    Call call;
    GradParams grads;
    ATTUNE_TRY(make_backward_call(args, &call, &grads));
    ATTUNE_TRY(select_backward(call));
    // Also when out is empty: dk and dv may not be, and are then 0.
    cpu::reference_backward(call.problem, call.params, grads, call.executor,
                            {call.scale_f64, call.softcap_f64});
    return {};
  });
}

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
