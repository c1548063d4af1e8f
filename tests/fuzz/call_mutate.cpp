// Calls that are wrong, or right in a way that nobody thought of.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tests/fuzz/call.hpp"

namespace attune::fuzz {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int32_t kMost32 = std::numeric_limits<int32_t>::max();
constexpr int32_t kLeast32 = std::numeric_limits<int32_t>::min();

constexpr int64_t power(int exponent) { return int64_t{1} << exponent; }

int64_t hostile_size(Dice& dice) {
  return dice.pick<int64_t>({0,
                             1,
                             -1,
                             2,
                             -2,
                             3,
                             7,
                             64,
                             256,
                             257,
                             1000,
                             65536,
                             kMost32,
                             power(31),
                             kLeast32,
                             power(32),
                             power(33),
                             power(40),
                             power(52),
                             power(60),
                             power(61),
                             power(62),
                             kMost,
                             kLeast,
                             kLeast + 1,
                             kMost / 2,
                             -power(40),
                             -power(62),
                             dice.range(-100, 100),
                             int64_t(dice.bits())});
}

float hostile_number(Dice& dice) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return dice.pick({NAN, -NAN, kInfinity, -kInfinity, 0.f, -0.f, 1e-45f, -1e-45f, 3.4e38f, -1.f,
                    1.f, 1.0000001f, 0.99999994f, 1e-38f, 1e30f});
}

int last_name(const Case& c) { return c.backward ? kNames - 1 : kLastOfForward; }

std::string change_data(Dice& dice, int name, Operand* x) {
  x->fixed = true;
  x->alias = -1;
  x->t.data = reinterpret_cast<void*>(
      dice.pick<uintptr_t>({0, 1, ~uintptr_t{0}, ~uintptr_t{0} - 15, uintptr_t{1} << 63}));
  return fmt::format("{}.data={}", name_of(name), fmt::ptr(x->t.data));
}

std::string change_tensor(Dice& dice, Case* c) {
  int name = 0;
  do {
    name = dice.number(0, last_name(*c));
  } while (!c->x[size_t(name)].given && dice.chance(0.85f));
  Operand& x = c->x[size_t(name)];
  if (!x.given) {
    x.given = true;
    x.t = c->x[size_t(dice.below(4))].t;
    if (dice.chance(0.3f))
      x.t = {nullptr,
             dice.number(0, 6),
             dice.number(0, 4),
             {hostile_size(dice), 1, 2, 3},
             {1, 1, 1, 1}};
  }
  const size_t axis = size_t(dice.below(4));
  switch (dice.below(10)) {
    case 0:
      x.t.rank = dice.pick({-1, 0, 1, 2, 3, 4, 5, 6, kMost32, kLeast32, 100});
      return fmt::format("{}.rank={}", name_of(name), x.t.rank);
    case 1:
      x.t.dtype = dice.pick({-1, 0, 1, 2, 3, 4, 5, 6, 7, kMost32, kLeast32});
      return fmt::format("{}.dtype={}", name_of(name), x.t.dtype);
    case 2:
    case 3:
    case 4:
      x.t.shape[axis] = hostile_size(dice);
      return fmt::format("{}.shape[{}]={}", name_of(name), axis, x.t.shape[axis]);
    case 5:
    case 6:
    case 7:
      x.t.stride[axis] = dice.chance(0.4f) ? dice.range(-40, 40) : hostile_size(dice);
      return fmt::format("{}.stride[{}]={}", name_of(name), axis, x.t.stride[axis]);
    case 8:
      return change_data(dice, name, &x);
    default:
      x.given = false;
      return fmt::format("no {}", name_of(name));
  }
}

std::string change_scalar(Dice& dice, attune_args* a) {
  switch (dice.below(8)) {
    case 0:
    case 1:
      a->scale = hostile_number(dice);
      return fmt::format("scale={}", a->scale);
    case 2:
    case 3:
      a->softcap = hostile_number(dice);
      return fmt::format("softcap={}", a->softcap);
    case 4:
      a->dropout_p = hostile_number(dice);
      return fmt::format("dropout_p={}", a->dropout_p);
    case 5:
      (dice.chance(0.5f) ? a->window_left : a->window_right) = hostile_size(dice);
      return fmt::format("window={},{}", a->window_left, a->window_right);
    default:
      (dice.chance(0.5f) ? a->block_mask_q : a->block_mask_k) = hostile_size(dice);
      return fmt::format("block_mask={},{}", a->block_mask_q, a->block_mask_k);
  }
}

std::string change_enum(Dice& dice, attune_args* a) {
  const int value = dice.pick({-1, 0, 1, 2, 3, 7, 8, kMost32, kLeast32});
  switch (dice.below(5)) {
    case 0:
      a->device = value;
      return fmt::format("device={}", value);
    case 1:
      a->mode = value;
      return fmt::format("mode={}", value);
    case 2:
      a->alignment = value;
      return fmt::format("alignment={}", value);
    default:
      a->threads = dice.pick({value, 9, 1025, -5});
      return fmt::format("threads={}", a->threads);
  }
}

