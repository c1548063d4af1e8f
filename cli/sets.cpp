#include "cli/sets.hpp"

namespace attune::cli {
namespace {

struct Size {
  int64_t batch, seq;
};

Shape square(int64_t batch, int64_t heads, int64_t seq, int64_t dim) {
  return {batch, heads, heads, seq, seq, dim, dim};
}

// Training and prompts at D=64: as many tokens in every row.
std::vector<Work> seed000() {
  std::vector<Work> rows;
  for (Size s : {Size{8, 512}, Size{4, 1024}, Size{2, 2048}, Size{1, 4096}})
    for (bool causal : {false, true})
      rows.push_back({"seed000", square(s.batch, 32, s.seq, 64), DType::f16, causal});
  return rows;
}

std::vector<Work> seed002() { return {{"seed002", square(1, 8, 512, 64), DType::f16, false}}; }

// One head, up to a sequence whose matrix of scores would be 64 GB.
std::vector<Work> seed003() {
  std::vector<Work> rows;
  for (int64_t seq : {4096, 16384, 65536, 131072})
    rows.push_back({"seed003", square(1, 1, seq, 128), DType::f32, false});
  return rows;
}

std::vector<Work> seed004() {
  std::vector<Work> rows;
  for (int64_t seq = 128; seq <= 4096; seq *= 2)
    rows.push_back({"seed004", square(4, 8, seq, 64), DType::f32, false});
  return rows;
}

// The shapes of FlashAttention-3's paper: 16384 tokens and a hidden size of 2048 in every row.
std::vector<Work> fa3() {
  std::vector<Work> rows;
  for (int64_t dim : {64, 128, 256})
    for (Size s : {Size{32, 512}, Size{8, 2048}, Size{2, 8192}, Size{1, 16384}})
      for (bool causal : {false, true})
        rows.push_back({"fa3", square(s.batch, 2048 / dim, s.seq, dim), DType::bf16, causal});
  return rows;
}

// One new token each, with grouped heads: what counts is how fast K and V are read.
std::vector<Work> decode() {
  std::vector<Work> rows;
  for (Size s : {Size{1, 4096}, Size{1, 131072}, Size{16, 4096}, Size{64, 8192}})
    rows.push_back({"decode", {s.batch, 32, 8, 1, s.seq, 128, 128}, DType::bf16, false});
  return rows;
}

struct Set {
  const char* name;
  std::vector<Work> (*rows)();
};
constexpr Set kSets[] = {{"seed000", seed000}, {"seed002", seed002}, {"seed003", seed003},
                         {"seed004", seed004}, {"fa3", fa3},         {"decode", decode}};

}  // namespace

std::vector<std::string> set_names() {
  std::vector<std::string> names;
  for (const Set& set : kSets) names.emplace_back(set.name);
  return names;
}

std::vector<Work> set_rows(const std::string& name) {
  for (const Set& set : kSets)
    if (name == set.name) return set.rows();
  return {};
}

}  // namespace attune::cli
