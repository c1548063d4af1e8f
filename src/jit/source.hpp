// The source text of a kernel: the embedded headers, and the one translation unit that a spec
// becomes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/jit/sha256.hpp"
#include "src/rungs/plan.hpp"

namespace attune::jit {

struct Header {
  const char* name;  // as it is included from the translation unit: "tile/number.h"
  const char* text;
};

// As they stand in kernels/; made by the build.
extern const Header kEmbedded[];
extern const size_t kEmbeddedCount;

// The compiler's view of the headers. NVRTC looks headers up by the very text of the #include, so
// every include of ours is written from the root here.
struct Headers {
  std::vector<std::string> names, texts;
  std::vector<Digest> digests;
  std::vector<std::vector<size_t>> includes;  // what each one includes itself
};
const Headers& headers();

// The headers that a text includes, directly or through others, in ascending order. An include
// inside a condition counts.
std::vector<size_t> included_headers(std::string_view text);

// `text` of the header `name` with the includes of `known` headers written from the root.
std::string root_includes(const std::string& name, std::string_view text,
                          const std::vector<std::string>& known);

// The translation unit's name in compiler messages, and those of the caller's parts.
inline constexpr const char* kUnitName = "attune_kernel.cu";
inline constexpr const char* kScoreModName = "score_mod";
inline constexpr const char* kMaskModName = "mask_mod";

// Deterministic: equal specs give equal text. The number of multiprocessors is left out: no kernel
// depends on it, and cards of one kind share their cache.
std::string emit(const KernelSpec& spec);

// The kernels in the translation unit.
std::vector<const char*> entries(const KernelSpec& spec);

// A number for hash tables.
size_t hash_of(const KernelSpec& spec);

}  // namespace attune::jit
