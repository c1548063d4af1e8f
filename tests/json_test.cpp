#include "src/json.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace attune {
namespace {

using Other = nlohmann::ordered_json;  // what others make of the same text

std::string levels(size_t count) { return std::string(count, '[') + std::string(count, ']'); }

TEST(Json, OneValueIsValid) {
  for (const char* text : {"{}",
                           "[]",
                           " [ ] ",
                           "\t\n\r{ \"a\" : [ 1 , 2 ] }\n",
                           "0",
                           "-0",
                           "12",
                           "-1.5e+3",
                           "1E5",
                           "0.1",
                           "true",
                           "false",
                           "null",
                           "\"\"",
                           R"("\"\\\/\b\f\n\r\t\u00e4\ud83d\ude00")",
                           "\"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80\x7F\"",
                           "\xEF\xBB\xBF{}",
                           R"({"a":1,"a":2})",
                           "99999999999999999999",
                           "[[],{},[{}]]"}) {
    EXPECT_EQ(why_not_json(text), "") << text;
    EXPECT_TRUE(Other::accept(text)) << text;
  }
}

TEST(Json, OthersAreNot) {
  for (const std::string text : {"",
                                 " ",
                                 "{",
                                 "}",
                                 "[",
                                 "]",
                                 "[1,]",
                                 "[,1]",
                                 "{,}",
                                 "{\"a\"}",
                                 "{\"a\":}",
                                 "{a:1}",
                                 "{\"a\":1,}",
                                 "[1 2]",
                                 "1 2",
                                 "01",
                                 "-",
                                 "+1",
                                 ".5",
                                 "1.",
                                 "1e",
                                 "1e+",
                                 "0x1",
                                 "nan",
                                 "Infinity",
                                 "1e999",
                                 "tru",
                                 "nulll",
                                 "'a'",
                                 "\"a",
                                 "\"\t\"",
                                 "\"\\x\"",
                                 "\"\\u12g4\"",
                                 "\"\\u+123\"",
                                 "\"\\ud800\"",
                                 "\"\\udc00\"",
                                 "\"\\ud800\\u0041\"",
                                 "\"\\",
                                 "\"\\u12",
                                 "\"\xC3\"",
                                 "\"\xC0\xAF\"",
                                 "\"\xE0\x80\xAF\"",
                                 "\"\xED\xA0\x80\"",
                                 "\"\xF4\x90\x80\x80\"",
                                 "\"\xFF\"",
                                 "\xFF",
                                 "[1}",
                                 "{\"a\":1]",
                                 "// x\n1",
                                 "{\"a\" 1}",
                                 "[\"a\":1]"}) {
    EXPECT_EQ(why_not_json(text), "not valid JSON") << text;
    EXPECT_FALSE(Other::accept(text)) << text;
  }
}

TEST(Json, DepthIsLimited) {
  EXPECT_EQ(why_not_json(levels(16)), "");
  EXPECT_EQ(why_not_json(levels(17)), "nested more than 16 levels deep");
  EXPECT_EQ(why_not_json(levels(3), 2), "nested more than 2 levels deep");
  EXPECT_EQ(why_not_json(levels(64), kMostJsonDepth), "");
  EXPECT_EQ(why_not_json(levels(65), 1000), "nested more than 64 levels deep");
  EXPECT_EQ(why_not_json("[" + levels(15) + "," + levels(15) + "]"), "");
  EXPECT_EQ(why_not_json(std::string(1 << 20, '[')), "nested more than 16 levels deep");
  EXPECT_EQ(why_not_json("{\"a\":{\"b\":[{}]}}", 3), "nested more than 3 levels deep");
}

TEST(Json, ValuesAreFound) {
  const std::string text = R"( { "a" : 1, "b\u0041" : [ "x\ny", -2, {"c":[]}, true ] ,
                                "n": 9223372036854775807, "o": 9223372036854775808, "f": 1.0,
                                "a" : "\ud83d\ude00\u00e4" } )";
  ASSERT_EQ(why_not_json(text), "");
  const JsonValue all(text);
  ASSERT_TRUE(all.is_object());
  EXPECT_FALSE(all.is_array());
  std::string word;
  int64_t number = 0;
  EXPECT_TRUE(all.find("a").get(&word)) << "the last of the name";
  EXPECT_EQ(word, "\xF0\x9F\x98\x80\xC3\xA4");
  EXPECT_FALSE(all.find("a").get(&number));
  EXPECT_TRUE(all.find("n").get(&number));
  EXPECT_EQ(number, INT64_MAX);
  for (const char* name : {"o", "f", "bA", "none", ""}) {
    EXPECT_FALSE(all.find(name).get(&number)) << name;
    EXPECT_FALSE(all.find(name).get(&word)) << name;
  }
  EXPECT_FALSE(all.find("none").exists());
  EXPECT_FALSE(all.find("none").find("more").exists());
  std::vector<std::string> items;
  all.find("bA").each(
      [&](const JsonValue&, const JsonValue& item) { items.emplace_back(item.text()); });
  EXPECT_EQ(items, (std::vector<std::string>{R"("x\ny")", "-2", R"({"c":[]})", "true"}));
}

std::string copy(const std::string& text, JsonWriter::Layout layout) {
  JsonWriter w(layout);
  w.value(JsonValue(text));
  return w.take();
}

