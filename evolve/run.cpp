// The coordinator: propose, evaluate, commit, tell; then the final comparison.
#include "evolve/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>
#include <thread>

#include "evolve/judge/final.hpp"
#include "evolve/proposals.hpp"
#include "evolve/report/checkpoint.hpp"
#include "evolve/standing.hpp"
#include "evolve/store/files.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {
namespace {

constexpr const char* kPrograms = "programs";  // a folder in the run's
constexpr std::chrono::milliseconds kAnswerPause{20};
const double kNoiseStep = std::log(4);  // of fitness: noise is another one where calls are shorter

using Clock = std::chrono::steady_clock;

void remove_scratch(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(scratch_folder(folder), ignored);
}

class Run {
 public:
  Run(const RunOptions& options, Space& space, Evaluator& evaluator, Store& store)
      : o_(options),
        space_(space),
        evaluator_(evaluator),
        store_(store),
        meta_(store.meta()),
        driver_(meta_, space),
        standing_(),
        proposals_(options.proposers, options.proposers_share, dynamic_cast<GrowingSpace*>(&space),
                   &store) {}

  Status search() {
    if (!driver_.known())
      return Status::invalid(fmt::format("there is no strategy '{}'", meta_.strategy));
    if (Status s = store_.records(&records_); !s.ok()) return s;
    Exchanges exchanges;
    if (Status s = read_exchanges(store_, &exchanges); !s.ok()) return s;
    if (Status s = restore(records_, exchanges, &space_, &driver_, &standing_); !s.ok()) return s;
    if (Status s = proposals_.restore(std::move(exchanges), records_); !s.ok()) return s;
    for (const Record& r : records_) evaluator_.recall(r.candidate, r.evaluation);
    restored_ = true;
    if (!records_.empty() && !standing_.has_incumbent()) return start_fails();
    for (const Record& r : records_)
      if (Status s = keep_program(r); !s.ok()) return s;
    spent_before_ = records_.empty() ? 0 : records_.back().at;
    begin_ = Clock::now();
    if (!finished())
      if (Status s = begin_sitting(); !s.ok()) return s;
    std::deque<Record> ahead;  // proposed, and perhaps being compiled
    while (!finished()) {
      if (Status s = look_ahead(&ahead); !s.ok()) return s;
      if (ahead.empty()) {
        exhausted_ = !finished();
        break;
      }
      Record r = std::move(ahead.front());
      ahead.pop_front();
      if (noise_due())
        if (Status s = measure_noise(); !s.ok()) return s;
      tell_progress(r.proposal.id);
      evaluate(&r);
      if (interrupted()) break;  // what was cut off is not a result
      if (Status s = check_machine(r.evaluation); !s.ok()) return s;
      if (r.evaluation.noise)
        if (Status s = keep_noise(*r.evaluation.noise); !s.ok()) return s;
      standing_.judge(&r);
      r.at = spent();
      if (Status s = store_.append(r, proposals_.events_of(r.proposal.n)); !s.ok()) return s;
      driver_.result(r);
      records_.push_back(std::move(r));
      proposals_.judged(records_.back(), scene());
      if (!standing_.has_incumbent()) return start_fails();
      if (const int64_t n = records_.back().proposal.n; n > 0 && n % meta_.checkpoint_interval == 0)
        if (Status s = checkpoint(); !s.ok()) return s;
    }
    if (Status s = checkpoint(); !s.ok()) return s;
    if (Status s = proposals_.end(scene()); !s.ok()) return s;
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
    const std::vector<std::string> library = library_ids(space_);
    const std::vector<Candidate> challengers =
        challengers_of(finalists_of(records_, standing_.incumbent(), library), library);
    std::string challenger = challengers[0].id;
    if (challengers.size() > 1)
      if (Status s = compare_finalists(library, challengers, &challenger); !s.ok()) return s;
    result->interrupted = interrupted();
    if (result->interrupted) return {};
    tell_progress(meta_.external ? "the start and the best of the search"
                                 : "start, library and the best of the search",
                  true);
    std::vector<Candidate> all{records_[0].candidate};
    const auto add = [&](const Candidate& candidate) {
      for (const Candidate& c : all)
        if (c.id == candidate.id) return;
      all.push_back(candidate);
    };
    for (const std::string& id : library) add(candidate_named(records_, id));
    for (const Candidate& c : challengers)
      if (c.id == challenger) add(c);
    for (const std::string& id : meta_.ceiling) add({id, id, ""});
    Comparison final = evaluator_.compare(all, o_.final_rounds);
    result->interrupted = interrupted();
    if (result->interrupted) return {};  // half of it proves nothing
    const Json noise = store_.get("noise");
    result->decision =
        decide(meta_, final, challenger, library, noise.is_null() ? 0 : noise_of(noise).margin);
    result->final = std::move(final);
    result->best = result->decision.best;
    result->genome = space_.parse(result->best).value_or(standing_.genome());
    return store_.put({{"final", to_json(result->final)},
                       {"decision", to_json(result->decision)},
                       {"best", result->best}});
  }

