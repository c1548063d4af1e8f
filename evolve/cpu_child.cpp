// A candidate on the CPU: the library's own kernels with a config of their own, or a program.
#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "evolve/child.hpp"
#include "evolve/genome.hpp"
#include "evolve/tile_compile.hpp"
#include "src/api/tensor_check.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/reference.hpp"

namespace attune::evolve {
namespace {

void parallel_for(void* host, int64_t count, attune_candidate_task task, void* context) {
  static_cast<const cpu::Executor*>(host)->parallel_for(
      count, [&](int64_t index) { task(context, index); });
}

class CpuChild final : public Child {
 public:
  CpuChild(Memory memory, int threads) : memory_(memory) { executor_.threads = threads; }

  // The text: what of the sandbox this system lacks.
  Status load(const Json& request, std::string* text) override {
    if (loaded_) return Status::invalid("this worker has its candidate already");
    loaded_ = true;
    const bool sandbox = request.value("sandbox", true);
    if (sandbox) note(enter_namespaces(), text);
    executor_.parallel_for(executor_.threads, [](int64_t) {});  // starts the pool's threads
    bool filtered = false;
    if (sandbox) filtered = note(enter_sandbox(), text);
    const std::string config = request.value("config", ""), library = request.value("library", "");
    if (library.empty() || !config.empty()) ATTUNE_TRY(load_config(config));
    if (!library.empty()) ATTUNE_TRY(config.empty() ? load_program(library) : load_tile(library));
    if (filtered) {
      // What a constructor opened, and left open for later.
      for (int fd = kReplyFd + 1; fd < 64; ++fd) close(fd);
      note(forbid_files(), text);
    }
    return {};
  }

  Status prepare(const Json& offsets) override {
    calls_.clear();
    program_calls_.clear();
    for (const Json& offset : offsets) {
      ArenaCall& call = calls_.emplace_back();
      ATTUNE_TRY(memory_.get(offset.get<int64_t>(), memory_.base, &call));
      ATTUNE_TRY(check(call.problem));
      if (entry_ != nullptr) {
        attune_candidate_call& c = program_calls_.emplace_back(program_call(call));
        c.parallel_for = &parallel_for;
        c.host = &executor_;
        c.threads = executor_.threads;
      }
      touch(call);
    }
    return {};
  }

  Status go(bool) override {
    for (const attune_candidate_call& call : program_calls_)
      if (const int code = entry_(&call); code != 0)
        return Status::unsupported(fmt::format("attune_candidate returned {}", code));
    if (entry_ != nullptr) return {};
    for (const ArenaCall& call : calls_) {
      const cpu::CpuConfig& config = variant_->config;
      if (tile_ != nullptr)
        ATTUNE_TRY(cpu::fused_forward(*tile_(call.problem.dtype), call.problem, call.params, config,
                                      executor_));
      else if (variant_->fused)
        ATTUNE_TRY(cpu::fused_forward(call.problem, call.params, config, executor_));
      else
        cpu::naive_forward(call.problem, call.params, executor_);
    }
    return {};
  }

 private:
  // Every page of the call's tensors becomes known to this process now: a worker that has not seen
  // a page before would pay for that while it is timed, and an older one would not.
  static void touch(const ArenaCall& call) {
    const Problem& p = call.problem;
    if (p.ragged) return;
    const auto pages = [&](const View& v, int64_t heads, int64_t rows, int64_t dim, bool written) {
      if (v.data == nullptr || p.batch * heads * rows == 0) return;
      const int64_t elements =
          (p.batch - 1) * v.stride_b + (heads - 1) * v.stride_h + (rows - 1) * v.stride_s + dim;
      auto* bytes = static_cast<volatile uint8_t*>(v.data);
      for (int64_t at = 0; at < elements * element_bytes(p.dtype); at += 4096) {
        const uint8_t byte = bytes[at];
        if (written) bytes[at] = byte;
      }
    };
    pages(call.params.q, p.heads_q, p.seq_q, p.dim, false);
    pages(call.params.k, p.heads_kv, p.seq_k, p.dim, false);
    pages(call.params.v, p.heads_kv, p.seq_k, p.dim_v, false);
    pages(call.params.out, p.heads_q, p.seq_q, p.dim_v, true);
  }

  static bool note(const Status& status, std::string* text) {
    if (!status.ok()) *text += (text->empty() ? "" : "; ") + status.message;
    return status.ok();
  }

  Status load_config(const std::string& text) {
    const std::optional<CpuVariant> variant = parse_cpu_variant(text);
    if (!variant) return Status::invalid(fmt::format("'{}' is not a config", text));
    if (variant->fused && !cpu::force_isa(variant->isa))
      return Status::unsupported(fmt::format("no instruction set '{}' here; there is {}",
                                             variant->isa, fmt::join(cpu::isa_names(), ", ")));
    variant_ = variant;
    return {};
  }

  Status load_program(const std::string& path) {
    void* function = nullptr;
    ATTUNE_TRY(find_function(path, "attune_candidate", &function));
    entry_ = reinterpret_cast<Entry>(function);
    return {};
  }

  Status load_tile(const std::string& path) {
    if (!variant_->fused) return Status::invalid("only the fused kernel has register tiles");
    void* function = nullptr;
    ATTUNE_TRY(find_function(path, kTileEntry, &function));
    tile_ = reinterpret_cast<TileEntry>(function);
    return {};
  }

  Status check(const Problem& p) const {
    if (entry_ != nullptr) {
      if (const char* what = beyond_contract(p); what != nullptr)
        return Status::unsupported(fmt::format("the contract of programs does not have {}", what));
      return {};
    }
    if (!variant_) return Status::invalid("no candidate is loaded");
    if (!variant_->fused) return {};
    std::string reason;
    if (tile_ == nullptr)
      reason = cpu::invalid_reason(variant_->config, p, cpu::arch());
    else if (const cpu::IsaTable* table = tile_(p.dtype); table != nullptr)
      reason = cpu::invalid_reason_compiled(variant_->config, p, table->arch);
    else
      reason = "the tile was not compiled for this element type";
    return reason.empty() ? Status{} : Status::unsupported(reason);
  }

  Memory memory_;
  cpu::Executor executor_;
  bool loaded_ = false;
  std::optional<CpuVariant> variant_;
  Entry entry_ = nullptr;     // of a program
  TileEntry tile_ = nullptr;  // of a tile that is not built in
  std::vector<ArenaCall> calls_;
  std::vector<attune_candidate_call> program_calls_;
};

}  // namespace

std::unique_ptr<Child> cpu_child(Memory memory, int threads) {
  return std::make_unique<CpuChild>(memory, threads);
}

}  // namespace attune::evolve
