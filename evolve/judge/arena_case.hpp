// A correctness case in shared memory: its tensors travel to the worker with their canaries, and
// back to the judge. Of the backward pass, out and lse come from the library's forward pass.
#pragma once

#include <optional>
#include <vector>

#include "evolve/compile/contract.hpp"
#include "evolve/judge/row_check.hpp"
#include "evolve/propose/dice.hpp"
#include "evolve/worker/arena.hpp"
#include "src/check/gradients.hpp"

namespace attune::evolve {

// Small shapes that are hard to get right, fresh with every draw: single rows, odd lengths, tails,
// Sq != Sk under both alignments, groups of heads, logits of 1e4, weights on one key, rows without
// any key. `base` gives dtype, head dimensions and features. `contract` is the program's, none for
// configs: only what it knows is asked. With run_attention, `causal` is drawn too, and other head
// dimensions where the contract has them.
std::vector<check::Case> small_cases(const Problem& base, Contract contract, Dice* dice);

// A timed shape with inputs that are hard to get right, one case for each kind, and a longer one.
// Large shapes have fewer heads here, and of the backward pass fewer rows where they have many:
// all of it is compared with float64. None for problems beyond candidate.h.
std::vector<check::Case> large_cases(const Problem& timed, Contract contract, Dice* dice);

// Whether a program of this contract can be asked for the case.
bool in_contract(const check::Case& c, Contract contract, Language language);

class ArenaCase {
 public:
  // Copies the case's tensors into the arena. The case must live as long.
  ArenaCase(const check::Case& c, Arena* arena);
  ArenaCase(const ArenaCase&) = delete;
  ArenaCase& operator=(const ArenaCase&) = delete;

  bool fits() const { return call_ >= 0; }
  const std::string& broken() const { return broken_; }  // why there are no inputs; else empty
  int64_t call() const { return call_; }                 // the offset of its ArenaCall

  // Fresh poison in the outputs, the inputs as they were: for a second run.
  void poison();

  // After the run: what the candidate left, judged against the reference, which is computed now.
  struct Judgement {
    bool damaged = false;  // canaries, gaps or inputs: `why` says which
    check::Verdict verdict;
  };
  Judgement judge(const cpu::Executor& executor, const check::Allowance& allow = {});

  // The same of a large case: a few rows by the reference, all by the library's own kernel; of the
  // backward pass all by the reference.
  Fault judge_whole(const cpu::Executor& executor, const check::Allowance& allow, int rows,
                    Dice* dice);

  // The bytes of the outputs, for comparing two runs.
  std::vector<uint8_t> outputs() const;

 private:
  struct Placed {
    check::Tensor* tensor;
    int64_t offset;
    std::vector<uint8_t> fresh;  // of an output: its poison
    bool written() const { return !fresh.empty(); }
  };
  bool make_gradients();
  bool place(check::Tensor* tensor, bool written);
  template <class T>
  T* moved(T* pointer) const;
  ArenaCall record() const;
  std::string take_back();

  check::Data data_;
  std::optional<check::Gradients> gradients_;  // of a backward pass
  std::vector<uint64_t> hashes_, more_hashes_;
  Arena* arena_;
  std::vector<Placed> placed_;
  int64_t call_ = -1;
  std::string broken_;
};

}  // namespace attune::evolve
