#include "evolve/store/store.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "evolve/report/report.hpp"
#include "evolve/store/files.hpp"
#include "src/jit/sha256.hpp"
#include "tests/evolve/sample_run.hpp"

namespace attune::evolve {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

AssertionResult fine(const Status& status) {
  if (status.ok()) return AssertionSuccess();
  return AssertionFailure() << status.message;
}

AssertionResult says(const Status& status, const std::string& words) {
  if (status.ok()) return AssertionFailure() << "it worked";
  if (status.message.find(words) != std::string::npos) return AssertionSuccess();
  return AssertionFailure() << status.message;
}

// One value of the database, by a connection of our own.
std::string ask(const std::string& folder, const char* sql) {
  sqlite3* db = nullptr;
  std::string answer;
  if (sqlite3_open((folder + "/run.db").c_str(), &db) == SQLITE_OK)
    sqlite3_exec(
        db, sql,
        [](void* to, int, char** values, char**) {
          *static_cast<std::string*>(to) = values[0] != nullptr ? values[0] : "";
          return 0;
        },
        &answer, nullptr);
  sqlite3_close(db);
  return answer;
}

class StoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> created() {
    std::unique_ptr<Store> store;
    EXPECT_TRUE(fine(Store::create(folder_.path(), sample_meta(), &store)));
    return store;
  }
  Status open(bool exclusive, std::unique_ptr<Store>* store) {
    return Store::open(folder_.path(), exclusive, store);
  }

  TemporaryFolder folder_;
  SampleSpace space_;
};

TEST(EvaluationNames, ParseBack) {
  for (int i = 0; i <= int(Verdict::cheated); ++i) {
    Verdict back{};
    EXPECT_TRUE(parse_verdict(verdict_name(Verdict(i)), &back));
    EXPECT_EQ(back, Verdict(i));
  }
  for (int i = 0; i <= int(Stage::promote); ++i) {
    Stage back{};
    EXPECT_TRUE(parse_stage(stage_name(Stage(i)), &back));
    EXPECT_EQ(back, Stage(i));
  }
  Verdict verdict{};
  Stage stage{};
  EXPECT_FALSE(parse_verdict("fine", &verdict));
  EXPECT_FALSE(parse_stage("", &stage));
}

TEST(StoreJson, EverythingComesBack) {
  const SampleSpace space;
  for (int64_t n : {0, 1, 5, 8, 12}) {
    const Json json = to_json(sample_record(space, n));
    const std::string text = json.dump();
    EXPECT_EQ(to_json(record_of(Json::parse(text))).dump(), text);
  }
  RunMeta meta = sample_meta();
  meta.shapes[0].problem.window_left = 7;
  meta.shapes[0].problem.mask = MaskKind::bf16;
  meta.shapes[0].problem.alignment = Alignment::bottom_right;
  const RunMeta back = meta_of(Json::parse(to_json(meta).dump()));
  EXPECT_EQ(to_json(back), to_json(meta));
  EXPECT_EQ(back.seed, meta.seed);
  EXPECT_EQ(back.shapes[0].problem, meta.shapes[0].problem);
  EXPECT_EQ(back.shapes[1].problem, meta.shapes[1].problem);
  const Record r = sample_record(space, 1);
  const Json final = to_json(sample_final(r, r, r));
  EXPECT_EQ(to_json(comparison_of(final)), final);
}

TEST(StoreJson, ThePassComesBack) {
  RunMeta meta = sample_meta();
  meta.device = "cpu";
  meta.program = ProgramSource{};
  meta.shapes[0].problem.pass = Pass::backward;
  const Json json = to_json(meta);
  EXPECT_EQ(meta_of(json).shapes[0].problem, meta.shapes[0].problem);
  EXPECT_EQ(meta_of(json).shapes[1].problem.pass, Pass::forward);
  for (const auto& [field, value] : {std::pair{"device", Json("cuda:0")}, {"program", Json()}}) {
    Json other = json;
    other[field] = value;
    EXPECT_THROW(meta_of(other), std::exception) << field;
  }
}

