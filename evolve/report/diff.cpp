#include "evolve/report/diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace attune::evolve {
namespace {

constexpr size_t kAround = 3;
constexpr size_t kMostCells = 16'000'000;  // of the table; larger texts are replaced whole

using Lines = std::vector<std::string_view>;

Lines split(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

struct Edit {
  char sign;  // ' ', '-' or '+'
  std::string_view line;
};

// The fewest lines that change, by the table of longest common parts.
std::vector<Edit> edits_of(const Lines& a, const Lines& b) {
  const size_t n = a.size(), m = b.size(), width = m + 1;
  std::vector<Edit> edits;
  size_t i = 0, j = 0;
  if ((n + 1) * width <= kMostCells) {
    std::vector<int> common((n + 1) * width, 0);
    for (size_t r = n; r-- > 0;)
      for (size_t c = m; c-- > 0;)
        common[r * width + c] =
            a[r] == b[c] ? common[(r + 1) * width + c + 1] + 1
                         : std::max(common[(r + 1) * width + c], common[r * width + c + 1]);
    while (i < n && j < m) {
      if (a[i] == b[j]) {
        edits.push_back({' ', a[i++]});
        ++j;
      } else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) {
        edits.push_back({'-', a[i++]});
      } else {
        edits.push_back({'+', b[j++]});
      }
    }
  }
  while (i < n) edits.push_back({'-', a[i++]});
  while (j < m) edits.push_back({'+', b[j++]});
  return edits;
}

// "12,5", or "12" for one line; of nothing, the line before it.
std::string range(size_t line, size_t count) {
  return count == 1 ? fmt::format("{}", line)
                    : fmt::format("{},{}", count == 0 ? line - 1 : line, count);
}

}  // namespace

std::string unified_diff(const std::string& before, const std::string& after,
                         const std::string& name_before, const std::string& name_after) {
  if (before == after) return "";
  const std::vector<Edit> edits = edits_of(split(before), split(after));
  std::string text = fmt::format("--- {}\n+++ {}\n", name_before, name_after);
  size_t at = 0, line_a = 1, line_b = 1;
  while (at < edits.size()) {
    size_t change = at;
    while (change < edits.size() && edits[change].sign == ' ') ++change;
    if (change == edits.size()) break;
    const size_t begin = std::max(at, change - std::min(change, kAround));
    line_a += begin - at;
    line_b += begin - at;
    size_t end = change, last = change;
    for (; end < edits.size() && end <= last + 2 * kAround; ++end)
      if (edits[end].sign != ' ') last = end;
    end = std::min(edits.size(), last + kAround + 1);
    size_t count_a = 0, count_b = 0;
    std::string body;
    for (size_t n = begin; n < end; ++n) {
      count_a += edits[n].sign != '+';
      count_b += edits[n].sign != '-';
      body += fmt::format("{}{}\n", edits[n].sign, edits[n].line);
    }
    text += fmt::format("@@ -{} +{} @@\n", range(line_a, count_a), range(line_b, count_b)) + body;
    line_a += count_a;
    line_b += count_b;
    at = end;
  }
  return text;
}

}  // namespace attune::evolve
