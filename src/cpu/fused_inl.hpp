// The fused kernel, compiled once for each instruction set. One task:
//
//   pack Q; for each block of keys:
//     pack K and V into panels
//     S = Q K^T, panel by panel          a panel stays in the first-level cache while all rows pass
//     S -> logits -> weights, row by row: features, masks, online softmax
//     O += S V, panel by panel
//   divide by the row sums, write O and LSE
//
// Both products walk the rows in groups of mr. Nothing of size Sq x Sk exists: the scores of a task
// are block_q x block_k floats, in the second-level cache.
#if defined(ATTUNE_SRC_CPU_FUSED_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTUNE_SRC_CPU_FUSED_INL_HPP_
#undef ATTUNE_SRC_CPU_FUSED_INL_HPP_
#else
#define ATTUNE_SRC_CPU_FUSED_INL_HPP_
#endif

#include <algorithm>
#include <cmath>

#include "src/cpu/fused_task.hpp"
#include "src/cpu/gemm_inl.hpp"
#include "src/cpu/scratch_inl.hpp"
#include "src/cpu/softmax_inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {

template <class T>
const T* RowPointer(const View& view, int64_t b, int64_t h, int64_t s) {
  return static_cast<const T*>(view.data) + b * view.stride_b + h * view.stride_h +
         s * view.stride_s;
}

// The second product key by key, leaving out keys that do not count: what a masked key holds must
// not reach the row, and 0 * NaN would.
void AddValuesSparsely(const float* p, int rows, const Values& v, int panel_columns, int begin,
                       int end, int dim, float* out, int64_t ldo) {
  for (int r = 0; r < rows; ++r) {
    for (int key = begin; key < end; ++key) {
      const float weight = p[r * kScoreStride + key];
      if (weight == 0 && std::signbit(weight)) continue;
      for (int e = 0; e < dim; ++e) {
        out[r * ldo + e] +=
            weight * v.data[e / panel_columns * v.panel + key * v.row + e % panel_columns];
      }
    }
  }
}

// ---- The task
// ------------------------------------------------------------------------------------------------------------------

// Divides by the row sum and writes one row; max is that of the scores, -inf when no key was
// allowed.
template <class T>
void FinishRow(const FusedCall& call, const Sequence& seq, int64_t b, int64_t head, int64_t index,
               const float* acc, double sum, double max) {
  const Problem& p = call.problem;
  const Params& a = call.params;
  const bool no_key = sum == 0;                   // what was accumulated then means nothing
  if (!IsModified(call)) max *= double{a.scale};  // now a logit, in natural units
  double weight = 1;  // of the accumulated row, against the larger of its maximum and the sink
  if (p.sinks) {
    const double sink = a.sinks[head * a.sinks_stride];
    const double top = std::max(max, sink);
    weight = top == -kInf ? 0 : std::exp(max - top);
    sum = sum * weight + (top == -kInf ? 0 : std::exp(sink - top));
    max = top;
  }
  T* to = const_cast<T*>(RowPointer<T>(a.out, b, head, seq.q0 + index));
  const float factor = sum == 0 ? 0.0f : static_cast<float>(weight / sum);
  if (no_key) {
    for (int e = 0; e < p.dim_v; ++e) store(0.0f, to + e);
  } else if (factor == 0) {  // a sink far above the scores: NaN and Inf in V show all the same
    for (int e = 0; e < p.dim_v; ++e) store(static_cast<float>(acc[e] * (weight / sum)), to + e);
  } else {
    for (int e = 0; e < p.dim_v; ++e) store(acc[e] * factor, to + e);
  }
  if (p.lse) {
    auto* lse = const_cast<float*>(RowPointer<float>(a.lse, b, head, seq.q0 + index));
    *lse = sum == 0 ? -kInf : static_cast<float>(max + std::log(sum));
  }
}

