// attune judge: one program, one verdict.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "cli/bench.hpp"
#include "cli/commands.hpp"
#include "cli/evolve_options.hpp"
#include "cli/judge_module.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/peak_cuda.hpp"
#include "cli/program.hpp"
#include "cli/self_test.hpp"
#include "cli/terminal.hpp"
#include "evolve/compile/compiler_text.hpp"
#include "evolve/compile/contract.hpp"
#include "evolve/compile/cuda_program.hpp"
#include "evolve/judge/timed_set.hpp"

namespace attune::cli {
namespace {

namespace fs = std::filesystem;
using evolve::Contract;
using evolve::Evaluation;
using evolve::Language;
using evolve::RunMeta;

constexpr int kSchema = 1;
constexpr double kPeakSeconds = 0.2;
// Small enough that plain loops are judged in seconds.
const std::vector<std::string> kCpuShapes = {"1x8x1024x64"};

struct Options {
  std::string file, device, dtype, pass, json, reference, python;
  std::vector<std::string> shapes;
  bool causal = false, self_test = false, modules = false;
  int threads = 0;
};

// ---- what is asked ----

EvolveOptions run_of(const Options& o, const Program& p) {
  EvolveOptions e;
  e.device = o.device;
  e.shapes = o.shapes;
  e.dtype = o.dtype;
  e.causal = o.causal ? "1" : "0";
  e.threads = o.threads;
  settle_for(p, p.language == Language::cuda ? kCudaShapes : kCpuShapes, &e);
  return e;
}

RunMeta meta_of(const Options& o, const Program& p) { return new_meta(run_of(o, p)); }

// ---- what is measured ----

struct Judged {
  evolve::TimedShape shape;
  std::string library;  // what calls of this shape run
  Evaluation evaluation;

  bool timed() const {
    return !evaluation.shapes.empty() && !evaluation.shapes[0].candidate.empty();
  }
  double seconds() const { return evolve::median(evaluation.shapes[0].candidate); }
  double library_seconds() const { return evolve::median(evaluation.shapes[0].incumbent); }
  double gflops() const { return evolve::flops_of(shape.problem) / seconds() / 1e9; }
};

// Each shape by itself, beside what the library runs there, until one is refused.
std::vector<Judged> judge_shapes(const RunMeta& meta, const Program& program) {
  const Scratch scratch;
  const std::string copy = scratch.path() + "/program";  // of what was read: the file may change
  std::ofstream(copy, std::ios::binary) << program.text;
  std::vector<Judged> all;
  for (const evolve::TimedShape& shape : meta.shapes) {
    RunMeta one = meta;
    one.shapes = {shape};
    one.library = library_now(one);
    const auto space = space_of(one);
    const std::string library = space->print(space->library_default());
    talk(fmt::format("judging {} ({}) at {} on {}, beside {}", program.file,
                     contract_name(program.contract), shape.name, meta.machine, library));
    evolve::EvaluatorOptions options = evaluator_options(one, scratch.path());
    options.admit_slow = true;
    const auto evaluator = evaluator_of(one, std::move(options));
    all.push_back(
        {shape, library, evaluator->evaluate({program.file, "", copy}, {library, library, ""})});
    if (interrupted() || !all.back().evaluation.ok()) break;
  }
  return all;
}

// In GFLOP/s; 0 where it is not known.
double measured_peak(const RunMeta& meta) {
  if (!on_cuda(meta)) return peak_gflops(concurrent_threads(meta.threads), kPeakSeconds);
  const DType dtype = meta.shapes[0].problem.dtype;
  double tflops = 0;
  const PeakKind kind = dtype == DType::f16    ? PeakKind::f16
                        : dtype == DType::bf16 ? PeakKind::bf16
                                               : PeakKind::f32;
  const Status status = gpu_peak(cuda_ordinal(meta), kind, &tflops);
  if (!status.ok()) talk("the peak of the GPU could not be measured: " + status.message);
  return status.ok() ? 1e3 * tflops : 0;
}

// ---- what is said ----

struct Report {
  const Program* program;
  const RunMeta* meta;
  std::vector<Judged> shapes;
  double peak = 0;

