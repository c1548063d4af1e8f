// The control once more, under another name and with another comment: the same binary.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) { return honest::attention(c); }
