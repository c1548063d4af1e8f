// attune bench: how fast attention runs here.
#include <attune/attune.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/machine.hpp"
#include "cli/measure.hpp"
#include "cli/output.hpp"
#include "cli/ranges.hpp"
#include "cli/terminal.hpp"
#include "src/select/select.hpp"

namespace attune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string device = "cpu";
  std::vector<std::string> shapes;
  bool sizes_given = false;
  std::string batch = "1", heads = "8", kv_heads, seq = "512,1024,2048", seq_k, dim = "64", dim_v;
  std::string dtype = "f32", causal = "0", mask = "none", mode, config, isa, threads = "0";
  std::string align;
  std::string json, csv;
  Plan plan;
};

template <class T>
struct Named {
  const char* name;
  T value;
};

constexpr Named<DType> kDTypes[] = {
    {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}};
constexpr Named<bool> kCausal[] = {{"0", false}, {"1", true}};
constexpr Named<MaskKind> kMasks[] = {{"none", MaskKind::none},
                                      {"bool", MaskKind::boolean},
                                      {"f32", MaskKind::f32},
                                      {"f16", MaskKind::f16},
                                      {"bf16", MaskKind::bf16}};
constexpr Named<attune_mode> kModes[] = {{"auto", ATTUNE_AUTO},
                                         {"reference", ATTUNE_REFERENCE},
                                         {"naive", ATTUNE_NAIVE},
                                         {"fused", ATTUNE_FUSED}};

template <class T, size_t N>
std::string name_of(const Named<T> (&table)[N], T value) {
  for (const Named<T>& entry : table)
    if (entry.value == value) return entry.name;
  return "?";
}

// Runs a parser of cli/ranges.hpp and puts the option's name before its complaint.
template <class Fn>
auto parsed(const char* option, Fn&& parse) {
  try {
    return parse();
  } catch (const std::invalid_argument& error) {
    throw UsageError(fmt::format("{}: {}", option, error.what()));
  }
}

template <class T, size_t N>
std::vector<T> names(const char* option, const std::string& text, const Named<T> (&table)[N]) {
  std::vector<T> values;
  for (const std::string& part : parsed(option, [&] { return split_list(text); })) {
    const auto* found = std::find_if(std::begin(table), std::end(table),
                                     [&](const Named<T>& entry) { return part == entry.name; });
    if (found == std::end(table)) {
      std::vector<std::string> known;
      for (const Named<T>& entry : table) known.emplace_back(entry.name);
      throw UsageError(
          fmt::format("{}: '{}' is not one of {}", option, part, fmt::join(known, ", ")));
    }
    values.push_back(found->value);
  }
  return values;
}

std::vector<int64_t> values(const char* option, const std::string& text) {
  return parsed(option, [&] { return parse_values(text); });
}

std::vector<Shape> make_shapes(const Options& o) {
  if (!o.shapes.empty() && o.sizes_given)
    throw UsageError(
        "--shape says all sizes; --batch, --heads, --seq, --dim and so on cannot join it");
  std::vector<Shape> shapes;
  for (const std::string& text : o.shapes)
    shapes.push_back(parsed("--shape", [&] { return parse_shape(text); }));
  if (!shapes.empty()) return shapes;
  // An option that is not given follows its partner: as many key heads as heads, and so on.
  auto follow = [](const char* option, const std::string& text, int64_t partner) {
    return text.empty() ? std::vector<int64_t>{partner} : values(option, text);
  };
  for (int64_t batch : values("--batch", o.batch))
    for (int64_t heads : values("--heads", o.heads))
      for (int64_t heads_kv : follow("--kv-heads", o.kv_heads, heads))
        for (int64_t seq : values("--seq", o.seq))
          for (int64_t seq_k : follow("--seq-k", o.seq_k, seq))
            for (int64_t dim : values("--dim", o.dim))
              for (int64_t dim_v : follow("--dim-v", o.dim_v, dim))
                shapes.push_back({batch, heads, heads_kv, seq, seq_k, dim, dim_v});
  return shapes;
}

// What computes: rungs of the ladder, given configs, or both.
struct Variant {
  attune_mode mode;
  std::optional<cpu::CpuConfig> config;
};