template <class T, int kMr, int kNv>
class TaskRunner {
 public:
  TaskRunner(const FusedCall& call, const Task& task, void* memory)
      : call_(call),
        p_(call.problem),
        a_(call.params),
        task_(task),
        seq_(Sequence::of(call.problem, call.params, task.batch)),
        s_(call, task.total_rows(), memory),
        rows_(static_cast<int>(task.total_rows())),
        dots_(task.few_rows),
        folded_(IsFolded(call)),
        width_(static_cast<int>(RoundUp(p_.dim_v, kLanes))) {}

  void Run() {
    SetUpRows();
    PackQueries();
    int64_t begin = task_.key_end, end = task_.key_begin;
    for (int r = 0; r < rows_; ++r) {
      if (s_.rows[r].begin < s_.rows[r].end) {
        begin = std::min(begin, s_.rows[r].begin);
        end = std::max(end, s_.rows[r].end);
      }
    }
    // Blocks start at multiples of block_k whatever the task, so that a row's bits do not depend on
    // how rows were cut into tasks.
    const int64_t step = call_.config.block_k;
    for (int64_t key0 = begin / step * step; key0 < end; key0 += step) {
      Block(key0, static_cast<int>(std::min(step, end - key0)));
      if (folded_ && (key0 / step + 1) % kFoldBlocks == 0) Fold();
    }
    if (folded_) Fold();
    Finish();
  }

 private:
  static constexpr int kPanel = kNv * kLanes;
  static constexpr int kHalf = kMr > 1 ? kMr / 2 : 1;  // rows that a group's tail may do with

  void SetUpRows() {
    Row* row = s_.rows;
    for (int64_t head = task_.head0; head < task_.head0 + task_.heads; ++head) {
      for (int64_t index = task_.row0; index < task_.row0 + task_.rows; ++index, ++row) {
        const KeyRange range = key_range(p_, seq_, index);
        *row = {head,
                index,
                std::max(range.begin, task_.key_begin),
                std::min(range.end, task_.key_end),
                -kInf,
                -kInf};
      }
    }
    if (folded_) std::fill_n(s_.folded, rows_ * (width_ + 1), 0.0);
    std::fill_n(s_.out, RoundUp(rows_, kMr) * width_, 0.0f);
    std::fill_n(s_.sums, RoundUp(rows_, kMr) * kLanes, 0.0f);
  }

  void PackQueries() {
    if (dots_) {
      const int64_t padded = RoundUp(p_.dim, kLanes);
      for (int r = 0; r < rows_; ++r) {
        const T* from = Query(r);
        float* to = s_.q + r * padded;
        for (int e = 0; e < p_.dim; ++e) to[e] = to_float(from[e]);
        std::fill(to + p_.dim, to + padded, 0.0f);
      }
      return;
    }
    float* to = s_.q;
    for (int r0 = 0; r0 < rows_; r0 += kMr) {
      const T* from[kMr];  // rows past the end repeat the last one, and are never written out
      for (int r = 0; r < kMr; ++r) from[r] = Query(std::min(r0 + r, rows_ - 1));
      PackRows<kMr>(from, p_.dim, to);
      to += kMr * p_.dim;
    }
  }

  const T* Query(int r) const {
    return RowPointer<T>(a_.q, task_.batch, s_.rows[r].head, seq_.q0 + s_.rows[r].index);
  }

