#include "src/cuda/launch.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <mutex>

#include "kernels/config.h"

namespace attune::cuda {
namespace {

// While one lives, calls of this thread that a stream's capture would forbid are allowed: loading a
// module touches no stream.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~RelaxedCapture() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureRelaxed;
};

// ---- tensor maps ----

// As the driver numbers them.
constexpr int kUint8 = 0, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;
constexpr int kNoInterleave = 0, kL2By256 = 3;
constexpr int kSwizzle64 = 2, kSwizzle128 = 3;

constexpr size_t kMostMaps = sizeof(TensorMaps) / sizeof(TensorMap);
constexpr size_t kMostRank = 5;

// A tensor as the driver wants it: the innermost dimension first, strides of the others in bytes.
struct Shape {
  int type = kFloat16;
  int bytes = 2;  // of an element
  void* data = nullptr;
  size_t rank = 4;
  std::array<int64_t, kMostRank> sizes{};
  std::array<int64_t, kMostRank - 1> strides{};
  std::array<uint32_t, kMostRank> box{};
};

void set_type(DType dtype, Shape* s) {
  s->bytes = element_bytes(dtype);
  s->type = dtype == DType::f32 ? kFloat32 : dtype == DType::bf16 ? kBfloat16 : kFloat16;
}

void set_type(MaskKind kind, Shape* s) {
  s->bytes = element_bytes(kind);
  s->type = kind == MaskKind::boolean ? kUint8
            : kind == MaskKind::f32   ? kFloat32
            : kind == MaskKind::f16   ? kFloat16
                                      : kBfloat16;
}

const View& view_of(Operand tensor, const Params& a) {
  switch (tensor) {
    case Operand::k:
      return a.k;
    case Operand::v:
      return a.v;
    case Operand::out:
      return a.out;
    default:
      return a.q;
  }
}

Shape rows_shape(const Map& map, const Problem& p, const Params& a) {
  const View& v = view_of(map.tensor, a);
  const bool keys = map.tensor == Operand::k || map.tensor == Operand::v;
  const bool values = map.tensor == Operand::v || map.tensor == Operand::out;
  const int64_t dim = values ? p.dim_v : p.dim, batch = p.ragged ? 1 : p.batch;
  const int64_t rows = keys ? a.rows_k : a.rows_q, heads = keys ? p.heads_kv : p.heads_q;
  Shape s;
  set_type(p.dtype, &s);
  s.data = v.data;
  if (map.order == Map::Order::packed) {
    const int64_t group = p.group();
    s.rank = 5;
    s.sizes = {dim, group, rows, p.heads_kv, batch};
    s.strides = {v.stride_h, v.stride_s, v.stride_h * group, v.stride_b};
    s.box = {map.columns, uint32_t(group), uint32_t(map.rows / group), 1, 1};
  } else {
    s.sizes = {dim, rows, heads, batch};
    s.strides = {v.stride_s, v.stride_h, v.stride_b};
    s.box = {map.columns, map.rows, 1, 1};
  }
  return s;
}

// A dimension along which the mask repeats is one of one.
Shape mask_shape(const Map& map, const Problem& p, const View4& m) {
  const auto size = [&](int d, int64_t n) { return m.stride[d] == 0 ? 1 : n; };
  Shape s;
  set_type(p.mask, &s);
  s.data = m.data;
  s.sizes = {p.seq_k, size(2, p.seq_q), size(1, p.heads_q), size(0, p.batch)};
  s.strides = {m.stride[2], m.stride[1], m.stride[0]};
  s.box = {map.columns, m.stride[2] == 0 ? 1u : map.rows, 1, 1};
  return s;
}

Status make_map(const Map& map, const Problem& p, const Params& a, TensorMap* to) {
  const Shape s =
      map.order == Map::Order::mask ? mask_shape(map, p, a.mask) : rows_shape(map, p, a);
  constexpr uint32_t kSteps[kMostRank] = {1, 1, 1, 1, 1};
  uint64_t sizes[kMostRank], strides[kMostRank - 1];
  for (size_t d = 0; d < s.rank; ++d) sizes[d] = uint64_t(s.sizes[d]);
  for (size_t d = 0; d + 1 < s.rank; ++d)  // that of a dimension of one is anybody's number
    strides[d] = sizes[d + 1] > 1 ? uint64_t(s.strides[d] * s.bytes) : d == 0 ? 16 : strides[d - 1];
  // A box narrower than the pattern would leave gaps between rows.
  const int swizzle = map.columns * uint32_t(s.bytes) == 64 ? kSwizzle64 : kSwizzle128;
  return cuda_status(
      driver()->cuTensorMapEncodeTiled(to, s.type, uint32_t(s.rank), s.data, sizes, strides,
                                       s.box.data(), kSteps, kNoInterleave, swizzle, kL2By256, 0),
      "cuTensorMapEncodeTiled");
}

Status make_maps(const Steps& steps, const Problem& p, const Params& a, TensorMaps* maps) {
  if (steps.maps.size() > kMostMaps)
    return {ATTUNE_INTERNAL,
            fmt::format("{} tensor maps; a kernel takes {}", steps.maps.size(), kMostMaps)};
  auto* to = reinterpret_cast<TensorMap*>(maps);
  for (const Map& map : steps.maps)
    if (Status s = make_map(map, p, a, to++); !s.ok()) return s;
  return {};
}

// ---- launches ----

// Lets the function be launched with so much dynamic shared memory.
Status allow_smem(const Function& function, uint32_t bytes, const std::string& what) {
  static std::mutex mutex;  // the limit only ever grows
  std::lock_guard lock(mutex);
  if (bytes <= function.smem.load(std::memory_order_relaxed)) return {};
  const Driver& d = *driver();
  const RelaxedCapture relaxed(d);
  const CUresult result =
      d.cuFuncSetAttribute(function.handle, kFunctionMaxDynamicSharedBytes, int(bytes));
  if (result != kSuccess)
    return cuda_status(
        result, "cuFuncSetAttribute",
        fmt::format("{} ({}, {} bytes of shared memory)", what, function.name, bytes));
  function.smem.store(bytes, std::memory_order_release);
  return {};
}

Status launch(const Launch& shape, const Function& function, void* args, TensorMaps* maps,
              CUstream stream, const std::string& what) {
  if (shape.smem > function.smem.load(std::memory_order_acquire))
    if (Status s = allow_smem(function, shape.smem, what); !s.ok()) return s;
  void* parameters[] = {args, maps};  // a kernel without maps does not look at them
  CUlaunchAttribute early{};
  early.id = kProgrammaticStreamSerialization;
  early.number = 1;
  const CUlaunchConfig config{{shape.grid, 1, 1},   {shape.block, 1, 1}, shape.smem, stream, &early,
                              shape.early ? 1u : 0u};
  const CUresult result = driver()->cuLaunchKernelEx(&config, function.handle, parameters, nullptr);
  if (result == kSuccess) return {};
  return cuda_status(result, "cuLaunchKernelEx",
                     fmt::format("{} ({}, {} blocks of {} threads, {} bytes of shared memory)",
                                 what, shape.entry, shape.grid, shape.block, shape.smem));
}

}  // namespace

