// SHA-256 (FIPS 180-4): names of cache entries, and their checksums.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace attune::jit {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void add(std::string_view bytes);
  // The length goes first, so that two fields in a row cannot be cut in another place.
  void add_field(std::string_view bytes);
  Digest finish();

 private:
  void block(const uint8_t* data);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_ = {};
  uint64_t length_ = 0;  // bytes so far
};

Digest sha256(std::string_view bytes);
std::string hex(const Digest& digest);

}  // namespace attune::jit
