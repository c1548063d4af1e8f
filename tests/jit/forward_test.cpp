// Plans on a real device: contexts, streams, captures, threads, errors. What the kernels compute is
// tested elsewhere, on every case; here it only has to be right.
#include "src/jit/forward.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "src/check/random.hpp"
#include "src/cpu/reference.hpp"
#include "src/cuda/device.hpp"
#include "src/cuda/memory.hpp"
#include "src/jit/kernel.hpp"
#include "src/select/cuda_select.hpp"
#include "tests/jit/compiler.hpp"

namespace attune::jit {
namespace {

constexpr float kTolerance = 1e-5f;

#define ASSERT_STATUS(expression)                                                 \
  do {                                                                            \
    const Status status_ = (expression);                                          \
    ASSERT_EQ(status_.code, ATTUNE_OK) << #expression << ": " << status_.message; \
  } while (false)

View rows_of(void* data, int64_t heads, int64_t seq, int64_t dim) {
  return {data, heads * seq * dim, seq * dim, dim};
}

// A small fp32 problem, its inputs and what the oracle says.
struct Sample {
  explicit Sample(int dim) {
    p.batch = 2;
    p.heads_q = p.heads_kv = 3;
    p.seq_q = 33;
    p.seq_k = 70;
    p.dim = p.dim_v = dim;
    check::Random random(7);
    for (std::vector<float>* x : {&q, &k, &v}) {
      x->resize(size_t(p.batch * p.heads_q * (x == &q ? p.seq_q : p.seq_k) * dim));
      for (float& value : *x) value = random.normal();
    }
    expected.resize(q.size());
    cpu::Executor executor;
    cpu::reference_forward(p, params(q.data(), k.data(), v.data(), expected.data()), executor);
  }

  Params params(void* dq, void* dk, void* dv, void* out) const {
    Params a;
    a.q = rows_of(dq, p.heads_q, p.seq_q, p.dim);
    a.k = rows_of(dk, p.heads_kv, p.seq_k, p.dim);
    a.v = rows_of(dv, p.heads_kv, p.seq_k, p.dim_v);
    a.out = rows_of(out, p.heads_q, p.seq_q, p.dim_v);
    a.scale = 1 / std::sqrt(float(p.dim));
    return a;
  }

  Problem p;
  std::vector<float> q, k, v, expected;
};

// The sample's tensors in the current context.
class OnDevice {
 public:
  explicit OnDevice(const Sample& sample) : sample_(sample) {}

  Status create(const Arch& arch, attune_mode mode) {
    const std::pair<cuda::Buffer*, const std::vector<float>*> inputs[] = {
        {&q_, &sample_.q}, {&k_, &sample_.k}, {&v_, &sample_.v}};
    for (const auto& [buffer, values] : inputs) {
      const size_t bytes = values->size() * sizeof(float);
      if (Status s = buffer->allocate(bytes); !s.ok()) return s;
      if (Status s = cuda::copy_to_device(buffer->data(), values->data(), bytes); !s.ok()) return s;
    }
    if (Status s = out_.allocate(sample_.q.size() * sizeof(float)); !s.ok()) return s;
    CudaRequest request;
    request.problem = sample_.p;
    request.mode = mode;
    request.arch = arch;
    request.layout = layout_of(sample_.p, params());
    request.workspace_bytes = ~size_t{0};
    CudaChoice choice;
    if (Status s = select_cuda(request, &choice); !s.ok()) return s;
    plan_ = choice.plan;
    return workspace_.allocate(plan_.workspace_bytes);
  }

  Params params() const {
    Params a = sample_.params(q_.data(), k_.data(), v_.data(), out_.data());
    a.workspace = workspace_.data();
    return a;
  }

  // Poisons the output, on the stream too.
  Status poison(void* stream) const {
    return cuda::fill_bytes(out_.data(), 0xff, out_.bytes(), stream);
  }

  Status run(const cuda::Scope& scope) const { return forward(plan_, sample_.p, params(), scope); }

