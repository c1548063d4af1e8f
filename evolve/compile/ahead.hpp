// Programs that are compiled before they are needed: in the background, each text once, only so
// many at a time.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <semaphore>
#include <string>

#include "evolve/compile/host_compile.hpp"

namespace attune::evolve {

class CompileAhead {
 public:
  // `stop` is to end a build early.
  using Build = std::function<Built(const std::string& text, const Stop& stop)>;

  CompileAhead(int at_once, Build build);
  ~CompileAhead();
  CompileAhead(const CompileAhead&) = delete;
  CompileAhead& operator=(const CompileAhead&) = delete;

  // Begins the build of a text that is not known yet.
  void begin(const std::string& text);
  // The build of this text: the one that was begun, or a new one. It is forgotten then.
  Built take(const std::string& text);
  // Ends what is being built. What was built successfully stays.
  void settle();

 private:
  Built build(const std::string& text);

  Build build_;
  std::counting_semaphore<> free_;
  std::atomic<bool> settling_ = false;
  std::mutex mutex_;
  std::map<std::string, std::shared_future<Built>> begun_;  // by text
};

}  // namespace attune::evolve
