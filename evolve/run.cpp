// The coordinator: propose, evaluate, commit, tell; then the final comparison.
#include "evolve/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>

#include "evolve/files.hpp"
#include "evolve/standing.hpp"

namespace attune::evolve {
namespace {

constexpr int kNoisePairs = 20;
const double kNoiseStep = std::log(4);  // of fitness: noise is another one where calls are shorter
constexpr int kFinalists = 3;

using Clock = std::chrono::steady_clock;

void remove_scratch(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(scratch_folder(folder), ignored);
}

class Run {
 public:
  Run(const RunOptions& options, const Space& space, Evaluator& evaluator, Store& store)
      : o_(options),
        space_(space),
        evaluator_(evaluator),
        store_(store),
        meta_(store.meta()),
        driver_(meta_, space),
        standing_() {}

  Status search() {
    if (!driver_.known())
      return Status::invalid(fmt::format("there is no strategy '{}'", meta_.strategy));
    if (Status s = store_.records(&records_); !s.ok()) return s;
    if (Status s = restore(records_, &driver_, &standing_); !s.ok()) return s;
    restored_ = true;
    if (!records_.empty() && !standing_.has_incumbent()) return start_fails();
    spent_before_ = records_.empty() ? 0 : records_.back().at;
    begin_ = Clock::now();
    if (!finished())
      if (Status s = begin_sitting(); !s.ok()) return s;
    std::deque<Record> ahead;  // proposed, and perhaps being compiled
    while (!finished()) {
      look_ahead(&ahead);
      if (ahead.empty()) {
        exhausted_ = true;
        break;
      }
      Record r = std::move(ahead.front());
      ahead.pop_front();
      tell_progress(r.proposal.id);
      evaluate(&r);
      if (interrupted()) break;  // what was cut off is not a result
      if (Status s = check_machine(r.evaluation); !s.ok()) return s;
      standing_.judge(&r);
      r.at = spent();
      if (Status s = store_.append(r); !s.ok()) return s;
      driver_.result(r);
      records_.push_back(std::move(r));
      if (!standing_.has_incumbent()) return start_fails();
      if (standing_.fitness() > noise_at_ + kNoiseStep)
        if (Status s = measure_noise(); !s.ok()) return s;
    }
    return save_archive();
  }

  // What the search itself knows, however it ended.
  void sum_up(RunResult* result) const {
    if (!restored_) return;
    result->evaluations = int64_t(records_.size());
    result->interrupted = interrupted();
    result->exhausted = exhausted_;
    result->best = standing_.incumbent().id;
    result->genome = standing_.genome();
    result->speedup = std::exp(standing_.fitness());
  }

  Status finish(RunResult* result) {
    evaluator_.settle();
    sum_up(result);
    if (!standing_.has_incumbent() || interrupted()) return {};
    const Candidate library = typed(space_.library_default());
    const Candidate start = records_[0].candidate;
    const Candidate winner = best_of_finalists();
    result->interrupted = interrupted();
    if (result->interrupted) return {};
    tell_progress("start, library and winner", true);
    std::vector<Candidate> all;
    const auto place = [&](const Candidate& c) {
      for (size_t n = 0; n < all.size(); ++n)
        if (all[n].id == c.id) return n;
      all.push_back(c);
      return all.size() - 1;
    };
    result->start = place(start);
    result->library = place(library);
    result->winner = place(winner);
    Comparison final = evaluator_.compare(all, o_.final_rounds);
    result->interrupted = interrupted();
    if (result->interrupted) return {};  // half of it proves nothing
    result->final = std::move(final);
    result->best = winner.id;
    result->genome = space_.parse(winner.config).value_or(standing_.genome());
    if (Status s = store_.put("best", result->best); !s.ok()) return s;
    return store_.put("final", to_json(result->final));
  }

 private:
  Candidate typed(const Genome& genome) const {
    const std::string id = space_.print(genome);
    return {id, id, ""};
  }

  Status start_fails() const {
    return {ATTUNE_INTERNAL,
            fmt::format("the start itself fails: {}: {}",
                        verdict_name(records_[0].evaluation.verdict), records_[0].evaluation.why)};
  }

