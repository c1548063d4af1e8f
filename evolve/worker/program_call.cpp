#include "evolve/worker/program_call.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace attune::evolve {
namespace {

// An offset plus one becomes an address; null stays null.
template <class T>
bool place(T** pointer, std::byte* target, int64_t size) {
  const int64_t offset = reinterpret_cast<int64_t>(*pointer) - 1;
  if (offset == -1) return true;
  if (offset < 0 || offset >= size) return false;
  *pointer = reinterpret_cast<T*>(target + offset);
  return true;
}

int64_t bytes_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) ? int64_t(status.st_size) : 0;
}

}  // namespace

bool map_arena(int read, int written, Memory* memory) {
  const int64_t first = bytes_of(read), second = bytes_of(written);
  if (second <= 0) return false;
  void* base = mmap(nullptr, size_t(first + second), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return false;
  *memory = {static_cast<std::byte*>(base), first + second};
  const auto map = [](void* at, int64_t bytes, int protection, int fd) {
    return bytes == 0 ||
           mmap(at, size_t(bytes), protection, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
  };
  return map(base, first, PROT_READ, read) &&
         map(memory->base + first, second, PROT_READ | PROT_WRITE, written);
}

bool guard_pages(const Memory& memory, std::span<const int64_t> pages) {
  const int64_t bytes = sysconf(_SC_PAGESIZE);
  for (const int64_t at : pages)
    if (at % bytes != 0 || !memory.holds({at, bytes}) ||
        mprotect(memory.base + at, size_t(bytes), PROT_NONE) != 0)
      return false;
  return true;
}

bool Memory::get(int64_t offset, std::byte* target, ArenaCall* call) const {
  if (!holds({offset, int64_t(sizeof(ArenaCall))})) return false;
  std::memcpy(call, base + offset, sizeof(ArenaCall));
  Params& a = call->params;
  bool inside = true;
  for (View* view : {&a.q, &a.k, &a.v, &a.out, &a.lse}) inside &= place(&view->data, target, size);
  for (View4* view : {&a.mask, &a.block_mask}) inside &= place(&view->data, target, size);
  for (const float** p : {&a.alibi_slopes, &a.sinks}) inside &= place(p, target, size);
  for (const int32_t** p : {&a.cu_seqlens_q, &a.cu_seqlens_k, &a.key_lengths})
    inside &= place(p, target, size);
  GradParams& g = call->grads;
  for (View* view : {&g.dout, &g.dlse, &g.dq, &g.dk, &g.dv})
    inside &= place(&view->data, target, size);
  return inside && g.dmask.data == nullptr && g.dsinks == nullptr;
}

const char* beyond_contract(const Problem& p) {
  if (p.window()) return "a window";
  if (p.mask != MaskKind::none || p.block_mask_q != 0) return "a mask";
  if (p.softcap) return "a softcap";
  if (p.alibi) return "ALiBi";
  if (p.sinks) return "sinks";
  if (p.ragged) return "ragged sequences";
  if (p.key_lengths) return "key lengths";
  if (p.dropout) return "dropout";
  if (p.score_mod || p.mask_mod) return "the caller's own code";
  return nullptr;
}

namespace {

void copy_strides(const View& view, int64_t* to) {
  to[0] = view.stride_b;
  to[1] = view.stride_h;
  to[2] = view.stride_s;
}

}  // namespace

attune_candidate_call program_call(const ArenaCall& from) {
  const Problem& p = from.problem;
  const Params& a = from.params;
  attune_candidate_call c{};
  c.dtype = int32_t(p.dtype);
  c.causal = p.causal ? int32_t(p.alignment) : 0;
  c.batch = p.batch;
  c.heads_q = p.heads_q;
  c.heads_kv = p.heads_kv;
  c.seq_q = p.seq_q;
  c.seq_k = p.seq_k;
  c.dim = p.dim;
  c.dim_v = p.dim_v;
  c.scale = a.scale;
  c.q = a.q.data;
  c.k = a.k.data;
  c.v = a.v.data;
  c.out = a.out.data;
  c.lse = static_cast<float*>(a.lse.data);
  copy_strides(a.q, c.q_stride);
  copy_strides(a.k, c.k_stride);
  copy_strides(a.v, c.v_stride);
  copy_strides(a.out, c.out_stride);
  copy_strides(a.lse, c.lse_stride);
  return c;
}

attune_candidate_backward_call program_backward_call(const ArenaCall& from) {
  const GradParams& g = from.grads;
  attune_candidate_backward_call c{};
  c.forward = program_call(from);
  c.dout = g.dout.data;
  c.dlse = static_cast<const float*>(g.dlse.data);
  c.dq = g.dq.data;
  c.dk = g.dk.data;
  c.dv = g.dv.data;
  copy_strides(g.dout, c.dout_stride);
  copy_strides(g.dlse, c.dlse_stride);
  copy_strides(g.dq, c.dq_stride);
  copy_strides(g.dk, c.dk_stride);
  copy_strides(g.dv, c.dv_stride);
  return c;
}

}  // namespace attune::evolve