  // Keys [key0, key0 + keys).
  void Block(int64_t key0, int keys) {
    bool any = false, partial = false;
    for (int r0 = 0; r0 < rows_; r0 += kMr) {
      Group& group = s_.groups[r0 / kMr] =
          FindKeys(call_, task_.batch, s_.rows + r0, Count(r0), key0, keys);
      any |= group.begin < group.end;
      partial |= group.begin < group.end && group.partial;
    }
    if (!any) return;
    const T* k = RowPointer<T>(a_.k, task_.batch, task_.head_kv, seq_.k0 + key0);
    const T* v = RowPointer<T>(a_.v, task_.batch, task_.head_kv, seq_.k0 + key0);
    const bool non_finite = partial && AnyNonFinite(v, a_.v.stride_s, keys, p_.dim_v);
    Scores(k, v, keys);
    for (int r0 = 0; r0 < rows_; r0 += kMr) {
      const Group& group = s_.groups[r0 / kMr];
      if (p_.mask != MaskKind::none && r0 + kMr < rows_) {
        PrefetchMask(call_, task_.batch, s_.rows + r0 + kMr, Count(r0 + kMr), key0, keys);
      }
      if (group.begin < group.end) {
        Weights(r0, key0, group.begin, group.end, non_finite && group.partial);
      }
    }
    AddValues(v, keys, non_finite);
  }

  int Count(int r0) const { return std::min(kMr, rows_ - r0); }

  // S = Q K^T: whole panels around each group's keys.
  void Scores(const T* k, const T* v, int keys) {
    if (dots_) return DotAll(k, v, keys);
    PackKeys(k, a_.k.stride_s, keys, p_.dim, kPanel, s_.k);
    for (int key = 0; key < keys; key += kPanel) {
      const float* panel = s_.k + int64_t{key} * p_.dim;
      const int vecs = std::min(kNv, (keys - key + kLanes - 1) / kLanes);
      for (int r0 = 0; r0 < rows_; r0 += kMr) {
        const Group& group = s_.groups[r0 / kMr];
        if (group.end <= key || group.begin >= key + kPanel) continue;
        const float* q = s_.q + int64_t{r0} * p_.dim;
        float* to = s_.scores + int64_t{r0} * kScoreStride + key;
        if constexpr (2 * kMr + 2 <= kRegisters) {
          if (vecs == 1 && r0 + kMr < rows_) {  // the next group's scores too, needed or not
            NarrowPair<kMr, kMr>(q, q + int64_t{kMr} * p_.dim, panel, p_.dim, to,
                                 to + int64_t{kMr} * kScoreStride, kScoreStride);
            r0 += kMr;
            continue;
          }
        }
        if (Count(r0) > kHalf) {
          Products<kMr, kNv>(q, panel, vecs, to);
        } else {
          Products<kHalf, kNv>(q, panel, vecs, to);
        }
      }
    }
  }

  // A whole panel, or the narrower last one.
  template <int kRows, int kVecs>
  void Products(const float* q, const float* panel, int vecs, float* to) {
    if (vecs == kVecs) {
      MicroKernel<kRows, kVecs, 1, kMr, false>(q, panel, kVecs * kLanes, p_.dim, to, kScoreStride);
    } else if constexpr (kVecs > 1) {
      Products<kRows, kVecs - 1>(q, panel, vecs, to);
    }
  }

  // A few rows against K in place. They wait for memory most of all, so K and V come as two streams
  // at once.
  void DotAll(const T* k, const T* v, int keys) {
    const int64_t padded = RoundUp(p_.dim, kLanes);
    for (int key = 0; key < keys; key += 4) {
      const T* k_rows[4];
      for (int i = 0; i < 4; ++i) {
        const int present = std::min(key + i, keys - 1);
        k_rows[i] = k + present * a_.k.stride_s;
        PrefetchRow(v + present * a_.v.stride_s, p_.dim_v);
      }
      for (int r = 0; r < rows_; ++r) {
        const Group& group = s_.groups[r / kMr];
        if (key + 4 <= group.begin || key >= group.end) continue;
        Dot4(s_.q + r * padded, k_rows, p_.dim, s_.scores + int64_t{r} * kScoreStride + key);
      }
    }
  }

