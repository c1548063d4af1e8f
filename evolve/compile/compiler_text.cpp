#include "evolve/compile/compiler_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <system_error>

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

// A compiler takes a null character for a blank.
bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r' || c == '\0';
}

// ---- What the text asks for ----

// A backslash at the end of a line joins it with the next one. Some compilers end a line at a
// carriage return.
std::string joined_lines(std::string_view text) {
  const std::string_view mark = "\xef\xbb\xbf";  // of UTF-8, which may stand before all else
  if (text.starts_with(mark)) text.remove_prefix(mark.size());
  std::string joined;
  for (size_t n = 0; n < text.size(); ++n) {
    if (text[n] == '\\') {
      size_t end = n + 1;
      while (end < text.size() && is_space(text[end])) ++end;
      if (end < text.size() && text[end] == '\n') {
        n = end;
        continue;
      }
    }
    joined += text[n] == '\r' ? '\n' : text[n];
  }
  return joined;
}

// Past blanks and comments, which may stand between any two words.
size_t skip(std::string_view text, size_t at) {
  while (at < text.size()) {
    if (is_space(text[at])) {
      ++at;
    } else if (text.substr(at, 2) == "/*") {
      const size_t end = text.find("*/", at + 2);
      if (end == text.npos) return text.size();
      at = end + 2;
    } else {
      break;
    }
  }
  return at;
}

std::string_view word_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_name(text[end])) ++end;
  return text.substr(at, end - at);
}

std::string_view rest_of_line(std::string_view text, size_t at) {
  return text.substr(std::min(at, text.size()),
                     std::min(text.find('\n', at), text.size()) - std::min(at, text.size()));
}

// Whether a directive may begin here: nothing but blanks and comments before it in its line. What
// looks so inside of a string or of a longer comment is taken for one as well.
bool begins_line(std::string_view text, size_t at) {
  const size_t newline = at == 0 ? text.npos : text.rfind('\n', at - 1);
  std::string_view before = text.substr(newline + 1, at - newline - 1);
  if (const size_t comment = before.rfind("*/"); comment != before.npos)
    before.remove_prefix(comment + 2);
  return std::all_of(before.begin(), before.end(), is_space);
}

bool leads_out(std::string_view path) {
  if (path.starts_with('/')) return true;
  for (size_t at = path.find(".."); at != path.npos; at = path.find("..", at + 1))
    if ((at == 0 || path[at - 1] == '/') && (at + 2 == path.size() || path[at + 2] == '/'))
      return true;
  return false;
}

// The operand of an include: its name when it leads out, or when nobody can read it here.
std::string outside(std::string_view operand) {
  if (operand.empty()) return "";
  const char close = operand[0] == '"' ? '"' : operand[0] == '<' ? '>' : '\0';
  if (close == '\0') return fmt::format("a name that a macro makes: {}", operand);
  const std::string_view path = operand.substr(1, operand.find(close, 1) - 1);
  return leads_out(path) ? std::string(path) : "";
}

std::string in_directive(std::string_view text, size_t at) {
  at = skip(text, at);
  const std::string_view word = word_at(text, at);
  const size_t after = skip(text, at + word.size());
  for (const char* include : {"include", "include_next", "import", "embed"})
    if (word == include) return outside(rest_of_line(text, after));
  const std::string_view rest = rest_of_line(text, after);
  // The compiler quotes from the file that such a line names.
  if (word == "line" || (!word.empty() && std::isdigit(static_cast<unsigned char>(word[0]))))
    if (const size_t quote = rest.find('"'); quote != rest.npos) return outside(rest.substr(quote));
  if (word == "pragma" && rest.find("dependency") != rest.npos) return "#pragma GCC dependency";
  if (word == "define" && rest.find("__has_") != rest.npos &&
      (rest.find("include") != rest.npos || rest.find("embed") != rest.npos))
    return "__has_include under another name";
  return "";
}

