#include "evolve/judge/external_run.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "evolve/judge/external_process.hpp"
#include "evolve/judge/redact.hpp"
#include "evolve/store/files.hpp"
#include "evolve/store/store.hpp"
#include "evolve/worker/process.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostArtifact = 16 << 10, kMostArtifacts = 64, kMostWhy = 2000;
constexpr size_t kMostName = 100, kMostMetrics = 64;
constexpr int kMostEvidence = 4;  // lines of what a process said at its end

// A path of plain letters as it is: the user may have quoted its place.
std::string quoted(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '/' || c == '.' || c == '_' || c == '-';
  };
  if (std::all_of(text.begin(), text.end(), plain)) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string with_program(std::string command, const std::string& path) {
  constexpr std::string_view kPlace = "{program}";
  for (size_t at = command.find(kPlace); at != std::string::npos;
       at = command.find(kPlace, at + path.size()))
    command.replace(at, kPlace.size(), path);
  return command;
}

// What is kept of a text of the evaluator's: first without secrets, since half of one is not
// recognised.
std::string clean_text(const std::string& text, size_t most) {
  return scrubbed(redacted(text), most);
}

std::string last_lines(const std::string& text) {
  std::string clean = clean_text(text, kMostWhy);
  while (!clean.empty() && clean.back() == '\n') clean.pop_back();
  size_t at = clean.size();
  for (int n = 0; n < kMostEvidence && at != std::string::npos && at > 0; ++n)
    at = clean.rfind('\n', at - 1);
  return at == std::string::npos || at == 0 ? clean : clean.substr(at + 1);
}

void keep(const std::string& name, const std::string& text, ExternalRun* run) {
  if (text.empty() || run->artifacts.size() >= kMostArtifacts) return;
  run->artifacts[clean_text(name, kMostName)] = clean_text(text, kMostArtifact);
}

void fail(ExternalRun* run, Verdict verdict, std::string why) {
  run->verdict = verdict;
  run->why = clean_text(why, kMostWhy);
}

// How a process ended that should have ended by itself with 0; empty: it did. A guardian that
// leads the group says 128 + signal.
std::string ended_badly(int status) {
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : code > 128 ? code - 128 : 0;
  if (signal != 0) return fmt::format("it was ended by {}", signal_name(signal));
  return code != 0 ? fmt::format("it ended with exit code {}", code) : "";
}

Json asked_of(const ExternalSpec& spec, const std::string& program) {
  return {{"evaluator", spec.file},        {"program", program},    {"cascade", spec.cascade},
          {"thresholds", spec.thresholds}, {"metric", spec.metric}, {"minimize", spec.minimize},
          {"features", spec.features}};
}

// What the runner wrote. The evaluator runs in the same process and could have written it too: no
// field is trusted to be there.
void read_result(const Captured& c, ExternalRun* run) try {
  if (c.result.empty()) {
    const std::string bad = ended_badly(c.status), said = last_lines(c.err);
    return fail(run, Verdict::crashed,
                fmt::format("the evaluator's process gave no result{}{}",
                            bad.empty() ? "" : ": " + bad, said.empty() ? "" : "\n" + said));
  }
  const Json json = parse_json(c.result);
  if (const auto error = json.find("error"); error != json.end()) {
    keep("traceback", json.value("traceback", ""), run);
    run->again = *error == "exception";
    return fail(run, run->again ? Verdict::crashed : Verdict::wrong_result,
                json.at("why").get<std::string>());
  }
  const Json &metrics = json.at("metrics"), &artifacts = json.at("artifacts");
  if (!metrics.is_object() || !artifacts.is_object())
    return fail(run, Verdict::wrong_result, "its result is none: it has no names");
  for (const auto& [name, value] : metrics.items())
    if (run->metrics.size() < kMostMetrics)
      run->metrics[clean_text(name, kMostName)] = number_of(value);
  for (const auto& [name, value] : artifacts.items()) keep(name, value.get<std::string>(), run);
  run->stages = std::clamp(json.at("stages").get<int>(), 0, 3);
} catch (const Json::exception&) {
  fail(run, Verdict::wrong_result, "what the evaluator's process wrote as its result is none");
}

