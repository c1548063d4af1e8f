// Where results go: stdout, or a file that appears whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace attune::cli {

// Writes to stdout. A reader that went away (a closed pipe) has had enough: no error. Anything
// else, a full disk say, throws std::runtime_error.
void print(std::string_view text);

// The target of --json and --csv: a path, "-" for stdout, or "" for not wanted. A file is opened
// beside its final name at once, so that a bad path is known before an hour of work, and renamed on
// write().
class Output {
 public:
  Output(std::string option, std::string target);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  bool wanted() const { return !target_.empty(); }
  bool is_stdout() const { return target_ == "-"; }
  void write(std::string_view text);

 private:
  [[noreturn]] void fail(int error) const;

  std::string option_, target_;
  std::string temporary_;  // empty: written in place (a device, a pipe)
  int fd_ = -1;
};

}  // namespace attune::cli
