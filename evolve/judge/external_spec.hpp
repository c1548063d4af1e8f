// Who gives scores, an evaluator of the user's own or Attune's judge of torch modules, and how
// scores become what the rule takes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace attune::evolve {

struct ExternalSpec {
  std::string file;     // a Python file with evaluate(program_path); empty: a command
  std::string command;  // for the shell, with {program}
  std::string python;   // that runs the file, or the judge
  // Instead: what Attune's own judge of torch modules is asked with (attune._module_verdict). With
  // no --reference the start is the reference.
  std::vector<std::string> judge;
  // Of the text: the file's, or those that the command names. A run goes on with the same alone.
  std::string hash;
  std::string metric;  // empty: combined_score, else the mean of all
  bool minimize = false;
  double seconds = 300;  // that an evaluation may take
  int retries = 0;       // of an evaluation that raised an exception
  bool cascade = true;   // evaluate_stage1, 2, 3 where the file has them
  std::vector<double> thresholds = {0.5, 0.75, 0.9};
  std::vector<std::string>
      features;  // metrics that say of what kind a program is, and not how good

  // Of the start, which is evaluated before the run begins.
  double start = 0;   // its score
  bool ratio = true;  // scores are compared by their ratio; else by their difference
  double scale = 1;   // of differences
  int stages = 0;     // of the cascade that it came to

  bool judged() const { return !judge.empty(); }  // by Attune: scores are no claims
  std::string what() const {
    return judged() ? "Attune's judge of torch modules" : file.empty() ? command : file;
  }
};

// What candidates of Attune's judge are compared with: the program at the start, or the problem.
std::string reference_of(const ExternalSpec& spec);

// How scores will be compared, by the start's.
void set_start(double score, ExternalSpec* spec);

// What stands for a score in place of a time: less is better, and ratios of it are gains. Nothing
// where the score has no place on the scale: 0 or less beside ratios, or no finite number.
std::optional<double> pseudo_time(const ExternalSpec& spec, double score);

// The score of a program whose fitness (log of pseudo-times) over the start is known.
double score_after(const ExternalSpec& spec, double fitness);
// A gain, as people compare scores: "1.31x", or "+0.2".
std::string gain_text(const ExternalSpec& spec, double ratio);

using Metrics = std::map<std::string, double>;

// The score among the metrics. Nothing, with the reason, where there is none.
std::optional<double> score_of(const ExternalSpec& spec, const Metrics& metrics, std::string* why);

// What a command printed: a JSON object, or lines such as "speedup: 2.41x" and "error = 1e-3".
Metrics metrics_in(const std::string& output, const std::string& wanted);

// Without control codes but for line breaks and tabs, valid UTF-8, and not longer than that: the
// middle goes.
std::string scrubbed(const std::string& text, size_t most);

}  // namespace attune::evolve
