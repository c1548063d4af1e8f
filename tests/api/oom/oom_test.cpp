// Every allocation of a call fails once, and then every one from there on: the status is
// ATTUNE_OUT_OF_MEMORY, or what it is without a failure where the C library coped. The process
// lives, a later call is right, and the kernel cache is whole. malloc is replaced in all of this
// program, so each call runs in a child. CUDA's driver and compiler are fakes.
#include <attune/attune.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "src/cuda/driver.hpp"
#include "src/jit/cache.hpp"
#include "src/select/tuned.hpp"
#include "tests/cuda/fake/fake.hpp"

// ---- an allocator that fails when it is told to ----

namespace {

std::atomic<long> g_left{-1};  // allocations until the next failure; below 0: none is to come
std::atomic<bool> g_for_good{false};

bool fails() {
  long left = g_left.load();
  do {
    if (left < 0) return false;
  } while (!g_left.compare_exchange_weak(left, left > 0 ? left - 1 : g_for_good ? 0 : -1));
  if (left > 0) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

#pragma GCC visibility push(default)  // for the standard libraries too
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) { return fails() ? nullptr : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return fails() ? nullptr : __libc_calloc(count, bytes); }
void* realloc(void* before, size_t bytes) {
  return fails() ? nullptr : __libc_realloc(before, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return fails() ? nullptr : __libc_memalign(alignment, bytes);
}
void* memalign(size_t alignment, size_t bytes) { return aligned_alloc(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = aligned_alloc(alignment, bytes);
  return *memory != nullptr ? 0 : ENOMEM;
}
}
#pragma GCC visibility pop

namespace attune {
namespace {

// ---- calls ----

constexpr int64_t kHeads = 2, kRows = 150, kKeys = 2000, kDim = 8;
constexpr size_t kFloats = kHeads * kKeys * kDim;
float g_in[4][kFloats];
double g_double_in[kFloats];
bool g_keep[kKeys];
// What a call writes, text too. The last is what it wrote before.
struct Written {
  alignas(double) float out[4][kFloats];
  char text[1 << 15];
};
Written g_now, g_before;

attune_tensor tensor(void* data, int64_t heads, int64_t rows) {
  return {data, ATTUNE_F32, 4, {1, heads, rows, kDim}, {heads * rows * kDim, rows * kDim, kDim, 1}};
}

attune_args args(int64_t rows) {
  attune_args a;
  attune_args_init(&a, sizeof(a));
  a.q = tensor(g_in[0], kHeads, rows);
  a.k = tensor(g_in[1], kHeads, kKeys);
  a.v = tensor(g_in[2], kHeads, kKeys);
  a.out = tensor(g_now.out[0], kHeads, rows);
  a.threads = 4;
  return a;
}

attune_args boolean_mask_args() {
  attune_args a = args(kRows);
  a.mask = {g_keep, ATTUNE_BOOL, 1, {kKeys}, {1}};
  a.block_mask = {g_keep, ATTUNE_BOOL, 4, {1, 1, 2, 20}, {0, 0, 20, 1}};
  a.block_mask_q = a.block_mask_k = 100;
  return a;
}

attune_args additive_mask_args() {
  attune_args a = args(kRows);
  a.mask = {g_in[3], ATTUNE_F32, 1, {kKeys}, {1}};
  return a;
}

attune_args key_lengths_args() {
  static int32_t lengths[] = {kKeys / 3};
  attune_args a = args(kRows);
  a.key_lengths = {lengths, ATTUNE_I32, 1, {1}, {1}};
  return a;
}

attune_args ragged_args() {
  static int32_t ends_q[] = {0, 1, 1, kRows}, ends_k[] = {0, 700, 900, kKeys};
  const auto packed = [](const attune_tensor& t) -> attune_tensor {
    return {t.data, t.dtype, 3, {t.shape[2], kHeads, kDim}, {kHeads * kDim, kDim, 1}};
  };
  attune_args a = args(kRows);
  for (attune_tensor* t : {&a.q, &a.k, &a.v, &a.out}) *t = packed(*t);
  a.cu_seqlens_q = {ends_q, ATTUNE_I32, 1, {4}, {1}};
  a.cu_seqlens_k = {ends_k, ATTUNE_I32, 1, {4}, {1}};
  return a;
}

attune_args float64_args() {
  attune_args a = args(2);
  for (attune_tensor* t : {&a.q, &a.k, &a.v, &a.out}) t->dtype = ATTUNE_F64;
  a.q.data = a.k.data = a.v.data = g_double_in;
  return a;
}

attune_args cuda_args() {
  attune_args a = args(kRows);
  a.device = ATTUNE_CUDA;
  a.threads = 0;
  a.q.data = a.k.data = a.v.data = a.out.data = nullptr;
  return a;
}

// One that the fake driver takes for memory of its first device, and that tensor maps can reach.
attune_args cuda_kernel_args() {
  constexpr int64_t kLength = 64;
  const auto on_device = [](cuda::CUdeviceptr at) -> attune_tensor {
    return {reinterpret_cast<void*>(uintptr_t(at)),
            ATTUNE_F16,
            4,
            {1, 1, kLength, kLength},
            {kLength * kLength, kLength * kLength, kLength, 1}};
  };
  attune_args a;
  attune_args_init(&a, sizeof(a));
  a.device = ATTUNE_CUDA;
  a.q = a.k = a.v = on_device(cuda::fake::kOnDevice0);
  a.out = on_device(cuda::fake::kOnDevice0 + 2 * kLength * kLength);
  return a;
}

attune_status forward_on_cuda(const char* score_mod) {
  attune_args a = cuda_kernel_args();
  a.score_mod = score_mod;
  return attune_forward(&a);
}

attune_status prepare_on_cuda() {
  const attune_args a = cuda_kernel_args();
  return attune_prepare(&a);
}

// A plan that is made, run and given back. The first status that is not OK.
attune_status plan(const attune_args& a) {
  attune_plan* made = nullptr;
  size_t bytes = 0;
  attune_status status = attune_plan_create(&a, SIZE_MAX, &made);
  if (status == ATTUNE_OK) status = attune_plan_workspace_size(made, &bytes);
  if (status == ATTUNE_OK) status = attune_plan_run(made, nullptr, a.workspace, bytes);
  attune_plan_destroy(made);
  return status;
}

attune_args args_of_backward() {
  attune_args a = args(2);
  a.out = {};
  return a;
}

attune_backward_args backward_args(const attune_args* forward) {
  attune_backward_args b;
  attune_backward_args_init(&b, sizeof(b));
  b.forward = forward;
  b.dout = tensor(g_in[3], kHeads, 2);
  b.dq = tensor(g_now.out[1], kHeads, 2);
  b.dk = tensor(g_now.out[2], kHeads, kKeys);
  b.dv = tensor(g_now.out[3], kHeads, kKeys);
  return b;
}

attune_status backward() {
  const attune_args a = args_of_backward();
  const attune_backward_args b = backward_args(&a);
  return attune_backward(&b);
}

attune_status backward_plan() {
  const attune_args a = args_of_backward();
  const attune_backward_args b = backward_args(&a);
  attune_plan* made = nullptr;
  attune_status status = attune_plan_create_backward(&b, SIZE_MAX, &made);
  if (status == ATTUNE_OK)
    status = attune_plan_explain(made, g_now.text, sizeof(g_now.text), nullptr);
  if (status == ATTUNE_OK) status = attune_plan_run(made, nullptr, nullptr, 0);
  attune_plan_destroy(made);
  return status;
}

attune_status explained_plan(const attune_args& a) {
  attune_plan* made = nullptr;
  attune_status status = attune_plan_create(&a, SIZE_MAX, &made);
  if (status == ATTUNE_OK)
    status = attune_plan_explain(made, g_now.text, sizeof(g_now.text), nullptr);
  attune_plan_destroy(made);
  return status;
}

attune_status forward(const attune_args& a) { return attune_forward(&a); }

attune_status forward(int mode, int64_t rows) {
  attune_args a = args(rows);
  a.mode = mode;
  return attune_forward(&a);
}

attune_status explain(const attune_args& a) {
  return attune_explain(&a, g_now.text, sizeof(g_now.text), nullptr);
}

// Of results that a forward pass need not have made.
attune_status fused_backward(int64_t rows) {
  static float lse[kHeads * kRows];
  static float out[kFloats];
  attune_args a = args(rows);
  a.mode = ATTUNE_FUSED;
  a.out = tensor(out, kHeads, rows);
  a.lse = {lse, ATTUNE_F32, 3, {1, kHeads, rows}, {kHeads * rows, rows, 1}};
  attune_backward_args b;
  attune_backward_args_init(&b, sizeof(b));
  b.forward = &a;
  b.dout = tensor(g_in[3], kHeads, rows);
  b.dq = tensor(g_now.out[1], kHeads, rows);
  b.dk = tensor(g_now.out[2], kHeads, kKeys);
  b.dv = tensor(g_now.out[3], kHeads, kKeys);
  return attune_backward(&b);
}

enum class Kernel { none, compiled, from_disk };

struct CallOf {
  const char* name;
  attune_status (*run)();
  attune_status status = ATTUNE_OK;
  bool full = false;  // takes long
  Kernel kernel = Kernel::none;
  bool sampled = false;  // most of its first call is another's too
};
void PrintTo(const CallOf& call, std::ostream* out) { *out << call.name; }

const CallOf kCalls[] = {
    {"forward", [] { return forward(ATTUNE_AUTO, kRows); }},
    {"forward_of_split_keys", [] { return forward(ATTUNE_AUTO, 1); }},
    {"naive", [] { return forward(ATTUNE_NAIVE, 2); }},
    {"reference", [] { return forward(ATTUNE_REFERENCE, 2); }},
    {"refused_forward", [] { return forward(99, kRows); }, ATTUNE_INVALID_ARGUMENT},
    {"backward", backward},
    {"boolean_masks", [] { return forward(boolean_mask_args()); }},
    {"additive_mask", [] { return forward(additive_mask_args()); }},
    {"key_lengths", [] { return forward(key_lengths_args()); }},
    {"ragged", [] { return forward(ragged_args()); }},
    {"float64", [] { return forward(float64_args()); }},
    {"fused_backward", [] { return fused_backward(kRows); }},
    {"fused_backward_of_split_keys", [] { return fused_backward(3); }},
    {"explain", [] { return explain(args(kRows)); }},
    {"prepare",
     [] {
       const attune_args a = args(kRows);
       return attune_prepare(&a);
     }},
    {"workspace_size",
     [] {
       const attune_args a = args(kRows);
       size_t bytes = 0;
       return attune_workspace_size(&a, &bytes);
     }},
    {"explain_on_cuda", [] { return explain(cuda_args()); }},
    {"workspace_size_on_cuda",
     [] {
       const attune_args a = cuda_args();
       size_t bytes = 0;
       return attune_workspace_size(&a, &bytes);
     }},
    {"plan", [] { return plan(args(kRows)); }},
    {"plan_of_backward", backward_plan},
    {"plan_explained", [] { return explained_plan(args(kRows)); }},
    {"plan_explained_on_cuda", [] { return explained_plan(cuda_args()); }},
    {"plan_from_disk", [] { return plan(cuda_kernel_args()); }, ATTUNE_OK, false, Kernel::from_disk,
     true},
    {"forward_compiled", [] { return forward_on_cuda(nullptr); }, ATTUNE_OK, false,
     Kernel::compiled},
    {"forward_from_disk", [] { return forward_on_cuda(nullptr); }, ATTUNE_OK, false,
     Kernel::from_disk},
    {"users_code_compiled", [] { return forward_on_cuda("return score + 1;"); }, ATTUNE_OK, false,
     Kernel::compiled, true},
    {"users_code_from_disk", [] { return forward_on_cuda("return score + 1;"); }, ATTUNE_OK, false,
     Kernel::from_disk, true},
    {"refused_users_code", [] { return forward_on_cuda("#error no"); }, ATTUNE_INVALID_ARGUMENT},
    {"prepare_compiled", prepare_on_cuda, ATTUNE_OK, false, Kernel::compiled, true},
    {"prepare_from_disk", prepare_on_cuda, ATTUNE_OK, false, Kernel::from_disk, true},
    {"info", [] { return attune_info(g_now.text, sizeof(g_now.text), nullptr); }, ATTUNE_OK, true},
};

// ---- children ----

enum Outcome {
  kFine,
  kNotReached,
  kNoDriver,
  kWrongResult,
  kLaterCallWrong,
  kDamagedCache,
  kModuleLost,
  kWrongStatus
};
constexpr const char* kMeanings[] = {"fine",
                                     "not reached",
                                     "no driver",
                                     "not what a later call gives",
                                     "a later call fails",
                                     "the cache is damaged",
                                     "not one module loaded in the end"};

// Every file of the folder is a whole entry, but for the table and its lock.
bool cache_is_whole(const std::string& dir) {
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir))
    files += !file.path().filename().string().starts_with("tuned.json");
  return jit::list_cache(dir).size() == files;
}

int fail_one(const CallOf& call, const std::string& dir, bool warm, bool for_good, long at) {
  // The fake is loaded by now, and has what it needs for this thread: that is not the call's.
  const auto current = reinterpret_cast<cuda::CUresult (*)(cuda::CUcontext*)>(
      dlsym(RTLD_DEFAULT, "cuCtxGetCurrent"));
  const auto books =
      reinterpret_cast<cuda::fake::Books* (*)()>(dlsym(RTLD_DEFAULT, "attune_fake_books"));
  cuda::CUcontext context = nullptr;
  if (current == nullptr || books == nullptr || current(&context) != cuda::kSuccess)
    return kNoDriver;
  if (call.kernel == Kernel::none) unsetenv("ATTUNE_NVRTC");  // it is looked for
  if (warm) call.run();
  g_for_good = for_good;
  g_left = at;
  const attune_status status = call.run();
  const bool reached = for_good ? g_left == 0 : g_left < 0;
  g_left = -1;
  if (status != call.status && status != ATTUNE_OUT_OF_MEMORY) return kWrongStatus + int(status);
  if (!cache_is_whole(dir)) return kDamagedCache;
  std::memcpy(&g_before, &g_now, sizeof(g_now));
  if (call.run() != call.status) return kLaterCallWrong;
  // What info finds on this machine without memory may be less.
  if (status == call.status && !call.full && std::memcmp(&g_before, &g_now, sizeof(g_now)) != 0)
    return kWrongResult;
  if (!cache_is_whole(dir)) return kDamagedCache;
  if (books()->modules != (call.kernel == Kernel::none ? 0 : 1)) return kModuleLost;
  return reached ? kFine : kNotReached;
}

// In a folder of its own, for what is to be compiled.
int fail_one_in_new_folder(const CallOf& call, const std::string& dir, bool warm, bool for_good,
                           long at) {
  const std::string fresh = dir + "-" + std::to_string(at);
  setenv("ATTUNE_CACHE_DIR", fresh.c_str(), 1);
  std::filesystem::create_directory(fresh);
  const int outcome = fail_one(call, fresh, warm, for_good, at);
  std::filesystem::remove_all(fresh);
  return outcome;
}

void fail_each(const CallOf& call, const std::string& dir, bool warm, bool for_good,
               long step = 1) {
  for (long at = 0;; at += step) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      close(STDERR_FILENO);
      _exit(call.kernel == Kernel::compiled ? fail_one_in_new_folder(call, dir, warm, for_good, at)
                                            : fail_one(call, dir, warm, for_good, at));
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_FALSE(WIFSIGNALED(status)) << "allocation " << at << ": " << strsignal(WTERMSIG(status));
    const int outcome = WEXITSTATUS(status);
    if (outcome == kNotReached) {
      ::testing::Test::RecordProperty("allocations", std::to_string(at));
      return;
    }
    ASSERT_EQ(outcome, kFine) << "allocation " << at << ": "
                              << (outcome < kWrongStatus
                                      ? kMeanings[outcome]
                                      : attune_status_name(attune_status(outcome - kWrongStatus)));
  }
}

// A driver without a GPU, and a table with a row that these calls pass over.
class Oom : public ::testing::TestWithParam<CallOf> {
 protected:
  static void SetUpTestSuite() {
    const std::string driver = cuda::fake::library_path("libcuda.so.1");
    ASSERT_NE(dlopen(driver.c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    setenv("ATTUNE_NVRTC", cuda::fake::library_path("libnvrtc.so.13.0").c_str(), 1);
    // In memory where that is possible: a written kernel waits for the disk.
    for (const char* base : {"/dev/shm", "/tmp"}) {
      std::string name = std::string(base) + "/attune-oom-test-XXXXXX";
      if (!dir().empty() || mkdtemp(name.data()) == nullptr) continue;
      dir() = name;
    }
    ASSERT_FALSE(dir().empty());
    setenv("ATTUNE_CACHE_DIR", dir().c_str(), 1);
    for (size_t t = 0; t < 4; ++t)
      for (size_t n = 0; n < kFloats; ++n) g_in[t][n] = float((n * 7 + t) % 17) / 17;
    for (size_t n = 0; n < kFloats; ++n) g_double_in[n] = g_in[0][n];
    for (size_t n = 0; n < kKeys; ++n) g_keep[n] = n % 3 != 0;
    TunedRow row;
    row.key = "cpu.attn_fwd.f32.d8";
    row.machine = {"Z80", processor_name(), 4};
    row.sizes = {kHeads, kRows, kKeys};
    row.config = "mr6.nv2.exp6.bq96.bk64.sp0.dot2.pv1.rs4";
    ASSERT_TRUE(add_tuned_row(table_path(), row).ok());
    for (const CallOf& call : kCalls)
      if (call.kernel == Kernel::from_disk) fill_cache(call);
  }
  // In a child: the driver must be new to the others.
  static void fill_cache(const CallOf& call) {
    const pid_t child = fork();
    if (child == 0) _exit(call.run());
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << call.name;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(dir()); }
  static std::string& dir() {
    static std::string name;
    return name;
  }
};

// The first kernel of a process takes more than a thousand; the full tier lets them all fail.
constexpr long kSample = 7;

TEST_P(Oom, FirstCall) {
  const bool all = GetParam().kernel == Kernel::none;
  fail_each(GetParam(), dir(), false, false, all ? 1 : kSample);
}
TEST_P(Oom, LaterCall) { fail_each(GetParam(), dir(), true, false); }

class FullOom : public Oom {};

TEST_P(FullOom, FirstCall) {
  fail_each(GetParam(), dir(), false, false, GetParam().sampled ? kSample : 1);
}
TEST_P(FullOom, LaterCall) { fail_each(GetParam(), dir(), true, false); }
TEST_P(FullOom, FirstCallAndAllFromThereOn) {
  fail_each(GetParam(), dir(), false, true, GetParam().sampled ? kSample : 1);
}
TEST_P(FullOom, LaterCallAndAllFromThereOn) { fail_each(GetParam(), dir(), true, true); }

std::vector<CallOf> quick_calls() {
  std::vector<CallOf> calls;
  for (const CallOf& call : kCalls)
    if (!call.full) calls.push_back(call);
  return calls;
}

std::string name_of(const ::testing::TestParamInfo<CallOf>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Calls, Oom, ::testing::ValuesIn(quick_calls()), name_of);
INSTANTIATE_TEST_SUITE_P(Calls, FullOom, ::testing::ValuesIn(kCalls), name_of);

// What the other tests rest on.
TEST(OomAllocator, Fails) {
  g_left = 1;
  char* first = new (std::nothrow) char;
  char* second = new (std::nothrow) char;
  char* third = new (std::nothrow) char;
  EXPECT_TRUE(first != nullptr && second == nullptr && third != nullptr);
  for (char* memory : {first, second, third}) delete memory;
}

}  // namespace
}  // namespace attune
