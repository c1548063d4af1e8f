#include "evolve/propose/prompt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "evolve/compile/contract.hpp"
#include "evolve/compile/flags.hpp"
#include "evolve/genome/program.hpp"
#include "evolve/judge/device_limits.hpp"
#include "evolve/report/diff.hpp"

namespace attune::evolve {
namespace {

constexpr size_t kReason = 700;  // letters of a judge's or a compiler's reason
constexpr size_t kDiffLines = 40;
constexpr size_t kInspiration = 6000;  // letters of another program's blocks

std::string cut(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (uint8_t(text[end]) & 0xc0) == 0x80) --end;  // whole letters
  return text.substr(0, end) + "...";
}

double flops_of(const Problem& p) {
  const int64_t width =
      p.pass == Pass::backward ? 3 * p.dim + 2 * p.dim_v : p.dim + p.dim_v;  // of its products
  const double all =
      2.0 * double(p.batch) * double(p.heads_q) * double(p.seq_q) * double(p.seq_k) * double(width);
  return p.causal ? all / 2 : all;
}

const char* dtype_text(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
}

// What the GPU of a run is, as far as the run recorded it.
struct GpuFacts {
  int cc = 0, smem_block = 0, smem_sm = 0, sms = 0;
  double sm_mhz = 0, memory_mhz = 0, bus_bits = 0;  // 0: not known

