#include "cli/measure.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>

#include "cli/machine.hpp"
#include "cli/random_data.hpp"
#include "cli/terminal.hpp"
#include "src/api/report.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/fused_backward.hpp"
#include "src/select/select.hpp"

namespace attune::cli {
namespace {

constexpr double kPeakSeconds = 0.02;
constexpr size_t kAlign = 64;

int64_t element_size(DType dtype) {
  return dtype == DType::f32 ? 4 : dtype == DType::boolean ? 1 : 2;
}

int64_t aligned(int64_t bytes) {
  const int64_t a = static_cast<int64_t>(kAlign);
  return (bytes + a - 1) / a * a;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};

// A piece of memory that all rows of one dtype read their inputs from (or write their output to),
// each from its beginning: a run over many shapes needs no more than its largest.
class Arena {
 public:
  void reserve(int64_t bytes) { bytes_ = std::max(bytes_, aligned(bytes)); }
  int64_t bytes() const { return bytes_; }

  void allocate() {
    if (bytes_ == 0) return;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, static_cast<size_t>(bytes_))));
    if (data_ == nullptr)
      throw std::runtime_error(fmt::format("not enough memory: {} MB asked for", bytes_ >> 20));
    std::memset(data_.get(), 0, static_cast<size_t>(bytes_));
  }

  // Repeats `pattern` to the end.
  void fill(const std::vector<std::byte>& pattern) {
    for (size_t at = 0; at < static_cast<size_t>(bytes_); at += pattern.size())
      std::memcpy(data_.get() + at, pattern.data(),
                  std::min(pattern.size(), static_cast<size_t>(bytes_) - at));
  }

  std::byte* data() const { return data_.get(); }

 private:
  int64_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

// Stops at a number that no memory holds and that can still be added up in bytes, so that absurd
// shapes are refused for their size instead of wrapping around to a small one.
int64_t times(int64_t a, int64_t b) {
  constexpr int64_t kTooMany = int64_t{1} << 56;
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kTooMany : std::min(product, kTooMany);
}

int64_t volume(const int64_t (&shape)[4]) {
  return times(times(shape[0], shape[1]), times(shape[2], shape[3]));
}

attune_tensor contiguous(void* data, DType dtype, const int64_t (&shape)[4]) {
  attune_tensor t{};
  t.data = data;
  t.dtype = static_cast<int32_t>(dtype);
  t.rank = 4;
  int64_t step = 1;
  for (int d = 3; d >= 0; --d) {
    t.shape[d] = shape[d];
    t.stride[d] = step;
    step = times(step, shape[d]);
  }
  return t;
}

struct Sizes {
  int64_t q[4], k[4], v[4], out[4], lse[4], mask[4];

  explicit Sizes(const Shape& s)
      : q{s.batch, s.heads, s.seq_q, s.dim},
        k{s.batch, s.heads_kv, s.seq_k, s.dim},
        v{s.batch, s.heads_kv, s.seq_k, s.dim_v},
        out{s.batch, s.heads, s.seq_q, s.dim_v},
        lse{s.batch, s.heads, s.seq_q, 1},
        mask{s.batch, 1, s.seq_q, s.seq_k} {}
};

// Of the output, and of LSE behind it.
int64_t out_bytes(const Row& row) {
  const Sizes s(row.shape);
  const int64_t out = volume(s.out) * element_size(row.dtype);
  return row.lse ? aligned(out) + volume(s.lse) * element_size(DType::f32) : out;
}

int64_t row_bytes(const Row& row) {
  const Sizes s(row.shape);
  const int64_t mask =
      row.mask == MaskKind::none ? 0 : volume(s.mask) * element_size(mask_dtype(row.mask));
  return (volume(s.q) + volume(s.k) + volume(s.v)) * element_size(row.dtype) + out_bytes(row) +
         mask;
}

