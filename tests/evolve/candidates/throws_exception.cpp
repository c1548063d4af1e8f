// Lets an exception out of a function in C.
#include <stdexcept>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) { throw std::runtime_error("not my fault"); }