// Whatever is made of a document: valid or not as others say, and printed as they print it.
TEST(Json, AgreesWithOthersOnDamagedTexts) {
  const std::string good =
      R"({"k": [1, -2.5, {"a": "b\\\" \u00e4", "e": {}}, [], true, null], "z": {"y": [[0]]}})";
  const std::string letters = "{}[]\",:\\u0 19.-etrfn\x01\xC3\xA4";
  std::mt19937 dice(1);
  int valid = 0;
  for (int n = 0; n < 20000; ++n) {
    std::string text = good;
    for (auto changes = 1 + dice() % 3; changes > 0; --changes) {
      const size_t at = dice() % text.size();
      if (dice() % 2 == 0)
        text[at] = letters[dice() % letters.size()];
      else if (dice() % 2 == 0)
        text.erase(at, 1 + dice() % 4);
      else
        text.insert(at, text.substr(dice() % text.size(), 1 + dice() % 8));
    }
    const bool accepted = Other::accept(text);
    ASSERT_EQ(why_not_json(text).empty(), accepted) << text;
    if (!accepted) continue;
    ++valid;
    for (const auto layout : {JsonWriter::Layout::lines, JsonWriter::Layout::compact})
      ASSERT_EQ(Other::parse(copy(text, layout)), Other::parse(text)) << text;
  }
  EXPECT_GT(valid, 100);
}

TEST(Json, IsWrittenAsOthersWriteIt) {
  Other other = {{"text", "a\"\\/\b\f\n\r\t\x01\x1f\x7f\xC3\xA4\xF0\x9F\x98\x80"},
                 {"", ""},
                 {"numbers", {0, -5, INT64_MIN, UINT64_MAX}},
                 {"flags", {true, false, nullptr}},
                 {"empty", {Other::array(), Other::object()}},
                 {"nested", {{"a", {{"b", {1}}}}, {"c", Other::array({Other::array({2})})}}}};
  const auto write = [](JsonWriter* w) {
    w->object([&] {
      w->field("text", "a\"\\/\b\f\n\r\t\x01\x1f\x7f\xC3\xA4\xF0\x9F\x98\x80");
      w->field("", std::string());
      w->array("numbers", [&] {
        w->value(0);
        w->value(int8_t{-5});
        w->value(INT64_MIN);
        w->value(UINT64_MAX);
      });
      w->array("flags", [&] {
        w->value(true);
        w->value(false);
        w->value(nullptr);
      });
      w->array("empty", [&] {
        w->array([] {});
        w->object([] {});
      });
      w->object("nested", [&] {
        w->object("a", [&] { w->array("b", [&] { w->value(1); }); });
        w->array("c", [&] { w->array([&] { w->value(2); }); });
      });
    });
  };
  JsonWriter lines, compact(JsonWriter::Layout::compact);
  write(&lines);
  write(&compact);
  const std::string text = lines.take();
  EXPECT_EQ(text, other.dump(2));
  EXPECT_EQ(compact.take(), other.dump());
  EXPECT_EQ(copy(other.dump(), JsonWriter::Layout::lines), text);
  EXPECT_EQ(copy(text, JsonWriter::Layout::compact), other.dump());
}

TEST(Json, NumbersAreReadAsWhatTheyAre) {
  const std::string text =
      R"([2147483647, 2147483648, -1, 0.0, 1e-7, -2.5E3, "1", null, true, {}])";
  ASSERT_EQ(why_not_json(text), "");
  std::string ints, doubles;
  JsonValue(text).each([&](const JsonValue&, const JsonValue& value) {
    int whole = 0;
    double number = 0;
    ints += value.get(&whole) ? std::to_string(whole) + " " : "- ";
    doubles += value.get(&number) ? std::to_string(number) + " " : "- ";
  });
  EXPECT_EQ(ints, "2147483647 - -1 - - - - - - - ");
  EXPECT_EQ(
      doubles,
      "2147483647.000000 2147483648.000000 -1.000000 0.000000 0.000000 -2500.000000 - - - - ");
}

TEST(Json, DoublesComeBack) {
  std::mt19937_64 dice(3);
  for (int n = 0; n < 5000; ++n) {
    const double value = std::bit_cast<double>(uint64_t(dice()));
    JsonWriter w;
    w.value(value);
    const std::string text = w.take();
    ASSERT_EQ(why_not_json(text), "") << text;
    double back = 0;
    ASSERT_EQ(JsonValue(text).get(&back), std::isfinite(value)) << text;
    ASSERT_EQ(back, std::isfinite(value) ? value : 0);
  }
}

TEST(Json, BytesThatAreNoTextAreReplacedAsOthersDo) {
  std::mt19937 dice(2);
  const std::string bytes = "a\x80\xBF\xC0\xC3\xA4\xE0\xA0\xED\x9F\xEF\xF0\x90\xF4\x8F\xFF";
  for (int n = 0; n < 5000; ++n) {
    std::string text;
    for (auto length = dice() % 8; length > 0; --length) text += bytes[dice() % bytes.size()];
    JsonWriter w;
    w.value(text);
    ASSERT_EQ(w.take(), Other(text).dump(2, ' ', false, Other::error_handler_t::replace));
  }
}

}  // namespace
}  // namespace attune
