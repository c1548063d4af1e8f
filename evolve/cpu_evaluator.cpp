// The cascade on the CPU: programs and register tiles are compiled by the host's compiler, and all
// run in sandboxed workers on the data in shared memory.
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <thread>

#include "evolve/cascade.hpp"
#include "evolve/genome.hpp"
#include "evolve/host_compile.hpp"
#include "evolve/tile_compile.hpp"
#include "src/cpu/fused.hpp"

namespace attune::evolve {
namespace {

constexpr int64_t kArenaBytes = int64_t{1} << 30;  // of addresses; memory is taken when touched
constexpr int64_t kSetBytes = int64_t{640} << 20;  // of it for timed shapes, together
constexpr int kSlots = 8;
constexpr double kCacheBytes = 1e12;  // a second, of a core's nearest cache: data may lie there

class CpuEvaluator final : public Cascade {
 public:
  explicit CpuEvaluator(EvaluatorOptions options) : Cascade(std::move(options)) {
    health_ = Arena::create(kArenaBytes, &arena_);
    if (!health_.ok()) return;
    const int64_t share = kSetBytes / int64_t(o_.shapes.size());
    for (const TimedShape& shape : o_.shapes) {
      const DType dtype = shape.problem.dtype;
      if (pools_.count(dtype) == 0) pools_.emplace(dtype, NormalPool(dtype, dice_.bits()));
      auto set =
          std::make_unique<TimedSet>(shape, pools_.at(dtype), arena_.get(), share, kSlots, &dice_);
      if (set->none())
        health_ = Status::unsupported(
            fmt::format("shape {} is too large to be timed: two copies of its tensors need more "
                        "than {} MB",
                        shape.name, share >> 20));
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
    if (lane->program ? !compile_program(c, &library, e) : !compile_tile(c, &library, e))
      return false;
    WorkerOptions w;
    w.tool = o_.tool;
    w.threads = o_.threads;
    w.memory_bytes = o_.memory_bytes + kArenaBytes;
    w.stop = o_.stop;
    const Status started = Worker::start(w, *arena_, &lane->worker);
    if (!started.ok()) return fail(e, Verdict::launch_failed, started.message);
    Worker& worker = *lane->worker;
    const Reply loaded = lane->program     ? worker.load_library(library, o_.check_seconds)
                         : library.empty() ? worker.load_config(c.config, o_.check_seconds)
                                           : worker.load_tile(c.config, library, o_.check_seconds);
    if (!loaded.ok()) return fail(e, loaded);
    lane->threads = worker.thread_count();
    return true;
  }

  bool compile_program(const Candidate& c, std::string* library, Evaluation* e) {
    e->stage = Stage::compile;
    std::ifstream file(c.source, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    if (!file) return fail(e, Verdict::compile_failed, c.source + " cannot be read");
    const Built built = build_candidate(text, o_.scratch, o_.check_seconds, o_.stop);
    e->compile_seconds = built.seconds;
    e->source_hash = built.source_hash;
    e->binary_hash = built.binary_hash;
    if (built.verdict != Verdict::ok) return fail(e, built.verdict, built.why);
    *library = built.library;
    return true;
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

  bool runs(const Lane&, const check::Case&) const override { return true; }
  check::Allowance allowance(const Lane&, const Problem&) const override { return {}; }

  // Calls work on the arena itself, and its timed slots are poisoned when they are drawn.
  Reply upload(Lane*, std::span<const Range>) override { return {}; }
  Reply fetch(Lane*, std::span<const Range>) override { return {}; }
  Reply poison(Lane*, std::span<const Range>) override { return {}; }

  double most_flops() const override { return peak_ * o_.threads; }
  double most_bytes() const override { return kCacheBytes * o_.threads; }
  bool processor_time_tells() const override { return true; }

  std::string hidden_work(Lane* lane, Evaluation*) override {
    const double before = lane->worker->cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    if (lane->worker->cpu_seconds() - before > 0.002)
      return "it works on after it said that it was done";
    if (lane->worker->thread_count() > lane->threads) return "it started threads of its own";
    return "";
  }

  std::map<DType, NormalPool> pools_;
  double peak_ = 0;
  std::map<std::string, Built> tiles_;  // by source
};

}  // namespace

std::unique_ptr<Evaluator> cpu_evaluator(EvaluatorOptions options) {
  return std::make_unique<CpuEvaluator>(std::move(options));
}

}  // namespace attune::evolve