void read_output(const ExternalSpec& spec, const Captured& c, ExternalRun* run) {
  if (const std::string bad = ended_badly(c.status); !bad.empty()) {
    const std::string said = last_lines(c.err.empty() ? c.out : c.err);
    run->again = true;
    return fail(run, Verdict::crashed, bad + (said.empty() ? "" : "\n" + said));
  }
  for (const auto& [name, value] : metrics_in(c.out, spec.metric))
    run->metrics[clean_text(name, kMostName)] = value;
}

// The exit code of attune._module_verdict where it has a verdict.
constexpr int kAccepted = 0, kRefused = 1, kUsageError = 2, kNotTried = 3;

// Not beside the program, which could import it.
std::string folder_of_start(const std::string& folder) { return folder + "-start"; }

void take_number(const Json& from, const char* key, const char* name, double unit,
                 ExternalRun* run) {
  const auto at = from.find(key);
  if (at != from.end() && at->is_number()) run->metrics[name] = unit * at->get<double>();
}

// The verdict of Attune's judge of torch modules. The modules are not in its process: all of it is
// the judge's own.
void read_verdict(const Captured& c, const std::string& folder, const std::string& python,
                  ExternalRun* run) try {
  const int code = WIFEXITED(c.status) ? WEXITSTATUS(c.status) : -1;
  const auto own = [&](std::string text) {  // paths of this evaluation mean nothing to anybody
    for (const std::string& before : {folder_of_start(folder) + "/", folder + "/"})
      for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at))
        text.erase(at, before.size());
    return text;
  };
  const Json json = Json::parse(c.out, nullptr, false);
  if ((code != kAccepted && code != kRefused) || !json.is_object())
    return fail(run, Verdict::launch_failed,
                own("the judge has no verdict: " + why_no_verdict(c, python).why));
  int gaps = 0;
  for (const Json& gap : json.value("not_held", Json::array()))
    keep("not held",
         run->artifacts["not held"] + (gaps++ == 0 ? "" : "; ") + gap.get<std::string>(), run);
  if (const std::string verdict = json.at("verdict"); verdict != verdict_name(Verdict::ok)) {
    if (!parse_verdict(verdict, &run->verdict)) run->verdict = Verdict::cheated;
    return fail(run, run->verdict, own(json.at("why").get<std::string>()));
  }
  const Json& shape = json.at("shapes").at(0);
  const Json& speedup = shape.at("speedup");
  take_number(speedup, "mid", "speedup", 1, run);
  take_number(speedup, "low", "speedup_low", 1, run);
  take_number(speedup, "high", "speedup_high", 1, run);
  take_number(shape, "seconds", "milliseconds", 1e3, run);
  take_number(shape, "library_seconds", "reference_milliseconds", 1e3, run);
  take_number(json, "error", "error", 1, run);
  take_number(json, "limit", "error_allowed", 1, run);
} catch (const Json::exception&) {
  fail(run, Verdict::launch_failed, "what the judge wrote is no verdict");
}

Status run_judge(const ExternalSpec& spec, const ExternalPlace& place, const std::string& folder,
                 const std::string& program, Captured* c) {
  std::vector<std::string> arguments = {"-m", "attune._module_verdict", "--path", program};
  arguments.insert(arguments.end(), spec.judge.begin(), spec.judge.end());
  if (std::find(spec.judge.begin(), spec.judge.end(), "--reference") == spec.judge.end()) {
    const std::string start = folder_of_start(folder) + "/start" + place.suffix;
    ATTUNE_TRY(make_folder(folder_of_start(folder)));
    ATTUNE_TRY(write_file(start, place.start));
    arguments.insert(arguments.end(), {"--baseline", start});
  }
  return run_and_capture(spec.python, arguments, spec.seconds, place.stop, c);
}

