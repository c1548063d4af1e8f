// attune: the command line. stdout is data, stderr is talk; 0 fine, 1 failures or an error, 2 bad
// usage, 130 Ctrl-C.
#include <attune/attune.h>
#include <fmt/format.h>

#include <exception>
#include <new>
#include <sstream>
#include <string>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "src/jit/kernel.hpp"

namespace attune::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  attune info                                  show the CPU, the GPU and what Attune can use here
  attune check                                 test the kernels against a float64 reference
  attune bench --seq 512:4096:x2 --dim 64,128  measure how fast they are
  attune evolve                                search for a faster kernel for 90 seconds
  attune judge kernel.cpp                      check and time one program of your own
  attune bench --help                          show the options of one command, with examples

Results go to stdout, messages and progress to stderr. Exit codes: 0 success, 1 a failure was found
or an error occurred, 2 wrong usage, 130 stopped by Ctrl-C (the results so far are printed).
NO_COLOR=1 turns colours off.)";

void complain(const std::string& message) {
  talk(fmt::format("{} {}", paint(Colour::red, "attune:"), message));
}

// What is wrong with the command line, and what was probably meant.
std::string explain_failure(const CLI::App* parser, const CLI::Error& error) {
  std::string command = "attune";
  const CLI::App* deepest = parser;
  for (auto chosen = deepest->get_subcommands(); !chosen.empty();
       chosen = deepest->get_subcommands()) {
    deepest = chosen.front();
    command += " " + deepest->get_name();
  }
  std::string text = error.what();
  if (const auto unknown = parser->remaining(true); !unknown.empty()) {
    const std::string word = unknown.front().substr(0, unknown.front().find('='));
    const bool is_option = word.starts_with("-");
    std::vector<std::string> known;
    if (is_option)
      for (const CLI::Option* option : deepest->get_options())
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    else
      for (const CLI::App* sub :
           deepest->get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); }))
        known.push_back(sub->get_name());
    if (is_option)
      text = fmt::format("{} is not an option of {}", word, command);
    else if (!known.empty())
      text = fmt::format("'{}' is not a command", word);
    if (const std::string meant = nearest(word, known); !meant.empty())
      text += fmt::format("; did you mean {}?", meant);
  }
  return fmt::format("{}\nTry '{} --help'.", text, command);
}

// Help and version are data; everything else that the parser throws is bad usage.
int finish_parse(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream out, err;
  const bool asked = app.exit(error, out, err) == 0;
  print(out.str());
  if (asked) return kOk;
  complain(err.str());
  return kUsage;
}

int run_tool(int argc, char** argv) {
  CLI::App app{
      "Attune: fused attention kernels for CPUs and NVIDIA GPUs, and a search that tunes them.",
      "attune"};
  app.set_version_flag("--version", std::string("attune ") + attune_version());
  app.require_subcommand(1);
  app.footer(kFooter);
  app.failure_message(explain_failure);
  Run run;
  add_info(app, run);
  add_check(app, run);
  add_bench(app, run);
  add_peak(app, run);
  add_cache(app, run);
  add_evolve(app, run);
  add_judge(app, run);
  add_report(app, run);
  add_tuned(app, run);
  add_worker(app, run);
  if (argc == 1) {
    print(app.help());
    return kOk;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return finish_parse(app, error);
  }
  install_signals();
  jit::on_compile([](const std::string& id) { talk("compiling " + id); });
  try {
    return run();
  } catch (const UsageError& error) {
    complain(error.what());
    return kUsage;
  }
}

}  // namespace
}  // namespace attune::cli

int main(int argc, char** argv) {
  using attune::cli::complain;
  attune::cli::open_standard_streams();
  try {
    return attune::cli::run_tool(argc, argv);
  } catch (const std::bad_alloc&) {
    complain("not enough memory");
  } catch (const std::exception& error) {
    complain(error.what());
  }
  return attune::cli::kFailed;
}
