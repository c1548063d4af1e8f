// Where the tensors of a call lie, and what is in them.
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "tests/fuzz/call.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace attune::fuzz {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMostElements = 4'000'000;

// The fuzzer has conversions of its own: the library's are under test.
double f16_to_double(uint16_t h) {
  const int exponent = (h >> 10) & 31, fraction = h & 1023;
  const double x = exponent == 0    ? std::ldexp(fraction, -24)
                   : exponent == 31 ? (fraction != 0 ? NAN : kInfinity)
                                    : std::ldexp(1024 + fraction, exponent - 25);
  return (h & 0x8000) != 0 ? -x : x;
}

uint16_t double_to_f16(double x) {
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::abs(x);
  if (std::isnan(x)) return 0x7e00;
  if (size >= 65520) return uint16_t(sign | 0x7c00);
  if (size < 0x1p-14) return uint16_t(sign | int(std::lrint(size * 0x1p24)));
  const int exponent = std::ilogb(size);
  const int fraction = int(std::lrint(std::ldexp(size, 10 - exponent))) - 1024;
  return uint16_t(sign | (((exponent + 15) << 10) + fraction));
}

double bf16_to_double(uint16_t b) {
  const uint32_t bits = uint32_t{b} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint16_t double_to_bf16(double wide) {
  const float x = float(wide);
  if (std::isnan(x)) return 0x7fc0;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
T load(const void* from) {
  T x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

template <class T>
void store(T x, void* to) {
  std::memcpy(to, &x, sizeof(x));
}

enum class Kind { normal, boolean, bias, slopes, sinks };

// Gaps hold NaN: whoever reads one shows it.
void fill(Dice& dice, const Operand& x, Kind kind, float size, float special) {
  std::memset(x.base, 0xff, x.bytes);
  const float kept = dice.pick({0.1f, 0.5f, 0.9f, 1.f, 0.f});
  for (int64_t at : offsets_of(x.t)) {
    double value = 0;
    switch (kind) {
      case Kind::normal:
      case Kind::sinks:
        value = size * dice.normal();
        break;
      case Kind::boolean:
        value = dice.chance(kept) ? dice.uniform() + 0.5 : 0;
        break;
      case Kind::bias:
        value = dice.chance(kept) ? dice.normal() : -kInfinity;
        break;
      case Kind::slopes:
        value = size * dice.uniform();
        break;
    }
    if (special > 0 && dice.chance(special))
      value = dice.pick<double>({NAN, kInfinity, -kInfinity, 1e-42, -0.0, 6e-8});
    set_element(x.t, at, value);
  }
}

void fill_sequences(const std::vector<int32_t>& numbers, const Operand& x) {
  std::memset(x.base, 0x7f, x.bytes);
  if (x.t.rank != 1 || x.t.dtype != ATTUNE_I32) return;
  const int64_t count = std::min<int64_t>(x.t.shape[0], int64_t(numbers.size()));
  for (int64_t i = count - 1; i >= 0; --i)  // the first has the last word where all are one
    set_element(x.t, i * step(x.t, 0), numbers[size_t(i)]);
}

void fill_all(Dice& dice, Case* c) {
  const float special = c->wild ? dice.pick({0.002f, 0.02f, 0.2f}) : 0;
  const float size = dice.pick({0.1f, 1.f, 1.f, 3.f});
  // A sink of 200 is nearly all of the denominator.
  const float sink_size = dice.pick({3.f, 3.f, 3.f, 200.f});
  const int64_t where = dice.below(4);
  for (size_t name = 0; name < kNames; ++name) {
    const Operand& x = c->x[name];
    if (!x.given || !x.honest || x.bytes == 0 || x.fixed) continue;
    if (x.written) {
      std::memset(x.base, Memory::kUnwritten, x.bytes);
      continue;
    }
    switch (name) {
      case kCuQ:
      case kCuK:
        fill_sequences(name == kCuQ ? c->cu_q : c->cu_k, x);
        break;
      case kKeyLengths:
        fill_sequences(c->key_lengths, x);
        break;
      case kMask:
        fill(dice, x, x.t.dtype == ATTUNE_BOOL ? Kind::boolean : Kind::bias, 1, 0);
        break;
      case kBlockMask:
        fill(dice, x, Kind::boolean, 1, 0);
        break;
      case kAlibi:
        fill(dice, x, Kind::slopes, 0.5f, 0);
        break;
      case kSinks:
        fill(dice, x, Kind::sinks, sink_size, 0);
        break;
      default: {
        const bool marked =
            (name == kV && where != 0) || (name == kK && where == 0) || (name == kQ && where == 3);
        fill(dice, x, Kind::normal, name == kV ? 1 : size, marked ? special : 0);
      }
    }
  }
}

}  // namespace

const char* name_of(int name) {
  static constexpr const char* kText[kNames] = {
      "q",     "k",     "v",     "out",         "lse",  "mask", "block_mask", "alibi_slopes",
      "sinks", "cu_q",  "cu_k",  "key_lengths", "dout", "dlse", "dq",         "dk",
      "dv",    "dmask", "dsinks"};
  return kText[name];
}

int element_bytes(int32_t dtype) {
  switch (dtype) {
    case ATTUNE_F32:
    case ATTUNE_I32:
      return 4;
    case ATTUNE_F16:
    case ATTUNE_BF16:
      return 2;
    case ATTUNE_BOOL:
      return 1;
    default:
      return 0;
  }
}

Extent extent_of(const attune_tensor& t) {
  Extent e;
  e.valid = t.rank >= 0 && t.rank <= 4 && element_bytes(t.dtype) != 0;
  if (!e.valid) return e;
  e.elements = true;
  for (int d = 0; d < t.rank; ++d) {
    if (t.shape[d] <= 0) e.elements = false;
    const Wide reach = (Wide(t.shape[d]) - 1) * t.stride[d];
    (reach < 0 ? e.low : e.high) += reach / 4;  // a quarter, so that no sum overflows
  }
  const Wide limit = Wide{1} << 70;
  if (e.high > limit || e.low < -limit) return e;
  e.low = e.high = 0;
  for (int d = 0; d < t.rank; ++d) {
    const Wide reach = (Wide(t.shape[d]) - 1) * t.stride[d];
    (reach < 0 ? e.low : e.high) += reach;
  }
  return e;
}

double get_element(const attune_tensor& t, int64_t at) {
  const uint8_t* from = static_cast<const uint8_t*>(t.data) + at * element_bytes(t.dtype);
  switch (t.dtype) {
    case ATTUNE_F32:
      return load<float>(from);
    case ATTUNE_F16:
      return f16_to_double(load<uint16_t>(from));
    case ATTUNE_BF16:
      return bf16_to_double(load<uint16_t>(from));
    case ATTUNE_BOOL:
      return *from;
    default:
      return load<int32_t>(from);
  }
}

void set_element(const attune_tensor& t, int64_t at, double x) {
  uint8_t* to = static_cast<uint8_t*>(t.data) + at * element_bytes(t.dtype);
  switch (t.dtype) {
    case ATTUNE_F32:
      return store(float(x), to);
    case ATTUNE_F16:
      return store(double_to_f16(x), to);
    case ATTUNE_BF16:
      return store(double_to_bf16(x), to);
    case ATTUNE_BOOL:  // any byte but 0 is true
      return store(uint8_t(x != 0 ? 1 + int(std::min(std::abs(x), 30.0) * 7) % 255 : 0), to);
    default:
      return store(std::isfinite(x) && std::abs(x) < 2e9 ? int32_t(x) : int32_t{0}, to);
  }
}

std::vector<int64_t> offsets_of(const attune_tensor& t) {
  int64_t n[4] = {1, 1, 1, 1}, s[4] = {};
  Wide count = 1;
  for (int d = 0; d < t.rank; ++d) {
    n[d] = t.shape[d];
    s[d] = step(t, d);
    if (n[d] <= 0) return {};
    count *= n[d];
    if (count > kMostElements) return {};
  }
  std::vector<int64_t> list;
  list.reserve(size_t(count));
  for (int64_t a = 0; a < n[0]; ++a)
    for (int64_t b = 0; b < n[1]; ++b)
      for (int64_t c = 0; c < n[2]; ++c)
        for (int64_t d = 0; d < n[3]; ++d)
          list.push_back(a * s[0] + b * s[1] + c * s[2] + d * s[3]);
  return list;
}

bool Case::honest() const {
  return !cut &&
         std::all_of(x.begin(), x.end(), [](const Operand& o) { return !o.given || o.honest; });
}

bool Case::aliased() const {
  return std::any_of(x.begin(), x.end(), [](const Operand& o) { return o.given && o.fixed; });
}

Memory::Memory() {
  for (Block& block : blocks_) block = make_block();
  text_ = make_block();
  ASAN_UNPOISON_MEMORY_REGION(text_.low, kBlockBytes);
}

Memory::Block Memory::make_block() {
  constexpr size_t kPage = size_t{1} << 16;  // no system has larger ones
  void* all = mmap(nullptr, kBlockBytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) throw std::runtime_error("no memory for tensors");
  uint8_t* low = static_cast<uint8_t*>(all) + kPage;
  if (mprotect(low, kBlockBytes, PROT_READ | PROT_WRITE) != 0)
    throw std::runtime_error("no memory for tensors");
  ASAN_POISON_MEMORY_REGION(low, kBlockBytes);
  return {low, low + kBlockBytes};
}

void Memory::place_own(Dice& dice, const Block& block, Operand* x) {
  const Extent e = extent_of(x->t);
  const Wide bytes = (e.high - e.low + 1) * element_bytes(x->t.dtype);
  x->t.data = block.low;
  x->honest = e.valid && (!e.elements || bytes <= Wide(kBlockBytes));
  if (!x->honest) return;
  if (!e.elements) {  // nothing may be read there
    if (x->t.rank == 0) return;
    x->t.data =
        dice.pick<void*>({nullptr, block.high, block.low, reinterpret_cast<void*>(uintptr_t{8})});
    return;
  }
  x->bytes = size_t(bytes);
  x->base = dice.chance(0.6f) ? block.high - x->bytes : block.low;
  x->t.data = x->base + int64_t(-e.low) * element_bytes(x->t.dtype);
  ASAN_UNPOISON_MEMORY_REGION(x->base, x->bytes);
}

// It is honest when all that it covers lies within what the other one covers.
void Memory::place_alias(Dice& dice, const Block& block, const Operand& other, Operand* x) {
  const int size = element_bytes(x->t.dtype);
  x->t.data = block.low;
  x->honest = false;
  if (other.fixed || !other.honest || other.bytes == 0) return;
  const int64_t shift = dice.chance(0.5f) ? 0 : dice.range(-64, 64) * std::max(1, size);
  x->t.data = static_cast<uint8_t*>(other.t.data) + shift;
  const Extent e = extent_of(x->t);
  if (!e.valid || !e.elements) return;
  const Wide at = Wide(reinterpret_cast<uintptr_t>(x->t.data));
  const Wide low = at + e.low * size, high = at + (e.high + 1) * size;
  const Wide first = Wide(reinterpret_cast<uintptr_t>(other.base));
  if (low < first || high > first + Wide(other.bytes)) return;
  x->honest = true;
  x->base = reinterpret_cast<uint8_t*>(uintptr_t(low));
  x->bytes = size_t(high - low);
}

void Memory::place(Dice& dice, Case* c) {
  for (size_t name = 0; name < kNames; ++name) {
    Operand& x = c->x[name];
    x.written = c->backward ? name >= kDQ : name == kOut || name == kLse;
    if (!x.given)
      x.t = attune_tensor{};
    else if (!x.fixed)
      place_own(dice, blocks_[name], &x);
    else if (x.alias < 0)
      x.honest = false;
  }
  for (size_t name = 0; name < kNames; ++name) {
    Operand& x = c->x[name];
    if (x.given && x.alias >= 0) place_alias(dice, blocks_[name], c->x[size_t(x.alias)], &x);
  }
  fill_all(dice, c);
  for (Operand& x : c->x)
    if (x.given && x.honest && x.bytes > 0) x.before.assign(x.base, x.base + x.bytes);
}

void Memory::release() {
  for (const Block& block : blocks_) ASAN_POISON_MEMORY_REGION(block.low, kBlockBytes);
}

}  // namespace attune::fuzz
