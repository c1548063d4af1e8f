// The host's compiler as a run-time compiler: a program becomes a shared object.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "evolve/compile/contract.hpp"
#include "evolve/compile/toolchain.hpp"
#include "evolve/judge/evaluation.hpp"

namespace attune::evolve {

const HostCompiler& host_compiler();  // $PATH: c++, g++, clang++

struct Built {
  Verdict verdict = Verdict::ok;  // compile_failed, compile_timeout, cheated (what it links)
  std::string why;                // the first errors of the compiler, about the program's own text
  std::string library;            // the shared object
  std::string source_hash, binary_hash;
  Contract contract = Contract::none;  // of a program
  std::vector<KernelUse> kernels;      // of a CUDA program
  double seconds = 0;
};

// What becomes a shared object.
struct Unit {
  std::string source;
  std::vector<std::pair<std::string, std::string>> files;  // it includes: path and text
  std::vector<std::string> flags;                          // for the machine
  std::string entry;                                       // the one C function that it shows
  std::string no_entry = "it does not define " + entry;    // what is said where it is missing
  bool stranger = false;  // not ours: its assembly is looked at before an assembler reads it
};

// Compiles into `folder` by run_compiler; killed after `limit_seconds`, and with this process,
// however that ends. A build that was stopped counts as compile_timeout. What the object asks of
// other libraries is compared with a list: arithmetic, memory and strings of the C and C++
// libraries, nothing that opens, spawns, loads or draws attention.
Built build(const Unit& unit, const HostCompiler& compiler, const std::string& folder,
            double limit_seconds, const Stop& stop = {});

// The same of a program that keeps to one of the contracts; one that asks for files of others
// cheats. Messages count the lines of `source`.
Built build_candidate(const std::string& source, const std::string& folder, double limit_seconds,
                      const Stop& stop = {});

// Whether the compiler finds a header with these flags; nothing is compiled.
bool compiler_finds(const HostCompiler& compiler, const std::string& header,
                    const std::vector<std::string>& flags);

// What `run` says, a failure: the verdict and why. `own` are the files of the program.
Built failed_run(Built built, const CompilerRun& run, const HostCompiler& compiler,
                 const std::vector<std::string>& own, const std::string& folder,
                 double limit_seconds);
Built failed(Built built, Verdict verdict, std::string why);

// What a shared object asks of others.
struct Links {
  bool readable = false;
  bool entry = false;                  // it defines its entry
  std::vector<std::string> forbidden;  // libraries and symbols beyond the list
  std::vector<std::string> defines;    // C names that it shows beside its entry
};
Links links_of(const std::string& library, std::string_view entry = "attune_candidate");

}  // namespace attune::evolve
