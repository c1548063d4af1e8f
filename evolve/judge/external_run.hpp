// One evaluation by the user's evaluator: a process group of its own, which is gone at the end with
// all that it started, and what it said. It is not sandboxed: it is the user's code. Attune's judge
// of torch modules is run in the same way; it has sandboxes for the modules.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "evolve/judge/evaluation.hpp"
#include "evolve/judge/external_process.hpp"
#include "evolve/judge/external_spec.hpp"
#include "src/status.hpp"

namespace attune::evolve {

struct ExternalRun {
  Verdict verdict = Verdict::ok;
  std::string why;
  Metrics metrics;
  std::map<std::string, std::string> artifacts;
  double score = 0;
  int stages = 0;
  double seconds = 0;    // by our clock
  bool again = false;    // it raised an exception, and the next attempt may not
  bool stopped = false;  // by Ctrl-C
};

struct ExternalPlace {
  std::string child;    // the runner of Python evaluators
  std::string scratch;  // each evaluation has a new folder in it, for the program
  std::string suffix;   // of the program's file
  std::string start;    // the text that the run began with: the reference of Attune's judge
  std::function<bool()> stop;
};

// Why Attune's judge of modules gave no verdict, in a line. `usage`: for how it was asked.
struct NoVerdict {
  std::string why;
  bool usage = false;
};
NoVerdict why_no_verdict(const Captured& judge, const std::string& python);

// The runner that belongs to this tool: in a build, a wheel, an installation. Empty: none.
std::string external_child(const std::string& tool);

// Runs the text once more after each exception, as often as the spec allows.
ExternalRun run_external(const ExternalSpec& spec, const ExternalPlace& place,
                         const std::string& text);

}  // namespace attune::evolve
