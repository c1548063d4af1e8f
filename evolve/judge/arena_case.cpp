#include "evolve/judge/arena_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "evolve/worker/program_call.hpp"

namespace attune::evolve {
namespace {

struct Lengths {
  int64_t q, k;
};
constexpr Lengths kLengths[] = {{1, 1},   {1, 77},   {7, 13},   {33, 65},  {64, 64}, {100, 37},
                                {3, 130}, {129, 67}, {17, 257}, {40, 200}, {96, 96}};
// Of run_attention, whose two lengths are the same.
constexpr int64_t kEqualLengths[] = {1, 2, 7, 33, 64, 65, 77, 96, 100, 129, 257};
constexpr int32_t kHeadDims[] = {8, 16, 24, 32, 40, 64, 80, 96, 128, 256};
constexpr check::Fill kPlainFills[] = {check::Fill::normal,    check::Fill::huge_logits,
                                       check::Fill::one_hot_v, check::Fill::peaked,
                                       check::Fill::normal,    check::Fill::tiny};
constexpr check::Fill kMoreFills[] = {check::Fill::vast_logits, check::Fill::nan_in_masked,
                                      check::Fill::nan_key};
constexpr check::Fill kLargeFills[] = {check::Fill::normal, check::Fill::huge_logits,
                                       check::Fill::one_hot_v, check::Fill::peaked,
                                       check::Fill::tiny};

// In random order, so that a place in it says nothing.
void shuffle(std::vector<check::Case>* cases, Dice* dice) {
  for (size_t i = cases->size(); i > 1; --i)
    std::swap((*cases)[i - 1], (*cases)[size_t(dice->below(int64_t(i)))]);
}

// Which of the gradients are asked for follows from the seed: here it is all of them.
uint64_t seed_of_gradients(Dice* dice) { return dice->bits() & ~uint64_t{1}; }

std::vector<check::Case> small_run_attention_cases(const Problem& base, Dice* dice) {
  std::vector<check::Case> cases;
  size_t fill = size_t(dice->below(int64_t(std::size(kPlainFills))));
  const int64_t causal = dice->below(2), other_dim = dice->below(3);
  const auto add = [&](int64_t length) {
    const auto n = int64_t(cases.size());
    check::Case c;
    c.problem = base;
    c.problem.batch = 1 + dice->below(3);
    c.problem.heads_q = c.problem.heads_kv = 1 + dice->below(3);
    c.problem.seq_q = c.problem.seq_k = length;
    c.problem.causal = n % 2 == causal;
    c.problem.alignment = Alignment::top_left;
    c.problem.lse = false;
    // Programs for half are asked for the timed head dimensions alone.
    if (base.dtype == DType::f32 && n % 3 == other_dim)
      c.problem.dim = c.problem.dim_v =
          kHeadDims[size_t(dice->below(int64_t(std::size(kHeadDims))))];
    c.fill = kPlainFills[fill++ % std::size(kPlainFills)];
    c.seed = dice->bits();
    cases.push_back(std::move(c));
  };
  for (const int64_t length : kEqualLengths) add(length);
  for (int more = 0; more < 4; ++more) add(1 + dice->below(280));
  shuffle(&cases, dice);
  return cases;
}

// Heads and batches of a large shape, as few as are enough.
Problem fewer_heads(Problem p) {
  constexpr int64_t kMostElements = 1 << 20;  // of a tensor, or one group of heads
  const int64_t group = p.group(),
                of_a_head = std::max(p.seq_q, p.seq_k) * std::max(p.dim, p.dim_v);
  p.heads_kv = std::clamp<int64_t>(kMostElements / (of_a_head * group), 1, p.heads_kv);
  p.heads_q = p.heads_kv * group;
  p.batch = std::clamp<int64_t>(kMostElements / (of_a_head * p.heads_q), 1, p.batch);
  return p;
}

// All of a large case of the backward pass is compared with float64, which takes this long.
Problem fewer_rows(Problem p) {
  constexpr double kMostProducts = double(1 << 27);  // of a head, for each of its matrices
  p.batch = p.heads_kv = 1;
  const int64_t group = p.heads_q = std::min<int64_t>(p.group(), 4);
  const double products =
      double(p.seq_q) * double(p.seq_k) * double(group) * double(std::max(p.dim, p.dim_v));
  if (products <= kMostProducts) return p;
  const double part = std::sqrt(kMostProducts / products);
  p.seq_q = std::max<int64_t>(int64_t(double(p.seq_q) * part), 1);
  p.seq_k = std::max<int64_t>(int64_t(double(p.seq_k) * part), 1);
  return p;
}

// Every kind of input, one of them with the other causal; other lengths; and strided tensors of a
// batch of two with both causal limits.
std::vector<check::Case> large_backward_cases(const Problem& timed, Dice* dice) {
  std::vector<check::Case> cases;
  const Problem p = fewer_rows(timed);
  const auto add = [&](check::Fill fill) -> Problem& {
    check::Case c;
    c.problem = p;
    c.fill = fill;
    c.seed = seed_of_gradients(dice);
    return cases.emplace_back(std::move(c)).problem;
  };
  for (const check::Fill fill : kLargeFills) add(fill);
  cases[size_t(dice->below(int64_t(cases.size())))].scale = 0.3f;
  Problem& causal = cases[size_t(dice->below(int64_t(cases.size())))].problem;
  causal.causal = !causal.causal;
  for (const auto alignment : {Alignment::top_left, Alignment::bottom_right}) {
    Problem& other = add(check::Fill::normal);
    other.batch = 2;
    other.causal = true;
    other.alignment = alignment;
    other.seq_k = 1 + dice->below(p.seq_k);
    other.seq_q = 1 + dice->below(p.seq_q);
    cases.back().strided = true;
  }
  return cases;
}

// Every kind of input at the timed shape, one of them with the other causal; a longer sequence of
// odd length; and a batch of two with another length.
std::vector<check::Case> large_run_attention_cases(const Problem& timed, Dice* dice) {
  std::vector<check::Case> cases;
  const Problem p = fewer_heads(timed);
  const auto add = [&](check::Fill fill) -> Problem& {
    check::Case c;
    c.problem = p;
    c.problem.alignment = Alignment::top_left;
    c.problem.lse = false;
    c.fill = fill;
    c.seed = dice->bits();
    return cases.emplace_back(std::move(c)).problem;
  };
  for (const check::Fill fill : kLargeFills) add(fill);
  Problem& other = cases[size_t(dice->below(int64_t(cases.size())))].problem;
  other.causal = !other.causal;
  Problem& longer = add(check::Fill::huge_logits);
  longer.batch = 1;
  longer.seq_q = longer.seq_k = (p.seq_k + 1 + dice->below(p.seq_k)) | 1;
  Problem& two = add(check::Fill::normal);
  two.batch = 2;
  two.causal = !p.causal;
  two.seq_q = two.seq_k = 1 + dice->below(p.seq_k);
  return cases;
}

}  // namespace

bool in_contract(const check::Case& c, Contract contract, Language language) {
  if (contract != Contract::run_attention) return true;
  return beyond_run_attention(c.problem, language) == nullptr && !c.strided && !c.backwards &&
         !c.repeated && c.scale == 0;
}

std::vector<check::Case> small_cases(const Problem& base, Contract contract, Dice* dice) {
  if (contract == Contract::run_attention) return small_run_attention_cases(base, dice);
  const bool backward = base.pass == Pass::backward, plain = contract != Contract::none || backward;
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
    c.problem.lse = dice->chance(0.7) && !backward;  // which always reads it
    c.fill = fill;
    c.strided = dice->chance(0.3);
    c.scale = dice->chance(0.2) ? 0.3f : 0.f;
    c.infinite_mask = dice->chance(0.5);
    if (base.softcap) c.softcap = 5;
    if (base.dropout) c.dropout_p = 0.2f;
    c.seed = backward ? seed_of_gradients(dice) : dice->bits();
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
  shuffle(&cases, dice);
  return cases;
}

std::vector<check::Case> large_cases(const Problem& timed, Contract contract, Dice* dice) {
  std::vector<check::Case> cases;
  if (beyond_contract(timed) != nullptr) return cases;
  if (timed.pass == Pass::backward) return large_backward_cases(timed, dice);
  if (contract == Contract::run_attention) return large_run_attention_cases(timed, dice);
  const bool program = contract != Contract::none;
  const Problem p = fewer_heads(timed);
  const int64_t group = p.group();
  const auto add = [&](check::Fill fill) -> Problem& {
    check::Case c;
    c.problem = p;
    c.problem.lse = dice->chance(0.7);
    c.fill = fill;
    c.seed = dice->bits();
    return cases.emplace_back(std::move(c)).problem;
  };
  for (const check::Fill fill : kLargeFills) add(fill);
  cases[size_t(dice->below(int64_t(cases.size())))].scale = 0.3f;
  Problem& grouped = cases[size_t(dice->below(int64_t(cases.size())))].problem;
  grouped.heads_q = 2 * grouped.heads_kv * (group == 2 ? 2 : 1);
  if (program) {
    Problem& other = cases[size_t(dice->below(int64_t(cases.size())))].problem;
    other.causal = !other.causal;
  }
  // Longer than what is timed: who knows the timed lengths is not right for others.
  Problem& longer = add(check::Fill::huge_logits);
  longer.batch = 1;
  longer.seq_k += 1 + dice->below(longer.seq_k);
  if (longer.seq_q > 1) longer.seq_q += 1 + dice->below(longer.seq_q);
  if (!program) return cases;
  // Timed calls are contiguous and of one batch size, and where lengths are equal the causal limits
  // are the same: a path for large inputs could be right for these alone.
  for (const auto alignment : {Alignment::top_left, Alignment::bottom_right}) {
    Problem& other = add(check::Fill::normal);
    other.batch = 2;
    other.causal = true;
    other.alignment = alignment;
    other.seq_k = 1 + dice->below(2 * other.seq_k);
    other.seq_q = 1 + dice->below(2 * other.seq_q);
    cases.back().strided = true;
  }
  add(check::Fill::normal).batch = 2;
  cases.back().strided = true;
  return cases;
}

ArenaCase::ArenaCase(const check::Case& c, Arena* arena) : data_(c), arena_(arena) {
  const bool backward = c.problem.pass == Pass::backward;
  if (backward && !make_gradients()) return;
  hashes_ = check::hashes_of_inputs(data_);
  for (check::Tensor* t : data_.tensors()) {
    const bool written = t == &data_.out || t == &data_.lse;
    if (t->given() && !(backward && written) && !place(t, written)) return;
  }
  if (backward) {
    more_hashes_ = gradients_->hashes_of_inputs();
    check::Gradients& g = *gradients_;
    for (check::Tensor* t : {&g.out, &g.lse, &g.dout, &g.dlse})
      if (t->given() && !place(t, false)) return;
    for (check::Tensor* t : {&g.dq, &g.dk, &g.dv})
      if (!place(t, true)) return;
  }
  const int64_t call = arena_->take(Arena::Part::read, int64_t(sizeof(ArenaCall)));
  if (call < 0) return;
  const ArenaCall its = record();
  std::memcpy(arena_->base() + call, &its, sizeof(its));
  call_ = call;
}

// The forward pass is the library's.
bool ArenaCase::make_gradients() {
  gradients_.emplace(data_);
  const attune_args forward = gradients_->forward_args();
  if (attune_forward(&forward) == ATTUNE_OK) return true;
  broken_ = std::string("the library's forward pass does not run: ") + attune_last_error();
  return false;
}

bool ArenaCase::place(check::Tensor* t, bool written) {
  const std::vector<uint8_t>& bytes = t->bytes();
  // The first element keeps its alignment: a pointer that is off by 4 stays off by 4.
  const int64_t offset =
      arena_->take(written ? Arena::Part::written : Arena::Part::read, int64_t(bytes.size()),
                   int64_t(reinterpret_cast<uintptr_t>(bytes.data()) % 64));
  if (offset < 0) return false;
  std::memcpy(arena_->base() + offset, bytes.data(), bytes.size());
  placed_.push_back({t, offset, written ? bytes : std::vector<uint8_t>()});
  return true;
}

ArenaCall ArenaCase::record() const {
  Params a = gradients_ ? gradients_->params() : data_.params();
  GradParams g = gradients_ ? gradients_->grads() : GradParams{};
  for (void** pointer :
       {&a.q.data, &a.k.data, &a.v.data, &a.out.data, &a.lse.data, &a.mask.data, &a.block_mask.data,
        &g.dout.data, &g.dlse.data, &g.dq.data, &g.dk.data, &g.dv.data})
    *pointer = moved(*pointer);
  a.alibi_slopes = moved(a.alibi_slopes);
  a.sinks = moved(a.sinks);
  a.cu_seqlens_q = moved(a.cu_seqlens_q);
  a.cu_seqlens_k = moved(a.cu_seqlens_k);
  a.key_lengths = moved(a.key_lengths);
  return {gradients_ ? gradients_->problem() : data_.p, a, g};
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
  for (const Placed& p : placed_)
    if (p.written()) std::memcpy(arena_->base() + p.offset, p.fresh.data(), p.fresh.size());
}

// What the candidate left. Inputs are compared as they lie in the arena, and then given back their
// own bytes: the reference never computes with what a candidate could touch. Returns what was
// damaged.
std::string ArenaCase::take_back() {
  std::vector<std::vector<uint8_t>> own;
  for (const Placed& p : placed_) {
    own.push_back(p.tensor->bytes());
    std::memcpy(p.tensor->bytes().data(), arena_->base() + p.offset, p.tensor->bytes().size());
  }
  std::string damage = check::damage(data_, hashes_);
  if (gradients_ && damage.empty()) damage = gradients_->damage(more_hashes_);
  for (size_t n = 0; n < placed_.size(); ++n)
    if (!placed_[n].written())
      std::copy(own[n].begin(), own[n].end(), placed_[n].tensor->bytes().begin());
  return damage;
}

ArenaCase::Judgement ArenaCase::judge(const cpu::Executor& executor,
                                      const check::Allowance& allow) {
  Judgement result;
  if (std::string damage = take_back(); !damage.empty()) {
    result.damaged = true;
    result.verdict.why = std::move(damage);
    return result;
  }
  result.verdict = gradients_ ? check::compare(*gradients_, executor)
                              : check::compare(data_, check::expect(data_, executor), allow);
  return result;
}

Fault ArenaCase::judge_whole(const cpu::Executor& executor, const check::Allowance& allow, int rows,
                             Dice* dice) {
  if (gradients_) {
    const Judgement j = judge(executor, allow);
    return {j.damaged, j.verdict.why};
  }
  if (std::string damage = take_back(); !damage.empty()) return {true, std::move(damage)};
  const Params params = data_.params();
  return RowCheck(data_.p, params, allow, data_.c.fill).whole(rows, executor, dice);
}

std::vector<uint8_t> ArenaCase::outputs() const {
  std::vector<uint8_t> bytes;
  for (const Placed& p : placed_) {
    const auto* at = reinterpret_cast<const uint8_t*>(arena_->base() + p.offset);
    if (p.written()) bytes.insert(bytes.end(), at, at + p.fresh.size());
  }
  return bytes;
}

}  // namespace attune::evolve