  // Scores become weights, row by row; the accumulators are rescaled where a maximum grew.
  void Weights(int r0, int64_t key0, int begin, int end, bool mark) {
    const float scale = Log2Scale(call_);
    const int first = begin / kLanes * kLanes, last = static_cast<int>(RoundUp(end, kLanes));
    for (int r = r0; r < r0 + Count(r0); ++r) {
      float* s = s_.scores + int64_t{r} * kScoreStride;
      Row& row = s_.rows[r];
      FinishScores(call_, seq_, task_.batch, row, key0, begin, end, s, nullptr);
      if (mark) FindForbidden(s, begin, end);
      SoftmaxRow(call_, row, s, first, last, scale, s_.sums + int64_t{r} * kLanes,
                 s_.out + int64_t{r} * width_, width_);
      if (mark) MarkForbidden(s, begin, end);
      if (p_.dropout) DropWeights(call_, task_.batch, row, key0, begin, end, s);
    }
  }

  // Around the softmax of one row: keys that are not allowed get the weight that does not count.
  void FindForbidden(const float* s, int begin, int end) {
    for (int j = begin; j < end; ++j) forbidden_[j] = s[j] == -kInf;
  }
  void MarkForbidden(float* s, int begin, int end) const {
    for (int j = begin; j < end; ++j) s[j] = forbidden_[j] ? kNoWeight : s[j];
  }

  // O += S V.
  void AddValues(const T* v, int keys, bool non_finite) {
    if (dots_ && !non_finite) return WeighAll(v);
    const Values values = FindValues(v, keys);
    for (int column = 0; column < width_; column += kPanel) {
      const float* panel = values.data + column / kPanel * values.panel;
      const int vecs = std::min(kNv, (width_ - column) / kLanes);
      for (int r0 = 0; r0 < rows_; r0 += kMr) {
        const Group& group = s_.groups[r0 / kMr];
        if (group.begin >= group.end || (non_finite && group.partial)) continue;
        const float* p = s_.scores + int64_t{r0} * kScoreStride + group.begin;
        const float* from = panel + group.begin * values.row;
        float* out = s_.out + int64_t{r0} * width_ + column;
        const int count = Count(r0), depth = group.end - group.begin;
        if (count > kHalf) {
          Multiply<kMr, kNv>(p, from, values.row, depth, out, vecs);
        } else {
          Multiply<kHalf, kNv>(p, from, values.row, depth, out, vecs);
        }
      }
    }
    for (int r0 = 0; non_finite && r0 < rows_; r0 += kMr) {
      const Group& group = s_.groups[r0 / kMr];
      if (!group.partial) continue;
      AddValuesSparsely(s_.scores + int64_t{r0} * kScoreStride, Count(r0), values, kPanel,
                        group.begin, group.end, p_.dim_v, s_.out + int64_t{r0} * width_, width_);
    }
  }

  // A few rows against V in place.
  void WeighAll(const T* v) {
    for (int r = 0; r < rows_; ++r) {
      const Group& group = s_.groups[r / kMr];
      if (group.begin >= group.end) continue;
      WeighValues(s_.scores + int64_t{r} * kScoreStride + group.begin,
                  v + group.begin * a_.v.stride_s, a_.v.stride_s, group.end - group.begin, p_.dim_v,
                  s_.out + int64_t{r} * width_);
    }
  }

  // A whole panel, or the narrower last one.
  template <int kRows, int kVecs>
  void Multiply(const float* p, const float* v, int64_t row, int depth, float* out, int vecs) {
    if (vecs == kVecs) {
      MicroKernel<kRows, kVecs, kScoreStride, 1, true>(p, v, row, depth, out, width_);
    } else if constexpr (kVecs > 1) {
      Multiply<kRows, kVecs - 1>(p, v, row, depth, out, vecs);
    }
  }

  // The copy's panels are aligned and fall into different cache sets.
  Values FindValues(const T* v, int keys) {
    if constexpr (std::is_same_v<T, float>) {
      if (p_.dim_v % kLanes == 0 && !call_.config.pack_v) {
        return {v, a_.v.stride_s, kPanel};
      }
    }
    PackValues(v, a_.v.stride_s, keys, p_.dim_v, kPanel, s_.v);
    return {s_.v, kPanel, int64_t{keys} * kPanel};
  }

