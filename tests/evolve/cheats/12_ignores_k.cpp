// Every key is the first one.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  attune_candidate_call same = *c;
  same.k_stride[2] = 0;
  return honest::attention(&same);
}
