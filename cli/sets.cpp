#include "cli/sets.hpp"

#include <nlohmann/json.hpp>

#include "cli/names.hpp"
#include "src/jit/source.hpp"

namespace attune::cli {

extern const jit::Header kSetSources[];  // cli/sets.json, made by the build

namespace {

using Json = nlohmann::json;

const Json& all_sets() {
  static const Json sets = Json::parse(kSetSources[0].text);
  return sets;
}

}  // namespace

std::vector<NamedSet> named_sets() {
  std::vector<NamedSet> sets;
  for (const Json& set : all_sets()) sets.push_back({set["name"], set["about"]});
  return sets;
}

std::vector<Work> set_rows(const std::string& name) {
  std::vector<Work> rows;
  for (const Json& set : all_sets()) {
    const std::string own = set["name"];
    if (name != own && name != set.value("old_name", own)) continue;
    for (const Json& group : set["groups"])
      for (const std::string shape : group["shapes"])
        for (const bool causal : group["causal"])
          rows.push_back({set["name"], parse_shape(shape),
                          names("dtype", group["dtype"], kDTypes).front(), causal});
  }
  return rows;
}

}  // namespace attune::cli
