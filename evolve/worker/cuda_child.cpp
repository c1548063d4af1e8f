// A candidate on a CUDA device: the library's own kernels with a config of their own, or a program
// (a .cu that nvcc made a shared object of). The device has a copy of the arena at the same
// offsets; what moves between the two, the parent says. A program works in the memory of a keeper,
// another process of this kind in which no candidate is: the parent asks that one for results, so
// that the program never learns which of them are looked at.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <type_traits>
#include <vector>

#include "evolve/compile/cuda_program.hpp"
#include "evolve/worker/child.hpp"
#include "evolve/worker/compare_kernels.hpp"
#include "evolve/worker/sandbox.hpp"
#include "src/api/tensor_check.hpp"
#include "src/cuda/memory.hpp"
#include "src/jit/forward.hpp"
#include "src/jit/kernel.hpp"
#include "src/select/cuda_select.hpp"

namespace attune::evolve {
namespace {

constexpr size_t kAnyWorkspace = ~size_t{0};
constexpr int kPersistingL2 = 6;         // CU_LIMIT_PERSISTING_L2_CACHE_SIZE
constexpr unsigned kLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

struct MemoryHandle {
  unsigned char bytes[64];  // as CUipcMemHandle
};

// Calls of the driver that only this file needs; not every driver has them.
struct MoreCalls {
  cuda::CUresult (*get_limit)(size_t*, int) = nullptr;
  cuda::CUresult (*set_limit)(int, size_t) = nullptr;
  cuda::CUresult (*reset)() = nullptr;
  cuda::CUresult (*get_handle)(MemoryHandle*, cuda::CUdeviceptr) = nullptr;
  cuda::CUresult (*open_handle)(cuda::CUdeviceptr*, MemoryHandle, unsigned) = nullptr;
  cuda::CUresult (*copy)(cuda::CUdeviceptr, cuda::CUdeviceptr, size_t) = nullptr;

  MoreCalls() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return;
    const auto find = [&](auto* function, const char* name) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(driver, name));
    };
    find(&get_limit, "cuCtxGetLimit");
    find(&set_limit, "cuCtxSetLimit");
    find(&reset, "cuCtxResetPersistingL2Cache");
    find(&get_handle, "cuIpcGetMemHandle");
    find(&open_handle, "cuIpcOpenMemHandle_v2");
    find(&copy, "cuMemcpyDtoD_v2");
  }
};

cuda::CUdeviceptr address_of(const void* data) {
  return cuda::CUdeviceptr(reinterpret_cast<uintptr_t>(data));
}

std::string hex_of(const MemoryHandle& handle) {
  return fmt::format("{:02x}", fmt::join(handle.bytes, ""));
}

bool parse_hex(const std::string& text, MemoryHandle* handle) {
  if (text.size() != 2 * sizeof(handle->bytes)) return false;
  for (size_t n = 0; n < sizeof(handle->bytes); ++n) {
    const char* begin = text.data() + 2 * n;
    if (std::from_chars(begin, begin + 2, handle->bytes[n], 16).ptr != begin + 2) return false;
  }
  return true;
}

// Of a program.
using Entry = int (*)(const attune_candidate_call*);

class CudaChild final : public Child {
 public:
  explicit CudaChild(Memory memory) : memory_(memory) {}