// A damaged file may say anything, and sizes are divided by.
TEST(StoreJson, SizesThatNoCallHasAreRefused) {
  const Json good = to_json(sample_meta());
  const std::pair<const char*, int64_t> changes[] = {
      {"heads_kv", 762623}, {"heads_kv", 0},    {"heads_kv", -8},     {"heads_q", 9},
      {"heads_q", 0},       {"batch", 0},       {"batch", INT64_MAX}, {"batch", int64_t{1} << 31},
      {"seq_q", 0},         {"seq_k", -1},      {"seq_k", INT64_MAX}, {"dim", 0},
      {"dim_v", 257},       {"dim", INT32_MIN}, {"block_mask_q", -1}, {"mask", 5},
      {"mask", -1}};
  for (const auto& [name, value] : changes) {
    Json json = good;
    json["shapes"][0]["problem"][name] = value;
    EXPECT_THROW(meta_of(json), Json::exception) << name << ' ' << value;
  }
  Json large = good;
  large["shapes"][0]["problem"]["seq_k"] = 1 << 30;
  EXPECT_EQ(to_json(meta_of(large)), large);
}

TEST(StoreJson, NumbersThatJsonLacks) {
  const double inf = std::numeric_limits<double>::infinity();
  const Interval back = interval_of(Json::parse(to_json(Interval{-inf, std::nan(""), inf}).dump()));
  EXPECT_EQ(back.low, -inf);
  EXPECT_TRUE(std::isnan(back.mid));
  EXPECT_EQ(back.high, inf);
}

TEST_F(StoreTest, KeepsRecordsAndValues) {
  {
    auto store = created();
    for (int64_t n = 0; n < 10; ++n) EXPECT_TRUE(fine(store->append(sample_record(space_, n))));
    EXPECT_TRUE(fine(store->put("noise", {{"margin", 0.01}})));
    EXPECT_TRUE(fine(store->put("noise", {{"margin", 0.02}})));
    EXPECT_TRUE(store->get("final").is_null());
  }
  std::unique_ptr<Store> store;
  ASSERT_TRUE(fine(open(true, &store)));
  EXPECT_EQ(to_json(store->meta()), to_json(sample_meta()));
  EXPECT_EQ(store->get("noise")["margin"], 0.02);
  std::vector<Record> records;
  ASSERT_TRUE(fine(store->records(&records)));
  ASSERT_EQ(records.size(), 10u);
  for (int64_t n = 0; n < 10; ++n)
    EXPECT_EQ(to_json(records[size_t(n)]), to_json(sample_record(space_, n)));
  EXPECT_TRUE(fine(store->append(sample_record(space_, 10))));
  EXPECT_EQ(ask(folder_.path(), "PRAGMA journal_mode"), "wal");
  EXPECT_EQ(ask(folder_.path(), "PRAGMA user_version"), std::to_string(kSchema));
  EXPECT_EQ(ask(folder_.path(), "SELECT value FROM meta WHERE name='schema'"),
            std::to_string(kSchema));
}

TEST_F(StoreTest, TheBudgetCanBeChangedAndNothingElse) {
  {
    auto store = created();
    EXPECT_TRUE(fine(store->set_budget(0, 77)));
    EXPECT_EQ(store->meta().budget_evaluations, 77);
  }
  EXPECT_TRUE(Store::exists(folder_.path()));
  EXPECT_FALSE(Store::exists(folder_.path() + "/nowhere"));
  std::unique_ptr<Store> store;
  ASSERT_TRUE(fine(open(false, &store)));
  RunMeta expected = sample_meta();
  expected.budget_seconds = 0;
  expected.budget_evaluations = 77;
  EXPECT_EQ(to_json(store->meta()), to_json(expected));
}

TEST_F(StoreTest, RecordsComeInOrder) {
  auto store = created();
  EXPECT_TRUE(says(store->append(sample_record(space_, 1)), "record 1 was offered where 0"));
  EXPECT_TRUE(fine(store->append(sample_record(space_, 0))));
  EXPECT_TRUE(says(store->append(sample_record(space_, 0)), "record 0 was offered where 1"));
}

TEST_F(StoreTest, BytesThatAreNoText) {
  auto store = created();
  Record record = sample_record(space_, 0);
  record.evaluation.why = "compiler said \xff\xfe and \x01";
  EXPECT_TRUE(fine(store->append(record)));
  std::vector<Record> records;
  ASSERT_TRUE(fine(store->records(&records)));
  EXPECT_NE(records[0].evaluation.why.find("compiler said"), std::string::npos);
}

