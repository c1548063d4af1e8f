// Runs kernels on a CPU: one block after the other, its threads as fibers. Threads go on in an
// order that is drawn anew each round, and asynchronous work is done as early or as late as a wait
// allows, at random: a missing barrier or wait shows as a wrong result.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace attune::emulator {

struct Launch {
  unsigned blocks = 1, rows = 1;  // of the grid
  unsigned threads = 1;
  unsigned shared_bytes = 0;
  std::function<void(class Machine*)> bind;  // tells the kernel's object who runs it
  std::function<void()> kernel;              // of one thread
};

// A tensor map, in the 128 bytes that a kernel gets.
struct TensorMapBits {
  void* data;
  uint64_t strides[4];  // bytes, of all dimensions but the first
  uint32_t sizes[5], box[5];
  uint8_t rank, element_bytes, swizzle_bytes;
};

class Gpu {
 public:
  explicit Gpu(unsigned seed);
  ~Gpu();
  // Empty: the grid ended. Else why it did not.
  std::string run(const Launch& launch);

 private:
  class Block;
  std::unique_ptr<Block> block_;
};

}  // namespace attune::emulator
