#include "tests/fuzz/bytes.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

namespace attune::fuzz {

void damage_bytes(Dice& dice, std::string* bytes) {
  for (int64_t n = dice.range(1, dice.chance(0.5f) ? 1 : 8); n > 0; --n) {
    if (bytes->empty()) {
      bytes->assign(size_t(dice.range(1, 64)), char(dice.below(256)));
      continue;
    }
    const size_t at = size_t(dice.below(int64_t(bytes->size())));
    const size_t run = std::min(bytes->size() - at, size_t(dice.range(1, 64)));
    switch (dice.below(9)) {
      case 0:
        (*bytes)[at] = char((*bytes)[at] ^ (1 << dice.below(8)));
        break;
      case 1:
        (*bytes)[at] = char(dice.below(256));
        break;
      case 2:
        (*bytes)[at] = dice.pick({'\0', '\xff', '"', '{', '[', '9', '-', '\n', '\x7f'});
        break;
      case 3:
        bytes->erase(at, run);
        break;
      case 4:
        bytes->insert(size_t(dice.below(int64_t(bytes->size()))), bytes->substr(at, run));
        break;
      case 5:
        bytes->replace(at, run, run, char(dice.below(256)));
        break;
      case 6:
        bytes->resize(at);
        break;
      case 7:
        bytes->append(size_t(dice.range(1, 5000)), char(dice.below(256)));
        break;
      default:
        for (size_t i = at; i < at + run; ++i) (*bytes)[i] = char(dice.below(256));
    }
  }
}

std::string deep_json(Dice& dice, int64_t depth) {
  const bool lists = dice.chance(0.6f);
  std::string text;
  if (lists)
    text.assign(size_t(depth), '[');
  else
    for (int64_t i = 0; i < depth; ++i) text.append("{\"a\":", 5);
  if (dice.chance(0.5f)) return text;
  text += "1";
  return text.append(size_t(depth), lists ? ']' : '}');
}

std::string odd_json(Dice& dice) {
  switch (dice.below(14)) {
    case 0:
      return "null";
    case 1:
      return "true";
    case 2:
      return dice.pick<const char*>({"{}", "[]", "[[[]]]", "{\"a\":{}}", "[null]", "[1,2,3]"});
    case 3:
      return dice.pick<const char*>({"9223372036854775807", "9223372036854775808",
                                     "-9223372036854775808", "18446744073709551615",
                                     "99999999999999999999999999", "2147483648", "-1", "0"});
    case 4:
      return dice.pick<const char*>({"1e308", "1e999", "-1e999", "1e-999", "0.5", "-0.0", "1E+2"});
    case 5:
      return dice.pick<const char*>({"\"\"", "\"inf\"", "\"nan\"", "\"-inf\"", "\"x\"", "\"0\""});
    case 6:
      return dice.pick<const char*>(
          {"\"\\u0000\"", "\"\\ud800\"", "\"\\udc00\\ud800\"", "\"\\uD83D\\uDE00\"", "\"\\x\""});
    case 7:
      return dice.pick<const char*>({"\"\x01\"", "\"\xff\xfe\"", "\"\xc0\x80\"", "\"\x1b[2J\""});
    case 8:
      return fmt::format("\"{}\"", std::string(size_t(dice.range(1, 20'000)), 'x'));
    case 9:
      return fmt::format("{}", dice.range(-1'000'000, 1'000'000));
    case 10:
      return dice.pick<const char*>({"", "nul", "NaN", "Infinity", "+1", "01", "1.", ".5", "'a'"});
    case 11:
      return deep_json(dice, dice.range(1, 3000));
    case 12:
      return fmt::format("[{}1]", [&] {
        std::string text;
        for (int64_t n = dice.range(0, 2000); n > 0; --n) text += "0,";
        return text;
      }());
    default:
      return fmt::format("{{\"{}\":1,\"{}\":2}}", dice.below(3), dice.below(3));
  }
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::string bytes(size_t(file.tellg()), '\0');
  if (!file.seekg(0).read(bytes.data(), std::streamsize(bytes.size())))
    throw std::runtime_error("cannot read " + path);
  return bytes;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file.write(bytes.data(), std::streamsize(bytes.size())) || !file.flush())
    throw std::runtime_error("cannot write " + path);
}

std::string make_odd_file(Dice& dice, const std::string& path) {
  const char* target = dice.pick<const char*>({"/dev/zero", "/dev/null", "nowhere", "."});
  switch (dice.below(3)) {
    case 0:
      return mkfifo(path.c_str(), 0600) == 0 ? "a FIFO" : "";
    case 1:
      return mkdir(path.c_str(), 0700) == 0 ? "a folder" : "";
    default:
      return symlink(target, path.c_str()) == 0 ? fmt::format("a link to {}", target) : "";
  }
}

}  // namespace attune::fuzz
