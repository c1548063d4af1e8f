#include "cli/measure_cuda.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <stdexcept>
#include <variant>

#include "cli/nvml.hpp"
#include "cli/peak_cuda.hpp"
#include "cli/random_data.hpp"
#include "cli/terminal.hpp"
#include "src/api/tensor_check.hpp"
#include "src/cuda/driver.hpp"
#include "src/cuda/memory.hpp"
#include "src/jit/forward.hpp"
#include "src/select/cuda_select.hpp"

namespace attune::cli {
namespace {

constexpr double kGraphBelow = 50e-6;  // shorter calls: the host's own time would show
constexpr int64_t kLeastFlush = int64_t{256} << 20;  // also hides the host's time behind the memset
constexpr int64_t kAlign = 256;
constexpr int kMostColdSamples = 50;  // in a round
constexpr int kMostGraphCalls = 50;
constexpr double kSlow = 0.5;  // seconds a call: such a row gets few rounds
constexpr int kSlowRounds = 3;

void must(const Status& status, const std::string& what) {
  if (!status.ok()) throw std::runtime_error(fmt::format("{}: {}", what, status.message));
}

std::string name_of(const CudaRow& row) {
  return fmt::format("{} {}", to_string(row.work.shape),
                     row.config ? to_string(*row.config) : mode_name(row.mode));
}

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// The call's tensors as views of nothing, each contiguous.
attune_args shapes_of(const CudaRow& row) {
  Row plain;
  plain.shape = row.work.shape;
  plain.dtype = row.work.dtype;
  plain.causal = row.work.causal;
  plain.lse = row.work.lse;
  plain.alignment = row.alignment;
  plain.mask = row.mask;
  plain.mode = row.mode;
  plain.threads = 0;
  attune_args args = make_args(plain, nullptr, nullptr, nullptr);
  args.device = ATTUNE_CUDA;
  return args;
}

int64_t bytes_of(const attune_tensor& t) {
  if (t.rank == 0) return 0;
  int64_t elements = 1;
  for (int d = 0; d < t.rank; ++d) elements *= t.shape[d];
  return elements * element_size(t.dtype);
}

// One piece of device memory for all rows of one dtype: a run over many shapes needs no more than
// its largest.
class Arena {
 public:
  void reserve(int64_t bytes) { wanted_ = std::max(wanted_, aligned(bytes)); }
  int64_t wanted() const { return wanted_; }

  void allocate() { must(buffer_.allocate(static_cast<size_t>(wanted_)), "device memory"); }

  // Repeats the pattern to the end.
  void fill(const std::vector<std::byte>& pattern) {
    std::vector<std::byte> chunk;
    for (int n = 0; n < 64; ++n) chunk.insert(chunk.end(), pattern.begin(), pattern.end());
    for (size_t at = 0; at < buffer_.bytes(); at += chunk.size())
      must(cuda::copy_to_device(data() + at, chunk.data(),
                                std::min(chunk.size(), buffer_.bytes() - at)),
           "filling the inputs");
  }

  std::byte* data() const { return static_cast<std::byte*>(buffer_.data()); }

 private:
  int64_t wanted_ = 0;
  cuda::Buffer buffer_;
};

int64_t input_bytes(const attune_args& a) {
  return aligned(bytes_of(a.q)) + aligned(bytes_of(a.k)) + aligned(bytes_of(a.v));
}

// A row that can be called many times.
struct Job {
  CudaRow* row;
  attune_args args;
  std::optional<Plan> plan;  // of a given config, which goes past the library's own choice
  Call call;                 // with it
  const cuda::Scope* scope;
  int cold_samples = 1, warm_calls = 1, rounds = 1;
  cuda::Graph graph;
  int graph_calls = 0;  // 0: no graph

  Status run() const {
    if (plan) return jit::forward(*plan, call.problem, call.params, *scope);
    const attune_status code = attune_forward(&args);
    return {code, code == ATTUNE_OK ? "" : attune_last_error()};
  }
};

class Bench {
 public:
  Bench(std::vector<CudaRow>& rows, const Sampling& sampling, const cuda::Device& device)
      : rows_(rows), sampling_(sampling), device_(device) {}

  CudaPeaks run();

