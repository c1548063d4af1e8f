#include "cli/evolve_promote.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "evolve/compile/tile_compile.hpp"
#include "evolve/store/files.hpp"
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
                         const evolve::Genome& genome) {
  if (on_cuda(meta)) return "";
  const evolve::CpuVariant variant = evolve::cpu_variant(space, genome);
  if (evolve::needs_tile(variant)) return "has a register tile that is not in the library";
  return variant.fused ? "" : "is not what calls on this machine run";
}

TunedRow row_of(const evolve::RunMeta& meta, const Problem& problem, const evolve::Space& space,
                const evolve::Genome& genome) {
  TunedRow row;
  row.sizes = TunedSizes::of(problem);
  if (on_cuda(meta)) {
    const Arch arch = cuda_arch(meta);
    row.key = cuda_problem_id(problem, arch);
    row.machine = {fmt::format("sm{}", arch.cc), meta.environment.value("gpu", ""), 0};
    row.config = space.print(genome);
  } else {
    row.key = problem_id(problem);
    row.machine = {cpu::isa_name(), processor_name(), meta.threads};
    const evolve::CpuVariant v = evolve::cpu_variant(space, genome);
    row.config = cpu::to_string(cpu::IsaConfig{v.isa == row.machine.arch ? "" : v.isa, v.config});
  }
  return row;
}

// Why the run says nothing about the row's place: what calls run there, or the row that the file
// has for it, is not what the winner was compared with. Empty: it is.
std::string why_not_compared(const std::string& path, const TunedRow& row, const TunedRow& compared,
                             const std::string& now, const std::string& then) {
  if (now != then)
    return fmt::format("calls run {} now, and the run was compared with {}", now, then);
  for (const TunedRow& other : read_tuned(path).rows)
    if (other.id == row.id && other.damage.empty() && other.config != compared.config)
      return fmt::format("row {} of {} has {}, which the run was not compared with", other.id, path,
                         other.config);
  return "";
}

}  // namespace

void promote(const EvolveOptions& o, const evolve::RunMeta& meta, const evolve::Space& space,
             const std::string& folder, const evolve::RunResult& result) {
  const evolve::Comparison& c = result.final;
  const evolve::Decision& d = result.decision;
  if (c.candidates.empty() || d.stands) {
    talk("nothing to promote: the library's own choice stands");
    return;
  }
  if (const std::string why = why_not_used(meta, space, result.genome); !why.empty()) {
    talk(fmt::format("nothing to promote: {} {}", result.best, why));
    return;
  }
  const std::string path = o.table.empty() ? table_path() : o.table;
  const size_t winner = size_t(place_of(c, d.best));
  reload_tuned();  // another process may have promoted meanwhile
  const std::vector<std::string> now = library_now(meta);
  std::unique_ptr<evolve::Store> store;
  need(evolve::Store::open(folder, false, &store));
  std::error_code ignored;
  for (size_t s = 0; s < d.shapes.size(); ++s) {
    const evolve::Decision::Shape& shape = d.shapes[s];
    const auto refuse = [&](const std::string& why) {
      talk(fmt::format("not promoted for {}: {}", shape.name, why));
    };
    const evolve::Interval gain = shape.gain.value_or(evolve::Interval{});
    // A row has a say within its rung alone: which rung runs is not in the table.
    const auto rung = [](const std::string& id) { return id.substr(0, id.find('.')); };
    if (rung(d.best) != rung(shape.over)) {
      refuse(fmt::format("calls run {} there; a row for {} is only used where a call asks for it",
                         rung(shape.over), rung(d.best)));
      continue;
    }
    if (!shape.promotes) {
      refuse(
          fmt::format("{:.3f} ({:.3f}..{:.3f}) times the library's speed, with a noise of {:.3f}",
                      gain.mid, gain.low, gain.high, d.margin));
      continue;
    }
    TunedRow row = row_of(meta, meta.shapes[s].problem, space, result.genome);
    complete(&row);
    const std::optional<evolve::Genome> base = space.parse(shape.over);
    const TunedRow compared =
        base ? row_of(meta, meta.shapes[s].problem, space, *base) : TunedRow{};
    if (const std::string why = why_not_compared(path, row, compared, now[s], shape.over);
        !why.empty()) {
      refuse(why);
      continue;
    }
    const evolve::Json provenance = {
        {"date", meta.created},
        {"version", meta.version},
        {"speedup", {{"low", gain.low}, {"mid", gain.mid}, {"high", gain.high}}},
        {"over", shape.over},
        {"error", c.verdicts[winner].error},
        {"limit", c.verdicts[winner].limit},
        {"rounds", c.seconds[winner][s].size()},
        {"seed", meta.seed},
        {"run", std::filesystem::absolute(folder, ignored).filename().string()},
        {"head", store->chain().head}};
    row.provenance = provenance.dump(-1, ' ', false, evolve::Json::error_handler_t::replace);
    need(add_tuned_row(path, row));
    talk(fmt::format("promoted for {}: {:.3f} ({:.3f}..{:.3f}) times the library's speed, into {}",
                     shape.name, gain.mid, gain.low, gain.high, path));
  }
}

}  // namespace attune::cli
