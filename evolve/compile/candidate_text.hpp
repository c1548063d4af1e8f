// The contract's header, candidate.h, as text: for machines that have the tool and not its sources.
#pragma once

#include "src/jit/source.hpp"

namespace attune::evolve {

extern const jit::Header kCandidateSources[];  // made by the build

inline const char* candidate_header() { return kCandidateSources[0].text; }

}  // namespace attune::evolve
