// A worker is a process that runs the cases it is asked for: what crashes or hangs is the worker,
// and the driver says which case it was.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>

#include "evolve/worker/process.hpp"
#include "tests/fuzz/target.hpp"

namespace attune::fuzz {

// The worker's side: cases until the driver closes the pipe.
int run_worker(const std::string& target, const std::string& folder);

// The driver's side of one worker. It is started when it is first asked, and again after a crash.
class Worker {
 public:
  // `isa` empty: the best one.
  Worker(const TargetInfo& target, std::string isa, std::string folder);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  void clear() { outcome_->clear(); }
  // Runs one case. False when `stop` came first. A crash, a hang and a failure of the case are all
  // in outcome().failure.
  bool run(uint64_t seed, const std::atomic<bool>& stop);

  const Outcome& outcome() const { return *outcome_; }
  const std::string& isa() const { return isa_; }

 private:
  std::string start();
  std::string end_of_worker();

  const TargetInfo& target_;
  std::string isa_, folder_;
  evolve::Fd memory_, requests_, replies_;
  pid_t pid_ = -1;
  Outcome* outcome_ = nullptr;
};

}  // namespace attune::fuzz
