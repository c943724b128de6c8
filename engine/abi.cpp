// The functions of onnxfuse.h: exceptions end here, as words.

#include "counts.h"
#include "launch.h"
#include "ops.h"
#include "pack_host.h"
#include "registration.h"

using namespace engine;

namespace {

// Returns null, or what was thrown, in words that hold until this thread's next call.
template <class Work>
const char* words_of(Work work) noexcept {
  thread_local std::string words;
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    words = error.what();
    return words.c_str();
  }
}

// What was thrown, into the reply: the run that asked for it ends with these words.
template <class Work>
void answer(onnxfuse_reply& reply, Work work) noexcept {
  reply.answered = true;
  if (const char* error = words_of(work); error && reply.error.empty()) reply.error = error;
}

ort::SessionOptions* as_ort(OrtSessionOptions* options) { return reinterpret_cast<ort::SessionOptions*>(options); }
const ort::ApiBase* as_ort(const OrtApiBase* base) { return reinterpret_cast<const ort::ApiBase*>(base); }

// Throws ONNX Runtime's words.
void expect(ort::Api api, ort::Status* failed) {
  if (!failed) return;
  const std::string message = ort::StatusMessage::in(api)(failed);
  ort::ReleaseStatus::in(api)(failed);
  throw std::runtime_error(message);
}

// Calls with the allocator of the newest session of the ops, where there is one.
void with_allocator(const onnxfuse_ops& ops, const std::function<void(ort::Api, ort::Allocator*)>& work) {
  for (const Op* op : ops.all)
    if (op->with_allocator(work)) return;
}

}  // namespace

extern "C" {

uint32_t onnxfuse_abi() { return ONNXFUSE_ABI; }

void onnxfuse_reply_launch(onnxfuse_reply* reply, const onnxfuse_launch* launch, const onnxfuse_program* program) {
  answer(*reply, [&] { reply->launch = Launch::of(reply->host, *launch); });
  if (program) onnxfuse_reply_program(reply, program);
}

void onnxfuse_reply_program(onnxfuse_reply* reply, const onnxfuse_program* program) {
  answer(*reply, [&] {
    reply->program = std::make_shared<const Program>(reply->host, *program, reply->context, reply->aligned);
  });
}

void onnxfuse_reply_error(onnxfuse_reply* reply, const char* words) {
  answer(*reply, [&] { throw std::runtime_error(*words ? words : "an error without words"); });
}

const char* onnxfuse_create(const onnxfuse_host* host, const onnxfuse_op* rows, size_t count, onnxfuse_ops** ops) {
  return words_of([&] { *ops = new onnxfuse_ops(std::make_shared<const Host>(*host), rows, count); });
}

const char* onnxfuse_open(const char* path, const onnxfuse_ops** ops) {
  return words_of([&] { *ops = &ops_of_pack(path); });
}

const char* onnxfuse_register(const onnxfuse_ops* ops, OrtSessionOptions* options, const OrtApiBase* base) {
  return words_of([&] { expect(as_ort(base)->get_api(1), add_domain(as_ort(options), as_ort(base), *ops)); });
}

void onnxfuse_stage(const onnxfuse_ops* ops) { stage(ops); }

void onnxfuse_close(onnxfuse_ops* ops) {
  for (Op* op : ops->all) op->options_gone();
  delete ops;
}

OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  return reinterpret_cast<OrtStatus*>(add_what_is_there(as_ort(options), as_ort(base)));
}

