#include "evolve/arena_case.hpp"

#include <algorithm>
#include <cstring>

namespace attune::evolve {
namespace {

struct Lengths {
  int64_t q, k;
};
constexpr Lengths kLengths[] = {{1, 1},   {1, 77},   {7, 13},   {33, 65},  {64, 64}, {100, 37},
                                {3, 130}, {129, 67}, {17, 257}, {40, 200}, {96, 96}};
constexpr check::Fill kPlainFills[] = {check::Fill::normal,    check::Fill::huge_logits,
                                       check::Fill::one_hot_v, check::Fill::peaked,
                                       check::Fill::normal,    check::Fill::tiny};
constexpr check::Fill kMoreFills[] = {check::Fill::vast_logits, check::Fill::nan_in_masked,
                                      check::Fill::nan_key};

}  // namespace

std::vector<check::Case> small_cases(const Problem& base, bool plain, Dice* dice) {
  std::vector<check::Case> cases;
  const auto add = [&](Lengths lengths, check::Fill fill) {
    check::Case c;
    c.problem = base;
    c.problem.batch = 1 + dice->below(2);
    c.problem.heads_kv = 1 + dice->below(2);
    c.problem.heads_q = c.problem.heads_kv * (1 + dice->below(3));
    c.problem.seq_q = lengths.q;
    c.problem.seq_k = lengths.k;
    c.problem.alignment = dice->chance(0.5) ? Alignment::top_left : Alignment::bottom_right;
    c.problem.lse = dice->chance(0.7);
    c.fill = fill;
    c.strided = dice->chance(0.3);
    c.scale = dice->chance(0.2) ? 0.3f : 0.f;
    c.infinite_mask = dice->chance(0.5);
    if (base.softcap) c.softcap = 5;
    if (base.dropout) c.dropout_p = 0.2f;
    c.seed = dice->bits();
    cases.push_back(std::move(c));
  };
  size_t n = size_t(dice->below(int64_t(std::size(kPlainFills))));
  for (const Lengths& lengths : kLengths) add(lengths, kPlainFills[n++ % std::size(kPlainFills)]);
  // Lengths that nobody can know beforehand.
  for (int more = 0; more < 3; ++more)
    add({1 + dice->below(140), 1 + dice->below(280)}, check::Fill::normal);
  if (!plain)
    for (const check::Fill fill : kMoreFills)
      add({21 + dice->below(50), 30 + dice->below(90)}, fill);
  // In random order, so that a place in it says nothing.
  for (size_t i = cases.size(); i > 1; --i)
    std::swap(cases[i - 1], cases[size_t(dice->below(int64_t(i)))]);
  return cases;
}

ArenaCase::ArenaCase(const check::Case& c, Arena* arena)
    : data_(c), hashes_(check::hashes_of_inputs(data_)), arena_(arena) {
  for (check::Tensor* t :
       {&data_.q, &data_.k, &data_.v, &data_.out, &data_.lse, &data_.mask, &data_.block_mask,
        &data_.slopes, &data_.sinks, &data_.cu_q, &data_.cu_k}) {
    if (!t->given()) continue;
    const std::vector<uint8_t>& bytes = t->bytes();
    // The first element keeps its alignment: a pointer that is off by 4 stays off by 4.
    const int64_t offset = arena_->take(int64_t(bytes.size()),
                                        int64_t(reinterpret_cast<uintptr_t>(bytes.data()) % 64));
    if (offset < 0) return;
    std::memcpy(arena_->base() + offset, bytes.data(), bytes.size());
    placed_.push_back({t, offset});
  }
  const int64_t call = arena_->take(int64_t(sizeof(ArenaCall)));
  if (call < 0) return;
  Params a = data_.params();
  for (void** pointer : {&a.q.data, &a.k.data, &a.v.data, &a.out.data, &a.lse.data, &a.mask.data,
                         &a.block_mask.data})
    *pointer = moved(*pointer);
  a.alibi_slopes = moved(a.alibi_slopes);
  a.sinks = moved(a.sinks);
  a.cu_seqlens_q = moved(a.cu_seqlens_q);
  a.cu_seqlens_k = moved(a.cu_seqlens_k);
  const ArenaCall record{data_.p, a};
  std::memcpy(arena_->base() + call, &record, sizeof(record));
  fresh_out_ = data_.out.bytes();
  fresh_lse_ = data_.lse.bytes();
  call_ = call;
}

// From the parent's own memory to an offset in the arena.
template <class T>
T* ArenaCase::moved(T* pointer) const {
  const auto* at = reinterpret_cast<const uint8_t*>(pointer);
  for (const Placed& p : placed_) {
    const std::vector<uint8_t>& bytes = p.tensor->bytes();
    if (pointer != nullptr && at >= bytes.data() && at <= bytes.data() + bytes.size())
      return as_offset<T>(p.offset + (at - bytes.data()));
  }
  return nullptr;
}

void ArenaCase::poison() {
  for (const Placed& p : placed_) {
    if (p.tensor == &data_.out)
      std::memcpy(arena_->base() + p.offset, fresh_out_.data(), fresh_out_.size());
    if (p.tensor == &data_.lse)
      std::memcpy(arena_->base() + p.offset, fresh_lse_.data(), fresh_lse_.size());
  }
}

ArenaCase::Judgement ArenaCase::judge(const cpu::Executor& executor,
                                      const check::Allowance& allow) {
  // Inputs are compared as they lie in the arena, and then given back their own bytes: the
  // reference never computes with what the candidate could touch.
  Judgement result;
  std::vector<std::vector<uint8_t>> own;
  for (const Placed& p : placed_) {
    own.push_back(p.tensor->bytes());
    std::memcpy(p.tensor->bytes().data(), arena_->base() + p.offset, p.tensor->bytes().size());
  }
  std::string damage = check::damage(data_, hashes_);
  for (size_t n = 0; n < placed_.size(); ++n)
    if (placed_[n].tensor != &data_.out && placed_[n].tensor != &data_.lse)
      std::copy(own[n].begin(), own[n].end(), placed_[n].tensor->bytes().begin());
  if (!damage.empty()) {
    result.damaged = true;
    result.verdict.why = std::move(damage);
    return result;
  }
  result.verdict = check::compare(data_, check::expect(data_, executor), allow);
  return result;
}

std::vector<uint8_t> ArenaCase::outputs() const {
  std::vector<uint8_t> bytes;
  for (const Placed& p : placed_)
    if (p.tensor == &data_.out || p.tensor == &data_.lse)
      bytes.insert(
          bytes.end(), reinterpret_cast<uint8_t*>(arena_->base() + p.offset),
          reinterpret_cast<uint8_t*>(arena_->base() + p.offset) + p.tensor->bytes().size());
  return bytes;
}

}  // namespace attune::evolve