TEST_F(StoreTest, OneWriterAndManyReaders) {
  auto writer = created();
  std::unique_ptr<Store> other, reader;
  const std::string me = "process " + std::to_string(getpid());
  EXPECT_TRUE(says(open(true, &other), me));
  EXPECT_TRUE(says(Store::create(folder_.path(), sample_meta(), &other), me));
  ASSERT_TRUE(fine(open(false, &reader)));
  EXPECT_TRUE(fine(writer->append(sample_record(space_, 0))));
  std::vector<Record> records;
  EXPECT_TRUE(fine(reader->records(&records)));
  EXPECT_EQ(records.size(), 1u);
  EXPECT_FALSE(reader->put("noise", 1).ok());
  writer.reset();
  EXPECT_TRUE(fine(open(true, &other)));
}

TEST_F(StoreTest, ARunIsNotOverwritten) {
  created().reset();
  std::unique_ptr<Store> store;
  EXPECT_TRUE(says(Store::create(folder_.path(), sample_meta(), &store), "--resume"));
}

TEST_F(StoreTest, ACreationThatWasKilledIsNoRun) {
  std::ofstream(folder_.path() + "/run.db");
  std::unique_ptr<Store> store;
  EXPECT_TRUE(says(open(true, &store), "never began"));
  EXPECT_TRUE(fine(Store::create(folder_.path(), sample_meta(), &store)));
}

TEST_F(StoreTest, NoRunThere) {
  std::unique_ptr<Store> store;
  EXPECT_TRUE(says(open(false, &store), "no run.db"));
  EXPECT_TRUE(says(Store::open("/nowhere/at/all", true, &store), "/nowhere/at/all"));
  EXPECT_TRUE(says(Store::create("/proc/attune", sample_meta(), &store), "/proc/attune"));
  std::ofstream(folder_.path() + "/file");
  EXPECT_TRUE(says(Store::create(folder_.path() + "/file", sample_meta(), &store), "/file"));
}

TEST_F(StoreTest, PathsWithAnyLetters) {
  const std::string path = folder_.path() + "/50% of? #1 \xc3\xa4";
  std::unique_ptr<Store> store;
  ASSERT_TRUE(fine(Store::create(path, sample_meta(), &store)));
  EXPECT_TRUE(std::filesystem::exists(path + "/run.db"));
}

TEST_F(StoreTest, OtherSchemasAreRefused) {
  created().reset();
  std::unique_ptr<Store> store;
  for (const char* version : {"0", "99"}) {
    ask(folder_.path(), (std::string("PRAGMA user_version=") + version).c_str());
    for (bool exclusive : {false, true}) {
      EXPECT_TRUE(says(open(exclusive, &store), std::string("has schema ") + version));
      EXPECT_TRUE(says(open(exclusive, &store), "reads schema " + std::to_string(kSchema)));
    }
  }
  ask(folder_.path(), "PRAGMA application_id=7");
  EXPECT_TRUE(says(open(false, &store), "no run of attune"));
}

TEST_F(StoreTest, DamageIsNamed) {
  {
    auto store = created();
    for (int64_t n = 0; n < 50; ++n) EXPECT_TRUE(fine(store->append(sample_record(space_, n))));
  }
  const std::string path = folder_.path() + "/run.db";
  const auto size = std::filesystem::file_size(path);
  std::unique_ptr<Store> store;
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8192);
    for (size_t i = 8192; i < size; ++i) file.put('\x5a');
  }
  EXPECT_TRUE(says(open(true, &store), "damaged"));
  std::ofstream(path, std::ios::binary) << std::string(5000, 'x');
  EXPECT_TRUE(says(open(true, &store), "damaged"));
  EXPECT_TRUE(says(open(false, &store), "damaged"));
}

