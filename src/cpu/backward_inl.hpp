// The fused backward pass, compiled once for each instruction set. With P the softmax, F the
// factors of dropout and delta = sum(P * dP), which is dO . O:
//
//   dV = (P * F)^T dO,  dP = F * (dO V^T),  dS = P * (dP - delta),  dQ = dS K,  dK = dS^T Q
//
// Three steps. The first finds out of each row what its weights need: delta, and a shift and a
// factor that stand for LSE. The second computes dQ, dK and dV. One task:
//
//   for each block of keys:
//     pack K and V into panels
//     for each block of rows:
//       S = Q K^T and dP = dO V^T, panel by panel
//       S -> P, dP -> dS, row by row: features, masks, exp2
//       dV += P^T dO,  dK += dS^T Q,  dQ += dS K
//     write dK and dV
//   write dQ
//
// The third computes dMask, where it is asked for, by tasks that own its elements.
#if defined(ATTUNE_SRC_CPU_BACKWARD_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTUNE_SRC_CPU_BACKWARD_INL_HPP_
#undef ATTUNE_SRC_CPU_BACKWARD_INL_HPP_
#else
#define ATTUNE_SRC_CPU_BACKWARD_INL_HPP_
#endif

#include <algorithm>
#include <cmath>

#include "src/cpu/backward_task.hpp"
#include "src/cpu/gemm_inl.hpp"
#include "src/cpu/scratch_inl.hpp"
#include "src/cpu/softmax_inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {

// ---- Storage types: all arithmetic between is in float ----

template <class T>
void ReadRow(const void* from, int dim, int width, float* HWY_RESTRICT to) {
  const Floats d;
  const T* row = static_cast<const T*>(from);
  int e = 0;
  for (; e + kLanes <= dim; e += kLanes) hn::StoreU(LoadFloats(d, row + e), d, to + e);
  if (e < width) hn::StoreU(LoadFloatsN(d, row + e, dim - e), d, to + e);
}

template <class T>
void WriteRow(const float* from, int dim, void* to) {
  for (int e = 0; e < dim; ++e) store(from[e], static_cast<T*>(to) + e);
}

template <class T>
double Dot(const void* a, const void* b, int dim) {
  const Floats d;
  const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  auto sum = hn::Zero(d);
  int e = 0;
  for (; e + kLanes <= dim; e += kLanes)
    sum = hn::MulAdd(LoadFloats(d, x + e), LoadFloats(d, y + e), sum);
  if (e < dim)
    sum = hn::MulAdd(LoadFloatsN(d, x + e, dim - e), LoadFloatsN(d, y + e, dim - e), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <class T>
void PackKeysOf(const void* from, int64_t stride, int keys, int dim, int panel, float* to) {
  PackKeys(static_cast<const T*>(from), stride, keys, dim, panel, to);
}

template <class T>
void PackValuesOf(const void* from, int64_t stride, int keys, int dim, int panel, float* to) {
  PackValues(static_cast<const T*>(from), stride, keys, dim, panel, to);
}

struct Storage {
  int64_t bytes;
  void (*read_row)(const void* from, int dim, int width, float* to);  // zeros past dim
  void (*write_row)(const float* from, int dim, void* to);
  double (*dot)(const void* a, const void* b, int dim);
  void (*pack_keys)(const void* from, int64_t stride, int keys, int dim, int panel, float* to);
  void (*pack_values)(const void* from, int64_t stride, int keys, int dim, int panel, float* to);
};
template <class T>
constexpr Storage kStorage = {sizeof(T), ReadRow<T>,    WriteRow<T>,
                              Dot<T>,    PackKeysOf<T>, PackValuesOf<T>};

inline const Storage& StorageOf(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return kStorage<F16>;
    case DType::bf16:
      return kStorage<BF16>;
    default:
      return kStorage<float>;
  }
}

inline char* Address(const View& view, int64_t bytes, int64_t b, int64_t h, int64_t s) {
  return static_cast<char*>(view.data) +
         (b * view.stride_b + h * view.stride_h + s * view.stride_s) * bytes;
}

inline float& LseOf(const View& view, int64_t b, int64_t h, int64_t s) {
  return *reinterpret_cast<float*>(Address(view, sizeof(float), b, h, s));
}

// ---- Scratch ----

inline int WidthOf(int dim) { return static_cast<int>(RoundUp(dim, kLanes)); }

// dQ is summed in the caller's memory, where whole vectors fit its rows.
inline bool SumsInPlace(const BackwardCall& call, const GradientTask& task,
                        const RowBlocks& blocks) {
  const Problem& p = call.forward.problem;
  return task.dq == nullptr && p.dtype == DType::f32 && p.dim % kLanes == 0 && blocks.heads == 1;
}

// The rows of dQ that a task sums in its scratch.
inline int64_t GradientRows(const BackwardCall& call, const GradientTask& task) {
  const Problem& p = call.forward.problem;
  const Sequence seq = Sequence::of(p, call.forward.params, task.batch);
  const RowBlocks blocks = RowBlocks::of(p, call.forward.config, seq.sq);
  if (call.grads.dq.data == nullptr || task.dq != nullptr || SumsInPlace(call, task, blocks))
    return 0;
  return blocks.first_row(task.block_end) - blocks.first_row(task.block_begin);
}

inline int64_t TileSize(const MaskTask& task) { return (task.i1 - task.i0) * (task.j1 - task.j0); }

// What a block of rows and a block of keys take, and the sums of a task. Rows are padded to whole
// row groups. Rows of Q and dO lie kScoreStride apart, so that they serve as either operand.
struct BackwardScratch {
  float *q, *dout;         // [row][kScoreStride]
  float *k, *v;            // packed panels of keys
  float* k_rows;           // packed panels of columns
  float *p, *ds, *slopes;  // [row][kScoreStride]: scores, then P; dP, then dS; of the softcap
  float* sums;             // [row][lane]
  float *dk, *dv;          // [key padded][dim padded]
  float* dq;               // [row][dim padded]
  double* tile;            // of dmask
  RowState* states;
  Row* rows;
  Group* groups;
  size_t bytes;

  BackwardScratch(const BackwardCall& call, int64_t dq_rows, int64_t tile_size, void* memory) {
    const Problem& problem = call.forward.problem;
    const CpuConfig& c = call.forward.config;
    const int64_t row_count = RoundUp(c.block_q, c.mr), padded_keys = RoundUp(c.block_k, c.mr);
    const int64_t panel = int64_t{c.nv} * kLanes;
    char* at = static_cast<char*>(memory);
    const auto take = [&at](auto*& to, int64_t count) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(at);
      at += RoundUp(count * static_cast<int64_t>(sizeof(*to)), 64);
    };
    take(q, row_count * kScoreStride);
    take(dout, row_count * kScoreStride);
    take(k, RoundUp(c.block_k, panel) * problem.dim);
    take(v, RoundUp(c.block_k, panel) * problem.dim_v);
    take(k_rows, RoundUp(problem.dim, panel) * c.block_k);
    take(p, row_count * kScoreStride);
    take(ds, row_count * kScoreStride);
    take(slopes, problem.softcap ? row_count * kScoreStride : 0);
    take(sums, row_count * kLanes);
    take(dk, padded_keys * WidthOf(problem.dim));
    take(dv, padded_keys * WidthOf(problem.dim_v));
    take(dq, dq_rows * WidthOf(problem.dim));
    take(tile, tile_size);
    take(states, row_count);
    take(rows, row_count);
    take(groups, row_count / c.mr);
    bytes = static_cast<size_t>(at - static_cast<char*>(memory));
  }
};

