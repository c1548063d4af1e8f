#include "src/jit/sha256.hpp"

#include <gtest/gtest.h>

namespace attune::jit {
namespace {

// FIPS 180-4's own examples, and the lengths at which padding changes.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesDoNotMatterButFieldsDo) {
  const std::string text(200, 'x');
  Sha256 pieces;
  for (const char c : text) pieces.add({&c, 1});
  EXPECT_EQ(pieces.finish(), sha256(text));

  Sha256 a, b;
  a.add_field("ab");
  a.add_field("c");
  b.add_field("a");
  b.add_field("bc");
  EXPECT_NE(a.finish(), b.finish());
}

}  // namespace
}  // namespace attune::jit