// As deep as the stack: what copies or prints it must not be asked to.
TEST_F(StoreTest, DeepJsonIsRefused) {
  {
    auto store = created();
    EXPECT_TRUE(fine(store->append(sample_record(space_, 0))));
  }
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  std::unique_ptr<Store> store;
  std::vector<Record> records;
  ask(folder_.path(), ("INSERT INTO event VALUES(9,'noise',NULL,'" + deep + "','')").c_str());
  ask(folder_.path(), ("UPDATE event SET json='" + deep + "' WHERE n=0").c_str());
  reseal(folder_.path());
  ASSERT_TRUE(fine(open(false, &store)));
  EXPECT_TRUE(store->get("noise").is_null());
  EXPECT_TRUE(says(store->records(&records), "record 0 cannot be read"));
  EXPECT_TRUE(says(store->records(&records), "nested more than 64 levels deep"));
  store.reset();
  ask(folder_.path(),
      ("UPDATE event SET json='{\"environment\":" + deep + "}' WHERE name='run'").c_str());
  reseal(folder_.path());
  EXPECT_TRUE(says(open(false, &store), "what the run was asked for cannot be read"));
}

// ---- the chain of hashes ----

TEST_F(StoreTest, EveryEventIsInTheChain) {
  const auto fill = [&](const std::string& folder) {
    std::unique_ptr<Store> store;
    ASSERT_TRUE(fine(Store::create(folder, sample_meta(), &store)));
    for (int64_t n = 0; n < 4; ++n) ASSERT_TRUE(fine(store->append(sample_record(space_, n))));
    ASSERT_TRUE(fine(store->put("noise", {{"margin", 0.01}})));
    ASSERT_TRUE(fine(store->put({{"final", 1}, {"decision", 2}})));
    ASSERT_TRUE(fine(store->put("final", nullptr)));
  };
  const std::string whole = folder_.path() + "/whole";
  fill(whole);
  std::unique_ptr<Store> store;
  ASSERT_TRUE(fine(Store::open(whole, true, &store)));
  Contents contents;
  ASSERT_TRUE(fine(store->contents(&contents)));
  EXPECT_EQ(contents.chain.events, 10);  // schema, run, four records, and four values
  EXPECT_EQ(contents.chain.head, store->chain().head);
  EXPECT_EQ(contents.chain.head, ask(whole, "SELECT hash FROM event ORDER BY seq DESC LIMIT 1"));
  EXPECT_FALSE(contents.values.contains("final"));
  EXPECT_EQ(contents.values.at("decision"), 2);
  // Anybody can compute it.
  std::string head;
  for (int seq = 0; seq < 10; ++seq) {
    const std::string at = " FROM event WHERE seq=" + std::to_string(seq);
    head = jit::hex(jit::sha256(head + "\n" + ask(whole, ("SELECT name" + at).c_str()) + "\n" +
                                ask(whole, ("SELECT json" + at).c_str())));
  }
  EXPECT_EQ(head, contents.chain.head);
  store.reset();

  const struct {
    const char *name, *sql, *said;
  } changes[] = {
      {"json", "UPDATE event SET json=replace(json, '1e-05', '1e-01') WHERE n=2",
       "record 2 (event 4)"},
      {"hash", "UPDATE event SET hash='x' WHERE n=1", "record 1 (event 3)"},
      {"meta", "UPDATE event SET json=replace(json, 'Sample', 'NVIDIA H200') WHERE name='run'",
       "'run' (event 1)"},
      {"noise", "UPDATE event SET json='{\"margin\":0}' WHERE name='noise'", "'noise' (event 6)"},
      {"name", "UPDATE event SET name='best' WHERE name='decision'", "'best' (event 8)"},
      {"missing", "DELETE FROM event WHERE n=2", "record 3 (event 4)"},
      {"order", "UPDATE event SET seq=100 WHERE n=0", "record 1 (event 2)"},
  };
  for (const auto& [name, sql, said] : changes) {
    const std::string folder = folder_.path() + "/" + name;
    fill(folder);
    ask(folder, sql);
    for (bool exclusive : {false, true}) {
      EXPECT_TRUE(says(Store::open(folder, exclusive, &store), said)) << name;
      EXPECT_TRUE(says(Store::open(folder, exclusive, &store), "chain of hashes")) << name;
    }
  }
}

