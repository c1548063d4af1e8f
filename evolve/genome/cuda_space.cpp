// The genomes of a CUDA device: three rungs on CUDA cores, and the tensor cores' config. Nothing
// here asks the device.
#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "evolve/genome/genome.hpp"
#include "src/select/cuda_select.hpp"
#include "src/select/tuned.hpp"

namespace attune::evolve {
namespace {

// ---- genes ----

// A gene and the field that it stands for: a number, or a flag.
template <class Config>
struct Field {
  Gene gene;
  int Config::*number;
  bool Config::*flag = nullptr;

  int get(const Config& c) const { return number ? c.*number : int(c.*flag); }
  void set(Config* c, int value) const {
    if (number)
      c->*number = value;
    else
      c->*flag = value != 0;
  }
};

template <class Config>
Field<Config> number(int Config::*field, std::string name, std::string group,
                     std::vector<int> values, std::string meaning) {
  return {{name, group, meaning, Level::hardware, false, values}, field};
}

template <class Config>
Field<Config> flag(bool Config::*field, std::string name, std::string group, Level level,
                   bool sketch, std::string meaning) {
  return {{name, group, meaning, level, sketch, {0, 1}}, nullptr, field};
}

const std::vector<Field<LadderConfig>>& ladder_fields() {
  using C = LadderConfig;
  static const std::vector<Field<C>> fields = {
      number(&C::block_q, "block_q", "block", {32, 64, 128},
             "query rows of a block: more share each tile of K and V, fewer leave registers"),
      number(&C::block_k, "block_k", "block", {16, 32, 64, 128},
             "keys of a tile: one step of the online softmax"),
      flag(&C::vector, "vector", "vector", Level::implementation, false,
           "loads of 16 bytes (1) or of one element (0)"),
  };
  return fields;
}

const std::vector<Field<MmaConfig>>& mma_fields() {
  using C = MmaConfig;
  static const std::vector<Field<C>> fields = {
      number(&C::warps_q, "warps_q", "warps", {1, 2, 3, 4, 6, 8},
             "warps of a block along the query rows"),
      number(&C::warps_k, "warps_k", "warps", {1, 2, 4, 8},
             "warps of a block along the keys of a tile, merged at the end: for few rows"),
      number(&C::warp_rows, "warp_rows", "warps", {16, 32},
             "query rows of a warp: 32 reads K and V half as often, 16 takes fewer registers"),
      number(&C::block_k, "block_k", "block", {16, 32, 48, 64, 80, 96, 112, 128},
             "keys of a tile: one step of the online softmax"),
      number(&C::stages, "stages", "stages", {2, 3, 4},
             "tiles of K and V in shared memory, on their way or in use"),
      number(&C::blocks_sm, "blocks_sm", "registers", {1, 2, 3, 4},
             "blocks that a multiprocessor must hold: it caps the registers of a thread"),
      flag(&C::q_registers, "q_registers", "staging", Level::implementation, false,
           "Q stays in registers (1) or in shared memory (0)"),
      flag(&C::vector, "vector", "vector", Level::implementation, false,
           "copies of 16 bytes, asynchronous (1), or of one element (0)"),
      flag(&C::stage_mask, "stage_mask", "staging", Level::implementation, false,
           "the mask comes through shared memory (1) or from where it is (0)"),
      flag(&C::pack_gqa, "pack_gqa", "packing", Level::implementation, true,
           "the query heads that share keys share a tile"),
      flag(&C::split_kv, "split_kv", "split", Level::algorithm, true,
           "the keys are cut into parts for blocks of their own, merged by a second kernel"),
  };
  return fields;
}

const std::vector<Field<WgmmaConfig>>& wgmma_fields() {
  using C = WgmmaConfig;
  static const std::vector<Field<C>> fields = {
      number(&C::warpgroups, "warpgroups", "warps", {1, 2, 3, 4},
             "groups of four warps that compute, 64 query rows each: more share a tile of K and V"),
      number(&C::block_k, "block_k", "block", {32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192},
             "keys of a tile: one step of the online softmax"),
      number(&C::stages, "stages", "stages", {1, 2, 3, 4, 5, 6},
             "tiles of K and of V in shared memory, on their way or in use"),
      number(&C::q_buffers, "q_buffers", "stages", {1, 2},
             "2: the next rows' Q comes while these are computed"),
      flag(&C::overlap, "overlap", "pipeline", Level::implementation, false,
           "a tile's QK runs beside the PV of the tile before it"),
      flag(&C::flat, "flat", "pipeline", Level::implementation, false,
           "the next rows' first QK runs beside these rows' last PV"),
      number(&C::turn, "turn", "turns", {kNoTurn, kProductTurn, kExpTurn},
             "what warpgroups take turns at: nothing, products, exponentials"),
      flag(&C::lazy, "lazy", "softmax", Level::implementation, false,
           "a row's maximum stays while it grows by less than 2^8"),
      flag(&C::tensor_sums, "tensor_sums", "softmax", Level::implementation, false,
           "the row sums come from tensor cores, by a column of ones beside V"),
      number(&C::polynomial, "polynomial", "exponentials", {0, 1, 2, 3, 4},
             "of 16 exponentials, so many by a polynomial"),
      number(&C::early_exps, "early_exps", "exponentials", {0, 2, 4, 6, 8},
             "eighths of the exponentials that come before the wait for PV"),
      number(&C::schedule, "schedule", "schedule", {kGrid, kPersistent, kDynamic},
             "a block a tile of rows; blocks that take every so manieth; that take the next one"),
      flag(&C::skip, "skip", "skipping", Level::implementation, false,
           "a warpgroup leaves out tiles that none of its rows may look at"),
      number(&C::group_mb, "group_mb", "schedule", {4, 8, 16, 32},
             "megabytes of K and V whose heads run together, so that they stay in the L2"),
      number(&C::producer_registers, "producer_registers", "registers", {24, 32, 40, 56},
             "registers of a thread that brings tiles; what is left is the consumers'"),
      flag(&C::stage_mask, "stage_mask", "staging", Level::implementation, false,
           "the mask comes through shared memory (1) or from where it is (0)"),
      flag(&C::late_mask, "late_mask", "staging", Level::implementation, false,
           "a staged mask is read after the products (1) or while they are computed (0)"),
      flag(&C::pack_gqa, "pack_gqa", "packing", Level::implementation, true,
           "the query heads that share keys share a tile"),
      flag(&C::first_max, "first_max", "maxima", Level::algorithm, true,
           "a row's first maximum serves for all of it, while its sums allow"),
      flag(&C::rounded_sums, "rounded_sums", "softmax", Level::implementation, false,
           "sums of the weights as PV has them, rounded: a peaked row's error is smaller"),
      number(&C::cluster, "cluster", "cluster", {1, 2},
             "2: blocks with neighbouring rows run in pairs, each brings half of K and V for both"),
  };
  return fields;
}

template <class Config>
std::vector<Gene> genes_of(const std::vector<Field<Config>>& fields) {
  std::vector<Gene> genes;
  for (const Field<Config>& f : fields) genes.push_back(f.gene);
  return genes;
}

template <class Config>
std::vector<int> values_of(const std::vector<Field<Config>>& fields, const Config& config) {
  std::vector<int> values;
  for (const Field<Config>& f : fields) values.push_back(f.get(config));
  return values;
}

template <class Config>
Config with_values(const std::vector<Field<Config>>& fields, Config config,
                   const std::vector<int>& values) {
  for (size_t n = 0; n < fields.size(); ++n) fields[n].set(&config, values[n]);
  return config;
}

// ---- what selection asks beside invalid_reason ----

// Contiguous tensors, in the library's own order of dimensions.
CudaRequest request_of(const Problem& p, const Arch& arch) {
  const auto view = [](int64_t heads, int64_t rows, int64_t dim) {
    return View{nullptr, heads * rows * dim, rows * dim, dim};
  };
  Params a;
  a.q = view(p.heads_q, p.seq_q, p.dim);
  a.k = view(p.heads_kv, p.seq_k, p.dim);
  a.v = view(p.heads_kv, p.seq_k, p.dim_v);
  a.out = view(p.heads_q, p.seq_q, p.dim_v);
  a.mask = {nullptr, {p.heads_q * p.seq_q * p.seq_k, p.seq_q * p.seq_k, p.seq_k, 1}};
  CudaRequest r;
  r.problem = p;
  r.arch = arch;
  r.layout = layout_of(p, a);
  r.workspace_bytes = std::numeric_limits<size_t>::max();
  return r;
}

// Tiles of query rows: the blocks of a launch without split_kv.
int64_t row_tiles(const Problem& p, const MmaConfig& c) {
  const int64_t heads = c.pack_gqa ? p.heads_kv : p.heads_q;
  const int64_t rows = c.pack_gqa ? p.seq_q * p.group() : p.seq_q;
  return p.batch * heads * ceil_div(rows, c.block_q());
}

// A plan cuts the keys for the sake of multiprocessors that would have no block, or a second wave
// of few.
bool can_split(const CudaRequest& r, const MmaConfig& c) {
  return row_tiles(r.problem, c) < int64_t{2} * r.arch.sms &&
         ceil_div(r.problem.seq_k, c.block_k) >= 2;
}

std::string layout_reason(const CudaRequest& r, bool vector, bool stage_mask) {
  if (vector && !r.layout.rows16) return "the rows do not lie at multiples of 16 bytes";
  if (stage_mask && !r.layout.mask16) return "the mask's rows do not lie at multiples of 16 bytes";
  return "";
}

// How tensors that TMA cannot reach are copied is no gene: it follows from how they lie. What all
// of them can do.
WgmmaConfig with_copy(WgmmaConfig c, const std::vector<CudaRequest>& requests) {
  int step = 16;
  bool tma = true;
  for (const CudaRequest& r : requests) {
    step = std::min(step, r.layout.step);
    tma &= r.layout.tma();
  }
  c.copy = tma ? 0 : step;
  if (!tma) c.producer_registers = kCopyRegisters;
  return c;
}

// Flags that cannot be set for these problems have one value left: no draw is spent on the other.
std::vector<Gene> possible(std::vector<Gene> genes, const std::vector<CudaRequest>& requests) {
  bool any_group = false, copies = false, alike = true;
  std::set<std::string> never;
  for (const CudaRequest& r : requests) {
    any_group |= r.problem.group() > 1;
    if (!r.layout.rows16) never.insert("vector");
    if (!r.layout.mask16 || r.problem.mask == MaskKind::none)
      never.insert({"stage_mask", "late_mask"});
    if (r.problem.dtype == DType::f32 || features_of(r.problem) != 0) never.insert("first_max");
    copies |= !r.layout.tma();
    alike &= !r.problem.causal && !r.problem.window() && !r.problem.ragged &&
             r.problem.block_mask_q == 0 && r.problem.dtype != DType::f32;
    if (r.problem.dtype == DType::f32)
      never.insert({"q_registers", "lazy", "tensor_sums", "polynomial"});
    if (r.problem.batch_invariant) never.insert("split_kv");
  }
  if (!any_group) never.insert("pack_gqa");
  for (Gene& gene : genes) {
    if (never.contains(gene.name)) gene.values = {0};
    if (gene.name == "producer_registers" && copies) gene.values = {kCopyRegisters};
    if (gene.name == "cluster" && (copies || !alike)) gene.values = {1};
  }
  return genes;
}

class CudaSpace final : public Space {
 public:
  CudaSpace(const std::vector<Problem>& problems, const Arch& arch, std::vector<std::string> rungs,
            const std::vector<std::string>& library)
      : arch_(arch), rungs_(std::move(rungs)) {
    for (const Problem& p : problems) requests_.push_back(request_of(p, arch));
    if (CudaChoice choice; !requests_.empty() && select_cuda(requests_[0], &choice).ok())
      chosen_ = choice.mode;
    add(Rung::naive, "naive", ATTUNE_NAIVE, "a warp a row of scores", {});
    add(Rung::tiled, "tiled", ATTUNE_TILED, "tiles in shared memory; all scores go to memory", {});
    add(Rung::fused, "fused", ATTUNE_FUSED, "online softmax: scores never leave the chip",
        genes_of(ladder_fields()));
    add(Rung::fused, "mma", ATTUNE_MMA, "the same on tensor cores, with copies in the background",
        genes_of(mma_fields()));
    add(Rung::fused, "wgmma", ATTUNE_WGMMA,
        "tensor cores that run beside everything else, tiles by TMA", genes_of(wgmma_fields()));
    choices_ = choices_of(*this, library, default_, &families_);
    default_ = choices_[0];
    sketches_[size_t(default_.family)].rest = default_.genes;
    Axis family{"family", {}};
    for (const Family& f : families_) family.steps.push_back(f.name);
    axes_ = {family,
             {"shared memory of a block",
              {"up to a quarter of the multiprocessor's", "up to a half", "up to three quarters",
               "more"}},
             {"warps of a multiprocessor", {"up to 4", "up to 8", "up to 16", "more"}}};
  }

