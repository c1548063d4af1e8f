// attune evolve: a faster kernel for this machine, with its proof.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <random>

#include "cli/commands.hpp"
#include "cli/evolve_options.hpp"
#include "cli/evolve_output.hpp"
#include "cli/evolve_promote.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "evolve/files.hpp"
#include "evolve/report.hpp"
#include "evolve/run.hpp"
#include "evolve/self_test.hpp"

namespace attune::cli {
namespace {

using evolve::RunMeta;
using Options = EvolveOptions;

int list_genes(const Options& o) {
  RunMeta meta;
  meta.device = o.device;
  meta.shapes = shapes_of(o);
  meta.threads = settle_threads(o.threads);
  const auto space = space_of(meta);
  std::string text;
  for (const evolve::Family& f : space->families()) {
    text += fmt::format("{}: {}\n", f.name, f.meaning);
    for (const evolve::Gene& g : f.genes)
      text += fmt::format("  {:<18} {:<15} {:<10} {}\n{:>21}{}\n", g.name, level_name(g.level),
                          g.group, fmt::join(g.values, " "), "", g.meaning);
  }
  text += "\noperators:\n";
  for (const evolve::Operator& op : operators_of(*space))
    text += fmt::format("  {:<28} {}\n", op.name, op.meaning);
  print(text);
  return kOk;
}

int replay(const Options& o) {
  const auto space = space_of(recorded_meta(o, o.replay));
  int64_t evaluations = 0;
  need(evolve::replay(o.replay, *space, &evaluations));
  print(fmt::format(
      "replayed {} evaluations: speeds and p-values follow from the samples, verdicts from those, "
      "and proposals from the verdicts\n",
      evaluations));
  return kOk;
}

std::string default_folder() {
  return fmt::format("attune-runs/{:%Y-%m-%d-%H%M%S}", fmt::gmtime(std::time(nullptr)));
}

evolve::EvaluatorOptions evaluator_options(const RunMeta& meta, const std::string& folder) {
  evolve::EvaluatorOptions e;
  e.shapes = meta.shapes;
  e.threads = meta.threads;
  e.seed = std::random_device{}() | uint64_t{std::random_device{}()} << 32;  // nobody knows it
  std::error_code error;
  e.tool = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw std::runtime_error("cannot find this program: " + error.message());
  e.scratch = evolve::scratch_folder(folder);
  e.stop = interrupted;
  return e;
}

std::unique_ptr<evolve::Evaluator> evaluator_of(const RunMeta& meta, const std::string& folder) {
  evolve::EvaluatorOptions options = evaluator_options(meta, folder);
  return on_cuda(meta) ? evolve::cuda_evaluator(std::move(options), cuda_ordinal(meta))
                       : evolve::cpu_evaluator(std::move(options));
}

// The library's own kernel against itself, as so many candidates.
int self_test(const Options& o) {
  Output json("--json", o.json);
  const RunMeta meta = new_meta(o);
  const auto space = space_of(meta);
  const std::string id = space->print(space->library_default());
  std::error_code ignored;
  const std::string folder =
      std::filesystem::temp_directory_path(ignored) / fmt::format("attune-self-test-{}", getpid());
  const auto evaluator = evaluator_of(meta, folder);
  std::optional<Progress> progress(o.self_test);
  const evolve::SelfTest t =
      evolve::self_test(*evaluator, {id, id, ""}, o.self_test, [&](const evolve::SelfTest& so_far) {
        progress->step(fmt::format("{} accepted", so_far.accepted));
        return !interrupted();
      });
  progress.reset();
  std::filesystem::remove_all(folder, ignored);
  const bool noise_known = std::isfinite(t.noise.margin);  // not when Ctrl-C came meanwhile
  evolve::Json report = {{"id", id},
                         {"machine", meta.machine},
                         {"noise", noise_known ? to_json(t.noise) : evolve::Json()},
                         {"twins", t.twins.size()},
                         {"accepted", t.accepted},
                         {"failed", t.failed},
                         {"failures", evolve::Json::array()},
                         {"samples", evolve::Json::array()}};
  for (const evolve::Evaluation& e : t.twins)
    if (!e.ok())
      report["failures"].push_back(
          {{"verdict", verdict_name(e.verdict)}, {"stage", stage_name(e.stage)}, {"why", e.why}});
  for (const evolve::Evaluation& e : t.twins)
    for (const evolve::ShapeSamples& s : e.shapes)
      report["samples"].push_back({{"candidate", s.candidate}, {"incumbent", s.incumbent}});
  json.write(report.dump() + "\n");
  if (!json.is_stdout())
    print(fmt::format("{} twins of {}: {} accepted, {} failed; {}\n", t.twins.size(), id,
                      t.accepted, t.failed,
                      noise_known ? fmt::format("noise {:.1f} %, margin {:.1f} %",
                                                100 * t.noise.spread, 100 * t.noise.margin)
                                  : "the noise was not measured"));
  if (interrupted()) return kInterrupted;
  return t.accepted == 0 && t.failed == 0 ? kOk : kFailed;
}

evolve::RunOptions run_options(const Options& o) {
  evolve::RunOptions run;
  run.resume = !o.resume.empty();
  run.stop = interrupted;
  if (run.resume && !o.folder.empty())
    throw UsageError("--resume names the folder; --run makes a new one");
  run.folder = run.resume ? o.resume : o.folder.empty() ? default_folder() : o.folder;
  if (run.resume) {
    run.meta = recorded_meta(o, run.folder);
    return run;
  }
  run.meta = new_meta(o);
  std::unique_ptr<evolve::Store> store;
  if (evolve::Store::exists(run.folder) && evolve::Store::open(run.folder, false, &store).ok())
    throw UsageError(
        fmt::format("--run: {} already holds a run: go on with it (--resume {}), or choose another "
                    "folder",
                    run.folder, run.folder));
  return run;
}

int evolve_now(const Options& o) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a name
  if (o.list_genes) return list_genes(o);
  if (!o.replay.empty()) return replay(o);
  if (o.self_test > 0) return self_test(o);
  Output json("--json", o.json);
  if (o.promote) check_table(o);
  evolve::RunOptions run = run_options(o);
  need(evolve::make_folder(run.folder));
  const auto space = space_of(run.meta);
  const auto evaluator = evaluator_of(run.meta, run.folder);