// The end of a chain can be cut off; who knows its head sees it.
TEST_F(StoreTest, AKnownHeadIsHeldAgainstTheChain) {
  write_sample_run(folder_.path(), space_, 12);
  std::unique_ptr<Store> store;
  ASSERT_TRUE(fine(open(true, &store)));
  ASSERT_TRUE(fine(write_report(*store, space_)));
  EXPECT_TRUE(fine(store->append(sample_record(space_, 12)))) << "a run goes on after a report";
  store.reset();
  EXPECT_TRUE(fine(open(true, &store)));
  store.reset();
  ask(folder_.path(), "DELETE FROM event WHERE n=12");
  EXPECT_TRUE(fine(open(true, &store))) << "nobody knew of it";
  store.reset();
  ask(folder_.path(), "DELETE FROM event WHERE n=11");
  for (bool exclusive : {false, true})
    EXPECT_TRUE(
        says(open(exclusive, &store), "has 13 events; evidence.json beside it was made of 14"));
  std::filesystem::remove(folder_.path() + "/evidence.json");
  EXPECT_TRUE(fine(open(true, &store)));
  // All of it written anew: the head is another one.
  ASSERT_TRUE(fine(write_report(*store, space_)));
  store.reset();
  ask(folder_.path(), "UPDATE event SET json=replace(json, '1e-05', '1e-01') WHERE n=2");
  reseal(folder_.path());
  EXPECT_TRUE(says(open(false, &store), "the last of those has another hash"));
}

// ---- disks ----

TEST(StoreFiles, FileSystemsByType) {
  for (uint64_t type : {0x6969, 0x517B, 0x65735546, 0x0BD00BD0, 0x47504653})
    EXPECT_EQ(file_system_of(type).wal, WalSupport::no) << type;
  for (uint64_t type : {0xFF534D42, 0xFE534D42})
    EXPECT_EQ(file_system_of(type).wal, WalSupport::no) << type;
  EXPECT_EQ(file_system_of(0x01021997).wal, WalSupport::probe);
  for (uint64_t type : {0xEF53, 0x58465342, 0x01021994, 0x794C7630})  // ext4, xfs, tmpfs, overlay
    EXPECT_EQ(file_system_of(type).wal, WalSupport::yes) << type;
  EXPECT_STREQ(file_system_of(0x6969).name, "NFS");
}

TEST_F(StoreTest, RoomForAKernel) {
  EXPECT_TRUE(fine(check_room(folder_.path() + "/scratch")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path() + "/scratch"));
  EXPECT_TRUE(says(check_room("/proc/nowhere"), "/proc/nowhere"));
}

// In a child: what it does to its limits and mounts ends with it. 0: as expected; 77: not possible
// here.
template <class Work>
int in_child(const Work& work) {
  const pid_t pid = fork();
  if (pid == 0) _exit(work());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A small disk of our own in `folder`.
bool mount_disk(const std::string& folder, const char* options) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", folder.c_str(), "tmpfs", 0, options) == 0;
}

// Appends until it fails; the message.
std::string fill_up(Store& store, const Space& space, int64_t* committed) {
  for (int64_t n = 0; n < 3000; ++n) {
    const Status status = store.append(sample_record(space, n));
    if (!status.ok()) return status.message;
    *committed = n + 1;
  }
  return "";
}

// Enough of the store to work with, and all that was acknowledged.
bool holds(const std::string& folder, int64_t committed) {
  std::unique_ptr<Store> store;
  std::vector<Record> records;
  return Store::open(folder, false, &store).ok() && store->records(&records).ok() &&
         int64_t(records.size()) == committed;
}

TEST_F(StoreTest, AFullDiskLosesNothing) {
  const int result = in_child([&] {
    if (!mount_disk(folder_.path(), "size=512k")) return 77;
    std::unique_ptr<Store> store;
    if (!Store::create(folder_.path(), sample_meta(), &store).ok()) return 2;
    int64_t committed = 0;
    const std::string message = fill_up(*store, space_, &committed);
    if (message.find("disk is full") == std::string::npos) return 3;
    if (committed == 0 || !holds(folder_.path(), committed)) return 4;
    return 0;
  });
  if (result == 77) GTEST_SKIP() << "mounting a small disk needs privileges";
  EXPECT_EQ(result, 0);
}

TEST_F(StoreTest, ASmallDiskHasNoRoomForAKernel) {
  const int result = in_child([&] {
    if (!mount_disk(folder_.path(), "size=2m")) return 77;
    return says(check_room(folder_.path()), "no space is left") ? 0 : 1;
  });
  if (result == 77) GTEST_SKIP() << "mounting a small disk needs privileges";
  EXPECT_EQ(result, 0);
}

