#include "src/jit/forward.hpp"

#include <fmt/format.h>

#include "kernels/sm90/config.h"
#include "src/jit/kernel.hpp"

namespace attune::jit {
namespace {

// As the driver numbers them.
constexpr int kUint8 = 0, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;
constexpr int kSwizzle64 = 2, kSwizzle128 = 3;

// A tensor of four or five dimensions, the innermost first, and how much of each a box takes;
// strides in bytes.
struct MapOf {
  int type;
  void* data;
  std::vector<int64_t> sizes, strides;
  std::vector<uint32_t> box;
  int swizzle = kSwizzle128;
};
Status make_map(const MapOf& of, TensorMap* map) {
  constexpr int kNoInterleave = 0, kL2By256 = 3;
  constexpr uint32_t kSteps[] = {1, 1, 1, 1, 1};
  uint64_t sizes[5], strides[4];
  for (size_t d = 0; d < of.sizes.size(); ++d) sizes[d] = uint64_t(of.sizes[d]);
  for (size_t d = 0; d < of.strides.size(); ++d)  // that of a dimension of one is anybody's number
    strides[d] = sizes[d + 1] > 1 ? uint64_t(of.strides[d]) : d == 0 ? 16 : strides[d - 1];
  const cuda::CUresult result = cuda::driver()->cuTensorMapEncodeTiled(
      map, of.type, uint32_t(of.sizes.size()), of.data, sizes, strides, of.box.data(), kSteps,
      kNoInterleave, of.swizzle, kL2By256, 0);
  return cuda::cuda_status(result, "cuTensorMapEncodeTiled");
}

// [b][h][s][d], in panels of 128 bytes.
Status make_map(const View& v, DType dtype, int64_t dim, int64_t rows, int64_t heads, int64_t batch,
                uint32_t box_rows, TensorMap* map) {
  const int bytes = element_bytes(dtype);
  return make_map({dtype == DType::f32    ? kFloat32
                   : dtype == DType::bf16 ? kBfloat16
                                          : kFloat16,
                   v.data,
                   {dim, rows, heads, batch},
                   {v.stride_s * bytes, v.stride_h * bytes, v.stride_b * bytes},
                   {uint32_t(panel_bytes(1) / bytes), box_rows, 1, 1}},
                  map);
}

// [b][hk][s][h][d]: 64 rows of a tile are so many queries of all heads of a group.
Status make_packed_map(const View& v, const Problem& p, int64_t dim, int64_t rows, int64_t batch,
                       TensorMap* map) {
  const int64_t group = p.group();
  return make_map({p.dtype == DType::bf16 ? kBfloat16 : kFloat16,
                   v.data,
                   {dim, group, rows, p.heads_kv, batch},
                   {v.stride_h * 2, v.stride_s * 2, v.stride_h * group * 2, v.stride_b * 2},
                   {kPanel, uint32_t(group), uint32_t(64 / group), 1, 1}},
                  map);
}

// A dimension along which the mask repeats is one of one.
Status make_mask_map(const Plan& plan, const Problem& p, const View4& m, TensorMap* map) {
  const int bytes = element_bytes(p.mask);
  const int type = p.mask == MaskKind::boolean ? kUint8
                   : p.mask == MaskKind::f32   ? kFloat32
                   : p.mask == MaskKind::f16   ? kFloat16
                                               : kBfloat16;
  const auto size = [&](int d, int64_t n) { return m.stride[d] == 0 ? 1 : n; };
  return make_map({type,
                   m.data,
                   {p.seq_k, size(2, p.seq_q), size(1, p.heads_q), size(0, p.batch)},
                   {m.stride[2] * bytes, m.stride[1] * bytes, m.stride[0] * bytes},
                   {plan.mask_box, m.stride[2] == 0 ? 1u : 64u, 1, 1},
                   // A box narrower than the pattern would leave gaps between rows.
                   plan.mask_box * uint32_t(bytes) == 64 ? kSwizzle64 : kSwizzle128},
                  map);
}

Status make_maps(const Plan& plan, const Problem& p, const Params& a, TensorMaps* maps) {
  const int64_t batch = p.ragged ? 1 : p.batch;
  const auto make_rows = [&](const View& v, int64_t dim, TensorMap* map) {
    return plan.packed ? make_packed_map(v, p, dim, a.rows_q, batch, map)
                       : make_map(v, p.dtype, dim, a.rows_q, p.heads_q, batch, 64, map);
  };
  Status s = make_rows(a.q, p.dim, &maps->q);
  if (p.dtype == DType::f32) return s;  // K and V are split before, O goes without TMA
  if (s.ok()) s = make_map(a.k, p.dtype, p.dim, a.rows_k, p.heads_kv, batch, plan.box_k, &maps->k);
  if (s.ok())
    s = make_map(a.v, p.dtype, p.dim_v, a.rows_k, p.heads_kv, batch, plan.box_k, &maps->v);
  if (s.ok()) s = make_rows(a.out, p.dim_v, &maps->out);
  if (s.ok() && plan.mask_box != 0) s = make_mask_map(plan, p, a.mask, &maps->mask);
  return s;
}

Status launch(const Plan& plan, const Launch& shape, const Kernel& kernel, KernelArgs* args,
              TensorMaps* maps, cuda::CUstream stream) {
  const Function* function = kernel.find(shape.entry);
  if (function == nullptr)
    return {ATTUNE_INTERNAL, fmt::format("{} has no kernel {}", plan.id, shape.entry)};
  if (shape.smem > function->smem.load(std::memory_order_acquire))
    if (Status s = allow_smem(plan, *function, shape.smem); !s.ok()) return s;
  void* parameters[] = {args, maps};  // a kernel without maps does not look at them
  cuda::CUlaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.early) {
    attributes[count].id = cuda::kProgrammaticStreamSerialization;
    attributes[count++].number = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cuda::kClusterDimension;
    attributes[count].blocks[0] = shape.cluster;
    attributes[count].blocks[1] = attributes[count].blocks[2] = 1;
    ++count;
  }
  const cuda::CUlaunchConfig config{
      {shape.grid, 1, 1}, {shape.block, 1, 1}, shape.smem, stream, attributes, count};
  const cuda::CUresult result =
      cuda::driver()->cuLaunchKernelEx(&config, function->handle, parameters, nullptr);
  if (result == cuda::kSuccess) return {};
  return cuda::cuda_status(
      result, "cuLaunchKernelEx",
      fmt::format("{} ({}, {} blocks of {} threads, {} bytes of shared memory)", plan.id,
                  shape.entry, shape.grid, shape.block, shape.smem));
}

}  // namespace

