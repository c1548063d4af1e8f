#include "evolve/genome/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "evolve/compile/compiler_text.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {
namespace {

constexpr std::string_view kStart = "EVOLVE-BLOCK-START", kEnd = "EVOLVE-BLOCK-END",
                           kParam = "EVOLVE-PARAM", kSpace = " \t";
constexpr std::string_view kNoFlag = "none";
constexpr size_t kMostValues = 64;

std::vector<std::string_view> lines_of(std::string_view text) {  // each with its line break
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return lines;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// The marker as a word: EVOLVE-BLOCK-STARTED and MY-EVOLVE-BLOCK-END are none.
size_t find_word(std::string_view line, std::string_view word) {
  for (size_t at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool joined = at > 1 && line[at - 1] == '-' && is_name(line[at - 2]);
    const bool whole = (at == 0 || !is_name(line[at - 1])) && !joined &&
                       (end == line.size() || (!is_name(line[end]) && line[end] != '-'));
    if (whole) return at;
  }
  return std::string_view::npos;
}

std::string_view word_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_name(text[end])) ++end;
  return text.substr(at, end - at);
}

// A tunable's declaration, and where on its line the value stands.
struct Declared {
  Tunable tunable;
  std::string why;  // it cannot be used
  size_t at = 0, length = 0;
};

// Where the comment begins that holds the marker: what stands before it is code.
size_t comment_before(std::string_view line, size_t marker) {
  size_t begin = marker;
  while (begin > 0 && kSpace.find(line[begin - 1]) != std::string_view::npos) --begin;
  while (begin > 0 && std::string_view("/*#-;%!<").find(line[begin - 1]) != std::string_view::npos)
    --begin;
  return begin;
}

// The value of NAME in `code`: behind it, after spaces and one of = { (.
bool find_value(std::string_view code, const std::string& name, size_t* at, size_t* length) {
  size_t name_at = code.find(name), found = std::string_view::npos;
  for (; name_at != std::string_view::npos; name_at = code.find(name, name_at + 1)) {
    const size_t end = name_at + name.size();
    if ((name_at == 0 || !is_name(code[name_at - 1])) && end < code.size() && !is_name(code[end]))
      found = end;
  }
  if (found == std::string_view::npos) return false;
  size_t begin = code.find_first_not_of(" \t={(", found);
  if (begin == std::string_view::npos) return false;
  size_t end = begin;
  while (end < code.size() && std::string_view(" \t\r\n;,)}").find(code[end]) == std::string::npos)
    ++end;
  *at = begin;
  *length = end - begin;
  return end > begin;
}

std::optional<Declared> declared_on(std::string_view line, int number) {
  const size_t marker = find_word(line, kParam);
  if (marker == std::string_view::npos) return std::nullopt;
  Declared d;
  d.tunable.line = number;
  const auto fail = [&](std::string why) {
    d.why = std::move(why);
    return d;
  };
  std::string_view rest = line.substr(marker + kParam.size());
  const size_t name_at = rest.find_first_not_of(kSpace);
  if (name_at == std::string_view::npos) return fail("it has no name");
  d.tunable.name = word_at(rest, name_at);
  if (d.tunable.name.empty()) return fail("it has no name");
  const size_t open = rest.find('{'), close = rest.find('}');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open)
    return fail("its values are missing: EVOLVE-PARAM NAME {1,2,4}");
  std::string_view list = rest.substr(open + 1, close - open - 1);
  for (;;) {
    const size_t comma = list.find(',');
    const std::string value(trimmed(list.substr(0, comma)));
    const char* never = value.starts_with('-') ? ";[]\"\\ \t" : ";[]=\"\\ \t";  // -ftz=true
    if (value.empty() || value.find_first_of(never) != std::string::npos)
      return fail(fmt::format("'{}' cannot be a value", value));
    if (std::find(d.tunable.values.begin(), d.tunable.values.end(), value) !=
        d.tunable.values.end())
      return fail(fmt::format("the value {} stands there twice", value));
    d.tunable.values.push_back(value);
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  if (d.tunable.values.size() > kMostValues)
    return fail(fmt::format("it has more than {} values", kMostValues));
  std::string_view tail = trimmed(rest.substr(close + 1));
  for (const std::string_view end : {"*/", "-->"})
    if (tail.ends_with(end)) tail = trimmed(tail.substr(0, tail.size() - end.size()));
  for (const Level level : {Level::algorithm, Level::implementation, Level::hardware})
    if (tail.starts_with(level_name(level))) {
      d.tunable.level = level;
      tail.remove_prefix(std::string_view(level_name(level)).size());
      break;
    }
  if (tail.starts_with(":")) tail.remove_prefix(1);
  d.tunable.meaning = trimmed(tail);

  const std::string_view code = line.substr(0, comment_before(line, marker));
  const auto is_flag = [](const std::string& value) {
    return value.size() > 1 && value[0] == '-' && std::isalpha(uint8_t(value[1])) != 0;
  };
  const auto& values = d.tunable.values;
  if (trimmed(code).empty()) {
    d.tunable.macro = true;
    d.tunable.flags = std::any_of(values.begin(), values.end(), is_flag);
    if (d.tunable.flags && !std::all_of(values.begin(), values.end(), [&](const auto& value) {
          return value == kNoFlag || is_flag(value);
        }))
      return fail(fmt::format("its values are flags of the compiler, or {}", kNoFlag));
    return d;
  }
  if (std::any_of(values.begin(), values.end(),
                  [](const auto& value) { return value.find('=') != std::string::npos; }))
    return fail("flags of the compiler stand alone on their line");
  if (!find_value(code, d.tunable.name, &d.at, &d.length))
    return fail(fmt::format("the line does not set {}", d.tunable.name));
  const std::string own(line.substr(d.at, d.length));
  const auto at = std::find(d.tunable.values.begin(), d.tunable.values.end(), own);
  if (at == d.tunable.values.end())
    return fail(fmt::format("{} is {} here, which is none of its values", d.tunable.name, own));
  d.tunable.own = int(at - d.tunable.values.begin());
  return d;
}

