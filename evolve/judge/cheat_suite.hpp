// The known ways to deceive a judge, as programs and modules, and what the judge must say to each.
// The tests and `attune judge --self-test` run the same list.
#pragma once

#include <string>
#include <vector>

#include "evolve/judge/evaluator.hpp"

namespace attune::evolve {

struct Fixture {
  std::string name;  // of its file in tests/evolve/cheats or cuda_cheats; the number: its kind
  std::vector<Verdict> expected;
  std::string after;      // judged before it by the same evaluator; empty: nothing
  double peak_flops = 0;  // what the judge takes for the machine's; 0: it measures
  int64_t batch = 0;      // of the timed shape; 0: that of the options
  Pass pass = Pass::forward;

  bool honest() const { return expected.front() == Verdict::ok; }
  bool expects(Verdict verdict) const;
};

const std::vector<Fixture>& cheat_suite();
const std::vector<Fixture>& cuda_cheat_suite();

// What the fixture's number says of it: "writes no output"; "a control" for what must pass.
const char* kind_of(const Fixture& fixture);
// The list as JSON, for those who take the fixtures elsewhere: file, kind, expected verdicts.
std::string manifest_of(const std::vector<Fixture>& suite, const std::string& extension);

// The text of a fixture with what fixtures share: a program is one file.
std::string fixture_text(const std::string& name);
std::string cuda_fixture_text(const std::string& name);

// A small shape and few samples: most cheats are seen by the first checks. The seed is secret.
EvaluatorOptions cheat_options(const std::string& tool, const std::string& scratch);

// What a fixture is judged beside.
Candidate cheat_incumbent();

// A fixture in an evaluator of its own; its file is written into the scratch folder.
Evaluation judge_fixture(const Fixture& fixture, const EvaluatorOptions& options);

// The same on a device, beside what the library runs there.
EvaluatorOptions cuda_cheat_options(const std::string& tool, const std::string& scratch);
Evaluation judge_cuda_fixture(const Fixture& fixture, const EvaluatorOptions& options, int device,
                              const Candidate& incumbent);

// ---- of the judge of torch modules (python/attune/_judge.py) ----

struct ModuleFixture {
  std::string name;                            // of its file in tests/python/modules
  std::vector<std::string> expected, options;  // verdicts; what Python's judge is asked with
};

// As manifest.json of that folder has them, which Python's tests read too.
const std::vector<ModuleFixture>& module_suite();
// All files into a new folder, and a file of the user's beside it, which none may read.
void write_module_suite(const std::string& folder);

}  // namespace attune::evolve
