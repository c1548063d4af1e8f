// What the commands share about the machine: instruction sets, threads, and the measured peak.
#pragma once

#include <string>
#include <vector>

namespace attune::cli {

inline constexpr int kMostThreads = 4096;

// "" means the best one, "all" every one, else a comma-separated list. Throws UsageError for a name
// that does not run here.
std::vector<std::string> settle_isas(const std::string& text);

// Process-wide. Throws UsageError for a name that does not run here.
void use_isa(const std::string& name);

int settle_threads(int threads);  // 0: all usable ones

// Multiply-adds of `threads` threads at once, in 1e9 operations a second.
double peak_gflops(int threads, double seconds);

}  // namespace attune::cli