std::string set_line(std::string_view line, const Declared& d, const std::string& value) {
  return fmt::format("{}{}{}", line.substr(0, d.at), value, line.substr(d.at + d.length));
}

constexpr std::string_view kKernel = "__global__ void";

size_t next_kernel(const std::string& block, size_t from) {
  for (size_t at = block.find(kKernel, from); at != std::string::npos;
       at = block.find(kKernel, at + 1))
    if (!trimmed(std::string_view(block).substr(at + kKernel.size()))
             .starts_with("__launch_bounds__"))
      return at;
  return std::string::npos;
}

bool is_loop(std::string_view line) {
  const std::string_view code = trimmed(line);
  return code.starts_with("for (") || code.starts_with("for(");
}

}  // namespace

Status parse_program(const std::string& text, ProgramText* program) {
  *program = {};
  program->outside.emplace_back();
  int number = 0, open = 0;  // the line of the block's start
  const auto refuse = [](int line, const std::string& why) {
    return Status::invalid(fmt::format("line {}: {}", line, why));
  };
  for (const std::string_view line : lines_of(text)) {
    ++number;
    const size_t start = find_word(line, kStart), end = find_word(line, kEnd);
    const bool marker = start != std::string_view::npos || end != std::string_view::npos;
    if (start != std::string_view::npos && end != std::string_view::npos)
      return refuse(number, "a block begins and ends on one line");
    if (start != std::string_view::npos) {
      if (open > 0)
        return refuse(number, fmt::format("EVOLVE-BLOCK-START in the block of line {}", open));
      open = number;
      program->outside.back() += line;
      std::string_view rest = line.substr(start + kStart.size());
      const size_t name = rest.find_first_not_of(" \t:");
      std::string own(name == std::string_view::npos ? "" : word_at(rest, name));
      if (own.empty()) own = fmt::format("block{}", program->blocks.size() + 1);
      for (const Block& b : program->blocks)
        if (b.name == own)
          return refuse(number, fmt::format("the block of line {} is called {} too", b.line, own));
      program->blocks.push_back({own, "", number});
      continue;
    }
    if (end != std::string_view::npos) {
      if (open == 0) return refuse(number, "EVOLVE-BLOCK-END without EVOLVE-BLOCK-START");
      open = 0;
      program->outside.emplace_back();
    }
    if (!marker)
      if (const auto d = declared_on(line, number)) {
        if (!d->why.empty()) return refuse(number, "EVOLVE-PARAM: " + d->why);
        for (const Tunable& t : program->tunables)
          if (t.name == d->tunable.name)
            return refuse(number,
                          fmt::format("EVOLVE-PARAM: {} was declared in line {}", t.name, t.line));
        program->tunables.push_back(d->tunable);
      }
    (open > 0 ? program->blocks.back().text : program->outside.back()) += line;
  }
  if (open > 0) return refuse(open, "EVOLVE-BLOCK-START without EVOLVE-BLOCK-END");
  if (program->blocks.empty() && program->tunables.empty())
    return Status::invalid(
        "nothing in it may change: mark a part with the comments EVOLVE-BLOCK-START and "
        "EVOLVE-BLOCK-END, or a value with EVOLVE-PARAM NAME {1,2,4}");
  return {};
}

