#include "evolve/report/diff.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "evolve/propose/dice.hpp"
#include "src/file.hpp"

namespace attune::evolve {
namespace {

TEST(Diff, ShowsWhatDiffers) {
  EXPECT_EQ(unified_diff("a\nb\nc\n", "a\nB\nc\n", "x", "y"),
            "--- x\n+++ y\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
  EXPECT_EQ(unified_diff("a\n", "a\n", "x", "y"), "");
  EXPECT_EQ(unified_diff("", "a\n", "x", "y"), "--- x\n+++ y\n@@ -0,0 +1 @@\n+a\n");
}

TEST(Diff, FarLinesAreLeftOut) {
  std::string before, after;
  for (int n = 0; n < 40; ++n) {
    before += std::to_string(n) + "\n";
    after += std::to_string(n == 5 || n == 30 ? -n : n) + "\n";
  }
  const std::string diff = unified_diff(before, after, "x", "y");
  EXPECT_NE(diff.find("@@ -3,7 +3,7 @@"), std::string::npos) << diff;
  EXPECT_NE(diff.find("@@ -28,7 +28,7 @@"), std::string::npos) << diff;
  EXPECT_EQ(diff.find("\n 15\n"), std::string::npos);
}

// What patch(1) makes of it is the text after.
TEST(Diff, RandomDiffsApply) {
  if (std::system("patch --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "there is no patch(1)";
  const auto folder =
      std::filesystem::temp_directory_path() / ("diff_test_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  Dice dice(3, 0);
  for (int n = 0; n < 60; ++n) {
    std::string before, after;
    for (int64_t line = dice.below(30); line > 0; --line) {
      const std::string text = std::string(1, char('a' + dice.below(5))) + "\n";
      const int64_t what = dice.below(6);
      if (what != 0) before += text;
      if (what != 1) after += what == 2 ? "changed\n" : text;
    }
    if (before.empty() || before == after) continue;
    std::ofstream(folder / "file") << before;
    std::ofstream(folder / "diff") << unified_diff(before, after, "file", "file");
    const std::string command =
        "cd " + folder.string() + " && patch -s --no-backup-if-mismatch file diff > out 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << read_text((folder / "out").string());
    const std::string made =
        std::filesystem::exists(folder / "file") ? read_text((folder / "file").string()) : "";
    EXPECT_EQ(made, after) << before << "->\n" << after;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace attune::evolve
