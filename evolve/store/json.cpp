// What the store holds, as JSON and back.
#include <algorithm>
#include <cmath>
#include <limits>

#include "evolve/store/store.hpp"

namespace attune::evolve {
namespace {

// JSON has no infinity and no NaN; an interval of two samples, or the error of a kernel that
// returned NaN, has.
Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (double v : values) list.push_back(number(v));
  return list;
}

std::vector<double> numbers_of(const Json& json) {
  std::vector<double> values;
  for (const Json& v : json) values.push_back(number_of(v));
  return values;
}

// ---- problems ----

constexpr struct {
  DType dtype;
  const char* name;
} kDTypes[] = {{DType::f32, "f32"}, {DType::f16, "f16"}, {DType::bf16, "bf16"}};

std::string dtype_text(DType dtype) {
  for (const auto& entry : kDTypes)
    if (entry.dtype == dtype) return entry.name;
  return "?";
}

DType dtype_of(const std::string& name) {
  for (const auto& entry : kDTypes)
    if (name == entry.name) return entry.dtype;
  throw Json::other_error::create(501, "unknown dtype '" + name + "'", nullptr);
}

// Sizes in 32 and 64 bits, and yes or no; all but the dtype, the alignment and the kind of mask.
template <class P, class Visit>
void each_field(P& p, const Visit& visit) {
  visit("batch", p.batch);
  visit("heads_q", p.heads_q);
  visit("heads_kv", p.heads_kv);
  visit("seq_q", p.seq_q);
  visit("seq_k", p.seq_k);
  visit("dim", p.dim);
  visit("dim_v", p.dim_v);
  visit("causal", p.causal);
  visit("window_left", p.window_left);
  visit("window_right", p.window_right);
  visit("block_mask_q", p.block_mask_q);
  visit("block_mask_k", p.block_mask_k);
  visit("softcap", p.softcap);
  visit("alibi", p.alibi);
  visit("sinks", p.sinks);
  visit("ragged", p.ragged);
  visit("dropout", p.dropout);
  visit("lse", p.lse);
  visit("batch_invariant", p.batch_invariant);
  visit("strict_fp32", p.strict_fp32);
  visit("score_mod", p.score_mod);
  visit("mask_mod", p.mask_mod);
}

Json problem_json(const Problem& p) {
  Json json{{"dtype", dtype_text(p.dtype)}};
  each_field(p, [&](const char* name, const auto& value) { json[name] = value; });
  json["alignment"] = p.alignment == Alignment::bottom_right ? "bottom-right" : "top-left";
  json["mask"] = int(p.mask);
  if (p.key_lengths) json["key_lengths"] = true;            // older runs have no such field
  if (p.pass == Pass::backward) json["pass"] = "backward";  // nor this one
  return json;
}

// Sizes that a call could have: others, out of a damaged file, would be divided by or overflow.
bool is_possible(const Problem& p) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto is_size = [](int64_t size) { return size >= 1 && size <= kMost; };
  for (const int64_t size : {p.batch, p.heads_q, p.heads_kv, p.seq_q, p.seq_k})
    if (!is_size(size)) return false;
  for (const int dim : {p.dim, p.dim_v})
    if (dim < 1 || dim > kMaxHeadDim) return false;
  if (p.heads_q % p.heads_kv != 0 || p.block_mask_q < 0 || p.block_mask_k < 0) return false;
  if (p.mask < MaskKind::none || p.mask > MaskKind::bf16) return false;
  return p.heads_q <= kMost / p.batch &&
         std::max(p.seq_q, p.seq_k) <= (int64_t{1} << 52) / (p.heads_q * p.batch);
}