// ---- One row ----

// Scores become weights (times keep, the factors of dropout) and dP becomes dS (times the slopes of
// a softcap and `scale`), over whole vectors. What is not allowed gets kNoWeight in both, and no
// other element does.
template <int kDegree, bool kDrop, bool kSlope>
HWY_INLINE void DifferentiateRow(const RowState& state, float factor, float scale,
                                 const float* keep, const float* slopes, int begin, int end,
                                 float* HWY_RESTRICT s, float* HWY_RESTRICT dp) {
  const Floats d;
  const auto shift = hn::Set(d, state.shift), weight = hn::Set(d, state.weight);
  const auto delta = hn::Set(d, state.delta), by = hn::Set(d, factor), times = hn::Set(d, scale);
  const auto nothing = hn::Set(d, kNoWeight);
  const float low = -127.0f / factor;
  for (int j = begin; j < end; j += kLanes) {
    const auto x = hn::LoadU(d, s + j);
    const auto forbidden = hn::Eq(x, hn::Set(d, -kInf));
    auto p = hn::Mul(Exp2<kDegree>(d, hn::Sub(x, shift), by, low), weight);
    auto grad = hn::LoadU(d, dp + j);
    auto slope = times;
    if constexpr (kSlope) slope = hn::Mul(times, hn::LoadU(d, slopes + j));
    auto kept = p;
    if constexpr (kDrop) {
      const auto kept_by = hn::LoadU(d, keep + j);
      const auto dropped = hn::Eq(kept_by, hn::Zero(d));
      kept = hn::IfThenElse(dropped, nothing, hn::Mul(p, kept_by));
      grad = hn::IfThenZeroElse(dropped, hn::Mul(grad, kept_by));
    }
    // The sum with +0 leaves no -0, which is the mark of forbidden keys.
    const auto ds = hn::MulAdd(hn::Mul(p, slope), hn::Sub(grad, delta), hn::Zero(d));
    hn::StoreU(hn::IfThenElse(forbidden, nothing, kept), d, s + j);
    hn::StoreU(hn::IfThenElse(forbidden, nothing, ds), d, dp + j);
  }
}

template <bool kDrop, bool kSlope>
void DifferentiateRow(int degree, const RowState& state, float factor, float scale,
                      const float* keep, const float* slopes, int begin, int end, float* s,
                      float* dp) {
  switch (degree) {
    case 4:
      return DifferentiateRow<4, kDrop, kSlope>(state, factor, scale, keep, slopes, begin, end, s,
                                                dp);
    case 5:
      return DifferentiateRow<5, kDrop, kSlope>(state, factor, scale, keep, slopes, begin, end, s,
                                                dp);
    default:
      return DifferentiateRow<6, kDrop, kSlope>(state, factor, scale, keep, slopes, begin, end, s,
                                                dp);
  }
}

