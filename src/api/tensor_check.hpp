// Checks of one tensor, and of the memory that the tensors of a call share.
#pragma once

#include <array>
#include <initializer_list>
#include <locale>
#include <sstream>
#include <string>

#include "src/api/validate.hpp"

#define ATTUNE_TRY(expression)                                        \
  do {                                                                \
    if (Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

namespace attune {

// The parts one after another, whatever the program's global locale does to numbers.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return out.str();
}

inline bool given(const attune_tensor& t) { return t.data != nullptr || t.rank != 0; }

bool has_elements(const attune_tensor& t);

// The stride to compute with: 0 where the caller's own is meaningless, since no second element is
// reached by it.
int64_t step(const attune_tensor& t, int axis);

int64_t element_size(int32_t dtype);  // 0 when the dtype is unknown
std::string dtype_name(int32_t dtype);

constexpr int64_t kAnySize = -1;

// The size that a dimension must have, and where it comes from: an axis of a tensor, or (axis < 0)
// something said in words.
struct Dim {
  int64_t size;
  const char* origin;
  int axis = -1;
};

struct Shape {
  int rank = 0;
  Dim dims[4] = {};
};

// Rank, sizes that are not negative and whose product fits, and every dimension as wanted.
Status check_shape(const char* name, const attune_tensor& t, const Shape& want);

// The same for a tensor that broadcasts to `want` as in NumPy: aligned at the last dimension, each
// size equal or 1.
Status check_broadcast(const char* name, const attune_tensor& t, const Shape& want);

Status check_dtype(const char* name, const attune_tensor& t,
                   std::initializer_list<attune_dtype> allowed);

enum class Access { read, write };
enum class LastStride { one, any };

// The bytes behind the tensors of one call. Shapes and dtypes are checked before a tensor comes
// here.
class Memory {
 public:
  explicit Memory(Pointers pointers) : pointers_(pointers) {}

  // Strides, pointer and address range of one tensor; what is written may not overlap itself.
  Status add(const char* name, const attune_tensor& t, Access access, LastStride last_stride);

  // Nothing that is written shares a byte with anything else.
  Status check_overlaps() const;

  // Whose memory it is, argument by argument; returns how many.
  int places(std::array<Place, kMostPlaces>* list) const;

  bool shapes_only() const { return shapes_only_; }

 private:
  struct Axis {
    uint64_t stride;  // bytes
    uint64_t last;    // highest index
  };
  struct Region {
    const char* name;
    Access access;
    uint64_t first, last;      // byte addresses
    std::array<Axis, 5> axes;  // longest stride first; one of them: the bytes of an element
    int axis_count;

    void add(Axis axis);
  };

  static bool overlaps_itself(const Region& r);
  static bool overlap(const Region& a, const Region& b);
  static bool reaches(const Axis* axes, int count, uint64_t target, int* budget);

  Pointers pointers_;
  std::array<Region, kMostPlaces> regions_;
  int count_ = 0;
  bool shapes_only_ = false;
};

}  // namespace attune
