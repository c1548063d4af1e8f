// The worker's half of the tool, for sanitizers: compiling all of it for their tests takes minutes.
#include <cstdlib>
#include <string_view>

#include "evolve/worker/worker.hpp"

int main(int argc, char** argv) {
  int threads = 1;
  bool cuda = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--version") return 0;
    if (word == "--threads" && i + 1 < argc) threads = std::atoi(argv[++i]);
    if (word == "--cuda") cuda = true;
  }
  return attune::evolve::worker_main(threads, cuda);
}