  const Evaluation& last() const { return shapes.back().evaluation; }
  bool ok() const { return last().ok() && shapes.size() == meta->shapes.size(); }
  // The shape that came nearest to its limit.
  const Evaluation& nearest() const {
    const auto used = [](const Judged& j) {
      return j.evaluation.limit > 0 ? j.evaluation.error / j.evaluation.limit : -1;
    };
    return std::max_element(shapes.begin(), shapes.end(),
                            [&](const Judged& a, const Judged& b) { return used(a) < used(b); })
        ->evaluation;
  }
  double percent(const Judged& j) const { return peak > 0 ? 100 * j.gflops() / peak : 0; }
};

std::string indented(std::string text) {
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1))
    text.insert(at + 1, "          ");
  return text;
}

std::string speed_text(const evolve::Interval& s) {
  return std::isfinite(s.high) ? fmt::format("{:.3g} ({:.3g}..{:.3g})", s.mid, s.low, s.high)
                               : fmt::format("{:.3g}", s.mid);
}

std::string text_of(const Report& r) {
  const Evaluation& e = r.last();
  std::string text =
      fmt::format("verdict   {}\nstage     {}\n", verdict_name(e.verdict), stage_name(e.stage));
  if (!e.ok()) text += fmt::format("reason    {}\n", indented(own_words(*r.program, e.why)));
  if (const Evaluation& near = r.nearest(); near.limit > 0)
    text += fmt::format("error     {:.2e}, allowed {:.2e}\n", near.error, near.limit);
  for (const evolve::KernelUse& k : e.kernels)
    text += fmt::format("kernel    {}: {} registers, {} bytes spilled\n", k.name, k.registers,
                        k.spill_stores + k.spill_loads);
  std::vector<Cells> lines{
      {"shape", "time", "library", "GFLOP/s", "% of peak", "speed against the library"}};
  for (const Judged& j : r.shapes)
    if (j.timed())
      lines.push_back({j.shape.name, fmt::format("{:.4g} ms", 1e3 * j.seconds()),
                       fmt::format("{:.4g} ms", 1e3 * j.library_seconds()),
                       fmt::format("{:.1f}", j.gflops()),
                       r.peak > 0 ? fmt::format("{:.1f}", r.percent(j)) : "-",
                       j.evaluation.ok() ? speed_text(j.evaluation.speedup) : "-"});
  if (lines.size() > 1) text += markdown(lines, 1);
  return text;
}

evolve::Json shape_json(const Report& r, const Judged& j) {
  const evolve::Interval& s = j.evaluation.speedup;
  return {{"shape", j.shape.name},
          {"seconds", j.seconds()},
          {"library", j.library},
          {"library_seconds", j.library_seconds()},
          {"gflops", j.gflops()},
          {"efficiency_percent", r.peak > 0 ? evolve::Json(r.percent(j)) : evolve::Json()},
          {"speedup", {{"low", s.low}, {"mid", s.mid}, {"high", s.high}}},
          {"samples", j.evaluation.shapes[0].candidate.size()}};
}

// The fields that evaluators of evolutionary searches return: one number to make larger, and what
// it is made of.
void add_metrics(const Report& r, evolve::Json* json) {
  evolve::Json benchmarks = evolve::Json::array();
  double tflops = 0, percent = 0;
  int valid = 0;
  for (const Judged& j : r.shapes) {
    const bool correct = j.evaluation.ok() && j.timed();
    const Problem& p = j.shape.problem;
    benchmarks.push_back({{"batch", p.batch},
                          {"heads", p.heads_q},
                          {"seq_len", p.seq_q},
                          {"head_dim", p.dim},
                          {"tflops", correct ? j.gflops() / 1e3 : 0},
                          {"correct", correct}});
    if (!correct) continue;
    ++valid;
    tflops += j.gflops() / 1e3;
    percent += r.percent(j);
  }
  const double efficiency = valid > 0 ? percent / valid : 0;
  (*json)["benchmarks"] = benchmarks;
  (*json)["avg_tflops"] = valid > 0 ? tflops / valid : 0;
  (*json)["all_correct"] = r.ok();
  (*json)["valid_benchmarks"] = valid;
  // 0 is said of a refused program alone.
  const bool unknown = r.ok() && !(r.peak > 0);
  (*json)["efficiency_percent"] = unknown ? evolve::Json() : evolve::Json(efficiency);
  (*json)["combined_score"] =
      unknown ? evolve::Json() : evolve::Json(r.ok() ? efficiency / 100 : 0);
}

