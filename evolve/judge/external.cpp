#include "evolve/judge/external.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "evolve/judge/rule.hpp"
#include "evolve/propose/dice.hpp"
#include "evolve/worker/process.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {
namespace {

constexpr size_t kRepeats = 3;       // of one program, before its score counts as always the same
constexpr size_t kNoiseRepeats = 6;  // where it is not
constexpr double kClearly = 2.5;     // deviations: worse than the incumbent by its first score
constexpr int kRacePairs = 3;
constexpr double kHopeless = 0.3;  // a p-value after the race
constexpr int kFewestRepeats = 3, kMostRepeats = 12;
constexpr double kCertainScore = 5e-4;  // a p-value that a confirmation should reach
constexpr double kShare = 0.6;          // of the gain that the race showed
constexpr int kFinalRounds = 9, kFewestRounds = 5;
constexpr double kFinalSeconds = 600;  // of a comparison, where fewer rounds can save time

// A score that was given.
struct Given {
  double time = 0;  // pseudo-time
  ExternalRun run;
};

class ExternalEvaluator final : public Evaluator {
 public:
  explicit ExternalEvaluator(ExternalOptions options)
      : o_(std::move(options)), dice_(o_.seed, 0), shape_(score_shape(o_.spec)) {}

  void recall(const Candidate& candidate, const Evaluation& e) override {
    if (e.source_hash.empty() || !e.same_as.empty()) return;
    texts_.emplace(e.source_hash, candidate.id);
    if (!e.ok() || !e.claims) return;
    for (size_t n = 0; n < e.claims->scores.size(); ++n) {
      Given g;
      const std::optional<double> time = pseudo_time(o_.spec, e.claims->scores[n]);
      if (!time) return;
      g.time = *time;
      g.run.score = e.claims->scores[n];
      g.run.stages = e.claims->stages;
      g.run.metrics = e.claims->metrics;
      if (n < e.claims->seconds.size()) g.run.seconds = e.claims->seconds[n];
      given_[candidate.id].push_back(std::move(g));
    }
  }

  Evaluation evaluate(const Candidate& candidate, const Candidate& incumbent) override {
    const double begin = monotonic_seconds();
    Evaluation e;
    begin_judgement("judging " + candidate.id);
    evaluate_into(candidate, incumbent, &e);
    e.seconds = monotonic_seconds() - begin;
    return e;
  }

  // The scores of one program, in pairs.
  Noise noise(const Candidate& candidate) override {
    Evaluation e;
    if (!know_spread(candidate, &e)) return {};
    if (always_same()) return {{1, 1, 1}, 0, 0};
    std::vector<Given>& given = given_[candidate.id];
    while (given.size() < kNoiseRepeats)
      if (!give(candidate, &e)) return {};
    std::vector<Pairs> pairs = no_pairs();
    for (size_t n = 0; n + 1 < given.size(); n += 2) add(given[n], given[n + 1], &pairs);
    return noise_of(pairs);
  }

  Comparison compare(const std::vector<Candidate>& candidates, int rounds) override {
    Comparison c;
    begin_judgement("final comparison");
    c.candidates = candidates;
    c.sitting = kFresh;
    c.verdicts.resize(candidates.size());
    c.seconds.assign(candidates.size(), std::vector<std::vector<double>>(1));
    for (Evaluation& e : c.verdicts) e.stage = Stage::promote;
    const int count = rounds_for(candidates.size(), rounds);
    std::vector<size_t> order(candidates.size());
    for (size_t n = 0; n < order.size(); ++n) order[n] = n;
    for (int round = 0; round < count; ++round) {
      for (size_t n = order.size(); n > 1; --n)
        std::swap(order[n - 1], order[size_t(dice_.below(int64_t(n)))]);
      for (const size_t n : order) compare_one(round, n, &c);
    }
    return c;
  }

 private:
  void begin_judgement(std::string what) {
    judged_ = std::move(what);
    steps_ = 0;
  }

  static bool fail(Evaluation* e, Verdict verdict, std::string why) {
    e->verdict = verdict;
    e->why = std::move(why);
    return false;
  }

  std::vector<Pairs> no_pairs() const { return {{{}, {}, 1, kFresh}}; }
  static void add(const Given& a, const Given& b, std::vector<Pairs>* pairs) {
    (*pairs)[0].a.push_back(a.time);
    (*pairs)[0].b.push_back(b.time);
  }

  // ---- scores ----

  bool text_of(const Candidate& c, std::string* text, Evaluation* e) const {
    std::ifstream file(std::filesystem::path(o_.programs) / c.source, std::ios::binary);
    text->assign(std::istreambuf_iterator<char>(file), {});
    if (file.is_open() && !file.bad()) return true;
    return fail(e, Verdict::launch_failed, c.source + " cannot be read");
  }

