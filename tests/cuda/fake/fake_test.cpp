// Contexts, streams, captures, threads, forks and failures, on a driver that records its calls.
#include "tests/cuda/fake/fake.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <attune/attention.hpp>
#include <ctime>
#include <thread>

#include "src/cuda/device.hpp"
#include "src/cuda/memory.hpp"
#include "src/jit/forward.hpp"
#include "src/jit/kernel.hpp"
#include "src/select/cuda_select.hpp"
#include "src/select/tuned.hpp"
#include "tests/cuda/fake/load.hpp"
#include "tests/jit/compiler.hpp"
#include "tests/rungs/configs.hpp"

namespace attune::cuda {
namespace {

using fake::Books;

const void* at(CUdeviceptr address) { return reinterpret_cast<const void*>(uintptr_t(address)); }

CUcontext current() {
  CUcontext context = nullptr;
  EXPECT_EQ(driver()->cuCtxGetCurrent(&context), kSuccess);
  return context;
}

class FakeCuda : public ::testing::Test {
 protected:
  FakeCuda() : books_(fake_books()) {}
  void SetUp() override { ASSERT_EQ(why_unusable(), ""); }
  void TearDown() override {
    for (size_t i = 0; i < made_.size(); ++i) {
      CUcontext popped = nullptr;
      EXPECT_EQ(driver()->cuCtxPopCurrent(&popped), kSuccess);
    }
    EXPECT_EQ(current(), nullptr);  // every scope has left
    for (const CUcontext context : made_) driver()->cuCtxDestroy(context);
    books_.fail_launch = books_.fail_module = 0;
    books_.launched.clear();
  }

  CUcontext new_context(int ordinal) {
    CUcontext context = nullptr;
    EXPECT_EQ(driver()->cuCtxCreate(&context, 0, ordinal), kSuccess);
    made_.push_back(context);
    return context;
  }