// ---- A block of rows against a block of keys ----

template <int kMr, int kNv>
class BackwardBlock {
 public:
  BackwardBlock(const BackwardCall& call, int64_t batch, int64_t head_kv,
                const BackwardScratch& scratch)
      : call_(call),
        f_(call.forward),
        p_(f_.problem),
        a_(f_.params),
        storage_(StorageOf(p_.dtype)),
        seq_(Sequence::of(p_, a_, batch)),
        batch_(batch),
        head_kv_(head_kv),
        s_(scratch) {}

  static constexpr int kPanel = kNv * kLanes;
  static constexpr int kHalf = kMr > 1 ? kMr / 2 : 1;  // rows that a group's tail may do with

  const Sequence& seq() const { return seq_; }
  int rows() const { return rows_; }
  const Group& group(int r0) const { return s_.groups[r0 / kMr]; }
  int count(int r0) const { return std::min(kMr, rows_ - r0); }
  Row& row(int r) { return s_.rows[r]; }

  // Keys [key0, key0 + keys). Nothing is packed before rows ask for it.
  void SetKeys(int64_t key0, int keys) {
    key0_ = key0;
    keys_ = keys;
    packed_ = false;
  }

  // The rows, and which of the keys they look at: false when at none. `all`: rows whose states are
  // not known yet.
  bool SetRows(const RowBlock& block, bool all = false) {
    rows_ = 0;
    for (int64_t h = block.head0; h < block.head0 + block.heads; ++h) {
      const RowState* states = call_.row_states(batch_, h);
      for (int64_t i = block.row0; i < block.row0 + block.rows; ++i, ++rows_) {
        const KeyRange range = key_range(p_, seq_, i);
        const bool any = all || states[i].weight != 0;
        s_.rows[rows_] = {h, i, range.begin, any ? range.end : range.begin, -kInf, -kInf};
        s_.states[rows_] = states[i];
      }
    }
    return FindGroups();
  }

  bool FindGroups() {
    bool any = false;
    partial_ = false;
    for (int r0 = 0; r0 < rows_; r0 += kMr) {
      Group& group = s_.groups[r0 / kMr] =
          FindKeys(f_, batch_, s_.rows + r0, count(r0), key0_, keys_);
      any |= group.begin < group.end;
      partial_ |= group.begin >= group.end || group.partial;
    }
    return any;
  }

  // The scores of these rows, without their masks.
  void Scores() {
    ReadRows(a_.q, p_.dim, s_.q);
    Pack(false);
    Multiply(s_.q, s_.k, p_.dim, s_.p);
  }

  void FinishRow(int r, const Group& group, float* slope) {
    FinishScores(f_, seq_, batch_, s_.rows[r], key0_, group.begin, group.end,
                 s_.p + int64_t{r} * kScoreStride, slope);
  }

  // P and dS, of all keys of the block; 0 where a row does not look.
  void Differentiate(bool of_mask) {
    Scores();
    ReadRows(call_.grads.dout, p_.dim_v, s_.dout);
    Pack(true);
    Multiply(s_.dout, s_.v, p_.dim_v, s_.ds);
    for (int r0 = 0; r0 < rows_; r0 += kMr) {
      if (p_.mask != MaskKind::none && r0 + kMr < rows_)
        PrefetchMask(f_, batch_, s_.rows + r0 + kMr, count(r0 + kMr), key0_, keys_);
      for (int r = r0; r < r0 + count(r0); ++r) DifferentiateOne(r, group(r0), of_mask);
    }
  }

  // Inf or NaN meets a key that does not count: 0 times it would be NaN.
  bool MustSkip() const {
    if (!partial_) return false;
    return AnyNonFinite(s_.q, kScoreStride, rows_, p_.dim) ||
           AnyNonFinite(s_.dout, kScoreStride, rows_, p_.dim_v) || AnyNonFiniteKey();
  }

  // dK += dS^T Q, or dV += P^T dO: of every key of the block, from the rows that look at it.
  void AddToKeys(const float* weights, const float* values, int dim, float* to) const {
    const int width = WidthOf(dim);
    for (int column = 0; column < width; column += kPanel) {
      const int vecs = std::min(kNv, (width - column) / kLanes);
      for (int key = 0; key < keys_; key += kMr) {
        const auto [first, last] = RowsOf(key);
        if (first >= last) continue;
        const float* w = weights + int64_t{first} * kScoreStride + key;
        const float* v = values + int64_t{first} * kScoreStride + column;
        float* sum = to + int64_t{key} * width + column;
        if (keys_ - key > kHalf) {
          Add<kMr, kNv, 1, kScoreStride>(w, v, kScoreStride, last - first, sum, width, vecs);
        } else {
          Add<kHalf, kNv, 1, kScoreStride>(w, v, kScoreStride, last - first, sum, width, vecs);
        }
      }
    }
  }

