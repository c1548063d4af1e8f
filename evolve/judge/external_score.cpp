#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "evolve/judge/external_spec.hpp"
#include "src/json.hpp"

namespace attune::evolve {
namespace {

constexpr double kMostSteps = 300;  // of the scale of differences: exp() of it is a finite number
constexpr size_t kMostRead = 64, kLongestName = 100;
constexpr const char* kScore = "combined_score";

// Small letters; words are joined by "_".
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    const auto letter = static_cast<unsigned char>(c);
    const bool joins = c == ' ' || c == '-' || c == '_';
    if (joins && (plain.empty() || plain.back() == '_')) continue;
    plain += joins ? '_' : char(std::tolower(letter));
  }
  while (plain.ends_with('_')) plain.pop_back();
  return plain;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// A number at the beginning, "nan" and "inf" too. What follows it may be a unit: "x", "%", " ms".
std::optional<double> leading_number(std::string_view text) {
  while (!text.empty() && (text[0] == ' ' || text[0] == '\t' || text[0] == '"' || text[0] == '\''))
    text.remove_prefix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) return INFINITY;
  if (error != std::errc()) return std::nullopt;
  return value;
}

// "name: 1.2" on a line, or "name = 1.2". The name is all words before, without what marks a list.
void read_line(std::string_view line, const std::string& wanted, Metrics* found, bool* exact) {
  for (size_t at = line.find_first_of(":="); at != std::string_view::npos;
       at = line.find_first_of(":=", at + 1)) {
    const std::optional<double> value = leading_number(line.substr(at + 1));
    if (!value) continue;
    std::string_view name = line.substr(0, at);
    while (!name.empty() && !is_word(name.back())) name.remove_suffix(1);
    size_t begin = name.size();
    while (begin > 0 && (is_word(name[begin - 1]) || name[begin - 1] == ' ' ||
                         name[begin - 1] == '-' || name[begin - 1] == '.'))
      --begin;
    const std::string plain = plain_name(name.substr(begin));
    if (plain.empty() || plain.size() > kLongestName) continue;
    const bool whole = plain == wanted;
    // "best speedup: 2" is the speedup too, where no line has that name alone.
    const bool ends = plain.ends_with("_" + wanted) && !wanted.empty();
    if (whole || (ends && !*exact)) (*found)[wanted] = *value;
    *exact = *exact || whole;
    const bool word = std::isdigit(static_cast<unsigned char>(plain[0])) == 0;  // no time of a log
    if (!whole && word && (found->size() < kMostRead || found->contains(plain)))
      (*found)[plain] = *value;
  }
}

void add_numbers(const nlohmann::json& object, Metrics* found) {
  for (const auto& [name, value] : object.items())
    if (value.is_number() && found->size() < kMostRead)
      (*found)[plain_name(name).substr(0, kLongestName)] = value.get<double>();
}

std::optional<Metrics> of_json(const std::string& text) {
  if (!why_not_json(text, kMostJsonDepth).empty()) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(text);
  if (!json.is_object()) return std::nullopt;
  Metrics found;
  if (const auto inside = json.find("metrics"); inside != json.end() && inside->is_object())
    add_numbers(*inside, &found);
  add_numbers(json, &found);
  return found;
}

}  // namespace

std::string reference_of(const ExternalSpec& spec) {
  const auto at = std::find(spec.judge.begin(), spec.judge.end(), "--reference");
  return at == spec.judge.end() || std::next(at) == spec.judge.end()
             ? "the program that the run began with"
             : *std::next(at);
}

void set_start(double score, ExternalSpec* spec) {
  spec->start = score;
  spec->ratio = score > 0;
  spec->scale = score == 0 ? 1 : std::abs(score);
}

