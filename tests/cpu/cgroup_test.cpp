#include "src/cpu/cgroup.hpp"

#include <gtest/gtest.h>

#include <map>

namespace attune::cpu {
namespace {

int quota(const std::map<std::string, std::string>& files) {
  return quota_processors([&](const std::string& path) {
    const auto file = files.find(path);
    return file == files.end() ? std::string() : file->second;
  });
}

TEST(Cgroup, NoFilesMeanNoLimit) {
  EXPECT_EQ(quota({}), 0);
  EXPECT_EQ(quota({{"/proc/self/cgroup", ""}}), 0);
  EXPECT_EQ(quota({{"/proc/self/cgroup", "0::/\n"}}), 0);
}

TEST(Cgroup, VersionTwo) {
  const auto root = [](const char* limit) {
    return quota({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", limit}});
  };
  EXPECT_EQ(root("max 100000\n"), 0);
  EXPECT_EQ(root("100000 100000\n"), 1);
  EXPECT_EQ(root("150000 100000\n"), 2);  // rounded up
  EXPECT_EQ(root("1000 100000\n"), 1);
  EXPECT_EQ(root("6400000 100000\n"), 64);
}

TEST(Cgroup, EveryGroupAboveBinds) {
  std::map<std::string, std::string> files = {
      {"/proc/self/cgroup", "0::/system.slice/job.scope\n"},
      {"/sys/fs/cgroup/system.slice/job.scope/cpu.max", "800000 100000\n"},
      {"/sys/fs/cgroup/system.slice/cpu.max", "300000 100000\n"}};
  EXPECT_EQ(quota(files), 3);
  files["/sys/fs/cgroup/system.slice/job.scope/cpu.max"] = "200000 100000\n";
  EXPECT_EQ(quota(files), 2);
}

TEST(Cgroup, VersionOne) {
  std::map<std::string, std::string> files = {
      {"/proc/self/cgroup", "5:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n0::/x\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_quota_us", "250000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_period_us", "100000\n"}};
  EXPECT_EQ(quota(files), 3);
  files["/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_quota_us"] = "-1\n";
  EXPECT_EQ(quota(files), 0);
}

// In a container the path is the host's, and the mount's root is the container's own group.
TEST(Cgroup, TheMountsRootIsTheContainersGroup) {
  EXPECT_EQ(quota({{"/proc/self/cgroup", "4:cpu,cpuacct:/docker/1f\n"},
                   {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n"},
                   {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}),
            1);
  EXPECT_EQ(quota({{"/proc/self/cgroup", "0::/../../elsewhere\n"},
                   {"/sys/fs/cgroup/cpu.max", "200000 100000\n"}}),
            2);
}

TEST(Cgroup, WhatCannotBeReadIsNoLimit) {
  for (const char* text : {"", "\n", "x y", "-5 100000", "100000", "100000 0", "100000 -1",
                           "99999999999999999999999 100000"})
    EXPECT_EQ(quota({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", text}}), 0)
        << text;
  EXPECT_EQ(quota({{"/proc/self/cgroup", "no colons\n:::\n::\n0:\n"}}), 0);
}

}  // namespace
}  // namespace attune::cpu