  // As many proposals as may be made before the next result: W in all.
  void look_ahead(std::deque<Record>* ahead) {
    while (int64_t(ahead->size()) < meta_.window && within_count(ahead->size())) {
      Record r;
      r.progress = used(ahead->size());
      const std::optional<Proposal> proposal = driver_.next(r.progress);
      if (!proposal) return;
      r.proposal = *proposal;
      r.candidate = {proposal->id, proposal->id, ""};
      if (meta_.window > 1) evaluator_.prefetch(r.candidate);
      ahead->push_back(std::move(r));
    }
  }
  bool within_count(size_t ahead) const {
    return meta_.budget_evaluations == 0 ||
           int64_t(records_.size() + ahead) < meta_.budget_evaluations;
  }

  void evaluate(Record* r) {
    if (const std::string reason = space_.invalid_reason(r->proposal.genome); !reason.empty()) {
      r->evaluation.verdict = Verdict::invalid;
      r->evaluation.why = reason;
      return;
    }
    const Candidate& incumbent = standing_.has_incumbent() ? standing_.incumbent() : r->candidate;
    r->incumbent = incumbent.id;
    r->evaluation = evaluator_.evaluate(r->candidate, incumbent);
  }

  // What an earlier sitting concluded is no longer the end, and its margin was its own.
  Status begin_sitting() {
    for (const char* name : {"best", "final", "finalists"})
      if (!store_.get(name).is_null())
        if (Status s = store_.put(name, Json()); !s.ok()) return s;
    return note_margin(Json());
  }

  // Which margin holds from the next record on; null: the judge's own, before it knows the noise.
  Status note_margin(const Json& margin) {
    Json margins = store_.get("margins");
    if (!margins.is_array()) margins = Json::array();
    margins.push_back({records_.size(), margin});
    return store_.put("margins", margins);
  }

  // A compiler that fails because the disk is full says nothing about the candidate, and each of
  // the next would fail alike.
  Status check_machine(const Evaluation& e) const {
    if (e.verdict != Verdict::compile_failed && e.verdict != Verdict::launch_failed) return {};
    const Status room = check_room(scratch_folder(o_.folder));
    if (room.ok()) return {};
    return {room.code, room.message + ". What was committed is safe: make room and resume"};
  }

  // Once the first step up is made, and again when much faster kernels are held against each other.
  Status measure_noise() {
    noise_at_ = standing_.fitness();
    tell_progress("measuring the noise: one program against itself");
    const Noise noise = evaluator_.noise(standing_.incumbent(), kNoisePairs);
    // Cut off by Ctrl-C, or failed: there is none.
    if (interrupted() || !std::isfinite(noise.margin) || noise.ratio.mid == 0) return {};
    if (Status s = store_.put("noise", to_json(noise)); !s.ok()) return s;
    return note_margin(noise.margin);
  }

  // The best few by what the search measured, measured anew together.
  Candidate best_of_finalists() {
    std::vector<const Record*> ranked;
    for (const Record& r : records_)
      if (r.outcome.ok && (r.evaluation.stage == Stage::measure || r.proposal.n == 0))
        ranked.push_back(&r);
    std::stable_sort(ranked.begin(), ranked.end(), [](const Record* a, const Record* b) {
      return a->outcome.fitness > b->outcome.fitness;
    });
    std::vector<Candidate> finalists{standing_.incumbent()};
    const auto add = [&](const Candidate& c) {
      for (const Candidate& f : finalists)
        if (f.id == c.id) return;
      finalists.push_back(c);
    };
    for (size_t n = 0; n < ranked.size() && n < size_t(kFinalists); ++n) add(ranked[n]->candidate);
    if (finalists.size() == 1 || interrupted()) return finalists[0];
    tell_progress("the best of the search", true);
    const Comparison c = evaluator_.compare(finalists, o_.final_rounds);
    if (interrupted()) return finalists[0];
    size_t best = 0;
    double best_time = INFINITY;
    for (size_t n = 0; n < finalists.size(); ++n) {
      double time = 0;
      if (!c.verdicts[n].ok()) time = INFINITY;
      for (size_t s = 0; s < c.seconds[n].size(); ++s)
        time += c.seconds[n][s].empty()
                    ? INFINITY
                    : meta_.shapes[s].weight * std::log(median(c.seconds[n][s]));
      if (time < best_time) {
        best_time = time;
        best = n;
      }
    }
    (void)store_.put("finalists", to_json(c));
    return finalists[best];
  }

