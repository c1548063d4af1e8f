#include "cli/evolve_external.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include "cli/bench.hpp"
#include "cli/commands.hpp"
#include "cli/judge_module.hpp"
#include "cli/machine.hpp"
#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "evolve/judge/external_process.hpp"
#include "src/jit/sha256.hpp"
#include "src/select/tuned.hpp"

namespace attune::cli {
namespace {

namespace fs = std::filesystem;
using evolve::ExternalRun;
using evolve::ExternalSpec;
using evolve::RunMeta;

constexpr const char* kPlace = "{program}";
constexpr size_t kMostBytes = 4 << 20;  // of a program

std::string text_in(const std::string& path) {
  if (!fs::exists(path)) throw UsageError(path + ": there is no such file");
  if (!fs::is_regular_file(path)) throw UsageError(path + " is no file");
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) throw UsageError(path + " cannot be read");
  if (text.size() > kMostBytes || text.find('\0') != std::string::npos)
    throw UsageError(path + " is no text of a program");
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

std::vector<std::string> texts_in(const std::vector<std::string>& places,
                                  const std::string& extension) {
  std::vector<std::string> files;
  for (const std::string& place : places) {
    if (!fs::is_directory(place)) {
      files.push_back(place);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::directory_iterator(place))
      if (entry.path().extension() == extension) inside.push_back(entry.path());
    if (inside.empty())
      throw UsageError(fmt::format("--with: there is no {} file in {}", extension, place));
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

std::string in_path(const std::string& name) {
  std::istringstream path(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(path, folder, ':');) {
    const std::string file = folder + "/" + name;
    if (!folder.empty() && access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

}  // namespace

std::string python_named(std::string python) {
  if (python.empty())
    if (const char* active = std::getenv("VIRTUAL_ENV"); active != nullptr && *active != '\0')
      python = std::string(active) + "/bin/python";
  if (python.empty() && access(".venv/bin/python", X_OK) == 0) python = ".venv/bin/python";
  if (python.empty()) python = "python3";
  if (python.find('/') == std::string::npos) python = in_path(python);
  if (python.empty() || access(python.c_str(), X_OK) != 0)
    throw UsageError(fmt::format("--python: there is no {}",
                                 python.empty() ? "python3 in PATH" : python + " that can be run"));
  return fs::absolute(python);  // a link of a virtual environment stays one
}

namespace {

// Of the files that the command names: a run is of these texts.
std::string hash_of_command(const std::string& command) {
  std::string all = command;
  std::istringstream words(command);
  for (std::string word; words >> word;) {
    std::erase_if(word, [](char c) { return c == '\'' || c == '"' || c == ';'; });
    std::error_code error;
    if (fs::is_regular_file(word, error) && fs::file_size(word, error) <= kMostBytes) {
      std::ifstream file(word, std::ios::binary);
      all += std::string("\n") + std::string(std::istreambuf_iterator<char>(file), {});
    }
  }
  return jit::hex(jit::sha256(all));
}

// Of what the judge is asked with, and of the text of the reference.
std::string hash_of_judge(const ExternalSpec& spec) {
  std::string all;
  for (const std::string& word : spec.judge) all += word + "\n";
  const auto at = std::find(spec.judge.begin(), spec.judge.end(), "--reference");
  if (at != spec.judge.end()) all += text_in(*std::next(at));
  return jit::hex(jit::sha256(all));
}

std::string hash_of(const ExternalSpec& spec) {
  if (spec.judged()) return hash_of_judge(spec);
  return spec.file.empty() ? hash_of_command(spec.command)
                           : jit::hex(jit::sha256(text_in(spec.file)));
}

bool minimizes(const EvolveOptions& o) { return o.goal == "minimize" || o.goal == "min"; }

bool has_word(const std::string& text, const std::string& word) {
  return std::regex_search(text, std::regex("\\b" + word + "\\b"));
}

// Attune's judge of torch modules: the score is the speed over the reference.
ExternalSpec judge_spec_of(const EvolveOptions& o, const std::string& text) {
  for (const char* name : {"--metric", "--goal"})
    if (o.has(name))
      throw UsageError(fmt::format(
          "{}: Attune judges a torch module by its speed; other scores need --evaluator or "
          "--eval-command",
          name));
  const bool pair = !o.reference.empty();
  if (!has_word(text, pair ? "ModelNew" : "Model")) {
    if (has_word(text, "ModelNew"))
      throw UsageError(o.program + ": a ModelNew is judged beside its problem: --reference FILE");
    throw UsageError(fmt::format(
        "{}: it defines no {}. A Python program is taken for a torch module; scores of your own "
        "come by --evaluator or --eval-command",
        o.program, pair ? "ModelNew" : "Model"));
  }
  ModuleOptions asked;
  asked.device = o.device;
  asked.shapes = o.shapes;
  if (pair) asked.reference = fs::absolute(o.reference).lexically_normal();
  ExternalSpec spec;
  spec.judge = judge_arguments(asked);
  spec.metric = "speedup";
  spec.seconds = o.eval_timeout;
  spec.python = python_named(o.python);
  spec.hash = hash_of(spec);
  return spec;
}

ExternalSpec spec_of(const EvolveOptions& o) {
  ExternalSpec spec;
  if (!o.evaluator.empty() && !o.eval_command.empty())
    throw UsageError("--eval-command: there is an --evaluator already");
  spec.metric = o.metric;
  spec.minimize = minimizes(o);
  spec.seconds = o.eval_timeout;
  spec.retries = o.eval_retries;
  spec.cascade = o.cascade;
  spec.thresholds = o.thresholds;
  spec.features = o.features;
  if (o.evaluator.empty()) {
    spec.command = o.eval_command;
    if (spec.command.find(kPlace) == std::string::npos)
      throw UsageError(fmt::format(
          "--eval-command: write {} where the path of a candidate belongs, for instance "
          "\"python evaluate.py --path {}\". Without it every candidate would be scored "
          "by the same file",
          kPlace, kPlace));
    if (spec.metric.empty())
      throw UsageError(
          "--eval-command: name the metric that counts among what it prints: --metric speedup");
  } else {
    spec.file = fs::absolute(o.evaluator).lexically_normal();
    if (text_in(o.evaluator).find("evaluate") == std::string::npos)
      throw UsageError(o.evaluator + ": it defines no evaluate(program_path)");
    spec.python = python_named(o.python);
    if (evolve::external_child(this_program()).empty())
      throw std::runtime_error(
          "_external_child.py, which runs evaluators, is not where this tool looks for it: in the "
          "Python package, in the source tree, or in share/attune");
  }
  spec.hash = hash_of(spec);
  return spec;
}

evolve::ExternalPlace place_of(const RunMeta& meta, const std::string& scratch) {
  if (meta.external->judged()) name_package();
  return {evolve::external_child(this_program()), scratch, meta.program->suffix, meta.program->text,
          interrupted};
}

// "3.11.2"; empty where it does not say.
std::string python_version(const std::string& python) {
  constexpr double kSeconds = 20;
  evolve::Captured c;
  const std::vector<std::string> ask = {"-c", "import platform; print(platform.python_version())"};
  if (!evolve::run_and_capture(python, ask, kSeconds, interrupted, &c).ok()) return "";
  return c.out.substr(0, c.out.find('\n'));
}

// The score that all others are compared with.
ExternalRun evaluate_start(const EvolveOptions& o, RunMeta* meta) {
  ExternalSpec& spec = *meta->external;
  talk(fmt::format("evaluating the start, {}, with {}", o.program, spec.what()));
  const Scratch scratch;
  ExternalRun run = run_external(spec, place_of(*meta, scratch.path()), meta->program->text);
  if (run.stopped)
    throw std::runtime_error("stopped while the start was evaluated: there is no run");
  if (run.verdict != evolve::Verdict::ok) {
    const auto trace = run.artifacts.find("traceback");
    throw std::runtime_error(fmt::format("the start, {}, has no score: {}: {}{}", o.program,
                                         verdict_name(run.verdict), run.why,
                                         trace == run.artifacts.end() ? "" : "\n" + trace->second));
  }
  set_start(run.score, &spec);
  spec.stages = run.stages;
  if (spec.judged() && run.artifacts.contains("not held"))
    talk("this kernel has " + run.artifacts.at("not held"));
  talk(fmt::format("its {} is {:.6g}, after {:.3g} s{}", meta->shapes[0].name, run.score,
                   run.seconds,
                   spec.ratio ? "" : "; scores that are not above 0 are compared by differences"));
  return run;
}

}  // namespace

void add_external_options(CLI::App* command, EvolveOptions* o) {
  const char* group = "An evaluator of your own";
  auto* evaluator =
      command
          ->add_option("--evaluator", o->evaluator,
                       "A Python file with evaluate(program_path), as OpenEvolve takes it.\n"
                       "Its combined_score is the score. PROGRAM may be in any language\n"
                       "then. It runs with your rights, and so do the candidates")
          ->type_name("FILE")
          ->group(group);
  command
      ->add_option("--eval-command", o->eval_command,
                   "Instead: a command for the shell, with {program} where the path of a\n"
                   "candidate belongs. It prints the metric (speedup: 2.41x) or JSON")
      ->type_name("COMMAND")
      ->excludes(evaluator)
      ->group(group);
  command
      ->add_option("--metric", o->metric,
                   "The metric that counts (default combined_score, else the mean of all)")
      ->type_name("NAME")
      ->group(group);
  command->add_option("--goal", o->goal, "maximize (default) or minimize; max and min too")
      ->type_name("GOAL")
      ->check(CLI::IsMember({"maximize", "max", "minimize", "min"}))
      ->group(group);
  command
      ->add_option("--eval-timeout", o->eval_timeout,
                   "Seconds that one evaluation may take (default 300). Then it is\n"
                   "killed, with all processes that it started")
      ->type_name("SECONDS")
      ->check(in_range(0.01, 1e6))
      ->group(group);
  command
      ->add_option("--python", o->python,
                   "The Python that runs FILE. Default: that of the active virtual\n"
                   "environment, .venv/bin/python here, python3")
      ->type_name("PROGRAM")
      ->group(group);
  command
      ->add_option("-c,--config", o->config,
                   "A config.yaml of OpenEvolve. Keys that mean nothing here are named on\n"
                   "stderr. An option on this line comes before the file")
      ->type_name("FILE")
      ->group(group);
}

bool is_external(const EvolveOptions& o) { return !o.evaluator.empty() || !o.eval_command.empty(); }

bool is_scored(const EvolveOptions& o) { return is_external(o) || is_module(o.program); }

evolve::ProgramSource external_program_of(const EvolveOptions& o) {
  const fs::path path = o.program;
  evolve::ProgramSource source;
  source.name = path.stem();
  source.suffix = !o.suffix.empty() ? o.suffix : path.extension().string();
  if (source.suffix.empty()) source.suffix = ".txt";
  source.language = source.suffix == ".cu" ? evolve::Language::cuda : evolve::Language::cpp;
  source.text = text_in(o.program);
  for (const std::string& file : texts_in(o.with, path.extension()))
    source.others.push_back({fs::path(file).stem(), text_in(file)});
  std::unique_ptr<evolve::Space> space;
  if (const Status s = program_space(source, &space, o.proposers.any()); !s.ok())
    throw UsageError(s.message);
  return source;
}

RunMeta external_meta(const EvolveOptions& o, std::optional<ExternalRun>* start) {
  const bool judged = !is_external(o);
  for (const char* name :
       {"--shape", "--device", "--set", "--dtype", "--causal", "--lse", "--pass", "--threads",
        "--start", "--compile-tiles", "--promote", "--table", "--workers"}) {
    if (!o.has(name) ||
        (judged && (name == std::string("--shape") || name == std::string("--device"))))
      continue;
    throw UsageError(fmt::format(
        "{}: it is for {}", name,
        judged ? "kernels of attention, not for a torch module"
               : "kernels that Attune judges itself; here the evaluator of your own does"));
  }
  if (!judged && !o.reference.empty())
    throw UsageError("--reference: it is for a torch module that Attune judges");
  if (o.program.empty())
    throw UsageError(fmt::format("{}: it needs a PROGRAM to evaluate",
                                 o.evaluator.empty() ? "--eval-command" : "--evaluator"));
  RunMeta meta;
  meta.program = external_program_of(o);
  meta.external = judged ? judge_spec_of(o, meta.program->text) : spec_of(o);
  meta.version = attune_version();
  meta.device = "cpu";  // of the search: where programs run is the evaluator's affair
  meta.shapes = {evolve::score_shape(*meta.external)};
  meta.threads = 1;
  RunMeta device;
  device.device = judged ? o.device : "cpu";
  meta.environment = machine_facts(cuda_ordinal(device));
  meta.machine = on_cuda(device) ? meta.environment.value("gpu", o.device) : processor_name();
  meta.environment["evaluator"] = meta.external->what();
  if (!meta.external->python.empty())
    meta.environment["python"] = python_version(meta.external->python);
  *start = evaluate_start(o, &meta);
  return meta;
}

void check_external(const EvolveOptions& o, const std::string& folder, RunMeta* meta) {
  if (!meta->external) {
    if (is_external(o))
      throw UsageError(fmt::format("the run in {} has no evaluator of your own", folder));
    return;
  }
  ExternalSpec& spec = *meta->external;
  const auto refuse_unless = [&](const char* name, const std::string& recorded,
                                 const std::string& asked) {
    if (o.has(name) && recorded != asked)
      throw UsageError(
          fmt::format("{}: the run in {} was begun with {}, not with {}; leave the "
                      "option out, or start a new run",
                      name, folder, recorded.empty() ? "none" : recorded, asked));
  };
  if (spec.judged())
    for (const char* name : {"--device", "--shape", "--reference"})
      if (o.has(name))
        throw UsageError(fmt::format(
            "{}: the run in {} keeps what it was begun with; leave the option out", name, folder));
  refuse_unless("--evaluator", spec.file,
                o.evaluator.empty() ? "" : fs::absolute(o.evaluator).lexically_normal().string());
  refuse_unless("--eval-command", spec.command, o.eval_command);
  refuse_unless("--metric", spec.metric, o.metric);
  refuse_unless("--goal", spec.minimize ? "minimize" : "maximize",
                minimizes(o) ? "minimize" : "maximize");
  refuse_unless("--eval-timeout", fmt::format("{:g}", spec.seconds),
                fmt::format("{:g}", o.eval_timeout));
  if (!o.program.empty() && text_in(o.program) != meta->program->text)
    throw UsageError(
        fmt::format("{}: the run in {} was begun with another program", o.program, folder));
  if (o.resume.empty()) return;  // a replay runs nothing
  if (!spec.file.empty() && !fs::exists(spec.file))
    throw UsageError(fmt::format("{} is gone: the run in {} needs it", spec.file, folder));
  if (hash_of(spec) != spec.hash)
    throw UsageError(
        fmt::format("{} has changed since the run in {} was begun: its scores would not be those "
                    "of the same evaluator. Start a new run",
                    spec.judged()       ? "the reference"
                    : spec.file.empty() ? "a file of " + spec.command
                                        : spec.file,
                    folder));
  const bool python = !spec.file.empty() || spec.judged();
  if (!o.python.empty() || (python && access(spec.python.c_str(), X_OK) != 0))
    spec.python = python_named(o.python);
}

std::unique_ptr<evolve::Evaluator> external_evaluator_of(const RunMeta& meta,
                                                         const evolve::EvaluatorOptions& options,
                                                         std::optional<ExternalRun> start) {
  evolve::ExternalOptions e;
  e.spec = *meta.external;
  e.place = place_of(meta, options.scratch);
  e.programs = options.programs;
  e.seed = options.seed;
  e.start = std::move(start);
  e.on_step = options.on_step;
  return evolve::external_evaluator(std::move(e));
}

}  // namespace attune::cli
