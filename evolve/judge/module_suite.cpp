#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "evolve/judge/cheat_suite.hpp"
#include "src/jit/source.hpp"

namespace attune::evolve {

extern const jit::Header kModuleSources[];  // tests/python/modules, made by the build
extern const size_t kModuleSourcesCount;

namespace {

namespace fs = std::filesystem;

std::span<const jit::Header> module_sources() { return {kModuleSources, kModuleSourcesCount}; }

nlohmann::json module_manifest() {
  for (const jit::Header& one : module_sources())
    if (one.name == std::string("manifest.json")) return nlohmann::json::parse(one.text);
  throw std::runtime_error("the modules have no manifest");
}

std::vector<ModuleFixture> read_suite() {
  const nlohmann::json list = module_manifest();
  std::vector<ModuleFixture> all;
  for (const nlohmann::json& f : list.at("fixtures")) {
    ModuleFixture one{fs::path(f.at("file").get<std::string>()).stem(), f.at("expected"),
                      list.at("options")};
    for (const std::string option : f.value("options", nlohmann::json::array()))
      one.options.push_back(option);
    all.push_back(std::move(one));
  }
  return all;
}

void write_fixture(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw std::runtime_error(path.string() + " cannot be written");
}

}  // namespace

const std::vector<ModuleFixture>& module_suite() {
  static const std::vector<ModuleFixture> all = read_suite();
  return all;
}

void write_module_suite(const std::string& folder) {
  fs::create_directory(folder);
  for (const jit::Header& one : module_sources())
    write_fixture(fs::path(folder) / one.name, one.text);
  write_fixture(fs::path(folder).parent_path() / "conftest.py", "SECRET = 'of the user'\n");
}

}  // namespace attune::evolve
