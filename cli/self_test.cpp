#include "cli/self_test.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

#include "cli/bench.hpp"
#include "cli/evolve_external.hpp"
#include "cli/judge_module.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "evolve/compile/cuda_program.hpp"
#include "evolve/genome/genome.hpp"
#include "evolve/judge/cheat_suite.hpp"
#include "evolve/worker/sandbox.hpp"
#include "src/cuda/device.hpp"

namespace attune::cli {
namespace {

using evolve::Evaluation;
using evolve::RunMeta;

constexpr int kSchema = 1;

struct Said {
  std::string verdict, stage, why;
};

// What is judged, and how one of them is. None when Ctrl-C stopped it.
struct Test {
  struct One {
    std::string name;
    std::vector<std::string> expected;
    bool honest() const { return expected.front() == "ok"; }
  };
  std::string device;
  std::vector<One> fixtures;
  std::function<std::optional<Said>(size_t)> judge;
};

// ---- programs ----

Test test_of(std::string device, const std::vector<evolve::Fixture>& suite,
             const std::function<Evaluation(const evolve::Fixture&)>& judge) {
  if (const evolve::SandboxReport report = evolve::sandbox_report(); !report.seccomp)
    throw std::runtime_error("--self-test needs the sandbox of programs: " + report.why_not);
  Test test;
  test.device = std::move(device);
  for (const evolve::Fixture& f : suite) {
    test.fixtures.push_back({f.name, {}});
    for (const evolve::Verdict v : f.expected)
      test.fixtures.back().expected.emplace_back(verdict_name(v));
  }
  test.judge = [&suite, judge](size_t n) -> std::optional<Said> {
    const Evaluation e = judge(suite[n]);
    if (interrupted()) return std::nullopt;
    return Said{verdict_name(e.verdict), stage_name(e.stage), e.why};
  };
  return test;
}

Test cpu_test(const std::string& scratch) {
  evolve::EvaluatorOptions options = evolve::cheat_options(this_program(), scratch);
  options.stop = interrupted;
  return test_of("cpu", evolve::cheat_suite(),
                 [options](const evolve::Fixture& f) { return evolve::judge_fixture(f, options); });
}

// Without a GPU, or without nvcc, there is no such test: the CPU's says nothing of a device.
Test cuda_test(const std::string& device, const std::string& scratch) {
  evolve::EvaluatorOptions options = evolve::cuda_cheat_options(this_program(), scratch);
  options.stop = interrupted;
  RunMeta meta;
  meta.device = device == "cuda" ? "cuda:0" : device;
  meta.shapes = options.shapes;
  meta.threads = options.threads;
  if (const std::string why = cuda::why_unusable(); !why.empty())
    throw std::runtime_error(fmt::format("--self-test --device {}: {}", device, why));
  if (cuda_ordinal(meta) >= cuda::device_count())
    throw UsageError(
        fmt::format("--device: there is no {}, only {} device(s)", device, cuda::device_count()));
  if (evolve::cuda_compiler().path.empty())
    throw std::runtime_error("--self-test --device cuda: " + evolve::cuda_compiler().why_not);
  cuda::Device gpu;
  if (const Status s = cuda::device(cuda_ordinal(meta), &gpu); !s.ok())
    throw std::runtime_error(s.message);
  const auto space = evolve::cuda_space({options.shapes[0].problem}, gpu.arch);
  const std::string library = space->print(space->library_default());
  return test_of(device, evolve::cuda_cheat_suite(),
                 [=, ordinal = cuda_ordinal(meta)](const evolve::Fixture& f) {
                   return evolve::judge_cuda_fixture(f, options, ordinal, {library, library, ""});
                 });
}

// ---- torch modules ----

// Python's judge runs each of them as `attune judge FILE` would.
Test module_test(const SelfTestOptions& o, const std::string& scratch) {
  if (!o.device.empty() && o.device != "cpu")
    throw UsageError("--modules: they are judged on the CPU");
  const std::string python = python_named(o.python), folder = scratch + "/modules";
  name_package();
  evolve::write_module_suite(folder);
  Test test;
  test.device = "cpu";
  for (const evolve::ModuleFixture& f : evolve::module_suite())
    test.fixtures.push_back({f.name, f.expected});
  test.judge = [python, folder](size_t n) -> std::optional<Said> {
    const evolve::ModuleFixture& f = evolve::module_suite()[n];
    const auto r = module_verdict(python, folder + "/" + f.name + ".py", f.options);
    if (!r) return std::nullopt;
    if (const evolve::Json gaps = r->value("not_held", evolve::Json::array()); !gaps.empty())
      throw std::runtime_error(
          "--self-test --modules needs the sandbox of modules: this kernel "
          "has " +
          gaps[0].get<std::string>());
    return Said{r->at("verdict"), r->at("stage"), r->at("why")};
  };
  return test;
}

// ---- the score card ----

struct Card {
  std::vector<Cells> lines{{"fixture", "expected", "verdict", "result"}};
  evolve::Json fixtures = evolve::Json::array();
  int cheats = 0, refused = 0, controls = 0, passed = 0, unexpected = 0;

