// Every kernel that ships, for every GPU: it compiles, without a warning, a spill or a stack frame.
// One that was compiled before, from the same source by the same compiler, is judged by what the
// compiler said then.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "src/jit/kernel.hpp"
#include "src/jit/source.hpp"
#include "src/select/cuda_select.hpp"
#include "tests/jit/compiler.hpp"
#include "tests/rungs/configs.hpp"

namespace attune::jit {
namespace {

constexpr int kArchs[] = {75, 80, 86, 89, 90, 100, 120, 121};
constexpr int64_t kKeptBytes = int64_t{1} << 30;  // all kernels, several times over

struct Result {
  std::string id;  // of the plan
  KernelSpec unit;
  std::vector<cuda::Launch> launches = {};  // of this unit
  Status status = {};
  CacheEntry compiled = {};  // without the cubin
  Origin origin = Origin::compiler;
};

// As many at once as there are processors.
void compile_all(std::vector<Result>* results) {
  trim_cache(kept_cache_dir(), kKeptBytes);
  const TemporaryCache cache(kept_cache_dir());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < results->size(); i = next++) {
      Result& r = (*results)[i];
      r.status = obtain(r.unit, r.id, &r.compiled, &r.origin);
      r.compiled.cubin.clear();
    }
  };
  std::vector<std::thread> threads(std::max(1u, std::thread::hardware_concurrency()));
  for (std::thread& t : threads) t = std::thread(work);
  for (std::thread& t : threads) t.join();
}

void print(const Result& r) {
  for (const Resources& k : r.compiled.resources)
    std::printf("  %-72s %-15s %3d registers %4d stack %4d spill %6d smem %5.2f s\n", r.id.c_str(),
                k.entry.c_str(), k.registers, k.stack, k.spill_stores + k.spill_loads, k.smem,
                r.compiled.cpu_seconds);
}

void judge(const Result& r) {
  ASSERT_TRUE(r.status.ok()) << r.id << ": " << r.status.message;
  EXPECT_TRUE(r.compiled.warnings.empty()) << r.id << ": " << r.compiled.warnings.front();
  EXPECT_EQ(r.compiled.resources.size(), entries(r.unit).size()) << r.id;
  for (const Resources& k : r.compiled.resources) {
    EXPECT_EQ(k.stack, 0) << r.id << " " << k.entry;
    EXPECT_EQ(k.spill_stores + k.spill_loads, 0) << r.id << " " << k.entry;
    EXPECT_GT(k.registers, 0) << r.id << " " << k.entry;
  }
  for (const cuda::Launch& launch : r.launches) {
    const bool there = std::any_of(r.compiled.resources.begin(), r.compiled.resources.end(),
                                   [&](const Resources& k) { return k.entry == launch.entry; });
    EXPECT_TRUE(there) << r.id << " launches " << launch.entry;
  }
}

void add_units(const Plan& plan, std::vector<Result>* results) {
  for (size_t n = 0; n < plan.units.size(); ++n) {
    results->push_back({.id = plan.id, .unit = plan.units[n]});
    for (const cuda::Launch& launch : plan.launches)
      if (launch.unit == n) results->back().launches.push_back(launch);
  }
}

void compile_plans(std::vector<Plan> (*plans_of)(const Arch&)) {
  std::vector<Result> results;
  for (const int cc : kArchs)
    for (const Plan& plan : plans_of(arch_of(cc))) add_units(plan, &results);
  ASSERT_FALSE(results.empty());
  compile_all(&results);
  std::vector<double> seconds;
  for (const Result& r : results) {
    print(r);
    judge(r);
    seconds.push_back(r.compiled.cpu_seconds);
  }
  std::sort(seconds.begin(), seconds.end());
  const auto compiled = std::count_if(results.begin(), results.end(),
                                      [](const Result& r) { return r.origin == Origin::compiler; });
  std::printf("%zu kernels, %td compiled now, the others taken from %s\n", results.size(), compiled,
              kept_cache_dir().c_str());
  if (const std::string why = why_not_writable(kept_cache_dir()); !why.empty())
    std::printf("none is kept: %s\n", why.c_str());
  std::printf("a kernel takes: median %.2f s, slowest %.2f s of a processor\n",
              seconds[seconds.size() / 2], seconds.back());
}

TEST(CompileAll, OneKernelOfEachRungForEachArch) {
  ATTUNE_NEEDS_NVRTC();
  compile_plans([](const Arch& arch) { return shipped_plans(arch, true); });
}

TEST(FullCompileAll, EveryShippedKernelForEachArch) {
  ATTUNE_NEEDS_NVRTC();
  compile_plans([](const Arch& arch) { return shipped_plans(arch, false); });
}

// Each with LSE and without, in each dtype. Not those of `mma`: nine of them spill, by up to 236
// bytes (docs/notes/2026-11-15-mma-kernel.md).
std::vector<Plan> hopper_defaults(const Arch& arch) {
  std::vector<Plan> plans = default_plans(arch);
  std::erase_if(plans, [](const Plan& plan) {
    return std::string_view(plan.config().rung->name) != "wgmma";
  });
  return plans;
}

TEST(FullCompileAll, EveryRowOfHoppersDefaults) {
  ATTUNE_NEEDS_NVRTC();
  compile_plans(hopper_defaults);
}

}  // namespace
}  // namespace attune::jit
