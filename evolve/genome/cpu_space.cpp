// The genomes of the CPU: the naive loops, and the fused kernel's config with its instruction set.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "evolve/genome/genome.hpp"
#include "src/cpu/fused.hpp"
#include "src/select/select.hpp"

namespace attune::evolve {
namespace {

// ---- which tiles ----

// The one place that says which register tiles a candidate may have: those built into the library,
// and with a compiler whatever some instruction set has the registers for.
std::vector<cpu::Tile> available_tiles(const CpuMachine& machine) {
  if (!machine.compiles) return {std::begin(cpu::kTiles), std::end(cpu::kTiles)};
  int registers = 0;
  for (const std::string& isa : machine.isas)
    registers = std::max(registers, machine.archs.at(isa).registers);
  std::vector<cpu::Tile> tiles;
  for (int mr = 1; mr <= cpu::kLargestTile.mr; ++mr)
    for (int nv = 1; nv <= cpu::kLargestTile.nv; ++nv)
      if (cpu::registers_of({mr, nv}) <= registers) tiles.push_back({mr, nv});
  return tiles;
}

std::vector<int> tile_values(const CpuMachine& machine, int cpu::Tile::*side) {
  std::vector<int> values;
  for (const cpu::Tile& tile : available_tiles(machine)) values.push_back(tile.*side);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

// For people: which tiles are there at once, and what becomes of the others.
std::string tile_note(const CpuMachine& machine) {
  std::string text = "built in are";
  for (const cpu::Tile& tile : cpu::kTiles) text += fmt::format(" {}x{}", tile.mr, tile.nv);
  if (machine.compiles) return text + "; others are compiled when they are tried";
  if (machine.why_not.empty()) return text;
  return text + "; there are no others because " + machine.why_not;
}

// ---- genes ----

enum : size_t { kMr, kNv, kExp, kBlockQ, kBlockK, kSplits, kDotRows, kPackV, kRescale, kIsa };
constexpr int kNaive = 0, kFused = 1;

std::vector<Gene> fused_genes(const CpuMachine& machine) {
  std::vector<int> isas;
  std::string names;
  for (const std::string& name : machine.isas) {
    names += (isas.empty() ? "" : ", ") + name;
    isas.push_back(int(isas.size()));
  }
  const auto gene = [](std::string name, std::string group, Level level, std::vector<int> values,
                       std::string meaning) {
    return Gene{name, group, meaning, level, false, values};
  };
  const std::vector<int> degrees(std::begin(cpu::kExpDegrees), std::end(cpu::kExpDegrees));
  std::vector<Gene> genes = {
      gene("mr", "tile", Level::hardware, tile_values(machine, &cpu::Tile::mr),
           "query rows of the register tile that both products work in"),
      gene("nv", "tile", Level::hardware, tile_values(machine, &cpu::Tile::nv),
           "vectors along the other side of the register tile; mr x nv " + tile_note(machine)),
      gene("exp_degree", "exp", Level::implementation, degrees,
           "polynomial behind exp2: 4 (3e-6 relative, not for fp32), 5 (2e-7), 6 (below rounding)"),
      gene("block_q", "block", Level::hardware,
           {24, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024},
           "query rows of a task: more share each packed block of K, fewer make more tasks"),
      gene("block_k", "block", Level::hardware, {32, 48, 64, 96, 128, 160, 192, 224, 256},
           "keys of one step of the online softmax: their K and V are what the caches must hold"),
      gene("splits", "split", Level::algorithm, {0, 1, 2, 4, 8},
           "parts of the keys, merged at the end; 0: as many as keep all threads busy"),
      gene("dot_rows", "dot", Level::implementation, {0, 1, 2, 4, 8},
           "tasks of at most this many rows read K and V in place, by dot products"),
      gene("pack_v", "packing", Level::implementation, {0, 1},
           "copy each block of V into panels (1), or read fp32 values where they lie (0)"),
      gene("rescale_threshold", "rescale", Level::implementation, {0, 2, 4, 8, 16, 32},
           "rescale only when a row's maximum grew by more than this (log2); 0: always"),
      gene("isa", "isa", Level::hardware, isas, "instruction set, best first: " + names),
  };
  genes[kSplits].sketch = genes[kIsa].sketch = true;
  genes[kIsa].ordered = false;
  return genes;
}

// ---- what a config decides ----

// Everything that the fused kernel makes of a config for one problem (src/cpu/fused.cpp: RowPlan,
// cut_rows, split_count). Two configs of one tile, exp variant and instruction set that agree in it
// run the same loops over the same data. The lengths of a ragged batch are not known here; its
// genes then stand for themselves.
struct Decisions {
  int64_t heads = 0, rows = 0;  // of a task
  int64_t tasks = 0, splits = 0;
  int64_t dot = 0;      // whether K and V are read in place
  int64_t block_k = 0;  // 0: one block has all keys
  bool packs_v = false;
  float rescale = -1;  // -1: no row ever sees a second block

  bool operator==(const Decisions&) const = default;
};

Decisions decide(const Problem& p, const cpu::CpuConfig& c, const cpu::CpuArch& arch, int threads) {
  Decisions d;
  if (p.batch == 0 || p.heads_q == 0 || p.seq_q == 0) return d;
  const int64_t blocks = ceil_div(p.seq_k, c.block_k);
  d.block_k = blocks <= 1 ? 0 : c.block_k;
  d.packs_v = p.dtype != DType::f32 || p.dim_v % arch.lanes != 0 || c.pack_v;
  if (p.ragged) {
    d.heads = c.block_q;
    d.rows = p.seq_q;
    d.tasks = p.batch * p.heads_q * ceil_div(p.seq_q, c.block_q);  // about
    d.splits = c.splits == 0 ? 0 : std::min<int64_t>(c.splits, std::max<int64_t>(1, blocks));
    d.dot = c.dot_rows;
    if (blocks > 1) d.rescale = c.rescale_threshold;
    return d;
  }

  if (p.seq_q <= c.block_q / 2) {
    d.heads = std::clamp<int64_t>(c.block_q / p.seq_q, 1, p.group());
    d.rows = p.seq_q;
  } else {
    const int64_t even = ceil_div(p.seq_q, ceil_div(p.seq_q, c.block_q));
    d.heads = 1;
    d.rows = std::min<int64_t>(p.seq_q, ceil_div(even, c.mr) * c.mr);
  }
  d.tasks = p.batch * p.heads_kv * ceil_div(p.group(), d.heads) * ceil_div(p.seq_q, d.rows);
  d.dot = d.rows == p.seq_q && d.heads * d.rows <= c.dot_rows;
  if (c.splits > 0)
    d.splits = std::min<int64_t>(c.splits, std::max<int64_t>(1, blocks));
  else if (p.batch_invariant || d.tasks >= threads)
    d.splits = 1;
  else
    d.splits = std::min(std::max<int64_t>(1, blocks / 4), ceil_div(threads, d.tasks));
  if (blocks > d.splits) d.rescale = c.rescale_threshold;
  // In place, V goes through panels only where some keys of a block are not allowed.
  const bool all_keys =
      p.mask == MaskKind::none && p.block_mask_q == 0 && !p.dropout && !p.causal && !p.window();
  if (d.dot != 0 && all_keys) d.packs_v = false;
  return d;
}

// ---- the space ----

class CpuSpace final : public Space {
 public:
  CpuSpace(std::vector<Problem> problems, CpuMachine machine,
           const std::vector<std::string>& library)
      : problems_(std::move(problems)), machine_(std::move(machine)) {
    std::erase_if(machine_.isas, [&](const auto& name) { return !machine_.archs.contains(name); });
    machine_.threads = std::max(machine_.threads, 1);
    families_.push_back({"naive", "plain loops over whole rows of scores", {}});
    if (!machine_.isas.empty() && !problems_.empty()) {
      std::vector<Gene> genes = fused_genes(machine_);
      for (const Problem& p : problems_)  // no draw is spent on what is never valid
        if (p.dtype == DType::f32) std::erase(genes[kExp].values, 4);
      families_.push_back(
          {"fused", "FlashAttention tiling in vectors: nothing of size Sq x Sk", std::move(genes)});
      default_ = genome_of({true, default_cpu_config(problems_[0], arch(0), machine_.threads),
                            machine_.isas[0]})
                     .value();
      default_ = canonical(default_);
    }
    choices_ = choices_of(*this, library, default_, &families_);
    default_ = choices_[0];
    axes_ = {{"register tile",
              {"naive", "up to 12 accumulators", "up to 16 accumulators", "more accumulators"}},
             {"K/V block", {"half of L1", "L1", "an eighth of L2", "L2", "beyond L2"}},
             {"tasks a thread", {"below 1", "1 to 3", "4 to 15", "16 and more"}}};
  }

  const std::vector<Family>& families() const override { return families_; }
  const std::vector<Axis>& axes() const override { return axes_; }

  std::string invalid_reason(const Genome& genome) const override {
    if (!fits(genome)) return "the genome does not fit its family";
    if (genome.family == kNaive) return "";
    const cpu::CpuConfig config = config_of(genome);
    const auto reason = machine_.compiles ? cpu::invalid_reason_compiled : cpu::invalid_reason;
    for (const Problem& p : problems_)
      if (const char* why = reason(config, p, arch(genome.genes[kIsa])); *why != '\0') return why;
    return "";
  }

  // Only genes that never change what is valid are settled here, each by itself: what the others
  // decide is the same before and after, so their order does not matter.
  Genome canonical(Genome genome) const override {
    if (genome.family < 0 || size_t(genome.family) >= families_.size()) genome.family = kNaive;
    const std::vector<Gene>& genes = families_[size_t(genome.family)].genes;
    const size_t given = genome.genes.size();
    genome.genes.resize(genes.size());
    for (size_t g = 0; g < genes.size(); ++g) {
      const int value = g < given ? genome.genes[g] : default_.genes[g];
      genome.genes[g] = genes[g].values[size_t(nearest_index(genes[g], value))];
    }
    if (genome.family == kNaive) return genome;

    const std::vector<Decisions> decided = decisions(genome);
    for (size_t g : {kBlockQ, kBlockK, kSplits, kDotRows, kPackV, kRescale}) {
      const auto same_with = [&](int value) {
        Genome trial = genome;
        trial.genes[g] = value;
        if (decisions(trial) != decided) return false;
        genome = trial;
        return true;
      };
      if (same_with(default_.genes[g])) continue;
      for (int value : genes[g].values)
        if (same_with(value)) break;
    }
    return genome;
  }

  Cell cell(const Genome& genome) const override {
    if (genome.family == kNaive || !fits(genome)) return {};
    const cpu::CpuConfig c = config_of(genome);
    const int accumulators = c.mr * c.nv;
    int64_t bytes = 0, tasks = std::numeric_limits<int64_t>::max();
    for (const Problem& p : problems_)
      bytes = std::max(bytes, int64_t{4} * c.block_k * (p.dim + p.dim_v));
    for (const Decisions& d : decisions(genome))
      tasks = std::min(tasks, d.tasks * std::max<int64_t>(d.splits, 1) / machine_.threads);
    const int64_t sizes[] = {machine_.l1_bytes / 2, machine_.l1_bytes, machine_.l2_bytes / 8,
                             machine_.l2_bytes};
    const auto step = [](int64_t x, const auto& limits) {
      int n = 0;
      for (int64_t limit : limits) n += x > limit;
      return n;
    };
    return {{accumulators <= 12   ? 1
             : accumulators <= 16 ? 2
                                  : 3,
             step(bytes, sizes), step(tasks, std::initializer_list<int64_t>{0, 3, 15})}};
  }

  std::string print(const Genome& genome) const override {
    if (genome.family == kNaive || !fits(genome)) return "naive";
    return to_string(
        CpuVariant{true, config_of(genome), machine_.isas[size_t(genome.genes[kIsa])]});
  }

  std::optional<Genome> parse(std::string_view text) const override {
    const std::optional<CpuVariant> variant = parse_cpu_variant(text);
    return variant ? genome_of(*variant) : std::nullopt;
  }

  Genome library_default() const override { return default_; }
  std::vector<Genome> library_choices() const override { return choices_; }

 private:
  bool fits(const Genome& genome) const {
    return genome.family >= 0 && size_t(genome.family) < families_.size() &&
           genome.genes.size() == families_[size_t(genome.family)].genes.size() &&
           (genome.family == kNaive ||
            (genome.genes[kIsa] >= 0 && size_t(genome.genes[kIsa]) < machine_.isas.size()));
  }

  cpu::CpuArch arch(int isa) const { return machine_.archs.at(machine_.isas[size_t(isa)]); }

  static cpu::CpuConfig config_of(const Genome& genome) {
    const std::vector<int>& g = genome.genes;
    return {.mr = g[kMr],
            .nv = g[kNv],
            .exp_degree = g[kExp],
            .block_q = g[kBlockQ],
            .block_k = g[kBlockK],
            .splits = g[kSplits],
            .dot_rows = g[kDotRows],
            .pack_v = g[kPackV] != 0,
            .rescale_threshold = float(g[kRescale])};
  }

  // Nothing when the machine lacks the instruction set, or the threshold is no whole number.
  std::optional<Genome> genome_of(const CpuVariant& variant) const {
    if (!variant.fused) return Genome{};
    if (families_.size() <= size_t{kFused}) return std::nullopt;
    size_t isa = 0;
    while (!variant.isa.empty() && isa < machine_.isas.size() && machine_.isas[isa] != variant.isa)
      ++isa;
    if (isa == machine_.isas.size()) return std::nullopt;
    const cpu::CpuConfig& c = variant.config;
    if (!(c.rescale_threshold >= 0 && c.rescale_threshold <= 32)) return std::nullopt;
    const Genome genome{kFused,
                        {c.mr, c.nv, c.exp_degree, c.block_q, c.block_k, c.splits, c.dot_rows,
                         int(c.pack_v), int(c.rescale_threshold), int(isa)}};
    if (config_of(genome) != c || c.block_k < 1 || c.block_q < 1 || c.mr < 1) return std::nullopt;
    return genome;
  }

  std::vector<Decisions> decisions(const Genome& genome) const {
    const cpu::CpuConfig config = config_of(genome);
    std::vector<Decisions> all;
    all.reserve(problems_.size());
    for (const Problem& p : problems_)
      all.push_back(decide(p, config, arch(genome.genes[kIsa]), machine_.threads));
    return all;
  }

  std::vector<Problem> problems_;
  CpuMachine machine_;
  std::vector<Family> families_;
  std::vector<Axis> axes_;
  Genome default_;
  std::vector<Genome> choices_;  // of each problem
};

}  // namespace

std::vector<std::string> cpu_library(const std::vector<Problem>& problems, int threads) {
  std::vector<std::string> library;
  for (const Problem& p : problems) {
    Choice choice;
    const Status chosen = p.pass == Pass::backward ? select_backward(p, true, ATTUNE_AUTO, &choice)
                                                   : select(p, ATTUNE_AUTO, threads, &choice);
    const bool fused = chosen.ok() && choice.mode == ATTUNE_FUSED;
    library.push_back(to_string(CpuVariant{fused, choice.config, cpu::isa_name(choice.isa)}));
  }
  return library;
}

std::unique_ptr<Space> cpu_space(std::vector<Problem> problems, CpuMachine machine,
                                 const std::vector<std::string>& library) {
  return std::make_unique<CpuSpace>(std::move(problems), std::move(machine), library);
}

CpuVariant cpu_variant(const Space& space, const Genome& genome) {
  return parse_cpu_variant(space.print(genome)).value_or(CpuVariant{});
}

}  // namespace attune::evolve
