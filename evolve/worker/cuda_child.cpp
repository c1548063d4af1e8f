// A candidate on a CUDA device: the library's own kernels with a config of their own, or a program
// (a .cu that nvcc made a shared object of). The device has a copy of the arena at the same
// offsets; what moves between the two, the parent says.
#include <dlfcn.h>
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "evolve/compile/cuda_program.hpp"
#include "evolve/worker/child.hpp"
#include "evolve/worker/sandbox.hpp"
#include "src/api/tensor_check.hpp"
#include "src/cuda/memory.hpp"
#include "src/jit/forward.hpp"
#include "src/jit/kernel.hpp"
#include "src/select/cuda_select.hpp"

namespace attune::evolve {
namespace {

constexpr size_t kAnyWorkspace = ~size_t{0};
constexpr int kPersistingL2 = 6;  // CU_LIMIT_PERSISTING_L2_CACHE_SIZE

// Calls of the driver that only this file needs; not every driver has them.
struct CacheCalls {
  cuda::CUresult (*get_limit)(size_t*, int) = nullptr;
  cuda::CUresult (*set_limit)(int, size_t) = nullptr;
  cuda::CUresult (*reset)() = nullptr;

  CacheCalls() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return;
    get_limit = reinterpret_cast<decltype(get_limit)>(dlsym(driver, "cuCtxGetLimit"));
    set_limit = reinterpret_cast<decltype(set_limit)>(dlsym(driver, "cuCtxSetLimit"));
    reset = reinterpret_cast<decltype(reset)>(dlsym(driver, "cuCtxResetPersistingL2Cache"));
  }
};

// Of a program.
using Entry = int (*)(const attune_candidate_call*);

class CudaChild final : public Child {
 public:
  explicit CudaChild(Memory memory) : memory_(memory) {}

  Status load(const Json& request, std::string* text) override {
    if (loaded_) return Status::invalid("this worker has its candidate already");
    loaded_ = true;
    ATTUNE_TRY(open_device());
    const std::string library = request.value("library", "");
    if (library.empty()) return parse(request.value("config", ""));
    for (const Status& wall : {restrict_files(cuda_program_files(library)), enter_device_sandbox()})
      if (!wall.ok()) *text += (text->empty() ? "" : "; ") + wall.message;
    void* function = nullptr;
    ATTUNE_TRY(find_function(library, "attune_candidate", &function));
    entry_ = reinterpret_cast<Entry>(function);
    return {};
  }

  // Needs no context: many of these run at once while another worker is being timed.
  Status compile(const Json& request, std::string* text) override {
    ATTUNE_TRY(parse(request.value("compile", "")));
    cuda::Device device;
    ATTUNE_TRY(cuda::device(0, &device));
    std::string binaries;
    for (const Json& offset : request.at("for")) {
      ArenaCall call;
      ATTUNE_TRY(find_call(memory_, offset.get<int64_t>(), nullptr, &call));
      jit::Plan plan;
      ATTUNE_TRY(plan_of(call, device.arch, &plan));
      jit::CacheEntry entry;
      jit::Origin origin;
      ATTUNE_TRY(jit::obtain(plan.spec, plan.id, &entry, &origin));
      binaries += entry.cubin;
    }
    *text = jit::hex(jit::sha256(binaries));
    return {};
  }

  Status upload(const Range& r) override {
    if (!memory_.holds(r)) return outside(r);
    return cuda::copy_to_device(target() + r.at, memory_.base + r.at, size_t(r.bytes));
  }

  Status fetch(const Range& r) override {
    if (!memory_.holds(r)) return outside(r);
    return cuda::copy_to_host(memory_.base + r.at, target() + r.at, size_t(r.bytes));
  }

  Status poison(const Range& r) override {
    if (!memory_.holds(r)) return outside(r);
    ATTUNE_TRY(cuda::fill_bytes(target() + r.at, 0xff, size_t(r.bytes), stream_.get()));
    return stream_.synchronize();
  }

  Status synchronize() override { return cuda::synchronize(); }

  Status reserved_cache(std::string* text) override {
    size_t bytes = 0;
    if (cache_.get_limit != nullptr && cache_.get_limit(&bytes, kPersistingL2) != cuda::kSuccess)
      bytes = 0;  // a device without such a thing
    *text = std::to_string(bytes);
    return {};
  }

