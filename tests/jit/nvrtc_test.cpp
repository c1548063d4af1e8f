#include "src/jit/nvrtc.hpp"

#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "src/jit/kernel.hpp"
#include "tests/jit/compiler.hpp"
#include "tests/rungs/configs.hpp"

namespace attune::jit {
namespace {

namespace fs = std::filesystem;

// ---- finding it, in a made-up file system ----

class NvrtcSearch : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/attune-nvrtc-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    places_.root = name;
  }
  void TearDown() override { fs::remove_all(places_.root); }

  std::string path(const std::string& name) const { return places_.root + name; }

  // A file that looks like a library of this processor, or of another one.
  void make(const std::string& name, bool foreign = false) const {
    char head[64] = "";
    std::ifstream("/proc/self/exe", std::ios::binary).read(head, sizeof(head));
    if (foreign) head[18] = char(head[18] + 1);
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary).write(head, sizeof(head));
  }
  void make_pair(const std::string& folder, const std::string& version) const {
    make(folder + "/libnvrtc.so." + version.substr(0, version.find('.')));
    make(folder + "/libnvrtc-builtins.so." + version);
  }

  std::vector<NvrtcLibrary> found() const {
    std::vector<std::string> folders;
    for (const NvrtcFolders& place : nvrtc_folders(places_))
      folders.insert(folders.end(), place.folders.begin(), place.folders.end());
    return list_nvrtc(folders);
  }
  NvrtcChoice choice(int driver_version = 0) const {
    return choose_place(nvrtc_folders(places_), driver_version);
  }
  std::string chosen(int driver_version) const {
    const NvrtcChoice made = choice(driver_version);
    return made.problem.empty() ? made.library.version() : made.problem;
  }

  NvrtcPlaces places_;
};

TEST_F(NvrtcSearch, NothingIsSaidWithAdvice) {
  EXPECT_TRUE(found().empty());
  EXPECT_NE(chosen(0).find("pip install nvidia-cuda-nvrtc"), std::string::npos) << chosen(0);
}

TEST_F(NvrtcSearch, KnowsThePlaces) {
  const std::string places[] = {
      "/usr/local/cuda/lib64",
      "/usr/local/cuda-12.4/targets/x86_64-linux/lib",
      "/usr/lib/x86_64-linux-gnu",
      "/linker/folder",
      "/usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib",
      "/usr/local/lib/python3.12/dist-packages/nvidia/cu13/lib",
      "/opt/app/.venv/lib/python3.12/site-packages/nvidia/cu13/lib",
      "/opt/conda/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
      "/venv/lib/python3.11/site-packages/nvidia/cu13/lib",
      "/conda/lib/python3.11/site-packages/nvidia/cu13/lib",
      "/home/me/.local/lib/python3.11/site-packages/nvidia/cu13/lib",
      "/tree/.venv/lib/python3.11/site-packages/nvidia/cu13/lib",
      "/tree/build/nvrtc",
      "/ld/one",
      "/toolkit/lib64",
      "/loaded/site-packages/nvidia/cuda_nvrtc/lib",
      "/python/lib/python3.13/site-packages/nvidia/cu13/lib",
  };
  places_.loaded = {path("/loaded/site-packages/torch/lib/libtorch.so")};
  places_.library_dir = path("/tree/build");
  make("/tree/build/CMakeCache.txt");
  places_.home = path("/home/me");
  places_.ld_library_path = path("/ld/none") + "::" + path("/ld/one");
  places_.path = path("/none/bin") + ":" + path("/python/bin");
  places_.cuda_home = path("/toolkit");
  places_.virtual_env = path("/venv");
  places_.conda_prefix = path("/conda");
  make("/python/bin/python3");
  fs::create_directories(path("/etc/ld.so.conf.d"));
  std::ofstream(path("/etc/ld.so.conf.d/cuda.conf")) << "# comment\n/linker/folder\n";

  for (const std::string& place : places) {
    make_pair(place, "13.1");
    const std::vector<NvrtcLibrary> libraries = found();
    ASSERT_EQ(libraries.size(), 1u) << place;
    EXPECT_TRUE(fs::equivalent(libraries[0].path, path(place + "/libnvrtc.so.13"))) << place;
    EXPECT_TRUE(fs::equivalent(libraries[0].builtins, path(place + "/libnvrtc-builtins.so.13.1")));
    EXPECT_EQ(libraries[0].version(), "13.1");
    fs::remove_all(path(place));
  }
}

