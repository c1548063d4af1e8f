// What a GPU can do at most, from its data sheet's facts.
#pragma once

namespace attune::evolve {

// Multiplications and additions of a multiprocessor in a cycle, at most: of its tensor cores
// (16-bit operands), and of its other units (float32).
double tensor_flops_a_cycle(int cc);
double fma_flops_a_cycle(int cc);

}  // namespace attune::evolve
