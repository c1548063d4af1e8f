#include "src/jit/cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "tests/jit/compiler.hpp"

namespace attune::jit {
namespace {

namespace fs = std::filesystem;

class Cache : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/attune-cache-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(dir_)) found.push_back(entry.path());
    return found;
  }

  std::string dir_;
};

CacheEntry sample(size_t bytes = 5000, char fill = 'x') {
  CacheEntry entry;
  entry.id = "sm90.attn_fwd.bf16.d64/fused.bq64";
  entry.arch = "sm_90a";
  entry.seconds = 0.25;
  entry.cpu_seconds = 0.125;
  entry.warnings = {"attune_kernel.cu(3): warning #177-D: \"x\" was never referenced"};
  entry.resources = {{"attune_fused", 128, 0, 0, 0, 4096}, {"attune_other", 40, 16, 8, 4, 0}};
  entry.cubin = std::string(bytes, fill);
  entry.cubin[0] = '\0';
  return entry;
}

const Digest kKey = sha256("a key"), kOther = sha256("another");

void set_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The exit status of `work` in a child of its own.
int in_child(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST_F(Cache, GivesBackWhatItGot) {
  CacheEntry entry;
  EXPECT_FALSE(read_entry(dir_, kKey, &entry));
  EXPECT_EQ(write_entry(dir_, kKey, sample()), "");
  ASSERT_TRUE(read_entry(dir_, kKey, &entry));
  EXPECT_EQ(entry, sample());
  EXPECT_FALSE(read_entry(dir_, kOther, &entry));
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(Cache, MakesItsFolder) {
  const std::string deep = dir_ + "/a/b/c";
  EXPECT_EQ(write_entry(deep, kKey, sample()), "");
  CacheEntry entry;
  EXPECT_TRUE(read_entry(deep, kKey, &entry));
}

TEST_F(Cache, AnEntryThatIsThereStays) {
  EXPECT_EQ(write_entry(dir_, kKey, sample(100, 'a')), "");
  EXPECT_EQ(write_entry(dir_, kKey, sample(100, 'b')), "");
  CacheEntry entry;
  ASSERT_TRUE(read_entry(dir_, kKey, &entry));
  EXPECT_EQ(entry, sample(100, 'a'));
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(Cache, EveryDamagedByteIsSeenAndRepaired) {
  ASSERT_EQ(write_entry(dir_, kKey, sample(64)), "");
  const fs::path file = files().front();
  const std::string whole = bytes_of(file);
  CacheEntry entry;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = char(damaged[i] ^ 0x10);
    set_bytes(file, damaged);
    ASSERT_FALSE(read_entry(dir_, kKey, &entry)) << "byte " << i;
  }
  EXPECT_EQ(write_entry(dir_, kKey, sample(64)), "");
  EXPECT_TRUE(read_entry(dir_, kKey, &entry));
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(Cache, EveryTruncationIsSeen) {
  ASSERT_EQ(write_entry(dir_, kKey, sample(64)), "");
  const fs::path file = files().front();
  const std::string whole = bytes_of(file);
  CacheEntry entry;
  for (size_t size = 0; size < whole.size(); ++size) {
    set_bytes(file, whole.substr(0, size));
    ASSERT_FALSE(read_entry(dir_, kKey, &entry)) << size;
  }
  set_bytes(file, whole + "x");
  EXPECT_FALSE(read_entry(dir_, kKey, &entry));
}

TEST_F(Cache, AFileUnderAnotherNameIsNotThatEntry) {
  ASSERT_EQ(write_entry(dir_, kKey, sample()), "");
  fs::rename(files().front(), fs::path(dir_) / (hex(kOther) + ".kernel"));
  CacheEntry entry;
  EXPECT_FALSE(read_entry(dir_, kOther, &entry));
}

// An entry with another text in its head, and the checksum of that.
std::string with_head(const std::string& whole, const std::string& from, const std::string& to) {
  constexpr size_t kLength = 14, kHead = 22;  // where they begin
  std::string head = whole.substr(kHead, std::stoul(whole.substr(kLength, kHead - kLength)));
  std::string rest = whole.substr(kHead + head.size());
  rest.resize(rest.size() - sizeof(Digest));
  const size_t at = head.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) head.replace(at, from.size(), to);
  std::string bytes = whole.substr(0, kLength) + fmt::format("{:>8}", head.size()) + head + rest;
  const Digest sum = sha256(bytes);
  return bytes.append(reinterpret_cast<const char*>(sum.data()), sum.size());
}

TEST_F(Cache, AFieldOfAnotherTypeIsRefused) {
  ASSERT_EQ(write_entry(dir_, kKey, sample()), "");
  const fs::path file = files().front();
  const std::string whole = bytes_of(file);
  CacheEntry entry;
  // As another writer of JSON puts it.
  set_bytes(file, with_head(whole, "\"stack\":0,", "\"stack\" : 0 ,\n"));
  EXPECT_TRUE(read_entry(dir_, kKey, &entry));
  EXPECT_EQ(entry, sample());
  set_bytes(file, with_head(whole, "\"seconds\":0.25", "\"seconds\":2.5E-1"));
  EXPECT_TRUE(read_entry(dir_, kKey, &entry));
  EXPECT_EQ(entry, sample());
  const std::pair<const char*, const char*> changes[] = {
      {"\"id\":\"sm90", "\"id\":7,\"x\":\"sm90"},

      {"\"seconds\":0.25", "\"seconds\":\"0.25\""},
      {"\"cpu_seconds\":0.125", "\"cpu_seconds\":null"},
      {"\"registers\":128", "\"registers\":128.5"},
      {"\"stack\":0", "\"stack\":2147483648"},
      {"\"spill_loads\":4", "\"spill_loads\":true"},
      {"\"entry\":\"attune_other\"", "\"entry\":[]"},

      {"\"resources\":[", "\"resources\":[3,"},
      {"\"resources\":", "\"resources\":{},\"x\":"},
      {"\"warnings\":[", "\"warnings\":[[],"},
      {"\"warnings\":", "\"warnings\":\"\",\"x\":"},
      {"\"cubin_bytes\":5000", "\"cubin_bytes\":5001"},
      {"{\"schema\"", "[{\"schema\""}};
  for (const auto& [from, to] : changes) {
    set_bytes(file, with_head(whole, from, to));
    EXPECT_FALSE(read_entry(dir_, kKey, &entry)) << to;
    EXPECT_TRUE(list_cache(dir_).empty()) << to;
  }
}

TEST_F(Cache, AnotherSchemaIsNotReadAndMadeAnew) {
  ASSERT_EQ(write_entry(dir_, kKey, sample()), "");
  const fs::path file = files().front();
  const std::string whole = bytes_of(file);
  for (const char* schema : {"1", "9"}) {
    set_bytes(file, with_head(whole, "\"schema\":2", std::string("\"schema\":") + schema));
    CacheEntry entry;
    EXPECT_FALSE(read_entry(dir_, kKey, &entry));
    EXPECT_EQ(write_entry(dir_, kKey, sample()), "");
    EXPECT_TRUE(read_entry(dir_, kKey, &entry));
    EXPECT_EQ(entry, sample());
  }
}

std::string mode_of(const std::string& path) {
  struct stat facts = {};
  EXPECT_EQ(stat(path.c_str(), &facts), 0) << path;
  return fmt::format("{:o}", facts.st_mode & 07777);
}

TEST_F(Cache, ItsFolderIsForItsOwnerAlone) {
  const mode_t before = umask(0);
  EXPECT_EQ(write_entry(dir_ + "/new", kKey, sample()), "");
  EXPECT_EQ(write_entry(dir_ + "/slash/", kKey, sample()), "");
  umask(before);
  EXPECT_EQ(mode_of(dir_ + "/new"), "700");
  EXPECT_EQ(mode_of(dir_ + "/slash"), "700");
  for (const auto& entry : fs::directory_iterator(dir_ + "/new"))
    EXPECT_EQ(mode_of(entry.path()), "644");
}

// What others may have written is code of theirs.
TEST_F(Cache, AFolderThatOthersMayWriteIsRefused) {
  CacheEntry entry;
  ASSERT_EQ(write_entry(dir_, kKey, sample()), "");
  for (const mode_t mode : {0777, 0770, 01777, 0702}) {
    ASSERT_EQ(chmod(dir_.c_str(), mode), 0);
    EXPECT_FALSE(read_entry(dir_, kKey, &entry));
    EXPECT_TRUE(list_cache(dir_).empty());
    for (const std::string& why :
         {why_refused(dir_), why_not_writable(dir_), write_entry(dir_, kOther, sample())}) {
      EXPECT_NE(why.find(dir_), std::string::npos) << why;
      EXPECT_NE(why.find("chmod go-w"), std::string::npos) << why;
      EXPECT_NE(why.find("ATTUNE_CACHE_DIR"), std::string::npos) << why;
    }
    EXPECT_EQ(files().size(), 1u);
  }
  for (const mode_t mode : {0700, 0755, 0750}) {
    ASSERT_EQ(chmod(dir_.c_str(), mode), 0);
    EXPECT_EQ(why_refused(dir_), "");
    EXPECT_TRUE(read_entry(dir_, kKey, &entry));
  }
  EXPECT_EQ(why_refused(dir_ + "/not/there"), "");
}

TEST_F(Cache, AFileThatOthersMayWriteIsMadeAnew) {
  CacheEntry entry;
  ASSERT_EQ(write_entry(dir_, kKey, sample(100, 'a')), "");
  const fs::path file = files().front();
  for (const mode_t mode : {0666, 0664, 0646}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    EXPECT_FALSE(read_entry(dir_, kKey, &entry));
    EXPECT_TRUE(list_cache(dir_).empty());
    EXPECT_EQ(write_entry(dir_, kKey, sample(100, 'b')), "");
    EXPECT_TRUE(read_entry(dir_, kKey, &entry));
    EXPECT_EQ(entry, sample(100, 'b'));
    EXPECT_EQ(mode_of(file), "644");
  }
}

// Only root can give files away.
TEST_F(Cache, WhatAnotherUserOwnsIsNotUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr uid_t kNobody = 65534;
  CacheEntry entry;
  ASSERT_EQ(write_entry(dir_, kKey, sample()), "");
  ASSERT_EQ(chown(files().front().c_str(), kNobody, kNobody), 0);
  EXPECT_FALSE(read_entry(dir_, kKey, &entry));
  EXPECT_EQ(write_entry(dir_, kKey, sample()), "");
  EXPECT_TRUE(read_entry(dir_, kKey, &entry));

  ASSERT_EQ(chown(dir_.c_str(), kNobody, kNobody), 0);
  EXPECT_FALSE(read_entry(dir_, kKey, &entry));
  const std::string why = write_entry(dir_, kOther, sample());
  EXPECT_NE(why.find("belongs to user 65534, and this process is of user 0"), std::string::npos)
      << why;
  EXPECT_NE(why.find("ATTUNE_CACHE_DIR"), std::string::npos) << why;
}

// The kernels that root keeps for all users of a machine.
TEST_F(Cache, ForkedWhatRootOwnsIsUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_EQ(write_entry(dir_, kKey, sample()), "");
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  const int status = in_child([&] {
    ASSERT_EQ(setuid(65534), 0);
    CacheEntry entry;
    EXPECT_TRUE(read_entry(dir_, kKey, &entry));
    EXPECT_NE(write_entry(dir_, kOther, sample()).find("Permission denied"), std::string::npos);
  });
  EXPECT_EQ(status, 0);
}

// A FIFO has no writer, and a link may lead anywhere.
TEST_F(Cache, OnlyPlainFilesAreRead) {
  CacheEntry entry;
  ASSERT_EQ(write_entry(dir_, kKey, sample()), "");
  const fs::path file = files().front(), other = fs::path(dir_) / (hex(kOther) + ".kernel");
  fs::rename(file, dir_ + "/elsewhere");
  fs::create_symlink("elsewhere", file);
  EXPECT_FALSE(read_entry(dir_, kKey, &entry));
  ASSERT_EQ(mkfifo(other.c_str(), 0600), 0);
  EXPECT_FALSE(read_entry(dir_, kOther, &entry));
  EXPECT_TRUE(list_cache(dir_).empty());
  const Cleared cleared = clear_cache(dir_);
  EXPECT_EQ(cleared.removed.entries, 0);
  EXPECT_EQ(cleared.others, 2);
  EXPECT_EQ(write_entry(dir_, kOther, sample()), "");  // takes the FIFO's place
  EXPECT_TRUE(read_entry(dir_, kOther, &entry));
}

// The path goes through a file: no folder can be made there, not even by root.
TEST_F(Cache, AFolderThatCannotBeMadeIsSaid) {
  set_bytes(dir_ + "/file", "x");
  const std::string why = write_entry(dir_ + "/file/cache", kKey, sample());
  EXPECT_NE(why.find("/file/cache"), std::string::npos) << why;
  CacheEntry entry;
  EXPECT_FALSE(read_entry(dir_ + "/file/cache", kKey, &entry));
  EXPECT_TRUE(list_cache(dir_ + "/file/cache").empty());
  EXPECT_NE(why_not_writable(dir_ + "/file/cache").find("/file"), std::string::npos);
  EXPECT_EQ(why_not_writable(dir_ + "/not/yet/there"), "");
  EXPECT_NE(why_not_writable(""), "");
}

// A limit on the size of files fails in the middle of a write, as a full disk does.
TEST_F(Cache, ForkedFullDiskLeavesNothingBehind) {
  const int status = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2000, 2000};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_NE(write_entry(dir_, kKey, sample(100'000)).find("File too large"), std::string::npos);
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(files().empty());
}

TEST_F(Cache, ForkedWritersOfOneEntryAllSucceed) {
  constexpr int kWriters = 12;
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kWriters; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      close(gate[1]);
      char byte;
      while (read(gate[0], &byte, 1) > 0) {
      }  // all start when the parent closes the gate
      const bool written = write_entry(dir_, kKey, sample(200'000)).empty();
      CacheEntry entry;
      _exit(written && read_entry(dir_, kKey, &entry) && entry == sample(200'000) ? 0 : 1);
    }
    children.push_back(child);
  }
  close(gate[0]);
  close(gate[1]);
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(Cache, ForkedWriterKilledInTheMiddleSpoilsNothing) {
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (int i = 0;; ++i) {
        fs::remove(fs::path(dir_) / (hex(kKey) + ".kernel"));
        if (!write_entry(dir_, kKey, sample(300'000)).empty()) _exit(1);
      }
    }
    usleep(useconds_t(2000 + 700 * round));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    // What is there under an entry's name is whole.
    for (const fs::path& file : files())
      if (file.extension() == ".kernel") {
        CacheEntry entry;
        EXPECT_TRUE(read_entry(dir_, kKey, &entry));
        EXPECT_EQ(entry, sample(300'000));
      }
  }
  EXPECT_EQ(write_entry(dir_, kKey, sample(300'000)), "");
}

void age(const fs::path& path, int seconds) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
}

TEST_F(Cache, ListsWholeEntriesTheNewestFirst) {
  ASSERT_EQ(write_entry(dir_, kKey, sample(1000)), "");
  age(files().front(), 500);
  ASSERT_EQ(write_entry(dir_, kOther, sample(2000)), "");
  set_bytes(fs::path(dir_) / (hex(sha256("third")) + ".kernel"), "damaged");
  set_bytes(fs::path(dir_) / "notes.txt", "not ours");
  const std::vector<CacheItem> items = list_cache(dir_);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].key, hex(kOther));
  EXPECT_EQ(items[1].key, hex(kKey));
  EXPECT_GE(items[1].age_seconds, 499);
  EXPECT_GT(items[0].bytes, 2000);
  EXPECT_EQ(items[0].entry.id, sample().id);
  EXPECT_EQ(items[0].entry.resources, sample().resources);
  EXPECT_EQ(items[0].entry.cubin, "");
  EXPECT_EQ(cache_size(dir_).entries, 3);  // by names
}

TEST_F(Cache, ClearTakesWhatIsOursAndNothingElse) {
  ASSERT_EQ(write_entry(dir_, kKey, sample(1000)), "");
  set_bytes(fs::path(dir_) / (hex(kOther) + ".kernel"), "ATTUNE-KERNEL\ndamaged");
  set_bytes(fs::path(dir_) / (hex(sha256("empty")) + ".kernel"), "");
  set_bytes(fs::path(dir_) / ".tmp-1-2-3", "ATTUNE-K");  // left by a crash
  age(fs::path(dir_) / ".tmp-1-2-3", 60);
  set_bytes(fs::path(dir_) / ".tmp-4-5-6", "ATTUNE-K");  // being written
  const char* others[] = {"notes.txt", "linux.kernel", ".tmp-of-another-program"};
  for (const char* name : others) {
    set_bytes(fs::path(dir_) / name, "not ours");
    age(fs::path(dir_) / name, 60);
  }
  const Cleared cleared = clear_cache(dir_);
  EXPECT_EQ(cleared.removed.entries, 3);
  EXPECT_GT(cleared.removed.bytes, 1000);
  EXPECT_EQ(cleared.kept, 0);
  EXPECT_EQ(cleared.others, 1);
  EXPECT_EQ(files().size(), 4u);
  for (const char* name : others) EXPECT_TRUE(fs::exists(fs::path(dir_) / name)) << name;
  EXPECT_TRUE(fs::exists(fs::path(dir_) / ".tmp-4-5-6"));
}

TEST_F(Cache, AWriterSweepsWhatCrashedOnesLeft) {
  set_bytes(fs::path(dir_) / ".tmp-1-2-3", "ATTUNE-KERNEL\nold");
  age(fs::path(dir_) / ".tmp-1-2-3", 2 * 3600);
  set_bytes(fs::path(dir_) / ".tmp-4-5-6", "ATTUNE-KERNEL\nyoung");
  set_bytes(fs::path(dir_) / ".tmp-of-another-program", "not ours");
  age(fs::path(dir_) / ".tmp-of-another-program", 2 * 3600);
  ASSERT_EQ(write_entry(dir_, kKey, sample()), "");
  EXPECT_FALSE(fs::exists(fs::path(dir_) / ".tmp-1-2-3"));
  EXPECT_TRUE(fs::exists(fs::path(dir_) / ".tmp-of-another-program"));
  EXPECT_TRUE(fs::exists(fs::path(dir_) / ".tmp-4-5-6"));
}

TEST_F(Cache, TheKeptOneIsTrimmedFromItsOldEnd) {
  const Digest keys[] = {sha256("old"), sha256("older"), sha256("new")};
  const int ages[] = {100, 200, 10};
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(write_entry(dir_, keys[i], sample(10'000)), "");
    age(fs::path(dir_) / (hex(keys[i]) + ".kernel"), ages[i]);
  }
  trim_cache(dir_, 100'000);
  EXPECT_EQ(files().size(), 3u);
  trim_cache(dir_, 25'000);
  EXPECT_EQ(files().size(), 2u);
  EXPECT_FALSE(fs::exists(fs::path(dir_) / (hex(keys[1]) + ".kernel")));
  trim_cache(dir_ + "/none", 0);
}

// The folder comes from the environment.
TEST(CacheDir, AttuneThenXdgThenHome) {
  const auto with = [](const char* ours, const char* xdg, const char* home) {
    const std::pair<const char*, const char*> values[] = {
        {"ATTUNE_CACHE_DIR", ours}, {"XDG_CACHE_HOME", xdg}, {"HOME", home}};
    std::vector<std::pair<const char*, std::string>> saved;
    std::vector<const char*> unset;
    for (const auto& [name, value] : values) {
      const char* old = getenv(name);
      if (old != nullptr)
        saved.emplace_back(name, old);
      else
        unset.push_back(name);
      value != nullptr ? setenv(name, value, 1) : unsetenv(name);
    }
    const std::string dir = cache_dir();
    for (const auto& [name, value] : saved) setenv(name, value.c_str(), 1);
    for (const char* name : unset) unsetenv(name);
    return dir;
  };
  EXPECT_EQ(with("/ours", "/xdg", "/home/me"), "/ours");
  EXPECT_EQ(with("", "/xdg", "/home/me"), "/xdg/attune");
  EXPECT_EQ(with(nullptr, "relative", "/home/me"), "/home/me/.cache/attune");
  EXPECT_EQ(with(nullptr, nullptr, "/home/me"), "/home/me/.cache/attune");
  EXPECT_EQ(with(nullptr, nullptr, nullptr), "");
}

}  // namespace
}  // namespace attune::jit
