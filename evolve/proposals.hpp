// Answers of proposers as proposals of a run: recorded when they come, applied in their order, and
// tied to the number of the proposal that they become.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evolve/propose/proposer.hpp"
#include "evolve/standing.hpp"
#include "evolve/store/store.hpp"

namespace attune::evolve {

class Proposals {
 public:
  // `share`: of all proposals, what proposers are asked for. `space` grows by their texts; null:
  // there are no proposers.
  Proposals(std::vector<std::shared_ptr<Proposer>> proposers, double share, GrowingSpace* space,
            Store* store)
      : proposers_(std::move(proposers)), share_(share), space_(space), store_(store) {}

  // What the run recorded. Answers that no result was committed of come again.
  Status restore(Exchanges recorded, const std::vector<Record>& records);
  const Exchanges& exchanges() const { return exchanges_; }

  // Records what came.
  Status listen(const Scene& scene);
  // Lets proposers ask. `ahead`: proposals that were made and not judged yet; `dry`: the search
  // itself has none left.
  void ask(Scene scene, size_t ahead, bool dry);
  // The next answer that can be applied, as a proposal.
  Status next(Driver* driver, double progress, const std::vector<Record>& records,
              std::optional<Proposal>* proposal);
  // Whether it is a proposer's turn, and an answer will come.
  bool turn(size_t proposed) const;
  bool expects() const;
  bool patient() const;
  std::string news();  // for the user

  // What is committed with the result of proposal n; and that it was.
  Store::Events events_of(int64_t n) const;
  void judged(const Record& record, const Scene& scene);
  Status end(const Scene& scene);

 private:
  Status keep(std::vector<Exchange> exchanges, double at);
  Status refuse(const Exchange& exchange, const Refusal& refusal);
  Proposer* asked(const Exchange& exchange) const;
  int64_t in_flight() const;
  std::string free_label(const std::string& op) const;

  std::vector<std::shared_ptr<Proposer>> proposers_;
  double share_;
  GrowingSpace* space_;
  Store* store_;
  Exchanges exchanges_;
  std::deque<int64_t> waiting_;  // exchanges with an answer that was not looked at
  int64_t labels_ = 0;
};

}  // namespace attune::evolve
