#include "src/api/report.hpp"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/cpu/fused.hpp"
#include "src/select/select.hpp"

namespace attune {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kIndent = 2;

std::string dump(const Json& json) {
  return json.dump(kIndent, ' ', false, Json::error_handler_t::replace);
}

Json explain_forward(const Call& call, const Choice& choice) {
  Json candidates = Json::array();
  std::string chosen;
  for (const Candidate& c : choice.candidates) {
    const bool is_chosen = c.mode == choice.mode;
    if (is_chosen) chosen = c.id;
    candidates.push_back(
        {{"mode", mode_name(c.mode)}, {"id", c.id}, {"chosen", is_chosen}, {"reason", c.reason}});
  }
  return {{"chosen", chosen},
          {"mode", mode_name(choice.mode)},
          {"config", choice.mode == ATTUNE_FUSED ? cpu::to_string(choice.config) : ""},
          {"isa", cpu::isa_name()},
          {"threads", call.executor.threads},
          {"candidates", candidates}};
}

Json explain_nothing(const Call& call) {
  return {{"chosen", ""},
          {"mode", "none"},
          {"config", ""},
          {"isa", cpu::isa_name()},
          {"threads", call.executor.threads},
          {"candidates", Json::array()},
          {"reason", "out has no elements: nothing to compute"}};
}

Json explain_backward(const Call& call) {
  const Status status = select_backward(call.mode);
  return {{"chosen", status.ok() ? mode_name(ATTUNE_REFERENCE) : ""},
          {"reason", status.ok() ? "the only backward in this version" : status.message}};
}

// "model name : ..." of /proc/cpuinfo, where the kernel gives one.
std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

// Bytes; null where the system does not tell.
Json cache_size(int name) {
  const long bytes = sysconf(name);
  return bytes > 0 ? Json(bytes) : Json(nullptr);
}

const char* compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

}  // namespace

Status select_backward(attune_mode mode) {
  if (mode == ATTUNE_AUTO || mode == ATTUNE_REFERENCE) return {};
  return Status::unsupported(
      std::string("mode is ") + mode_name(mode) +
      ", but the only backward in this version is reference: ask for it or for auto");
}

Status explain_json(const Call& call, std::string* json) {
  Json forward;
  if (call.empty) {
    forward = explain_nothing(call);
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
  const Json cpu = {{"name", "cpu"}, {"usable", true}, {"why", ""}, {"device", cpu_model()}};
  const Json cuda = {{"name", "cuda"},
                     {"usable", false},
                     {"why", "this version has no CUDA backend"},
                     {"device", ""}};
  return dump({{"version", attune_version()},
               {"abi", attune_abi_version()},
               {"compiler", compiler()},
               {"isa", cpu::isa_name()},
               {"isas", cpu::isa_names()},
               {"threads", cpu::usable_threads()},
               {"backends", {cpu, cuda}},
               {"caches",
                {{"l1d_bytes", cache_size(_SC_LEVEL1_DCACHE_SIZE)},
                 {"l2_bytes", cache_size(_SC_LEVEL2_CACHE_SIZE)},
                 {"l3_bytes", cache_size(_SC_LEVEL3_CACHE_SIZE)},
                 {"kernels", nullptr}}}});  // the CPU backend compiles nothing at run time
}

}  // namespace attune
