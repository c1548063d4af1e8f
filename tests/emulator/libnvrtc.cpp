// A run-time compiler for the emulated GPU: the kernel's text becomes a shared object, by g++. The
// headers of kernels/ptx are replaced by ptx.h.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "src/jit/source.hpp"

#define ATTUNE_NVRTC(name) extern "C" __attribute__((visibility("default"))) int name

namespace attune::emulator {

extern const jit::Header kFiles[];  // this folder's headers for kernels
extern const size_t kFilesCount;

}  // namespace attune::emulator

namespace {

namespace fs = std::filesystem;

constexpr int kSuccess = 0, kInvalidInput = 3, kCompilation = 6;

struct Header {
  std::string name, text;
};

struct Program {
  std::string source, log, image;
  std::vector<Header> headers;
};

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// Dynamic shared memory is the machine's.
std::string with_shared_memory(const std::string& text) {
  if (text.find("extern __shared__") == std::string::npos) return text;
  static const std::regex declaration(
      R"(extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];)");
  return std::regex_replace(
      text, declaration,
      "$1* const $2 = reinterpret_cast<$1*>(attune::emulator::machine().shared);");
}

// The emitted unit: without its own wgmma instructions, and with a function for each entry that the
// driver can call.
std::string unit_text(std::string text) {
  const std::string begin = "namespace attune::ptx {\n", end = "}  // namespace attune::ptx\n";
  if (const size_t at = text.find(begin); at != std::string::npos)
    text.erase(at, text.find(end) + end.size() - at);
  static const std::regex entry(
      R"re(extern "C" __global__ void\s+__launch_bounds__\([^\n]*\)\s+(\w+)\()re");
  std::string exported;
  for (std::sregex_iterator it(text.begin(), text.end(), entry), none; it != none; ++it) {
    const std::string name = (*it)[1];
    exported += "extern \"C\" __attribute__((visibility(\"default\"))) void attune_emulated_" +
                name +
                "(emulator::Machine* machine, void** args) {\n"
                "  if (machine != nullptr) emulator::g_machine = machine;\n"
                "  if (args != nullptr) emulator::call(&" +
                name + ", args);\n}\n";
  }
  return "#include \"emulator/cuda.h\"\n#line 1 \"attune_kernel.cu\"\n" + with_shared_memory(text) +
         "\nnamespace attune {\n" + exported + "}\n";
}

// A folder of its own, gone at the end.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "attune-emulator-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string quoted(const fs::path& path) {
  std::string text = "'";
  text += path.string();
  text += '\'';
  return text;
}

int compile(Program* program, int cc) {
  const Scratch scratch;
  if (scratch.path().empty()) return kInvalidInput;
  for (const Header& h : program->headers)
    write(scratch.path() / h.name, h.name.starts_with("ptx/") ? "#include \"emulator/ptx.h\"\n"
                                                              : with_shared_memory(h.text));
  for (size_t n = 0; n < attune::emulator::kFilesCount; ++n)
    write(scratch.path() / "emulator" / attune::emulator::kFiles[n].name,
          std::string(attune::emulator::kFiles[n].text));
  const fs::path unit = scratch.path() / "unit.cpp", image = scratch.path() / "unit.so",
                 log = scratch.path() / "log";
  write(unit, unit_text(program->source));
  const std::string command =
      "g++ -std=c++20 -O1 -w -fPIC -shared -fvisibility=hidden -D__CUDA_ARCH__=" +
      std::to_string(cc * 10) + " -I" + quoted(scratch.path()) + " " + quoted(unit) + " -o " +
      quoted(image) + " >" + quoted(log) + " 2>&1";
  const bool failed = std::system(command.c_str()) != 0;
  program->log = read(log);
  if (failed) return kCompilation;
  program->image = read(image);
  return kSuccess;
}

}  // namespace

ATTUNE_NVRTC(nvrtcCreateProgram)
(Program** program, const char* source, const char*, int count, const char* const* texts,
 const char* const* names) {
  *program = new Program{source, "", "", {}};
  for (int n = 0; n < count; ++n) (*program)->headers.push_back({names[n], texts[n]});
  return kSuccess;
}
ATTUNE_NVRTC(nvrtcDestroyProgram)(Program** program) {
  delete *program;
  return kSuccess;
}
ATTUNE_NVRTC(nvrtcCompileProgram)(Program* program, int count, const char* const* options) {
  int cc = 0;
  for (int n = 0; n < count; ++n) std::sscanf(options[n], "--gpu-architecture=sm_%d", &cc);
  return cc > 0 ? compile(program, cc) : kInvalidInput;
}
ATTUNE_NVRTC(nvrtcGetProgramLogSize)(Program* program, size_t* bytes) {
  *bytes = program->log.size() + 1;
  return kSuccess;
}
ATTUNE_NVRTC(nvrtcGetProgramLog)(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return kSuccess;
}
ATTUNE_NVRTC(nvrtcGetCUBINSize)(Program* program, size_t* bytes) {
  *bytes = program->image.size();
  return kSuccess;
}
ATTUNE_NVRTC(nvrtcGetCUBIN)(Program* program, char* image) {
  std::memcpy(image, program->image.data(), program->image.size());
  return kSuccess;
}
ATTUNE_NVRTC(nvrtcGetNumSupportedArchs)(int* count) {
  *count = 4;
  return kSuccess;
}
ATTUNE_NVRTC(nvrtcGetSupportedArchs)(int* archs) {
  constexpr int kArchs[] = {75, 80, 90, 100};
  std::memcpy(archs, kArchs, sizeof(kArchs));
  return kSuccess;
}
extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int result) {
  return result == kCompilation ? "NVRTC_ERROR_COMPILATION" : "some error";
}
