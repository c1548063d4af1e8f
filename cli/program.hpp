// A program that the user brings: its file, its contract, and the run that it asks for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/evolve_options.hpp"
#include "evolve/compile/contract.hpp"

namespace attune::cli {

struct Program {
  std::string file, text;
  evolve::Language language = evolve::Language::cpp;
  evolve::Contract contract = evolve::Contract::none;

  bool cuda() const { return language == evolve::Language::cuda; }
};

// The shapes of attention on a GPU that programs are timed at, unless others are named.
extern const std::vector<std::string> kCudaShapes;

// `pass`: "forward", "backward", or empty: the forward pass where the program has it.
Program read_program(const std::string& path, const std::string& pass = "");

// Completes what was asked for: the device, the dtype and the number of threads that the program's
// contract has, and these shapes where none is named. Refuses what the contract has no word for.
void settle_for(const Program& program, const std::vector<std::string>& shapes, EvolveOptions* o);

// A message of the compiler, which knows the program by another name.
std::string own_words(const Program& program, std::string why);

// A folder that goes with it.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace attune::cli