  Status load(const Json& request, std::string* text) override {
    if (loaded_) return Status::invalid("this worker has its candidate already");
    loaded_ = true;
    const std::string library = request.value("library", ""), config = request.value("config", "");
    ATTUNE_TRY(open_device(request.value("memory", "")));
    if (const std::string kernels = request.value("kernels", ""); !kernels.empty()) {
      std::ifstream file(kernels, std::ios::binary);
      const std::string cubin(std::istreambuf_iterator<char>(file), {});
      if (!file) return Status::invalid(kernels + " cannot be read");
      ATTUNE_TRY(compare_.load(cubin));
    }
    if (library.empty()) return config.empty() ? Status{} : parse(config);
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
      Plan plan;
      ATTUNE_TRY(plan_of(call, device.arch, &plan));
      for (const KernelSpec& unit : plan.units) {
        jit::CacheEntry entry;
        jit::Origin origin;
        ATTUNE_TRY(jit::obtain(unit, plan.id, &entry, &origin));
        binaries += entry.cubin;
      }
    }
    *text = jit::hex(jit::sha256(binaries));
    return {};
  }

  Status upload(const Range& r) override {
    if (!memory_.holds(r)) return outside(r);
    return cuda::copy_to_device(target_ + r.at, memory_.base + r.at, size_t(r.bytes));
  }

  Status fetch(const Range& r) override {
    if (!memory_.holds(r)) return outside(r);
    return cuda::copy_to_host(memory_.base + r.at, target_ + r.at, size_t(r.bytes));
  }

  Status poison(const Range& r) override {
    if (!memory_.holds(r)) return outside(r);
    ATTUNE_TRY(cuda::fill_bytes(target_ + r.at, 0xff, size_t(r.bytes), stream_.get()));
    return stream_.synchronize();
  }

  // One copy from the first of the ranges to the end of the last.
  Status share(const Json& ranges, std::string* text) override {
    if (more_.get_handle == nullptr || more_.copy == nullptr)
      return Status::unsupported("this driver cannot share memory between processes");
    int64_t begin = memory_.size, end = 0;
    for (const Json& range : ranges) {
      const Range r{range.at(0).get<int64_t>(), range.at(1).get<int64_t>()};
      if (!memory_.holds(r)) return outside(r);
      begin = std::min(begin, r.at);
      end = std::max(end, r.at + r.bytes);
    }
    inputs_ = {begin, std::max<int64_t>(end - begin, 0) / kWord * kWord};
    ATTUNE_TRY(own_inputs_.allocate(size_t(std::max(inputs_.bytes, kWord))));
    if (const auto result = more_.copy(address_of(own_inputs_.data()),
                                       address_of(target_ + inputs_.at), size_t(inputs_.bytes));
        result != cuda::kSuccess)
      return cuda::cuda_status(result, "cuMemcpyDtoD");
    MemoryHandle handle{};
    if (const auto result = more_.get_handle(&handle, address_of(target_));
        result != cuda::kSuccess)
      return cuda::cuda_status(result, "cuIpcGetMemHandle");
    *text = hex_of(handle);
    return {};
  }

  Status shared_inputs(std::string* text) override {
    if (own_inputs_.data() == nullptr) return Status::invalid("nothing is shared");
    bool equal = false;
    ATTUNE_TRY(
        compare_.same(own_inputs_.data(), target_ + inputs_.at, inputs_.bytes, scope_, &equal));
    *text = equal ? "same" : "changed";
    return {};
  }

  // The library computes from inputs that the candidate cannot write to, where there are such.
  Status worst_rows(const Json& offsets, std::string* text) override {
    if (!compare_.loaded()) return Status::invalid("the kernels that compare are not loaded");
    std::byte* inputs = own_inputs_.data() == nullptr
                            ? target_
                            : static_cast<std::byte*>(own_inputs_.data()) - inputs_.at;
    for (const Json& offset : offsets) {
      ArenaCall call, own;
      ATTUNE_TRY(find_call(memory_, offset.get<int64_t>(), target_, &call));
      ATTUNE_TRY(find_call(memory_, offset.get<int64_t>(), inputs, &own));
      const Problem& p = call.problem;
      const int64_t rows = p.batch * p.heads_q * p.seq_q, size = p.dtype == DType::f32 ? 4 : 2;
      if (size_t(rows * p.dim_v * size) > expected_.bytes())
        ATTUNE_TRY(expected_.allocate(size_t(rows * p.dim_v * size)));
      own.params.out.data = expected_.data();
      size_t n = 0;
      ATTUNE_TRY(known_plan(own, true, &n));
      own.params.workspace = workspace_.data();
      ATTUNE_TRY(jit::forward(known_[n].plan, own.problem, own.params, scope_));
      int64_t row = 0;
      ATTUNE_TRY(compare_.worst_row(call.params.out.data, expected_.data(), rows, p.dim_v, p.dtype,
                                    scope_, &row));
      *text += fmt::format("{}{}", text->empty() ? "" : " ", row);
    }
    return {};
  }

  Status synchronize() override { return cuda::synchronize(); }

  Status reserved_cache(std::string* text) override {
    size_t bytes = 0;
    if (more_.get_limit != nullptr && more_.get_limit(&bytes, kPersistingL2) != cuda::kSuccess)
      bytes = 0;  // a device without such a thing
    *text = std::to_string(bytes);
    return {};
  }

  Status prepare(const Json& offsets) override {
    runs_.clear();
    programs_.clear();
    for (const Json& offset : offsets) {
      ArenaCall call;
      ATTUNE_TRY(find_call(memory_, offset.get<int64_t>(), target_, &call));
      if (entry_ != nullptr) {
        if (const char* what = beyond_contract(call.problem); what != nullptr)
          return Status::unsupported(
              fmt::format("the contract of programs does not have {}", what));
        attune_candidate_call& c = programs_.emplace_back(program_call(call));
        c.stream = stream_.get();
      } else {
        size_t plan = 0;
        ATTUNE_TRY(known_plan(call, false, &plan));
        runs_.push_back({call, plan});
      }
    }
    if (more_.reset != nullptr) (void)more_.reset();
    return cuda::synchronize();  // the context is at work when the clock starts
  }

  Status go(bool whole_device) override {
    for (const attune_candidate_call& next : programs_) {
      const attune_candidate_call call = next;  // the calls to come do not stand behind it
      if (const int code = entry_(&call); code != 0)
        return Status::unsupported(fmt::format("attune_candidate returned {}", code));
    }
    for (const Run& run : runs_) {
      Params params = run.call.params;
      params.workspace = workspace_.data();
      ATTUNE_TRY(jit::forward(known_[run.plan].plan, run.call.problem, params, scope_));
    }
    return whole_device ? cuda::synchronize() : stream_.synchronize();
  }

 private:
  static constexpr int64_t kWord = 16;  // bytes that are compared at once
  struct Known {
    bool library;  // what a call of the library runs; else the candidate
    Problem problem;
    Layout layout;
    Plan plan;
  };
  struct Run {
    ArenaCall call;
    size_t plan;  // in known_
  };

  static Status outside(const Range& r) {
    return Status::invalid(fmt::format("{} bytes at {} are not in the arena", r.bytes, r.at));
  }

  // `memory`: a keeper's; empty: of its own.
  Status open_device(const std::string& memory) {
    if (!cuda::why_unusable().empty()) return Status::unsupported(cuda::why_unusable());
    ATTUNE_TRY(primary_.enter(nullptr, nullptr));
    ATTUNE_TRY(stream_.create());
    ATTUNE_TRY(scope_.enter(stream_.get(), nullptr));
    more_ = MoreCalls();
    if (more_.set_limit != nullptr) (void)more_.set_limit(kPersistingL2, 0);  // some set by itself
    if (memory.empty()) {
      ATTUNE_TRY(device_.allocate(size_t(memory_.size)));
      target_ = static_cast<std::byte*>(device_.data());
      return {};
    }
    MemoryHandle handle{};
    if (!parse_hex(memory, &handle) || more_.open_handle == nullptr)
      return Status::unsupported("the memory of another process cannot be opened");
    cuda::CUdeviceptr address = 0;
    if (const auto result = more_.open_handle(&address, handle, kLazyPeerAccess);
        result != cuda::kSuccess)
      return cuda::cuda_status(result, "cuIpcOpenMemHandle");
    target_ = reinterpret_cast<std::byte*>(uintptr_t(address));
    return {};
  }

  Status parse(const std::string& text) {
    Config config;
    if (!parse_config(text, &config))
      return Status::invalid(fmt::format("'{}' is not a config", text));
    config_ = config;
    return {};
  }

  static Request request_of(const ArenaCall& call, const Arch& arch) {
    return {call.problem, arch, layout_of(call.problem, call.params), kAnyWorkspace, "", ""};
  }

  Status plan_of(const ArenaCall& call, const Arch& arch, Plan* plan) const {
    if (!config_) return Status::invalid("no candidate is loaded");
    const Request request = request_of(call, arch);
    const Rung& rung = *config_->rung;
    std::string reason = rung.invalid(*config_, call.problem, arch);
    if (reason.empty()) reason = rung.misfit(request, *config_);
    if (!reason.empty()) return Status::unsupported(std::move(reason));
    *plan = rung.plan(request, *config_);
    return {};
  }

  Status library_plan(const ArenaCall& call, const Arch& arch, Plan* plan) const {
    CudaChoice choice;
    ATTUNE_TRY(select_cuda({request_of(call, arch)}, &choice));
    *plan = std::move(choice.plan);
    return {};
  }

  // The place in known_ of the plan for a call, loaded and with a workspace.
  Status known_plan(const ArenaCall& call, bool library, size_t* place) {
    const Layout layout = layout_of(call.problem, call.params);
    for (*place = 0; *place < known_.size(); ++*place) {
      const Known& k = known_[*place];
      if (k.library == library && k.problem == call.problem && k.layout == layout) return {};
    }
    Known fresh{library, call.problem, layout, {}};
    const Arch& arch = scope_.device().arch;
    ATTUNE_TRY(library ? library_plan(call, arch, &fresh.plan) : plan_of(call, arch, &fresh.plan));
    ATTUNE_TRY(jit::prepare(fresh.plan, scope_));
    if (fresh.plan.workspace_bytes > workspace_.bytes())
      ATTUNE_TRY(workspace_.allocate(fresh.plan.workspace_bytes));
    known_.push_back(std::move(fresh));
    return {};
  }

  Memory memory_;
  bool loaded_ = false;
  std::optional<Config> config_;
  Entry entry_ = nullptr;  // of a program
  cuda::Scope primary_, scope_;
  cuda::Stream stream_;
  cuda::Buffer device_, workspace_, expected_;
  std::byte* target_ = nullptr;  // device_, or a keeper's
  Range inputs_{0, 0};           // that were shared, and a copy of them
  cuda::Buffer own_inputs_;
  CompareKernels compare_;
  MoreCalls more_;
  std::vector<Known> known_;
  std::vector<Run> runs_;
  std::vector<attune_candidate_call> programs_;
};

}  // namespace

std::unique_ptr<Child> cuda_child(Memory memory) { return std::make_unique<CudaChild>(memory); }

}  // namespace attune::evolve
