// The two channels: stdout carries data, stderr carries talk. And Ctrl-C, which ends a command
// early but in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace attune::cli {

// Opens /dev/null for every standard stream that is closed. Else the first file we open would get
// its number, and our text would go into that file.
void open_standard_streams();

// The first Ctrl-C only raises a flag, so that what was measured can still be printed; a second one
// kills. A closed pipe is an error of write() instead of a signal.
void install_signals();
bool interrupted();

// One line to stderr.
void talk(std::string_view line);

// Replaces the line that the cursor is in, on a terminal. Cut to its width: a wrapped line could
// not be replaced.
void rewrite_line(std::string_view line);

enum class Colour { red, green, bold };
// Wrapped in an escape sequence when stderr is a terminal and NO_COLOR is not set; as it is
// otherwise.
std::string paint(Colour colour, std::string_view text);

// A line on stderr that rewrites itself on a terminal; elsewhere a plain line every 10 seconds.
class Progress {
 public:
  explicit Progress(int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(std::string_view what);  // one more of `total` is about to start

 private:
  using Clock = std::chrono::steady_clock;
  bool animate_;
  Clock::duration pause_;  // between two lines
  int64_t total_, done_ = 0;
  Clock::time_point begin_, drawn_;
};

}  // namespace attune::cli
