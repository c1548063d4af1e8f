// What `attune evolve` was asked for, and the run that follows from it.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/proposers.hpp"
#include "evolve/genome/genome.hpp"
#include "evolve/judge/evaluator.hpp"
#include "evolve/store/store.hpp"

namespace attune::cli {

struct EvolveOptions {
  std::string device = "cpu", set, dtype = "f32", causal = "0", start = "naive", budget = "90s";
  std::string strategy = "evolve", seed = "0", folder, resume, replay, table, json;
  std::string program;            // a file; empty: the library's kernels are evolved
  std::string pass;               // of a program: forward, backward; empty: what it has
  std::string reference;          // KernelBench's problem file, of a program that has a ModelNew
  std::vector<std::string> with;  // files whose blocks it may take
  std::vector<std::string> shapes;
  bool lse = false, list_genes = false, promote = false, compile_tiles = false;
  int threads = 0, workers = 0, self_test = 0;
  // An evaluator of the user's own.
  std::string evaluator, eval_command, metric, goal = "maximize", python, suffix;
  double eval_timeout = 300;
  int eval_retries = 0;
  bool cascade = true;
  std::vector<double> thresholds = {0.5, 0.75, 0.9};
  std::vector<std::string> features;
  // Of any run.
  std::string config;
  std::optional<double> target;
  int64_t iterations = 0;  // 0: --budget counts
  int checkpoint_interval = 100;
  int islands = 0;  // 0: the search's own number
  ProposerOptions proposers;
  std::set<std::string> given;  // by name: "--seed"

  bool has(const char* name) const { return given.count(name) > 0; }
};

inline void need(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message);
}

// What is wrong with a name of --device; empty: nothing.
std::string device_name_problem(const std::string& name);

// All of these throw UsageError for what makes no sense.
std::vector<evolve::TimedShape> shapes_of(const EvolveOptions& o);
evolve::RunMeta new_meta(const EvolveOptions& o);
// Of a run whose programs Attune does not run itself: system, processor, compiler, the tool's
// commit; the GPU that programs may use (its number, where there is one) with driver and clocks.
evolve::Json machine_facts(int gpu);
// What every run has, whoever judges it: seed, strategy, budget, target, interval of checkpoints.
void add_search(const EvolveOptions& o, evolve::RunMeta* meta);

// The run in a folder, as options may name it again: the same values are fine, others are refused
// by name, and a budget replaces the recorded one.
evolve::RunMeta recorded_meta(const EvolveOptions& o, const std::string& folder);

// The program of the options, with the blocks that it may take. What cannot be evolved is refused,
// with the line: no marker, no entry point, a text that the compiler refuses.
evolve::ProgramSource program_of(const EvolveOptions& o);

// What a call of each shape would run now, as the space prints it.
std::vector<std::string> library_now(const evolve::RunMeta& meta);

// Why a recorded run cannot be continued here, thrown.
void check_machine(const evolve::RunMeta& meta);

// A run has the facts of its machine with it, so that it can be replayed and reported on another.
std::unique_ptr<evolve::Space> space_of(const evolve::RunMeta& meta);

// How candidates of a run are judged here, with what they need in a folder below `folder`. Nobody
// knows the seed. Ctrl-C stops it.
std::string this_program();
evolve::EvaluatorOptions evaluator_options(const evolve::RunMeta& meta, const std::string& folder);
std::unique_ptr<evolve::Evaluator> evaluator_of(const evolve::RunMeta& meta,
                                                evolve::EvaluatorOptions options);

inline bool on_cuda(const evolve::RunMeta& meta) { return meta.device.starts_with("cuda"); }
int cuda_ordinal(const evolve::RunMeta& meta);  // of "cuda:1"
Arch cuda_arch(const evolve::RunMeta& meta);

}  // namespace attune::cli
