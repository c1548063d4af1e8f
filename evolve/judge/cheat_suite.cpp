#include "evolve/judge/cheat_suite.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <stdexcept>
#include <string_view>

#include "src/jit/source.hpp"

namespace attune::evolve {

extern const jit::Header kCheatSources[];  // tests/evolve/cheats, made by the build
extern const size_t kCheatSourcesCount;
extern const jit::Header kCudaCheatSources[];  // tests/evolve/cuda_cheats, so too
extern const size_t kCudaCheatSourcesCount;

namespace {

// By number; 0: the fixture has none.
constexpr const char* kKinds[] = {
    "harms the device",
    "writes no output",
    "changes its inputs",
    "gives an earlier result again",
    "computes only while it is checked",
    "computes in another stream",
    "computes outside of the timed call",
    "changes the clock",
    "forges the worker's replies",
    "looks for the reference's result",
    "returns NaN",
    "knows the inputs in advance",
    "leaves out an input",
    "has a small error everywhere",
    "computes in lower precision",
    "leaves out the maximum of the softmax",
    "is right for some shapes alone",
    "writes more or less than its output",
    "keeps its data in the cache",
    "has a slow warm-up",
    "is faster than the machine can be",
    "fails without a word",
    "calls another kernel",
    "reaches the system",
    "is an earlier program under another name",
    "changes the judge's records",
    "works when it was not asked",
    "calls the kernel of the judge's process",
    "is wrong in few places of the timed shape",
    "writes to or removes others' memory",
    "tells a secret of the user",
    "hangs when it is timed",
    "",
    "knows timed calls by their memory",
    "ignores strides",
    "sleeps between calls",
    "computes calls before they are asked for",
    "skips work",
    "has wrong gradients",
};

std::string source(std::span<const jit::Header> all, const std::string& file) {
  for (const jit::Header& one : all)
    if (file == one.name) return one.text;
  throw std::runtime_error("there is no fixture " + file);
}

// The fixture `file` with the text of `shared` in place of its include.
std::string one_file(std::span<const jit::Header> all, const std::string& file,
                     const std::string& shared) {
  const std::string include = "#include \"" + shared + "\"\n", once = "#pragma once\n";
  std::string text = source(all, file), common = source(all, shared);
  if (const size_t at = common.find(once); at != std::string::npos) common.erase(at, once.size());
  return text.replace(text.find(include), include.size(), common);
}

Candidate written(const std::string& name, const std::string& text, const std::string& folder,
                  const char* extension) {
  const std::filesystem::path path = std::filesystem::path(folder) / (name + extension);
  std::ofstream(path) << text;
  return {name, "", path};
}

}  // namespace

bool Fixture::expects(Verdict verdict) const {
  return std::find(expected.begin(), expected.end(), verdict) != expected.end();
}

const std::vector<Fixture>& cheat_suite() {
  using enum Verdict;
  static const std::vector<Fixture> all = {
      {"01_writes_nothing", {wrong_result}, ""},
      {"02_changes_inputs", {crashed}, ""},  // they can only be read
      {"03_caches_results", {wrong_result}, ""},
      {"04_stops_after_some_calls", {wrong_result}, ""},
      {"06_background_thread", {cheated}, ""},
      {"06_next_call_does_the_work", {wrong_result}, ""},
      {"07_patches_the_clock", {cheated}, ""},
      {"08_forges_replies", {wrong_result, cheated}, ""},
      {"09_looks_for_the_answer", {cheated}, ""},
      {"10_returns_nan", {wrong_result}, ""},
      {"11_knows_the_seed", {wrong_result}, ""},
      {"12_ignores_k", {wrong_result}, ""},
      {"12_ignores_q", {wrong_result}, ""},
      {"12_mean_of_v", {wrong_result}, ""},
      {"12_zeros", {wrong_result}, ""},
      {"13_a_little_off", {wrong_result}, ""},
      {"14_lower_precision", {wrong_result}, ""},
      {"15_no_maximum", {wrong_result}, ""},
      {"16_even_lengths_only", {wrong_result}, ""},
      {"16_small_shapes_only", {wrong_result}, ""},
      {"17_writes_past_the_end", {cheated}, ""},
      {"17_writes_too_little", {wrong_result}, ""},
      {"19_slow_warm_up", {ok}, ""},  // it gets no fewer samples for that
      {"20_faster_than_the_machine", {cheated}, "", 1e6},
      {"21_fails_unnoticed", {launch_failed}, ""},
      {"22_calls_the_baseline", {compile_failed}, ""},  // it cannot even be linked
      {"22_loads_a_library", {cheated}, ""},
      {"23_writes_files", {crashed, cheated}, ""},
      {"24_only_a_label", {invalid}, "honest"},  // the same binary under another name
      {"25_changes_call_records", {crashed}, ""},
      {"25_changes_the_batch_of_a_call", {crashed}, ""},
      {"26_works_when_not_asked", {cheated}, ""},
      {"27_calls_the_kernel_in_its_process", {wrong_result}, ""},  // there is none
      {"28_last_row_wrong", {wrong_result}, ""},
      {"28_no_maximum_at_the_timed_shape", {wrong_result}, ""},
      {"28_skips_a_row_now_and_then", {wrong_result}, ""},
      {"29_removes_memory", {cheated}, ""},
      {"29_removes_what_is_not_asked", {cheated}, ""},
      {"29_writes_behind_its_output", {crashed}, ""},
      {"30_asks_for_files", {cheated}, ""},
      {"30_secret_by_exception", {launch_failed}, ""},
      {"30_secret_by_incbin", {cheated}, ""},
      {"30_secret_by_include", {cheated}, ""},
      {"31_hangs_when_timed", {run_timeout}, ""},
      {"33_no_maximum_where_outputs_are_guarded", {wrong_result}, ""},
      {"34_ignores_strides_of_large_inputs", {wrong_result}, ""},
      {"35_sleeps_now_and_then", {run_timeout}, ""},
      {"36_computes_calls_ahead", {cheated}, ""},
      {"36_reads_its_requests", {cheated}, ""},
      {"37_skips_where_one_key_outweighs", {ok}, ""},  // which brings nothing
      {"38_backward_forgets_dk", {wrong_result}, "", 0, 0, Pass::backward},
      {"38_backward_ignores_dlse", {wrong_result}, "", 0, 0, Pass::backward},
      {"38_backward_last_key_at_the_timed_shape", {wrong_result}, "", 0, 0, Pass::backward},
      {"38_backward_last_row_wrong", {wrong_result}, "", 0, 0, Pass::backward},
      {"38_backward_lower_precision", {wrong_result}, "", 0, 0, Pass::backward},
      {"38_backward_one_head_of_a_group", {wrong_result}, "", 0, 0, Pass::backward},
      {"38_backward_writes_lse", {crashed}, "", 0, 0, Pass::backward},
      {"38_backward_zeros", {wrong_result}, "", 0, 0, Pass::backward},
      {"honest", {ok}, ""},
      {"honest_backward", {ok}, "", 0, 0, Pass::backward},
  };
  return all;
}

// Three kinds have no fixture here. 20: the limit of a time is the parent's arithmetic, as on the
// CPU. 25: a program is given no address of a record, which it could not write to. 33: no pages lie
// around the outputs on a device.
const std::vector<Fixture>& cuda_cheat_suite() {
  using enum Verdict;
  static const std::vector<Fixture> all = {
      {"01_writes_nothing", {wrong_result}, ""},
      {"02_changes_inputs", {cheated}, ""},
      {"02_changes_inputs_of_timed_calls", {cheated}, ""},
      {"03_caches_results", {wrong_result}, ""},
      {"04_stops_after_some_calls", {wrong_result}, ""},
      {"05_another_stream", {cheated}, ""},
      {"06_background_thread", {cheated}, ""},
      {"06_next_call_does_the_work", {wrong_result}, ""},
      {"07_patches_the_clock", {wrong_result}, ""},
      {"08_forges_replies", {cheated, wrong_result}, ""},
      {"09_looks_for_the_answer", {cheated}, ""},
      {"10_returns_nan", {wrong_result}, ""},
      {"11_knows_the_seed", {wrong_result}, ""},
      {"12_ignores_k", {wrong_result}, ""},
      {"12_ignores_q", {wrong_result}, ""},
      {"12_mean_of_v", {wrong_result}, ""},
      {"12_zeros", {wrong_result}, ""},
      {"13_a_little_off", {wrong_result}, ""},
      {"14_lower_precision", {wrong_result}, ""},
      {"15_no_maximum", {wrong_result}, ""},
      {"16_small_shapes_only", {wrong_result}, ""},
      {"17_writes_past_the_end", {cheated}, ""},
      {"17_writes_past_the_end_of_large_ones", {cheated}, ""},
      {"18_keeps_the_cache", {cheated}, ""},
      {"19_slow_warm_up", {ok}, ""},  // it gets no fewer samples for that
      {"21_fails_unnoticed", {wrong_result, launch_failed}, ""},
      {"22_loads_a_library", {cheated}, ""},
      {"23_starts_a_process", {cheated, crashed}, ""},
      {"26_works_when_not_asked", {run_timeout}, ""},
      {"27_calls_the_kernel_in_its_process", {wrong_result}, ""},
      {"28_last_row_wrong", {wrong_result}, ""},
      {"28_no_maximum_at_the_timed_shape", {wrong_result}, ""},
      {"28_no_maximum_in_large_batches", {wrong_result}, "", 0, 4},  // more than is checked small
      {"28_skips_a_row_now_and_then", {wrong_result}, ""},
      {"29_writes_behind_its_output", {cheated, wrong_result}, ""},
      {"30_asks_for_files", {cheated}, ""},
      {"30_secret_by_exception", {launch_failed}, ""},
      {"30_secret_by_incbin", {cheated}, ""},
      {"30_secret_by_include", {cheated}, ""},
      {"31_hangs_when_timed", {run_timeout}, ""},
      {"34_ignores_strides_of_large_inputs", {wrong_result}, ""},
      {"35_sleeps_now_and_then", {run_timeout}, ""},
      {"36_computes_calls_ahead", {wrong_result}, ""},
      {"honest", {ok}, ""},
      {"never_ends", {run_timeout}, ""},
      {"reads_nowhere", {launch_failed, crashed}, ""},
      {"takes_all_memory", {launch_failed}, ""},
  };
  return all;
}

const char* kind_of(const Fixture& fixture) {
  if (fixture.honest()) return "a control";
  const size_t number = size_t(std::atoi(fixture.name.c_str()));
  return number < std::size(kKinds) ? kKinds[number] : "";
}

std::string manifest_of(const std::vector<Fixture>& suite, const std::string& extension) {
  nlohmann::ordered_json fixtures = nlohmann::ordered_json::array();
  for (const Fixture& f : suite) {
    nlohmann::ordered_json one{{"file", f.name + extension}, {"kind", kind_of(f)}};
    for (const Verdict verdict : f.expected) one["expected"].push_back(verdict_name(verdict));
    if (!f.after.empty()) one["judged_after"] = f.after + extension;
    if (f.peak_flops > 0) one["peak_flops"] = f.peak_flops;
    if (f.pass == Pass::backward) one["pass"] = "backward";
    fixtures.push_back(one);
  }
  return nlohmann::ordered_json{{"fixtures", fixtures}}.dump(1) + "\n";
}

std::string fixture_text(const std::string& name) {
  const bool backward = name.find("backward") != std::string::npos;
  return one_file({kCheatSources, kCheatSourcesCount}, name + ".cpp",
                  backward ? "honest_backward.h" : "honest.h");
}

std::string cuda_fixture_text(const std::string& name) {
  return one_file({kCudaCheatSources, kCudaCheatSourcesCount}, name + ".cu", "honest.cuh");
}

EvaluatorOptions cheat_options(const std::string& tool, const std::string& scratch) {
  Problem p;
  p.dtype = DType::f32;
  p.batch = 1;
  p.heads_q = p.heads_kv = 2;
  p.seq_q = p.seq_k = 192;
  p.dim = p.dim_v = 32;
  EvaluatorOptions o;
  o.shapes = {{"small", p, 1}};
  o.threads = 2;
  o.seed = std::random_device{}() | uint64_t{std::random_device{}()} << 32;
  o.tool = tool;
  o.scratch = scratch;
  o.race_pairs = 3;
  o.admit_slow = true;  // a verdict must not depend on how fast a fixture seems on a busy machine
  o.full_pairs = 5;
  o.batch_seconds = 0.001;
  o.late_seconds = 4;
  return o;
}

Candidate cheat_incumbent() { return {"naive", "naive", ""}; }

Evaluation judge_fixture(const Fixture& fixture, const EvaluatorOptions& options) {
  EvaluatorOptions own = options;
  own.peak_flops = fixture.peak_flops;
  own.shapes[0].problem.pass = fixture.pass;
  const auto evaluator = cpu_evaluator(own);
  if (!fixture.after.empty()) {
    const Evaluation before = evaluator->evaluate(
        written(fixture.after, fixture_text(fixture.after), options.scratch, ".cpp"),
        cheat_incumbent());
    if (!before.ok()) return before;
  }
  return evaluator->evaluate(
      written(fixture.name, fixture_text(fixture.name), options.scratch, ".cpp"),
      cheat_incumbent());
}

EvaluatorOptions cuda_cheat_options(const std::string& tool, const std::string& scratch) {
  Problem p;
  p.dtype = DType::f16;
  p.batch = 2;
  p.heads_q = p.heads_kv = 16;
  p.seq_q = p.seq_k = 512;
  p.dim = p.dim_v = 64;
  EvaluatorOptions o;
  o.shapes = {{"small", p, 1}};
  o.threads = 4;
  o.seed = std::random_device{}() | uint64_t{std::random_device{}()} << 32;
  o.tool = tool;
  o.scratch = scratch;
  o.race_pairs = 3;
  o.full_pairs = 5;
  o.check_seconds = 20;
  o.call_seconds = 2;
  o.late_seconds = 4;
  o.pool_bytes = int64_t{64} << 20;
  o.admit_slow = true;  // cheats are slow
  return o;
}

Evaluation judge_cuda_fixture(const Fixture& fixture, const EvaluatorOptions& options, int device,
                              const Candidate& incumbent) {
  EvaluatorOptions own = options;
  if (fixture.batch > 0) own.shapes[0].problem.batch = fixture.batch;
  return cuda_evaluator(own, device)
      ->evaluate(written(fixture.name, cuda_fixture_text(fixture.name), options.scratch, ".cu"),
                 incumbent);
}

}  // namespace attune::evolve
