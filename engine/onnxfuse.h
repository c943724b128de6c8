/* The C ABI of the engine: fused ops as custom ops of ONNX Runtime's CUDA provider, launched without a look back.
 *
 * A host makes ops, one for each fused op of a model, and registers them in the options of a session. For shapes that
 * no launch is kept for the engine evaluates the launch programs that it was given, and where none holds it asks the
 * host's planner, from then on a launch is a look-up and a cuLaunchKernelEx on ONNX Runtime's own stream.
 *
 * Every function that can fail returns NULL, or words that hold until the thread's next call. Structures begin with
 * their size; one of another size is refused. Strings are UTF-8. What is pointed to is read during the call alone, but
 * for the host's objects: each that is handed over is given back by one `release`, also where it is handed over in what
 * is refused. */
#ifndef ONNXFUSE_H
#define ONNXFUSE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONNXFUSE_ABI 5
#define ONNXFUSE_EXPORT __attribute__((visibility("default")))

struct OrtSessionOptions;
struct OrtApiBase;
struct OrtStatus;

typedef struct onnxfuse_ops onnxfuse_ops;     /* of one model */
typedef struct onnxfuse_reply onnxfuse_reply; /* what a host's function answers, through onnxfuse_reply_... */

typedef struct onnxfuse_numbers {
  const int64_t* at;
  size_t count;
} onnxfuse_numbers;

/* ---- What a planner answers ---- */

/* A matrix, or the pixels of an image, as the GPU's bulk copy engine sees it; fastest dimension first. */
typedef struct onnxfuse_tensor_map {
  uint32_t pointer;      /* which of the kernel's pointers, inputs and then outputs */
  uint32_t element_type; /* onnx.TensorProto.DataType */
  uint32_t to_tf32;      /* float32 is rounded on the way */
  uint32_t rank;         /* 1 to 5 */
  uint64_t offset;       /* bytes from the pointer */
  uint64_t extents[5];
  uint64_t strides[4]; /* bytes; of all dimensions but the first */
  uint32_t box[5];     /* elements of each dimension; of a window: channels, pixels */
  uint32_t is_window; /* a window slides over the pixels: the next three count, for all dimensions but first and last */
  int32_t lower[3], upper[3];
  uint32_t steps[3];
} onnxfuse_tensor_map;

typedef struct onnxfuse_launch {
  size_t size;
  void* function;   /* CUfunction */
  uint32_t grid[3]; /* a zero: nothing to launch */
  uint32_t block[3];
  uint32_t shared_bytes;  /* dynamic, per block */
  uint32_t early;         /* before the kernel ahead on the stream has ended, for which it waits by itself */
  const void* parameters; /* the by-value struct behind pointers and tensor maps */
  size_t parameter_bytes;
  const onnxfuse_tensor_map* tensor_maps; /* passed by value together, between pointers and parameters */
  size_t tensor_map_count;
  const onnxfuse_numbers* output_shapes;
  size_t output_count;
  size_t scratch_bytes; /* the stream's, its pointer is behind the outputs'; 0: none, and no pointer */
  size_t counter_bytes; /* of them, at the beginning: zeros, which the launch leaves as zeros. The rest is anything, but
                           for what a launch before it in this plan wrote, if that has as many counters */
  uint32_t interim;     /* for this run alone: the planner is asked again for the next one */
  void* owner;          /* the host's: keeps the function loaded; NULL: none */
  const struct onnxfuse_launch* then; /* on the same pointers */
  size_t then_count;
} onnxfuse_launch;

typedef struct onnxfuse_kernel {
  void* function; /* CUfunction; NULL: not compiled yet, the planner is asked */
  uint32_t early;
  void* owner; /* the host's: keeps the function loaded; NULL: none */
} onnxfuse_kernel;

/* Answers for the shapes of a family, on the device and by pointers of the alignment that it was asked for. */
typedef struct onnxfuse_program {
  size_t size;
  int64_t family; /* the next program of this number takes its place */
  const void* tape;
  size_t tape_bytes;
  const onnxfuse_kernel* kernels; /* by their numbers in the tape */
  size_t kernel_count;
  const onnxfuse_numbers* apart; /* shapes that the planner plans itself: rank and extents of each input in turn */
  size_t apart_count;
} onnxfuse_program;

/* ---- The host ---- */

typedef struct onnxfuse_question {
  size_t size;
  const onnxfuse_numbers* shapes; /* of the inputs */
  size_t shape_count;
  int32_t aligned; /* all pointers are multiples of 16 */
  int32_t device;
  size_t scratch_limit;  /* bytes of scratch memory that the launches may have; 0: any */
  const uint8_t* varies; /* of each extent of each input in turn whether it was another one in some run of the same
                            node; NULL where none was */
} onnxfuse_question;

/* Called from any thread. */
typedef struct onnxfuse_host {
  size_t size;
  /* One thread at a time for each op. Has to answer by one onnxfuse_reply_... before it returns. */
  void (*plan)(void* planner, const onnxfuse_question*, onnxfuse_reply*);
  void (*release)(void* object);
  /* Nothing else of the host is called where it is not there, or leaving. NULL: it always stays. */
  int (*is_there)(void);
  int (*is_leaving)(void);
  const char* name; /* in messages; "Python" */
  /* A session of the op is made on a device: onnxfuse_reply_error refuses it. NULL: none is refused. */
  void (*begins)(void* planner, int32_t device, onnxfuse_reply*);
} onnxfuse_host;