  EvolveProgress progress(run.meta);
  run.on_progress = [&](const evolve::Progress& p) { progress.show(p); };
  evolve::RunResult result;
  const Status status = evolve::run(run, *space, *evaluator, &result);
  progress.end();

  std::unique_ptr<evolve::Store> store;
  Status s = status;
  if (s.ok() || result.evaluations > 0) s = evolve::Store::open(run.folder, false, &store);
  if (store != nullptr) s = evolve::write_report(*store, *space);
  if (!status.ok()) {  // what was found until then is not lost, as far as there is room for it
    if (store != nullptr && !result.best.empty())
      talk(best_so_far(result) + (s.ok() ? fmt::format("report: {}/report.html", run.folder)
                                         : "no report was written: " + s.message));
    need(status);
  }
  need(s);
  const FinalTable table = final_table(run.meta, result);
  json.write(table.json.dump(2) + "\n");
  if (!json.is_stdout()) print(table.text);
  talk(fmt::format("report: {}/report.html", run.folder));
  if (result.exhausted) talk("nothing new was left to try: the search ended before its budget");
  if (o.promote && !result.interrupted) promote(o, run.meta, *space, run.folder, result);
  if (result.interrupted) {
    talk(fmt::format("stopped; go on with: attune evolve --resume {}", run.folder));
    return kInterrupted;
  }
  return table.verified ? kOk : kFailed;
}

}  // namespace

