#include "evolve/judge/cascade.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "src/jit/sha256.hpp"
#include "src/problem.hpp"

namespace attune::evolve {
namespace {

constexpr double kLongSeconds = 5;  // of timing one candidate, once there are enough pairs
// A worker runs each shape for so long before it is timed, or so many samples where they are short.
constexpr double kWarmSeconds = 0.05;
constexpr int kMostWarm = 50;
constexpr int kSitting = 3;         // rounds of a comparison in the same workers
constexpr int kFewestCompared = 5;  // of a comparison, before time ends it
constexpr int kNoiseSittings = 8, kFewestNoiseSittings = 4, kNoisePairs = 4;
constexpr double kLate = 0.5;      // of a sample's time: looking at it takes that much longer
constexpr double kSameTime = 0.7;  // of a call's time, when there are twice as many of them
constexpr int kMostTries = 8;
constexpr double kMuchLonger = 20, kSomeSeconds = 2;   // than its fastest call: it hangs
constexpr double kLargerCase = 8;                      // twice the batch, rows and keys
constexpr double kMoreWork = 1.05, kSomeWork = 0.002;  // processor time beyond the timed seconds
constexpr int kManyRows = 8;                           // of a first look
constexpr double kUncounted = 0.2;                     // of a program's samples

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What a kernel is specialised on; sizes are the cases' own.
Problem key_of(const Problem& p) {
  Problem key = kernel_key(p);
  if (p.window()) {
    key.window_left = p.window_left;
    key.window_right = p.window_right;
  }
  return key;
}

std::optional<std::string> contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  return file ? std::optional(std::move(text)) : std::nullopt;
}

}  // namespace

Cascade::Cascade(EvaluatorOptions options) : o_(std::move(options)), dice_(o_.seed, 0) {
  executor_.threads = o_.threads;
}

// What never came to its checks is not the first with its binary: is_twin() did not see it either.
void Cascade::recall(const Candidate& candidate, const Evaluation& e) {
  if (e.binary_hash.empty() || e.stage < Stage::check) return;
  binaries_.emplace(e.binary_hash, candidate.source.empty() ? candidate.config : candidate.id);
}

Evaluation Cascade::evaluate(const Candidate& candidate, const Candidate& incumbent) {
  const auto begin = Clock::now();
  Evaluation e;
  evaluate_into(candidate, incumbent, &e);
  e.seconds = seconds_since(begin);
  return e;
}

Noise Cascade::noise(const Candidate& candidate) {
  std::vector<Pairs> pairs = fresh_pairs(kNoisePairs);
  const auto begin = Clock::now();
  for (int n = 0; n < kNoiseSittings && !stopped(); ++n) {
    Evaluation e;
    if (n >= kFewestNoiseSittings && seconds_since(begin) > kLongSeconds) break;
    if (!sit(candidate, candidate, false, &pairs, &e)) return {};
  }
  const Noise noise = noise_of(pairs);
  if (std::isfinite(noise.margin)) margin_ = noise.margin;  // not after one or two sittings
  return noise;
}

// In several sittings, each in fresh workers: what lasts as long as a process is noise too.
Comparison Cascade::compare(const std::vector<Candidate>& candidates, int rounds) {
  incumbent_ = {};
  Comparison c;
  c.candidates = candidates;
  c.sitting = kSitting;
  c.verdicts.resize(candidates.size());
  c.seconds.assign(candidates.size(), std::vector<std::vector<double>>(sets_.size()));
  double timed = 0;
  for (size_t n = 0; n < candidates.size(); ++n) {
    admit_anew(candidates[n], &c.verdicts[n]);
    c.verdicts[n].stage = Stage::promote;
  }
  for (int done = 0; done < rounds; done += kSitting) {
    if (done >= kFewestCompared * kSitting && timed > 4 * kLongSeconds) break;
    timed += sit_together(std::min(kSitting, rounds - done), done == 0, &c);
  }
  return c;
}

// In workers of its own, so that all sittings are alike. A finalist may have been measured without
// ever being admitted: the search admits what looks faster than its incumbent alone.
bool Cascade::admit_anew(const Candidate& candidate, Evaluation* e) {
  if (stopped()) return fail(e, Verdict::run_timeout, "stopped");
  Lane lane;
  return open(candidate, &lane, e) && check(&lane, e) && check(&lane, e) && warm_up(&lane, e) &&
         admit(&lane, e) && not_hidden(&lane, e);
}

