#include "evolve/judge/timed_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "evolve/judge/gradient_check.hpp"
#include "evolve/worker/program_call.hpp"
#include "src/check/random.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/half.hpp"
#include "src/select/select.hpp"

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

WrittenGradients::WrittenGradients(const Problem& p) {
  const int64_t size = element_size(p.dtype), keys = p.batch * p.heads_kv * p.seq_k;
  const auto behind = [](int64_t end) { return (end + 63) / 64 * 64; };
  dq = p.batch * p.heads_q * p.seq_q * p.dim * size;
  dk_at = behind(dq);
  dk = keys * p.dim * size;
  dv_at = behind(dk_at + dk);
  dv = keys * p.dim_v * size;
  bytes = dv_at + dv;
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

namespace {

View contiguous_view(const void* at, int64_t heads, int64_t rows, int64_t dim) {
  return {const_cast<void*>(at), heads * rows * dim, rows * dim, dim};
}

}  // namespace

ArenaCall contiguous_call(const Problem& p, const void* q, const void* k, const void* v,
                          void* out) {
  ArenaCall call{p, {}, {}};
  call.params.q = contiguous_view(q, p.heads_q, p.seq_q, p.dim);
  call.params.k = contiguous_view(k, p.heads_kv, p.seq_k, p.dim);
  call.params.v = contiguous_view(v, p.heads_kv, p.seq_k, p.dim_v);
  call.params.out = contiguous_view(out, p.heads_q, p.seq_q, p.dim_v);
  if (p.lse)
    call.params.lse =
        contiguous_view(static_cast<std::byte*>(out) + Written(p).lse_at, p.heads_q, p.seq_q, 1);
  call.params.rows_q = p.seq_q;
  call.params.rows_k = p.seq_k;
  call.params.scale = float(1 / std::sqrt(double(p.dim)));
  return call;
}

ArenaCall contiguous_call(const Problem& p, int64_t q, int64_t k, int64_t v, int64_t out) {
  return contiguous_call(p, as_offset<void>(q), as_offset<void>(k), as_offset<void>(v),
                         as_offset<void>(out));
}

ArenaCall contiguous_backward_call(const Problem& p, const BackwardPlaces& at) {
  ArenaCall call = contiguous_call(p, at.q, at.k, at.v, at.out);
  call.problem.lse = true;
  call.params.lse = contiguous_view(as_offset<void>(at.lse), p.heads_q, p.seq_q, 1);
  const WrittenGradients g(p);
  const auto gradient = [&](int64_t begin) { return as_offset<void>(at.gradients + begin); };
  call.grads.dout = contiguous_view(as_offset<void>(at.dout), p.heads_q, p.seq_q, p.dim_v);
  call.grads.dq = contiguous_view(gradient(0), p.heads_q, p.seq_q, p.dim);
  call.grads.dk = contiguous_view(gradient(g.dk_at), p.heads_kv, p.seq_k, p.dim);
  call.grads.dv = contiguous_view(gradient(g.dv_at), p.heads_kv, p.seq_k, p.dim_v);
  return call;
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
  if (backward()) {
    const WrittenGradients g(shape_.problem);
    pieces_ = {
        {"dq", {0, g.dq}, size_}, {"dk", {g.dk_at, g.dk}, size_}, {"dv", {g.dv_at, g.dv}, size_}};
    bytes_ = g.bytes;
  } else {
    pieces_ = {{"output", {0, written_.out}, size_}};
    if (written_.lse > 0)
      pieces_.push_back({"LSE", {written_.lse_at, written_.lse}, Written::kLseBytes});
    bytes_ = written_.bytes;
  }
  // Small shapes get many, so that a sample of them takes longer than the request for it.
  const int64_t wanted = std::clamp<int64_t>(kMuchBytes / slot_bytes(), few, kMostSlots);
  const int64_t slots = std::min(wanted, bytes / slot_bytes());
  for (Slot s{}; int64_t(slots_.size()) < slots && take_slot(&s);) slots_.push_back(s);
}

// Guards, what they round up, and the record need some more.
int64_t TimedSet::slot_bytes() const {
  int64_t elements = elements_q_ + elements_k_ + elements_v_, lse = 0;
  if (backward()) {
    elements += 2 * elements_out_;
    lse = elements_out_ / shape_.problem.dim_v * Written::kLseBytes;
  }
  return elements * size_ + lse + bytes_ + 4 * page_bytes();
}

bool TimedSet::take_slot(Slot* s) {
  const auto input = [&](int64_t bytes) { return arena_->take(Arena::Part::read, bytes); };
  s->q = input(elements_q_ * size_);
  s->k = input(elements_k_ * size_);
  s->v = input(elements_v_ * size_);
  if (backward()) {
    s->result = input(elements_out_ * size_);
    s->lse = input(elements_out_ / shape_.problem.dim_v * Written::kLseBytes);
    s->dout = input(elements_out_ * size_);
  }
  s->call = input(int64_t(sizeof(ArenaCall)));
  s->out = arena_->take_guarded(bytes_);
  if (std::min({s->q, s->k, s->v, s->result, s->lse, s->dout, s->out, s->call}) < 0) return false;
  const auto guards = arena_->guards();
  const int64_t first = guards[guards.size() - 2] + page_bytes();
  s->around = {first, guards.back() - first};
  return true;
}

ArenaCall TimedSet::call_of(const Slot& s) const {
  if (!backward()) return contiguous_call(shape_.problem, s.q, s.k, s.v, s.out);
  return contiguous_backward_call(shape_.problem, {s.q, s.k, s.v, s.result, s.lse, s.dout, s.out});
}

// Everything that a call reads, its record too, and poison where it writes and around that.
void TimedSet::refresh(Slot& s, Dice* dice) {
  for (const auto& [at, elements] :
       {std::pair{s.q, elements_q_}, {s.k, elements_k_}, {s.v, elements_v_}})
    pool_.fill(arena_->base() + at, elements, dice);
  if (backward()) pool_.fill(arena_->base() + s.dout, elements_out_, dice);
  s.hard = false;
  const ArenaCall call = call_of(s);
  std::memcpy(arena_->base() + s.call, &call, sizeof(call));
  poison(s);
}

// Of the backward pass, what its forward pass gives.
void TimedSet::finish(const Slot& s) {
  if (!backward()) return;
  std::byte* base = arena_->base();
  Problem p = shape_.problem;
  p.pass = Pass::forward;
  p.lse = true;
  ArenaCall call = contiguous_call(p, base + s.q, base + s.k, base + s.v, base + s.result);
  call.params.lse = contiguous_view(base + s.lse, p.heads_q, p.seq_q, 1);
  const cpu::CpuConfig config = default_cpu_config(p, cpu::arch(), executor_.threads);
  // It can only fail for want of memory: then there is poison, and no result is right.
  if (!cpu::fused_forward(p, call.params, config, executor_).ok())
    std::memset(base + s.lse, int(kPoison), size_t(p.batch * p.heads_q * p.seq_q * 4));
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
    const Problem& p = shape_.problem;
    s.hard = n == which;
    // The backward pass has no work that one key's weight makes needless.
    if (s.hard)
      harden(backward() ? Hard::even : hard, p.dtype, arena_->base() + s.k, elements_k_ / p.dim,
             p.dim, dice);
    finish(s);
  }
  // One more looks the same and is not called: who computes what will be asked for, because inputs
  // or poison are new, computes that one too.
  decoy_ = size_t(calls) < order.size() ? int64_t(order[size_t(calls)]) : -1;
  if (decoy_ < 0) return drawn;
  Slot& decoy = slots_[size_t(decoy_)];
  if (calls > 1) {
    refresh(decoy, dice);
    finish(decoy);
  } else {
    poison(decoy);  // nothing comes after a single call: the time for new inputs is saved
  }
  return drawn;
}

