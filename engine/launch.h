// A launch of a kernel, and the programs that make launches: what the engine keeps of a planner's answers.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "host.h"
#include "scratch.h"
#include "tape.h"

namespace engine {

using Shape = std::vector<int64_t>;
using Dim3 = std::array<unsigned, 3>;

// As many as onnxfuse/cuda/planning/limits.py lets a plan have.
constexpr size_t kMostTensorMaps = 24;
using EncodedMaps = std::array<cuda::TensorMap, kMostTensorMaps>;

// A matrix as the GPU's bulk copy engine sees it.
struct TensorMap {
  size_t pointer = 0;  // which of the kernel's pointers
  size_t offset = 0;   // bytes from there
  int element_type = 0;
  bool to_tf32 = false;
  int type = 0;  // CUtensorMapDataType
  std::vector<uint64_t> extents, strides;
  std::vector<uint32_t> box;
  // Only where a window slides over the pixels of an image: the box is (channels, pixels).
  std::vector<int> lower, upper;
  std::vector<uint32_t> steps;

  TensorMap() = default;
  explicit TensorMap(const onnxfuse_tensor_map&);

  onnxfuse_tensor_map shown() const;
  void set_type(int element, bool tf32);
};

// Throws the driver's words where it takes one of them not.
void encode(const std::vector<TensorMap>& maps, const std::vector<void*>& pointers, EncodedMaps& encoded);

// A kernel that programs launch.
struct Loaded {
  cuda::Function function = nullptr;  // none: not compiled yet
  bool early = false;
  Held owner;  // keeps the function's module loaded

  Loaded(const SharedHost&, const onnxfuse_kernel&);
};

// What answers for the shapes of a family on one device, by pointers of one kind.
struct Program {
  std::vector<std::shared_ptr<const Loaded>> kernels;
  tape::Tape tape;
  int64_t family;  // the number by which a program takes the place of the one before
  int64_t context;
  bool aligned;
  std::vector<std::vector<int64_t>> apart;  // shapes that the planner plans itself: those with a measured variant

  Program(const SharedHost&, const onnxfuse_program&, int64_t context, bool aligned);

  bool plans_itself(const int64_t* begin, const int64_t* end) const;
};

struct Launch {
  cuda::Function function = nullptr;
  Dim3 grid{}, block{};
  unsigned shared_bytes = 0;
  bool early = false;
  std::string parameters;
  std::vector<Shape> output_shapes;
  std::vector<TensorMap> tensor_maps;
  size_t scratch_bytes = 0;  // counters, then data; see scratch.h
  size_t counter_bytes = 0;
  bool interim = false;                    // for one run alone
  Held owner;                              // of the host's answer; none by a program
  std::shared_ptr<const Program> program;  // by which it was made, and its kernel
  std::shared_ptr<const Loaded> kernel;
  std::vector<std::unique_ptr<const Launch>> then;  // after this one, on the same pointers

  // `owners`: of this launch and of those after it, depth first, from `next` on.
  Launch(const onnxfuse_launch&, const std::vector<Held>& owners, size_t& next);
  static std::unique_ptr<const Launch> of(const SharedHost&, const onnxfuse_launch&);
  // The answer of a program that its tape has found at `at`; the tape was checked, so its words are in their bounds.
  Launch(std::shared_ptr<const Program>, const tape::Register* held, size_t& at);

  bool empty() const { return grid[0] == 0 || grid[1] == 0 || grid[2] == 0; }
  bool is_loaded() const;
  ScratchNeed scratch_need() const;  // of it and those after it
};

// Of a launch and those after it: lets each function use as much dynamic shared memory as this launch takes. What
// another launch of the function was given stays.
void ask_for_shared_memory(const Launch&);

// Calls `see` with the launch as the C ABI has it.
void show(const Launch&, void (*see)(void* user, const onnxfuse_launch*), void* user);

[[noreturn]] void fail(int cuda_result, const std::string& what);
void check(int cuda_result, const char* what);

std::string text(const Dim3&);
std::string text(const Shape&);

}  // namespace engine

// What a host's function has answered, when it has returned.
struct onnxfuse_reply {
  const engine::SharedHost& host;
  int64_t context = 0;
  bool aligned = false;

  bool answered = false;
  std::string error;
  std::shared_ptr<const engine::Launch> launch;  // none: the program has it
  std::shared_ptr<const engine::Program> program;

  explicit onnxfuse_reply(const engine::SharedHost& host) : host(host) {}
  // Throws the host's words where it has not done what it was asked for.
  void expect(const char* what) const {
    if (!error.empty()) throw std::runtime_error(error);
    if (!answered) throw std::runtime_error(std::string(host->name) + " did not answer when asked for " + what);
  }
};