  const std::vector<Family>& families() const override { return families_; }
  const std::vector<Axis>& axes() const override { return axes_; }

  std::string invalid_reason(const Genome& genome) const override {
    if (!fits(genome)) return "the genome does not fit its family";
    if (!sketches_[size_t(genome.family)].refused.empty())
      return sketches_[size_t(genome.family)].refused;
    return std::visit([&](const auto& config) { return reason(config); }, config_of(genome));
  }

  // Every field is a constant of the compiled kernel, and none is without effect where it is valid:
  // there is nothing to merge.
  Genome canonical(Genome genome) const override {
    if (genome.family < 0 || size_t(genome.family) >= families_.size()) genome.family = 0;
    const std::vector<Gene>& genes = families_[size_t(genome.family)].genes;
    const std::vector<int>& rest = sketches_[size_t(genome.family)].rest;
    const size_t given = genome.genes.size();
    genome.genes.resize(genes.size());
    for (size_t g = 0; g < genes.size(); ++g) {
      const int value = g < given ? genome.genes[g] : rest[g];
      genome.genes[g] = genes[g].values[size_t(nearest_index(genes[g], value))];
    }
    return genome;
  }

  Cell cell(const Genome& genome) const override {
    if (!fits(genome)) return {};
    const CudaConfig config = config_of(genome);
    int64_t smem = 0;
    for (const CudaRequest& r : requests_)
      smem = std::max<int64_t>(
          smem, std::visit([&](const auto& c) { return smem_bytes(c, r.problem); }, config));
    int64_t warps = 0;
    if (const auto* mma = std::get_if<MmaConfig>(&config)) {
      warps = int64_t{mma->threads()} / 32 * mma->blocks_sm;
    } else if (const auto* wgmma = std::get_if<WgmmaConfig>(&config)) {
      warps = int64_t{wgmma->threads()} / 32;
    } else {  // as many as shared memory has room for, up to four: registers allow few more
      const int64_t room = arch_.smem_sm / (smem + 1024);
      warps = block_threads(std::get<LadderConfig>(config)) / 32 * std::clamp<int64_t>(room, 1, 4);
    }
    const int64_t quarters = smem <= 0 ? 0 : (smem * 4 - 1) / std::max(arch_.smem_sm, 1);
    return {{genome.family, int(std::min<int64_t>(quarters, 3)),
             (warps > 4) + (warps > 8) + (warps > 16)}};
  }

