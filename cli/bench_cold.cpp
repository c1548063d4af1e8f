// attune bench --cold: what the first call of a process waits for where no kernel is kept yet.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "cli/bench.hpp"
#include "cli/terminal.hpp"
#include "src/cuda/device.hpp"
#include "src/jit/forward.hpp"
#include "src/jit/kernel.hpp"
#include "src/select/cuda_select.hpp"

namespace attune::cli {
namespace {

// Milliseconds, in the order in which a call waits.
struct Phase {
  const char *name, *column, *meaning;
};
constexpr Phase kPhases[] = {
    {"context", "context ms", "the driver starts, and makes a context"},
    {"find", "find ms", "the compiler is looked for"},
    {"load", "NVRTC ms", "it is loaded, and compiles an empty kernel"},
    {"compile", "compile ms", "it compiles what the call needs"},
    {"disk", "disk ms", "the source is written and hashed, and the result stored"},
    {"module", "module ms", "the driver loads the result"},
};
constexpr int kUsualArch = 90;
constexpr int kUsualRounds = 3;

void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message);
}

class Clock {
 public:
  // Since the last call, or since it was made.
  double milliseconds() {
    const auto now = std::chrono::steady_clock::now();
    const double passed = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return passed;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// A folder for a process's kernels, gone with it.
class EmptyCache {
 public:
  EmptyCache() : path_((std::filesystem::temp_directory_path() / "attune-cold-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make " + path_);
    setenv("ATTUNE_CACHE_DIR", path_.c_str(), 1);
  }
  ~EmptyCache() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::string path_;
};

// The plan that such a call gets on an empty machine: of contiguous tensors.
Plan plan_of(const BenchOptions& o, const Work& work, const Arch& arch) {
  Row row;
  row.shape = work.shape;
  row.dtype = work.dtype;
  row.causal = work.causal;
  row.lse = work.lse;
  row.alignment = settle_alignment(o, work);
  row.threads = 0;
  attune_args args = make_args(row, nullptr, nullptr, nullptr);
  args.device = ATTUNE_CUDA;
  Call call;
  must(make_call(&args, Pointers::optional, &call));
  const CudaRequest request{
      {call.problem, arch, layout_of(call.problem, call.params), ~size_t{0}, "", ""}};
  CudaChoice choice;
  must(select_cuda(request, &choice));
  return std::move(choice.plan);
}

// In a process that has done nothing yet.
Json first_call(const BenchOptions& o, const Work& work) {
  const EmptyCache cache;
  Json ms = Json::object();
  Clock clock;
  cuda::Scope scope;
  const std::string no_gpu = o.arch != 0 ? "--arch was given" : cuda::why_unusable();
  const bool gpu = no_gpu.empty();
  Arch arch = arch_of(o.arch != 0 ? o.arch : kUsualArch);
  if (gpu) {
    must(scope.enter(nullptr, nullptr));
    arch = scope.device().arch;
    ms["context"] = clock.milliseconds();
  }
  const jit::NvrtcChoice& compiler = jit::nvrtc();
  ms["find"] = clock.milliseconds();  // without a GPU, also that there is none
  if (!compiler.problem.empty()) throw std::runtime_error(compiler.problem);
  jit::Compiled nothing;
  must(jit::compile("extern \"C\" __global__ void attune_nothing() {}", arch.cc, {}, &nothing));
  ms["load"] = clock.milliseconds();

  const Plan plan = plan_of(o, work, arch);
  clock.milliseconds();
  double compile = 0;
  jit::CacheEntry entry;
  jit::Origin origin;
  for (const KernelSpec& unit : plan.units) {
    must(jit::obtain(unit, plan.id, &entry, &origin));
    compile += 1e3 * entry.seconds;
  }
  ms["compile"] = compile;
  ms["disk"] = std::max(0.0, clock.milliseconds() - compile);
  for (const KernelSpec& unit : plan.units) must(jit::obtain(unit, plan.id, &entry, &origin));
  const double read = clock.milliseconds();
  if (origin != jit::Origin::disk) throw std::runtime_error(jit::cache_warning());
  if (gpu) {  // it reads them once more
    must(jit::prepare(plan, scope));
    ms["module"] = std::max(0.0, clock.milliseconds() - read);
  }
  return {{"kernel", plan.id}, {"arch", arch.cc},
          {"no_gpu", no_gpu},  {"nvrtc", compiler.library.version()},
          {"read", read},      {"ms", ms}};
}

std::string read_all(int from) {
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t got = read(from, piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(piece, size_t(got));
  }
}

// In a fork of this process, which has neither a driver nor a compiler.
Json measured(const BenchOptions& o, const Work& work) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("cannot make a pipe");
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGINT, SIG_DFL);
    Json result;
    try {
      result = first_call(o, work);
    } catch (const std::exception& error) {
      result = {{"error", error.what()}};
    }
    const std::string text = result.dump();
    const bool ok = write(ends[1], text.data(), text.size()) == ssize_t(text.size());
    _exit(ok ? 0 : 1);
  }
  close(ends[1]);
  const std::string text = child > 0 ? read_all(ends[0]) : "";
  close(ends[0]);
  while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  const Json result = Json::parse(text, nullptr, false);
  if (result.is_discarded()) throw std::runtime_error("the process that makes the call died");
  if (result.contains("error")) throw std::runtime_error(result["error"].get<std::string>());
  return result;
}