 private:
  Status start_fails() const {
    return {ATTUNE_INTERNAL,
            fmt::format("the start itself fails: {}: {}",
                        verdict_name(records_[0].evaluation.verdict), records_[0].evaluation.why)};
  }

  // As many proposals as may be made before the next result: W in all.
  Status look_ahead(std::deque<Record>* ahead) {
    while (int64_t(ahead->size()) < meta_.window && within_count(ahead->size())) {
      Record r;
      std::optional<Proposal> proposal;
      if (Status s = propose(ahead->size(), &r.progress, &proposal); !s.ok()) return s;
      if (!proposal) return {};
      r.proposal = *proposal;
      r.candidate = candidate_of(*proposal);
      if (Status s = keep_program(r); !s.ok()) return s;
      if (meta_.window > 1) evaluator_.prefetch(r.candidate);
      ahead->push_back(std::move(r));
    }
    return {};
  }

  // An answer of a proposer where one has come; else what the search proposes. Waits for an answer
  // where the search has nothing left, or where proposals are counted and it is a proposer's turn.
  Status propose(size_t ahead, double* progress, std::optional<Proposal>* proposal) {
    for (bool dry = false;;) {
      *progress = used(ahead);
      if (!o_.proposers.empty() && !records_.empty()) {
        if (Status s = proposals_.listen(scene()); !s.ok()) return s;
        if (const std::string news = proposals_.news(); !news.empty() && o_.on_news)
          o_.on_news(news);
        if (Status s = proposals_.next(&driver_, *progress, records_, proposal); !s.ok()) return s;
        proposals_.ask(scene(), ahead, dry);
        if (*proposal) return {};
      }
      const bool by_turn = meta_.budget_evaluations > 0 || o_.proposers_share >= 1;
      const bool wait = by_turn && !records_.empty() && proposals_.turn(records_.size() + ahead);
      if (!wait) *proposal = driver_.next(*progress);
      if (*proposal || ahead > 0 || records_.empty() || finished()) return {};
      const bool person = proposals_.patient() && meta_.budget_evaluations == 0;
      if (!proposals_.expects() && !person) return {};
      dry = !wait;
      tell_progress("waiting for an answer");
      std::this_thread::sleep_for(kAnswerPause);
    }
  }

  Scene scene() const {
    int64_t best = 0;
    for (const Record& r : records_)
      if (r.outcome.improved) best = r.proposal.n;
    return {meta_,   space_, records_, proposals_.exchanges(), best, elites(driver_.strategy()),
            spent(), 0};
  }

  Candidate candidate_of(const Proposal& proposal) const {
    const std::string text = space_.program(proposal.genome);
    if (text.empty()) return {proposal.id, proposal.id, ""};
    return {proposal.id, "",
            fmt::format("{}/{}{}", kPrograms, jit::hex(jit::sha256(text)).substr(0, 16),
                        meta_.program->extension())};
  }

  // The text of a program as a file, for the compiler, and in the database.
  Status keep_program(const Record& r) {
    if (r.candidate.source.empty()) return {};
    const std::string text = space_.program(r.proposal.genome);
    if (store_.get(r.candidate.source).is_null())
      if (Status s = store_.put(r.candidate.source, text); !s.ok()) return s;
    if (Status s = make_folder(fmt::format("{}/{}", o_.folder, kPrograms)); !s.ok()) return s;
    return write_file(fmt::format("{}/{}", o_.folder, r.candidate.source), text);
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
    if (meta_.program && !keeps_outside(*meta_.program, space_.program(r->proposal.genome))) {
      r->evaluation.verdict = Verdict::cheated;
      r->evaluation.why = "it changes what lies outside the markers";
      return;
    }
    const Candidate& incumbent = standing_.has_incumbent() ? standing_.incumbent() : r->candidate;
    r->incumbent = incumbent.id;
    r->evaluation = evaluator_.evaluate(r->candidate, incumbent);
  }

  // What an earlier sitting concluded is no longer the end.
  Status begin_sitting() {
    for (const char* name : {"best", "decision", "final", "finalists"})
      if (!store_.get(name).is_null())
        if (Status s = store_.put(name, Json()); !s.ok()) return s;
    return {};
  }

  // A compiler that fails because the disk is full says nothing about the candidate, and each of
  // the next would fail alike.
  Status check_machine(const Evaluation& e) const {
    if (e.verdict != Verdict::compile_failed && e.verdict != Verdict::launch_failed) return {};
    const Status room = check_room(scratch_folder(o_.folder));
    if (room.ok()) return {};
    return {room.code, room.message + ". What was committed is safe: make room and resume"};
  }