  Books& books_;
  std::vector<CUcontext> made_;  // each one place on the thread's stack
};

// ---- devices, scopes ----

TEST_F(FakeCuda, DevicesAreDescribed) {
  EXPECT_EQ(device_count(), 2);
  Device d;
  ASSERT_TRUE(device(1, &d).ok());
  EXPECT_EQ(d.name, "Fake Ampere");
  EXPECT_EQ(d.arch, arch_of(80));
  EXPECT_EQ(device(2, &d).code, ATTUNE_INVALID_ARGUMENT);
}

TEST_F(FakeCuda, ATunedRowAppliesWhereItsConfigRunsItsProblem) {
  MmaConfig config;
  config.warp_rows = 16;
  TunedRow row;
  row.key = "sm80.attn_fwd.bf16.d64.bias";
  row.machine = {"sm80", "Fake Ampere", 0};
  row.sizes = {16, 1024, 1024};
  row.config = to_string(config_of(config));
  EXPECT_EQ(attune::why_not_here(row), "");
  config.stages = 9;
  row.config = to_string(config_of(config));
  EXPECT_EQ(attune::why_not_here(row), "stages is not in 2..4");
  row.machine.device = "Fake Volta";
  EXPECT_EQ(attune::why_not_here(row), "tuned for another GPU");
}

TEST_F(FakeCuda, WithoutAContextThePointersDeviceDecides) {
  for (const int ordinal : {0, 1, 1, 0}) {
    Scope scope;
    const Status s = scope.enter(nullptr, at(ordinal == 0 ? fake::kOnDevice0 : fake::kOnDevice1));
    ASSERT_TRUE(s.ok()) << s.message;
    EXPECT_EQ(scope.device().ordinal, ordinal);
    EXPECT_EQ(current(), scope.context());
  }
  EXPECT_EQ(current(), nullptr);
  EXPECT_LE(books_.primary_retains, 2);  // held, not taken again
  Scope scope;
  ASSERT_TRUE(scope.enter(nullptr, nullptr).ok());
  EXPECT_EQ(scope.device().ordinal, 0);
}

TEST_F(FakeCuda, TheStreamsContextComesBeforeTheThreads) {
  const CUcontext first = new_context(1), second = new_context(0);
  Stream stream;
  ASSERT_TRUE(stream.create().ok());  // in the second
  driver()->cuCtxSetCurrent(first);
  {
    Scope scope;
    ASSERT_TRUE(scope.enter(stream.get(), nullptr).ok());
    EXPECT_EQ(scope.context(), second);
    EXPECT_EQ(current(), second);
    EXPECT_EQ(scope.device().arch.cc, 90);
  }
  EXPECT_EQ(current(), first);
  for (uintptr_t special = 0; special <= kLastSpecialStream; ++special) {
    Scope scope;
    ASSERT_TRUE(scope.enter(reinterpret_cast<void*>(special), nullptr).ok());
    EXPECT_EQ(scope.context(), first);
    EXPECT_EQ(scope.stream(), reinterpret_cast<void*>(special));
  }
}

TEST_F(FakeCuda, PointersAreJudged) {
  Scope scope;
  ASSERT_TRUE(scope.enter(nullptr, nullptr).ok());
  int on_the_stack = 0;
  EXPECT_EQ(why_not_here(at(fake::kOnDevice0), scope), "");
  EXPECT_EQ(why_not_here(at(fake::kManaged), scope), "");
  EXPECT_EQ(why_not_here(at(fake::kPinned), scope), "is host memory");
  EXPECT_NE(why_not_here(&on_the_stack, scope), "");
  EXPECT_EQ(why_not_here(at(fake::kOnDevice1), scope),
            "lies on device 1, but the call runs on device 0");
}

TEST_F(FakeCuda, ForkedChildIsToldThatCudaDoesNotWork) {
  const pid_t child = fork();
  if (child == 0) {
    Scope scope;
    const Status s = scope.enter(nullptr, nullptr);
    _exit(s.code == ATTUNE_CUDA_ERROR && s.message.find("forked") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// ---- kernels ----

int g_compiles = 0;
std::mutex g_compiles_mutex;

Plan naive_plan(int dim, uint32_t smem = 0) {
  Plan plan;
  plan.units.resize(1);
  plan.id = "test.d" + std::to_string(dim);
  plan.units[0].key.dim = plan.units[0].key.dim_v = dim;
  plan.units[0].config = config_of(LadderConfig{.vector = false});
  plan.units[0].arch = arch_of(90);
  plan.launches = {{"attune_naive", 7, 128, smem}};
  plan.blocks.splits = 3;
  plan.blocks.divisors.splits = Divisor(2);
  return plan;
}

class FakeKernels : public FakeCuda {
 protected:
  void SetUp() override {
    ATTUNE_NEEDS_NVRTC();
    FakeCuda::SetUp();
    g_compiles = 0;
    jit::on_compile([](const std::string&) {
      std::lock_guard lock(g_compiles_mutex);
      ++g_compiles;
    });
  }
  void TearDown() override {
    jit::on_compile(nullptr);
    FakeCuda::TearDown();
  }

  jit::TemporaryCache cache_;
};

TEST_F(FakeKernels, LaunchesCarryThePlan) {
  const CUcontext context = new_context(0);
  Stream stream;
  ASSERT_TRUE(stream.create().ok());
  Scope scope;
  ASSERT_TRUE(scope.enter(stream.get(), nullptr).ok());
  Problem problem;
  problem.seq_q = 55;
  Params params;
  params.scale = 0.5f;
  const Status s = jit::forward(naive_plan(11), problem, params, scope);
  ASSERT_TRUE(s.ok()) << s.message;
  ASSERT_EQ(books_.launched.size(), 1u);
  const fake::Launched& l = books_.launched[0];
  EXPECT_EQ(l.name, "attune_naive");
  EXPECT_EQ(l.grid, 7u);
  EXPECT_EQ(l.block, 128u);
  EXPECT_EQ(l.stream, stream.get());
  EXPECT_EQ(l.context, context);
  EXPECT_EQ(l.args.problem, problem);
  EXPECT_EQ(l.args.params.scale, 0.5f);
  EXPECT_EQ(l.args.blocks.splits, 3);
  EXPECT_EQ(l.args.blocks.divisors.splits.divisor, 2u);
}

TEST_F(FakeKernels, ThreadsThatWantOneKernelCompileItOnce) {
  const int before = books_.modules;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      Scope scope;
      EXPECT_TRUE(scope.enter(nullptr, nullptr).ok());
      const Status s = jit::forward(naive_plan(12), {}, {}, scope);
      EXPECT_TRUE(s.ok()) << s.message;
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(g_compiles, 1);
  EXPECT_EQ(books_.modules - before, 1);
  EXPECT_EQ(books_.launched.size(), 8u);
}

TEST_F(FakeKernels, ASecondContextLoadsButDoesNotCompile) {
  const int before = books_.modules;
  for (int i = 0; i < 2; ++i) {
    new_context(0);
    for (int k = 0; k < 3; ++k) {
      Scope scope;
      ASSERT_TRUE(scope.enter(nullptr, nullptr).ok());
      ASSERT_TRUE(jit::prepare(naive_plan(13), scope).ok());
    }
  }
  EXPECT_EQ(g_compiles, 1);
  EXPECT_EQ(books_.modules - before, 2);
  // A context that comes back at the address of a dead one is another one.
  EXPECT_EQ(driver()->cuCtxDestroy(current()), kSuccess);
  made_.pop_back();
  new_context(0);
  Scope scope;
  ASSERT_TRUE(scope.enter(nullptr, nullptr).ok());
  ASSERT_TRUE(jit::prepare(naive_plan(13), scope).ok());
  EXPECT_EQ(books_.modules - before, 3);
}

TEST_F(FakeKernels, AFirstCallInsideACaptureIsLegal) {
  new_context(0);
  Stream stream;
  ASSERT_TRUE(stream.create().ok());
  Graph graph;
  const Status s = graph.capture(stream.get(), [&]() -> Status {
    Scope scope;
    if (Status entered = scope.enter(stream.get(), nullptr); !entered.ok()) return entered;
    return jit::forward(naive_plan(14, 100'000), {}, {}, scope);
  });
  EXPECT_TRUE(s.ok()) << s.message;
  EXPECT_EQ(books_.launched.size(), 1u);
  int mode = kCaptureGlobal;  // the thread's mode is what it was
  driver()->cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, kCaptureGlobal);
}

TEST_F(FakeKernels, SharedMemoryIsRaisedWhenNeeded) {
  const int before = books_.smem_raises;
  const uint32_t sizes[] = {48 << 10, 60'000, 60'000, 50'000, 70'000, 0};
  for (const uint32_t smem : sizes) {
    Scope scope;
    ASSERT_TRUE(scope.enter(nullptr, nullptr).ok());
    const Status s = jit::forward(naive_plan(15, smem), {}, {}, scope);
    EXPECT_TRUE(s.ok()) << s.message;
  }
  EXPECT_EQ(books_.smem_raises - before, 2);
}

// One query of 8192 keys: the keys are split, and the parts need a workspace.
Args decoding_args() {
  constexpr int64_t kKeys = 8192, kDim = 64;
  const auto tensor_at = [](CUdeviceptr address, int64_t rows) {
    return tensor(at(address), ATTUNE_F16, {1, 1, rows, kDim});
  };
  Args a;
  a.device = ATTUNE_CUDA;
  a.q = tensor_at(fake::kOnDevice0, 1);
  a.out = tensor_at(fake::kOnDevice0 + 0x800, 1);
  a.k = a.v = tensor_at(fake::kOnDevice0 + 0x28000, kKeys);
  return a;
}
void* workspace_at(size_t offset = 0) {
  return reinterpret_cast<void*>(uintptr_t(fake::kOnDevice0) + 0x4000 + offset);
}

TEST_F(FakeKernels, APlanRunsWithTheWorkspaceThatItAsksFor) {
  const Args a = decoding_args();
  const PlanHandle plan(a);
  const size_t bytes = plan.workspace_size();
  ASSERT_GT(bytes, 0u);
  EXPECT_EQ(bytes, workspace_size(a));
  plan.prepare();
  EXPECT_TRUE(books_.launched.empty());
  for (int n = 0; n < 2; ++n) plan.run(workspace_at(), bytes);
  ASSERT_EQ(books_.launched.size(), 4u);
  EXPECT_EQ(books_.launched[0].name, "attune_mma");
  EXPECT_EQ(books_.launched[1].name, "attune_combine");
  EXPECT_EQ(books_.launched[0].args.params.workspace, workspace_at());
  EXPECT_GT(books_.launched[0].args.blocks.splits, 1);
  EXPECT_THROW(plan.run(workspace_at(), bytes - 1), Error);
  EXPECT_THROW(plan.run(nullptr, bytes), Error);
  EXPECT_THROW(plan.run(workspace_at(8), bytes), Error);
  EXPECT_THROW(plan.run(a.k.data, bytes), Error) << "it would write over the keys";
  EXPECT_EQ(books_.launched.size(), 4u);
  EXPECT_EQ(PlanHandle(a, 0).workspace_size(), 0u) << "one that does without";
}

// 128 rows of two query heads that share 64 keys.
struct Gradients {
  Args a;
  BackwardArgs b{a};

  Gradients() {
    const auto tensor_at = [](CUdeviceptr offset, int64_t heads, int64_t rows) {
      return tensor(at(fake::kOnDevice0 + offset), ATTUNE_F16, {1, heads, rows, 8});
    };
    a.device = ATTUNE_CUDA;
    a.q = tensor_at(0, 2, 64);
    a.k = tensor_at(0x800, 1, 64);
    a.v = tensor_at(0xc00, 1, 64);
    a.out = tensor_at(0x1000, 2, 64);
    a.lse = tensor(at(fake::kOnDevice0 + 0x1800), ATTUNE_F32, {1, 2, 64});
    b.dout = tensor_at(0x2000, 2, 64);
    b.dq = tensor_at(0x2800, 2, 64);
    b.dk = tensor_at(0x3000, 1, 64);
  }
};

TEST_F(FakeKernels, ABackwardCallLaunchesWhatIsAskedFor) {
  Gradients g;
  const size_t bytes = workspace_size(g.b);
  EXPECT_EQ(bytes, 2 * 64 * sizeof(RowState));
  EXPECT_EQ(attune_backward(&g.b), ATTUNE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(attune_last_error()).find("needs a workspace of 2048 bytes"),
            std::string::npos)
      << attune_last_error();
  g.a.workspace = workspace_at();
  g.a.workspace_bytes = bytes;
  backward(g.b);
  ASSERT_EQ(books_.launched.size(), 3u);
  EXPECT_EQ(books_.launched[0].name, "attune_states");
  EXPECT_EQ(books_.launched[1].name, "attune_mma_dq");
  EXPECT_EQ(books_.launched[2].name, "attune_mma_dkv");
  for (const fake::Launched& l : books_.launched) {
    EXPECT_EQ(l.args.params.workspace, workspace_at());
    EXPECT_EQ(l.args.params.lse.data, g.a.lse.data);
    EXPECT_EQ(l.grads.dout.data, g.b.dout.data);
    EXPECT_EQ(l.grads.dq.data, g.b.dq.data);
    EXPECT_EQ(l.grads.dv.data, nullptr);
  }
  g.b.dk = {};  // a thread's last plans are not taken for another call
  backward(g.b);
  EXPECT_EQ(books_.launched.size(), 5u);
  const PlanHandle plan(g.b);
  EXPECT_EQ(plan.workspace_size(), bytes);
  plan.run(workspace_at(), bytes);
  EXPECT_EQ(books_.launched.size(), 7u);
  EXPECT_NE(plan.explain().find("attn_bwd.f16.d8.gqa2.lse/fused."), std::string::npos)
      << plan.explain();
  g.a.out = {};
  EXPECT_THROW(backward(g.b), Error) << "the results of the forward pass are needed";
}

TEST_F(FakeKernels, APlanIsForOneKindOfDeviceAndOfMemory) {
  Args a = decoding_args();
  const PlanHandle plan(a);
  const size_t bytes = plan.workspace_size();
  plan.run(a, workspace_at(), bytes);
  EXPECT_EQ(books_.launched.size(), 2u);
  a.k.data = a.v.data = workspace_at(0x24002);  // TMA and 16-byte copies cannot reach it
  EXPECT_THROW(plan.run(a, workspace_at(), bytes), Error);
  new_context(1);
  a = decoding_args();
  EXPECT_THROW(plan.run(a, workspace_at(), bytes), Error) << "another device's context";
  EXPECT_EQ(books_.launched.size(), 2u);
}

TEST_F(FakeKernels, FailuresNameTheCallTheKernelAndTheDriversText) {
  Scope scope;
  ASSERT_TRUE(scope.enter(nullptr, nullptr).ok());
  books_.fail_module = kOutOfMemory;
  Status s = jit::forward(naive_plan(16), {}, {}, scope);
  EXPECT_EQ(s.code, ATTUNE_OUT_OF_MEMORY);
  EXPECT_NE(s.message.find("cuModuleLoadData of test.d16: CUDA_ERROR_OUT_OF_MEMORY"),
            std::string::npos)
      << s.message;
  books_.fail_module = 0;  // the next call finds the cubin, and loads it
  books_.fail_launch = fake::kLaunchFailure;
  s = jit::forward(naive_plan(16), {}, {}, scope);
  EXPECT_EQ(s.code, ATTUNE_CUDA_ERROR);
  for (const char* part :
       {"cuLaunchKernelEx", "test.d16", "attune_naive", "unspecified launch failure"})
    EXPECT_NE(s.message.find(part), std::string::npos) << s.message;
  EXPECT_EQ(g_compiles, 1);
}

TEST_F(FakeKernels, CallersCodeThatDoesNotCompileIsTheirsAndTriedAgain) {
  Scope scope;
  ASSERT_TRUE(scope.enter(nullptr, nullptr).ok());
  Plan plan = naive_plan(17);
  plan.units[0].key.score_mod = true;
  plan.units[0].score_mod = "return nonsense;";
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(jit::forward(plan, {}, {}, scope).code, ATTUNE_INVALID_ARGUMENT);
  EXPECT_TRUE(books_.launched.empty());
}

double thread_microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) * 1e6 + double(now.tv_nsec) / 1e3;
}

// What a call costs the host beside the driver itself, in processor time: machines are busy. The
// bound is loose for sanitizers.
TEST_F(FakeKernels, ACallOfALoadedKernelIsCheap) {
  new_context(0);
  const Plan plan = naive_plan(18);
  constexpr int kCalls = 20'000;
  const auto call = [&] {
    Scope scope;
    ASSERT_TRUE(scope.enter(nullptr, nullptr).ok());
    ASSERT_TRUE(jit::forward(plan, {}, {}, scope).ok());
  };
  call();
  books_.launched.reserve(kCalls + 1);
  const double begin = thread_microseconds();
  for (int i = 0; i < kCalls; ++i) call();
  const double us = thread_microseconds() - begin;
  RecordProperty("microseconds", std::to_string(us / kCalls));
  std::printf("%.2f us a call\n", us / kCalls);
  EXPECT_LT(us / kCalls, 50);
}

}  // namespace
}  // namespace attune::cuda
