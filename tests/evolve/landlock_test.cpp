#include "evolve/worker/landlock.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "evolve/compile/host_compile.hpp"
#include "evolve/worker/process.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

class Landlock : public testing::Test {
 protected:
  void SetUp() override {
    if (landlock_abi() == 0) GTEST_SKIP() << "this kernel has no Landlock";
    fs::create_directories(folder / "open");
    fs::create_directories(folder / "closed");
    std::ofstream(folder / "open/file") << "open";
    std::ofstream(folder / "closed/file") << "closed";
  }
  void TearDown() override { fs::remove_all(folder); }

  // What `attempt` returns in a process that has only these files. The ruleset is made before, as
  // for a program that is started.
  template <class Attempt>
  static int inside(const FileAccess& access, const Attempt& attempt) {
    Fd ruleset;
    const Status made = make_ruleset(access, &ruleset);
    EXPECT_TRUE(made.ok()) << made.message;
    const pid_t child = fork();
    if (child == 0) _exit(enter_ruleset(ruleset.get()) == 0 ? attempt() : 99);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  // 0, or the error of opening it.
  static int opened(const std::string& path, int flags = O_RDONLY) {
    const int fd = open(path.c_str(), flags, 0600);
    if (fd < 0) return errno;
    close(fd);
    return 0;
  }

  fs::path folder = fs::temp_directory_path() / fmt::format("attune_landlock_test.{}", getpid());
};

TEST_F(Landlock, OpensWhatItIsGivenAndNothingElse) {
  const std::string open_file = folder / "open/file", closed_file = folder / "closed/file",
                    fresh = folder / "open/fresh";
  const FileAccess reads{{folder / "open"}, {}}, writes{{}, {folder / "open"}};
  EXPECT_EQ(inside(reads, [&] { return opened(open_file); }), 0);
  EXPECT_EQ(inside(reads, [&] { return opened(closed_file); }), EACCES);
  EXPECT_EQ(inside(reads, [&] { return opened(open_file, O_WRONLY); }), EACCES);
  EXPECT_EQ(inside(reads, [&] { return opened(fresh, O_WRONLY | O_CREAT); }), EACCES);
  EXPECT_EQ(inside(writes, [&] { return opened(open_file, O_RDWR | O_TRUNC); }), 0);
  EXPECT_EQ(inside(writes, [&] { return opened(fresh, O_WRONLY | O_CREAT); }), 0);
  EXPECT_EQ(inside(writes, [&] { return opened(closed_file, O_WRONLY); }), EACCES);
  // One file of a folder; a link is what it leads to; a path that is not there hinders nothing.
  fs::create_symlink(closed_file, folder / "open/link");
  const std::string link = folder / "open/link";
  EXPECT_EQ(inside(reads, [&] { return opened(link); }), EACCES);
  const FileAccess one{{link, folder / "nowhere"}, {}};
  EXPECT_EQ(inside(one, [&] { return opened(closed_file); }), 0);
  EXPECT_EQ(inside(one, [&] { return opened(open_file); }), EACCES);
}

// A program worker: no path at all, but the object that it was handed as a descriptor.
TEST_F(Landlock, WithoutPathsAMemoryFileIsStillOpened) {
  const int memory = memfd_create("candidate", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(memory, 0);
  ASSERT_EQ(write(memory, "text", 4), 4);
  ASSERT_EQ(fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            0);
  const std::string path = fmt::format("/proc/self/fd/{}", memory);
  EXPECT_EQ(inside({}, [&] { return opened(path); }), 0);
  for (const char* closed : {"/etc/passwd", "/proc/self/environ", "/dev/null", "/"})
    EXPECT_EQ(inside({}, [&] { return opened(closed); }), EACCES) << closed;
  // A descriptor of another file is no way around.
  const Fd file(open((folder / "closed/file").c_str(), O_RDONLY | O_CLOEXEC));
  const std::string by_number = fmt::format("/proc/self/fd/{}", file.get());
  EXPECT_EQ(inside({}, [&] { return opened(by_number); }), EACCES);
  close(memory);
}

TEST_F(Landlock, WithoutPathsAnObjectIsStillLoaded) {
  if (host_compiler().path.empty()) GTEST_SKIP() << host_compiler().why_not;
  const Built built = build_candidate(
      "#include \"candidate.h\"\nint attune_candidate(const attune_candidate_call*) { return 7; }",
      folder, 60);
  ASSERT_EQ(built.verdict, Verdict::ok) << built.why;
  std::ifstream file(built.library, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const int memory = memfd_create("candidate", MFD_CLOEXEC);
  ASSERT_EQ(write(memory, bytes.data(), bytes.size()), ssize_t(bytes.size()));
  const std::string path = fmt::format("/proc/self/fd/{}", memory);
  const auto load = [](const std::string& from) {
    void* library = dlopen(from.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return 1;
    const auto entry = reinterpret_cast<int (*)(void*)>(dlsym(library, "attune_candidate"));
    return entry == nullptr ? 2 : entry(nullptr);
  };
  EXPECT_EQ(inside({}, [&] { return load(path); }), 7);
  EXPECT_EQ(inside({}, [&] { return load(built.library); }), 1);
  close(memory);
}

TEST_F(Landlock, ClosesTcpWhereTheKernelCan) {
  if (landlock_abi() < 4) GTEST_SKIP() << "from version 4 on";
  const auto bound = [] {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return 0;  // there is no network to close
    any.sin_port = htons(9);
    return connect(fd, reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0 ? 0 : errno;
  };
  EXPECT_EQ(inside({}, bound), EACCES);
}

TEST_F(Landlock, AStartedProgramIsHeldToo) {
  const auto run = [&](const std::string& file) {
    Spawn what{"/bin/cat", {file}, {}, "", {-1, -1, -1}, {}};
    what.files =
        FileAccess{{"/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", folder / "open"}, {}};
    pid_t pid = -1;
    const Status status = spawn(what, &pid);
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_TRUE(ended_by(pid, monotonic_seconds() + 20));
    const int result = kill_group(pid);
    return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
  };
  EXPECT_EQ(run(folder / "open/file"), 0);
  EXPECT_EQ(run(folder / "closed/file"), 1);
  EXPECT_EQ(run("/etc/passwd"), 1);

  Spawn nothing{"/bin/cat", {}, {}, "", {-1, -1, -1}, {}};
  nothing.files = FileAccess{};
  pid_t pid = -1;
  EXPECT_NE(spawn(nothing, &pid).message.find("Permission denied"), std::string::npos);
}

TEST_F(Landlock, TheCallingProcessCanRestrictItself) {
  const pid_t child = fork();
  if (child == 0) {
    const bool held = restrict_files({}).ok();
    _exit(held ? opened("/etc/passwd") : 99);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), EACCES);
}

}  // namespace
}  // namespace attune::evolve
