// A typed candidate on the CPU: the library's own kernels with a config of their own.
#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "evolve/compile/tile_compile.hpp"
#include "evolve/genome/genome.hpp"
#include "evolve/worker/child.hpp"
#include "evolve/worker/sandbox.hpp"
#include "src/api/tensor_check.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/fused_backward.hpp"
#include "src/cpu/reference.hpp"

namespace attune::evolve {
namespace {

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
    const auto guards = request.value("guards", std::vector<int64_t>{});
    if (!guard_pages(memory_, guards)) return Status::invalid("a guard is no page of the arena");
    ATTUNE_TRY(load_config(request.value("config", "")));
    if (const std::string library = request.value("library", ""); !library.empty())
      ATTUNE_TRY(load_tile(library));
    if (filtered) {
      // What a constructor opened, and left open for later.
      for (int fd = kReplyFd + 1; fd < 64; ++fd) close(fd);
      note(forbid_files(), text);
    }
    return {};
  }

  Status prepare(const Json& offsets) override {
    calls_.clear();
    for (const Json& offset : offsets) {
      ArenaCall& call = calls_.emplace_back();
      ATTUNE_TRY(find_call(memory_, offset.get<int64_t>(), memory_.base, &call));
      ATTUNE_TRY(check(call.problem));
      touch(call);
    }
    return {};
  }

  Status go(bool) override {
    for (const ArenaCall& call : calls_) {
      const cpu::CpuConfig& config = variant_->config;
      if (call.problem.pass == Pass::backward) {
        ATTUNE_TRY(run_backward(call));
        continue;
      }
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
  Status run_backward(const ArenaCall& c) const {
    if (variant_->fused)
      return cpu::fused_backward(*cpu::isa_table(), c.problem, c.params, c.grads, variant_->config,
                                 executor_);
    cpu::reference_backward(c.problem, c.params, c.grads, executor_);
    return {};
  }

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
    const bool backward = p.pass == Pass::backward;
    pages(call.params.out, p.heads_q, p.seq_q, p.dim_v, !backward);
    if (!backward) return;
    pages(call.grads.dout, p.heads_q, p.seq_q, p.dim_v, false);
    pages(call.grads.dq, p.heads_q, p.seq_q, p.dim, true);
    pages(call.grads.dk, p.heads_kv, p.seq_k, p.dim, true);
    pages(call.grads.dv, p.heads_kv, p.seq_k, p.dim_v, true);
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

  Status load_tile(const std::string& path) {
    if (!variant_->fused) return Status::invalid("only the fused kernel has register tiles");
    void* function = nullptr;
    ATTUNE_TRY(find_function(path, kTileEntry, &function));
    tile_ = reinterpret_cast<TileEntry>(function);
    return {};
  }

  Status check(const Problem& p) const {
    if (!variant_) return Status::invalid("no candidate is loaded");
    if (p.pass == Pass::backward && tile_ != nullptr)
      return Status::unsupported("a compiled tile has no backward pass");
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
  TileEntry tile_ = nullptr;  // of a tile that is not built in
  std::vector<ArenaCall> calls_;
};

}  // namespace

std::unique_ptr<Child> cpu_child(Memory memory, int threads) {
  return std::make_unique<CpuChild>(memory, threads);
}

}  // namespace attune::evolve
