// The judge. It runs candidates in workers of their own and believes none of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "evolve/compile/contract.hpp"
#include "evolve/judge/evaluation.hpp"
#include "src/status.hpp"

namespace attune::evolve {

struct EvaluatorOptions {
  std::vector<TimedShape> shapes;
  int threads = 1;
  uint64_t seed = 0;                   // secret: of inputs, orders and held-out shapes
  std::string tool;                    // the program whose `worker` command runs candidates
  std::string scratch;                 // a folder for compiled candidates
  Contract contract = Contract::none;  // of the program that a run starts with: none asks for less
  std::string programs;       // the folder of sources with relative paths; empty: the current one
  double check_seconds = 20;  // limits of one candidate
  double call_seconds = 10;   // of one call of a timed shape
  double late_seconds = 15;   // of all its samples together beyond 20 times the fastest call's
  int64_t memory_bytes = int64_t{4} << 30;
  int race_pairs = 5;            // samples before a slow candidate is given up
  int full_pairs = 15;           // samples of a survivor
  double batch_seconds = 0.004;  // a sample repeats its call until this long
  double peak_flops = 0;         // of one thread; 0: measured. Nothing is faster than 1.15 of it
  int64_t pool_bytes = int64_t{512} << 20;  // on a CUDA device: of numbers that timed calls read
  bool admit_slow = false;     // the timed shapes with hard inputs, also of what is no faster
  std::function<bool()> stop;  // asked between samples: Ctrl-C
  std::function<void(const std::string&)> on_step;  // of a judgement that takes long, for people
};

// Several programs on the same shapes, interleaved: for the final table, and for noise.
struct Comparison {
  std::vector<Candidate> candidates;
  // seconds[c][s]: a call of candidate c on shape s, one value a round; rounds are paired
  std::vector<std::vector<std::vector<double>>> seconds;
  std::vector<Evaluation> verdicts;  // of the checks; samples are above
  int sitting = 1;                   // so many rounds in the same workers, then in fresh ones
};

class Evaluator {
 public:
  virtual ~Evaluator() = default;

  // A result of an earlier sitting of the run: a candidate that comes again is known by it.
  virtual void recall(const Candidate& candidate, const Evaluation& evaluation) {
    (void)candidate, (void)evaluation;
  }

  // A candidate that will be evaluated soon: what can be done ahead, compiling, begins now.
  virtual void prefetch(const Candidate& candidate) { (void)candidate; }

  // Gives up what is being done ahead: nothing runs beside what comes next.
  virtual void settle() {}

  // The cascade: compile, check on small adversarial shapes, race, measure; beside the incumbent,
  // which is known to be right.
  virtual Evaluation evaluate(const Candidate& candidate, const Candidate& incumbent) = 0;

  // The same program against itself, in several pairs of fresh workers. evaluate() believes nothing
  // before it was measured; where it was not, it does so itself and returns it with the result.
  virtual Noise noise(const Candidate& candidate) = 0;

  // Fresh workers, fresh seeds, shapes that the search did not see: every candidate is checked
  // again, then all are timed together.
  virtual Comparison compare(const std::vector<Candidate>& candidates, int rounds) = 0;
};

std::unique_ptr<Evaluator> cpu_evaluator(EvaluatorOptions options);
// Why the CPU's memory does not suffice to time these shapes together; empty: it does.
std::string why_too_large(const std::vector<TimedShape>& shapes);
// 16-bit types that this processor multiplies in a matrix unit (AMX).
struct MatrixUnits {
  bool bf16 = false, f16 = false;
};
MatrixUnits matrix_units();
// Multiplications and additions in a second beyond which a time is impossible: 1.15 times `peak`,
// which one thread measured in float32. 16-bit types have instructions of their own: twice as many
// a cycle, or 16 times where the matrix unit takes the type.
double most_cpu_flops(DType dtype, double peak, int threads, const MatrixUnits& units);
// `device` is its number here. This process asks it for facts only, and never makes a context.
std::unique_ptr<Evaluator> cuda_evaluator(EvaluatorOptions options, int device);

}  // namespace attune::evolve
