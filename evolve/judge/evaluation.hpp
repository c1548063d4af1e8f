// What is known of a candidate once it was judged. No field of it comes from the candidate: every
// number is the parent's own.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "evolve/judge/stats.hpp"
#include "kernels/problem.h"

namespace attune::evolve {

enum class Verdict {
  ok,
  invalid,  // the config cannot run the problems
  compile_failed,
  compile_timeout,
  launch_failed,  // it refused, or the device did
  run_timeout,
  crashed,
  wrong_result,
  cheated
};
const char* verdict_name(Verdict verdict);
bool parse_verdict(const std::string& name, Verdict* verdict);

// How far down the cascade it came.
enum class Stage { valid, compile, check, race, measure, promote };
const char* stage_name(Stage stage);
bool parse_stage(const std::string& name, Stage* stage);

// What is timed: contiguous tensors of N(0,1).
struct TimedShape {
  std::string name;  // "1x8x1024x64"
  Problem problem;
  double weight = 1;
};

// What is judged: a typed genome in its printed form, or a program.
struct Candidate {
  std::string id;      // unique in the run: the printed form, or the program's name
  std::string config;  // of a typed one
  std::string source;  // path of a program; empty: typed
};

// What the user's evaluator said of a candidate (external.hpp). We cannot check any of it but the
// seconds, which are our own clock's.
struct Claims {
  std::map<std::string, double> metrics;  // of the first evaluation
  std::map<std::string, std::string>
      artifacts;                // so too: text, shortened and without control codes
  std::vector<double> scores;   // of each evaluation, in order
  std::vector<double> seconds;  // that each took
  int stages = 0;               // of its cascade that it ran; 0: it has none
};

struct ShapeSamples {
  std::string shape;
  std::vector<double> candidate, incumbent;  // seconds a call, in pairs
};

// What a kernel of a CUDA program takes of a multiprocessor, as ptxas says.
struct KernelUse {
  std::string name;
  int registers = 0;                      // of a thread
  int spill_stores = 0, spill_loads = 0;  // bytes
  int shared = 0;                         // bytes, without those of the launch
  bool operator==(const KernelUse&) const = default;
};

struct Evaluation {
  Verdict verdict = Verdict::ok;
  Stage stage = Stage::valid;
  std::string why;  // empty when ok
  std::string source_hash, binary_hash;
  std::vector<KernelUse> kernels;  // of a CUDA program
  std::string same_as;             // the id of an earlier candidate with the same binary
  double error = 0, limit = 0;     // the correctness case that came nearest to its limit
  std::vector<ShapeSamples> shapes;
  int sitting = 1;  // of the samples: so many pairs are of two workers, then of fresh ones; 1: all
                    // are of the same two, and nothing was confirmed; kFresh: each pair has its own
  Interval speedup;              // over the incumbent
  double p = 1;                  // p_value() of the samples
  std::optional<Claims> claims;  // where the judge is the user's
  std::optional<Noise> noise;    // where it was measured on the way; a run keeps it, not the record
  double compile_seconds = 0, seconds = 0;

  bool ok() const { return verdict == Verdict::ok; }
};

}  // namespace attune::evolve
