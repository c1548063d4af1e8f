#include "src/api/validate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "tests/api/sample.hpp"

namespace attune {
namespace {

using testing::Sample;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kHuge = int64_t{1} << 40;

// What is done to a valid call, and what the message must then say: the argument, and both values
// where there are two.
struct Case {
  const char* name;
  void (*spoil)(Sample&);
  std::vector<const char*> says;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

void expect_refusal(attune_status status, const Sample& sample, const Case& c) {
  EXPECT_EQ(status, ATTUNE_INVALID_ARGUMENT);
  const std::string message = attune_last_error();
  for (const char* part : c.says)
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  EXPECT_FALSE(sample.written());
}

class ForwardRefusal : public ::testing::TestWithParam<Case> {};

TEST_P(ForwardRefusal, NamesTheArgumentAndWritesNothing) {
  Sample s;
  GetParam().spoil(s);
  expect_refusal(attune_forward(&s.a), s, GetParam());
}

const Case kScalars[] = {
    {"device", [](Sample& s) { s.a.device = 7; }, {"device is 7", "0..1"}},
    {"mode", [](Sample& s) { s.a.mode = 9; }, {"mode is 9", "0..6"}},
    {"mode_negative", [](Sample& s) { s.a.mode = -1; }, {"mode is -1"}},
    {"alignment", [](Sample& s) { s.a.alignment = 3; }, {"alignment is 3", "0..2"}},
    {"threads_negative", [](Sample& s) { s.a.threads = -2; }, {"threads is -2"}},
    {"threads_absurd", [](Sample& s) { s.a.threads = 1 << 20; }, {"threads is 1048576", "1024"}},
    {"scale_nan", [](Sample& s) { s.a.scale = kNaN; }, {"scale is nan"}},
    {"scale_inf", [](Sample& s) { s.a.scale = kInf; }, {"scale is inf"}},
    {"scale_negative", [](Sample& s) { s.a.scale = -0.5f; }, {"scale is -0.5"}},
    {"softcap_nan", [](Sample& s) { s.a.softcap = kNaN; }, {"softcap is nan"}},
    {"softcap_inf", [](Sample& s) { s.a.softcap = kInf; }, {"softcap is inf"}},
    {"softcap_negative", [](Sample& s) { s.a.softcap = -30; }, {"softcap is -30"}},
    {"window_left", [](Sample& s) { s.a.window_left = -2; }, {"window_left is -2"}},
    {"window_right", [](Sample& s) { s.a.window_right = -9; }, {"window_right is -9"}},
    {"dropout_one", [](Sample& s) { s.a.dropout_p = 1; }, {"dropout_p is 1"}},
    {"dropout_negative", [](Sample& s) { s.a.dropout_p = -0.25f; }, {"dropout_p is -0.25"}},
    {"dropout_nan", [](Sample& s) { s.a.dropout_p = kNaN; }, {"dropout_p is nan"}},
    {"causal_without_alignment",
     [](Sample& s) { s.a.causal = 1; },
     {"alignment is unspecified", "causal", "5 and 7"}},
    {"window_without_alignment",
     [](Sample& s) { s.a.window_left = 2; },
     {"alignment is unspecified", "the window"}},
    {"alibi_without_alignment",
     [](Sample& s) { s.a.alibi_slopes = tensor(s.m.slopes.data(), {4}); },
     {"alignment is unspecified", "alibi_slopes"}},
};
INSTANTIATE_TEST_SUITE_P(Scalars, ForwardRefusal, ::testing::ValuesIn(kScalars), case_name);

const Case kShapes[] = {
    {"q_rank", [](Sample& s) { s.a.q.rank = 3; }, {"q.rank is 3", "expected 4"}},
    {"q_rank_huge", [](Sample& s) { s.a.q.rank = 1000000; }, {"q.rank is 1000000"}},
    {"q_rank_negative", [](Sample& s) { s.a.q.rank = -1; }, {"q.rank is -1"}},
    {"q_missing", [](Sample& s) { s.a.q = {}; }, {"q.rank is 0"}},
    {"k_rank", [](Sample& s) { s.a.k.rank = 2; }, {"k.rank is 2"}},
    {"v_rank", [](Sample& s) { s.a.v.rank = 5; }, {"v.rank is 5"}},
    {"out_missing", [](Sample& s) { s.a.out = {}; }, {"out.rank is 0"}},
    {"lse_rank",
     [](Sample& s) {
       s.a.lse = tensor(s.m.lse.data(), {8, 5});
     },
     {"lse.rank is 2", "expected 3"}},
    {"k_batch", [](Sample& s) { s.a.k.shape[0] = 3; }, {"k.shape[0] is 3", "q.shape[0] is 2"}},
    {"k_dim", [](Sample& s) { s.a.k.shape[3] = 7; }, {"k.shape[3] is 7", "q.shape[3] is 8"}},
    {"v_batch", [](Sample& s) { s.a.v.shape[0] = 1; }, {"v.shape[0] is 1", "q.shape[0] is 2"}},
    {"v_heads", [](Sample& s) { s.a.v.shape[1] = 4; }, {"v.shape[1] is 4", "k.shape[1] is 2"}},
    {"v_sequence", [](Sample& s) { s.a.v.shape[2] = 6; }, {"v.shape[2] is 6", "k.shape[2] is 7"}},
    {"out_batch",
     [](Sample& s) { s.a.out.shape[0] = 1; },
     {"out.shape[0] is 1", "q.shape[0] is 2"}},
    {"out_heads",
     [](Sample& s) { s.a.out.shape[1] = 2; },
     {"out.shape[1] is 2", "q.shape[1] is 4"}},
    {"out_sequence",
     [](Sample& s) { s.a.out.shape[2] = 4; },
     {"out.shape[2] is 4", "q.shape[2] is 5"}},
    {"out_dim", [](Sample& s) { s.a.out.shape[3] = 8; }, {"out.shape[3] is 8", "v.shape[3] is 6"}},
    {"lse_batch",
     [](Sample& s) { s.a.lse.shape[0] = 3; },
     {"lse.shape[0] is 3", "q.shape[0] is 2"}},
    {"lse_heads",
     [](Sample& s) { s.a.lse.shape[1] = 2; },
     {"lse.shape[1] is 2", "q.shape[1] is 4"}},
    {"lse_sequence",
     [](Sample& s) { s.a.lse.shape[2] = 7; },
     {"lse.shape[2] is 7", "q.shape[2] is 5"}},
    {"head_ratio",
     [](Sample& s) { s.a.k.shape[1] = s.a.v.shape[1] = 3; },
     {"q.shape[1] is 4", "k.shape[1]", "which is 3"}},
    {"no_kv_heads",
     [](Sample& s) { s.a.k.shape[1] = s.a.v.shape[1] = 0; },
     {"q.shape[1] is 4", "k.shape[1]", "which is 0"}},
    {"dim_zero", [](Sample& s) { s.a.q.shape[3] = 0; }, {"q's head dimension is 0", "1..256"}},
    {"dim_large",
     [](Sample& s) {
       s.a.q = s.a.k = tensor(s.m.q.data(), {1, 1, 1, 257});
     },
     {"q's head dimension is 257", "1..256"}},
    {"dim_v_zero", [](Sample& s) { s.a.v.shape[3] = 0; }, {"v's head dimension is 0", "1..256"}},
    {"dim_v_large",
     [](Sample& s) { s.a.v.shape[3] = 300; },
     {"v's head dimension is 300", "1..256"}},
    {"negative_size", [](Sample& s) { s.a.q.shape[2] = -5; }, {"q.shape[2] is -5"}},
    {"negative_batch", [](Sample& s) { s.a.k.shape[0] = -2; }, {"k.shape[0] is -2"}},
    {"too_many_elements",
     [](Sample& s) { s.a.q.shape[0] = s.a.q.shape[1] = kHuge; },
     {"q has more than 2^63 - 1 elements", "1099511627776"}},
    {"too_many_elements_beside_a_zero",
     [](Sample& s) {
       s.a.q.shape[0] = s.a.q.shape[1] = kHuge;
       s.a.q.shape[2] = 0;
     },
     {"q has more than 2^63 - 1 elements"}},
    {"sequence_too_long",
     [](Sample& s) {
       s.a.q.shape[2] = int64_t{1} << 31;
       s.a.q.stride[2] = 0;
     },
     {"q's sequence length is 2147483648", "2147483647"}},
    {"keys_too_long",
     [](Sample& s) {
       s.a.k.shape[2] = int64_t{1} << 31;
       s.a.k.stride[2] = 0;
     },
     {"k's sequence length is 2147483648", "2147483647"}},
};
INSTANTIATE_TEST_SUITE_P(Shapes, ForwardRefusal, ::testing::ValuesIn(kShapes), case_name);

const Case kMemory[] = {
    {"q_dtype",
     [](Sample& s) { s.a.q.dtype = ATTUNE_I32; },
     {"q.dtype is I32", "F32 or F16 or BF16"}},
    {"q_dtype_unknown", [](Sample& s) { s.a.q.dtype = 99; }, {"q.dtype is 99"}},
    {"k_dtype_mixed",
     [](Sample& s) { s.a.k.dtype = ATTUNE_F16; },
     {"k.dtype is F16", "q.dtype is F32"}},
    {"v_dtype_mixed",
     [](Sample& s) { s.a.v.dtype = ATTUNE_BF16; },
     {"v.dtype is BF16", "q.dtype is F32"}},
    {"out_dtype_mixed",
     [](Sample& s) { s.a.out.dtype = ATTUNE_BF16; },
     {"out.dtype is BF16", "q.dtype is F32"}},
    {"lse_dtype", [](Sample& s) { s.a.lse.dtype = ATTUNE_F16; }, {"lse.dtype is F16", "F32"}},
    {"q_last_stride", [](Sample& s) { s.a.q.stride[3] = 2; }, {"q.stride[3] is 2", "1"}},
    {"k_last_stride", [](Sample& s) { s.a.k.stride[3] = 0; }, {"k.stride[3] is 0", "1"}},
    {"v_last_stride", [](Sample& s) { s.a.v.stride[3] = -1; }, {"v.stride[3] is -1", "1"}},
    {"out_last_stride", [](Sample& s) { s.a.out.stride[3] = 3; }, {"out.stride[3] is 3", "1"}},
    {"q_null", [](Sample& s) { s.a.q.data = nullptr; }, {"q.data is NULL"}},
    {"k_null", [](Sample& s) { s.a.k.data = nullptr; }, {"k.data is NULL"}},
    {"v_null", [](Sample& s) { s.a.v.data = nullptr; }, {"v.data is NULL"}},
    {"out_null", [](Sample& s) { s.a.out.data = nullptr; }, {"out.data is NULL"}},
    {"lse_null", [](Sample& s) { s.a.lse.data = nullptr; }, {"lse.data is NULL"}},
    {"q_misaligned",
     [](Sample& s) { s.a.q.data = reinterpret_cast<char*>(s.m.q.data()) + 2; },
     {"q.data is at 0x", "4 bytes of F32"}},
    {"half_misaligned",
     [](Sample& s) {
       for (attune_tensor* half : {&s.a.q, &s.a.k, &s.a.v, &s.a.out}) half->dtype = ATTUNE_F16;
       s.a.v.data = reinterpret_cast<char*>(s.m.v.data()) + 1;
     },
     {"v.data is at 0x", "2 bytes of F16"}},
    {"stride_overflow",
     [](Sample& s) { s.a.q.stride[1] = std::numeric_limits<int64_t>::max() / 2; },
     {"q reaches beyond 64-bit addresses", "q.shape[1] is 4",
      "q.stride[1] is 4611686018427387903"}},
    {"stride_overflow_negative",
     [](Sample& s) { s.a.k.stride[2] = std::numeric_limits<int64_t>::min(); },
     {"k reaches beyond 64-bit addresses", "k.shape[2] is 7",
      "k.stride[2] is -9223372036854775808"}},
    {"below_address_zero",
     [](Sample& s) { s.a.v.stride[0] = -(int64_t{1} << 58); },
     {"v.data is at 0x", "address space"}},
    {"out_repeats", [](Sample& s) { s.a.out.stride[1] = 0; }, {"out is written", "overlap"}},
    {"out_rows_overlap", [](Sample& s) { s.a.out.stride[2] = 5; }, {"out is written", "overlap"}},
    {"out_rows_overlap_backwards",
     [](Sample& s) { s.a.out.stride[2] = -5; },
     {"out is written", "overlap"}},
    {"lse_repeats", [](Sample& s) { s.a.lse.stride[2] = 0; }, {"lse is written", "overlap"}},
    {"out_is_q",
     [](Sample& s) {
       s.a.v = tensor(s.m.v.data(), {2, 2, 7, 8});
       s.a.out = s.a.q;
     },
     {"out is written", "shares memory with q"}},
    {"out_in_k",
     [](Sample& s) { s.a.out.data = s.m.k.data() + 2 * 2 * 7 * 8 - 1; },
     {"out is written", "with k"}},
    {"lse_in_out",
     [](Sample& s) { s.a.lse.data = s.m.out.data() + 17; },
     {"lse is written", "with out"}},
    {"lse_in_v", [](Sample& s) { s.a.lse.data = s.m.v.data(); }, {"lse is written", "with v"}},
    {"out_in_mask",
     [](Sample& s) {
       s.add_mask();
       s.a.out.data = s.m.mask.data() + 3;
     },
     {"out is written", "with mask"}},
    {"lse_in_sinks",
     [](Sample& s) {
       s.add_sinks();
       s.a.lse.data = s.m.sinks.data();
     },
     {"lse is written", "with sinks"}},
    // Rows of q lie in the gaps of out, but for one element.
    {"interleaved_by_one_too_many",
     [](Sample& s) {
       s.a.q = tensor(s.m.out.data(), {2, 4, 5, 8}, {280, 70, 14, 1});
       s.a.out = tensor(s.m.out.data() + 7, {2, 4, 5, 6}, {280, 70, 14, 1});
     },
     {"out is written", "shares memory with q"}},
};
INSTANTIATE_TEST_SUITE_P(Memory, ForwardRefusal, ::testing::ValuesIn(kMemory), case_name);

const Case kOptional[] = {
    {"mask_rank",
     [](Sample& s) { s.add_mask(), s.a.mask.rank = 5; },
     {"mask.rank is 5", "at most 4"}},
    {"mask_batch",
     [](Sample& s) { s.add_mask(), s.a.mask.shape[0] = 3; },
     {"mask.shape[0] is 3", "q.shape[0] is 2"}},
    {"mask_heads",
     [](Sample& s) { s.add_mask(), s.a.mask.shape[1] = 2; },
     {"mask.shape[1] is 2", "q.shape[1] is 4"}},
    {"mask_rows",
     [](Sample& s) { s.add_mask(), s.a.mask.shape[2] = 7; },
     {"mask.shape[2] is 7", "q.shape[2] is 5"}},
    {"mask_keys",
     [](Sample& s) { s.add_mask(), s.a.mask.shape[3] = 5; },
     {"mask.shape[3] is 5", "k.shape[2] is 7"}},
    {"mask_low_rank",
     [](Sample& s) {
       s.a.mask = tensor(s.m.mask.data(), {4, 7});
     },
     {"mask.shape[0] is 4", "q.shape[2] is 5"}},
    {"mask_dtype",
     [](Sample& s) { s.add_mask(), s.a.mask.dtype = ATTUNE_I32; },
     {"mask.dtype is I32", "BOOL"}},
    {"mask_null", [](Sample& s) { s.add_mask(), s.a.mask.data = nullptr; }, {"mask.data is NULL"}},
    {"block_mask_dtype",
     [](Sample& s) { s.add_block_mask(), s.a.block_mask.dtype = ATTUNE_F32; },
     {"block_mask.dtype is F32", "BOOL"}},
    {"block_mask_q",
     [](Sample& s) { s.add_block_mask(), s.a.block_mask_q = 0; },
     {"block_mask_q is 0"}},
    {"block_mask_k",
     [](Sample& s) { s.add_block_mask(), s.a.block_mask_k = -4; },
     {"block_mask_k is -4"}},
    {"block_mask_rows",
     [](Sample& s) { s.add_block_mask(), s.a.block_mask_q = 3; },
     {"block_mask.shape[2] is 3", "block_mask_q", "is 2"}},
    {"block_mask_keys",
     [](Sample& s) { s.add_block_mask(), s.a.block_mask_k = 7; },
     {"block_mask.shape[3] is 2", "block_mask_k", "is 1"}},
    {"block_mask_null",
     [](Sample& s) { s.add_block_mask(), s.a.block_mask.data = nullptr; },
     {"block_mask.data is NULL"}},
    {"alibi_rank",
     [](Sample& s) {
       s.a.alibi_slopes = tensor(s.m.slopes.data(), {1, 2, 4});
     },
     {"alibi_slopes.rank is 3", "1..2"}},
    {"alibi_heads",
     [](Sample& s) { s.a.alibi_slopes = tensor(s.m.slopes.data(), {2}); },
     {"alibi_slopes.shape[0] is 2", "q.shape[1] is 4"}},
    {"alibi_batch",
     [](Sample& s) {
       s.a.alibi_slopes = tensor(s.m.slopes.data(), {1, 4});
     },
     {"alibi_slopes.shape[0] is 1", "q.shape[0] is 2"}},
    {"alibi_dtype",
     [](Sample& s) { s.a.alibi_slopes = tensor(s.m.slopes.data(), ATTUNE_BF16, {4}); },
     {"alibi_slopes.dtype is BF16", "F32"}},
    {"sinks_rank",
     [](Sample& s) {
       s.a.sinks = tensor(s.m.sinks.data(), {2, 4});
     },
     {"sinks.rank is 2", "1"}},
    {"sinks_heads",
     [](Sample& s) { s.a.sinks = tensor(s.m.sinks.data(), {5}); },
     {"sinks.shape[0] is 5", "q.shape[1] is 4"}},
    {"sinks_dtype",
     [](Sample& s) { s.add_sinks(), s.a.sinks.dtype = ATTUNE_F16; },
     {"sinks.dtype is F16", "F32"}},
};
INSTANTIATE_TEST_SUITE_P(Optional, ForwardRefusal, ::testing::ValuesIn(kOptional), case_name);

const Case kRagged[] = {
    {"only_q",
     [](Sample& s) { s.make_ragged(), s.a.cu_seqlens_k = {}; },
     {"cu_seqlens_q is given", "cu_seqlens_k is not"}},
    {"only_k",
     [](Sample& s) { s.make_ragged(), s.a.cu_seqlens_q = {}; },
     {"cu_seqlens_k is given", "cu_seqlens_q is not"}},
    {"dense_q",
     [](Sample& s) {
       s.make_ragged(), s.a.q = tensor(s.m.q.data(), {2, 4, 5, 8});
     },
     {"q.rank is 4", "expected 3", "cu_seqlens"}},
    {"dtype",
     [](Sample& s) { s.make_ragged(), s.a.cu_seqlens_q.dtype = ATTUNE_F32; },
     {"cu_seqlens_q.dtype is F32", "I32"}},
    {"rank",
     [](Sample& s) {
       s.make_ragged(), s.a.cu_seqlens_k = tensor(s.m.cu_k.data(), {1, 3});
     },
     {"cu_seqlens_k.rank is 2", "expected 1"}},
    {"count",
     [](Sample& s) { s.make_ragged(), s.a.cu_seqlens_k.shape[0] = 2; },
     {"cu_seqlens_k.shape[0] is 2", "cu_seqlens_q.shape[0] is 3"}},
    {"no_offsets",
     [](Sample& s) { s.make_ragged(), s.a.cu_seqlens_q.shape[0] = s.a.cu_seqlens_k.shape[0] = 0; },
     {"cu_seqlens_q.shape[0] is 0"}},
    {"null",
     [](Sample& s) { s.make_ragged(), s.a.cu_seqlens_k.data = nullptr; },
     {"cu_seqlens_k.data is NULL"}},
    {"start",
     [](Sample& s) { s.make_ragged(), s.m.cu_q[0] = 1; },
     {"cu_seqlens_q[0] is 1", "expected 0"}},
    {"decreasing",
     [](Sample& s) { s.make_ragged(), s.m.cu_k[1] = 8; },
     {"cu_seqlens_k[2] is 7", "cu_seqlens_k[1]", "which is 8"}},
    {"end_short",
     [](Sample& s) { s.make_ragged(), s.m.cu_q[2] = 4; },
     {"cu_seqlens_q ends at 4", "q.shape[0] is 5"}},
    {"end_long",
     [](Sample& s) { s.make_ragged(), s.m.cu_k[2] = 8; },
     {"cu_seqlens_k ends at 8", "k.shape[0] is 7"}},
    {"alignment",
     [](Sample& s) { s.make_ragged(), s.a.causal = 1; },
     {"alignment is unspecified", "causal"}},
    {"heads",
     [](Sample& s) { s.make_ragged(), s.a.out.shape[1] = 2; },
     {"out.shape[1] is 2", "q.shape[1] is 4"}},
    {"lse",
     [](Sample& s) { s.make_ragged(), s.a.lse.shape[1] = 7; },
     {"lse.shape[1] is 7", "q.shape[0] is 5"}},
    {"mask_batch",
     [](Sample& s) {
       s.make_ragged(), s.a.mask = tensor(s.m.mask.data(), {3, 1, 1, 1});
     },
     {"mask.shape[0] is 3", "cu_seqlens_q", "is 2"}},
    {"mask_rows",
     [](Sample& s) {
       s.make_ragged(), s.a.mask = tensor(s.m.mask.data(), {5, 1});
     },
     {"mask.shape[0] is 5", "longest sequence of cu_seqlens_q", "is 3"}},
    {"mask_keys",
     [](Sample& s) { s.make_ragged(), s.a.mask = tensor(s.m.mask.data(), {7}); },
     {"mask.shape[0] is 7", "longest sequence of cu_seqlens_k", "is 5"}},
    {"out_in_offsets",
     [](Sample& s) { s.make_ragged(), s.a.lse.data = s.m.cu_q.data(); },
     {"lse is written", "with cu_seqlens_q"}},
};
INSTANTIATE_TEST_SUITE_P(Ragged, ForwardRefusal, ::testing::ValuesIn(kRagged), case_name);

const Case kKeyLengths[] = {
    {"dtype",
     [](Sample& s) { s.add_key_lengths(3, 7), s.a.key_lengths.dtype = ATTUNE_F32; },
     {"key_lengths.dtype is F32", "I32"}},
    {"rank",
     [](Sample& s) {
       s.add_key_lengths(3, 7), s.a.key_lengths = tensor(s.m.key_lengths.data(), {2, 1});
     },
     {"key_lengths.rank is 2", "expected 1"}},
    {"count",
     [](Sample& s) { s.add_key_lengths(3, 7), s.a.key_lengths.shape[0] = 1; },
     {"key_lengths.shape[0] is 1", "q.shape[0] is 2"}},
    {"count_of_sequences",
     [](Sample& s) { s.make_ragged(), s.add_key_lengths(2, 5), s.a.key_lengths.shape[0] = 1; },
     {"key_lengths.shape[0] is 1", "cu_seqlens_q", "is 2"}},
    {"null",
     [](Sample& s) { s.add_key_lengths(3, 7), s.a.key_lengths.data = nullptr; },
     {"key_lengths.data is NULL"}},
    {"negative",
     [](Sample& s) { s.add_key_lengths(3, -1); },
     {"key_lengths[1] is -1", "k.shape[2] is 7"}},
    {"too_long",
     [](Sample& s) { s.add_key_lengths(8, 7); },
     {"key_lengths[0] is 8", "k.shape[2] is 7"}},
    {"longer_than_its_sequence",
     [](Sample& s) { s.make_ragged(), s.add_key_lengths(3, 5); },
     {"key_lengths[0] is 3", "sequence 0 of cu_seqlens_k has 2 keys"}},
    {"one_that_repeats",
     [](Sample& s) { s.make_ragged(), s.add_key_lengths(3, 0), s.a.key_lengths.stride[0] = 0; },
     {"key_lengths[0] is 3", "has 2 keys"}},
    {"causal",
     [](Sample& s) { s.add_key_lengths(3, 7), s.a.causal = 1; },
     {"alignment is unspecified", "causal", "differ"}},
    {"lse_in_lengths",
     [](Sample& s) { s.add_key_lengths(3, 7), s.a.lse.data = s.m.key_lengths.data(); },
     {"lse is written", "with key_lengths"}},
};
INSTANTIATE_TEST_SUITE_P(KeyLengths, ForwardRefusal, ::testing::ValuesIn(kKeyLengths), case_name);

class BackwardRefusal : public ::testing::TestWithParam<Case> {};

TEST_P(BackwardRefusal, NamesTheArgumentAndWritesNothing) {
  Sample s;
  GetParam().spoil(s);
  expect_refusal(attune_backward(&s.b), s, GetParam());
}

const Case kBackward[] = {
    {"no_forward", [](Sample& s) { s.b.forward = nullptr; }, {"args.forward is NULL"}},
    {"forward_refused",
     [](Sample& s) { s.a.k.shape[3] = 7; },
     {"k.shape[3] is 7", "q.shape[3] is 8"}},
    {"forward_size", [](Sample& s) { s.a.struct_size = 0; }, {"args.forward.struct_size is 0"}},
    {"out_shape",
     [](Sample& s) { s.a.out.shape[3] = 8; },
     {"out.shape[3] is 8", "v.shape[3] is 6"}},
    {"dout_missing", [](Sample& s) { s.b.dout = {}; }, {"dout.rank is 0"}},
    {"dout_null", [](Sample& s) { s.b.dout.data = nullptr; }, {"dout.data is NULL"}},
    {"dout_shape",
     [](Sample& s) { s.b.dout.shape[3] = 8; },
     {"dout.shape[3] is 8", "v.shape[3] is 6"}},
    {"dout_dtype",
     [](Sample& s) { s.b.dout.dtype = ATTUNE_F16; },
     {"dout.dtype is F16", "q.dtype is F32"}},
    {"dq_shape", [](Sample& s) { s.b.dq.shape[2] = 7; }, {"dq.shape[2] is 7", "q.shape[2] is 5"}},
    {"dk_shape", [](Sample& s) { s.b.dk.shape[1] = 4; }, {"dk.shape[1] is 4", "k.shape[1] is 2"}},
    {"dv_shape", [](Sample& s) { s.b.dv.shape[3] = 8; }, {"dv.shape[3] is 8", "v.shape[3] is 6"}},
    {"dv_rank", [](Sample& s) { s.b.dv.rank = 3; }, {"dv.rank is 3", "4"}},
    {"dq_repeats", [](Sample& s) { s.b.dq.stride[0] = 0; }, {"dq is written", "overlap"}},
    {"dq_is_q", [](Sample& s) { s.b.dq = s.a.q; }, {"dq is written", "with q"}},
    {"dk_is_dq", [](Sample& s) { s.b.dk.data = s.b.dq.data; }, {"dk is written", "with dq"}},
    {"dv_is_out", [](Sample& s) { s.b.dv.data = s.a.out.data; }, {"dv is written", "with out"}},
    {"dv_is_dout", [](Sample& s) { s.b.dv.data = s.b.dout.data; }, {"dv is written", "with dout"}},
    {"dmask_without_mask",
     [](Sample& s) {
       s.b.dmask = tensor(s.m.dmask.data(), {2, 1, 5, 7});
     },
     {"dmask is given", "mask is not given"}},
    {"dmask_of_boolean",
     [](Sample& s) {
       s.a.mask = tensor(s.m.block_mask.data(), ATTUNE_BOOL, {5, 7});
       s.b.dmask = tensor(s.m.dmask.data(), {5, 7});
     },
     {"dmask is given", "mask is BOOL"}},
    {"dmask_shape",
     [](Sample& s) {
       s.add_mask(), s.b.dmask = tensor(s.m.dmask.data(), {2, 4, 5, 7});
     },
     {"dmask.shape[1] is 4", "mask.shape[1] is 1"}},
    {"dmask_rank",
     [](Sample& s) {
       s.add_mask(), s.b.dmask = tensor(s.m.dmask.data(), {5, 7});
     },
     {"dmask.rank is 2", "expected 4"}},
    {"dmask_dtype",
     [](Sample& s) {
       s.add_mask(), s.b.dmask = tensor(s.m.dmask.data(), ATTUNE_F16, {2, 1, 5, 7});
     },
     {"dmask.dtype is F16", "F32"}},
    {"dsinks_without_sinks",
     [](Sample& s) { s.b.dsinks = tensor(s.m.dsinks.data(), {4}); },
     {"dsinks is given", "sinks is not given"}},
    {"dsinks_shape",
     [](Sample& s) { s.add_sinks(), s.b.dsinks = tensor(s.m.dsinks.data(), {2}); },
     {"dsinks.shape[0] is 2", "sinks.shape[0] is 4"}},
    {"dsinks_dtype",
     [](Sample& s) { s.add_sinks(), s.b.dsinks = tensor(s.m.dsinks.data(), ATTUNE_BF16, {4}); },
     {"dsinks.dtype is BF16", "F32"}},
};
INSTANTIATE_TEST_SUITE_P(Validate, BackwardRefusal, ::testing::ValuesIn(kBackward), case_name);

Call accepted(const attune_args& args, Pointers pointers = Pointers::required) {
  Call call;
  const Status status = make_call(&args, pointers, &call);
  EXPECT_TRUE(status.ok()) << status.message;
  return call;
}

TEST(Validate, DropoutCountsBatchTimesHeadsIn32Bits) {
  Sample s;
  for (attune_tensor* t : {&s.a.q, &s.a.k, &s.a.v, &s.a.out})
    *t = tensor(nullptr, ATTUNE_F32, {65536, 65536, 1, 1});
  s.a.lse = {};
  accepted(s.a, Pointers::optional);
  s.a.dropout_p = 0.5f;
  Call call;
  const Status status = make_call(&s.a, Pointers::optional, &call);
  EXPECT_EQ(status.code, ATTUNE_INVALID_ARGUMENT);
  EXPECT_NE(status.message.find("65536 * 65536"), std::string::npos) << status.message;
}

TEST(Validate, DescribesTheCall) {
  Sample s;
  s.add_mask();
  s.add_block_mask();
  s.add_sinks();
  s.a.alibi_slopes = tensor(s.m.slopes.data(), {2, 4});
  s.a.causal = 5;
  s.a.alignment = ATTUNE_ALIGN_BOTTOM_RIGHT;
  s.a.window_left = 3;
  s.a.window_right = 100;
  s.a.softcap = 20;
  s.a.dropout_p = 0.5f;
  s.a.dropout_seed = 11;
  s.a.dropout_offset = 12;
  s.a.batch_invariant = 1;
  s.a.threads = 3;
  s.a.mode = ATTUNE_NAIVE;
  const Call call = accepted(s.a);
  Problem want;
  want.batch = 2;
  want.heads_q = 4;
  want.heads_kv = 2;
  want.seq_q = 5;
  want.seq_k = 7;
  want.dim = 8;
  want.dim_v = 6;
  want.causal = true;
  want.alignment = Alignment::bottom_right;
  want.window_left = 3;  // the right one is beyond every key, so it is none
  want.mask = MaskKind::f32;
  want.block_mask_q = 2;
  want.block_mask_k = 4;
  want.softcap = want.alibi = want.sinks = want.dropout = want.lse = want.batch_invariant = true;
  EXPECT_EQ(call.problem, want);
  EXPECT_FALSE(call.empty);
  EXPECT_EQ(call.mode, ATTUNE_NAIVE);
  EXPECT_EQ(call.executor.threads, 3);
  const Params& p = call.params;
  EXPECT_EQ(p.q.data, s.m.q.data());
  EXPECT_EQ(p.k.stride_b, 2 * 7 * 8);
  EXPECT_EQ(p.k.stride_h, 7 * 8);
  EXPECT_EQ(p.k.stride_s, 8);
  EXPECT_EQ(p.lse.stride_h, 5);
  EXPECT_EQ(p.mask.stride[0], 35);
  EXPECT_EQ(p.mask.stride[1], 0);
  EXPECT_EQ(p.mask.stride[2], 7);
  EXPECT_EQ(p.alibi_stride_b, 4);
  EXPECT_EQ(p.alibi_stride_h, 1);
  EXPECT_FLOAT_EQ(p.scale, 1 / std::sqrt(8.0f));
  EXPECT_EQ(p.dropout_seed, 11u);
  EXPECT_EQ(p.dropout_offset, 12u);
}

TEST(Validate, DescribesARaggedCall) {
  Sample s;
  s.make_ragged();
  s.a.mask = tensor(s.m.mask.data(), {2, 1, 3, 5});
  const Call call = accepted(s.a);
  EXPECT_TRUE(call.problem.ragged);
  EXPECT_EQ(call.problem.batch, 2);
  EXPECT_EQ(call.problem.heads_q, 4);
  EXPECT_EQ(call.problem.seq_q, 3);
  EXPECT_EQ(call.problem.seq_k, 5);
  EXPECT_EQ(call.params.q.stride_b, 0);
  EXPECT_EQ(call.params.q.stride_h, 8);
  EXPECT_EQ(call.params.q.stride_s, 32);
  EXPECT_EQ(call.params.lse.stride_h, 5);
  EXPECT_EQ(call.params.lse.stride_s, 1);
}

TEST(Validate, DescribesKeyLengths) {
  Sample s;
  s.m.key_lengths = {3, -1, 7};
  s.a.key_lengths = tensor(s.m.key_lengths.data(), {2}, {2});
  const Call call = accepted(s.a);
  EXPECT_TRUE(call.problem.key_lengths);
  EXPECT_EQ(call.problem.seq_k, 7);
  EXPECT_EQ(call.params.key_lengths, s.m.key_lengths.data());
  EXPECT_EQ(call.params.key_lengths_stride, 2);
  // Every sequence has as many keys as queries: there is one diagonal.
  s.a.q.shape[2] = s.a.out.shape[2] = s.a.lse.shape[2] = 3;
  s.m.key_lengths = {3, -1, 3};
  s.a.causal = 1;
  EXPECT_EQ(accepted(s.a).problem.alignment, Alignment::top_left);
}

// They are the caller's, and a struct that ends before them has none.
TEST(Validate, KeyLengthsAreBeyondAnOlderStruct) {
  Sample s;
  s.add_key_lengths(3, 70);
  s.a.struct_size = offsetof(attune_args, key_lengths);
  EXPECT_FALSE(accepted(s.a).problem.key_lengths);
}

// Lengths without end, all of them one number, of a batch without heads.
TEST(Validate, OneLengthThatRepeatsIsLookedAtOnce) {
  Sample s;
  s.add_key_lengths(3, 3);
  for (attune_tensor* t : {&s.a.q, &s.a.k, &s.a.v, &s.a.out, &s.a.lse})
    t->shape[0] = int64_t{1} << 40, t->shape[1] = 0;
  s.a.key_lengths.shape[0] = int64_t{1} << 40;
  s.a.key_lengths.stride[0] = 0;
  EXPECT_EQ(attune_forward(&s.a), ATTUNE_OK) << attune_last_error();
  s.m.key_lengths[0] = 8;
  EXPECT_EQ(attune_forward(&s.a), ATTUNE_INVALID_ARGUMENT);
}

TEST(Validate, ThreadsZeroMeansAllOfThem) {
  Sample s;
  s.a.threads = 0;
  EXPECT_EQ(accepted(s.a).executor.threads, cpu::usable_threads());
}

// Alignment is asked for only where the answer depends on it.
TEST(Validate, AlignmentMattersOnlyWhereLengthsDiffer) {
  Sample s;
  s.a.alignment = ATTUNE_ALIGN_BOTTOM_RIGHT;
  EXPECT_EQ(accepted(s.a).problem.alignment, Alignment::top_left);
  s.a.window_left = 7;  // reaches every key
  s.a.alignment = ATTUNE_ALIGN_UNSPECIFIED;
  EXPECT_EQ(accepted(s.a).problem.window_left, kNoLimit);
  s.a.causal = 1;
  s.a.q.shape[2] = s.a.out.shape[2] = s.a.lse.shape[2] = 0;
  EXPECT_TRUE(accepted(s.a).empty);

  Sample ragged;
  ragged.make_ragged();
  ragged.m.cu_k = {0, 3, 5};
  ragged.a.k.shape[0] = ragged.a.v.shape[0] = 5;
  ragged.a.causal = 1;
  accepted(ragged.a);
}

TEST(Validate, EmptyIsLegal) {
  for (int axis : {0, 1, 2}) {
    Sample s;
    s.a.q.shape[axis] = s.a.out.shape[axis] = s.a.lse.shape[axis] = 0;
    if (axis < 2) s.a.k.shape[axis] = s.a.v.shape[axis] = 0;
    // Nothing is reached, so pointers and strides say nothing.
    for (attune_tensor* t : {&s.a.q, &s.a.out}) {
      t->data = nullptr;
      t->stride[3] = 77;
    }
    EXPECT_TRUE(accepted(s.a).empty) << axis;
    EXPECT_EQ(attune_forward(&s.a), ATTUNE_OK);
    EXPECT_FALSE(s.written());
  }
}

TEST(Validate, NoKeysIsNotEmpty) {
  Sample s;
  s.a.k = tensor(nullptr, ATTUNE_F32, {2, 2, 0, 8});
  s.a.v = tensor(nullptr, ATTUNE_F32, {2, 2, 0, 6});
  EXPECT_FALSE(accepted(s.a).empty);
  s.a.mode = ATTUNE_REFERENCE;
  ASSERT_EQ(attune_forward(&s.a), ATTUNE_OK) << attune_last_error();
  for (size_t i = 0; i < 2 * 4 * 5 * 6; ++i) ASSERT_EQ(s.m.out[i], 0);
  for (size_t i = 0; i < 2 * 4 * 5; ++i) ASSERT_EQ(s.m.lse[i], -kInf);
}

TEST(Validate, StridesOfSingleElementsAreIgnored) {
  Sample s;
  s.a.q = tensor(s.m.q.data(), {1, 1, 1, 1}, {-5, 0, int64_t{1} << 62, 9});
  s.a.k = s.a.v = s.a.q;  // inputs may be the same memory
  s.a.out = s.a.q;
  s.a.out.data = s.m.out.data();
  s.a.lse = tensor(s.m.lse.data(), {1, 1, 1}, {0, 0, 0});
  const Call call = accepted(s.a);
  EXPECT_EQ(call.params.q.stride_s, 0);
}

TEST(Validate, PackedTensorsInterleaveWithoutSharing) {
  Sample s;
  // q, k and v side by side in one row of 24 numbers, as are their gradients.
  auto slice = [](std::vector<float>& packed, int n) {
    return tensor(packed.data() + 8 * n, {1, 2, 5, 8}, {0, 120, 24, 1});
  };
  std::vector<float> qkv = testing::numbers(240, 9), grads(240, testing::kUntouched);
  s.a.q = slice(qkv, 0);
  s.a.k = slice(qkv, 1);
  s.a.v = slice(qkv, 2);
  s.a.out = s.b.dout = tensor(s.m.out.data(), {1, 2, 5, 8});
  s.b.dout.data = s.m.dout.data();
  s.a.lse = {};
  s.b.dq = slice(grads, 0);
  s.b.dk = slice(grads, 1);
  s.b.dv = slice(grads, 2);
  ASSERT_EQ(attune_backward(&s.b), ATTUNE_OK) << attune_last_error();
  EXPECT_EQ(std::count(grads.begin(), grads.end(), testing::kUntouched), 0);
}

TEST(Validate, BackwardNeedsNoForwardResults) {
  Sample s;
  s.a.out = s.a.lse = {};
  s.a.mask = tensor(s.m.mask.data(), {5, 1});
  s.b.dmask = tensor(s.m.dmask.data(), {5, 1});
  s.b.dq = s.b.dk = s.b.dv = {};
  Call call;
  const Status status = make_backward_call(&s.b, Pointers::required, &call);
  ASSERT_TRUE(status.ok()) << status.message;
  const GradParams& grads = call.grads;
  EXPECT_EQ(call.problem.pass, Pass::backward);
  EXPECT_EQ(grads.dq.data, nullptr);
  EXPECT_EQ(grads.dmask_shape[1], 1);
  EXPECT_EQ(grads.dmask_shape[2], 5);
  EXPECT_EQ(grads.dmask_shape[3], 1);
  EXPECT_EQ(grads.dmask.stride[2], 1);
  EXPECT_EQ(grads.dmask.stride[3], 0);
}

TEST(Validate, GradientsOfNoQueriesAreZero) {
  Sample s;
  s.a.q.shape[2] = s.a.out.shape[2] = s.a.lse.shape[2] = s.b.dout.shape[2] = s.b.dq.shape[2] = 0;
  ASSERT_EQ(attune_backward(&s.b), ATTUNE_OK) << attune_last_error();
  for (size_t i = 0; i < 2 * 2 * 7 * 8; ++i) ASSERT_EQ(s.m.dk[i], 0);
  for (size_t i = 0; i < 2 * 2 * 7 * 6; ++i) ASSERT_EQ(s.m.dv[i], 0);
}

// Scratch is taken for what is asked for: K and V may be views that repeat one row two thousand
// million times, which no memory could hold sums of.
TEST(Validate, GradientsOfNothingTakeNoMemory) {
  Sample s;
  const int64_t keys = (int64_t{1} << 31) - 1;
  s.a.q.shape[2] = s.a.out.shape[2] = s.a.lse.shape[2] = s.b.dout.shape[2] = s.b.dq.shape[2] = 0;
  for (attune_tensor* t : {&s.a.k, &s.a.v}) {
    t->shape[2] = keys;
    t->stride[2] = 0;
  }
  s.b.dk = s.b.dv = {};
  EXPECT_EQ(attune_backward(&s.b), ATTUNE_OK) << attune_last_error();
  s.add_sinks();
  s.b.dsinks = tensor(s.m.dsinks.data(), {4});
  EXPECT_EQ(attune_backward(&s.b), ATTUNE_OK) << attune_last_error();
  EXPECT_EQ(s.m.dsinks[3], 0);
  EXPECT_EQ(s.m.dsinks[4], testing::kUntouched);
}

// A view that repeats one offset has no token, however many sequences it says it has.
TEST(Validate, OneOffsetThatRepeatsIsNotWalked) {
  Sample s;
  s.make_ragged();
  for (attune_tensor* t : {&s.a.q, &s.a.k, &s.a.v, &s.a.out, &s.b.dout, &s.b.dq, &s.b.dk, &s.b.dv})
    *t = tensor(t->data, ATTUNE_F32, {0, 2, 8});
  s.a.lse = tensor(s.a.lse.data, ATTUNE_F32, {2, 0});
  for (attune_tensor* t : {&s.a.cu_seqlens_q, &s.a.cu_seqlens_k}) {
    t->shape[0] = int64_t{1} << 50;
    t->stride[0] = 0;
  }
  EXPECT_EQ(attune_forward(&s.a), ATTUNE_OK) << attune_last_error();
  EXPECT_EQ(attune_backward(&s.b), ATTUNE_OK) << attune_last_error();
  EXPECT_FALSE(s.written());
  s.m.cu_q[0] = 1;
  EXPECT_EQ(attune_forward(&s.a), ATTUNE_INVALID_ARGUMENT);
  s.m.cu_q[0] = 0;
  s.a.q.shape[0] = s.a.out.shape[0] = s.a.lse.shape[1] = 3;
  EXPECT_EQ(attune_forward(&s.a), ATTUNE_INVALID_ARGUMENT);
  EXPECT_TRUE(std::strstr(attune_last_error(), "cu_seqlens_q ends at 0") != nullptr)
      << attune_last_error();
}

TEST(Validate, ExplainTakesShapesAlone) {
  Sample s;
  s.make_ragged();
  s.add_sinks();
  s.a.mask = tensor(nullptr, ATTUNE_BOOL, {2, 1, 3, 5});
  s.a.causal = 1;
  for (attune_tensor* t : {&s.a.q, &s.a.k, &s.a.v, &s.a.out, &s.a.lse, &s.a.sinks,
                           &s.a.cu_seqlens_q, &s.a.cu_seqlens_k})
    t->data = nullptr;
  const Call call = accepted(s.a, Pointers::optional);
  EXPECT_EQ(call.problem.seq_q, 5);  // all that is known: no sequence is longer
  EXPECT_EQ(call.problem.seq_k, 7);
  EXPECT_TRUE(call.problem.lse);
  EXPECT_EQ(call.problem.mask, MaskKind::boolean);
}

TEST(Validate, ExplainTakesKeyLengthsWithoutMemory) {
  Sample s;
  s.add_key_lengths(3, 7);
  s.a.key_lengths.data = nullptr;
  s.a.causal = 1;
  EXPECT_TRUE(accepted(s.a, Pointers::optional).problem.key_lengths);
}

// A view of random layout onto memory of its own: dimensions in any order, gaps between rows, some
// of them backwards, and nonsense strides where a size is 1.
class RandomView {
 public:
  RandomView(std::mt19937& random, std::vector<int64_t> shape, bool last_stride_one) {
    std::vector<int> order;
    for (int axis = 0; axis < int(shape.size()) - last_stride_one; ++axis) order.push_back(axis);
    std::shuffle(order.begin(), order.end(), random);
    if (last_stride_one) order.insert(order.begin(), int(shape.size()) - 1);
    view = {nullptr, ATTUNE_F32, int32_t(shape.size()), {}, {}};
    int64_t span = 1, first = 0;
    for (int axis : order) {
      const bool innermost = last_stride_one && axis == int(shape.size()) - 1;
      const int64_t size = shape[size_t(axis)];
      int64_t stride = innermost ? 1 : span + int64_t(random() % 3);
      if (size > 0) span = stride * (size - 1) + span;
      if (!innermost && random() % 4 == 0) {
        first += stride * std::max<int64_t>(size - 1, 0);
        stride = -stride;
      }
      view.shape[axis] = size;
      view.stride[axis] = size == 1 ? int64_t(random()) - int64_t(random()) : stride;
    }
    memory = testing::numbers(size_t(span), uint32_t(random()));
    view.data = memory.data() + first;
  }

