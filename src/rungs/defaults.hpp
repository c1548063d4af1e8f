// What a rung computes with where no tuned row says otherwise: rows, each a config with the calls
// that it is for and where its numbers come from. The first row that is for a call is taken.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/config.h"

namespace attune {

enum class If : int8_t { any, no, yes };

// The calls that a row is for. What is not said does not matter.
struct When {
  int above = 0, wide = kMaxHeadDim;  // the larger of D and Dv: more than, at most
  If bf16 = If::any;
  If causal = If::any, window = If::any;
  If limits = If::any;  // causal or window
  If lengths = If::any;
  If dropout = If::any, lse = If::any;
  MaskKind mask = MaskKind::none;  // of this kind; none: of any
  If tensor_sums = If::any;        // row sums by tensor cores are possible, and exact enough
  int64_t keys_from = 0, keys_below = std::numeric_limits<int64_t>::max();
  // At most so many tiles of so many query rows for each multiprocessor; 0 rows: any number.
  int tile_rows = 0, tiles_sm = 1;
};

// tensor_sums: what the rung says of the call.
bool is_for(const When& when, const Problem& problem, const Arch& arch, bool tensor_sums);
std::string to_string(const When& when);  // "D <= 64, causal, keys < 1024"

template <class C>
struct DefaultRow {
  When when;
  C config;
  const char* source;  // where its numbers come from
};

// A row as people read it: `attune tuned list --defaults`.
struct DefaultText {
  const char *rung, *table;
  std::string when, config;
  const char* source;
};
// Of all rungs that have tables, in the rows' order: what calls on such a GPU run by the row.
std::vector<DefaultText> default_texts();

}  // namespace attune
