// The child's side of a worker: requests in, replies out.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "evolve/child.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

using Json = Child::Json;

Status map_arena(Memory* memory) {
  struct stat status {};
  if (fstat(kArenaFd, &status) != 0 || status.st_size <= 0)
    return Status::invalid("there is no arena at descriptor 3");
  void* base =
      mmap(nullptr, size_t(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, kArenaFd, 0);
  if (base == MAP_FAILED) return {ATTUNE_OUT_OF_MEMORY, "cannot map the arena"};
  *memory = {static_cast<std::byte*>(base), status.st_size};
  return {};
}

// ---- Requests and replies ----

bool read_line(std::string* pending, std::string* line) {
  for (;;) {
    if (const size_t end = pending->find('\n'); end != std::string::npos) {
      *line = pending->substr(0, end);
      pending->erase(0, end + 1);
      return true;
    }
    char buffer[1 << 16];
    const ssize_t n = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    pending->append(buffer, size_t(n));
  }
}

bool write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(kReplyFd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(size_t(n));
  }
  return true;
}

Status each_range(const Json& list, Child* child, Status (Child::*move)(const Range&)) {
  for (const Json& range : list)
    ATTUNE_TRY((child->*move)({range.at(0).get<int64_t>(), range.at(1).get<int64_t>()}));
  return {};
}

Status answer(Child* child, const Json& request, std::string* text) {
  try {
    if (request.contains("load")) return child->load(request, text);
    if (request.contains("calls")) return child->prepare(request["calls"]);
    if (request.contains("go")) return child->go(request["go"] != "stream");
    if (request.contains("compile")) return child->compile(request, text);
    if (request.contains("upload")) return each_range(request["upload"], child, &Child::upload);
    if (request.contains("fetch")) return each_range(request["fetch"], child, &Child::fetch);
    if (request.contains("poison")) return each_range(request["poison"], child, &Child::poison);
    if (request.contains("synchronize")) return child->synchronize();
    if (request.contains("reserved_cache")) return child->reserved_cache(text);
    return Status::invalid("an unknown request");
  } catch (const std::bad_alloc&) {
    return {ATTUNE_OUT_OF_MEMORY, "out of memory"};
  } catch (const std::exception& error) {
    return {ATTUNE_INTERNAL, fmt::format("an exception: {}", error.what())};
  } catch (...) {
    return {ATTUNE_INTERNAL, "an exception"};
  }
}

// False when the parent is gone.
bool serve_one(Child* child, std::string* pending) {
  std::string line, text;
  if (!read_line(pending, &line)) return false;
  const Json request = Json::parse(line, nullptr, false);
  if (!request.is_object()) return false;
  const Status status = answer(child, request, &text);
  if (!status.ok()) text = status.message.substr(0, 2000);
  const Json reply = {{"nonce", request.value("nonce", "")}, {"ok", status.ok()}, {"text", text}};
  return write_all(reply.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

// ---- What children share ----

// An offset plus one becomes an address; null stays null.
template <class T>
static bool place(T** pointer, std::byte* target, int64_t size) {
  const int64_t offset = reinterpret_cast<int64_t>(*pointer) - 1;
  if (offset == -1) return true;
  if (offset < 0 || offset >= size) return false;
  *pointer = reinterpret_cast<T*>(target + offset);
  return true;
}

Status Memory::get(int64_t offset, std::byte* target, ArenaCall* call) const {
  if (!holds({offset, int64_t(sizeof(ArenaCall))}))
    return Status::invalid(fmt::format("no call at offset {}", offset));
  std::memcpy(call, base + offset, sizeof(ArenaCall));
  Params& a = call->params;
  bool inside = true;
  for (View* view : {&a.q, &a.k, &a.v, &a.out, &a.lse}) inside &= place(&view->data, target, size);
  for (View4* view : {&a.mask, &a.block_mask}) inside &= place(&view->data, target, size);
  for (const float** p : {&a.alibi_slopes, &a.sinks}) inside &= place(p, target, size);
  for (const int32_t** p : {&a.cu_seqlens_q, &a.cu_seqlens_k}) inside &= place(p, target, size);
  if (!inside)
    return Status::invalid(fmt::format("the call at {} points out of the arena", offset));
  return {};
}

Status Child::compile(const Json&, std::string*) {
  return Status::invalid("nothing is compiled here");
}
Status Child::upload(const Range&) { return {}; }
Status Child::fetch(const Range&) { return {}; }
Status Child::poison(const Range&) { return {}; }
Status Child::synchronize() { return {}; }
Status Child::reserved_cache(std::string*) { return {}; }

Status find_function(const std::string& path, const char* name, void** function) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Status::invalid(dlerror());
  *function = dlsym(library, name);
  return *function != nullptr ? Status{}
                              : Status::invalid(fmt::format("it does not define {}", name));
}

const char* beyond_contract(const Problem& p) {
  if (p.window()) return "a window";
  if (p.mask != MaskKind::none || p.block_mask_q != 0) return "a mask";
  if (p.softcap) return "a softcap";
  if (p.alibi) return "ALiBi";
  if (p.sinks) return "sinks";
  if (p.ragged) return "ragged sequences";
  if (p.dropout) return "dropout";
  if (p.score_mod || p.mask_mod) return "the caller's own code";
  return nullptr;
}

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
  const auto strides = [](const View& view, int64_t* to) {
    to[0] = view.stride_b;
    to[1] = view.stride_h;
    to[2] = view.stride_s;
  };
  strides(a.q, c.q_stride);
  strides(a.k, c.k_stride);
  strides(a.v, c.v_stride);
  strides(a.out, c.out_stride);
  strides(a.lse, c.lse_stride);
  return c;
}

int worker_main(int threads, bool cuda) {
  Memory memory;
  if (!map_arena(&memory).ok()) return 1;
  // Never destroyed, and no exit of the usual kind: both would run code of the candidate.
  Child* child = (cuda ? cuda_child(memory) : cpu_child(memory, threads)).release();
  std::string pending;
  while (serve_one(child, &pending)) {
  }
  _exit(0);
}

}  // namespace attune::evolve
