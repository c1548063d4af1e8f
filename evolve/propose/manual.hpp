// Proposals by a person or an agent, through files of a folder.
//
//   TASK.md            what is asked for, renewed when the best changes
//   parent-<n>.cpp     the program that it speaks of; edits are of the newest that they fit
//   answer-*           theirs: a whole program, or SEARCH/REPLACE edits; moved here when complete
//   answer-*.result.json  what came of it; the answer itself goes to taken/
//   status.json        whether the run goes on, and its best
#pragma once

#include <memory>
#include <string>

#include "evolve/propose/proposer.hpp"

namespace attune::evolve {

std::shared_ptr<Proposer> manual_proposer(std::string folder);

}  // namespace attune::evolve
