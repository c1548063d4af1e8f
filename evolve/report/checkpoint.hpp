// checkpoints/checkpoint_N/: a run so far in the layout that OpenEvolve writes and its visualiser
// reads. Nothing of it is read back: the run goes on from its database.
#pragma once

#include <string>
#include <vector>

#include "evolve/genome/genome.hpp"
#include "evolve/propose/search.hpp"
#include "evolve/store/store.hpp"

namespace attune::evolve {

struct CheckpointView {
  const RunMeta& meta;
  const std::vector<Record>& records;  // not empty
  const Space& space;
  std::vector<Elite> elites;
  std::string best;  // id
};

// The folder appears whole or not at all, and replaces one of the same number.
Status write_checkpoint(const CheckpointView& view, const std::string& run);

// What processes that are gone had begun.
void remove_unfinished_checkpoints(const std::string& run);

// ---- what best_program_info.json shares with it ----

// A name for files, of a candidate's id.
std::string program_name(const std::string& id);
std::string language_of(const RunMeta& meta);
int64_t generation_of(const std::vector<Record>& records, int64_t n);
double time_of(const RunMeta& meta, double at);  // seconds since 1970
// Those that the evaluator claimed, or ours; always with a combined_score, of which more is better.
Json metrics_of(const RunMeta& meta, const Record& record);

}  // namespace attune::evolve
