// The space of one program: its tunables, the texts of its blocks, loops, kernels and compiler
// flags.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "evolve/compile/flags.hpp"
#include "evolve/genome/genome.hpp"
#include "src/status.hpp"

namespace attune::evolve {

// What a run begins with. It is recorded, so that the run goes on and is replayed on any machine.
struct ProgramSource {
  struct Other {
    std::string name, text;
  };
  std::string name;  // of its file, without the extension
  Language language = Language::cpp;
  std::string text;           // ends with a line break
  std::vector<Other> others;  // programs whose blocks may replace those of the same name
  std::vector<FlagChoice> flags;

  const char* extension() const { return language == Language::cuda ? ".cu" : ".cpp"; }
};

// Not ok, with the file and the line: a text that parse_program refuses, another program without a
// block of the same name, a tunable that two texts declare with different values, a program that
// leaves nothing to choose.
Status program_space(const ProgramSource& source, std::unique_ptr<Space>* space);

// Whether a candidate differs from the program in what may change alone.
bool keeps_outside(const ProgramSource& source, const std::string& candidate);

}  // namespace attune::evolve