// Seconds of timing. What sit() looks for after its pairs is looked for here too; twice the calls
// are timed in the first sitting alone, whose number is known.
double Cascade::sit_together(int rounds, bool first, Comparison* c) {
  std::vector<Lane> lanes(c->candidates.size());
  std::vector<size_t> order(lanes.size());
  for (size_t n = 0; n < order.size(); ++n) order[n] = n;
  shuffle(&order);  // none is always the oldest
  for (const size_t n : order) {
    Evaluation* e = &c->verdicts[n];
    if (!e->ok()) continue;
    if (stopped()) fail(e, Verdict::run_timeout, "stopped");
    if (!e->ok() || !open(c->candidates[n], &lanes[n], e) || !warm_up(&lanes[n], e))
      lanes[n].close();
  }
  const auto begin = Clock::now();
  for (int round = 0; round < rounds && !stopped(); ++round)
    for (size_t s = 0; s < sets_.size(); ++s) {
      shuffle(&order);
      std::vector<double> times(order.size(), 0);
      for (const size_t n : order)
        if (lanes[n].worker != nullptr && !sample(&lanes[n], s, &times[n], &c->verdicts[n]))
          lanes[n].close();
      for (const size_t n : order)
        if (lanes[n].worker != nullptr) c->seconds[n][s].push_back(times[n]);
    }
  const double seconds = seconds_since(begin);
  for (size_t n = 0; n < lanes.size() && !stopped(); ++n) {
    Evaluation* e = &c->verdicts[n];
    if (lanes[n].worker != nullptr && (!first || twice_takes_twice(&lanes[n], e)) &&
        not_hidden(&lanes[n], e))
      whole_inputs(&lanes[n], e);
  }
  return seconds;
}

bool Cascade::fail(Evaluation* e, Verdict verdict, std::string why) const {
  e->verdict = verdict;
  e->why = std::move(why);
  return false;
}

std::optional<std::string> Cascade::program_text(const Candidate& c) const {
  return contents(std::filesystem::path(o_.programs) / c.source);
}

bool Cascade::compile_program(const Candidate& c, Language language, const Build& build, Lane* lane,
                              std::string* library, Evaluation* e) {
  e->stage = Stage::compile;
  const std::optional<std::string> text = program_text(c);
  if (!text) return fail(e, Verdict::compile_failed, c.source + " cannot be read");
  Built& built = programs_[*text];
  const auto object = contents(built.library);
  if (!object || jit::hex(jit::sha256(*object)) != built.binary_hash) {
    built = build(*text);
    e->compile_seconds = built.seconds;
  }
  e->source_hash = built.source_hash;
  e->binary_hash = built.binary_hash;
  e->kernels = built.kernels;
  if (built.verdict != Verdict::ok) return fail(e, built.verdict, built.why);
  *library = built.library;
  const Contract backward = contract_of(*text, Pass::backward);
  return keeps_to(asks_backward() ? backward : built.contract, language, lane, e);
}

bool Cascade::asks_backward() const { return o_.shapes[0].problem.pass == Pass::backward; }

bool Cascade::keeps_to(Contract contract, Language language, Lane* lane, Evaluation* e) const {
  lane->contract = contract;
  if (asks_backward() && contract == Contract::none)
    return fail(e, Verdict::invalid, "it does not define attune_candidate_backward");
  if (!asks_backward() && contract == Contract::backward)
    return fail(e, Verdict::invalid, "it defines attune_candidate_backward alone");
  if (contract != Contract::run_attention) return true;
  if (o_.contract == Contract::candidate)
    return fail(e, Verdict::invalid,
                "it defines run_attention, and the run's program defines attune_candidate: that "
                "contract asks for more");
  for (const TimedShape& shape : o_.shapes)
    if (const char* beyond = beyond_run_attention(shape.problem, language); beyond != nullptr)
      return fail(e, Verdict::invalid,
                  fmt::format("run_attention cannot compute {}: its contract does not have {}",
                              shape.name, beyond));
  return true;
}

