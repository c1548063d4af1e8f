// The child's side of a worker: requests in, replies out.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "evolve/worker/child.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

using Json = Child::Json;

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
    if (request.contains("calls")) ATTUNE_TRY(child->prepare(request["calls"]));
    if (request.contains("go")) return child->go(request["go"] != "stream");
    if (request.contains("calls")) return {};
    if (request.contains("compile")) return child->compile(request, text);
    if (request.contains("upload")) return each_range(request["upload"], child, &Child::upload);
    if (request.contains("fetch")) return each_range(request["fetch"], child, &Child::fetch);
    if (request.contains("poison")) return each_range(request["poison"], child, &Child::poison);
    if (request.contains("share")) return child->share(request["share"], text);
    if (request.contains("worst_rows")) return child->worst_rows(request["worst_rows"], text);
    if (request.contains("shared_inputs")) return child->shared_inputs(text);
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

Status Child::compile(const Json&, std::string*) {
  return Status::invalid("nothing is compiled here");
}
Status Child::upload(const Range&) { return {}; }
Status Child::fetch(const Range&) { return {}; }
Status Child::poison(const Range&) { return {}; }
Status Child::share(const Json&, std::string*) {
  return Status::invalid("this memory is nobody else's");
}
Status Child::worst_rows(const Json&, std::string*) {
  return Status::invalid("results are compared by the parent");
}
Status Child::shared_inputs(std::string*) { return Status::invalid("nothing is shared"); }
Status Child::synchronize() { return {}; }
Status Child::reserved_cache(std::string*) { return {}; }

Status find_call(const Memory& memory, int64_t offset, std::byte* target, ArenaCall* call) {
  if (memory.get(offset, target, call)) return {};
  return Status::invalid(fmt::format("no call at {}, or one that points out of the arena", offset));
}

Status find_function(const std::string& path, const char* name, void** function) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Status::invalid(dlerror());
  *function = dlsym(library, name);
  return *function != nullptr ? Status{}
                              : Status::invalid(fmt::format("it does not define {}", name));
}

int worker_main(int threads, bool cuda) {
  Memory memory;
  if (!map_arena(kReadFd, kWrittenFd, &memory)) return 1;
  // Never destroyed, and no exit of the usual kind: both would run code of the candidate.
  Child* child = (cuda ? cuda_child(memory) : cpu_child(memory, threads)).release();
  std::string pending;
  while (serve_one(child, &pending)) {
  }
  _exit(0);
}

}  // namespace attune::evolve
