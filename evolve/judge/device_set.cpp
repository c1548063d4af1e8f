#include "evolve/judge/device_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace attune::evolve {
namespace {

constexpr int64_t kCanary = 256;
constexpr int64_t kAlign = 256;  // as a device's allocator gives it
constexpr int64_t kMostCalls = 128;
constexpr int64_t kParts = 8;          // of a pool, that take turns
constexpr int64_t kElements = 2;       // of each output that must have been written
constexpr int kBands = 4;              // outputs whose canaries are looked at
constexpr int64_t kPiece = 64 * 1024;  // of a pool that is looked at again

int64_t aligned(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

}  // namespace

DevicePool::DevicePool(DType dtype, int64_t bytes, int64_t hard_bytes, Arena* arena, Dice* dice)
    : dtype_(dtype), arena_(arena), plain_(aligned(bytes)), used_(plain_) {
  const int64_t all = plain_ + aligned(hard_bytes);
  const int64_t taken = arena_->take(Arena::Part::written, all + kAlign);
  if (taken < 0) return;
  at_ = aligned(taken);
  bytes_.resize(size_t(all));
  NormalPool(dtype, dice->bits()).fill(bytes_.data(), all / (dtype == DType::f32 ? 4 : 2), dice);
  // The arena's copy is what is sent to the device.
  std::memcpy(arena_->base() + at_, bytes_.data(), bytes_.size());
}

int64_t DevicePool::draw(int64_t bytes, Dice* dice) {
  const int64_t part = plain_ / kParts;
  const int64_t room = (plain_ - bytes) / kAlign;  // places
  if (bytes > part) return at_ + dice->below(room + 1) * kAlign;
  const int64_t first = turn_++ % kParts * part / kAlign;
  return at_ + std::min(room, first + dice->below((part - bytes) / kAlign + 1)) * kAlign;
}

int64_t DevicePool::hard_keys(Hard hard, int64_t rows, int64_t dim, Dice* dice) {
  const int64_t first = used_, bytes = rows * dim * (dtype_ == DType::f32 ? 4 : 2);
  if (!fits() || first + bytes > int64_t(bytes_.size())) return -1;
  harden(hard, dtype_, &bytes_[size_t(first)], rows, dim, dice);
  std::memcpy(arena_->base() + at_ + first, &bytes_[size_t(first)], size_t(bytes));
  used_ = aligned(first + bytes);
  return at_ + first;
}

int64_t DevicePool::hard_bytes(const Problem& p) {
  return 2 * aligned(p.batch * p.heads_kv * p.seq_k * p.dim * (p.dtype == DType::f32 ? 4 : 2));
}

DeviceSet::DeviceSet(const TimedShape& shape, DevicePool* pool, Arena* arena, Range outputs,
                     Dice* dice)
    : TimedData(shape), pool_(pool), arena_(arena) {
  for (const Hard hard : {Hard::even, Hard::one_key})
    hard_[size_t(hard)] =
        pool_->hard_keys(hard, elements_k_ / shape_.problem.dim, shape_.problem.dim, dice);
  const int64_t each = aligned(written_.bytes) + 2 * kCanary;
  const int64_t count = std::min(kMostCalls, (outputs.bytes - kAlign) / each);
  for (int64_t n = 0; n < count; ++n) {
    const int64_t at = arena_->take(Arena::Part::written, int64_t(sizeof(ArenaCall)));
    if (at < 0) return;
    const Call& c = calls_.emplace_back(Call{at, aligned(outputs.at) + n * each + kCanary});
    const int64_t first = pool_->range().at;
    const ArenaCall call = contiguous_call(shape_.problem, first, first, first, c.out);
    std::memcpy(arena_->base() + at, &call, sizeof(call));
  }
}

std::vector<Range> DeviceSet::canaries_of(const Call& c) const {
  std::vector<Range> all = {{c.out - kCanary, kCanary}, {c.out + written_.bytes, kCanary}};
  if (written_.lse > 0 && written_.lse_at > written_.out)
    all.push_back({c.out + written_.out, written_.lse_at - written_.out});
  return all;
}

std::vector<int64_t> DeviceSet::draw(int calls, Hard hard, Dice* dice) {
  // In random order, so that a place in it says nothing.
  std::vector<size_t> order(calls_.size());
  for (size_t n = 0; n < order.size(); ++n) order[n] = n;
  for (size_t n = order.size(); n > 1; --n)
    std::swap(order[n - 1], order[size_t(dice->below(int64_t(n)))]);
  std::vector<int64_t> drawn;
  const int64_t which = dice->chance(0.5) ? dice->below(calls) : -1;
  for (int n = 0; n < calls; ++n) {
    Call& c = calls_[order[size_t(n)]];
    c.hard = n == which;
    c.q = pool_->draw(elements_q_ * size_, dice);
    c.k = c.hard ? hard_[size_t(hard)] : pool_->draw(elements_k_ * size_, dice);
    c.v = pool_->draw(elements_v_ * size_, dice);
    const ArenaCall call = contiguous_call(shape_.problem, c.q, c.k, c.v, c.out);
    std::memcpy(arena_->base() + c.at, &call, sizeof(call));
    drawn.push_back(c.at);
  }
  return drawn;
}

std::vector<Range> DeviceSet::outputs(const std::vector<int64_t>& calls) const {
  std::vector<Range> ranges;
  for (const int64_t at : calls)  // with the canaries around them
    ranges.push_back({call_at(at).out - kCanary, written_.bytes + 2 * kCanary});
  return ranges;
}

const DeviceSet::Call& DeviceSet::call_at(int64_t at) const {
  return *std::find_if(calls_.begin(), calls_.end(), [&](const Call& c) { return c.at == at; });
}

// The call with the parent's own copy of its inputs, and its output in the arena.
ArenaCall DeviceSet::own_call(const Call& c) const {
  return contiguous_call(shape_.problem, pool_->own(c.q), pool_->own(c.k), pool_->own(c.v),
                         arena_->base() + c.out);
}

// Of the output, and of LSE where there is one.
void DeviceSet::add_row(const Call& c, const RowCheck::Place& place,
                        std::vector<Range>* ranges) const {
  const Problem& p = shape_.problem;
  const int64_t row = (place.b * p.heads_q + place.h) * p.seq_q + place.i;
  ranges->push_back({c.out + row * p.dim_v * size_, p.dim_v * size_});
  if (p.lse) ranges->push_back({c.out + written_.lse_of(row).at, Written::kLseBytes});
}

Fault DeviceSet::verify(const std::vector<int64_t>& calls, const Look& look,
                        const check::Allowance& allow, const Access& access, Dice* dice) const {
  const Call& checked = call_at(dice->pick(calls));
  const ArenaCall call = own_call(checked);
  const RowCheck result(call.problem, call.params, allow, fill_of(checked));
  std::vector<Range> ranges, bands;
  std::vector<RowCheck::Place> drawn;
  for (int r = 0; r < look.rows; ++r)
    add_row(checked, drawn.emplace_back(result.draw(dice)), &ranges);
  std::vector<Range> elements;
  for (const int64_t at : calls) {
    const Call& c = call_at(at);
    for (int64_t e = 0; e < kElements; ++e)
      elements.push_back({c.out + dice->below(elements_out_) * size_, size_});
    if (written_.lse == 0) continue;
    const int64_t row = dice->below(elements_out_ / shape_.problem.dim_v);
    elements.push_back({c.out + written_.lse_of(row).at, Written::kLseBytes});
  }
  ranges.insert(ranges.end(), elements.begin(), elements.end());
  // Canaries of a few: each range is a copy of its own.
  for (int n = 0; n < kBands; ++n)
    for (const Range& r : canaries_of(call_at(dice->pick(calls)))) bands.push_back(r);
  // What is not fetched must look neither like a result nor like a canary.
  for (const Range& r : ranges) std::memset(arena_->base() + r.at, int(kPoison), size_t(r.bytes));
  for (const Range& r : bands) std::memset(arena_->base() + r.at, 0, size_t(r.bytes));
  ranges.insert(ranges.end(), bands.begin(), bands.end());
  if (!access.fetch(ranges)) return {};
  for (const Range& r : bands)
    if (!all_poison(arena_->base() + r.at, r.bytes))
      return {true, "memory around a timed call's output was written to"};
  for (const Range& r : elements)
    if (all_poison(arena_->base() + r.at, r.bytes))
      return {false, "an element of a timed call's output was not written"};
  const Fault fault = result.rows(drawn);
  return fault.why.empty() && look.whole ? verify_worst(calls, allow, access) : fault;
}

// The row of each call that differs most from the library's: float64 decides.
Fault DeviceSet::verify_worst(const std::vector<int64_t>& calls, const check::Allowance& allow,
                              const Access& access) const {
  const Problem& p = shape_.problem;
  std::vector<int64_t> worst;
  std::vector<RowCheck::Place> places;
  std::vector<Range> ranges;
  if (!access.worst_rows(calls, &worst)) return {};
  for (size_t n = 0; n < calls.size(); ++n) {
    const int64_t row = worst[n], head = row / p.seq_q;
    places.push_back({head / p.heads_q, head % p.heads_q, row % p.seq_q});
    add_row(call_at(calls[n]), places.back(), &ranges);
  }
  for (const Range& r : ranges) std::memset(arena_->base() + r.at, int(kPoison), size_t(r.bytes));
  if (!access.fetch(ranges)) return {};
  for (size_t n = 0; n < calls.size(); ++n) {
    const Call& looked = call_at(calls[n]);
    const ArenaCall call = own_call(looked);
    const Fault fault =
        RowCheck(call.problem, call.params, allow, fill_of(looked)).rows({places[n]});
    if (!fault.why.empty()) return fault;
  }
  return {};
}

Fault DeviceSet::verify_inputs(int times, const Fetch& fetch, Dice* dice) const {
  const Range pool = pool_->range();
  const int64_t bytes = std::min(kPiece, pool.bytes);
  std::vector<Range> pieces;
  for (int n = 0; n < times * 4; ++n)
    pieces.push_back({pool.at + dice->below(pool.bytes - bytes + 1), bytes});
  if (!fetch(pieces)) return {};
  for (const Range& r : pieces)
    if (std::memcmp(arena_->base() + r.at, pool_->own(r.at), size_t(r.bytes)) != 0)
      return {true, "inputs of a timed call were written to"};
  return {};
}

}  // namespace attune::evolve