  double hertz() const { return sms * sm_mhz * 1e6; }  // of all multiprocessors
  double tensor_gflops() const { return hertz() * tensor_flops_a_cycle(cc) / 1e9; }
  double fma_gflops() const { return hertz() * fma_flops_a_cycle(cc) / 1e9; }
  double gigabytes() const { return 2 * memory_mhz * 1e6 * bus_bits / 8 / 1e9; }  // a second
};

std::optional<GpuFacts> gpu_of(const Json& environment) {
  const auto arch = environment.find("arch");
  if (arch == environment.end() || !arch->is_array() || arch->size() != 4) return std::nullopt;
  GpuFacts gpu{(*arch)[0], (*arch)[1], (*arch)[2], (*arch)[3]};
  gpu.sm_mhz = environment.value("gpu_most_sm_mhz", 0.0);
  gpu.memory_mhz = environment.value("gpu_most_memory_mhz", 0.0);
  gpu.bus_bits = environment.value("gpu_memory_bus_bits", 0.0);
  return gpu;
}

// GFLOP/s that a program is compared with, and what that is. 0: nothing is known.
double peak_of(const RunMeta& meta, const char** what) {
  *what = "the measured peak";
  if (const double peak = meta.environment.value("peak_gflops", 0.0); peak > 0) return peak;
  const std::optional<GpuFacts> gpu = gpu_of(meta.environment);
  if (!gpu || !meta.device.starts_with("cuda") || meta.shapes.empty()) return 0;
  const bool wide = meta.shapes[0].problem.dtype == DType::f32;
  *what = wide ? "the float32 units' limit" : "the tensor cores' limit";
  return wide ? gpu->fma_gflops() : gpu->tensor_gflops();
}

// What the user's evaluator said of it.
std::string claims_text(const Record& r) {
  if (!r.evaluation.claims) return "";
  std::string text;
  for (const auto& [name, value] : r.evaluation.claims->metrics)
    text += fmt::format("- {}: {:.6g}\n", name, value);
  for (const auto& [name, value] : r.evaluation.claims->artifacts)
    text += fmt::format("- {}:\n{}\n", name, cut(value, kReason));
  return text;
}

std::string speed_text(const Scene& scene, int64_t n) {
  if (scene.meta.external) return claims_text(scene.records[size_t(n)]);
  const char* what = "";
  const double peak = peak_of(scene.meta, &what);
  std::string text;
  for (size_t s = 0; s < scene.meta.shapes.size(); ++s) {
    const double seconds = seconds_of(scene, n, s);
    if (!(seconds > 0)) continue;
    const double rate = flops_of(scene.meta.shapes[s].problem) / seconds / 1e9;
    text += fmt::format("- {}: {:.4g} ms a call, {:.4g} GFLOP/s", scene.meta.shapes[s].name,
                        seconds * 1e3, rate);
    if (peak > 0) text += fmt::format(", {:.1f} % of {}", 100 * rate / peak, what);
    text += "\n";
  }
  const Record& r = scene.records[size_t(n)];
  for (const KernelUse& k : r.evaluation.kernels)
    text += fmt::format(
        "- kernel {}: {} registers a thread, {} bytes of static shared memory, spills: {}\n",
        k.name, k.registers, k.shared,
        k.spill_stores + k.spill_loads == 0
            ? "none"
            : fmt::format("{} bytes stored, {} loaded", k.spill_stores, k.spill_loads));
  if (r.outcome.ok)
    text += fmt::format("- {:.3g} times as fast as the program that the run began with\n",
                        std::exp(r.outcome.fitness));
  return text;
}

std::string program_of(const Scene& scene, int64_t n) {
  return without_flags_comment(scene.space.program(scene.records[size_t(n)].proposal.genome));
}

std::string fence(const Scene& scene, const std::string& code) {
  const std::string extension = scene.meta.program->extension();
  const std::string language = extension == ".cu"   ? "cuda"
                               : extension == ".py" ? "python"
                                                    : extension.substr(1);
  return fmt::format("```{}\n{}{}```\n", language, code, code.ends_with('\n') ? "" : "\n");
}

constexpr fmt::string_view kMarkerRules =
    "- Only lines between the comments EVOLVE-BLOCK-START and EVOLVE-BLOCK-END may change. "
    "Everything else, the markers included, stays as it is, byte by byte; another answer is "
    "refused before it is {}.\n"
    "- A line with EVOLVE-PARAM NAME {{values}} declares a tunable. You may use one of the listed "
    "values, and declare tunables of new names in a block. The search tries their values.\n";

// Where the user's evaluator judges: what it looks at is not known.
std::string external_task_text(const ExternalSpec& spec) {
  return fmt::format(
             "# Task\n\nMake this program better. An evaluator of its owner runs it and gives it a "
             "score{}: {} is better. An evaluation may take {:.6g} seconds.\n\nRules:\n",
             spec.metric.empty() ? "" : fmt::format(", the metric {}", spec.metric),
             spec.minimize ? "less" : "more", spec.seconds) +
         fmt::format(fmt::runtime(kMarkerRules), "run");
}

// A torch module, which Attune judges.
std::string module_task_text(const ExternalSpec& spec) {
  const bool pair =
      std::find(spec.judge.begin(), spec.judge.end(), "--reference") != spec.judge.end();
  std::string text = "# Task\n\nMake this torch module faster. ";
  if (pair) {
    text += "It defines ModelNew, which replaces the Model of a KernelBench problem. ";
  } else {
    text +=
        "It defines Model, from [batch, seq, n_embd] to the same shape, in float32. Parameters "
        "keep their names and shapes: the weights of the program that the run began with are "
        "loaded into it. It is timed with";
    for (size_t n = 0; n + 1 < spec.judge.size(); n += 2)
      text +=
          fmt::format("{} {} {}", n == 0 ? "" : ",", spec.judge[n].substr(2), spec.judge[n + 1]);
    text += ". ";
  }
  return text + "The score is its speed over the reference, without gradients.\n\nRules:\n" +
         fmt::format(fmt::runtime(kMarkerRules), "run") +
         fmt::format(
             "- Every call has new inputs, and its whole result is compared with the "
             "reference's{}. "
             "No results kept between calls, nothing computed outside the timed call.\n"
             "- It runs in a sandbox: no files but its own folder's, no processes, no network.\n",
             pair ? "" : ", to 1e-5, and with float64; at other batches, lengths and scales too");
}

}  // namespace

