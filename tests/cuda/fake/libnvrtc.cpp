// A run-time compiler that compiles nothing: every unit becomes the same few bytes. What it lacks
// memory for it says, as the real one should.
#include <cstdlib>
#include <cstring>

#define ATTUNE_FAKE(name) extern "C" __attribute__((visibility("default"))) int name

namespace {

constexpr int kSuccess = 0, kOutOfMemory = 1, kInvalidInput = 3;
constexpr char kLog[] =
    "ptxas info    : Compiling entry function 'attune_fake' for 'sm_90a'\n"
    "ptxas info    : Used 32 registers, used 1 barriers\n";
constexpr char kCubin[] =
    "\x7f"
    "ELF and nothing else";

struct Program {
  int compiled;
};

// What a real one would need while it answers.
int need_memory() {
  void* memory = std::malloc(1000);
  std::free(memory);
  return memory != nullptr ? kSuccess : kOutOfMemory;
}

template <size_t N>
int give(const char (&bytes)[N], char* to) {
  std::memcpy(to, bytes, N);
  return need_memory();
}

}  // namespace

ATTUNE_FAKE(nvrtcCreateProgram)
(Program** program, const char*, const char*, int, const char* const*, const char* const*) {
  *program = static_cast<Program*>(std::calloc(1, sizeof(Program)));
  return *program != nullptr ? kSuccess : kOutOfMemory;
}
ATTUNE_FAKE(nvrtcDestroyProgram)(Program** program) {
  std::free(*program);
  return kSuccess;
}
ATTUNE_FAKE(nvrtcCompileProgram)(Program* program, int, const char* const*) {
  program->compiled = 1;
  return need_memory();
}
ATTUNE_FAKE(nvrtcGetProgramLogSize)(Program*, size_t* bytes) {
  *bytes = sizeof(kLog);
  return kSuccess;
}
ATTUNE_FAKE(nvrtcGetProgramLog)(Program*, char* log) { return give(kLog, log); }
ATTUNE_FAKE(nvrtcGetCUBINSize)(Program*, size_t* bytes) {
  *bytes = sizeof(kCubin);
  return kSuccess;
}
ATTUNE_FAKE(nvrtcGetCUBIN)(Program* program, char* cubin) {
  return program->compiled != 0 ? give(kCubin, cubin) : kInvalidInput;
}
ATTUNE_FAKE(nvrtcGetNumSupportedArchs)(int* count) {
  *count = 2;
  return need_memory();
}
ATTUNE_FAKE(nvrtcGetSupportedArchs)(int* archs) {
  archs[0] = 80;
  archs[1] = 90;
  return kSuccess;
}
extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int result) {
  return result == kOutOfMemory ? "NVRTC_ERROR_OUT_OF_MEMORY" : "some error";
}
