// Every rung through everything that loops over rungs: emission, printing, parsing, hashing, genes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "evolve/genome/genome.hpp"
#include "src/jit/source.hpp"
#include "src/problem.hpp"
#include "src/rungs/samples.hpp"
#include "src/select/select.hpp"
#include "src/select/tuned.hpp"
#include "tests/rungs/configs.hpp"

namespace attune {
namespace {

constexpr int kArchs[] = {75, 80, 86, 89, 90, 100, 120, 121};

// The kernels that ship of one rung, with the arch that each is for.
std::vector<Plan> shipped_of(const Rung& rung) {
  std::vector<Plan> plans;
  for (int cc : kArchs)
    for (Plan& plan : shipped_plans(arch_of(cc), false))
      if (plan.config().rung == &rung) plans.push_back(std::move(plan));
  return plans;
}

// Of both passes.
std::vector<const Rung*> all_rungs() {
  std::vector<const Rung*> all;
  for (const Pass pass : {Pass::forward, Pass::backward})
    all.insert(all.end(), rungs(pass).begin(), rungs(pass).end());
  return all;
}

TEST(Registry, RungsHaveNamesOfTheirOwn) {
  std::set<std::pair<Pass, std::string>> names;
  std::set<std::pair<Pass, attune_mode>> modes;
  for (const Rung* rung : all_rungs()) {
    EXPECT_TRUE(names.emplace(rung->pass, rung->name).second) << rung->name;
    EXPECT_TRUE(modes.emplace(rung->pass, rung->mode).second) << rung->name;
    EXPECT_STREQ(mode_name(rung->mode), rung->name);
    EXPECT_EQ(rung_named(rung->name, rung->pass), rung);
    EXPECT_EQ(rung_of(rung->mode, rung->pass), rung);
    EXPECT_NE(std::string(rung->meaning), "");
  }
  EXPECT_EQ(rung_named("reference"), nullptr);
  EXPECT_EQ(rung_of(ATTUNE_AUTO), nullptr);
}

TEST(Registry, FieldsHaveNamesTagsAndMeanings) {
  for (const Rung* rung : all_rungs()) {
    std::set<std::string> names, tags;
    EXPECT_LE(rung->fields.size(), Config::kMostFields);
    for (const Field& f : rung->fields) {
      EXPECT_TRUE(names.insert(f.name).second) << rung->name << " " << f.name;
      if (*f.tag != '\0') {
        EXPECT_TRUE(tags.insert(f.tag).second) << rung->name << " " << f.tag;
      }
      if (f.search.values.empty()) continue;
      EXPECT_NE(std::string(f.search.meaning), "") << rung->name << " " << f.name;
      EXPECT_NE(std::string(f.search.group), "") << rung->name << " " << f.name;
      EXPECT_GE(f.search.values.size(), 2u) << rung->name << " " << f.name;
    }
  }
}

TEST(Registry, EveryRungShipsWhereItRunsAndNowhereElse) {
  for (const Rung* rung : all_rungs())
    for (int cc : kArchs) {
      size_t count = 0;
      for (const Plan& plan : shipped_plans(arch_of(cc), true)) count += plan.config().rung == rung;
      EXPECT_EQ(count != 0, rung->runs_on(cc)) << rung->name << " " << cc;
      const Request r = sample_request(sample_problem(DType::f16, 64), arch_of(cc), true);
      EXPECT_EQ(rung->refusal(r).empty(), rung->runs_on(cc)) << rung->name << " " << cc;
    }
}

// A config is its fields: printed and read back, emitted and hashed by each of them.
TEST(Registry, ConfigsArePrintedAndReadBack) {
  for (const Rung* rung : all_rungs())
    for (const Plan& plan : shipped_of(*rung)) {
      const Config& config = plan.config();
      Config back;
      ASSERT_TRUE(parse_config(to_string(config), &back, rung->pass)) << plan.id;
      for (const Field& f : rung->fields)
        if (*f.tag != '\0') {
          EXPECT_EQ(value_of(back, f.name), value_of(config, f.name)) << plan.id;
        }
      ASSERT_TRUE(parse_config(plan.id.substr(plan.id.find('/') + 1), &back, rung->pass))
          << plan.id;
      EXPECT_TRUE(plan.id.ends_with("/" + to_string(back))) << plan.id;
      EXPECT_EQ(to_string(compiled(back)), to_string(config)) << plan.id;
    }
}

TEST(Registry, EveryChosenFieldIsPrintedAndWhatKernelsReadIsEmittedAndHashed) {
  for (const Rung* rung : all_rungs()) {
    const Plan plan = shipped_of(*rung).at(0);
    for (size_t place = 0; place < rung->fields.size(); ++place) {
      const Field& f = rung->fields[place];
      const bool chosen = *f.tag != '\0';
      KernelSpec other = plan.units[0];
      int32_t& value = other.config.values[place];
      value = !f.labels.empty() ? !value : value + 1;
      EXPECT_EQ(to_string(other.config) != to_string(plan.config()), chosen)
          << rung->name << " " << f.name;
      other.config = compiled(other.config);
      EXPECT_EQ(jit::emit(other) != jit::emit(plan.units[0]), f.compiled)
          << rung->name << " " << f.name;
      EXPECT_EQ(jit::hash_of(other) != jit::hash_of(plan.units[0]), f.compiled)
          << rung->name << " " << f.name;
      EXPECT_EQ(!(other == plan.units[0]), f.compiled) << rung->name << " " << f.name;
      Config back;
      ASSERT_TRUE(parse_config(to_string(other.config), &back, rung->pass))
          << rung->name << " " << f.name;
      if (chosen) {
        EXPECT_EQ(back, other.config);
      }
    }
  }
}

// A value that is neither a default's nor a shipped row's anywhere has no reason to be a field.
TEST(Registry, EveryFieldIsSetByADefaultOrAShippedRow) {
  std::map<std::string, std::set<std::string>> set;  // by type of config
  const auto note = [&](const Config& config) {
    for (size_t i = 0; i < config.rung->fields.size(); ++i)
      if (config.values[i] != config.rung->fields[i].standard)
        set[config.rung->type].insert(config.rung->fields[i].name);
  };
  for (const TunedRow& row : shipped_tuned().rows)
    if (Config config; parse_config(row.config, &config)) note(config);
  for (const Rung* rung : all_rungs())
    for (int cc : kArchs) {
      std::vector<Request> requests = rung->ships(arch_of(cc));
      for (size_t n = requests.size(); n-- > 0;) {  // shorter rows, and rows of a decoder
        Request r = requests[n];
        r.problem.seq_q = r.problem.seq_k = 512;
        requests.push_back(r);
        r.problem.seq_q = 16, r.problem.heads_kv = 2;
        requests.push_back(r);
      }
      for (const Request& r : requests)
        if (rung->refusal(r).empty()) note(rung->standard(r));
    }
  for (const Rung* rung : all_rungs())
    for (const Field& f : rung->fields)
      // What tells the ladder's rungs apart, and the units of one.
      if (f.name != std::string("rung") && f.name != std::string("part")) {
        EXPECT_TRUE(set[rung->type].contains(f.name)) << rung->name << " " << f.name;
      }
}

TEST(Registry, UnitsHaveTheKernelsThatPlansLaunch) {
  for (const Rung* rung : all_rungs())
    for (const Plan& plan : shipped_of(*rung)) {
      for (size_t n = 0; n < plan.units.size(); ++n) {
        const std::string text = jit::emit(plan.units[n]);
        const Rung* of_unit = plan.units[n].config.rung;  // dMask's is that of `fused`
        EXPECT_NE(text.find(std::string("constexpr ") + of_unit->type + " kConfig"),
                  std::string::npos);
        for (const char* entry : jit::entries(plan.units[n]))
          EXPECT_NE(text.find(std::string(" ") + entry + "("), std::string::npos) << plan.id;
      }
      for (const cuda::Launch& launch : plan.launches) {
        ASSERT_LT(launch.unit, plan.units.size()) << plan.id;
        const auto entries = jit::entries(plan.units[launch.unit]);
        const auto same = [&](const char* name) { return std::string_view(name) == launch.entry; };
        EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), same))
            << plan.id << " " << launch.entry;
      }
    }
}

