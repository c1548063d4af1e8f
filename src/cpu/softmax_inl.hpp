// From raw products to weights, one row of a block at a time: softcap, ALiBi, masks, the online
// softmax, dropout.
#if defined(ATTUNE_SRC_CPU_SOFTMAX_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTUNE_SRC_CPU_SOFTMAX_INL_HPP_
#undef ATTUNE_SRC_CPU_SOFTMAX_INL_HPP_
#else
#define ATTUNE_SRC_CPU_SOFTMAX_INL_HPP_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/tile/philox.h"
#include "src/cpu/fused_task.hpp"
#include "src/cpu/vector_inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.44269504088896340736f;
// The weight of a key that does not count, where that must differ from one that came out as 0.
constexpr float kNoWeight = -0.0f;

// One row of a task: which row it is, which keys it may see, and the state of its online softmax.
struct Row {
  int64_t head, index;
  int64_t begin, end;  // key_range, clipped to the task's keys
  float max;           // of its scores; -inf before the first allowed key
  float folded_max;    // the same when its sums were last folded
};

// ---- Scores: what turns raw products into logits
// -------------------------------------------------------------------------------

// Mask elements j .. j+lanes-1 of a row whose elements lie `stride` apart; only those below n are
// read.
template <class T>
HWY_INLINE FloatVec LoadBias(const T* row, int64_t stride, int j, int n) {
  const Floats d;
  if (stride == 1 && j + kLanes <= n) return LoadFloats(d, row + j);
  HWY_ALIGN float lanes[kLanes] = {};
  for (int x = 0; x < kLanes && j + x < n; ++x) lanes[x] = to_float(row[(j + x) * stride]);
  return hn::Load(d, lanes);
}

HWY_INLINE hn::Mask<Floats> LoadKeep(const uint8_t* row, int64_t stride, int j, int n) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  HWY_ALIGN int32_t lanes[kLanes] = {};
  if (stride == 1 && j + kLanes <= n) {
    const auto bytes = hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, decltype(di)>(), row + j));
    return hn::RebindMask(d, hn::Ne(bytes, hn::Zero(di)));
  }
  for (int x = 0; x < kLanes && j + x < n; ++x) lanes[x] = row[(j + x) * stride];
  return hn::RebindMask(d, hn::Ne(hn::Load(di, lanes), hn::Zero(di)));
}

// Asks for keys [key0, key0 + keys) of the mask of `count` rows. A block's piece of a mask row is
// too short for the hardware to see the next one coming.
HWY_INLINE void PrefetchMask(const FusedCall& call, int64_t b, const Row* rows, int count,
                             int64_t key0, int keys) {
  const View4& mask = call.params.mask;
  if (mask.stride[3] != 1) return;
  const MaskKind kind = call.problem.mask;
  const int64_t size = kind == MaskKind::boolean ? 1 : kind == MaskKind::f32 ? 4 : 2;
  for (int r = 0; r < count; ++r) {
    const int64_t at =
        b * mask.stride[0] + rows[r].head * mask.stride[1] + rows[r].index * mask.stride[2] + key0;
    PrefetchRow(static_cast<const char*>(mask.data) + at * size, keys * size);
  }
}

// True when products become logits (natural units) before the softmax. A scale so small that
// -127 / scale overflows, or so large that scale * log2(e) does, is applied there too.
HWY_INLINE bool IsModified(const FusedCall& call) {
  const Problem& p = call.problem;
  return p.softcap || p.alibi || p.mask > MaskKind::boolean || call.params.scale < 1e-30f ||
         call.params.scale > 2e38f;
}

// What a score is multiplied with to become an exponent of two.
HWY_INLINE float Log2Scale(const FusedCall& call) {
  return IsModified(call) ? kLog2e : call.params.scale * kLog2e;
}

