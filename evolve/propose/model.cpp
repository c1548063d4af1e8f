#include "evolve/propose/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "evolve/propose/chat.hpp"
#include "evolve/propose/curl.hpp"
#include "evolve/propose/prompt.hpp"
#include "evolve/propose/tally.hpp"

namespace attune::evolve {
namespace {

constexpr uint64_t kQuestionStream = uint64_t{1} << 62, kJitterStream = uint64_t{3} << 61;
constexpr double kBestShare = 0.6;   // of the questions are about the best program
constexpr int kMostFailures = 5;     // in a row, before no more is asked
constexpr int kMostRefusals = 12;    // the same
constexpr double kBytesOfToken = 3;  // fewer than usual: an estimate from above

int64_t estimate(size_t bytes) { return int64_t(std::ceil(double(bytes) / kBytesOfToken)); }

size_t bytes_of(const Json& messages) {
  size_t bytes = 0;
  for (const Json& m : messages) bytes += m.at("content").get_ref<const std::string&>().size();
  return bytes;
}

class Models final : public Proposer {
 public:
  Models(ModelSettings settings, std::string key, uint64_t seed, std::function<bool()> stop)
      : s_(std::move(settings)), key_(std::move(key)), seed_(seed), stop_(std::move(stop)) {
    (void)endpoint_of(s_.url, &endpoint_);
    if (!curl::api().problem.empty()) give_up(curl::api().problem);
  }

  ~Models() override { stop(); }

  std::string op() const override { return "model"; }
  int64_t in_flight() const override { return int64_t(jobs_.size()); }
  bool expects() const override { return !jobs_.empty() || (!over_ && !full_); }
  std::string news() override {
    const std::lock_guard lock(telling_);
    return std::exchange(news_, "");
  }

  std::vector<Exchange> poll(const Scene& scene) override {
    std::vector<Exchange> ended = collect();
    if (!started_) count_past(scene);
    for (const Exchange& e : ended) count(e);
    return ended;
  }

  void ask(const Scene& scene) override {
    while (!over_ && !repairs_.empty() && in_flight() < s_.parallel) {
      Exchange e = std::move(repairs_.front());
      repairs_.erase(repairs_.begin());
      if (!begin(std::move(e))) break;
    }
    for (int64_t n = 0; !over_ && n < scene.most_questions && in_flight() < s_.parallel; ++n)
      if (!begin(question(scene))) break;
  }

  void refused(const Exchange& e, const Refusal& refusal) override {
    if (++refusals_ >= kMostRefusals)
      give_up(fmt::format("{} answers in a row could not be used; the last: {}", refusals_,
                          refusal.why));
    if (e.repairs >= 0 || refusal.verdict == "duplicate" || e.messages.size() < 2) return;
    Exchange again;
    again.op = op();
    again.who = e.who;
    again.parent = e.parent;
    again.repairs = e.k;
    again.messages = e.messages;
    again.messages.push_back({{"role", "assistant"}, {"content", e.answer}});
    again.messages.push_back(
        {{"role", "user"}, {"content", repair_text(refusal, AnswerForm::edits)}});
    repairs_.push_back(std::move(again));
  }

  void judged(const Exchange&, const Record&, const Scene&) override { refusals_ = 0; }

  std::vector<Exchange> end(const Scene&) override {
    stop();
    return collect();
  }

  void stop() override {
    ending_ = true;
    for (auto& job : jobs_)
      if (job->thread.joinable()) job->thread.join();
  }

 private:
  struct Job {
    Exchange exchange;
    int64_t requests = 0, tokens = 0;  // that it may use
    double cost = 0;
    std::atomic<bool> done = false;
    std::thread thread;
  };

  const ModelChoice& choice(const std::string& name) const {
    for (const ModelChoice& m : s_.models)
      if (m.name == name) return m;
    return s_.models[0];
  }

  double cost_of(const std::string& name, int64_t in, int64_t out) const {
    const std::optional<ModelPrice>& price = choice(name).price;
    return price ? (double(in) * price->in + double(out) * price->out) / 1e6 : -1;
  }

  // What earlier sittings used.
  void count_past(const Scene& scene) {
    started_ = true;
    for (const Exchange& e : scene.exchanges.all)
      if (e.op == op()) {
        ++asked_;
        use(e);
      }
  }

  void use(const Exchange& e) {
    requests_ += e.tries;
    tokens_ += e.tokens_in + e.tokens_out;
    cost_ += std::max(0.0, e.cost);
  }

  void count(const Exchange& e) {
    use(e);
    failures_ = e.error.empty() ? 0 : failures_ + 1;
    if (e.error.empty())
      failing_ = false;
    else if (!ending_)
      tell_failure(fmt::format("{} gave no answer: {}", e.who, e.error));
    const bool refused = e.status == 401 || e.status == 403 || e.status == 404;
    if (failures_ >= kMostFailures || (refused && failures_ >= 2))
      give_up(fmt::format("{} questions in a row failed; the last: {}", failures_, e.error));
  }

  void give_up(const std::string& why) {
    if (over_) return;
    over_ = true;
    tell("no more is asked of the models: " + why);
  }

  void tell(const std::string& news) {
    const std::lock_guard lock(telling_);
    news_ += (news_.empty() ? "" : "; ") + news;
  }

  // The first of a row: the user need not wait for the last to know.
  void tell_failure(const std::string& news) {
    if (!failing_.exchange(true)) tell(news);
  }

