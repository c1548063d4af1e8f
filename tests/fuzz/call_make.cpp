// Valid calls.
#include <limits>
#include <thread>

#include "tests/fuzz/call.hpp"

namespace attune::fuzz {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

struct Sizes {
  int64_t batch, heads, heads_kv, seq_q, seq_k;
  int dim, dim_v;
  int64_t total_q, total_k;  // rows of q and of k in memory
};

void run_backwards(void* user, int64_t count, attune_task task, void* arg) {
  if (user != nullptr) ++*static_cast<int*>(user);
  for (int64_t i = count - 1; i >= 0; --i) task(arg, i);
}

void run_on_threads(void*, int64_t count, attune_task task, void* arg) {
  std::vector<std::thread> threads;
  const int64_t workers = std::min<int64_t>(count, 3);
  for (int64_t w = 0; w < workers; ++w)
    threads.emplace_back([=] {
      for (int64_t i = w; i < count; i += workers) task(arg, i);
    });
  for (std::thread& thread : threads) thread.join();
}

int64_t length(Dice& dice, int64_t most) {
  switch (dice.below(6)) {
    case 0:
      return dice.range(0, 2);
    case 1:
      return dice.range(1, 5);
    case 2:
      return dice.range(1, std::min<int64_t>(most, 17));
    default:
      return dice.range(1, most);
  }
}

int head_dim(Dice& dice) {
  if (dice.chance(0.6f)) return dice.pick({1, 2, 3, 7, 8, 15, 16, 17, 24, 31, 32, 33, 40, 64});
  return dice.number(1, dice.chance(0.2f) ? 256 : 80);
}

Sizes make_sizes(Dice& dice, int64_t work) {
  constexpr int64_t kBlock = int64_t(kBlockBytes);
  for (;;) {
    Sizes s{};
    s.batch = dice.chance(0.7f) ? dice.range(1, 2) : dice.range(0, 5);
    s.heads_kv = dice.chance(0.8f) ? dice.range(1, 3) : dice.range(0, 4);
    s.heads = s.heads_kv * (dice.chance(0.6f) ? 1 : dice.range(1, 5));
    s.seq_q = length(dice, dice.chance(0.1f) ? 420 : 70);
    s.seq_k = dice.chance(0.3f) ? s.seq_q : length(dice, dice.chance(0.1f) ? 700 : 90);
    s.dim = head_dim(dice);
    s.dim_v = dice.chance(0.7f) ? s.dim : head_dim(dice);
    s.total_q = s.seq_q;
    s.total_k = s.seq_k;
    const int64_t rows = s.batch * s.heads;
    // Padding may make a tensor a few times as long as its elements.
    if (rows * (s.seq_q + 1) * (s.seq_k + 1) * (s.dim + s.dim_v) <= work &&
        rows * std::max(s.seq_q, s.seq_k) * std::max(s.dim, s.dim_v) * 20 <= kBlock &&
        rows * s.seq_q * s.seq_k * 5 <= kBlock)
      return s;
  }
}

class Maker {
 public:
  Maker(Dice& dice, const Sizes& sizes, Case* c)
      : dice_(dice),
        s_(sizes),
        c_(*c),
        plain_(dice.chance(0.35f)),
        dtype_(dice.pick({ATTUNE_F32, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16})) {}

  void run() {
    if (c_.ragged) cut_batch();
    activation(kQ, true, s_.dim, dtype_);
    activation(kK, false, s_.dim, dtype_);
    activation(kV, false, s_.dim_v, dtype_);
    activation(kOut, true, s_.dim_v, dtype_);
    if (dice_.chance(0.5f)) add_lse();
    if (dice_.chance(0.2f)) add_key_lengths();
    add_masks();
    add_scalars();
    add_execution();
    if (c_.backward) add_gradients();
  }