const char* onnxfuse_memory_of(const onnxfuse_ops* ops, onnxfuse_memory* memory) {
  return words_of([&] {
    check_size(*memory, "memory");
    *memory = {sizeof *memory, 0, 0, 0, 0, 0};
    size_t free = 0, total = 0;
    if (cuda::driver().memory(&free, &total) == cuda::kSuccess) memory->free = free;
    std::set<std::shared_ptr<ScratchPool>> pools;
    for (const Op* op : ops->all) op->add_pools(pools);
    for (const auto& pool : pools) memory->scratch += pool->bytes();
    with_allocator(*ops, [&](ort::Api api, ort::Allocator* allocator) {
      ort::KeyValues* stats = nullptr;
      expect(api, ort::AllocatorStats::in(api)(allocator, &stats));
      const auto number = [&](const char* key) {
        const char* text = ort::KeyValue::in(api)(stats, key);
        return text ? std::strtoull(text, nullptr, 10) : 0;
      };
      memory->allocated = number("TotalAllocated");
      memory->in_use = number("InUse");
      memory->peak = number("MaxInUse");
      ort::ReleaseKeyValues::in(api)(stats);
    });
  });
}

const char* onnxfuse_extend_arena(const onnxfuse_ops* ops, size_t bytes) {
  return words_of([&] {
    with_allocator(*ops, [&](ort::Api api, ort::Allocator* allocator) {
      void* memory = nullptr;
      expect(api, ort::AllocatorAlloc::in(api)(allocator, bytes, &memory));
      expect(api, ort::AllocatorFree::in(api)(allocator, memory));
    });
  });
}

void onnxfuse_limit_scratch(const onnxfuse_ops* ops, size_t bytes) {
  for (Op* op : ops->all) op->scratch_limit = bytes;
}

uint64_t onnxfuse_new_shapes(const onnxfuse_ops* ops) {
  uint64_t all = 0;
  for (const Op* op : ops->all) all += op->new_shapes.load(std::memory_order_relaxed);
  return all;
}

size_t onnxfuse_count(onnxfuse_counts* counts, size_t room) {
  std::lock_guard<std::mutex> lock(counters().mutex);
  size_t i = 0;
  for (const auto& [name, of] : counters().by_name) {
    if (i < room) counts[i] = {name.c_str(), of.calls.load(), of.launches.load(), of.answers.load()};
    ++i;
  }
  return i;
}

void onnxfuse_reset_counts() {
  std::lock_guard<std::mutex> lock(counters().mutex);
  for (auto& [name, of] : counters().by_name)
    for (Counter* count : {&of.calls, &of.launches, &of.answers}) count->store(0, std::memory_order_relaxed);
}

const char* onnxfuse_encode(const onnxfuse_tensor_map* maps, size_t count, void* const* pointers, size_t pointer_count,
                            void* encoded) {
  return words_of([&] {
    EncodedMaps made;
    encode(std::vector<TensorMap>(maps, maps + count), std::vector<void*>(pointers, pointers + pointer_count), made);
    std::memcpy(encoded, made.data(), count * sizeof(cuda::TensorMap));
  });
}

const char* onnxfuse_answered(const void* tape, size_t bytes, const int64_t* shapes, size_t width, size_t count,
                              uint8_t* answered) {
  return words_of([&] {
    const tape::Tape read(std::string(static_cast<const char*>(tape), bytes));
    std::vector<tape::Register> held;
    for (size_t i = 0; i < count; ++i) answered[i] = read.evaluate(shapes + i * width, width, held) >= 0;
  });
}

const char* onnxfuse_evaluate(const onnxfuse_host* host, const onnxfuse_program* program,
                              const onnxfuse_numbers* shapes, size_t count,
                              void (*see)(void* user, const onnxfuse_launch*), void* user) {
  return words_of([&] {
    auto made = std::make_shared<const Program>(std::make_shared<const Host>(*host), *program, 0, true);
    std::vector<int64_t> words;
    for (size_t i = 0; i < count; ++i) {
      words.push_back(static_cast<int64_t>(shapes[i].count));
      words.insert(words.end(), shapes[i].at, shapes[i].at + shapes[i].count);
    }
    std::vector<tape::Register> held;
    const int64_t found = made->tape.evaluate(words.data(), words.size(), held);
    if (found < 0 || made->plans_itself(words.data(), words.data() + words.size())) return;
    size_t at = static_cast<size_t>(found);
    show(Launch(made, held.data(), at), see, user);
  });
}

}  // extern "C"