bool Cascade::fail(Evaluation* e, const Reply& reply) const {
  switch (reply.kind) {
    case Reply::Kind::refused:
      return fail(e, Verdict::launch_failed, reply.text);
    case Reply::Kind::timeout:
      return fail(e, Verdict::run_timeout, reply.text);
    case Reply::Kind::garbage:
      return fail(e, Verdict::cheated, "what came back is no reply: " + reply.text);
    default:
      // The sandbox ends a candidate that calls the system for what it has no business with.
      return fail(e, reply.text.starts_with("SIGSYS") ? Verdict::cheated : Verdict::crashed,
                  reply.text);
  }
}

bool Cascade::is_twin(const Candidate& c, Evaluation* e) {
  const std::string& id = c.source.empty() ? c.config : c.id;
  const auto [known, is_new] = binaries_.emplace(e->binary_hash, id);
  if (is_new || known->second == id) return false;
  e->same_as = known->second;
  fail(e, Verdict::invalid, "the same binary as " + known->second);
  return true;
}

void Cascade::evaluate_into(const Candidate& candidate, const Candidate& incumbent, Evaluation* e) {
  Lane lane;
  if (!open(candidate, &lane, e) || is_twin(candidate, e)) return;
  e->stage = Stage::check;
  if (!check(&lane, e)) return;
  if (candidate.id == incumbent.id) {
    e->speedup = {1, 1, 1};
    return;
  }
  e->stage = Stage::race;
  if (!ready_incumbent(incumbent, e)) return;
  if (warm_up(&lane, e)) race(candidate, incumbent, &lane, e);
}

bool Cascade::ready_incumbent(const Candidate& incumbent, Evaluation* e) {
  if (incumbent_.worker != nullptr && incumbent_.worker->alive() && incumbent_.id == incumbent.id)
    return true;
  incumbent_ = {};
  incumbent_.trusted = true;  // it was judged before
  Evaluation own;
  if (open(incumbent, &incumbent_, &own) && warm_up(&incumbent_, &own)) return true;
  incumbent_ = {};
  return fail(e, Verdict::launch_failed, "the incumbent does not run: " + own.why);
}

// ---- right? ----

bool Cascade::check(Lane* lane, Evaluation* e) {
  const auto begin = Clock::now();
  std::vector<Problem> keys;
  for (const auto& set : sets_)
    if (const Problem key = key_of(set->shape().problem);
        std::find(keys.begin(), keys.end(), key) == keys.end())
      keys.push_back(key);
  for (const Problem& key : keys) {
    std::vector<check::Case> cases = small_cases(key, lane->contract, &dice_);
    // What computes LSE may be another kernel than the one that is timed.
    if (lane->contract == Contract::none && lse_is_another_kernel())
      for (check::Case& c : cases) c.problem.lse = key.lse;
    // A config that does not run with LSE, or not with these strides, is asked without.
    std::erase_if(cases, [&](check::Case& c) {
      if (!runs(*lane, c)) c.problem.lse = false;
      if (!runs(*lane, c)) c.strided = false;
      return !runs(*lane, c);
    });
    if (cases.empty()) return fail(e, Verdict::invalid, "it runs none of the small cases");
    const size_t twice = size_t(dice_.below(int64_t(cases.size())));
    for (size_t n = 0; n < cases.size(); ++n) {
      if (stopped()) return fail(e, Verdict::run_timeout, "stopped");
      arena_->release(mark_);
      ArenaCase c(cases[n], arena_.get());
      if (!c.fits()) return no_case(c, e);
      const double left = std::max(1.0, o_.check_seconds - seconds_since(begin));
      if (!run_case(lane, &c, cases[n], left, e)) return false;
      if (n == twice && !same_again(lane, &c, cases[n], left, e)) return false;
    }
  }
  arena_->release(mark_);
  return true;
}

bool Cascade::no_case(const ArenaCase& c, Evaluation* e) const {
  return fail(e, Verdict::launch_failed, c.broken().empty() ? "the arena is full" : c.broken());
}

// The case's whole memory, canaries and gaps included, goes to the device and comes back.
Reply Cascade::run_there_and_back(Lane* lane, const ArenaCase& c, double limit) {
  const std::vector<Range> whole = arena_->since(mark_);
  if (Reply reply = upload(lane, whole); !reply.ok()) return reply;
  const int64_t call = c.call();
  if (Reply reply = run(lane, {&call, 1}, limit, {}); !reply.ok()) return reply;
  return fetch(lane, whole);
}

