/* Calls the C ABI from C: 0, or not 0 and what went wrong in words. */
#ifndef ATTUNE_TESTS_API_ABI_C_H
#define ATTUNE_TESTS_API_ABI_C_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

int attune_test_from_c(char* message, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* ATTUNE_TESTS_API_ABI_C_H */