namespace {

constexpr const char* kRunAttention = "head_dim is {}; seq_len is from 1.\n";

bool is_plain(const Scene& scene) {
  const Pass pass = scene.meta.shapes[0].problem.pass;
  return contract_of(scene.meta.program->text, pass) == Contract::run_attention;
}

std::string host_rules(const Scene& scene) {
  std::string text =
      "- The search chooses the compiler's flags, unrolling and the values of tunables by itself. "
      "Change the algorithm, the data layout, the vectorisation, the blocking.\n";
  if (is_plain(scene))
    text += "- One thread computes. " + fmt::format(kRunAttention, "any multiple of 8 up to 256");
  return text;
}

std::string cuda_rules(const Scene& scene) {
  const ProgramSource& program = *scene.meta.program;
  ProgramText parsed;
  const bool flags =
      parse_program(program.text, &parsed).ok() &&
      std::any_of(parsed.tunables.begin(), parsed.tunables.end(), [](auto& t) { return t.flags; });
  const DType dtype = scene.meta.shapes[0].problem.dtype;
  std::string text = fmt::format(
      "- Q, K, V and O are {}, in the memory of the GPU.{}\n"
      "- All work goes into the given stream: no other stream, no callback of the host, and no "
      "work "
      "that goes on when the stream has ended. What it sets aside of the second-level cache is "
      "looked for.\n"
      "- It may use CUDA's run time and headers of the toolkit, and no other library: no cuBLAS, "
      "cuDNN or CUTLASS, no kernels that are loaded. It is compiled by nvcc for this GPU.\n"
      "- The search chooses launch bounds, unrolling and the values of tunables by itself{}. "
      "Change "
      "the algorithm, the data layout, what lies in shared memory, how it is copied.\n",
      dtype_text(dtype), dtype == DType::f32 ? "" : " Sums are float32.",
      flags ? ", and the compiler's flags that the program declares as a tunable"
            : "; the compiler's flags are fixed");
  if (is_plain(scene)) text += "- " + fmt::format(kRunAttention, "that of the timed shapes");
  return text;
}

std::string gpu_text(const Json& environment) {
  const std::optional<GpuFacts> gpu = gpu_of(environment);
  if (!gpu) return "";
  std::string text = fmt::format(
      "- compute capability {}.{}, {} multiprocessors; shared memory: {} KiB each, at most {} KiB "
      "a "
      "block; 65536 registers each\n",
      gpu->cc / 10, gpu->cc % 10, gpu->sms, gpu->smem_sm >> 10, gpu->smem_block >> 10);
  if (const int64_t bytes = environment.value("gpu_l2", int64_t{0}); bytes > 0)
    text += fmt::format("- second-level cache: {} MiB\n", bytes >> 20);
  if (gpu->sm_mhz > 0)
    text += fmt::format(
        "- at the highest clock, {:.0f} MHz: tensor cores {:.4g} TFLOP/s (16-bit operands), "
        "float32 "
        "{:.3g} TFLOP/s\n",
        gpu->sm_mhz, gpu->tensor_gflops() / 1e3, gpu->fma_gflops() / 1e3);
  if (gpu->gigabytes() > 0)
    text += fmt::format("- memory: {:.0f} GB/s at most\n", gpu->gigabytes());
  return text;
}

}  // namespace

double seconds_of(const Scene& scene, int64_t n, size_t shape) {
  const Record& own = scene.records[size_t(n)];
  const auto of = [&](const Record& r, bool candidate) {
    if (shape >= r.evaluation.shapes.size()) return 0.0;
    const ShapeSamples& s = r.evaluation.shapes[shape];
    const std::vector<double>& samples = candidate ? s.candidate : s.incumbent;
    return samples.empty() ? 0.0 : median(samples);
  };
  if (const double seconds = of(own, true); seconds > 0) return seconds;
  for (const Record& r : scene.records)  // it was timed beside a successor
    if (r.incumbent == own.candidate.id)
      if (const double seconds = of(r, false); seconds > 0) return seconds;
  return 0;
}

