// attune worker: the process of one candidate. `attune evolve` starts it; nobody else needs it.
#include "evolve/worker/worker.hpp"

#include <fcntl.h>

#include <memory>

#include "cli/commands.hpp"

namespace attune::cli {

void add_worker(CLI::App& app, Run& run) {
  auto threads = std::make_shared<int>(1);
  auto cuda = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand("worker", "The process of one candidate of attune evolve");
  sub->group("");  // not in the help: it is no command for people
  sub->add_option("--threads", *threads, "Threads of the candidate")->check(CLI::Range(1, 1024));
  sub->add_flag("--cuda", *cuda, "It runs on the first CUDA device");
  sub->callback([threads, cuda, &run] {
    run = [threads, cuda] {
      if (fcntl(evolve::kWrittenFd, F_GETFD) < 0 || fcntl(evolve::kReplyFd, F_GETFD) < 0)
        throw UsageError("worker is started by 'attune evolve', not by hand");
      return evolve::worker_main(*threads, *cuda);
    };
  });
}

}  // namespace attune::cli
