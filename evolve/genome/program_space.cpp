#include "evolve/genome/program_space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include "evolve/genome/program.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

constexpr int kUnroll[] = {0, 2, 4, 8, 16};
constexpr int kThreads[] = {0, 64, 128, 256, 512, 1024};  // of launch bounds
constexpr int kMostSteps = 6;                             // of an axis
// Whose compilers know a pragma that unrolls a loop, or leave it out.
constexpr const char* kPragmas[] = {".c",   ".cc", ".cpp", ".cxx", ".h",
                                    ".hpp", ".cu", ".cuh", ".hip"};
constexpr const char* kOrLater = " or later";

// What a gene changes.
struct Part {
  enum class Kind { block, tunable, loop, kernel, flags } kind;
  size_t which = 0;  // block, tunable or choice of flags
  int n = 0;         // loop or kernel of the block
};

// One text of a block.
struct Variant {
  std::string label, text;
  std::set<std::string> tunables;
  int loops = 0, kernels = 0;
};

std::vector<int> indices(size_t count) {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Gene choice(std::string name, std::string group, std::string meaning, Level level,
            std::vector<std::string> labels, bool ordered = true) {
  Gene gene;
  gene.name = std::move(name);
  gene.group = std::move(group);
  gene.meaning = std::move(meaning);
  gene.level = level;
  gene.values = indices(labels.size());
  gene.ordered = ordered;
  gene.labels = std::move(labels);
  return gene;
}

// One operator changes a group, and belongs to one level.
const char* group_of(Level level) {
  return level == Level::algorithm ? "techniques" : level == Level::hardware ? "sizes" : "tunables";
}

std::vector<std::string> numbers(std::span<const int> values) {
  std::vector<std::string> labels{"own"};
  for (const int value : values.subspan(1)) labels.push_back(std::to_string(value));
  return labels;
}

class ProgramSpace final : public GrowingSpace {
 public:
  ProgramSpace(ProgramSource source, bool grows) : source_(std::move(source)), grows_(grows) {}

  Status read() {
    if (Status s = parse_program(source_.text, &program_); !s.ok())
      return {s.code, fmt::format("{}{}: {}", source_.name, source_.extension(), s.message)};
    std::set<std::string> in_blocks;
    for (const Block& block : program_.blocks) {
      variants_.push_back({variant("own", block.text)});
      for (const std::string& name : variants_.back()[0].tunables) in_blocks.insert(name);
    }
    tunables_ = program_.tunables;
    ATTUNE_TRY(refuse_macros(source_.name + source_.extension(), tunables_));
    for (const Tunable& t : tunables_)
      if (!in_blocks.contains(t.name)) outside_.insert(t.name);
    for (const ProgramSource::Other& other : source_.others) ATTUNE_TRY(add_blocks(other));
    make_genes();
    if (family_[0].genes.empty() && !grows_)
      return Status::invalid(fmt::format(
          "{}{}: its blocks have {}no tunables, and no other program was given: there is nothing "
          "to choose",
          source_.name, source_.extension(), source_.has_pragmas() ? "no loops and " : ""));
    make_axes();
    return {};
  }

  const std::vector<Family>& families() const override { return family_; }
  const std::vector<Axis>& axes() const override { return axes_; }

  std::string invalid_reason(const Genome& genome) const override {
    if (genome.family != 0 || genome.genes.size() > parts_.size())
      return "it is no genome of this program";
    for (size_t g = 0; g < genome.genes.size(); ++g)
      if (genome.genes[g] < 0 || size_t(genome.genes[g]) >= genes()[g].values.size())
        return fmt::format("{} has no value {}", genes()[g].name, genome.genes[g]);
    return "";
  }

  Genome canonical(Genome genome) const override {
    genome.family = 0;
    genome = grown(std::move(genome));
    genome.genes.resize(parts_.size());
    for (size_t g = 0; g < parts_.size(); ++g)
      genome.genes[g] = genes()[g].values[size_t(nearest_index(genes()[g], genome.genes[g]))];
    std::set<std::string> declared = outside_;
    for (size_t b = 0; b < variants_.size(); ++b)
      for (const std::string& name : chosen(genome, b).tunables) declared.insert(name);
    for (size_t g = 0; g < parts_.size(); ++g) {
      const Part& part = parts_[g];
      const bool acts =
          part.kind == Part::Kind::tunable  ? declared.contains(tunables_[part.which].name)
          : part.kind == Part::Kind::loop   ? part.n < chosen(genome, part.which).loops
          : part.kind == Part::Kind::kernel ? part.n < chosen(genome, part.which).kernels
                                            : true;
      if (!acts) genome.genes[g] = start_[g];
    }
    return genome;
  }

  Cell cell(const Genome& given) const override {
    const Genome genome = grown(given);
    Cell cell;
    int edits = 0;
    for (size_t g = 0; g < parts_.size(); ++g)
      edits += (parts_[g].kind == Part::Kind::loop || parts_[g].kind == Part::Kind::kernel) &&
               genome.genes[g] != start_[g];
    const auto value = [&](int gene) {
      return gene < 0 ? 0 : std::min(genome.genes[size_t(gene)], kMostSteps - 1);
    };
    cell.at = {value(axis_block_), value(axis_value_), edits == 0 ? 0 : edits <= 2 ? 1 : 2};
    return cell;
  }

  std::string print(const Genome& given) const override {
    const Genome genome = grown(given);
    std::string text;
    for (size_t g = 0; g < parts_.size(); ++g)
      if (genome.genes[g] != start_[g])
        text += fmt::format("{}{}={}", text.empty() ? "" : "; ", genes()[g].name,
                            genes()[g].label(genome.genes[g]));
    return text.empty() ? source_.name : fmt::format("{}[{}]", source_.name, text);
  }

  std::optional<Genome> parse(std::string_view text) const override {
    Genome genome = start();
    if (text == source_.name) return genome;
    if (!text.starts_with(source_.name + "[") || !text.ends_with("]")) return std::nullopt;
    text.remove_prefix(source_.name.size() + 1);
    text.remove_suffix(1);
    while (!text.empty()) {
      const size_t end = std::min(text.find("; "), text.size());
      if (!set(text.substr(0, end), &genome)) return std::nullopt;
      text.remove_prefix(std::min(end + 2, text.size()));
    }
    return genome;
  }

  // The start is the bar: what calls of the library run is another program.
  Genome library_default() const override { return start(); }
  Genome start() const override { return {0, start_}; }

  std::string program(const Genome& given) const override {
    const Genome genome = grown(given);
    std::vector<std::string> blocks;
    for (size_t b = 0; b < variants_.size(); ++b) blocks.push_back(chosen(genome, b).text);
    // From the last loop to the first, so that the numbers of those before stay.
    for (size_t g = parts_.size(); g-- > 0;) {
      const Part& part = parts_[g];
      if (genome.genes[g] == start_[g]) continue;
      if (part.kind == Part::Kind::loop)
        blocks[part.which] =
            with_pragma(blocks[part.which], part.n, unroll_pragma(genome.genes[g]));
      if (part.kind == Part::Kind::kernel)
        blocks[part.which] = with_launch_bounds(blocks[part.which], part.n,
                                                std::to_string(kThreads[genome.genes[g]]));
    }
    std::string text = with_blocks(program_, blocks), flags;
    const auto add_flags = [&](const std::string& more) {
      flags += (flags.empty() || more.empty() ? "" : " ") + more;
    };
    for (size_t g = 0; g < parts_.size(); ++g) {
      const Part& part = parts_[g];
      const std::string label = genes()[g].label(genome.genes[g]);
      if (part.kind == Part::Kind::tunable && tunables_[part.which].flags)
        add_flags(label == "none" ? "" : label);
      else if (part.kind == Part::Kind::tunable && tunables_[part.which].macro)
        add_flags(fmt::format("-D{}={}", tunables_[part.which].name, label));
      else if (part.kind == Part::Kind::tunable)
        text = with_value(text, tunables_[part.which].name, label);
      else if (part.kind == Part::Kind::flags)
        add_flags(source_.flags[part.which].values[size_t(genome.genes[g])].flags);
    }
    return text + flags_comment(flags);
  }

  int64_t growth() const override { return growth_; }
  Genome grown(Genome genome) const override {
    for (size_t g = genome.genes.size(); g < start_.size(); ++g) genome.genes.push_back(start_[g]);
    return genome;
  }

  bool has_label(const std::string& label) const override {
    for (const std::vector<Variant>& of_block : variants_)
      for (const Variant& v : of_block)
        if (v.label == label) return true;
    return false;
  }

  Status learn(const NewTexts& news) override {
    for (const NewTexts::Text& t : news.texts) {
      const size_t b = block_named(t.block);
      if (b == program_.blocks.size())
        return Status::invalid(fmt::format("it has no block {}", t.block));
      ATTUNE_TRY(add_tunables(tunables_in(t.text), news.label));
      variants_[b].push_back(variant(news.label, t.text));
      extend_genes(b);
    }
    growth_ += !news.texts.empty();
    return {};
  }

  Status read_text(const std::string& text, const Genome& given, const std::string& label,
                   NewTexts* news, Genome* genome) const override {
    const std::string plain = without_flags_comment(text);
    ProgramText theirs;
    ATTUNE_TRY(parse_program(plain, &theirs));
    if (!keeps_outside(source_, plain)) return Status::invalid(kOutsideChanged);
    // In a copy that has learned them, which has genes for all that they declare.
    ProgramSpace after(*this);
    *news = {label, {}};
    *genome = grown(given);
    std::vector<std::pair<Part, int>> read;
    for (size_t b = 0; b < theirs.blocks.size(); ++b) {
      const std::string own = taken_apart(theirs.blocks[b].text, b, *genome, &read);
      const std::string same = normal(own);
      size_t known = 0;
      while (known < variants_[b].size() && normal(variants_[b][known].text) != same) ++known;
      if (known == variants_[b].size()) {
        const NewTexts one{label, {{theirs.blocks[b].name, own}}};
        ATTUNE_TRY(after.learn(one));
        news->texts.push_back(one.texts[0]);
      }
      read.push_back({{Part::Kind::block, b}, int(known)});
    }
    *genome = after.grown(*genome);
    for (const Tunable& t : theirs.tunables)
      for (size_t k = 0; k < after.tunables_.size(); ++k) {
        if (after.tunables_[k].name != t.name || t.macro) continue;
        if (after.tunables_[k].values != t.values)
          return Status::invalid(
              fmt::format("EVOLVE-PARAM {} has other values there than elsewhere", t.name));
        read.push_back({{Part::Kind::tunable, k}, t.own});
      }
    for (const auto& [part, value] : read)
      if (const int g = after.gene_of(part); g >= 0) genome->genes[size_t(g)] = value;
    *genome = after.canonical(std::move(*genome));
    return {};
  }

 private:
  std::string unroll_pragma(int value) const {
    return fmt::format("#pragma {}unroll {}", source_.language == Language::cuda ? "" : "GCC ",
                       kUnroll[value]);
  }

  size_t block_named(const std::string& name) const {
    size_t b = 0;
    while (b < program_.blocks.size() && program_.blocks[b].name != name) ++b;
    return b;
  }

  int gene_of(const Part& part) const {
    for (size_t g = 0; g < parts_.size(); ++g)
      if (parts_[g].kind == part.kind && parts_[g].which == part.which && parts_[g].n == part.n)
        return int(g);
    return -1;
  }

  // A text whose tunables have the values that they begin with: texts that differ in those alone
  // are one.
  std::string normal(std::string text) const {
    for (const Tunable& t : tunables_in(text))
      for (const Tunable& known : tunables_)
        if (known.name == t.name && known.values == t.values && !t.macro)
          text = with_value(text, t.name, t.values[size_t(known.own)]);
    return text;
  }

  // The text of a block without the pragmas and launch bounds that genes of the parent put there:
  // they stay genes. What the text has of them is added to `read`.
  std::string taken_apart(std::string text, size_t b, const Genome& parent,
                          std::vector<std::pair<Part, int>>* read) const {
    for (const Part::Kind kind : {Part::Kind::loop, Part::Kind::kernel}) {
      std::vector<std::string> written;
      std::vector<int> values, found;
      for (size_t g = 0; g < parts_.size(); ++g) {
        if (parts_[g].kind != kind || parts_[g].which != b) continue;
        read->push_back({parts_[g], start_[g]});  // unless it is found below
        const int value = parent.genes[g];
        if (value == start_[g] || std::count(values.begin(), values.end(), value) > 0) continue;
        values.push_back(value);
        written.push_back(kind == Part::Kind::loop ? unroll_pragma(value)
                                                   : std::to_string(kThreads[value]));
      }
      if (written.empty()) continue;
      text = kind == Part::Kind::loop ? without_pragmas(text, written, &found)
                                      : without_launch_bounds(text, written, &found);
      for (size_t n = 0; n < found.size(); ++n)
        if (found[n] >= 0) read->push_back({{kind, b, int(n)}, values[size_t(found[n])]});
    }
    return text;
  }

  // Genes for what a new text of the block has more of. Old genes stay where they are.
  void extend_genes(size_t b) {
    const int at = gene_of({Part::Kind::block, b});
    if (at >= 0) {
      Gene& gene = family_[0].genes[size_t(at)];
      gene.values.push_back(int(gene.values.size()));
      gene.labels.push_back(variants_[b].back().label);
      if (at == axis_block_ && int(axes_[0].steps.size()) < kMostSteps)
        axes_[0].steps.push_back(gene.labels.back());
      else if (at == axis_block_ && !axes_[0].steps.back().ends_with(kOrLater))
        axes_[0].steps.back() += kOrLater;
    } else {
      add_block_gene(b);
    }
    for (size_t t = 0; t < tunables_.size(); ++t)
      if (gene_of({Part::Kind::tunable, t}) < 0) add_tunable_gene(t);
    const Variant& v = variants_[b].back();
    for (int n = 0; n < v.loops && source_.has_pragmas(); ++n)
      if (gene_of({Part::Kind::loop, b, n}) < 0) add_loop_gene(b, n);
    for (int n = 0; n < v.kernels && source_.language == Language::cuda; ++n)
      if (gene_of({Part::Kind::kernel, b, n}) < 0) add_kernel_gene(b, n);
  }

  const std::vector<Gene>& genes() const { return family_[0].genes; }

  static Variant variant(std::string label, const std::string& text) {
    Variant v{std::move(label), text, {}, loops_of(text), kernels_of(text)};
    for (const Tunable& t : tunables_in(text)) v.tunables.insert(t.name);
    return v;
  }

  Status add_blocks(const ProgramSource::Other& other) {
    ProgramText theirs;
    if (Status s = parse_program(other.text, &theirs); !s.ok())
      return {s.code, fmt::format("{}: {}", other.name, s.message)};
    bool used = false;
    for (size_t b = 0; b < program_.blocks.size(); ++b)
      for (const Block& block : theirs.blocks) {
        if (block.name != program_.blocks[b].name) continue;
        used = true;
        const bool known = std::any_of(variants_[b].begin(), variants_[b].end(),
                                       [&](const Variant& v) { return v.text == block.text; });
        if (known) continue;
        const std::vector<Tunable> tunables = tunables_in(block.text);
        ATTUNE_TRY(refuse_macros(other.name, tunables));
        ATTUNE_TRY(add_tunables(tunables, other.name));
        variants_[b].push_back(variant(other.name, block.text));
      }
    if (used) return {};
    std::string names;
    for (const Block& b : program_.blocks) names += (names.empty() ? "" : ", ") + b.name;
    return Status::invalid(fmt::format("{}: it has none of the blocks of {}{}: {}", other.name,
                                       source_.name, source_.extension(), names));
  }

  // The user's evaluator builds the program, if anybody does: nobody could tell it the macro.
  Status refuse_macros(const std::string& whose, const std::vector<Tunable>& tunables) const {
    for (const Tunable& t : tunables)
      if (t.macro && !source_.suffix.empty())
        return Status::invalid(fmt::format(
            "{}: {}EVOLVE-PARAM {} is alone on its line. That is a macro for our compiler, and an "
            "evaluator of your own has another: set {} on that line",
            whose, t.line > 0 ? fmt::format("line {}: ", t.line) : "", t.name, t.name));
    for (const Tunable& t : tunables)
      for (const std::string& flag : t.values)
        if (t.flags && flag != "none" && !is_allowed_flag(flag, source_.language))
          return Status::invalid(
              fmt::format("{}: {}EVOLVE-PARAM {}: {} is no flag that a program may ask for", whose,
                          t.line > 0 ? fmt::format("line {}: ", t.line) : "", t.name, flag));
    return {};
  }

  Status add_tunables(const std::vector<Tunable>& theirs, const std::string& whose) {
    for (const Tunable& t : theirs) {
      const auto same = std::find_if(tunables_.begin(), tunables_.end(),
                                     [&](const Tunable& own) { return own.name == t.name; });
      if (same == tunables_.end())
        tunables_.push_back(t);
      else if (same->values != t.values || same->macro != t.macro)
        return Status::invalid(fmt::format(
            "{}: EVOLVE-PARAM {} has other values there than elsewhere", whose, t.name));
    }
    return {};
  }

  void add(Gene gene, Part part, int own = 0) {
    if (gene.values.size() < 2) return;
    family_[0].genes.push_back(std::move(gene));
    parts_.push_back(part);
    start_.push_back(own);
  }

  void add_block_gene(size_t b) {
    std::vector<std::string> labels;
    for (const Variant& v : variants_[b]) labels.push_back(v.label);
    Gene gene = choice("block." + program_.blocks[b].name, "blocks", "whose text the block has",
                       Level::algorithm, std::move(labels), false);
    gene.sketch = gene.catalogue = true;
    add(std::move(gene), {Part::Kind::block, b});
  }

  void add_tunable_gene(size_t t) {
    add(choice(tunables_[t].name, group_of(tunables_[t].level), tunables_[t].meaning,
               tunables_[t].level, tunables_[t].values),
        {Part::Kind::tunable, t}, tunables_[t].own);
  }

  void add_loop_gene(size_t b, int n) {
    Gene gene = choice(fmt::format("loop.{}.{}", program_.blocks[b].name, n + 1), "loops",
                       "how often the loop is unrolled", Level::implementation, numbers(kUnroll));
    gene.rare = true;
    add(std::move(gene), {Part::Kind::loop, b, n});
  }

  void add_kernel_gene(size_t b, int n) {
    add(choice(fmt::format("kernel.{}.{}", program_.blocks[b].name, n + 1), "kernels",
               "the most threads of a block that registers are given for", Level::hardware,
               numbers(kThreads)),
        {Part::Kind::kernel, b, n});
  }

  void make_genes() {
    family_ = {{source_.name, "the program as it was given", {}}};
    using Kind = Part::Kind;
    for (size_t b = 0; b < variants_.size(); ++b) add_block_gene(b);
    for (size_t t = 0; t < tunables_.size(); ++t) add_tunable_gene(t);
    for (size_t b = 0; b < variants_.size(); ++b) {
      int loops = 0, kernels = 0;
      for (const Variant& v : variants_[b]) {
        loops = std::max(loops, source_.has_pragmas() ? v.loops : 0);
        kernels = std::max(kernels, source_.language == Language::cuda ? v.kernels : 0);
      }
      for (int n = 0; n < loops; ++n) add_loop_gene(b, n);
      for (int n = 0; n < kernels; ++n) add_kernel_gene(b, n);
    }
    for (size_t f = 0; f < source_.flags.size(); ++f) {
      std::vector<std::string> labels;
      for (const FlagChoice::Value& v : source_.flags[f].values) labels.push_back(v.label);
      add(choice("flags." + source_.flags[f].name, "flags", source_.flags[f].meaning,
                 Level::hardware, std::move(labels)),
          {Kind::flags, f});
    }
  }

  void make_axes() {
    const auto axis = [&](const char* name, int gene) {
      Axis made{name, {"own"}};
      if (gene >= 0) {
        made.steps = genes()[size_t(gene)].labels;
        if (int(made.steps.size()) > kMostSteps) {
          made.steps.resize(size_t(kMostSteps));
          made.steps.back() += kOrLater;
        }
      }
      return made;
    };
    for (size_t g = 0; g < parts_.size(); ++g) {
      const Part::Kind kind = parts_[g].kind;
      if (kind == Part::Kind::block && axis_block_ < 0) axis_block_ = int(g);
      if (kind == Part::Kind::tunable && axis_value_ < 0) axis_value_ = int(g);
    }
    for (size_t g = 0; g < parts_.size() && axis_value_ < 0; ++g)
      if (parts_[g].kind == Part::Kind::flags) axis_value_ = int(g);
    axes_ = {
        axis(axis_block_ < 0 ? "block" : genes()[size_t(axis_block_)].name.c_str(), axis_block_),
        axis(axis_value_ < 0 ? "value" : genes()[size_t(axis_value_)].name.c_str(), axis_value_),
        {"edited loops and kernels", {"none", "one or two", "more"}}};
  }

  const Variant& chosen(const Genome& genome, size_t block) const {
    for (size_t g = 0; g < parts_.size(); ++g)
      if (parts_[g].kind == Part::Kind::block && parts_[g].which == block)
        return variants_[block][size_t(genome.genes[g])];
    return variants_[block][0];
  }

  // "NAME=label"
  bool set(std::string_view assignment, Genome* genome) const {
    for (size_t g = 0; g < parts_.size(); ++g) {
      const Gene& gene = genes()[g];
      if (!assignment.starts_with(gene.name + "=")) continue;
      const std::string_view label = assignment.substr(gene.name.size() + 1);
      const auto at = std::find(gene.labels.begin(), gene.labels.end(), label);
      if (at == gene.labels.end()) return false;
      genome->genes[g] = int(at - gene.labels.begin());
      return true;
    }
    return false;
  }

  ProgramSource source_;
  bool grows_;
  int64_t growth_ = 0;
  ProgramText program_;
  std::vector<std::vector<Variant>> variants_;  // of each block
  std::vector<Tunable> tunables_;               // of all texts
  std::set<std::string> outside_;               // tunables that no block declares
  std::vector<Family> family_;                  // one
  std::vector<Part> parts_;                     // of each gene
  std::vector<int> start_;
  std::vector<Axis> axes_;
  int axis_block_ = -1, axis_value_ = -1;  // genes
};

}  // namespace

bool ProgramSource::has_pragmas() const {
  return std::find(std::begin(kPragmas), std::end(kPragmas), extension()) != std::end(kPragmas);
}

Status program_space(const ProgramSource& source, std::unique_ptr<Space>* space, bool grows) {
  auto made = std::make_unique<ProgramSpace>(source, grows);
  ATTUNE_TRY(made->read());
  *space = std::move(made);
  return {};
}

bool keeps_outside(const ProgramSource& source, const std::string& candidate) {
  return outside_hash(without_flags_comment(candidate)) == outside_hash(source.text);
}

}  // namespace attune::evolve
