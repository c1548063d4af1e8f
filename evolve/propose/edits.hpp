// What an answer asks for: edits of a program, or blocks of it written anew.
//
//   <<<<<<< SEARCH          ```cpp
//   lines of the program    // EVOLVE-BLOCK-START name
//   =======                 ...
//   other lines             // EVOLVE-BLOCK-END
//   >>>>>>> REPLACE         ```
//
// Edits are made one after the other. Each must match exactly once. The code between fences has
// whole blocks with their markers, or the whole program.
#pragma once

#include <string>
#include <vector>

namespace attune::evolve {

struct Edit {
  std::string search, replace;  // whole lines
};

struct AppliedAnswer {
  std::string text;  // of the whole program
  std::string form;  // "edits", "blocks", "program"
  std::string why;   // not empty: nothing was applied
  int edits = 0;

  bool ok() const { return why.empty(); }
};

// The edits of an answer, in order. `why`: one of them has no end, or nothing to search for.
std::vector<Edit> edits_in(const std::string& answer, std::string* why);

// The code between fences, in order.
std::vector<std::string> fenced_in(const std::string& answer);

// The program that the answer makes of `parent`. Whether only blocks changed is not looked at.
AppliedAnswer apply_answer(const std::string& answer, const std::string& parent);

// The same for a file that is a whole program, unless there are edits in it.
AppliedAnswer apply_file(const std::string& file, const std::string& parent);

}  // namespace attune::evolve
