#include "src/api/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/api/cuda_call.hpp"
#include "src/cpu/fused.hpp"
#include "src/cuda/device.hpp"
#include "src/cuda/driver.hpp"
#include "src/jit/cache.hpp"
#include "src/jit/nvrtc.hpp"
#include "src/select/select.hpp"
#include "src/select/tuned.hpp"

namespace attune {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kIndent = 2;

std::string dump(const Json& json) {
  return json.dump(kIndent, ' ', false, Json::error_handler_t::replace);
}

// The rungs; where a config came from is said of those that have one.
Json candidates_json(const std::vector<Candidate>& candidates) {
  Json list = Json::array();
  for (const Candidate& c : candidates) {
    list.push_back({{"mode", mode_name(c.mode)},
                    {"id", c.id},
                    {"chosen", c.reason.empty()},
                    {"reason", c.reason}});
    if (!c.config_from.empty()) list.back()["config_from"] = c.config_from;
    if (!c.passed_over.empty()) list.back()["passed_over"] = c.passed_over;
  }
  return list;
}

const Candidate& chosen_of(const std::vector<Candidate>& candidates) {
  return *std::find_if(candidates.begin(), candidates.end(),
                       [](const Candidate& c) { return c.reason.empty(); });
}

Json explain_forward(const Call& call, const Choice& choice) {
  const Candidate& chosen = chosen_of(choice.candidates);
  return {{"chosen", chosen.id},
          {"mode", mode_name(choice.mode)},
          {"config", choice.mode == ATTUNE_FUSED ? cpu::to_string(choice.config) : ""},
          {"config_from", chosen.config_from},
          {"isa", cpu::isa_name()},
          {"threads", call.executor.threads},
          {"candidates", candidates_json(choice.candidates)}};
}

Json explain_nothing(const Call& call) {
  Json nothing = {{"chosen", ""}, {"mode", "none"}, {"config", ""}};
  if (call.device == ATTUNE_CPU) {
    nothing["isa"] = cpu::isa_name();
    nothing["threads"] = call.executor.threads;
  }
  nothing["candidates"] = Json::array();
  nothing["reason"] = "out has no elements: nothing to compute";
  return nothing;
}

Status explain_cuda(const Call& call, Json* json) {
  CudaChoice choice, unlimited;
  cuda::Device device;
  for (const auto& [bytes, result] :
       {std::pair{call.workspace_bytes, &choice}, std::pair{kUnlimitedWorkspace, &unlimited}}) {
    cuda::Scope scope;
    if (Status s = choose_on_cuda(call, bytes, &scope, result); !s.ok()) return s;
    device = scope.device();
  }
  const int cc = device.arch.cc;
  *json = {{"chosen", choice.plan.id},
           {"mode", mode_name(choice.mode)},
           {"config", to_string(choice.plan.spec.config)},
           {"config_from", chosen_of(choice.candidates).config_from},
           {"device", device.name},
           {"compute_capability", std::to_string(cc / 10) + "." + std::to_string(cc % 10)},
           {"workspace",
            {{"used_bytes", choice.plan.workspace_bytes},
             {"given_bytes", call.workspace_bytes},
             {"wanted_bytes", unlimited.plan.workspace_bytes}}},
           {"splits", choice.plan.splits},
           {"candidates", candidates_json(choice.candidates)}};
  if ((choice.mode == ATTUNE_MMA || choice.mode == ATTUNE_WGMMA) &&
      call.problem.dtype == DType::f32)
    (*json)["precision"] =
        "fp32 on tensor cores: operands split into fp16 hi + lo, three products, fp32 accuracy";
  return {};
}

Json explain_backward(const Call& call) {
  const Status status = select_backward(call);
  return {{"chosen", status.ok() ? mode_name(ATTUNE_REFERENCE) : ""},
          {"reason", status.ok() ? "the only backward in this version" : status.message}};
}

// Bytes; null where the system does not tell.
Json cache_size(int name) {
  const long bytes = sysconf(name);
  return bytes > 0 ? Json(bytes) : Json(nullptr);
}

Json devices_json() {
  Json list = Json::array();
  for (int i = 0; i < cuda::device_count(); ++i) {
    cuda::Device d;
    if (!cuda::device(i, &d).ok()) continue;
    list.push_back({{"ordinal", i},
                    {"name", d.name},
                    {"compute_capability",
                     std::to_string(d.arch.cc / 10) + "." + std::to_string(d.arch.cc % 10)},
                    {"multiprocessors", d.arch.sms},
                    {"memory_bytes", d.memory_bytes},
                    {"l2_bytes", d.l2_bytes}});
  }
  return list;
}

// The CUDA backend needs a device and the run-time compiler.
Json cuda_json() {
  const jit::NvrtcChoice& nvrtc = jit::nvrtc();
  const std::string& why = cuda::why_unusable().empty() ? nvrtc.problem : cuda::why_unusable();
  const Json devices = devices_json();
  const cuda::Driver* driver = cuda::driver();
  const Json compiler = {{"version", nvrtc.problem.empty() ? nvrtc.library.version() : ""},
                         {"path", nvrtc.library.path},
                         {"place", nvrtc.place},
                         {"why", nvrtc.problem}};
  return {{"name", "cuda"},
          {"usable", why.empty()},
          {"why", why},
          {"device", devices.empty() ? "" : devices[0]["name"]},
          {"driver_cuda_version", driver != nullptr ? cuda::version_text(driver->version) : ""},
          {"devices", devices},
          {"nvrtc", compiler}};
}

Json kernel_cache_json() {
  const std::string dir = jit::cache_dir();
  const jit::CacheSize size = jit::cache_size(dir);
  const std::string met = jit::cache_warning();
  return {{"dir", dir},
          {"entries", size.entries},
          {"bytes", size.bytes},
          {"warning", met.empty() ? jit::why_not_writable(dir) : met}};
}

const char* compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

}  // namespace

