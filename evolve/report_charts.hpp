// The pictures of a report: SVG and coloured tables, each with words for those who do not see them.
#pragma once

#include <string>

#include "evolve/report_view.hpp"

namespace attune::evolve {

enum class Over { evaluations, time };

// Every candidate's speed relative to the start, log scale; the best so far as a line.
std::string progress_chart(const RunView& view, Over over);
std::string family_key(const RunView& view);

// Tables of the archive's cells, one for each step of the first axis.
std::string archive_map(const RunView& view);

}  // namespace attune::evolve
