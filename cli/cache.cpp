// attune cache: the compiled kernels on this machine's disk.
#include "src/jit/cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "src/cuda/device.hpp"
#include "src/jit/kernel.hpp"
#include "src/select/cuda_select.hpp"

namespace attune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string json;
  int arch = 0;  // 0: of the device here
  bool quick = false;
  int jobs = 0;
};

std::string need_dir() {
  std::string dir = jit::cache_dir();
  if (dir.empty())
    throw std::runtime_error(
        "there is no kernel cache: ATTUNE_CACHE_DIR, XDG_CACHE_HOME and HOME are all unset");
  return dir;
}

// A text out of a file, or the name of one, for a terminal: bytes that are not printed become "?".
std::string printable(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool second = c >= 0x80 && c < 0xa0 && i > 0 && text[i - 1] == '\xc2';  // U+0080 to 9F
    if (second) text[i - 1] = '?';
    if (c < ' ' || c == 0x7f || second) text[i] = '?';
  }
  return text;
}

// Valid JSON whatever bytes the names of files have.
std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string human_bytes(int64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} KB", double(bytes) / 1e3);
  return fmt::format("{:.1f} MB", double(bytes) / 1e6);
}

std::string human_age(int64_t seconds) {
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} days", seconds / 86400);
}

Json resources_json(const jit::CacheEntry& entry) {
  Json list = Json::array();
  for (const jit::Resources& r : entry.resources)
    list.push_back({{"entry", r.entry},
                    {"registers", r.registers},
                    {"stack_bytes", r.stack},
                    {"spill_bytes", r.spill_stores + r.spill_loads},
                    {"static_smem_bytes", r.smem}});
  return list;
}

// ---- list, clear ----

int list(const Options& options) {
  Output json("--json", options.json);
  const std::string dir = need_dir();
  const std::vector<jit::CacheItem> items = jit::list_cache(dir);
  Json entries = Json::array();
  std::string table;
  int64_t bytes = 0;
  size_t width = 2;
  for (const jit::CacheItem& item : items) width = std::max(width, item.entry.id.size());
  for (const jit::CacheItem& item : items) {
    bytes += item.bytes;
    table += fmt::format("{:<{}}  {:<7} {:>9} {:>8}  {:>8}\n", printable(item.entry.id), width,
                         printable(item.entry.arch), human_bytes(item.bytes),
                         human_age(item.age_seconds), fmt::format("{:.2f} s", item.entry.seconds));
    entries.push_back({{"id", item.entry.id},
                       {"arch", item.entry.arch},
                       {"key", item.key},
                       {"bytes", item.bytes},
                       {"age_seconds", item.age_seconds},
                       {"compile_seconds", item.entry.seconds},
                       {"kernels", resources_json(item.entry)}});
  }
  if (!json.is_stdout()) {
    if (!items.empty())
      table = fmt::format("{:<{}}  {:<7} {:>9} {:>8}  {:>8}\n", "id", width, "arch", "size", "age",
                          "compiled") +
              table;
    print(table);
    talk(fmt::format("{} kernels, {} in {}", items.size(), human_bytes(bytes), printable(dir)));
  }
  const std::string refused = jit::why_refused(dir);
  if (!refused.empty()) talk("the kernel cache is not used: " + printable(refused));
  json.write(dump({{"dir", dir}, {"bytes", bytes}, {"warning", refused}, {"entries", entries}}));
  return kOk;
}

int clear(const Options&) {
  const std::string dir = need_dir();
  const jit::Cleared cleared = jit::clear_cache(dir);
  print(fmt::format("{} kernels, {} bytes removed from {}\n", cleared.removed.entries,
                    cleared.removed.bytes, printable(dir)));
  if (cleared.kept > 0) talk(fmt::format("{} kernels could not be removed", cleared.kept));
  if (cleared.others > 0)
    talk(fmt::format("{} files are named as kernels but are none: they stay", cleared.others));
  return cleared.kept == 0 ? kOk : kFailed;
}

// ---- warm ----

Arch arch_to_warm(const Options& options) {
  if (options.arch != 0) return arch_of(options.arch);
  if (const std::string& why = cuda::why_unusable(); !why.empty())
    throw UsageError(fmt::format("--arch is needed here, for instance --arch 90: {}", why));
  cuda::Device device;
  for (int i = 0; i < cuda::device_count(); ++i)
    if (cuda::device(i, &device).ok() && device.arch.cc >= 75) return device.arch;
  throw std::runtime_error("no CUDA device can be used");
}

struct Warmed {
  std::string id;
  Status status;
  jit::Origin origin = jit::Origin::compiler;
  jit::CacheEntry entry;  // without the cubin
};

struct Unit {
  std::string id;  // of its plan
  KernelSpec spec;
};

