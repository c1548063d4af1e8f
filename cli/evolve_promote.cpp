#include "cli/evolve_promote.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "evolve/files.hpp"
#include "evolve/tile_compile.hpp"
#include "src/cpu/fused.hpp"
#include "src/select/cuda_select.hpp"
#include "src/select/select.hpp"
#include "src/select/tuned.hpp"

namespace attune::cli {

void check_table(const EvolveOptions& o) {
  const std::string path = o.table.empty() ? table_path() : o.table;
  if (path.empty())
    throw std::runtime_error(
        "--promote: there is no tuned table: ATTUNE_CACHE_DIR, XDG_CACHE_HOME and HOME are all "
        "unset; name one with --table");
  if (const TunedRows rows = read_tuned(path); !rows.problem.empty())
    throw std::runtime_error("--table: " + rows.problem);
  if (const std::filesystem::path folder = std::filesystem::path(path).parent_path();
      !folder.empty())
    need(evolve::make_folder(folder));
  Output("--table", path);
}

namespace {

// Why no call would run the winner; empty when calls would.
std::string why_not_used(const evolve::RunMeta& meta, const evolve::Space& space,
                         const evolve::RunResult& result) {
  if (!result.final.verdicts[result.winner].ok()) return "was not verified";
  if (on_cuda(meta)) return "";
  const evolve::CpuVariant variant = evolve::cpu_variant(space, result.genome);
  if (evolve::needs_tile(variant)) return "has a register tile that is not in the library";
  return variant.fused && variant.isa == cpu::isa_name() ? ""
                                                         : "is not what calls on this machine run";
}

TunedRow row_of(const evolve::RunMeta& meta, const Problem& problem, const evolve::Space& space,
                const evolve::Genome& genome) {
  TunedRow row;
  row.sizes = TunedSizes::of(problem);
  if (on_cuda(meta)) {
    const Arch arch = cuda_arch(meta);
    row.key = cuda_problem_id(problem, arch);
    row.machine = {fmt::format("sm{}", arch.cc), meta.environment.value("gpu", ""), 0};
    row.config = to_string(evolve::cuda_config(space, genome));
  } else {
    row.key = problem_id(problem);
    row.machine = {cpu::isa_name(), processor_name(), meta.threads};
    row.config = cpu::to_string(evolve::cpu_variant(space, genome).config);
  }
  return row;
}

}  // namespace

void promote(const EvolveOptions& o, const evolve::RunMeta& meta, const evolve::Space& space,
             const std::string& folder, const evolve::RunResult& result) {
  const evolve::Comparison& c = result.final;
  const size_t base = result.library, winner = result.winner;
  if (c.candidates.empty() || base == winner) {
    talk("nothing to promote: the library's own choice is the winner");
    return;
  }
  if (const std::string why = why_not_used(meta, space, result); !why.empty()) {
    talk(fmt::format("nothing to promote: {} {}", result.best, why));
    return;
  }
  // Two equal programs differ by up to this much here.
  std::unique_ptr<evolve::Store> store;
  double margin = 0;
  if (evolve::Store::open(folder, false, &store).ok() && !store->get("noise").is_null())
    margin = evolve::noise_of(store->get("noise")).margin;
  const std::string path = o.table.empty() ? table_path() : o.table;
  std::error_code ignored;
  for (size_t s = 0; s < meta.shapes.size(); ++s) {
    const evolve::Pairs pairs{c.seconds[winner][s], c.seconds[base][s], 1, c.sitting};
    const evolve::Interval gain = evolve::combined_ratio({&pairs, 1}, 0.95, 1);
    if (!(gain.low > 1 && gain.mid > 1 + margin)) {
      talk(fmt::format(
          "not promoted for {}: {:.3f} ({:.3f}..{:.3f}) times the library's speed, with "
          "a noise of {:.3f}",
          meta.shapes[s].name, gain.mid, gain.low, gain.high, margin));
      continue;
    }
    TunedRow row = row_of(meta, meta.shapes[s].problem, space, result.genome);
    const evolve::Json provenance = {
        {"date", meta.created},
        {"version", meta.version},
        {"speedup", {{"low", gain.low}, {"mid", gain.mid}, {"high", gain.high}}},
        {"over", c.candidates[base].id},
        {"error", c.verdicts[winner].error},
        {"limit", c.verdicts[winner].limit},
        {"rounds", c.seconds[winner][s].size()},
        {"seed", meta.seed},
        {"run", std::filesystem::absolute(folder, ignored).filename().string()}};
    row.provenance = provenance.dump(-1, ' ', false, evolve::Json::error_handler_t::replace);
    need(add_tuned_row(path, row));
    talk(fmt::format("promoted for {}: {:.3f} ({:.3f}..{:.3f}) times the library's speed, into {}",
                     meta.shapes[s].name, gain.mid, gain.low, gain.high, path));
  }
}

}  // namespace attune::cli