// The inputs and outputs of all rows.
class Memory {
 public:
  Memory(const std::vector<Row>& rows, uint64_t seed) {
    for (const Row& row : rows) {
      const Sizes s(row.shape);
      const int64_t size = element_size(row.dtype);
      input(row.dtype).reserve(aligned(volume(s.q) * size) + aligned(volume(s.k) * size) +
                               volume(s.v) * size);
      out_.reserve(out_bytes(row));
      if (row.backward)
        out_.reserve(aligned(volume(s.q) * size) + aligned(volume(s.k) * size) +
                     volume(s.v) * size);
      if (row.mask != MaskKind::none)
        mask(row.mask).reserve(volume(s.mask) * element_size(mask_dtype(row.mask)));
    }
    must_fit(rows);
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      input(dtype).allocate();
      input(dtype).fill(random_pattern(dtype, seed));
    }
    for (MaskKind kind : {MaskKind::boolean, MaskKind::f32, MaskKind::f16, MaskKind::bf16}) {
      mask(kind).allocate();
      mask(kind).fill(random_pattern(mask_dtype(kind), seed + 1));
    }
    out_.allocate();
  }

  attune_args args(const Row& row) {
    return make_args(row, input(row.dtype).data(), mask(row.mask).data(), out_.data());
  }
  // Gradients go where other rows have their outputs; out and lse have a place of their own.
  attune_backward_args backward_args(const Row& row, attune_args* forward) {
    const Sizes s(row.shape);
    const int64_t size = element_size(row.dtype);
    const auto more = static_cast<size_t>(aligned(volume(s.out) * size));
    results_.push_back(
        std::make_unique<std::byte[]>(more + static_cast<size_t>(volume(s.lse)) * sizeof(float)));
    std::byte *out = results_.back().get(), *dq = out_.data();
    forward->out.data = out;
    forward->lse.data = out + more;
    std::byte* dk = dq + aligned(volume(s.q) * size);
    attune_backward_args args = make_backward_args(row, *forward);
    args.dout.data = input(row.dtype).data();
    args.dq.data = dq;
    args.dk.data = dk;
    args.dv.data = dk + aligned(volume(s.k) * size);
    return args;
  }

 private:
  // Asked first: Linux grants memory that it does not have, and kills whoever touches it.
  void must_fit(const std::vector<Row>& rows) const {
    const std::optional<int64_t> available = available_memory();
    int64_t needed = 2 * out_.bytes();  // extra_memory_mb's child writes a copy of its own
    for (const Row& row : rows) {
      const Sizes s(row.shape);
      if (row.backward)
        needed += volume(s.out) * element_size(row.dtype) + volume(s.lse) * int64_t{sizeof(float)};
    }
    for (const Arena& arena : inputs_) needed += arena.bytes();
    for (const Arena& arena : masks_) needed += arena.bytes();
    if (!available || needed <= *available) return;
    const auto largest = std::max_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
      return row_bytes(a) < row_bytes(b);
    });
    throw std::runtime_error(fmt::format(
        "inputs and outputs (the largest: {}) need {} MB of memory, but {} MB are available",
        to_string(largest->shape), needed >> 20, *available >> 20));
  }

  Arena& input(DType dtype) { return inputs_[static_cast<size_t>(dtype) - 1]; }
  Arena& mask(MaskKind kind) { return masks_[static_cast<size_t>(kind)]; }

  Arena inputs_[3], masks_[5], out_;  // by DType (f32 = 1), by MaskKind
  std::vector<std::unique_ptr<std::byte[]>> results_;
};

// A row that is ready to be called many times.
struct Job {
  Row* row;
  attune_args args;
  Call call;  // for a given config, which goes past the library's own choice
  int calls = 1;

  attune_backward_args backward = {};

  Status run() const {
    use_isa(row->isa);
    if (row->backward) return run_backward();
    if (row->config)
      return cpu::fused_forward(call.problem, call.params, *row->config, call.executor);
    return run_forward();
  }

  Status run_forward() const {
    const attune_status code = attune_forward(&args);
    return {code, code == ATTUNE_OK ? "" : attune_last_error()};
  }

