// Which tuned row a call gets.
#include "src/select/tuned.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <memory>

#include "src/cpu/fused.hpp"
#include "src/cpu/fused_task.hpp"
#include "src/cuda/device.hpp"
#include "src/json.hpp"
#include "src/select/cuda_select.hpp"

namespace attune {
namespace {

std::atomic<const TunedTable*> g_table{nullptr};
std::atomic<bool> g_use{true};

void name_rows(const std::string& table, TunedRows* rows) {
  for (TunedRow& row : rows->rows) row.origin = fmt::format("{}, row {}", table, row.id);
}

std::unique_ptr<TunedTable> load() {
  auto table = std::make_unique<TunedTable>();
  table->path = table_path();
  table->user = read_tuned(table->path);
  table->shipped = shipped_tuned();
  if (!table->user.rows.empty() || !table->shipped.rows.empty())
    table->processor = processor_name();
  name_rows("user table " + table->path, &table->user);
  name_rows("shipped table", &table->shipped);
  return table;
}

// Sizes of 1 and more, each within a factor of two, and all rows of all heads within one and a
// half: how many blocks they make decides which tile is good. Most rows end here, so no logarithm
// yet.
bool is_near(const TunedSizes& a, const TunedSizes& b) {
  const auto within = [](double factor, double x, double y) {
    return x <= factor * y && y <= factor * x;
  };
  const auto rows = [](const TunedSizes& s) { return double(s.heads) * double(s.seq_q); };
  return std::min({a.heads, a.seq_q, a.seq_k, b.heads, b.seq_q, b.seq_k}) >= 1 &&
         within(2, double(a.heads), double(b.heads)) &&
         within(2, double(a.seq_q), double(b.seq_q)) &&
         within(2, double(a.seq_k), double(b.seq_k)) && within(1.5, rows(a), rows(b));
}

// log2 of the ratios, squared and summed.
double distance(const TunedSizes& a, const TunedSizes& b) {
  double sum = 0;
  for (const auto& [x, y] : {std::pair{a.heads, b.heads}, {a.seq_q, b.seq_q}, {a.seq_k, b.seq_k}}) {
    const double steps = std::log2(double(x) / double(y));
    sum += steps * steps;
  }
  return sum;
}

// What of the machine can differ from call to call on the same device.
std::string other_machine(const TunedMachine& tuned, const TunedMachine& here) {
  if (tuned.arch != here.arch)
    return fmt::format("tuned for {}; this call runs on {}", tuned.arch, here.arch);
  if (tuned.threads != here.threads)
    return fmt::format("tuned with {} threads; this call has {}", tuned.threads, here.threads);
  return "";
}

std::string date_of(const TunedRow& row) {
  std::string date;
  return JsonValue(row.provenance).find("date").get(&date) ? ", " + date : "";
}

void find_in(const TunedRows& rows, const TunedQuery& query,
             const std::function<std::string(const TunedRow&)>& why_not, TunedAnswer* answer) {
  struct Near {
    bool without_lse;
    double distance;
    const TunedRow* row;
  };
  std::vector<Near> near;
  for (const TunedRow& row : rows.rows)
    if (is_near(row.sizes, query.sizes) &&
        (row.key == query.key ||
         (!query.key_without_lse.empty() && row.key == query.key_without_lse)) &&
        row.machine.device == query.machine.device && row.config.starts_with(query.rung))
      near.push_back({row.key != query.key, distance(row.sizes, query.sizes), &row});
  std::stable_sort(near.begin(), near.end(), [](const Near& a, const Near& b) {
    return std::pair(a.without_lse, a.distance) < std::pair(b.without_lse, b.distance);
  });
  for (const Near& n : near) {
    std::string reason = n.row->damage;
    if (reason.empty()) reason = other_machine(n.row->machine, query.machine);
    if (reason.empty()) reason = why_not(*n.row);
    if (reason.empty()) {
      answer->row = n.row;
      answer->from = "tuned: " + n.row->origin + date_of(*n.row);
      return;
    }
    answer->passed_over.push_back(n.row->origin + ": " + reason);
  }
}

// why_not(problem) for the problem of the row. A key has no dtype of its bias: one that runs is
// enough.
template <class WhyNot>
std::string why_invalid(const TunedRow& row, const WhyNot& why_not) {
  Problem p;
  if (!parse_problem_id(row.key, &p))
    return fmt::format("{} is no kernel of this version", row.key);
  p.batch = std::max<int64_t>(1, row.sizes.heads / p.heads_q);
  p.seq_q = row.sizes.seq_q;
  p.seq_k = row.sizes.seq_k;
  std::string reason = why_not(p);
  if (p.mask > MaskKind::boolean)
    for (const MaskKind kind : {MaskKind::f16, MaskKind::bf16}) {
      p.mask = kind;
      if (!reason.empty()) reason = why_not(p);
    }
  return reason;
}

std::string why_not_on_gpus(const TunedRow& row) {
  if (const std::string& why = cuda::why_unusable(); !why.empty()) return why;
  for (int i = 0; i < cuda::device_count(); ++i) {
    cuda::Device device;
    if (!cuda::device(i, &device).ok() || device.name != row.machine.device ||
        fmt::format("sm{}", device.arch.cc) != row.machine.arch)
      continue;
    Config config;
    if (!parse_config(row.config, &config)) return "its config cannot be read";
    return why_invalid(
        row, [&](const Problem& p) { return config.rung->invalid(config, p, device.arch); });
  }
  return "tuned for another GPU";
}

std::string why_not_on_cpu(const TunedRow& row) {
  if (row.machine.device != processor_name()) return "tuned for another processor";
  if (row.machine.arch != cpu::isa_name())
    return fmt::format("tuned for {}; this machine runs {}", row.machine.arch, cpu::isa_name());
  const auto config = cpu::parse_isa_config(row.config);
  if (!config) return "its config cannot be read";
  const cpu::IsaTable* isa = config->isa.empty() ? cpu::isa_table() : cpu::isa_table(config->isa);
  if (isa == nullptr) return config->isa + " does not run here";
  return why_invalid(row, [&](const Problem& p) -> std::string {
    return cpu::invalid_reason(config->config, p, isa->arch);
  });
}

// The first processor is all that is asked for. Not by a stream: one that finds no memory says that
// the file ended.
std::string head_of_cpuinfo() {
  std::string text(size_t{1} << 14, '\0');
  const int file = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
  size_t size = 0;
  while (file >= 0 && size < text.size()) {
    const ssize_t n = read(file, text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    size += size_t(n);
  }
  if (file >= 0) close(file);
  text.resize(size);
  return text;
}

}  // namespace

const TunedTable* tuned_table() {
  if (!g_use.load(std::memory_order_relaxed)) return nullptr;
  const TunedTable* table = g_table.load(std::memory_order_acquire);
  if (table != nullptr) return table;
  // Threads that come here together all read the file; the first one's table stays.
  std::unique_ptr<TunedTable> fresh = load();
  if (g_table.compare_exchange_strong(table, fresh.get())) table = fresh.release();
  return table;
}

void reload_tuned() {
  std::unique_ptr<TunedTable> fresh = load();
  const TunedTable* before = g_table.load();
  do {
    fresh->previous = before;
  } while (!g_table.compare_exchange_weak(before, fresh.get()));
  static_cast<void>(fresh.release());
}

void use_tuned(bool use) { g_use = use; }

TunedAnswer find_tuned(const TunedTable& table, const TunedQuery& query,
                       const std::function<std::string(const TunedRow&)>& why_not) {
  TunedAnswer answer;
  if (!table.user.problem.empty()) answer.passed_over.push_back(table.user.problem);
  find_in(table.user, query, why_not, &answer);
  if (answer.row == nullptr) find_in(table.shipped, query, why_not, &answer);
  return answer;
}

TunedQuery tuned_query(const Problem& problem, const std::string& machine) {
  TunedQuery query;
  query.key = problem_id(problem, machine);
  query.sizes = TunedSizes::of(problem);
  if (problem.lse) {
    Problem without = problem;
    without.lse = false;
    query.key_without_lse = problem_id(without, machine);
  }
  return query;
}

std::string processor_name() {
  const std::string text = head_of_cpuinfo();
  std::string_view rest = text, implementer;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const size_t colon = line.find(": ");
    if (colon == std::string_view::npos) continue;
    const std::string_view value = line.substr(colon + 2);
    if (line.starts_with("model name")) return std::string(value);
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) return fmt::format("Arm {} part {}", implementer, value);
  }
  return "";
}

std::string why_not_here(const TunedRow& row) {
  if (!row.damage.empty()) return row.damage;
  return row.is_cpu() ? why_not_on_cpu(row) : why_not_on_gpus(row);
}

}  // namespace attune
