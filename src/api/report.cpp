#include "src/api/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/api/plan.hpp"
#include "src/cpu/fused.hpp"
#include "src/cuda/device.hpp"
#include "src/cuda/driver.hpp"
#include "src/jit/cache.hpp"
#include "src/jit/nvrtc.hpp"
#include "src/json.hpp"
#include "src/select/select.hpp"
#include "src/select/tuned.hpp"

namespace attune {
namespace {

// The rungs; where a config came from is said of those that have one.
void write_candidates(const std::vector<Candidate>& candidates, JsonWriter* w) {
  w->array("candidates", [&] {
    for (const Candidate& c : candidates)
      w->object([&] {
        w->field("mode", mode_name(c.mode));
        w->field("id", c.id);
        w->field("chosen", c.reason.empty());
        w->field("reason", c.reason);
        if (!c.config_from.empty()) w->field("config_from", c.config_from);
        if (c.passed_over.empty()) return;
        w->array("passed_over", [&] {
          for (const std::string& row : c.passed_over) w->value(row);
        });
      });
  });
}

const Candidate& chosen_of(const std::vector<Candidate>& candidates) {
  return *std::find_if(candidates.begin(), candidates.end(),
                       [](const Candidate& c) { return c.reason.empty(); });
}

void explain_forward(const Call& call, const Choice& choice, JsonWriter* w) {
  const Candidate& chosen = chosen_of(choice.candidates);
  w->field("chosen", chosen.id);
  w->field("mode", mode_name(choice.mode));
  w->field("config", choice.mode == ATTUNE_FUSED ? cpu::to_string(choice.config) : "");
  w->field("config_from", chosen.config_from);
  w->field("isa", cpu::isa_name(choice.isa));
  w->field("threads", call.executor.threads);
  write_candidates(choice.candidates, w);
}

void explain_nothing(const Call& call, JsonWriter* w) {
  w->field("chosen", "");
  w->field("mode", "none");
  w->field("config", "");
  if (call.device == ATTUNE_CPU) {
    w->field("isa", cpu::isa_name());
    w->field("threads", call.executor.threads);
  }
  w->array("candidates", [] {});
  w->field("reason", "out has no elements: nothing to compute");
}

std::string capability_text(int cc) {
  return std::to_string(cc / 10) + "." + std::to_string(cc % 10);
}

Status explain_cuda(const Call& call, JsonWriter* w) {
  CudaChoice choice, unlimited;
  cuda::Device device;
  for (const auto& [bytes, result] :
       {std::pair{call.workspace_bytes, &choice}, std::pair{kUnlimitedWorkspace, &unlimited}}) {
    cuda::Scope scope;
    if (Status s = choose_on_cuda(call, bytes, &scope, result); !s.ok()) return s;
    device = scope.device();
  }
  w->field("chosen", choice.plan.id);
  w->field("mode", mode_name(choice.mode));
  w->field("config", choice.plan.id.substr(choice.plan.id.find('/') + 1));
  w->field("config_from", chosen_of(choice.candidates).config_from);
  w->field("device", device.name);
  w->field("compute_capability", capability_text(device.arch.cc));
  w->object("workspace", [&] {
    w->field("used_bytes", choice.plan.workspace_bytes);
    w->field("given_bytes", call.workspace_bytes);
    w->field("wanted_bytes", unlimited.plan.workspace_bytes);
  });
  w->field("splits", choice.plan.blocks.splits);
  write_candidates(choice.candidates, w);
  if (choice.plan.config().rung->tensor_cores && call.problem.dtype == DType::f32)
    w->field(
        "precision",
        "fp32 on tensor cores: operands split into fp16 hi + lo, three products, fp32 accuracy");
  return {};
}

// Which kernel computes the gradients of the call, which may be one of a forward pass: all but the
// mask's then. The workspace is that of as much as it would like.
void explain_backward_on_cuda(const Call& call, JsonWriter* w) {
  CudaChoice choice;
  cuda::Scope scope;
  const Status status = choose_on_cuda(call, kUnlimitedWorkspace, &scope, &choice);
  if (!status.ok()) {
    w->field("chosen", "");
    w->field("reason", status.message);
    return;
  }
  w->field("chosen", mode_name(choice.mode));
  w->field("config", choice.plan.id.substr(choice.plan.id.find('/') + 1));
  w->field("reason", "the fastest that can");
  w->field("workspace_bytes", choice.plan.workspace_bytes);
  write_candidates(choice.candidates, w);
}

void explain_backward(Call call, JsonWriter* w) {
  if (call.problem.pass == Pass::forward) call.asked = {true, true, true, call.problem.sinks};
  call.problem.pass = Pass::backward;
  if (call.device == ATTUNE_CUDA)
    return w->object("backward", [&] { explain_backward_on_cuda(call, w); });
  Choice choice;
  const Status status = select_backward(call.problem, call.results_given, call.mode, &choice);
  w->object("backward", [&] {
    if (!status.ok()) {
      w->field("chosen", "");
      w->field("reason", status.message);
      return;
    }
    w->field("chosen", mode_name(choice.mode));
    w->field("config", choice.mode == ATTUNE_FUSED ? cpu::to_string(choice.config) : "");
    const std::string& why_not_fused = choice.candidates.front().reason;
    w->field("reason", choice.mode == ATTUNE_FUSED ? "the fastest that can" : why_not_fused);
    write_candidates(choice.candidates, w);
  });
}

// Bytes; null where the system does not tell.
void write_cache_size(const char* field, int name, JsonWriter* w) {
  const long bytes = sysconf(name);
  if (bytes > 0)
    w->field(field, bytes);
  else
    w->field(field, nullptr);
}

std::vector<cuda::Device> devices() {
  std::vector<cuda::Device> list;
  for (int i = 0; i < cuda::device_count(); ++i)
    if (cuda::Device d; cuda::device(i, &d).ok()) list.push_back(d);
  return list;
}

void write_device(const cuda::Device& d, JsonWriter* w) {
  w->object([&] {
    w->field("ordinal", d.ordinal);
    w->field("name", d.name);
    w->field("compute_capability", capability_text(d.arch.cc));
    w->field("multiprocessors", d.arch.sms);
    w->field("memory_bytes", d.memory_bytes);
    w->field("l2_bytes", d.l2_bytes);
  });
}

void write_cpu(JsonWriter* w) {
  w->object([&] {
    w->field("name", "cpu");
    w->field("usable", true);
    w->field("why", "");
    w->field("device", processor_name());
  });
}

// The CUDA backend needs a device and the run-time compiler.
void write_cuda(JsonWriter* w) {
  const jit::NvrtcChoice& nvrtc = jit::nvrtc();
  const std::string& why = cuda::why_unusable().empty() ? nvrtc.problem : cuda::why_unusable();
  const std::vector<cuda::Device> list = devices();
  const cuda::Driver* driver = cuda::driver();
  w->object([&] {
    w->field("name", "cuda");
    w->field("usable", why.empty());
    w->field("why", why);
    w->field("device", list.empty() ? "" : list[0].name);
    w->field("driver_cuda_version", driver != nullptr ? cuda::version_text(driver->version) : "");
    w->array("devices", [&] {
      for (const cuda::Device& d : list) write_device(d, w);
    });
    w->object("nvrtc", [&] {
      w->field("version", nvrtc.problem.empty() ? nvrtc.library.version() : "");
      w->field("path", nvrtc.library.path);
      w->field("place", nvrtc.place);
      w->field("why", nvrtc.problem);
    });
  });
}

void write_kernel_cache(JsonWriter* w) {
  const std::string dir = jit::cache_dir();
  const jit::CacheSize size = jit::cache_size(dir);
  const std::string met = jit::cache_warning();
  w->object("kernels", [&] {
    w->field("dir", dir);
    w->field("entries", size.entries);
    w->field("bytes", size.bytes);
    w->field("warning", met.empty() ? jit::why_not_writable(dir) : met);
  });
}

const char* compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

}  // namespace

Status explain_json(const Call& call, std::string* json) {
  JsonWriter w;
  Status status;
  w.object([&] {
    if (call.problem.pass == Pass::backward) {
      // What runs is below, under "backward".
    } else if (call.empty) {
      explain_nothing(call, &w);
    } else if (call.device == ATTUNE_CUDA) {
      status = explain_cuda(call, &w);
    } else {
      Choice choice;
      status = select(call.problem, call.mode, call.executor.threads, &choice);
      if (status.ok()) explain_forward(call, choice, &w);
    }
    explain_backward(call, &w);
  });
  if (status.ok()) *json = w.take();
  return status;
}

std::string info_json() {
  JsonWriter w;
  w.object([&] {
    w.field("version", attune_version());
    w.field("abi", attune_abi_version());
    w.field("compiler", compiler());
    w.field("isa", cpu::isa_name());
    w.array("isas", [&] {
      for (const std::string& name : cpu::isa_names()) w.value(name);
    });
    w.field("threads", cpu::usable_threads());
    w.array("backends", [&] {
      write_cpu(&w);
      write_cuda(&w);
    });
    w.object("caches", [&] {
      write_cache_size("l1d_bytes", _SC_LEVEL1_DCACHE_SIZE, &w);
      write_cache_size("l2_bytes", _SC_LEVEL2_CACHE_SIZE, &w);
      write_cache_size("l3_bytes", _SC_LEVEL3_CACHE_SIZE, &w);
      write_kernel_cache(&w);
    });
  });
  return w.take();
}

}  // namespace attune
