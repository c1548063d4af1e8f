#include "src/rungs/defaults.hpp"

#include <algorithm>

#include "src/rungs/rung.hpp"

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

// ---- rows as text ----

constexpr int kArchs[] = {90, 80, 86, 100};  // with each amount of shared memory there is

// What calls of one row may differ in, so that they run different configs.
struct Property {
  const char *with, *without;
  bool (*of)(const Problem&);
};
constexpr Property kProperties[] = {
    {"LSE", "no LSE", [](const Problem& p) { return p.lse; }},
    {"dropout", "no dropout", [](const Problem& p) { return p.dropout; }},
    {"ragged", "not ragged", [](const Problem& p) { return p.ragged; }},
    {"block mask", "no block mask", [](const Problem& p) { return p.block_mask_q != 0; }},
};

// One of the configs that a row leads to, with calls that run it.
struct Use {
  const DefaultCall* row;
  Config config;
  std::vector<const Problem*> problems;
};

// What tells the calls of one use from those of the row's others.
std::string told_apart(const Use& use, const std::vector<Use>& uses) {
  std::string text;
  for (const Property& property : kProperties) {
    const auto all = [&](const Use& some, bool value) {
      return std::all_of(some.problems.begin(), some.problems.end(),
                         [&](const Problem* p) { return property.of(*p) == value; });
    };
    for (const bool value : {true, false})
      if (all(use, value) && std::any_of(uses.begin(), uses.end(), [&](const Use& other) {
            return other.row->row == use.row->row && &other != &use && !all(other, value);
          }))
        text += std::string(", ") + (value ? property.with : property.without);
  }
  return text;
}

void add_texts(const Rung& rung, const std::vector<DefaultCall>& calls,
               std::vector<DefaultText>* all) {
  std::vector<Use> uses;
  for (const DefaultCall& call : calls) {
    const Config config = rung.standard(call.request);
    const auto same = [&](const Use& use) {
      return use.row->row == call.row && use.config == config;
    };
    auto at = std::find_if(uses.begin(), uses.end(), same);
    if (at == uses.end()) at = uses.insert(at, {&call, config, {}});
    at->problems.push_back(&call.request.problem);
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [](const Use& a, const Use& b) { return a.row->row < b.row->row; });
  for (const Use& use : uses)
    all->push_back({rung.name, use.row->table, use.row->when + told_apart(use, uses),
                    to_string(use.config), use.row->source});
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
  for (const Rung* rung : rungs()) {
    std::vector<DefaultCall> calls;
    for (const int cc : kArchs)
      if (rung->runs_on(cc))
        for (DefaultCall& call : rung->default_calls(arch_of(cc))) calls.push_back(std::move(call));
    add_texts(*rung, calls, &all);
  }
  return all;
}

}  // namespace attune
