#include "src/jit/dump.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "src/jit/source.hpp"

namespace attune::jit {
namespace {

namespace fs = std::filesystem;

void write_file(const fs::path& path, std::string_view bytes) {
  if (bytes.empty()) return;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

// A plan's id as a file name, with enough of the key to tell kernels of one id apart.
std::string file_name(std::string id, const Digest& key) {
  for (char& c : id)
    if (c == '/') c = '-';
  return id + "-" + hex(key).substr(0, 8);
}

}  // namespace

std::string dump_dir() {
  const char* dir = secure_getenv("ATTUNE_DUMP_DIR");
  return dir != nullptr ? dir : "";
}

void dump(const std::string& id, const Digest& key, std::string_view source, std::string_view cubin,
          std::string_view log) {
  const std::string dir = dump_dir();
  if (dir.empty()) return;
  const fs::path stem = fs::path(dir) / file_name(id, key);
  write_file(stem.string() + ".cu", source);
  write_file(stem.string() + ".cubin", cubin);
  write_file(stem.string() + ".log", log);
  const Headers& all = headers();
  for (size_t i = 0; i < all.names.size(); ++i)
    write_file(fs::path(dir) / "kernels" / all.names[i], all.texts[i]);
}

}  // namespace attune::jit
