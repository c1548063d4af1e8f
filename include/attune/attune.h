/* Attune: fused attention kernels. The C ABI.
 *
 * One definition of attention, the same on every backend:
 *
 *   score(b,h,i,j) = softcap(scale * q.k) + bias + alibi
 *   out(b,h,i,:)   = softmax over the allowed j of score, times V
 *
 * A key j is allowed for row i when it lies inside the sequence and the causal limit, the window,
 * the boolean mask and the block mask all let it through. A row without an allowed key gives out =
 * 0 and lse = -inf (with a sink: lse = sink, which then is all of the denominator); what stands in
 * keys that are not allowed (NaN included) never reaches the result.
 *
 * Ranges: everything but the float64 reference computes in float32. The fused rung adds up weight *
 * V before it divides by the sum of the weights, and weights are up to 256: |V| * 256 * Sk should
 * stay below 3e38, or the result may be Inf.
 *
 * What holds for every function:
 * - Every function returns an attune_status; attune_last_error() has the reason in words, for the
 * calling thread.
 * - Arguments are checked before any work. A call that fails has written nothing, but
 *   for ATTUNE_OUT_OF_MEMORY and a parallel_for hook that fails, in the middle of the work: the
 *   outputs are then incomplete.
 * - The CPU computes in the default floating-point mode (round to nearest, denormals kept),
 *   whatever the mode of the calling thread or of a hook's threads is; theirs are as before
 *   afterwards. The default scale alone is rounded as the calling thread rounds.
 * - Every function may be called from many threads at once. Calls do not share state, but for the
 * library's thread pool: one call uses it at a time, others run on their own thread meanwhile (the
 * results are the same bits).
 * - fork: a child may use the library at once; its thread pool starts anew on first use. Forking
 * while another thread is inside a call is safe for the child as long as it does not touch that
 * call's buffers.
 * - No function throws, prints or ends the process. Where memory runs out, code that is not
 *   Attune's can still end it, in two places. NVRTC does so when an allocation of its own fails
 *   while it compiles a kernel; a kernel from the disk cache does without it. And where a C program
 *   loads the library by dlopen, glibc does so when there is no memory for libstdc++'s variables of
 *   a thread, which are made at the beginning of the thread's first call.
 */
#ifndef ATTUNE_ATTUNE_H
#define ATTUNE_ATTUNE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#error "Attune supports Linux on x86-64 and aarch64."
#endif
#define ATTUNE_API __attribute__((visibility("default")))

#define ATTUNE_VERSION_MAJOR 0
#define ATTUNE_VERSION_MINOR 1
#define ATTUNE_VERSION_PATCH 0
#define ATTUNE_ABI_VERSION 1 /* changes only when an old caller could no longer be served */