std::string change_struct_size(Dice& dice, Case* c) {
  c->sized = true;
  c->args.struct_size = dice.pick<size_t>({0,
                                           1,
                                           8,
                                           200,
                                           offsetof(attune_args, lse),
                                           offsetof(attune_args, scale),
                                           offsetof(attune_args, scale) + 2,
                                           offsetof(attune_args, mask),
                                           offsetof(attune_args, mask) + 12,
                                           offsetof(attune_args, cu_seqlens_q),
                                           offsetof(attune_args, cu_seqlens_k),
                                           offsetof(attune_args, dropout_p),
                                           offsetof(attune_args, threads),
                                           offsetof(attune_args, parallel_for),
                                           offsetof(attune_args, parallel_user),
                                           offsetof(attune_args, key_lengths),
                                           offsetof(attune_args, key_lengths) + 12,
                                           sizeof(attune_args) - 1,
                                           sizeof(attune_args) + 1,
                                           sizeof(attune_args) + 8,
                                           sizeof(attune_args) + 800,
                                           65536,
                                           65537,
                                           std::numeric_limits<size_t>::max(),
                                           size_t(dice.range(0, 900))});
  return fmt::format("struct_size={}", c->args.struct_size);
}

std::string change_sequences(Dice& dice, Case* c) {
  if (!c->key_lengths.empty() && dice.chance(0.4f)) {
    const size_t at = size_t(dice.below(int64_t(c->key_lengths.size())));
    int32_t& length = c->key_lengths[at];
    length =
        dice.pick({-1, 0, 1, kMost32, kLeast32, dice.number(-5, 200), int(uint32_t(length) + 1u)});
    return fmt::format("key_lengths[{}]={}", at, length);
  }
  if (!c->ragged) {
    c->args.max_seq_q = hostile_size(dice);
    return fmt::format("max_seq_q={}", c->args.max_seq_q);
  }
  if (dice.chance(0.05f)) {  // very many sequences, all empty and all in one number
    const int64_t count = dice.pick<int64_t>({power(20), power(33), power(40), kMost});
    for (int name : {kCuQ, kCuK, kKeyLengths}) {
      c->x[size_t(name)].t.shape[0] = count;
      c->x[size_t(name)].t.stride[0] = 0;
    }
    for (int name : {kQ, kK, kV, kOut, kDOut, kDQ, kDK, kDV}) c->x[size_t(name)].t.shape[0] = 0;
    for (int name : {kLse, kDLse})
      if (c->x[size_t(name)].given) c->x[size_t(name)].t.shape[1] = 0;
    for (int name : {kMask, kBlockMask, kAlibi, kDMask}) c->x[size_t(name)].given = false;
    return fmt::format("{} empty sequences", count);
  }
  std::vector<int32_t>& ends = dice.chance(0.5f) ? c->cu_q : c->cu_k;
  const size_t at = size_t(dice.below(int64_t(ends.size())));
  ends[at] =
      dice.pick({-1, 0, 1, kMost32, kLeast32, dice.number(-5, 200), int(uint32_t(ends[at]) + 1u)});
  return fmt::format("cu_seqlens[{}]={}", at, ends[at]);
}

std::string change_cuda_field(Dice& dice, Case* c) {
  attune_args& a = c->args;
  switch (dice.below(9)) {
    case 0:
      a.stream = reinterpret_cast<void*>(uintptr_t{8});
      return "stream=8";
    case 1:
      a.workspace = reinterpret_cast<void*>(dice.pick<uintptr_t>({256, 255, 4096, 1}));
      return fmt::format("workspace={}", fmt::ptr(a.workspace));
    case 2:
      a.workspace_bytes = size_t(hostile_size(dice));
      return fmt::format("workspace_bytes={}", a.workspace_bytes);
    case 3:
      a.max_seq_q = hostile_size(dice);
      return fmt::format("max_seq_q={}", a.max_seq_q);
    case 4:
      a.max_seq_k = hostile_size(dice);
      return fmt::format("max_seq_k={}", a.max_seq_k);
    case 5:
      a.user_data = reinterpret_cast<void*>(uintptr_t{8});
      return "user_data=8";
    case 6:
      a.score_mod = dice.pick({"", "return score;", "}}}}"});
      return "score_mod";
    case 7:
      c->user_code.assign(dice.pick<size_t>({1000, 100000}), 'x');
      a.mask_mod = c->user_code.c_str();
      return "a long mask_mod";
    default:
      a.strict_fp32 = kLeast32;
      return "strict_fp32";
  }
}

std::string ask_for_cuda(Case* c) {
  attune_args& a = c->args;
  a.device = ATTUNE_CUDA;
  a.threads = 0;
  a.parallel_for = nullptr;
  a.parallel_user = nullptr;
  if (c->ragged) {
    a.max_seq_q = 70;
    a.max_seq_k = 90;
  }
  return "device=cuda";
}

