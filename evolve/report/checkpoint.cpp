#include "evolve/report/checkpoint.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>

#include "evolve/report/report.hpp"
#include "evolve/store/files.hpp"
#include "src/api/tensor_check.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kUnfinished = ".tmp";

std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(0.0); }

// In a folder that nobody sees yet.
Status write_plain(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file.good()) return {};
  return Status::invalid(fmt::format("cannot write {}: is the disk full?", path.string()));
}

std::string code_of(const CheckpointView& v, const Record& r) {
  const std::string text = v.space.program(r.proposal.genome);
  return text.empty() ? fmt::format("// {}\n", r.candidate.id) : text;
}

std::string name_of(const CheckpointView& v, int64_t n) {
  if (n < 0 || n >= int64_t(v.records.size())) return "";
  return program_name(v.records[size_t(n)].candidate.id);
}

Json name_or_null(const std::string& name) { return name.empty() ? Json() : Json(name); }

Json artifacts_of(const Record& r) {
  std::map<std::string, std::string> all;
  if (r.evaluation.claims) all = r.evaluation.claims->artifacts;
  if (!r.evaluation.ok())
    all["verdict"] = fmt::format("{}: {}", verdict_name(r.evaluation.verdict), r.evaluation.why);
  if (all.empty()) return nullptr;
  return Json(Json(all).dump(-1, ' ', false, Json::error_handler_t::replace));  // JSON in a string
}

Json program_json(const CheckpointView& v, const Record& r) {
  const std::string code = code_of(v, r);
  const int64_t parent = r.proposal.parent;
  const Record* elder = parent >= 0 && parent < r.proposal.n ? &v.records[size_t(parent)] : nullptr;
  const std::string changes = fmt::format("{}: {}", r.proposal.op, r.candidate.id);
  return {{"id", program_name(r.candidate.id)},
          {"code", code},
          {"changes_description", changes},
          {"language", language_of(v.meta)},
          {"parent_id", elder != nullptr ? name_or_null(name_of(v, parent)) : Json()},
          {"generation", generation_of(v.records, r.proposal.n)},
          {"timestamp", time_of(v.meta, r.at)},
          {"iteration_found", r.proposal.n},
          {"metrics", metrics_of(v.meta, r)},
          {"complexity", code.size()},
          {"diversity", 0.0},
          {"metadata",
           {{"changes", changes},
            {"parent_metrics", elder != nullptr ? metrics_of(v.meta, *elder) : Json::object()},
            {"island", r.proposal.island}}},
          {"prompts", Json::object()},  // the visualiser's page of a program walks over them
          {"artifacts_json", artifacts_of(r)},
          {"artifact_dir", nullptr},
          {"embedding", nullptr}};
}

Json metadata_json(const CheckpointView& v) {
  size_t islands = 1;
  for (const Record& r : v.records) islands = std::max(islands, size_t(r.proposal.island) + 1);
  std::vector<std::vector<std::string>> members(islands);
  std::vector<int64_t> generations(islands, 0), best(islands, -1);
  for (const Record& r : v.records) {
    const auto island = size_t(r.proposal.island);
    const std::string name = program_name(r.candidate.id);
    if (std::find(members[island].begin(), members[island].end(), name) == members[island].end())
      members[island].push_back(name);
    generations[island] = std::max(generations[island], generation_of(v.records, r.proposal.n));
    const int64_t held = best[island];
    if (r.outcome.ok && (held < 0 || r.outcome.fitness > v.records[size_t(held)].outcome.fitness))
      best[island] = r.proposal.n;
  }
  std::vector<Json> maps(islands, Json::object());
  Json archive = Json::array();
  for (const Elite& e : v.elites) {
    const std::string name = name_of(v, e.n);
    if (name.empty() || e.island < 0 || size_t(e.island) >= islands) continue;
    maps[size_t(e.island)][fmt::format("{}", fmt::join(e.cell.at, "-"))] = name;
    if (std::find(archive.begin(), archive.end(), name) == archive.end()) archive.push_back(name);
  }
  Json bests = Json::array();
  for (const int64_t n : best) bests.push_back(name_or_null(name_of(v, n)));
  const Record& last = v.records.back();
  return {{"island_feature_maps", maps},
          {"islands", members},
          {"archive", archive},
          {"best_program_id", name_or_null(v.best.empty() ? "" : program_name(v.best))},
          {"island_best_programs", bests},
          {"last_iteration", last.proposal.n},
          {"current_island", last.proposal.island},
          {"island_generations", generations},
          {"last_migration_generation", 0},
          {"feature_stats", Json::object()}};
}

const Record* best_record(const CheckpointView& v) {
  for (const Record& r : v.records)
    if (r.outcome.ok && r.candidate.id == v.best) return &r;
  return nullptr;
}

