#include "evolve/proposals.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "src/api/tensor_check.hpp"

namespace attune::evolve {

Status Proposals::restore(Exchanges recorded, const std::vector<Record>& records) {
  exchanges_ = std::move(recorded);
  std::set<int64_t> done;
  for (const auto& [k, refusal] : exchanges_.refused) done.insert(k);
  for (const auto& [n, learned] : exchanges_.used) {
    if (n >= int64_t(records.size()))
      return Status::invalid(fmt::format("{}: exchange {} became proposal {}, which is not there",
                                         store_->folder(), learned.k, n));
    done.insert(learned.k);
    ++labels_;
  }
  for (const Exchange& e : exchanges_.all)
    if (e.error.empty() && !done.contains(e.k)) waiting_.push_back(e.k);
  return {};
}

Proposer* Proposals::asked(const Exchange& exchange) const {
  for (const auto& p : proposers_)
    if (p->op() == exchange.op) return p.get();
  return nullptr;
}

int64_t Proposals::in_flight() const {
  int64_t count = 0;
  for (const auto& p : proposers_) count += p->in_flight();
  return count;
}

bool Proposals::expects() const {
  if (!waiting_.empty()) return true;
  for (const auto& p : proposers_)
    if (p->expects()) return true;
  return false;
}

bool Proposals::patient() const {
  for (const auto& p : proposers_)
    if (p->patient()) return true;
  return false;
}

std::string Proposals::news() {
  std::string all;
  for (const auto& p : proposers_)
    if (std::string one = p->news(); !one.empty()) all += (all.empty() ? "" : "; ") + one;
  return all;
}

bool Proposals::turn(size_t proposed) const {
  return double(exchanges_.used.size()) < share_ * double(proposed + 1) && expects();
}

Status Proposals::keep(std::vector<Exchange> exchanges, double at) {
  for (Exchange& e : exchanges) {
    e.k = int64_t(exchanges_.all.size());
    e.at = at;
    // As it will be read again: bytes that are no UTF-8 are replaced now, not at the next start.
    const Json json = parse_json(to_json(e).dump(-1, ' ', false, Json::error_handler_t::replace));
    e = exchange_of(json);
    ATTUNE_TRY(store_->put(kExchange, json));
    if (e.error.empty()) waiting_.push_back(e.k);
    exchanges_.all.push_back(std::move(e));
  }
  return {};
}

Status Proposals::listen(const Scene& scene) {
  for (const auto& p : proposers_) ATTUNE_TRY(keep(p->poll(scene), scene.seconds));
  return {};
}

void Proposals::ask(Scene scene, size_t ahead, bool dry) {
  for (const auto& p : proposers_) {
    const double due = std::ceil(share_ * double(scene.records.size() + ahead + 1));
    scene.most_questions =
        int64_t(due) - int64_t(exchanges_.used.size() + waiting_.size()) - in_flight();
    if (dry && in_flight() == 0 && waiting_.empty()) scene.most_questions = 1;
    p->ask(scene);
  }
}

Status Proposals::refuse(const Exchange& exchange, const Refusal& refusal) {
  exchanges_.refused[exchange.k] = refusal;
  ATTUNE_TRY(store_->put(
      kRefused, Json{{"k", exchange.k}, {"verdict", refusal.verdict}, {"why", refusal.why}}));
  if (Proposer* p = asked(exchange)) p->refused(exchange, refusal);
  return {};
}

std::string Proposals::free_label(const std::string& op) const {
  for (int64_t n = labels_ + 1;; ++n) {
    std::string label = fmt::format("{}{}", op == "manual" ? "p" : "m", n);
    if (!space_->has_label(label)) return label;
  }
}

Status Proposals::next(Driver* driver, double progress, const std::vector<Record>& records,
                       std::optional<Proposal>* proposal) {
  proposal->reset();
  while (!waiting_.empty() && !*proposal) {
    const Exchange& e = exchanges_.all[size_t(waiting_.front())];
    waiting_.pop_front();
    if (e.parent < 0 || e.parent >= int64_t(records.size())) {
      ATTUNE_TRY(refuse(e, {"not_applied", "its parent was not judged"}));
      continue;
    }
    Derived d = derive(*space_, e, space_->grown(records[size_t(e.parent)].proposal.genome),
                       free_label(e.op));
    if (!d.refusal.verdict.empty()) {
      ATTUNE_TRY(refuse(e, d.refusal));
      continue;
    }
    ATTUNE_TRY(space_->learn(d.news));
    *proposal = driver->offer(progress, d.genome, e.op, e.parent);
    if (!*proposal) {
      ATTUNE_TRY(refuse(e, {"duplicate", "this program was proposed before"}));
      continue;
    }
    labels_ += !d.news.texts.empty();
    exchanges_.used[(*proposal)->n] = {(*proposal)->n, e.k, std::move(d.news), d.form};
  }
  return {};
}

Store::Events Proposals::events_of(int64_t n) const {
  const auto at = exchanges_.used.find(n);
  if (at == exchanges_.used.end()) return {};
  return {{kLearned, to_json(at->second)}};
}

void Proposals::judged(const Record& record, const Scene& scene) {
  const auto at = exchanges_.used.find(record.proposal.n);
  if (at == exchanges_.used.end()) return;
  const Exchange& e = exchanges_.all[size_t(at->second.k)];
  if (Proposer* p = asked(e)) p->judged(e, record, scene);
}

Status Proposals::end(const Scene& scene) {
  for (const auto& p : proposers_) ATTUNE_TRY(keep(p->end(scene), scene.seconds));
  return {};
}

}  // namespace attune::evolve