  // Before anything is compared with a fast incumbent, in each sitting anew, and again when much
  // faster kernels are. Plain loops are slow to measure and their first successor is obvious: where
  // it is not, the judge measures the noise itself before it believes anything.
  bool noise_due() const {
    if (!standing_.has_incumbent()) return false;
    if (!noise_at_) return meta_.start == "current" || standing_.fitness() > 0;
    return standing_.fitness() > *noise_at_ + kNoiseStep;
  }

  Status measure_noise() {
    tell_progress("measuring the noise: one program against itself");
    return keep_noise(evaluator_.noise(standing_.incumbent()));
  }

  Status keep_noise(const Noise& noise) {
    noise_at_ = standing_.fitness();
    // Cut off by Ctrl-C, or failed: there is none.
    if (interrupted() || !std::isfinite(noise.margin) || noise.ratio.mid == 0) return {};
    return store_.put("noise", to_json(noise));
  }

  // The best few by what the search measured, measured anew together with what the library runs.
  Status compare_finalists(const std::vector<std::string>& library,
                           const std::vector<Candidate>& challengers, std::string* challenger) {
    if (interrupted()) return {};
    tell_progress("the best of the search", true);
    const Comparison c =
        evaluator_.compare(finalists_of(records_, standing_.incumbent(), library), o_.final_rounds);
    if (interrupted()) return {};
    *challenger = fastest_of(meta_, c, challengers);
    return store_.put("finalists", to_json(c));
  }

  Status checkpoint() const {
    if (records_.empty() || !standing_.has_incumbent()) return {};
    return write_checkpoint(
        {meta_, records_, space_, elites(driver_.strategy()), standing_.incumbent().id}, o_.folder);
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
  bool finished() const { return interrupted() || used() >= 1 || reached(); }

  // The target: a score by the user's evaluator, else the speed over the start.
  bool reached() const {
    if (!meta_.target || !standing_.has_incumbent()) return false;
    if (!meta_.external) return std::exp(standing_.fitness()) >= *meta_.target;
    const double score = score_after(*meta_.external, standing_.fitness());
    return meta_.external->minimize ? score <= *meta_.target : score >= *meta_.target;
  }

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
  Space& space_;
  Evaluator& evaluator_;
  Store& store_;
  const RunMeta& meta_;
  Driver driver_;
  Standing standing_;
  Proposals proposals_;
  std::vector<Record> records_;
  double spent_before_ = 0;
  Clock::time_point begin_ = Clock::now();
  bool restored_ = false, exhausted_ = false;
  std::optional<double> noise_at_;  // the fitness of what it was measured with
};

}  // namespace

Status run(const RunOptions& options, Space& space, Evaluator& evaluator, RunResult* result) {
  if (!options.proposers.empty() && dynamic_cast<GrowingSpace*>(&space) == nullptr)
    return Status::invalid("proposers are for programs");
  if (options.meta.window < 1) return Status::invalid("the window is below 1");
  if (options.meta.checkpoint_interval < 1)
    return Status::invalid("the interval of checkpoints is below 1");
  if (!options.resume && options.meta.budget_seconds <= 0 && options.meta.budget_evaluations <= 0)
    return Status::invalid("there is no budget");
  RunMeta meta = options.meta;
  if (meta.library.empty()) meta.library = library_ids(space);
  std::unique_ptr<Store> store;
  Status s = options.resume ? Store::open(options.folder, true, &store)
                            : Store::create(options.folder, meta, &store);
  if (!s.ok()) return s;
  if (store->meta().rule != kRule)
    return Status::invalid(
        fmt::format("{} was judged by rule {}, and this version judges by rule {}: it can be "
                    "replayed and reported, but not continued. Start a new run",
                    options.folder, store->meta().rule, kRule));
  if (!options.proposers_settings.is_null() &&
      store->get("proposers") != options.proposers_settings)
    s = store->put("proposers", options.proposers_settings);
  if (!s.ok()) return s;
  if (options.meta.budget_seconds > 0 || options.meta.budget_evaluations > 0)
    s = store->set_budget(options.meta.budget_seconds, options.meta.budget_evaluations);
  if (!s.ok()) return s;
  // We have the folder to ourselves: what lies about is of processes that were killed.
  remove_scratch(options.folder);
  remove_leftovers(options.folder);
  remove_leftovers(options.folder + "/best");
  remove_unfinished_checkpoints(options.folder);
  Run run(options, space, evaluator, *store);
  s = run.search();
  if (s.ok())
    s = run.finish(result);
  else
    run.sum_up(result);
  for (const auto& proposer : options.proposers) proposer->stop();
  evaluator.settle();
  remove_scratch(options.folder);
  return s;
}

}  // namespace attune::evolve
