// A proposer outside of the search: it answers now or later, and the run does not wait for it. It
// sees what the run knows, and hands back exchanges that ended.
#pragma once

#include <string>
#include <vector>

#include "evolve/propose/exchange.hpp"
#include "evolve/propose/search.hpp"
#include "evolve/store/store.hpp"

namespace attune::evolve {

// What the run knows when a proposer is asked.
struct Scene {
  const RunMeta& meta;
  const Space& space;
  const std::vector<Record>& records;
  const Exchanges& exchanges;
  int64_t best = 0;            // the record of the incumbent
  std::vector<Elite> elites;   // of the archive
  double seconds = 0;          // of searching
  int64_t most_questions = 0;  // that may be asked now
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  virtual std::string op() const = 0;
  // What came. Called between evaluations, and never waits. The numbers of what it returns are set
  // by the caller.
  virtual std::vector<Exchange> poll(const Scene& scene) = 0;
  // Called when what came was looked at: questions may be asked, in the background.
  virtual void ask(const Scene& scene) { (void)scene; }
  virtual int64_t in_flight() const { return 0; }
  // Whether an answer can still come without a person.
  virtual bool expects() const { return false; }
  // A person may answer for as long as the run lasts.
  virtual bool patient() const { return false; }
  virtual void refused(const Exchange& exchange, const Refusal& refusal) = 0;
  virtual void judged(const Exchange& exchange, const Record& record, const Scene& scene) = 0;
  // The run is over, or stopped: ends what is in flight at once, and returns it.
  virtual std::vector<Exchange> end(const Scene& scene) = 0;
  virtual void stop() {}                     // the same where nobody hears
  virtual std::string news() { return ""; }  // one line for the user, once
};

}  // namespace attune::evolve
