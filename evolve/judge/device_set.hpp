// The data of a timed shape on a device with memory of its own. A pool of numbers is sent there
// once; every call reads from places of it that no other call read from, and what comes back is a
// few rows.
#pragma once

#include <vector>

#include "evolve/judge/timed_set.hpp"

namespace attune::evolve {

// Numbers of one dtype in the arena, and the parent's own copy of them. Behind those that are drawn
// there is room for `hard_bytes` of keys that make scores large.
class DevicePool {
 public:
  DevicePool(DType dtype, int64_t bytes, int64_t hard_bytes, Arena* arena, Dice* dice);

  bool fits() const { return at_ >= 0; }
  Range range() const { return {at_, int64_t(bytes_.size())}; }
  const std::byte* own(int64_t offset) const { return bytes_.data() + (offset - at_); }
  // Somewhere in the pool, `bytes` long: parts of it take turns, so that what the last calls left
  // in a cache is not what the next one reads.
  int64_t draw(int64_t bytes, Dice* dice);
  // Keys for one shape, to be made before the pool is sent; -1: there is no room.
  int64_t hard_keys(Hard hard, int64_t rows, int64_t dim, Dice* dice);
  // The bytes that they take.
  static int64_t hard_bytes(const Problem& problem);

 private:
  DType dtype_;
  Arena* arena_;
  int64_t at_ = -1;
  int64_t plain_ = 0;  // bytes of what is drawn; hard keys begin behind it
  int64_t used_ = 0;   // of all
  std::vector<std::byte> bytes_;
  int64_t turn_ = 0;
};

class DeviceSet final : public TimedData {
 public:
  // Outputs lie in `outputs`, which shapes share: one for each call of a sample, since what another
  // call writes over cannot be looked at.
  DeviceSet(const TimedShape& shape, DevicePool* pool, Arena* arena, Range outputs, Dice* dice);

  bool fits() const { return calls_.size() >= 2 && hard_[0] >= 0 && hard_[1] >= 0; }
  int64_t call() const { return calls_[0].at; }

  int count() const override { return int(calls_.size()); }
  std::vector<int64_t> draw(int calls, Hard hard, Dice* dice) override;
  std::vector<Range> outputs(const std::vector<int64_t>& calls) const override;
  Fault verify(const std::vector<int64_t>& calls, const Look& look, const check::Allowance& allow,
               const Access& access, Dice* dice) const override;
  Fault verify_inputs(int times, const Fetch& fetch, Dice* dice) const override;

 private:
  struct Call {
    int64_t at, out;  // of the ArenaCall, and of the output, which lies between canaries
    int64_t q = 0, k = 0, v = 0;
    bool hard = false;  // its scores are large
  };
  const Call& call_at(int64_t at) const;
  ArenaCall own_call(const Call& call) const;
  static check::Fill fill_of(const Call& call) {
    return call.hard ? check::Fill::huge_logits : check::Fill::normal;
  }
  Fault verify_worst(const std::vector<int64_t>& calls, const check::Allowance& allow,
                     const Access& access) const;
  void add_row(const Call& call, const RowCheck::Place& place, std::vector<Range>* ranges) const;
  std::vector<Range> canaries_of(const Call& call) const;

  DevicePool* pool_;
  Arena* arena_;
  std::vector<Call> calls_;
  std::array<int64_t, 2> hard_;  // keys, by Hard
};

}  // namespace attune::evolve
