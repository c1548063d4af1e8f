// The cascade on the CPU: programs and register tiles are compiled by the host's compiler, and all
// run in sandboxed workers on the data in shared memory.
#include <fmt/format.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "evolve/compile/host_compile.hpp"
#include "evolve/compile/tile_compile.hpp"
#include "evolve/genome/genome.hpp"
#include "evolve/judge/cascade.hpp"
#include "evolve/worker/process.hpp"
#include "src/cpu/fused.hpp"

namespace attune::evolve {
namespace {

// Of each part of the arena: addresses; memory is taken when touched. Checks and records need the
// first, timed shapes together the second, and more where they are large.
constexpr int64_t kCheckBytes = int64_t{384} << 20;
constexpr int64_t kSetBytes = int64_t{640} << 20;
constexpr int kLeastSlots = 3;  // copies of a shape's tensors
constexpr int kSlots = 8;
constexpr double kCacheBytes = 2e12;  // a second, of a core's nearest cache: data may lie there
constexpr double kAboveMeasured = 1.15, kHalfUnits = 2, kMatrixUnits = 16;

double slot_bytes(const Problem& p) {
  const double rows_q = double(p.batch) * double(p.heads_q) * double(p.seq_q),
               rows_k = double(p.batch) * double(p.heads_kv) * double(p.seq_k);
  const bool backward = p.pass == Pass::backward;
  return (rows_q + rows_k) * double(p.dim + p.dim_v) * (p.dtype == DType::f32 ? 4 : 2) *
             (backward ? 2 : 1) +
         (p.lse || backward ? rows_q * Written::kLseBytes : 0) + (1 << 16);
}

double share_of(const TimedShape& shape, size_t shapes) {
  return std::max(double(kSetBytes) / double(shapes), kLeastSlots * slot_bytes(shape.problem));
}

int64_t arena_bytes(const std::vector<TimedShape>& shapes) {
  double bytes = double(kCheckBytes);
  for (const TimedShape& s : shapes) bytes += share_of(s, shapes.size());
  return int64_t(std::min(bytes, 0x1p62));
}

// A thread that is ready to run may wait for its turn on a busy machine: it gets longer to show
// that it works.
bool works_on(Worker& worker) {
  constexpr double kWork = 0.002, kMostSeconds = 2;
  const double before = worker.cpu_seconds(), begin = monotonic_seconds();
  worker.resume();
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    if (worker.cpu_seconds() - before > kWork) return true;
  } while (worker.ready_to_run() && monotonic_seconds() - begin < kMostSeconds);
  return false;
}

class CpuEvaluator final : public Cascade {
 public:
  explicit CpuEvaluator(EvaluatorOptions options) : Cascade(std::move(options)) {
    if (const std::string why = why_too_large(o_.shapes); !why.empty())
      health_ = Status::unsupported(why);
    else
      health_ = Arena::create(arena_bytes(o_.shapes), arena_bytes(o_.shapes), &arena_);
    if (!health_.ok()) return;
    for (const TimedShape& shape : o_.shapes) {
      const DType dtype = shape.problem.dtype;
      if (pools_.count(dtype) == 0) pools_.emplace(dtype, NormalPool(dtype, dice_.bits()));
      auto set =
          std::make_unique<TimedSet>(shape, pools_.at(dtype), arena_.get(),
                                     int64_t(share_of(shape, o_.shapes.size())), kSlots, executor_);
      if (set->none())
        health_ = Status::unsupported(
            fmt::format("shape {} is too large to be timed: there is no room for two copies of "
                        "its tensors",
                        shape.name));
      sets_.push_back(std::move(set));
    }
    mark_ = arena_->mark();
    peak_ = o_.peak_flops;
    for (int n = 0; n < 3 && o_.peak_flops == 0; ++n)
      peak_ = std::max(peak_, cpu::measure_peak_flops(0.02));
  }

 private:
  bool open(const Candidate& c, Lane* lane, Evaluation* e) override {
    if (!health_.ok()) return fail(e, Verdict::launch_failed, health_.message);
    lane->id = c.id;
    lane->config = c.config;
    lane->program = !c.source.empty();
    std::string library;
    const auto build = [&](const std::string& text) {
      return build_candidate(text, o_.scratch, o_.check_seconds, o_.stop);
    };
    if (lane->program ? !compile_program(c, Language::cpp, build, lane, &library, e)
                      : !compile_tile(c, &library, e))
      return false;
    WorkerOptions w;
    w.tool = o_.tool;
    w.threads = o_.threads;
    w.memory_bytes = o_.memory_bytes;
    w.stop = o_.stop;
    if (lane->program) w.program = library;
    const Status started = Worker::start(w, *arena_, &lane->worker);
    if (!started.ok()) return fail(e, Verdict::launch_failed, started.message);
    Worker& worker = *lane->worker;
    if (lane->program) {  // while the program is not there yet to make a request longer
      double seconds = 0;
      if (!time_empty(lane, &seconds, e)) return false;
      lane->empty = program_empty_ = std::min(program_empty_, seconds);
      if (!time_step(lane, e)) return false;
    }
    const Reply loaded = lane->program     ? worker.load_program(o_.check_seconds)
                         : library.empty() ? worker.load_config(c.config, o_.check_seconds)
                                           : worker.load_tile(c.config, library, o_.check_seconds);
    if (!loaded.ok()) return fail(e, loaded);
    lane->threads = worker.thread_count();
    return true;
  }