TEST_F(StoreTest, AWriteThatFailsLosesNothing) {
  EXPECT_EQ(in_child([&] {
              std::unique_ptr<Store> store;
              if (!Store::create(folder_.path(), sample_meta(), &store).ok()) return 2;
              signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{200'000, 200'000};
              setrlimit(RLIMIT_FSIZE, &limit);
              int64_t committed = 0;
              const std::string message = fill_up(*store, space_, &committed);
              if (message.find("What was committed is safe") == std::string::npos) return 3;
              return committed > 0 && holds(folder_.path(), committed) ? 0 : 4;
            }),
            0);
}

TEST_F(StoreTest, AReadOnlyFolderCanBeRead) {
  const int result = in_child([&] {
    if (!mount_disk(folder_.path(), "size=4m")) return 77;
    {
      std::unique_ptr<Store> store;
      if (!Store::create(folder_.path(), sample_meta(), &store).ok()) return 2;
      if (!store->append(sample_record(space_, 0)).ok()) return 3;
    }
    if (mount(nullptr, folder_.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0)
      return 77;
    if (!holds(folder_.path(), 1)) return 4;
    std::unique_ptr<Store> store;
    const Status refused = Store::open(folder_.path(), true, &store);
    return says(refused, "Read-only file system") ? 0 : 5;
  });
  if (result == 77) GTEST_SKIP() << "mounting a small disk needs privileges";
  EXPECT_EQ(result, 0);
}

// ---- kill -9 ----

// Appends for ever, and says through the pipe what was acknowledged.
[[noreturn]] void append_until_killed(const std::string& folder, const Space& space, int pipe) {
  std::unique_ptr<Store> store;
  std::vector<Record> records;
  if (!Store::open(folder, true, &store).ok() || !store->records(&records).ok()) _exit(1);
  for (int64_t n = int64_t(records.size());; ++n) {
    if (!store->append(sample_record(space, n)).ok()) _exit(2);
    if (write(pipe, &n, sizeof(n)) != sizeof(n)) _exit(3);
  }
}

TEST_F(StoreTest, KillLosesOnlyWhatIsInFlight) {
  created().reset();
  std::mt19937 random{std::random_device{}()};
  int64_t acknowledged = 0;
  for (int cycle = 0; cycle < 20; ++cycle) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      close(ends[0]);
      append_until_killed(folder_.path(), space_, ends[1]);
    }
    close(ends[1]);
    // Every second time not before the first record is there: an emulator may take longer to begin.
    pollfd first{.fd = ends[0], .events = POLLIN, .revents = 0};
    if (cycle % 2 == 1) {
      ASSERT_EQ(poll(&first, 1, 60'000), 1);
    }
    usleep(std::uniform_int_distribution<useconds_t>(1'000, 60'000)(random));
    kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << WEXITSTATUS(status);
    for (int64_t n = 0; read(ends[0], &n, sizeof(n)) == sizeof(n);) acknowledged = n + 1;
    close(ends[0]);

    EXPECT_EQ(ask(folder_.path(), "PRAGMA integrity_check"), "ok");
    std::unique_ptr<Store> store;
    ASSERT_TRUE(fine(open(true, &store)));
    std::vector<Record> records;
    ASSERT_TRUE(fine(store->records(&records)));  // refuses gaps
    // The last one may be there though its acknowledgement did not get out any more.
    EXPECT_GE(int64_t(records.size()), acknowledged);
    EXPECT_LE(int64_t(records.size()), acknowledged + 1);
    acknowledged = int64_t(records.size());
  }
  EXPECT_GT(acknowledged, 0);
}

TEST_F(StoreTest, ACreationCanBeKilledAnywhere) {
  std::mt19937 random{std::random_device{}()};
  for (int cycle = 0; cycle < 10; ++cycle) {
    const std::string folder = folder_.path() + "/" + std::to_string(cycle);
    const pid_t pid = fork();
    if (pid == 0) {
      std::unique_ptr<Store> store;
      _exit(Store::create(folder, sample_meta(), &store).ok() ? 0 : 1);
    }
    usleep(std::uniform_int_distribution<useconds_t>(0, 12'000)(random));
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    std::unique_ptr<Store> store;
    if (Store::open(folder, true, &store).ok()) continue;
    EXPECT_TRUE(fine(Store::create(folder, sample_meta(), &store)));
  }
}

}  // namespace
}  // namespace attune::evolve