void add_evolve(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("evolve", "Evolve a faster kernel for this machine");
  auto o = std::make_shared<Options>();

  const char* group = "What the kernel computes";
  auto* shape = command
                    ->add_option("--shape", o->shapes,
                                 "BATCHxHEADSxSEQxDIM to evolve for (default 1x8x1024x64). May be "
                                 "repeated: one kernel\nfor all of them. Where two sizes differ: "
                                 "1x8/2x1/4096x64 has 2 key heads, and 4096 keys\nfor 1 query")
                    ->type_name("BxHxSxD")
                    ->group(group);
  command
      ->add_option("--set", o->set, "A named set of shapes instead; attune bench --help names them")
      ->type_name("NAME")
      ->excludes(shape)
      ->group(group);
  command->add_option("--dtype", o->dtype, "f32 (default), f16, bf16, or several: f16,bf16")
      ->type_name("TYPES")
      ->group(group);
  command->add_option("--causal", o->causal, "0 (default), 1, or both: 0,1")
      ->type_name("0|1|0,1")
      ->group(group);
  command->add_option("--device", o->device, "cpu (default), cuda (the first GPU), cuda:1, ...")
      ->type_name("NAME")
      ->check([](const std::string& name) {
        const bool known = name == "cpu" || name == "cuda" ||
                           (name.starts_with("cuda:") && name.size() > 5 && name.size() < 8 &&
                            name.find_first_not_of("0123456789", 5) == std::string::npos);
        return known ? "" : "'" + name + "' is none of cpu, cuda and cuda:N";
      })
      ->group(group);
  command->add_option("--threads", o->threads, "Threads of a kernel; 0: all (default)")
      ->type_name("N")
      ->check(CLI::Range(0, kMostThreads))
      ->group(group);

  group = "How it searches";
  command
      ->add_option("--budget", o->budget,
                   "Time of searching (90s, 5m, 1h) or candidates to try (200ev); the final "
                   "comparison comes\non top. From 5m or 500ev on it also compiles kernels that "
                   "the library does not have")
      ->type_name("BUDGET")
      ->capture_default_str()
      ->group(group);
  command
      ->add_option("--start", o->start,
                   "naive: the plain loops, to see every step (default); current: what the library "
                   "would run,\nto get further")
      ->type_name("WHERE")
      ->check(CLI::IsMember({"naive", "current"}))
      ->group(group);
  command
      ->add_option("--strategy", o->strategy,
                   "evolve (default); random and best-of-n are there to be held against it")
      ->type_name("NAME")
      ->check(CLI::IsMember(evolve::strategy_names()))
      ->group(group);
  command
      ->add_option("--seed", o->seed,
                   "Of the search's own dice (default 0): the same measurements give the same run")
      ->type_name("N")
      ->group(group);
  command
      ->add_option(
          "--workers", o->workers,
          "Candidates that may be prepared at once (default 1; on a GPU one a processor): a "
          "proposal\ndoes not wait for the results of the last N")
      ->type_name("N")
      ->check(CLI::Range(1, 64))
      ->group(group);

  group = "The run";
  auto* folder =
      command->add_option("--run", o->folder, "A new folder for it (default attune-runs/DATE)")
          ->type_name("FOLDER")
          ->group(group);
  auto* resume =
      command
          ->add_option("--resume", o->resume,
                       "Go on with the run in this folder. It keeps what it was begun with; "
                       "--budget may be given\nanew, and counts from the first sitting on")
          ->type_name("FOLDER")
          ->group(group);
  auto* replay = command
                     ->add_option("--replay", o->replay,
                                  "Check, without measuring, that the run in this folder follows "
                                  "from its seed and its\nsamples")
                     ->type_name("FOLDER")
                     ->group(group);
  replay->excludes(folder)->excludes(resume);

  group = "What becomes of it";
  command
      ->add_flag("--promote", o->promote,
                 "Write the winner into the tuned table, for each shape on which it beats the "
                 "library:\ncalls use it from then on (attune tuned list)")
      ->group(group);
  command->add_option("--table", o->table, "With --promote: this file, not the user's own table")
      ->type_name("FILE")
      ->group(group);
  add_output(command, "--json", o->json, "Write the result as JSON to FILE")->group(group);

  group = "Instead of a run";
  command->add_flag("--list-genes", o->list_genes, "What can change in a kernel, and what it means")
      ->group(group);
  command
      ->add_option("--self-test", o->self_test,
                   "Is the judge fooled by noise here? The library's kernel against itself, N "
                   "times: none may\nbe accepted")
      ->type_name("N")
      ->check(CLI::Range(1, 100000))
      ->group(group);

  command->footer(R"(Examples:
  attune evolve                                          90 s, from naive, for 1x8x1024x64 in fp32
  attune evolve --shape 1x8x512x64 --causal 1 --budget 10m --start current --promote
  attune evolve --device cuda --set seed000 --budget 8m  a GPU: compiled on all cores, timed alone
  attune evolve --budget 200ev --seed 1 --strategy random
  attune evolve --resume attune-runs/2026-11-15-101500   after Ctrl-C or kill -9
  attune evolve --resume attune-runs/2026-11-15-101500 --budget 10m
  attune evolve --list-genes

Every candidate runs in a process of its own, is checked against float64 on fresh adversarial
inputs, and is timed beside the best one so far. Better means: beyond the noise, by a corrected
test. At the end the start, the library's own choice and the winner are checked and timed once more,
together; that is the table on stdout. Ctrl-C stops at once and keeps everything.

The run's folder has report.html (open it first), best/best_program.cpp or .cu (the winner, to be
compiled), evidence.json and run.db. docs/evolve.md says more.

Exit codes: 0 the winner is verified, 1 it is not, or an error, 2 bad usage, 130 Ctrl-C.)");
  command->callback([=, &run] {
    for (const CLI::Option* option : command->get_options())
      if (option->count() > 0) o->given.insert(option->get_name());
    run = [=] { return evolve_now(*o); };
  });
}

}  // namespace attune::cli