bool Cascade::run_case(Lane* lane, ArenaCase* c, const check::Case& which, double limit,
                       Evaluation* e) {
  const Reply reply = run_there_and_back(lane, *c, limit);
  if (!reply.ok()) return fail(e, reply);
  const ArenaCase::Judgement j = c->judge(executor_, allowance(*lane, which.problem));
  if (j.damaged) return fail(e, Verdict::cheated, which.name() + ": " + j.verdict.why);
  if (!j.verdict.ok) return fail(e, Verdict::wrong_result, which.name() + ": " + j.verdict.why);
  if (j.verdict.limit > 0 && j.verdict.error * e->limit >= e->error * j.verdict.limit) {
    e->error = j.verdict.error;
    e->limit = j.verdict.limit;
  }
  return true;
}

bool Cascade::same_again(Lane* lane, ArenaCase* c, const check::Case& which, double limit,
                         Evaluation* e) {
  const std::vector<uint8_t> first = c->outputs();
  c->poison();
  const Reply reply = run_there_and_back(lane, *c, limit);
  if (!reply.ok()) return fail(e, reply);
  if (c->outputs() == first) return true;
  return fail(e, Verdict::wrong_result, which.name() + ": two runs gave different bits");
}

// What is about to be accepted, once more at the timed shapes: with inputs that are hard, another
// scale, LSE, other groups of heads. Small cases say nothing about a path that only large shapes
// take.
bool Cascade::admit(Lane* lane, Evaluation* e) {
  if (!admits(*lane)) return true;
  for (size_t s = 0; s < sets_.size(); ++s) {
    std::vector<check::Case> cases = large_cases(sets_[s]->shape().problem, lane->contract, &dice_);
    std::erase_if(cases, [&](check::Case& c) {
      if (!runs(*lane, c)) c.problem.lse = false;
      return !runs(*lane, c);
    });
    const double limit = kLargerCase * kMuchLonger * lane->least[s] + kSomeSeconds;
    for (const check::Case& c : cases)
      if (stopped() || !run_large(lane, c, limit, e))
        return e->ok() ? fail(e, Verdict::run_timeout, "stopped") : false;
  }
  arena_->release(mark_);
  return true;
}

bool Cascade::run_large(Lane* lane, const check::Case& which, double limit, Evaluation* e) {
  arena_->release(mark_);
  ArenaCase c(which, arena_.get());
  if (!c.fits()) return no_case(c, e);
  const Reply reply = run_there_and_back(lane, c, std::min(limit, o_.call_seconds));
  if (!reply.ok()) return fail(e, reply);
  const Fault fault = c.judge_whole(executor_, allowance(*lane, which.problem), kManyRows, &dice_);
  if (fault.why.empty()) return true;
  return fail(e, fault.cheated ? Verdict::cheated : Verdict::wrong_result,
              which.name() + ": " + fault.why);
}

// ---- fast? ----

std::vector<Pairs> Cascade::fresh_pairs(int sitting) const {
  std::vector<Pairs> pairs(sets_.size());
  for (size_t s = 0; s < sets_.size(); ++s) pairs[s] = {{}, {}, sets_[s]->shape().weight, sitting};
  return pairs;
}

bool Cascade::time_empty(Lane* lane, double* seconds, Evaluation* e) {
  std::vector<double> samples;
  for (int n = 0; n < 5; ++n) {
    const Reply reply = run(lane, {}, o_.call_seconds, {});
    if (!reply.ok()) return fail(e, reply);
    samples.push_back(reply.seconds);
  }
  *seconds = median(samples);
  return true;
}