  // One more evaluation. Kept, so that the spread of scores is known.
  bool give(const Candidate& c, Evaluation* e) {
    Given g;
    if (o_.start) {  // the first that is asked for is the start
      g.run = *std::exchange(o_.start, std::nullopt);
    } else {
      std::string text;
      if (!text_of(c, &text, e)) return false;
      if (++steps_ > 1 && o_.on_step)
        o_.on_step(fmt::format("{}: evaluation {}, of {}", judged_, steps_, c.id));
      g.run = run_external(o_.spec, o_.place, text);
    }
    claim(g.run, e);
    if (g.run.verdict != Verdict::ok) return fail(e, g.run.verdict, g.run.why);
    if (g.run.stages < o_.spec.stages)
      return fail(
          e, Verdict::wrong_result,
          fmt::format("with {:g} it ended at stage {} of the evaluator's cascade; the start "
                      "came to stage {}",
                      g.run.score, g.run.stages, o_.spec.stages));
    const std::optional<double> time = pseudo_time(o_.spec, g.run.score);
    if (!time)
      return fail(e, Verdict::wrong_result,
                  fmt::format("its score is {:g}; the start's is {:g}, and beside that a score "
                              "must be above 0",
                              g.run.score, o_.spec.start));
    g.time = *time;
    g.run.artifacts.clear();  // they were claimed
    given_[c.id].push_back(std::move(g));
    return true;
  }

  static void claim(const ExternalRun& run, Evaluation* e) {
    if (!e->claims) e->claims = Claims{run.metrics, run.artifacts, {}, {}, run.stages};
    if (run.verdict == Verdict::ok) e->claims->scores.push_back(run.score);
    e->claims->seconds.push_back(run.seconds);
  }

  // Of the incumbent, which was judged before: what it says now is not the candidate's.
  bool give_incumbent(const Candidate& incumbent, Evaluation* e) {
    Evaluation own;
    if (give(incumbent, &own)) return true;
    return fail(e, own.verdict == Verdict::run_timeout ? own.verdict : Verdict::launch_failed,
                "the incumbent failed: " + own.why);
  }

  // Of logs of one program's scores, over all programs; nothing where none has enough.
  std::optional<double> spread() const {
    double squares = 0, freedom = 0;
    for (const auto& [id, given] : given_) {
      double mean = 0;
      for (const Given& g : given) mean += std::log(g.time) / double(given.size());
      bool same = true;
      for (const Given& g : given) same = same && g.time == given[0].time;
      for (const Given& g : given) squares += same ? 0 : std::pow(std::log(g.time) - mean, 2);
      freedom += double(given.size()) - 1;
    }
    if (freedom + 1 < double(kRepeats)) return std::nullopt;
    return std::sqrt(squares / freedom);
  }
  bool always_same() const { return spread() == 0.0; }

  bool know_spread(const Candidate& incumbent, Evaluation* e) {
    std::vector<Given>& given = given_[incumbent.id];
    while (given.empty() || !spread())
      if (!give_incumbent(incumbent, e)) return false;
    while (!always_same() && given.size() < kRepeats)
      if (!give_incumbent(incumbent, e)) return false;
    return true;
  }

  // ---- the judgement ----

  void evaluate_into(const Candidate& candidate, const Candidate& incumbent, Evaluation* e) {
    std::string text;
    if (!text_of(candidate, &text, e)) return;
    e->source_hash = e->binary_hash = jit::hex(jit::sha256(text));
    const auto [known, is_new] = texts_.emplace(e->source_hash, candidate.id);
    if (!is_new && known->second != candidate.id) {
      e->same_as = known->second;
      fail(e, Verdict::invalid, "the same text as " + known->second);
      return;
    }
    e->stage = Stage::check;
    if (!give(candidate, e)) return;
    if (candidate.id == incumbent.id) {
      e->speedup = {1, 1, 1};
      return;
    }
    e->stage = Stage::race;
    std::vector<Pairs> pairs = no_pairs();
    if (!know_spread(incumbent, e) || !judge(candidate, incumbent, &pairs, e)) return;
    e->shapes = {{shape_.name, pairs[0].a, pairs[0].b}};
    e->sitting = kFresh;
    e->speedup = combined_ratio(pairs, kConfidence);
    if (e->stage == Stage::measure) e->p = p_value(pairs);
  }

  double incumbent_time(const Candidate& incumbent) {
    std::vector<double> times;
    for (const Given& g : given_[incumbent.id]) times.push_back(g.time);
    return median(std::move(times));
  }