Problem problem_of(const Json& json) {
  Problem p;
  p.dtype = dtype_of(json.at("dtype").get<std::string>());
  each_field(p, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  p.alignment =
      json.at("alignment") == "bottom-right" ? Alignment::bottom_right : Alignment::top_left;
  p.mask = MaskKind(json.at("mask").get<int>());
  p.key_lengths = json.value("key_lengths", false);
  if (json.value("pass", "forward") == "backward") p.pass = Pass::backward;
  if (!is_possible(p)) throw Json::other_error::create(501, "no call has such sizes", nullptr);
  return p;
}

// ---- machines ----

Json machine_json(const CpuMachine& m) {
  Json archs = Json::object();
  for (const auto& [isa, arch] : m.archs)
    archs[isa] = {{"lanes", arch.lanes}, {"registers", arch.registers}};
  return {{"isas", m.isas},
          {"archs", archs},
          {"l1_bytes", m.l1_bytes},
          {"l2_bytes", m.l2_bytes},
          {"threads", m.threads}};
}

CpuMachine machine_of(const Json& json) {
  CpuMachine m;
  json.at("isas").get_to(m.isas);
  for (const auto& [isa, arch] : json.at("archs").items())
    m.archs[isa] = {arch.at("lanes").get<int>(), arch.at("registers").get<int>()};
  json.at("l1_bytes").get_to(m.l1_bytes);
  json.at("l2_bytes").get_to(m.l2_bytes);
  json.at("threads").get_to(m.threads);
  return m;
}

// ---- programs ----

Json program_json(const ProgramSource& p) {
  Json others = Json::array(), flags = Json::array();
  for (const ProgramSource::Other& o : p.others)
    others.push_back({{"name", o.name}, {"text", o.text}});
  for (const FlagChoice& f : p.flags) {
    Json values = Json::array();
    for (const FlagChoice::Value& v : f.values)
      values.push_back({{"label", v.label}, {"flags", v.flags}});
    flags.push_back({{"name", f.name}, {"meaning", f.meaning}, {"values", values}});
  }
  return {{"name", p.name},     {"language", p.language == Language::cuda ? "cuda" : "cpp"},
          {"suffix", p.suffix}, {"text", p.text},
          {"others", others},   {"flags", flags}};
}

ProgramSource program_source_of(const Json& json) {
  ProgramSource p;
  json.at("name").get_to(p.name);
  p.language = json.at("language") == "cuda" ? Language::cuda : Language::cpp;
  if (json.contains("suffix")) json["suffix"].get_to(p.suffix);
  json.at("text").get_to(p.text);
  for (const Json& o : json.at("others"))
    p.others.push_back({o.at("name").get<std::string>(), o.at("text").get<std::string>()});
  for (const Json& f : json.at("flags")) {
    FlagChoice choice{f.at("name").get<std::string>(), f.at("meaning").get<std::string>(), {}};
    for (const Json& v : f.at("values"))
      choice.values.push_back({v.at("label").get<std::string>(), v.at("flags").get<std::string>()});
    p.flags.push_back(std::move(choice));
  }
  return p;
}

// ---- pieces of a record ----

Json candidate_json(const Candidate& c) {
  return {{"id", c.id}, {"config", c.config}, {"source", c.source}};
}

Candidate candidate_of(const Json& json) {
  return {json.at("id").get<std::string>(), json.at("config").get<std::string>(),
          json.at("source").get<std::string>()};
}

Json proposal_json(const Proposal& p) {
  return {{"n", p.n},
          {"id", p.id},
          {"op", p.op},
          {"parent", p.parent},
          {"other", p.other},
          {"island", p.island},
          {"genome", {{"family", p.genome.family}, {"genes", p.genome.genes}}}};
}

Proposal proposal_of(const Json& json) {
  Proposal p;
  json.at("n").get_to(p.n);
  json.at("id").get_to(p.id);
  json.at("op").get_to(p.op);
  json.at("parent").get_to(p.parent);
  json.at("other").get_to(p.other);
  json.at("island").get_to(p.island);
  json.at("genome").at("family").get_to(p.genome.family);
  json.at("genome").at("genes").get_to(p.genome.genes);
  return p;
}

// The names say whose numbers these are.
Json claims_json(const Claims& c) {
  Json metrics = Json::object();
  for (const auto& [name, value] : c.metrics) metrics[name] = number(value);
  return {{"by_the_evaluator",
           {{"metrics", metrics}, {"artifacts", c.artifacts}, {"scores", numbers(c.scores)}}},
          {"measured_by_us", {{"seconds", numbers(c.seconds)}, {"stages", c.stages}}}};
}

Claims claims_of(const Json& json) {
  const Json &theirs = json.at("by_the_evaluator"), &ours = json.at("measured_by_us");
  Claims c;
  for (const auto& [name, value] : theirs.at("metrics").items()) c.metrics[name] = number_of(value);
  for (const auto& [name, value] : theirs.at("artifacts").items())
    c.artifacts[name] = value.get<std::string>();
  c.scores = numbers_of(theirs.at("scores"));
  c.seconds = numbers_of(ours.at("seconds"));
  ours.at("stages").get_to(c.stages);
  return c;
}

Json evaluation_json(const Evaluation& e) {
  Json shapes = Json::array();
  for (const ShapeSamples& s : e.shapes)
    shapes.push_back({{"shape", s.shape},
                      {"candidate", numbers(s.candidate)},
                      {"incumbent", numbers(s.incumbent)}});
  Json json{{"verdict", verdict_name(e.verdict)},
            {"stage", stage_name(e.stage)},
            {"why", e.why},
            {"source_hash", e.source_hash},
            {"binary_hash", e.binary_hash},
            {"same_as", e.same_as},
            {"error", number(e.error)},
            {"limit", number(e.limit)},
            {"shapes", shapes},
            {"sitting", e.sitting},
            {"speedup", to_json(e.speedup)},
            {"p", number(e.p)},
            {"compile_seconds", number(e.compile_seconds)},
            {"seconds", number(e.seconds)}};
  if (e.claims) json["claims"] = claims_json(*e.claims);
  for (const KernelUse& k : e.kernels)
    json["kernels"].push_back({{"name", k.name},
                               {"registers", k.registers},
                               {"spill_stores", k.spill_stores},
                               {"spill_loads", k.spill_loads},
                               {"shared", k.shared}});
  return json;
}

Evaluation evaluation_of(const Json& json) {
  Evaluation e;
  const std::string verdict = json.at("verdict"), stage = json.at("stage");
  if (!parse_verdict(verdict, &e.verdict))
    throw Json::other_error::create(501, "unknown verdict '" + verdict + "'", nullptr);
  if (!parse_stage(stage, &e.stage))
    throw Json::other_error::create(501, "unknown stage '" + stage + "'", nullptr);
  json.at("why").get_to(e.why);
  json.at("source_hash").get_to(e.source_hash);
  json.at("binary_hash").get_to(e.binary_hash);
  json.at("same_as").get_to(e.same_as);
  for (const Json& k : json.value("kernels", Json::array()))  // older runs have none
    e.kernels.push_back({k.at("name").get<std::string>(), k.at("registers").get<int>(),
                         k.at("spill_stores").get<int>(), k.at("spill_loads").get<int>(),
                         k.at("shared").get<int>()});
  e.error = number_of(json.at("error"));
  e.limit = number_of(json.at("limit"));
  for (const Json& s : json.at("shapes"))
    e.shapes.push_back({s.at("shape").get<std::string>(), numbers_of(s.at("candidate")),
                        numbers_of(s.at("incumbent"))});
  e.sitting = std::max(json.value("sitting", 1), kFresh);
  e.speedup = interval_of(json.at("speedup"));
  e.p = number_of(json.at("p"));
  if (const auto at = json.find("claims"); at != json.end()) e.claims = claims_of(*at);
  e.compile_seconds = number_of(json.at("compile_seconds"));
  e.seconds = number_of(json.at("seconds"));
  return e;
}

}  // namespace

