// The cascade that every candidate goes down, on whatever device: check, race, measure. Candidate
// and incumbent run in workers of their own, on the same data, one at a time and in random order.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evolve/compile/host_compile.hpp"
#include "evolve/judge/arena_case.hpp"
#include "evolve/judge/evaluator.hpp"
#include "evolve/judge/rule.hpp"
#include "evolve/judge/timed_set.hpp"
#include "evolve/propose/dice.hpp"
#include "evolve/worker/worker.hpp"

namespace attune::evolve {

// One program in its worker, ready to run.
struct Lane {
  std::string id, config;
  // Of a program on a device: the process that owns the memory, and looks at what is in it.
  std::unique_ptr<Worker> keeper;
  std::unique_ptr<Worker> worker;
  bool program = false;                // not typed: the least is known about it
  Contract contract = Contract::none;  // of a program
  int threads = 0;                     // of the worker when it was loaded
  std::vector<int> calls;              // of a sample, for each shape
  std::vector<double> first;           // seconds of the first call, for each shape
  std::vector<double> least;           // seconds of the fastest one
  double patience = 0;                 // seconds that its samples may still be late
  double empty = INFINITY;  // seconds of a request without a call, before a program was loaded
  bool trusted = false;

  void close() {
    worker.reset();
    keeper.reset();
  }
};

class Cascade : public Evaluator {
 public:
  void recall(const Candidate& candidate, const Evaluation& evaluation) override;
  Evaluation evaluate(const Candidate& candidate, const Candidate& incumbent) override;
  Noise noise(const Candidate& candidate) override;
  Comparison compare(const std::vector<Candidate>& candidates, int rounds) override;

 protected:
  explicit Cascade(EvaluatorOptions options);

  // ---- what devices do each in their way ----

  // Compiles what has to be, starts the lane's worker and loads the candidate.
  virtual bool open(const Candidate& candidate, Lane* lane, Evaluation* e) = 0;
  // Whether the candidate runs a problem in this layout at all; cases that it does not are not
  // asked of it.
  virtual bool runs(const Lane& lane, const check::Case& c) const = 0;
  // What its arithmetic may be off by, beyond plain float32's.
  virtual check::Allowance allowance(const Lane& lane, const Problem& problem) const = 0;
  // One request for these calls, and its reply. `done` hears of each call where that is asked for
  // by itself.
  using Done = std::function<void(size_t)>;
  virtual Reply run(Lane* lane, std::span<const int64_t> calls, double limit, const Done& done) {
    (void)done;
    return lane->worker->run(calls, limit);
  }
  // Of each call the row that lies farthest from the library's, where that is found on the device.
  virtual Reply worst_rows(Lane* lane, std::span<const int64_t> calls, std::vector<int64_t>* rows) {
    (void)lane, (void)calls, (void)rows;
    return {Reply::Kind::refused, "results are compared in the arena", 0};
  }
  // What a call reads and writes, to where it is computed and back.
  virtual Reply upload(Lane* lane, std::span<const Range> ranges) = 0;
  virtual Reply fetch(Lane* lane, std::span<const Range> ranges) = 0;
  // Fresh poison in the outputs of timed calls.
  virtual Reply poison(Lane* lane, std::span<const Range> ranges) = 0;
  // Multiplications and additions, and bytes, that the device cannot exceed in a second.
  virtual double most_flops(DType dtype) const = 0;
  virtual double most_bytes() const = 0;
  // Whether the processor time of a worker, which the system counts, is what its calls cost.
  virtual bool processor_time_tells() const = 0;
  // Whether LSE changes a config's code, rather than what it does with its arguments.
  virtual bool lse_is_another_kernel() const = 0;
  // Whether what is about to be accepted is checked at the timed shapes with hard inputs too.
  virtual bool admits(const Lane& lane) const = 0;
  // After timed calls: empty, or what it does beside them.
  virtual std::string hidden_work(Lane* lane, Evaluation* e) = 0;

