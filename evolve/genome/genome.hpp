// What evolves: a genome is a family of kernels and a value for each of its genes, nothing else. A
// Space knows the families of one device for the problems at hand, and turns genomes into configs;
// or it is the space of one program, and turns them into its text (program_space.hpp).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/arch.h"
#include "src/cpu/config.hpp"
#include "src/rungs/config.hpp"

namespace attune::evolve {

const char* level_name(Level level);

struct Gene {
  std::string name;     // the config's field: "block_k"
  std::string group;    // genes that one mutation operator changes: "block", "tile", "exp", ...
  std::string meaning;  // for people: `attune evolve --list-genes`
  Level level = Level::hardware;
  bool sketch = false;      // belongs to the sketch: crossover keeps to parents that agree in it
  std::vector<int> values;  // what it may be; in order, where neighbours are similar
  bool ordered = true;
  std::vector<std::string> labels = {};  // of the values, in their order; none: numbers speak
  bool rare =
      false;  // one of many of its kind: a random genome mostly leaves it at its first value
  bool catalogue = false;  // each of its values is tried alone before they are mixed

  std::string label(int value) const;
};

// A rung of the ladder.
struct Family {
  std::string name;     // "naive", "fused", "mma"
  std::string meaning;  // one line
  std::vector<Gene> genes;
};

struct Genome {
  int family = 0;          // index into Space::families()
  std::vector<int> genes;  // a value for each gene of the family

  auto operator<=>(const Genome&) const = default;
};

// Where a kernel stands in the archive: few steps along each of its hardware axes.
constexpr int kAxes = 3;
struct Cell {
  std::array<int, kAxes> at{};
  auto operator<=>(const Cell&) const = default;
};

struct Axis {
  std::string name;                // "working set"
  std::vector<std::string> steps;  // "fits L1", "fits L2", ...
};

class Space {
 public:
  virtual ~Space() = default;

  virtual const std::vector<Family>& families() const = 0;  // slowest first: the ladder
  virtual const std::vector<Axis>& axes() const = 0;        // kAxes of them

  // Empty when every problem can run it here; else the reason, the config's own invalid_reason.
  virtual std::string invalid_reason(const Genome& genome) const = 0;

  // Two genomes that make the same kernel have one canonical form: a gene that has no effect on
  // these problems has the library default's value, or else the first that makes this kernel.
  // Values that are not in a gene's list go to the nearest.
  virtual Genome canonical(Genome genome) const = 0;

  virtual Cell cell(const Genome& genome) const = 0;

  // "fused.mr6.nv4.exp5...": the config's printed form behind the family's name, and back.
  virtual std::string print(const Genome& genome) const = 0;
  virtual std::optional<Genome> parse(std::string_view text) const = 0;

  // What calls of the first problem run, and of each of them; and the bottom of the ladder. Where a
  // choice cannot run all problems, the nearest genome that can stands for it.
  virtual Genome library_default() const = 0;
  virtual std::vector<Genome> library_choices() const { return {library_default()}; }
  virtual Genome start() const {
    return canonical({0, std::vector<int>(families()[0].genes.size(), 0)});
  }

  // The text of a program; empty where genomes are configs.
  virtual std::string program(const Genome& genome) const {
    (void)genome;
    return "";
  }

  // How often it grew (program_space.hpp), and a genome of before with the genes that came since:
  // it makes the same program, and prints the same.
  virtual int64_t growth() const { return 0; }
  virtual Genome grown(Genome genome) const { return genome; }

  int family_named(std::string_view name) const;  // -1: none
};

// Changes at most two genes, as few and as little as will do, until the genome is valid; the seed
// settles ties. Genes marked in `keep` stay. False, and nothing changed, when it could not.
bool repair(const Space& space, Genome* genome, uint64_t seed, const std::vector<bool>& keep = {});

// What calls run, as genomes. A tuned row may have values that no gene lists: they join the list,
// so that the choice is a genome like all others. `otherwise` stands for what cannot be read.
std::vector<Genome> choices_of(const Space& space, const std::vector<std::string>& library,
                               const Genome& otherwise, std::vector<Family>* families);

// The place of a value in its gene's list, or of the nearest one.
int nearest_index(const Gene& gene, int value);

// ---- CPU ----

// A CPU candidate: the naive loops, or the fused kernel. A register tile beyond the prebuilt ones
// is compiled by the host's compiler.
struct CpuVariant {
  bool fused = false;
  cpu::CpuConfig config;
  std::string isa;  // Highway's name of it; the best by default

  bool operator==(const CpuVariant&) const = default;
};
std::string to_string(const CpuVariant& variant);  // "naive", "fused.AVX3.mr6.nv4..."
std::optional<CpuVariant> parse_cpu_variant(std::string_view text);

struct CpuMachine {
  std::vector<std::string> isas;  // best first
  std::map<std::string, cpu::CpuArch> archs;
  int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20;
  int threads = 1;
  bool compiles = false;  // register tiles that are not built in
  std::string why_not;    // it does not
};
CpuMachine this_cpu(int threads);

// What a call of each problem would run now on this machine, as the space prints it: tuned rows
// count, the user's and those that ship.
std::vector<std::string> cpu_library(const std::vector<Problem>& problems, int threads);

// `library`: what cpu_library() said when the run began; without it, the compiled-in default.
std::unique_ptr<Space> cpu_space(std::vector<Problem> problems, CpuMachine machine,
                                 const std::vector<std::string>& library = {});
CpuVariant cpu_variant(const Space& space, const Genome& genome);

// ---- CUDA ----

// The same on the GPU of this name.
std::vector<std::string> cuda_library(const std::vector<Problem>& problems, const Arch& arch,
                                      const std::string& device);
// Of these rungs alone; of all that can run, if none is named.
std::unique_ptr<Space> cuda_space(std::vector<Problem> problems, Arch arch,
                                  std::vector<std::string> rungs = {},
                                  const std::vector<std::string>& library = {});

}  // namespace attune::evolve
