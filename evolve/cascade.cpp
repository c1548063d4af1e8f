#include "evolve/cascade.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace attune::evolve {
namespace {

constexpr int kFewestPairs = 14;    // below this many no sign test can pass Holm's correction
constexpr double kLongSeconds = 5;  // of timing one candidate, once there are enough pairs
constexpr double kPromising = 0.2;  // a p-value that is worth more pairs
constexpr int kSitting = 3;         // rounds of a comparison in the same workers
constexpr int kMorePairs = 4;       // times as many
constexpr double kAbovePeak = 2;    // faster than this many times the device's peak: impossible
constexpr double kConfidence = 0.95;
constexpr double kLate = 0.5;          // of a sample's time: looking at it takes that much longer
constexpr double kSignificant = 0.05;  // a p-value that is worth fresh workers
constexpr double kObvious = 1.5;       // a ratio that no two processes of one program have
constexpr double kSameTime = 0.7;      // of a call's time, when there are twice as many of them
constexpr int kMostTries = 8;
constexpr double kSmall = 1e-3;
constexpr int kManyRounds = 1'000'000;

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

}  // namespace

Cascade::Cascade(EvaluatorOptions options) : o_(std::move(options)), dice_(o_.seed, 0) {
  executor_.threads = o_.threads;
}

Evaluation Cascade::evaluate(const Candidate& candidate, const Candidate& incumbent) {
  const auto begin = Clock::now();
  Evaluation e;
  evaluate_into(candidate, incumbent, &e);
  e.seconds = seconds_since(begin);
  return e;
}

Noise Cascade::noise(const Candidate& candidate, int pairs) {
  incumbent_ = {};  // its memory may be needed
  Evaluation e;
  Lane a, b;
  if (!open(candidate, &a, &e) || !open(candidate, &b, &e)) return {};
  std::vector<Pairs> samples = fresh_pairs();
  if (!warm_up(&a, &e) || !warm_up(&b, &e)) return {};
  for (int n = 0; n < pairs && !stopped(); ++n)
    if (!sample_pair(&a, &b, &samples, &e)) return {};
  const Noise noise = noise_of(samples, dice_.bits());
  if (std::isfinite(noise.margin)) margin_ = noise.margin;  // not after one or two pairs
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
  for (Evaluation& e : c.verdicts) e.stage = Stage::promote;
  double timed = 0;
  for (int done = 0; done < rounds; done += kSitting) {
    if (done >= kFewestPairs && timed > 4 * kLongSeconds) break;
    timed += sit(std::min(kSitting, rounds - done), done == 0, &c);
  }
  return c;
}

// Seconds of timing.
double Cascade::sit(int rounds, bool first, Comparison* c) {
  std::vector<Lane> lanes(c->candidates.size());
  for (size_t n = 0; n < lanes.size(); ++n) {
    Evaluation* e = &c->verdicts[n];
    if (!e->ok()) continue;
    if (stopped()) fail(e, Verdict::run_timeout, "stopped");
    const bool ready = e->ok() && open(c->candidates[n], &lanes[n], e) &&
                       (!first || (check(&lanes[n], e) && check(&lanes[n], e))) &&
                       warm_up(&lanes[n], e);
    if (!ready) lanes[n].worker.reset();
  }
  const auto begin = Clock::now();
  std::vector<size_t> order(lanes.size());
  for (size_t n = 0; n < order.size(); ++n) order[n] = n;
  for (int round = 0; round < rounds && !stopped(); ++round)
    for (size_t s = 0; s < sets_.size(); ++s) {
      shuffle(&order);
      std::vector<double> times(order.size(), 0);
      for (const size_t n : order)
        if (lanes[n].worker != nullptr && !sample(&lanes[n], s, &times[n], &c->verdicts[n]))
          lanes[n].worker.reset();
      for (const size_t n : order)
        if (lanes[n].worker != nullptr) c->seconds[n][s].push_back(times[n]);
    }
  return seconds_since(begin);
}

bool Cascade::fail(Evaluation* e, Verdict verdict, std::string why) const {
  e->verdict = verdict;
  e->why = std::move(why);
  return false;
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
    std::vector<check::Case> cases = small_cases(key, lane->program, &dice_);
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
      if (!c.fits()) return fail(e, Verdict::launch_failed, "the arena is full");
      const double left = std::max(1.0, o_.check_seconds - seconds_since(begin));
      if (!run_case(lane, &c, cases[n], left, e)) return false;
      if (n == twice && !same_again(lane, &c, cases[n], left, e)) return false;
    }
  }
  arena_->release(mark_);
  return true;
}