  Status save_archive() {
    Json operators = Json::array(), cells = Json::array();
    for (const OperatorCount& c : operator_counts(driver_.strategy()))
      operators.push_back(
          {{"name", c.name}, {"tried", c.tried}, {"valid", c.valid}, {"improved", c.improved}});
    for (const Elite& e : elites(driver_.strategy()))
      cells.push_back(
          {{"cell", e.cell.at}, {"island", e.island}, {"n", e.n}, {"fitness", e.fitness}});
    if (Status s = store_.put("operators", operators); !s.ok()) return s;
    return store_.put("elites", cells);
  }

  double spent() const {
    return spent_before_ + std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  bool interrupted() const { return o_.stop && o_.stop(); }
  // 0..1 of the budget; a run by count looks at the number of the proposal, never at the clock.
  double used(size_t ahead = 0) const {
    if (meta_.budget_evaluations > 0)
      return double(records_.size() + ahead) / double(meta_.budget_evaluations);
    return std::min(1.0, spent() / meta_.budget_seconds);
  }
  bool finished() const { return interrupted() || used() >= 1; }

  void tell_progress(const std::string& now, bool comparing = false) const {
    if (!o_.on_progress) return;
    Progress p;
    p.evaluations = int64_t(records_.size());
    p.failed = std::count_if(records_.begin(), records_.end(),
                             [](const Record& r) { return !r.evaluation.ok(); });
    p.seconds = spent();
    const double fraction = used();
    p.left = meta_.budget_seconds > 0 && meta_.budget_evaluations == 0
                 ? std::max(0.0, meta_.budget_seconds - p.seconds)
             : fraction > 0 ? p.seconds * (1 - fraction) / fraction
                            : 0;
    p.speedup = std::exp(standing_.fitness());
    p.last = standing_.last();
    p.best = standing_.incumbent().id;
    p.comparing = comparing;
    p.now = now;
    o_.on_progress(p);
  }

  const RunOptions& o_;
  const Space& space_;
  Evaluator& evaluator_;
  Store& store_;
  const RunMeta& meta_;
  Driver driver_;
  Standing standing_;
  std::vector<Record> records_;
  double spent_before_ = 0;
  Clock::time_point begin_ = Clock::now();
  bool restored_ = false, exhausted_ = false;
  double noise_at_ = -kNoiseStep;  // the fitness of what it was measured with
};

}  // namespace

Status run(const RunOptions& options, const Space& space, Evaluator& evaluator, RunResult* result) {
  if (options.meta.window < 1) return Status::invalid("the window is below 1");
  if (!options.resume && options.meta.budget_seconds <= 0 && options.meta.budget_evaluations <= 0)
    return Status::invalid("there is no budget");
  std::unique_ptr<Store> store;
  Status s = options.resume ? Store::open(options.folder, true, &store)
                            : Store::create(options.folder, options.meta, &store);
  if (!s.ok()) return s;
  if (options.meta.budget_seconds > 0 || options.meta.budget_evaluations > 0)
    s = store->set_budget(options.meta.budget_seconds, options.meta.budget_evaluations);
  if (!s.ok()) return s;
  // We have the folder to ourselves: what lies about is of processes that were killed.
  remove_scratch(options.folder);
  remove_leftovers(options.folder);
  remove_leftovers(options.folder + "/best");
  Run run(options, space, evaluator, *store);
  s = run.search();
  if (s.ok())
    s = run.finish(result);
  else
    run.sum_up(result);
  evaluator.settle();
  remove_scratch(options.folder);
  return s;
}

}  // namespace attune::evolve
