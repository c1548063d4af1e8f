// The rows that ship, as `attune evolve --promote --table FILE` wrote them: a row of FILE is an
// entry here, its provenance copied as it is. No row is written by hand.
#include "src/select/tuned.hpp"

namespace attune {
namespace {

// As TunedRow, but constant.
constexpr struct {
  const char* key;
  struct {
    const char *arch, *device;
    int threads;
  } machine;
  TunedSizes sizes;
  const char* config;
  const char* provenance;
} kShipped[] = {
    // clang-format off
    {"sm90.attn_fwd.f16.d64",
     {"sm90", "NVIDIA H200", 0},
     {8, 512, 512},
     "mma.wq1.wk4.wr16.bk128.st3.bs1.qr1.v1.sm0.pg0.kv0",
     R"({"date": "2026-11-15T20:15:24Z", "version": "0.1.0",
         "speedup": {"low": 1.6597455982069496, "mid": 1.6645671934071464,
         "high": 1.6785953063357428},
         "over": "mma.wq4.wk1.wr16.bk64.st2.bs2.qr0.v1.sm0.pg0.kv1", "error": 0.001953125,
         "limit": 0.0036456106463447213, "rounds": 27, "seed": 1, "run": "run2"})"},
    {"sm90.attn_fwd.bf16.d128",
     {"sm90", "NVIDIA H200", 0},
     {512, 512, 512},
     "wgmma.wg2.bk128.st2.qb2.fl0.tu0.mx2.su2.ee4.sc1.l216.pr40",
     R"({"date": "2026-11-16T14:26:05Z", "version": "0.1.0",
         "speedup": {"low": 1.0280256680626023, "mid": 1.0368757767521206,
         "high": 1.0439525675047046},
         "over": "wgmma.wg2.bk128.st2.qb2.fl1.tu0.mx2.su2.ee4.sc1.l216.pr40",
         "error": 0.002308948920193288, "limit": 0.011730621302508949, "rounds": 27,
         "seed": 1, "run": "d128s"})"},
    {"sm90.attn_fwd.f16.d64",
     {"sm90", "NVIDIA H200", 0},
     {256, 512, 512},
     "wgmma.wg4.bk64.st4.qb2.fl0.tu0.mx2.su2.ee6.sc1.l216.pr32",
     R"({"date": "2026-11-16T14:26:53Z", "version": "0.1.0",
         "speedup": {"low": 1.0060145909251181, "mid": 1.02268311909329,
         "high": 1.0341620507158154},
         "over": "wgmma.wg4.bk64.st4.qb2.fl1.tu0.mx2.su2.ee6.sc1.l216.pr32",
         "error": 0.0002674991870132981, "limit": 0.001446790507454241, "rounds": 27,
         "seed": 1, "run": "d64s"})"},
    {"sm90.attn_fwd.bf16.d64",
     {"sm90", "NVIDIA H200", 0},
     {1024, 512, 512},
     "wgmma.wg4.bk64.st4.qb2.fl0.tu0.mx2.su2.ee6.sc1.l216.pr32",
     R"({"date": "2026-11-16T17:46:49Z", "version": "0.1.0",
         "speedup": {"low": 1.02008419575662, "mid": 1.026043114843974,
         "high": 1.027322165615808},
         "over": "wgmma.wg4.bk64.st4.qb2.fl1.tu0.mx2.su2.ee6.sc1.l216.pr32",
         "error": 0.0015426306248335075, "limit": 0.010899355535454586, "rounds": 27,
         "seed": 1, "run": "d64s"})"},
    {"sm90.attn_fwd.f16.d64.causal",
     {"sm90", "NVIDIA H200", 0},
     {64, 2048, 2048},
     "wgmma.wg4.bk64.st4.qb2.fl0.tu0.mx2.su2.ee2.sc2.l216.pr32",
     R"({"date": "2026-11-16T17:47:18Z", "version": "0.1.0",
         "speedup": {"low": 1.0130253237178264, "mid": 1.017639648454332,
         "high": 1.0206023795373402},
         "over": "wgmma.wg4.bk64.st4.qb2.fl1.tu0.mx2.su2.ee2.sc2.l216.pr32",
         "error": 0.001027089113486479, "limit": 0.005526919306128089, "rounds": 27,
         "seed": 1, "run": "s1024c"})"},
    {"sm90.attn_fwd.bf16.d64.causal",
     {"sm90", "NVIDIA H200", 0},
     {256, 2048, 2048},
     "wgmma.wg4.bk64.st4.qb2.fl0.tu0.mx2.su2.ee2.sc2.l216.pr32",
     R"({"date": "2026-11-16T17:49:16Z", "version": "0.1.0",
         "speedup": {"low": 1.0057937857875008, "mid": 1.0112252567647668,
         "high": 1.016156934685301},
         "over": "wgmma.wg4.bk64.st4.qb2.fl1.tu0.mx2.su2.ee2.sc2.l216.pr32",
         "error": 0.008087963316965041, "limit": 0.0436774878437008, "rounds": 27, "seed": 1,
         "run": "d64mc"})"},
    {"sm90.attn_fwd.bf16.d64.causal",
     {"sm90", "NVIDIA H200", 0},
     {64, 8192, 8192},
     "wgmma.wg4.bk64.st4.qb2.fl0.tu0.mx2.su2.ee4.sc2.l216.pr32",
     R"({"date": "2026-11-16T17:50:23Z", "version": "0.1.0",
         "speedup": {"low": 1.0090516197988089, "mid": 1.012584599595026,
         "high": 1.0151042930832148},
         "over": "wgmma.wg4.bk64.st4.qb2.fl1.tu0.mx2.su2.ee4.sc2.l216.pr32",
         "error": 0.00830500865960948, "limit": 0.04154059124243615, "rounds": 27, "seed": 1,
         "run": "d64lc"})"},
    {"sm90.attn_fwd.bf16.d64.causal",
     {"sm90", "NVIDIA H200", 0},
     {32, 16384, 16384},
     "wgmma.wg4.bk64.st4.qb2.fl0.tu0.mx2.su2.ee4.sc2.l216.pr32",
     R"({"date": "2026-11-16T17:50:23Z", "version": "0.1.0",
         "speedup": {"low": 1.0038898444827389, "mid": 1.0114084267830696,
         "high": 1.014256616211854},
         "over": "wgmma.wg4.bk64.st4.qb2.fl1.tu0.mx2.su2.ee4.sc2.l216.pr32",
         "error": 0.00830500865960948, "limit": 0.04154059124243615, "rounds": 27, "seed": 1,
         "run": "d64lc"})"},
    // clang-format on
};

}  // namespace

TunedRows shipped_tuned() {
  TunedRows table;
  for (const auto& shipped : kShipped) {
    TunedRow& row = table.rows.emplace_back();
    row.key = shipped.key;
    row.machine = {shipped.machine.arch, shipped.machine.device, shipped.machine.threads};
    row.sizes = shipped.sizes;
    row.config = shipped.config;
    row.provenance = shipped.provenance;
    complete(&row);
  }
  return table;
}

}  // namespace attune