std::string in_questions(std::string_view text) {
  for (size_t at = text.find("__has_"); at != text.npos; at = text.find("__has_", at + 1)) {
    const std::string_view word = word_at(text, at);
    if (!word.starts_with("__has_include") && word != "__has_embed") continue;
    const size_t open = skip(text, at + word.size());
    if (open >= text.size() || text[open] != '(') continue;
    if (std::string path = outside(rest_of_line(text, skip(text, open + 1))); !path.empty())
      return path;
  }
  for (size_t at = text.find("dependency"); at != text.npos; at = text.find("dependency", at + 1)) {
    size_t before = at;
    while (before > 0 && is_space(text[before - 1])) --before;
    if (before >= 3 && before < at && text.substr(before - 3, 3) == "GCC")
      return "#pragma GCC dependency";
  }
  return "";
}

// As the assembler gets it: neighbouring strings are one, and characters may be written as numbers.
std::string as_assembled(std::string_view text) {
  std::string joined;
  for (size_t n = 0; n < text.size(); ++n) {
    if (text[n] == '"' && (n == 0 || text[n - 1] != '\\')) {
      size_t next = n + 1;
      while (next < text.size() && (is_space(text[next]) || text[next] == '\n')) ++next;
      if (next > n + 1 && next < text.size() && text[next] == '"') {
        n = next;
        continue;
      }
    }
    if (text[n] == '\\' && n + 1 < text.size()) {
      const bool hex = text[n + 1] == 'x';
      size_t end = n + 1 + (hex ? 1 : 0);
      unsigned value = 0;
      while (end < text.size() && end < n + 4) {
        const char c = char(std::tolower(static_cast<unsigned char>(text[end])));
        if (hex ? std::isxdigit(static_cast<unsigned char>(c)) == 0 : c < '0' || c > '7') break;
        value = value * (hex ? 16 : 8) + unsigned(c <= '9' ? c - '0' : c - 'a' + 10);
        ++end;
      }
      if (end > n + 1 + (hex ? 1 : 0)) {
        joined += char(value);
      } else {  // of the others only the ends of lines and words matter
        joined += ' ';
        end = n + 2;
      }
      n = end - 1;
      continue;
    }
    joined += char(std::tolower(static_cast<unsigned char>(text[n])));
  }
  return joined;
}

std::string in_assembly(std::string_view text) {
  if (text.find("asm") == text.npos) return "";
  const std::string assembled = as_assembled(text);
  for (const std::string_view directive : {".incbin", ".include"})
    for (size_t at = assembled.find(directive); at != assembled.npos;
         at = assembled.find(directive, at + 1))
      if ((at == 0 || !is_name(assembled[at - 1])) &&
          (at + directive.size() >= assembled.size() || !is_name(assembled[at + directive.size()])))
        return std::string(directive);
  return "";
}

// A line of a compiler's own that is one string: what it says is data.
bool is_string_line(std::string_view line) {
  size_t at = skip(line, 0);
  if (at >= line.size() || line[at] != '.') return false;
  const std::string_view word = word_at(line, at + 1);
  if (word != "string" && word != "ascii" && word != "asciz") return false;
  at = skip(line, at + 1 + word.size());
  if (at >= line.size() || line[at] != '"') return false;
  for (++at; at < line.size() && line[at] != '"'; ++at)
    if (line[at] == '\\') ++at;
  return skip(line, at + 1) >= line.size() && at < line.size();
}

// ---- What the compiler says ----

constexpr size_t kLines = 8, kCharacters = 1500, kLineCharacters = 600;

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

bool is_error(std::string_view line) {
  return contains(line, "error") || contains(line, "Error") || contains(line, "fatal");
}

// The linker's lines begin with paths of passing files; what they say of symbols is enough.
std::string about_symbols(const std::string& line) {
  for (const char* what : {"undefined reference to", "undefined symbol", "Undefined reference to",
                           "multiple definition of", "duplicate symbol"})
    if (const size_t at = line.find(what); at != std::string::npos) return line.substr(at);
  return "";
}