  Status result(std::vector<float>* values) const {
    values->assign(sample_.q.size(), 0);
    return cuda::copy_to_host(values->data(), out_.data(), out_.bytes());
  }

  void expect_right() const {
    std::vector<float> values;
    ASSERT_STATUS(result(&values));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], sample_.expected[i], kTolerance) << plan_.id << " at " << i;
  }

  Plan plan_;

 private:
  const Sample& sample_;
  cuda::Buffer q_, k_, v_, out_, workspace_;
};

class GpuForward : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::why_unusable().empty()) GTEST_SKIP() << cuda::why_unusable();
    ATTUNE_NEEDS_NVRTC();
  }
};

TEST_F(GpuForward, EveryRungOnTheDefaultStream) {
  const Sample sample(24);
  cuda::Scope scope;
  ASSERT_STATUS(scope.enter(nullptr, nullptr));
  for (const attune_mode mode : {ATTUNE_NAIVE, ATTUNE_TILED, ATTUNE_FUSED, ATTUNE_AUTO}) {
    OnDevice tensors(sample);
    ASSERT_STATUS(tensors.create(scope.device().arch, mode));
    ASSERT_STATUS(tensors.poison(nullptr));
    ASSERT_STATUS(tensors.run(scope));
    ASSERT_STATUS(cuda::synchronize());
    tensors.expect_right();
  }
}

TEST_F(GpuForward, AFirstCallInsideACapture) {
  const TemporaryCache cache;
  const Sample sample(
      20);  // no other test has this size: its kernel is compiled and loaded in here
  cuda::Scope outer;
  ASSERT_STATUS(outer.enter(nullptr, nullptr));
  cuda::Stream stream;
  ASSERT_STATUS(stream.create());
  for (const attune_mode mode : {ATTUNE_FUSED, ATTUNE_TILED, ATTUNE_AUTO}) {
    OnDevice tensors(sample);
    ASSERT_STATUS(tensors.create(outer.device().arch, mode));
    cuda::Scope scope;
    ASSERT_STATUS(scope.enter(stream.get(), nullptr));
    cuda::Graph graph;
    ASSERT_STATUS(graph.capture(stream.get(), [&] { return tensors.run(scope); }));
    for (int replay = 0; replay < 2; ++replay) {
      ASSERT_STATUS(tensors.poison(stream.get()));
      ASSERT_STATUS(graph.launch(stream.get()));
      ASSERT_STATUS(stream.synchronize());
      tensors.expect_right();
    }
  }
}

TEST_F(GpuForward, ASecondContextOfTheDevice) {
  const Sample sample(28);
  for (int round = 0; round < 2; ++round) {
    cuda::CUcontext context = nullptr;
    ASSERT_STATUS(cuda::cuda_status(cuda::driver()->cuCtxCreate(&context, 0, 0), "cuCtxCreate"));
    {
      cuda::Scope scope;
      ASSERT_STATUS(scope.enter(nullptr, nullptr));
      EXPECT_EQ(scope.context(), context);
      OnDevice tensors(sample);
      ASSERT_STATUS(tensors.create(scope.device().arch, ATTUNE_FUSED));
      ASSERT_STATUS(tensors.poison(nullptr));
      ASSERT_STATUS(tensors.run(scope));
      ASSERT_STATUS(cuda::synchronize());
      tensors.expect_right();
    }
    ASSERT_STATUS(cuda::cuda_status(cuda::driver()->cuCtxDestroy(context), "cuCtxDestroy"));
  }
}

