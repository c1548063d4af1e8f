// The tuned tables: configs that were found by measuring, each with where it comes from. What the
// user's own table says goes before what ships, and that before the compiled-in defaults.
//
// The tables are read once a process, at the first call; rows that are added later are seen by the
// next process, or after reload_tuned(). Selection pays one atomic load where there are no rows.
// Nothing in here fails a call: what cannot be used is passed over, and explain says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/problem.h"
#include "src/status.hpp"

namespace attune {

struct TunedMachine {
  std::string arch;    // "AVX3", "sm90"; on a CPU the instruction set in use
  std::string device;  // the processor's or the GPU's own name
  int threads = 0;     // of a call on the CPU; 0 on a GPU

  bool operator==(const TunedMachine&) const = default;
};

// What it was tuned at.
struct TunedSizes {
  int64_t heads = 0;  // batch * heads_q
  int64_t seq_q = 0, seq_k = 0;

  static TunedSizes of(const Problem& p) { return {p.batch * p.heads_q, p.seq_q, p.seq_k}; }
  bool operator==(const TunedSizes&) const = default;
};

// One row. A table has at most one of the same key, machine and sizes.
struct TunedRow {
  std::string key;  // problem_id or cuda_problem_id: "cpu.attn_fwd.f32.d64.causal"
  TunedMachine machine;
  TunedSizes sizes;
  // As CpuConfig, IsaConfig (where another instruction set than the machine's is faster) or
  // Config print themselves.
  std::string config;
  // A JSON object, for people; `attune tuned` knows "date" (ISO 8601), "speedup" ({"low", "mid",
  // "high"} over the config before), "version", "commit", "run" (its folder), "head" (the last
  // hash of its records) and "error".
  std::string provenance = "{}";

  std::string id;      // eight hex digits of key, machine and sizes; set by whoever reads a table
  std::string damage;  // why the row as it stands in the file cannot be used; empty: it can
  std::string origin;  // "user table <path>, row <id>"; in a table of the process

  bool is_cpu() const { return key.starts_with("cpu."); }
};

// A file's, or those that ship. `problem` says why none of it could be used; a file that is not
// there is an empty table.
struct TunedRows {
  std::vector<TunedRow> rows;
  std::string problem;
};

struct TunedTable {
  std::string path;  // of the user's
  TunedRows user, shipped;
  std::string processor;                 // processor_name() when it was read
  const TunedTable* previous = nullptr;  // rows that were handed out live as long as the process

  bool silent() const {  // has nothing to say to any call
    return user.rows.empty() && shipped.rows.empty() && user.problem.empty();
  }
};

// ---- use ----

// The tables of this process, nullptr when they are switched off. Read at the first call; no lock,
// so that a child forked meanwhile finds nothing half done.
const TunedTable* tuned_table();
void reload_tuned();
void use_tuned(bool use);  // process-wide: `--no-table`, and comparisons with the defaults

struct TunedQuery {
  std::string key;
  // Of a call that wants LSE: the key of the same call without it, whose rows serve too where no
  // row of `key` does. Empty: none.
  std::string key_without_lse = "";
  TunedMachine machine;
  TunedSizes sizes;
  std::string rung = "";  // what the config must begin with: "mma", "fused"; empty: all of them
};

// The keys of a problem on a machine ("cpu", "sm90").
TunedQuery tuned_query(const Problem& problem, const std::string& machine);

struct TunedAnswer {
  const TunedRow* row = nullptr;
  std::string from;                      // "tuned: user table <path>, row 1a2b3c4d, 2026-11-15"
  std::vector<std::string> passed_over;  // rows that are near, and why they were not taken
};

// The nearest row (log2 distance) of the same key and machine whose sizes are each within a factor
// of two, and heads times seq_q within one and a half; a row of the user's goes before every
// shipped one. `why_not` has the last word: empty when the row's config can run the call.
TunedAnswer find_tuned(const TunedTable& table, const TunedQuery& query,
                       const std::function<std::string(const TunedRow&)>& why_not);

// As /proc/cpuinfo has it: its model name, else implementer and part (Arm).
std::string processor_name();

// ---- tables as files ----

std::string table_path();   // tuned.json in the folder of the kernel cache; empty: there is none
TunedRows shipped_tuned();  // src/select/shipped_tuned.cpp

// A file may be anybody's work: a table has at most kMostTunedBytes and kMostTunedRows, and nests
// as deep as kJsonDepth. What goes beyond is no table, and what has no memory is std::bad_alloc.
inline constexpr size_t kMostTunedBytes = size_t{1} << 20;
inline constexpr size_t kMostTunedRows = 4096;
TunedRows read_tuned(const std::string& path);
TunedRows parse_tuned(std::string_view text, const std::string& name);
void complete(TunedRow* row);  // sets its id, and damage where its config is none

// Whole or not at all, and under a lock: two writers lose no row. A row of the same key, machine
// and sizes is replaced. A file that is not a table, or a newer one, is left as it is.
Status add_tuned_row(const std::string& path, const TunedRow& row);
// Rows without these ids stay as they are, damaged ones too. Fails when an id is not there.
Status remove_tuned_rows(const std::string& path, const std::vector<std::string>& ids);

// For `attune tuned list`: why no call in this process can use the row, be it that its config
// cannot run its problem; empty when one could.
std::string why_not_here(const TunedRow& row);

}  // namespace attune