// Each place is filled after the ones that count less, with an older version than theirs: the place
// decides, not the number.
TEST_F(NvrtcSearch, ThePlaceCountsMoreThanTheVersion) {
  struct Place {
    const char *folder, *name;
  };
  const Place places[] = {
      {"/home/me/.local/lib/python3.11/site-packages/nvidia/cu13/lib",
       "the Python packages of this user or the system"},
      {"/python/lib/python3.13/site-packages/nvidia/cu13/lib",
       "the Python packages of PATH's python3"},
      {"/usr/lib/x86_64-linux-gnu", "the loader's folders"},
      {"/ld/one", "LD_LIBRARY_PATH"},
      {"/usr/local/cuda/lib64", "the CUDA toolkit"},
      {"/toolkit/lib64", "the toolkit of CUDA_HOME or CUDA_PATH"},
      {"/venv/lib/python3.11/site-packages/nvidia/cu13/lib", "the active Python environment"},
      {"/tree/.venv/lib/python3.11/site-packages/nvidia/cu13/lib", "the source tree's .venv"},
      {"/torch/site-packages/nvidia/cu13/lib", "the Python packages of a loaded library"},
      {"/tree/build/nvrtc", "beside Attune's library"},
      {"/cudart", "beside the CUDA runtime that is loaded"},
      {"/used", "loaded in this process already"},
  };
  places_.loaded = {path("/torch/site-packages/torch/lib/libtorch.so"),
                    path("/cudart/libcudart.so.13"), path("/used/libnvrtc.so.13")};
  places_.library_dir = path("/tree/build");
  make("/tree/build/CMakeCache.txt");
  places_.home = path("/home/me");
  places_.ld_library_path = path("/ld/one");
  places_.path = path("/python/bin");
  places_.cuda_home = path("/toolkit");
  places_.virtual_env = path("/venv");
  make("/python/bin/python3");
  int minor = 50;
  for (const Place& place : places) {
    make_pair(place.folder, "13." + std::to_string(--minor));
    const NvrtcChoice made = choice();
    EXPECT_EQ(made.library.minor, minor) << place.folder << ": " << made.library.path;
    EXPECT_EQ(made.place, place.name);
  }
  // One that the driver cannot follow does not hide the next place's.
  for (const Place& place : places) make_pair(place.folder, "14.0");
  make_pair("/used", "14.1");
  fs::remove(path("/used/libnvrtc.so.13"));
  EXPECT_EQ(choice(13000).place, "beside the CUDA runtime that is loaded");
}

TEST_F(NvrtcSearch, AnInstalledPackageHasItsOwnFirst) {
  places_.library_dir = path("/env/lib/python3.11/site-packages/attune");
  places_.virtual_env = path("/other");
  make_pair("/other/lib/python3.11/site-packages/nvidia/cu13/lib", "13.9");
  make_pair("/env/lib/python3.11/site-packages/nvidia/cu13/lib", "13.0");
  EXPECT_EQ(choice().library.version(), "13.0");
  EXPECT_EQ(choice().place, "the Python packages beside Attune's");
}

