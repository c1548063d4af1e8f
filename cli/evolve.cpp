// attune evolve: a faster kernel for this machine, with its proof.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>

#include "cli/commands.hpp"
#include "cli/config.hpp"
#include "cli/evolve_external.hpp"
#include "cli/evolve_options.hpp"
#include "cli/evolve_output.hpp"
#include "cli/evolve_promote.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "evolve/judge/self_test.hpp"
#include "evolve/report/proposers.hpp"
#include "evolve/report/report.hpp"
#include "evolve/report/report_view.hpp"
#include "evolve/run.hpp"
#include "evolve/store/files.hpp"

namespace attune::cli {
namespace {

using evolve::RunMeta;
using Options = EvolveOptions;

int list_genes(const Options& o) {
  RunMeta meta;
  if (!o.program.empty()) meta.program = is_scored(o) ? external_program_of(o) : program_of(o);
  meta.device = o.device;
  meta.shapes = shapes_of(o);
  meta.threads = settle_threads(o.threads);
  const auto space = space_of(meta);
  std::string text;
  for (const evolve::Family& f : space->families()) {
    text += fmt::format("{}: {}\n", f.name, f.meaning);
    for (const evolve::Gene& g : f.genes)
      text += fmt::format("  {:<18} {:<15} {:<10} {}\n{:>21}{}\n", g.name,
                          evolve::level_name(g.level), g.group,
                          g.labels.empty() ? fmt::format("{}", fmt::join(g.values, " "))
                                           : fmt::format("{}", fmt::join(g.labels, " ")),
                          "", g.meaning);
  }
  text += "\noperators:\n";
  for (const evolve::Operator& op : operators_of(*space))
    text += fmt::format("  {:<28} {}\n", op.name, op.meaning);
  print(text);
  return kOk;
}

int replay(const Options& o) {
  const RunMeta meta = recorded_meta(o, o.replay);
  const auto space = space_of(meta);
  int64_t evaluations = 0;
  need(evolve::replay(o.replay, *space, &evaluations));
  print(fmt::format("replayed {} evaluations: ", evaluations));
  print(
      meta.rule == evolve::kRule
          ? "speeds and p-values follow from the samples, verdicts from those, and proposals from "
            "the verdicts; so do the best, its ratios and what may be promoted, as far as the run "
            "came\n"
          : fmt::format("speeds follow from the samples, and proposals from the verdicts. The "
                        "verdicts are those of rule {}; this version judges by rule {} and did "
                        "not derive them again\n",
                        meta.rule, evolve::kRule));
  std::unique_ptr<evolve::Store> store;
  need(evolve::Store::open(o.replay, false, &store));
  const evolve::Chain& chain = store->chain();
  print(chain.head.empty() ? "the records have no chain of hashes: an older version made them\n"
                           : fmt::format("{} events in the chain of hashes, which ends with {}\n",
                                         chain.events, chain.head));
  return kOk;
}

// By the second; another run that began in the same one has the name already.
std::string default_folder() {
  const std::string name =
      fmt::format("attune-runs/{:%Y-%m-%d-%H%M%S}", fmt::gmtime(std::time(nullptr)));
  std::error_code ignored;
  std::filesystem::create_directories("attune-runs", ignored);
  for (int n = 1;; ++n) {
    std::string folder = n == 1 ? name : fmt::format("{}-{}", name, n);
    std::error_code error;
    if (std::filesystem::create_directory(folder, error) || error) return folder;
  }
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
  const auto evaluator = evaluator_of(meta, evaluator_options(meta, folder));
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

// A folder that cannot be made is a mistake that is told before the start is evaluated. It is not
// left behind: a start without a score is no run.
void check_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> made;
  for (fs::path at = fs::absolute(folder, error); !at.empty() && !fs::exists(at, error);
       at = at.parent_path())
    made.push_back(at);
  const Status s = evolve::make_folder(folder);
  for (const fs::path& one : made) fs::remove(one, error);
  if (!s.ok()) throw UsageError("--run: " + s.message);
}

// `start`: what came of the start, where it had to be evaluated to know how scores compare.
evolve::RunOptions run_options(const Options& o, const std::string& key,
                               std::optional<evolve::ExternalRun>* start) {
  evolve::RunOptions run;
  run.resume = !o.resume.empty();
  run.stop = interrupted;
  if (run.resume && !o.folder.empty())
    throw UsageError("--resume names the folder; --run makes a new one");
  run.folder = run.resume ? o.resume : o.folder;
  if (run.resume) {
    run.meta = recorded_meta(o, run.folder);
    check_machine(run.meta);
    add_proposers(o, key, &run);
    return run;
  }
  std::unique_ptr<evolve::Store> store;
  if (!run.folder.empty() && evolve::Store::exists(run.folder) &&
      evolve::Store::open(run.folder, false, &store).ok())
    throw UsageError(
        fmt::format("--run: {} already holds a run: go on with it (--resume {}), or choose another "
                    "folder",
                    run.folder, run.folder));
  if (is_scored(o)) {
    RunMeta asked;
    add_search(o, &asked);  // a mistake in these is told before anything is evaluated
    if (!run.folder.empty()) check_folder(run.folder);
    run.meta = external_meta(o, start);
    add_search(o, &run.meta);
  } else {
    run.meta = new_meta(o);
  }
  if (!on_cuda(run.meta) && !run.meta.external) {
    const std::string why = evolve::why_too_large(run.meta.shapes);
    if (!why.empty()) throw UsageError("--shape: " + why);
  }
  if (run.folder.empty()) run.folder = default_folder();
  add_proposers(o, key, &run);
  return run;
}

int evolve_now(const Options& given) {
  Options o = given;
  if (!o.config.empty()) apply_config(&o);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a name
  if (o.list_genes) return list_genes(o);
  if (!o.replay.empty()) return replay(o);
  for (const char* name : {"--metric", "--goal", "--eval-timeout", "--python"})
    if (o.has(name) && !is_scored(o) && o.resume.empty())
      throw UsageError(
          fmt::format("{}: it belongs to an evaluator of your own: --evaluator FILE or "
                      "--eval-command COMMAND",
                      name));
  if (!o.reference.empty() && !is_scored(o) && o.resume.empty())
    throw UsageError("--reference: it is for a torch module, PROGRAM.py");
  if (o.self_test > 0 && is_external(o))
    throw UsageError("--self-test: it is of Attune's own judge");
  if (o.self_test > 0) return self_test(o);
  if (o.program.empty() && !o.with.empty()) throw UsageError("--with: it needs a PROGRAM");
  const std::string key = check_proposers(o);
  Output json("--json", o.json);
  if (o.promote) check_table(o);
  std::optional<evolve::ExternalRun> start;
  evolve::RunOptions run;
  try {
    run = run_options(o, key, &start);
  } catch (const std::runtime_error& stopped) {  // while the start was evaluated
    if (!interrupted()) throw;
    talk(stopped.what());
    return kInterrupted;
  }
  need(evolve::make_folder(run.folder));
  if (run.meta.compiles)
    talk("--compile-tiles: a winner whose register tile is not in the library cannot be promoted");
  const auto space = space_of(run.meta);
  evolve::EvaluatorOptions options = evaluator_options(run.meta, run.folder);
  std::optional<EvolveProgress> progress;
  options.on_step = [&](const std::string& what) {
    if (progress) progress->note(what);
  };
  const auto evaluator = run.meta.external
                             ? external_evaluator_of(run.meta, options, std::move(start))
                             : evaluator_of(run.meta, std::move(options));

  progress.emplace(run.meta);
  run.on_progress = [&](const evolve::Progress& p) { progress->show(p); };
  run.on_news = [&](const std::string& news) {
    progress->end();
    talk(news);
  };
  evolve::RunResult result;
  const Status status = evolve::run(run, *space, *evaluator, &result);
  progress->end();

  std::unique_ptr<evolve::Store> store;
  Status s = status;
  if (s.ok() || result.evaluations > 0) s = evolve::Store::open(run.folder, false, &store);
  if (store != nullptr) s = evolve::write_report(*store, *space);
  if (!status.ok()) {  // what was found until then is not lost, as far as there is room for it
    if (store != nullptr && !result.best.empty())
      talk(best_so_far(run.meta, result) + (s.ok()
                                                ? fmt::format("report: {}/report.html", run.folder)
                                                : "no report was written: " + s.message));
    need(status);
  }
  need(s);
  const FinalTable table = final_table(run.meta, result);
  json.write(table.json.dump(2) + "\n");
  if (!json.is_stdout()) print(table.text);
  const evolve::RunView view = evolve::view_of(evolve::evidence_of(*store), *space);
  talk(evolve::gain_text(view));
  if (const std::string asked = evolve::proposers_text(view.tallies); !asked.empty()) talk(asked);
  if (run.meta.program && !result.best.empty())
    talk(fmt::format("program: {0}/best/{1}\nits accepted steps: {0}/best/steps.diff", run.folder,
                     evolve::best_program_name(run.meta)));
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
  auto* command =
      app.add_subcommand("evolve", "Search for a faster kernel for this machine, and verify it");
  auto o = std::make_shared<Options>();

  const char* group = "What is evolved";
  command
      ->add_option("PROGRAM", o->program,
                   "A C++ (.cpp) or CUDA (.cu) program of your own, or a torch module\n"
                   "(.py), with comments that mark what may change (docs/evolve.md).\n"
                   "Without it the library's own kernels are evolved")
      ->group(group);
  command
      ->add_option("--reference", o->reference,
                   "Of a torch module: KernelBench's problem file. PROGRAM.py defines a\n"
                   "ModelNew then; without it a Model, and the start is the reference")
      ->type_name("FILE")
      ->group(group);
  command
      ->add_option("--with", o->with,
                   "Another program of the same kind, or a folder of them: their marked\n"
                   "blocks may replace those of PROGRAM that have the same names. May be\n"
                   "repeated")
      ->type_name("FILE|FOLDER")
      ->group(group);

  add_external_options(command, o.get());

  group = "What the kernel computes";
  auto* shape =
      command
          ->add_option("--shape", o->shapes,
                       "Batch x heads x sequence x head dimension (default 1x8x1024x64).\n"
                       "May be repeated: the search then finds one kernel for all\n"
                       "shapes. Where two sizes differ, write both: 1x8/2x1/4096x64 has\n"
                       "8 query heads, 2 key heads, 1 query and 4096 keys")
          ->type_name("BxHxSxD")
          ->group(group);
  command
      ->add_option("--set", o->set,
                   "Named sets of shapes instead of --shape; attune bench --help lists\nthem")
      ->type_name("NAME")
      ->excludes(shape)
      ->group(group);
  command->add_option("--dtype", o->dtype, "f32 (default), f16 or bf16, or several: f16,bf16")
      ->type_name("TYPES")
      ->group(group);
  command->add_option("--causal", o->causal, "0 (default), 1, or both: 0,1")
      ->type_name("0|1|0,1")
      ->group(group);
  command
      ->add_option("--pass", o->pass,
                   "Of a program: forward or backward. Default: the forward pass where\n"
                   "PROGRAM defines it")
      ->type_name("PASS")
      ->check(CLI::IsMember({"forward", "backward"}))
      ->group(group);
  command
      ->add_flag("--lse", o->lse,
                 "Calls return the log-sum-exp of each row too, as training does: its\n"
                 "kernels are others")
      ->group(group);
  command->add_option("--device", o->device, "cpu (default), cuda (the first GPU), cuda:1, ...")
      ->type_name("NAME")
      ->check(device_name_problem)
      ->group(group);
  command->add_option("--threads", o->threads, "CPU threads of the kernel; 0 (default): all")
      ->type_name("N")
      ->check(CLI::Range(0, kMostThreads))
      ->group(group);

  group = "How it searches";
  command
      ->add_option("--budget", o->budget,
                   "Time to search (90s, 5m, 1h) or number of candidates to try\n"
                   "(200ev). The final comparison takes extra time")
      ->type_name("BUDGET")
      ->capture_default_str()
      ->group(group);
  command->add_option("-i,--iterations", o->iterations, "The same as --budget Nev")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->group(group);
  command
      ->add_option("-t,--target-score", o->target,
                   "Stop when the best has this score; without an evaluator of your own:\n"
                   "when it is so many times as fast as the start")
      ->type_name("SCORE")
      ->group(group);
  command
      ->add_option("--start", o->start,
                   "naive (default): start with plain loops, and see every step;\n"
                   "current: start with what the library would run, and get further")
      ->type_name("WHERE")
      ->check(CLI::IsMember({"naive", "current"}))
      ->group(group);
  command
      ->add_option("--strategy", o->strategy,
                   "evolve (default), or random or best-of-n to compare it with")
      ->type_name("NAME")
      ->check(CLI::IsMember(evolve::strategy_names()))
      ->group(group);
  command
      ->add_option("--seed", o->seed,
                   "Seed of the search, 0 to 2^64-1 (default 0). The same seed and the\n"
                   "same measurements give the same run")
      ->type_name("N")
      ->group(group);
  command
      ->add_option("--workers", o->workers,
                   "Candidates that are prepared at the same time (default 1; for a GPU\n"
                   "one for each processor). A new proposal does not wait for the\n"
                   "results of the last N")
      ->type_name("N")
      ->check(CLI::Range(1, 64))
      ->group(group);

  command
      ->add_flag("--compile-tiles", o->compile_tiles,
                 "On the CPU, also try register tiles that are not in the library.\n"
                 "Each takes seconds to compile, and such a winner cannot be\n"
                 "promoted: it shows what adding a tile to the library would gain")
      ->group(group);

  add_proposer_options(command, &o->proposers);

  group = "The run";
  auto* folder = command
                     ->add_option("--run,-o,--output", o->folder,
                                  "New folder for the run (default attune-runs/DATE)")
                     ->type_name("FOLDER")
                     ->group(group);
  auto* resume = command
                     ->add_option("--resume", o->resume,
                                  "Continue the run in this folder, with its own options. A new\n"
                                  "--budget counts from the beginning of the run")
                     ->type_name("FOLDER")
                     ->group(group);
  auto* replay = command
                     ->add_option("--replay", o->replay,
                                  "Check a recorded run without measuring: its decisions must\n"
                                  "follow from its seed and its samples")
                     ->type_name("FOLDER")
                     ->group(group);
  replay->excludes(folder)->excludes(resume);
  command
      ->add_option("--checkpoint-interval", o->checkpoint_interval,
                   "Evaluations between two folders in checkpoints/ (default 100)")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000'000))
      ->group(group);

  group = "The result";
  command
      ->add_flag("--promote", o->promote,
                 "Write the winner into the tuned table, for each shape where it is\n"
                 "faster than the library's own choice. Calls use it from then on;\n"
                 "`attune tuned list` shows it")
      ->group(group);
  command
      ->add_option("--table", o->table,
                   "With --promote: write into this file instead of the user's table")
      ->type_name("FILE")
      ->group(group);
  add_output(command, "--json", o->json, "Write the result as JSON to FILE")->group(group);

  group = "Instead of a run";
  command
      ->add_flag("--list-genes", o->list_genes,
                 "List what the search can change in a kernel, and what it means")
      ->group(group);
  command
      ->add_option("--self-test", o->self_test,
                   "Test the acceptance rule on this machine: compare the library's\n"
                   "kernel with itself N times. None may be accepted as faster")
      ->type_name("N")
      ->check(CLI::Range(1, 100000))
      ->group(group);

  command->footer(R"(Examples:
  attune evolve                                          90 s, for 1x8x1024x64 in fp32 on the CPU
  attune evolve --shape 1x8x512x64 --causal 1 --budget 10m --start current --promote
  attune evolve --device cuda --set d64-4k --budget 8m   one kernel for eight shapes, on a GPU
  attune evolve --budget 200ev --seed 1 --strategy random
  attune evolve --resume attune-runs/2026-11-15-101500   continue after Ctrl-C or a crash
  attune evolve --resume attune-runs/2026-11-15-101500 --budget 10m
  attune evolve --list-genes
  attune evolve mine.cpp --budget 3m                     a program of your own
  attune evolve examples/cpu_attention/naive.cpp --with examples/cpu_attention/catalogue
  attune evolve module.py --device cuda --budget 10m     a torch module, judged by Attune
  attune evolve sort.py --evaluator evaluator.py -c config.yaml -i 100 -o out
  attune evolve mine.rs --eval-command "python evaluate.py --path {program}" --metric speedup
  attune evolve mine.cpp --llm http://localhost:8000 --model qwen3-coder --budget 30m
  attune evolve mine.cu --propose manual --budget 1h     answers come as files

Every candidate runs in its own process. It is checked against a float64 reference on new inputs,
then timed in turns with the best candidate so far. It replaces the best only when it is faster by
more than the noise of the machine, by a statistical test that counts all candidates of the run. At
the end, the start, the library's own choice and the winner are checked and timed once more,
together; the table on stdout shows that comparison. Ctrl-C stops the run, and nothing is lost.

The folder of the run contains report.html (open it first), best/best_program.cpp or .cu (the source
of the winner), evidence.json (all measurements) and run.db; for a program also best/steps.diff, the
changes of each accepted step. See docs/evolve.md.

Exit codes: 0 the winner is verified, 1 it is not, or an error, 2 wrong usage, 130 Ctrl-C.)");
  command->callback([=, &run] {
    for (const CLI::Option* option : command->get_options())
      if (option->count() > 0) o->given.insert(option->get_name());
    run = [=] { return evolve_now(*o); };
  });
}

}  // namespace attune::cli