Status write_all(const CheckpointView& v, const fs::path& folder) {
  ATTUNE_TRY(write_plain(folder / "metadata.json", json_text(metadata_json(v))));
  for (const Record& r : v.records) {
    const fs::path path = folder / "programs" / (program_name(r.candidate.id) + ".json");
    std::error_code ignored;
    if (!fs::exists(path, ignored)) ATTUNE_TRY(write_plain(path, json_text(program_json(v, r))));
  }
  const Record* best = best_record(v);
  if (best == nullptr) return {};
  ATTUNE_TRY(write_plain(folder / best_program_name(v.meta), code_of(v, *best)));
  return write_plain(folder / "best_program_info.json",
                     json_text({{"id", program_name(v.best)},
                                {"generation", generation_of(v.records, best->proposal.n)},
                                {"iteration", best->proposal.n},
                                {"current_iteration", v.records.back().proposal.n},
                                {"timestamp", time_of(v.meta, best->at)},
                                {"metrics", metrics_of(v.meta, *best)},
                                {"language", language_of(v.meta)},
                                {"saved_at", time_of(v.meta, v.records.back().at)}}));
}

}  // namespace

std::string program_name(const std::string& id) { return jit::hex(jit::sha256(id)).substr(0, 32); }

std::string language_of(const RunMeta& meta) {
  const std::string extension = meta.program ? meta.program->extension() : "";
  for (const auto& [known, language] : {std::pair{".py", "python"},
                                        {".cu", "cuda"},
                                        {".rs", "rust"},
                                        {".c", "c"},
                                        {".js", "javascript"},
                                        {".ts", "typescript"},
                                        {".go", "go"},
                                        {".java", "java"},
                                        {".r", "r"},
                                        {".jl", "julia"},
                                        {".sh", "bash"},
                                        {".metal", "metal"}})
    if (extension == known) return language;
  if (meta.program && !meta.program->suffix.empty() && !meta.program->has_pragmas())
    return extension.empty() ? "text" : extension.substr(1);
  return meta.device.starts_with("cuda") ? "cuda" : "cpp";
}

int64_t generation_of(const std::vector<Record>& records, int64_t n) {
  int64_t generation = 0;
  for (int64_t before = INT64_MAX; n >= 0 && n < before && n < int64_t(records.size());) {
    before = n;
    n = records[size_t(n)].proposal.parent;
    generation += n >= 0 && n < before;
  }
  return generation;
}

double time_of(const RunMeta& meta, double at) {
  std::tm t{};
  const char* end = strptime(meta.created.c_str(), "%Y-%m-%dT%H:%M:%SZ", &t);
  return (end != nullptr ? double(timegm(&t)) : 0) + at;
}

Json metrics_of(const RunMeta& meta, const Record& r) {
  Json metrics = Json::object();
  const double speed = r.outcome.ok ? std::exp(r.outcome.fitness) : 0;
  if (const auto& claims = r.evaluation.claims)
    for (const auto& [name, value] : claims->metrics) metrics[name] = finite(value);
  if (!meta.external) metrics["speed_over_start"] = finite(speed);
  if (!metrics.contains("combined_score")) {
    std::string ignored;
    const bool same_way = meta.external && !meta.external->minimize && r.evaluation.claims;
    const std::optional<double> score =
        same_way ? score_of(*meta.external, r.evaluation.claims->metrics, &ignored) : std::nullopt;
    metrics["combined_score"] = finite(r.outcome.ok && score ? *score : speed);
  }
  if (!r.evaluation.ok()) metrics["combined_score"] = 0.0;
  return metrics;
}

Status write_checkpoint(const CheckpointView& v, const std::string& run) {
  const int64_t n = v.records.back().proposal.n;
  const fs::path all = fs::path(run) / kCheckpoints, place = all / fmt::format("checkpoint_{}", n),
                 made = all / fmt::format(".checkpoint_{}.{}{}", n, getpid(), kUnfinished),
                 old = all / fmt::format(".old_{}.{}{}", n, getpid(), kUnfinished);
  std::error_code error;
  fs::create_directories(made / "programs", error);
  if (error)
    return Status::invalid(fmt::format("cannot make {}: {}", made.string(), error.message()));
  Status s = write_all(v, made);
  if (s.ok()) {
    if (fs::exists(place, error)) fs::rename(place, old, error);
    fs::rename(made, place, error);
    if (error)
      s = Status::invalid(fmt::format("cannot make {}: {}", place.string(), error.message()));
  }
  std::error_code ignored;
  fs::remove_all(old, ignored);
  fs::remove_all(made, ignored);
  return s;
}

void remove_unfinished_checkpoints(const std::string& run) {
  std::error_code error;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(fs::path(run) / kCheckpoints, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with('.') && name.ends_with(kUnfinished)) left.push_back(entry.path());
  }
  for (const fs::path& path : left) fs::remove_all(path, error);
}

}  // namespace attune::evolve