std::optional<double> pseudo_time(const ExternalSpec& spec, double score) {
  if (!std::isfinite(score)) return std::nullopt;
  double time = 0;
  if (spec.ratio) {
    if (score <= 0) return std::nullopt;
    time = spec.minimize ? score : 1 / score;
  } else {
    const double better = (spec.minimize ? -1 : 1) * (score - spec.start) / spec.scale;
    time = std::exp(-std::clamp(better, -kMostSteps, kMostSteps));
  }
  if (!std::isfinite(time) || time <= 0) return std::nullopt;
  return time;
}

double score_after(const ExternalSpec& spec, double fitness) {
  const double better = spec.minimize ? -fitness : fitness;
  return spec.ratio ? spec.start * std::exp(better) : spec.start + spec.scale * better;
}

std::string gain_text(const ExternalSpec& spec, double ratio) {
  if (spec.ratio) return fmt::format("{:.4g}x", ratio);
  return fmt::format("{:+.4g}", (spec.minimize ? -1 : 1) * spec.scale * std::log(ratio));
}

std::optional<double> score_of(const ExternalSpec& spec, const Metrics& metrics, std::string* why) {
  const auto refuse = [&](std::string text) {
    *why = std::move(text);
    return std::nullopt;
  };
  const std::string& name = spec.metric.empty() ? std::string(kScore) : spec.metric;
  auto at = metrics.find(name);
  for (auto other = metrics.begin(); at == metrics.end() && other != metrics.end(); ++other)
    if (plain_name(other->first) == plain_name(name)) at = other;
  double score = 0;
  std::string label = name;
  if (at != metrics.end()) {
    score = at->second;
  } else if (!spec.metric.empty()) {
    std::string names;
    for (const auto& [other, value] : metrics) names += (names.empty() ? "" : ", ") + other;
    return refuse(fmt::format("there is no metric {}{}", name,
                              names.empty() ? ", and no other" : "; there are: " + names));
  } else {
    int count = 0;
    for (const auto& [other, value] : metrics) {
      if (std::find(spec.features.begin(), spec.features.end(), other) != spec.features.end())
        continue;
      score += value;
      ++count;
    }
    if (count == 0) return refuse("there is no metric that is a number");
    score /= count;
    label = "the mean of its metrics";
  }
  if (!std::isfinite(score)) return refuse(fmt::format("{} is {}", label, score));
  return score;
}

Metrics metrics_in(const std::string& output, const std::string& wanted) {
  const std::string plain = plain_name(wanted);
  if (const auto json = of_json(output)) return *json;
  Metrics found;
  bool exact = false;
  std::string_view rest = output;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.starts_with('{'))
      if (const auto json = of_json(std::string(line))) {
        for (const auto& [name, value] : *json) found[name] = value;
        exact = exact || json->contains(plain);
        continue;
      }
    read_line(line, plain, &found, &exact);
  }
  if (found.empty()) {  // an object over several lines behind other text
    const size_t open = output.find("\n{"), close = output.rfind('}');
    if (open != std::string::npos && close != std::string::npos && close > open)
      if (const auto json = of_json(output.substr(open + 1, close - open))) return *json;
  }
  return found;
}

std::string scrubbed(const std::string& text, size_t most) {
  std::string clean;
  for (size_t n = 0; n < text.size(); ++n) {
    const auto byte = static_cast<unsigned char>(text[n]);
    const auto next = static_cast<unsigned char>(n + 1 < text.size() ? text[n + 1] : 0);
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F
      ++n;
      continue;
    }
    const bool control = byte < 0x20 ? byte != '\n' && byte != '\t' : byte == 0x7f;
    if (!control) clean += text[n];
  }
  if (clean.size() > most) {
    const size_t half = most / 2;
    clean = fmt::format("{}\n... {} bytes left out ...\n{}", clean.substr(0, half),
                        clean.size() - 2 * half, clean.substr(clean.size() - half));
  }
  // What is no UTF-8 is replaced.
  const std::string quoted =
      nlohmann::json(clean).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(quoted).get<std::string>();
}

}  // namespace attune::evolve