 private:
  // Strides for a shape: axes in any order, padding, backwards, repeated.
  void add(Name name, int32_t dtype, const std::vector<int64_t>& shape, bool last_is_one) {
    Operand& x = c_.x[name];
    attune_tensor& t = x.t;
    x.given = true;
    const bool of_sequences = name == kCuQ || name == kCuK || (name == kKeyLengths && c_.ragged);
    const bool repeats = name != kOut && name != kLse && name < kDQ && !of_sequences;
    t.dtype = dtype;
    t.rank = int32_t(shape.size());
    std::vector<size_t> order;
    for (size_t i = 0; i < 4; ++i) {
      // What lies beyond the rank must not matter.
      t.shape[i] = i < shape.size() ? shape[i] : dice_.range(-3, 3);
      t.stride[i] = dice_.range(-3, 3);
      if (i < shape.size()) order.push_back(i);
    }
    const int64_t free_axes = int64_t(shape.size()) - (last_is_one ? 1 : 0);
    for (int64_t i = free_axes - 1; i > 0 && !plain_; --i)
      if (dice_.chance(0.5f)) std::swap(order[size_t(i)], order[size_t(dice_.range(0, i))]);
    int64_t next = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      const size_t axis = order[i];
      const bool fixed = last_is_one && axis == shape.size() - 1;
      t.stride[axis] = next;
      if (!plain_ && !fixed) {
        if (repeats && dice_.chance(0.06f))
          t.stride[axis] = 0;
        else if (dice_.chance(0.1f))
          t.stride[axis] = -next;
      }
      next *= std::max<int64_t>(1, t.shape[axis]);
      if (!plain_ && dice_.chance(0.3f)) next += dice_.range(1, 9);
      if (t.shape[axis] == 1 && dice_.chance(0.5f))
        t.stride[axis] = dice_.pick<int64_t>({0, 1, -1, kMost, -kMost - 1, 12345});
    }
  }

  void activation(Name name, bool query, int64_t dim, int32_t dtype) {
    const int64_t heads = query ? s_.heads : s_.heads_kv;
    if (c_.ragged)
      add(name, dtype, {query ? s_.total_q : s_.total_k, heads, dim}, true);
    else
      add(name, dtype, {s_.batch, heads, query ? s_.seq_q : s_.seq_k, dim}, true);
  }

  void add_lse(Name name = kLse) {
    add(name, ATTUNE_F32,
        c_.ragged ? std::vector{s_.heads, s_.total_q} : std::vector{s_.batch, s_.heads, s_.seq_q},
        false);
  }

  void like(Name name, Name other, int32_t dtype, bool last_is_one) {
    const attune_tensor& t = c_.x[other].t;
    add(name, dtype, std::vector<int64_t>(t.shape, t.shape + t.rank), last_is_one);
  }

  void cut_batch() {
    const bool same = dice_.chance(0.4f);
    int64_t longest_q = 0, longest_k = 0;
    c_.cu_q = c_.cu_k = {0};
    for (int64_t b = 0; b < s_.batch; ++b) {
      const int64_t k = dice_.range(0, same ? std::min(s_.seq_q, s_.seq_k) : s_.seq_k);
      const int64_t q = same ? k : dice_.range(0, s_.seq_q);
      longest_q = std::max(longest_q, q);
      longest_k = std::max(longest_k, k);
      c_.cu_q.push_back(c_.cu_q.back() + int32_t(q));
      c_.cu_k.push_back(c_.cu_k.back() + int32_t(k));
    }
    s_.total_q = c_.cu_q.back();
    s_.total_k = c_.cu_k.back();
    s_.seq_q = longest_q;
    s_.seq_k = longest_k;
    add(kCuQ, ATTUNE_I32, {s_.batch + 1}, false);
    add(kCuK, ATTUNE_I32, {s_.batch + 1}, false);
  }

  void add_key_lengths() {
    for (size_t b = 0; b < size_t(s_.batch); ++b) {
      const int64_t keys = c_.ragged ? c_.cu_k[b + 1] - c_.cu_k[b] : s_.seq_k;
      c_.key_lengths.push_back(int32_t(dice_.chance(0.2f) ? keys : dice_.range(0, keys)));
    }
    add(kKeyLengths, ATTUNE_I32, {s_.batch}, false);
  }

  std::vector<int64_t> broadcast(std::vector<int64_t> shape) {
    if (dice_.chance(0.5f)) shape.erase(shape.begin(), shape.begin() + dice_.range(0, 4));
    for (int64_t& n : shape)
      if (dice_.chance(0.25f)) n = 1;
    return shape;
  }

  void add_masks() {
    attune_args& a = c_.args;
    if (dice_.chance(0.35f))
      add(kMask, dice_.pick({ATTUNE_BOOL, ATTUNE_BOOL, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16}),
          broadcast({s_.batch, s_.heads, s_.seq_q, s_.seq_k}), false);
    if (dice_.chance(0.12f)) {
      a.block_mask_q = dice_.pick<int64_t>({1, 2, 3, 16, 64, kMost, dice_.range(1, 100)});
      a.block_mask_k = dice_.pick<int64_t>({1, 3, 16, 64, 128, kMost, dice_.range(1, 300)});
      const auto cells = [](int64_t n, int64_t by) { return n / by + (n % by != 0); };
      add(kBlockMask, ATTUNE_BOOL,
          broadcast({s_.batch, s_.heads, cells(s_.seq_q, a.block_mask_q),
                     cells(s_.seq_k, a.block_mask_k)}),
          false);
    }
    if (dice_.chance(0.15f))
      add(kAlibi, ATTUNE_F32,
          dice_.chance(0.5f) ? std::vector{s_.heads} : std::vector{s_.batch, s_.heads}, false);
    if (dice_.chance(0.15f)) add(kSinks, ATTUNE_F32, {s_.heads}, false);
  }