  // dQ += dS K. Row r of the block is at to + r * stride.
  void AddToRows(float* to, int64_t stride) const {
    const Values values = KeyRows();
    const int width = WidthOf(p_.dim);
    for (int column = 0; column < width; column += kPanel) {
      const float* panel = values.data + column / kPanel * values.panel;
      const int vecs = std::min(kNv, (width - column) / kLanes);
      for (int r0 = 0; r0 < rows_; r0 += kMr) {
        const Group& keys = group(r0);
        if (keys.begin >= keys.end) continue;
        const float* w = s_.ds + int64_t{r0} * kScoreStride + keys.begin;
        const float* k = panel + keys.begin * values.row;
        float* sum = to + r0 * stride + column;
        const int depth = keys.end - keys.begin;
        if (count(r0) == kMr) {
          Add<kMr, kNv, kScoreStride, 1>(w, k, values.row, depth, sum, stride, vecs);
        } else {
          AddTail(w, k, values.row, depth, sum, stride, count(r0), vecs);
        }
      }
    }
  }

  // All three key by key, leaving out keys that do not count.
  void AddSparsely(float* dk, float* dv, float* dq, int64_t dq_stride) const {
    const Values k = KeyRows();
    const int width = WidthOf(p_.dim), width_v = WidthOf(p_.dim_v);
    for (int r = 0; r < rows_; ++r) {
      const float* p = s_.p + int64_t{r} * kScoreStride;
      const float* ds = s_.ds + int64_t{r} * kScoreStride;
      for (int key = group(r / kMr * kMr).begin; key < group(r / kMr * kMr).end; ++key) {
        if (dv != nullptr && !IsNoWeight(p[key]))
          for (int e = 0; e < p_.dim_v; ++e)
            dv[int64_t{key} * width_v + e] += p[key] * s_.dout[int64_t{r} * kScoreStride + e];
        if (IsNoWeight(ds[key])) continue;
        for (int e = 0; e < p_.dim; ++e) {
          if (dk != nullptr)
            dk[int64_t{key} * width + e] += ds[key] * s_.q[int64_t{r} * kScoreStride + e];
          if (dq != nullptr)
            dq[r * dq_stride + e] +=
                ds[key] * k.data[e / kPanel * k.panel + key * k.row + e % kPanel];
        }
      }
    }
  }

 private:
  static bool IsNoWeight(float x) { return x == 0 && std::signbit(x); }

  // Rows past the end repeat the last one.
  void ReadRows(const View& view, int dim, float* to) const {
    for (int r = 0; r < RoundUp(rows_, kMr); ++r) {
      const Row& row = s_.rows[std::min(r, rows_ - 1)];
      storage_.read_row(Address(view, storage_.bytes, batch_, row.head, seq_.q0 + row.index), dim,
                        WidthOf(dim), to + int64_t{r} * kScoreStride);
    }
  }

  const char* FirstKey(const View& view) const {
    return Address(view, storage_.bytes, batch_, head_kv_, seq_.k0 + key0_);
  }

  // K in panels, and where V is wanted too, V and the rows of K.
  void Pack(bool all) {
    if (packed_) return;
    const int64_t stride = a_.k.stride_s;
    // The first half of the work was done by Scores().
    if (!all) return storage_.pack_keys(FirstKey(a_.k), stride, keys_, p_.dim, kPanel, s_.k);
    storage_.pack_keys(FirstKey(a_.v), a_.v.stride_s, keys_, p_.dim_v, kPanel, s_.v);
    if (!KeysInPlace())
      storage_.pack_values(FirstKey(a_.k), stride, keys_, p_.dim, kPanel, s_.k_rows);
    packed_ = true;
  }

  bool KeysInPlace() const {
    return p_.dtype == DType::f32 && p_.dim % kLanes == 0 && !f_.config.pack_v;
  }

  Values KeyRows() const {
    if (KeysInPlace())
      return {reinterpret_cast<const float*>(FirstKey(a_.k)), a_.k.stride_s, kPanel};
    return {s_.k_rows, kPanel, int64_t{keys_} * kPanel};
  }

  bool AnyNonFiniteKey() const {
    const Values k = KeyRows();
    for (int column = 0; column < p_.dim; column += kPanel)
      if (AnyNonFinite(k.data + column / kPanel * k.panel, k.row, keys_,
                       std::min(kPanel, p_.dim - column)))
        return true;
    return false;
  }

  // Rows times packed panels, around each group's keys.
  void Multiply(const float* rows, const float* panels, int dim, float* to) const {
    for (int key = 0; key < keys_; key += kPanel) {
      const float* panel = panels + int64_t{key} * dim;
      const int vecs = std::min(kNv, (keys_ - key + kLanes - 1) / kLanes);
      for (int r0 = 0; r0 < rows_; r0 += kMr) {
        if (group(r0).end <= key || group(r0).begin >= key + kPanel) continue;
        const float* from = rows + int64_t{r0} * kScoreStride;
        float* at = to + int64_t{r0} * kScoreStride + key;
        if (count(r0) > kHalf) {
          Products<kMr, kNv>(from, panel, dim, vecs, at);
        } else {
          Products<kHalf, kNv>(from, panel, dim, vecs, at);
        }
      }
    }
  }

