#include "src/json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace attune {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The character of UTF-8 at the head of the text: how many bytes it has. Where there is none, how
// many bytes could have begun one (at least 1), and false.
bool utf8_at(std::string_view text, size_t* bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  *bytes = 1;
  if (lead < 0x80) return true;
  if (lead < 0xC2 || lead > 0xF4) return false;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte excludes what has a shorter form, surrogates and what is beyond U+10FFFF.
  const unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (; *bytes < length; ++*bytes) {
    if (*bytes == text.size()) return false;
    const bool fits =
        *bytes == 1 ? byte(1) >= least && byte(1) <= most : is_continuation(text[*bytes]);
    if (!fits) return false;
  }
  return true;
}

void append_utf8(uint32_t code, std::string* text) {
  const auto add = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xE0 | code >> 12);
    } else {
      add(0xF0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3F));
    }
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

// The four digits after "\u"; false: they are not there.
bool hex4(std::string_view digits, uint32_t* code) {
  if (digits.size() < 4) return false;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + 4, *code, 16);
  return error == std::errc() && end == digits.data() + 4;
}

constexpr bool is_high(uint32_t code) { return code >= 0xD800 && code < 0xDC00; }
constexpr bool is_low(uint32_t code) { return code >= 0xDC00 && code < 0xE000; }

// "\uXXXX" at the head of the text, or the two of a surrogate pair: the bytes that it has, 0 where
// it is wrong.
size_t unicode_escape(std::string_view text, uint32_t* code) {
  if (!hex4(text.substr(2), code) || is_low(*code)) return 0;
  if (!is_high(*code)) return 6;
  uint32_t low = 0;
  if (text.substr(6, 2) != "\\u" || !hex4(text.substr(8), &low) || !is_low(low)) return 0;
  *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
  return 12;
}

constexpr std::string_view kEscapes = "\"\\/bfnrt";
constexpr std::string_view kEscaped = "\"\\/\b\f\n\r\t";

// Walks over a text that may be anything.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  void space() {
    while (!at_end() && is_space(text_[at_])) ++at_;
  }
  bool take(std::string_view word) {
    if (!rest().starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool string() {
    if (!take("\"")) return false;
    while (!at_end()) {
      if (take("\"")) return true;
      if (!(text_[at_] == '\\' ? escape() : character())) return false;
    }
    return false;
  }
  bool name() {
    space();
    if (!string()) return false;
    space();
    return take(":");
  }
  bool scalar() {
    return take("true") || take("false") || take("null") ||
           (rest().starts_with('"') ? string() : number());
  }

 private:
  std::string_view rest() const { return text_.substr(at_); }

  bool character() {
    size_t bytes = 0;
    if (static_cast<unsigned char>(text_[at_]) < 0x20 || !utf8_at(rest(), &bytes)) return false;
    at_ += bytes;
    return true;
  }
  bool escape() {
    const std::string_view here = rest();
    size_t bytes = 2;
    uint32_t code = 0;
    if (here.size() < 2) return false;
    if (here[1] == 'u')
      bytes = unicode_escape(here, &code);
    else if (kEscapes.find(here[1]) == std::string_view::npos)
      return false;
    at_ += bytes;
    return bytes != 0;
  }
  bool digits() {
    const size_t begin = at_;
    while (!at_end() && is_digit(text_[at_])) ++at_;
    return at_ > begin;
  }
  // One that a double can hold: others could not be shown again.
  bool number() {
    const size_t begin = at_;
    take("-");
    if (!take("0") && !digits()) return false;
    if (take(".") && !digits()) return false;
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      if (!digits()) return false;
    }
    double value = 0;
    const auto [end, error] = std::from_chars(text_.data() + begin, text_.data() + at_, value);
    return error != std::errc::result_out_of_range;
  }

  std::string_view text_;
  size_t at_ = 0;
};

constexpr const char* kInvalid = "not valid JSON";

// The end of the string that begins at `at` in a checked text.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

// The end of the number or word that begins at `at` in a checked text.
size_t end_of_word(std::string_view text, size_t at) {
  while (at < text.size() && !is_space(text[at]) && text[at] != ',' && text[at] != ']' &&
         text[at] != '}')
    ++at;
  return at;
}

// The text is that number, and nothing else.
template <class T>
bool read_number(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

// The end of the value that begins at `at` in a checked text.
size_t end_of_value(std::string_view text, size_t at) {
  if (text[at] == '"') return end_of_string(text, at);
  if (text[at] != '{' && text[at] != '[') return end_of_word(text, at);
  for (int depth = 0;;) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at);
      continue;
    }
    ++at;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return at;
  }
}

}  // namespace

std::string why_not_json(std::string_view text, int depth) {
  Scanner s(text);
  s.take("\xEF\xBB\xBF");  // a byte order mark
  uint64_t objects = 0;    // one bit for each level that is open, the innermost lowest
  int open = 0;
  for (;;) {
    // A value begins here.
    s.space();
    const bool object = s.take("{");
    if (object || s.take("[")) {
      if (open == depth || open == kMostJsonDepth)
        return "nested more than " + std::to_string(open) + " levels deep";
      s.space();
      if (!s.take(object ? "}" : "]")) {
        objects = objects << 1 | uint64_t{object};
        ++open;
        if (object && !s.name()) return kInvalid;
        continue;
      }
    } else if (!s.scalar()) {
      return kInvalid;
    }
    // A value has ended here, and perhaps those that it is the last of.
    for (;;) {
      s.space();
      if (open == 0) return s.at_end() ? "" : kInvalid;
      const bool inside_object = (objects & 1) != 0;
      if (s.take(",")) {
        if (inside_object && !s.name()) return kInvalid;
        break;
      }
      if (!s.take(inside_object ? "}" : "]")) return kInvalid;
      objects >>= 1;
      --open;
    }
  }
}

