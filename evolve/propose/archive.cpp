#include "evolve/propose/archive.hpp"

#include <algorithm>
#include <utility>

namespace attune::evolve {

bool Archive::insert(const Cell& cell, Entry entry) {
  const auto [at, entered] = cells_.emplace(cell, entry);
  if (entered) return true;
  if (!(entry.fitness > at->second.fitness)) return false;
  at->second = entry;
  return true;
}

std::vector<Archive::Entry> Archive::ranked() const {
  std::vector<Entry> entries;
  for (const auto& [cell, entry] : cells_) entries.push_back(entry);
  std::sort(entries.begin(), entries.end(), [](const Entry& x, const Entry& y) {
    return x.fitness != y.fitness ? x.fitness > y.fitness : x.n < y.n;
  });
  return entries;
}

namespace {

// A new best is what the search is for; a raised cell only keeps it diverse.
constexpr double kImprovedPays = 1, kRaisedPays = 0.2;
constexpr double kFade = 0.93;   // a result counts half after ten more of its operator
constexpr double kFloor = 0.25;  // of the choices are made without regard to credit
// Before it was tried an operator is thought to pay every second time: all get their chance.
constexpr double kPriorPaid = 0.5, kPriorUsed = 1;

}  // namespace

Credit::Credit(std::vector<Operator> operators)
    : operators_(std::move(operators)), recent_(operators_.size(), {kPriorPaid, kPriorUsed}) {
  for (const Operator& op : operators_) counts_.push_back({op.name});
}

void Credit::extend(const std::vector<Operator>& operators) {
  for (const Operator& op : operators) {
    const bool known = std::any_of(operators_.begin(), operators_.end(),
                                   [&](const Operator& own) { return own.name == op.name; });
    if (known) continue;
    operators_.push_back(op);
    recent_.push_back({kPriorPaid, kPriorUsed});
    counts_.push_back({op.name});
  }
}

const Operator& Credit::of_kind(Operator::Kind kind) const {
  return *std::find_if(operators_.begin(), operators_.end(),
                       [&](const Operator& op) { return op.kind == kind; });
}

void Credit::charge(const std::string& name, bool ok, bool raised, bool improved) {
  for (size_t i = 0; i < operators_.size(); ++i) {
    if (operators_[i].name != name) continue;
    counts_[i].tried += 1;
    counts_[i].valid += ok;
    counts_[i].improved += raised;
    recent_[i].paid = kFade * recent_[i].paid + (improved ? kImprovedPays
                                                 : raised ? kRaisedPays
                                                          : 0);
    recent_[i].used = kFade * recent_[i].used + 1;
  }
}

size_t Credit::choose(const std::vector<size_t>& from, Dice* dice) const {
  if (dice->chance(kFloor)) return dice->pick(from);
  // Fixed order of summation: the same credits always give the same choice.
  double total = 0;
  for (size_t i : from) total += recent_[i].paid / recent_[i].used;
  double left = dice->uniform() * total;
  for (size_t i : from) {
    left -= recent_[i].paid / recent_[i].used;
    if (left < 0) return i;
  }
  return from.back();
}

}  // namespace attune::evolve