  // The same of each further call. The least of all workers is everybody's.
  bool time_step(Lane* lane, Evaluation* e) {
    constexpr int kSteps = 32, kTimes = 5;
    const std::vector<int64_t> none(kSteps + 1, program::kNoCall);
    std::vector<double> seconds;
    for (int n = 0; n < kTimes; ++n) {
      const Reply reply = lane->worker->run_each(none, o_.call_seconds);
      if (!reply.ok()) return fail(e, reply);
      seconds.push_back(std::max(reply.seconds - lane->empty, 0.0) / kSteps);
    }
    program_step_ = std::min(program_step_, median(seconds));
    step_ = program_step_;
    return true;
  }

  // A program hears of one call after another, and cannot compute several at once.
  Reply run(Lane* lane, std::span<const int64_t> calls, double limit, const Done& done) override {
    return lane->program ? lane->worker->run_each(calls, limit, done)
                         : lane->worker->run(calls, limit);
  }

  // Of a typed candidate: no library when its tile is built in. A tile is compiled once, whatever
  // the other genes are.
  bool compile_tile(const Candidate& c, std::string* library, Evaluation* e) {
    e->source_hash = e->binary_hash = c.config;
    const std::optional<CpuVariant> variant = parse_cpu_variant(c.config);
    if (!variant || !needs_tile(*variant)) return true;
    e->stage = Stage::compile;
    TileSpec spec{{variant->config.mr, variant->config.nv},
                  variant->isa.empty() ? cpu::isa_name() : variant->isa,
                  {}};
    for (const TimedShape& shape : o_.shapes) spec.dtypes.push_back(shape.problem.dtype);
    const std::string source = tile_source(spec);
    if (tiles_.count(source) == 0) {
      const Built built = build_tile(spec, tile_compiler(), o_.scratch, o_.check_seconds, o_.stop);
      e->compile_seconds = built.seconds;
      if (built.verdict == Verdict::compile_timeout) return fail(e, built.verdict, built.why);
      tiles_[source] = built;
    }
    const Built& built = tiles_[source];
    e->source_hash = built.source_hash;
    if (built.verdict != Verdict::ok) return fail(e, built.verdict, built.why);
    e->binary_hash = built.binary_hash + "/" + c.config;
    *library = built.library;
    return true;
  }

  bool runs(const Lane& lane, const check::Case& c) const override {
    return in_contract(c, lane.contract, Language::cpp);
  }
  check::Allowance allowance(const Lane&, const Problem&) const override { return {}; }

  // Calls work on the arena itself, and its timed slots are poisoned when they are drawn.
  Reply upload(Lane*, std::span<const Range>) override { return {}; }
  Reply fetch(Lane*, std::span<const Range>) override { return {}; }
  Reply poison(Lane*, std::span<const Range>) override { return {}; }

  double most_flops(DType dtype) const override {
    return most_cpu_flops(dtype, peak_, o_.threads, matrix_units());
  }
  double most_bytes() const override { return kCacheBytes * o_.threads; }
  bool processor_time_tells() const override { return true; }
  bool lse_is_another_kernel() const override { return false; }
  bool admits(const Lane&) const override { return true; }

  std::string hidden_work(Lane* lane, Evaluation*) override {
    const bool goes_on = works_on(*lane->worker);
    if (lane->program) lane->worker->suspend();
    if (goes_on) return "it works on after it said that it was done";
    if (lane->worker->thread_count() > lane->threads) return "it started threads of its own";
    return "";
  }

  std::map<DType, NormalPool> pools_;
  double peak_ = 0;
  double program_empty_ = INFINITY;  // the least that any of their workers took
  double program_step_ = INFINITY;
  std::map<std::string, Built> tiles_;  // by source
};

}  // namespace

// Inputs lie in the arena, and once more beside it for the checks: together at most half of memory.
std::string why_too_large(const std::vector<TimedShape>& shapes) {
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  double bytes = 0;
  for (const TimedShape& s : shapes) bytes += kLeastSlots * slot_bytes(s.problem);
  if (bytes <= memory / 2) return "";
  const auto largest = std::max_element(
      shapes.begin(), shapes.end(),
      [](const auto& x, const auto& y) { return slot_bytes(x.problem) < slot_bytes(y.problem); });
  return fmt::format(
      "shape {} is too large to be timed{}: {:.3g} GB would be needed, and that is more than half "
      "of the {:.3g} GB of this machine",
      largest->name, shapes.size() > 1 ? " together with the others" : "", bytes / 1e9,
      memory / 1e9);
}

MatrixUnits matrix_units() {
  MatrixUnits units;
#ifdef __x86_64__
  constexpr unsigned kAmxFp16 = 1u << 21;  // of eax, in the second part of leaf 7
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) units.bf16 = (d & bit_AMX_BF16) != 0;
  if (units.bf16 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) units.f16 = (a & kAmxFp16) != 0;
#endif
  return units;
}

double most_cpu_flops(DType dtype, double peak, int threads, const MatrixUnits& units) {
  const bool matrix = dtype == DType::bf16 ? units.bf16 : dtype == DType::f16 && units.f16;
  const double more = matrix ? kMatrixUnits : dtype == DType::f32 ? 1 : kHalfUnits;
  return kAboveMeasured * peak * threads * more;
}

std::unique_ptr<Evaluator> cpu_evaluator(EvaluatorOptions options) {
  return std::make_unique<CpuEvaluator>(std::move(options));
}

}  // namespace attune::evolve