  Status run_backward() const {
    if (row->config)
      return cpu::fused_backward(*cpu::isa_table(), call.problem, call.params, call.grads,
                                 *row->config, call.executor);
    attune_backward_args b = backward;
    b.forward = &args;
    const attune_status code = attune_backward(&b);
    return {code, code == ATTUNE_OK ? "" : attune_last_error()};
  }
};

void must(const Status& status, const Row& row) {
  if (!status.ok())
    throw std::runtime_error(fmt::format("{}: {}", to_string(row.shape), status.message));
}

int64_t peak_rss_kb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// How far one call raises the peak of resident memory, in MB. In a fork made before this process
// has called the library: there the peak starts at what is resident, and no workspace is left over
// from another row that would hide this one's. The code's own pages, touched for the first time,
// count too: a megabyte or two on the safe side.
std::optional<double> extra_memory_mb(const Job& job) {
  int ends[2];
  if (pipe(ends) != 0) return std::nullopt;
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGINT, SIG_DFL);
    const int64_t before = peak_rss_kb();
    const bool ok = job.run().ok();
    const int64_t grown = peak_rss_kb() - before;
    _exit(ok && write(ends[1], &grown, sizeof(grown)) == sizeof(grown) ? 0 : 1);
  }
  close(ends[1]);
  int64_t grown = -1;
  ssize_t got = 0;
  if (child > 0) {
    while ((got = read(ends[0], &grown, sizeof(grown))) < 0 && errno == EINTR) {
    }
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  close(ends[0]);
  if (got != sizeof(grown)) return std::nullopt;
  return static_cast<double>(grown) / 1024;
}

double seconds_a_call(const Job& job) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < job.calls; ++i) must(job.run(), *job.row);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return elapsed.count() / job.calls;
}

// Warms the row up and settles how many calls make a sample.
void calibrate(Job& job, double min_seconds) {
  double seconds = seconds_a_call(job);
  if (seconds < min_seconds) seconds = std::min(seconds, seconds_a_call(job));  // the first is cold
  job.calls =
      static_cast<int>(std::clamp(std::ceil(min_seconds / std::max(seconds, 1e-9)), 1.0, 1e6));
}

