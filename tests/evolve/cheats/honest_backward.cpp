// The control of the backward pass: it must pass.
#include "honest_backward.h"
int attune_candidate_backward(const honest::Call* c) { return honest::backward(c); }