  std::string print(const Genome& genome) const override {
    return fits(genome) ? to_string(config_of(genome)) : "";
  }

  std::optional<Genome> parse(std::string_view text) const override {
    CudaConfig config;
    if (!parse_cuda_config(std::string(text), &config)) return std::nullopt;
    const std::string_view name = text.substr(0, text.find('.'));
    const int family = family_named(name);
    if (family < 0) return std::nullopt;
    const Genome genome{family, values(family, config)};
    if (config_of(genome) != config) return std::nullopt;  // a rung without genes has one config
    return genome;
  }

  Genome library_default() const override { return default_; }
  std::vector<Genome> library_choices() const override { return choices_; }

 private:
  // What stands behind a family beside its genes.
  struct Sketch {
    CudaConfig config;      // fields that are no genes
    std::vector<int> rest;  // the library's values
    std::string refused;    // why selection would not run it
  };

  // A rung is in the space when selection would run it by name for every problem; naive always is,
  // with its reason, since the ladder has a bottom. The later rung is the better one, unless the
  // library chooses another for the first problem.
  void add(Rung rung, const std::string& name, attune_mode mode, const std::string& meaning,
           std::vector<Gene> genes) {
    if (!rungs_.empty() && std::count(rungs_.begin(), rungs_.end(), name) == 0) return;
    std::string refused = requests_.empty() ? "there is no problem" : "";
    for (CudaRequest r : requests_) {
      r.mode = mode;
      CudaChoice choice;
      if (const Status status = select_cuda(r, &choice); !status.ok() && refused.empty())
        refused = status.message;
    }
    if (!refused.empty() && !families_.empty()) return;
    Sketch sketch{LadderConfig{.rung = rung, .vector = false}, {}, refused};
    if (mode == ATTUNE_MMA)
      sketch.config = default_mma_config(requests_[0]);
    else if (mode == ATTUNE_WGMMA)
      sketch.config = with_copy(default_wgmma_config(requests_[0]), requests_);
    else if (refused.empty())
      sketch.config = default_ladder_config(requests_[0], rung);
    families_.push_back({name, meaning, possible(std::move(genes), requests_)});
    sketches_.push_back(sketch);
    const int family = int(families_.size()) - 1;
    Genome genome{family, values(family, sketch.config)};
    // The first problem's choice may not do for the others.
    if (refused.empty() && !repair(*this, &genome, 0)) {
      families_.pop_back();
      sketches_.pop_back();
      return;
    }
    sketches_.back().rest = genome.genes;
    if (!settled_) default_ = genome;
    settled_ |= mode == chosen_;
  }

