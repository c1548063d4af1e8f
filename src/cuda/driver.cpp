#include "src/cuda/driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>

#include "src/cuda/fork.hpp"

namespace attune::cuda {
namespace {

constexpr int kOldestVersion = 12000;  // the oldest run-time compiler that knows C++20 is 12.0

std::mutex g_mutex;
const HeldOverFork<g_mutex> g_held;
std::atomic<bool> g_settled{false};
std::atomic<bool> g_forked{
    false};  // this process got an initialised driver from its parent: useless
Driver g_driver;
std::string g_problem;

// The loader has only words for its errors, and often without the reason: it does not see the C
// library's errno.
bool speaks_of_memory(std::string_view text) {
  for (const char* words : {"out of memory", "cannot allocate", "cannot create", "cannot extend"})
    if (text.find(words) != std::string_view::npos) return true;
  return text.find(std::strerror(ENOMEM)) != std::string_view::npos ||
         text.ends_with("cannot open shared object file");  // it could not copy the path
}

// What is wrong with the driver; empty when it is ready.
std::string open_driver() {
  std::string why;
  void* library = open_library("libcuda.so.1", RTLD_NOW | RTLD_LOCAL, &why);
  if (library == nullptr) return fmt::format("there is no NVIDIA driver: {}", why);
  const char* missing = nullptr;
#define ATTUNE_CUDA_LOAD(name, suffix, parameters)                                         \
  g_driver.name = reinterpret_cast<CUresult(*) parameters>(dlsym(library, #name #suffix)); \
  if (g_driver.name == nullptr) missing = #name #suffix;
  ATTUNE_CUDA_CALLS(ATTUNE_CUDA_LOAD)
#undef ATTUNE_CUDA_LOAD
  int version = 0;
  if (g_driver.cuDriverGetVersion != nullptr) g_driver.cuDriverGetVersion(&version);
  if (missing != nullptr || version < kOldestVersion)
    return fmt::format("the NVIDIA driver is too old: it supports CUDA {}, but {} is needed{}",
                       version_text(version), version_text(kOldestVersion),
                       missing != nullptr ? fmt::format(" (it has no {})", missing) : "");
  g_driver.version = version;
  const CUresult result = g_driver.cuInit(0);
  if (result == kSuccess) {
    if (pthread_atfork(nullptr, nullptr, [] { g_forked = true; }) != 0) throw std::bad_alloc();
    return "";
  }
  if (result == kOutOfMemory) throw std::bad_alloc();  // the next call may find some
  return cuda_status(result, "cuInit").message;
}

void settle() {
  if (g_settled.load(std::memory_order_acquire)) return;
  std::lock_guard lock(g_mutex);
  if (g_settled.load(std::memory_order_relaxed)) return;
  g_problem = open_driver();
  g_settled.store(true, std::memory_order_release);
}

}  // namespace

void* open_library(const char* path, int flags, std::string* why) {
  if (void* library = dlopen(path, flags)) return library;
  const char* text = dlerror();
  if (text == nullptr || speaks_of_memory(text)) throw std::bad_alloc();
  *why = text;
  return nullptr;
}

const Driver* driver() {
  settle();
  return g_problem.empty() ? &g_driver : nullptr;
}

const std::string& driver_problem() {
  settle();
  return g_problem;
}

Status need_driver(const Driver** result) {
  *result = driver();
  if (*result == nullptr) return Status::unsupported("CUDA cannot be used: " + g_problem);
  if (g_forked.load(std::memory_order_relaxed))
    return {
        ATTUNE_CUDA_ERROR,
        "this process was forked from one that had already used CUDA, and the driver does not work "
        "in it: use CUDA after the fork only, or start the process anew (spawn, exec)"};
  return {};
}

Status cuda_status(CUresult result, const char* call, const std::string& kernel) {
  if (result == kSuccess) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  // Asked for by the table, not by driver(): the failing call may be the one that settles it.
  if (g_driver.cuGetErrorName != nullptr) g_driver.cuGetErrorName(result, &name);
  if (g_driver.cuGetErrorString != nullptr) g_driver.cuGetErrorString(result, &text);
  return {result == kOutOfMemory ? ATTUNE_OUT_OF_MEMORY : ATTUNE_CUDA_ERROR,
          fmt::format("{}{}{}: {} ({})", call, kernel.empty() ? "" : " of ", kernel,
                      name != nullptr ? name : fmt::format("error {}", result),
                      text != nullptr ? text : "the driver has no text for it")};
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace attune::cuda
