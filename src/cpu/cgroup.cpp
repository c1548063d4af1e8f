#include "src/cpu/cgroup.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

namespace attune::cpu {
namespace {

constexpr const char* kMount = "/sys/fs/cgroup";

// Takes the text up to the separator off the front.
std::string_view next_part(std::string_view* text, char separator) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return part;
}

// 0 when the text is no positive number: "max", "-1", nothing.
int64_t positive(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && number > 0 ? number : 0;
}

// Microseconds of processor time in each period; 0: no limit.
int64_t processors(int64_t quota, int64_t period) {
  if (quota == 0 || period == 0) return 0;
  return std::min<int64_t>(quota / period + (quota % period != 0), 1 << 20);
}

// Version 2: "max 100000" or "150000 100000".
int64_t limit_v2(const ReadFile& read, const std::string& folder) {
  const std::string text = read(folder + "/cpu.max");
  std::string_view rest = text;
  const int64_t quota = positive(next_part(&rest, ' '));
  return processors(quota, positive(rest));
}

// Version 1: a file each; a quota of -1 is none.
int64_t limit_v1(const ReadFile& read, const std::string& folder) {
  return processors(positive(read(folder + "/cpu.cfs_quota_us")),
                    positive(read(folder + "/cpu.cfs_period_us")));
}

// The smallest limit of the group at `path` and of all above it: each of them binds. In a container
// the path may be the host's, with nothing of that name below the mount; the mount's root is then
// the container's own group, and is read last.
template <class Limit>
int64_t smallest(const ReadFile& read, const std::string& mount, std::string_view path,
                 const Limit& limit) {
  int64_t least = 0;
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  for (;;) {
    const int64_t here = limit(read, mount + std::string(path));
    if (here != 0) least = least == 0 ? here : std::min(least, here);
    if (path.empty()) return least;
    const size_t slash = path.rfind('/');
    path = path.substr(0, slash == std::string_view::npos ? 0 : slash);
  }
}

bool lists(std::string_view controllers, std::string_view name) {
  while (!controllers.empty())
    if (next_part(&controllers, ',') == name) return true;
  return false;
}

}  // namespace

int quota_processors(const ReadFile& read) {
  // Lines of "hierarchy:controllers:path"; version 2 has hierarchy 0 and no controllers.
  const std::string groups = read("/proc/self/cgroup");
  std::string_view lines = groups;
  int64_t least = 0;
  while (!lines.empty()) {
    std::string_view line = next_part(&lines, '\n');
    const std::string_view hierarchy = next_part(&line, ':');
    const std::string_view controllers = next_part(&line, ':');
    int64_t here = 0;
    if (hierarchy == "0" && controllers.empty()) {
      here = smallest(read, kMount, line, limit_v2);
    } else if (lists(controllers, "cpu")) {
      // The mount has the controllers' names in this order, or is a link named "cpu" to it.
      here = smallest(read, std::string(kMount) + "/" + std::string(controllers), line, limit_v1);
      if (here == 0) here = smallest(read, std::string(kMount) + "/cpu", line, limit_v1);
    }
    if (here != 0) least = least == 0 ? here : std::min(least, here);
  }
  return int(least);
}

}  // namespace attune::cpu