  // A contiguous copy of the elements.
  std::vector<float> elements() const {
    std::vector<float> all;
    walk(0, static_cast<const float*>(view.data), &all);
    return all;
  }

  std::vector<float> memory;
  attune_tensor view;

 private:
  void walk(int axis, const float* at, std::vector<float>* all) const {
    if (axis == view.rank) return all->push_back(*at);
    for (int64_t i = 0; i < view.shape[axis]; ++i)
      walk(axis + 1, i == 0 ? at : at + i * view.stride[axis], all);
  }
};

attune_tensor contiguous(std::vector<float>& elements, const attune_tensor& like) {
  attune_tensor t = like;
  t.data = elements.data();
  int64_t step = 1;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    t.stride[axis] = step;
    step *= t.shape[axis];
  }
  return t;
}

// Whatever the layout, the call is accepted and gives the bits of the contiguous one.
TEST(Validate, RandomLayoutsAreAcceptedAndMeanTheSame) {
  std::mt19937 random(2024);
  auto pick = [&](int64_t least, int64_t most) {
    return least + int64_t(random() % uint64_t(most - least + 1));
  };
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const int64_t batch = pick(0, 3), kv = pick(1, 2), heads = kv * pick(0, 2);
    const int64_t sq = pick(0, 4), sk = pick(0, 4), dim = pick(1, 5), dim_v = pick(1, 5);
    RandomView q(random, {batch, heads, sq, dim}, true), k(random, {batch, kv, sk, dim}, true);
    RandomView v(random, {batch, kv, sk, dim_v}, true),
        out(random, {batch, heads, sq, dim_v}, true);
    RandomView lse(random, {batch, heads, sq}, false), sinks(random, {heads}, false);
    RandomView mask(
        random,
        {pick(0, 1) ? batch : 1, pick(0, 1) ? heads : 1, pick(0, 1) ? sq : 1, pick(0, 1) ? sk : 1},
        false);
    Args a;
    a.mode = ATTUNE_REFERENCE;
    a.threads = int32_t(pick(1, 2));
    a.causal = int32_t(pick(0, 1));
    a.alignment = int32_t(pick(1, 2));
    a.window_left = pick(-1, 5);
    a.q = q.view;
    a.k = k.view;
    a.v = v.view;
    a.out = out.view;
    a.lse = lse.view;
    if (pick(0, 1)) a.mask = mask.view;
    if (pick(0, 1)) a.sinks = sinks.view;
    ASSERT_EQ(attune_forward(&a), ATTUNE_OK) << attune_last_error();

    std::vector<float> q2 = q.elements(), k2 = k.elements(), v2 = v.elements(),
                       mask2 = mask.elements(), sinks2 = sinks.elements();
    std::vector<float> out2(out.elements().size()), lse2(lse.elements().size());
    a.q = contiguous(q2, a.q);
    a.k = contiguous(k2, a.k);
    a.v = contiguous(v2, a.v);
    a.out = contiguous(out2, a.out);
    a.lse = contiguous(lse2, a.lse);
    if (a.mask.rank != 0) a.mask = contiguous(mask2, a.mask);
    if (a.sinks.rank != 0) a.sinks = contiguous(sinks2, a.sinks);
    ASSERT_EQ(attune_forward(&a), ATTUNE_OK) << attune_last_error();
    EXPECT_EQ(out.elements(), out2);
    EXPECT_EQ(lse.elements(), lse2);
  }
}

}  // namespace
}  // namespace attune
