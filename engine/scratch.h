// Scratch memory of launches: one pool for each stream, which all ops of all sessions that launch on it share.
//
// Contents. A launch's scratch memory is counters, then data. Counters are zeros before and after each launch: the
// kernels count up to a number that brings them back to zero. Data holds nothing from one plan to the next; the
// launches of one plan hand it on to each other. So the pool is two areas that meet at a boundary, zeros before it and
// anything behind it, and a launch with so many bytes of counters gets the address so many bytes before the boundary.
// That holds for launches of any op and of any shapes, whatever the sizes of their areas: no launch's counters lie in
// data.
//
// Size. At a time one plan of a stream runs, so the pool is as large as the largest plan needs, not the sum of them.
//
// Order. Launches of a stream run one after the other. One that starts before its predecessor has ended (`early`) waits
// for it before it touches memory. Launches of other streams have other pools. Threads that launch on one stream hold
// the pool's mutex for all launches of a plan, so that no other plan comes between two that hand on data.
//
// CUDA graphs. A graph has the addresses of its capture. A buffer that a captured launch was given is never freed while
// the pool lives, also where the pool has grown out of it, and as the pool grows by steps (`rounded`), all buffers that
// graphs keep are a few times the largest. A graph that is replayed on the stream of its capture, as ONNX Runtime does,
// is in that stream's order. (Who captures by hand and replays on another stream has to order that with this one.)
//
// Lifetime. Each kernel of a session keeps the pools of the streams that it launched on. The last one frees them: then
// no session is left that has a graph of that stream, and the next one on a stream of the same address has a new pool.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_driver.h"

namespace engine {

// What the launches of a plan need, in bytes.
struct ScratchNeed {
  size_t counters = 0, data = 0;

  size_t bytes() const { return counters + data; }
};

// Memory on a GPU, of the context that was current when it was allocated.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  cuda::Address address = 0;
  const size_t bytes;

 private:
  cuda::Context context_ = nullptr;
};

// What this thread loads and allocates does not end the capture of a CUDA graph in another one.
class BesideCaptures {
 public:
  BesideCaptures() { cuda::driver().exchange_capture_mode(&mode_); }
  ~BesideCaptures() { cuda::driver().exchange_capture_mode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  int mode_ = cuda::kRelaxedCapture;
};

class ScratchPool {
 public:
  // That of a stream of a context, made where there is none.
  static std::shared_ptr<ScratchPool> of(cuda::Context, cuda::Stream);

  explicit ScratchPool(cuda::Stream stream) : stream_(stream) {}

  std::mutex launching;  // held from `reserve` to the last launch of a plan

  // Makes room for a plan whose launches come next. Throws the driver's words where there is no memory for it.
  void reserve(const ScratchNeed&);
  // Of a launch of the plan.
  void* address(size_t counters) const;

  // On the GPU, what graphs keep included; of any thread.
  size_t bytes() const;

 private:
  struct Buffer {
    std::unique_ptr<DeviceMemory> memory;
    ScratchNeed has;
    bool in_graph = false;
  };

  bool is_capturing() const;
  void grow(const ScratchNeed&, bool capturing);

  const cuda::Stream stream_;
  mutable std::mutex sizes_;  // guards what `bytes` reads
  Buffer current_;
  std::vector<Buffer> in_graphs_;  // that the pool has grown out of
};

// The bytes that are allocated for so many: steps of an eighth of a power of two, so that a need that grows a little
// with each run is met by a few allocations, with at most an eighth too much.
size_t rounded(size_t bytes);

}  // namespace engine
