// The last element of each row is left as it was.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  attune_candidate_call narrow = *c;
  if (narrow.dim_v > 1) --narrow.dim_v;
  return honest::attention(&narrow);
}
