// How a problem is computed on a CUDA device: which rung, with which config, and its launches.
#pragma once

#include <string>
#include <vector>

#include "kernels/params.h"
#include "src/jit/spec.hpp"
#include "src/select/select.hpp"
#include "src/status.hpp"

namespace attune {

struct TunedTable;  // src/select/tuned.hpp

// What pointers and strides allow. NULL pointers (explain) count as aligned; their strides count.
struct Layout {
  bool rows16 =
      true;  // every row of q, k, v and out starts at a multiple of 16 bytes, D and Dv too
  bool mask16 = true;  // every row of the mask does, and its keys are neighbours
  bool forward =
      true;       // no dimension of these tensors runs backwards; of q, k, v, out none repeats
  int step = 16;  // bytes, 2 to 16: every row of q, k, v and out starts at a multiple, D and Dv too

  bool operator==(const Layout&) const = default;

  bool tma() const { return rows16 && forward; }  // can reach these tensors
};
Layout layout_of(const Problem& problem, const Params& params);

struct CudaRequest {
  Problem problem;
  attune_mode mode = ATTUNE_AUTO;
  Arch arch;
  Layout layout;
  size_t workspace_bytes = 0;         // what the caller gave
  std::string score_mod, mask_mod;    // the caller's code; empty: none
  std::string device = "";            // the GPU's name, as tuned rows have it
  const TunedTable* tuned = nullptr;  // rows that go before the defaults; nullptr: none
};

struct CudaChoice {
  attune_mode mode = ATTUNE_AUTO;
  jit::Plan plan;
  std::vector<Candidate> candidates;  // fastest first; the chosen one has no reason
};

// A pure function of the request: it is tested without a GPU. Never falls back silently.
Status select_cuda(const CudaRequest& request, CudaChoice* choice);

// The launches of one config; precondition: invalid_reason is empty. A plan may need a workspace.
jit::Plan plan_of(const CudaRequest& request, const jit::Config& config);
jit::Plan ladder_plan(const CudaRequest& request, const LadderConfig& config);
jit::Plan mma_plan(const CudaRequest& request, const MmaConfig& config);  // src/select/mma_plan.cpp
jit::Plan wgmma_plan(const CudaRequest& request,
                     const WgmmaConfig& config);  // src/select/wgmma_plan.cpp
int64_t wgmma_tiles(const Problem& problem, const WgmmaConfig& config);
bool packs_heads(const Problem& problem);  // whether its config is one of packed heads
int64_t wgmma_blocks(const Problem& problem, const WgmmaConfig& config);  // of its largest launch
BlockDivisors block_divisors(const Problem& problem, int block_q, bool packed, int splits,
                             int64_t group_bytes);
int64_t mma_blocks(const CudaRequest& request, const MmaConfig& config);  // of its largest launch

// The config that the library would use without a tuned table.
LadderConfig default_ladder_config(const CudaRequest& request, Rung rung);
MmaConfig default_mma_config(const CudaRequest& request);      // src/select/mma_plan.cpp
WgmmaConfig default_wgmma_config(const CudaRequest& request);  // src/select/wgmma_plan.cpp

// "fused.bq64.bk64.v1", "mma.wq4.wk1.wr32.bk64.st2.bs2.qr0.v1.sm0.pg0", and back.
std::string to_string(const jit::Config& config);
bool parse_cuda_config(const std::string& text, jit::Config* config);

std::string cuda_problem_id(const Problem& problem, const Arch& arch);  // "sm90.attn_fwd.bf16.d64"

// Every kernel that ships for an arch: what the compile-all test and `attune cache warm` go
// through.
std::vector<jit::Plan> shipped_plans(const Arch& arch, bool quick);

}  // namespace attune