// Softcap, ALiBi and the additive mask, in place: raw products become logits in natural units.
// Where slopes is not null, it gets those of the softcap.
template <class Bias>
void ModifyScores(const FusedCall& call, const Sequence& seq, int64_t b, const Row& row,
                  int64_t key0, int begin, int end, float* s, float* slopes) {
  const Floats d;
  const Params& a = call.params;
  // Where scale / softcap comes near the denormals, the two are applied one after the other.
  const bool steps = call.problem.softcap && a.scale / a.softcap < 1e-30f;
  const auto scale = hn::Set(d, call.problem.softcap && !steps ? a.scale / a.softcap : a.scale);
  const auto cap = hn::Set(d, a.softcap);
  const bool has_bias = call.problem.mask > MaskKind::boolean;
  const Bias* bias = nullptr;
  if (has_bias) {
    bias = static_cast<const Bias*>(a.mask.data) + b * a.mask.stride[0] +
           row.head * a.mask.stride[1] + row.index * a.mask.stride[2] + key0 * a.mask.stride[3];
  }
  const auto slope = hn::Set(
      d, call.problem.alibi ? -a.alibi_slopes[b * a.alibi_stride_b + row.head * a.alibi_stride_h]
                            : 0.0f);
  // Distances are small integers, exact in float.
  const float to_diagonal = static_cast<float>(key0 - (row.index + seq.shift));
  const int last = static_cast<int>(std::min<int64_t>(end, seq.sk - key0));
  for (int j = begin; j < end; j += kLanes) {
    auto x = hn::Mul(hn::LoadU(d, s + j), scale);
    if (steps) {
      // tanh(y) is y to 3e-9 where y is below 1e-4, and there the quotient could be a denormal.
      const auto t = Tanh(d, hn::Div(x, cap));
      if (slopes != nullptr) hn::StoreU(hn::NegMulAdd(t, t, hn::Set(d, 1.0f)), d, slopes + j);
      x = hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Mul(cap, hn::Set(d, 1e-4f))), x, hn::Mul(cap, t));
    } else if (call.problem.softcap) {
      const auto t = Tanh(d, x);
      if (slopes != nullptr) hn::StoreU(hn::NegMulAdd(t, t, hn::Set(d, 1.0f)), d, slopes + j);
      x = hn::Mul(cap, t);
    }
    if (call.problem.alibi)
      x = hn::MulAdd(slope, hn::Abs(hn::Iota(d, to_diagonal + static_cast<float>(j))), x);
    if (has_bias) {
      const auto add = LoadBias(bias, a.mask.stride[3], j, last);
      // -inf forbids the key whatever its product is, NaN included.
      x = hn::IfThenElse(hn::Eq(add, hn::Set(d, -kInf)), add, hn::Add(x, add));
    }
    hn::StoreU(x, d, s + j);
  }
}

// The boolean mask and the block mask: -inf where a key is not allowed.
inline void MaskScores(const FusedCall& call, const Sequence& seq, int64_t b, const Row& row,
                       int64_t key0, int begin, int end, float* s) {
  const Floats d;
  const Params& a = call.params;
  const Problem& p = call.problem;
  const int last = static_cast<int>(std::min<int64_t>(end, seq.sk - key0));
  if (p.mask == MaskKind::boolean) {
    const auto* keep = static_cast<const uint8_t*>(a.mask.data) + b * a.mask.stride[0] +
                       row.head * a.mask.stride[1] + row.index * a.mask.stride[2] +
                       key0 * a.mask.stride[3];
    for (int j = begin; j < end; j += kLanes) {
      const auto kept = LoadKeep(keep, a.mask.stride[3], j, last);
      hn::StoreU(hn::IfThenElse(kept, hn::LoadU(d, s + j), hn::Set(d, -kInf)), d, s + j);
    }
  }
  if (p.block_mask_q != 0) {
    const auto* live = static_cast<const uint8_t*>(a.block_mask.data) + b * a.block_mask.stride[0] +
                       row.head * a.block_mask.stride[1] +
                       row.index / p.block_mask_q * a.block_mask.stride[2];
    for (int j = begin; j < last;) {
      const int64_t block = (key0 + j) / p.block_mask_k;
      const int stop =
          static_cast<int>(std::min<int64_t>(last, (block + 1) * p.block_mask_k - key0));
      if (live[block * a.block_mask.stride[3]] == 0) std::fill(s + j, s + stop, -kInf);
      j = stop;
    }
  }
}

// True when the block mask or the boolean mask forbids every one of the keys to every row: the
// block is then skipped.
inline bool AllMasked(const FusedCall& call, int64_t b, const Row* rows, int count, int64_t key0,
                      int begin, int end) {
  const Params& a = call.params;
  const Problem& p = call.problem;
  if (p.mask != MaskKind::boolean && p.block_mask_q == 0) return false;
  for (int r = 0; r < count; ++r) {
    const Row& row = rows[r];
    for (int64_t j = key0 + begin; j < key0 + end;) {
      int64_t stop = key0 + end;
      if (p.block_mask_q != 0) {
        const int64_t block = j / p.block_mask_k;
        stop = std::min(stop, (block + 1) * p.block_mask_k);
        const auto* live = static_cast<const uint8_t*>(a.block_mask.data);
        if (live[b * a.block_mask.stride[0] + row.head * a.block_mask.stride[1] +
                 row.index / p.block_mask_q * a.block_mask.stride[2] +
                 block * a.block_mask.stride[3]] == 0) {
          j = stop;
          continue;
        }
      }
      if (p.mask != MaskKind::boolean) return false;
      const auto* keep = static_cast<const uint8_t*>(a.mask.data) + b * a.mask.stride[0] +
                         row.head * a.mask.stride[1] + row.index * a.mask.stride[2];
      for (; j < stop; ++j) {
        if (keep[j * a.mask.stride[3]] != 0) return false;
      }
    }
  }
  return true;
}

