// The winner of a run on a GPU as one CUDA file: the library's headers, written out where they are
// first included, and below them the kernels that the run's shapes need.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "evolve/report/best_source.hpp"
#include "src/jit/source.hpp"
#include "src/select/cuda_select.hpp"

namespace attune::evolve {
namespace {

constexpr size_t kAnyWorkspace = ~size_t{0};

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return lines;
}

// The header that a line includes, if it is one of ours; -1 otherwise.
int included(std::string_view line) {
  constexpr std::string_view kInclude = "#include \"";
  const std::vector<std::string>& names = jit::headers().names;
  const size_t end = line.rfind('"');
  if (!line.starts_with(kInclude) || end <= kInclude.size()) return -1;
  const auto at =
      std::find(names.begin(), names.end(), line.substr(kInclude.size(), end - kInclude.size()));
  return at == names.end() ? -1 : int(at - names.begin());
}

// `text` with every header of ours in place of its first include.
std::string written_out(std::string_view text, std::set<int>* seen) {
  std::string result;
  for (const std::string& line : lines_of(text)) {
    const int header = included(line);
    if (header >= 0 && seen->insert(header).second)
      result += fmt::format("// ---- {} ----\n{}", jit::headers().names[size_t(header)],
                            written_out(jit::headers().texts[size_t(header)], seen));
    else if (header < 0 && !line.starts_with("#pragma once"))
      result += line;
  }
  return result;
}

Arch arch_of_run(const RunView& v) {
  const auto arch = v.meta.environment.find("arch");
  if (arch == v.meta.environment.end()) return arch_of(90);
  return {arch->at(0), arch->at(1), arch->at(2), arch->at(3)};
}

Plan plan_of(const Problem& problem, const Config& config, const Arch& arch) {
  return config.rung->plan({problem, arch, {}, kAnyWorkspace, "", ""}, config);
}

// numbers[i] is the KERNEL of the plan's unit i.
std::string launches_text(const std::string& shape, const std::vector<size_t>& numbers,
                          const Plan& plan) {
  std::string text = fmt::format("//   {}:", comment_text(shape));
  for (const cuda::Launch& launch : plan.launches) {
    text += fmt::format(" {}<<<{}, {}, {}>>> (KERNEL {})", launch.entry, launch.grid, launch.block,
                        launch.smem, numbers[launch.unit]);
  }
  return text + "\n";
}

}  // namespace

bool kernel_runs(const RunView& v) {
  Config config;
  if (v.meta.device == "cpu" || !v.best.source.empty() || !parse_config(v.best.config, &config))
    return false;
  return std::all_of(v.meta.shapes.begin(), v.meta.shapes.end(), [&](const TimedShape& s) {
    return config.rung->invalid(config, s.problem, arch_of_run(v)).empty();
  });
}

std::string kernel_program(const RunView& v) {
  Config config;
  parse_config(v.best.config, &config);
  const Arch arch = arch_of_run(v);
  std::vector<KernelSpec> specs;
  std::string launches;
  for (const TimedShape& s : v.meta.shapes) {
    const Plan plan = plan_of(s.problem, config, arch);
    std::vector<size_t> numbers;
    for (const KernelSpec& unit : plan.units) {
      auto at = std::find(specs.begin(), specs.end(), unit);
      if (at == specs.end()) at = specs.insert(at, unit);
      numbers.push_back(size_t(at - specs.begin()));
    }
    launches += launches_text(s.name, numbers, plan);
  }

  std::string text = fmt::format(
      "//\n// To compile it (KERNEL: 0 to {}, which of the kernels below):\n"
      "//   nvcc -std=c++20 -arch=sm_{}{} --expt-relaxed-constexpr -cubin -DKERNEL=0 "
      "best_program.cu "
      "-o best_program.cubin\n"
      "// The library compiles this same text when it is called. Its launches, with one "
      "KernelArgs\n"
      "// each (blocks, threads, bytes of shared memory):\n{}\n"
      "#ifndef KERNEL\n#define KERNEL 0\n#endif\n\n",
      specs.size() - 1, arch.cc, arch.cc >= 90 ? "a" : "", launches);
  // Headers go above, outside of the conditions.
  std::set<int> seen;
  std::string units;
  for (size_t n = 0; n < specs.size(); ++n) {
    units += fmt::format("\n#if KERNEL == {}\n", n);
    for (const std::string& line : lines_of(jit::emit(specs[n])))
      if (included(line) >= 0)
        text += written_out(line, &seen);
      else
        units += line;
    units += "#endif\n";
  }
  return text + units;
}

}  // namespace attune::evolve
