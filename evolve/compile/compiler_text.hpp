// What a program's text asks of its compiler, and what may be kept of the compiler's answer.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/compile/toolchain.hpp"

namespace attune::evolve {

// Of a name in C.
inline bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The first file that the text asks for by an absolute path, by a path with "..", or by a name that
// a macro makes: #include and its relatives, __has_include, #line, .incbin, .include. Empty: none.
// Text can be disguised; it is Landlock that closes the files. This check refuses at once what is
// plain to see, answers no question about which files exist, and is all there is without Landlock.
std::string asks_for_files(std::string_view source);

// The same of a compiler's assembly: the first directive that reads a file, or that could make one
// of its parts (.macro). In strings there, nothing counts. A keyword made by ## is seen here alone.
std::string assembly_asks_for_files(std::string_view assembly);

// Printable text: no control characters, no codes of a terminal, at most `most` bytes.
std::string printable(std::string_view text, size_t most);

// The first errors of a compiler that speak of the program's own files (`own`, by the paths that
// the compiler was given), of the toolchain's headers, or of symbols. Lines of source that it
// quotes are left out, and so is all that it says of other files; paths to those are replaced.
std::string own_errors(const std::string& output, const std::vector<std::string>& own,
                       const HostCompiler& compiler, const std::string& folder);

// What own_errors() returned, line by line.
struct TextError {
  int line = 0, column = 0;  // of the program; 0: not known, or of something else
  std::string message;
};
std::vector<TextError> errors_by_line(const std::string& errors);

}  // namespace attune::evolve
