// A process of the user's with an end: its output, at most so much of it, and then none of its
// descendants is left.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/status.hpp"

namespace attune::evolve {

struct Captured {
  int status = -1;  // as waitpid gives it
  bool late = false, stopped = false;
  std::string out, err;  // the beginning and the end, where there was more
  std::string result;    // what was written to descriptor 3
  double seconds = 0;
};

// With our environment, in our folder, nothing on stdin. Not ok when it could not be started.
Status run_and_capture(const std::string& program, const std::vector<std::string>& arguments,
                       double limit, const std::function<bool()>& stop, Captured* captured);

}  // namespace attune::evolve
