// A call of the arena as the process of a candidate sees it, and in the words of candidate.h.
#pragma once

#include "evolve/compile/candidate.h"
#include "evolve/worker/arena.hpp"

namespace attune::evolve {

// The arena in this process.
struct Memory {
  std::byte* base = nullptr;
  int64_t size = 0;

  // A call with addresses in memory of the same size that begins at `target`. False when there is
  // none at this offset, or when it points out of the arena.
  bool get(int64_t offset, std::byte* target, ArenaCall* call) const;
  bool holds(const Range& range) const {
    return range.at >= 0 && range.bytes >= 0 && range.at <= size && range.bytes <= size - range.at;
  }
};

// From the descriptors that a child is given. `read` may be no shared memory: there is one part
// then. False: cannot be mapped.
bool map_arena(int read, int written, Memory* memory);

// No page here can be read or written any more. False when one of them is not in the arena.
bool guard_pages(const Memory& memory, std::span<const int64_t> pages);

// What the contract of programs has no word for; nullptr: it has one for all of the problem.
const char* beyond_contract(const Problem& problem);
attune_candidate_call program_call(const ArenaCall& from);
attune_candidate_backward_call program_backward_call(const ArenaCall& from);

}  // namespace attune::evolve
