#include <attune/attune.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "tests/api/abi_c.h"

// The sizes and offsets that callers of ABI version 1 were compiled with: a change here breaks
// them, a new field at a struct's end does not.
static_assert(ATTUNE_ABI_VERSION == 1, "offsets of another ABI version");
static_assert(sizeof(attune_tensor) == 80, "attune_tensor cannot grow");
static_assert(offsetof(attune_args, device) == 8, "device");
static_assert(offsetof(attune_args, q) == 16, "q");
static_assert(offsetof(attune_args, lse) == 16 + 4 * 80, "lse");
static_assert(offsetof(attune_args, scale) == 16 + 5 * 80, "scale");
static_assert(offsetof(attune_args, window_left) == 432, "window_left");
static_assert(offsetof(attune_args, mask) == 448, "mask");
static_assert(offsetof(attune_args, block_mask_q) == 608, "block_mask_q");
static_assert(offsetof(attune_args, sinks) == 704, "sinks");
static_assert(offsetof(attune_args, cu_seqlens_k) == 864, "cu_seqlens_k");
static_assert(offsetof(attune_args, dropout_p) == 944, "dropout_p");
static_assert(offsetof(attune_args, threads) == 972, "threads");
static_assert(offsetof(attune_args, parallel_user) == 984, "parallel_user");
static_assert(offsetof(attune_args, stream) == 992, "stream");
static_assert(offsetof(attune_args, workspace_bytes) == 1008, "workspace_bytes");
static_assert(offsetof(attune_args, max_seq_k) == 1024, "max_seq_k");
static_assert(offsetof(attune_args, strict_fp32) == 1032, "strict_fp32");
static_assert(offsetof(attune_args, score_mod) == 1040, "score_mod");
static_assert(offsetof(attune_args, user_data) == 1056, "user_data");
static_assert(offsetof(attune_args, scale_f64) == 1064, "scale_f64");
static_assert(offsetof(attune_args, key_lengths) == 1080, "key_lengths");
static_assert(sizeof(attune_args) >= 1160, "attune_args only grows");
static_assert(offsetof(attune_backward_args, dout) == 16, "dout");
static_assert(offsetof(attune_backward_args, dsinks) == 16 + 5 * 80, "dsinks");
static_assert(offsetof(attune_backward_args, dlse) == 16 + 6 * 80, "dlse");
static_assert(sizeof(attune_backward_args) >= 496, "attune_backward_args only grows");

TEST(Abi, WorksFromC) {
  char message[512] = "";
  EXPECT_EQ(attune_test_from_c(message, sizeof(message)), 0) << message;
}