#ifdef __cplusplus
extern "C" {
#endif

typedef enum attune_status {
  ATTUNE_OK = 0,
  ATTUNE_INVALID_ARGUMENT =
      1, /* the input is wrong; the message names the argument and both values */
  ATTUNE_UNSUPPORTED =
      2, /* the input is right, but nothing here can run it; the message says why */
  ATTUNE_OUT_OF_MEMORY = 3,
  ATTUNE_INTERNAL = 4,   /* a bug of ours */
  ATTUNE_CUDA_ERROR = 5, /* a call of the CUDA driver failed; the message has the call, the kernel
                            and the driver's text */
} attune_status;

typedef enum attune_dtype {
  ATTUNE_F32 = 1,
  ATTUNE_F16 = 2,
  ATTUNE_BF16 = 3,
  ATTUNE_BOOL = 4, /* one byte, 0 or not 0 */
  ATTUNE_I32 = 5,
  ATTUNE_F64 = 6, /* CPU, the reference alone (mode AUTO takes it); see attune_args.q */
} attune_dtype;

typedef enum attune_device {
  ATTUNE_CPU = 0,
  ATTUNE_CUDA = 1,
} attune_device;

/* Which rung of the ladder computes. AUTO picks the fastest that can; attune_explain says which and
 * why. */
typedef enum attune_mode {
  ATTUNE_AUTO = 0,
  ATTUNE_REFERENCE = 1, /* float64, plain: the oracle */
  ATTUNE_NAIVE = 2,     /* the same plain loops in float32 */
  ATTUNE_FUSED = 3,     /* FlashAttention-style, vectorised, memory linear in the sequence */
  ATTUNE_TILED = 4,     /* CUDA: shared-memory blocking, the scores in the workspace */
  ATTUNE_MMA = 5,   /* CUDA 8.0 and up: tensor cores; fp32 by split operands, at fp32 accuracy */
  ATTUNE_WGMMA = 6, /* CUDA 9.0: TMA, asynchronous tensor cores; fp32 by split operands */
} attune_mode;

/* Where row i stands among the keys, when the sequence lengths differ: it is the diagonal of
 * causal, window and ALiBi. Needed there as soon as Sq != Sk, since the two conventions disagree
 * and neither is implied. With cu_seqlens and key_lengths, Sq and Sk are each sequence's own. */
typedef enum attune_alignment {
  ATTUNE_ALIGN_UNSPECIFIED = 0,
  ATTUNE_ALIGN_TOP_LEFT = 1,     /* row i at key i (PyTorch) */
  ATTUNE_ALIGN_BOTTOM_RIGHT = 2, /* row i at key i + Sk - Sq (FlashAttention) */
} attune_alignment;

/* A view of memory that the caller owns. data == NULL with rank == 0 means: not given. */
typedef struct attune_tensor {
  void* data;
  int32_t dtype; /* attune_dtype */
  int32_t rank;
  int64_t shape[4];
  int64_t stride[4]; /* in elements; 0 repeats (masks, slopes) */
} attune_tensor;

/* The parallel_for hook: run task(arg, 0) ... task(arg, count - 1), each once, in any order, on any
 * threads, and return when all are done. One that returns before that, or throws, makes the call
 * ATTUNE_INVALID_ARGUMENT (std::bad_alloc: ATTUNE_OUT_OF_MEMORY). It may not return, nor throw,
 * while a task is running. */
typedef void (*attune_task)(void* arg, int64_t index);
typedef void (*attune_parallel_for)(void* user, int64_t count, attune_task task, void* arg);

/* One attention call. Set it up with attune_args_init, then fill in what you need.
 * Growth: new fields join at the end; struct_size tells the library which ones the caller knows. */
typedef struct attune_args {
  size_t struct_size;
  int32_t device; /* attune_device: where all tensors live */
  int32_t mode;   /* attune_mode */

  /* q [B,H,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv], out [B,H,Sq,Dv]; F32, F16 or BF16, all the same;
   * last stride 1, the others free. H is a multiple of Hkv (GQA, MQA). D and Dv from 1 to 256.
   * F64 is computed by the reference on the CPU, and nothing is rounded to less: where F32 is asked
   * for below (lse, alibi_slopes, sinks and the gradients), it is then F64, and an additive mask
   * may be. Ragged batches (cu_seqlens given): q [Tq,H,D], k [Tk,Hkv,D], v [Tk,Hkv,Dv], out
   * [Tq,H,Dv], sequences one after another. */
  attune_tensor q, k, v, out;
  attune_tensor lse; /* optional, F32 [B,H,Sq] (ragged [H,Tq]): log of the softmax's denominator,
                        natural units, sink included */

  float scale;   /* 0: 1/sqrt(D). Otherwise finite and positive. */
  float softcap; /* 0: off. Otherwise softcap * tanh(scale * q.k / softcap). */

  int32_t causal;    /* not 0: j <= position(i) */
  int32_t alignment; /* attune_alignment: what position(i) means */
  int64_t window_left,
      window_right; /* -1: no limit. position(i) - left <= j <= position(i) + right */

  attune_tensor mask; /* optional, broadcasts to [B,H,Sq,Sk] (ragged: longest sequences): BOOL keeps
                         where not 0; F32/F16/BF16 adds */
  attune_tensor block_mask; /* optional BOOL, broadcasts to [B,H,ceil(Sq/bq),ceil(Sk/bk)]: a 0 drops
                               the whole block */
  int64_t block_mask_q, block_mask_k; /* bq, bk */
  attune_tensor alibi_slopes; /* optional F32 [H] or [B,H]: adds -slope * |position(i) - j| */
  attune_tensor sinks;        /* optional F32 [H]: a logit that joins the denominator */

  attune_tensor cu_seqlens_q, cu_seqlens_k; /* I32 [B+1], from 0 up to Tq, Tk: a ragged batch */

  float dropout_p; /* 0 <= p < 1; Philox on (seed, offset, b, h, i, j): the same on every backend */
  uint64_t dropout_seed, dropout_offset;

  int32_t batch_invariant; /* not 0: a sequence's bits do not depend on the rest of the batch */

  int32_t threads; /* CPU: 0 = all that this process may use, by its affinity and by the CPU quota
                      of its control groups */
  attune_parallel_for parallel_for; /* CPU: NULL = the library's own pool */
  void* parallel_user;

  /* --- CUDA. All tensors are device memory of one device, cu_seqlens too. The work is enqueued on
   * the stream and the call returns; nothing is allocated, and a stream under capture is legal. ---
   */
  void* stream;    /* cudaStream_t, CUstream; NULL: the default stream of the current context */
  void* workspace; /* device memory that the call may scribble on until its work is done, */
  size_t workspace_bytes;       /* and its size: attune_workspace_size says how much is wanted */
  int64_t max_seq_q, max_seq_k; /* ragged: the longest sequences, which the host cannot see */
  int32_t strict_fp32;          /* not 0: fp32 stays on CUDA cores */

  /* The caller's code in the inner loop, as C++ text: the body of
   *   float score_mod(float score, int b, int h, int i, int j, const void* data)
   *   bool  mask_mod(int b, int h, int i, int j, const void* data)       (true: keep)
   * i and j count from the sequence's first query and key. The score is what the softmax would see
   * (softcap, bias and ALiBi applied), in natural units. data is user_data. NULL: none.
   * The text is trusted input: it runs on the device with the caller's rights, and may read and
   * write what the process can there. Never take it from somebody whom you would not let run code.
   * It is a function's body and nothing else: its braces balance, no line ends in a backslash, and
   * the only preprocessor directive is #pragma unroll; #include and #define are refused. */
  const char* score_mod;
  const char* mask_mod;
  const void* user_data;

  /* Calls in F64: scale and softcap without float32's rounding. 0: scale and softcap. */
  double scale_f64, softcap_f64;

  /* Optional I32 [B]: how many keys of each sequence are used, 0 to Sk; with cu_seqlens, 0 to the
   * sequence's own length. The call computes what it would with k and v cut there, sequence by
   * sequence: positions at the bottom right count from the last used key, a sequence with length 0
   * has rows without a key, what lies further on in k, v and the masks never reaches the result,
   * and its gradients are 0. Masks keep their shapes.
   * On the CPU the values are checked. On CUDA they are device memory that no host code reads: a
   * kernel takes what is outside of 0 to Sk as the nearer end, and the alignment must be named with
   * causal, window and ALiBi. */
  attune_tensor key_lengths;
} attune_args;

/* The gradients of one forward call. Those not wanted stay not given. */
typedef struct attune_backward_args {
  size_t struct_size;
  const attune_args* forward; /* as in the forward call; out and lse hold its results. Where one is
                                 not given, the reference computes, which needs neither: mode AUTO
                                 takes it (orders of magnitude slower), FUSED is refused. On CUDA
                                 both are needed. */
  attune_tensor dout;         /* as out */
  attune_tensor dq, dk, dv;   /* as q, k, v */
  attune_tensor
      dmask; /* F32; as an additive mask; summed over every dimension that the mask broadcasts */
  attune_tensor dsinks; /* F32 [H] */
  attune_tensor dlse;   /* optional, as lse: the gradient of the returned LSE. Not looked at in rows
                           whose LSE is -inf. */
} attune_backward_args;

/* Sets every field to its default; size is sizeof(*args). */
ATTUNE_API attune_status attune_args_init(attune_args* args, size_t size);
ATTUNE_API attune_status attune_backward_args_init(attune_backward_args* args, size_t size);

ATTUNE_API attune_status attune_forward(const attune_args* args);

/* The workspace that attune_forward would like for these arguments (their workspace fields are not
 * looked at). With less, a rung that can do without runs without, and one that cannot is refused.
 * Tensors may have NULL data, as in attune_explain. 0 on the CPU. */
ATTUNE_API attune_status attune_workspace_size(const attune_args* args, size_t* bytes);

/* Compiles what attune_forward would run, or takes it from the cache, without running it. */
ATTUNE_API attune_status attune_prepare(const attune_args* args);

/* The gradients. On CUDA CUDA cores compute (mode FUSED, which AUTO takes); score_mod is refused,
 * since its derivative is not known. The workspace is the one in args->forward. The bits repeat. */
ATTUNE_API attune_status attune_backward(const attune_backward_args* args);
/* As attune_workspace_size. Every rung on CUDA needs it. */
ATTUNE_API attune_status attune_backward_workspace_size(const attune_backward_args* args,
                                                        size_t* bytes);

/* --- Plans: a call that is checked once and whose kernel is chosen once. ---
 * A plan never changes, so many threads may run one at once, each with outputs and a workspace of
 * its own. It copies score_mod and mask_mod, and owns nothing else: tensors, stream, user_data and
 * parallel_user of its creation must live as long as it is used with them. */
typedef struct attune_plan attune_plan;

/* A plan of attune_forward(args) that uses at most most_workspace bytes of workspace (SIZE_MAX: as
 * many as it likes). The workspace fields of args are not looked at. Tensors may have NULL data:
 * they count as aligned to 16 bytes, and every run then brings memory. *plan is NULL where this
 * fails. */
ATTUNE_API attune_status attune_plan_create(const attune_args* args, size_t most_workspace,
                                            attune_plan** plan);
/* The same of attune_backward(args). */
ATTUNE_API attune_status attune_plan_create_backward(const attune_backward_args* args,
                                                     size_t most_workspace, attune_plan** plan);
/* The workspace that every run of the plan needs; 0 on the CPU. */
ATTUNE_API attune_status attune_plan_workspace_size(const attune_plan* plan, size_t* bytes);
/* Compiles the plan's kernels, or takes them from the cache, without running them. */
ATTUNE_API attune_status attune_plan_prepare(const attune_plan* plan);
/* args NULL: runs on the tensors and the stream of the creation. Only the workspace is checked; on
 * the CPU the values of cu_seqlens and key_lengths must not have changed.
 * Else: runs on the memory of args, which are checked as by attune_forward. They may differ from
 * those of the creation in data, stream, hook, scale, softcap's value, dropout's numbers, and in
 * the values of cu_seqlens and key_lengths. All else must be the same; on CUDA the tensors must lie
 * in memory in the same way (which strides and addresses are multiples of 16 bytes).
 * The workspace fields of args are not looked at. The workspace may not lie between the elements
 * of a tensor. A backward plan takes NULL alone. */
ATTUNE_API attune_status attune_plan_run(const attune_plan* plan, const attune_args* args,
                                         void* workspace, size_t workspace_bytes);
/* As attune_explain, of the tuned table as it is now. */
ATTUNE_API attune_status attune_plan_explain(const attune_plan* plan, char* text, size_t capacity,
                                             size_t* needed);
ATTUNE_API void attune_plan_destroy(attune_plan* plan); /* NULL is fine */

/* Which kernel attune_forward would run, and why every other one would not, as JSON. Writes at most
 * capacity bytes with a closing 0; *needed (may be NULL) is the whole length with it. Tensors may
 * have NULL data here: only shapes are read, and on the CPU cu_seqlens and
 * key_lengths where they are not NULL. */
ATTUNE_API attune_status attune_explain(const attune_args* args, char* text, size_t capacity,
                                        size_t* needed);

/* What the library found on this machine, as JSON. The same buffer protocol. */
ATTUNE_API attune_status attune_info(char* text, size_t capacity, size_t* needed);

ATTUNE_API const char* attune_last_error(
    void); /* of the calling thread's last failed call; valid until its next call */
ATTUNE_API const char* attune_status_name(attune_status status);
ATTUNE_API const char* attune_version(void); /* "0.1.0" */
ATTUNE_API int32_t attune_abi_version(void);

#ifdef __cplusplus
}
#endif
#endif /* ATTUNE_ATTUNE_H */
