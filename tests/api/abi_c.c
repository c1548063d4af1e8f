/* The C ABI as a C program calls it. */
#include "tests/api/abi_c.h"

#include <attune/attune.h>
#include <math.h>
#include <stdio.h>

static attune_tensor rows(float* data, int64_t count, int64_t dim) {
  attune_tensor t = {data, ATTUNE_F32, 4, {1, 1, count, dim}, {count * dim, count * dim, dim, 1}};
  return t;
}

static int fail(const char* what, char* message, size_t size) {
  snprintf(message, size, "%s: %s", what, attune_last_error());
  return 1;
}

/* One query and two keys, small enough to be worked out by hand: scores 0 and log(3), so weights
 * 1/4 and 3/4. */
int attune_test_from_c(char* message, size_t size) {
  float q[1] = {1}, k[2] = {0, logf(3.0f)}, v[2] = {4, 8}, out[1] = {0};
  float dout[1] = {1}, dv[2] = {0, 0};
  attune_args args;
  if (attune_args_init(&args, sizeof(args)) != ATTUNE_OK) return fail("init", message, size);
  args.q = rows(q, 1, 1);
  args.k = rows(k, 2, 1);
  args.v = rows(v, 2, 1);
  args.out = rows(out, 1, 1);
  if (attune_forward(&args) != ATTUNE_OK) return fail("forward", message, size);
  if (fabsf(out[0] - 7.0f) > 1e-5f) {
    snprintf(message, size, "forward: out is %g, expected 7", (double)out[0]);
    return 1;
  }

  attune_backward_args backward;
  if (attune_backward_args_init(&backward, sizeof(backward)) != ATTUNE_OK)
    return fail("backward init", message, size);
  backward.forward = &args;
  backward.dout = rows(dout, 1, 1);
  backward.dv = rows(dv, 2, 1);
  if (attune_backward(&backward) != ATTUNE_OK) return fail("backward", message, size);
  if (fabsf(dv[0] - 0.25f) > 1e-6f || fabsf(dv[1] - 0.75f) > 1e-6f) {
    snprintf(message, size, "backward: dv is %g, %g, expected 0.25, 0.75", (double)dv[0],
             (double)dv[1]);
    return 1;
  }

  args.q.rank = 2;
  if (attune_forward(&args) != ATTUNE_INVALID_ARGUMENT)
    return fail("a wrong rank was not refused", message, size);
  return 0;
}