  void add(const Test::One& f, const Said& said) {
    const bool ok = said.verdict == "ok";
    const bool as_expected =
        std::find(f.expected.begin(), f.expected.end(), said.verdict) != f.expected.end();
    (f.honest() ? controls : cheats) += 1;
    if (f.honest() == ok) (f.honest() ? passed : refused) += 1;
    unexpected += !as_expected;
    const char* result = as_expected  ? (f.honest() ? "passed" : "refused")
                         : ok         ? "NOT REFUSED"
                         : f.honest() ? "REFUSED"
                                      : "refused, with another verdict";
    lines.push_back(
        {f.name, fmt::format("{}", fmt::join(f.expected, " or ")), said.verdict, result});
    fixtures.push_back({{"fixture", f.name},
                        {"expected", f.expected},
                        {"verdict", said.verdict},
                        {"stage", said.stage},
                        {"why", said.why},
                        {"as_expected", as_expected}});
    if (!as_expected)
      talk(fmt::format("{}: {} at stage {}: {}", f.name, said.verdict, said.stage, said.why));
  }
};

Card card_of(const Test& test) {
  Card card;
  Progress progress(int64_t(test.fixtures.size()));
  for (size_t n = 0; n < test.fixtures.size(); ++n) {
    progress.step(test.fixtures[n].name);
    const std::optional<Said> said = test.judge(n);
    if (!said) break;
    card.add(test.fixtures[n], *said);
  }
  return card;
}

}  // namespace

int self_test(const SelfTestOptions& o) {
  if (!o.python.empty() && !o.modules) throw UsageError("--python: it is for modules");
  Output json("--json", o.json);
  const Scratch scratch;
  const bool on_gpu = o.device.starts_with("cuda");
  const Test test = o.modules ? module_test(o, scratch.path())
                    : on_gpu  ? cuda_test(o.device, scratch.path())
                              : cpu_test(scratch.path());
  const Card card = card_of(test);
  json.write(evolve::Json{{"schema", kSchema},
                          {"device", test.device},
                          {"fixtures", card.fixtures},
                          {"cheats", card.cheats},
                          {"refused", card.refused},
                          {"controls", card.controls},
                          {"passed", card.passed},
                          {"unexpected", card.unexpected},
                          {"interrupted", interrupted()}}
                 .dump(2, ' ', false, evolve::Json::error_handler_t::replace) +
             "\n");
  if (!json.is_stdout()) {
    print(markdown(card.lines, card.lines[0].size()));
    print(fmt::format("{} of {} cheats refused, {} of {} honest controls passed\n", card.refused,
                      card.cheats, card.passed, card.controls));
  }
  if (interrupted()) return kInterrupted;
  return card.unexpected == 0 ? kOk : kFailed;
}

}  // namespace attune::cli
