// The data of a timed shape on a device with memory of its own. A pool of numbers is sent there
// once; every call reads from places of it that no other call read from, and what comes back is a
// few rows.
#pragma once

#include <vector>

#include "evolve/judge/timed_set.hpp"

namespace attune::evolve {

// Numbers of one dtype in the arena, and the parent's own copy of them.
class DevicePool {
 public:
  DevicePool(DType dtype, int64_t bytes, Arena* arena, Dice* dice);

  bool fits() const { return at_ >= 0; }
  Range range() const { return {at_, int64_t(bytes_.size())}; }
  const std::byte* own(int64_t offset) const { return bytes_.data() + (offset - at_); }
  // Somewhere in the pool, `bytes` long: parts of it take turns, so that what the last calls left
  // in a cache is not what the next one reads.
  int64_t draw(int64_t bytes, Dice* dice);

 private:
  Arena* arena_;
  int64_t at_ = -1;
  std::vector<std::byte> bytes_;
  int64_t turn_ = 0;
};

class DeviceSet final : public TimedData {
 public:
  // Outputs lie in `outputs`, which shapes share: one for each call of a sample, since what another
  // call writes over cannot be looked at.
  DeviceSet(const TimedShape& shape, DevicePool* pool, Arena* arena, Range outputs);

  bool fits() const { return calls_.size() >= 2; }
  int64_t call() const { return calls_[0].at; }

  int count() const override { return int(calls_.size()); }
  std::vector<int64_t> draw(int calls, Dice* dice) override;
  std::vector<Range> outputs(const std::vector<int64_t>& calls) const override;
  Fault verify(const std::vector<int64_t>& calls, const Look& look, const check::Allowance& allow,
               const Access& access, Dice* dice) const override;
  Fault verify_inputs(int times, const Fetch& fetch, Dice* dice) const override;

 private:
  struct Call {
    int64_t at, out;  // of the ArenaCall, and of the output, which lies between canaries
    int64_t q = 0, k = 0, v = 0;
  };
  const Call& call_at(int64_t at) const;
  ArenaCall own_call(const Call& call) const;
  Fault verify_worst(const std::vector<int64_t>& calls, const check::Allowance& allow,
                     const Access& access) const;
  void add_row(const Call& call, const RowCheck::Place& place, std::vector<Range>* ranges) const;
  std::vector<Range> canaries_of(const Call& call) const;

  DevicePool* pool_;
  Arena* arena_;
  std::vector<Call> calls_;
};

}  // namespace attune::evolve
