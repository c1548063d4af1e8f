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
  // Of a program that the user's own evaluator takes, in whatever language: its file's extension.
  // Empty: C++ or CUDA, which our judge compiles.
  std::string suffix = {};
  std::string text = {};           // ends with a line break
  std::vector<Other> others = {};  // programs whose blocks may replace those of the same name
  std::vector<FlagChoice> flags = {};

  std::string extension() const {
    return !suffix.empty() ? suffix : language == Language::cuda ? ".cu" : ".cpp";
  }
  bool has_pragmas() const;  // a language of the C family: loops may get some
};

// New texts of blocks, which a run learns while it goes on. A gene shows them as `label`.
struct NewTexts {
  struct Text {
    std::string block, text;
  };
  std::string label;  // "m3"
  std::vector<Text> texts;
};

// A space that learns texts. It only grows: genes get more values behind those that they have, and
// new genes stand behind the old ones, so that genomes, ids and cells of before stay what they are.
class GrowingSpace : public Space {
 public:
  // What the text of a whole program is here: a genome of the space once it has learned `news`,
  // which is empty where every text is known. What the text does not say (flags, macros) is the
  // parent's. Not ok, with the reason: what lies outside the markers differs, a tunable is declared
  // with other values.
  virtual Status read_text(const std::string& text, const Genome& parent, const std::string& label,
                           NewTexts* news, Genome* genome) const = 0;
  virtual Status learn(const NewTexts& news) = 0;
  virtual bool has_label(const std::string& label) const = 0;
};

inline constexpr const char* kOutsideChanged = "it changes what lies outside the markers";

// Not ok, with the file and the line: a text that parse_program refuses, another program without a
// block of the same name, a tunable that two texts declare with different values, a program that
// leaves nothing to choose (unless texts will be proposed: `grows`).
Status program_space(const ProgramSource& source, std::unique_ptr<Space>* space,
                     bool grows = false);

// Whether a candidate differs from the program in what may change alone.
bool keeps_outside(const ProgramSource& source, const std::string& candidate);

}  // namespace attune::evolve