std::vector<Job> prepare(std::vector<Row>& rows, Memory& memory) {
  std::vector<Job> jobs;
  for (Row& row : rows) {
    Job job{&row, memory.args(row), {}};
    use_isa(row.isa);
    if (row.backward) {
      job.backward = memory.backward_args(row, &job.args);
      attune_backward_args b = job.backward;
      b.forward = &job.args;
      must(make_backward_call(&b, Pointers::required, &job.call), row);
    } else {
      must(make_call(&job.args, Pointers::required, &job.call), row);
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void sample_peaks(Peaks& peaks) {
  for (auto& [key, values] : peaks) {
    use_isa(key.first);
    values.push_back(peak_gflops(key.second, kPeakSeconds));
  }
}

}  // namespace

attune_args make_args(const Row& row, std::byte* inputs, std::byte* mask, std::byte* out) {
  const Sizes sizes(row.shape);
  attune_args args;
  attune_args_init(&args, sizeof(args));
  args.mode = row.mode;
  args.threads = row.threads;
  args.causal = row.causal;
  args.alignment = static_cast<int32_t>(row.alignment);
  auto next = [&, at = inputs](const int64_t(&shape)[4]) mutable {
    std::byte* here = at;
    if (at != nullptr) at += aligned(volume(shape) * element_size(row.dtype));
    return contiguous(here, row.dtype, shape);
  };
  args.q = next(sizes.q);
  args.k = next(sizes.k);
  args.v = next(sizes.v);
  args.out = contiguous(out, row.dtype, sizes.out);
  if (row.lse) {
    std::byte* behind =
        out == nullptr ? nullptr : out + aligned(volume(sizes.out) * element_size(row.dtype));
    args.lse = contiguous(behind, DType::f32, sizes.lse);
    args.lse.rank = 3;
  }
  if (row.mask != MaskKind::none) args.mask = contiguous(mask, mask_dtype(row.mask), sizes.mask);
  if (row.backward) {
    args.lse = contiguous(nullptr, DType::f32, sizes.lse);
    args.lse.rank = 3;
  }
  return args;
}

attune_backward_args make_backward_args(const Row& row, const attune_args& forward) {
  const Sizes sizes(row.shape);
  attune_backward_args args;
  attune_backward_args_init(&args, sizeof(args));
  args.forward = &forward;
  args.dout = contiguous(nullptr, row.dtype, sizes.out);
  args.dq = contiguous(nullptr, row.dtype, sizes.q);
  args.dk = contiguous(nullptr, row.dtype, sizes.k);
  args.dv = contiguous(nullptr, row.dtype, sizes.v);
  return args;
}

PeakKey peak_key(const Row& row) { return {row.isa, concurrent_threads(row.threads)}; }

double flops(const Row& row) {
  const Shape& s = row.shape;
  double pairs = static_cast<double>(s.seq_q) * static_cast<double>(s.seq_k);
  if (row.causal && s.seq_q == s.seq_k) {
    pairs /= 2;
  } else if (row.causal) {
    const int64_t shift = row.alignment == Alignment::bottom_right ? s.seq_k - s.seq_q : 0;
    int64_t allowed = 0;
    for (int64_t i = 0; i < s.seq_q; ++i) allowed += std::clamp<int64_t>(i + shift + 1, 0, s.seq_k);
    pairs = static_cast<double>(allowed);
  }
  const int64_t width = row.backward ? 3 * s.dim + 2 * s.dim_v : s.dim + s.dim_v;
  return 2 * static_cast<double>(s.batch * s.heads) * pairs * static_cast<double>(width);
}

std::string why_not(Row& row) {
  use_isa(row.isa);
  const attune_args args = make_args(row, nullptr, nullptr, nullptr);
  Call call;
  const attune_backward_args backward = make_backward_args(row, args);
  if (Status status = row.backward ? make_backward_call(&backward, Pointers::optional, &call)
                                   : make_call(&args, Pointers::optional, &call);
      !status.ok())
    return status.message;
  if (row.config) {
    row.kernel = fmt::format("{}/{}", problem_id(call.problem), cpu::to_string(*row.config));
    const std::string reason = cpu::invalid_reason(*row.config, call.problem, cpu::arch());
    return reason.empty() ? reason
                          : fmt::format("config {}: {}", cpu::to_string(*row.config), reason);
  }
  Choice choice;
  if (Status status = row.backward
                          ? select_backward(call.problem, call.results_given, row.mode, &choice)
                          : select(call.problem, row.mode, row.threads, &choice);
      !status.ok())
    return status.message;
  for (const Candidate& candidate : choice.candidates)
    if (candidate.reason.empty()) row.kernel = candidate.id;
  return "";
}

Peaks measure(std::vector<Row>& rows, const Sampling& sampling) {
  Memory memory(rows, sampling.seed);
  std::vector<Job> jobs = prepare(rows, memory);
  Peaks peaks;
  for (const Row& row : rows) peaks[peak_key(row)];

  Progress progress(static_cast<int64_t>(jobs.size()) * (sampling.rounds + 2));
  for (Job& job : jobs) {
    if (interrupted()) return peaks;
    progress.step("memory of " + to_string(job.row->shape));
    job.row->extra_mb = extra_memory_mb(job);
  }
  for (Job& job : jobs) {
    if (interrupted()) return peaks;
    progress.step("warming up " + to_string(job.row->shape));
    if (job.row->backward) must(job.run_forward(), *job.row);  // its results
    calibrate(job, sampling.min_seconds);
  }
  std::mt19937_64 random(sampling.seed);
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), 0);
  for (int round = 0; round < sampling.rounds; ++round) {
    if (interrupted()) return peaks;
    sample_peaks(peaks);
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i : order) {
      if (interrupted()) return peaks;
      progress.step(fmt::format("round {}: {}", round + 1, to_string(jobs[i].row->shape)));
      jobs[i].row->seconds.push_back(seconds_a_call(jobs[i]));
    }
  }
  return peaks;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

}  // namespace attune::cli
