// Spaces for tests: made-up processors and GPUs, and problems of every kind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "evolve/genome/genome.hpp"

namespace attune::evolve {

inline Problem test_problem(DType dtype, int64_t batch, int64_t heads, int64_t seq_q, int64_t seq_k,
                            int dim) {
  Problem p;
  p.dtype = dtype;
  p.batch = batch;
  p.heads_q = p.heads_kv = heads;
  p.seq_q = seq_q;
  p.seq_k = seq_k;
  p.dim = p.dim_v = dim;
  return p;
}

struct NamedProblems {
  std::string name;
  std::vector<Problem> problems;
};

inline std::vector<NamedProblems> test_problems() {
  const Problem f32 = test_problem(DType::f32, 1, 8, 1024, 1024, 64);
  Problem causal = test_problem(DType::bf16, 2, 8, 2048, 2048, 128);
  causal.causal = true;
  Problem mask = test_problem(DType::f16, 2, 4, 512, 512, 64);
  mask.mask = MaskKind::boolean;
  Problem gqa = test_problem(DType::bf16, 4, 32, 1024, 1024, 128);
  gqa.heads_kv = 8;
  Problem decode = test_problem(DType::f16, 1, 32, 1, 8192, 128);
  decode.heads_kv = 4;
  Problem decode_f32 = test_problem(DType::f32, 1, 2, 1, 4096, 64);
  Problem window = test_problem(DType::f32, 1, 2, 333, 700, 40);
  window.window_left = 100;
  window.window_right = 0;
  Problem ragged = test_problem(DType::f32, 3, 4, 200, 300, 64);
  ragged.ragged = true;
  return {{"f32", {f32}},
          {"causal", {causal}},
          {"mask", {mask}},
          {"gqa", {gqa}},
          {"decode", {decode}},
          {"decode_f32", {decode_f32}},
          {"window", {window}},
          {"ragged", {ragged}},
          {"odd", {test_problem(DType::f16, 1, 3, 77, 99, 33)}},
          {"wide", {test_problem(DType::bf16, 1, 16, 4096, 4096, 256)}},
          {"short", {test_problem(DType::f32, 2, 4, 20, 30, 64)}},
          {"set", {f32, causal, gqa, decode}}};
}

inline CpuMachine fake_cpu(int threads, bool avx3) {
  CpuMachine machine;
  if (avx3) machine.isas = {"AVX3_DL", "AVX3"};
  machine.isas.push_back("AVX2");
  machine.archs = {{"AVX3_DL", {16, 32}}, {"AVX3", {16, 32}}, {"AVX2", {8, 16}}};
  machine.threads = threads;
  return machine;
}

struct NamedSpace {
  std::string name;
  std::vector<Problem> problems;
  std::unique_ptr<Space> space;
};

inline std::vector<NamedSpace> cpu_spaces() {
  std::vector<NamedSpace> spaces;
  for (const NamedProblems& p : test_problems()) {
    spaces.push_back({"avx3 " + p.name, p.problems, cpu_space(p.problems, fake_cpu(2, true))});
    spaces.push_back({"avx2 " + p.name, p.problems, cpu_space(p.problems, fake_cpu(16, false))});
  }
  return spaces;
}

inline std::vector<NamedSpace> cuda_spaces() {
  std::vector<NamedSpace> spaces;
  for (const NamedProblems& p : test_problems())
    for (int cc : {75, 80, 90})
      spaces.push_back({"sm" + std::to_string(cc) + " " + p.name, p.problems,
                        cuda_space(p.problems, arch_of(cc))});
  return spaces;
}

inline std::vector<NamedSpace> all_spaces() {
  std::vector<NamedSpace> spaces = cpu_spaces();
  for (NamedSpace& s : cuda_spaces()) spaces.push_back(std::move(s));
  return spaces;
}

}  // namespace attune::evolve