std::string task_text(const Scene& scene) {
  if (scene.meta.external && scene.meta.external->judged())
    return module_task_text(*scene.meta.external);
  if (scene.meta.external) return external_task_text(*scene.meta.external);
  const ProgramSource& program = *scene.meta.program;
  const bool cuda = program.language == Language::cuda;
  std::string text = fmt::format(
      "# Task\n\nMake this {} program faster. It computes {}attention, O = softmax(scale * Q K^T) "
      "V "
      "for each batch and head{}.\n\nIt is timed on:\n",
      cuda ? "CUDA" : "C++",
      scene.meta.shapes[0].problem.pass == Pass::backward
          ? "dQ, dK and dV, the gradients of the inputs, from dO, O and the log-sum-exp, of "
          : "",
      is_plain(scene) ? ", with scale = 1/sqrt(head_dim)" : "");
  for (const TimedShape& s : scene.meta.shapes)
    text += fmt::format(
        "- batch {}, heads {} (key heads {}), queries {}, keys {}, head_dim {} (values {}), "
        "{}{}{}\n",
        s.problem.batch, s.problem.heads_q, s.problem.heads_kv, s.problem.seq_q, s.problem.seq_k,
        s.problem.dim, s.problem.dim_v, dtype_text(s.problem.dtype),
        s.problem.causal ? ", causal" : "", s.problem.lse ? ", with the log-sum-exp" : "");
  text += "\nRules:\n" + fmt::format(fmt::runtime(kMarkerRules), "compiled");
  text += fmt::format(
      "- The program is checked on other shapes too: short and odd lengths, batches, causal and "
      "not, logits of 1e4, one key with all weight. Every output of a timed call is compared with "
      "a reference. The error may not be larger than that of {} by much: no "
      "approximations that lose accuracy, no results kept between calls, nothing computed outside "
      "the timed call.\n"
      "- It runs in a sandbox: no files, processes, threads of its own, or network. Includes of "
      "files by absolute or relative paths are refused.\n",
      cuda ? "tensor cores that take 16-bit operands and sum in float32" : "plain float32 loops");
  return text + (cuda ? cuda_rules(scene) : host_rules(scene));
}

std::string machine_text(const Scene& scene) {
  std::string text = fmt::format("# Machine\n\n- {}\n", scene.meta.machine);
  const Json& e = scene.meta.environment;
  const auto add = [&](const char* name, const char* key) {
    if (e.contains(key) && e[key].is_string() && !e[key].get<std::string>().empty())
      text += fmt::format("- {}: {}\n", name, cut(e[key].get<std::string>(), 200));
  };
  add("instruction set", "isa");
  add("compiler", "compiler");
  add("compiler of the kernels", "nvcc");
  add("GPU", "gpu");
  text += gpu_text(e);
  if (scene.meta.cpu)
    text += fmt::format("- L1 data cache {} KiB, L2 cache {} KiB\n", scene.meta.cpu->l1_bytes >> 10,
                        scene.meta.cpu->l2_bytes >> 10);
  if (const double peak = e.value("peak_gflops", 0.0); peak > 0)
    text += fmt::format("- measured peak of fused multiply-adds, {} thread(s): {:.4g} GFLOP/s\n",
                        scene.meta.threads, peak);
  return text;
}

std::string program_text(const Scene& scene, int64_t n) {
  return "# The program\n\n" + speed_text(scene, n) + "\n" + fence(scene, program_of(scene, n));
}

std::vector<int64_t> inspirations_of(const Scene& scene, int64_t parent, size_t most) {
  std::vector<Elite> elites = scene.elites;
  std::sort(elites.begin(), elites.end(), [](const Elite& a, const Elite& b) {
    return a.fitness != b.fitness ? a.fitness > b.fitness : a.n < b.n;
  });
  ProgramText own;
  std::set<std::string> seen;
  const auto blocks_of = [&](int64_t n) {
    std::string all;
    ProgramText text;
    if (parse_program(program_of(scene, n), &text).ok())
      for (const Block& b : text.blocks) all += b.text;
    return all;
  };
  seen.insert(blocks_of(parent));
  std::vector<int64_t> chosen;
  for (const Elite& e : elites) {
    if (chosen.size() >= most) break;
    if (e.n < 0 || e.n >= int64_t(scene.records.size()) || e.n == parent) continue;
    if (seen.insert(blocks_of(e.n)).second) chosen.push_back(e.n);
  }
  return chosen;
}

std::string inspirations_text(const Scene& scene, const std::vector<int64_t>& records) {
  std::string text;
  for (const int64_t n : records) {
    ProgramText program;
    if (!parse_program(program_of(scene, n), &program).ok()) continue;
    std::string blocks;
    for (const Block& b : program.blocks) blocks += b.text;
    text += (text.empty() ? "# Other correct programs, for ideas\n\n" : "\n") +
            speed_text(scene, n) + "\n" + fence(scene, cut(blocks, kInspiration));
  }
  return text;
}

