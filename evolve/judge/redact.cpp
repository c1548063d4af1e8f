#include "evolve/judge/redact.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

namespace attune::evolve {
namespace {

constexpr size_t kShortest = 8;  // letters of a secret; shorter ones stand in any text
constexpr std::string_view kEnds[] = {"_KEY", "_TOKEN", "_SECRET", "PASSWORD"};

// How keys begin, and how many letters follow at least.
struct Form {
  std::string_view begin;
  size_t least;
};
constexpr Form kForms[] = {{"sk-", 16},         {"ghp_", 20}, {"gho_", 20},   {"ghu_", 20},
                           {"ghs_", 20},        {"ghr_", 20}, {"AKIA", 16},   {"ASIA", 16},
                           {"github_pat_", 20}, {"hf_", 20},  {"glpat-", 16}, {"xoxb-", 16},
                           {"xoxp-", 16},       {"AIza", 30}, {"Bearer ", 8}, {"bearer ", 8}};

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

bool of_key(char c) {
  return is_alnum(c) || std::string_view("-_.~+/=").find(c) != std::string_view::npos;
}

bool is_secret_name(std::string name) {
  for (char& c : name) c = char(std::toupper(static_cast<unsigned char>(c)));
  return std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](std::string_view end) { return name.ends_with(end); });
}

// Values and names of the environment, the longest first: one may be a part of another.
std::vector<std::pair<std::string, std::string>> secrets() {
  std::vector<std::pair<std::string, std::string>> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || text.size() - equals - 1 < kShortest) continue;
    std::string name(text.substr(0, equals));
    if (is_secret_name(name)) all.emplace_back(text.substr(equals + 1), std::move(name));
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  return all;
}

// Letters of a key that begins here; 0: none does. Words have no digits.
size_t key_at(std::string_view text, size_t at) {
  if (at > 0 && is_alnum(text[at - 1])) return 0;
  for (const Form& form : kForms) {
    if (!text.substr(at).starts_with(form.begin)) continue;
    size_t end = at + form.begin.size();
    while (end < text.size() && of_key(text[end])) ++end;
    const std::string_view rest = text.substr(at + form.begin.size(), end - at - form.begin.size());
    if (rest.size() >= form.least && std::any_of(rest.begin(), rest.end(), is_digit))
      return end - at;
  }
  return 0;
}

}  // namespace

std::string redacted(std::string text) {
  for (const auto& [value, name] : secrets())
    for (size_t at = text.find(value); at != std::string::npos;
         at = text.find(value, at + name.size() + 2))
      text.replace(at, value.size(), "[" + name + "]");
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t key = key_at(text, at);
    if (key > 0)
      out += "[redacted]";
    else
      out += text[at];
    at += std::max<size_t>(key, 1);
  }
  return out;
}

}  // namespace attune::evolve
