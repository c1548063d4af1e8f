#include "cli/machine.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <stdexcept>

#include "cli/names.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/pool.hpp"
#include "src/jit/nvrtc.hpp"

namespace attune::cli {
namespace {

[[noreturn]] void refuse_isa(const std::string& name) {
  throw UsageError(fmt::format("--isa: '{}' does not run here; this machine has {}", name,
                               fmt::join(cpu::isa_names(), ", ")));
}

}  // namespace

std::vector<std::string> settle_isas(const std::string& text) {
  if (text.empty()) return {cpu::isa_name()};
  const std::vector<std::string> available = cpu::isa_names();
  if (text == "all") return available;
  const std::vector<std::string> names = parsed("--isa", [&] { return split_list(text); });
  for (const std::string& name : names)
    if (std::find(available.begin(), available.end(), name) == available.end()) refuse_isa(name);
  return names;
}

void use_isa(const std::string& name) {
  if (!cpu::force_isa(name)) refuse_isa(name);
}

int settle_threads(int threads) { return threads == 0 ? cpu::usable_threads() : threads; }

uint64_t settle_seed(const std::string& text) {
  if (text.empty()) return std::random_device{}();
  return parsed("--seed", [&] { return parse_seed(text); });
}

int concurrent_threads(int threads) { return std::min(threads, cpu::usable_threads()); }

double peak_gflops(int threads, double seconds) {
  std::vector<double> flops(static_cast<size_t>(threads), 0.0);
  cpu::Executor{threads}.parallel_for(threads, [&](int64_t i) {
    flops[static_cast<size_t>(i)] = cpu::measure_peak_flops(seconds);
  });
  double sum = 0;
  for (double f : flops) sum += f;
  return sum / 1e9;
}

cuda::Device cuda_device() {
  cuda::Device device;
  for (const std::string& why : {cuda::why_unusable(), jit::nvrtc().problem})
    if (!why.empty()) throw std::runtime_error("--device cuda: " + why);
  if (const Status status = cuda::device(0, &device); !status.ok())
    throw std::runtime_error("--device cuda: " + status.message);
  return device;
}

std::optional<int64_t> available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  int64_t kilobytes = 0;
  while (file >> word)
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  return std::nullopt;
}

}  // namespace attune::cli