Module::~Module() {
  if (handle_ == nullptr) return;
  const Driver& d = *driver();
  const RelaxedCapture relaxed(d);
  d.cuModuleUnload(handle_);
}

Status Module::load(const std::string& cubin, std::span<const char* const> entries,
                    const std::string& what) {
  const Driver& d = *driver();
  const RelaxedCapture relaxed(d);
  if (const CUresult r = d.cuModuleLoadData(&handle_, cubin.data()); r != kSuccess)
    return cuda_status(r, "cuModuleLoadData", what);
  functions_ = std::vector<Function>(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    Function& f = functions_[i];
    f.name = entries[i];
    if (const CUresult r = d.cuModuleGetFunction(&f.handle, handle_, f.name); r != kSuccess)
      return cuda_status(r, "cuModuleGetFunction", fmt::format("{} ({})", what, f.name));
    // The driver may put off loading until a function is first used. Now is better than in a
    // capture.
    int registers = 0;
    if (const CUresult r = d.cuFuncGetAttribute(&registers, kFunctionRegisters, f.handle);
        r != kSuccess)
      return cuda_status(r, "cuFuncGetAttribute", fmt::format("{} ({})", what, f.name));
  }
  return {};
}

const Function* Module::find(const char* entry) const {
  for (const Function& f : functions_)
    if (std::strcmp(f.name, entry) == 0) return &f;
  return nullptr;
}

Status enqueue(const Steps& steps, std::span<const Module* const> modules, const Problem& problem,
               const Params& params, const GradParams& grads, CUstream stream,
               const std::string& what) {
  GradientArgs args{{problem, params, steps.blocks}, grads};
  void* taken = &args.forward;  // KernelArgs
  if (problem.pass == Pass::backward) taken = &args;
  TensorMaps maps{};  // stays empty where TMA is not used
  if (Status s = make_maps(steps, problem, params, &maps); !s.ok()) return s;
  for (const Clear& clear : steps.clears) {
    const auto at = CUdeviceptr(reinterpret_cast<uintptr_t>(params.workspace) + clear.offset);
    const CUresult result = driver()->cuMemsetD32Async(at, 0, clear.bytes / 4, stream);
    if (result != kSuccess) return cuda_status(result, "cuMemsetD32Async", what);
  }
  for (const Launch& shape : steps.launches) {
    const Function* function =
        shape.unit < modules.size() ? modules[shape.unit]->find(shape.entry) : nullptr;
    if (function == nullptr)
      return {ATTUNE_INTERNAL, fmt::format("{} has no kernel {}", what, shape.entry)};
    if (Status s = launch(shape, *function, taken, &maps, stream, what); !s.ok()) return s;
  }
  return {};
}

}  // namespace attune::cuda
