// attune_fuzz TARGET: cases from one seed on, in workers, until a limit or Ctrl-C. Failures and the
// closing line go to stdout, progress to stderr. 0: no failure; 1: failures; 2: bad usage; 130:
// Ctrl-C before the first failure.
#include <attune/attune.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/fuzz/worker.hpp"

namespace attune::fuzz {
namespace {

constexpr uint64_t kMostFailures = 100;  // then something is thoroughly wrong
constexpr double kProgressSeconds = 10;

std::atomic<bool> g_interrupted{false};

struct Options {
  std::string program, target;
  uint64_t seed = 0, cases = 0;
  double seconds = 0, hours = 0;
  int jobs = 0;
};

// A folder that is gone at the end. In memory where that is possible: no case needs a disk.
class Scratch {
 public:
  Scratch() {
    for (const std::string& base :
         {std::string("/dev/shm"), std::filesystem::temp_directory_path().string()}) {
      std::string name = base + "/attune-fuzz-XXXXXX";
      if (mkdtemp(name.data()) == nullptr) continue;
      path_ = name;
      return;
    }
    throw std::runtime_error("no folder for scratch files");
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::string> isas_of(const TargetInfo& target) {
  if (!target.each_isa) return {""};
  std::string text(1 << 16, '\0');
  if (attune_info(text.data(), text.size(), nullptr) != ATTUNE_OK)
    throw std::runtime_error(attune_last_error());
  return nlohmann::json::parse(text.c_str()).at("isas").get<std::vector<std::string>>();
}

// Both are within their limits of the exact result, so they are within twice that of each other.
std::string difference(const Outcome& a, const Outcome& b) {
  if (a.answer != b.answer) return fmt::format("answers {} and {}", a.answer, b.answer);
  if (a.count != b.count) return fmt::format("{} and {} results", a.count, b.count);
  for (uint32_t i = 0; i < a.count; ++i) {
    const double x = a.value[i], y = b.value[i], allowed = 2 * double(a.limit[i]);
    if (std::isinf(allowed)) continue;
    const bool same = std::isfinite(x) && std::isfinite(y) ? std::abs(x - y) <= allowed
                                                           : std::isfinite(x) == std::isfinite(y);
    if (!same) return fmt::format("result {}: {:.9g} and {:.9g}, limit {:.3g}", i, x, y, allowed);
  }
  return "";
}

class Campaign {
 public:
  Campaign(const Options& options, const TargetInfo& target)
      : options_(options), target_(target), isas_(isas_of(target)) {
    // One case is asked for by somebody who repeats a failure.
    if (options.cases != 1) kept_ = target.kept;
    limit_ = options.cases == 0 ? UINT64_MAX : options.cases + kept_.size();
  }

  void run() {
    const double seconds = options_.seconds + 3600 * options_.hours;
    start_ = evolve::monotonic_seconds();
    running_ = options_.jobs;
    for (int j = 0; j < options_.jobs; ++j) threads_.emplace_back([this, j] { work(j); });
    double next = start_ + kProgressSeconds;
    std::unique_lock lock(mutex_);
    while (running_ > 0) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      const double now = evolve::monotonic_seconds();
      if (g_interrupted || failures_ >= kMostFailures || (seconds > 0 && now - start_ >= seconds))
        stop_ = true;
      if (now < next) continue;
      next = now + kProgressSeconds;
      say_progress();
    }
    lock.unlock();
    for (std::thread& thread : threads_) thread.join();
    say_progress();
    if (failures_ >= kMostFailures) fmt::print(stderr, "stopped after {} failures\n", failures_);
    fmt::print("{}: {} cases, {} calls, {} failures\n", target_.name, cases_, calls_, failures_);
  }

  uint64_t failures() const { return failures_; }

 private:
  void work(int job) {
    try {
      std::vector<std::unique_ptr<Worker>> workers;
      for (size_t i = 0; i < isas_.size(); ++i)
        workers.push_back(std::make_unique<Worker>(
            target_, isas_[i], fmt::format("{}/{}-{}", scratch_.path(), job, i)));
      for (uint64_t at; !stop_ && (at = next_++) < limit_;)
        if (!run_case(
                at < kept_.size() ? kept_[at] : Kept{options_.seed + (at - kept_.size()), "*"},
                workers))
          break;
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex_);
      fmt::print("FAILURE of the fuzzer: {}\n", e.what());
      ++failures_;
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_one();
  }

  // False when it was stopped.
  bool run_case(const Kept& which, const std::vector<std::unique_ptr<Worker>>& workers) {
    const uint64_t seed = which.seed;
    std::string failure;
    for (const auto& worker : workers) worker->clear();
    for (const auto& worker : workers) {
      if (!worker->run(seed, stop_)) return false;
      failure = worker->outcome().failure;
      if (failure.empty()) continue;
      if (!worker->isa().empty()) failure = fmt::format("{}: {}", worker->isa(), failure);
      break;  // what hangs on one hangs on all
    }
    const Outcome& first = workers[0]->outcome();
    for (size_t i = 1; i < workers.size() && failure.empty(); ++i)
      if (const std::string text = difference(first, workers[i]->outcome()); !text.empty())
        failure = fmt::format("{} and {} differ: {}", isas_[0], isas_[i], text);
    if (failure.empty() && fnmatch(which.notes, first.notes, 0) != 0)
      failure = fmt::format("kept as '{}', and the generator has changed: look for another seed",
                            which.notes);
    const std::lock_guard lock(mutex_);
    ++cases_;
    for (const auto& worker : workers) {  // those that were not asked have counted nothing
      calls_ += worker->outcome().calls;
      accepted_ += worker->outcome().accepted;
      compared_ += worker->outcome().compared;
    }
    if (failure.empty()) return true;
    ++failures_;
    fmt::print("FAILURE {} seed {}: {}\n  case: {}\n  repeat: {} {} --seed {} --cases 1\n",
               target_.name, seed, failure, first.notes, options_.program, target_.name, seed);
    std::fflush(stdout);
    return true;
  }

  // Precondition: the mutex is held, or no thread runs.
  void say_progress() const {
    fmt::print(stderr, "{}: {} cases, {} calls, {} accepted, {} compared, {} failures, {:.0f} s\n",
               target_.name, cases_, calls_, accepted_, compared_, failures_,
               evolve::monotonic_seconds() - start_);
  }

  const Options& options_;
  const TargetInfo& target_;
  const std::vector<std::string> isas_;
  const Scratch scratch_;
  std::vector<Kept> kept_;
  uint64_t limit_ = 0;
  double start_ = 0;
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = 0;
  uint64_t cases_ = 0, calls_ = 0, accepted_ = 0, compared_ = 0, failures_ = 0;
  std::vector<std::thread> threads_;
};

std::string list_of_targets() {
  std::string text = "Targets:\n";
  for (const TargetInfo& t : targets()) text += fmt::format("  {:<8} {}\n", t.name, t.meaning);
  return text;
}

int run_fuzzer(int argc, char** argv) {
  Options options;
  options.program = argv[0];
  options.jobs = int(std::max(1u, std::thread::hardware_concurrency()));
  CLI::App app{"Feeds hostile and random input to one part of Attune until a limit or Ctrl-C."};
  app.footer(list_of_targets());
  app.add_option("target", options.target, "What is tested; without it, the targets are listed");
  const CLI::Option* seed =
      app.add_option("--seed", options.seed, "The first case; a fresh one by default");
  app.add_option("--cases", options.cases, "How many; with 1, that seed alone");
  app.add_option("--seconds", options.seconds, "For how long")->check(CLI::PositiveNumber);
  app.add_option("--hours", options.hours, "For how long")->check(CLI::PositiveNumber);
  app.add_option("--jobs", options.jobs, "Cases at once; one a core by default")
      ->check(CLI::Range(1, 1024));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.target.empty()) {
    fmt::print("{}", list_of_targets());
    return 0;
  }
  // A fresh one is short, so that it can be typed.
  if (seed->count() == 0) options.seed = std::random_device()();
  for (const TargetInfo& target : targets()) {
    if (options.target != target.name) continue;
    for (int s : {SIGINT, SIGTERM}) signal(s, [](int) { g_interrupted = true; });
    signal(SIGPIPE, SIG_IGN);
    fmt::print(stderr, "{}: seeds from {}\n", target.name, options.seed);
    Campaign campaign(options, target);
    campaign.run();
    if (campaign.failures() > 0) return 1;
    return g_interrupted ? 130 : 0;
  }
  fmt::print(stderr, "there is no target '{}'\n{}", options.target, list_of_targets());
  return 2;
}

}  // namespace

// Who changes a target's generator looks for new seeds of the same notes.
const std::vector<TargetInfo>& targets() {
  constexpr rlim_t kGiB = rlim_t{1} << 30;
  static const std::vector<TargetInfo> list = {
      {"c-abi",
       "calls of the C ABI, valid and hostile, on every ISA",
       true,
       12 * kGiB,
       make_c_abi,
       {{936, "forward * 2147483647 keys and no query"},
        {15128, "forward * 1099511627776 empty sequences"}}},
      {"tuned",
       "tuned tables, as the first call of a process and later ones read them",
       false,
       4 * kGiB,
       make_tuned,
       {{101, "JSON of depth 400000"}, {81, "JSON of depth 1000"}, {3515, "4? MB of empty rows"}}},
      {"cache",
       "entries of the kernel cache",
       false,
       4 * kGiB,
       make_cache,
       // A head of more than 100,000 bytes is deep JSON.
       {{88, "?????? bytes of ????, with a checksum"}, {393, "a FIFO"}}},
      {"run-db",
       "databases of runs, as attune report and --resume read them",
       false,
       4 * kGiB,
       make_run_db,
       {{4418, "whole; final: ?????? bytes of deep JSON; sealed; "},
        {4050, "whole; DELETE FROM event WHERE n<3; sealed; "}}},
  };
  return list;
}

}  // namespace attune::fuzz

int main(int argc, char** argv) {
  try {
    if (argc == 4 && std::string(argv[1]) == "--worker")
      return attune::fuzz::run_worker(argv[2], argv[3]);
    return attune::fuzz::run_fuzzer(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "attune_fuzz: {}\n", e.what());
    return 1;
  }
}
