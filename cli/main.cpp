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
#include "cli/terminal.hpp"
#include "src/jit/kernel.hpp"

namespace attune::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  attune info                                  what this machine offers, and why
  attune check                                 are the kernels right here?
  attune bench --seq 512:4096:x2 --dim 64,128  how fast are they?
  attune evolve                                a faster kernel for this machine, with its proof
  attune bench --help                          the options of a command, with examples

Data goes to stdout, everything else to stderr. Exit codes: 0 fine, 1 failures found or an error,
2 bad usage, 130 stopped by Ctrl-C (what was measured until then is printed).
NO_COLOR=1 turns colours off.)";

void complain(const std::string& message) {
  talk(fmt::format("{} {}", paint(Colour::red, "attune:"), message));
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
  CLI::App app{"Attune: fused attention kernels that tune themselves.", "attune"};
  app.set_version_flag("--version", std::string("attune ") + attune_version());
  app.require_subcommand(1);
  app.footer(kFooter);
  app.failure_message([](const CLI::App* parser, const CLI::Error& error) {
    const auto chosen = parser->get_subcommands();
    const auto unknown = parser->remaining(true);
    const std::string command = chosen.empty() ? "" : chosen.front()->get_name() + " ";
    const bool no_command = chosen.empty() || error.get_name() == "RequiredError";
    if (no_command && !unknown.empty())
      return fmt::format("'{}' is not a command\nTry 'attune {}--help'.", unknown.front(), command);
    return fmt::format("{}\nTry 'attune {}--help'.", error.what(), command);
  });
  Run run;
  add_info(app, run);
  add_check(app, run);
  add_bench(app, run);
  add_peak(app, run);
  add_cache(app, run);
  add_evolve(app, run);
  add_report(app, run);
  add_tuned(app, run);
  add_worker(app, run);
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
