// attune bench: how fast attention runs here.
#include "cli/bench.hpp"

#include <chrono>
#include <memory>
#include <optional>

#include "cli/commands.hpp"
#include "cli/machine.hpp"
#include "cli/terminal.hpp"

namespace attune::cli {
namespace {

constexpr Named<attune_mode> kModes[] = {{"auto", ATTUNE_AUTO},
                                         {"reference", ATTUNE_REFERENCE},
                                         {"naive", ATTUNE_NAIVE},
                                         {"fused", ATTUNE_FUSED}};

// What computes: rungs of the ladder, given configs, or both.
struct Variant {
  attune_mode mode;
  std::optional<cpu::CpuConfig> config;
};

std::vector<Variant> make_variants(const BenchOptions& o) {
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

std::vector<Row> make_rows(const BenchOptions& o) {
  const std::vector<Work> works = make_works(o);
  const std::vector<MaskKind> masks = names("--mask", o.mask, kMasks);
  const std::vector<Variant> variants = make_variants(o);
  const std::vector<std::string> isas = settle_isas(o.isa);
  const std::vector<int> threads = make_threads(o.threads);
  std::vector<Row> rows;
  for (const Work& work : works)
    for (MaskKind mask : masks)
      for (const Variant& variant : variants)
        for (const std::string& isa : isas)
          for (int count : threads) {
            Row row{work.shape,
                    work.dtype,
                    work.causal,
                    work.lse,
                    settle_alignment(o, work),
                    mask,
                    variant.mode,
                    variant.config,
                    isa,
                    count,
                    o.backward(),
                    {},
                    {},
                    {}};
            if (const std::string reason = why_not(row); !reason.empty())
              throw UsageError(fmt::format("{}: {}", to_string(work.shape), reason));
            rows.push_back(row);
          }
  return rows;
}

// The rows of --list: what would be measured.
int list_rows(const BenchOptions& options) {
  Output json("--json", options.json);
  Output csv_file("--csv", options.csv);
  std::vector<Cells> lines{{"set", "shape", "dtype", "causal", "mask", "mode"}};
  Json json_rows = Json::array();
  const auto add = [&](const Work& work, MaskKind mask, const std::string& mode) {
    lines.push_back({work.set, to_string(work.shape), name_of(kDTypes, work.dtype),
                     name_of(kCausal, work.causal), name_of(kMasks, mask), mode});
    Json row = work_json(work, mask);
    row["mode"] = mode;
    json_rows.push_back(row);
  };
  if (options.cuda()) {
    for (const CudaRow& row : make_cuda_rows(options))
      if (left_out_of_set(row).empty()) add(row.work, row.mask, variant_name(row));
  } else {
    for (const Work& work : make_works(options))
      for (MaskKind mask : names("--mask", options.mask, kMasks))
        for (const Variant& variant : make_variants(options))
          add(work, mask,
              variant.config ? cpu::to_string(*variant.config) : name_of(kModes, variant.mode));
  }
  write_results(lines, lines[0].size(), Json{{"rows", json_rows}}, json, csv_file);
  return kOk;
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

Json to_json(const Row& row, const Peaks& peaks) {
  const Figures f = figures(row, peaks);
  std::vector<double> samples;
  for (double seconds : row.seconds) samples.push_back(seconds * 1e6);
  Json json = work_json({"", row.shape, row.dtype, row.causal, row.lse}, row.mask);
  json.update(Json{{"mode", name_of(kModes, row.mode)},
                   {"pass", row.backward ? "backward" : "forward"},
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
                   {"extra_mb", row.extra_mb ? Json(*row.extra_mb) : Json(nullptr)}});
  return json;
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

int bench(const BenchOptions& options) {
  if (options.json == "-" && options.csv == "-")
    throw UsageError("--json and --csv cannot both go to stdout");
  if (options.arch != 0 && !options.cold) throw UsageError("--arch: it goes with --cold");
  if (options.cuda() && options.backward())
    throw UsageError("--pass backward does not go with --device cuda");
  if (options.list) return list_rows(options);
  if (options.cold) return bench_cold(options);
  if (options.cuda()) return bench_cuda(options);
  std::vector<Row> rows = make_rows(options);
  Output json("--json", options.json);
  Output csv_file("--csv", options.csv);
  talk(fmt::format("{} rows{}, {} rounds in random order (seed {})", rows.size(),
                   options.lse ? " with LSE" : "", options.sampling.rounds, options.sampling.seed));
  const auto begin = std::chrono::steady_clock::now();
  const Peaks peaks = measure(rows, options.sampling);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;

  std::vector<Cells> lines{header()};
  Json json_rows = Json::array();
  for (const Row& row : rows) {
    if (row.seconds.empty()) continue;  // not reached before Ctrl-C
    lines.push_back(cells(row, peaks));
    json_rows.push_back(to_json(row, peaks));
  }
  write_results(lines, kFirstNumber,
                Json{{"rows", json_rows},
                     {"peaks", to_json(peaks)},
                     {"rounds", options.sampling.rounds},
                     {"seed", options.sampling.seed},
                     {"seconds", elapsed.count()},
                     {"version", attune_version()},
                     {"interrupted", interrupted()}},
                json, csv_file);
  for (const Json& peak : to_json(peaks))
    talk(fmt::format("peak {} x{}: {:.1f} GFLOP/s (best {:.1f})", peak["isa"].get<std::string>(),
                     peak["threads"].get<int>(), peak["median_gflops"].get<double>(),
                     peak["max_gflops"].get<double>()));
  if (!interrupted()) return kOk;
  talk(fmt::format("interrupted: {} of {} rows measured", lines.size() - 1, rows.size()));
  return kInterrupted;
}

constexpr const char* kFooter =
    R"(Sizes are numbers, lists or ranges: 512 or 512,1024 or 512:4096:x2 or 128:1024:+128. Every
combination of the given values is one row of the table. The rows are measured in rounds, each round
in a new random order, so that noise on the machine affects all of them alike.

Columns: the median time of a call, and the 10th and 90th percentile over the rounds. GFLOP/s counts
2*B*H*Sq*Sk*(D+Dv) operations, with --pass backward 2*B*H*Sq*Sk*(3D+2Dv), half of that for causal (for
Sq != Sk, only the allowed pairs). % peak compares with the multiply-add rate of the same number of
threads, measured in the same rounds. extra MB is how much memory the call needs beyond its inputs
and outputs.

On CUDA, cold is the time of one call after the L2 cache was flushed, measured with CUDA events; warm
is the time of one call in a long series (below 50 us as a CUDA graph, marked g). % peak compares with
the tensor cores (mma.sync) for 16-bit rows, with the CUDA cores for fp32, and with a third of the
fp16 rate where fp32 runs on tensor cores as three products. K+V TB/s is the rate at which K and V
are read, for rows with few queries. extra MB is the workspace. Clock and power come from NVML.

Sets of shapes:
{sets}

Examples:
  attune bench --seq 512:4096:x2 --dim 64,128 --causal 0,1
  attune bench --shape 1x8x1024x64 --shape 1x32/8x1/16384x128 --dtype fp32,bf16
  attune bench --seq 1024 --mode naive,fused --threads 1,2 --json result.json
  attune bench --pass backward --seq 1024 --dim 64,128
  attune bench --device cuda --set d64-4k --mode all
  attune bench --device cuda --set decode,bf16-16k --json result.json
  attune bench --device cuda --set bf16-16k --lse
  attune bench --cold --shape 1x8x512x64,1x8x512x128 --dtype bf16
  attune bench --set bf16-16k --list
  attune bench --seq 1024 --config mr6.nv4.exp5.bq192.bk128.sp0.dot2.pv0.rs8 --mode auto --csv)";

std::string footer() {
  std::string sets;
  for (const NamedSet& set : named_sets())
    sets += fmt::format("{}  {:<11} {}", sets.empty() ? "" : "\n", set.name, set.about);
  std::string text = kFooter;
  return text.replace(text.find("{sets}"), 6, sets);
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* sub = app.add_subcommand(
      "bench", "Measure time, FLOP/s, % of peak and memory of attention over shapes");
  sub->add_option("--device", o->device, "The device that computes")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  sub->add_option("--pass", o->pass, "backward: the backward pass alone, on the CPU")
      ->check(CLI::IsMember({"forward", "backward"}))
      ->capture_default_str();
  sub->add_option("--set", o->set,
                  "Measure these sets of shapes, listed below, instead of --shape or sizes")
      ->type_name("NAME,...");
  sub->add_option("--shape,--shapes", o->shapes,
                  "Measure this shape: batch x heads x sequence x head dimension.\n"
                  "Where two differ: H/Hkv, Sq/Sk, D/Dv, as in 1x32/8x1/16384x128")
      ->delimiter(',')
      ->type_name("SHAPE");
  std::vector<CLI::Option*> sizes;
  auto size = [&](const char* name, std::string& target, const char* help) {
    sizes.push_back(sub->add_option(name, target, help)->type_name("SIZES")->capture_default_str());
  };
  size("--batch", o->batch, "Batch sizes");
  size("--heads", o->heads, "Query heads");
  size("--kv-heads", o->kv_heads, "Key and value heads. Default: as --heads");
  size("--seq", o->seq, "Sequence lengths");
  size("--seq-k", o->seq_k, "Number of keys. Default: as --seq");
  size("--dim", o->dim, "Head dimensions");
  size("--dim-v", o->dim_v, "Head dimensions of V. Default: as --dim");
  auto list = [&](const char* name, std::string& target, const char* help) {
    return sub->add_option(name, target, help)->type_name("LIST")->capture_default_str();
  };
  CLI::Option* dtype =
      list("--dtype", o->dtype, "f32, f16, bf16; fp32 and float32 are the same as f32");
  CLI::Option* causal =
      list("--causal", o->causal, "0: every query sees every key; 1: causal; 0,1: both");
  sub->add_flag("--lse", o->lse, "Calls return the log-sum-exp of each row too, as training does");
  sub->add_option("--align", o->align,
                  "Where the causal diagonal starts when Sq != Sk: top-left as in\n"
                  "PyTorch, bottom-right as in FlashAttention")
      ->check(CLI::IsMember({"top-left", "bottom-right"}));
  list("--mask", o->mask, "none, bool, or additive in f32, f16, bf16; its shape is [B,1,Sq,Sk]");
  list("--mode", o->mode,
       "The kernel: auto (the library's own choice, default), naive, fused;\n"
       "on the CPU also reference; on CUDA also tiled, mma, wgmma, all");
  list("--config", o->config, "Measure these kernel configs instead of the library's own choice");
  list("--isa", o->isa,
       "CPU instruction sets: names from `attune info`, or all.\n"
       "Default: the best one");
  CLI::Option* threads = list("--threads", o->threads, "Thread counts, 1 to 1024; 0: all");
  sub->add_flag("--list", o->list, "Print the rows that would be measured, and measure nothing");
  sub->add_flag("--cold", o->cold,
                "Instead: what the first CUDA call of a process waits for where no\n"
                "kernel is kept yet, in new processes (3, or --repeats)");
  sub->add_option("--arch", o->arch,
                  "With --cold: compile for this compute capability, 90 for 9.0,\n"
                  "without a GPU. Default: that of the GPU here, else 90")
      ->check(CLI::IsMember({75, 80, 86, 87, 89, 90, 100, 103, 120, 121}));
  sub->add_option("--min-time", o->sampling.min_seconds, "Shortest time of one sample, in seconds")
      ->check(in_range(0.0, 60.0))
      ->capture_default_str();
  CLI::Option* rounds = sub->add_option("--repeats", o->sampling.rounds,
                                        "Rounds; each row gets one sample in each round");
  rounds->check(CLI::Range(1, 100000))->capture_default_str();
  sub->add_option("--seed", o->seed,
                  "Seed of the data and the order, 0 to 2^64-1. Default: a new one")
      ->type_name("N");
  add_output(sub, "--json", o->json, "Also write JSON to FILE");
  add_output(sub, "--csv", o->csv, "Also write CSV to FILE");
  sub->footer(footer());
  sub->callback([o, sizes, dtype, causal, threads, rounds, &run] {
    o->rounds_given = rounds->count() > 0;
    o->dtype_given = dtype->count() > 0;
    o->causal_given = causal->count() > 0;
    o->threads_given = threads->count() > 0;
    for (const CLI::Option* option : sizes) o->sizes_given |= option->count() > 0;
    run = [o] {
      o->sampling.seed = settle_seed(o->seed);
      return bench(*o);
    };
  });
}

}  // namespace attune::cli
