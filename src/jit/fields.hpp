// The fields of what a kernel is specialised on, by name: for printing them and for hashing them.
#pragma once

#include "kernels/config.h"
#include "kernels/problem.h"

namespace attune::jit {

// visit(name, member) for each field in order.
template <class Visit>
constexpr void each_field(const Problem*, const Visit& visit) {
  visit("dtype", &Problem::dtype);
  visit("batch", &Problem::batch);
  visit("heads_q", &Problem::heads_q);
  visit("heads_kv", &Problem::heads_kv);
  visit("seq_q", &Problem::seq_q);
  visit("seq_k", &Problem::seq_k);
  visit("dim", &Problem::dim);
  visit("dim_v", &Problem::dim_v);
  visit("causal", &Problem::causal);
  visit("alignment", &Problem::alignment);
  visit("window_left", &Problem::window_left);
  visit("window_right", &Problem::window_right);
  visit("mask", &Problem::mask);
  visit("block_mask_q", &Problem::block_mask_q);
  visit("block_mask_k", &Problem::block_mask_k);
  visit("softcap", &Problem::softcap);
  visit("alibi", &Problem::alibi);
  visit("sinks", &Problem::sinks);
  visit("ragged", &Problem::ragged);
  visit("dropout", &Problem::dropout);
  visit("lse", &Problem::lse);
  visit("batch_invariant", &Problem::batch_invariant);
  visit("strict_fp32", &Problem::strict_fp32);
  visit("score_mod", &Problem::score_mod);
  visit("mask_mod", &Problem::mask_mod);
}

template <class Visit>
constexpr void each_field(const LadderConfig*, const Visit& visit) {
  visit("rung", &LadderConfig::rung);
  visit("block_q", &LadderConfig::block_q);
  visit("block_k", &LadderConfig::block_k);
  visit("vector", &LadderConfig::vector);
}

template <class Visit>
constexpr void each_field(const MmaConfig*, const Visit& visit) {
  visit("warps_q", &MmaConfig::warps_q);
  visit("warps_k", &MmaConfig::warps_k);
  visit("warp_rows", &MmaConfig::warp_rows);
  visit("block_k", &MmaConfig::block_k);
  visit("stages", &MmaConfig::stages);
  visit("blocks_sm", &MmaConfig::blocks_sm);
  visit("q_registers", &MmaConfig::q_registers);
  visit("vector", &MmaConfig::vector);
  visit("stage_mask", &MmaConfig::stage_mask);
  visit("pack_gqa", &MmaConfig::pack_gqa);
  visit("split_kv", &MmaConfig::split_kv);
}

template <class Visit>
constexpr void each_field(const WgmmaConfig*, const Visit& visit) {
  visit("warpgroups", &WgmmaConfig::warpgroups);
  visit("block_k", &WgmmaConfig::block_k);
  visit("stages", &WgmmaConfig::stages);
  visit("q_buffers", &WgmmaConfig::q_buffers);
  visit("overlap", &WgmmaConfig::overlap);
  visit("flat", &WgmmaConfig::flat);
  visit("turn", &WgmmaConfig::turn);
  visit("lazy", &WgmmaConfig::lazy);
  visit("tensor_sums", &WgmmaConfig::tensor_sums);
  visit("polynomial", &WgmmaConfig::polynomial);
  visit("early_exps", &WgmmaConfig::early_exps);
  visit("schedule", &WgmmaConfig::schedule);
  visit("skip", &WgmmaConfig::skip);
  visit("group_mb", &WgmmaConfig::group_mb);
  visit("producer_registers", &WgmmaConfig::producer_registers);
  visit("stage_mask", &WgmmaConfig::stage_mask);
  visit("late_mask", &WgmmaConfig::late_mask);
  visit("pack_gqa", &WgmmaConfig::pack_gqa);
  visit("first_max", &WgmmaConfig::first_max);
  visit("rounded_sums", &WgmmaConfig::rounded_sums);
  visit("copy", &WgmmaConfig::copy);
  visit("cluster", &WgmmaConfig::cluster);
}

template <class T>
constexpr int field_count() {
  int count = 0;
  each_field(static_cast<const T*>(nullptr), [&](const char*, auto) { ++count; });
  return count;
}

// A field that is missing above would make two different kernels one: a struct that grows without a
// line there does not compile.
constexpr void lists_are_complete(const Problem& p, const LadderConfig& l, const MmaConfig& m,
                                  const WgmmaConfig& w) {
  [[maybe_unused]] const auto& [p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14,
                                p15, p16, p17, p18, p19, p20, p21, p22, p23, p24] = p;
  static_assert(field_count<Problem>() == 25);
  [[maybe_unused]] const auto& [l0, l1, l2, l3] = l;
  static_assert(field_count<LadderConfig>() == 4);
  [[maybe_unused]] const auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10] = m;
  static_assert(field_count<MmaConfig>() == 11);
  [[maybe_unused]] const auto& [w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14,
                                w15, w16, w17, w18, w19, w20, w21] = w;
  static_assert(field_count<WgmmaConfig>() == 22);
}

}  // namespace attune::jit
