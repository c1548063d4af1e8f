// One case of the C ABI: the arguments of a call, and the memory behind them.
#pragma once

#include <attune/attune.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/fuzz/target.hpp"

namespace attune::fuzz {

__extension__ typedef __int128 Wide;  // no product of two int64 leaves it

enum Name {
  kQ,
  kK,
  kV,
  kOut,
  kLse,
  kMask,
  kBlockMask,
  kAlibi,
  kSinks,
  kCuQ,
  kCuK,
  kKeyLengths,
  kDOut,
  kDLse,
  kDQ,
  kDK,
  kDV,
  kDMask,
  kDSinks,
  kNames
};
constexpr int kLastOfForward = kKeyLengths;
const char* name_of(int name);

int element_bytes(int32_t dtype);  // 0: no such dtype

// What a tensor covers, in elements from its data pointer. Broken ranks cover nothing.
struct Extent {
  bool valid = false;     // rank and dtype exist
  bool elements = false;  // no dimension is 0 or below
  Wide low = 0, high = 0;
};
Extent extent_of(const attune_tensor& t);

double get_element(const attune_tensor& t, int64_t at);
void set_element(const attune_tensor& t, int64_t at, double x);

// A tensor of rank 0 that has data is one number.
inline bool given(const attune_tensor& t) { return t.rank != 0 || t.data != nullptr; }

// The stride that counts: that of a dimension of one is never used.
inline int64_t step(const attune_tensor& t, int d) { return t.shape[d] > 1 ? t.stride[d] : 0; }

// Where every element lies, in order. Empty for more than four million.
std::vector<int64_t> offsets_of(const attune_tensor& t);

struct Operand {
  attune_tensor t{};
  bool given = false;
  bool written = false;  // by the call
  bool fixed = false;    // data was chosen by a mutation
  int alias = -1;        // data lies in the memory of this operand
  bool honest = true;    // the memory that the tensor describes is there
  uint8_t* base = nullptr;
  size_t bytes = 0;
  std::vector<uint8_t> before;  // what the memory held before the calls

  int64_t first_byte() const { return static_cast<uint8_t*>(t.data) - base; }
};

struct Case {
  attune_args args{};
  attune_backward_args grads{};
  std::array<Operand, kNames> x;
  bool backward = false, ragged = false, hostile = false;
  bool wild = false;   // NaN, Inf and denormal numbers among q, k and v
  bool sized = false;  // struct_size was changed
  bool cut = false;    // and ends within a field
  std::vector<int32_t> cu_q, cu_k, key_lengths;
  std::string notes;
  std::string user_code;

  bool honest() const;
  bool aliased() const;
};

// A valid call of about `work` multiplications at most.
void make_call(Dice& dice, int64_t work, Case* c);
// One change for the worse; it may leave the call valid.
void mutate_call(Dice& dice, Case* c);

// Memory between two pages that cannot be touched; one block for each operand, and one for text.
constexpr size_t kBlockBytes = size_t{1} << 20;
class Memory {
 public:
  Memory();
  // Gives every operand its memory, flush with one of the pages, and fills it: gaps between the
  // elements of an input hold NaN, outputs hold kUnwritten.
  void place(Dice& dice, Case* c);
  void release();  // for the address sanitizer: nothing may be touched now
  uint8_t* text_end() const { return text_.high; }  // kBlockBytes of text end here

  static constexpr uint8_t kUnwritten = 0xa5;

 private:
  struct Block {
    uint8_t *low, *high;
  };
  static Block make_block();
  void place_own(Dice& dice, const Block& block, Operand* x);
  void place_alias(Dice& dice, const Block& block, const Operand& other, Operand* x);
  std::array<Block, kNames> blocks_;
  Block text_;
};

}  // namespace attune::fuzz
