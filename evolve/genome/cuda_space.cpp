// The genomes of a CUDA device: the rungs, and of each the fields of its config that a search may
// vary. Nothing here asks the device.
#include <algorithm>
#include <limits>
#include <string>

#include "evolve/genome/genome.hpp"
#include "src/select/cuda_select.hpp"
#include "src/select/tuned.hpp"

namespace attune::evolve {
namespace {

// Contiguous tensors, in the library's own order of dimensions.
Request request_of(const Problem& p, const Arch& arch) {
  const auto view = [](int64_t heads, int64_t rows, int64_t dim) {
    return View{nullptr, heads * rows * dim, rows * dim, dim};
  };
  Params a;
  a.q = view(p.heads_q, p.seq_q, p.dim);
  a.k = view(p.heads_kv, p.seq_k, p.dim);
  a.v = view(p.heads_kv, p.seq_k, p.dim_v);
  a.out = view(p.heads_q, p.seq_q, p.dim_v);
  a.mask = {nullptr, {p.heads_q * p.seq_q * p.seq_k, p.seq_q * p.seq_k, p.seq_k, 1}};
  return {p, arch, layout_of(p, a), std::numeric_limits<size_t>::max(), "", ""};
}

// A field of a rung's config that is a gene, and its place in the config.
struct GeneField {
  size_t place;
  Gene gene;
};

// Where one value is left for these calls, no draw is spent on another.
std::vector<GeneField> genes_of(const Rung& rung, const std::vector<Request>& requests) {
  std::vector<GeneField> genes;
  for (size_t place = 0; place < rung.fields.size(); ++place) {
    const attune::Field& f = rung.fields[place];
    if (f.search.values.empty()) continue;
    Gene gene{f.name, f.search.group, f.search.meaning, f.search.level, f.search.sketch, {}};
    for (const int value : f.search.values)
      if (rung.possible(requests, f.name, value)) gene.values.push_back(value);
    genes.push_back({place, std::move(gene)});
  }
  return genes;
}

// Every field at its default.
Config plain_config(const Rung& rung) {
  Config config{&rung, {}};
  for (size_t place = 0; place < rung.fields.size(); ++place)
    config.values[place] = rung.fields[place].standard;
  return config;
}

class CudaSpace final : public Space {
 public:
  CudaSpace(const std::vector<Problem>& problems, const Arch& arch,
            const std::vector<std::string>& rungs, const std::vector<std::string>& library)
      : arch_(arch) {
    for (const Problem& p : problems) requests_.push_back(request_of(p, arch));
    if (CudaChoice choice; !requests_.empty() && select_cuda({requests_[0]}, &choice).ok())
      chosen_ = choice.mode;
    for (const Rung* rung : attune::rungs())
      if (rungs.empty() || std::count(rungs.begin(), rungs.end(), rung->name) != 0) add(*rung);
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
    const Config config = config_of(genome);
    for (const Request& r : requests_) {
      std::string why = config.rung->cannot_run(r, config);
      if (why.empty()) why = config.rung->misfit(r, config);
      if (!why.empty()) return why;
    }
    return config.rung->pointless(requests_, config);
  }

  // Of genes that change neither kernels nor launches for any of the problems: one after the other
  // gets the library's value, or else the first that makes no difference.
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
    for (size_t g = 0; g < genes.size(); ++g) {
      std::vector<int> values = genes[g].values;
      values.insert(values.begin(), rest[g]);
      for (const int value : values) {
        Genome other = genome;
        other.genes[g] = value;
        if (!same(genome, other)) continue;
        genome = other;
        break;
      }
    }
    return genome;
  }

  Cell cell(const Genome& genome) const override {
    if (!fits(genome)) return {};
    const Config config = config_of(genome);
    int64_t smem = 0;
    for (const Request& r : requests_)
      smem = std::max<int64_t>(smem, config.rung->smem(config, r.problem));
    const int warps = config.rung->warps(config, smem, arch_);
    const int64_t quarters = smem <= 0 ? 0 : (smem * 4 - 1) / std::max(arch_.smem_sm, 1);
    return {{genome.family, int(std::min<int64_t>(quarters, 3)),
             (warps > 4) + (warps > 8) + (warps > 16)}};
  }

