// What `attune evolve` was asked for, and the run that follows from it.
#pragma once

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "evolve/genome/genome.hpp"
#include "evolve/judge/evaluator.hpp"
#include "evolve/store/store.hpp"

namespace attune::cli {

struct EvolveOptions {
  std::string device = "cpu", set, dtype = "f32", causal = "0", start = "naive", budget = "90s";
  std::string strategy = "evolve", seed = "0", folder, resume, replay, table, json;
  std::string program;            // a file; empty: the library's kernels are evolved
  std::vector<std::string> with;  // files whose blocks it may take
  std::vector<std::string> shapes;
  bool list_genes = false, promote = false, compile_tiles = false;
  int threads = 0, workers = 0, self_test = 0;
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
