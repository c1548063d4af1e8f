// The pictures of a report: SVG and coloured tables, each with words for those who do not see them.
#pragma once

#include <string>

#include "evolve/report/report_view.hpp"

namespace attune::evolve {

// Every candidate's speed relative to the start, log scale; the best so far as a line, the winner
// marked, and the library's own choice as a dashed line.
std::string progress_chart(const RunView& view);
std::string family_key(const RunView& view);

// Tables of the archive's cells, one for each step of the first axis.
std::string archive_map(const RunView& view);

}  // namespace attune::evolve