  bool fail(Evaluation* e, Verdict verdict, std::string why) const;
  bool fail(Evaluation* e, const Reply& reply) const;
  // The shared object of a program. A text is compiled once.
  using Build = std::function<Built(const std::string& text)>;
  bool compile_program(const Candidate& c, Language language, const Build& build, Lane* lane,
                       std::string* library, Evaluation* e);
  // The text of a program, and whether it was compiled already.
  std::optional<std::string> program_text(const Candidate& c) const;
  bool is_compiled(const std::string& text) const { return programs_.contains(text); }
  // Seconds of a request without a call.
  bool time_empty(Lane* lane, double* seconds, Evaluation* e);
  // The same binary as an earlier candidate's, whose config or program was another, is that
  // candidate.
  bool is_twin(const Candidate& c, Evaluation* e);

  EvaluatorOptions o_;
  Dice dice_;
  Status health_;  // of the evaluator itself
  std::unique_ptr<Arena> arena_;
  std::vector<std::unique_ptr<TimedData>> sets_;
  Arena::Mark mark_;        // of the arena, behind the timed sets
  cpu::Executor executor_;  // of the reference
  double step_ = 0;         // seconds that each further call of a program's request costs

 protected:
  double empty_of(const Lane& lane) const;

 private:
  bool asks_backward() const;  // the run is of the backward pass
  bool no_case(const ArenaCase& c, Evaluation* e) const;
  // The lane has a program of this contract; invalid when that has no word for a timed shape, or
  // asks for less than the contract of the run's start.
  bool keeps_to(Contract contract, Language language, Lane* lane, Evaluation* e) const;
  bool stopped() const { return o_.stop && o_.stop(); }
  void evaluate_into(const Candidate& candidate, const Candidate& incumbent, Evaluation* e);
  bool ready_incumbent(const Candidate& incumbent, Evaluation* e);
  bool admit_anew(const Candidate& candidate, Evaluation* e);
  double sit_together(int rounds, bool first, Comparison* c);

  bool check(Lane* lane, Evaluation* e);
  bool run_case(Lane* lane, ArenaCase* c, const check::Case& which, double limit, Evaluation* e);
  bool same_again(Lane* lane, ArenaCase* c, const check::Case& which, double limit, Evaluation* e);
  bool admit(Lane* lane, Evaluation* e);
  bool run_large(Lane* lane, const check::Case& which, double limit, Evaluation* e);
  Reply run_there_and_back(Lane* lane, const ArenaCase& c, double limit);

  std::vector<Pairs> fresh_pairs(int sitting = 1) const;
  bool warm_up(Lane* lane, Evaluation* e);
  bool sample(Lane* lane, size_t s, double* seconds, Evaluation* e, TimedData::Look look = {},
              int times = 1, Hard hard = Hard::even);
  bool not_hidden(Lane* lane, Evaluation* e);
  bool whole_inputs(Lane* lane, Evaluation* e);
  bool sample_pair(Lane* candidate, Lane* incumbent, std::vector<Pairs>* pairs, Evaluation* e);
  void race(const Candidate& candidate, const Candidate& incumbent, Lane* lane, Evaluation* e);
  bool measure(Lane* lane, std::vector<Pairs>* pairs, Next* next, Evaluation* e);
  bool confirm(const Candidate& candidate, const Candidate& incumbent, std::vector<Pairs>* pairs,
               Evaluation* e);
  bool sit(const Candidate& candidate, const Candidate& incumbent, bool thorough,
           std::vector<Pairs>* pairs, Evaluation* e);
  bool twice_takes_twice(Lane* lane, Evaluation* e);
  bool fetched_fault(Lane* lane, Evaluation* e, const std::function<Fault(const Access&)>& verify,
                     double* first = nullptr);
  void shuffle(std::vector<size_t>* order);

  std::optional<double> margin_;  // Noise::margin, once it was measured
  double start_seconds_ = 0;      // of two fresh workers, until they are warm
  double pair_seconds_ = 0;
  // Seconds of a request without a call, and of looking at a shape's results: the least that any
  // worker took, since a worker could make its own longer.
  double empty_ = INFINITY;
  std::vector<double> look_;
  Lane incumbent_;
  std::map<std::string, Built> programs_;        // by text
  std::map<std::string, std::string> binaries_;  // hash, and the first candidate that had it
};

}  // namespace attune::evolve
