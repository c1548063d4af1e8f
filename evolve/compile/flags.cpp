#include "evolve/compile/flags.hpp"

#include <algorithm>
#include <sstream>

namespace attune::evolve {
namespace {

constexpr std::string_view kComment = "// attune-flags:";

// They change code alone: none reads or writes a file. -ffast-math is not there, because gcc then
// links code that changes the floating-point mode of the process.
const char* const kAllowed[] = {
    "-O1",
    "-O2",
    "-O3",
    "-fassociative-math",
    "-ffinite-math-only",
    "-fno-math-errno",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-freciprocal-math",
    "-funroll-loops",
    "-fno-tree-vectorize",
    "-mprefer-vector-width=128",
    "-mprefer-vector-width=256",
    "-mprefer-vector-width=512",
};

// Those of nvcc: arithmetic of the kernels, and registers. Results are checked all the same.
const char* const kAllowedCuda[] = {
    "-use_fast_math",   "-ftz=true",
    "-ftz=false",       "-prec-div=true",
    "-prec-div=false",  "-prec-sqrt=true",
    "-prec-sqrt=false", "-fmad=true",
    "-fmad=false",      "-extra-device-vectorization",
};

// -maxrregcount=N, of a number that ptxas knows.
bool is_register_limit(std::string_view flag) {
  constexpr std::string_view kName = "-maxrregcount=";
  if (!flag.starts_with(kName)) return false;
  flag.remove_prefix(kName.size());
  if (flag.size() < 2 || flag.size() > 3 || flag[0] == '0') return false;
  int registers = 0;
  for (const char c : flag) {
    if (c < '0' || c > '9') return false;
    registers = 10 * registers + (c - '0');
  }
  return registers >= 16 && registers <= 255;
}

// -DNAME=value, both of plain characters.
bool is_macro(std::string_view flag) {
  if (!flag.starts_with("-D")) return false;
  flag.remove_prefix(2);
  const auto plain = [](unsigned char c) { return isalnum(c) != 0 || c == '_'; };
  size_t at = 0;
  while (at < flag.size() && plain(static_cast<unsigned char>(flag[at]))) ++at;
  if (at == 0 || isdigit(static_cast<unsigned char>(flag[0])) != 0) return false;
  if (at == flag.size()) return true;
  return flag[at] == '=' && std::all_of(flag.begin() + int(at) + 1, flag.end(), [&](char c) {
           return plain(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '+';
         });
}

}  // namespace

bool is_allowed_flag(const std::string& flag, Language language) {
  const auto among = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), flag) != std::end(list);
  };
  return language == Language::cpp ? among(kAllowed)
                                   : among(kAllowedCuda) || is_register_limit(flag);
}

std::vector<FlagChoice> host_flag_choices() {
  const std::string errno_and_traps = "-fno-math-errno -fno-trapping-math",
                    any_order =
                        errno_and_traps + " -fno-signed-zeros -fassociative-math -freciprocal-math";
  std::vector<FlagChoice> choices = {
      {"optimise", "the level of optimisation", {{"O3", ""}, {"O2", "-O2"}}},
      {"math",
       "what the compiler may assume of arithmetic; results are checked all the same",
       {{"strict", ""},
        {"no-traps", errno_and_traps},
        {"any-order", any_order},
        {"finite", any_order + " -ffinite-math-only"}}},
      {"unroll", "unroll every loop", {{"auto", ""}, {"all", "-funroll-loops"}}},
  };
#ifdef __x86_64__
  choices.push_back(
      {"width",
       "bits of a vector",
       {{"auto", ""}, {"256", "-mprefer-vector-width=256"}, {"512", "-mprefer-vector-width=512"}}});
#endif
  return choices;
}

std::string flags_comment(const std::string& flags) {
  return flags.empty() ? "" : std::string(kComment) + " " + flags + "\n";
}

std::string without_flags_comment(const std::string& text) {
  const size_t at = text.rfind(kComment);
  const bool last = at != std::string::npos && (at == 0 || text[at - 1] == '\n') &&
                    text.find('\n', at) == text.size() - 1;
  return last ? text.substr(0, at) : text;
}

std::vector<std::string> flags_of(const std::string& text, Language language,
                                  std::string* refused) {
  std::vector<std::string> flags;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kComment)) continue;
    std::istringstream words(line.substr(kComment.size()));
    for (std::string flag; words >> flag;) {
      const bool allowed = is_macro(flag) || is_allowed_flag(flag, language);
      if (!allowed && refused->empty()) *refused = flag;
      flags.push_back(std::move(flag));
    }
  }
  return flags;
}

}  // namespace attune::evolve