 private:
  void choose_kernels();
  void choose_config(Job* job);
  void choose_mode(Job* job);
  void make_memory();
  void place(Job* job);
  void calibrate(Job* job);
  void capture(Job* job);
  void round(int number, std::mt19937_64& random);
  void sample_peaks();
  double seconds(const std::function<Status()>& work, const CudaRow& row, Vitals* vitals = nullptr);
  double cold(const Job& job);
  double warm(const Job& job, Vitals* vitals = nullptr);
  double pass(const Job& job, int calls, Vitals* vitals = nullptr);

  Arena& input(DType dtype) { return inputs_[static_cast<size_t>(dtype) - 1]; }
  Arena& mask(MaskKind kind) { return masks_[static_cast<size_t>(kind)]; }

  std::vector<CudaRow>& rows_;
  const Sampling& sampling_;
  const cuda::Device& device_;
  cuda::Scope context_;
  cuda::Stream stream_;
  cuda::Scope scope_;  // of the stream
  cuda::Event begin_, end_;
  Arena inputs_[3], masks_[5], out_, workspace_, flush_;  // by DType (f32 = 1), by MaskKind
  uint32_t flushes_ = 0;
  std::vector<Job> jobs_;
  PeakKernels peak_kernels_;
  std::optional<Nvml> nvml_;
  CudaPeaks peaks_;
};

// ---- What runs ----

PeakKind peak_of(const CudaRow& row, const Rung* rung, int cc) {
  if (cc < 80) return PeakKind::f32;
  if (row.work.dtype == DType::f16) return PeakKind::f16;
  if (row.work.dtype == DType::bf16) return PeakKind::bf16;
  return rung != nullptr && rung->tensor_cores ? PeakKind::f32_split : PeakKind::f32;
}

void Bench::choose_config(Job* job) {
  CudaRow& row = *job->row;
  must(make_call(&job->args, Pointers::optional, &job->call), name_of(row));
  const Config& config = *row.config;
  const Rung& rung = *config.rung;
  const Problem& problem = job->call.problem;
  const Request request{problem,    device_.arch, layout_of(problem, job->call.params),
                        ~size_t{0}, "",           ""};
  row.why_not = rung.invalid(config, problem, device_.arch);
  if (row.why_not.empty()) row.why_not = rung.misfit(request, config);
  if (!row.why_not.empty()) return;
  job->plan = rung.plan(request, config);
  row.peak = peak_of(row, &rung, device_.arch.cc);
  row.kernel = job->plan->id;
  row.workspace_bytes = static_cast<int64_t>(job->plan->workspace_bytes);
}

void Bench::choose_mode(Job* job) {
  CudaRow& row = *job->row;
  size_t bytes = 0, needed = 0;
  if (attune_workspace_size(&job->args, &bytes) != ATTUNE_OK) {
    row.why_not = attune_last_error();
    return;
  }
  row.workspace_bytes = static_cast<int64_t>(bytes);
  attune_args asked = job->args;
  asked.workspace_bytes = bytes;
  must({attune_explain(&asked, nullptr, 0, &needed), attune_last_error()}, name_of(row));
  std::string text(needed, '\0');
  must({attune_explain(&asked, text.data(), text.size(), nullptr), attune_last_error()},
       name_of(row));
  const auto json = nlohmann::json::parse(text.c_str());
  row.kernel = json.at("chosen");
  row.peak = peak_of(row, rung_named(json.at("mode").get<std::string>()), device_.arch.cc);
}

// Leaves out, with its reason, what cannot run here.
void Bench::choose_kernels() {
  for (CudaRow& row : rows_) {
    row.why_not = left_out_of_set(row);
    if (!row.why_not.empty()) continue;
    Job job;
    job.row = &row;
    job.scope = &scope_;
    job.args = shapes_of(row);
    job.args.stream = stream_.get();
    if (row.config)
      choose_config(&job);
    else
      choose_mode(&job);
    if (row.why_not.empty()) jobs_.push_back(std::move(job));
  }
}

// ---- Memory ----

void Bench::make_memory() {
  flush_.reserve(std::max(kLeastFlush, 2 * device_.l2_bytes));
  for (const Job& job : jobs_) {
    input(job.row->work.dtype).reserve(input_bytes(job.args));
    out_.reserve(aligned(bytes_of(job.args.out)) + bytes_of(job.args.lse));
    mask(job.row->mask).reserve(bytes_of(job.args.mask));
  }
  int64_t needed = flush_.wanted() + out_.wanted();
  for (const Arena& arena : inputs_) needed += arena.wanted();
  for (const Arena& arena : masks_) needed += arena.wanted();
  size_t available = 0, total = 0;
  must(cuda::free_memory(&available, &total), "device memory");
  const int64_t reserve = int64_t{256} << 20;  // for the kernels themselves
  const int64_t left = static_cast<int64_t>(available) - needed - reserve;
  if (left < 0)
    throw std::runtime_error(
        fmt::format("inputs and outputs need {} MB of device memory, but {} MB are available",
                    needed >> 20, available >> 20));
  std::erase_if(jobs_, [&](const Job& job) {
    if (job.row->workspace_bytes <= left) return false;
    job.row->why_not = fmt::format("its workspace needs {} MB, but {} MB of device memory are left",
                                   job.row->workspace_bytes >> 20, left >> 20);
    return true;
  });
  for (const Job& job : jobs_) workspace_.reserve(job.row->workspace_bytes);

  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    if (input(dtype).wanted() > 0) {
      input(dtype).allocate();
      input(dtype).fill(random_pattern(dtype, sampling_.seed));
    }
  for (MaskKind kind : {MaskKind::boolean, MaskKind::f32, MaskKind::f16, MaskKind::bf16})
    if (mask(kind).wanted() > 0) {
      mask(kind).allocate();
      mask(kind).fill(random_pattern(mask_dtype(kind), sampling_.seed + 1));
    }
  out_.allocate();
  workspace_.allocate();
  flush_.allocate();
}

void Bench::place(Job* job) {
  attune_args& a = job->args;
  std::byte* at = input(job->row->work.dtype).data();
  for (attune_tensor* t : {&a.q, &a.k, &a.v}) {
    t->data = at;
    at += aligned(bytes_of(*t));
  }
  a.out.data = out_.data();
  if (a.lse.rank != 0) a.lse.data = out_.data() + aligned(bytes_of(a.out));
  if (a.mask.rank != 0) a.mask.data = mask(job->row->mask).data();
  if (job->row->workspace_bytes > 0) a.workspace = workspace_.data();
  a.workspace_bytes = static_cast<size_t>(job->row->workspace_bytes);
  if (job->plan) must(make_call(&a, Pointers::required, &job->call), name_of(*job->row));
}

// ---- Time ----

// `vitals`: asked while the work is under way.
double Bench::seconds(const std::function<Status()>& work, const CudaRow& row, Vitals* vitals) {
  float milliseconds = 0;
  const auto timed = [&]() -> Status {
    ATTUNE_TRY(begin_.record(stream_.get()));
    ATTUNE_TRY(work());
    ATTUNE_TRY(end_.record(stream_.get()));
    if (vitals != nullptr) *vitals = nvml_->now();
    ATTUNE_TRY(end_.synchronize());
    return end_.milliseconds_since(begin_, &milliseconds);
  };
  must(timed(), name_of(row));
  return milliseconds * 1e-3;
}

// One call, after the L2 was filled with something else.
double Bench::cold(const Job& job) {
  must(cuda::fill_words(flush_.data(), ++flushes_, static_cast<size_t>(flush_.wanted()) / 4,
                        stream_.get()),
       "flushing the L2");
  return seconds([&] { return job.run(); }, *job.row);
}

double Bench::pass(const Job& job, int calls, Vitals* vitals) {
  const auto work = [&]() -> Status {
    for (int n = 0; n < calls; ++n) ATTUNE_TRY(job.run());
    return {};
  };
  return seconds(work, *job.row, vitals) / calls;
}

// A call among many, in a graph where calls are short.
double Bench::warm(const Job& job, Vitals* vitals) {
  if (job.graph_calls == 0) return pass(job, job.warm_calls, vitals);
  const int replays = std::max(1, job.warm_calls / job.graph_calls);
  const auto work = [&]() -> Status {
    for (int n = 0; n < replays; ++n) ATTUNE_TRY(job.graph.launch(stream_.get()));
    return {};
  };
  return seconds(work, *job.row, vitals) / (replays * job.graph_calls);
}

void Bench::capture(Job* job) {
  job->graph_calls = std::min(kMostGraphCalls, job->warm_calls);
  const auto work = [&]() -> Status {
    for (int n = 0; n < job->graph_calls; ++n) ATTUNE_TRY(job->run());
    return {};
  };
  must(job->graph.capture(stream_.get(), work), name_of(*job->row));
  job->row->graph = true;
  (void)warm(*job);  // the first replay uploads it
}

// Compiles and warms the row up, and settles how many calls make a sample.
void Bench::calibrate(Job* job) {
  (void)pass(*job, 1);
  double once = pass(*job, 1);
  if (once < sampling_.min_seconds) once = std::min(once, pass(*job, 3));
  const double flush = 1e-4;  // about
  const auto count = [&](double seconds_each, int most) {
    return static_cast<int>(std::clamp(sampling_.min_seconds / seconds_each, 1.0, double(most)));
  };
  job->cold_samples = count(once + flush, kMostColdSamples);
  job->warm_calls = count(std::max(once, 1e-6), 10000);
  job->rounds = once > kSlow ? std::min(sampling_.rounds, kSlowRounds) : sampling_.rounds;
  if (once < kGraphBelow) capture(job);
}

void Bench::sample_peaks() {
  for (auto& [kind, values] : peaks_) {
    const bool split = kind == PeakKind::f32_split;
    double tflops = 0;
    must(peak_kernels_.measure(split ? PeakKind::f16 : kind, stream_.get(), &tflops), "the peak");
    values.push_back(split ? tflops / 3 : tflops);
  }
}

void Bench::round(int number, std::mt19937_64& random) {
  std::vector<Job*> order;
  for (Job& job : jobs_)
    if (number < job.rounds) order.push_back(&job);
  std::shuffle(order.begin(), order.end(), random);
  for (Job* job : order) {
    std::vector<double> samples;
    for (int n = 0; n < job->cold_samples && !interrupted(); ++n) samples.push_back(cold(*job));
    if (interrupted()) return;
    CudaRow& row = *job->row;
    row.cold.push_back(quantile(samples, 0.5));
    Vitals vitals;
    row.warm.push_back(warm(*job, &vitals));
    if (vitals.sm_mhz) row.sm_mhz.push_back(*vitals.sm_mhz);
    if (vitals.watts) row.watts.push_back(*vitals.watts);
  }
}

CudaPeaks Bench::run() {
  must(context_.enter(nullptr, nullptr), "--device cuda");
  must(stream_.create(), "a stream");
  must(scope_.enter(stream_.get(), nullptr), "a stream");
  must(begin_.create(), "an event");
  must(end_.create(), "an event");
  nvml_.emplace(uuid_of(device_));
  choose_kernels();
  make_memory();
  if (jobs_.empty()) return peaks_;
  must(peak_kernels_.load(device_), "the peak");
  for (const Job& job : jobs_) peaks_[job.row->peak];

  Progress progress(static_cast<int64_t>(jobs_.size()) + sampling_.rounds);
  for (Job& job : jobs_) {
    if (interrupted()) return peaks_;
    progress.step("warming up " + name_of(*job.row));
    place(&job);
    calibrate(&job);
  }
  std::mt19937_64 random(sampling_.seed);
  for (int number = 0; number < sampling_.rounds && !interrupted(); ++number) {
    progress.step(fmt::format("round {}", number + 1));
    sample_peaks();
    round(number, random);
  }
  return peaks_;
}

}  // namespace

const char* peak_name(PeakKind kind) {
  switch (kind) {
    case PeakKind::f32:
      return "f32";
    case PeakKind::f16:
      return "f16 mma";
    case PeakKind::bf16:
      return "bf16 mma";
    case PeakKind::f32_split:
      return "f16 mma / 3";
  }
  return "";
}

double flops(const CudaRow& row) {
  Row plain;
  plain.shape = row.work.shape;
  plain.causal = row.work.causal;
  plain.alignment = row.alignment;
  return flops(plain);
}

double kv_bytes(const CudaRow& row) {
  const Shape& s = row.work.shape;
  return static_cast<double>(s.batch * s.heads_kv * s.seq_k * (s.dim + s.dim_v)) *
         (row.work.dtype == DType::f32 ? 4 : 2);
}

std::string left_out_of_set(const CudaRow& row) {
  const bool quadratic = row.mode == ATTUNE_NAIVE || row.mode == ATTUNE_TILED;
  const Shape& s = row.work.shape;
  if (row.work.set.empty() || !quadratic || std::min(s.seq_q, s.seq_k) <= kLongestQuadratic)
    return "";
  return fmt::format("sets ask {} for no more than {} x {} scores", mode_name(row.mode),
                     kLongestQuadratic, kLongestQuadratic);
}

CudaPeaks measure_cuda(std::vector<CudaRow>& rows, const Sampling& sampling,
                       const cuda::Device& device) {
  return Bench(rows, sampling, device).run();
}

}  // namespace attune::cli
