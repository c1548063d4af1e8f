// The cascade on a CUDA device. Kernels and programs are compiled ahead, by processes of their own
// on all cores; checking and timing take turns on the device. The parent never makes a context.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <optional>
#include <sstream>

#include "evolve/compile/ahead.hpp"
#include "evolve/compile/cuda_program.hpp"
#include "evolve/judge/cascade.hpp"
#include "evolve/judge/device_limits.hpp"
#include "evolve/judge/device_set.hpp"
#include "evolve/store/files.hpp"
#include "evolve/worker/compare_kernels.hpp"
#include "evolve/worker/process.hpp"
#include "src/api/tensor_check.hpp"
#include "src/check/cuda_cases.hpp"
#include "src/cpu/pool.hpp"
#include "src/cuda/device.hpp"
#include "src/select/cuda_select.hpp"

namespace attune::evolve {
namespace {

constexpr int64_t kOutputBytes = int64_t{2} << 30;  // of the calls of a sample, at most
constexpr double kAbovePeak = 2;  // times what the data sheet promises: impossible
constexpr int64_t kCaseBytes = int64_t{256} << 20;  // of the arena, for small cases
constexpr int64_t kRecordBytes = 1 << 20;           // of a shape's calls
constexpr int kEmptyRequests = 5;                   // whose median is what a request takes
constexpr double kMoveSeconds = 20;                 // limit of sending data to the device and back
constexpr double kElsewhere = 0.3;  // of the work: more than this outside of the stream is no noise
constexpr double kSomeTime = 3e-4;  // seconds that a request may take longer than another

constexpr double kHighestClock = 2.5e9;
// Bytes a second from a multiprocessor to the second-level cache: no call can read faster, wherever
// its data lie.
constexpr double kBytesACycle = 128;

// The child sees one device, as its first.
std::string visible_device(int device) {
  std::istringstream given(
      std::getenv("CUDA_VISIBLE_DEVICES") != nullptr ? std::getenv("CUDA_VISIBLE_DEVICES") : "");
  std::vector<std::string> names;
  for (std::string name; std::getline(given, name, ',');) names.push_back(name);
  return size_t(device) < names.size() ? names[size_t(device)] : std::to_string(device);
}

std::vector<std::string> environment(int device, const std::string& scratch) {
  std::vector<std::string> all;
  // Where the run-time compiler may lie.
  for (const char* name :
       {"HOME", "PATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "ATTUNE_NVRTC"})
    inherit(name, &all);
  // The order in which devices are counted, there as here.
  for (const char* name : {"CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY"}) inherit(name, &all);
  all.push_back("CUDA_VISIBLE_DEVICES=" + visible_device(device));
  all.push_back("ATTUNE_CACHE_DIR=" + std::filesystem::absolute(scratch + "/kernels").string());
  return all;
}

class CudaEvaluator final : public Cascade {
 public:
  CudaEvaluator(EvaluatorOptions options, int device)
      : Cascade(std::move(options)),
        programs_ahead_(
            std::max(1, cpu::usable_threads()), [this](const std::string& text, const Stop& stop) {
              return build_cuda_program(text, device_.arch.cc, o_.scratch, o_.check_seconds,
                                        [&] { return stop() || (o_.stop && o_.stop()); });
            }) {
    worker_.tool = o_.tool;
    worker_.cuda = true;
    worker_.sandbox = false;  // a driver needs more of the system than a sandbox leaves
    worker_.environment = environment(device, o_.scratch);
    kernels_ = std::filesystem::absolute(o_.scratch + "/compare.cubin");
    worker_.stop = [this] { return settling_ || (o_.stop && o_.stop()); };
    health_ = cuda::device(device, &device_);
    if (health_.ok()) health_ = make_sets();
    if (health_.ok()) health_ = compile_compare_kernels(device_.arch.cc, &compare_);
    if (arena_ != nullptr) mark_ = arena_->mark();
  }

  void prefetch(const Candidate& c) override {
    if (!health_.ok()) return;
    if (!c.source.empty()) {
      const std::optional<std::string> text = program_text(c);
      if (text && !is_compiled(*text)) programs_ahead_.begin(*text);
      return;
    }
    if (compiled_.count(c.config) != 0) return;
    compiled_[c.config] = std::async(std::launch::async, [this, config = c.config] {
                            return compile(config);
                          }).share();
  }

  void settle() override {
    settling_ = true;
    for (auto& [config, future] : compiled_) future.wait();
    // What was given up was not judged.
    std::erase_if(compiled_, [](const auto& c) { return !c.second.get().reply.ok(); });
    settling_ = false;
    programs_ahead_.settle();
  }

 private:
  struct Compiled {
    Reply reply;  // its text: the hash of the binary
    double seconds = 0;
  };

  Status make_sets() {
    // Up to five workers live at once when finalists are compared.
    const int64_t share = device_.memory_bytes / 6;
    const int64_t outputs = std::min(kOutputBytes, share / 4);
    std::map<DType, int64_t> pool_bytes, hard_bytes;
    int64_t bytes = kCaseBytes + outputs;
    for (const TimedShape& s : o_.shapes) {
      const Problem& p = s.problem;
      const int64_t size = p.dtype == DType::f32 ? 4 : 2;
      const int64_t most =
          std::max({p.batch * p.heads_q * p.seq_q * p.dim, p.batch * p.heads_kv * p.seq_k * p.dim,
                    p.batch * p.heads_kv * p.seq_k * p.dim_v}) *
          size;
      int64_t& pool = pool_bytes[p.dtype];
      pool = std::max({pool, std::min(o_.pool_bytes, share / 4), 4 * most});
      hard_bytes[p.dtype] += DevicePool::hard_bytes(p);
      bytes += kRecordBytes;
    }
    for (const auto& [dtype, pool] : pool_bytes) bytes += pool + hard_bytes[dtype] + kRecordBytes;
    if (bytes > share)
      return Status::unsupported(fmt::format(
          "the shapes need {} MB of the device's {} MB: more than a worker's share of {}",
          bytes >> 20, device_.memory_bytes >> 20, share >> 20));
    ATTUNE_TRY(Arena::create(bytes, &arena_));
    ATTUNE_TRY(Arena::create(arena_->size(), page_bytes(), &records_));
    for (const auto& [dtype, pool] : pool_bytes)
      pools_.emplace(dtype, std::make_unique<DevicePool>(dtype, pool, hard_bytes[dtype],
                                                         arena_.get(), &dice_));
    const Range region{arena_->take(Arena::Part::written, outputs), outputs};
    for (const TimedShape& s : o_.shapes) {
      DevicePool* pool = pools_.at(s.problem.dtype).get();
      auto set = std::make_unique<DeviceSet>(s, pool, arena_.get(), region, &dice_);
      if (!pool->fits() || !set->fits())
        return Status::unsupported(fmt::format(
            "shape {} is too large to be timed: two of its outputs need more than {} MB", s.name,
            outputs >> 20));
      const Problem key = kernel_key(s.problem);
      if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) {
        keys_.push_back(key);
        key_calls_.push_back(set->call());
      }
      sets_.push_back(std::move(set));
    }
    for (const auto& [dtype, pool] : pools_) fixed_.push_back(pool->range());
    return {};
  }

  // A run empties the folder when it begins.
  Status write_kernels() const {
    if (std::filesystem::exists(kernels_)) return {};
    ATTUNE_TRY(make_folder(o_.scratch));
    return write_file(kernels_, compare_);
  }

  // ---- compile ----

  Compiled compile(const std::string& config) const {
    const double begin = monotonic_seconds();
    Compiled done;
    std::unique_ptr<Worker> worker;
    if (const Status s = Worker::start(worker_, *arena_, &worker); !s.ok())
      done.reply = {Reply::Kind::refused, s.message, 0};
    else
      done.reply = worker->compile(config, key_calls_, o_.check_seconds);
    done.seconds = monotonic_seconds() - begin;
    return done;
  }

  bool compiled(const Candidate& c, Evaluation* e) {
    prefetch(c);
    const Compiled done = compiled_.at(c.config).get();
    e->stage = Stage::compile;
    e->compile_seconds = done.seconds;
    e->source_hash = c.config;
    e->binary_hash = done.reply.text;
    if (done.reply.ok()) return true;
    e->binary_hash.clear();
    return fail(e,
                done.reply.kind == Reply::Kind::timeout ? Verdict::compile_timeout
                                                        : Verdict::compile_failed,
                done.reply.text);
  }

  // ---- workers ----

  bool open(const Candidate& c, Lane* lane, Evaluation* e) override {
    if (!health_.ok()) return fail(e, Verdict::launch_failed, health_.message);
    lane->id = c.id;
    lane->config = c.config;
    lane->program = !c.source.empty();
    std::string library;
    const auto build = [&](const std::string& text) { return programs_ahead_.take(text); };
    if (lane->program ? !compile_program(c, Language::cuda, build, lane, &library, e)
                      : !compiled(c, e))
      return false;
    if (const Status s = write_kernels(); !s.ok())
      return fail(e, Verdict::launch_failed, s.message);
    std::unique_ptr<Worker>& owner = lane->program ? lane->keeper : lane->worker;
    const Status started = Worker::start(worker_, *arena_, &owner);
    if (!started.ok()) return fail(e, Verdict::launch_failed, started.message);
    Reply reply = owner->load_on_device(c.config, kernels_, o_.check_seconds);
    if (reply.ok()) reply = owner->upload(fixed_, kMoveSeconds);
    if (!reply.ok()) return fail(e, reply);
    return !lane->program || open_program(library, lane, e);
  }

  // The program's process sees the records of its calls, which it cannot change, and the keeper's
  // memory. It stands still but for the time between a request and its reply.
  bool open_program(const std::string& library, Lane* lane, Evaluation* e) {
    std::vector<double> empty;
    Reply reply = lane->keeper->share(fixed_, kMoveSeconds);
    const std::string memory = reply.text;
    for (int n = 0; n < kEmptyRequests && reply.ok(); ++n) {
      lane->keeper->suspend();
      reply = resumed(*lane->keeper, {}, o_.call_seconds, Worker::Wait::device);
      empty.push_back(reply.seconds);
    }
    if (!reply.ok()) return fail(e, reply);
    lane->empty = median(empty);
    const Status started = Worker::start(worker_, *records_, &lane->worker);
    if (!started.ok()) return fail(e, Verdict::launch_failed, started.message);
    reply = lane->worker->load_library(library, memory, o_.check_seconds);
    lane->worker->suspend();
    return reply.ok() || fail(e, reply);
  }

  static Reply resumed(Worker& worker, std::span<const int64_t> calls, double limit,
                       Worker::Wait wait) {
    worker.resume();
    return worker.run_at_once(calls, limit, wait);
  }

  Reply run(Lane* lane, std::span<const int64_t> calls, double limit, const Done&) override {
    if (!lane->program) return lane->worker->run(calls, limit);
    for (const int64_t at : calls)
      std::memcpy(records_->base() + at, arena_->base() + at, sizeof(ArenaCall));
    const Reply reply = resumed(*lane->worker, calls, limit, Worker::Wait::device);
    lane->worker->suspend();
    return reply;
  }

  Reply worst_rows(Lane* lane, std::span<const int64_t> calls,
                   std::vector<int64_t>* rows) override {
    Reply reply = owner_of(*lane).worst_rows(calls, kMoveSeconds);
    std::istringstream numbers(reply.ok() ? reply.text : "");
    for (int64_t row = 0; numbers >> row;) rows->push_back(row);
    if (reply.ok() && rows->size() != calls.size())
      return {Reply::Kind::refused, "not every result was compared", 0};
    return reply;
  }

  static Worker& owner_of(const Lane& lane) { return lane.program ? *lane.keeper : *lane.worker; }

  bool runs(const Lane& lane, const check::Case& c) const override {
    if (lane.program) return in_contract(c, lane.contract, Language::cuda);
    Config config;
    if (!parse_config(lane.config, &config)) return false;
    const Rung& rung = *config.rung;
    if (c.problem.group() == 1 && value_of(config, "pack_gqa") != 0) return false;
    const Request request{c.problem, device_.arch, layout_of_case(c), ~size_t{0}, "", ""};
    return rung.invalid(config, c.problem, device_.arch).empty() &&
           rung.misfit(request, config).empty();
  }

  // At least what the tensors of a case allow: they are contiguous, or lie anyhow.
  static Layout layout_of_case(const check::Case& c) {
    const Problem& p = c.problem;
    const bool keys = (c.mask_broadcast >> 3 & 1) == 0;
    Layout layout;
    layout.mask16 = p.mask == MaskKind::none ||
                    (!c.strided && keys && p.seq_k * element_bytes(p.mask) % 16 == 0);
    layout.rows16 = !c.strided;
    if (c.strided) layout.step = element_bytes(p.dtype);
    return layout;
  }

  check::Allowance allowance(const Lane& lane, const Problem& problem) const override {
    Config config;
    const bool may_use_them =
        lane.program || (parse_config(lane.config, &config) && config.rung->tensor_cores);
    return may_use_them ? check::tensor_core_allowance(problem) : check::Allowance{};
  }

  Reply upload(Lane* lane, std::span<const Range> ranges) override {
    return owner_of(*lane).upload(ranges, kMoveSeconds);
  }
  Reply fetch(Lane* lane, std::span<const Range> ranges) override {
    return owner_of(*lane).fetch(ranges, kMoveSeconds);
  }
  Reply poison(Lane* lane, std::span<const Range> ranges) override {
    return owner_of(*lane).poison(ranges, kMoveSeconds);
  }

  double most_flops(DType) const override {
    return kAbovePeak * device_.arch.sms * kHighestClock * tensor_flops_a_cycle(device_.arch.cc);
  }

  double most_bytes() const override {
    return kAbovePeak * device_.arch.sms * kHighestClock * kBytesACycle;
  }

  bool processor_time_tells() const override { return false; }
  bool lse_is_another_kernel() const override { return true; }
  bool admits(const Lane& lane) const override { return lane.program; }

  // Only a program can work beside the stream that it was given, keep a part of the cache, or write
  // to the inputs of other calls.
  std::string hidden_work(Lane* lane, Evaluation* e) override {
    if (!lane->program) return "";
    const double empty = empty_of(*lane);
    for (int n = 0; n < 3; ++n) {
      const std::vector<int64_t> calls = sets_[0]->draw(lane->calls[0], Hard::even, &dice_);
      const double limit = o_.call_seconds * double(calls.size());
      for (const int64_t at : calls)
        std::memcpy(records_->base() + at, arena_->base() + at, sizeof(ArenaCall));
      const Reply there = resumed(*lane->worker, calls, limit, Worker::Wait::stream);
      const Reply all = there.ok() ? lane->worker->synchronize(limit) : there;
      lane->worker->suspend();
      if (!all.ok()) {
        fail(e, all);
        return "";
      }
      const double beside = all.seconds - empty;
      if (beside < kSomeTime || beside < kElsewhere * (there.seconds - empty + beside)) break;
      if (n == 2)
        return fmt::format(
            "{:.0f} % of its work goes on when the stream that it was given has ended",
            100 * beside / (there.seconds - empty + beside));
    }
    lane->worker->resume();
    Reply kept = lane->worker->reserved_cache(o_.call_seconds);
    lane->worker->suspend();
    if (kept.ok() && kept.text.empty())
      return "it gave no number for what it set aside of the second-level cache";
    if (kept.ok() && kept.text != "0")
      return fmt::format("it set aside {} bytes of the second-level cache", kept.text);
    if (kept.ok()) kept = lane->keeper->shared_inputs(kMoveSeconds);
    if (!kept.ok()) fail(e, kept);
    return kept.ok() && kept.text != "same" ? "inputs of timed calls were written to" : "";
  }

  WorkerOptions worker_;
  std::string compare_, kernels_;   // the kernels that compare, and their file
  std::unique_ptr<Arena> records_;  // what a program sees of the arena: the records of its calls
  cuda::Device device_;
  std::map<DType, std::unique_ptr<DevicePool>> pools_;
  std::vector<Range> fixed_;        // what every worker is sent when it starts
  std::vector<Problem> keys_;       // what kernels are specialised on
  std::vector<int64_t> key_calls_;  // a call of each
  std::atomic<bool> settling_ = false;
  // The last two end first.
  std::map<std::string, std::shared_future<Compiled>> compiled_;  // by config
  CompileAhead programs_ahead_;
};

}  // namespace

std::unique_ptr<Evaluator> cuda_evaluator(EvaluatorOptions options, int device) {
  return std::make_unique<CudaEvaluator>(std::move(options), device);
}

}  // namespace attune::evolve