std::vector<Tunable> tunables_in(const std::string& block) {
  std::vector<Tunable> tunables;
  for (const std::string_view line : lines_of(block))
    if (const auto d = declared_on(line, 0); d && d->why.empty()) tunables.push_back(d->tunable);
  return tunables;
}

std::string with_blocks(const ProgramText& program, const std::vector<std::string>& blocks) {
  std::string text = program.outside[0];
  for (size_t n = 0; n < program.blocks.size(); ++n) text += blocks[n] + program.outside[n + 1];
  return text;
}

std::string with_value(const std::string& text, const std::string& name, const std::string& value) {
  std::string result;
  for (const std::string_view line : lines_of(text)) {
    const auto d = declared_on(line, 0);
    const bool this_one = d && d->why.empty() && !d->tunable.macro && d->tunable.name == name;
    result += this_one ? set_line(line, *d, value) : std::string(line);
  }
  return result;
}

int loops_of(const std::string& block) {
  const auto lines = lines_of(block);
  return int(std::count_if(lines.begin(), lines.end(), is_loop));
}

std::string with_pragma(const std::string& block, int loop, const std::string& pragma) {
  std::string result;
  int n = 0;
  for (const std::string_view line : lines_of(block)) {
    if (is_loop(line) && n++ == loop) {
      result += line.substr(0, line.find_first_not_of(kSpace));
      result += pragma + "\n";
    }
    result += line;
  }
  return result;
}

int kernels_of(const std::string& block) {
  int n = 0;
  for (size_t at = 0; (at = next_kernel(block, at)) != std::string::npos; ++at) ++n;
  return n;
}

std::string with_launch_bounds(const std::string& block, int kernel, const std::string& bounds) {
  size_t at = next_kernel(block, 0);
  for (int n = 0; n < kernel && at != std::string::npos; ++n) at = next_kernel(block, at + 1);
  if (at == std::string::npos) return block;
  std::string text = block;
  return text.insert(at + kKernel.size(), fmt::format(" __launch_bounds__({})", bounds));
}

std::string without_pragmas(const std::string& block, const std::vector<std::string>& pragmas,
                            std::vector<int>* found) {
  std::string result, held;  // held: a pragma that may belong to the loop behind it
  int held_is = -1;
  found->clear();
  for (const std::string_view line : lines_of(block)) {
    if (is_loop(line)) {
      found->push_back(held_is);
    } else {
      result += held;
    }
    held.clear();
    held_is = -1;
    const auto at = std::find(pragmas.begin(), pragmas.end(), trimmed(line));
    if (at != pragmas.end()) {
      held = line;
      held_is = int(at - pragmas.begin());
      continue;
    }
    result += line;
  }
  return result + held;
}

std::string without_launch_bounds(const std::string& block, const std::vector<std::string>& bounds,
                                  std::vector<int>* found) {
  std::string text = block;
  found->clear();
  for (size_t at = text.find(kKernel); at != std::string::npos; at = text.find(kKernel, at + 1)) {
    const std::string_view rest = std::string_view(text).substr(at + kKernel.size());
    int is = -1;
    size_t length = 0;
    for (size_t n = 0; n < bounds.size(); ++n) {
      const std::string written = fmt::format(" __launch_bounds__({})", bounds[n]);
      if (!rest.starts_with(written)) continue;
      is = int(n);
      length = written.size();
    }
    if (is < 0 && trimmed(rest).starts_with("__launch_bounds__")) continue;
    text.erase(at + kKernel.size(), length);
    found->push_back(is);
  }
  return text;
}

std::string outside_hash(const std::string& text) {
  ProgramText program;
  if (!parse_program(text, &program).ok()) return "";
  std::string all;
  for (const std::string& part : program.outside) {
    std::string kept;
    for (const std::string_view line : lines_of(part)) {
      const auto d = declared_on(line, 0);
      kept += d && d->why.empty() && !d->tunable.macro ? set_line(line, *d, "") : std::string(line);
    }
    all += fmt::format("{}:{}", kept.size(), kept);
  }
  return jit::hex(jit::sha256(all));
}

}  // namespace attune::evolve
