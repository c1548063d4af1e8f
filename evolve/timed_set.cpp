#include "evolve/timed_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/check/random.hpp"
#include "src/cpu/half.hpp"
#include "src/cpu/reference.hpp"

namespace attune::evolve {
namespace {

constexpr int64_t kCanary = 256;
constexpr int64_t kMuchBytes = 32 << 20, kMostSlots = 512;

float value_of(DType dtype, const std::byte* at, int64_t n) {
  uint16_t half;
  float single;
  switch (dtype) {
    case DType::f16:
      std::memcpy(&half, at + 2 * n, 2);
      return cpu::f16_to_float(half);
    case DType::bf16:
      std::memcpy(&half, at + 2 * n, 2);
      return cpu::bf16_to_float(half);
    default:
      std::memcpy(&single, at + 4 * n, 4);
      return single;
  }
}

int64_t element_size(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

}  // namespace

bool all_poison(const std::byte* at, int64_t bytes) {
  return std::all_of(at, at + bytes, [](std::byte b) { return b == kPoison; });
}

ArenaCall contiguous_call(const Problem& p, int64_t q, int64_t k, int64_t v, int64_t out) {
  const auto view = [](int64_t at, int64_t heads, int64_t rows, int64_t dim) {
    return View{as_offset<void>(at), heads * rows * dim, rows * dim, dim};
  };
  ArenaCall call{p, {}};
  call.params.q = view(q, p.heads_q, p.seq_q, p.dim);
  call.params.k = view(k, p.heads_kv, p.seq_k, p.dim);
  call.params.v = view(v, p.heads_kv, p.seq_k, p.dim_v);
  call.params.out = view(out, p.heads_q, p.seq_q, p.dim_v);
  call.params.rows_q = p.seq_q;
  call.params.rows_k = p.seq_k;
  call.params.scale = float(1 / std::sqrt(double(p.dim)));
  return call;
}

NormalPool::NormalPool(DType dtype, uint64_t seed) : size_(element_size(dtype)) {
  constexpr int64_t kElements = 1 << 20;
  bytes_.resize(size_t(kElements * size_));
  check::Random random(seed);
  for (int64_t n = 0; n < kElements; ++n) {
    const float x = random.normal();
    const uint16_t half = dtype == DType::f16 ? cpu::float_to_f16(x) : cpu::float_to_bf16(x);
    std::memcpy(&bytes_[size_t(n * size_)],
                dtype == DType::f32 ? static_cast<const void*>(&x) : &half, size_t(size_));
  }
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
    : shape_(shape), size_(element_size(shape.problem.dtype)) {
  const Problem& p = shape_.problem;
  elements_q_ = p.batch * p.heads_q * p.seq_q * p.dim;
  elements_k_ = p.batch * p.heads_kv * p.seq_k * p.dim;
  elements_v_ = p.batch * p.heads_kv * p.seq_k * p.dim_v;
  elements_out_ = p.batch * p.heads_q * p.seq_q * p.dim_v;
}

TimedSet::TimedSet(const TimedShape& shape, const NormalPool& pool, Arena* arena, int64_t bytes,
                   int few, Dice* dice)
    : TimedData(shape), pool_(pool), arena_(arena) {
  const int64_t slot_bytes =
      (elements_q_ + elements_k_ + elements_v_ + elements_out_) * size_ + 16 * kCanary;
  // Small shapes get many, so that a sample of them takes longer than the request for it.
  const int64_t wanted = std::clamp<int64_t>(kMuchBytes / slot_bytes, few, kMostSlots);
  const int64_t slots = std::min(wanted, bytes / slot_bytes);
  for (int64_t n = 0; n < slots; ++n) {
    Slot s{};
    s.q = place(elements_q_);
    s.k = place(elements_k_);
    s.v = place(elements_v_);
    s.out = place(elements_out_);
    s.call = arena_->take(int64_t(sizeof(ArenaCall)));
    if (std::min({s.q, s.k, s.v, s.out, s.call}) < 0) break;
    const ArenaCall call = contiguous_call(shape_.problem, s.q, s.k, s.v, s.out);
    std::memcpy(arena_->base() + s.call, &call, sizeof(call));
    s.inputs.resize(size_t((elements_q_ + elements_k_ + elements_v_) * size_));
    refresh(&s, dice);
    slots_.push_back(std::move(s));
  }
}

// Room for a tensor between two canaries; the offset of its first element.
int64_t TimedSet::place(int64_t elements) {
  const int64_t at = arena_->take(elements * size_ + 2 * kCanary);
  if (at < 0) return -1;
  std::memset(arena_->base() + at, int(kPoison), size_t(kCanary));
  std::memset(arena_->base() + at + kCanary + elements * size_, int(kPoison), size_t(kCanary));
  return at + kCanary;
}

void TimedSet::refresh(Slot* s, Dice* dice) {
  pool_.fill(s->inputs.data(), elements_q_ + elements_k_ + elements_v_, dice);
  const std::byte* from = s->inputs.data();
  for (const auto& [at, elements] :
       {std::pair{s->q, elements_q_}, {s->k, elements_k_}, {s->v, elements_v_}}) {
    std::memcpy(arena_->base() + at, from, size_t(elements * size_));
    from += elements * size_;
  }
}

std::vector<int64_t> TimedSet::draw(int calls, Dice* dice) {
  std::vector<size_t> order(slots_.size());
  for (size_t n = 0; n < order.size(); ++n) order[n] = n;
  for (size_t n = order.size(); n > 1; --n)
    std::swap(order[n - 1], order[size_t(dice->below(int64_t(n)))]);
  std::vector<int64_t> drawn;
  for (int n = 0; n < calls; ++n) {
    Slot& s = slots_[order[size_t(n)]];
    refresh(&s, dice);
    std::memset(arena_->base() + s.out, int(kPoison), size_t(elements_out_ * size_));
    drawn.push_back(s.call);
  }
  return drawn;
}

Fault TimedSet::verify(const std::vector<int64_t>& calls, int rows, const check::Allowance& allow,
                       const Fetch&, Dice* dice) const {
  const int64_t checked = dice->below(int64_t(calls.size()));
  for (size_t n = 0; n < calls.size(); ++n) {
    const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                   [&](const Slot& s) { return s.call == calls[n]; });
    if (!canaries_stand(*slot))
      return {true, "memory around a timed call's tensors was written to"};
    // Each slot at a few random elements, one slot at whole rows.
    for (int e = 0; e < 16; ++e) {
      const int64_t at = dice->below(elements_out_);
      if (all_poison(arena_->base() + slot->out + at * size_, size_))
        return {false, fmt::format("element {} of a timed call's output was not written", at)};
    }
    if (int64_t(n) != checked) continue;
    std::vector<Row> drawn;
    for (int r = 0; r < rows; ++r) {
      Row row = draw_row(dice);
      row.out = arena_->base() + slot->out + first_of(row) * size_;
      drawn.push_back(row);
    }
    const std::byte *q = slot->inputs.data(), *k = q + elements_q_ * size_,
                    *v = k + elements_k_ * size_;
    if (Fault fault = verify_rows(drawn, q, k, v, allow); !fault.why.empty()) return fault;
  }
  return {};
}

bool TimedSet::canaries_stand(const Slot& s) const {
  for (const auto& [at, elements] : {std::pair{s.q, elements_q_},
                                     {s.k, elements_k_},
                                     {s.v, elements_v_},
                                     {s.out, elements_out_}})
    if (!all_poison(arena_->base() + at - kCanary, kCanary) ||
        !all_poison(arena_->base() + at + elements * size_, kCanary))
      return false;
  return true;
}

Fault TimedSet::verify_inputs(int times, const Fetch&, Dice* dice) const {
  for (int n = 0; n < times; ++n) {
    const Slot& s = dice->pick(slots_);
    const std::byte* own = s.inputs.data();
    for (const auto& [at, elements] :
         {std::pair{s.q, elements_q_}, {s.k, elements_k_}, {s.v, elements_v_}}) {
      if (std::memcmp(arena_->base() + at, own, size_t(elements * size_)) != 0)
        return {true, "inputs of a timed call were written to"};
      own += elements * size_;
    }
  }
  return {};
}

TimedData::Row TimedData::draw_row(Dice* dice) const {
  const Problem& p = shape_.problem;
  const int64_t b = dice->below(p.batch), h = dice->below(p.heads_q), i = dice->below(p.seq_q);
  return {b, h, i, nullptr};
}

int64_t TimedData::first_of(const Row& row) const {
  const Problem& p = shape_.problem;
  return ((row.b * p.heads_q + row.h) * p.seq_q + row.i) * p.dim_v;
}

// The limit is the judge's rule (src/check/judge.cpp) with the error of the naive loops on these
// rows only, hence a little wider.
Fault TimedData::verify_rows(const std::vector<Row>& rows, const std::byte* q, const std::byte* k,
                             const std::byte* v, const check::Allowance& allow) const {
  const Problem& p = shape_.problem;
  const cpu::Executor alone;
  double worst = 0, naive_worst = 0, largest_v = 0, sensitivity = 0;
  std::string where;
  for (const auto& [b, h, i, out] : rows) {
    const int64_t kv = h / p.group();
    const Sequence s{p.seq_q, p.seq_k, 0, 0,
                     p.alignment == Alignment::bottom_right ? p.seq_k - p.seq_q : 0};
    Problem row = p;  // one row over the keys that it may see
    row.batch = row.heads_q = row.heads_kv = row.seq_q = 1;
    row.seq_k = std::max<int64_t>(key_range(p, s, i).end, 0);
    row.causal = false;
    const auto view = [&](const std::byte* from, int64_t at, int64_t dim) {
      return View{const_cast<std::byte*>(from + at * size_), 0, 0, dim};
    };
    Params a;
    a.q = view(q, ((b * p.heads_q + h) * p.seq_q + i) * p.dim, p.dim);
    a.k = view(k, (b * p.heads_kv + kv) * p.seq_k * p.dim, p.dim);
    a.v = view(v, (b * p.heads_kv + kv) * p.seq_k * p.dim_v, p.dim_v);
    a.scale = float(1 / std::sqrt(double(p.dim)));
    std::vector<double> exact(size_t(p.dim_v));
    double row_sensitivity = 0;
    cpu::reference_forward_f64(row, a, alone,
                               {.out = exact.data(), .sensitivity = &row_sensitivity});
    std::vector<std::byte> naive(size_t(p.dim_v * size_));
    a.out = {naive.data(), 0, 0, p.dim_v};
    cpu::naive_forward(row, a, alone);
    sensitivity = std::max(sensitivity, row_sensitivity);
    const auto* values = static_cast<const std::byte*>(a.v.data);
    for (int64_t e = 0; e < row.seq_k * p.dim_v; e += 7)
      largest_v = std::max(largest_v, double(std::abs(value_of(p.dtype, values, e))));
    for (int64_t d = 0; d < p.dim_v; ++d) {
      const double got = value_of(p.dtype, out, d), error = std::abs(got - exact[size_t(d)]);
      naive_worst =
          std::max(naive_worst, std::abs(value_of(p.dtype, naive.data(), d) - exact[size_t(d)]));
      if (!(error <= worst)) {  // NaN too
        worst = error;
        where = fmt::format("out[{},{},{},{}] of a timed call is {:.9g}, the reference {:.9g}", b,
                            h, i, d, got, exact[size_t(d)]);
        if (std::isnan(error)) return {false, where};
      }
    }
  }
  const double limit = 3 * naive_worst + allow.weights * largest_v +
                       0x1p-24 * largest_v * (6 + (3 + allow.score_roundings) * sensitivity);
  if (worst <= limit) return {};
  return {false, fmt::format("{}: off by {:.3g}, allowed is {:.3g}", where, worst, limit)};
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
  return (rows_q + rows_k) * double(p.dim + p.dim_v) * double(element_size(p.dtype));
}

}  // namespace attune::evolve
