#include "evolve/judge/final.hpp"

#include <algorithm>

#include "evolve/judge/rule.hpp"
#include "evolve/standing.hpp"

namespace attune::evolve {
namespace {

constexpr int kFinalists = 3;  // beside the incumbent and the library's choice

const std::string& of_shape(const std::vector<std::string>& library, size_t shape) {
  return library[std::min(shape, library.size() - 1)];
}

bool contains(const std::vector<std::string>& ids, const std::string& id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool better(const std::optional<Interval>& ratio, double margin) {
  return ratio && ratio->low > 1 && ratio->mid > 1 + margin;
}

Json ratio_json(const std::optional<Interval>& ratio) { return ratio ? to_json(*ratio) : Json(); }

}  // namespace

std::optional<Interval> ratio_over(const RunMeta& meta, const Comparison& c,
                                   const std::vector<int>& bases, int which, int shape) {
  const auto rounds_of = [&](int candidate, size_t s) -> const std::vector<double>* {
    if (candidate < 0 || size_t(candidate) >= c.seconds.size()) return nullptr;
    const auto& shapes = c.seconds[size_t(candidate)];
    return s < shapes.size() && !shapes[s].empty() ? &shapes[s] : nullptr;
  };
  std::vector<Pairs> pairs;
  for (size_t s = 0; s < meta.shapes.size() && s < bases.size(); ++s) {
    if (shape >= 0 && size_t(shape) != s) continue;
    const std::vector<double>*a = rounds_of(which, s), *b = rounds_of(bases[s], s);
    if (a == nullptr || b == nullptr) return std::nullopt;
    const auto rounds = std::ptrdiff_t(std::min(a->size(), b->size()));
    pairs.push_back({{a->begin(), a->begin() + rounds},
                     {b->begin(), b->begin() + rounds},
                     shape >= 0 ? 1 : meta.shapes[s].weight,
                     c.sitting});
  }
  if (pairs.empty()) return std::nullopt;
  return combined_ratio(pairs, kConfidence);
}

int place_of(const Comparison& c, const std::string& id) {
  for (size_t n = 0; n < c.candidates.size(); ++n)
    if (c.candidates[n].id == id) return int(n);
  return -1;
}

bool measured(const Comparison& c, int which) {
  if (which < 0 || size_t(which) >= c.verdicts.size() || size_t(which) >= c.seconds.size())
    return false;
  const auto& shapes = c.seconds[size_t(which)];
  return c.verdicts[size_t(which)].ok() &&
         std::none_of(shapes.begin(), shapes.end(), [](const auto& s) { return s.empty(); });
}

std::vector<Candidate> finalists_of(const std::vector<Record>& records, const Candidate& incumbent,
                                    const std::vector<std::string>& library) {
  std::vector<const Record*> ranked;
  for (const Record& r : records)
    if (r.outcome.ok && (r.evaluation.stage == Stage::measure || r.proposal.n == 0))
      ranked.push_back(&r);
  std::stable_sort(ranked.begin(), ranked.end(), [](const Record* a, const Record* b) {
    return a->outcome.fitness > b->outcome.fitness;
  });
  std::vector<Candidate> finalists{incumbent};
  const auto add = [&](const Candidate& c) {
    const bool there = std::any_of(finalists.begin(), finalists.end(),
                                   [&](const Candidate& f) { return f.id == c.id; });
    if (!there) finalists.push_back(c);
    return !there;
  };
  for (const std::string& id : library) add(candidate_named(records, id));
  for (size_t n = 0, others = 0; n < ranked.size() && others < size_t(kFinalists); ++n) {
    const Candidate& c = ranked[n]->candidate;
    others += add(c) || c.id == incumbent.id;
  }
  return finalists;
}

std::vector<Candidate> challengers_of(const std::vector<Candidate>& finalists,
                                      const std::vector<std::string>& library) {
  const bool one =
      std::all_of(library.begin(), library.end(), [&](const auto& id) { return id == library[0]; });
  std::vector<Candidate> others;
  for (const Candidate& f : finalists)
    if (!one || !contains(library, f.id)) others.push_back(f);
  return others.empty() ? finalists : others;
}

std::string fastest_of(const RunMeta& meta, const Comparison& finalists,
                       const std::vector<Candidate>& challengers) {
  Comparison among;
  among.sitting = finalists.sitting;
  for (const Candidate& c : challengers) {
    const int at = place_of(finalists, c.id);
    if (!measured(finalists, at)) continue;
    among.candidates.push_back(c);
    among.verdicts.push_back(finalists.verdicts[size_t(at)]);
    among.seconds.push_back(finalists.seconds[size_t(at)]);
  }
  if (among.candidates.empty()) return challengers[0].id;
  return among.candidates[winner_of(among, meta.shapes, {0})].id;
}

Decision decide(const RunMeta& meta, const Comparison& final, const std::string& challenger,
                const std::vector<std::string>& library, double margin) {
  Decision d;
  d.challenger = challenger;
  d.margin = margin;
  const int which = place_of(final, challenger);
  const std::vector<int> start(meta.shapes.size(), 0);
  std::vector<int> bases;
  bool known = true;  // how fast the library's choice is
  for (size_t s = 0; s < meta.shapes.size(); ++s) {
    bases.push_back(place_of(final, of_shape(library, s)));
    known = known && measured(final, bases.back());
  }
  if (measured(final, which)) {
    if (measured(final, 0)) d.over_start = ratio_over(meta, final, start, which);
    if (known) d.over_library = ratio_over(meta, final, bases, which);
    d.stands = known && !better(d.over_library, margin);
  } else {
    d.stands = true;
  }
  d.best = d.stands ? library[0] : challenger;
  for (size_t s = 0; s < meta.shapes.size(); ++s) {
    Decision::Shape shape{meta.shapes[s].name, of_shape(library, s), {}, false};
    if (d.over_library) shape.gain = ratio_over(meta, final, bases, which, int(s));
    shape.promotes = !d.stands && shape.over != challenger && better(shape.gain, margin);
    d.shapes.push_back(std::move(shape));
  }
  return d;
}

Json to_json(const Decision& d) {
  Json shapes = Json::array();
  for (const Decision::Shape& s : d.shapes)
    shapes.push_back({{"shape", s.name},
                      {"over", s.over},
                      {"gain", ratio_json(s.gain)},
                      {"promotes", s.promotes}});
  return {{"best", d.best},
          {"challenger", d.challenger},
          {"library_stands", d.stands},
          {"margin", d.margin},
          {"over_start", ratio_json(d.over_start)},
          {"over_library", ratio_json(d.over_library)},
          {"shapes", shapes}};
}

std::optional<Decision> decision_of(const RunMeta& meta, const std::vector<Record>& records,
                                    const std::optional<Comparison>& finalists,
                                    const std::optional<Comparison>& final,
                                    const std::optional<Noise>& noise, const Space& space) {
  if (!final || final->candidates.empty() || meta.library.empty()) return std::nullopt;
  Standing standing;
  for (const Record& r : records) standing.restore(r);
  if (!standing.has_incumbent()) return std::nullopt;
  const std::vector<std::string> library = library_ids(space);
  const std::vector<Candidate> challengers =
      challengers_of(finalists_of(records, standing.incumbent(), library), library);
  const std::string challenger =
      finalists ? fastest_of(meta, *finalists, challengers) : challengers[0].id;
  return decide(meta, *final, challenger, library, noise ? noise->margin : 0);
}

Candidate candidate_named(const std::vector<Record>& records, const std::string& id) {
  for (const Record& r : records)
    if (r.candidate.id == id) return r.candidate;
  return {id, id, ""};
}

std::vector<std::string> shown_library(const RunMeta& meta, const Decision& decision) {
  std::vector<std::string> ids = meta.ceiling;
  if (!meta.program)
    for (const Decision::Shape& s : decision.shapes) ids.push_back(s.over);
  return ids;
}

std::vector<std::string> library_ids(const Space& space) {
  std::vector<std::string> ids;
  for (const Genome& choice : space.library_choices()) ids.push_back(space.print(choice));
  return ids;
}

}  // namespace attune::evolve