// The case's whole memory, canaries and gaps included, goes to the device and comes back.
Reply Cascade::run_there_and_back(Lane* lane, const ArenaCase& c, double limit) {
  const Range whole{mark_, arena_->mark() - mark_};
  if (Reply reply = upload(lane, {&whole, 1}); !reply.ok()) return reply;
  const int64_t call = c.call();
  if (Reply reply = lane->worker->run({&call, 1}, limit); !reply.ok()) return reply;
  return fetch(lane, {&whole, 1});
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

// ---- fast? ----

std::vector<Pairs> Cascade::fresh_pairs() const {
  std::vector<Pairs> pairs(sets_.size());
  for (size_t s = 0; s < sets_.size(); ++s) pairs[s].weight = sets_[s]->shape().weight;
  return pairs;
}

// The first call of each shape: pages are touched, the time of a call is known, whole rows are
// checked. And nothing may go on once it said that it was done.
bool Cascade::warm_up(Lane* lane, Evaluation* e) {
  std::vector<double> empty;
  for (int n = 0; n < 5; ++n) {
    const Reply reply = lane->worker->run({}, o_.call_seconds);
    if (!reply.ok()) return fail(e, reply);
    empty.push_back(reply.seconds);
  }
  empty_ = std::min(empty_, median(empty));
  look_.resize(sets_.size(), INFINITY);
  lane->calls.assign(sets_.size(), 1);
  lane->first.assign(sets_.size(), 0);
  for (size_t s = 0; s < sets_.size(); ++s) {
    if (stopped()) return fail(e, Verdict::run_timeout, "stopped");
    for (int n = 0; n < 2; ++n)
      if (!sample(lane, s, &lane->first[s], e, 8)) return false;
    lane->calls[s] = int(std::clamp(o_.batch_seconds / std::max(lane->first[s], 1e-9), 1.0,
                                    double(sets_[s]->count()) / 2));
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
                       [&](const Fetch& fetch) { return set->verify_inputs(4, fetch, &dice_); }))
      return false;
  return true;
}

// What `verify` finds wrong, with what it asks to be fetched.
bool Cascade::fetched_fault(Lane* lane, Evaluation* e,
                            const std::function<Fault(const Fetch&)>& verify) {
  Reply lost;
  const Fault fault = verify([&](std::span<const Range> ranges) {
    if (const Reply reply = fetch(lane, ranges); !reply.ok()) lost = reply;
    return lost.ok();
  });
  if (!lost.ok()) return fail(e, lost);
  if (fault.why.empty()) return true;
  return fail(e, fault.cheated ? Verdict::cheated : Verdict::wrong_result, fault.why);
}

// Seconds of a call: by our clock, over fresh slots, checked.
bool Cascade::sample(Lane* lane, size_t s, double* seconds, Evaluation* e, int rows, int times) {
  TimedData& set = *sets_[s];
  const std::vector<int64_t> calls = set.draw(lane->calls[s] * times, &dice_);
  Reply reply = poison(lane, set.outputs(calls));
  if (reply.ok()) reply = lane->worker->run(calls, o_.call_seconds * double(calls.size()));
  if (!reply.ok()) return fail(e, reply);
  const auto looked = Clock::now();
  if (!fetched_fault(lane, e, [&](const Fetch& fetch) {
        return set.verify(calls, rows, allowance(*lane, set.shape().problem), fetch, &dice_);
      }))
    return false;
  double all = reply.seconds;
  if (lane->program) {  // which may have said that it was done, and gone on
    const double look = seconds_since(looked);
    look_[s] = std::min(look_[s], look);
    all += look - look_[s] > kLate * all ? look - look_[s] : 0;
  }
  // A request of its own takes as long as an empty one; of a very short sample at least half is
  // the calls', or noise would make times of 0.
  *seconds = std::max(all - empty_, 0.5 * all) / double(calls.size());
  const Problem& p = set.shape().problem;
  const double floor =
      std::max(flops_of(p) / most_flops(), bytes_of(p) / most_bytes()) / kAbovePeak;
  if (!lane->trusted && *seconds < floor)
    return fail(e, Verdict::cheated,
                fmt::format("{:.3g} s a call of {}: twice what this device can do would take "
                            "{:.3g} s",
                            *seconds, set.shape().name, floor));
  return true;
}

