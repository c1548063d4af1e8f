// Each call finishes the one before it.
#include "honest.h"
static attune_candidate_call before;
static bool any;
int attune_candidate(const attune_candidate_call* c) {
  if (any) honest::attention(&before);
  before = *c;
  any = true;
  return 0;
}
