// Reads launch programs with shapes, and prints the launch that the engine answers for each, or "none".
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "onnxfuse.h"

static uint64_t word(void) {
  uint64_t value;
  if (fread(&value, sizeof value, 1, stdin) != 1) exit(0);
  return value;
}

static void plan(void* planner, const onnxfuse_question* question, onnxfuse_reply* reply) {
  (void)planner, (void)question, (void)reply;
}
static void release(void* object) { (void)object; }

static void see(void* user, const onnxfuse_launch* l) {
  printf("%zu grid %u %u %u block %u %u %u shared %u early %u scratch %zu counters %zu parameters ", (size_t)l->function,
         l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared_bytes, l->early,
         l->scratch_bytes, l->counter_bytes);
  for (size_t i = 0; i < l->parameter_bytes; ++i) printf("%02x", ((const unsigned char*)l->parameters)[i]);
  for (size_t i = 0; i < l->output_count; ++i) {
    printf(" output");
    for (size_t d = 0; d < l->output_shapes[i].count; ++d) printf(" %" PRId64, l->output_shapes[i].at[d]);
  }
  for (size_t i = 0; i < l->tensor_map_count; ++i) {
    const onnxfuse_tensor_map* m = &l->tensor_maps[i];
    printf(" map %u %u %u %u %" PRIu64, m->pointer, m->element_type, m->to_tf32, m->rank, m->offset);
    for (uint32_t d = 0; d < m->rank; ++d) printf(" %" PRIu64 " %u", m->extents[d], m->box[d]);
    for (uint32_t d = 0; d + 1 < m->rank; ++d) printf(" %" PRIu64, m->strides[d]);
    if (m->is_window)
      for (int d = 0; d < 3; ++d) printf(" %d %d %u", m->lower[d], m->upper[d], m->steps[d]);
  }
  for (size_t i = 0; i < l->then_count; ++i) see(user, &l->then[i]);
}

// Of each case: the bytes of the program, which are padded to words, its kernels, and the shapes.
int main(void) {
  const onnxfuse_host host = {.size = sizeof host, .plan = plan, .release = release, .name = "C"};
  for (;;) {
    const uint64_t bytes = word(), words = (bytes + 7) / 8;
    uint64_t* tape = malloc(8 * words + 8);
    for (uint64_t i = 0; i < words; ++i) tape[i] = word();
    const uint64_t kernel_count = word();
    onnxfuse_kernel* kernels = calloc(kernel_count + 1, sizeof *kernels);
    for (uint64_t i = 0; i < kernel_count; ++i) kernels[i].function = (void*)(i + 1);
    const uint64_t shape_count = word();
    onnxfuse_numbers* shapes = calloc(shape_count + 1, sizeof *shapes);
    for (uint64_t i = 0; i < shape_count; ++i) {
      shapes[i].count = word();
      int64_t* extents = calloc(shapes[i].count + 1, sizeof *extents);
      for (size_t d = 0; d < shapes[i].count; ++d) extents[d] = (int64_t)word();
      shapes[i].at = extents;
    }
    const onnxfuse_program program = {
        .size = sizeof program, .tape = tape, .tape_bytes = bytes, .kernels = kernels, .kernel_count = kernel_count};
    const char* error = onnxfuse_evaluate(&host, &program, shapes, shape_count, see, NULL);
    printf("%s\n", error ? error : "");
  }
}