double median_of(const std::vector<Json>& runs, const char* phase) {
  std::vector<double> values;
  for (const Json& run : runs) values.push_back(run["ms"][phase]);
  return quantile(values, 0.5);
}

Json summary(const Work& work, const std::vector<Json>& runs) {
  Json row = work_json(work, MaskKind::none);
  double total = 0;
  Json ms = Json::object();
  for (const Phase& phase : kPhases) {
    if (!runs[0]["ms"].contains(phase.name)) continue;
    const double median = median_of(runs, phase.name);
    ms[phase.name] = median;
    total += median;
  }
  std::vector<double> reads;
  for (const Json& run : runs) reads.push_back(run["read"]);
  row.update(Json{{"kernel", runs[0]["kernel"]},
                  {"arch", runs[0]["arch"]},
                  {"no_gpu", runs[0]["no_gpu"]},
                  {"ms", ms},
                  {"total_ms", total},
                  {"read_ms", quantile(reads, 0.5)},
                  {"runs", runs}});
  return row;
}

Cells cells_of(const Work& work, const Json& row) {
  Cells cells = {to_string(work.shape), name_of(kDTypes, work.dtype),
                 name_of(kCausal, work.causal)};
  for (const Phase& phase : kPhases)
    cells.push_back(row["ms"].contains(phase.name)
                        ? fmt::format("{:.0f}", row["ms"][phase.name].get<double>())
                        : "-");
  cells.push_back(fmt::format("{:.0f}", row["total_ms"].get<double>()));
  cells.push_back(fmt::format("{:.1f}", row["read_ms"].get<double>()));
  cells.push_back(row["kernel"]);
  return cells;
}

}  // namespace

int bench_cold(const BenchOptions& o) {
  const int rounds = o.rounds_given ? o.sampling.rounds : kUsualRounds;
  const std::vector<Work> works = make_works(o);
  Output json("--json", o.json);
  Output csv_file("--csv", o.csv);
  talk(fmt::format("{} rows, {} processes each", works.size(), rounds));
  Cells header = {"shape", "dtype", "causal"};
  for (const Phase& phase : kPhases) header.push_back(phase.column);
  for (const char* column : {"first call ms", "from disk ms", "kernel"}) header.push_back(column);
  std::vector<Cells> lines{header};
  Json rows = Json::array();
  for (const Work& work : works) {
    std::vector<Json> runs;
    for (int n = 0; n < rounds && !interrupted(); ++n) runs.push_back(measured(o, work));
    if (interrupted()) break;
    rows.push_back(summary(work, runs));
    lines.push_back(cells_of(work, rows.back()));
  }
  write_results(lines, 3, Json{{"rows", rows}}, json, csv_file);
  if (!json.is_stdout() && !csv_file.is_stdout())
    for (const Phase& phase : kPhases) talk(fmt::format("{}: {}", phase.column, phase.meaning));
  if (!rows.empty() && rows[0]["no_gpu"] != "")
    talk(fmt::format("without the driver's part, for compute capability {:.1f}: {}",
                     rows[0]["arch"].get<int>() / 10.0, rows[0]["no_gpu"].get<std::string>()));
  return interrupted() ? kInterrupted : kOk;
}

}  // namespace attune::cli
