#include "evolve/worker/compare_kernels.hpp"

#include "src/api/tensor_check.hpp"
#include "src/jit/nvrtc.hpp"

namespace attune::evolve {
namespace {

// As in kernels/judge/compare.cuh.
constexpr unsigned kThreads = 256, kBlocksAnSm = 8;

constexpr const char* kSource = R"(#include "judge/compare.cuh"
#define ATTUNE_KERNEL extern "C" __global__ void __launch_bounds__(attune::kCompareThreads)
#define ATTUNE_WORST_ROW(name)                                                                  \
  ATTUNE_KERNEL worst_row_##name(const void* ours, const void* theirs, int64_t rows, int dim,   \
                                 unsigned long long* worst) {                                   \
    attune::worst_row<attune::DType::name>(ours, theirs, rows, dim, worst);                     \
  }
ATTUNE_WORST_ROW(f32)
ATTUNE_WORST_ROW(f16)
#if __CUDA_ARCH__ >= 800
ATTUNE_WORST_ROW(bf16)
#endif
ATTUNE_KERNEL same_words(const uint4* a, const uint4* b, int64_t words, int* different) {
  attune::same_words(a, b, words, different);
}
)";

const char* worst_row_name(DType dtype) {
  return dtype == DType::f32   ? "worst_row_f32"
         : dtype == DType::f16 ? "worst_row_f16"
                               : "worst_row_bf16";
}

}  // namespace

Status compile_compare_kernels(int cc, std::string* cubin) {
  jit::Compiled compiled;
  ATTUNE_TRY(jit::compile(kSource, cc, {}, &compiled));
  *cubin = std::move(compiled.cubin);
  return {};
}

CompareKernels::~CompareKernels() {
  if (module_ != nullptr) cuda::driver()->cuModuleUnload(module_);
}

Status CompareKernels::load(const std::string& cubin) {
  const cuda::Driver* d = nullptr;
  ATTUNE_TRY(cuda::need_driver(&d));
  ATTUNE_CUDA_TRY(*d, cuModuleLoadData, &module_, cubin.data());
  return found_.allocate(sizeof(unsigned long long));
}

Status CompareKernels::launch(const char* name, void** parameters, const cuda::Scope& scope) {
  const cuda::Driver& d = *cuda::driver();
  cuda::CUfunction function = nullptr;
  ATTUNE_CUDA_TRY(d, cuModuleGetFunction, &function, module_, name);
  const unsigned blocks = kBlocksAnSm * unsigned(scope.device().arch.sms);
  const auto stream = static_cast<cuda::CUstream>(scope.stream());
  const cuda::CUlaunchConfig config{{blocks, 1, 1}, {kThreads, 1, 1}, 0, stream, nullptr, 0};
  ATTUNE_CUDA_TRY(d, cuLaunchKernelEx, &config, function, parameters, nullptr);
  ATTUNE_CUDA_TRY(d, cuStreamSynchronize, stream);
  return {};
}

Status CompareKernels::worst_row(const void* ours, const void* theirs, int64_t rows, int dim,
                                 DType dtype, const cuda::Scope& scope, int64_t* row) {
  unsigned long long worst = 0;
  ATTUNE_TRY(cuda::copy_to_device(found_.data(), &worst, sizeof(worst)));
  void* result = found_.data();
  void* parameters[] = {&ours, &theirs, &rows, &dim, &result};
  ATTUNE_TRY(launch(worst_row_name(dtype), parameters, scope));
  ATTUNE_TRY(cuda::copy_to_host(&worst, result, sizeof(worst)));
  *row = int64_t(worst & 0xffffffffu);
  return {};
}

Status CompareKernels::same(const void* a, const void* b, int64_t bytes, const cuda::Scope& scope,
                            bool* equal) {
  int different = 0;
  ATTUNE_TRY(cuda::copy_to_device(found_.data(), &different, sizeof(different)));
  void* result = found_.data();
  int64_t words = bytes / 16;
  void* parameters[] = {&a, &b, &words, &result};
  ATTUNE_TRY(launch("same_words", parameters, scope));
  ATTUNE_TRY(cuda::copy_to_host(&different, result, sizeof(different)));
  *equal = different == 0;
  return {};
}

}  // namespace attune::evolve