  bool judge(const Candidate& candidate, const Candidate& incumbent, std::vector<Pairs>* pairs,
             Evaluation* e) {
    const Given first = given_[candidate.id].back();
    const double usual = incumbent_time(incumbent), gain = std::log(usual / first.time),
                 reach = kClearly * spread().value_or(0);
    if (always_same() ? gain <= 0 : gain < -reach) {  // one evaluation is enough
      (*pairs)[0].a = {first.time};
      (*pairs)[0].b = {usual};
      return true;
    }
    if (always_same()) {
      if (!give(candidate, e)) return false;
      if (always_same()) return same_again(candidate, incumbent, pairs, e);
    }
    Given theirs = first;
    for (int n = 0; n < kRacePairs; ++n)
      if (!add_pair(candidate, incumbent, n == 0 ? &theirs : nullptr, pairs, e)) return false;
    if (p_not_above(*pairs, 0) > kHopeless) return true;
    e->stage = Stage::measure;
    const int count = pairs_for(*pairs);
    *pairs = no_pairs();  // what was chosen for its first scores is judged by others
    for (int n = 0; n < count && (n == 0 || !futile(*pairs)); ++n)
      if (!add_pair(candidate, incumbent, nullptr, pairs, e)) return false;
    return true;
  }

  // Scores that never differ for one program: two of each, and none is asked for twice.
  bool same_again(const Candidate& candidate, const Candidate& incumbent, std::vector<Pairs>* pairs,
                  Evaluation* e) {
    while (given_[incumbent.id].size() < 2)
      if (!give_incumbent(incumbent, e)) return false;
    const std::vector<Given>&ours = given_[candidate.id], &theirs = given_[incumbent.id];
    e->stage = Stage::measure;
    for (size_t n = 0; n < 2; ++n)
      add(ours[ours.size() - 1 - n], theirs[theirs.size() - 1 - n], pairs);
    return true;
  }

  // Who goes first is left to chance: what the machine does meanwhile hits both alike.
  bool add_pair(const Candidate& candidate, const Candidate& incumbent, const Given* ours,
                std::vector<Pairs>* pairs, Evaluation* e) {
    const bool first = ours == nullptr && dice_.chance(0.5);
    for (const bool mine : {first, !first})
      if (mine ? ours == nullptr && !give(candidate, e) : !give_incumbent(incumbent, e))
        return false;
    add(ours != nullptr ? *ours : given_[candidate.id].back(), given_[incumbent.id].back(), pairs);
    return true;
  }

  // So many as should be enough for part of the gain that the race showed.
  int pairs_for(const std::vector<Pairs>& race) const {
    const std::optional<Estimate> e = estimate_of(race);
    const double gain = e ? kShare * e->mid : 0;
    const double own = e ? e->error * std::sqrt(double(race[0].a.size())) : 0;
    const double deviation = std::max({own, std::sqrt(2.0) * spread().value_or(0), 1e-12});
    int count = kFewestRepeats;
    while (count < kMostRepeats &&
           student_above(gain * std::sqrt(double(count)) / deviation, count - 1) > kCertainScore)
      ++count;
    return count;
  }

  // ---- the end ----

  int rounds_for(size_t candidates, int rounds) const {
    if (always_same()) return int(kRepeats);
    double seconds = 0, count = 0;
    for (const auto& [id, given] : given_)
      for (const Given& g : given) {
        seconds += g.run.seconds;
        ++count;
      }
    const double round = count > 0 ? seconds / count * double(candidates) : 0;
    const int most =
        std::clamp(int(kFinalSeconds / std::max(round, 1e-3)), kFewestRounds, kFinalRounds);
    return std::min(rounds, most);
  }

  // A new score of each in the first round. Where scores never differ, and this one does not
  // either, the ones before it are as good as others.
  void compare_one(int round, size_t n, Comparison* c) {
    const Candidate& candidate = c->candidates[n];
    Evaluation* e = &c->verdicts[n];
    if (!e->ok()) return;
    std::vector<Given>& given = given_[candidate.id];
    const size_t known = given.size();
    const bool reuse = round > 0 && always_same() && known > size_t(round);
    if (!reuse && !give(candidate, e)) return;
    const Given& g = reuse ? given[known - 1 - size_t(round)] : given.back();
    if (reuse) claim(g.run, e);
    c->seconds[n][0].push_back(g.time);
  }

  ExternalOptions o_;
  Dice dice_;
  TimedShape shape_;
  std::string judged_;                               // what the evaluations are for
  int steps_ = 0;                                    // of these
  std::map<std::string, std::vector<Given>> given_;  // by id
  std::map<std::string, std::string> texts_;         // hash, and the first candidate that had it
};

}  // namespace

std::unique_ptr<Evaluator> external_evaluator(ExternalOptions options) {
  return std::make_unique<ExternalEvaluator>(std::move(options));
}

TimedShape score_shape(const ExternalSpec& spec) {
  TimedShape shape;
  shape.name = spec.metric.empty() ? "combined_score" : spec.metric;
  shape.problem.batch = shape.problem.heads_q = shape.problem.heads_kv = 1;
  shape.problem.seq_q = shape.problem.seq_k = 1;
  shape.problem.dim = shape.problem.dim_v = 8;
  return shape;
}

}  // namespace attune::evolve