// Where somebody else may have put files: relative elements of paths, and a .venv beside a folder
// that is no build.
TEST_F(NvrtcSearch, NothingComesFromTheCurrentFolder) {
  const fs::path before = fs::current_path();
  fs::create_directories(path("/hostile/bin"));
  fs::create_directories(path("/hostile/installed"));
  fs::current_path(path("/hostile"));
  make("/hostile/bin/python3");
  for (const char* folder :
       {"", "/nvrtc", "/lib64", "/.venv/lib/python3.11/site-packages/nvidia/cu13/lib",
        "/lib/python3.11/site-packages/nvidia/cu13/lib"})
    make_pair(std::string("/hostile") + folder, "13.99");
  places_.library_dir = path("/hostile/installed");
  places_.loaded = {"libnvrtc.so.13", "./libnvrtc.so.13"};
  places_.ld_library_path = ".::lib64";
  places_.path = "bin:./bin:.";
  places_.cuda_home = places_.cuda_path = ".";
  places_.virtual_env = places_.conda_prefix = ".";
  places_.home = ".";
  EXPECT_TRUE(found().empty()) << found()[0].path;
  places_.library_dir = "";
  EXPECT_TRUE(found().empty()) << found()[0].path;
  fs::current_path(before);
}

TEST_F(NvrtcSearch, TheNewestThatTheDriverCanFollow) {
  make_pair("/usr/local/cuda-12.4/lib64", "12.4");
  make_pair("/usr/local/cuda-12.10/lib64", "12.10");
  make_pair("/usr/local/cuda-13.0/lib64", "13.0");
  make_pair("/usr/local/cuda-11.8/lib64", "11.8");
  EXPECT_EQ(found().size(), 4u);
  EXPECT_EQ(chosen(0), "13.0");
  EXPECT_EQ(chosen(13020), "13.0");
  EXPECT_EQ(chosen(12020), "12.10");  // a newer minor than the driver's own works
  EXPECT_NE(chosen(11080).find("does not fit"), std::string::npos) << chosen(11080);
}

TEST_F(NvrtcSearch, VersionsComeFromRealNames) {
  make("/usr/local/cuda/lib64/libnvrtc.so.12.8.93");
  fs::create_symlink("libnvrtc.so.12.8.93", path("/usr/local/cuda/lib64/libnvrtc.so.12"));
  fs::create_symlink("libnvrtc.so.12", path("/usr/local/cuda/lib64/libnvrtc.so"));
  make("/usr/local/cuda/lib64/libnvrtc-builtins.so.12.6");
  make("/usr/local/cuda/lib64/libnvrtc-builtins.so.12.8");
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found()[0].version(), "12.8");
  EXPECT_TRUE(found()[0].builtins.ends_with("libnvrtc-builtins.so.12.8"));
}

TEST_F(NvrtcSearch, OtherProcessorsLibrariesAndBrokenLinksAreNotOurs) {
  make("/usr/local/cuda/targets/other-linux/lib/libnvrtc.so.13", true);
  fs::create_directories(path("/usr/local/cuda/lib64"));
  fs::create_symlink("gone", path("/usr/local/cuda/lib64/libnvrtc.so.13"));
  EXPECT_TRUE(found().empty());
}

// ---- which build it is ----

class BuildId : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }

  // An ELF file with one segment of notes.
  std::string of_file(const std::string& notes) const {
    ElfW(Ehdr) head = {};
    std::memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_phoff = sizeof(head);
    head.e_phnum = 1;
    ElfW(Phdr) segment = {};
    segment.p_type = PT_NOTE;
    segment.p_offset = sizeof(head) + sizeof(segment);
    segment.p_filesz = notes.size();
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&head), sizeof(head));
    file.write(reinterpret_cast<const char*>(&segment), sizeof(segment));
    file << notes;
    file.close();
    return build_id(path_);
  }
  static std::string note(uint32_t type, const std::string& name, const std::string& text) {
    const ElfW(Nhdr) head = {uint32_t(name.size()), uint32_t(text.size()), type};
    std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
    for (const std::string& part : {name, text})
      bytes += part + std::string((4 - part.size() % 4) % 4, '\0');
    return bytes;
  }

  const std::string path_ = testing::TempDir() + "attune-build-id-" + std::to_string(getpid());
};