// One sample of each on every shape, which goes first by chance.
bool Cascade::sample_pair(Lane* candidate, Lane* incumbent, std::vector<Pairs>* pairs,
                          Evaluation* e) {
  for (size_t s = 0; s < sets_.size(); ++s) {
    double theirs = 0, ours = 0;
    const bool first = dice_.chance(0.5);
    Evaluation own;
    for (int turn = 0; turn < 2; ++turn) {
      const bool mine = (turn == 0) == first;
      // A program could do something while the other one is timed.
      if (candidate->program && !mine) candidate->worker->suspend();
      const bool good = mine ? sample(candidate, s, &ours, e) : sample(incumbent, s, &theirs, &own);
      if (candidate->program && !mine) candidate->worker->resume();
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
  bool good = measure(lane, &pairs, e);
  if (good && e->stage == Stage::measure) good = twice_takes_twice(lane, e) && not_hidden(lane, e);
  good = good && whole_inputs(lane, e);
  if (good && e->stage == Stage::measure && !stopped() &&
      p_not_above(pairs, margin_, dice_.bits()) < kSignificant &&
      combined_ratio(pairs, kConfidence, dice_.bits()).low < kObvious) {
    lane->worker.reset();  // its memory may be needed
    good = confirm(candidate, incumbent, &pairs, e);
  }
  for (size_t s = 0; s < sets_.size(); ++s)
    e->shapes.push_back({sets_[s]->shape().name, pairs[s].a, pairs[s].b});
  if (!good || pairs.empty() || pairs[0].a.empty()) return;
  e->speedup = combined_ratio(pairs, kConfidence, dice_.bits());
  if (e->stage != Stage::measure) return;
  e->p = p_not_above(pairs, margin_, dice_.bits());
  // What the few random signs cannot tell from 0 may still be too much for Holm's correction.
  if (e->p < kSmall) e->p = p_not_above(pairs, margin_, dice_.bits(), kManyRounds);
}

// A few pairs first, more for who survives them.
bool Cascade::measure(Lane* lane, std::vector<Pairs>* pairs, Evaluation* e) {
  const auto begin = Clock::now();
  int most = o_.full_pairs;
  for (int n = 1; n <= most && !stopped(); ++n) {
    if (!sample_pair(lane, &incumbent_, pairs, e)) return false;
    if (n < o_.race_pairs) continue;
    if (e->stage == Stage::race && combined_ratio(*pairs, kConfidence, dice_.bits()).high < 1)
      break;
    if (n >= o_.full_pairs / 2) e->stage = Stage::measure;
    // Looking early may give a candidate up, never accept it: that would count chances twice.
    if (n == o_.full_pairs && p_not_above(*pairs, margin_, dice_.bits()) < kPromising)
      most = kMorePairs * o_.full_pairs;
    if (n >= kFewestPairs && seconds_since(begin) > kLongSeconds) break;
  }
  return true;
}

// What looks better is measured anew in fresh workers, and only these pairs count. A process can be
// faster than another of the same program for as long as it lives, by where its memory lies; and
// what was chosen for its first samples is judged by others.
bool Cascade::confirm(const Candidate& candidate, const Candidate& incumbent,
                      std::vector<Pairs>* pairs, Evaluation* e) {
  Lane lane;
  Evaluation again;  // its hashes and times are known
  incumbent_ = {};
  if (!open(candidate, &lane, &again) || !ready_incumbent(incumbent, &again) ||
      !warm_up(&lane, &again))
    return fail(e, again.verdict, "in a fresh worker: " + again.why);
  *pairs = fresh_pairs();
  again.stage = Stage::measure;
  if (!measure(&lane, pairs, &again) || !twice_takes_twice(&lane, &again) ||
      !not_hidden(&lane, &again) || !whole_inputs(&lane, &again))
    return fail(e, again.verdict, again.why);
  return true;
}

// Twice the calls must take about twice as long by our clock. The shortest times count: whatever
// else the machine does makes them longer. Where it leaves so little that a worker mostly waits for
// its turn, the processor time, which the system counts, may say that twice the work was done.
bool Cascade::twice_takes_twice(Lane* lane, Evaluation* e) {
  for (size_t s = 0; s < sets_.size(); ++s) {
    if (lane->calls[s] * 2 > sets_[s]->count()) continue;
    // What takes no longer than the request itself says nothing about its number.
    if (lane->first[s] * lane->calls[s] < 20 * empty_) continue;
    double once = INFINITY, twice = INFINITY, work_once = 0, work_twice = 0;
    for (int n = 0; n < kMostTries && !(n > 0 && twice >= kSameTime * once); ++n) {
      double a = 0, b = 0;
      const double before = lane->worker->cpu_seconds();
      if (!sample(lane, s, &a, e)) return false;
      const double between = lane->worker->cpu_seconds();
      if (!sample(lane, s, &b, e, 2, 2)) return false;
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