Status select_backward(const Call& call) {
  if (call.device == ATTUNE_CUDA)
    return Status::unsupported(
        "device is ATTUNE_CUDA, but the only backward in this version is the CPU's reference");
  if (call.mode == ATTUNE_AUTO || call.mode == ATTUNE_REFERENCE) return {};
  return Status::unsupported(
      std::string("mode is ") + mode_name(call.mode) +
      ", but the only backward in this version is reference: ask for it or for auto");
}

Status explain_json(const Call& call, std::string* json) {
  Json forward;
  if (call.empty) {
    forward = explain_nothing(call);
  } else if (call.device == ATTUNE_CUDA) {
    if (Status s = explain_cuda(call, &forward); !s.ok()) return s;
  } else {
    Choice choice;
    if (Status s = select(call.problem, call.mode, call.executor.threads, &choice); !s.ok())
      return s;
    forward = explain_forward(call, choice);
  }
  forward["backward"] = explain_backward(call);
  *json = dump(forward);
  return {};
}

std::string info_json() {
  const Json cpu = {{"name", "cpu"}, {"usable", true}, {"why", ""}, {"device", processor_name()}};
  return dump({{"version", attune_version()},
               {"abi", attune_abi_version()},
               {"compiler", compiler()},
               {"isa", cpu::isa_name()},
               {"isas", cpu::isa_names()},
               {"threads", cpu::usable_threads()},
               {"backends", {cpu, cuda_json()}},
               {"caches",
                {{"l1d_bytes", cache_size(_SC_LEVEL1_DCACHE_SIZE)},
                 {"l2_bytes", cache_size(_SC_LEVEL2_CACHE_SIZE)},
                 {"l3_bytes", cache_size(_SC_LEVEL3_CACHE_SIZE)},
                 {"kernels", kernel_cache_json()}}}});
}

}  // namespace attune