Json parse_json(std::string_view text, int depth) {
  if (const std::string why = why_not_json(text, depth); !why.empty())
    throw Json::other_error::create(501, why, nullptr);
  return Json::parse(text);
}

double number_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

Json to_json(const Interval& interval) {
  return {{"low", number(interval.low)},
          {"mid", number(interval.mid)},
          {"high", number(interval.high)}};
}

Interval interval_of(const Json& json) {
  if (json.is_array()) return {number_of(json.at(0)), number_of(json.at(1)), number_of(json.at(2))};
  return {number_of(json.at("low")), number_of(json.at("mid")), number_of(json.at("high"))};
}

Json to_json(const Chain& chain) {
  if (chain.head.empty()) return nullptr;
  return {{"events", chain.events}, {"head", chain.head}};
}

Json to_json(const Noise& noise) {
  return {{"ratio", to_json(noise.ratio)},
          {"margin", number(noise.margin)},
          {"spread", number(noise.spread)}};
}

Noise noise_of(const Json& json) {
  return {interval_of(json.at("ratio")), number_of(json.at("margin")),
          number_of(json.at("spread"))};
}

Json to_json(const RunMeta& meta) {
  Json shapes = Json::array();
  for (const TimedShape& s : meta.shapes)
    shapes.push_back(
        {{"name", s.name}, {"weight", number(s.weight)}, {"problem", problem_json(s.problem)}});
  return {{"version", meta.version},
          {"rule", meta.rule},
          {"device", meta.device},
          {"machine", meta.machine},
          {"shapes", shapes},
          {"threads", meta.threads},
          {"cpu", meta.cpu ? machine_json(*meta.cpu) : Json()},
          {"compiles", meta.compiles},
          {"library", meta.library},
          {"program", meta.program ? program_json(*meta.program) : Json()},
          {"ceiling", meta.ceiling},
          {"external", meta.external ? to_json(*meta.external) : Json()},
          {"target", meta.target ? number(*meta.target) : Json()},
          {"checkpoint_interval", meta.checkpoint_interval},
          {"islands", meta.islands},
          {"strategy", meta.strategy},
          {"start", meta.start},
          {"seed", meta.seed},
          {"window", meta.window},
          {"budget_seconds", number(meta.budget_seconds)},
          {"budget_evaluations", meta.budget_evaluations},
          {"environment", meta.environment},
          {"created", meta.created}};
}

