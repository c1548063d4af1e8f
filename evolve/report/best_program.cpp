// best/: the winner as a readable source, and what is known of it.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>

#include "evolve/compile/tile_compile.hpp"
#include "evolve/report/best_source.hpp"
#include "evolve/report/checkpoint.hpp"
#include "evolve/report/diff.hpp"
#include "evolve/report/html.hpp"
#include "evolve/report/report.hpp"
#include "evolve/report/report_external.hpp"
#include "evolve/report/report_view.hpp"

namespace attune::evolve {
namespace {

std::string identifier(const std::string& name) {
  std::string out;
  for (const char c : name) out += std::isalnum(uint8_t(c)) != 0 ? c : '_';
  return out.empty() || std::isdigit(uint8_t(out[0])) != 0 ? "gene_" + out : out;
}

// ---- command lines ----

std::string pair(int64_t first, int64_t second) {
  return first == second ? fmt::format("{}", first) : fmt::format("{}/{}", first, second);
}

std::string shape_text(const Problem& p) {
  return fmt::format("{}x{}x{}x{}", p.batch, pair(p.heads_q, p.heads_kv), pair(p.seq_q, p.seq_k),
                     pair(p.dim, p.dim_v));
}

const char* dtype_text(DType dtype) {
  return dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : "bf16";
}

std::string bench_options(const Problem& p) {
  std::string text = fmt::format("--shape {} --dtype {} --causal {}", shape_text(p),
                                 dtype_text(p.dtype), p.causal ? 1 : 0);
  if (p.lse) text += " --lse";
  if (p.causal && p.seq_q != p.seq_k)
    text += p.alignment == Alignment::bottom_right ? " --align bottom-right" : " --align top-left";
  return text;
}

// How `attune bench` is told to run the best; empty when only the optimiser can.
std::string bench_choice(const RunView& v) {
  if (v.meta.device != "cpu")
    return fmt::format("--device cuda --mode auto --config {}", v.best.config);
  const std::optional<CpuVariant> variant = parse_cpu_variant(v.best.config);
  if (!variant) return "";
  if (!variant->fused) return fmt::format("--threads {} --mode naive,auto", v.meta.threads);
  if (needs_tile(*variant)) return "";
  const std::string isa = variant->isa.empty() ? "" : " --isa " + variant->isa;
  return fmt::format("--threads {}{} --mode naive,auto --config {}", v.meta.threads, isa,
                     cpu::to_string(variant->config));
}

std::vector<std::string> bench_commands(const RunView& v) {
  std::vector<std::string> commands;
  const std::string choice = v.best.source.empty() ? bench_choice(v) : "";
  if (!choice.empty())
    for (const TimedShape& s : v.meta.shapes)
      commands.push_back(fmt::format("attune bench {} {}", bench_options(s.problem), choice));
  return commands;
}

// Each once, in the order of the shapes.
template <class Text>
std::string list_of(const RunView& v, const char* between, const Text& text) {
  std::vector<std::string> seen;
  for (const TimedShape& s : v.meta.shapes)
    if (std::find(seen.begin(), seen.end(), text(s.problem)) == seen.end())
      seen.push_back(text(s.problem));
  return fmt::format("{}", fmt::join(seen, between));
}

std::string search_options(const RunView& v) {
  std::string text = fmt::format(" --strategy {} --seed {}", v.meta.strategy, v.meta.seed);
  if (v.meta.budget_evaluations > 0)
    text += fmt::format(" --budget {}ev", v.meta.budget_evaluations);
  else if (v.meta.budget_seconds > 0)
    text += fmt::format(" --budget {:g}s", v.meta.budget_seconds);
  return text;
}

// What `attune evolve module.py` was asked with, from what the judge was.
std::string judge_options(const RunView& v) {
  const ExternalSpec& e = *v.meta.external;
  std::map<std::string, std::string> asked;
  for (size_t n = 0; n + 1 < e.judge.size(); n += 2) asked[e.judge[n]] = e.judge[n + 1];
  std::string text = " --device " + asked["--device"];
  if (asked.contains("--reference")) return text + " --reference " + asked["--reference"];
  const auto number = [&](const char* name) { return std::atoll(asked[name].c_str()); };
  const int64_t heads = std::max<int64_t>(1, number("--n-head"));
  return text + fmt::format(" --shape {}x{}x{}x{}", number("--batch"), heads, number("--seq"),
                            number("--n-embd") / heads);
}

// The paths are those of the run's machine: whoever repeats it knows where these files are.
std::string external_command(const RunView& v) {
  const ExternalSpec& e = *v.meta.external;
  std::string text =
      fmt::format("attune evolve {}{}", v.meta.program->name, v.meta.program->extension());
  for (const ProgramSource::Other& other : v.meta.program->others)
    text += fmt::format(" --with {}{}", other.name, v.meta.program->extension());
  if (e.judged()) return text + judge_options(v) + search_options(v);
  if (e.file.empty())
    text += fmt::format(" --eval-command '{}'", e.command);
  else
    text += fmt::format(" --evaluator {}", e.file);
  if (!e.metric.empty()) text += " --metric " + e.metric;
  return text +
         fmt::format(" --goal {} --eval-timeout {:g}", e.minimize ? "minimize" : "maximize",
                     e.seconds) +
         search_options(v);
}

std::string evolve_command(const RunView& v) {
  if (v.meta.external) return external_command(v);
  std::string program;
  if (v.meta.program) {
    program = fmt::format(" {}{}", v.meta.program->name, v.meta.program->extension());
    for (const ProgramSource::Other& other : v.meta.program->others)
      program += fmt::format(" --with {}{}", other.name, v.meta.program->extension());
  }
  std::string text = fmt::format(
      "attune evolve{} --device {} --shape {} --dtype {} --causal {}{} --threads {}{}", program,
      v.meta.device, list_of(v, " --shape ", shape_text),
      list_of(v, ",", [](const Problem& p) { return std::string(dtype_text(p.dtype)); }),
      list_of(v, ",", [](const Problem& p) { return std::string(p.causal ? "1" : "0"); }),
      list_of(v, "", [](const Problem& p) { return std::string(p.lse ? " --lse" : ""); }),
      v.meta.threads, program.empty() ? " --start " + v.meta.start : "");
  return text + search_options(v);
}

// ---- the source ----

std::string heading(const RunView& v) {
  std::string text = "// The best attention kernel of a run of `attune evolve`.\n//\n";
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("//   {:<10}{}\n", name, comment_text(value));
  };
  line("kernel", v.best.id);
  line("machine", v.meta.machine);
  for (const TimedShape& s : v.meta.shapes) line("shape", s.name);
  if (v.final) {
    line("speed", html::times(ratio_of(v, *v.final, v.start, v.winner)) + " over the start");
    line("", html::times(over_library(v, v.winner)) + " over the library's own choice");
    const size_t at = size_t(v.winner);
    if (at < v.final->verdicts.size()) {
      const Evaluation& e = v.final->verdicts[at];
      line("error", e.ok()
                        ? fmt::format("{}, allowed {}", html::error(e.error), html::error(e.limit))
                        : fmt::format("NOT VERIFIED: {}", verdict_name(e.verdict)));
    }
  }
  text += "//\n";
  if (library_runs(v))
    text +=
        "// To compile and run it, with Attune installed:\n"
        "//   c++ -std=c++20 -O2 best_program.cpp -o best_program $(pkg-config --cflags --libs "
        "attune) -Wl,-rpath,$(pkg-config --variable=libdir attune) && ./best_program\n"
        "// or built in its source tree, $ATTUNE:\n"
        "//   c++ -std=c++20 -O2 best_program.cpp -o best_program -I$ATTUNE/include "
        "-L$ATTUNE/build -lattune -Wl,-rpath,$ATTUNE/build && ./best_program\n//\n";
  const std::vector<std::string> commands = bench_commands(v);
  if (!commands.empty()) text += "// To measure it:\n";
  for (const std::string& command : commands)
    text += fmt::format("//   {}\n", comment_text(command));
  return text +
         fmt::format("// The run that found it:\n//   {}\n", comment_text(evolve_command(v)));
}

std::string typed_source(const RunView& v) {
  const Family& family = *family_of(*v.space, *v.genome);
  const std::string type = identifier(family.name) + "_config";
  std::string fields, values;
  for (size_t g = 0; g < family.genes.size(); ++g) {
    const Gene& gene = family.genes[g];
    const std::string name = identifier(gene.name);
    fields += fmt::format("  int {};  // {} ({})\n", name, comment_text(gene.meaning),
                          level_name(gene.level));
    values += fmt::format("    .{} = {},\n", name, v.genome->genes[g]);
  }
  std::string text = fmt::format(
      "//\n// No call of the library runs this one: its register tile is not built in. This is the "
      "whole "
      "of what\n// was evolved; compiled (c++ -std=c++20 best_program.cpp), it prints "
      "that.\n\n#include <cstdio>\n\n// {}: {}\nstruct "
      "{} {{\n{}}};\n\n",
      comment_text(family.name), comment_text(family.meaning), type, fields);
  text += fmt::format("constexpr {} best{{\n{}}};\n\n", type, values);
  text += fmt::format("constexpr const char* id = {};\n\n", literal_text(v.best.id));
  text += "int main() {\n  std::printf(\"%s\\n\", id);\n";
  for (size_t g = 0; g < family.genes.size(); ++g)
    text += fmt::format("  std::printf(\"  %-20s %d\\n\", {}, best.{});\n",
                        literal_text(family.genes[g].name), identifier(family.genes[g].name));
  if (family.genes.empty()) text += "  (void)best;\n";
  for (const std::string& command : bench_commands(v))
    text += fmt::format("  std::puts({});\n", literal_text(command));
  return text + "}\n";
}

Json ratio_json(const std::optional<Interval>& ratio) { return ratio ? to_json(*ratio) : Json(); }

// Who was compared at the end, with times and what the best is faster by.
Json comparison_json(const RunView& v) {
  Json rows = Json::array();
  if (!v.final) return rows;
  for (const auto& [role, index] :
       {std::pair{"start", v.start}, {"library", v.library}, {"evolved", v.winner}}) {
    if (index < 0 || size_t(index) >= v.final->seconds.size()) continue;
    Json medians = Json::object();
    const auto& shapes = v.final->seconds[size_t(index)];
    for (size_t s = 0; s < shapes.size() && s < v.meta.shapes.size(); ++s)
      medians[v.meta.shapes[s].name] = shapes[s].empty() ? Json() : Json(median(shapes[s]));
    const Evaluation e =
        size_t(index) < v.final->verdicts.size() ? v.final->verdicts[size_t(index)] : Evaluation{};
    if (v.meta.external) medians = Json::object();  // they stand for scores, and are no seconds
    const std::optional<double> score = v.meta.external ? claimed_score(e) : std::nullopt;
    rows.push_back({{"which", role},
                    {"id", v.final->candidates[size_t(index)].id},
                    {"verdict", verdict_name(e.verdict)},
                    {"error", std::isfinite(e.error) ? Json(e.error) : Json("nan")},
                    {"limit", e.limit},
                    {"median_seconds", medians},
                    {"speedup", ratio_json(role == std::string("library")
                                               ? over_library(v, v.winner)
                                               : ratio_of(v, *v.final, index, v.winner))}});
    if (score) rows.back()["claimed_score"] = *score;
  }
  return rows;
}

// The fields that tools made for OpenEvolve read.
void add_openevolve(const RunView& v, Json* info) {
  const Record* r = v.record(v.best_n);
  if (r == nullptr) return;
  const Record* parent = v.record(r->proposal.parent);
  (*info)["program_id"] = program_name(v.best.id);  // in checkpoints/
  (*info)["generation"] = generation_of(v.records, v.best_n);
  (*info)["iteration"] = v.best_n;
  (*info)["timestamp"] = time_of(v.meta, r->at);
  (*info)["parent_id"] = parent != nullptr ? Json(program_name(parent->candidate.id)) : Json();
  (*info)["metrics"] = metrics_of(v.meta, *r);
  (*info)["language"] = language_of(v.meta);
  (*info)["saved_at"] = time_of(v.meta, v.records.back().at);
}

Json info_of(const RunView& v) {
  Json info{{"id", v.best.id}, {"config", v.best.config}, {"source", v.best.source}};
  if (v.genome) {
    const Family& family = *family_of(*v.space, *v.genome);
    info["family"] = family.name;
    info["genes"] = Json::object();
    for (size_t g = 0; g < family.genes.size(); ++g)
      info["genes"][family.genes[g].name] = family.genes[g].labels.empty()
                                                ? Json(v.genome->genes[g])
                                                : Json(family.genes[g].label(v.genome->genes[g]));
  }
  info["n"] = v.best_n;
  info["lineage"] = Json::array();
  for (int64_t n : v.lineage) {
    const Record& r = *v.record(n);
    const Record* parent = v.record(r.proposal.parent);
    const std::optional<Gain> gain = gain_of(v, r);
    info["lineage"].push_back({{"n", n},
                               {"id", r.candidate.id},
                               {"op", r.proposal.op},
                               {"change", parent != nullptr ? changes_of(v, *parent, r) : ""},
                               {"times_parent", gain ? to_json(gain->ratio) : Json()},
                               {"direct", gain && gain->direct}});
  }
  info["comparison"] = comparison_json(v);
  if (const Record* r = v.record(v.best_n)) {
    info["source_hash"] = r->evaluation.source_hash;
    info["binary_hash"] = r->evaluation.binary_hash;
  }
  add_openevolve(v, &info);
  info["machine"] = v.meta.machine;
  info["device"] = v.meta.device;
  info["threads"] = v.meta.threads;
  info["provenance"] = {
      {"attune", v.meta.version},
      {"head", v.head.empty() ? Json() : Json(v.head)},
      {"environment", v.meta.environment},
      {"created", v.meta.created},
      {"strategy", v.meta.strategy},
      {"seed", v.meta.seed},
      {"evaluations", v.records.size()},
      {"seconds", v.records.empty() ? 0 : v.records.back().at},
      {"final_rounds", v.final && !v.final->seconds.empty() && !v.final->seconds[0].empty()
                           ? v.final->seconds[0][0].size()
                           : 0}};
  info["commands"] = bench_commands(v);
  info["commands"].push_back(evolve_command(v));
  return info;
}

}  // namespace