std::vector<Variant> make_variants(const Options& o) {
  std::vector<Variant> variants;
  if (!o.mode.empty() || o.config.empty())
    for (attune_mode mode : names("--mode", o.mode.empty() ? "auto" : o.mode, kModes))
      variants.push_back({mode, {}});
  if (o.config.empty()) return variants;
  for (const std::string& text : parsed("--config", [&] { return split_list(o.config); })) {
    const std::optional<cpu::CpuConfig> config = cpu::parse_cpu_config(text);
    if (!config)
      throw UsageError(fmt::format("--config: '{}' is not a config; one looks like {}", text,
                                   cpu::to_string(cpu::CpuConfig{})));
    variants.push_back({ATTUNE_FUSED, config});
  }
  return variants;
}

std::vector<int> make_threads(const std::string& text) {
  std::vector<int> counts;
  for (const std::string& part : parsed("--threads", [&] { return split_list(text); })) {
    if (part == "0") {
      counts.push_back(settle_threads(0));
      continue;
    }
    for (int64_t n : values("--threads", part)) {
      if (n > kMostThreads)
        throw UsageError(fmt::format("--threads: {} is above {}", n, kMostThreads));
      counts.push_back(static_cast<int>(n));
    }
  }
  return counts;
}

Alignment settle_alignment(const Options& o, const Row& row) {
  if (o.align.empty() && row.causal && row.shape.seq_q != row.shape.seq_k)
    throw UsageError(
        fmt::format("{}: a causal mask over {} queries and {} keys has two meanings; choose with "
                    "--align top-left or --align bottom-right",
                    to_string(row.shape), row.shape.seq_q, row.shape.seq_k));
  return o.align == "bottom-right" ? Alignment::bottom_right : Alignment::top_left;
}

std::vector<Row> make_rows(const Options& o) {
  const std::vector<Shape> shapes = make_shapes(o);
  const std::vector<DType> dtypes = names("--dtype", o.dtype, kDTypes);
  const std::vector<bool> causal = names("--causal", o.causal, kCausal);
  const std::vector<MaskKind> masks = names("--mask", o.mask, kMasks);
  const std::vector<Variant> variants = make_variants(o);
  const std::vector<std::string> isas = settle_isas(o.isa);
  const std::vector<int> threads = make_threads(o.threads);
  std::vector<Row> rows;
  for (const Shape& shape : shapes)
    for (DType dtype : dtypes)
      for (bool is_causal : causal)
        for (MaskKind mask : masks)
          for (const Variant& variant : variants)
            for (const std::string& isa : isas)
              for (int count : threads) {
                Row row{shape,
                        dtype,
                        is_causal,
                        Alignment::top_left,
                        mask,
                        variant.mode,
                        variant.config,
                        isa,
                        count,
                        {},
                        {},
                        {}};
                row.alignment = settle_alignment(o, row);
                if (const std::string reason = why_not(row); !reason.empty())
                  throw UsageError(fmt::format("{}: {}", to_string(shape), reason));
                rows.push_back(row);
              }
  return rows;
}

// A measured row in numbers.
struct Figures {
  double median_us, p10_us, p90_us, gflops, pct_peak;
};

Figures figures(const Row& row, const Peaks& peaks) {
  const double median = quantile(row.seconds, 0.5);
  const double gflops = flops(row) / median / 1e9;
  const double peak = quantile(peaks.at(peak_key(row)), 0.5);
  return {median * 1e6, quantile(row.seconds, 0.1) * 1e6, quantile(row.seconds, 0.9) * 1e6, gflops,
          100 * gflops / peak};
}

// One table for people and for --csv: the same columns, as text.
using Cells = std::vector<std::string>;

Cells header() {
  return {"shape",     "dtype",  "causal", "mask",    "mode",   "isa",     "threads",
          "median us", "p10 us", "p90 us", "GFLOP/s", "% peak", "extra MB"};
}

Cells cells(const Row& row, const Peaks& peaks) {
  const Figures f = figures(row, peaks);
  return {to_string(row.shape),
          name_of(kDTypes, row.dtype),
          name_of(kCausal, row.causal),
          name_of(kMasks, row.mask),
          row.config ? cpu::to_string(*row.config) : name_of(kModes, row.mode),
          row.isa,
          fmt::format("{}", row.threads),
          fmt::format("{:.1f}", f.median_us),
          fmt::format("{:.1f}", f.p10_us),
          fmt::format("{:.1f}", f.p90_us),
          fmt::format("{:.1f}", f.gflops),
          fmt::format("{:.1f}", f.pct_peak),
          row.extra_mb ? fmt::format("{:.1f}", *row.extra_mb) : "unknown"};
}

