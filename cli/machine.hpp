// What the commands share about the machine: instruction sets, threads, and the measured peak.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/cuda/device.hpp"

namespace attune::cli {

inline constexpr int kMostThreads = 1024;  // as the library

// "" means the best one, "all" every one, else a comma-separated list. Throws UsageError for a name
// that does not run here.
std::vector<std::string> settle_isas(const std::string& text);

// Process-wide. Throws UsageError for a name that does not run here.
void use_isa(const std::string& name);

int settle_threads(int threads);  // 0: all usable ones

// The value of --seed, or a fresh one for "". Throws UsageError.
uint64_t settle_seed(const std::string& text);

// How many of `threads` threads run at the same moment: no more than there are processors.
int concurrent_threads(int threads);

// Multiply-adds of `threads` threads at once, in 1e9 operations a second. The best moments of the
// threads are summed, so threads must not take turns: at most concurrent_threads().
double peak_gflops(int threads, double seconds);

// The device that --device cuda means: the first one. Throws std::runtime_error with the reason
// where there is none.
cuda::Device cuda_device();

// The bytes that can be used without swapping; nothing where the system does not say.
std::optional<int64_t> available_memory();

}  // namespace attune::cli