ExternalRun run_once(const ExternalSpec& spec, const ExternalPlace& place,
                     const std::string& text) {
  ExternalRun run;
  // A new path each time: Python keeps compiled files by path, second and size.
  std::string folder = fs::absolute(place.scratch) / "evaluation-XXXXXX";
  if (Status s = make_folder(place.scratch); !s.ok()) {
    fail(&run, Verdict::launch_failed, s.message);
    return run;
  }
  if (mkdtemp(folder.data()) == nullptr) {
    fail(&run, Verdict::launch_failed, "cannot make a folder in " + place.scratch);
    return run;
  }
  const std::string program = folder + "/program" + place.suffix;
  Captured c;
  Status s = write_file(program, text);
  if (s.ok() && spec.judged())
    s = run_judge(spec, place, folder, program, &c);
  else if (s.ok() && spec.file.empty())
    s = run_and_capture("/bin/sh", {"-c", with_program(spec.command, quoted(program))},
                        spec.seconds, place.stop, &c);
  else if (s.ok())
    s = run_and_capture(spec.python, {place.child, asked_of(spec, program).dump()}, spec.seconds,
                        place.stop, &c);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  if (spec.judged()) fs::remove_all(folder_of_start(folder), ignored);
  run.seconds = c.seconds;
  run.stopped = c.stopped;
  if (!s.ok()) {
    fail(&run, Verdict::launch_failed, s.message);
  } else if (c.stopped) {
    fail(&run, Verdict::run_timeout, "stopped");
  } else if (c.late) {
    fail(&run, Verdict::run_timeout,
         fmt::format("it was not done after {:g} s, and was killed", spec.seconds));
  } else if (spec.judged()) {
    read_verdict(c, folder, spec.python, &run);
  } else {
    spec.file.empty() ? read_output(spec, c, &run) : read_result(c, &run);
  }
  if (run.verdict == Verdict::ok) {
    std::string why;
    const std::optional<double> score = score_of(spec, run.metrics, &why);
    if (score) run.score = *score;
    if (!score && spec.file.empty() && !spec.judged())
      why += last_lines(c.out).empty() ? "; it printed nothing" : "";
    if (!score) fail(&run, Verdict::wrong_result, why);
  }
  if (!spec.judged()) keep("stdout", c.out, &run);
  keep("stderr", c.err, &run);
  return run;
}

}  // namespace

NoVerdict why_no_verdict(const Captured& c, const std::string& python) {
  std::string said = c.err.empty() ? c.out : c.err;
  while (!said.empty() && said.back() == '\n') said.pop_back();
  said = clean_text(said.substr(said.rfind('\n') + 1), kMostWhy);
  const int code = WIFEXITED(c.status) ? WEXITSTATUS(c.status) : -1;
  if (code == kNotTried) return {said};
  constexpr std::string_view kError = "error: ";
  if (const size_t at = said.find(kError); code == kUsageError && at != said.npos)
    return {said.substr(at + kError.size()), true};
  return {
      fmt::format("{}. Modules are judged by Python with torch (2.10 or later) and the attune "
                  "package; {} ran here, --python names another",
                  said.empty() ? "the judge said nothing" : said, python)};
}

std::string external_child(const std::string& tool) {
  const fs::path here = fs::path(tool).parent_path();
  for (const char* place : {"..", "../python/attune", "../share/attune", "../lib/attune"}) {
    const fs::path path = here / place / "_external_child.py";
    std::error_code error;
    if (fs::exists(path, error)) return fs::weakly_canonical(path, error);
  }
  return "";
}

ExternalRun run_external(const ExternalSpec& spec, const ExternalPlace& place,
                         const std::string& text) {
  double seconds = 0;
  for (int attempt = 0;; ++attempt) {
    ExternalRun run = run_once(spec, place, text);
    seconds += run.seconds;
    if (!run.again || run.stopped || attempt >= spec.retries) {
      run.seconds = seconds;
      return run;
    }
  }
}

}  // namespace attune::evolve
