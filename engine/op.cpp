#include "op.h"

#include <algorithm>
#include <array>
#include <climits>
#include <map>

namespace engine {

// ---- A node of a session
// ------------------------------------------------------------------------------------------------

struct Kernel {
  Op& op;
  ort::Api api;
  mutable std::mutex mutex;
  mutable std::vector<int64_t> first;   // rank and extents of each input in its first run; guarded by `mutex`
  mutable std::vector<uint8_t> varies;  // which of them have been others since; guarded by `mutex`
  // By context and stream: what it launched with scratch memory on; guarded by `mutex`.
  mutable std::map<std::pair<cuda::Context, cuda::Stream>, std::shared_ptr<ScratchPool>> pools;

  ort::Allocator* allocator = nullptr;  // of the session's values

  Kernel(Op& op, ort::Api api, const ort::KernelInfo* info) : op(op), api(api) {
    if (ort::Status* failed = ort::InfoAllocator::in(api)(info, ort::kDeviceMemory, &allocator)) {
      ort::ReleaseStatus::in(api)(failed);  // its memory is not counted
      allocator = nullptr;
    }
  }
  ~Kernel() {
    if (allocator) ort::ReleaseAllocator::in(api)(allocator);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Which words of the shapes have varied in this node's runs, with this one; none where none has.
  std::vector<uint8_t> varied(const Key& key) const {
    std::lock_guard<std::mutex> lock(mutex);
    const size_t count = key.size() - kShapesBegin;
    if (first.size() != count) {
      first.assign(key.begin() + kShapesBegin, key.end());
      varies.assign(count, 0);
    }
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      varies[i] |= first[i] != key[kShapesBegin + i];
      any |= varies[i] != 0;
    }
    return any ? varies : std::vector<uint8_t>();
  }

  ScratchPool& pool_of(cuda::Context context, cuda::Stream stream) const {
    std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<ScratchPool>& pool = pools[{context, stream}];
    if (!pool) pool = ScratchPool::of(context, stream);
    return *pool;
  }
};

namespace {

constexpr const char* kProvider = "CUDAExecutionProvider";
constexpr uintptr_t kAlignment = 16;

// ---- In place: ONNX Runtime asks for pairs (input, output) without saying of which op ------------------------------

// One function for each set of aliasable inputs; inputs past the eighth are never offered.
constexpr size_t kInplaceInputs = 8;

template <size_t kMask>
size_t may_inplace(int** inputs, int** outputs) {
  static std::array<int, kInplaceInputs> from{}, to{};  // output 0
  static const size_t count = [] {
    size_t n = 0;
    for (size_t i = 0; i < kInplaceInputs; ++i)
      if (kMask >> i & 1) from[n++] = static_cast<int>(i);
    return n;
  }();
  *inputs = from.data();
  *outputs = to.data();
  return count;
}

template <size_t... kMasks>
constexpr auto inplace_table(std::index_sequence<kMasks...>) {
  return std::array<decltype(ort::CustomOp::may_inplace), sizeof...(kMasks)>{&may_inplace<kMasks>...};
}

constexpr auto kMayInplace = inplace_table(std::make_index_sequence<1 << kInplaceInputs>());

// ---- One call ------------------------------------------------------------------------------------------------------

// What one call works with.
struct Call {
  Key key;
  std::vector<void*> pointers;  // inputs, outputs, scratch memory
  EncodedMaps tensor_maps;
  std::vector<void*> arguments;      // addresses of the pointers, then of the tensor maps, then of the parameters
  std::vector<tape::Register> held;  // what programs compute with