// Raw products of one row over keys [begin, end) of a block become what the softmax sees, over
// whole vectors [first, last) around them: -inf where a key is not allowed.
HWY_INLINE void FinishScores(const FusedCall& call, const Sequence& seq, int64_t b, const Row& row,
                             int64_t key0, int begin, int end, float* s, float* slopes) {
  const Problem& p = call.problem;
  const int first = begin / kLanes * kLanes, last = (end + kLanes - 1) / kLanes * kLanes;
  if (IsModified(call)) {
    switch (p.mask) {
      case MaskKind::f16:
        ModifyScores<F16>(call, seq, b, row, key0, first, last, s, slopes);
        break;
      case MaskKind::bf16:
        ModifyScores<BF16>(call, seq, b, row, key0, first, last, s, slopes);
        break;
      default:
        ModifyScores<float>(call, seq, b, row, key0, first, last, s, slopes);
    }
  }
  if (p.mask == MaskKind::boolean || p.block_mask_q != 0)
    MaskScores(call, seq, b, row, key0, first, last, s);
  // Whole vectors were computed; what lies outside the row's own keys does not count.
  const int own_begin = static_cast<int>(std::clamp<int64_t>(row.begin - key0, begin, end));
  const int own_end = static_cast<int>(std::clamp<int64_t>(row.end - key0, own_begin, end));
  std::fill(s + first, s + own_begin, -kInf);
  std::fill(s + own_end, s + last, -kInf);
}

// ---- Online softmax
// ------------------------------------------------------------------------------------------------------------

HWY_INLINE float RowMax(const float* s, int begin, int end) {
  const Floats d;
  auto m = hn::LoadU(d, s + begin);
  for (int j = begin + kLanes; j < end; j += kLanes) m = hn::Max(m, hn::LoadU(d, s + j));
  return hn::GetLane(hn::MaxOfLanes(d, m));
}

// s = 2^((s - max) * scale), and its sum into one part a lane.
template <int kDegree>
HWY_INLINE void ExpRow(float* s, int begin, int end, float scale, float max, float* sums) {
  const Floats d;
  const auto factor = hn::Set(d, scale), shift = hn::Set(d, max);
  const float low = -127.0f / scale;
  auto sum = hn::LoadU(d, sums);
  for (int j = begin; j < end; j += kLanes) {
    const auto e = Exp2<kDegree>(d, hn::Sub(hn::LoadU(d, s + j), shift), factor, low);
    hn::StoreU(e, d, s + j);
    sum = hn::Add(sum, e);
  }
  hn::StoreU(sum, d, sums);
}

HWY_INLINE void ScaleRow(float* x, int count, float by) {
  const Floats d;
  for (int j = 0; j < count; j += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, x + j), hn::Set(d, by)), d, x + j);
}

// Softmax of one row over scores [begin, end) (multiples of the vector; -inf where not allowed).
// The accumulators are rescaled only when the maximum grew by more than the threshold; until then
// weights up to 2^threshold are exact enough as they are.
inline void SoftmaxRow(const FusedCall& call, Row& row, float* s, int begin, int end, float scale,
                       float* sums, float* out, int width) {
  const float max = RowMax(s, begin, end);
  if (row.max == -kInf) {
    row.max = max;
  } else if ((max - row.max) * scale > call.config.rescale_threshold) {
    const float shrink = std::exp2((row.max - max) * scale);
    ScaleRow(out, width, shrink);
    ScaleRow(sums, kLanes, shrink);
    row.max = max;
  }
  const float shift = row.max == -kInf ? 0.0f : row.max;  // no key so far: all weights 0, not NaN
  switch (call.config.exp_degree) {
    case 4:
      return ExpRow<4>(s, begin, end, scale, shift, sums);
    case 5:
      return ExpRow<5>(s, begin, end, scale, shift, sums);
    default:
      return ExpRow<6>(s, begin, end, scale, shift, sums);
  }
}

// Drops weights after their sum was taken, and scales up those kept.
inline void DropWeights(const FusedCall& call, int64_t b, const Row& row, int64_t key0, int begin,
                        int end, float* s) {
  const Params& a = call.params;
  const uint32_t threshold = dropout_threshold(a.dropout_p);
  const float keep_scale = 1.0f / (1.0f - a.dropout_p);
  for (int64_t j = key0 + begin; j < key0 + end;) {
    const Philox4 bits = dropout_bits(a.dropout_seed, a.dropout_offset, b, row.head,
                                      call.problem.heads_q, row.index, j / 4);
    for (const int64_t stop = std::min<int64_t>(key0 + end, (j / 4 + 1) * 4); j < stop; ++j) {
      float& weight = s[j - key0];
      weight = bits.word[j % 4] < threshold ? kNoWeight : weight * keep_scale;
    }
  }
}

}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
