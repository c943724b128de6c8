#include "scratch.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "launch.h"

namespace engine {
namespace {

constexpr size_t kLeast = 4096;  // bytes of an area, and the alignment of the boundary

}  // namespace

size_t rounded(size_t bytes) {
  if (bytes == 0) return 0;
  size_t step = kLeast;
  while (step * 8 < bytes / 2) step *= 2;
  return (bytes + step - 1) / step * step;
}

DeviceMemory::DeviceMemory(size_t bytes) : bytes(bytes) {
  const BesideCaptures beside;
  check(cuda::driver().context(&context_), "cuCtxGetCurrent");
  const int result = cuda::driver().allocate(&address, bytes);
  if (result != cuda::kSuccess) fail(result, "allocating " + std::to_string(bytes) + " bytes of scratch memory");
}

DeviceMemory::~DeviceMemory() {
  const BesideCaptures beside;
  cuda::Context popped;  // where the context is gone, so is its memory
  if (cuda::driver().push(context_) != cuda::kSuccess) return;
  cuda::driver().free(address);
  cuda::driver().pop(&popped);
}

// Never destroyed: a session may outlive static destructors.
std::shared_ptr<ScratchPool> ScratchPool::of(cuda::Context context, cuda::Stream stream) {
  static auto* const pools = new std::map<std::pair<cuda::Context, cuda::Stream>, std::weak_ptr<ScratchPool>>;
  static auto* const mutex = new std::mutex;
  std::lock_guard<std::mutex> lock(*mutex);
  for (auto at = pools->begin(); at != pools->end();) at = at->second.expired() ? pools->erase(at) : std::next(at);
  auto& known = (*pools)[{context, stream}];
  std::shared_ptr<ScratchPool> pool = known.lock();
  if (!pool) known = pool = std::make_shared<ScratchPool>(stream);
  return pool;
}

bool ScratchPool::is_capturing() const {
  int status = 0;
  check(cuda::driver().is_capturing(stream_, &status), "cuStreamIsCapturing");
  return status != 0;
}

void ScratchPool::reserve(const ScratchNeed& need) {
  const bool fits = current_.memory && need.counters <= current_.has.counters && need.data <= current_.has.data;
  if (fits && current_.in_graph) return;
  const bool capturing = is_capturing();
  if (!fits) grow(need, capturing);
  current_.in_graph |= capturing;
}

void ScratchPool::grow(const ScratchNeed& need, bool capturing) {
  const ScratchNeed wanted{std::max(current_.has.counters, rounded(need.counters)),
                           std::max(current_.has.data, rounded(need.data))};
  const BesideCaptures beside;
  Buffer outgrown;
  {
    std::lock_guard<std::mutex> lock(sizes_);
    outgrown = std::exchange(current_, {});
    // While a graph is captured nothing can wait for the launches that were given it before.
    if (outgrown.memory && (outgrown.in_graph || capturing)) in_graphs_.push_back(std::move(outgrown));
  }
  if (outgrown.memory) {
    check(cuda::driver().wait(stream_), "cuStreamSynchronize");
    outgrown.memory.reset();
  }
  auto memory = std::make_unique<DeviceMemory>(wanted.bytes());
  if (wanted.counters) {
    check(cuda::driver().set(memory->address, 0, wanted.counters), "cuMemsetD8");
    check(cuda::driver().wait(nullptr),
          "cuStreamSynchronize");  // the stream of the launches does not wait for this one
  }
  std::lock_guard<std::mutex> lock(sizes_);
  current_ = {std::move(memory), wanted};
}

void* ScratchPool::address(size_t counters) const {
  return reinterpret_cast<void*>(current_.memory->address + current_.has.counters - counters);
}

size_t ScratchPool::bytes() const {
  std::lock_guard<std::mutex> lock(sizes_);
  size_t all = current_.memory ? current_.memory->bytes : 0;
  for (const Buffer& buffer : in_graphs_) all += buffer.memory->bytes;
  return all;
}

}  // namespace engine