TEST_F(GpuForward, ManyThreadsWithAStreamEach) {
  const TemporaryCache cache;
  const Sample sample(36);
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i)
    threads.emplace_back([&] {
      cuda::Scope outer;
      ASSERT_STATUS(outer.enter(nullptr, nullptr));
      cuda::Stream stream;
      ASSERT_STATUS(stream.create());
      cuda::Scope scope;
      ASSERT_STATUS(scope.enter(stream.get(), nullptr));
      OnDevice tensors(sample);
      ASSERT_STATUS(tensors.create(scope.device().arch, ATTUNE_FUSED));
      for (int call = 0; call < 10; ++call) {
        ASSERT_STATUS(tensors.poison(stream.get()));
        ASSERT_STATUS(tensors.run(scope));
        ASSERT_STATUS(stream.synchronize());
        tensors.expect_right();
      }
    });
  for (std::thread& t : threads) t.join();
}

TEST_F(GpuForward, EveryDevice) {
  const Sample sample(24);
  for (int i = 0; i < cuda::device_count(); ++i) {
    cuda::Device facts;
    ASSERT_STATUS(cuda::device(i, &facts));
    if (facts.arch.cc < 75) continue;
    cuda::CUcontext context = nullptr;
    const cuda::Driver& d = *cuda::driver();
    ASSERT_STATUS(cuda::cuda_status(d.cuDevicePrimaryCtxRetain(&context, i), "retain"));
    ASSERT_STATUS(cuda::cuda_status(d.cuCtxPushCurrent(context), "push"));
    {
      cuda::Scope scope;
      ASSERT_STATUS(scope.enter(nullptr, nullptr));
      EXPECT_EQ(scope.device().ordinal, i);
      OnDevice tensors(sample);
      ASSERT_STATUS(tensors.create(scope.device().arch, ATTUNE_AUTO));
      ASSERT_STATUS(tensors.run(scope));
      ASSERT_STATUS(cuda::synchronize());
      tensors.expect_right();
      EXPECT_EQ(cuda::why_not_here(tensors.params().q.data, scope), "");
      EXPECT_NE(cuda::why_not_here(sample.q.data(), scope), "");
    }
    ASSERT_STATUS(cuda::cuda_status(d.cuCtxPopCurrent(&context), "pop"));
    d.cuDevicePrimaryCtxRelease(i);
  }
}

TEST_F(GpuForward, ALaunchThatCannotBeNamesItsKernel) {
  const Sample sample(24);
  cuda::Scope scope;
  ASSERT_STATUS(scope.enter(nullptr, nullptr));
  OnDevice tensors(sample);
  ASSERT_STATUS(tensors.create(scope.device().arch, ATTUNE_NAIVE));
  const Plan good = tensors.plan_;
  tensors.plan_.launches[0].block = 4096;
  const Status s = tensors.run(scope);
  EXPECT_EQ(s.code, ATTUNE_CUDA_ERROR);
  for (const std::string& part :
       {std::string("cuLaunchKernelEx"), good.id, std::string("CUDA_ERROR_")})
    EXPECT_NE(s.message.find(part), std::string::npos) << s.message;
  tensors.plan_ = good;  // and the next one works
  ASSERT_STATUS(tensors.run(scope));
  ASSERT_STATUS(cuda::synchronize());
  tensors.expect_right();
}

TEST_F(GpuForward, FromTheDiskCacheToALaunchIsQuick) {
  const TemporaryCache cache;
  const Sample sample(44);
  cuda::Scope scope;
  ASSERT_STATUS(scope.enter(nullptr, nullptr));
  for (const attune_mode mode : {ATTUNE_NAIVE, ATTUNE_FUSED, ATTUNE_AUTO}) {
    OnDevice tensors(sample);
    ASSERT_STATUS(tensors.create(scope.device().arch, mode));
    CacheEntry entry;
    Origin origin;
    ASSERT_STATUS(obtain(tensors.plan_.units[0], tensors.plan_.id, &entry, &origin));
    EXPECT_EQ(origin, Origin::compiler);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_STATUS(tensors.run(scope));
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%s: %.2f ms from disk to launch, %.2f s to compile\n", tensors.plan_.id.c_str(),
                ms, entry.seconds);
    EXPECT_LT(ms, 20);
    ASSERT_STATUS(cuda::synchronize());
    tensors.expect_right();
  }
}

}  // namespace
}  // namespace attune::jit
