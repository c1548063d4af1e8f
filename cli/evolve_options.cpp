#include "cli/evolve_options.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

#include "cli/bench.hpp"
#include "cli/commit.hpp"
#include "cli/evolve_external.hpp"
#include "cli/machine.hpp"
#include "cli/nvml.hpp"
#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "evolve/compile/cuda_program.hpp"
#include "evolve/compile/host_compile.hpp"
#include "evolve/run.hpp"
#include "evolve/worker/sandbox.hpp"
#include "src/cpu/fused.hpp"
#include "src/cuda/device.hpp"
#include "src/cuda/driver.hpp"
#include "src/jit/nvrtc.hpp"
#include "src/select/tuned.hpp"

namespace attune::cli {
namespace {

using evolve::RunMeta;

constexpr int kMostWorkers = 64;
constexpr double kCompileSeconds = 60;  // of the program that a run begins with
// Small enough that plain loops are timed in a fraction of a second.
const std::vector<std::string> kProgramShapes = {"1x4x512x64"};

// Files, and the programs of the same kind in folders.
std::vector<std::string> programs_in(const std::vector<std::string>& places,
                                     const std::string& extension) {
  std::vector<std::string> files;
  for (const std::string& place : places) {
    if (!std::filesystem::is_directory(place)) {
      files.push_back(place);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : std::filesystem::directory_iterator(place))
      if (entry.path().extension() == extension) inside.push_back(entry.path());
    if (inside.empty())
      throw UsageError(fmt::format("--with: there is no {} file in {}", extension, place));
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

std::string whole_lines(std::string text) {
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

constexpr double kMostDeviceBytes = 1e12;  // more than any GPU has

// "90s", "5m", "1h", "200ev"; a bare number is seconds.
void parse_budget(const std::string& text, RunMeta* meta) {
  size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = text.substr(end);
  if (end == 0 || !(value > 0 && value < 1e9) ||
      (unit != "" && unit != "s" && unit != "m" && unit != "h" && unit != "ev"))
    throw UsageError(
        fmt::format("--budget: '{}' is not a time (90s, 5m, 1h) or a count (200ev)", text));
  meta->budget_seconds = 0;
  meta->budget_evaluations = 0;
  if (unit == "ev")
    meta->budget_evaluations = int64_t(std::ceil(value));
  else
    meta->budget_seconds = value * (unit == "m" ? 60 : unit == "h" ? 3600 : 1);
}

void set_budget(const EvolveOptions& o, RunMeta* meta) {
  if (o.iterations > 0 && o.has("--budget"))
    throw UsageError("--iterations: there is a --budget already");
  parse_budget(o.iterations > 0 ? fmt::format("{}ev", o.iterations) : o.budget, meta);
}

// "fp32,fp16" -> "f32,f16"; what is no dtype stays, to be shown as it was written.
std::string canonical_dtypes(const std::string& text) {
  std::vector<std::string> parts = parsed("--dtype", [&] { return split_list(text); });
  for (std::string& part : parts) part = canonical(part);
  return fmt::format("{}", fmt::join(parts, ","));
}

uint64_t seed_of(const EvolveOptions& o) {
  return parsed("--seed", [&] { return parse_seed(o.seed); });
}

// Each size may be up to 1e9: their product fits no integer.
void check_size(const Shape& s, DType dtype, bool cuda) {
  const double rows_q = double(s.batch) * double(s.heads) * double(s.seq_q),
               rows_k = double(s.batch) * double(s.heads_kv) * double(s.seq_k),
               bytes = (rows_q + rows_k) * double(s.dim + s.dim_v) * (dtype == DType::f32 ? 4 : 2);
  const double most =
      cuda ? kMostDeviceBytes : double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  if (bytes <= most) return;
  throw UsageError(fmt::format(
      "--shape: one copy of the tensors of {} takes {:.3g} GB, more than the {:.3g} GB {}",
      to_string(s), bytes / 1e9, most / 1e9, cuda ? "of any GPU" : "of this machine"));
}

evolve::Json host_facts() {
  utsname system{};
  uname(&system);
  double load[1] = {0};
  if (getloadavg(load, 1) != 1) load[0] = 0;
  return {{"processor", processor_name()},
          {"isa", cpu::isa_name()},
          {"processors", cpu::usable_threads()},
          {"system", fmt::format("{} {}", system.sysname, system.release)},
          {"load", load[0]},
          {"compiler", evolve::host_compiler().version},
          {"commit", build_commit()}};
}

// With what holds the candidates of Attune's judge.
evolve::Json environment() {
  const evolve::SandboxReport sandbox = evolve::sandbox_report();
  evolve::Json facts = host_facts();
  facts["seccomp"] = sandbox.seccomp;
  facts["namespaces"] = sandbox.namespaces;
  facts["landlock"] = sandbox.landlock;
  facts["sandbox"] = evolve::sandbox_gaps(sandbox);
  return facts;
}

std::string full_name(const std::string& device) { return device == "cuda" ? "cuda:0" : device; }

cuda::Device device_of(const RunMeta& meta) {
  if (!cuda::why_unusable().empty()) throw std::runtime_error("--device: " + cuda::why_unusable());
  if (cuda_ordinal(meta) >= cuda::device_count())
    throw UsageError(fmt::format("--device: there is no {}, only {} device(s)", meta.device,
                                 cuda::device_count()));
  cuda::Device device;
  need(cuda::device(cuda_ordinal(meta), &device));
  return device;
}

void add_gpu(const cuda::Device& device, evolve::Json* facts) {
  const Arch& a = device.arch;
  (*facts)["gpu"] = device.name;
  (*facts)["gpu_memory"] = device.memory_bytes;
  (*facts)["arch"] = {a.cc, a.smem_block, a.smem_sm, a.sms};
  (*facts)["gpu_l2"] = device.l2_bytes;
  (*facts)["gpu_memory_bus_bits"] = device.memory_bus_bits;
  (*facts)["cuda_driver"] = cuda::version_text(cuda::driver()->version);
  std::string driver;  // the first line names the kernel's module and its version
  std::getline(std::ifstream("/proc/driver/nvidia/version"), driver);
  if (!driver.empty()) (*facts)["gpu_driver"] = driver;
  const Nvml nvml(uuid_of(device));
  const auto put = [&](const char* name, const std::optional<double>& value) {
    if (value) (*facts)[name] = *value;
  };
  put("gpu_sm_mhz", nvml.now().sm_mhz);
  put("gpu_watts", nvml.now().watts);
  put("gpu_most_sm_mhz", nvml.most().sm_mhz);
  put("gpu_most_memory_mhz", nvml.most().memory_mhz);
}

// What a run on a GPU is about, beside the machine around it.
void describe_gpu(RunMeta* meta) {
  const cuda::Device device = device_of(*meta);
  const Arch& a = device.arch;
  meta->machine = fmt::format("{}, compute capability {}.{}", device.name, a.cc / 10, a.cc % 10);
  add_gpu(device, &meta->environment);
  if (jit::nvrtc().problem.empty()) meta->environment["nvrtc"] = jit::nvrtc().library.version();
  meta->environment["nvcc"] = evolve::cuda_compiler().version;
  // A later version may have more: resumed or replayed there, the run keeps to these.
  evolve::Json rungs = evolve::Json::array();
  const auto space = space_of(*meta);
  for (const evolve::Family& f : space->families()) rungs.push_back(f.name);
  meta->environment["rungs"] = rungs;
}

std::vector<Problem> problems_of(const RunMeta& meta) {
  std::vector<Problem> problems;
  for (const evolve::TimedShape& s : meta.shapes) problems.push_back(s.problem);
  return problems;
}

// Each once, in the order of the shapes: "f32,f16".
template <class Text>
std::string list_of(const RunMeta& meta, const Text& text) {
  std::vector<std::string> seen;
  for (const evolve::TimedShape& s : meta.shapes)
    if (std::find(seen.begin(), seen.end(), text(s.problem)) == seen.end())
      seen.push_back(text(s.problem));
  return fmt::format("{}", fmt::join(seen, ","));
}

std::string names_of(const std::vector<evolve::TimedShape>& shapes) {
  std::vector<std::string> all;
  for (const evolve::TimedShape& s : shapes) all.push_back(s.name);
  return fmt::format("{}", fmt::join(all, ", "));
}

// What a run was begun with stays: its proposals follow from it.
void refuse_other(const EvolveOptions& o, const std::string& folder, const RunMeta& meta) {
  const auto refuse_unless = [&](const char* name, const std::string& recorded,
                                 const std::string& asked) {
    if (!o.has(name) || recorded == asked) return;
    throw UsageError(
        fmt::format("{}: the run in {} was begun with {}, not with {}; leave the option out, or "
                    "start a new run",
                    name, folder, recorded, asked));
  };
  if (!o.program.empty() && !meta.external &&
      (!meta.program || meta.program->text != whole_lines(read_program(o.program).text)))
    throw UsageError(
        fmt::format("{}: the run in {} was begun with another program", o.program, folder));
  if (!o.config.empty())
    throw UsageError("--config: a run that goes on keeps the settings that it was begun with");
  refuse_unless("--target-score", meta.target ? fmt::format("{}", *meta.target) : "none",
                fmt::format("{}", o.target.value_or(0)));
  refuse_unless("--checkpoint-interval", fmt::format("{}", meta.checkpoint_interval),
                fmt::format("{}", o.checkpoint_interval));
  const bool judged = meta.external && meta.external->judged();  // check_external() looks at these
  if (!judged) refuse_unless("--device", meta.device, full_name(o.device));
  refuse_unless("--strategy", meta.strategy, o.strategy);
  refuse_unless("--start", meta.start, o.start);
  refuse_unless("--seed", fmt::format("{}", meta.seed), fmt::format("{}", seed_of(o)));
  refuse_unless("--threads", fmt::format("{}", meta.threads),
                fmt::format("{}", settle_threads(o.threads)));
  refuse_unless("--compile-tiles", meta.compiles ? "it" : "the tiles that are built in",
                o.compile_tiles ? "it" : "");
  refuse_unless("--workers", fmt::format("{}", meta.window), fmt::format("{}", o.workers));
  const std::string dtypes =
                        list_of(meta, [](const Problem&p) { return name_of(kDTypes, p.dtype); }),
                    causal =
                        list_of(meta, [](const Problem&p) { return name_of(kCausal, p.causal); });
  refuse_unless("--dtype", dtypes, canonical_dtypes(o.dtype));
  refuse_unless("--causal", causal, o.causal);
  const bool lse = std::all_of(meta.shapes.begin(), meta.shapes.end(),
                               [](const evolve::TimedShape& s) { return s.problem.lse; });
  refuse_unless("--lse", lse ? "LSE" : "no LSE", o.lse ? "LSE" : "no LSE");
  const auto pass_of = [](const Problem& p) {
    return std::string(p.pass == Pass::backward ? "backward" : "forward");
  };
  refuse_unless("--pass", list_of(meta, pass_of), o.pass);
  EvolveOptions whole = o;
  whole.pass = list_of(meta, pass_of);
  whole.dtype = dtypes;
  whole.causal = causal;
  whole.lse = lse;
  for (const char* name : {"--shape", "--set"})
    if (o.has(name) && !judged)
      refuse_unless(name, names_of(meta.shapes), names_of(shapes_of(whole)));
}

}  // namespace

std::string device_name_problem(const std::string& name) {
  const bool known = name == "cpu" || name == "cuda" ||
                     (name.starts_with("cuda:") && name.size() > 5 && name.size() < 8 &&
                      name.find_first_not_of("0123456789", 5) == std::string::npos);
  return known ? "" : "'" + name + "' is none of cpu, cuda and cuda:N";
}

evolve::Json machine_facts(int gpu) {
  evolve::Json facts = host_facts();
  cuda::Device device;
  if (cuda::why_unusable().empty() && gpu < cuda::device_count() && cuda::device(gpu, &device).ok())
    add_gpu(device, &facts);
  return facts;
}

std::vector<evolve::TimedShape> shapes_of(const EvolveOptions& o) {
  BenchOptions b;
  b.shapes = o.shapes;
  b.set = o.set;
  if (b.shapes.empty() && b.set.empty()) b.shapes = {"1x8x1024x64"};
  b.dtype = o.dtype;
  b.causal = o.causal;
  b.lse = o.lse;
  b.dtype_given = o.has("--dtype");
  b.causal_given = o.has("--causal");
  std::vector<evolve::TimedShape> shapes;
  for (const Work& work : make_works(b)) {
    evolve::TimedShape s;
    const Shape& shape = work.shape;
    s.problem.dtype = work.dtype;
    s.problem.batch = shape.batch;
    s.problem.heads_q = shape.heads;
    s.problem.heads_kv = shape.heads_kv;
    s.problem.seq_q = shape.seq_q;
    s.problem.seq_k = shape.seq_k;
    s.problem.dim = int32_t(shape.dim);
    s.problem.dim_v = int32_t(shape.dim_v);
    s.problem.causal = work.causal;
    s.problem.lse = work.lse;
    if (shape.heads % shape.heads_kv != 0)
      throw UsageError(fmt::format("--shape: {} heads are no multiple of {} key heads", shape.heads,
                                   shape.heads_kv));
    if (shape.dim > kMaxHeadDim || shape.dim_v > kMaxHeadDim)
      throw UsageError(fmt::format("--shape: head dimensions end at {}", kMaxHeadDim));
    check_size(shape, work.dtype, o.device != "cpu");
    if (work.causal && shape.seq_q != shape.seq_k) s.problem.alignment = Alignment::bottom_right;
    if (o.pass == "backward") s.problem.pass = Pass::backward;
    s.name = fmt::format("{} {}{}{}{}", to_string(shape), name_of(kDTypes, work.dtype),
                         work.causal ? " causal" : "", work.lse ? " lse" : "",
                         o.pass == "backward" ? " backward" : "");
    shapes.push_back(std::move(s));
  }
  return shapes;
}

evolve::ProgramSource program_of(const EvolveOptions& o) {
  const Program program = read_program(o.program, o.pass);
  evolve::ProgramSource source;
  source.name = std::filesystem::path(o.program).stem();
  source.language = program.language;
  source.text = whole_lines(program.text);
  for (const std::string& file :
       programs_in(o.with, std::filesystem::path(o.program).extension())) {
    const Program other = read_program(file);
    if (other.language != program.language)
      throw UsageError(fmt::format("--with: {} is for another device than {}", file, o.program));
    source.others.push_back({std::filesystem::path(file).stem(), whole_lines(other.text)});
  }
  if (!program.cuda()) source.flags = evolve::host_flag_choices();
  std::unique_ptr<evolve::Space> space;
  if (const Status s = program_space(source, &space, o.proposers.any()); !s.ok())
    throw UsageError(s.message);
  if (program.contract == evolve::Contract::none)
    throw UsageError(fmt::format("{}: {}", o.program, evolve::no_entry_text(program.language)));
  return source;
}

EvolveOptions settled_for_program(const EvolveOptions& o) {
  EvolveOptions settled = o;
  for (const char* name : {"--start", "--compile-tiles", "--promote", "--table"})
    if (o.has(name))
      throw UsageError(
          fmt::format("{}: it is for the library's own kernels, not for a program", name));
  if (!o.has("--device")) settled.device.clear();
  if (!o.has("--dtype")) settled.dtype.clear();
  const Program program = read_program(o.program, o.pass);
  settle_for(program, program.cuda() ? kCudaShapes : kProgramShapes, &settled);
  return settled;
}

void check_compiles(const EvolveOptions& o, const RunMeta& meta) {
  const Program program = read_program(o.program);
  const Scratch scratch;
  const evolve::Built built =
      program.cuda()
          ? evolve::build_cuda_program(program.text, cuda_arch(meta).cc, scratch.path(),
                                       kCompileSeconds, interrupted)
          : evolve::build_candidate(program.text, scratch.path(), kCompileSeconds, interrupted);
  if (built.verdict != evolve::Verdict::ok)
    throw UsageError(fmt::format("{}: {}: {}", o.program, verdict_name(built.verdict),
                                 own_words(program, built.why)));
}

void add_search(const EvolveOptions& o, RunMeta* meta) {
  meta->strategy = o.strategy;
  meta->seed = seed_of(o);
  set_budget(o, meta);
  meta->target = o.target;
  meta->checkpoint_interval = o.checkpoint_interval;
  meta->islands = o.islands;
  meta->created = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

RunMeta new_meta(const EvolveOptions& given) {
  std::optional<evolve::ProgramSource> program;
  if (!given.program.empty()) program = program_of(given);
  if (!program && given.has("--pass"))
    throw UsageError(
        "--pass: it is for programs; the library's own kernels are the forward pass's");
  const EvolveOptions o = program ? settled_for_program(given) : given;
  RunMeta meta;
  meta.version = attune_version();
  meta.device = full_name(o.device);
  meta.shapes = shapes_of(o);
  meta.threads = settle_threads(o.threads);
  meta.machine = fmt::format("{}, {}, {} threads", processor_name(), cpu::isa_name(), meta.threads);
  add_search(o, &meta);
  meta.start = o.start;
  // Kernels and programs for a GPU are compiled ahead, on all processors: a program's own threads
  // say nothing of them.
  const int processors = program ? cpu::usable_threads() : meta.threads;
  meta.window = o.workers > 0   ? o.workers
                : on_cuda(meta) ? std::clamp(processors, 1, kMostWorkers)
                                : 1;
  meta.compiles = o.compile_tiles;
  if (meta.compiles && on_cuda(meta))
    throw UsageError("--compile-tiles: kernels for a GPU are always compiled");
  if (!on_cuda(meta)) meta.cpu = evolve::this_cpu(meta.threads);
  if (meta.compiles && !meta.cpu->compiles)
    throw UsageError("--compile-tiles: " + meta.cpu->why_not);
  if (meta.cpu) meta.cpu->why_not.clear();  // of this moment, and not recorded
  meta.environment = environment();
  if (on_cuda(meta)) describe_gpu(&meta);
  meta.library = library_now(meta);
  if (program) {
    check_compiles(o, meta);
    meta.ceiling = std::exchange(meta.library, {});
    meta.program = std::move(program);
  }
  return meta;
}

RunMeta recorded_meta(const EvolveOptions& o, const std::string& folder) {
  if (!evolve::Store::exists(folder))
    throw UsageError(fmt::format("{} holds no run: there is no run.db in it", folder));
  std::unique_ptr<evolve::Store> store;
  if (Status s = evolve::Store::open(folder, false, &store); !s.ok())
    throw std::runtime_error(s.message);
  RunMeta meta = store->meta();
  refuse_other(o, folder, meta);
  if (o.has("--budget") || o.has("--iterations")) set_budget(o, &meta);
  check_external(o, folder, &meta);
  return meta;
}

void check_machine(const RunMeta& meta) {
  if (!meta.cpu) return;
  const evolve::CpuMachine here = evolve::this_cpu(meta.threads);
  for (const std::string& isa : meta.cpu->isas)
    if (!here.archs.contains(isa))
      throw std::runtime_error(
          fmt::format("the run was begun on {}, which has {}: here it can be replayed and "
                      "reported, but not continued",
                      meta.machine, isa));
  if (meta.compiles && !here.compiles)
    throw std::runtime_error("the run compiles kernels, and that is not possible here: " +
                             here.why_not);
}

int cuda_ordinal(const RunMeta& meta) {
  const size_t colon = meta.device.find(':');
  return colon == std::string::npos ? 0 : std::atoi(meta.device.c_str() + colon + 1);
}

Arch cuda_arch(const RunMeta& meta) {
  if (!meta.environment.contains("arch")) return arch_of(90);  // genes listed without a device
  const evolve::Json& arch = meta.environment["arch"];
  return {arch[0], arch[1], arch[2], arch[3]};
}

std::vector<std::string> library_now(const RunMeta& meta) {
  if (!on_cuda(meta)) return evolve::cpu_library(problems_of(meta), meta.threads);
  return evolve::cuda_library(problems_of(meta), cuda_arch(meta),
                              meta.environment.value("gpu", ""));
}

std::string this_program() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw std::runtime_error("cannot find this program: " + error.message());
  return path;
}

evolve::EvaluatorOptions evaluator_options(const RunMeta& meta, const std::string& folder) {
  evolve::EvaluatorOptions e;
  e.shapes = meta.shapes;
  e.threads = meta.threads;
  e.seed = std::random_device{}() | uint64_t{std::random_device{}()} << 32;
  e.tool = this_program();
  e.scratch = evolve::scratch_folder(folder);
  if (meta.program) {
    e.programs = folder;
    e.contract = evolve::contract_of(meta.program->text);
  }
  e.stop = interrupted;
  return e;
}

std::unique_ptr<evolve::Evaluator> evaluator_of(const RunMeta& meta,
                                                evolve::EvaluatorOptions options) {
  if (meta.external) return external_evaluator_of(meta, options, std::nullopt);
  return on_cuda(meta) ? evolve::cuda_evaluator(std::move(options), cuda_ordinal(meta))
                       : evolve::cpu_evaluator(std::move(options));
}

std::unique_ptr<evolve::Space> space_of(const RunMeta& meta) {
  if (meta.program) {
    std::unique_ptr<evolve::Space> space;
    need(program_space(*meta.program, &space, true));
    return space;
  }
  const std::vector<Problem> problems = problems_of(meta);
  if (on_cuda(meta)) {
    std::vector<std::string> rungs;
    if (meta.environment.contains("rungs")) rungs = meta.environment["rungs"];
    return evolve::cuda_space(problems, cuda_arch(meta), rungs, meta.library);
  }
  evolve::CpuMachine machine = meta.cpu ? *meta.cpu : evolve::this_cpu(meta.threads);
  machine.compiles = meta.compiles;
  return evolve::cpu_space(problems, std::move(machine), meta.library);
}

}  // namespace attune::cli