constexpr size_t kFirstNumber = 6;  // columns from here on are right-aligned

std::string markdown(const std::vector<Cells>& lines) {
  std::vector<size_t> width(lines[0].size(), 3);
  for (const Cells& line : lines)
    for (size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  std::string text;
  for (size_t n = 0; n < lines.size(); ++n) {
    for (size_t i = 0; i < lines[n].size(); ++i)
      text += i < kFirstNumber ? fmt::format("| {:<{}} ", lines[n][i], width[i])
                               : fmt::format("| {:>{}} ", lines[n][i], width[i]);
    text += "|\n";
    if (n > 0) continue;
    for (size_t i = 0; i < width.size(); ++i)
      text += i < kFirstNumber ? fmt::format("|:{:-<{}}", "", width[i] + 1)
                               : fmt::format("|{:-<{}}:", "", width[i] + 1);
    text += "|\n";
  }
  return text;
}

std::string csv(const std::vector<Cells>& lines) {
  std::string text;
  for (const Cells& line : lines) text += fmt::format("{}\n", fmt::join(line, ","));
  return text;
}

Json to_json(const Row& row, const Peaks& peaks) {
  const Figures f = figures(row, peaks);
  const Shape& s = row.shape;
  std::vector<double> samples;
  for (double seconds : row.seconds) samples.push_back(seconds * 1e6);
  return {{"shape", to_string(s)},
          {"batch", s.batch},
          {"heads", s.heads},
          {"kv_heads", s.heads_kv},
          {"seq", s.seq_q},
          {"seq_k", s.seq_k},
          {"dim", s.dim},
          {"dim_v", s.dim_v},
          {"dtype", name_of(kDTypes, row.dtype)},
          {"causal", row.causal},
          {"mask", name_of(kMasks, row.mask)},
          {"mode", name_of(kModes, row.mode)},
          {"config", row.config ? Json(cpu::to_string(*row.config)) : Json(nullptr)},
          {"kernel", row.kernel},
          {"isa", row.isa},
          {"threads", row.threads},
          {"median_us", f.median_us},
          {"p10_us", f.p10_us},
          {"p90_us", f.p90_us},
          {"samples_us", samples},
          {"gflops", f.gflops},
          {"pct_peak", f.pct_peak},
          {"extra_mb", row.extra_mb ? Json(*row.extra_mb) : Json(nullptr)}};
}

Json to_json(const Peaks& peaks) {
  Json list = Json::array();
  for (const auto& [key, samples] : peaks)
    if (!samples.empty())
      list.push_back({{"isa", key.first},
                      {"threads", key.second},
                      {"median_gflops", quantile(samples, 0.5)},
                      {"max_gflops", quantile(samples, 1.0)}});
  return list;
}

int bench(const Options& options) {
  if (options.json == "-" && options.csv == "-")
    throw UsageError("--json and --csv cannot both go to stdout");
  std::vector<Row> rows = make_rows(options);
  Output json("--json", options.json);
  Output csv_file("--csv", options.csv);
  talk(fmt::format("{} rows, {} rounds in random order (seed {})", rows.size(), options.plan.rounds,
                   options.plan.seed));
  const auto begin = std::chrono::steady_clock::now();
  const Peaks peaks = measure(rows, options.plan);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;

  std::vector<Cells> lines{header()};
  Json json_rows = Json::array();
  for (const Row& row : rows) {
    if (row.seconds.empty()) continue;  // not reached before Ctrl-C
    lines.push_back(cells(row, peaks));
    json_rows.push_back(to_json(row, peaks));
  }
  if (!json.is_stdout() && !csv_file.is_stdout()) print(markdown(lines));
  csv_file.write(csv(lines));
  json.write(Json{{"rows", json_rows},
                  {"peaks", to_json(peaks)},
                  {"rounds", options.plan.rounds},
                  {"seed", options.plan.seed},
                  {"seconds", elapsed.count()},
                  {"version", attune_version()},
                  {"interrupted", interrupted()}}
                 .dump(2) +
             "\n");
  for (const Json& peak : to_json(peaks))
    talk(fmt::format("peak {} x{}: {:.1f} GFLOP/s (best {:.1f})", peak["isa"].get<std::string>(),
                     peak["threads"].get<int>(), peak["median_gflops"].get<double>(),
                     peak["max_gflops"].get<double>()));
  if (!interrupted()) return kOk;
  talk(fmt::format("interrupted: {} of {} rows measured", lines.size() - 1, rows.size()));
  return kInterrupted;
}

constexpr const char* kFooter =
    R"(Sizes are numbers, lists and ranges: 512 or 512,1024 or 512:4096:x2 or 128:1024:+128. Every
combination of the given values is a row; rows are measured in random order, round by round, so that
a neighbour's noise hits all of them alike.

Columns: the median time of a call and its 10th and 90th percentile over the rounds; GFLOP/s count
2*B*H*Sq*Sk*(D+Dv), half of it when causal (for Sq != Sk the allowed pairs); % of the multiply-add
rate of as many threads (at most one a processor), sampled in the same rounds (median); and how far
one call raises the peak of resident memory beyond its inputs and outputs.

Examples:
  attune bench --seq 512:4096:x2 --dim 64,128 --causal 0,1
  attune bench --shape 1x8x1024x64 --shape 1x32/8x1/16384x128 --dtype f32,bf16
  attune bench --seq 1024 --mode naive,fused --threads 1,2 --json result.json
  attune bench --seq 1024 --config mr6.nv4.exp5.bq192.bk128.sp0.dot2.pv0.rs8 --mode auto --csv -)";

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "bench", "Time attention over shapes: median, spread, GFLOP/s, % of peak, memory");
  sub->add_option("--device", o->device, "Where to run")
      ->check(CLI::IsMember({"cpu"}))
      ->capture_default_str();
  sub->add_option("--shape,--shapes", o->shapes,
                  "BxHxSxD; H/Hkv, Sq/Sk and D/Dv where they differ. Instead of the sizes below")
      ->delimiter(',')
      ->type_name("SHAPE");
  std::vector<CLI::Option*> sizes;
  auto size = [&](const char* name, std::string& target, const char* help) {
    sizes.push_back(sub->add_option(name, target, help)->type_name("SIZES")->capture_default_str());
  };
  size("--batch", o->batch, "Batch sizes");
  size("--heads", o->heads, "Query heads");
  size("--kv-heads", o->kv_heads, "Key and value heads; as many as --heads by default");
  size("--seq", o->seq, "Sequence lengths");
  size("--seq-k", o->seq_k, "Numbers of keys; as --seq by default");
  size("--dim", o->dim, "Head dimensions");
  size("--dim-v", o->dim_v, "Head dimensions of V; as --dim by default");
  auto list = [&](const char* name, std::string& target, const char* help) {
    return sub->add_option(name, target, help)->type_name("LIST")->capture_default_str();
  };
  list("--dtype", o->dtype, "f32, f16, bf16");
  list("--causal", o->causal, "0, 1");
  sub->add_option("--align", o->align, "Where the causal diagonal lies when Sq != Sk")
      ->check(CLI::IsMember({"top-left", "bottom-right"}));
  list("--mask", o->mask, "none, bool, f32, f16, bf16; [B,1,Sq,Sk]");
  list("--mode", o->mode, "auto (default), reference, naive, fused");
  list("--config", o->config, "Configs of the fused kernel, past the library's own choice");
  list("--isa", o->isa, "Instruction sets: names from `attune info`, or all; the best by default");
  list("--threads", o->threads, "Thread counts, 1..1024; 0: all usable ones");
  sub->add_option("--min-time", o->plan.min_seconds, "Seconds a sample lasts at least")
      ->check(in_range(0.0, 60.0))
      ->capture_default_str();
  sub->add_option("--repeats", o->plan.rounds, "Rounds: samples a row")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  CLI::Option* seed =
      sub->add_option("--seed", o->plan.seed, "Seed of data and order; a fresh one by default");
  sub->add_option("--json", o->json, "Also write JSON to FILE; - : to stdout, instead of the table")
      ->type_name("FILE|-");
  sub->add_option("--csv", o->csv, "Also write CSV to FILE; - : to stdout, instead of the table")
      ->type_name("FILE|-");
  sub->footer(kFooter);
  sub->callback([o, seed, sizes, &run] {
    for (const CLI::Option* option : sizes) o->sizes_given |= option->count() > 0;
    if (seed->count() == 0) o->plan.seed = std::random_device{}();
    run = [o] { return bench(*o); };
  });
}

}  // namespace attune::cli