// An element, as a number.
uint32_t TimedSet::bits_at(int64_t at, int64_t size) const {
  uint32_t bits = 0;
  std::memcpy(&bits, arena_->base() + at, size_t(size));
  return bits;
}

void TimedSet::glance(size_t n, Dice* dice) {
  for (const Piece& piece : pieces_)
    for (int e = 0; e < kSeen; ++e) {
      const int64_t at = slots_[drawn_[n]].out + piece.draw(dice);
      seen_.push_back({at, piece.size, bits_at(at, piece.size)});
    }
}

// A random element that still holds poison; empty: there is none.
std::string TimedSet::not_written(const Slot& slot, Dice* dice) const {
  for (const Piece& piece : pieces_)
    for (int e = 0; e < kLooked; ++e) {
      const int64_t at = piece.draw(dice);
      if (!all_poison(arena_->base() + slot.out + at, piece.size)) continue;
      const int64_t n = (at - piece.range.at) / piece.size;
      return piece.name == "LSE"
                 ? fmt::format("LSE of row {} of a timed call was not written", n)
                 : fmt::format("element {} of a timed call's {} was not written", n, piece.name);
    }
  return "";
}

Fault TimedSet::verify(const std::vector<int64_t>& calls, const Look& look,
                       const check::Allowance& allow, const Access&, Dice* dice) const {
  if (decoy_ >= 0) {
    const Range& around = slots_[size_t(decoy_)].around;
    if (!all_poison(arena_->base() + around.at, around.bytes))
      return {true, "it wrote the output of a call that it was not asked for"};
  }
  for (const Seen& s : seen_)
    if (bits_at(s.at, s.size) != s.bits)
      return {true, "the output of a timed call changed after its reply"};
  const int64_t checked = dice->below(int64_t(calls.size()));
  for (size_t n = 0; n < calls.size(); ++n) {
    const Slot& slot = *std::find_if(slots_.begin(), slots_.end(),
                                     [&](const Slot& s) { return s.call == calls[n]; });
    if (!surroundings_stand(slot))
      return {true, "memory around a timed call's output was written to"};
    if (std::string why = not_written(slot, dice); !why.empty()) return {false, std::move(why)};
    if (int64_t(n) != checked && !look.whole) continue;
    Fault fault = compare(slot, look, allow, dice);
    if (!fault.why.empty()) {
      fault.why = "a timed call: " + fault.why;
      return fault;
    }
  }
  return {};
}