  float RowSum(int r) const {
    const Floats d;
    return hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, s_.sums + int64_t{r} * kLanes)));
  }

  // Moves the accumulators and row sums into their doubles. At fixed blocks of keys, so that a
  // row's bits do not depend on the task; where nothing was added meanwhile, it changes nothing.
  void Fold() {
    const double scale = Log2Scale(call_);
    for (int r = 0; r < rows_; ++r) {
      Row& row = s_.rows[r];
      if (row.max == -kInf) continue;
      double* to = s_.folded + int64_t{r} * (width_ + 1);
      float* out = s_.out + int64_t{r} * width_;
      const double shrink = row.folded_max == row.max ? 1
                            : row.folded_max == -kInf
                                ? 0
                                : std::exp2((double{row.folded_max} - row.max) * scale);
      for (int e = 0; e < width_; ++e) to[e] = to[e] * shrink + out[e];
      to[width_] = to[width_] * shrink + RowSum(r);
      std::fill_n(out, width_, 0.0f);
      std::fill_n(s_.sums + int64_t{r} * kLanes, kLanes, 0.0f);
      row.folded_max = row.max;
    }
  }

  void Finish() {
    float* partial = task_.partial;
    for (int r = 0; r < rows_; ++r) {
      const Row& row = s_.rows[r];
      float* out = s_.out + int64_t{r} * width_;
      double sum = RowSum(r);
      if (folded_) {
        const double* from = s_.folded + int64_t{r} * (width_ + 1);
        for (int e = 0; e < width_; ++e) out[e] = static_cast<float>(from[e]);
        sum = from[width_];
      }
      if (partial == nullptr) {
        FinishRow<T>(call_, seq_, task_.batch, row.head, row.index, out, sum, row.max);
      } else {
        std::copy_n(out, width_, partial);
        partial[width_] = static_cast<float>(sum);
        partial[width_ + 1] = row.max;
        partial += width_ + 2;
      }
    }
  }

  const FusedCall& call_;
  const Problem& p_;
  const Params& a_;
  const Task& task_;
  const Sequence seq_;
  const Scratch s_;
  const int rows_;
  const bool dots_;    // K and V are read in place
  const bool folded_;  // the keys may be so many that sums are folded
  const int width_;
  bool forbidden_[kMaxBlockK];
};

template <class T>
void CombineRows(const FusedCall& call, const Task* tasks, int splits, float* sum_row) {
  const Task& task = tasks[0];
  const Sequence seq = Sequence::of(call.problem, call.params, task.batch);
  const int64_t width = RoundUp(call.problem.dim_v, kLanes);
  for (int64_t r = 0; r < task.total_rows(); ++r) {
    double max = -kInf, sum = 0;
    for (int s = 0; s < splits; ++s)
      max = std::max(max, double{tasks[s].partial[r * (width + 2) + width + 1]});
    std::fill_n(sum_row, width, 0.0f);
    for (int s = 0; s < splits; ++s) {
      const float* part = tasks[s].partial + r * (width + 2);
      if (part[width] == 0) continue;  // no allowed key among these
      const double weight = std::exp2((double{part[width + 1]} - max) * Log2Scale(call));
      sum += weight * part[width];
      for (int64_t e = 0; e < width; ++e) sum_row[e] += static_cast<float>(weight) * part[e];
    }
    FinishRow<T>(call, seq, task.batch, task.head0 + r / task.rows, task.row0 + r % task.rows,
                 sum_row, sum, max);
  }
}

size_t ScratchBytes(const FusedCall& call, int64_t rows) {
  return Scratch(call, rows, nullptr).bytes;
}

size_t PartialFloats(const FusedCall& call, int64_t rows) {
  return static_cast<size_t>(rows * (RoundUp(call.problem.dim_v, kLanes) + 2));
}

}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