  // A whole panel, or the narrower last one.
  template <int kRows, int kVecs>
  static void Products(const float* rows, const float* panel, int dim, int vecs, float* to) {
    if (vecs == kVecs) {
      MicroKernel<kRows, kVecs, kScoreStride, 1, false>(rows, panel, kVecs * kLanes, dim, to,
                                                        kScoreStride);
    } else if constexpr (kVecs > 1) {
      Products<kRows, kVecs - 1>(rows, panel, dim, vecs, to);
    }
  }

  template <int kRows, int kVecs, int kRowStride, int kDepthStride>
  static void Add(const float* a, const float* b, int64_t ldb, int depth, float* to, int64_t ldc,
                  int vecs) {
    if (vecs == kVecs) {
      MicroKernel<kRows, kVecs, kRowStride, kDepthStride, true, true>(a, b, ldb, depth, to, ldc);
    } else if constexpr (kVecs > 1) {
      Add<kRows, kVecs - 1, kRowStride, kDepthStride>(a, b, ldb, depth, to, ldc, vecs);
    }
  }

  // The last rows, which are fewer than a group: what follows them belongs to others.
  void AddTail(const float* a, const float* b, int64_t ldb, int depth, float* to, int64_t ldc,
               int rows, int vecs) const {
    float tile[kMr * kPanel];
    std::fill_n(tile, kMr * kPanel, 0.0f);
    if (rows > kHalf) {
      Add<kMr, kNv, kScoreStride, 1>(a, b, ldb, depth, tile, kPanel, vecs);
    } else {
      Add<kHalf, kNv, kScoreStride, 1>(a, b, ldb, depth, tile, kPanel, vecs);
    }
    for (int r = 0; r < rows; ++r)
      for (int e = 0; e < vecs * kLanes; ++e) to[r * ldc + e] += tile[r * kPanel + e];
  }

  // The first row that looks at one of the keys of a group of keys, and the one past the last.
  std::pair<int, int> RowsOf(int key) const {
    int first = rows_, last = 0;
    for (int r0 = 0; r0 < rows_; r0 += kMr) {
      if (group(r0).end <= key || group(r0).begin >= key + kMr) continue;
      first = std::min(first, r0);
      last = r0 + count(r0);
    }
    return {first, last};
  }

  void DifferentiateOne(int r, const Group& keys, bool of_mask) {
    float* s = s_.p + int64_t{r} * kScoreStride;
    float* dp = s_.ds + int64_t{r} * kScoreStride;
    const int begin = keys.begin / kLanes * kLanes,
              end = static_cast<int>(RoundUp(keys.end, kLanes));
    const int whole = static_cast<int>(RoundUp(keys_, kMr));
    if (keys.begin >= keys.end) {
      std::fill(s, s + whole, kNoWeight);
      std::fill(dp, dp + whole, kNoWeight);
      return;
    }
    float* slope = p_.softcap ? s_.slopes + int64_t{r} * kScoreStride : nullptr;
    FinishRow(r, keys, slope);
    Weigh(r, begin, end, s, dp, of_mask);
    for (float* x : {s, dp}) {
      std::fill(x, x + begin, kNoWeight);
      std::fill(x + end, x + std::max(end, whole), kNoWeight);
    }
  }

  void Weigh(int r, int begin, int end, float* s, float* dp, bool of_mask) {
    const RowState& state = s_.states[r];
    const float factor = Log2Scale(f_), scale = of_mask ? 1 : a_.scale;
    const float* slope = s_.slopes + int64_t{r} * kScoreStride;
    const bool slopes = p_.softcap && !of_mask;
    const int degree = f_.config.exp_degree;
    if (p_.dropout) {
      std::fill(keep_ + begin, keep_ + end, 1.0f);
      DropWeights(f_, batch_, s_.rows[r], key0_, begin, end, keep_);
      return slopes ? DifferentiateRow<true, true>(degree, state, factor, scale, keep_, slope,
                                                   begin, end, s, dp)
                    : DifferentiateRow<true, false>(degree, state, factor, scale, keep_, slope,
                                                    begin, end, s, dp);
    }
    return slopes ? DifferentiateRow<false, true>(degree, state, factor, scale, keep_, slope, begin,
                                                  end, s, dp)
                  : DifferentiateRow<false, false>(degree, state, factor, scale, keep_, slope,
                                                   begin, end, s, dp);
  }

  const BackwardCall& call_;
  const FusedCall& f_;
  const Problem& p_;
  const Params& a_;
  const Storage& storage_;
  const Sequence seq_;
  const int64_t batch_, head_kv_;
  const BackwardScratch& s_;
  int64_t key0_ = 0;
  int keys_ = 0, rows_ = 0;
  bool packed_ = false;
  bool partial_ = false;  // some of the keys are not allowed to some row
  float keep_[kScoreStride];
};

// ---- First step: the states of rows ----

// LSE is rounded to a float. Beyond this its rounding shows among those of a score, and where
// scores are exact (2^31) it is all of the error: the row's maximum and sum are then found anew.
constexpr float kCoarseLse = 64;

