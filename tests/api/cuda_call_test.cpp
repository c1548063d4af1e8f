// What a call on a CUDA device is refused for, and what it hands on; nothing here needs a device,
// but the last suite.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <attune/attention.hpp>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/api/validate.hpp"
#include "src/cuda/device.hpp"
#include "src/jit/nvrtc.hpp"
#include "src/select/cuda_select.hpp"
#include "tests/api/sample.hpp"

namespace attune {
namespace {

using testing::Sample;

void* address(uintptr_t at) { return reinterpret_cast<void*>(at); }

void on_cuda(Sample& s) {
  s.a.device = ATTUNE_CUDA;
  s.a.threads = 0;
}

void ragged_on_cuda(Sample& s) {
  on_cuda(s);
  s.make_ragged();
  s.a.max_seq_q = 3;
  s.a.max_seq_k = 5;
}

struct Case {
  const char* name;
  void (*spoil)(Sample&);
  std::vector<const char*> says;
  attune_status status = ATTUNE_INVALID_ARGUMENT;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class DeviceFieldRefusal : public ::testing::TestWithParam<Case> {};

TEST_P(DeviceFieldRefusal, NamesTheFieldAndWritesNothing) {
  Sample s;
  GetParam().spoil(s);
  EXPECT_EQ(attune_forward(&s.a), GetParam().status);
  const std::string message = attune_last_error();
  for (const char* part : GetParam().says)
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  EXPECT_FALSE(s.written());
}

const Case kCpu[] = {
    {"stream", [](Sample& s) { s.a.stream = address(8); }, {"stream is given", "ATTUNE_CPU"}},
    {"workspace", [](Sample& s) { s.a.workspace = address(256); }, {"workspace is given"}},
    {"workspace_bytes", [](Sample& s) { s.a.workspace_bytes = 1; }, {"workspace_bytes is given"}},
    {"max_seq_q", [](Sample& s) { s.make_ragged(), s.a.max_seq_q = 3; }, {"max_seq_q is given"}},
    {"max_seq_k", [](Sample& s) { s.make_ragged(), s.a.max_seq_k = 5; }, {"max_seq_k is given"}},
    {"user_data", [](Sample& s) { s.a.user_data = &s; }, {"user_data is given"}},
    {"score_mod",
     [](Sample& s) { s.a.score_mod = "return score;"; },
     {"score_mod is given", "ATTUNE_CPU", "ATTUNE_CUDA"},
     ATTUNE_UNSUPPORTED},
    {"mask_mod",
     [](Sample& s) { s.a.mask_mod = "return true;"; },
     {"mask_mod is given", "ATTUNE_CPU"},
     ATTUNE_UNSUPPORTED},
    {"tiled", [](Sample& s) { s.a.mode = ATTUNE_TILED; }, {"tiled", "CPU"}, ATTUNE_UNSUPPORTED},
    {"mma", [](Sample& s) { s.a.mode = ATTUNE_MMA; }, {"mma", "CPU"}, ATTUNE_UNSUPPORTED},
};
INSTANTIATE_TEST_SUITE_P(Cpu, DeviceFieldRefusal, ::testing::ValuesIn(kCpu), case_name);

void hook(void*, int64_t, attune_task, void*) {}

const Case kCuda[] = {
    {"threads",
     [](Sample& s) { on_cuda(s), s.a.threads = 2; },
     {"threads is given", "ATTUNE_CUDA"}},
    {"parallel_for",
     [](Sample& s) { on_cuda(s), s.a.parallel_for = hook; },
     {"parallel_for is given"}},
    {"parallel_user",
     [](Sample& s) { on_cuda(s), s.a.parallel_user = &s; },
     {"parallel_user is given"}},
    {"score_mod_empty", [](Sample& s) { on_cuda(s), s.a.score_mod = ""; }, {"score_mod", "empty"}},
    {"mask_mod_empty", [](Sample& s) { on_cuda(s), s.a.mask_mod = ""; }, {"mask_mod", "empty"}},
    {"user_data_unread",
     [](Sample& s) { on_cuda(s), s.a.user_data = &s; },
     {"user_data is given", "score_mod", "mask_mod"}},
    {"workspace_null",
     [](Sample& s) { on_cuda(s), s.a.workspace_bytes = 4096; },
     {"workspace is NULL", "workspace_bytes is 4096"}},
    {"workspace_misaligned",
     [](Sample& s) { on_cuda(s), s.a.workspace = address(0x10080), s.a.workspace_bytes = 256; },
     {"workspace is at 0x10080", "256 bytes"}},
    {"workspace_absurd",
     [](Sample& s) { on_cuda(s), s.a.workspace = address(256), s.a.workspace_bytes = ~size_t{0}; },
     {"workspace_bytes is 18446744073709551615"}},
    {"workspace_on_out",
     [](Sample& s) {
       on_cuda(s);
       const uintptr_t out = reinterpret_cast<uintptr_t>(s.m.out.data());
       s.a.workspace = address(out / 256 * 256);
       s.a.workspace_bytes = 4096;
     },
     {"workspace", "out", "shares memory"}},
    {"workspace_on_q",
     [](Sample& s) {
       on_cuda(s);
       const uintptr_t q = reinterpret_cast<uintptr_t>(s.m.q.data());
       s.a.workspace = address(q / 256 * 256);
       s.a.workspace_bytes = 512;
     },
     {"workspace is written", "with q"}},
    {"max_seq_without_ragged",
     [](Sample& s) { on_cuda(s), s.a.max_seq_q = 5; },
     {"max_seq_q and max_seq_k are 5 and 0", "not given"}},
    {"max_seq_q_missing",
     [](Sample& s) { ragged_on_cuda(s), s.a.max_seq_q = 0; },
     {"max_seq_q is 0", "q.shape[0] is 5"}},
    {"max_seq_k_missing",
     [](Sample& s) { ragged_on_cuda(s), s.a.max_seq_k = 0; },
     {"max_seq_k is 0", "k.shape[0] is 7"}},
    {"max_seq_q_negative",
     [](Sample& s) { ragged_on_cuda(s), s.a.max_seq_q = -1; },
     {"max_seq_q is -1"}},
    {"max_seq_k_above_the_total",
     [](Sample& s) { ragged_on_cuda(s), s.a.max_seq_k = 8; },
     {"max_seq_k is 8", "k.shape[0] is 7"}},
    {"ragged_causal_without_alignment",
     [](Sample& s) { ragged_on_cuda(s), s.a.causal = 1; },
     {"alignment is unspecified", "causal", "may differ", "3 and 5"}},
    {"ragged_window_without_alignment",
     [](Sample& s) { ragged_on_cuda(s), s.a.window_left = 1; },
     {"alignment is unspecified", "the window"}},
    {"ragged_equal_maxima_are_not_equal_lengths",
     [](Sample& s) { ragged_on_cuda(s), s.a.max_seq_q = 5, s.a.causal = 1; },
     {"alignment is unspecified", "5 and 5"}},
    {"one_cu_seqlens_with_two_maxima",
     [](Sample& s) { ragged_on_cuda(s), s.a.cu_seqlens_k = s.a.cu_seqlens_q, s.a.causal = 1; },
     {"alignment is unspecified"}},
    {"key_lengths_causal_without_alignment",
     [](Sample& s) { on_cuda(s), s.add_key_lengths(5, 5), s.a.causal = 1; },
     {"alignment is unspecified", "causal", "may differ", "5 and 7"}},
    {"key_lengths_alibi_without_alignment",
     [](Sample& s) {
       on_cuda(s), s.add_key_lengths(5, 5), s.a.alibi_slopes = tensor(s.m.slopes.data(), {4});
     },
     {"alignment is unspecified", "alibi_slopes"}},
    {"mask_longer_than_the_longest",
     [](Sample& s) {
       ragged_on_cuda(s);
       s.a.mask = tensor(s.m.mask.data(), {2, 4, 5, 5});
     },
     {"mask.shape[2] is 5", "max_seq_q is 3"}},
};
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceFieldRefusal, ::testing::ValuesIn(kCuda), case_name);

Call accepted(const attune_args& a, Pointers pointers = Pointers::required) {
  Call call;
  const Status status = make_call(&a, pointers, &call);
  EXPECT_TRUE(status.ok()) << status.message;
  return call;
}

TEST(CudaCall, CarriesWhatTheDeviceNeeds) {
  Sample s;
  on_cuda(s);
  s.a.mode = ATTUNE_MMA;
  s.a.stream = address(8);
  s.a.workspace = address(0x100);
  s.a.workspace_bytes = 0x200;
  s.a.score_mod = "return score + 1;";
  s.a.mask_mod = "return j != 3;";
  s.a.user_data = &s;
  s.a.strict_fp32 = 1;
  const Call call = accepted(s.a);
  EXPECT_EQ(call.device, ATTUNE_CUDA);
  EXPECT_EQ(call.mode, ATTUNE_MMA);
  EXPECT_EQ(call.stream, address(8));
  EXPECT_EQ(call.params.workspace, address(0x100));
  EXPECT_EQ(call.workspace_bytes, 0x200u);
  EXPECT_STREQ(call.score_mod, "return score + 1;");
  EXPECT_STREQ(call.mask_mod, "return j != 3;");
  EXPECT_EQ(call.params.user_data, &s);
  EXPECT_TRUE(call.problem.score_mod);
  EXPECT_TRUE(call.problem.mask_mod);
  EXPECT_TRUE(call.problem.strict_fp32);
  std::vector<std::string> names;
  for (int i = 0; i < call.place_count; ++i) names.push_back(call.places[size_t(i)].name);
  EXPECT_EQ(names, (std::vector<std::string>{"q", "k", "v", "out", "lse", "workspace"}));
  EXPECT_EQ(call.places[0].address, s.m.q.data());
}

TEST(CudaCall, StrictFp32IsAFactOfFp32Alone) {
  Sample s;
  s.a.strict_fp32 = 1;  // on the CPU fp32 is fp32 anyway
  EXPECT_TRUE(accepted(s.a).problem.strict_fp32);
  EXPECT_EQ(attune_forward(&s.a), ATTUNE_OK) << attune_last_error();
  for (attune_tensor* t : {&s.a.q, &s.a.k, &s.a.v, &s.a.out}) t->dtype = ATTUNE_BF16;
  EXPECT_FALSE(accepted(s.a).problem.strict_fp32);
}

// The lengths lie on the device: an address that nobody could read is never read.
TEST(CudaCall, LengthsAreNotRead) {
  Sample s;
  ragged_on_cuda(s);
  s.a.cu_seqlens_q.data = address(0x1000);
  s.a.cu_seqlens_k.data = address(0x2000);
  s.a.causal = 1;
  s.a.alignment = ATTUNE_ALIGN_BOTTOM_RIGHT;
  const Call call = accepted(s.a);
  EXPECT_EQ(call.problem.batch, 2);
  EXPECT_EQ(call.problem.seq_q, 3);
  EXPECT_EQ(call.problem.seq_k, 5);
  EXPECT_EQ(call.problem.alignment, Alignment::bottom_right);
}

TEST(CudaCall, KeyLengthsAreNotRead) {
  Sample s;
  on_cuda(s);
  s.a.key_lengths = tensor(address(0x1000), ATTUNE_I32, {2}, {3});
  s.a.causal = 1;
  s.a.alignment = ATTUNE_ALIGN_BOTTOM_RIGHT;
  const Call call = accepted(s.a);
  EXPECT_TRUE(call.problem.key_lengths);
  EXPECT_EQ(call.params.key_lengths, address(0x1000));
  EXPECT_EQ(call.params.key_lengths_stride, 3);
  EXPECT_EQ(call.problem.alignment, Alignment::bottom_right);
  EXPECT_TRUE(std::any_of(call.places.begin(), call.places.end(), [&](const Place& place) {
    return place.address == call.params.key_lengths;
  }));
}

TEST(CudaCall, OneCuSeqlensNeedsNoAlignment) {
  Sample s;
  ragged_on_cuda(s);
  s.a.k = tensor(s.m.k.data(), {5, 2, 8});
  s.a.v = tensor(s.m.v.data(), {5, 2, 6});
  s.a.cu_seqlens_k = s.a.cu_seqlens_q;
  s.a.max_seq_k = s.a.max_seq_q;
  s.a.causal = 1;
  EXPECT_FALSE(accepted(s.a).empty);
}

TEST(CudaCall, EmptyOnesReturnAtOnce) {
  Sample none;
  on_cuda(none);
  none.a.q.shape[2] = none.a.out.shape[2] = none.a.lse.shape[2] = 0;
  EXPECT_EQ(attune_forward(&none.a), ATTUNE_OK) << attune_last_error();

  Sample no_sequences;  // the rows that belong to no sequence have no result
  ragged_on_cuda(no_sequences);
  no_sequences.a.cu_seqlens_q.shape[0] = no_sequences.a.cu_seqlens_k.shape[0] = 1;
  EXPECT_TRUE(accepted(no_sequences.a).empty);

  Sample no_rows;
  ragged_on_cuda(no_rows);
  no_rows.a.q.shape[0] = no_rows.a.out.shape[0] = no_rows.a.lse.shape[1] = 0;
  no_rows.a.max_seq_q = 0;
  EXPECT_TRUE(accepted(no_rows.a).empty);
}

TEST(CudaCall, ShapesAloneAreEnoughToAsk) {
  Sample s;
  ragged_on_cuda(s);
  s.a.causal = 1;
  s.a.workspace_bytes = 1 << 20;
  for (attune_tensor* t :
       {&s.a.q, &s.a.k, &s.a.v, &s.a.out, &s.a.lse, &s.a.cu_seqlens_q, &s.a.cu_seqlens_k})
    t->data = nullptr;
  const Call call = accepted(s.a, Pointers::optional);
  EXPECT_EQ(call.workspace_bytes, size_t{1} << 20);
  EXPECT_EQ(call.place_count, 0);
}

// ---- explain: the plan of a call without memory is the plan of the call ----

struct LargeCall {
  Args a;

