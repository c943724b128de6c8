// A fused op as ONNX Runtime calls it.
//
// Lifetime. ONNX Runtime keeps raw pointers to the ops for as long as any session or session options know them; the ops
// themselves are never freed (a few hundred bytes each). What is big goes: the launches when the last session that uses
// the op goes, what plans them when the options that it was registered in are gone, too. Of launches an op keeps those
// of the shapes that it met again since others came. One may go while its kernel runs or stands in a CUDA graph: its
// parameters were copied, its function stays loaded, and its scratch memory is the stream's (scratch.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "counts.h"
#include "host.h"
#include "kept.h"
#include "ort_api.h"
#include "scratch.h"

namespace engine {

constexpr const char* kDomain = "onnxfuse";

struct Kernel;  // of one node of one session

struct Op : ort::CustomOp {
  const SharedHost host;
  const std::string op_name;
  const std::vector<ort::ElementType> inputs, outputs;
  const uint64_t on_host;  // bit i: input i stays on the CPU
  Counts& counts;
  Kept kept;
  std::mutex planning;  // one thread plans
  Counter new_shapes{0};
  std::atomic<size_t> scratch_limit{0};  // bytes; 0: any

  Op(SharedHost host, const onnxfuse_op& row, Held planner);

  bool allows(const ScratchNeed& need) const { return scratch_limit == 0 || need.bytes() <= scratch_limit; }
  bool is_on_host(size_t input) const { return input < 64 && (on_host >> input & 1); }
  void begins(const Kernel*);
  void ends(const Kernel*);
  void options_gone();
  Held planner() const;

  // Adds the pools of scratch memory of living sessions to these.
  void add_pools(std::set<std::shared_ptr<ScratchPool>>&) const;
  // Calls with the allocator of the newest session, while that stays; returns whether there is one.
  bool with_allocator(const std::function<void(ort::Api, ort::Allocator*)>&) const;

 private:
  void forget_planner();

  mutable std::mutex life_;
  Held planner_;                        // guarded by `life_`, as the rest
  std::vector<const Kernel*> kernels_;  // of living sessions, the newest last
  bool registered_ = true;              // in options that are still there
};

}  // namespace engine
