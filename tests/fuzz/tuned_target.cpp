// Tuned tables: whatever the file holds, a valid call works, its config can run it, and its result
// is right. A process reads the table at its first call, and then when it is told to: the cases run
// in processes of kCases each, since a new one for every case took nine tenths of the time.
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "evolve/worker/process.hpp"
#include "src/cpu/config.hpp"
#include "src/cpu/fused.hpp"
#include "src/select/tuned.hpp"
#include "tests/fuzz/bytes.hpp"
#include "tests/fuzz/call.hpp"
#include "tests/fuzz/oracle.hpp"

namespace attune::fuzz {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A caller's thread may have no more; the sanitizers need more themselves.
constexpr size_t kStackBytes = evolve::kSanitizer ? size_t{8} << 20 : size_t{256} << 10;

// One call of the library, and what its row of the table says.
struct Prepared {
  Case c;
  Memory memory;
  std::vector<ExpectedElement> expected;
  std::string key, isa;
  int threads = 0;
};

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return status;
}

// fn() in a child; its wait status.
int in_child(const std::function<void()>& fn) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    int result = 0;
    try {
      fn();
    } catch (const std::exception&) {
      result = 1;
    }
    _exit(result);
  }
  return wait_for(child);
}

void on_small_stack(const std::function<void()>& fn) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  void* argument = const_cast<std::function<void()>*>(&fn);
  if (pthread_create(&thread, &attributes, run, argument) != 0)
    throw std::runtime_error("cannot start a thread");
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

std::string explain(const attune_args& args, int* status) {
  static char text[1 << 18];  // of one thread
  *status = attune_explain(&args, text, sizeof(text), nullptr);
  return text;
}

