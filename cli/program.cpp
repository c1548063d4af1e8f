#include "cli/program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "cli/bench.hpp"

namespace attune::cli {

namespace fs = std::filesystem;
using evolve::Contract;
using evolve::Language;

const std::vector<std::string> kCudaShapes = {"8x32x512x64", "4x32x1024x64", "2x32x2048x64",
                                              "1x32x4096x64"};

namespace {

// Programs for a GPU have the forward pass alone.
Contract contract_for(const Program& p, const std::string& pass) {
  if (pass.empty()) {
    const Contract contract = evolve::contract_of(p.text);
    return p.cuda() && contract == Contract::backward ? Contract::none : contract;
  }
  const bool backward = pass == "backward";
  if (p.cuda() && backward)
    throw UsageError("--pass: programs for a GPU have the forward pass alone");
  const Contract contract = evolve::contract_of(p.text, backward ? Pass::backward : Pass::forward);
  if (contract == Contract::none)
    throw UsageError(fmt::format("--pass: {} does not define {}", p.file,
                                 backward ? "attune_candidate_backward of candidate.h"
                                          : "run_attention, or attune_candidate of candidate.h"));
  return contract;
}

}  // namespace

Program read_program(const std::string& path, const std::string& pass) {
  Program p;
  p.file = path;
  const std::string extension = fs::path(path).extension();
  if (extension == ".cu")
    p.language = Language::cuda;
  else if (extension == ".py")
    throw UsageError(path + ": a Python file, where a program in C++ or CUDA is needed");
  else if (extension != ".cpp" && extension != ".cc" && extension != ".cxx")
    throw UsageError(
        fmt::format("{}: '{}' is no extension of a program: .cpp, .cc or .cxx for the CPU, .cu for "
                    "a GPU (others "
                    "need scores of your own: attune evolve --evaluator or --eval-command)",
                    path, extension));
  if (!fs::exists(path)) throw UsageError(path + ": there is no such file");
  if (!fs::is_regular_file(path)) throw UsageError(path + " is no file");
  std::ifstream file(path, std::ios::binary);
  p.text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) throw UsageError(path + " cannot be read");
  p.contract = contract_for(p, pass);
  return p;
}

void settle_for(const Program& p, const std::vector<std::string>& shapes, EvolveOptions* o) {
  const bool plain = p.contract == Contract::run_attention;
  if (o->device.empty()) o->device = p.cuda() ? "cuda" : "cpu";
  if (p.cuda() != o->device.starts_with("cuda"))
    throw UsageError(fmt::format("--device: {} is a program for {}, not for {}", p.file,
                                 p.cuda() ? "a GPU" : "the CPU", o->device));
  o->pass = p.contract == Contract::backward ? "backward" : "forward";
  if (o->pass == "backward" && o->lse) throw UsageError("--lse: the backward pass always reads it");
  if (o->shapes.empty() && o->set.empty()) o->shapes = shapes;
  if (o->dtype.empty()) o->dtype = p.cuda() ? "f16" : "f32";
  o->given.insert({"--dtype", "--causal"});
  if (plain && o->threads > 1)
    throw UsageError("--threads: a program of run_attention has one thread");
  if (plain) o->threads = 1;
  for (const evolve::TimedShape& s : shapes_of(*o)) {
    const char* beyond = plain ? evolve::beyond_run_attention(s.problem, p.language) : nullptr;
    if (beyond != nullptr)
      throw UsageError(
          fmt::format("{}: the contract of run_attention does not have {}", s.name, beyond));
    const std::string why = p.cuda() ? "" : evolve::why_too_large({s});
    if (!why.empty()) throw UsageError("--shape: " + why);
  }
}

std::string own_words(const Program& program, std::string why) {
  const std::string name = program.cuda() ? "candidate.cu" : "candidate.cpp";
  const std::string own = fs::path(program.file).filename();
  for (size_t at = why.find(name); at != std::string::npos; at = why.find(name, at + own.size()))
    why.replace(at, name.size(), own);
  return why;
}

Scratch::Scratch() {
  std::string name = (fs::temp_directory_path() / "attune-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw std::runtime_error(
        fmt::format("cannot make a folder in {}", fs::temp_directory_path().string()));
  path_ = name;
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace attune::cli
