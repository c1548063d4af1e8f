// attune info: what the library found on this machine.
#include <fmt/format.h>

#include <attune/attention.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.hpp"
#include "cli/commit.hpp"
#include "cli/output.hpp"
#include "evolve/worker/sandbox.hpp"

namespace attune::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string scalar(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_null()) return "none";
  return value.dump();
}

bool all_scalars(const Json& list) {
  for (const Json& item : list)
    if (item.is_structured()) return false;
  return true;
}

// Every fact of the library's JSON, one a line and indented, so that a fact added there shows up
// here by itself.
void render(const Json& object, int indent, std::string& text) {
  for (const auto& [key, value] : object.items()) {
    if (value == "") continue;  // nothing to say: no reason against a backend that is usable
    text += fmt::format("{:{}}{}:", "", indent, key);
    if (value.is_array() && all_scalars(value)) {
      for (const Json& item : value) text += " " + scalar(item);
      text += value.empty() ? " none\n" : "\n";
    } else if (value.is_array()) {
      text += "\n";
      for (const Json& item : value) {
        std::string entry;
        if (item.is_object()) {
          render(item, indent + 4, entry);
          entry[static_cast<size_t>(indent) + 2] = '-';  // marks where an entry begins
        } else {
          entry = fmt::format("{:{}}- {}\n", "", indent + 2,
                              item.is_structured() ? item.dump() : scalar(item));
        }
        text += entry;
      }
    } else if (value.is_object()) {
      text += "\n";
      render(value, indent + 2, text);
    } else {
      text += " " + scalar(value) + "\n";
    }
  }
}

int info(const std::string& target) {
  Output json("--json", target);
  Json facts = Json::parse(attune::info());
  facts["commit"] = build_commit();
  const evolve::SandboxReport sandbox = evolve::sandbox_report();
  facts["sandbox"] = {{"seccomp", sandbox.seccomp},
                      {"user_namespaces", sandbox.namespaces},
                      {"landlock", sandbox.landlock},
                      {"missing", evolve::sandbox_gaps(sandbox)}};
  if (!json.is_stdout()) {
    std::string text;
    render(facts, 0, text);
    print(text);
  }
  json.write(facts.dump(2) + "\n");
  return kOk;
}

}  // namespace

void add_info(CLI::App& app, Run& run) {
  auto target = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand(
      "info", "Show devices, instruction sets, caches, sandbox; why a backend is unusable");
  add_output(sub, "--json", *target, "Write the facts as JSON to FILE");
  sub->footer(R"(Examples:
  attune info                      print everything, one fact on each line
  attune info --json               the same as JSON, for scripts
  attune info --json machine.json  write the JSON into a file, and print the text)");
  sub->callback([target, &run] { run = [target] { return info(*target); }; });
}

}  // namespace attune::cli