  bool fits(const Genome& genome) const {
    return genome.family >= 0 && size_t(genome.family) < families_.size() &&
           genome.genes.size() == families_[size_t(genome.family)].genes.size();
  }

  std::string reason(const LadderConfig& c) const {
    for (const CudaRequest& r : requests_) {
      std::string why = attune::invalid_reason(c, r.problem, r.arch);
      if (why.empty()) why = layout_reason(r, c.vector, false);
      if (!why.empty()) return why;
    }
    return "";
  }

  std::string reason(const WgmmaConfig& c) const {
    for (const CudaRequest& r : requests_) {
      std::string why = attune::invalid_reason(c, r.problem, r.arch);
      if (why.empty()) why = layout_reason(r, c.tma(), c.stage_mask);
      if (!why.empty()) return why;
    }
    return "";
  }

  std::string reason(const MmaConfig& c) const {
    bool groups = false, splits = false;
    for (const CudaRequest& r : requests_) {
      std::string why = attune::invalid_reason(c, r.problem, r.arch);
      if (why.empty()) why = layout_reason(r, c.vector, c.stage_mask);
      if (why.empty() && c.split_kv && r.problem.batch_invariant)
        why = "the number of parts would depend on the batch";
      if (why.empty() && mma_blocks(r, c) > std::numeric_limits<int32_t>::max())
        why = "needs more blocks than a launch has";
      if (!why.empty()) return why;
      groups |= r.problem.group() > 1;
      splits |= can_split(r, c);
    }
    if (c.pack_gqa && !groups) return "no query heads share keys: there is nothing to pack";
    if (c.split_kv && !splits) return "there are blocks enough, or too few keys, for split_kv";
    return "";
  }

