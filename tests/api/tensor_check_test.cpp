#include "src/api/tensor_check.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>

namespace attune {
namespace {

// Two small views somewhere in the same memory, with strides as they come.
class RandomViews {
 public:
  explicit RandomViews(uint32_t seed) : random_(seed) {}

  attune_tensor next(int rank) {
    const attune_dtype dtype = random_() % 2 == 0 ? ATTUNE_F16 : ATTUNE_F32;
    attune_tensor t{nullptr, dtype, rank, {}, {}};
    t.data = memory_ + pick(100, 140) * element_size(dtype);
    for (int axis = 0; axis < rank; ++axis) {
      t.shape[axis] = pick(1, 4);
      t.stride[axis] = pick(-6, 6);
    }
    return t;
  }

 private:
  int64_t pick(int64_t least, int64_t most) {
    return least + int64_t(random_() % uint64_t(most - least + 1));
  }

  std::mt19937 random_;
  alignas(4) char memory_[4096] = {};  // never read: only addresses count
};

// Every byte of the view by address, and whether two elements share one.
struct Bytes {
  explicit Bytes(const attune_tensor& t) { walk(t, 0, static_cast<const char*>(t.data)); }

  void walk(const attune_tensor& t, int axis, const char* at) {
    const int64_t size = element_size(t.dtype);
    if (axis == t.rank) {
      for (int64_t i = 0; i < size; ++i) shared |= !addresses.insert(at + i).second;
      return;
    }
    for (int64_t i = 0; i < t.shape[axis]; ++i) walk(t, axis + 1, at + i * t.stride[axis] * size);
  }

  bool meets(const Bytes& other) const {
    for (const char* address : addresses)
      if (other.addresses.contains(address)) return true;
    return false;
  }

  std::set<const char*> addresses;
  bool shared = false;
};

TEST(TensorCheck, OverlapIsFoundExactly) {
  RandomViews views(7);
  int overlapping = 0, apart = 0;
  for (int round = 0; round < 4000; ++round) {
    const attune_tensor a = views.next(1 + round % 3), b = views.next(1 + round / 3 % 3);
    const Bytes bytes_a(a), bytes_b(b);
    Memory memory(Pointers::required);
    ASSERT_TRUE(memory.add("b", b, Access::read, LastStride::any).ok());
    const Status itself = memory.add("a", a, Access::write, LastStride::any);
    // Strides that interleave without sharing may be refused; strides that share must be.
    if (bytes_a.shared) {
      ASSERT_FALSE(itself.ok());
    }
    if (!itself.ok()) continue;
    const bool meet = bytes_a.meets(bytes_b);
    ASSERT_EQ(memory.check_overlaps().ok(), !meet) << round;
    ++(meet ? overlapping : apart);
  }
  EXPECT_GT(overlapping, 200);
  EXPECT_GT(apart, 200);
}

TEST(TensorCheck, InputsMayShareMemory) {
  RandomViews views(8);
  const attune_tensor t = views.next(3);
  Memory memory(Pointers::required);
  ASSERT_TRUE(memory.add("a", t, Access::read, LastStride::any).ok());
  ASSERT_TRUE(memory.add("b", t, Access::read, LastStride::any).ok());
  EXPECT_TRUE(memory.check_overlaps().ok());
}

// A check that forgets its bound would write over what lies behind the list.
TEST(TensorCheck, MoreTensorsThanACallHasAreRefused) {
  RandomViews views(9);
  Memory memory(Pointers::required);
  for (size_t n = 0; n < kMostPlaces; ++n)
    ASSERT_TRUE(memory.add("a", views.next(3), Access::read, LastStride::any).ok());
  const Status status = memory.add("last", views.next(3), Access::read, LastStride::any);
  EXPECT_EQ(status.code, ATTUNE_INTERNAL);
  EXPECT_NE(status.message.find("last is one tensor more"), std::string::npos) << status.message;
  std::array<Place, kMostPlaces> places;
  EXPECT_EQ(memory.places(&places), int(kMostPlaces));
  EXPECT_STREQ(places.back().name, "a");
}

TEST(TensorCheck, RanksThatNobodyCheckedAreRefused) {
  RandomViews views(10);
  for (const int rank : {-1, 5, 1000}) {
    attune_tensor t = views.next(3);
    t.rank = rank;
    Memory memory(Pointers::required);
    EXPECT_EQ(memory.add("a", t, Access::read, LastStride::any).code, ATTUNE_INTERNAL) << rank;
  }
}

}  // namespace
}  // namespace attune
