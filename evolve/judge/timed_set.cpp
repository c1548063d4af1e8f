#include "evolve/judge/timed_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/check/random.hpp"
#include "src/cpu/half.hpp"

namespace attune::evolve {
namespace {

constexpr int64_t kMuchBytes = 32 << 20, kMostSlots = 512;
constexpr int kLooked = 16;  // of each output that must have been written
constexpr int kSeen = 4;     // of each output when its call is done

int64_t element_size(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

}  // namespace

Written::Written(const Problem& p) {
  const int64_t rows = p.batch * p.heads_q * p.seq_q;
  out = rows * p.dim_v * element_size(p.dtype);
  lse_at = (out + 63) / 64 * 64;
  lse = p.lse ? rows * kLseBytes : 0;
  bytes = p.lse ? lse_at + lse : out;
}

bool all_poison(const std::byte* at, int64_t bytes) {
  return std::all_of(at, at + bytes, [](std::byte b) { return b == kPoison; });
}

float number_at(DType dtype, const std::byte* at) {
  if (dtype == DType::f32) {
    float x;
    std::memcpy(&x, at, sizeof(x));
    return x;
  }
  uint16_t half;
  std::memcpy(&half, at, sizeof(half));
  return dtype == DType::f16 ? cpu::f16_to_float(half) : cpu::bf16_to_float(half);
}

void put_number(DType dtype, std::byte* at, float x) {
  const uint16_t half = dtype == DType::f16 ? cpu::float_to_f16(x) : cpu::float_to_bf16(x);
  std::memcpy(at, dtype == DType::f32 ? static_cast<const void*>(&x) : &half,
              size_t(element_size(dtype)));
}

void harden(Hard hard, DType dtype, std::byte* keys, int64_t rows, int64_t dim, Dice* dice) {
  const int64_t size = element_size(dtype);
  if (hard == Hard::even) {
    // Each query sees all scores larger, or smaller, by what it has in one dimension: its softmax
    // stays. Exponentials of float32 end at 88.
    constexpr float kScore = 120;
    const int64_t d = dice->below(dim);
    for (int64_t row = 0; row < rows; ++row)
      put_number(dtype, keys + (row * dim + d) * size, kScore * std::sqrt(float(dim)));
    return;
  }
  constexpr float kLonger = 0x1p12f;
  std::byte* row = keys + dice->below(rows) * dim * size;
  for (int64_t d = 0; d < dim; ++d)
    put_number(dtype, row + d * size, kLonger * number_at(dtype, row + d * size));
}

ArenaCall contiguous_call(const Problem& p, const void* q, const void* k, const void* v,
                          void* out) {
  const auto view = [](const void* at, int64_t heads, int64_t rows, int64_t dim) {
    return View{const_cast<void*>(at), heads * rows * dim, rows * dim, dim};
  };
  ArenaCall call{p, {}};
  call.params.q = view(q, p.heads_q, p.seq_q, p.dim);
  call.params.k = view(k, p.heads_kv, p.seq_k, p.dim);
  call.params.v = view(v, p.heads_kv, p.seq_k, p.dim_v);
  call.params.out = view(out, p.heads_q, p.seq_q, p.dim_v);
  if (p.lse)
    call.params.lse = view(static_cast<std::byte*>(out) + Written(p).lse_at, p.heads_q, p.seq_q, 1);
  call.params.rows_q = p.seq_q;
  call.params.rows_k = p.seq_k;
  call.params.scale = float(1 / std::sqrt(double(p.dim)));
  return call;
}

ArenaCall contiguous_call(const Problem& p, int64_t q, int64_t k, int64_t v, int64_t out) {
  return contiguous_call(p, as_offset<void>(q), as_offset<void>(k), as_offset<void>(v),
                         as_offset<void>(out));
}

NormalPool::NormalPool(DType dtype, uint64_t seed) : size_(element_size(dtype)) {
  constexpr int64_t kElements = 1 << 20;
  bytes_.resize(size_t(kElements * size_));
  check::Random random(seed);
  for (int64_t n = 0; n < kElements; ++n)
    put_number(dtype, &bytes_[size_t(n * size_)], random.normal());
}

void NormalPool::fill(std::byte* to, int64_t elements, Dice* dice) const {
  constexpr int64_t kPiece = 4099;  // a prime: pieces do not line up with rows
  const int64_t all = int64_t(bytes_.size()) / size_;
  for (int64_t n = 0; n < elements; n += kPiece) {
    const int64_t count = std::min(kPiece, elements - n);
    std::memcpy(to + n * size_, &bytes_[size_t(dice->below(all - count + 1) * size_)],
                size_t(count * size_));
  }
}

TimedData::TimedData(const TimedShape& shape)
    : shape_(shape), size_(element_size(shape.problem.dtype)), written_(shape.problem) {
  const Problem& p = shape_.problem;
  elements_q_ = p.batch * p.heads_q * p.seq_q * p.dim;
  elements_k_ = p.batch * p.heads_kv * p.seq_k * p.dim;
  elements_v_ = p.batch * p.heads_kv * p.seq_k * p.dim_v;
  elements_out_ = p.batch * p.heads_q * p.seq_q * p.dim_v;
}

TimedSet::TimedSet(const TimedShape& shape, const NormalPool& pool, Arena* arena, int64_t bytes,
                   int few, const cpu::Executor& executor)
    : TimedData(shape), pool_(pool), arena_(arena), executor_(executor) {
  const int64_t slot_bytes = (elements_q_ + elements_k_ + elements_v_) * size_ + written_.bytes +
                             4 * page_bytes();  // guards, what they round up, the record
  // Small shapes get many, so that a sample of them takes longer than the request for it.
  const int64_t wanted = std::clamp<int64_t>(kMuchBytes / slot_bytes, few, kMostSlots);
  const int64_t slots = std::min(wanted, bytes / slot_bytes);
  const auto input = [&](int64_t elements) {
    return arena_->take(Arena::Part::read, elements * size_);
  };
  for (int64_t n = 0; n < slots; ++n) {
    Slot s{};
    s.q = input(elements_q_);
    s.k = input(elements_k_);
    s.v = input(elements_v_);
    s.call = arena_->take(Arena::Part::read, int64_t(sizeof(ArenaCall)));
    s.out = arena_->take_guarded(written_.bytes);
    if (std::min({s.q, s.k, s.v, s.out, s.call}) < 0) break;
    const auto guards = arena_->guards();
    const int64_t first = guards[guards.size() - 2] + page_bytes();
    s.around = {first, guards.back() - first};
    slots_.push_back(s);
  }
}

// Everything that a call reads, its record too, and poison where it writes and around that.
void TimedSet::refresh(Slot& s, Dice* dice) {
  for (const auto& [at, elements] :
       {std::pair{s.q, elements_q_}, {s.k, elements_k_}, {s.v, elements_v_}})
    pool_.fill(arena_->base() + at, elements, dice);
  s.hard = false;
  const ArenaCall call = contiguous_call(shape_.problem, s.q, s.k, s.v, s.out);
  std::memcpy(arena_->base() + s.call, &call, sizeof(call));
  poison(s);
}

void TimedSet::poison(const Slot& s) {
  std::memset(arena_->base() + s.around.at, int(kPoison), size_t(s.around.bytes));
}

std::vector<int64_t> TimedSet::draw(int calls, Hard hard, Dice* dice) {
  std::vector<size_t> order(slots_.size());
  for (size_t n = 0; n < order.size(); ++n) order[n] = n;
  for (size_t n = order.size(); n > 1; --n)
    std::swap(order[n - 1], order[size_t(dice->below(int64_t(n)))]);
  std::vector<int64_t> drawn;
  drawn_.assign(order.begin(), order.begin() + calls);
  seen_.clear();
  // In every other sample one call, so that samples of a single call are often plain.
  const int64_t which = dice->chance(0.5) ? dice->below(calls) : -1;
  for (int n = 0; n < calls; ++n) {
    Slot& s = slots_[order[size_t(n)]];
    refresh(s, dice);
    drawn.push_back(s.call);
    if (n != which) continue;
    s.hard = true;
    const Problem& p = shape_.problem;
    harden(hard, p.dtype, arena_->base() + s.k, elements_k_ / p.dim, p.dim, dice);
  }
  // One more looks the same and is not called: who computes what will be asked for, because inputs
  // or poison are new, computes that one too.
  decoy_ = size_t(calls) < order.size() ? int64_t(order[size_t(calls)]) : -1;
  if (decoy_ < 0) return drawn;
  Slot& decoy = slots_[size_t(decoy_)];
  if (calls > 1)
    refresh(decoy, dice);
  else
    poison(decoy);  // nothing comes after a single call: the time for new inputs is saved
  return drawn;
}

// An element, as a number.
uint32_t TimedSet::bits_at(int64_t at) const {
  uint32_t bits = 0;
  std::memcpy(&bits, arena_->base() + at, size_t(size_));
  return bits;
}

void TimedSet::glance(size_t n, Dice* dice) {
  for (int e = 0; e < kSeen; ++e) {
    const int64_t at = slots_[drawn_[n]].out + dice->below(elements_out_) * size_;
    seen_.push_back({at, bits_at(at)});
  }
}

Fault TimedSet::verify(const std::vector<int64_t>& calls, const Look& look,
                       const check::Allowance& allow, const Access&, Dice* dice) const {
  if (decoy_ >= 0) {
    const Range& around = slots_[size_t(decoy_)].around;
    if (!all_poison(arena_->base() + around.at, around.bytes))
      return {true, "it wrote the output of a call that it was not asked for"};
  }
  for (const Seen& s : seen_)
    if (bits_at(s.at) != s.bits)
      return {true, "the output of a timed call changed after its reply"};
  const int64_t checked = dice->below(int64_t(calls.size()));
  for (size_t n = 0; n < calls.size(); ++n) {
    const Slot& slot = *std::find_if(slots_.begin(), slots_.end(),
                                     [&](const Slot& s) { return s.call == calls[n]; });
    if (!surroundings_stand(slot))
      return {true, "memory around a timed call's output was written to"};
    for (int e = 0; e < kLooked; ++e) {
      const int64_t at = dice->below(elements_out_);
      if (all_poison(arena_->base() + slot.out + at * size_, size_))
        return {false, fmt::format("element {} of a timed call's output was not written", at)};
    }
    if (const int64_t row = dice->below(elements_out_ / shape_.problem.dim_v);
        written_.lse > 0 &&
        all_poison(arena_->base() + slot.out + written_.lse_of(row).at, Written::kLseBytes))
      return {false, fmt::format("LSE of row {} of a timed call was not written", row)};
    const bool rows = int64_t(n) == checked;
    if (!rows && !look.whole) continue;
    std::byte* base = arena_->base();  // inputs there are as we wrote them
    const ArenaCall call = contiguous_call(shape_.problem, base + slot.q, base + slot.k,
                                           base + slot.v, base + slot.out);
    const RowCheck result(call.problem, call.params, allow,
                          slot.hard ? check::Fill::huge_logits : check::Fill::normal);
    std::vector<RowCheck::Place> places;
    for (int r = 0; r < look.rows; ++r) places.push_back(result.draw(dice));
    Fault fault = look.whole ? result.whole(look.rows, executor_, dice) : result.rows(places);
    if (!fault.why.empty()) {
      fault.why = "a timed call: " + fault.why;
      return fault;
    }
  }
  return {};
}

bool TimedSet::surroundings_stand(const Slot& s) const {
  const auto stand = [&](int64_t begin, int64_t end) {
    return all_poison(arena_->base() + begin, end - begin);
  };
  return stand(s.around.at, s.out) &&
         (written_.lse == 0 || stand(s.out + written_.out, s.out + written_.lse_at)) &&
         stand(s.out + written_.bytes, s.around.at + s.around.bytes);
}

double flops_of(const Problem& p) {
  double pairs = double(p.seq_q) * double(p.seq_k);
  if (p.causal) {
    const Sequence s{p.seq_q, p.seq_k, 0, 0,
                     p.alignment == Alignment::bottom_right ? p.seq_k - p.seq_q : 0};
    pairs = 0;
    for (int64_t i = 0; i < p.seq_q; ++i)
      pairs += double(std::max<int64_t>(key_range(p, s, i).end, 0));
  }
  return 2 * pairs * double(p.dim + p.dim_v) * double(p.batch * p.heads_q);
}

double bytes_of(const Problem& p) {
  const double rows_q = double(p.batch * p.heads_q) * double(p.seq_q),
               rows_k = double(p.batch * p.heads_kv) * double(p.seq_k);
  return (rows_q + rows_k) * double(p.dim + p.dim_v) * double(element_size(p.dtype)) +
         double(Written(p).lse);
}

}  // namespace attune::evolve
