// JSON as calls need it: the user's table and the heads of cached kernels are read, heads, explain
// and info are written. Reading takes no memory and no recursion, whatever the text; in writing, a
// failed allocation is std::bad_alloc as anywhere else. (A destructor of nlohmann::json allocates,
// and ends the process when it cannot.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace attune {

inline constexpr int kJsonDepth = 16;      // levels of objects and arrays that a table may have
inline constexpr int kMostJsonDepth = 64;  // that anything may have

// Empty when the text is one JSON value in UTF-8 of at most `depth` levels (up to kMostJsonDepth),
// else the reason: "not valid JSON".
std::string why_not_json(std::string_view text, int depth = kJsonDepth);

// A value inside of a text that why_not_json has nothing against. It is looked up in the text each
// time, which is for small texts.
class JsonValue {
 public:
  JsonValue() = default;  // none: what is not there
  explicit JsonValue(std::string_view checked);

  bool exists() const { return !text_.empty(); }
  std::string_view text() const { return text_; }  // as it is written
  bool is_object() const { return text_.starts_with('{'); }
  bool is_array() const { return text_.starts_with('['); }

  bool get(std::string* value) const;  // false: not a string
  bool get(int64_t* value) const;      // false: not a whole number in this range
  bool get(int* value) const;
  bool get(double* value) const;  // false: not a number

  // The member of an object; the last where several have the name.
  JsonValue find(std::string_view name) const;

  // visit(name, value) for the members of an object, visit(JsonValue(), value) for those of an
  // array.
  template <class Visit>
  void each(const Visit& visit) const {
    JsonValue name, value;
    for (size_t at = 1; next(&at, &name, &value);) visit(name, value);
  }

 private:
  bool next(size_t* at, JsonValue* name, JsonValue* value) const;

  std::string_view text_;
};

// Writes one value, as nlohmann::json prints it: two spaces a level, or all on one line. Bytes that
// are not UTF-8 become U+FFFD.
class JsonWriter {
 public:
  enum class Layout { lines, compact };
  explicit JsonWriter(Layout layout = Layout::lines) : layout_(layout) {}

  std::string take() { return std::move(text_); }

  void name(std::string_view name);    // of the value that is written next
  void value(const JsonValue& value);  // a checked one, its scalars as they are written
  template <class T>
  void value(const T& value) {
    if constexpr (std::is_same_v<T, bool>)
      scalar(value ? "true" : "false");
    else if constexpr (std::is_same_v<T, std::nullptr_t>)
      scalar("null");
    else if constexpr (std::is_integral_v<T>)
      scalar(std::to_string(value));
    else if constexpr (std::is_floating_point_v<T>)
      number(value);
    else
      string(value);
  }
  template <class Members>
  void object(const Members& members) {
    open('{');
    members();
    close('}');
  }
  template <class Items>
  void array(const Items& items) {
    open('[');
    items();
    close(']');
  }

  // A member of the object that is open.
  template <class T>
  void field(std::string_view name, const T& value) {
    this->name(name);
    this->value(value);
  }
  template <class Members>
  void object(std::string_view name, const Members& members) {
    this->name(name);
    object(members);
  }
  template <class Items>
  void array(std::string_view name, const Items& items) {
    this->name(name);
    array(items);
  }

 private:
  void open(char bracket);
  void close(char bracket);
  void colon();
  void scalar(std::string_view text);
  void number(double value);  // null where JSON has none
  void string(std::string_view text);
  void separate();  // from what was written before
  void new_line();
  void quote(std::string_view text);

  Layout layout_;
  std::string text_;
  int depth_ = 0;
  bool first_ = true;   // nothing is in the innermost object or array yet
  bool named_ = false;  // the name of the next value is written
};

}  // namespace attune