std::vector<Unit> units_of(const std::vector<Plan>& plans) {
  std::vector<Unit> units;
  for (const Plan& plan : plans)
    for (const KernelSpec& spec : plan.units) units.push_back({plan.id, spec});
  return units;
}

// Every unit, on several threads; a failure stops nothing but itself.
std::vector<Warmed> compile_all(const std::vector<Unit>& units, int jobs) {
  std::vector<Warmed> results(units.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Progress progress{int64_t(units.size())};
  const auto work = [&] {
    for (size_t i = next++; i < units.size() && !interrupted(); i = next++) {
      {
        std::lock_guard lock(mutex);
        progress.step(units[i].id);
      }
      Warmed& w = results[i];
      w.id = units[i].id;
      w.status = jit::obtain(units[i].spec, w.id, &w.entry, &w.origin);
      w.entry.cubin.clear();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  std::erase_if(results, [](const Warmed& w) { return w.id.empty(); });  // interrupted before
  return results;
}

Json warmed_json(const Warmed& w) {
  return {{"id", w.id},
          {"arch", w.entry.arch},
          {"from", !w.status.ok()                  ? ""
                   : w.origin == jit::Origin::disk ? "cache"
                                                   : "compiler"},
          {"compile_seconds", w.entry.seconds},
          {"kernels", resources_json(w.entry)},
          {"error", w.status.message}};
}

int warm(const Options& options) {
  Output json("--json", options.json);
  const std::string dir = need_dir();
  const Arch arch = arch_to_warm(options);
  const std::vector<Unit> units = units_of(shipped_plans(arch, options.quick));
  const int all = int(std::max(1u, std::thread::hardware_concurrency()));
  talk(fmt::format("{} kernels for compute capability {}.{} into {}", units.size(), arch.cc / 10,
                   arch.cc % 10, printable(dir)));
  jit::on_compile(nullptr);  // the progress line says it
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Warmed> results = compile_all(units, options.jobs > 0 ? options.jobs : all);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  Json kernels = Json::array();
  int64_t compiled = 0, cached = 0, failed = 0;
  for (const Warmed& w : results) {
    kernels.push_back(warmed_json(w));
    if (!w.status.ok()) {
      ++failed;
      talk(fmt::format("{} {}: {}", paint(Colour::red, "failed:"), w.id, w.status.message));
    } else {
      ++(w.origin == jit::Origin::disk ? cached : compiled);
    }
  }
  if (const std::string warning = jit::cache_warning(); !warning.empty()) talk(printable(warning));
  if (!json.is_stdout())
    print(fmt::format("{} compiled, {} already there, {} failed, {:.1f} s\n", compiled, cached,
                      failed, seconds));
  json.write(dump({{"arch", arch.cc},
                   {"dir", dir},
                   {"compiled", compiled},
                   {"cached", cached},
                   {"failed", failed},
                   {"seconds", seconds},
                   {"warning", jit::cache_warning()},
                   {"kernels", kernels}}));
  if (interrupted()) return kInterrupted;
  return failed == 0 ? kOk : kFailed;
}

void add_json(CLI::App* sub, const std::shared_ptr<Options>& options) {
  add_output(sub, "--json", options->json, "Write the result as JSON to FILE");
}

}  // namespace

void add_cache(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* cache =
      app.add_subcommand("cache", "List, fill or empty the disk cache of compiled CUDA kernels");
  cache->require_subcommand(1);
  cache->footer(R"(Examples:
  attune cache list
  attune cache warm
  attune cache warm --arch 90 --quick
  attune cache clear

A call that needs a kernel compiles it once and keeps it here. `warm` compiles all of them for the
GPU of this machine, or with --arch for another one; that needs no GPU. After `clear`, calls compile
what they need again.

The folder is ATTUNE_CACHE_DIR, else $XDG_CACHE_HOME/attune, else ~/.cache/attune.)");

  CLI::App* sub = cache->add_subcommand("list", "List the compiled kernels, the newest first");
  add_json(sub, options);
  sub->callback([options, &run] { run = [options] { return list(*options); }; });

  sub = cache->add_subcommand(
      "warm", "Compile every kernel of the library now, so that no call has to wait for it");
  sub->add_option(
         "--arch", options->arch,
         "Compute capability without the point: 90 means 9.0.\nDefault: that of the GPU here")
      ->check(CLI::IsMember({75, 80, 86, 87, 89, 90, 100, 103, 120, 121}));
  sub->add_flag("--quick", options->quick, "Compile only one kernel of each kind");
  sub->add_option("--jobs", options->jobs,
                  "Kernels to compile at the same time; 0 (default): one for each\nprocessor")
      ->check(CLI::Range(0, 256));
  add_json(sub, options);
  sub->callback([options, &run] { run = [options] { return warm(*options); }; });

  sub = cache->add_subcommand("clear", "Delete all compiled kernels");
  sub->callback([options, &run] { run = [options] { return clear(*options); }; });
}

}  // namespace attune::cli
