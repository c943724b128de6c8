// A fused op as ONNX Runtime calls it.
//
// Lifetime. ONNX Runtime keeps raw pointers to the ops for as long as any session or session options know them; the ops
// themselves are never freed (a few hundred bytes each). What is big goes: the launches when the last session that uses
// the op goes, what plans them when the options that it was registered in are gone, too. Of launches an op keeps those
// of the shapes that it met again since others came. One may go while its kernel runs or stands in a CUDA graph: its
// parameters were copied, its function stays loaded. Scratch memory does not go like that, so launches with scratch
// memory stay.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "counts.h"
#include "host.h"
#include "kept.h"
#include "ort_api.h"

namespace engine {

constexpr const char* kDomain = "onnxfuse";

struct Op : ort::CustomOp {
  const SharedHost host;
  const std::string op_name;
  const std::vector<ort::ElementType> inputs, outputs;
  const uint64_t on_host;  // bit i: input i stays on the CPU
  Counts& counts;
  Kept kept;
  std::mutex planning;   // one thread plans
  std::mutex launching;  // plans of several launches that share a room: those of two threads do not mix on a stream

  // The first room of the op that is large enough, so that all launches of a plan get the same; under `launching`.
  void* room_of(const Launch&, void* stream);

  Op(SharedHost host, const onnxfuse_op& row, Held planner);

  bool is_on_host(size_t input) const { return input < 64 && (on_host >> input & 1); }
  void session_begins();
  void session_ends();
  void options_gone();
  Held planner() const;

 private:
  using Rooms = std::unordered_map<void*, std::vector<Room>>;  // by stream

  void forget_planner();

  Rooms rooms_;  // guarded by `launching`

  mutable std::mutex life_;
  Held planner_;            // guarded by `life_`, as the rest
  size_t kernels_ = 0;      // of living sessions
  bool registered_ = true;  // in options that are still there
};

}  // namespace engine