  std::string print(const Genome& genome) const override {
    return fits(genome) ? to_string(config_of(genome)) : "";
  }

  std::optional<Genome> parse(std::string_view text) const override {
    Config config;
    if (!parse_config(text, &config)) return std::nullopt;
    const int family = family_named(config.rung->name);
    if (family < 0) return std::nullopt;
    const Genome genome{family, values(sketches_[size_t(family)], config)};
    if (to_string(config_of(genome)) != to_string(config)) return std::nullopt;  // not by genes
    return genome;
  }

  Genome library_default() const override { return default_; }
  std::vector<Genome> library_choices() const override { return choices_; }

 private:
  // What stands behind a family.
  struct Sketch {
    Config config;               // fields that are no genes
    std::vector<size_t> places;  // of the genes in it
    std::vector<int> rest;       // the library's values
    std::string refused;         // why selection would not run it
  };

  // A rung is in the space when selection would run it by name for every problem; the first always
  // is, with its reason, since the ladder has a bottom. The later rung is the better one, unless
  // the library chooses another for the first problem.
  void add(const Rung& rung) {
    std::string refused = requests_.empty() ? "there is no problem" : "";
    for (const Request& r : requests_) {
      CudaChoice choice;
      if (const Status status = select_cuda({r, rung.mode}, &choice);
          !status.ok() && refused.empty())
        refused = status.message;
    }
    if (!refused.empty() && !families_.empty()) return;
    Sketch sketch{refused.empty() ? rung.first(requests_) : plain_config(rung), {}, {}, refused};
    Family family{rung.name, rung.meaning, {}};
    for (GeneField& g : genes_of(rung, requests_)) {
      sketch.places.push_back(g.place);
      family.genes.push_back(std::move(g.gene));
    }
    Genome genome{int(families_.size()), values(sketch, sketch.config)};
    families_.push_back(std::move(family));
    sketches_.push_back(std::move(sketch));
    // The first problem's choice may not do for the others.
    if (refused.empty() && !repair(*this, &genome, 0)) {
      families_.pop_back();
      sketches_.pop_back();
      return;
    }
    sketches_.back().rest = genome.genes;
    if (!settled_) default_ = genome;
    settled_ |= rung.mode == chosen_;
  }

  bool same(const Genome& a, const Genome& b) const {
    const Config one = config_of(a), other = config_of(b);
    return one == other || std::all_of(requests_.begin(), requests_.end(), [&](const Request& r) {
             return one.rung->same(r, one, other);
           });
  }

  bool fits(const Genome& genome) const {
    return genome.family >= 0 && size_t(genome.family) < families_.size() &&
           genome.genes.size() == families_[size_t(genome.family)].genes.size();
  }

  static std::vector<int> values(const Sketch& sketch, const Config& config) {
    std::vector<int> values;
    for (const size_t place : sketch.places) values.push_back(config.values[place]);
    return values;
  }

  Config config_of(const Genome& genome) const {
    const Sketch& sketch = sketches_[size_t(genome.family)];
    Config config = sketch.config;
    for (size_t g = 0; g < sketch.places.size(); ++g)
      config.values[sketch.places[g]] = genome.genes[g];
    return config;
  }

  Arch arch_;
  std::vector<Request> requests_;
  std::vector<Family> families_;
  std::vector<Sketch> sketches_;  // one a family
  std::vector<Axis> axes_;
  Genome default_;
  std::vector<Genome> choices_;       // of each problem
  attune_mode chosen_ = ATTUNE_AUTO;  // what the library runs for the first problem
  bool settled_ = false;              // default_ is that
};

}  // namespace

std::vector<std::string> cuda_library(const std::vector<Problem>& problems, const Arch& arch,
                                      const std::string& device) {
  std::vector<std::string> library;
  for (const Problem& p : problems) {
    const CudaRequest r{request_of(p, arch), ATTUNE_AUTO, device, tuned_table()};
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
  return std::make_unique<CudaSpace>(problems, arch, rungs, library);
}

}  // namespace attune::evolve