  int64_t window() {
    if (dice_.chance(0.2f)) return dice_.pick<int64_t>({0, kMost, kMost - 1, int64_t{1} << 40});
    return dice_.range(-1, s_.seq_k + 3);
  }

  void add_scalars() {
    attune_args& a = c_.args;
    if (dice_.chance(0.15f)) a.softcap = dice_.pick({1.f, 30.f, 50.f, 0.5f, 5.f});
    if (dice_.chance(0.4f)) a.scale = dice_.pick({1.f, 0.125f, 0.05f, 2.f});
    if (dice_.chance(0.3f)) a.causal = dice_.pick({1, 1, -1, std::numeric_limits<int32_t>::min()});
    if (dice_.chance(0.25f)) a.window_left = window();
    if (dice_.chance(0.25f)) a.window_right = window();
    a.alignment = dice_.pick({ATTUNE_ALIGN_TOP_LEFT, ATTUNE_ALIGN_BOTTOM_RIGHT});
    if (dice_.chance(0.1f)) {
      a.dropout_p = dice_.pick({0.1f, 0.5f, 0.9f, 0x1.fffffep-1f, 1e-30f});
      a.dropout_seed = dice_.bits();
      a.dropout_offset = dice_.bits();
    }
  }

  void add_execution() {
    static int hook_calls = 0;
    attune_args& a = c_.args;
    a.threads = dice_.pick({0, 1, 1, 2, 3, 8});
    if (dice_.chance(0.1f)) {
      const bool backwards = dice_.chance(0.7f);
      a.parallel_for = backwards ? run_backwards : run_on_threads;
      a.parallel_user = backwards ? &hook_calls : nullptr;
    }
    a.batch_invariant = dice_.chance(0.2f);
    a.strict_fp32 = dice_.chance(0.1f);
    a.mode = dice_.pick({ATTUNE_AUTO, ATTUNE_AUTO, ATTUNE_AUTO, ATTUNE_FUSED, ATTUNE_FUSED,
                         ATTUNE_NAIVE, ATTUNE_REFERENCE});
  }

  void add_gradients() {
    like(kDOut, kOut, dtype_, true);
    if (dice_.chance(0.5f)) {  // the results of the forward pass, which the fast one reads
      if (!c_.x[kLse].given) add_lse();
    } else if (dice_.chance(0.7f)) {
      c_.x[kOut].given = false;
    }
    if (dice_.chance(0.3f)) add_lse(kDLse);
    if (dice_.chance(0.7f)) like(kDQ, kQ, dtype_, true);
    if (dice_.chance(0.7f)) like(kDK, kK, dtype_, true);
    if (dice_.chance(0.7f)) like(kDV, kV, dtype_, true);
    const Operand& mask = c_.x[kMask];
    if (mask.given && mask.t.dtype != ATTUNE_BOOL && dice_.chance(0.6f))
      like(kDMask, kMask, ATTUNE_F32, false);
    if (c_.x[kSinks].given && dice_.chance(0.6f)) like(kDSinks, kSinks, ATTUNE_F32, false);
    const bool results = c_.x[kOut].given && c_.x[kLse].given;
    c_.args.mode = dice_.pick(
        {ATTUNE_AUTO, ATTUNE_AUTO, ATTUNE_REFERENCE, results ? ATTUNE_FUSED : ATTUNE_AUTO});
  }

  Dice& dice_;
  Sizes s_;
  Case& c_;
  const bool plain_;
  const int32_t dtype_;
};

}  // namespace

void make_call(Dice& dice, int64_t work, Case* c) {
  attune_args_init(&c->args, sizeof(c->args));
  attune_backward_args_init(&c->grads, sizeof(c->grads));
  c->backward = dice.chance(0.12f);
  c->wild = dice.chance(0.15f);
  c->ragged = dice.chance(0.2f);
  Maker(dice, make_sizes(dice, c->backward ? work / 3 : work), c).run();
}

}  // namespace attune::fuzz
