// The suites of cases: crosses of shapes, features and dtypes, and random combinations.
#include <algorithm>
#include <limits>

#include "src/check/cases.hpp"
#include "src/check/random.hpp"

namespace attune::check {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr int32_t kDims[] = {1, 3, 8, 17, 32, 40, 64, 80, 96, 100, 128, 160, 192, 255, 256};
constexpr int64_t kQuickCost = 6'000'000;  // dearer cases are left to the full suite
constexpr MaskKind kMasks[] = {MaskKind::boolean, MaskKind::f32, MaskKind::f16, MaskKind::bf16};

template <class T, size_t N>
T pick(const T (&values)[N], int64_t n) {
  return values[size_t(n) % N];
}

struct Shape {
  int64_t sq, sk;
};

Case make(DType dtype, Shape shape, int32_t dim = 64, int64_t batch = 1, int64_t heads_q = 2,
          int64_t heads_kv = 2) {
  Case c;
  c.problem.dtype = dtype;
  c.problem.batch = batch;
  c.problem.heads_q = heads_q;
  c.problem.heads_kv = heads_kv;
  c.problem.seq_q = shape.sq;
  c.problem.seq_k = shape.sk;
  c.problem.dim = c.problem.dim_v = dim;
  c.problem.lse = true;
  return c;
}

Case with_causal(Case c, Alignment alignment) {
  c.problem.causal = true;
  c.problem.alignment = alignment;
  return c;
}

Case with_window(Case c, int64_t left, int64_t right) {
  c.problem.window_left = left;
  c.problem.window_right = right;
  return c;
}

Case with_mask(Case c, MaskKind kind, int broadcast, bool infinite) {
  c.problem.mask = kind;
  c.mask_broadcast = broadcast;
  c.infinite_mask = infinite && kind != MaskKind::boolean;
  return c;
}

Case with_block_mask(Case c, int64_t rows, int64_t keys, int broadcast) {
  c.problem.block_mask_q = rows;
  c.problem.block_mask_k = keys;
  c.mask_broadcast = broadcast;
  return c;
}

Case with_softcap(Case c, float cap) {
  c.problem.softcap = true;
  c.softcap = cap;
  return c;
}

Case with_dropout(Case c, float p) {
  c.problem.dropout = true;
  c.dropout_p = p;
  return c;
}

Case with_alibi(Case c) {
  c.problem.alibi = true;
  return c;
}

Case with_sinks(Case c) {
  c.problem.sinks = true;
  return c;
}

Case with_fill(Case c, Fill fill) {
  c.fill = fill;
  return c;
}

Case with_lengths(Case c, std::vector<int32_t> lengths_q, std::vector<int32_t> lengths_k) {
  c.problem.ragged = true;
  c.problem.batch = int64_t(lengths_q.size());
  c.problem.seq_q = *std::max_element(lengths_q.begin(), lengths_q.end());
  c.problem.seq_k = *std::max_element(lengths_k.begin(), lengths_k.end());
  c.lengths_q = std::move(lengths_q);
  c.lengths_k = std::move(lengths_k);
  return c;
}

// One length for each of the batch.
Case with_key_lengths(Case c, std::vector<int32_t> lengths) {
  c.problem.key_lengths = true;
  c.key_lengths = std::move(lengths);
  return c;
}

// One case with each feature added to `base`; n varies their details.
std::vector<Case> each_feature(const Case& base, int64_t n) {
  const int broadcast = int(n % 16);
  return {
      base,
      with_causal(base, Alignment::top_left),
      with_causal(base, Alignment::bottom_right),
      with_window(with_causal(base, Alignment::bottom_right), 5 + n % 60, kNoLimit),
      with_window(base, n % 9, n % 5),
      with_mask(base, MaskKind::boolean, broadcast, false),
      with_mask(base, pick(kMasks, 1 + n % 3), broadcast, n / 2 % 2 == 0),
      with_block_mask(base, 1 + n % 40, 1 + n % 23, broadcast & 3),
      with_softcap(base, pick({0.5f, 5.f, 50.f}, n)),
      with_alibi(with_causal(base, Alignment::bottom_right)),
      with_sinks(base),
      with_dropout(base, pick({0.1f, 0.5f, 0.9f}, n)),
  };
}

void append(std::vector<Case> more, std::vector<Case>* to) {
  to->insert(to->end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// ---- The groups ----

std::vector<Case> head_dims() {
  std::vector<Case> cases;
  for (DType dtype : kDTypes)
    for (int64_t n = 0; n < int64_t(std::size(kDims)); ++n)
      for (int64_t other : {0, 4, 11}) {  // Dv = D, and two others
        Case c = make(dtype, pick<Shape>({{33, 70}, {5, 129}, {65, 17}}, n + other), kDims[n]);
        c.problem.dim_v = pick(kDims, n + other);
        cases.push_back(c);
        cases.push_back(with_causal(c, Alignment::bottom_right));
      }
  return cases;
}

std::vector<Case> lengths() {
  constexpr int64_t kLengths[] = {1, 2, 7, 16, 63, 64, 65, 127, 128, 129, 192, 200, 257};
  std::vector<Case> cases;
  int64_t n = 0;
  for (int64_t sq : kLengths)
    for (int64_t sk : kLengths) {
      const Case c = make(pick(kDTypes, n), {sq, sk}, pick({64, 32, 40, 128}, n / 3), 1, 1, 1);
      cases.push_back(c);
      cases.push_back(with_causal(c, Alignment::top_left));
      cases.push_back(with_causal(c, Alignment::bottom_right));
      ++n;
    }
  return cases;
}

std::vector<Case> nearly_empty() {
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (Shape shape : {Shape{0, 0}, Shape{0, 5}, Shape{5, 0}, Shape{9, 1}}) {
      append(each_feature(make(dtype, shape), n), &cases);
      Case none = make(dtype, {4, 4});
      none.problem.batch = 0;
      append(each_feature(none, n++), &cases);
    }
  return cases;
}

std::vector<Case> windows() {
  struct Window {
    int64_t left, right;
  };
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  constexpr Window kWindows[] = {
      {kNoLimit, 0},  {0, kNoLimit},  {0, 0},       {1, 0},   {3, 5},        {0, 7},       {16, 16},
      {64, kNoLimit}, {kNoLimit, 64}, {1000, 1000}, {200, 0}, {kLargest, 3}, {2, kLargest}};
  std::vector<Case> cases;
  int64_t n = 0;
  for (Window window : kWindows)
    for (Shape shape :
         {Shape{64, 64}, Shape{100, 37}, Shape{37, 100}, Shape{1, 90}, Shape{129, 257}})
      for (Alignment alignment : {Alignment::top_left, Alignment::bottom_right}) {
        Case c = make(pick(kDTypes, n), shape, 32, 1, 1, 1);
        c.problem.alignment = alignment;
        cases.push_back(with_window(c, window.left, window.right));
        cases.push_back(with_window(with_causal(c, alignment), window.left, window.right));
        ++n;
      }
  return cases;
}

std::vector<Case> masks() {
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (MaskKind kind : kMasks)
      for (int broadcast = 0; broadcast < 16; ++broadcast)
        for (bool sparse : {false, true}) {
          Case c = make(dtype, pick<Shape>({{33, 70}, {64, 64}, {1, 129}, {130, 65}, {9, 200}}, n),
                        pick({64, 40}, n / 3), 2, 2, pick({2, 1}, n / 5));
          c = with_mask(c, kind, broadcast, sparse);
          if (sparse) c.mask_density = 0.2f;
          cases.push_back(n % 3 == 0 ? with_causal(c, Alignment::bottom_right) : c);
          ++n;
        }
  return cases;
}

std::vector<Case> block_masks() {
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (Shape block : {Shape{1, 1}, Shape{16, 16}, Shape{64, 64}, Shape{64, 128}, Shape{7, 13},
                        Shape{128, 32}, Shape{1000, 1000}})
      for (int broadcast : {0, 1, 2, 3, 4, 8, 15}) {
        Case c = make(dtype, pick<Shape>({{100, 130}, {64, 64}, {1, 257}, {129, 65}}, n), 32, 2, 2);
        c = with_block_mask(c, block.sq, block.sk, broadcast);
        c.mask_density = pick({0.7f, 0.3f}, n);
        if (n % 3 == 0) c = with_causal(c, Alignment::top_left);
        if (n % 4 == 0) c.problem.mask = MaskKind::boolean;
        cases.push_back(c);
        ++n;
      }
  return cases;
}

std::vector<Case> head_ratios() {
  struct Heads {
    int64_t q, kv;
  };
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (Heads heads :
         {Heads{4, 2}, Heads{6, 2}, Heads{8, 1}, Heads{7, 7}, Heads{5, 1}, Heads{12, 4}})
      for (Shape shape : {Shape{1, 75}, Shape{50, 50}, Shape{3, 200}}) {
        const Case c = make(dtype, shape, pick({64, 128, 80}, n++), 2, heads.q, heads.kv);
        cases.push_back(c);
        cases.push_back(with_causal(c, Alignment::bottom_right));
      }
  return cases;
}

std::vector<Case> features() {
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (Shape shape :
         {Shape{1, 100}, Shape{64, 64}, Shape{77, 33}, Shape{40, 192}, Shape{130, 129}})
      for (int32_t dim : {64, 20}) append(each_feature(make(dtype, shape, dim, 2), n++), &cases);
  return cases;
}

std::vector<Case> ragged() {
  struct Lengths {
    std::vector<int32_t> q, k;
  };
  const Lengths kLengths[] = {{{5, 0, 64, 33}, {5, 0, 64, 33}},
                              {{1, 1, 1}, {100, 3, 257}},
                              {{0, 2}, {4, 0}},
                              {{7, 129}, {129, 7}},
                              {{40}, {40}},
                              {{10, 20, 3}, {0, 30, 1}}};
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (const Lengths& lengths : kLengths) {
      const Case c = make(dtype, {0, 0}, pick({64, 24}, n), 1, 4, pick({4, 2, 1}, n));
      append(each_feature(with_lengths(c, lengths.q, lengths.k), n), &cases);
      ++n;
    }
  return cases;
}

// Key lengths from 0 to all keys, below and above the number of queries.
std::vector<Case> key_lengths() {
  struct Batch {
    Shape shape;
    std::vector<int32_t> lengths;
  };
  const Batch kBatches[] = {{{70, 150}, {150, 0, 64}},  {{1, 300}, {1, 300, 129, 0}},
                            {{64, 64}, {64, 63}},       {{33, 9}, {0, 9, 3}},
                            {{5, 257}, {128, 4, 5, 6}}, {{130, 200}, {199}}};
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (const Batch& batch : kBatches) {
      const int64_t heads_kv = pick({4, 2, 1}, n);
      const Case c = with_key_lengths(make(dtype, batch.shape, pick({64, 24, 128, 33}, n),
                                           int64_t(batch.lengths.size()), 4, heads_kv),
                                      batch.lengths);
      append(each_feature(c, n), &cases);
      for (Alignment alignment : {Alignment::top_left, Alignment::bottom_right}) {
        Case aligned = c;
        aligned.problem.alignment = alignment;
        cases.push_back(with_window(with_alibi(aligned), 20 + n, 3));
        cases.push_back(with_mask(with_sinks(with_causal(aligned, alignment)), MaskKind::boolean,
                                  int(n % 16), false));
        cases.push_back(with_softcap(with_dropout(with_causal(aligned, alignment), 0.3f), 9));
      }
      cases.push_back(with_fill(c, Fill::nan_in_masked));
      cases.push_back(with_fill(c, Fill::vast_logits));
      Case strided = with_causal(c, Alignment::bottom_right);
      strided.strided = true;
      cases.push_back(strided);
      ++n;
    }
  // Ragged ones: less than each sequence has.
  for (DType dtype : kDTypes) {
    const Case c = with_key_lengths(
        with_lengths(make(dtype, {0, 0}, 64, 1, 4, 2), {5, 0, 64, 33}, {80, 7, 64, 40}),
        {33, 7, 0, 40});
    append(each_feature(c, n++), &cases);
  }
  // Decoding from a cache.
  for (DType dtype : kDTypes)
    for (int64_t heads_kv : {8, 2, 1}) {
      const Case c = with_key_lengths(
          make(dtype, {1 + n % 3, 3000}, pick({64, 128}, n), 3, 8, heads_kv), {2999, 17, 1024});
      cases.push_back(c);
      cases.push_back(with_causal(c, Alignment::bottom_right));
      cases.push_back(with_window(with_alibi(with_causal(c, Alignment::bottom_right)), 700, 0));
      ++n;
    }
  return cases;
}

std::vector<Case> fills() {
  std::vector<Case> cases;
  int64_t n = 0;
  for (Fill fill : {Fill::huge_logits, Fill::vast_logits, Fill::tiny, Fill::one_hot_v, Fill::peaked,
                    Fill::nan_in_masked, Fill::nan_key})
    for (DType dtype : kDTypes)
      for (Shape shape : {Shape{50, 130}, Shape{1, 200}}) {
        append(each_feature(with_fill(make(dtype, shape, pick({64, 36}, n / 2)), fill), n), &cases);
        ++n;
      }
  return cases;
}

std::vector<Case> strided() {
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (Shape shape : {Shape{1, 90}, Shape{65, 65}}) {
      Case c = make(dtype, shape, pick({64, 33}, n / 2), 2, 4, 2);
      c.strided = true;
      append(each_feature(c, n), &cases);
      append(each_feature(with_lengths(c, {3, 40, 1}, {20, 40, 0}), n), &cases);
      ++n;
    }
  return cases;
}

// Strides below 0, and of 0.
std::vector<Case> directions() {
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (int32_t dim : {64, 20, 33, 128, 100})
      for (bool backwards : {true, false}) {
        Case c = make(dtype, dim <= 64 ? Shape{70, 150} : Shape{33, 130}, dim, 2, 2, 2);
        c.backwards = backwards;
        c.repeated = !backwards || n % 3 == 0;
        append(each_feature(c, n), &cases);
        cases.push_back(with_lengths(c, {3, 70, 1}, {20, 70, 0}));
        ++n;
      }
  return cases;
}

// Few rows, many keys: the key range is split among threads.
std::vector<Case> decode() {
  std::vector<Case> cases;
  int64_t n = 0;
  for (DType dtype : kDTypes)
    for (int64_t sk : {1000, 3001, 8192})
      for (int64_t heads_kv : {1, 2}) {
        Case c = make(dtype, {1 + n % 3, sk}, pick({64, 128}, n / 2), 1, heads_kv * (1 + n % 2 * 3),
                      heads_kv);
        append(each_feature(c, n++), &cases);
      }
  return cases;
}

std::vector<Case> long_ones() {
  std::vector<Case> cases;
  for (DType dtype : kDTypes)
    for (int64_t s : {576, 1000, 1088}) {  // 576 and 1088: S % 128 == 64
      const Case c = make(dtype, {s, s}, 64, 1, 1, 1);
      cases.push_back(c);
      cases.push_back(with_causal(c, Alignment::top_left));
    }
  cases.push_back(make(DType::f32, {2048, 2048}, 64, 1, 1, 1));
  cases.push_back(with_causal(make(DType::bf16, {2048, 2048}, 128, 1, 1, 1), Alignment::top_left));
  cases.push_back(with_window(make(DType::f16, {2048, 2048}, 64, 1, 1, 1), 100, 20));
  return cases;
}

// Several features at once, drawn at random.
Case draw(Random* random) {
  const DType dtype = pick(kDTypes, random->below(3));
  const auto length = [&] {
    return random->chance(0.2f) ? 1 + random->below(4) : 1 + random->below(150);
  };
  const int64_t heads_kv = 1 + random->below(2), group = 1 + random->below(3);
  Case c = make(dtype, {length(), length()}, pick(kDims, random->below(15)), 1 + random->below(2),
                heads_kv * group, heads_kv);
  Problem& p = c.problem;
  if (random->chance(0.3f)) p.dim_v = int32_t(1 + random->below(256));
  p.alignment = pick({Alignment::top_left, Alignment::bottom_right}, random->below(2));
  if (random->chance(0.25f)) {
    std::vector<int32_t> q, k;
    for (int64_t b = 1 + random->below(4); b > 0; --b) {
      q.push_back(int32_t(random->below(80)));
      k.push_back(int32_t(random->below(80)));
    }
    c = with_lengths(c, q, k);
  }
  for (int64_t wanted = 2 + random->below(3); wanted > 0; --wanted) switch (random->below(8)) {
      case 0:
        p.causal = true;
        break;
      case 1:
        c = with_window(c, random->below(100) - 1, random->below(100) - 1);
        break;
      case 2:
        c = with_mask(c, pick(kMasks, random->below(4)), int(random->below(16)),
                      random->chance(0.5f));
        break;
      case 3:
        c = with_block_mask(c, 1 + random->below(70), 1 + random->below(70), int(random->below(4)));
        break;
      case 4:
        c = with_softcap(c, 1 + 30 * random->uniform());
        break;
      case 5:
        p.alibi = true;
        break;
      case 6:
        p.sinks = true;
        break;
      default:
        c = with_dropout(c, 0.8f * random->uniform());
    }
  if (random->chance(0.3f)) {
    std::vector<int32_t> used;
    for (size_t b = 0; b < size_t(p.batch); ++b) {
      const int64_t keys = p.ragged ? c.lengths_k[b] : p.seq_k;
      used.push_back(random->chance(0.2f) ? int32_t(keys) : int32_t(random->below(keys + 1)));
    }
    c = with_key_lengths(c, used);
  }
  if (random->chance(0.3f)) c.fill = Fill(random->below(7));
  // A row that looks at NaN and whose every key is dropped is 0 or NaN: both are right.
  if (p.dropout && c.fill == Fill::nan_key) c.fill = Fill::normal;
  if (random->chance(0.3f)) c.scale = 0.05f + random->uniform();
  p.lse = random->chance(0.6f);
  p.batch_invariant = random->chance(0.2f);
  c.strided = random->chance(0.25f);
  return c;
}

// Roughly the multiplications of one plain run.
int64_t cost(const Case& c) {
  const Problem& p = c.problem;
  return p.batch * p.heads_q * std::max<int64_t>(p.seq_q, 4) * p.seq_k * (p.dim + p.dim_v);
}

}  // namespace

std::vector<Case> suite(Suite which, uint64_t seed) {
  Random random(seed);
  std::vector<Case> drawn;
  for (int n = 0; n < 800; ++n) drawn.push_back(draw(&random));

  // The quick suite takes every step-th affordable case of a group. Steps share no factor with the
  // lengths of the loops inside a group, so that it meets all of their values.
  struct Group {
    std::vector<Case> cases;
    size_t step;
  };
  Group groups[] = {{head_dims(), 7}, {lengths(), 11},    {nearly_empty(), 11}, {windows(), 11},
                    {masks(), 9},     {block_masks(), 8}, {head_ratios(), 11},  {features(), 11},
                    {ragged(), 11},   {fills(), 11},      {strided(), 11},      {decode(), 13},
                    {long_ones(), 1}, {drawn, 25},        {directions(), 11},   {key_lengths(), 7}};
  std::vector<Case> cases;
  for (Group& group : groups) {
    if (which == Suite::quick) {
      std::erase_if(group.cases, [](const Case& c) { return cost(c) > kQuickCost; });
      std::vector<Case> some;
      for (size_t n = size_t(random.below(int64_t(group.step))); n < group.cases.size();
           n += group.step)
        some.push_back(group.cases[n]);
      group.cases = std::move(some);
    }
    append(std::move(group.cases), &cases);
  }
  for (size_t n = 0; n < cases.size(); ++n) {
    cases[n].seed = seed * 10000 + n;
    if (n % 3 == 2) cases[n].problem.lse = false;  // on CUDA that is another kernel
  }
  return cases;
}

}  // namespace attune::check
