// How a problem is computed on a CUDA device: which rung, with which config, and its launches.
#pragma once

#include <string>
#include <vector>

#include "src/rungs/rung.hpp"
#include "src/select/select.hpp"
#include "src/status.hpp"

namespace attune {

struct TunedTable;  // src/select/tuned.hpp

struct CudaRequest : Request {
  attune_mode mode = ATTUNE_AUTO;
  std::string device = "";            // the GPU's name, as tuned rows have it
  const TunedTable* tuned = nullptr;  // rows that go before the defaults; nullptr: none
};

struct CudaChoice {
  attune_mode mode = ATTUNE_AUTO;
  Plan plan;
  std::vector<Candidate> candidates;  // fastest first; the chosen one has no reason
};

// A pure function of the request: it is tested without a GPU. Never falls back silently.
Status select_cuda(const CudaRequest& request, CudaChoice* choice);

}  // namespace attune
