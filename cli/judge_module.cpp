#include "cli/judge_module.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "cli/evolve_external.hpp"
#include "cli/evolve_options.hpp"
#include "cli/outcome.hpp"
#include "cli/output.hpp"
#include "cli/ranges.hpp"
#include "cli/terminal.hpp"
#include "evolve/judge/external_process.hpp"
#include "evolve/judge/external_run.hpp"
#include "evolve/store/store.hpp"

namespace attune::cli {
namespace {

namespace fs = std::filesystem;
using evolve::Json;

constexpr double kMostSeconds = 3600;              // its own limits, of each call, are shorter
constexpr const char* kCpuShape = "4x8x128x32";    // judged in less than a minute
constexpr const char* kCudaShape = "32x8x256x96";  // attune.evaluate's own

std::string text_of(const Json& r) {
  std::string text = fmt::format("verdict   {}\nstage     {}\n", r.at("verdict").get<std::string>(),
                                 r.at("stage").get<std::string>());
  if (const std::string why = r.at("why"); !why.empty()) text += fmt::format("reason    {}\n", why);
  if (r.at("error").is_number() && r.at("limit").is_number())
    text += fmt::format("error     {:.2e}, allowed {:.2e}\n", r["error"].get<double>(),
                        r["limit"].get<double>());
  for (const Json& shape : r.at("shapes")) {
    const Json& s = shape.at("speedup");
    text +=
        fmt::format("time      {:.4g} ms, {} {:.4g} ms\nspeed     {:.3g} ({:.3g}..{:.3g})\n",
                    1e3 * shape.at("seconds").get<double>(), shape.at("library").get<std::string>(),
                    1e3 * shape.at("library_seconds").get<double>(), s.at("mid").get<double>(),
                    s.at("low").get<double>(), s.at("high").get<double>());
  }
  return text;
}

}  // namespace

bool is_module(const std::string& file) { return fs::path(file).extension() == ".py"; }

void name_package() {
  const std::string child = evolve::external_child(this_program());
  if (child.empty()) return;
  const fs::path package = fs::path(child).parent_path();
  if (!fs::exists(package / "_module_verdict.py")) return;
  const char* before = std::getenv("PYTHONPATH");
  const std::string parent = package.parent_path();
  setenv("PYTHONPATH",
         (before != nullptr && *before != '\0' ? parent + ":" + before : parent).c_str(), 1);
  if (package.parent_path().filename() == "python")  // of the tree: its build is this tool's
    setenv("ATTUNE_BUILD_DIR", fs::path(this_program()).parent_path().c_str(), 0);
}

std::vector<std::string> judge_arguments(const ModuleOptions& o) {
  if (o.shapes.size() > 1) throw UsageError("--shape: a module is judged at one");
  if (!o.reference.empty() && !o.shapes.empty())
    throw UsageError("--shape: with --reference, its get_inputs makes the inputs");
  std::vector<std::string> all;
  if (!o.device.empty()) all.insert(all.end(), {"--device", o.device});
  if (!o.reference.empty()) {
    all.insert(all.end(), {"--reference", o.reference});
    return all;
  }
  const bool cuda = o.device.starts_with("cuda");
  const std::string text = !o.shapes.empty() ? o.shapes[0] : cuda ? kCudaShape : kCpuShape;
  Shape s;
  try {
    s = parse_shape(text);
  } catch (const std::invalid_argument& e) {
    throw UsageError(fmt::format("--shape: {}", e.what()));
  }
  if (s.heads != s.heads_kv || s.seq_q != s.seq_k || s.dim != s.dim_v)
    throw UsageError("--shape: a module has one number of heads, one length, one head dimension");
  for (const auto& [name, value] : {std::pair{"--batch", s.batch},
                                    {"--seq", s.seq_q},
                                    {"--n-head", s.heads},
                                    {"--n-embd", s.heads * s.dim},
                                    {"--max-seqlen", std::max<int64_t>(512, s.seq_q)}})
    all.insert(all.end(), {name, fmt::format("{}", value)});
  return all;
}

std::optional<Json> module_verdict(const std::string& python, const std::string& file,
                                   const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"-m", "attune._module_verdict", "--path", file};
  all.insert(all.end(), arguments.begin(), arguments.end());
  evolve::Captured c;
  if (const Status s = evolve::run_and_capture(python, all, kMostSeconds, interrupted, &c); !s.ok())
    throw std::runtime_error(s.message);
  if (c.stopped) return std::nullopt;
  Json report = Json::parse(c.out, nullptr, false);
  if (report.is_object() && report.contains("verdict")) return report;
  const evolve::NoVerdict none = evolve::why_no_verdict(c, python);
  if (none.usage) throw UsageError(none.why);
  throw std::runtime_error("no verdict: " + none.why);
}

int judge_module(const ModuleOptions& o) {
  for (const std::string& file : {o.file, o.reference})
    if (!file.empty() && !fs::is_regular_file(file))
      throw UsageError(file + (fs::exists(file) ? " is no file" : ": there is no such file"));
  const std::vector<std::string> arguments = judge_arguments(o);
  const std::string python = python_named(o.python);
  Output json("--json", o.json);
  name_package();
  talk(fmt::format("judging {} beside {}, by {}", o.file,
                   o.reference.empty() ? "plain causal self-attention" : o.reference, python));
  const std::optional<Json> report = module_verdict(python, o.file, arguments);
  if (!report) {
    talk("stopped: no verdict");
    return kInterrupted;
  }
  for (const Json& gap : report->value("not_held", Json::array()))
    talk("this kernel has " + gap.get<std::string>());
  if (!json.is_stdout()) print(text_of(*report));
  json.write(report->dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return report->at("verdict") == "ok" ? kOk : kFailed;
}

}  // namespace attune::cli
