// Secrets go out of what evaluators say, and other text stays.
#include "evolve/judge/redact.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace attune::evolve {
namespace {

TEST(Redact, KeysOfUsualForms) {
  for (const char* key : {"sk-proj-0123456789abcdefXYZ", "ghp_0123456789abcdefghijABCDEF",
                          "AKIA0123456789ABCDEF", "Bearer eyJhbGciOi.J9-abc_DEF/1+2=",
                          "github_pat_11ABCDEFG0123456789_abc", "hf_abcdefghij0123456789"})
    EXPECT_EQ(redacted("a " + std::string(key) + ", b"), "a [redacted], b");
  EXPECT_EQ(redacted("key=\"sk-0123456789abcdef\"\n"), "key=\"[redacted]\"\n");
}

TEST(Redact, WhatOnlyLooksAlikeStays) {
  for (const std::string text :
       {"a task-0123456789abcdefgh", "sk-learn-contrib-something", "Bearer of bad news", "AKIAxyz",
        "ghp_short1", "speedup: 2.41x", ""})
    EXPECT_EQ(redacted(text), text);
}

TEST(Redact, ValuesOfTheEnvironment) {
  setenv("ATTUNE_TEST_TOKEN", "tulip and rose", 1);
  setenv("ATTUNE_TEST_SHORT_KEY", "rose", 1);
  setenv("attune_test_password", "tulip and rose and lily", 1);
  EXPECT_EQ(redacted("a tulip and rose, tulip and rose and lily, rose"),
            "a [ATTUNE_TEST_TOKEN], [attune_test_password], rose");
  unsetenv("ATTUNE_TEST_TOKEN");
  unsetenv("ATTUNE_TEST_SHORT_KEY");
  unsetenv("attune_test_password");
  EXPECT_EQ(redacted("tulip and rose"), "tulip and rose");
}

}  // namespace
}  // namespace attune::evolve
