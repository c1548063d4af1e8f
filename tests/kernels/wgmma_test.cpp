// Hopper's rung on a real device: however tiles come to shared memory, the bits of the result are
// the same. What they should be is tested elsewhere, on every case.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "src/check/random.hpp"
#include "src/cpu/half.hpp"
#include "src/cuda/device.hpp"
#include "src/cuda/memory.hpp"
#include "src/jit/forward.hpp"
#include "src/jit/nvrtc.hpp"
#include "src/select/cuda_select.hpp"
#include "tests/rungs/configs.hpp"

namespace attune {
namespace {

class GpuWgmma : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& why : {cuda::why_unusable(), jit::nvrtc().problem})
      if (!why.empty()) GTEST_SKIP() << why;
    ASSERT_TRUE(scope_.enter(nullptr, nullptr).ok());
    if (scope_.device().arch.cc != 90) GTEST_SKIP() << "needs compute capability 9.0";
  }

  // More tiles than multiprocessors, and none of them whole.
  static Problem problem(int dim, bool causal, int64_t window) {
    Problem p;
    p.dtype = DType::bf16;
    p.batch = 3;
    p.heads_q = 20;
    p.heads_kv = 10;
    p.seq_q = 333;
    p.seq_k = 517;
    p.dim = p.dim_v = dim;
    p.causal = causal;
    p.window_left = window;
    p.lse = true;
    return p;
  }

  void make_tensors(const Problem& p) {
    check::Random random(5);
    const int64_t sizes[] = {p.batch * p.heads_q * p.seq_q * p.dim,
                             p.batch * p.heads_kv * p.seq_k * p.dim,
                             p.batch * p.heads_kv * p.seq_k * p.dim_v};
    for (int n = 0; n < 3; ++n) {
      std::vector<uint16_t> values(static_cast<size_t>(sizes[n]));
      for (uint16_t& value : values) value = cpu::float_to_bf16(random.normal());
      ASSERT_TRUE(inputs_[n].allocate(values.size() * 2).ok());
      ASSERT_TRUE(cuda::copy_to_device(inputs_[n].data(), values.data(), values.size() * 2).ok());
    }
    ASSERT_TRUE(out_.allocate(size_t(p.batch * p.heads_q * p.seq_q * p.dim_v) * 2).ok());
    ASSERT_TRUE(lse_.allocate(size_t(p.batch * p.heads_q * p.seq_q) * 4).ok());
    ASSERT_TRUE(workspace_.allocate(256).ok());
  }

  Params params(const Problem& p) const {
    const auto view = [](const cuda::Buffer& b, int64_t heads, int64_t rows, int64_t dim) {
      return View{b.data(), heads * rows * dim, rows * dim, dim};
    };
    Params a;
    a.q = view(inputs_[0], p.heads_q, p.seq_q, p.dim);
    a.k = view(inputs_[1], p.heads_kv, p.seq_k, p.dim);
    a.v = view(inputs_[2], p.heads_kv, p.seq_k, p.dim_v);
    a.out = view(out_, p.heads_q, p.seq_q, p.dim_v);
    a.lse = view(lse_, p.heads_q, p.seq_q, 1);
    a.rows_q = p.seq_q;
    a.rows_k = p.seq_k;
    a.scale = 1 / std::sqrt(float(p.dim));
    a.workspace = workspace_.data();
    return a;
  }

  // All bytes of out and lse.
  // Copy: bytes that rows start at a multiple of, where TMA is not to reach the tensors; 0: it is.
  std::vector<uint8_t> result(const Problem& p, const WgmmaConfig& c, int copy) {
    Request r;
    r.problem = p;
    if (copy != 0) r.layout = {.rows16 = false, .step = copy};
    r.arch = scope_.device().arch;
    const Plan plan = rung_named("wgmma")->plan(r, config_of(c));
    std::vector<uint8_t> bytes(out_.bytes() + lse_.bytes());
    const Status steps[] = {
        cuda::fill_bytes(out_.data(), 0xff, out_.bytes(), nullptr),
        cuda::fill_bytes(lse_.data(), 0xff, lse_.bytes(), nullptr),
        jit::forward(plan, p, params(p), scope_),
        cuda::synchronize(),
        cuda::copy_to_host(bytes.data(), out_.data(), out_.bytes()),
        cuda::copy_to_host(bytes.data() + out_.bytes(), lse_.data(), lse_.bytes())};
    for (const Status& s : steps) EXPECT_TRUE(s.ok()) << plan.id << ": " << s.message;
    return bytes;
  }

  cuda::Scope scope_;
  cuda::Buffer inputs_[3], out_, lse_, workspace_;
};

TEST_F(GpuWgmma, HoweverTilesComeTheBitsAreTheSame) {
  const WgmmaConfig configs[] = {
      {.block_k = 64, .stages = 1, .producer_registers = 40},
      {.warpgroups = 1, .block_k = 96, .stages = 1, .producer_registers = 40},
      {.warpgroups = 3,
       .block_k = 64,
       .stages = 3,
       .q_buffers = 2,
       .flat = true,
       .maxima = RowMaxima::lazy,
       .schedule = kPersistent,
       .producer_registers = 40},
      {.block_k = 64,
       .stages = 2,
       .turn = kExpTurn,
       .maxima = RowMaxima::lazy,
       .schedule = kDynamic,
       .producer_registers = 40},
  };
  const Problem problems[] = {problem(64, false, kNoLimit), problem(128, true, kNoLimit),
                              problem(96, false, 100)};
  for (const Problem& p : problems) {
    make_tensors(p);
    for (const WgmmaConfig& by_tma : configs) {
      ASSERT_STREQ(invalid_reason(by_tma, p, scope_.device().arch), "");
      const std::vector<uint8_t> expected = result(p, by_tma, 0);
      for (int copy : {16, 8, 4, 2})
        for (int round = 0; round < 3; ++round)
          EXPECT_TRUE(result(p, by_tma, copy) == expected)
              << to_string(config_of(by_tma)) << " " << copy;
    }
  }
}

}  // namespace
}  // namespace attune