  Exchange question(const Scene& scene) {
    Dice dice(seed_, kQuestionStream + uint64_t(asked_));
    Exchange e;
    e.op = op();
    e.who =
        s_.models[choose_model(s_.models, tallies_of(scene.exchanges, scene.records), &dice)].name;
    e.parent = scene.best;
    if (!scene.elites.empty() && !dice.chance(kBestShare)) e.parent = dice.pick(scene.elites).n;
    const AnswerForm form = dice.chance(s_.rewrite_share) ? AnswerForm::blocks : AnswerForm::edits;
    e.messages =
        Json::array({{{"role", "system"},
                      {"content", s_.system_message.empty() ? kSystemText : s_.system_message}},
                     {{"role", "user"},
                      {"content", question_text(scene, e.parent, form, size_t(s_.inspirations))}}});
    return e;
  }

  // False: a limit of the run leaves no room for it, at its worst.
  bool begin(Exchange e) {
    auto job = std::make_unique<Job>();
    const int64_t in = estimate(bytes_of(e.messages));
    int64_t requests = requests_, tokens = tokens_;
    double cost = cost_;
    for (const auto& other : jobs_) {
      requests += other->requests;
      tokens += other->tokens;
      cost += other->cost;
    }
    const ModelSettings own = settings_for(s_, e.who);
    job->requests = own.retries + 1;
    if (s_.most_requests > 0)
      job->requests = std::min<int64_t>(job->requests, s_.most_requests - requests);
    job->tokens = in + own.max_tokens;
    job->cost = std::max(0.0, cost_of(e.who, in, own.max_tokens));
    const bool fits = job->requests > 0 &&
                      (s_.most_tokens == 0 || tokens + job->tokens <= s_.most_tokens) &&
                      (s_.most_cost == 0 || cost + job->cost <= s_.most_cost);
    if (!fits) {
      full_ = true;
      if (jobs_.empty())
        give_up("a limit of the run is reached (--max-requests, --max-tokens, --max-cost)");
      return false;
    }
    full_ = false;
    job->exchange = std::move(e);
    const uint64_t number = uint64_t(asked_++);
    Job* at = job.get();
    jobs_.push_back(std::move(job));
    at->thread = std::thread([this, at, number] { talk(at, number); });
    return true;
  }

  void talk(Job* job, uint64_t number) {
    Exchange& e = job->exchange;
    const ModelSettings own = settings_for(s_, e.who);
    ChatRequest r;
    r.url = endpoint_;
    r.key = key_;
    r.model = e.who;
    r.messages = e.messages;
    r.temperature = own.temperature;
    r.max_tokens = own.max_tokens;
    r.connect_seconds = s_.connect_timeout;
    r.idle_seconds = s_.idle_timeout;
    r.total_seconds = own.timeout;
    r.tries = int(job->requests);
    r.retry_seconds = own.retry_delay;
    r.seed = seed_;
    r.stream = kJitterStream + number;
    r.on_retry = [this, &e](const std::string& why, double pause) {
      tell_failure(fmt::format("{}: {}; it is asked again in {:.1f} s", e.who, why, pause));
    };
    const ChatReply reply = chat(r, [this] { return ending_ || (stop_ && stop_()); });
    e.answer = reply.text;
    e.error = reply.error;
    e.status = reply.status;
    e.tries = reply.tries;
    e.seconds = reply.seconds;
    // Where the server does not say, from above: also for what was cut off.
    const bool began = reply.status == 200;
    e.estimated = began && (reply.tokens_in < 0 || reply.tokens_out < 0);
    e.tokens_in = reply.tokens_in >= 0 ? reply.tokens_in
                  : began              ? estimate(bytes_of(e.messages))
                                       : 0;
    e.tokens_out = reply.tokens_out >= 0 ? reply.tokens_out
                   : !began              ? 0
                   : reply.error.empty() ? estimate(reply.text.size())
                                         : own.max_tokens;
    if (reply.stopped && reply.begun == 0) {  // it was sent, and may be paid for
      e.estimated = true;
      e.tokens_in = estimate(bytes_of(e.messages));
    }
    if (const int64_t lost = reply.begun - (began ? 1 : 0); lost > 0) {  // cut off, and paid for
      e.estimated = true;
      e.tokens_in += lost * estimate(bytes_of(e.messages));
      e.tokens_out += lost * own.max_tokens;
    }
    e.cost = reply.cost >= 0 && reply.begun == 1 ? reply.cost
                                                 : cost_of(e.who, e.tokens_in, e.tokens_out);
    if (reply.begun == 0 && !reply.stopped && e.cost < 0) e.cost = 0;  // nothing was answered
    job->done = true;
  }

  std::vector<Exchange> collect() {
    std::vector<Exchange> ended;
    for (size_t i = 0; i < jobs_.size();) {
      if (!jobs_[i]->done) {
        ++i;
        continue;
      }
      if (jobs_[i]->thread.joinable()) jobs_[i]->thread.join();
      ended.push_back(std::move(jobs_[i]->exchange));
      jobs_.erase(jobs_.begin() + std::ptrdiff_t(i));
    }
    return ended;
  }

  const ModelSettings s_;
  const std::string key_;
  const uint64_t seed_;
  const std::function<bool()> stop_;
  std::string endpoint_, news_;
  std::mutex telling_;                 // of news_: requests have threads
  std::atomic<bool> failing_ = false;  // and the user knows
  std::atomic<bool> ending_ = false;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<Exchange> repairs_;  // to be asked
  int64_t asked_ = 0, requests_ = 0, tokens_ = 0;
  double cost_ = 0;
  int failures_ = 0, refusals_ = 0;
  bool started_ = false, over_ = false, full_ = false;
};

}  // namespace

std::shared_ptr<Proposer> model_proposer(ModelSettings settings, std::string key, uint64_t seed,
                                         std::function<bool()> stop) {
  return std::make_shared<Models>(std::move(settings), std::move(key), seed, std::move(stop));
}

}  // namespace attune::evolve
