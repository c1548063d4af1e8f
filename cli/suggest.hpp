// "Did you mean ...?" for a word that is not known.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace attune::cli {

// The known word with the fewest letters to change, add or leave out; empty when more than a third
// of the word would change.
inline std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t fewest = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : known) {
    std::vector<size_t> row(name.size() + 1);  // distances of a part of word to the parts of name
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < word.size(); ++i) {
      size_t diagonal = row[0]++;
      for (size_t j = 0; j < name.size(); ++j) {
        const size_t replaced = diagonal + (word[i] != name[j]);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
      }
    }
    if (row.back() >= fewest || row.back() >= word.size()) continue;
    fewest = row.back();
    best = name;
  }
  return best;
}

}  // namespace attune::cli