template <int kMr, int kNv>
class StateFinder {
 public:
  StateFinder(const BackwardCall& call, StateTask* task, void* memory)
      : call_(call),
        f_(call.forward),
        p_(f_.problem),
        a_(f_.params),
        storage_(StorageOf(p_.dtype)),
        task_(*task),
        scratch_(call, 0, 0, memory),
        block_(call, task->batch, task->head / p_.group(), scratch_),
        unit_(IsModified(f_) ? 1.0 : double{a_.scale}),
        sink_(p_.sinks ? a_.sinks[task->head * a_.sinks_stride] : -kInf) {}

  void Run() {
    task_.dsink = 0;
    bool coarse = false;
    for (int64_t i = task_.row0; i < task_.row0 + task_.rows; ++i) {
      RowState& state = State(i);
      const float lse = LseOf(a_.lse, task_.batch, task_.head, Row0() + i);
      if (lse == -kInf) {
        state = {0, 0, 0};
        continue;
      }
      state.delta = static_cast<float>(Delta(i, lse));
      if (std::abs(lse) >= kCoarseLse && lse != kInf) {
        coarse = true;
        continue;
      }
      state.shift = static_cast<float>(lse / unit_);
      state.weight = static_cast<float>(std::exp(double{state.shift} * unit_ - lse));
      AddSink(std::exp(double{sink_} - lse), state);
    }
    if (coarse) FindAnew();
  }

 private:
  int64_t Row0() const { return block_.seq().q0; }
  RowState& State(int64_t i) const { return call_.row_states(task_.batch, task_.head)[i]; }

  double Delta(int64_t i, float lse) const {
    const auto at = [&](const View& view) {
      return Address(view, storage_.bytes, task_.batch, task_.head, Row0() + i);
    };
    const View& dlse = call_.grads.dlse;
    const double taken =
        dlse.data != nullptr ? LseOf(dlse, task_.batch, task_.head, Row0() + i) : 0;
    // A row that has its sink alone: dO does not count, whatever it holds.
    if (lse == sink_ && storage_.dot(at(a_.out), at(a_.out), p_.dim_v) == 0) return -taken;
    return storage_.dot(at(call_.grads.dout), at(a_.out), p_.dim_v) - taken;
  }

  void AddSink(double weight, const RowState& state) {
    if (p_.sinks) task_.dsink -= weight * double{state.delta};
  }

  bool IsCoarse(int64_t i) const {
    const float lse = LseOf(a_.lse, task_.batch, task_.head, Row0() + i);
    return std::abs(lse) >= kCoarseLse && lse != kInf && lse != -kInf;
  }

  // The maximum and the sum of coarse rows, as the forward pass finds them.
  void FindAnew() {
    const RowBlock block{task_.head, 1, task_.row0, task_.rows};
    block_.SetKeys(0, 0);
    block_.SetRows(block, true);
    for (int r = 0; r < block_.rows(); ++r) {
      if (!IsCoarse(task_.row0 + r)) block_.row(r).end = block_.row(r).begin;
      std::fill_n(scratch_.sums + int64_t{r} * kLanes, kLanes, 0.0f);
    }
    const int64_t step = f_.config.block_k;
    for (int64_t key0 = 0; key0 < block_.seq().sk; key0 += step) {
      block_.SetKeys(key0, static_cast<int>(std::min(step, block_.seq().sk - key0)));
      if (block_.FindGroups()) AddBlock();
    }
    for (int r = 0; r < block_.rows(); ++r)
      if (IsCoarse(task_.row0 + r)) Settle(r);
  }

  void AddBlock() {
    block_.Scores();
    for (int r = 0; r < block_.rows(); ++r) {
      const Group& keys = block_.group(r / kMr * kMr);
      if (keys.begin >= keys.end) continue;
      block_.FinishRow(r, keys, nullptr);
      SoftmaxRow(f_, block_.row(r), scratch_.p + int64_t{r} * kScoreStride,
                 keys.begin / kLanes * kLanes, static_cast<int>(RoundUp(keys.end, kLanes)),
                 Log2Scale(f_), scratch_.sums + int64_t{r} * kLanes, nullptr, 0);
    }
  }

  void Settle(int r) {
    const Floats d;
    RowState& state = State(task_.row0 + r);
    const double sum =
        hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, scratch_.sums + int64_t{r} * kLanes)));
    const double max = double{block_.row(r).max} * unit_;
    const bool none = sum == 0;
    const double top = none ? sink_ : std::max(max, double{sink_});
    const double of_sink = std::exp(double{sink_} - top);
    const double of_keys = none ? 0 : std::exp(max - top);
    const double total = sum * of_keys + of_sink;
    state.shift = none ? 0 : block_.row(r).max;
    state.weight = static_cast<float>(of_keys / total);
    AddSink(of_sink / total, state);
  }

  const BackwardCall& call_;
  const FusedCall& f_;
  const Problem& p_;
  const Params& a_;
  const Storage& storage_;
  StateTask& task_;
  const BackwardScratch scratch_;
  BackwardBlock<kMr, kNv> block_;
  const double unit_;  // of a shift, in natural units
  const float sink_;
};

// ---- Second step: dQ, dK, dV ----

