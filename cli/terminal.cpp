#include "cli/terminal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "cli/outcome.hpp"

namespace attune::cli {
namespace {

volatile sig_atomic_t g_interrupted = 0;

bool colour_wanted() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) && (no_color == nullptr || *no_color == '\0') &&
         (term == nullptr || std::string_view(term) != "dumb");
}

size_t terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

void open_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) _exit(kFailed);
}

void install_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

bool interrupted() { return g_interrupted != 0; }

void talk(std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

void rewrite_line(std::string_view line) {
  line = line.substr(0, terminal_columns() - 1);
  std::fprintf(stderr, "\r%.*s\x1b[K", static_cast<int>(line.size()), line.data());
  std::fflush(stderr);
}

std::string paint(Colour colour, std::string_view text) {
  if (!colour_wanted()) return std::string(text);
  const char* code = colour == Colour::red ? "31" : colour == Colour::green ? "32" : "1";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

Progress::Progress(int64_t total)
    : animate_(isatty(STDERR_FILENO) != 0),
      pause_(animate_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10)),
      total_(total),
      begin_(Clock::now()),
      drawn_(animate_ ? begin_ - pause_ : begin_) {}

Progress::~Progress() {
  if (animate_ && done_ > 0) rewrite_line("");
}

void Progress::step(std::string_view what) {
  const int64_t index = done_++;
  const Clock::time_point now = Clock::now();
  if (now - drawn_ < pause_) return;
  drawn_ = now;
  std::string line = fmt::format("{}/{}", index + 1, total_);
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  if (index > 0 && elapsed > 2)
    line += fmt::format("  {:.0f} s left",
                        elapsed / static_cast<double>(index) * static_cast<double>(total_ - index));
  line += fmt::format("  {}", what);
  if (!animate_) return talk(line);
  rewrite_line(line);
}

}  // namespace attune::cli