// A call that a tuned row can be for: float32, on the fused kernel.
std::unique_ptr<Prepared> prepare(uint64_t first_seed) {
  for (uint64_t seed = first_seed;; ++seed) {
    Dice dice(seed);
    auto p = std::make_unique<Prepared>();
    make_call(dice, 40'000, &p->c);
    attune_args& a = p->c.args;
    const Operand& q = p->c.x[kQ];
    if (p->c.backward || p->c.wild || p->c.ragged || q.t.dtype != ATTUNE_F32 ||
        !extent_of(q.t).elements || p->c.x[kK].t.shape[2] == 0 || a.dropout_p > 0 ||
        p->c.x[kKeyLengths].given)  // a.key_lengths is not set below
      continue;
    a.mode = ATTUNE_AUTO;
    a.threads = 1;
    a.batch_invariant = 0;
    a.parallel_for = nullptr;
    a.parallel_user = nullptr;
    p->memory.place(dice, &p->c);
    attune_tensor* const to[] = {
        &a.q, &a.k, &a.v, &a.out, &a.lse, &a.mask, &a.block_mask, &a.alibi_slopes, &a.sinks};
    for (size_t i = 0; i < std::size(to); ++i) *to[i] = p->c.x[i].t;
    p->expected = expected_forward(p->c);
    return p;
  }
}

class Tuned : public Target {
 public:
  explicit Tuned(const std::string& folder) : folder_(folder), path_(folder + "/tuned.json") {
    signal(SIGPIPE, SIG_IGN);  // a child that crashed does not read
    for (uint64_t seed : {1, 1000, 2000, 3000}) calls_.push_back(prepare(seed));
    probe();
    // A table that nobody takes would make every case a success.
    for (const auto& call : calls_) {
      write_file(path_, table(row(*call, "mr4.nv2.exp5.bq96.bk64.sp2.dot0.pv1.rs4")));
      const Json text = Json::parse(asked(*call));
      if (!text["config_from"].get<std::string>().starts_with("tuned"))
        throw std::runtime_error("the sample table is not taken: " + text.dump());
    }
  }

  // This process itself reads no table: a child of it has its first call before it.
  void run(uint64_t seed, Outcome* outcome) override {
    if (child_.cases == kCases) child_.end();
    if (child_.pid < 0) start(outcome);
    ++child_.cases;
    char done = 0;
    if (write(child_.requests.get(), &seed, sizeof(seed)) == sizeof(seed) &&
        read(child_.replies.get(), &done, 1) == 1)
      return;
    const int status = child_.end();
    if (WIFSIGNALED(status))
      outcome->fail(
          fmt::format("crashed in {}: {}", outcome->doing, evolve::signal_name(WTERMSIG(status))));
    else
      outcome->fail(fmt::format("the process ended in {}", outcome->doing));
  }

 private:
  // ---- the process that makes the calls ----

  static constexpr int kCases = 50;
  struct Child {
    int end() {  // its wait status
      requests.reset();
      replies.reset();
      const int status = wait_for(pid);
      pid = -1;
      cases = 0;
      return status;
    }

    pid_t pid = -1;
    int cases = 0;
    evolve::Fd requests, replies;
  };

  void start(Outcome* outcome) {
    evolve::Fd request, reply;
    for (const Status& s : {evolve::make_pipe(&request, &child_.requests),
                            evolve::make_pipe(&child_.replies, &reply)})
      if (!s.ok()) throw std::runtime_error(s.message);
    child_.pid = fork();
    if (child_.pid < 0) throw std::runtime_error("cannot fork");
    if (child_.pid > 0) return;
    child_.requests.reset();
    child_.replies.reset();
    int result = 1;
    on_small_stack([&] { result = run_child(request.get(), reply.get(), outcome); });
    _exit(result);
  }

  int run_child(int requests, int replies, Outcome* outcome) {
    try {
      uint64_t seed = 0;
      for (bool first = true; read(requests, &seed, sizeof(seed)) == sizeof(seed); first = false) {
        run_case(seed, first, outcome);
        if (write(replies, "+", 1) != 1) return 1;
      }
      return 0;
    } catch (const std::exception&) {
      return 1;
    }
  }

  void run_case(uint64_t seed, bool first, Outcome* outcome) {
    Dice dice(seed);
    const Prepared& call = *calls_[size_t(dice.below(int64_t(calls_.size())))];
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    outcome->note(write_table(dice, call));
    if (!first) reload_tuned();
    check(call, outcome);
  }

  // ---- what the library says of itself, asked in a child ----

  std::string asked(const Prepared& call) {
    const std::string answer = folder_ + "/answer";
    const int status = in_child([&] {
      int ok = 0;
      write_file(answer, explain(call.c.args, &ok));
      if (ok != ATTUNE_OK) throw std::runtime_error(attune_last_error());
    });
    if (status != 0) throw std::runtime_error("attune_explain failed");
    return read_file(answer);
  }

  void probe() {
    const std::string answer = folder_ + "/answer";
    for (const auto& call : calls_) {
      const Json text = Json::parse(asked(*call));
      call->key = text["chosen"].get<std::string>();
      call->key.resize(call->key.find('/'));
      call->isa = text["isa"].get<std::string>();
      call->threads = text["threads"].get<int>();
    }
    in_child([&] {
      std::string text(1 << 16, '\0');
      attune_info(text.data(), text.size(), nullptr);
      write_file(answer, text.c_str());
    });
    processor_ = Json::parse(read_file(answer))["backends"][0]["device"].get<std::string>();
  }

  // ---- tables ----

  static std::string quoted(const std::string& text) {
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  static std::string table(const std::string& rows) {
    return fmt::format("{{\"format\": \"attune tuned table\", \"schema\": 1, \"rows\": [{}]}}\n",
                       rows);
  }

  std::string row(const Prepared& call, const std::string& config) const {
    const attune_tensor &q = call.c.args.q, &k = call.c.args.k;
    return fmt::format(
        "{{\"key\": \"{}\", \"machine\": {{\"arch\": \"{}\", \"device\": {}, \"threads\": {}}}, "
        "\"sizes\": {{\"heads\": {}, \"seq_q\": {}, \"seq_k\": {}}}, \"config\": {}, "
        "\"provenance\": {{\"date\": \"2026-01-02\"}}}}",
        call.key, call.isa, quoted(processor_), call.threads, q.shape[0] * q.shape[1], q.shape[2],
        k.shape[2], quoted(config));
  }

  static std::string hostile_config(Dice& dice) {
    std::string text;
    const auto number = [&](std::initializer_list<int> good) {
      if (dice.chance(0.96f)) return fmt::format("{}", dice.pick(good));
      return fmt::format("{}", dice.pick<int64_t>({0, -1, 1, 7, 17, 255, 257, 304, 1023, 1024, 1025,
                                                   999'999, 1'000'001, INT64_MAX, INT64_MIN}));
    };
    text += "mr" + number({4, 6, 8, 12}) + ".nv" + number({2, 2, 3, 4}) + ".exp" +
            number({5, 5, 6, 6, 4}) + ".bq" + number({1, 7, 96, 192, 1024}) + ".bk" +
            number({1, 5, 64, 128, 256}) + ".sp" + number({0, 1, 2, 3, 1024}) + ".dot" +
            number({0, 2, 8}) + ".pv" + number({0, 1}) + ".rs";
    text += dice.chance(0.8f)
                ? dice.pick<const char*>({"8", "0", "32", "4", "0.5"})
                : dice.pick<const char*>({"nan", "inf", "-1", "1e30", "33", "08", "8.0", ""});
    if (dice.chance(0.2f)) damage_bytes(dice, &text);
    return text;
  }

  // One field of the table replaced.
  static void replace_value(Dice& dice, std::string* text) {
    const char* field = dice.pick<const char*>(
        {"\"format\": ", "\"schema\": ", "\"rows\": ", "\"key\": ", "\"machine\": ", "\"arch\": ",
         "\"device\": ", "\"threads\": ", "\"sizes\": ", "\"heads\": ", "\"seq_q\": ",
         "\"seq_k\": ", "\"config\": ", "\"provenance\": ", "\"date\": "});
    const size_t at = text->find(field);
    if (at == std::string::npos) return;
    const size_t value = at + std::string_view(field).size();
    size_t end = text->find_first_of(",}]", value);
    if (end == std::string::npos) end = text->size();
    text->replace(value, end - value, odd_json(dice));
  }

  // Says what the file holds.
  std::string write_table(Dice& dice, const Prepared& call) const {
    if (dice.chance(0.01f)) return make_odd_file(dice, path_);
    if (dice.chance(0.0004f)) {  // many rows that say nothing
      const int64_t megabytes = dice.range(1, 60);
      std::string rows(size_t(megabytes * 1'000'000 / 3 * 3), ' ');
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = "{},"[i % 3];
      write_file(path_, table(rows + "{}"));
      return fmt::format("{} MB of empty rows", megabytes);
    }
    if (dice.chance(0.02f)) {
      const int64_t depth = dice.pick<int64_t>({100, 1000, 10'000, 100'000, 400'000});
      std::string text = deep_json(dice, depth);
      if (dice.chance(0.5f)) text = table(text);
      write_file(path_, text);
      return fmt::format("JSON of depth {}", depth);
    }
    std::string rows, configs;
    for (int64_t n = dice.range(1, 4); n > 0; --n) {
      const std::string config = hostile_config(dice);
      rows += (rows.empty() ? "" : ", ") + row(call, config);
      configs += config + " ";
    }
    std::string text = table(rows);
    if (dice.chance(0.4f))
      for (int64_t n = dice.range(1, 3); n > 0; --n) replace_value(dice, &text);
    if (dice.chance(0.3f)) damage_bytes(dice, &text);
    write_file(path_, text);
    return "configs " + configs;
  }

  // ---- the call, in the child ----

  static void check(const Prepared& call, Outcome* outcome) {
    const attune_args& a = call.c.args;
    int status = 0;
    outcome->call("attune_explain");
    const std::string text = explain(a, &status);
    if (status != ATTUNE_OK)
      return outcome->fail(fmt::format("attune_explain: {}", attune_last_error()));
    const Json said = Json::parse(text, nullptr, false);
    if (said.is_discarded()) return outcome->fail("attune_explain: not JSON");
    if (said["config_from"].get<std::string>().starts_with("tuned")) ++outcome->accepted;
    const auto config = cpu::parse_cpu_config(said["config"].get<std::string>());
    Problem problem;
    problem.dim = int(a.q.shape[3]);
    problem.dim_v = int(a.v.shape[3]);
    if (!config) return outcome->fail("a config that cannot be read was chosen");
    if (const char* why = cpu::invalid_reason(*config, problem, cpu::arch()); why[0] != '\0')
      return outcome->fail(fmt::format("a config that cannot run was chosen: {}", why));

    outcome->call("attune_forward");
    if (attune_forward(&a) != ATTUNE_OK)
      return outcome->fail(fmt::format("attune_forward: {}", attune_last_error()));
    ++outcome->compared;
    for (const ExpectedElement& e : call.expected) {
      const attune_tensor& t = e.name == kOut ? a.out : a.lse;
      const double got = get_element(t, e.at), want = e.expected.value;
      const double limit = e.expected.limit + 0x1p-23 * std::abs(want) + 1e-44;
      if (std::isfinite(want) ? !(std::abs(got - want) <= limit) : got != want)
        return outcome->fail(fmt::format("{} at {}: {:.9g}, expected {:.9g}, limit {:.3g}",
                                         name_of(e.name), e.at, got, want, limit));
    }
  }

  const std::string folder_, path_;
  Child child_;
  std::vector<std::unique_ptr<Prepared>> calls_;
  std::string processor_;
};

}  // namespace

std::unique_ptr<Target> make_tuned(const std::string& folder) {
  return std::make_unique<Tuned>(folder);
}

}  // namespace attune::fuzz