// The first call of each shape: pages are touched, the time of a call is known, whole rows are
// checked. More of them follow until caches, clocks and branch predictors are in the state in which
// an older worker has them: two calls of a short shape are over before that. Only the seconds of
// its own runs count, since the parent draws and checks for longer than a short shape runs. And
// nothing may go on once it said that it was done.
bool Cascade::warm_up(Lane* lane, Evaluation* e) {
  if (std::isinf(lane->empty)) {
    double seconds = 0;
    if (!time_empty(lane, &seconds, e)) return false;
    empty_ = std::min(empty_, seconds);
  }
  look_.resize(sets_.size(), INFINITY);
  lane->calls.assign(sets_.size(), 1);
  lane->first.assign(sets_.size(), 0);
  lane->least.assign(sets_.size(), INFINITY);
  lane->patience = o_.late_seconds;
  for (size_t s = 0; s < sets_.size(); ++s) {
    if (stopped()) return fail(e, Verdict::run_timeout, "stopped");
    double run = 0;
    for (const bool whole : {lane->program, !lane->trusted}) {
      if (!sample(lane, s, &lane->first[s], e, {kManyRows, whole}, 1, Hard::one_key)) return false;
      run += lane->first[s];
    }
    lane->calls[s] = int(std::clamp(o_.batch_seconds / std::max(lane->first[s], 1e-9), 1.0,
                                    double(sets_[s]->count()) / 2));
    double call = 0;
    for (int n = 0; run < kWarmSeconds && n < kMostWarm; ++n, run += call * lane->calls[s])
      if (stopped() || !sample(lane, s, &call, e, {}, 1, Hard::one_key)) return e->ok();
  }
  return not_hidden(lane, e);
}

bool Cascade::not_hidden(Lane* lane, Evaluation* e) {
  const std::string hidden = hidden_work(lane, e);
  if (!e->ok()) return false;
  return hidden.empty() || fail(e, Verdict::cheated, hidden);
}

bool Cascade::whole_inputs(Lane* lane, Evaluation* e) {
  for (const auto& set : sets_)
    if (!fetched_fault(lane, e,
                       [&](const Access& a) { return set->verify_inputs(4, a.fetch, &dice_); }))
      return false;
  return true;
}

// What `verify` finds wrong, with what it asks to be fetched. `first`: seconds of the first fetch.
bool Cascade::fetched_fault(Lane* lane, Evaluation* e,
                            const std::function<Fault(const Access&)>& verify, double* first) {
  Reply lost;
  Access access;
  access.fetch = [&](std::span<const Range> ranges) {
    const auto begin = Clock::now();
    if (const Reply reply = fetch(lane, ranges); !reply.ok()) lost = reply;
    if (double* seconds = std::exchange(first, nullptr); seconds != nullptr)
      *seconds = seconds_since(begin);
    return lost.ok();
  };
  access.worst_rows = [&](std::span<const int64_t> calls, std::vector<int64_t>* rows) {
    if (const Reply reply = worst_rows(lane, calls, rows); !reply.ok()) lost = reply;
    return lost.ok();
  };
  const Fault fault = verify(access);
  if (!lost.ok()) return fail(e, lost);
  if (fault.why.empty()) return true;
  return fail(e, fault.cheated ? Verdict::cheated : Verdict::wrong_result, fault.why);
}

// A program's own worker takes longer for a request than the other kind.
double Cascade::empty_of(const Lane& lane) const {
  return std::isfinite(lane.empty) ? lane.empty : empty_;
}