// Inputs in the arena are as we wrote them.
Fault TimedSet::compare(const Slot& slot, const Look& look, const check::Allowance& allow,
                        Dice* dice) const {
  const Memory memory{arena_->base(), arena_->size()};
  ArenaCall call;
  memory.get(slot.call, arena_->base(), &call);
  if (backward()) {
    const GradientCheck result(call.problem, call.params, call.grads, slot.hard);
    return look.whole ? result.whole(look.rows, executor_, dice) : result.rows(look.rows, dice);
  }
  const RowCheck result(call.problem, call.params, allow,
                        slot.hard ? check::Fill::huge_logits : check::Fill::normal);
  if (look.whole) return result.whole(look.rows, executor_, dice);
  std::vector<RowCheck::Place> places;
  for (int r = 0; r < look.rows; ++r) places.push_back(result.draw(dice));
  return result.rows(places);
}

bool TimedSet::surroundings_stand(const Slot& s) const {
  int64_t end = s.around.at;  // of what was looked at
  const auto stand_up_to = [&](int64_t begin) {
    return all_poison(arena_->base() + end, begin - end);
  };
  for (const Piece& piece : pieces_) {
    if (!stand_up_to(s.out + piece.range.at)) return false;
    end = s.out + piece.range.at + piece.range.bytes;
  }
  return stand_up_to(s.around.at + s.around.bytes);
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
  const int64_t width =
      p.pass == Pass::backward ? 3 * p.dim + 2 * p.dim_v : p.dim + p.dim_v;  // of its products
  return 2 * pairs * double(width) * double(p.batch * p.heads_q);
}

double bytes_of(const Problem& p) {
  const double rows_q = double(p.batch * p.heads_q) * double(p.seq_q),
               rows_k = double(p.batch * p.heads_kv) * double(p.seq_k);
  const double bytes = (rows_q + rows_k) * double(p.dim + p.dim_v) * double(element_size(p.dtype));
  if (p.pass == Pass::backward) return 2 * bytes + rows_q * Written::kLseBytes;
  return bytes + double(Written(p).lse);
}

}  // namespace attune::evolve