std::string best_program_name(const RunMeta& meta) {
  if (meta.program) return "best_program" + meta.program->extension();
  return meta.device == "cpu" ? "best_program.cpp" : "best_program.cu";
}

std::string best_program(const Json& evidence, const Space& space) try {
  const RunView v = view_of(evidence, space);
  if (v.best.id.empty()) return "";
  if (v.meta.program) return v.genome ? space.program(*v.genome) : "";  // byte by byte
  if (library_runs(v)) return heading(v) + library_program(v);
  if (kernel_runs(v)) return heading(v) + kernel_program(v);
  return heading(v) + (v.genome ? typed_source(v) : "");
} catch (const Json::exception&) {
  return "";
}

std::string accepted_steps(const Json& evidence, const Space& space) try {
  const RunView v = view_of(evidence, space);
  std::string text;
  for (size_t k = 1; k < v.accepted.size() && v.meta.program; ++k) {
    const Record &before = *v.record(v.accepted[k - 1]), &after = *v.record(v.accepted[k]);
    const std::string file = v.meta.program->name + v.meta.program->extension();
    text +=
        fmt::format("# step {}: {} as fast as the program before, {} as the start; {}: {}\n{}\n", k,
                    html::times(after.evaluation.speedup), html::times(speed_of(after)),
                    after.proposal.op, changes_of(v, before, after),
                    unified_diff(space.program(before.proposal.genome),
                                 space.program(after.proposal.genome), "a/" + file, "b/" + file));
  }
  return text;
} catch (const Json::exception&) {
  return "";
}

Json best_info(const Json& evidence, const Space& space) try {
  const RunView v = view_of(evidence, space);
  return v.best.id.empty() ? Json() : info_of(v);
} catch (const Json::exception&) {
  return Json();
}

}  // namespace attune::evolve