  LargeCall() { with(ATTUNE_BF16); }

  void with(attune_dtype dtype) {
    a.device = ATTUNE_CUDA;
    a.q = tensor(address(uintptr_t{1} << 40), dtype, {2, 8, 2048, 64});
    a.k = tensor(address(uintptr_t{2} << 40), dtype, {2, 8, 2048, 64});
    a.v = tensor(address(uintptr_t{3} << 40), dtype, {2, 8, 2048, 64});
    a.out = tensor(address(uintptr_t{4} << 40), dtype, {2, 8, 2048, 64});
  }
  void add_lse() { a.lse = tensor(address(uintptr_t{5} << 40), ATTUNE_F32, {2, 8, 2048}); }
  void add_mask(attune_dtype dtype, int64_t pitch) {
    a.mask = tensor(address(uintptr_t{6} << 40), dtype, {1, 1, 2048, 2048},
                    {2048 * pitch, 2048 * pitch, pitch, 1});
  }
  void add_lengths() {
    for (attune_tensor* t : {&a.q, &a.k, &a.v, &a.out})
      *t = tensor(t->data, ATTUNE_BF16, {4096, 8, 64});
    a.cu_seqlens_q = a.cu_seqlens_k = tensor(address(uintptr_t{7} << 40), ATTUNE_I32, {3});
    a.max_seq_q = a.max_seq_k = 2500;
  }
};

struct Asked {
  const char* name;
  void (*change)(LargeCall&);
};
void PrintTo(const Asked& asked, std::ostream* out) { *out << asked.name; }

class ExplainedPlan : public ::testing::TestWithParam<Asked> {};

std::string plan_of(const attune_args& a, Pointers pointers) {
  Call call;
  if (Status s = make_call(&a, pointers, &call); !s.ok()) return s.message;
  CudaChoice choice;
  const CudaRequest request{{call.problem, arch_of(90), layout_of(call.problem, call.params),
                             call.workspace_bytes, call.score_mod != nullptr ? call.score_mod : "",
                             call.mask_mod != nullptr ? call.mask_mod : ""},
                            call.mode};
  if (Status s = select_cuda(request, &choice); !s.ok()) return s.message;
  std::string text =
      choice.plan.id + fmt::format(" {} {} {}", choice.plan.workspace_bytes,
                                   choice.plan.units[0].score_mod, choice.plan.units[0].mask_mod);
  for (const Candidate& c : choice.candidates) text += "\n" + c.id + ": " + c.reason;
  return text;
}

TEST_P(ExplainedPlan, IsThatOfTheCall) {
  LargeCall call;
  call.a.workspace = address(uintptr_t{9} << 40);
  call.a.workspace_bytes = size_t{1} << 36;
  GetParam().change(call);
  const std::string called = plan_of(call.a, Pointers::required);
  for (attune_tensor* t :
       {&call.a.q, &call.a.k, &call.a.v, &call.a.out, &call.a.lse, &call.a.mask, &call.a.block_mask,
        &call.a.alibi_slopes, &call.a.sinks, &call.a.cu_seqlens_q, &call.a.cu_seqlens_k})
    t->data = nullptr;
  call.a.workspace = nullptr;
  EXPECT_EQ(plan_of(call.a, Pointers::optional), called);
}

const Asked kAsked[] = {
    {"plain", [](LargeCall&) {}},
    {"f32", [](LargeCall& c) { c.with(ATTUNE_F32); }},
    {"strict_fp32", [](LargeCall& c) { c.with(ATTUNE_F32), c.a.strict_fp32 = 1; }},
    {"lse", [](LargeCall& c) { c.add_lse(); }},
    {"causal", [](LargeCall& c) { c.a.causal = 1; }},
    {"causal_lse", [](LargeCall& c) { c.a.causal = 1, c.add_lse(); }},
    {"window", [](LargeCall& c) { c.a.window_left = 128; }},
    {"wide_window", [](LargeCall& c) { c.a.window_left = c.a.window_right = 5000; }},
    {"mask", [](LargeCall& c) { c.add_mask(ATTUNE_BOOL, 2048); }},
    {"bias", [](LargeCall& c) { c.add_mask(ATTUNE_BF16, 2048); }},
    {"uneven_bias", [](LargeCall& c) { c.add_mask(ATTUNE_F32, 2049); }},
    {"block_mask",
     [](LargeCall& c) {
       c.a.block_mask = tensor(address(uintptr_t{6} << 40), ATTUNE_BOOL, {16, 16});
       c.a.block_mask_q = c.a.block_mask_k = 128;
     }},
    {"softcap", [](LargeCall& c) { c.a.softcap = 20; }},
    {"scale", [](LargeCall& c) { c.a.scale = 2; }},
    {"alibi", [](LargeCall& c) { c.a.alibi_slopes = tensor(address(1 << 20), ATTUNE_F32, {8}); }},
    {"sinks", [](LargeCall& c) { c.a.sinks = tensor(address(1 << 20), ATTUNE_F32, {8}); }},
    {"dropout", [](LargeCall& c) { c.a.dropout_p = .5f; }},
    {"ragged", [](LargeCall& c) { c.add_lengths(); }},
    {"batch_invariant", [](LargeCall& c) { c.a.batch_invariant = 1; }},
    {"no_workspace",
     [](LargeCall& c) { c.a.workspace = nullptr, c.a.workspace_bytes = 0, c.with(ATTUNE_F32); }},
    {"naive", [](LargeCall& c) { c.a.mode = ATTUNE_NAIVE; }},
    {"tiled", [](LargeCall& c) { c.a.mode = ATTUNE_TILED; }},
    {"fused", [](LargeCall& c) { c.a.mode = ATTUNE_FUSED; }},
    {"mma", [](LargeCall& c) { c.a.mode = ATTUNE_MMA; }},
    {"wgmma", [](LargeCall& c) { c.a.mode = ATTUNE_WGMMA; }},
    {"reference", [](LargeCall& c) { c.a.mode = ATTUNE_REFERENCE; }},
    {"score_mod", [](LargeCall& c) { c.a.score_mod = "return score;"; }},
    {"mask_mod", [](LargeCall& c) { c.a.mask_mod = "return i != j;", c.a.user_data = &c; }},
    {"repeated_keys", [](LargeCall& c) { c.a.k.stride[0] = c.a.v.stride[0] = 0; }},
    {"reversed_keys", [](LargeCall& c) { c.a.k.stride[2] = -64; }},
    {"uneven_rows", [](LargeCall& c) { c.a.q.stride[2] = 65, c.a.q.stride[1] = 65 * 2048; }},
};
INSTANTIATE_TEST_SUITE_P(CudaCall, ExplainedPlan, ::testing::ValuesIn(kAsked),
                         [](const auto& asked) { return std::string(asked.param.name); });

TEST(CudaCall, AskingForLseCanMeanAnotherKernel) {
  LargeCall plain, with_lse;
  with_lse.add_lse();
  EXPECT_NE(plan_of(plain.a, Pointers::required), plan_of(with_lse.a, Pointers::required));
}

// A caller that was compiled before there was CUDA: its struct ends after parallel_user.
TEST(CudaCall, CallersFromBeforeCudaAreServed) {
  constexpr size_t kOldSize = 992;
  static_assert(offsetof(attune_args, stream) == kOldSize, "CUDA's fields follow the old end");
  Sample now, old;
  ASSERT_EQ(attune_forward(&now.a), ATTUNE_OK) << attune_last_error();
  std::vector<std::byte> bytes(kOldSize);  // a byte more would be found by the sanitizer
  std::memcpy(bytes.data(), &old.a, kOldSize);
  std::memcpy(bytes.data(), &kOldSize, sizeof(kOldSize));
  const auto* args = reinterpret_cast<const attune_args*>(bytes.data());
  ASSERT_EQ(attune_forward(args), ATTUNE_OK) << attune_last_error();
  EXPECT_EQ(old.m.out, now.m.out);
  EXPECT_EQ(old.m.lse, now.m.lse);
  size_t wanted = 1;
  EXPECT_EQ(attune_workspace_size(args, &wanted), ATTUNE_OK) << attune_last_error();
  EXPECT_EQ(wanted, 0u);
  EXPECT_EQ(attune_prepare(args), ATTUNE_OK) << attune_last_error();
}

TEST(CudaCall, TheCpuWantsNoWorkspaceAndNoPreparing) {
  Sample s;
  EXPECT_EQ(workspace_size(s.a), 0u);
  prepare(s.a);
  EXPECT_FALSE(s.written());
  EXPECT_EQ(attune_workspace_size(&s.a, nullptr), ATTUNE_INVALID_ARGUMENT);
  s.a.workspace = address(7);  // not looked at: the question is how much there should be
  EXPECT_EQ(workspace_size(s.a), 0u);
  s.a.workspace = nullptr;
  s.a.mode = ATTUNE_TILED;
  EXPECT_THROW(prepare(s.a), Error);
  s.a.q.rank = 2;
  EXPECT_THROW(workspace_size(s.a), Error);
  EXPECT_THROW(prepare(s.a), Error);
}

TEST(CudaCall, ABackwardCallCarriesWhatTheDeviceNeeds) {
  Sample s;
  on_cuda(s);
  s.a.stream = address(8);
  s.a.workspace = address(0x100);
  s.a.workspace_bytes = 0x200;
  s.b.dk = {};
  Call call;
  const Status status = make_backward_call(&s.b, Pointers::required, &call);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(call.problem.pass, Pass::backward);
  EXPECT_EQ(call.stream, address(8));
  EXPECT_EQ(call.params.workspace, address(0x100));
  EXPECT_EQ(call.workspace_bytes, 0x200u);
  EXPECT_TRUE(call.results_given);
  EXPECT_TRUE(call.asked.dq);
  EXPECT_FALSE(call.asked.dk);
  EXPECT_EQ(call.places[call.place_count - 1].address, address(0x100));
  s.a.workspace = s.m.dq.data();
  EXPECT_EQ(make_backward_call(&s.b, Pointers::required, &call).code, ATTUNE_INVALID_ARGUMENT);
}

TEST(CudaCall, TheCpusBackwardPassNeedsNoWorkspace) {
  Sample s;
  size_t bytes = 1;
  EXPECT_EQ(attune_backward_workspace_size(&s.b, &bytes), ATTUNE_OK) << attune_last_error();
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(attune_backward_workspace_size(&s.b, nullptr), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(attune_backward_workspace_size(nullptr, &bytes), ATTUNE_INVALID_ARGUMENT);
}

TEST(CudaCall, WithoutADeviceTheReasonIsGiven) {
  if (cuda::why_unusable().empty()) GTEST_SKIP() << "there is a device";
  Sample s;
  on_cuda(s);
  size_t needed = 0;
  for (attune_status status :
       {attune_forward(&s.a), attune_prepare(&s.a), attune_workspace_size(&s.a, &needed),
        attune_backward(&s.b), attune_backward_workspace_size(&s.b, &needed),
        attune_explain(&s.a, nullptr, 0, &needed)}) {
    EXPECT_EQ(status, ATTUNE_UNSUPPORTED);
    EXPECT_NE(std::string(attune_last_error()).find(cuda::why_unusable()), std::string::npos)
        << attune_last_error();
  }
  EXPECT_FALSE(s.written());
}

class GpuCall : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& why : {cuda::why_unusable(), jit::nvrtc().problem})
      if (!why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(GpuCall, HostMemoryIsRefusedByName) {
  Sample s;
  on_cuda(s);
  EXPECT_EQ(attune_forward(&s.a), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(std::strncmp(attune_last_error(), "q ", 2), 0) << attune_last_error();
  EXPECT_FALSE(s.written());
}

TEST_F(GpuCall, ExplainNamesKernelDeviceAndWorkspace) {
  Sample s;
  on_cuda(s);
  for (attune_mode mode : {ATTUNE_AUTO, ATTUNE_NAIVE, ATTUNE_TILED, ATTUNE_FUSED}) {
    s.a.mode = mode;
    s.a.workspace_bytes = mode == ATTUNE_TILED ? workspace_size(s.a) : 0;
    const nlohmann::json text = nlohmann::json::parse(explain(s.a));
    EXPECT_NE(text["chosen"], "");
    EXPECT_NE(text["device"], "");
    EXPECT_GE(text["workspace"]["wanted_bytes"], text["workspace"]["used_bytes"]);
    int chosen = 0;
    for (const auto& candidate : text["candidates"]) {
      chosen += candidate["chosen"].get<bool>();
      EXPECT_EQ(candidate["reason"] == "", candidate["chosen"].get<bool>());
    }
    EXPECT_EQ(chosen, 1) << text;
    const bool has_backward = mode == ATTUNE_AUTO || mode == ATTUNE_FUSED;
    EXPECT_EQ(text["backward"]["chosen"], has_backward ? "fused" : "");
  }
}

TEST_F(GpuCall, ExplainSaysHowFp32RunsOnTensorCores) {
  cuda::Device device;
  ASSERT_TRUE(cuda::device(0, &device).ok());
  if (device.arch.cc < 80) GTEST_SKIP() << "no tensor cores for this";
  Sample s;
  on_cuda(s);
  s.a.mode = ATTUNE_MMA;
  s.a.workspace_bytes = workspace_size(s.a);
  const std::string text = explain(s.a);
  EXPECT_NE(text.find("operands split into fp16 hi + lo"), std::string::npos) << text;
}

}  // namespace
}  // namespace attune