// A line that a part of the compiler says in its own name: "cc1plus: out of memory".
bool is_of_program(const std::string& line, const HostCompiler& compiler) {
  const std::string who = line.substr(0, line.find_first_of(": "));
  const std::string name = fs::path(who).filename();
  if (who.empty() || contains(line, "warning")) return false;
  for (const char* part : {"cc1plus", "cc1", "c++", "g++", "gcc", "cc", "clang", "clang++",
                           "collect2", "ptxas", "nvlink", "nvcc", "cudafe++", "cicc", "fatbinary"})
    if (name == part) return true;
  return name == fs::path(compiler.path).filename() || name.ends_with("-g++") ||
         name.ends_with("-gcc");
}

// Why a file could not be opened says whether it exists.
std::string without_reason(const std::string& line) {
  constexpr int kErrors = 134;
  for (int error = 1; error < kErrors; ++error) {
    const std::string reason = ": " + std::generic_category().message(error);
    if (line.ends_with(reason)) return line.substr(0, line.size() - reason.size());
  }
  return line;
}

class Scrubber {
 public:
  Scrubber(const std::vector<std::string>& own, const HostCompiler& compiler,
           const std::string& folder)
      : own_(own), compiler_(compiler) {
    std::error_code error;
    folders_ = {fs::absolute(folder, error).string() + "/",
                fs::weakly_canonical(folder, error).string() + "/"};
  }

  // What is kept of a line; empty: nothing.
  std::string kept(std::string line) const {
    for (const std::string& folder : folders_)
      for (size_t at = line.find(folder); at != std::string::npos; at = line.find(folder))
        line.erase(at, folder.size());
    if (line.starts_with("./")) line.erase(0, 2);
    if (const std::string symbols = about_symbols(line); !symbols.empty())
      return without_paths(symbols);
    const std::string file = line.substr(0, line.find_first_of(":("));
    const bool of_own = std::find(own_.begin(), own_.end(), file) != own_.end();
    if (file == "{standard input}" || file == "candidate.s" || contains(line, ": Error: "))
      return is_error(line) ? without_paths(without_reason(line)) : "";  // the assembler's
    if (of_own && (is_error(line) || contains(line, "required from here")))
      return without_paths(line);
    if (file.starts_with('/') && is_error(line) && is_of_toolchain(compiler_, file))
      return without_paths(line);
    return is_of_program(line, compiler_) ? without_paths(line) : "";
  }

 private:
  std::string without_paths(const std::string& line) const {
    std::string clean;
    for (size_t n = 0; n < line.size(); ++n) {
      const bool begins = line[n] == '/' && n + 1 < line.size() &&
                          (is_name(line[n + 1]) || line[n + 1] == '.') &&
                          (n == 0 || (!is_name(line[n - 1]) && line[n - 1] != '.'));
      if (!begins) {
        clean += line[n];
        continue;
      }
      size_t end = n;
      while (end < line.size() && !is_space(line[end]) &&
             !contains(":,;()'\"`<>", line.substr(end, 1)))
        ++end;
      const std::string path = line.substr(n, end - n);
      clean += is_of_toolchain(compiler_, path) ? path : "(path)";
      n = end - 1;
    }
    return clean;
  }

  const std::vector<std::string>& own_;
  const HostCompiler& compiler_;
  std::vector<std::string> folders_;
};

}  // namespace

std::string asks_for_files(std::string_view source) {
  const std::string text = joined_lines(source);
  std::string found;
  for (size_t at = 0; at < text.size() && found.empty(); ++at) {
    const size_t sign = text[at] == '#' ? 1 : text.compare(at, 2, "%:") == 0 ? 2 : 0;
    if (sign != 0 && begins_line(text, at)) found = in_directive(text, at + sign);
  }
  if (found.empty()) found = in_questions(text);
  if (found.empty()) found = in_assembly(text);
  return printable(found, 200);
}

