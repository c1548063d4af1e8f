#include "cli/peak_cuda.hpp"

#include <algorithm>

#include "src/api/tensor_check.hpp"
#include "src/jit/nvrtc.hpp"

namespace attune::cli {
namespace {

// As in kernels/peak/peak.cuh.
constexpr unsigned kThreads = 256;
constexpr double kMmaFlops = 8 * 2.0 * 16 * 8 * 16;  // a warp and round
constexpr double kFmaFlops = 16 * 2.0;               // a thread and round
constexpr unsigned kBlocksAnSm = 4;
constexpr double kSeconds = 3e-3;  // a launch: long enough that its ends do not show
constexpr int kFirstRounds = 512;

constexpr const char* kSource = R"(#include "peak/peak.cuh"
#define ATTUNE_PEAK extern "C" __global__ void __launch_bounds__(attune::kPeakThreads)
ATTUNE_PEAK attune_peak_f32(float* sink, int rounds) { attune::peak_fma(sink, rounds); }
#if __CUDA_ARCH__ >= 800
ATTUNE_PEAK attune_peak_f16(float* sink, int rounds) {
  attune::peak_mma<attune::DType::f16>(sink, rounds);
}
ATTUNE_PEAK attune_peak_bf16(float* sink, int rounds) {
  attune::peak_mma<attune::DType::bf16>(sink, rounds);
}
#endif
)";

struct Kind {
  PeakKind kind;
  const char* entry;
  double flops;  // a thread and round
  int least_cc;
};
constexpr Kind kKinds[] = {{PeakKind::f32, "attune_peak_f32", kFmaFlops, 75},
                           {PeakKind::f16, "attune_peak_f16", kMmaFlops / 32, 80},
                           {PeakKind::bf16, "attune_peak_bf16", kMmaFlops / 32, 80}};

}  // namespace

PeakKernels::~PeakKernels() {
  if (module_ != nullptr) cuda::driver()->cuModuleUnload(module_);
}

Status PeakKernels::load(const cuda::Device& device) {
  jit::Compiled compiled;
  ATTUNE_TRY(jit::compile(kSource, device.arch.cc, {}, &compiled));
  const cuda::Driver* d = nullptr;
  ATTUNE_TRY(cuda::need_driver(&d));
  ATTUNE_CUDA_TRY(*d, cuModuleLoadData, &module_, compiled.cubin.data());
  blocks_ = kBlocksAnSm * static_cast<unsigned>(device.arch.sms);
  for (const Kind& kind : kKinds) {
    if (device.arch.cc < kind.least_cc) continue;
    Entry entry{kind.kind, nullptr, kind.flops * kThreads * blocks_, 0};
    ATTUNE_CUDA_TRY(*d, cuModuleGetFunction, &entry.function, module_, kind.entry);
    entries_.push_back(entry);
  }
  ATTUNE_TRY(sink_.allocate(sizeof(float)));
  ATTUNE_TRY(begin_.create());
  return end_.create();
}

Status PeakKernels::launch(const Entry& entry, int rounds, void* stream, double* seconds) {
  void* sink = sink_.data();
  void* parameters[] = {&sink, &rounds};
  ATTUNE_TRY(begin_.record(stream));
  const cuda::CUlaunchConfig config{
      {blocks_, 1, 1}, {kThreads, 1, 1}, 0, static_cast<cuda::CUstream>(stream), nullptr, 0};
  ATTUNE_CUDA_TRY(*cuda::driver(), cuLaunchKernelEx, &config, entry.function, parameters, nullptr);
  ATTUNE_TRY(end_.record(stream));
  ATTUNE_TRY(end_.synchronize());
  float milliseconds = 0;
  ATTUNE_TRY(end_.milliseconds_since(begin_, &milliseconds));
  *seconds = std::max(milliseconds, 1e-3f) * 1e-3;
  return {};
}

Status PeakKernels::measure(PeakKind kind, void* stream, double* tflops) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.kind == kind; });
  if (found == entries_.end()) return Status::unsupported("no such kernel on this device");
  double seconds = 0;
  if (found->rounds == 0) {
    ATTUNE_TRY(launch(*found, kFirstRounds, stream, &seconds));  // the first is slow
    ATTUNE_TRY(launch(*found, kFirstRounds, stream, &seconds));
    found->rounds = static_cast<int>(std::clamp(kFirstRounds * kSeconds / seconds, 64.0, 1e8));
  }
  ATTUNE_TRY(launch(*found, found->rounds, stream, &seconds));
  *tflops = found->flops_a_round * found->rounds / seconds / 1e12;
  return {};
}

namespace {

// A device's primary context, current for as long as this lives.
class Primary {
 public:
  Primary() = default;
  ~Primary() {
    cuda::CUcontext popped = nullptr;
    if (pushed_) cuda::driver()->cuCtxPopCurrent(&popped);
    if (context_ != nullptr) cuda::driver()->cuDevicePrimaryCtxRelease(device_);
  }
  Primary(const Primary&) = delete;
  Primary& operator=(const Primary&) = delete;

  Status enter(int ordinal) {
    const cuda::Driver* d = nullptr;
    ATTUNE_TRY(cuda::need_driver(&d));
    ATTUNE_CUDA_TRY(*d, cuDeviceGet, &device_, ordinal);
    ATTUNE_CUDA_TRY(*d, cuDevicePrimaryCtxRetain, &context_, device_);
    ATTUNE_CUDA_TRY(*d, cuCtxPushCurrent, context_);
    pushed_ = true;
    return {};
  }

 private:
  cuda::CUdevice device_ = 0;
  cuda::CUcontext context_ = nullptr;
  bool pushed_ = false;
};

}  // namespace

Status gpu_peak(int ordinal, PeakKind kind, double* tflops) {
  constexpr int kLaunches = 10;
  cuda::Device device;
  ATTUNE_TRY(cuda::device(ordinal, &device));
  Primary context;
  ATTUNE_TRY(context.enter(ordinal));
  cuda::Stream stream;
  cuda::Scope of_stream;
  ATTUNE_TRY(stream.create());
  ATTUNE_TRY(of_stream.enter(stream.get(), nullptr));
  PeakKernels kernels;
  ATTUNE_TRY(kernels.load(device));
  *tflops = 0;
  for (int n = 0; n < kLaunches; ++n) {
    double once = 0;
    ATTUNE_TRY(kernels.measure(kind, stream.get(), &once));
    *tflops = std::max(*tflops, once);
  }
  return {};
}

}  // namespace attune::cli
