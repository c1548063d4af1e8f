// What is in a folder. Not by std::filesystem: its iterator allocates in functions that may not
// throw.
#pragma once

#include <dirent.h>

#include <cerrno>
#include <memory>
#include <new>
#include <string>
#include <string_view>

namespace attune::jit {

// visit(name) for all but "." and "..", in any order. A folder that cannot be read has none.
template <class Visit>
void each_name(const std::string& folder, const Visit& visit) {
  struct Close {
    void operator()(DIR* dir) const { closedir(dir); }
  };
  const std::unique_ptr<DIR, Close> dir(opendir(folder.c_str()));
  if (dir == nullptr && errno == ENOMEM) throw std::bad_alloc();
  while (const dirent* entry = dir != nullptr ? readdir(dir.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") visit(name);
  }
}

}  // namespace attune::jit