Status prepare(const Plan& plan, const cuda::Scope& scope) {
  const Kernel* kernel = nullptr;
  return kernel_of(plan, scope, &kernel);
}

Status forward(const Plan& plan, const Problem& problem, const Params& params,
               const cuda::Scope& scope) {
  const Kernel* kernel = nullptr;
  if (Status s = kernel_of(plan, scope, &kernel); !s.ok()) return s;
  KernelArgs args{problem, params};
  args.params.splits = plan.splits;
  args.params.divisors = plan.divisors;
  args.params.tiles = plan.tiles;
  const auto stream = static_cast<cuda::CUstream>(scope.stream());
  TensorMaps maps{};  // stays empty where TMA is not used
  if (plan.box_k != 0)
    if (Status s = make_maps(plan, problem, params, &maps); !s.ok()) return s;
  if (plan.counter) {
    const auto at = cuda::CUdeviceptr(reinterpret_cast<uintptr_t>(params.workspace));
    const cuda::CUresult result = cuda::driver()->cuMemsetD32Async(at, 0, 1, stream);
    if (result != cuda::kSuccess) return cuda::cuda_status(result, "cuMemsetD32Async", plan.id);
  }
  for (const Launch& shape : plan.launches)
    if (Status s = launch(plan, shape, *kernel, &args, &maps, stream); !s.ok()) return s;
  return {};
}

}  // namespace attune::jit