// Seconds of a call: by our clock, over fresh slots, checked. Every output of a program is looked
// at as a whole.
bool Cascade::sample(Lane* lane, size_t s, double* seconds, Evaluation* e, TimedData::Look look,
                     int times, Hard hard) {
  TimedData& set = *sets_[s];
  const bool program_here = lane->program && processor_time_tells();
  look.whole |= lane->program;
  const double worked_before = lane->worker->cpu_seconds();
  const std::vector<int64_t> calls = set.draw(lane->calls[s] * times, hard, &dice_);
  // One that is sometimes late is waited for, but not in every sample.
  const double usual = kMuchLonger * lane->least[s] * double(calls.size());
  const double limit = std::min(o_.call_seconds * double(calls.size()),
                                usual + std::min(kSomeSeconds, lane->patience));
  Reply reply = poison(lane, set.outputs(calls));
  if (reply.ok()) reply = run(lane, calls, limit, [&](size_t n) { set.glance(n, &dice_); });
  if (!reply.ok()) return fail(e, reply);
  if (!lane->trusted) lane->patience -= std::clamp(reply.seconds - usual, 0.0, lane->patience);
  // From the draw to the end it may use its threads for as long as the clock ran, and no longer.
  const double worked = lane->worker->cpu_seconds() - worked_before;
  if (program_here && worked > kMoreWork * o_.threads * reply.seconds + kSomeWork)
    return fail(e, Verdict::cheated,
                fmt::format("it used {:.3g} s of processor time in {:.3g} s with {} threads: it "
                            "works outside of its calls",
                            worked, reply.seconds, o_.threads));
  double look_seconds = 0;
  const auto verify = [&](const Access& access) {
    return set.verify(calls, look, allowance(*lane, set.shape().problem), access, &dice_);
  };
  if (!fetched_fault(lane, e, verify, &look_seconds)) return false;
  double all = reply.seconds;
  if (lane->program && !program_here) {  // which may have said that it was done, and gone on
    look_[s] = std::min(look_[s], look_seconds);
    all += look_seconds - look_[s] > kLate * all ? look_seconds - look_[s] : 0;
  }
  // A request of its own takes as long as an empty one, and one for each call longer; of a very
  // short sample at least half is the calls', or noise would make times of 0.
  const double steps = lane->program ? step_ * double(calls.size() - 1) : 0;
  *seconds = std::max(all - empty_of(*lane) - steps, 0.5 * all) / double(calls.size());
  lane->least[s] = std::min(lane->least[s], *seconds);
  const Problem& p = set.shape().problem;
  const double floor = std::max(flops_of(p) / most_flops(p.dtype), bytes_of(p) / most_bytes());
  if (!lane->trusted && *seconds < floor)
    return fail(e, Verdict::cheated,
                fmt::format("{:.3g} s a call of {}: this device needs at least {:.3g} s", *seconds,
                            set.shape().name, floor));
  return true;
}

// One sample of each on every shape, which goes first by chance.
bool Cascade::sample_pair(Lane* candidate, Lane* incumbent, std::vector<Pairs>* pairs,
                          Evaluation* e) {
  for (size_t s = 0; s < sets_.size(); ++s) {
    double theirs = 0, ours = 0;
    // Now and then one that is not counted: what holds when it warms up holds later too.
    if (candidate->program && dice_.chance(kUncounted) &&
        !sample(candidate, s, &ours, e, {}, 1, Hard::one_key))
      return false;
    const bool first = dice_.chance(0.5);
    Evaluation own;
    for (int turn = 0; turn < 2; ++turn) {
      const bool mine = (turn == 0) == first;
      const bool good = mine ? sample(candidate, s, &ours, e) : sample(incumbent, s, &theirs, &own);
      if (!good && own.verdict != Verdict::ok) {
        incumbent_ = {};
        return fail(e, Verdict::launch_failed, "the incumbent failed: " + own.why);
      }
      if (!good) return false;
    }
    (*pairs)[s].a.push_back(ours);
    (*pairs)[s].b.push_back(theirs);
  }
  return true;
}

void Cascade::race(const Candidate& candidate, const Candidate& incumbent, Lane* lane,
                   Evaluation* e) {
  std::vector<Pairs> pairs = fresh_pairs();
  Next next = Next::more;
  bool good = measure(lane, &pairs, &next, e);
  if (good && e->stage == Stage::measure) good = twice_takes_twice(lane, e) && not_hidden(lane, e);
  good = good && whole_inputs(lane, e);
  if (good && (next == Next::confirm || o_.admit_slow) && !stopped()) good = admit(lane, e);
  if (good && next == Next::confirm) {
    lane->close();  // its memory may be needed
    good = confirm(candidate, incumbent, &pairs, e);
  }
  for (size_t s = 0; s < sets_.size(); ++s)
    e->shapes.push_back({sets_[s]->shape().name, pairs[s].a, pairs[s].b});
  if (!good || pairs.empty() || pairs[0].a.empty()) return;
  e->sitting = pairs[0].block;
  e->speedup = combined_ratio(pairs, kConfidence);
  if (e->stage != Stage::measure) return;
  e->p = p_value(pairs);
}

// A few pairs first, more for who survives them.
bool Cascade::measure(Lane* lane, std::vector<Pairs>* pairs, Next* next, Evaluation* e) {
  const auto begin = Clock::now();
  for (int n = 1; *next == Next::more && !stopped(); ++n) {
    if (!sample_pair(lane, &incumbent_, pairs, e)) return false;
    const double seconds = seconds_since(begin);
    pair_seconds_ = seconds / n;
    *next = after_pair(*pairs, margin_.value_or(0), o_, seconds > kLongSeconds);
    if (*next == Next::confirm ||
        (*next == Next::more && n >= std::max(o_.race_pairs, o_.full_pairs / 2)))
      e->stage = Stage::measure;
  }
  return true;
}

