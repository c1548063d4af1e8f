// Memory that stays with its thread, since a fresh allocation a task would page-fault its way
// through.
#pragma once

#include <cstddef>

namespace attune::cpu {

// At least so many bytes, aligned to a page; nullptr: no memory. The thread's next call may move
// them.
void* thread_scratch(size_t bytes);

}  // namespace attune::cpu
