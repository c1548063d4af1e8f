// Where a run stands: what its committed records say, and a strategy that was told them. Both
// follow from the records alone, so that a run that was killed goes on, and is replayed, as if it
// had not been.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evolve/judge/rule.hpp"
#include "evolve/propose/exchange.hpp"
#include "evolve/propose/search.hpp"
#include "evolve/store/store.hpp"

namespace attune::evolve {

// What the records say so far: the best, and what is left of the error rate.
class Standing {
 public:
  // Judges a result, completes its outcome, and moves the incumbent where it was beaten.
  void judge(Record* r) {
    const Evaluation& e = r->evaluation;
    r->outcome = {};
    if (!e.ok()) return;
    if (r->proposal.n == 0) {
      r->outcome = {true, 0, true};
      accept(*r, {1, 1, 1});
      return;
    }
    r->outcome.ok = true;
    r->outcome.fitness = fitness_ + std::log(e.speedup.mid);
    r->outcome.improved = believed(e, &spending_);
    if (r->outcome.improved) accept(*r, e.speedup);
  }

  // A record that was judged before: in a resumed or replayed run.
  void restore(const Record& r) {
    if (r.proposal.n > 0) (void)believed(r.evaluation, &spending_);
    if (r.outcome.improved) accept(r, r.proposal.n == 0 ? Interval{1, 1, 1} : r.evaluation.speedup);
  }

  bool has_incumbent() const { return !incumbent_.id.empty(); }
  const Candidate& incumbent() const { return incumbent_; }
  const Genome& genome() const { return genome_; }
  double fitness() const { return fitness_; }
  const Interval& last() const { return last_; }

 private:
  void accept(const Record& r, const Interval& step) {
    incumbent_ = r.candidate;
    genome_ = r.proposal.genome;
    fitness_ = r.outcome.fitness;
    last_ = step;
  }

  Candidate incumbent_;
  Genome genome_;
  double fitness_ = 0;
  Interval last_{1, 1, 1};
  Spending spending_;
};

// A strategy that is told what it may know: proposal n reads results up to n - W.
class Driver {
 public:
  Driver(const RunMeta& meta, const Space& space) : window_(meta.window) {
    SearchOptions options;
    options.seed = meta.seed;
    if (meta.islands > 0) options.islands = meta.islands;
    if (meta.start == "current") options.start = space.library_default();
    if (!meta.library.empty()) options.library = space.library_default();
    strategy_ = make_strategy(meta.strategy, space, options);
  }

  bool known() const { return strategy_ != nullptr; }
  const Strategy& strategy() const { return *strategy_; }

  std::optional<Proposal> next(double progress) {
    catch_up(progress);
    return counted(strategy_->propose());
  }

  // A genome from outside, where the next proposal would be. Nothing: it was proposed before.
  std::optional<Proposal> offer(double progress, const Genome& genome, const std::string& op,
                                int64_t parent) {
    catch_up(progress);
    return counted(strategy_->offer(genome, op, parent));
  }

  void result(const Record& record) { results_.push_back(record); }

 private:
  void catch_up(double progress) {
    while (told_ <= proposed_ - window_ && told_ < int64_t(results_.size())) {
      const Record& r = results_[size_t(told_++)];
      strategy_->tell(r.proposal, r.outcome);
    }
    strategy_->progress(progress);
  }

  std::optional<Proposal> counted(std::optional<Proposal> proposal) {
    if (proposal) ++proposed_;
    return proposal;
  }

  int window_;
  std::unique_ptr<Strategy> strategy_;
  std::vector<Record> results_;
  int64_t proposed_ = 0, told_ = 0;
};

// Proposes again what was proposed, learns again what was learned, and tells what came of it.
Status restore(const std::vector<Record>& records, const Exchanges& exchanges, Space* space,
               Driver* driver, Standing* standing);

}  // namespace attune::evolve
