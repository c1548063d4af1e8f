#include "evolve/report/report.hpp"

#include <fmt/format.h>

#include "evolve/propose/tally.hpp"
#include "evolve/report/report_view.hpp"
#include "evolve/store/files.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

std::string text_of(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// What proposers were asked, without the questions: those are in run.db.
Status add_proposers(const Store& store, const Contents& run, Json* evidence) {
  Exchanges exchanges;
  ATTUNE_TRY(read_exchanges(store, &exchanges));
  if (exchanges.all.empty()) return {};
  Json tallies = Json::array(), all = Json::array();
  for (const Tally& t : tallies_of(exchanges, run.records)) tallies.push_back(to_json(t));
  std::map<int64_t, int64_t> proposals;
  for (const auto& [n, learned] : exchanges.used)
    if (n < int64_t(run.records.size())) proposals[learned.k] = n;
  for (const Exchange& e : exchanges.all) {
    Json json = to_json(e);
    json.erase("messages");
    const auto refused = exchanges.refused.find(e.k);
    const auto used = proposals.find(e.k);
    json["outcome"] = refused != exchanges.refused.end() ? refused->second.verdict
                      : used != proposals.end()          ? "applied"
                      : !e.error.empty()                 ? "failed"
                                                         : "not_used";
    json["why"] = refused != exchanges.refused.end() ? refused->second.why : "";
    json["proposal"] = used != proposals.end() ? Json(used->second) : Json();
    all.push_back(std::move(json));
  }
  const auto settings = run.values.find("proposers");
  (*evidence)["proposers"] = {
      {"settings", settings == run.values.end() ? Json() : settings->second}, {"tallies", tallies}};
  (*evidence)["exchanges"] = std::move(all);
  return {};
}

Status collect(const Store& store, Json* evidence) {
  Contents run;
  ATTUNE_TRY(store.contents(&run));
  Json e{{"schema", kSchema}, {"chain", to_json(run.chain)}, {"meta", to_json(store.meta())}};
  for (const char* name :
       {"noise", "final", "finalists", "decision", "best", "operators", "elites"})
    if (const auto value = run.values.find(name); value != run.values.end())
      e[name] = std::move(value->second);
  ATTUNE_TRY(add_proposers(store, run, &e));
  Json& candidates = e["candidates"] = Json::array();
  for (const Record& r : run.records) candidates.push_back(to_json(r));
  *evidence = std::move(e);
  return {};
}

// The names behind the numbers of a genome, so that the file can be read without us.
Json space_json(const Space& space) {
  Json families = Json::array(), axes = Json::array();
  for (const Family& f : space.families()) {
    Json genes = Json::array();
    for (const Gene& g : f.genes)
      genes.push_back({{"name", g.name},
                       {"meaning", g.meaning},
                       {"level", level_name(g.level)},
                       {"values", g.values}});
    families.push_back({{"name", f.name}, {"meaning", f.meaning}, {"genes", genes}});
  }
  for (const Axis& a : space.axes()) axes.push_back({{"name", a.name}, {"steps", a.steps}});
  return {{"families", families}, {"axes", axes}};
}

// A line for each part and each candidate: as small as can be, and still fit for grep and diff.
std::string in_lines(const Json& evidence) {
  std::string text = "{";
  for (const auto& [name, value] : evidence.items()) {
    text += fmt::format("{}\n{}: ", text.size() > 1 ? "," : "", text_of(name));
    if (name != "candidates" && name != "exchanges") {
      text += text_of(value);
      continue;
    }
    text += "[";
    for (size_t i = 0; i < value.size(); ++i)
      text += fmt::format("{}\n{}", i > 0 ? "," : "", text_of(value[i]));
    text += "]";
  }
  return text + "\n}\n";
}

}  // namespace

Json evidence_of(const Store& store) {
  Json evidence;
  const Status status = collect(store, &evidence);
  return status.ok() ? evidence : Json{{"error", status.message}};
}

Status write_report(const Store& store, const Space& space) try {
  Json evidence;
  ATTUNE_TRY(collect(store, &evidence));
  evidence["space"] = space_json(space);
  // A part that is not as it should be is an error, not a page.
  evidence["result"] = gain_text(view_of(evidence, space));
  const std::string& folder = store.folder();
  ATTUNE_TRY(write_file(folder + "/evidence.json", in_lines(evidence)));
  ATTUNE_TRY(write_file(folder + "/report.html", report_html(evidence, space)));
  const Json info = best_info(evidence, space);
  if (info.is_null()) return {};  // nothing passed: there is no best
  ATTUNE_TRY(make_folder(folder + "/best"));
  ATTUNE_TRY(write_file(folder + "/best/" + best_program_name(store.meta()),
                        best_program(evidence, space)));
  if (store.meta().program)
    ATTUNE_TRY(write_file(folder + "/best/steps.diff", accepted_steps(evidence, space)));
  return write_file(folder + "/best/best_program_info.json", text_of(info, 2) + "\n");
} catch (const Json::exception& error) {
  return Status::invalid(
      fmt::format("{}: a part of the run cannot be read ({})", store.folder(), error.what()));
}

}  // namespace attune::evolve
