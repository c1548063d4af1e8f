// The few words of HTML that a report needs. Text is escaped on its way in; nothing else makes a
// page.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/judge/stats.hpp"

namespace attune::evolve::html {

// & < > " ' and control characters.
std::string escape(std::string_view text);
std::string shortened(std::string_view text, size_t most);  // bytes, whole letters; not escaped

// ---- figures ----

std::string times(double ratio);                             // "62.1×"
std::string times(const std::optional<Interval>& interval);  // "62.1× (60.9 to 63.0)"
std::string duration(double seconds);                        // "1.62 ms"
std::string error(double value);                             // "2.1e-06"

// A table that scrolls sideways in its own box. `align` has a letter a column: l text, n
// numbers.
class Table {
 public:
  Table(std::string_view caption, const std::vector<std::string>& head, std::string_view align);

  Table& row(const std::vector<std::string>& cells);      // plain text
  Table& raw_row(const std::vector<std::string>& cells);  // cells that are HTML already
  std::string html() const;
  bool empty() const { return rows_ == 0; }

 private:
  bool number(size_t column) const { return column < align_.size() && align_[column] == 'n'; }

  std::string text_, caption_, align_;
  int rows_ = 0;
};

std::string code(std::string_view text);  // an id

std::string long_text(std::string_view text);  // a cell that wraps

// <section id=... > with its heading.
std::string section(std::string_view id, std::string_view title, const std::string& body);
std::string paragraph(std::string_view text);

// The whole page; no script, and nothing is fetched.
std::string page(std::string_view title, const std::string& body);

}  // namespace attune::evolve::html
