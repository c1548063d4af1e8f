// What a proposer is told: the task, the machine, a program and what is known of it, what was
// tried, and how to answer. Everything comes from the run's records.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evolve/propose/proposer.hpp"

namespace attune::evolve {

// What is asked for: small changes, or a block written anew.
enum class AnswerForm { edits, blocks };

// The contract, the shapes, what is judged, what is not allowed.
std::string task_text(const Scene& scene);
std::string machine_text(const Scene& scene);
// A program with its speed and its share of the peak.
std::string program_text(const Scene& scene, int64_t n);
// The best of other cells than the parent's, the fastest first.
std::vector<int64_t> inspirations_of(const Scene& scene, int64_t parent, size_t most);
std::string inspirations_text(const Scene& scene, const std::vector<int64_t>& records);
// The last different failures, with what the judge and the compiler said.
std::string failures_text(const Scene& scene, size_t most);
// The last accepted steps, as diffs.
std::string steps_text(const Scene& scene, size_t most);
std::string answer_text(AnswerForm form);

inline constexpr const char* kSystemText =
    "You are an expert in high-performance attention kernels. You make a given program faster and "
    "keep it correct. You answer in the asked format alone.";

// All of it, in this order.
inline constexpr size_t kInspirations = 2;
std::string question_text(const Scene& scene, int64_t parent, AnswerForm form,
                          size_t inspirations = kInspirations);
// After an answer that could not be applied.
std::string repair_text(const Refusal& refusal, AnswerForm form);

// Seconds of a call of one shape (from 0); 0: not known.
double seconds_of(const Scene& scene, int64_t n, size_t shape);

}  // namespace attune::evolve
