// attune tuned: the configs that were found by measuring, and where each comes from.
#include "src/select/tuned.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "evolve/store/store.hpp"
#include "src/cpu/pool.hpp"
#include "src/rungs/defaults.hpp"

namespace attune::cli {
namespace {

using evolve::Json;

struct Options {
  std::string json, table, row;
  bool all = false, defaults = false;
};

// A row as people call it: by its number in the list, or by its id.
struct Item {
  size_t number;
  bool user;
  TunedRow row;
  Json provenance;
  std::string why_not;  // no call here can use it; empty: one can
};

struct Listing {
  std::string path;
  std::string problem;  // why nothing of the user's table counts
  std::vector<Item> items;
};

bool same_place(const TunedRow& a, const TunedRow& b) { return a.id == b.id; }

Listing read_all(const Options& options) {
  Listing listing{options.table.empty() ? table_path() : options.table, "", {}};
  TunedRows user = read_tuned(listing.path);
  listing.problem = user.problem;
  const TunedRows shipped = shipped_tuned();
  for (const TunedRows* rows : {&std::as_const(user), &shipped})
    for (const TunedRow& row : rows->rows)
      listing.items.push_back({listing.items.size() + 1, rows == &user, row,
                               evolve::parse_json(row.provenance), why_not_here(row)});
  for (Item& item : listing.items)
    for (const TunedRow& other : user.rows)
      if (!item.user && item.why_not.empty() && other.damage.empty() && same_place(item.row, other))
        item.why_not = "the user's table has a row for the same, which is used instead";
  return listing;
}

// What to know of a row that a call here can use.
std::string condition(const TunedRow& row) {
  const int usual = cpu::usable_threads();
  if (!row.is_cpu() || row.machine.threads == usual) return "";
  return fmt::format("calls with {} threads; the default here is {}", row.machine.threads, usual);
}

std::string machine_text(const TunedMachine& m) {
  std::string text = fmt::format("{}, {}", m.arch, m.device);
  if (m.threads > 0) text += fmt::format(", {} thread{}", m.threads, m.threads == 1 ? "" : "s");
  return text;
}

std::string sizes_text(const TunedSizes& s) {
  return fmt::format("{}x{}x{}", s.heads, s.seq_q, s.seq_k);
}

std::string date_text(const Json& provenance) {
  const auto date = provenance.find("date");
  if (date == provenance.end() || !date->is_string()) return "";
  return date->get<std::string>().substr(0, 10);
}

std::string speedup_text(const Json& provenance) {
  const auto speedup = provenance.find("speedup");
  if (speedup == provenance.end() || !speedup->is_object()) return "";
  const auto number = [&](const char* name) {
    const auto found = speedup->find(name);
    return found != speedup->end() && found->is_number() ? found->get<double>() : 0.0;
  };
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", number("mid"), number("low"), number("high"));
}

Json to_json(const Item& item) {
  const TunedRow& row = item.row;
  return {{"number", item.number},
          {"id", row.id},
          {"source", item.user ? "user" : "shipped"},
          {"key", row.key},
          {"machine",
           {{"arch", row.machine.arch},
            {"device", row.machine.device},
            {"threads", row.machine.threads}}},
          {"sizes",
           {{"heads", row.sizes.heads}, {"seq_q", row.sizes.seq_q}, {"seq_k", row.sizes.seq_k}}},
          {"config", row.config},
          {"applies", item.why_not.empty()},
          {"why", item.why_not.empty() ? condition(row) : item.why_not},
          {"provenance", item.provenance}};
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// ---- list ----

// The columns as wide as their longest entry.
std::string table_text(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths(lines[0].size(), 0);
  for (const auto& line : lines)
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (size_t c = 0; c < line.size(); ++c) row += fmt::format("{:<{}}  ", line[c], widths[c]);
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string applies_text(const Item& item) {
  if (!item.why_not.empty()) return "no: " + item.why_not;
  const std::string only = condition(item.row);
  return only.empty() ? "yes" : "yes: " + only;
}

int list(const Options& options) {
  Output json("--json", options.json);
  const Listing listing = read_all(options);
  Json rows = Json::array();
  std::vector<std::vector<std::string>> lines = {
      {"#", "id", "source", "kernel", "heads x Sq x Sk", "machine", "speed-up", "date", "applies"}};
  for (const Item& item : listing.items) {
    const TunedRow& row = item.row;
    rows.push_back(to_json(item));
    lines.push_back({std::to_string(item.number), row.id, item.user ? "user" : "shipped", row.key,
                     sizes_text(row.sizes), machine_text(row.machine),
                     speedup_text(item.provenance), date_text(item.provenance),
                     applies_text(item)});
  }
  if (!json.is_stdout()) {
    if (!listing.items.empty()) print(table_text(lines));
    talk(fmt::format("{} rows, the user's from {}", listing.items.size(),
                     listing.path.empty() ? "nowhere" : listing.path));
  }
  if (!listing.problem.empty())
    talk(fmt::format("{} {}", paint(Colour::red, "ignored:"), listing.problem));
  json.write(dump({{"table", listing.path}, {"problem", listing.problem}, {"rows", rows}}));
  return kOk;
}

// What a call takes without a row: of each table the first row that is for it.
int list_defaults(const Options& options) {
  Output json("--json", options.json);
  Json rows = Json::array();
  std::vector<std::vector<std::string>> lines = {{"rung", "table", "calls", "config", "source"}};
  for (const DefaultText& row : default_texts()) {
    rows.push_back({{"rung", row.rung},
                    {"table", row.table},
                    {"calls", row.when},
                    {"config", row.config},
                    {"source", row.source}});
    lines.push_back({row.rung, row.table, row.when, row.config, row.source});
  }
  if (!json.is_stdout()) print(table_text(lines));
  json.write(dump({{"rows", rows}}));
  return kOk;
}

// ---- show, remove ----

const Item& find(const Listing& listing, const std::string& name) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  for (const Item& item : listing.items)
    if (item.row.id == name || (is_number && item.number == number)) return item;
  if (!listing.problem.empty()) throw std::runtime_error(listing.problem);
  throw UsageError(fmt::format("no row '{}': 'attune tuned list' has their numbers and ids", name));
}

int show(const Options& options) {
  Output json("--json", options.json);
  const Listing listing = read_all(options);
  const Item& item = find(listing, options.row);
  const TunedRow& row = item.row;
  if (!json.is_stdout()) {
    const std::pair<const char*, std::string> facts[] = {
        {"row", fmt::format("{} ({})", item.number, row.id)},
        {"source", item.user ? "user: " + listing.path : "shipped"},
        {"kernel", row.key},
        {"heads x Sq x Sk", sizes_text(row.sizes)},
        {"machine", machine_text(row.machine)},
        {"config", row.config},
        {"applies", applies_text(item)}};
    std::string text;
    for (const auto& [name, value] : facts) text += fmt::format("{:<16} {}\n", name, value);
    print(text + "provenance       " + dump(item.provenance));
  }
  json.write(dump(to_json(item)));
  return kOk;
}

int remove(const Options& options) {
  if (options.all == !options.row.empty()) throw UsageError("remove takes a row, or --all");
  const Listing listing = read_all(options);
  if (options.all && !listing.problem.empty()) throw std::runtime_error(listing.problem);
  std::vector<std::string> ids;
  if (options.all) {
    for (const Item& item : listing.items)
      if (item.user) ids.push_back(item.row.id);
  } else {
    const Item& item = find(listing, options.row);
    if (!item.user)
      throw UsageError(fmt::format(
          "row {} ships with the library and cannot be removed; a row of your own for the same "
          "kernel and sizes is used instead of it",
          item.number));
    ids.push_back(item.row.id);
  }
  if (!ids.empty())
    if (const Status status = remove_tuned_rows(listing.path, ids); !status.ok())
      throw std::runtime_error(status.message);
  print(fmt::format("{} rows removed from {}\n", ids.size(), listing.path));
  return kOk;
}

CLI::App* add_command(CLI::App* tuned, const char* name, const char* help,
                      const std::shared_ptr<Options>& options) {
  CLI::App* sub = tuned->add_subcommand(name, help);
  sub->add_option("--table", options->table, "Use this table instead of the user's")
      ->type_name("FILE");
  return sub;
}

void add_json(CLI::App* sub, const std::shared_ptr<Options>& options) {
  add_output(sub, "--json", options->json, "Write the result as JSON to FILE");
}

}  // namespace

void add_tuned(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* tuned =
      app.add_subcommand("tuned", "Show or remove the kernel configs that `attune evolve` found");
  tuned->require_subcommand(1);
  tuned->footer(R"(Examples:
  attune tuned list
  attune tuned list --defaults
  attune tuned show 1
  attune tuned remove 1
  attune tuned remove --all

`attune evolve --promote` writes rows into the user's table. A call uses the user's row where there
is one for its problem, else a row that comes with the library, else the built-in default. The
user's table is tuned.json in ATTUNE_CACHE_DIR, else in $XDG_CACHE_HOME/attune, else in
~/.cache/attune.)");

  CLI::App* sub = add_command(tuned, "list",
                              "List every row, and whether calls on this machine use it", options);
  add_json(sub, options);
  sub->add_flag("--defaults", options->defaults,
                "List what tensor-core kernels use on a GPU where there is no row");
  sub->callback([options, &run] {
    run = [options] { return options->defaults ? list_defaults(*options) : list(*options); };
  });

  sub = add_command(tuned, "show", "Show one row in full, with the measurement that it comes from",
                    options);
  sub->add_option("row", options->row, "Number of the row in the list, or its id")->required();
  add_json(sub, options);
  sub->callback([options, &run] { run = [options] { return show(*options); }; });

  sub = add_command(tuned, "remove", "Remove rows from the user's table", options);
  sub->add_option("row", options->row, "Number of the row in the list, or its id");
  sub->add_flag("--all", options->all, "Remove all rows of the user's table");
  sub->callback([options, &run] { run = [options] { return remove(*options); }; });
}

}  // namespace attune::cli