std::string assembly_asks_for_files(std::string_view assembly) {
  constexpr std::string_view kReading[] = {".incbin", ".include",  ".macro", ".irp",
                                           ".irpc",   ".altmacro", ".mri"};
  for (size_t begin = 0; begin < assembly.size();) {
    const std::string_view line = rest_of_line(assembly, begin);
    begin += line.size() + 1;
    if (line.find('.') == line.npos || is_string_line(line)) continue;
    std::string lower(line);
    for (char& c : lower) c = char(std::tolower(static_cast<unsigned char>(c)));
    for (const std::string_view directive : kReading)
      for (size_t at = lower.find(directive); at != lower.npos; at = lower.find(directive, at + 1))
        if ((at == 0 || !is_name(lower[at - 1])) && word_at(lower, at + 1) == directive.substr(1))
          return std::string(directive);
  }
  return "";
}

std::string printable(std::string_view text, size_t most) {
  std::string clean;
  for (size_t n = 0; n < text.size(); ++n) {
    const auto byte = [&](size_t at) { return at < text.size() ? uint8_t(text[at]) : uint8_t{0}; };
    if (byte(n) == 0x1b) {  // a sequence: to its letter; a title: to its bell
      const bool title = byte(n + 1) == ']';
      n += 1;
      while (
          n + 1 < text.size() && text[n] != '\n' &&
          (title ? byte(n) != 7 && byte(n) != 0x1b : byte(n) == '[' || std::isalpha(byte(n)) == 0))
        ++n;
      continue;
    }
    if (byte(n) == 0xc2 && byte(n + 1) >= 0x80 && byte(n + 1) < 0xa0) {
      ++n;  // the same as one character
      continue;
    }
    if (byte(n) == '\t') clean += ' ';
    if ((byte(n) < 0x20 && byte(n) != '\n') || byte(n) == 0x7f) continue;
    clean += text[n];
  }
  if (clean.size() <= most) return clean;
  while (most > 0 && (uint8_t(clean[most]) & 0xc0) == 0x80) --most;  // whole characters
  return clean.substr(0, most);
}

std::vector<TextError> errors_by_line(const std::string& errors) {
  // Of GCC and Clang, and of nvcc.
  constexpr const char* kForms[] = {"candidate.cpp:%d:%d: %n", "candidate.cu:%d:%d: %n",
                                    "candidate.cu(%d): %n"};
  std::vector<TextError> all;
  std::istringstream text(errors);
  for (std::string line; std::getline(text, line);) {
    TextError e;
    size_t begin = 0;
    for (const char* form : kForms) {
      int at = 0, column = 0, end = 0;
      if (std::string_view(form).ends_with("(%d): %n"))
        std::sscanf(line.c_str(), form, &at, &end);
      else
        std::sscanf(line.c_str(), form, &at, &column, &end);
      if (end == 0) continue;
      begin = size_t(end);
      e.line = at;
      e.column = column;
      break;
    }
    e.message = line.substr(begin);
    for (const std::string_view before : {"fatal error: ", "error: "})
      if (e.message.starts_with(before)) e.message.erase(0, before.size());
    all.push_back(std::move(e));
  }
  return all;
}

std::string own_errors(const std::string& output, const std::vector<std::string>& own,
                       const HostCompiler& compiler, const std::string& folder) {
  const Scrubber scrubber(own, compiler, folder);
  std::string errors;
  size_t lines = 0;
  std::istringstream text(printable(output, output.size()));
  for (std::string line; std::getline(text, line) && lines < kLines;) {
    const std::string kept = scrubber.kept(line);
    if (kept.empty()) continue;
    errors += printable(kept, kLineCharacters) + "\n";
    ++lines;
  }
  errors = printable(errors, kCharacters);
  while (!errors.empty() && errors.back() == '\n') errors.pop_back();
  if (!errors.empty()) return errors;
  return output.empty() ? "the compiler failed without a word"
                        : "the compiler failed, and says nothing of the program's own text";
}

}  // namespace attune::evolve