template <int kMr, int kNv>
class GradientRunner {
 public:
  GradientRunner(const BackwardCall& call, const GradientTask& task, void* memory)
      : call_(call),
        g_(call.grads),
        p_(call.forward.problem),
        a_(call.forward.params),
        storage_(StorageOf(p_.dtype)),
        task_(task),
        seq_(Sequence::of(p_, a_, task.batch)),
        blocks_(RowBlocks::of(p_, call.forward.config, seq_.sq)),
        first_row_(blocks_.first_row(task.block_begin)),
        last_row_(blocks_.first_row(task.block_end)),
        in_place_(SumsInPlace(call, task, blocks_)),
        scratch_(call, GradientRows(call, task), 0, memory),
        block_(call, task.batch, task.head_kv, scratch_),
        width_(WidthOf(p_.dim)),
        width_v_(WidthOf(p_.dim_v)) {}

  void Run() {
    if (g_.dq.data != nullptr)
      for (int64_t row = first_row_; row < last_row_; ++row) std::fill_n(Dq(row), width_, 0.0f);
    const int64_t step = call_.forward.config.block_k;
    for (int64_t key0 = task_.key_begin; key0 < task_.key_end; key0 += step)
      AddKeys(key0, static_cast<int>(std::min(step, task_.key_end - key0)));
    ClearUnusedKeys();
    if (g_.dq.data == nullptr || task_.dq != nullptr || in_place_) return;
    for (int64_t row = first_row_; row < last_row_; ++row)
      storage_.write_row(Dq(row), p_.dim, DqOut(row));
  }

 private:
  char* DqOut(int64_t row) const {
    return Address(g_.dq, storage_.bytes, task_.batch, task_.head_kv * p_.group() + row / seq_.sq,
                   seq_.q0 + row % seq_.sq);
  }
  // The sums of a row, which is counted over all heads of the group.
  float* Dq(int64_t row) const {
    if (in_place_) return reinterpret_cast<float*>(DqOut(row));
    return task_.dq != nullptr ? task_.dq + row * width_
                               : scratch_.dq + (row - first_row_) * width_;
  }

  void AddKeys(int64_t key0, int keys) {
    const bool dk = g_.dk.data != nullptr, dv = g_.dv.data != nullptr, dq = g_.dq.data != nullptr;
    const int64_t padded = RoundUp(keys, kMr);
    if (dk) std::fill_n(scratch_.dk, padded * width_, 0.0f);
    if (dv) std::fill_n(scratch_.dv, padded * width_v_, 0.0f);
    block_.SetKeys(key0, keys);
    for (int64_t n = task_.block_begin; n < task_.block_end; ++n) {
      RowBlock rows = blocks_.at(n);
      rows.head0 += task_.head_kv * p_.group();
      if (!block_.SetRows(rows)) continue;
      block_.Differentiate(false);
      float* sums = dq ? Dq(blocks_.first_row(n)) : nullptr;
      const int64_t stride = in_place_ ? g_.dq.stride_s : width_;
      if (block_.MustSkip()) {
        block_.AddSparsely(dk ? scratch_.dk : nullptr, dv ? scratch_.dv : nullptr, sums, stride);
        continue;
      }
      if (dv) block_.AddToKeys(scratch_.p, scratch_.dout, p_.dim_v, scratch_.dv);
      if (dk) block_.AddToKeys(scratch_.ds, scratch_.q, p_.dim, scratch_.dk);
      if (dq) block_.AddToRows(sums, stride);
    }
    if (dk) WriteKeys(g_.dk, scratch_.dk, p_.dim, width_, 0, key0, keys);
    if (dv) WriteKeys(g_.dv, scratch_.dv, p_.dim_v, width_v_, width_, key0, keys);
  }

  // To where they go, or beside each other into the task's part.
  void WriteKeys(const View& to, const float* from, int dim, int width, int64_t at, int64_t key0,
                 int keys) const {
    for (int key = 0; key < keys; ++key, from += width) {
      if (task_.dkv != nullptr) {
        std::copy_n(from, width, task_.dkv + (key0 + key) * (width_ + width_v_) + at);
      } else {
        storage_.write_row(
            from, dim,
            Address(to, storage_.bytes, task_.batch, task_.head_kv, seq_.k0 + key0 + key));
      }
    }
  }

  void ClearUnusedKeys() const {
    const float zeros[kMaxHeadDim] = {};
    for (int64_t key = task_.key_end; key < task_.clear_end; ++key) {
      if (g_.dk.data != nullptr)
        storage_.write_row(
            zeros, p_.dim,
            Address(g_.dk, storage_.bytes, task_.batch, task_.head_kv, seq_.k0 + key));
      if (g_.dv.data != nullptr)
        storage_.write_row(
            zeros, p_.dim_v,
            Address(g_.dv, storage_.bytes, task_.batch, task_.head_kv, seq_.k0 + key));
    }
  }

  const BackwardCall& call_;
  const GradParams& g_;
  const Problem& p_;
  const Params& a_;
  const Storage& storage_;
  const GradientTask& task_;
  const Sequence seq_;
  const RowBlocks blocks_;
  const int64_t first_row_, last_row_;
  const bool in_place_;
  const BackwardScratch scratch_;
  BackwardBlock<kMr, kNv> block_;
  const int width_, width_v_;
};

