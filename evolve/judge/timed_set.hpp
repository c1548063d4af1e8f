// The data of a timed shape: several slots of inputs and outputs, each between canaries, so that no
// timed call sees data or addresses that an earlier one saw.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "evolve/judge/evaluation.hpp"
#include "evolve/judge/row_check.hpp"
#include "evolve/propose/dice.hpp"
#include "evolve/worker/arena.hpp"
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

// Brings these parts of the arena from where calls are computed; false when that is not possible.
using Fetch = std::function<bool(std::span<const Range>)>;
// Of each call, the row that lies farthest from what the library's own kernel computes; false when
// that is not possible.
using WorstRows = std::function<bool(std::span<const int64_t> calls, std::vector<int64_t>* rows)>;
struct Access {
  Fetch fetch;
  WorstRows worst_rows;
};

// What makes scores large in one call of every other draw, so that nothing may take timed inputs
// for N(0,1).
enum class Hard {
  even,    // by the same for every key: the weights stay, and so does the work of a call
  one_key  // one key has all of the weight, or none: who sees that may leave out work
};
void harden(Hard hard, DType dtype, std::byte* keys, int64_t rows, int64_t dim, Dice* dice);

// A number of any dtype, in its bytes.
float number_at(DType dtype, const std::byte* at);
void put_number(DType dtype, std::byte* at, float x);

// What a call writes, as it lies behind the first byte of its output: LSE comes after it.
struct Written {
  explicit Written(const Problem& problem);

  int64_t out, lse_at, lse, bytes;  // lengths of out and LSE; where LSE begins; all of it
  Range lse_of(int64_t row) const { return {lse_at + row * kLseBytes, kLseBytes}; }

  static constexpr int64_t kLseBytes = 4;
};

// The gradients that a call of the backward pass writes, as they lie behind the first byte of dq.
struct WrittenGradients {
  explicit WrittenGradients(const Problem& problem);

  int64_t dq, dk_at, dk, dv_at, dv, bytes;  // lengths; where each begins; all of it
};

class TimedData {
 public:
  virtual ~TimedData() = default;

  const TimedShape& shape() const { return shape_; }
  virtual int count() const = 0;  // of calls that a sample may have

  // So many calls, with data that no earlier call saw: what a candidate remembers is of no use the
  // next time. Their outputs are still to be poisoned, where outputs() says so.
  virtual std::vector<int64_t> draw(int calls, Hard hard, Dice* dice) = 0;
  virtual std::vector<Range> outputs(const std::vector<int64_t>& calls) const = 0;

  // Call n of those drawn is said to be done: what its output has at a few random places now must
  // be there at the end.
  virtual void glance(size_t n, Dice* dice) { (void)n, (void)dice; }

  // After these calls ran: canaries must stand, random elements of every output must have been
  // written, random rows of one output are compared with float64; `whole`: every element of every
  // output against the library's kernel, and what differs most against float64.
  struct Look {
    int rows = 2;
    bool whole = false;
  };
  virtual Fault verify(const std::vector<int64_t>& calls, const Look& look,
                       const check::Allowance& allow, const Access& access, Dice* dice) const = 0;
  virtual Fault verify_inputs(int times, const Fetch& fetch, Dice* dice) const = 0;

 protected:
  explicit TimedData(const TimedShape& shape);

  TimedShape shape_;
  int64_t size_;  // bytes of an element
  int64_t elements_q_, elements_k_, elements_v_, elements_out_;
  Written written_;
};

// In the arena itself: slots of inputs and outputs, filled anew for each draw. A child can only
// read inputs and records, and around each output are pages that it cannot touch. Of the backward
// pass, out and lse are inputs, which the library's forward pass computes here.
class TimedSet final : public TimedData {
 public:
  // `few` slots, or more where they are small, as far as `bytes` suffice; none() when not even two
  // fit. `executor` computes what whole outputs are compared with.
  TimedSet(const TimedShape& shape, const NormalPool& pool, Arena* arena, int64_t bytes, int few,
           const cpu::Executor& executor);

  bool none() const { return slots_.size() < 2; }
  int count() const override { return int(slots_.size()); }
  std::vector<int64_t> draw(int calls, Hard hard, Dice* dice) override;
  std::vector<Range> outputs(const std::vector<int64_t>&) const override { return {}; }
  void glance(size_t n, Dice* dice) override;
  Fault verify(const std::vector<int64_t>& calls, const Look& look, const check::Allowance& allow,
               const Access& access, Dice* dice) const override;
  Fault verify_inputs(int, const Fetch&, Dice*) const override { return {}; }

 private:
  struct Slot {
    int64_t call;               // offset of the ArenaCall
    int64_t q, k, v, out;       // `out`: what the call writes
    int64_t result, lse, dout;  // inputs of the backward pass
    Range around;               // the output with what lies between it and the guard pages
    bool hard;                  // its scores are large
  };
  // A tensor that a call writes, behind `out`.
  struct Piece {
    std::string name;
    Range range;
    int64_t size;  // of an element

    int64_t elements() const { return range.bytes / size; }
    int64_t draw(Dice* dice) const { return range.at + dice->below(elements()) * size; }
  };
  bool backward() const { return shape_.problem.pass == Pass::backward; }
  bool take_slot(Slot* slot);
  int64_t slot_bytes() const;
  void refresh(Slot& slot, Dice* dice);
  void finish(const Slot& slot);
  ArenaCall call_of(const Slot& slot) const;
  void poison(const Slot& slot);
  uint32_t bits_at(int64_t at, int64_t size) const;
  std::string not_written(const Slot& slot, Dice* dice) const;
  Fault compare(const Slot& slot, const Look& look, const check::Allowance& allow,
                Dice* dice) const;
  bool surroundings_stand(const Slot& slot) const;

  const NormalPool& pool_;
  Arena* arena_;
  const cpu::Executor& executor_;
  std::vector<Piece> pieces_;
  int64_t bytes_;  // of all of them, with what lies between
  std::vector<Slot> slots_;
  struct Seen {
    int64_t at, size;
    uint32_t bits;
  };
  std::vector<size_t> drawn_;  // slots
  std::vector<Seen> seen_;     // of outputs, when their calls were done
  int64_t decoy_ = -1;         // the slot that was drawn and is not called; -1: none
};

// A call of contiguous tensors; with offsets in the arena (as_offset), or with addresses. LSE lies
// behind the output (Written).
ArenaCall contiguous_call(const Problem& problem, const void* q, const void* k, const void* v,
                          void* out);
ArenaCall contiguous_call(const Problem& problem, int64_t q, int64_t k, int64_t v, int64_t out);

// The same of the backward pass.
struct BackwardPlaces {
  int64_t q, k, v, out, lse, dout, gradients;
};
ArenaCall contiguous_backward_call(const Problem& problem, const BackwardPlaces& at);

constexpr std::byte kPoison{0xff};  // as a number of any width it is NaN
bool all_poison(const std::byte* at, int64_t bytes);

// Multiplications and additions of a call (causal: of the allowed pairs), whatever its pass.
double flops_of(const Problem& problem);
double bytes_of(const Problem& problem);  // of its tensors, each once

}  // namespace attune::evolve