TEST_F(BuildId, IsReadFromTheNotes) {
  const std::string gnu("GNU\0", 4), other = note(1, gnu, "abcde");
  EXPECT_EQ(of_file(other + note(NT_GNU_BUILD_ID, gnu, "\x01\xfe")), "01fe");
  EXPECT_EQ(of_file(note(NT_GNU_BUILD_ID, "X", "\x01")), "");
  EXPECT_EQ(of_file(other), "");
  EXPECT_EQ(of_file(""), "");
  std::string damaged = note(NT_GNU_BUILD_ID, gnu, "\x01\xfe");
  damaged[4] = char(0xff);  // longer than the file
  EXPECT_EQ(of_file(damaged), "");
  EXPECT_EQ(build_id("/no/such/file"), "");
  EXPECT_EQ(build_id("/proc/self/cmdline"), "");
}

// ---- the log ----

TEST(NvrtcLog, ResourcesAndWarnings) {
  Compiled compiled;
  parse_log(
      "attune_kernel.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n"
      "\n"
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'attune_a' for 'sm_90a'\n"
      "ptxas info    : Function properties for attune_a\n"
      "ptxas         .     256 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 256 bytes cumulative stack size, 8704 "
      "bytes smem\n"
      "ptxas info    : Compile time = 76.065 ms\n"
      "ptxas info    : Compiling entry function 'attune_b' for 'sm_90a'\n"
      "ptxas info    : Used 24 registers\n",
      &compiled);
  const std::vector<Resources> expected = {{"attune_a", 168, 256, 12, 8, 8704},
                                           {"attune_b", 24, 0, 0, 0, 0}};
  EXPECT_EQ(compiled.resources, expected);
  EXPECT_EQ(compiled.warnings.size(), 1u);
}

TEST(NvrtcLog, ErrorsAloneAndNotTooMany) {
  const std::string log =
      "score_mod(1): warning: something\n  x\n\nscore_mod(2): error: bad\n  return bad;\n         "
      "^\n\nscore_mod(3): error: worse\n  ^\n\n2 errors detected in the compilation of \"k\".\n";
  EXPECT_EQ(errors_of(log, 1000),
            "score_mod(2): error: bad\n  return bad;\n         ^\nscore_mod(3): error: worse\n  ^");
  EXPECT_EQ(errors_of(log, 30), "score_mod(2): error: bad");
}

// ---- using it ----

KernelSpec naive_spec() {
  KernelSpec spec;
  spec.key.dim = spec.key.dim_v = 16;
  spec.config = config_of(LadderConfig{.vector = false});
  spec.arch = arch_of(90);
  return spec;
}

TEST(Nvrtc, CompilesAKernel) {
  ATTUNE_NEEDS_NVRTC();
  const TemporaryCache cache;
  CacheEntry first, second;
  Origin origin;
  Status s = obtain(naive_spec(), "test", &first, &origin);
  ASSERT_TRUE(s.ok()) << s.message;
  EXPECT_EQ(origin, Origin::compiler);
  EXPECT_TRUE(
      first.cubin.starts_with("\x7f"
                              "ELF"));
  EXPECT_EQ(first.arch, "sm_90a");
  ASSERT_EQ(first.resources.size(), 1u);
  EXPECT_EQ(first.resources[0].entry, "attune_naive");
  EXPECT_GT(first.resources[0].registers, 0);

  s = obtain(naive_spec(), "test", &second, &origin);
  ASSERT_TRUE(s.ok()) << s.message;
  EXPECT_EQ(origin, Origin::disk);
  EXPECT_EQ(first, second);
}

TEST(Nvrtc, WorksWithoutACacheAndWarnsOnce) {
  ATTUNE_NEEDS_NVRTC();
  const TemporaryCache cache("/proc/self/no-such/folder");
  CacheEntry entry;
  Origin origin;
  const Status s = obtain(naive_spec(), "test", &entry, &origin);
  EXPECT_TRUE(s.ok()) << s.message;
  EXPECT_NE(cache_warning().find("cannot be written"), std::string::npos) << cache_warning();
}

