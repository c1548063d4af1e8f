// What tests need that compile: a compiler, or a word why they were skipped; and a cache of their
// own, empty or kept.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "src/jit/cache.hpp"
#include "src/jit/nvrtc.hpp"

#define ATTUNE_NEEDS_NVRTC() \
  if (!::attune::jit::nvrtc().problem.empty()) GTEST_SKIP() << ::attune::jit::nvrtc().problem

namespace attune::jit {

// ATTUNE_CACHE_DIR for as long as it lives.
class TemporaryCache {
 public:
  TemporaryCache() {
    char name[] = "/tmp/attune-kernels-test-XXXXXX";
    if (mkdtemp(name) != nullptr) made_ = name;
    use(made_);
  }
  explicit TemporaryCache(const std::string& dir) { use(dir); }
  ~TemporaryCache() {
    if (had_)
      setenv("ATTUNE_CACHE_DIR", before_.c_str(), 1);
    else
      unsetenv("ATTUNE_CACHE_DIR");
    if (!made_.empty()) std::filesystem::remove_all(made_);
  }
  TemporaryCache(const TemporaryCache&) = delete;
  TemporaryCache& operator=(const TemporaryCache&) = delete;

 private:
  void use(const std::string& dir) {
    const char* before = std::getenv("ATTUNE_CACHE_DIR");
    had_ = before != nullptr;
    if (had_) before_ = before;
    setenv("ATTUNE_CACHE_DIR", dir.c_str(), 1);
  }

  std::string made_, before_;
  bool had_ = false;
};

// The folder in which tests keep kernels from one build to the next, and for all clones of the
// tree: beside the user's own. Empty where there is none.
inline std::string kept_cache_dir() {
  const std::string dir = cache_dir();
  return dir.empty() ? "" : dir + "-tests";
}

// Removes the oldest entries until the others have at most `bytes`.
inline void trim_cache(const std::string& dir, int64_t bytes) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".kernel")
      files.emplace_back(fs::last_write_time(it->path(), error), it->path());
  std::sort(files.rbegin(), files.rend());
  for (const auto& [time, path] : files) {
    const uintmax_t size = fs::file_size(path, error);
    if (!error) bytes -= int64_t(size);  // another process may have removed it
    if (bytes < 0) fs::remove(path, error);
  }
}

}  // namespace attune::jit