  std::vector<int> values(int family, const CudaConfig& config) const {
    if (const auto* mma = std::get_if<MmaConfig>(&config)) return values_of(mma_fields(), *mma);
    if (const auto* wgmma = std::get_if<WgmmaConfig>(&config))
      return values_of(wgmma_fields(), *wgmma);
    if (families_[size_t(family)].genes.empty()) return {};
    return values_of(ladder_fields(), std::get<LadderConfig>(config));
  }

  CudaConfig config_of(const Genome& genome) const {
    const CudaConfig& sketch = sketches_[size_t(genome.family)].config;
    if (genome.genes.empty()) return sketch;
    if (const auto* mma = std::get_if<MmaConfig>(&sketch))
      return with_values(mma_fields(), *mma, genome.genes);
    if (const auto* wgmma = std::get_if<WgmmaConfig>(&sketch))
      return with_values(wgmma_fields(), *wgmma, genome.genes);
    return with_values(ladder_fields(), std::get<LadderConfig>(sketch), genome.genes);
  }

  Arch arch_;
  std::vector<CudaRequest> requests_;
  std::vector<Family> families_;
  std::vector<Sketch> sketches_;  // one a family
  std::vector<Axis> axes_;
  Genome default_;
  std::vector<Genome> choices_;       // of each problem
  std::vector<std::string> rungs_;    // that may be added; empty: all
  attune_mode chosen_ = ATTUNE_AUTO;  // what the library runs for the first problem
  bool settled_ = false;              // default_ is that
};

}  // namespace

std::vector<std::string> cuda_library(const std::vector<Problem>& problems, const Arch& arch,
                                      const std::string& device) {
  std::vector<std::string> library;
  for (const Problem& p : problems) {
    CudaRequest r = request_of(p, arch);
    r.device = device;
    r.tuned = tuned_table();
    CudaChoice choice;
    std::string config;
    if (select_cuda(r, &choice).ok())
      for (const attune::Candidate& c : choice.candidates)
        if (c.reason.empty()) config = c.id.substr(c.id.find('/') + 1);
    library.push_back(config);
  }
  return library;
}

std::unique_ptr<Space> cuda_space(std::vector<Problem> problems, Arch arch,
                                  std::vector<std::string> rungs,
                                  const std::vector<std::string>& library) {
  return std::make_unique<CudaSpace>(problems, arch, std::move(rungs), library);
}

CudaConfig cuda_config(const Space& space, const Genome& genome) {
  CudaConfig config;
  parse_cuda_config(space.print(genome), &config);
  return config;
}

}  // namespace attune::evolve
