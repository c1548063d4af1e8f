// A program with marked places that may change. Everything else stays as it is, byte by byte.
//
//   // EVOLVE-BLOCK-START name           in any comment style; the name is optional
//   ...                                  the lines between the markers may be replaced
//   // EVOLVE-BLOCK-END
//   #define TILE 64  // EVOLVE-PARAM TILE {16,32,64} algorithm: rows of a tile
//
// The line of a tunable sets it: `TILE 64`, `TILE = 64` or `TILE{64}` before the comment. Where the
// line is the comment alone, the tunable is a macro that the compiler is given (-DTILE=16), or,
// where its values are flags, one of these:
//   // EVOLVE-PARAM REGISTERS {none,-maxrregcount=64,-maxrregcount=128}
// The
// level (algorithm, implementation, hardware) and the meaning are optional.
#pragma once

#include <string>
#include <vector>

#include "evolve/genome/genome.hpp"
#include "src/status.hpp"

namespace attune::evolve {

struct Tunable {
  std::string name, meaning;
  std::vector<std::string> values;
  int own = 0;         // the value in the file; of a macro the first
  bool macro = false;  // its line does not set it
  bool flags = false;  // so too, and its values are flags of the compiler, or none
  Level level = Level::implementation;
  int line = 0;  // from 1
};

struct Block {
  std::string name;
  std::string text;  // whole lines
  int line = 0;      // of the start marker
};

struct ProgramText {
  std::vector<std::string> outside;  // what stands before, between and behind the blocks' text
  std::vector<Block> blocks;
  std::vector<Tunable> tunables;  // of the whole text
};

// Not ok, with the line: a marker without its partner, blocks in blocks, a tunable without values
// or without its value on its line, two of one name, nothing that may change.
Status parse_program(const std::string& text, ProgramText* program);

// The tunables that a block's text declares.
std::vector<Tunable> tunables_in(const std::string& block);

// The text with these blocks, in the order of the program's.
std::string with_blocks(const ProgramText& program, const std::vector<std::string>& blocks);
// The text with the tunable set to a value. Unchanged where no line sets it.
std::string with_value(const std::string& text, const std::string& name, const std::string& value);
// The text of a block with a pragma in front of loop n (from 0); unchanged where it has fewer.
std::string with_pragma(const std::string& block, int loop, const std::string& pragma);
int loops_of(const std::string& block);
// The same for kernel n of CUDA with these launch bounds; kernels that have some are not counted.
std::string with_launch_bounds(const std::string& block, int kernel, const std::string& bounds);
int kernels_of(const std::string& block);

// The text of a block without the pragmas that with_pragma put there, where one of these stands
// right before a loop; `found` has the place of each in `pragmas`, -1 for loops without one. And
// the same for the launch bounds of kernels.
std::string without_pragmas(const std::string& block, const std::vector<std::string>& pragmas,
                            std::vector<int>* found);
std::string without_launch_bounds(const std::string& block, const std::vector<std::string>& bounds,
                                  std::vector<int>* found);

// The hash of everything that may not change: markers included, blocks and tunables' values not.
std::string outside_hash(const std::string& text);

}  // namespace attune::evolve
