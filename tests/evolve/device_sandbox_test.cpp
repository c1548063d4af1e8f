// What holds a CUDA program, as far as it can be seen without a GPU.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "evolve/compile/cuda_program.hpp"
#include "evolve/worker/sandbox.hpp"
#include "tests/evolve/worker_skip.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

// What `attempt` returns in a process of its own.
template <class Attempt>
int in_child(const Attempt& attempt) {
  const pid_t child = fork();
  if (child == 0) _exit(attempt());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(DeviceSandbox, LeavesTheDriverItsSocketsAndNoOthers) {
  ATTUNE_NEEDS_SANDBOX();
  const auto opened = [](int family, int type) {
    return in_child([&] {
      if (!enter_device_sandbox().ok()) return 99;
      return socket(family, type, 0) >= 0 ? 0 : errno;
    });
  };
  EXPECT_EQ(opened(AF_UNIX, SOCK_STREAM), 0);
  EXPECT_NE(opened(AF_NETLINK, SOCK_RAW), EPERM);
  for (int family : {AF_INET, AF_INET6, AF_PACKET, AF_VSOCK, AF_ALG})
    EXPECT_EQ(opened(family, SOCK_STREAM), EPERM) << family;
  EXPECT_EQ(opened(AF_INET, SOCK_DGRAM), EPERM);
  EXPECT_EQ(in_child([] {
              if (!enter_device_sandbox().ok()) return 99;
              int ends[2];
              return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 ? 0 : errno;
            }),
            0);
}

TEST(DeviceSandbox, TakesNoPagesFromMemoryThatOthersShare) {
  ATTUNE_NEEDS_SANDBOX();
  const auto shared = [](const auto& use) {
    return in_child([&] {
      const int fd = memfd_create("shared", 0);
      if (ftruncate(fd, 8192) != 0) return 98;
      void* at = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      return at != MAP_FAILED && enter_device_sandbox().ok() ? use(fd, at) : 99;
    });
  };
  EXPECT_EQ(shared([](int, void* at) { return madvise(at, 4096, MADV_REMOVE); }), 1000 + SIGSYS);
  EXPECT_EQ(shared([](int, void* at) { return madvise(at, 4096, MADV_DONTNEED); }), 0);
  EXPECT_EQ(shared([](int fd, void*) {
              constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
              return fallocate(fd, kPunch, 0, 4096) == 0 ? 0 : errno;
            }),
            EPERM);
}

TEST(DeviceSandbox, OpensWhatTheDriverNeedsAndNoFilesOfTheUser) {
  if (landlock_abi() == 0) GTEST_SKIP() << "this kernel has no Landlock";
  const fs::path folder =
      fs::temp_directory_path() / fmt::format("attune_device_sandbox_test.{}", getpid());
  fs::create_directories(folder);
  for (const char* name : {"candidate.so", "other"}) std::ofstream(folder / name) << name;
  const std::string library = folder / "candidate.so";
  const auto opened = [&](const std::string& path, int flags = O_RDONLY) {
    return in_child([&] {
      if (!restrict_files(cuda_program_files(library)).ok()) return 99;
      return open(path.c_str(), flags) >= 0 ? 0 : errno;
    });
  };
  for (const char* path : {"/usr/lib", "/proc/self/status", "/proc/meminfo", "/sys"})
    EXPECT_EQ(opened(path), 0) << path;
  EXPECT_EQ(opened(folder / "candidate.so"), 0);
  EXPECT_EQ(opened("/dev/null", O_RDWR), 0);
  EXPECT_EQ(opened(folder / "candidate.so", O_WRONLY), EACCES);
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "/root";
  for (const std::string& path : {(folder / "other").string(), folder.string(), home,
                                  std::string("/etc/passwd"), std::string("/dev/mem")})
    if (fs::exists(path)) {
      EXPECT_EQ(opened(path), EACCES) << path;
    }
  for (const char* file : {"environ", "maps", "mem", "cmdline"})  // of another process
    EXPECT_EQ(opened(fmt::format("/proc/{}/{}", getpid(), file)), EACCES) << file;
  for (const std::string& path : cuda_program_files(library).write)
    EXPECT_TRUE(path.starts_with("/dev/")) << path << " may be written";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace attune::evolve
