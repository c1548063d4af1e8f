// A rung: one way to compute a pass on CUDA. Selection, emission, what ships and the optimiser's
// space loop over all of them. A new rung is a file here, a config header and a folder of kernels,
// and a line in registry.cpp.
#pragma once

#include <attune/attune.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "kernels/config.h"
#include "src/rungs/config.hpp"
#include "src/rungs/plan.hpp"

namespace attune {

// What pointers and strides allow. NULL pointers (explain) count as aligned; their strides count.
// Of a backward pass, the gradients of q, k, v and out count as these do.
struct Layout {
  bool rows16 =
      true;  // every row of q, k, v and out starts at a multiple of 16 bytes, D and Dv too
  bool mask16 = true;  // every row of the mask does, and its keys are neighbours
  bool forward =
      true;       // no dimension of these tensors runs backwards; of q, k, v, out none repeats
  int step = 16;  // bytes, 2 to 16: every row of q, k, v and out starts at a multiple, D and Dv too

  bool operator==(const Layout&) const = default;

  bool tma() const { return rows16 && forward; }  // can reach these tensors
};
Layout layout_of(const Problem& problem, const Params& params, const GradParams& grads = {});

// What a backward call gives and asks for.
struct Wanted {
  bool results = true;  // out and lse of the forward pass are given
  bool dq = true, dk = true, dv = true, dsinks = false;
  std::array<int64_t, 4> dmask{};  // its shape; all 0: it is not asked for

  bool operator==(const Wanted&) const = default;
};

// A call as rungs see it.
struct Request {
  Problem problem;
  Arch arch;
  Layout layout;
  size_t workspace_bytes = 0;       // what the caller gave
  std::string score_mod, mask_mod;  // the caller's code; empty: none
  Wanted wanted = {};               // of a backward pass
};

// A row of the tables that a rung takes its defaults from, and a call that it is for.
struct DefaultCall {
  int row;  // its number among the rung's rows
  const char* table;
  std::string when;    // the row's calls, in words
  const char* source;  // where its numbers come from
  Request request;
};

// What is known of a rung without asking it.
struct RungFacts {
  const char* name;                      // at the head of its printed configs
  attune_mode mode;                      // that asks for it by name
  const char* meaning;                   // one line for people
  const char* type;                      // of its config, in emitted source
  int least_cc = 75, most_cc = 1 << 20;  // compute capabilities that it runs on
  bool tensor_cores = false;
  std::span<const Field> fields;
  Pass pass = Pass::forward;
};

class Rung : public RungFacts {
 public:
  constexpr explicit Rung(const RungFacts& facts) : RungFacts(facts) {}
  Rung(const Rung&) = delete;
  Rung& operator=(const Rung&) = delete;

  bool runs_on(int cc) const { return least_cc <= cc && cc <= most_cc; }

  // ---- selection ----

  // Of two rungs that can run a call, the one with the higher number is taken to be faster.
  virtual int rank(const Request& r) const = 0;
  // Why no config can run the call; empty: one may.
  virtual std::string refusal(const Request& r) const = 0;
  // The config that the library would use without a tuned table.
  virtual Config standard(const Request& r) const = 0;
  // Why this config cannot; empty: it can. What is not about sizes is the kernel's own
  // invalid_reason.
  virtual std::string invalid(const Config& c, const Problem& p, const Arch& arch) const = 0;
  virtual std::string cannot_run(const Request& r, const Config& c) const = 0;
  // Why it does not fit the tensors' layout, which the defaults look at by themselves.
  virtual std::string misfit(const Request& r, const Config& c) const = 0;
  // The launches of a valid config. It may need a workspace.
  virtual Plan plan(const Request& r, const Config& c) const = 0;
  virtual Unit unit(const Problem& key, const Config& c) const = 0;
  // A config as an earlier version printed it; false: it is none, or of kernels that are no more.
  virtual bool read_older(std::string_view text, Config* config) const;
  // The calls whose kernels ship.
  virtual std::vector<Request> ships(const Arch& arch) const;
  // For every row of its tables, a call of each dtype, with LSE and without, that runs by it; one
  // more for each other config that the row leads to. None: its defaults are no tables.
  virtual std::vector<DefaultCall> default_calls(const Arch& arch) const;

  // ---- the optimiser's space ----

  // The config that a search begins with: it fits the layout of all requests.
  virtual Config first(std::span<const Request> requests) const { return standard(requests[0]); }
  // Whether a field may have the value in some config for these calls: where one value is left, no
  // draw is spent on it.
  virtual bool possible(std::span<const Request> requests, std::string_view field,
                        int value) const = 0;
  // Whether two valid configs make the same launches of the same kernels.
  virtual bool same(const Request& r, const Config& a, const Config& b) const = 0;
  // Why a search leaves out a config that could run.
  virtual std::string pointless(std::span<const Request> requests, const Config& c) const;
  virtual int smem(const Config& c, const Problem& p) const = 0;  // of a block, bytes
  // Warps of a multiprocessor, of whose shared memory a block takes so much.
  virtual int warps(const Config& c, int64_t smem, const Arch& arch) const = 0;

 protected:
  ~Rung() = default;
};

// All rungs of a pass, the slowest first. Rungs of two passes may share a name and a mode.
std::span<const Rung* const> rungs(Pass pass = Pass::forward);
const Rung* rung_named(std::string_view name, Pass pass = Pass::forward);  // null: none
const Rung* rung_of(attune_mode mode, Pass pass = Pass::forward);          // null: none

// Every kernel that ships for an arch: what the compile-all test and `attune cache warm` go
// through.
std::vector<Plan> shipped_plans(const Arch& arch, bool quick);
// And every kernel that a row of defaults leads to, beside those.
std::vector<Plan> default_plans(const Arch& arch);

std::string cuda_problem_id(const Problem& problem, const Arch& arch);  // "sm90.attn_fwd.bf16.d64"

}  // namespace attune