  Status prepare(const Json& offsets) override {
    runs_.clear();
    programs_.clear();
    for (const Json& offset : offsets) {
      ArenaCall call;
      ATTUNE_TRY(find_call(memory_, offset.get<int64_t>(), target(), &call));
      if (entry_ != nullptr) {
        if (const char* what = beyond_contract(call.problem); what != nullptr)
          return Status::unsupported(
              fmt::format("the contract of programs does not have {}", what));
        attune_candidate_call& c = programs_.emplace_back(program_call(call));
        c.stream = stream_.get();
      } else {
        ATTUNE_TRY(add_run(call));
      }
    }
    if (cache_.reset != nullptr) (void)cache_.reset();
    return cuda::synchronize();  // the context is at work when the clock starts
  }

  Status go(bool whole_device) override {
    for (const attune_candidate_call& call : programs_)
      if (const int code = entry_(&call); code != 0)
        return Status::unsupported(fmt::format("attune_candidate returned {}", code));
    for (const Run& run : runs_) {
      Params params = run.call.params;
      params.workspace = workspace_.data();
      ATTUNE_TRY(jit::forward(known_[run.plan].plan, run.call.problem, params, scope_));
    }
    return whole_device ? cuda::synchronize() : stream_.synchronize();
  }

 private:
  struct Known {
    Problem problem;
    Layout layout;
    jit::Plan plan;
  };
  struct Run {
    ArenaCall call;
    size_t plan;  // in known_
  };

  std::byte* target() const { return static_cast<std::byte*>(device_.data()); }
  static Status outside(const Range& r) {
    return Status::invalid(fmt::format("{} bytes at {} are not in the arena", r.bytes, r.at));
  }

  Status open_device() {
    if (!cuda::why_unusable().empty()) return Status::unsupported(cuda::why_unusable());
    ATTUNE_TRY(primary_.enter(nullptr, nullptr));
    ATTUNE_TRY(stream_.create());
    ATTUNE_TRY(scope_.enter(stream_.get(), nullptr));
    cache_ = CacheCalls();
    if (cache_.set_limit != nullptr)
      (void)cache_.set_limit(kPersistingL2, 0);  // some set by itself
    return device_.allocate(size_t(memory_.size));
  }

  Status parse(const std::string& text) {
    jit::Config config;
    if (!parse_cuda_config(text, &config))
      return Status::invalid(fmt::format("'{}' is not a config", text));
    config_ = config;
    return {};
  }

  Status plan_of(const ArenaCall& call, const Arch& arch, jit::Plan* plan) const {
    if (!config_) return Status::invalid("no candidate is loaded");
    const CudaRequest request{
        call.problem,  ATTUNE_AUTO, arch, layout_of(call.problem, call.params),
        kAnyWorkspace, "",          ""};
    const char* reason = std::visit(
        [&](const auto& c) {
          const char* why = invalid_reason(c, call.problem, arch);
          return why[0] == '\0' && c.vector && !request.layout.rows16
                     ? "the rows do not lie at multiples of 16 bytes"
                     : why;
        },
        *config_);
    if (reason[0] != '\0') return Status::unsupported(reason);
    *plan = attune::plan_of(request, *config_);
    return {};
  }

  Status add_run(const ArenaCall& call) {
    const Layout layout = layout_of(call.problem, call.params);
    for (size_t n = 0; n < known_.size(); ++n)
      if (known_[n].problem == call.problem && known_[n].layout == layout) {
        runs_.push_back({call, n});
        return {};
      }
    Known fresh{call.problem, layout, {}};
    ATTUNE_TRY(plan_of(call, scope_.device().arch, &fresh.plan));
    ATTUNE_TRY(jit::prepare(fresh.plan, scope_));
    if (fresh.plan.workspace_bytes > workspace_.bytes())
      ATTUNE_TRY(workspace_.allocate(fresh.plan.workspace_bytes));
    known_.push_back(std::move(fresh));
    runs_.push_back({call, known_.size() - 1});
    return {};
  }

  Memory memory_;
  bool loaded_ = false;
  std::optional<jit::Config> config_;
  Entry entry_ = nullptr;  // of a program
  cuda::Scope primary_, scope_;
  cuda::Stream stream_;
  cuda::Buffer device_, workspace_;
  CacheCalls cache_;
  std::vector<Known> known_;
  std::vector<Run> runs_;
  std::vector<attune_candidate_call> programs_;
};

}  // namespace

std::unique_ptr<Child> cuda_child(Memory memory) { return std::make_unique<CudaChild>(memory); }

}  // namespace attune::evolve
