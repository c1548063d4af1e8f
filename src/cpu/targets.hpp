// Which of Highway's instruction sets the fused kernels are compiled for. Before any of its
// headers.
#pragma once

// SSSE3 buys nothing over SSE4 here, and SVE's sizeless vectors cannot stand in arrays of
// accumulators.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
