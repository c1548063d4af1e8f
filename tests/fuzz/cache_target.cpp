// Entries of the kernel cache: one that was changed, or that has another key's name, is not taken;
// the next writer repairs it.
#include <fmt/format.h>

#include <filesystem>
#include <stdexcept>

#include "src/jit/cache.hpp"
#include "tests/fuzz/bytes.hpp"

namespace attune::fuzz {
namespace {

namespace fs = std::filesystem;
using jit::CacheEntry;
using jit::Digest;

constexpr size_t kSealBytes = sizeof(Digest);

std::string seal_of(std::string_view body) {
  const Digest digest = jit::sha256(body);
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string text(Dice& dice, int64_t most) {
  std::string letters(size_t(dice.range(0, most)), ' ');
  for (char& letter : letters) letter = char(dice.range(' ', '~'));
  return letters;
}

CacheEntry random_entry(Dice& dice) {
  CacheEntry entry;
  entry.id = text(dice, 60);
  entry.arch = "sm_" + std::to_string(dice.range(75, 121));
  entry.seconds = double(dice.below(1000)) / 8;
  for (int64_t n = dice.below(4); n > 0; --n)
    entry.resources.push_back({text(dice, 20), dice.number(0, 255), dice.number(0, 999), 0,
                               dice.number(0, 9), dice.number(0, 232'448)});
  entry.cubin.resize(size_t(dice.range(1, dice.chance(0.1f) ? 100'000 : 2000)));
  for (char& byte : entry.cubin) byte = char(dice.below(256));
  return entry;
}

class Cache : public Target {
 public:
  explicit Cache(const std::string& folder) : folder_(folder) {}

  void run(uint64_t seed, Outcome* outcome) override {
    Dice dice(seed);
    out_ = outcome;
    for (const auto& file : fs::directory_iterator(folder_)) fs::remove_all(file.path());
    key_ = jit::sha256(fmt::format("key {}", dice.below(1000)));
    const CacheEntry entry = random_entry(dice);
    write(entry);
    expect_entry(entry);
    const std::vector<jit::CacheItem> items = list();
    if (items.size() != 1) return out_->fail(fmt::format("{} entries listed, not 1", items.size()));
    path_ = items[0].path;
    const std::string whole = read_file(path_);
    if (dice.chance(0.02f))
      odd_file(dice);
    else if (dice.chance(0.1f))
      other_key(dice, whole);
    else if (dice.chance(0.4f))
      resealed(dice, whole);
    else
      damaged(dice, whole);
    if (out_->failure[0] != '\0' || fs::is_directory(path_)) return;
    write(entry);
    expect_entry(entry);
    out_->call("clear_cache");
    jit::clear_cache(folder_);
    if (!list().empty()) out_->fail("clear_cache left an entry");
  }

 private:
  void write(const CacheEntry& entry) {
    out_->call("write_entry");
    const std::string why = jit::write_entry(folder_, key_, entry);
    if (!why.empty()) out_->fail("write_entry: " + why);
  }

  bool read(const Digest& key, CacheEntry* entry) {
    out_->call("read_entry");
    return jit::read_entry(folder_, key, entry);
  }

  std::vector<jit::CacheItem> list() {
    out_->call("list_cache");
    return jit::list_cache(folder_);
  }

  void expect_entry(const CacheEntry& entry) {
    CacheEntry back;
    if (!read(key_, &back)) return out_->fail("the entry that was written is not there");
    if (!(back == entry)) return out_->fail("the entry is not the one that was written");
    ++out_->accepted;
  }

  void expect_nothing(const Digest& key, const char* what) {
    CacheEntry entry;
    if (read(key, &entry)) out_->fail(fmt::format("{} was taken", what));
    if (!list().empty()) out_->fail(fmt::format("{} was listed", what));
    out_->call("cache_size");
    jit::cache_size(folder_);
  }

  void damaged(Dice& dice, const std::string& whole) {
    std::string bytes = whole;
    damage_bytes(dice, &bytes);
    out_->note(fmt::format("{} bytes of {}", bytes.size(), whole.size()));
    if (bytes == whole) return;
    write_file(path_, bytes);
    expect_nothing(key_, "a damaged entry");
  }

  // Behind the first line comes the length of the fields, eight characters wide, and then the
  // fields as JSON.
  static void change_fields(Dice& dice, std::string* body) {
    constexpr size_t kWidth = 8;
    const size_t at = body->find('\n') + 1;
    std::string fields = body->substr(at + kWidth, std::stoul(body->substr(at, kWidth)));
    const size_t before = fields.size();
    for (int64_t n = dice.range(1, 3); n > 0; --n) {
      const size_t colon = fields.find(':', size_t(dice.below(int64_t(fields.size()))));
      if (colon == std::string::npos) continue;
      const size_t end = std::min(fields.find_first_of(",}]", colon), fields.size());
      fields.replace(colon + 1, end - colon - 1,
                     dice.chance(0.1f) ? deep_json(dice, dice.range(1, 200'000)) : odd_json(dice));
    }
    body->replace(at, kWidth + before, fmt::format("{:>{}}{}", fields.size(), kWidth, fields));
  }

  // The checksum is right, and what it is of is not: the parser behind it must stand that. Its
  // fields may be taken.
  void resealed(Dice& dice, const std::string& whole) {
    std::string body = whole.substr(0, whole.size() - kSealBytes);
    if (whole.substr(body.size()) != seal_of(body))
      return out_->fail("an entry no longer ends with the SHA-256 of the rest: teach the fuzzer");
    if (dice.chance(0.5f))
      damage_bytes(dice, &body);
    else
      change_fields(dice, &body);
    out_->note(fmt::format("{} bytes of {}, with a checksum", body.size(), whole.size()));
    const std::string bytes = body + seal_of(body);
    write_file(path_, bytes);
    CacheEntry entry;
    if (read(key_, &entry)) {
      ++out_->accepted;
      if (bytes.find(entry.cubin) == std::string::npos) out_->fail("a cubin from nowhere");
    }
    list();
    fs::remove(path_);  // what was taken would stay
  }

  void other_key(Dice& dice, const std::string& whole) {
    const Digest other = jit::sha256(fmt::format("another {}", dice.below(1000)));
    std::string name = path_;
    const std::string here = jit::hex(key_);
    const size_t at = name.rfind(here);
    if (at == std::string::npos) return out_->fail("an entry's name has no key");
    name.replace(at, here.size(), jit::hex(other));
    out_->note("the entry of another key");
    fs::remove(path_);
    write_file(name, whole);
    expect_nothing(other, "the entry of another key");
    fs::remove(name);
  }

  void odd_file(Dice& dice) {
    fs::remove(path_);
    out_->note(make_odd_file(dice, path_));
    expect_nothing(key_, "what is no file");
  }

  const std::string folder_;
  Outcome* out_ = nullptr;
  Digest key_{};
  std::string path_;
};

}  // namespace

std::unique_ptr<Target> make_cache(const std::string& folder) {
  return std::make_unique<Cache>(folder);
}

}  // namespace attune::fuzz