ONNXFUSE_EXPORT void onnxfuse_reply_launch(onnxfuse_reply*, const onnxfuse_launch*,
                                           const onnxfuse_program* /* or NULL */);
/* A program that has the launch. */
ONNXFUSE_EXPORT void onnxfuse_reply_program(onnxfuse_reply*, const onnxfuse_program*);
ONNXFUSE_EXPORT void onnxfuse_reply_error(onnxfuse_reply*, const char* words);

/* ---- Ops ---- */

typedef struct onnxfuse_op {
  size_t size;
  const char* name;      /* op type, in the domain "onnxfuse" */
  const int32_t* inputs; /* onnx.TensorProto.DataType of each */
  size_t input_count;
  const int32_t* outputs;
  size_t output_count;
  uint64_t may_alias; /* bit i: output 0 may take over the buffer of input i */
  uint64_t on_host; /* bit i: input i stays on the CPU; it tells a shape, and no kernel reads it. The shape of a scalar
                       among them, int32 or int64, is its value: a planner sees it as an extent */
  void* planner;    /* the host's */
} onnxfuse_op;

/* ONNXFUSE_ABI of this library. */
ONNXFUSE_EXPORT uint32_t onnxfuse_abi(void);

ONNXFUSE_EXPORT const char* onnxfuse_create(const onnxfuse_host*, const onnxfuse_op* rows, size_t count,
                                            onnxfuse_ops**);
/* The ops of a kernel pack (onnxfuse compile), which are not to be closed: all who open it have the same. */
ONNXFUSE_EXPORT const char* onnxfuse_open(const char* path, const onnxfuse_ops**);
/* Registers the ops in options, which are then for this model. */
ONNXFUSE_EXPORT const char* onnxfuse_register(const onnxfuse_ops*, struct OrtSessionOptions*, const struct OrtApiBase*);
/* Leaves that to the RegisterCustomOps that this thread asks ONNX Runtime for next, for hosts without a pointer to the
 * options; NULL: takes it back. */
ONNXFUSE_EXPORT void onnxfuse_stage(const onnxfuse_ops*);
/* The options are gone: no session is made with these ops any more. What plans them goes with the last session. */
ONNXFUSE_EXPORT void onnxfuse_close(onnxfuse_ops*);

/* What ONNX Runtime calls, by RegisterCustomOpsLibrary and by RegisterCustomOpsLibrary_V2. Where nothing is staged it
 * registers the ops of the kernel pack that the options name in their config entry "onnxfuse.pack", else of the one
 * (*.kernels) that lies beside this library. */
ONNXFUSE_EXPORT struct OrtStatus* RegisterCustomOps(struct OrtSessionOptions*, const struct OrtApiBase*);

/* ---- Memory on the GPU, in bytes ---- */

/* The arena is the one that ONNX Runtime allocates all values of a session from, of the newest session of the ops;
 * zeros where there is none. */
typedef struct onnxfuse_memory {
  size_t size;
  uint64_t scratch;   /* of the streams that kernels of all sessions launched on */
  uint64_t allocated; /* by the arena */
  uint64_t in_use;    /* of it, now */
  uint64_t peak;      /* of it, the most at a time */
  uint64_t free;      /* on the GPU of this thread's context; 0 without one */
} onnxfuse_memory;

ONNXFUSE_EXPORT const char* onnxfuse_memory_of(const onnxfuse_ops*, onnxfuse_memory*);
/* Lets the arena allocate so many bytes in one piece, for later values. */
ONNXFUSE_EXPORT const char* onnxfuse_extend_arena(const onnxfuse_ops*, size_t bytes);
/* How often ops were called with shapes, or pointers of an alignment, that they keep no launch for. */
ONNXFUSE_EXPORT uint64_t onnxfuse_new_shapes(const onnxfuse_ops*);

/* Launches of these ops get no scratch memory beyond so many bytes: planners are asked for others, and a launch that
 * needs more is an error. 0: any. */
ONNXFUSE_EXPORT void onnxfuse_limit_scratch(const onnxfuse_ops*, size_t bytes);

/* ---- Counts, since the start or the last reset, by op name for the whole process ---- */

typedef struct onnxfuse_counts {
  const char* name;  /* stays */
  uint64_t calls;    /* that came to their end */
  uint64_t launches; /* of kernels */
  uint64_t answers;  /* shapes that programs answered for */
} onnxfuse_counts;

/* Fills at most `room`, by name; returns how many there are. */
ONNXFUSE_EXPORT size_t onnxfuse_count(onnxfuse_counts*, size_t room);
ONNXFUSE_EXPORT void onnxfuse_reset_counts(void);

/* ---- For those who launch by other means ---- */

/* Says of many shapes which a tape answers: `width` numbers for each, rank and extents of each input in turn. */
ONNXFUSE_EXPORT const char* onnxfuse_answered(const void* tape, size_t bytes, const int64_t* shapes, size_t width,
                                              size_t count, uint8_t* answered);

/* Writes what a launch passes between pointers and parameters: 128 bytes a map, as the driver has them. */
ONNXFUSE_EXPORT const char* onnxfuse_encode(const onnxfuse_tensor_map*, size_t count, void* const* pointers,
                                            size_t pointer_count, void* encoded);
/* Shows the launch that a program answers for these shapes; nothing where the planner has to be asked. */
ONNXFUSE_EXPORT const char* onnxfuse_evaluate(const onnxfuse_host*, const onnxfuse_program*,
                                              const onnxfuse_numbers* shapes, size_t count,
                                              void (*see)(void* user, const onnxfuse_launch*), void* user);

#ifdef __cplusplus
}
#endif
#endif
