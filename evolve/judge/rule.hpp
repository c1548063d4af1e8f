// The rule by which a candidate is believed to be faster. The judge, a resumed run and a replay all
// call what is here, so that a verdict follows from samples alone.
//
// 1. A first measurement in one pair of workers gives candidates up; it accepts none of them. On a
//    machine with more work than processors, one of two equal workers can be three times as slow as
//    the other for as long as it lives.
// 2. What is promising is measured anew in several sittings, each in two fresh workers. Student's t
//    over the sittings gives the p-value: the difference between processes is part of its error.
// 3. A run has one error rate, which its confirmations share.
#pragma once

#include <span>
#include <vector>

#include "evolve/judge/evaluation.hpp"
#include "evolve/judge/evaluator.hpp"
#include "evolve/judge/stats.hpp"

namespace attune::evolve {

// Which of its versions judged a run: RunMeta::rule. Runs that name none were judged by the first.
constexpr int kRule = 2;

// ---- the first measurement ----

enum class Next { more, give_up, confirm };

// What follows from the pairs so far. `margin`: Noise::margin, which one pair of workers may differ
// by. `late`: it took long enough; that ends it where there are enough pairs.
Next after_pair(std::span<const Pairs> pairs, double margin, const EvaluatorOptions& options,
                bool late);

// Faster by so much that a short confirmation is enough.
bool obvious(std::span<const Pairs> pairs);

// ---- the confirmation ----

struct Confirmation {
  int sittings = 0, pairs = 0;  // so many pairs in each
};
// By what the first measurement says of the gain, and by the seconds that two fresh workers and a
// pair take. It does not look at the confirmation itself.
Confirmation confirmation_of(std::span<const Pairs> first, double start_seconds,
                             double pair_seconds);

// Whether the sittings so far (Pairs::block) promise so little that no more are worth it. It may
// end a confirmation early, never in favour of the candidate.
bool futile(std::span<const Pairs> sittings);

// ---- the verdict ----

// Of being no faster, by sittings. 1 of one pair of workers, which says nothing about that.
double p_value(std::span<const Pairs> pairs);

// 3 % for all confirmations of a run together. Each has a share of it, fixed before it is looked
// at; what an accepted one had is passed on to the next. So the chance that a run accepts anything
// that is no faster is at most that, however long it lasts.
class Spending {
 public:
  double level() const;    // of the next confirmation
  bool accepts(double p);  // spends it

 private:
  int looks_ = 0;
  double passed_on_ = 0;
};

// Whether what was measured is accepted as faster.
bool believed(const Evaluation& evaluation, Spending* spending);

// Which candidate of a comparison wins. `holders` are places in it, in the order in which they must
// be beaten: the first one stays unless another is better beyond the interval; the next one, once
// it holds, is replaced by the same rule; and so on for all other candidates. The intervals cover
// together with 95 %.
size_t winner_of(const Comparison& comparison, const std::vector<TimedShape>& shapes,
                 const std::vector<size_t>& holders);

}  // namespace attune::evolve