// A field with values is a gene where more than one of them is possible for the problem, and all
// that the library would run is in the space.
TEST(Registry, FieldsWithValuesAreGenes) {
  for (const Rung* rung : rungs()) {
    const Problem p = sample_problem(DType::f16, 64);
    const auto space = evolve::cuda_space({p}, arch_of(90), {rung->name});
    ASSERT_EQ(space->families().size(), 1u);
    const evolve::Family& family = space->families()[0];
    EXPECT_EQ(family.name, rung->name);
    std::set<std::string> genes, fields;
    for (const evolve::Gene& gene : family.genes) {
      genes.insert(gene.name);
      EXPECT_FALSE(gene.values.empty()) << rung->name << " " << gene.name;
    }
    for (const Field& f : rung->fields)
      if (!f.search.values.empty()) fields.insert(f.name);
    EXPECT_EQ(genes, fields) << rung->name;
    const Request r = sample_request(p, arch_of(90), true);
    EXPECT_TRUE(space->parse(to_string(rung->standard(r))).has_value()) << rung->name;
  }
}

// ---- the problem's fields ----

TEST(ProblemFields, EachIsReadAndWritten) {
  std::set<std::string> names;
  for (const ProblemField& f : problem_fields()) {
    EXPECT_TRUE(names.insert(f.name).second) << f.name;
    Problem p;
    const int64_t value = f.get(p) == 1 ? 2 : 1;
    f.set(&p, value);
    if (f.labels != nullptr && f.get(Problem{}) == 1) continue;  // a flag that is set has no 2
    EXPECT_EQ(f.get(p), value) << f.name;
    EXPECT_FALSE(p == Problem{}) << f.name;
  }
}

TEST(ProblemFields, TheKeyHasWhatKernelsAreCompiledFor) {
  for (const ProblemField& f : problem_fields()) {
    Problem p = sample_problem(DType::bf16, 64), q = p;
    f.set(&q, f.get(q) == 1 ? 2 : 1);
    if (q == p) continue;
    EXPECT_EQ(kernel_key(p) != kernel_key(q), f.in_key || f.name == std::string("window_left") ||
                                                  f.name == std::string("window_right") ||
                                                  f.name == std::string("block_mask_q"))
        << f.name;
  }
}

TEST(ProblemFields, TaggedOnesAreInTheIdAndReadBack) {
  for (const ProblemField& f : problem_fields()) {
    if (*f.tag == '\0') continue;
    Problem p;
    p.dim = p.dim_v = 64;
    p.batch = p.heads_q = p.heads_kv = 1;
    const std::string plain = problem_id(p);
    f.set(&p, 1);
    const std::string id = problem_id(p);
    EXPECT_EQ(id, plain + "." + f.tag);
    Problem back;
    ASSERT_TRUE(parse_problem_id(id, &back)) << id;
    EXPECT_EQ(f.get(back), 1) << id;
  }
}

}  // namespace
}  // namespace attune