  bool aligned() const {
    return std::all_of(pointers.begin(), pointers.end(),
                       [](void* p) { return reinterpret_cast<uintptr_t>(p) % kAlignment == 0; });
  }
};

// A call's own work space, from those that are idle in this thread so that a launch allocates nothing. Not one for all
// calls of a thread: a planner may run another session before it answers.
class Workspace {
 public:
  Workspace() : call_(idle().empty() ? std::make_unique<Call>() : std::move(idle().back())) {
    if (!idle().empty()) idle().pop_back();
  }
  ~Workspace() { idle().push_back(std::move(call_)); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  Call& operator*() { return *call_; }

 private:
  static std::vector<std::unique_ptr<Call>>& idle() {
    thread_local std::vector<std::unique_ptr<Call>> calls;
    return calls;
  }
  std::unique_ptr<Call> call_;
};

std::vector<Shape> shapes_in(const Key& key) {
  std::vector<Shape> shapes;
  for (size_t i = kShapesBegin; i < key.size(); i += 1 + key[i])
    shapes.emplace_back(key.begin() + i + 1, key.begin() + i + 1 + key[i]);
  return shapes;
}

std::string place(const Op& op, const Key& key) {
  std::string out = std::string(kDomain) + "." + op.op_name + " with inputs";
  for (const Shape& shape : shapes_in(key)) out += " " + text(shape);
  return out;
}

// A status of ONNX Runtime's own, on its way back to ONNX Runtime.
struct Failed {
  ort::Status* status;
};

using engine::check;  // of what the driver returns, too

void check(ort::Status* status) {
  if (status) throw Failed{status};
}

// A number on the CPU.
int64_t number_in(const Kernel& kernel, size_t input, const ort::Value* value) {
  void* data = nullptr;
  check(ort::TensorData::in(kernel.api)(const_cast<ort::Value*>(value), &data));
  switch (kernel.op.inputs[input]) {
    case ort::kInt32: return *static_cast<const int32_t*>(data);
    case ort::kInt64: return *static_cast<const int64_t*>(data);
    default: throw std::runtime_error("input " + std::to_string(input) + ", a scalar on the CPU, is no integer");
  }
}

void read_inputs(const Kernel& kernel, const ort::KernelContext* context, Call& call) {
  for (size_t i = 0; i < kernel.op.inputs.size(); ++i) {
    const ort::Value* value = nullptr;
    check(ort::ContextInput::in(kernel.api)(context, i, &value));
    if (!value)
      throw std::runtime_error("input " + std::to_string(i) + " is absent; fused ops have no optional inputs");
    ort::ElementType type;
    const int64_t* dims = nullptr;
    size_t rank = 0;
    check(ort::TensorShape::in(kernel.api)(value, &type, &dims, &rank));
    if (rank == 0 && kernel.op.is_on_host(i)) {  // whose value the planner sees as its shape
      call.key.insert(call.key.end(), {1, number_in(kernel, i, value)});
    } else {
      call.key.push_back(static_cast<int64_t>(rank));
      call.key.insert(call.key.end(), dims, dims + rank);
    }
    void* data = nullptr;  // what is on the CPU no kernel reads
    if (!kernel.op.is_on_host(i)) check(ort::TensorData::in(kernel.api)(const_cast<ort::Value*>(value), &data));
    call.pointers.push_back(data);
  }
}

void allocate_outputs(const Kernel& kernel, ort::KernelContext* context, const Launch& launch, Call& call) {
  for (size_t i = 0; i < kernel.op.outputs.size(); ++i) {
    const Shape& shape = launch.output_shapes[i];
    ort::Value* value = nullptr;
    check(ort::ContextOutput::in(kernel.api)(context, i, shape.data(), shape.size(), &value));
    if (!value) throw std::runtime_error("output " + std::to_string(i) + " has no place in the graph");
    void* data = nullptr;
    check(ort::TensorData::in(kernel.api)(value, &data));
    call.pointers.push_back(data);
  }
}

// Without what is told of the ranks.
std::vector<uint8_t> extents_of(const std::vector<uint8_t>& words, const Key& key) {
  std::vector<uint8_t> extents;
  if (words.empty()) return extents;
  for (size_t i = kShapesBegin; i < key.size(); i += 1 + key[i]) {
    const auto first = words.begin() + (i - kShapesBegin) + 1;
    extents.insert(extents.end(), first, first + key[i]);
  }
  return extents;
}

// The host answers with a launch, which may bring a program along, or with a program alone that has the launch.
SharedLaunch ask_host(const Kernel& kernel, const Key& key, std::vector<tape::Register>& held) {
  Op& op = kernel.op;
  int device = 0;
  check(cuda::driver().device(&device), "cuCtxGetDevice");
  const std::vector<Shape> shapes = shapes_in(key);
  std::vector<onnxfuse_numbers> numbers;
  for (const Shape& shape : shapes) numbers.push_back({shape.data(), shape.size()});
  const std::vector<uint8_t> varies = extents_of(kernel.varied(key), key);
  const bool aligned = key[kAlignedWord] != 0;
  const onnxfuse_question question{sizeof question,
                                   numbers.data(),
                                   numbers.size(),
                                   aligned,
                                   device,
                                   op.scratch_limit,
                                   varies.empty() ? nullptr : varies.data()};
  onnxfuse_reply reply(op.host);
  reply.context = key[0];
  reply.aligned = aligned;
  const Held planner = op.planner();
  op.host->plan(planner.get(), &question, &reply);
  reply.expect("a launch");
  if (reply.program) {
    if (reply.program->tape.outputs != op.outputs.size()) throw std::runtime_error("a launch program of other outputs");
    op.kept.learn(reply.program);
  }
  SharedLaunch launch = reply.launch ? std::move(reply.launch) : launch_by(reply.program, key, held);
  if (!launch) throw std::runtime_error("the launch program that was given has no launch for these shapes");
  if (launch->program) op.counts.answers.fetch_add(1, std::memory_order_relaxed);
  if (launch->output_shapes.size() != op.outputs.size())
    throw std::runtime_error("the plan has " + std::to_string(launch->output_shapes.size()) +
                             " output shapes, the op " + std::to_string(op.outputs.size()) + " outputs");
  if (const ScratchNeed need = launch->scratch_need(); !op.allows(need))
    throw std::runtime_error("it needs " + std::to_string(need.bytes()) + " bytes of scratch memory, " +
                             std::to_string(op.scratch_limit) + " are allowed");
  ask_for_shared_memory(*launch);
  return launch;
}

SharedLaunch plan(const Kernel& kernel, const Key& key, std::vector<tape::Register>& held) {
  Op& op = kernel.op;
  op.host->expect("no kernel can be planned");
  std::lock_guard<std::mutex> lock(op.planning);
  if (SharedLaunch launch = op.kept.find(key)) return launch;  // another thread planned it meanwhile
  SharedLaunch launch = ask_host(kernel, key, held);
  return launch->interim ? launch : op.kept.keep(key, std::move(launch));
}

SharedLaunch launch_for(const Kernel& kernel, Call& call) {
  Op& op = kernel.op;
  if (SharedLaunch launch = op.kept.find(call.key)) return launch;
  op.new_shapes.fetch_add(1, std::memory_order_relaxed);
  if (SharedLaunch launch = op.kept.by_program(call.key, call.held); launch && op.allows(launch->scratch_need())) {
    ask_for_shared_memory(*launch);
    op.counts.answers.fetch_add(1, std::memory_order_relaxed);
    return op.kept.keep(call.key, std::move(launch));
  }
  return plan(kernel, call.key, call.held);
}

void launch_kernel(const Kernel& kernel, void* stream, const Launch& launch, const ScratchPool* pool, Call& call) {
  if (launch.scratch_bytes) call.pointers.push_back(pool->address(launch.counter_bytes));
  call.arguments.clear();
  for (void*& pointer : call.pointers) call.arguments.push_back(&pointer);
  encode(launch.tensor_maps, call.pointers, call.tensor_maps);
  if (!launch.tensor_maps.empty()) call.arguments.push_back(call.tensor_maps.data());
  if (!launch.parameters.empty()) call.arguments.push_back(const_cast<char*>(launch.parameters.data()));
  const auto& [gx, gy, gz] = launch.grid;
  const auto& [bx, by, bz] = launch.block;
  cuda::LaunchAttribute early{cuda::kProgrammaticStreamSerialization, {1}};
  const cuda::LaunchConfig config{{gx, gy, gz}, {bx, by, bz}, launch.shared_bytes, stream, &early, launch.early};
  int result = cuda::driver().launch(&config, launch.function, call.arguments.data(), nullptr);
  if (result != cuda::kSuccess)
    fail(result, "launching grid " + text(launch.grid) + " block " + text(launch.block) + " with " +
                     std::to_string(launch.shared_bytes) + " bytes of shared memory");
  kernel.op.counts.launches.fetch_add(1, std::memory_order_relaxed);
}

void launch_kernels(const Kernel& kernel, void* stream, const Launch& launch, const ScratchPool* pool, Call& call) {
  const size_t tensors = call.pointers.size();
  if (!launch.empty()) launch_kernel(kernel, stream, launch, pool, call);
  call.pointers.resize(tensors);  // without the scratch memory
  for (const auto& next : launch.then) launch_kernels(kernel, stream, *next, pool, call);
}

void run(const Kernel& kernel, ort::KernelContext* context, Call& call) {
  cuda::Context current = nullptr;
  call.pointers.clear();
  call.key.clear();  // messages tell what was read of this call
  check(cuda::driver().context(&current), "cuCtxGetCurrent");
  call.key.assign({reinterpret_cast<int64_t>(current), 0});
  read_inputs(kernel, context, call);
  call.key[kAlignedWord] = call.aligned();
  SharedLaunch launch = launch_for(kernel, call);
  allocate_outputs(kernel, context, *launch, call);
  if (call.key[kAlignedWord] && !call.aligned()) {  // an output bound by the caller can start anywhere
    call.key[kAlignedWord] = 0;
    launch = launch_for(kernel, call);
  }
  void* stream = nullptr;
  check(ort::ContextStream::in(kernel.api)(context, &stream));
  const ScratchNeed need = launch->scratch_need();
  ScratchPool* const pool = need.bytes() ? &kernel.pool_of(current, stream) : nullptr;
  std::unique_lock<std::mutex> launching;
  if (pool) {
    launching = std::unique_lock<std::mutex>(pool->launching);
    pool->reserve(need);
  }
  launch_kernels(kernel, stream, *launch, pool, call);
  kernel.op.counts.calls.fetch_add(1, std::memory_order_relaxed);
}

ort::Status* status(ort::Api api, const std::string& message) {
  return ort::CreateStatus::in(api)(ort::kFail, message.c_str());
}

// ---- What ONNX Runtime calls ----------------------------------------------------------------------------------------

const Op& of(const ort::CustomOp* op) { return *static_cast<const Op*>(op); }

// ONNX Runtime makes the kernels of a session on the session's device. Where this thread has none the first run asks.
void expect_device(const Op& op) {
  int device = 0;
  if (!op.host->begins || cuda::driver().device(&device) != cuda::kSuccess) return;
  onnxfuse_reply reply(op.host);
  const Held planner = op.planner();
  op.host->begins(planner.get(), device, &reply);
  if (!reply.error.empty()) throw std::runtime_error(reply.error);
}

ort::Status* create_kernel(const ort::CustomOp* op, ort::Api api, const ort::KernelInfo* info, void** kernel) {
  auto& mine = const_cast<Op&>(of(op));
  try {
    expect_device(mine);
    auto made = std::make_unique<Kernel>(mine, api, info);
    mine.begins(made.get());
    *kernel = made.release();
    return nullptr;
  } catch (const std::exception& error) {
    return status(api, std::string(kDomain) + "." + mine.op_name + ": " + error.what());
  }
}

void destroy_kernel(void* raw) {
  const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(raw));
  kernel->op.ends(kernel.get());
}

ort::Status* compute(void* raw, ort::KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(raw);
  Workspace space;
  Call& call = *space;
  try {
    run(kernel, context, call);
    return nullptr;
  } catch (const Failed& failed) {
    return failed.status;
  } catch (const std::exception& error) {
    return status(kernel.api, place(kernel.op, call.key) + ": " + error.what());
  }
}

}  // namespace

Op::Op(SharedHost host, const onnxfuse_op& row, Held planner)
    : host(std::move(host)),
      op_name(row.name),
      inputs(row.inputs, row.inputs + row.input_count),
      outputs(row.outputs, row.outputs + row.output_count),
      on_host(row.on_host),
      counts(counts_of(op_name)),
      planner_(std::move(planner)) {
  name = [](const CustomOp* op) { return of(op).op_name.c_str(); };
  provider = [](const CustomOp*) { return kProvider; };
  input_type = [](const CustomOp* op, size_t i) { return of(op).inputs[i]; };
  input_count = [](const CustomOp* op) { return of(op).inputs.size(); };
  output_type = [](const CustomOp* op, size_t i) { return of(op).outputs[i]; };
  output_count = [](const CustomOp* op) { return of(op).outputs.size(); };
  input_arity = output_arity = [](const CustomOp*, size_t) { return ort::kRequired; };
  input_memory = [](const CustomOp* op, size_t i) {
    return of(op).is_on_host(i) ? ort::kHostInput : ort::kDeviceMemory;
  };
  start_version = [](const CustomOp*) { return 1; };
  end_version = [](const CustomOp*) { return INT_MAX; };
  may_inplace = kMayInplace[row.may_alias % kMayInplace.size()];
  release_may_inplace = [](int*, int*) {};  // the arrays are static
  create_kernel = engine::create_kernel;
  compute = engine::compute;
  destroy_kernel = engine::destroy_kernel;
}

void Op::begins(const Kernel* kernel) {
  std::lock_guard<std::mutex> lock(life_);
  kernels_.push_back(kernel);
}

// What goes is freed without a lock, which runs the host's code; but it goes before the next session can begin.
void Op::ends(const Kernel* kernel) {
  Kept::All kept_gone;
  {
    std::lock_guard<std::mutex> lock(life_);
    kernels_.erase(std::find(kernels_.begin(), kernels_.end(), kernel));
    if (!kernels_.empty()) return;
    kept_gone = kept.taken();
  }
  forget_planner();
}

void Op::options_gone() {
  {
    std::lock_guard<std::mutex> lock(life_);
    registered_ = false;
  }
  forget_planner();
}

void Op::add_pools(std::set<std::shared_ptr<ScratchPool>>& all) const {
  std::lock_guard<std::mutex> lock(life_);
  for (const Kernel* kernel : kernels_) {
    std::lock_guard<std::mutex> of_kernel(kernel->mutex);
    for (const auto& [stream, pool] : kernel->pools) all.insert(pool);
  }
}

bool Op::with_allocator(const std::function<void(ort::Api, ort::Allocator*)>& work) const {
  std::lock_guard<std::mutex> lock(life_);
  if (kernels_.empty() || !kernels_.back()->allocator) return false;
  work(kernels_.back()->api, kernels_.back()->allocator);
  return true;
}

Held Op::planner() const {
  std::lock_guard<std::mutex> lock(life_);
  return planner_;
}

// Where no session and no options are left that could ask, nothing is planned any more.
void Op::forget_planner() {
  Held gone;  // freed outside the lock: that runs the host's code
  std::lock_guard<std::mutex> lock(life_);
  if (kernels_.empty() && !registered_) gone.swap(planner_);
}

}  // namespace engine
