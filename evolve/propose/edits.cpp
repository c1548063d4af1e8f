#include "evolve/propose/edits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "evolve/genome/program.hpp"

namespace attune::evolve {
namespace {

constexpr std::string_view kSearch = "<<<<<<< SEARCH",
                           kMiddle = "=======", kReplace = ">>>>>>> REPLACE", kFence = "```";
constexpr size_t kLargest = 256 << 10;  // bytes of a program
constexpr size_t kShown = 60;           // letters of a line in a reason

// Without the spaces at its end.
std::string_view bare(std::string_view line) {
  const size_t end = line.find_last_not_of(" \t\r\n");
  return end == std::string_view::npos ? std::string_view() : line.substr(0, end + 1);
}

std::string_view indented(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view() : bare(line.substr(begin));
}

// Each with a line feed; carriage returns before it are dropped.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line + "\n");
    at = end + 1;
  }
  return lines;
}

std::string shown(const std::string& text) {
  std::string line(indented(text.substr(0, text.find('\n'))));
  if (line.size() > kShown) line = line.substr(0, kShown) + "...";
  return line;
}

// Models write what they think first, between these.
std::string without_thoughts(const std::string& answer) {
  const std::string_view begin = "<think>", end = "</think>";
  std::string text = answer;
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin)) {
    const size_t to = text.find(end, at);
    text.erase(at, to == std::string::npos ? std::string::npos : to + end.size() - at);
  }
  return text;
}

size_t count_of(const std::string& text, const std::string& piece, size_t* first) {
  size_t count = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) {
    // Whole lines: "x = 1;" is not found in "max = 1;".
    if (at > 0 && text[at - 1] != '\n') continue;
    if (count++ == 0) *first = at;
  }
  return count;
}

AppliedAnswer failed(std::string why) { return {"", "", std::move(why), 0}; }

AppliedAnswer with_edits(const std::vector<Edit>& edits, const std::string& parent) {
  AppliedAnswer a{parent, "edits", "", int(edits.size())};
  for (size_t n = 0; n < edits.size(); ++n) {
    size_t at = 0;
    const size_t count = count_of(a.text, edits[n].search, &at);
    if (count != 1)
      return failed(fmt::format(
          "edit {} of {}: its SEARCH text (\"{}\") stands {} in the program; it must stand there "
          "exactly once, letter by letter",
          n + 1, edits.size(), shown(edits[n].search),
          count == 0 ? "nowhere" : fmt::format("{} times", count)));
    a.text.replace(at, edits[n].search.size(), edits[n].replace);
  }
  return a;
}

// Whether there is more than markers and blank lines around the blocks.
bool is_whole_program(const ProgramText& program) {
  for (size_t n = 0; n < program.outside.size(); ++n)
    for (const std::string& line : lines_of(program.outside[n]))
      if (!indented(line).empty() && line.find("EVOLVE-BLOCK-") == std::string::npos) return true;
  return false;
}

AppliedAnswer with_code(const std::vector<std::string>& codes, const std::string& parent) {
  ProgramText own;
  if (const Status s = parse_program(parent, &own); !s.ok()) return failed(s.message);
  std::vector<std::string> blocks;
  for (const Block& b : own.blocks) blocks.push_back(b.text);
  std::vector<bool> given(blocks.size(), false);
  for (const std::string& code : codes) {
    if (code.find("EVOLVE-BLOCK-START") == std::string::npos) continue;
    ProgramText theirs;
    if (const Status s = parse_program(code, &theirs); !s.ok())
      return failed("the code: " + s.message);
    if (is_whole_program(theirs)) {
      if (codes.size() > 1)
        return failed("there are several pieces of code, and one of them is a whole program");
      return {code, "program", "", 0};
    }
    for (const Block& b : theirs.blocks) {
      size_t n = 0;
      while (n < own.blocks.size() && own.blocks[n].name != b.name) ++n;
      if (n == own.blocks.size())
        return failed(fmt::format("the program has no block '{}'", b.name));
      if (given[n]) return failed(fmt::format("the block '{}' is there twice", b.name));
      given[n] = true;
      blocks[n] = b.text;
    }
  }
  if (std::count(given.begin(), given.end(), true) == 0)
    return failed(
        "it has neither SEARCH/REPLACE edits nor a code block with EVOLVE-BLOCK-START and "
        "EVOLVE-BLOCK-END");
  return {with_blocks(own, blocks), "blocks", "", 0};
}

AppliedAnswer checked(AppliedAnswer a) {
  if (!a.ok()) return a;
  if (a.text.size() > kLargest)
    return failed(
        fmt::format("the program has {} bytes; {} are the most", a.text.size(), kLargest));
  if (a.text.find('\0') != std::string::npos) return failed("the program has a zero byte");
  return a;
}

}  // namespace

std::vector<Edit> edits_in(const std::string& answer, std::string* why) {
  std::vector<Edit> edits;
  enum { outside, search, replace } where = outside;
  why->clear();
  for (const std::string& line : lines_of(answer)) {
    const std::string_view mark = indented(line);
    if (where == outside) {
      if (mark != kSearch) continue;
      edits.emplace_back();
      where = search;
    } else if (where == search && mark == kMiddle) {
      where = replace;
    } else if (where == replace && mark == kReplace) {
      where = outside;
    } else if (mark == kSearch || mark == kReplace) {
      *why = fmt::format("edit {}: '{}' where {} should stand", edits.size(), mark,
                         where == search ? kMiddle : kReplace);
      return edits;
    } else {
      (where == search ? edits.back().search : edits.back().replace) += line;
    }
  }
  if (where != outside)
    *why = fmt::format("edit {} has no {}", edits.size(), where == search ? kMiddle : kReplace);
  for (size_t n = 0; n < edits.size() && why->empty(); ++n)
    if (edits[n].search.find_first_not_of(" \t\n") == std::string::npos)
      *why = fmt::format("edit {} of {} has nothing to search for", n + 1, edits.size());
  return edits;
}

std::vector<std::string> fenced_in(const std::string& answer) {
  std::vector<std::string> codes;
  bool inside = false;
  for (const std::string& line : lines_of(answer)) {
    const bool fence = indented(line).starts_with(kFence);
    if (fence && !inside) codes.emplace_back();
    if (fence) inside = !inside;
    if (!fence && inside) codes.back() += line;
  }
  if (inside) codes.pop_back();  // it was cut off
  return codes;
}

AppliedAnswer apply_answer(const std::string& given, const std::string& parent) {
  const std::string answer = without_thoughts(given);
  std::string why;
  const std::vector<Edit> edits = edits_in(answer, &why);
  if (!why.empty()) return failed(why);
  if (!edits.empty()) return checked(with_edits(edits, parent));
  const std::vector<std::string> codes = fenced_in(answer);
  if (!codes.empty()) return checked(with_code(codes, parent));
  return failed(answer.find(kFence) != std::string::npos
                    ? "the code has no end: the answer was cut off"
                    : "it has neither SEARCH/REPLACE edits nor code between ``` lines");
}

AppliedAnswer apply_file(const std::string& file, const std::string& parent) {
  std::string why;
  const std::vector<Edit> edits = edits_in(file, &why);
  if (!why.empty()) return failed(why);
  if (!edits.empty()) return checked(with_edits(edits, parent));
  std::string text;
  for (const std::string& line : lines_of(file)) text += line;
  if (text.empty()) return failed("the file is empty");
  return checked({text, "program", "", 0});
}

}  // namespace attune::evolve