// ---- JsonValue ----

JsonValue::JsonValue(std::string_view checked) : text_(checked) {
  if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  const size_t begin = skip_space(text_, 0);
  if (begin < text_.size()) text_ = text_.substr(begin, end_of_value(text_, begin) - begin);
}

bool JsonValue::get(std::string* value) const {
  if (!text_.starts_with('"')) return false;
  std::string_view rest = text_.substr(1, text_.size() - 2);
  value->clear();
  while (!rest.empty()) {
    const size_t plain = std::min(rest.find('\\'), rest.size());
    value->append(rest.substr(0, plain));
    rest.remove_prefix(plain);
    if (rest.empty()) break;
    size_t bytes = 2;
    if (rest[1] == 'u') {
      uint32_t code = 0;
      bytes = unicode_escape(rest, &code);
      append_utf8(code, value);
    } else {
      value->push_back(kEscaped[kEscapes.find(rest[1])]);
    }
    rest.remove_prefix(bytes);
  }
  return true;
}

bool JsonValue::get(int64_t* value) const { return read_number(text_, value); }
bool JsonValue::get(int* value) const { return read_number(text_, value); }
bool JsonValue::get(double* value) const { return read_number(text_, value); }

JsonValue JsonValue::find(std::string_view name) const {
  JsonValue found;
  if (!is_object()) return found;
  std::string decoded;
  each([&](const JsonValue& written, const JsonValue& value) {
    written.get(&decoded);
    if (decoded == name) found = value;
  });
  return found;
}

bool JsonValue::next(size_t* at, JsonValue* name, JsonValue* value) const {
  if (!is_object() && !is_array()) return false;
  const auto take = [&](JsonValue* part) {
    const size_t begin = skip_space(text_, *at);
    *at = end_of_value(text_, begin);
    part->text_ = text_.substr(begin, *at - begin);
    *at = skip_space(text_, *at);
  };
  *at = skip_space(text_, *at);
  if (text_[*at] == ',') ++*at;
  if (*at + 1 == text_.size()) return false;  // its own bracket
  if (is_object()) {
    take(name);
    ++*at;  // the colon
  }
  take(value);
  return true;
}

// ---- JsonWriter ----

void JsonWriter::name(std::string_view name) {
  separate();
  quote(name);
  colon();
}

void JsonWriter::colon() {
  text_ += layout_ == Layout::lines ? ": " : ":";
  named_ = true;
}

void JsonWriter::value(const JsonValue& value) {
  const std::string_view text = value.text();
  for (size_t at = 0; (at = skip_space(text, at)) < text.size();) {
    const char c = text[at];
    if (c == '{' || c == '[') {
      open(c);
      ++at;
    } else if (c == '}' || c == ']') {
      close(c);
      ++at;
    } else if (c == ',') {
      ++at;
    } else if (c == ':') {  // what was written last is a name
      colon();
      ++at;
    } else {
      const size_t end = end_of_value(text, at);
      scalar(text.substr(at, end - at));
      at = end;
    }
  }
}

void JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  ++depth_;
  first_ = true;
}

void JsonWriter::close(char bracket) {
  --depth_;
  if (!first_) new_line();
  text_ += bracket;
  first_ = false;
}

void JsonWriter::scalar(std::string_view text) {
  separate();
  text_ += text;
}

void JsonWriter::number(double value) {
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value);
  scalar(std::isfinite(value) ? std::string_view(digits, size_t(end - digits)) : "null");
}

void JsonWriter::string(std::string_view text) {
  separate();
  quote(text);
}

void JsonWriter::separate() {
  if (!named_ && depth_ > 0) {
    if (!first_) text_ += ',';
    new_line();
  }
  first_ = named_ = false;
}

void JsonWriter::new_line() {
  if (layout_ == Layout::compact) return;
  text_ += '\n';
  text_.append(2 * static_cast<size_t>(depth_), ' ');
}

void JsonWriter::quote(std::string_view text) {
  text_ += '"';
  for (size_t bytes = 0; !text.empty(); text.remove_prefix(bytes)) {
    const char c = text[0];
    const size_t escape = c == '/' ? std::string_view::npos : kEscaped.find(c);
    if (!utf8_at(text, &bytes)) {
      text_ += "\xEF\xBF\xBD";
    } else if (escape != std::string_view::npos) {
      text_ += '\\';
      text_ += kEscapes[escape];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kHex = "0123456789abcdef";
      text_ += "\\u00";
      text_ += kHex[size_t(c) >> 4];
      text_ += kHex[size_t(c) & 15];
    } else {
      text_ += text.substr(0, bytes);
    }
  }
  text_ += '"';
}

}  // namespace attune
