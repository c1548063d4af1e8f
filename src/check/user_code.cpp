#include "src/check/user_code.hpp"

#include <fmt/format.h>

#include "src/check/cuda_cases.hpp"

namespace attune::check {
namespace {

constexpr int64_t kFarAway = 1 << 30;  // a window that reaches so far limits nothing

constexpr const char* kWords =
    "[[maybe_unused]] const long long* words = static_cast<const long long*>(data);\n";

// `position`: where row i stands among the keys.
std::string position(const Data& data) {
  const Problem& p = data.p;
  if (p.alignment == Alignment::top_left) return "[[maybe_unused]] const int position = i;\n";
  if (!p.keys_vary())
    return fmt::format("[[maybe_unused]] const int position = i + {};\n", p.seq_k - p.seq_q);
  const auto difference = [](UserWord word) {
    return fmt::format(
        "(reinterpret_cast<const int*>(words[{0}])[b + 1] - reinterpret_cast<const "
        "int*>(words[{0}])[b])",
        int(word));
  };
  const std::string queries = p.ragged ? difference(kCuQ) : fmt::format("{}", p.seq_q);
  const std::string keys =
      p.key_lengths ? fmt::format("reinterpret_cast<const int*>(words[{}])[b]", int(kKeyLengths))
                    : difference(kCuK);
  return fmt::format("[[maybe_unused]] const int position = i + {} - {};\n", keys, queries);
}

std::string mask_code(const Data& data, attune_args* args) {
  const Problem& p = data.p;
  std::string code = kWords + position(data) + "bool keep = true;\n";
  if (p.causal) code += "keep = keep && j <= position;\n";
  if (p.window_left != kNoLimit && p.window_left < kFarAway)
    code += fmt::format("keep = keep && j >= position - {};\n", p.window_left);
  if (p.window_right != kNoLimit && p.window_right < kFarAway)
    code += fmt::format("keep = keep && j <= position + {};\n", p.window_right);
  args->causal = 0;
  args->window_left = args->window_right = kNoLimit;
  if (p.mask == MaskKind::boolean) {
    code += fmt::format(
        "const unsigned char* mask = reinterpret_cast<const unsigned char*>(words[{}]);\n"
        "keep = keep && mask[b * words[{}] + h * words[{}] + i * words[{}] + j * words[{}]] != "
        "0;\n",
        int(kMask), int(kMaskStride), kMaskStride + 1, kMaskStride + 2, kMaskStride + 3);
    args->mask = {};
  }
  return code + "return keep;\n";
}

std::string score_code(const Data& data, attune_args* args) {
  const Problem& p = data.p;
  std::string code = kWords + position(data);
  // The modifier sees the score last: a cap can move there only when no bias was added before.
  const bool bias = p.mask != MaskKind::none && p.mask != MaskKind::boolean;
  if (p.softcap && !bias) {
    code += fmt::format("score = {0:.9e}f * tanhf(score / {0:.9e}f);\n", data.c.softcap);
    args->softcap = 0;
  }
  if (p.alibi) {
    code += fmt::format(
        "const float slope = reinterpret_cast<const float*>(words[{}])[b * words[{}] + h * "
        "words[{}]];\n"
        "score -= slope * fabsf(float(position - j));\n",
        int(kSlopes), int(kSlopesStrideB), int(kSlopesStrideH));
    args->alibi_slopes = {};
  }
  return code + "return score;\n";
}

}  // namespace

UserCode as_user_code(const Data& data, attune_args* args) {
  UserCode code;
  code.score_mod = score_code(data, args);
  code.mask_mod = mask_code(data, args);
  return code;
}

}  // namespace attune::check
