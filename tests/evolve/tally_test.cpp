#include "evolve/propose/tally.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace attune::evolve {
namespace {

Tally tally(const std::string& who, int64_t questions, double cost, double gain) {
  Tally t;
  t.op = "model";
  t.who = who;
  t.questions = questions;
  t.cost = cost;
  t.cost_known = cost >= 0;
  t.gain = gain;
  return t;
}

TEST(Bandit, UntriedModelsGoByWeight) {
  const std::vector<double> p = chances_of({{"a", 1, {}}, {"b", 3, {}}}, {});
  EXPECT_NEAR(p[0], 0.25, 1e-12);
  EXPECT_NEAR(p[1], 0.75, 1e-12);
}

TEST(Bandit, GainForItsCostCounts) {
  const std::vector<ModelChoice> models = {{"cheap", 1, {}}, {"dear", 1, {}}};
  // The same gain for a tenth of the money.
  std::vector<double> p =
      chances_of(models, {tally("cheap", 10, 0.1, 0.5), tally("dear", 10, 1, 0.5)});
  EXPECT_GT(p[0], 0.7);
  // Where one cost is unknown, questions are compared.
  p = chances_of(models, {tally("cheap", 10, 0.1, 0.5), tally("dear", 10, -1, 0.5)});
  EXPECT_NEAR(p[0], p[1], 1e-12);
  // A model that never gained anything keeps a share.
  p = chances_of(models, {tally("cheap", 1000, -1, 0), tally("dear", 10, -1, 3)});
  EXPECT_GT(p[0], 0.12);
  EXPECT_NEAR(p[0] + p[1], 1, 1e-12);
}

TEST(Bandit, ChoosesByItsDice) {
  const std::vector<ModelChoice> models = {{"a", 1, {}}, {"b", 1, {}}, {"c", 2, {}}};
  int counts[3] = {};
  for (uint64_t n = 0; n < 2000; ++n) {
    Dice dice(5, n), again(5, n);
    const size_t chosen = choose_model(models, {}, &dice);
    EXPECT_EQ(chosen, choose_model(models, {}, &again));
    ++counts[chosen];
  }
  EXPECT_NEAR(counts[0], 500, 100);
  EXPECT_NEAR(counts[2], 1000, 100);
}

TEST(Models, WeightsAndPricesAreRead) {
  ModelChoice m;
  ASSERT_TRUE(parse_model("qwen2.5-coder:7b", &m).ok());
  EXPECT_EQ(m.name, "qwen2.5-coder:7b");
  ASSERT_TRUE(parse_model("qwen2.5-coder:7b:2.5", &m).ok());
  EXPECT_EQ(m.name, "qwen2.5-coder:7b");
  EXPECT_EQ(m.weight, 2.5);
  for (const char* text : {"", ":2", "a:0", "a:-1", "a:1e9"})
    EXPECT_FALSE(parse_model(text, &m).ok()) << text;
  std::string name;
  ModelPrice price;
  ASSERT_TRUE(parse_price("a=b=0.5,2", &name, &price).ok());
  EXPECT_EQ(name, "a=b");
  EXPECT_EQ(price.in, 0.5);
  EXPECT_EQ(price.out, 2);
  for (const char* text : {"a", "a=1", "=1,2", "a=x,1", "a=-1,2", "a=1,2,3", "a=nan,1"})
    EXPECT_FALSE(parse_price(text, &name, &price).ok()) << text;
}

TEST(Models, SettingsAreCheckedAndComeBack) {
  ModelSettings s;
  s.url = "http://localhost:1";
  s.models = {{"a", 2, ModelPrice{1, 2}}, {"b", 1, {}}};
  EXPECT_TRUE(check(s).ok());
  EXPECT_EQ(to_json(model_settings_of(to_json(s))), to_json(s));
  s.most_cost = 1;
  EXPECT_NE(check(s).message.find("--price b=IN,OUT"), std::string::npos);
  s.most_cost = 0;
  s.share = 0;
  EXPECT_FALSE(check(s).ok());
  s.share = 1;
  s.models[1].name = "a";
  EXPECT_FALSE(check(s).ok());
}

}  // namespace
}  // namespace attune::evolve
