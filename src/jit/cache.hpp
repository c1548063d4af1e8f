// The kernels on disk: one file an entry, named by its content, published whole or not at all. Any
// number of processes may use one folder at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/jit/nvrtc.hpp"
#include "src/jit/sha256.hpp"

namespace attune::jit {

struct CacheEntry {
  std::string id;      // of the plan that it was first compiled for
  std::string arch;    // "sm_90a"
  double seconds = 0;  // that the compiler took
  double cpu_seconds = 0;
  std::vector<Resources> resources;
  std::vector<std::string> warnings;  // of the compiler
  std::string cubin;

  bool operator==(const CacheEntry&) const = default;
};

// Where this process keeps its kernels: ATTUNE_CACHE_DIR, else $XDG_CACHE_HOME/attune, else
// ~/.cache/attune. Empty when none of them is known.
std::string cache_dir();

// Why nothing is read from the folder or written into it, and what to do; empty: it may be used. A
// kernel is code that runs with this process's rights, so the folder must belong to this process's
// user or to root, and nobody else may write into it. One that is not there yet is not refused.
std::string why_refused(const std::string& dir);

// Makes the folder, for its owner alone, and those above it. 0, or errno.
int make_cache_dir(const std::string& dir);

// False when there is no entry of this key, or one that is damaged, of another schema or of another
// user: the caller then makes it anew.
bool read_entry(const std::string& dir, const Digest& key, CacheEntry* entry);

// Empty, or why it could not be written. An entry that is already there stays.
std::string write_entry(const std::string& dir, const Digest& key, const CacheEntry& entry);

// Empty, or why the folder is refused or could not be written: for those who ask before a compile
// does.
std::string why_not_writable(const std::string& dir);

struct CacheItem {
  std::string path;
  std::string key;    // the beginning of the file's name is enough to tell entries apart
  CacheEntry entry;   // without the cubin
  int64_t bytes = 0;  // of the file
  int64_t age_seconds = 0;
};

// The whole entries, the newest first; none of a folder that is refused.
std::vector<CacheItem> list_cache(const std::string& dir);

struct CacheSize {
  int64_t entries = 0, bytes = 0;
};
CacheSize cache_size(const std::string& dir);  // by names alone: quick

// Removes entries, damaged ones too, and what writers that were killed left behind. A file with the
// name of an entry that does not begin as one is somebody else's, and stays.
struct Cleared {
  CacheSize removed;
  int64_t kept = 0;    // entries that could not be removed
  int64_t others = 0;  // files that only have the name of one
};
Cleared clear_cache(const std::string& dir);

// The first thing that went wrong with the disk cache in this process; empty when nothing did.
// Kernels are then compiled all the same, and live as long as the process.
std::string cache_warning();
void warn_cache(const std::string& text);

}  // namespace attune::jit
