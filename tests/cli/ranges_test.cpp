#include "cli/ranges.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace attune::cli {
namespace {

using Values = std::vector<int64_t>;

template <class Fn>
std::string reason(Fn&& parse) {
  try {
    parse();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Ranges, ListsAndRanges) {
  EXPECT_EQ(parse_values("512"), (Values{512}));
  EXPECT_EQ(parse_values("512,7,512"), (Values{512, 7, 512}));
  EXPECT_EQ(parse_values("512:4096:x2"), (Values{512, 1024, 2048, 4096}));
  EXPECT_EQ(parse_values("128:512:+128"), (Values{128, 256, 384, 512}));
  EXPECT_EQ(parse_values("1,8:32:x2,100"), (Values{1, 8, 16, 32, 100}));
}

TEST(Ranges, TheEndIsIncludedOnlyWhenAStepLandsOnIt) {
  EXPECT_EQ(parse_values("1:10:+4"), (Values{1, 5, 9}));
  EXPECT_EQ(parse_values("3:20:x3"), (Values{3, 9}));
  EXPECT_EQ(parse_values("5:5:x2"), (Values{5}));
}

TEST(Ranges, LargestValueDoesNotOverflow) {
  EXPECT_EQ(parse_values("1000000000:1000000000:x1000000000"), (Values{1000000000}));
}

TEST(Ranges, BadInputIsNamed) {
  const struct {
    const char *text, *part;
  } cases[] = {
      {"", "'' is not a whole number"},
      {"512,", "'' is not a whole number"},
      {"12a", "'12a' is not a whole number"},
      {"+5", "not a whole number"},
      {"1.5", "not a whole number"},
      {" 5", "not a whole number"},
      {"0", "0 in '0' is not in 1..1000000000"},
      {"-4", "-4 in '-4' is not in 1..1000000000"},
      {"99999999999999999999", "above 1000000000"},
      {"512:1024", "write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP"},
      {"512:1024:2", "write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP"},
      {"512:1024:x", "write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP"},
      {"1:2:+1:3", "write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP"},
      {"1024:512:x2", "ends at 512, before it begins at 1024"},
      {"1:8:x1", "never ends"},
      {"1:8:+0", "0 in '1:8:+0' is not in"},
      {"1:1000000:+1", "more than 1000 values"},
  };
  for (const auto& c : cases) {
    const std::string why = reason([&] { parse_values(c.text); });
    EXPECT_NE(why.find(c.part), std::string::npos) << "'" << c.text << "' gave: " << why;
  }
}

TEST(Ranges, Shapes) {
  EXPECT_EQ(parse_shape("1x8x512x64"), (Shape{1, 8, 8, 512, 512, 64, 64}));
  EXPECT_EQ(parse_shape("2x8/2x1/16384x64/128"), (Shape{2, 8, 2, 1, 16384, 64, 128}));
  for (const char* text : {"1x8x512x64", "2x8/2x1/16384x64/128", "1x1/1x7x3"})
    EXPECT_EQ(parse_shape(to_string(parse_shape(text))), parse_shape(text)) << text;
  EXPECT_EQ(to_string(parse_shape("1x4/4x9x16/8")), "1x4x9x16/8");
}

TEST(Ranges, BadShapesAreNamed) {
  EXPECT_NE(reason([] { parse_shape("1x8x512"); }).find("has 3 parts"), std::string::npos);
  EXPECT_NE(reason([] { parse_shape("1x8xax64"); }).find("'a' in '1x8xax64'"), std::string::npos);
  EXPECT_NE(reason([] { parse_shape("1x8/x1x64"); }).find("not a whole number"), std::string::npos);
  EXPECT_NE(reason([] { parse_shape("1x8/4/2x1x64"); }).find("'4/2' in"), std::string::npos);
  EXPECT_NE(reason([] { parse_shape("0x8x1x64"); }).find("0 in '0x8x1x64'"), std::string::npos);
}

TEST(Ranges, ListsOfNames) {
  EXPECT_EQ(split_list("a,bc"), (std::vector<std::string>{"a", "bc"}));
  EXPECT_NE(reason([] { split_list("a,,b"); }).find("empty part"), std::string::npos);
  EXPECT_NE(reason([] { split_list(""); }).find("empty part"), std::string::npos);
}

}  // namespace
}  // namespace attune::cli