evolve::Json json_of(const Report& r) {
  const Evaluation& e = r.last();
  evolve::Json errors = evolve::Json::array();
  if (e.verdict == evolve::Verdict::compile_failed)
    for (const evolve::TextError& error : evolve::errors_by_line(e.why))
      errors.push_back(
          {{"line", error.line}, {"column", error.column}, {"message", error.message}});
  evolve::Json shapes = evolve::Json::array();
  for (const Judged& j : r.shapes)
    if (j.evaluation.ok() && j.timed()) shapes.push_back(shape_json(r, j));
  evolve::Json json = {{"schema", kSchema},
                       {"file", r.program->file},
                       {"contract", contract_name(r.program->contract)},
                       {"verdict", verdict_name(e.verdict)},
                       {"stage", stage_name(e.stage)},
                       {"why", own_words(*r.program, e.why)},
                       {"errors", errors},
                       {"error", r.nearest().error},
                       {"limit", r.nearest().limit},
                       {"shapes", shapes},
                       {"machine",
                        {{"name", r.meta->machine},
                         {"threads", r.meta->threads},
                         {"peak_gflops", r.peak > 0 ? evolve::Json(r.peak) : evolve::Json()},
                         {"version", r.meta->version}}}};
  for (const evolve::KernelUse& k : e.kernels)
    json["kernels"].push_back({{"name", k.name},
                               {"registers", k.registers},
                               {"spill_stores", k.spill_stores},
                               {"spill_loads", k.spill_loads},
                               {"shared", k.shared}});
  add_metrics(r, &json);
  return json;
}

int judge_program(const Options& o) {
  const Program program = read_program(o.file, o.pass);
  Output json("--json", o.json);
  const RunMeta meta = meta_of(o, program);
  Report r{&program, &meta, {}, 0};
  r.shapes = judge_shapes(meta, program);
  if (interrupted()) {
    talk("stopped: no verdict");
    return kInterrupted;
  }
  const bool timed =
      std::any_of(r.shapes.begin(), r.shapes.end(), [](const Judged& j) { return j.timed(); });
  if (timed) r.peak = measured_peak(meta);
  if (!json.is_stdout()) print(text_of(r));
  json.write(json_of(r).dump(2, ' ', false, evolve::Json::error_handler_t::replace) + "\n");
  return r.ok() ? kOk : kFailed;
}

int judge(const Options& o) {
  if (o.self_test && !o.file.empty())
    throw UsageError("--self-test judges programs of its own: leave FILE out");
  if (o.modules && !o.self_test)
    throw UsageError("--modules is for --self-test; a module of your own is FILE");
  if (!o.self_test && o.file.empty())
    throw UsageError("name the program to judge: attune judge FILE (or --self-test)");
  if (o.self_test) return self_test({o.device, o.json, o.python, o.modules});
  if (!is_module(o.file)) {
    if (!o.reference.empty() || !o.python.empty())
      throw UsageError(fmt::format("{} is for modules, and {} is none (.py)",
                                   o.reference.empty() ? "--python" : "--reference", o.file));
    return judge_program(o);
  }
  for (const auto& [given, name] : {std::pair{o.causal, "--causal"},
                                    {!o.dtype.empty(), "--dtype"},
                                    {!o.pass.empty(), "--pass"},
                                    {o.threads != 0, "--threads"}})
    if (given) throw UsageError(fmt::format("{}: it is for programs; a module has its own", name));
  return judge_module({o.file, o.reference, o.device, o.json, o.python, o.shapes});
}

}  // namespace