std::string failures_text(const Scene& scene, size_t most) {
  std::vector<std::string> lines;
  std::set<std::string> seen;
  const auto add = [&](const std::string& what, const std::string& why) {
    if (lines.size() < most && seen.insert(what + why).second)
      lines.push_back(fmt::format("- {}: {}\n", what, cut(why, kReason)));
  };
  // The answers' own first: those are what a proposer can learn from.
  for (auto r = scene.exchanges.refused.rbegin(); r != scene.exchanges.refused.rend(); ++r)
    if (lines.size() < (most + 1) / 2) add(r->second.verdict, r->second.why);
  for (auto r = scene.records.rbegin(); r != scene.records.rend(); ++r)
    if (!r->evaluation.ok() && (r->proposal.op == "model" || r->proposal.op == "manual"))
      add(verdict_name(r->evaluation.verdict), r->evaluation.why);
  for (auto r = scene.records.rbegin(); r != scene.records.rend(); ++r)
    if (!r->evaluation.ok()) add(verdict_name(r->evaluation.verdict), r->evaluation.why);
  std::string text;
  for (const std::string& line : lines)
    text += (text.empty() ? "# What failed lately\n\n" : "") + line;
  return text;
}

std::string steps_text(const Scene& scene, size_t most) {
  std::vector<const Record*> accepted;
  for (const Record& r : scene.records)
    if (r.outcome.improved) accepted.push_back(&r);
  std::string text;
  for (size_t k = accepted.size() > most + 1 ? accepted.size() - most : 1; k < accepted.size();
       ++k) {
    const std::string diff =
        unified_diff(program_of(scene, accepted[k - 1]->proposal.n),
                     program_of(scene, accepted[k]->proposal.n), "before", "after");
    size_t end = 0;
    for (size_t line = 0; line < kDiffLines && end != std::string::npos; ++line)
      end = diff.find('\n', end == 0 ? 0 : end + 1);
    const double gain = accepted[k]->evaluation.speedup.mid;
    text += fmt::format("{}{}:\n```diff\n{}\n```\n", text.empty() ? "# What paid off\n\n" : "\n",
                        scene.meta.external ? "the score, " + gain_text(*scene.meta.external, gain)
                                            : fmt::format("{:.3g} times as fast", gain),
                        diff.empty() ? "(flags of the compiler)" : diff.substr(0, end));
  }
  return text;
}

std::string answer_text(AnswerForm form) {
  if (form == AnswerForm::blocks)
    return "# Your answer\n\nWrite the block anew. Answer with one code block (between ``` lines) "
           "that has the EVOLVE-BLOCK-START line as it is in the program, the new lines, and the "
           "EVOLVE-BLOCK-END line. The block must be complete.\n";
  return "# Your answer\n\nAnswer with one or more edits of the program, each in this form:\n\n"
         "<<<<<<< SEARCH\nlines as they are in the program, letter by letter\n=======\n"
         "the lines that replace them\n>>>>>>> REPLACE\n\nThe SEARCH text is whole lines and must "
         "stand exactly once in the program. Or answer with one code block (between ``` lines) "
         "that has the whole block with its EVOLVE-BLOCK-START and EVOLVE-BLOCK-END lines.\n";
}

std::string question_text(const Scene& scene, int64_t parent, AnswerForm form,
                          size_t inspirations) {
  std::string text = task_text(scene) + "\n" + machine_text(scene);
  for (const std::string& part :
       {steps_text(scene, 3),
        inspirations_text(scene, inspirations_of(scene, parent, inspirations)),
        failures_text(scene, 4), program_text(scene, parent), answer_text(form)})
    if (!part.empty()) text += "\n" + part;
  return text;
}

std::string repair_text(const Refusal& refusal, AnswerForm form) {
  return fmt::format(
      "Your answer was not used: {}.\n\nAnswer once more, completely; the program is still the one "
      "above.\n\n{}",
      refusal.why, answer_text(form));
}

}  // namespace attune::evolve
