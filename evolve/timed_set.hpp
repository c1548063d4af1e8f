// The data of a timed shape: several slots of inputs and outputs, each between canaries, so that no
// timed call sees data or addresses that an earlier one saw.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "evolve/dice.hpp"
#include "evolve/evaluation.hpp"
#include "evolve/worker.hpp"
#include "src/check/judge.hpp"
#include "src/cpu/pool.hpp"

namespace attune::evolve {

// N(0,1) in the bytes of a dtype, a few MB of them; slots are filled from random places of it.
class NormalPool {
 public:
  NormalPool(DType dtype, uint64_t seed);
  void fill(std::byte* to, int64_t elements, Dice* dice) const;

 private:
  int64_t size_;  // bytes of an element
  std::vector<std::byte> bytes_;
};

struct Fault {
  bool cheated = false;  // canaries or inputs; else the result is wrong
  std::string why;       // empty: nothing is wrong
};

// Brings these parts of the arena from where calls are computed; false when that is not possible.
using Fetch = std::function<bool(std::span<const Range>)>;

class TimedData {
 public:
  virtual ~TimedData() = default;

  const TimedShape& shape() const { return shape_; }
  virtual int count() const = 0;  // of calls that a sample may have

  // So many calls, with data that no earlier call saw: what a candidate remembers is of no use the
  // next time. Their outputs are still to be poisoned, where outputs() says so.
  virtual std::vector<int64_t> draw(int calls, Dice* dice) = 0;
  virtual std::vector<Range> outputs(const std::vector<int64_t>& calls) const = 0;

  // After these calls ran. Random elements of every output must have been written, random rows of
  // one are held against float64, canaries must stand.
  virtual Fault verify(const std::vector<int64_t>& calls, int rows, const check::Allowance& allow,
                       const Fetch& fetch, Dice* dice) const = 0;
  virtual Fault verify_inputs(int times, const Fetch& fetch, Dice* dice) const = 0;

 protected:
  explicit TimedData(const TimedShape& shape);

  // A row by its place in the output, and what was computed for it.
  struct Row {
    int64_t b, h, i;
    const std::byte* out;
  };
  Row draw_row(Dice* dice) const;
  int64_t first_of(const Row& row) const;  // its first element in the output
  // Rows against float64, from the parent's own copy of the inputs.
  Fault verify_rows(const std::vector<Row>& rows, const std::byte* q, const std::byte* k,
                    const std::byte* v, const check::Allowance& allow) const;

  TimedShape shape_;
  int64_t size_;  // bytes of an element
  int64_t elements_q_, elements_k_, elements_v_, elements_out_;
};

// In the arena itself: slots of inputs and outputs, filled anew for each draw.
class TimedSet final : public TimedData {
 public:
  // `few` slots, or more where they are small, as far as `bytes` suffice; none() when not even two
  // fit.
  TimedSet(const TimedShape& shape, const NormalPool& pool, Arena* arena, int64_t bytes, int few,
           Dice* dice);

  bool none() const { return slots_.size() < 2; }
  int count() const override { return int(slots_.size()); }
  std::vector<int64_t> draw(int calls, Dice* dice) override;
  std::vector<Range> outputs(const std::vector<int64_t>&) const override { return {}; }
  Fault verify(const std::vector<int64_t>& calls, int rows, const check::Allowance& allow,
               const Fetch& fetch, Dice* dice) const override;
  Fault verify_inputs(int times, const Fetch& fetch, Dice* dice) const override;

 private:
  struct Slot {
    int64_t call;  // offset of the ArenaCall
    int64_t q, k, v, out;
    std::vector<std::byte> inputs;  // what the parent wrote, of q, k and v
  };
  int64_t place(int64_t elements);
  void refresh(Slot* slot, Dice* dice);
  bool canaries_stand(const Slot& slot) const;

  const NormalPool& pool_;
  Arena* arena_;
  std::vector<Slot> slots_;
};

// A call of contiguous tensors at these offsets in the arena.
ArenaCall contiguous_call(const Problem& problem, int64_t q, int64_t k, int64_t v, int64_t out);

constexpr std::byte kPoison{0xff};  // as a number of any width it is NaN
bool all_poison(const std::byte* at, int64_t bytes);

// Multiplications and additions of a call (causal: of the allowed pairs).
double flops_of(const Problem& problem);
double bytes_of(const Problem& problem);  // of its tensors, each once

}  // namespace attune::evolve
