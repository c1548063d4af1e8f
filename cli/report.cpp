// attune report: the files that people read, made again from a run's database.
#include "evolve/report/report.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/commands.hpp"
#include "cli/evolve_options.hpp"
#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "evolve/propose/exchange.hpp"
#include "evolve/report/html.hpp"
#include "evolve/report/proposers.hpp"
#include "evolve/report/report_view.hpp"

namespace attune::cli {
namespace {

using evolve::Json;

struct Options {
  std::string folder, json;
};

std::string seconds_text(const Json& seconds) {
  return seconds.is_number() ? evolve::html::duration(seconds.get<double>()) : "-";
}

// Who was compared at the end, one line each.
std::string table(const Json& info) {
  if (info.is_null()) return "";
  if (info["comparison"].empty())
    return fmt::format("best     {}\n", info["id"].get<std::string>());
  const bool claimed = info["comparison"][0].contains("claimed_score");
  std::string text = fmt::format("{:<8} {:>12}  {:<26} {}\n", "which", claimed ? "claimed" : "time",
                                 "best relative to it", claimed ? "program" : "kernel");
  for (const Json& row : info["comparison"]) {
    std::string time;
    for (const auto& [shape, seconds] : row["median_seconds"].items())
      time += (time.empty() ? "" : "+") + seconds_text(seconds);
    if (row.contains("claimed_score"))
      time = fmt::format("{:.6g}", row["claimed_score"].get<double>());
    const bool best = row["which"] == "evolved";
    const std::string faster = best || row["speedup"].is_null()
                                   ? "-"
                                   : evolve::html::times(evolve::interval_of(row["speedup"]));
    text += fmt::format("{:<8} {:>12}  {:<26} {}\n", row["which"].get<std::string>(), time, faster,
                        row["id"].get<std::string>());
    if (row["verdict"] != "ok")
      text += fmt::format("         {}\n", row["verdict"].get<std::string>());
  }
  return text;
}

int report(const Options& options) {
  Output json("--json", options.json);
  std::unique_ptr<evolve::Store> store;
  if (!evolve::Store::exists(options.folder))
    throw UsageError(fmt::format("{} holds no run: there is no run.db in it", options.folder));
  need(evolve::Store::open(options.folder, false, &store));
  const evolve::RunMeta& meta = store->meta();
  const std::unique_ptr<evolve::Space> space = space_of(meta);
  need(evolve::learn_all(*store, space.get()));
  need(evolve::write_report(*store, *space));
  const Json evidence = evolve::evidence_of(*store);
  const Json info = evolve::best_info(evidence, *space);
  const evolve::RunView view = evolve::view_of(evidence, *space);
  Json files = {{"report", options.folder + "/report.html"},
                {"evidence", options.folder + "/evidence.json"}};
  if (!info.is_null()) {
    files["program"] = options.folder + "/best/" + evolve::best_program_name(meta);
    files["info"] = options.folder + "/best/best_program_info.json";
  }
  if (!json.is_stdout()) {
    std::string text = evolve::gain_text(view) + "\n\n" + table(info);
    if (const std::string asked = evolve::proposers_text(view.tallies); !asked.empty())
      text += asked + "\n";
    for (const auto& [name, path] : files.items())
      text += fmt::format("{:<8} {}\n", name, path.get<std::string>());
    print(text);
  }
  json.write(Json{{"folder", options.folder},
                  {"gain", evolve::gain_text(view)},
                  {"files", files},
                  {"best", info}}
                 .dump(2, ' ', false, Json::error_handler_t::replace) +
             "\n");
  return kOk;
}

}  // namespace

void add_report(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "report", "Show the result of an evolve run, and write its report.html again");
  sub->add_option("dir", options->folder, "Folder of the run")->required()->type_name("DIR");
  add_output(sub, "--json", options->json, "Write what was found as JSON to FILE");
  sub->footer(
      R"(Reads run.db in the folder, writes report.html, evidence.json and best/ from it, and prints what the
run gained. It can be used while the run is still going; the report then shows the state so far.

Examples:
  attune report attune-runs/2026-11-15-101500
  attune report attune-runs/2026-11-15-101500 --json)");
  sub->callback([options, &run] { run = [options] { return report(*options); }; });
}

}  // namespace attune::cli