TEST(Nvrtc, TheCallersMistakesAreNamed) {
  ATTUNE_NEEDS_NVRTC();
  const TemporaryCache cache;
  CacheEntry entry;
  Origin origin;
  KernelSpec spec = naive_spec();
  spec.key.score_mod = spec.key.mask_mod = true;
  spec.score_mod = "return score;";
  spec.mask_mod = "int x = 1;\nreturn i - j < limit;";
  Status s = obtain(spec, "test", &entry, &origin);
  EXPECT_EQ(s.code, ATTUNE_INVALID_ARGUMENT);
  EXPECT_TRUE(s.message.starts_with("mask_mod does not compile:\nmask_mod(2): error:"))
      << s.message;
  EXPECT_NE(s.message.find("\"limit\" is undefined"), std::string::npos) << s.message;

  spec.mask_mod = "return i >= j;";
  spec.score_mod = "return score";
  s = obtain(spec, "test", &entry, &origin);
  EXPECT_EQ(s.code, ATTUNE_INVALID_ARGUMENT);
  EXPECT_TRUE(s.message.starts_with("score_mod does not compile:")) << s.message;

  spec.score_mod = "return score + tanhf(static_cast<const float*>(data)[h] * float(i - j));";
  s = obtain(spec, "test", &entry, &origin);
  EXPECT_TRUE(s.ok()) << s.message;
}

// A warning in one part is no mistake of its; the error in the other is.
TEST(Nvrtc, TheErrorCountsNotTheWarning) {
  ATTUNE_NEEDS_NVRTC();
  const TemporaryCache cache;
  CacheEntry entry;
  Origin origin;
  KernelSpec spec = naive_spec();
  spec.key.score_mod = spec.key.mask_mod = true;
  spec.score_mod = "int unused;\nreturn score;";
  spec.mask_mod = "return nothing;";
  const Status s = obtain(spec, "test", &entry, &origin);
  EXPECT_EQ(s.code, ATTUNE_INVALID_ARGUMENT);
  EXPECT_TRUE(s.message.starts_with("mask_mod does not compile:\nmask_mod(1): error:"))
      << s.message;
}

// Nothing of a file that the text names comes into the message.
TEST(Nvrtc, TextThatIsNoBodyIsRefusedBeforeTheCompiler) {
  ATTUNE_NEEDS_NVRTC();
  const TemporaryCache cache;
  CacheEntry entry;
  Origin origin;
  KernelSpec spec = naive_spec();
  spec.key.score_mod = spec.key.mask_mod = true;
  spec.score_mod = "return score;";
  spec.mask_mod = "\n#include \"/etc/passwd\"\nreturn true;";
  const Status s = obtain(spec, "test", &entry, &origin);
  EXPECT_EQ(s.code, ATTUNE_INVALID_ARGUMENT);
  EXPECT_TRUE(s.message.starts_with("mask_mod does not compile: line 2:")) << s.message;
  EXPECT_EQ(s.message.find("root:"), std::string::npos) << s.message;
}

// What the scanner lets through, the compiler reads as the scanner does: these stay one function.
TEST(Nvrtc, CompilesWhatTheScannerReads) {
  ATTUNE_NEEDS_NVRTC();
  const TemporaryCache cache;
  CacheEntry entry;
  Origin origin;
  KernelSpec spec = naive_spec();
  spec.key.score_mod = true;
  spec.score_mod =
      "const char* texts[] = {\"}\\\"#\", R\"x(} )\" # )x\", R\"(\n#include <a>\n)\"};\r\n"
      "int sum = 1'000 + '}' + '\\'' + L'{';  // } #\n"
      "/* } # */ #pragma unroll 2 // as it is\n"
      "  for (int k = 0; k < 4; ++k) <% sum += texts[0][k % 3]; %>\n"
      "return score + float(sum);";
  const Status s = obtain(spec, "test", &entry, &origin);
  EXPECT_TRUE(s.ok()) << s.message;
  ASSERT_EQ(entry.resources.size(), 1u);
  EXPECT_EQ(entry.resources[0].entry, "attune_naive");
}

}  // namespace
}  // namespace attune::jit
