/* The C ABI from C: with equal keys every weight is the same, so a causal row is the mean of the
 * values up to it. */
#include <attune/attune.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEQ = 5, DIM = 3 };

static attune_tensor tensor(float* data) {
  attune_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = ATTUNE_F32;
  t.rank = 4;
  t.shape[0] = t.shape[1] = 1;
  t.shape[2] = SEQ;
  t.shape[3] = DIM;
  t.stride[0] = t.stride[1] = SEQ * DIM;
  t.stride[2] = DIM;
  t.stride[3] = 1;
  return t;
}

int main(void) {
  float q[SEQ * DIM], k[SEQ * DIM], v[SEQ * DIM], out[SEQ * DIM];
  double worst = 0, sum[DIM] = {0};
  attune_args args;
  int i;
  for (i = 0; i < SEQ * DIM; ++i) {
    q[i] = (float)i;
    k[i] = 0.25f;
    v[i] = (float)(i * i);
  }
  if (attune_args_init(&args, sizeof args) != ATTUNE_OK) return 1;
  args.q = tensor(q);
  args.k = tensor(k);
  args.v = tensor(v);
  args.out = tensor(out);
  args.causal = 1;
  if (attune_forward(&args) != ATTUNE_OK) {
    printf("attune_forward: %s\n", attune_last_error());
    return 1;
  }
  for (i = 0; i < SEQ * DIM; ++i) {
    sum[i % DIM] += v[i];
    worst = fmax(worst, fabs(sum[i % DIM] / (i / DIM + 1) - out[i]));
  }
  printf("attune %s from C: ABI %d, worst error %.2g\n", attune_version(),
         (int)attune_abi_version(), worst);
  if (!(worst < 1e-4) || attune_abi_version() != ATTUNE_ABI_VERSION) return 1;

  args.q.data = NULL;
  if (attune_forward(&args) != ATTUNE_INVALID_ARGUMENT || strlen(attune_last_error()) == 0) {
    printf("a null pointer was accepted\n");
    return 1;
  }
  return 0;
}