void add_judge(CLI::App& app, Run& run) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "judge", "Check one attention program or torch module, and time it beside a known one");
  sub->add_option("FILE", o->file,
                  "The program: .cpp for the CPU, .cu for a GPU (needs nvcc), .py for a\n"
                  "torch module (needs Python with torch)")
      ->type_name("");
  sub->add_option("--shape", o->shapes,
                  "Batch x heads x sequence x head dimension; may be repeated.\n"
                  "Default: 1x8x1024x64 on the CPU; on a GPU 8x32x512x64,\n"
                  "4x32x1024x64, 2x32x2048x64 and 1x32x4096x64. Of a module one:\n"
                  "4x8x128x32, on a GPU 32x8x256x96 (n_embd is heads x head dimension)")
      ->type_name("BxHxSxD");
  sub->add_flag("--causal", o->causal, "Time with a causal mask: query i sees the keys j <= i");
  sub->add_option("--dtype", o->dtype,
                  "f32 (default on the CPU), f16 (default on a GPU) or bf16.\n"
                  "run_attention has the default alone")
      ->type_name("TYPE")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  sub->add_option("--pass", o->pass,
                  "forward or backward (attune_candidate_backward). Default: the forward\n"
                  "pass where FILE defines it")
      ->type_name("PASS")
      ->check(CLI::IsMember({"forward", "backward"}));
  sub->add_option("--device", o->device,
                  "cpu, cuda (the first GPU), cuda:1, ... Default: by the extension\nof FILE")
      ->type_name("NAME")
      ->check(device_name_problem);
  sub->add_option("--threads", o->threads,
                  "CPU threads of a program with attune_candidate; 0 (default): all.\n"
                  "run_attention has one")
      ->type_name("N")
      ->check(CLI::Range(0, kMostThreads));
  sub->add_option("--reference", o->reference,
                  "A module's problem, as KernelBench has it: Model, get_inputs and\n"
                  "get_init_inputs. FILE defines ModelNew then")
      ->type_name("FILE");
  sub->add_option("--python", o->python,
                  "For a module. Default: that of the active virtual environment,\n"
                  ".venv/bin/python here, python3")
      ->type_name("PROGRAM");
  add_output(sub, "--json", o->json, "Write the verdict as JSON to FILE");
  sub->add_flag("--self-test", o->self_test,
                "Instead of FILE: judge the known ways to deceive a judge, and show\n"
                "that each is refused. About a minute; with --device cuda those of CUDA\n"
                "programs, on that GPU");
  sub->add_flag("--modules", o->modules,
                "With --self-test: those of torch modules. Some minutes; needs Python\n"
                "with torch");
  sub->footer(R"(The program defines one function. For the CPU:
  extern "C" void run_attention(const float* Q, const float* K, const float* V, float* O,
                                int batch, int heads, int seq_len, int head_dim, bool causal)
for a GPU the same with half instead of float and a last argument cudaStream_t stream. Tensors are
contiguous [batch][heads][seq_len][head_dim], the scale is 1/sqrt(head_dim). It may define
attune_candidate of candidate.h instead, which has more dtypes, strides and threads, and, on the CPU,
attune_candidate_backward: the gradients of Q, K and V.

It is compiled, checked against a float64 reference on new inputs (odd lengths, several batches,
logits of 1e4), and timed in turns with what the library runs for the shape. Every timed output is
checked. The program runs in its own process, without files, network or threads of its own.

A module defines Model(n_embd, n_head, attn_pdrop, resid_pdrop, max_seqlen), causal self-attention
from [batch, seq, n_embd] to the same. It is compared with a plain one with the same weights, and
agrees to 1e-5; with --reference, to KernelBench's tolerance. docs/python.md says how it is judged.

The verdict is ok, or the reason why the program was refused: compile_failed (with line numbers),
compile_timeout, wrong_result, crashed, run_timeout, launch_failed, invalid, cheated.

Examples:
  attune judge examples/cpu_attention/naive.cpp
  attune judge kernel.cpp --shape 1x8x1024x64 --shape 4x8x256x128 --causal
  attune judge kernel.cpp --json | jq .combined_score
  attune judge kernel.cu --shape 2x32x2048x64
  attune judge module.py --json
  attune judge new.py --reference problem.py
  attune judge --self-test
  attune judge --self-test --modules

Exit codes: 0 verdict ok, 1 refused, or an error, 2 wrong usage, 130 Ctrl-C. See docs/evolve.md.)");
  sub->callback([o, &run] { run = [o] { return judge(*o); }; });
}

}  // namespace attune::cli