RunMeta meta_of(const Json& json) {
  RunMeta meta;
  json.at("version").get_to(meta.version);
  meta.rule = json.value("rule", 1);
  json.at("device").get_to(meta.device);
  json.at("machine").get_to(meta.machine);
  for (const Json& s : json.at("shapes"))
    meta.shapes.push_back(
        {s.at("name").get<std::string>(), problem_of(s.at("problem")), number_of(s.at("weight"))});
  json.at("threads").get_to(meta.threads);
  json.at("compiles").get_to(meta.compiles);
  if (json.contains("cpu") && !json["cpu"].is_null()) meta.cpu = machine_of(json["cpu"]);
  if (json.contains("library")) json["library"].get_to(meta.library);
  if (json.contains("program") && !json["program"].is_null())
    meta.program = program_source_of(json["program"]);
  if (json.contains("ceiling")) json["ceiling"].get_to(meta.ceiling);
  if (json.contains("external") && !json["external"].is_null())
    meta.external = external_spec_of(json["external"]);
  if (meta.external && (!meta.program || meta.shapes.size() != 1))
    throw Json::other_error::create(501, "an evaluator without a program", nullptr);
  for (const TimedShape& s : meta.shapes)
    if (s.problem.pass == Pass::backward && (!meta.program || meta.device != "cpu"))
      throw Json::other_error::create(501, "only programs for the CPU have a backward pass",
                                      nullptr);
  if (json.contains("target") && !json["target"].is_null()) meta.target = number_of(json["target"]);
  meta.checkpoint_interval = std::max(json.value("checkpoint_interval", 100), 1);
  meta.islands = std::clamp(json.value("islands", 0), 0, 1000);
  json.at("strategy").get_to(meta.strategy);
  json.at("start").get_to(meta.start);
  json.at("seed").get_to(meta.seed);
  json.at("window").get_to(meta.window);
  meta.budget_seconds = number_of(json.at("budget_seconds"));
  json.at("budget_evaluations").get_to(meta.budget_evaluations);
  meta.environment = json.at("environment");
  json.at("created").get_to(meta.created);
  return meta;
}

Json to_json(const Record& record) {
  return {{"proposal", proposal_json(record.proposal)},
          {"candidate", candidate_json(record.candidate)},
          {"evaluation", evaluation_json(record.evaluation)},
          {"outcome",
           {{"ok", record.outcome.ok},
            {"fitness", number(record.outcome.fitness)},
            {"improved", record.outcome.improved}}},
          {"incumbent", record.incumbent},
          {"progress", number(record.progress)},
          {"at", number(record.at)}};
}

Record record_of(const Json& json) {
  Record record;
  record.proposal = proposal_of(json.at("proposal"));
  record.candidate = candidate_of(json.at("candidate"));
  record.evaluation = evaluation_of(json.at("evaluation"));
  const Json& outcome = json.at("outcome");
  outcome.at("ok").get_to(record.outcome.ok);
  record.outcome.fitness = number_of(outcome.at("fitness"));
  outcome.at("improved").get_to(record.outcome.improved);
  json.at("incumbent").get_to(record.incumbent);
  record.progress = number_of(json.at("progress"));
  record.at = number_of(json.at("at"));
  return record;
}

Json to_json(const Comparison& comparison) {
  Json candidates = Json::array(), seconds = Json::array(), verdicts = Json::array();
  for (const Candidate& c : comparison.candidates) candidates.push_back(candidate_json(c));
  for (const auto& of_candidate : comparison.seconds) {
    Json shapes = Json::array();
    for (const std::vector<double>& rounds : of_candidate) shapes.push_back(numbers(rounds));
    seconds.push_back(shapes);
  }
  for (const Evaluation& e : comparison.verdicts) verdicts.push_back(evaluation_json(e));
  return {{"candidates", candidates},
          {"seconds", seconds},
          {"verdicts", verdicts},
          {"sitting", comparison.sitting}};
}

Comparison comparison_of(const Json& json) {
  Comparison comparison;
  for (const Json& c : json.at("candidates")) comparison.candidates.push_back(candidate_of(c));
  for (const Json& of_candidate : json.at("seconds")) {
    auto& shapes = comparison.seconds.emplace_back();
    for (const Json& rounds : of_candidate) shapes.push_back(numbers_of(rounds));
  }
  for (const Json& e : json.at("verdicts")) comparison.verdicts.push_back(evaluation_of(e));
  comparison.sitting = std::max(json.value("sitting", 1), kFresh);
  return comparison;
}

}  // namespace attune::evolve
