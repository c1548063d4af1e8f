#include "src/jit/user_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attune::jit {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
// Of an identifier or a number; bytes of UTF-8 are letters here.
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         (static_cast<unsigned char>(c) & 0x80) != 0;
}

// One pass over the text, token by token as far as it matters. Lines that a backslash continues are
// refused first, so that a token is always on the line where it seems to be.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::string run() {
    check_lines();
    while (why_.empty() && at_ < text_.size()) step();
    if (why_.empty() && depth_ > 0) refuse(text_.size(), "a { has no }");
    return why_;
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool looking_at(std::string_view token) const { return text_.substr(at_).starts_with(token); }

  void refuse(size_t where, std::string_view what) {
    const auto lines = 1 + std::count(text_.begin(), text_.begin() + std::ptrdiff_t(where), '\n');
    why_ = fmt::format("line {}: {}", lines, what);
  }

  void refuse_directive(size_t where, std::string_view what) {
    refuse(where,
           fmt::format("of the preprocessor only #pragma unroll can be used here: {}", what));
  }

  // Compilers differ in what they take for the end of a line; in these they do not.
  void check_lines() {
    for (size_t i = 0; i < text_.size() && why_.empty(); ++i) {
      if (text_[i] == '\r' && text_.substr(i + 1, 1) != "\n")
        refuse(i, "a carriage return is not the end of a line");
      if (text_[i] != '\\') continue;
      size_t next = i + 1;
      while (next < text_.size() && (is_blank(text_[next]) || text_[next] == '\r')) ++next;
      if (next == text_.size() || text_[next] == '\n')
        refuse(i, "a backslash at the end of a line joins lines, which cannot be used here");
    }
  }

  void step() {
    const char c = peek();
    if (looking_at("//"))
      at_ = std::min(text_.find('\n', at_), text_.size());
    else if (looking_at("/*"))
      skip_past("*/", 2, "a comment has no end");
    else if (c == '"' || c == '\'')
      quoted(c);
    else if (is_digit(c) || (c == '.' && is_digit(peek(1))))
      number();
    else if (is_word(c))
      word();
    else if (c == '#' || looking_at("%:"))
      directive();
    else if (c == '\\')
      refuse(at_, "a backslash can only stand inside quotes");
    else if (c == '{' || looking_at("<%"))
      open_brace(c == '{' ? 1 : 2);
    else if (c == '}' || looking_at("%>"))
      close_brace(c == '}' ? 1 : 2);
    else
      ++at_;
  }

  void skip_past(std::string_view end, size_t skip, std::string_view otherwise) {
    const size_t found = text_.find(end, at_ + skip);
    if (found == std::string_view::npos) return refuse(at_, otherwise);
    at_ = found + end.size();
  }

  void quoted(char quote) {
    const size_t begin = at_;
    for (++at_; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
      if (text_[at_] == '\\')
        ++at_;
      else if (text_[at_] == quote)
        return void(++at_);
    }
    refuse(begin, fmt::format("a {} has no second one on its line", quote));
  }

  // With the marks between digits, which do not begin a literal: 1'000.
  void number() {
    while (is_word(peek()) || peek() == '.' || (peek() == '\'' && is_word(peek(1)))) ++at_;
  }

  void word() {
    const size_t begin = at_;
    while (is_word(peek())) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    // The preprocessor's own words. NVRTC knows __has_include outside of #if too.
    if (name == "_Pragma" || name == "__pragma" || name.starts_with("__has_include") ||
        name.starts_with("__has_embed"))
      return refuse_directive(begin, name);
    const bool raw = name == "R" || name == "LR" || name == "uR" || name == "UR" || name == "u8R";
    if (!raw || peek() != '"') return;
    const size_t open = text_.find('(', at_);
    if (open == std::string_view::npos) return refuse(begin, "a raw string has no (");
    const std::string_view delimiter = text_.substr(at_ + 1, open - at_ - 1);
    if (delimiter.find_first_of("\\)\" \t\v\f\r\n") != std::string_view::npos)
      return refuse(begin, "a raw string begins in a wrong way");
    const std::string end = fmt::format("){}\"", delimiter);
    skip_past(end, open - at_ + 1, "a raw string has no end");
  }

  void directive() {
    const size_t begin = at_;
    const std::string_view line =
        text_.substr(begin, std::min(text_.find('\n', begin), text_.size()) - begin);
    std::string_view rest = line.substr(line[0] == '#' ? 1 : 2);
    const auto take = [&rest](std::string_view token) {
      while (!rest.empty() && is_blank(rest[0])) rest.remove_prefix(1);
      if (!rest.starts_with(token) || (rest.size() > token.size() && is_word(rest[token.size()])))
        return false;
      rest.remove_prefix(token.size());
      return true;
    };
    if (take("pragma") && take("unroll"))
      at_ = size_t(rest.data() - text_.data());  // its number may be followed by a comment
    else
      refuse_directive(begin, line.substr(0, std::min<size_t>(line.find('\r'), 40)));
  }

  void open_brace(size_t size) {
    ++depth_;
    at_ += size;
  }
  void close_brace(size_t size) {
    if (--depth_ < 0) return refuse(at_, "a } closes the function itself");
    at_ += size;
  }

  std::string_view text_;
  size_t at_ = 0;
  int64_t depth_ = 0;  // braces that are open
  std::string why_;
};

}  // namespace

std::string why_not_a_body(std::string_view text) { return Scanner(text).run(); }

}  // namespace attune::jit