// What looks better is measured anew in fresh workers, and only these pairs count. A process can be
// faster than another of the same program for as long as it lives, by where its memory lies, so
// several pairs of processes are needed; and what was chosen for its first samples is judged by
// others.
bool Cascade::confirm(const Candidate& candidate, const Candidate& incumbent,
                      std::vector<Pairs>* pairs, Evaluation* e) {
  if (!margin_ && !obvious(*pairs)) {  // nothing small is believed before the noise was measured
    e->noise = noise(incumbent);
    if (stopped()) return true;
    if (!margin_) return fail(e, Verdict::launch_failed, "the noise could not be measured");
    if (after_pair(*pairs, *margin_, o_, true) != Next::confirm) return true;
  }
  const Confirmation plan = confirmation_of(*pairs, start_seconds_, pair_seconds_);
  *pairs = fresh_pairs(plan.pairs);
  for (int n = 1; n <= plan.sittings && !stopped(); ++n) {
    Evaluation again;  // its hashes and times are known
    if (!sit(candidate, incumbent, n == plan.sittings, pairs, &again))
      return fail(e, again.verdict, "in a fresh worker: " + again.why);
    if (futile(*pairs)) break;
  }
  return true;
}

// So many pairs as a sitting has, in two fresh workers. Which of them is the older is left to
// chance: candidate and incumbent differ in nothing but their programs.
bool Cascade::sit(const Candidate& candidate, const Candidate& incumbent, bool thorough,
                  std::vector<Pairs>* pairs, Evaluation* e) {
  const auto begin = Clock::now();
  incumbent_ = {};
  Lane lane;
  const bool first = dice_.chance(0.5);
  for (const bool mine : {first, !first})
    if (!(mine ? open(candidate, &lane, e) && warm_up(&lane, e) : ready_incumbent(incumbent, e)))
      return false;
  start_seconds_ = seconds_since(begin);
  for (int n = 0; n < (*pairs)[0].block && !stopped(); ++n)
    if (!sample_pair(&lane, &incumbent_, pairs, e)) return false;
  if (thorough && !twice_takes_twice(&lane, e)) return false;
  return not_hidden(&lane, e) && whole_inputs(&lane, e);
}

// Twice the calls must take about twice as long by our clock. The shortest times count: whatever
// else the machine does makes them longer. Where it leaves so little that a worker mostly waits for
// its turn, the processor time, which the system counts, may say that twice the work was done.
bool Cascade::twice_takes_twice(Lane* lane, Evaluation* e) {
  for (size_t s = 0; s < sets_.size(); ++s) {
    if (lane->calls[s] * 2 > sets_[s]->count()) continue;
    // What takes no longer than the request itself says nothing about its number.
    if (lane->first[s] * lane->calls[s] < 20 * empty_of(*lane)) continue;
    double once = INFINITY, twice = INFINITY, work_once = 0, work_twice = 0;
    for (int n = 0; n < kMostTries && !(n > 0 && twice >= kSameTime * once); ++n) {
      double a = 0, b = 0;
      const double before = lane->worker->cpu_seconds();
      if (!sample(lane, s, &a, e)) return false;
      const double between = lane->worker->cpu_seconds();
      if (!sample(lane, s, &b, e, {}, 2)) return false;
      once = std::min(once, a);
      twice = std::min(twice, b);
      work_once += between - before;
      work_twice += lane->worker->cpu_seconds() - between;
    }
    const bool worked = processor_time_tells() && work_twice >= 2 * kSameTime * work_once;
    if (twice < kSameTime * once && !worked)
      return fail(e, Verdict::cheated,
                  fmt::format("twice the calls take only {:.2f} times as long", 2 * twice / once));
  }
  return true;
}

void Cascade::shuffle(std::vector<size_t>* order) {
  for (size_t n = order->size(); n > 1; --n)
    std::swap((*order)[n - 1], (*order)[size_t(dice_.below(int64_t(n)))]);
}

}  // namespace attune::evolve
