#include "cli/random_data.hpp"

#include <random>

#include "src/cpu/half.hpp"

namespace attune::cli {
namespace {

template <class T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* p = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), p, p + sizeof(T));
}

}  // namespace

std::vector<std::byte> random_pattern(DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes;
  for (int i = 0; i < 65537; ++i) {
    const float value = normal(random);
    if (dtype == DType::f32) append(bytes, value);
    if (dtype == DType::f16) append(bytes, cpu::float_to_f16(value));
    if (dtype == DType::bf16) append(bytes, cpu::float_to_bf16(value));
    if (dtype == DType::boolean) append(bytes, static_cast<uint8_t>(value < 0.524f));
  }
  return bytes;
}

DType mask_dtype(MaskKind kind) {
  switch (kind) {
    case MaskKind::boolean:
      return DType::boolean;
    case MaskKind::f16:
      return DType::f16;
    case MaskKind::bf16:
      return DType::bf16;
    default:
      return DType::f32;
  }
}

}  // namespace attune::cli