// Parts are added in their order, in double, so that bits repeat.
inline void Merge(const BackwardCall& call, const MergeTask& task, void* memory) {
  const Problem& p = call.forward.problem;
  const GradParams& g = call.grads;
  const Storage& storage = StorageOf(p.dtype);
  const Sequence seq = Sequence::of(p, call.forward.params, task.batch);
  const int64_t width = WidthOf(p.dim), width_v = WidthOf(p.dim_v);
  float* sum = static_cast<float*>(memory);
  const auto merge_row = [&](const float* from, int dim, void* to) {
    for (int e = 0; e < dim; ++e) {
      double total = 0;
      for (int64_t n = 0; n < task.count; ++n) total += double{from[n * task.size + e]};
      sum[e] = static_cast<float>(total);
    }
    storage.write_row(sum, dim, to);
  };
  for (int64_t row = task.begin; row < task.end; ++row) {
    if (!task.keys) {
      merge_row(task.parts + row * width, p.dim,
                Address(g.dq, storage.bytes, task.batch, task.head_kv * p.group() + row / seq.sq,
                        seq.q0 + row % seq.sq));
      continue;
    }
    const float* from = task.parts + row * (width + width_v);
    if (g.dk.data != nullptr)
      merge_row(from, p.dim, Address(g.dk, storage.bytes, task.batch, task.head_kv, seq.k0 + row));
    if (g.dv.data != nullptr)
      merge_row(from + width, p.dim_v,
                Address(g.dv, storage.bytes, task.batch, task.head_kv, seq.k0 + row));
  }
}

// ---- Third step: dMask ----

// An element of dmask is the sum over all (b, h, i, j) that it stands for.
template <int kMr, int kNv>
class MaskRunner {
 public:
  MaskRunner(const BackwardCall& call, const MaskTask& task, void* memory)
      : call_(call),
        g_(call.grads),
        p_(call.forward.problem),
        task_(task),
        columns_(task.j1 - task.j0),
        scratch_(call, 0, TileSize(task), memory) {}

  void Run() {
    std::fill_n(scratch_.tile, TileSize(task_), 0.0);
    const auto ends = [](int64_t own, int64_t shape, int64_t all) {
      return shape == 1 ? std::pair<int64_t, int64_t>{0, all} : std::pair{own, own + 1};
    };
    const auto [b0, b1] = ends(task_.b, g_.dmask_shape[0], p_.batch);
    const auto [h0, h1] = ends(task_.h, g_.dmask_shape[1], p_.heads_q);
    for (int64_t b = b0; b < b1; ++b)
      for (int64_t h = h0; h < h1; ++h) AddHead(b, h);
    const double* sum = scratch_.tile;
    for (int64_t i = task_.i0; i < task_.i1; ++i)
      for (int64_t j = task_.j0; j < task_.j1; ++j)
        static_cast<float*>(
            g_.dmask.data)[task_.b * g_.dmask.stride[0] + task_.h * g_.dmask.stride[1] +
                           i * g_.dmask.stride[2] + j * g_.dmask.stride[3]] =
            static_cast<float>(*sum++);
  }

 private:
  void AddHead(int64_t b, int64_t h) {
    const CpuConfig& c = call_.forward.config;
    BackwardBlock<kMr, kNv> block(call_, b, h / p_.group(), scratch_);
    const Sequence& seq = block.seq();
    const int64_t i0 = Repeats(2) ? 0 : task_.i0, j0 = Repeats(3) ? 0 : task_.j0;
    const int64_t i1 = Repeats(2) ? seq.sq : std::min(task_.i1, seq.sq);
    const int64_t j1 = Repeats(3) ? seq.sk : std::min(task_.j1, seq.sk);
    for (int64_t key0 = j0; key0 < j1; key0 += c.block_k) {
      block.SetKeys(key0, static_cast<int>(std::min<int64_t>(c.block_k, j1 - key0)));
      for (int64_t row0 = i0; row0 < i1; row0 += c.block_q) {
        if (!block.SetRows({h, 1, row0, std::min<int64_t>(c.block_q, i1 - row0)})) continue;
        block.Differentiate(true);
        AddBlock(block, key0);
      }
    }
  }

  // One element stands for all of dimension d.
  bool Repeats(int d) const { return g_.dmask_shape[d] == 1; }

  void AddBlock(BackwardBlock<kMr, kNv>& block, int64_t key0) {
    for (int r = 0; r < block.rows(); ++r) {
      const Group& keys = block.group(r / kMr * kMr);
      const float* ds = scratch_.ds + int64_t{r} * kScoreStride;
      double* to = scratch_.tile + (Repeats(2) ? 0 : block.row(r).index - task_.i0) * columns_;
      const int64_t shift = Repeats(3) ? 0 : key0 - task_.j0;
      for (int j = keys.begin; j < keys.end; ++j) to[Repeats(3) ? 0 : j + shift] += double{ds[j]};
    }
  }

  const BackwardCall& call_;
  const GradParams& g_;
  const Problem& p_;
  const MaskTask& task_;
  const int64_t columns_;
  const BackwardScratch scratch_;
};

}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
