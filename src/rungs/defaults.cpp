#include "src/rungs/defaults.hpp"

#include <algorithm>

#include "src/rungs/mma.hpp"
#include "src/rungs/wgmma_defaults.hpp"

namespace attune {
namespace {

bool agrees(If wanted, bool is) { return wanted == If::any || (wanted == If::yes) == is; }

void say(If wanted, const char* what, std::vector<std::string>* words) {
  if (wanted == If::yes) words->push_back(what);
  if (wanted == If::no) words->push_back(std::string("no ") + what);
}

const char* name_of(MaskKind mask) {
  switch (mask) {
    case MaskKind::boolean:
      return "boolean mask";
    case MaskKind::f32:
      return "fp32 mask";
    case MaskKind::f16:
      return "fp16 mask";
    case MaskKind::bf16:
      return "bf16 mask";
    default:
      return "mask";
  }
}

}  // namespace

bool is_for(const When& when, const Problem& p, const Arch& arch, bool tensor_sums) {
  const int64_t tiles =
      when.tile_rows == 0 ? 0 : p.batch * p.heads_q * ceil_div(p.seq_q, when.tile_rows);
  const int wide = std::max(p.dim, p.dim_v);
  return when.above < wide && wide <= when.wide && agrees(when.bf16, p.dtype == DType::bf16) &&
         agrees(when.causal, p.causal) && agrees(when.window, p.window()) &&
         agrees(when.limits, p.causal || p.window()) && agrees(when.lengths, p.keys_vary()) &&
         agrees(when.dropout, p.dropout) && agrees(when.lse, p.lse) &&
         (when.mask == MaskKind::none || when.mask == p.mask) &&
         agrees(when.tensor_sums, tensor_sums) && when.keys_from <= p.seq_k &&
         p.seq_k < when.keys_below && tiles <= int64_t{when.tiles_sm} * arch.sms;
}

std::string to_string(const When& when) {
  std::vector<std::string> words;
  if (when.above > 0) words.push_back("D > " + std::to_string(when.above));
  if (when.wide < kMaxHeadDim) words.push_back("D <= " + std::to_string(when.wide));
  say(when.bf16, "bf16", &words);
  say(when.causal, "causal", &words);
  say(when.window, "window", &words);
  say(when.limits, "causal limit or window", &words);
  say(when.lengths, "lengths", &words);
  say(when.dropout, "dropout", &words);
  say(when.lse, "LSE", &words);
  if (when.mask != MaskKind::none) words.push_back(name_of(when.mask));
  say(when.tensor_sums, "sums by tensor cores", &words);
  if (when.keys_from > 0) words.push_back("keys >= " + std::to_string(when.keys_from));
  if (when.keys_below != When{}.keys_below)
    words.push_back("keys < " + std::to_string(when.keys_below));
  if (when.tile_rows > 0)
    words.push_back("at most " + std::to_string(when.tiles_sm) +
                    (when.tiles_sm == 1 ? " tile of " : " tiles of ") +
                    std::to_string(when.tile_rows) + " rows a multiprocessor");
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "all other calls" : text;
}

std::vector<DefaultText> default_texts() {
  std::vector<DefaultText> all;
  add_wgmma_defaults(&all);
  add_mma_defaults(&all);
  return all;
}

}  // namespace attune
