// attune bench --device cuda: the rungs side by side.
#include <chrono>

#include "cli/bench.hpp"
#include "cli/machine.hpp"
#include "cli/measure_cuda.hpp"
#include "cli/terminal.hpp"
#include "src/select/cuda_select.hpp"

namespace attune::cli {
namespace {

constexpr int64_t kFewQueries = 16;  // up to here reading K and V is what takes the time

void must_fit(const BenchOptions& o) {
  if (!o.isa.empty()) throw UsageError("--isa does not go with --device cuda");
  if (o.threads_given) throw UsageError("--threads does not go with --device cuda");
}

std::vector<Named<attune_mode>> modes() {
  std::vector<Named<attune_mode>> modes = {{"auto", ATTUNE_AUTO}};
  for (const Rung* rung : rungs()) modes.push_back({rung->name, rung->mode});
  return modes;
}

struct Variant {
  attune_mode mode;
  std::optional<Config> config;
};

std::vector<Variant> make_variants(const BenchOptions& o) {
  std::vector<Variant> variants;
  if (o.mode == "all")
    for (const Rung* rung : rungs()) variants.push_back({rung->mode, {}});
  else if (!o.mode.empty() || o.config.empty())
    for (attune_mode mode : names("--mode", o.mode.empty() ? "auto" : o.mode, modes()))
      variants.push_back({mode, {}});
  if (o.config.empty()) return variants;
  for (const std::string& text : parsed("--config", [&] { return split_list(o.config); })) {
    Config config;
    if (!parse_config(text, &config))
      throw UsageError(fmt::format("--config: '{}' is not a config; some look like {} and {}", text,
                                   "fused.bq64.bk64.v1",
                                   "mma.wq4.wk1.wr32.bk64.st2.bs1.qr0.v1.sm0.pg0.kv0"));
    variants.push_back({ATTUNE_AUTO, config});
  }
  return variants;
}

struct Figures {
  double cold_us, p10_us, p90_us, warm_us, tflops, pct_peak, kv_tbps;
};

Figures figures(const CudaRow& row, const CudaPeaks& peaks) {
  const double cold = quantile(row.cold, 0.5);
  const double tflops = flops(row) / cold / 1e12;
  return {cold * 1e6,
          quantile(row.cold, 0.1) * 1e6,
          quantile(row.cold, 0.9) * 1e6,
          quantile(row.warm, 0.5) * 1e6,
          tflops,
          100 * tflops / quantile(peaks.at(row.peak), 0.5),
          kv_bytes(row) / cold / 1e12};
}

constexpr size_t kFirstNumber = 6;

Cells header() {
  return {"set",    "shape",   "dtype",   "causal", "mask",     "mode",     "cold us", "p10 us",
          "p90 us", "warm us", "TFLOP/s", "% peak", "K+V TB/s", "extra MB", "SM MHz",  "W"};
}

std::string median_or_dash(const std::vector<double>& values) {
  return values.empty() ? "-" : fmt::format("{:.0f}", quantile(values, 0.5));
}

double extra_mb(const CudaRow& row) { return static_cast<double>(row.workspace_bytes) / 0x1p20; }

Cells cells(const CudaRow& row, const CudaPeaks& peaks) {
  const Figures f = figures(row, peaks);
  const bool few = row.work.shape.seq_q <= kFewQueries;
  return {row.work.set,
          to_string(row.work.shape),
          name_of(kDTypes, row.work.dtype),
          name_of(kCausal, row.work.causal),
          name_of(kMasks, row.mask),
          variant_name(row),
          fmt::format("{:.1f}", f.cold_us),
          fmt::format("{:.1f}", f.p10_us),
          fmt::format("{:.1f}", f.p90_us),
          fmt::format("{:.1f}{}", f.warm_us, row.graph ? "g" : ""),
          fmt::format("{:.1f}", f.tflops),
          fmt::format("{:.1f}", f.pct_peak),
          few ? fmt::format("{:.2f}", f.kv_tbps) : "-",
          fmt::format("{:.1f}", extra_mb(row)),
          median_or_dash(row.sm_mhz),
          median_or_dash(row.watts)};
}

std::vector<double> in_us(const std::vector<double>& seconds) {
  std::vector<double> us;
  for (double s : seconds) us.push_back(s * 1e6);
  return us;
}

Json median_or_null(const std::vector<double>& values) {
  return values.empty() ? Json(nullptr) : Json(quantile(values, 0.5));
}

Json what_json(const CudaRow& row) {
  Json json = work_json(row.work, row.mask);
  json["mode"] = mode_name(row.mode);
  json["config"] = row.config ? Json(to_string(*row.config)) : Json(nullptr);
  return json;
}

Json to_json(const CudaRow& row, const CudaPeaks& peaks) {
  const Figures f = figures(row, peaks);
  Json json = what_json(row);
  json.update(Json{{"kernel", row.kernel},
                   {"median_us", f.cold_us},
                   {"p10_us", f.p10_us},
                   {"p90_us", f.p90_us},
                   {"samples_us", in_us(row.cold)},
                   {"warm_us", f.warm_us},
                   {"warm_samples_us", in_us(row.warm)},
                   {"warm_by", row.graph ? "graph" : "stream"},
                   {"tflops", f.tflops},
                   {"warm_tflops", flops(row) / f.warm_us / 1e6},
                   {"peak", peak_name(row.peak)},
                   {"pct_peak", f.pct_peak},
                   {"kv_tbps", f.kv_tbps},
                   {"extra_mb", extra_mb(row)},
                   {"sm_mhz", median_or_null(row.sm_mhz)},
                   {"watts", median_or_null(row.watts)}});
  return json;
}

Json to_json(const CudaPeaks& peaks) {
  Json list = Json::array();
  for (const auto& [kind, samples] : peaks)
    if (!samples.empty())
      list.push_back({{"name", peak_name(kind)},
                      {"median_tflops", quantile(samples, 0.5)},
                      {"max_tflops", quantile(samples, 1.0)}});
  return list;
}

}  // namespace

std::string variant_name(const CudaRow& row) {
  return row.config ? to_string(*row.config) : mode_name(row.mode);
}

std::vector<CudaRow> make_cuda_rows(const BenchOptions& o) {
  must_fit(o);
  const std::vector<MaskKind> masks = names("--mask", o.mask, kMasks);
  const std::vector<Variant> variants = make_variants(o);
  std::vector<CudaRow> rows;
  for (const Work& work : make_works(o))
    for (MaskKind mask : masks)
      for (const Variant& variant : variants) {
        CudaRow row;
        row.work = work;
        row.alignment = settle_alignment(o, work);
        row.mask = mask;
        row.mode = variant.mode;
        row.config = variant.config;
        rows.push_back(row);
      }
  return rows;
}

int bench_cuda(const BenchOptions& options) {
  std::vector<CudaRow> rows = make_cuda_rows(options);
  const cuda::Device device = cuda_device();
  Output json("--json", options.json);
  Output csv_file("--csv", options.csv);
  talk(fmt::format("{} rows{} on {}, {} rounds in random order (seed {})", rows.size(),
                   options.lse ? " with LSE" : "", device.name, options.sampling.rounds,
                   options.sampling.seed));
  const auto begin = std::chrono::steady_clock::now();
  const CudaPeaks peaks = measure_cuda(rows, options.sampling, device);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;

  std::vector<Cells> lines{header()};
  Json json_rows = Json::array(), left_out = Json::array();
  for (const CudaRow& row : rows) {
    if (!row.why_not.empty()) {
      talk(fmt::format("left out: {} {}: {}", to_string(row.work.shape), variant_name(row),
                       row.why_not));
      left_out.push_back(what_json(row));
      left_out.back()["reason"] = row.why_not;
    } else if (!row.cold.empty()) {  // else: not reached before Ctrl-C
      lines.push_back(cells(row, peaks));
      json_rows.push_back(to_json(row, peaks));
    }
  }
  const Json report = {{"rows", json_rows},
                       {"left_out", left_out},
                       {"peaks", to_json(peaks)},
                       {"device", device.name},
                       {"compute_capability", device.arch.cc / 10.0},
                       {"rounds", options.sampling.rounds},
                       {"seed", options.sampling.seed},
                       {"seconds", elapsed.count()},
                       {"version", attune_version()},
                       {"interrupted", interrupted()}};
  write_results(lines, kFirstNumber, report, json, csv_file);
  for (const Json& peak : to_json(peaks))
    talk(fmt::format("peak {}: {:.1f} TFLOP/s (best {:.1f})", peak["name"].get<std::string>(),
                     peak["median_tflops"].get<double>(), peak["max_tflops"].get<double>()));
  if (interrupted()) {
    talk(fmt::format("interrupted: {} of {} rows measured", lines.size() - 1, rows.size()));
    return kInterrupted;
  }
  if (lines.size() > 1) return kOk;
  talk("no row could run");
  return kFailed;
}

}  // namespace attune::cli
