#include "evolve/propose/manual.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "evolve/compile/flags.hpp"
#include "evolve/propose/edits.hpp"
#include "evolve/propose/prompt.hpp"
#include "evolve/store/files.hpp"
#include "src/file.hpp"

namespace attune::evolve {
namespace {

constexpr size_t kLargestFile = 1 << 20;  // bytes of an answer

std::string text_of(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

class Manual final : public Proposer {
 public:
  explicit Manual(std::string folder) : folder_(std::move(folder)) {}

  std::string op() const override { return "manual"; }
  bool patient() const override { return true; }

  std::vector<Exchange> poll(const Scene& scene) override {
    problem_.clear();
    tell_task(scene);
    tell_status(scene, true);
    std::vector<Exchange> taken;
    for (const std::string& name : answers()) {
      Exchange e;
      if (take(name, scene, &e)) taken.push_back(std::move(e));
    }
    return taken;
  }

  void refused(const Exchange& e, const Refusal& refusal) override {
    tell_result(e.who, {{"verdict", refusal.verdict}, {"reason", refusal.why}});
  }

  void judged(const Exchange& e, const Record& r, const Scene& scene) override {
    Json times = Json::object();
    // An external evaluator's score stands in place of a time.
    for (size_t s = 0; s < scene.meta.shapes.size() && !scene.meta.external; ++s)
      if (const double seconds = seconds_of(scene, r.proposal.n, s); seconds > 0)
        times[scene.meta.shapes[s].name] = seconds;
    tell_result(e.who, {{"verdict", verdict_name(r.evaluation.verdict)},
                        {"stage", stage_name(r.evaluation.stage)},
                        {"reason", r.evaluation.why},
                        {"accepted", r.outcome.improved},
                        {"proposal", r.proposal.n},
                        {"id", r.proposal.id},
                        {"seconds", times},
                        {"metrics",
                         r.evaluation.claims ? Json(r.evaluation.claims->metrics) : Json::object()},
                        {"over_best", r.outcome.ok ? to_json(r.evaluation.speedup) : Json()},
                        {"over_start", r.outcome.ok ? Json(std::exp(r.outcome.fitness)) : Json()},
                        {"program", r.candidate.source}});
  }

  std::vector<Exchange> end(const Scene& scene) override {
    tell_status(scene, false);
    return {};
  }

  std::string news() override { return std::exchange(problem_, ""); }

 private:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  void write(const std::string& name, const std::string& text) {
    Status s = make_folder(folder_);
    if (s.ok()) s = write_file(path(name), text);
    if (!s.ok()) problem_ = s.message;
  }

  std::string parent_name(const Scene& scene, int64_t n) const {
    return fmt::format("parent-{}{}", n, scene.meta.program->extension());
  }

  void tell_task(const Scene& scene) {
    if (told_ == scene.best) return;
    told_ = scene.best;
    write(parent_name(scene, told_),
          without_flags_comment(scene.space.program(scene.records[size_t(told_)].proposal.genome)));
    const std::string extension = scene.meta.program->extension();
    write("TASK.md",
          question_text(scene, told_, AnswerForm::edits) +
              fmt::format(
                  "\n# Where to put it\n\nThe program is the file {0} too. Write the edits, or the "
                  "whole changed program, into a file beside this one under another name, and "
                  "rename it to answer-NAME{1} when it is complete. It is taken while the run goes "
                  "on; answer-NAME{1}.result.json then says what came of it (verdict, reason, "
                  "seconds of a call, whether it is the new best). status.json says whether the "
                  "run still goes on. This file is renewed when the best program changes.\n",
                  parent_name(scene, told_), extension));
  }

  void tell_status(const Scene& scene, bool running) {
    const Record& best = scene.records[size_t(scene.best)];
    const Json status{{"running", running},
                      {"evaluations", scene.records.size()},
                      {"best", scene.best},
                      {"over_start", std::exp(best.outcome.fitness)}};
    if (status == status_) return;
    status_ = status;
    write("status.json", text_of(status));
  }

  void tell_result(const std::string& who, Json result) {
    write(who + ".result.json", text_of(result));
  }

  // Regular files alone, in the order of their names.
  std::vector<std::string> answers() const {
    std::set<std::string> names;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
      const std::string name = entry.path().filename();
      std::error_code ignored;
      if (!name.starts_with("answer-") || name.ends_with(".result.json") ||
          name.ends_with(".tmp") || name.ends_with('~'))
        continue;
      if (entry.symlink_status(ignored).type() == std::filesystem::file_type::regular)
        names.insert(name);
    }
    return {names.begin(), names.end()};
  }

  bool take(const std::string& name, const Scene& scene, Exchange* e) {
    if (Status s = make_folder(path("taken")); !s.ok()) {
      problem_ = s.message;
      return false;
    }
    const std::string taken = path("taken/" + name);
    std::error_code error;
    std::filesystem::rename(path(name), taken, error);
    if (error) return false;  // it was taken away again
    const File file(taken, O_RDONLY | O_NOFOLLOW);
    struct stat facts {};
    e->op = op();
    e->who = name;
    e->parent = scene.best;
    if (file.fd() < 0 || fstat(file.fd(), &facts) != 0 ||
        !read_bytes(file.fd(), std::min(size_t(facts.st_size), kLargestFile + 1), &e->answer))
      e->answer.clear();
    if (e->answer.empty() || e->answer.size() > kLargestFile) {
      e->error = e->answer.empty() ? "the file is empty, or cannot be read"
                                   : fmt::format("the file has more than {} bytes", kLargestFile);
      e->answer.clear();
      tell_result(name, {{"verdict", "not_applied"}, {"reason", e->error}});
      return true;
    }
    e->parent = fitting_parent(*e, scene);
    return true;
  }

  // Edits may be of a program that was the best when they were begun.
  static int64_t fitting_parent(const Exchange& e, const Scene& scene) {
    for (auto r = scene.records.rbegin(); r != scene.records.rend(); ++r)
      if (r->outcome.improved &&
          apply_file(e.answer, without_flags_comment(scene.space.program(r->proposal.genome))).ok())
        return r->proposal.n;
    return scene.best;
  }

  std::string folder_, problem_;
  int64_t told_ = -1;
  Json status_;
};

}  // namespace

std::shared_ptr<Proposer> manual_proposer(std::string folder) {
  return std::make_shared<Manual>(std::move(folder));
}

}  // namespace attune::evolve