std::string make_alias(Dice& dice, Case* c) {
  const int name = dice.number(0, last_name(*c)), other = dice.number(0, kLastOfForward);
  Operand& x = c->x[size_t(name)];
  if (name == other || !x.given || !c->x[size_t(other)].given || c->x[size_t(other)].fixed)
    return "";
  x.fixed = true;
  x.alias = other;
  return fmt::format("{} in the memory of {}", name_of(name), name_of(other));
}

// Keys without end, in the memory of one, for no query at all.
std::string make_long_keys(Dice& dice, Case* c) {
  const int64_t count = dice.pick<int64_t>({power(20), kMost32, power(40)});
  for (int name : {kK, kV}) {
    c->x[size_t(name)].t.shape[2] = count;
    c->x[size_t(name)].t.stride[2] = 0;
  }
  for (int name : {kQ, kOut, kLse, kDOut, kDLse, kDQ}) c->x[size_t(name)].t.shape[2] = 0;
  for (int name : {kMask, kBlockMask, kDK, kDV, kDMask}) c->x[size_t(name)].given = false;
  return fmt::format("{} keys and no query", count);
}

// One size of all tensors at once, so that they still fit each other.
std::string change_size(Dice& dice, Case* c) {
  const int64_t size = hostile_size(dice);
  const size_t axis = size_t(dice.below(4));
  const auto change = [&](int name, size_t d, int64_t n) {
    if (c->x[size_t(name)].given) c->x[size_t(name)].t.shape[d] = n;
  };
  const bool keys = dice.chance(0.5f);  // the third axis: of keys, or of queries
  for (int name : {kQ, kOut, kLse, kDOut, kDLse, kDQ})
    if ((axis != 2 || !keys) && ((name != kLse && name != kDLse) || axis < 3))
      change(name, axis, size);
  for (int name : {kK, kV, kDK, kDV})
    if (axis != 2 || keys) change(name, axis, size);
  if (axis == 0) change(kKeyLengths, 0, size);
  if (dice.chance(0.5f))
    for (int name = 0; name < kNames; ++name)
      if (name != kOut && name != kLse && name < kDQ)
        c->x[size_t(name)].t.stride[axis] = axis == 3 ? 1 : 0;
  if (dice.chance(0.5f)) {
    const size_t empty = size_t(dice.below(3));
    for (int name : {kQ, kOut, kLse, kDOut, kDLse, kDQ}) change(name, empty, 0);
    if (empty != 2)
      for (int name : {kK, kV, kDK, kDV}) change(name, empty, 0);
    return fmt::format("all shape[{}]={}, shape[{}]=0", axis, size, empty);
  }
  return fmt::format("all shape[{}]={}", axis, size);
}

std::string confuse_tensors(Dice& dice, Case* c) {
  const size_t name = size_t(dice.below(4)), other = size_t(dice.below(4));
  if (dice.chance(0.5f)) {
    c->x[name].t = c->x[other].t;
    return fmt::format("{} as {}", name_of(int(name)), name_of(int(other)));
  }
  for (int64_t& n : c->x[name].t.shape) std::swap(n, c->x[name].t.shape[dice.below(4)]);
  return fmt::format("the axes of {} exchanged", name_of(int(name)));
}

std::string fold_output(Dice& dice, Case* c) {
  int name = dice.pick<int>({kOut, kLse, kDQ, kDK, kDV, kDMask, kDSinks});
  if (!c->x[size_t(name)].given) name = kOut;
  const size_t axis = size_t(dice.below(4));
  int64_t& stride = c->x[size_t(name)].t.stride[axis];
  stride = dice.range(-20, 20);
  return fmt::format("{}.stride[{}]={}", name_of(name), axis, stride);
}

std::string mutate(Dice& dice, Case* c) {
  switch (dice.below(18)) {
    case 0:
      return change_scalar(dice, &c->args);
    case 1:
      return change_scalar(dice, &c->args);
    case 2:
      return change_enum(dice, &c->args);
    case 3:
      return change_struct_size(dice, c);
    case 4:
      return change_sequences(dice, c);
    case 5:
      return change_cuda_field(dice, c);
    case 6:
      return ask_for_cuda(c);
    case 7:
      return make_alias(dice, c);
    case 8:
      return confuse_tensors(dice, c);
    case 9:
      return fold_output(dice, c);
    case 10:
      return !c->ragged && dice.chance(0.3f) ? make_long_keys(dice, c) : change_size(dice, c);
    default:
      return change_tensor(dice, c);
  }
}

}  // namespace

void mutate_call(Dice& dice, Case* c) {
  c->hostile = true;
  const std::string what = mutate(dice, c);
  if (!what.empty()) c->notes += (c->notes.empty() ? "" : "; ") + what;
}

}  // namespace attune::fuzz
