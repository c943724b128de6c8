// The native bridge: at once the Python extension `onnxfuse.runtime._bridge` and a custom-op library of ONNX Runtime.
//
// Python stages a table, one row per fused op of a model, and asks ONNX Runtime to register this library; the call of
// RegisterCustomOps that follows, in the same thread, turns the rows into custom ops of the CUDA provider. For shapes
// that an op has not seen, Python is asked once for a launch; from then on a launch is a lookup and a cuLaunchKernelEx
// on ONNX Runtime's own stream: no GIL, no Python, no synchronization.
//
// Lifetime. ONNX Runtime keeps raw pointers to the ops for as long as any session or session options know them; the ops
// themselves are never freed (a few hundred bytes each). What is big goes: the launches when the last session that uses
// the op goes, what plans them when the options that it was registered in are gone, too. Of launches an op keeps those
// of the shapes that it met again since others came. One may go while its kernel runs or stands in a CUDA graph: its
// parameters were copied, its function stays loaded. Scratch memory does not go like that, so launches with scratch
// memory stay.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda_driver.h"
#include "ort_api.h"
#include "tape.h"

namespace py = pybind11;

namespace {

constexpr const char* kDomain = "onnxfuse";
constexpr const char* kProvider = "CUDAExecutionProvider";
constexpr uintptr_t kAlignment = 16;

using Shape = std::vector<int64_t>;
using Dim3 = std::array<unsigned, 3>;

bool python_is_leaving() {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

// ---- What Python answers for one set of shapes --------------------------------------------------------------------

// A matrix as the GPU's bulk copy engine sees it.
struct TensorMap {
  size_t pointer;  // which of the kernel's pointers
  size_t offset;   // bytes from there
  int type;        // CUtensorMapDataType
  std::vector<uint64_t> extents, strides;
  std::vector<uint32_t> box;
  // Only where a window slides over the pixels of an image: the box is (channels, pixels).
  std::vector<int> lower, upper;
  std::vector<uint32_t> steps;

  TensorMap() = default;
  explicit TensorMap(const py::handle& map)
      : pointer(map.attr("pointer").cast<size_t>()),
        offset(map.attr("offset").cast<size_t>()),
        type(tensor_map_type(map.attr("dtype").cast<int>(), map.attr("to_tf32").cast<bool>())),
        extents(map.attr("extents").cast<std::vector<uint64_t>>()),
        strides(map.attr("strides").cast<std::vector<uint64_t>>()),
        box(map.attr("box").cast<std::vector<uint32_t>>()),
        steps(extents.size(), 1) {
    const py::object window = map.attr("window");
    if (window.is_none()) return;
    lower = window.attr("lower").cast<std::vector<int>>();
    upper = window.attr("upper").cast<std::vector<int>>();
    const auto strides_of_window = window.attr("strides").cast<std::vector<uint32_t>>();
    std::copy(strides_of_window.begin(), strides_of_window.end(), steps.begin() + 1);
  }

  static int tensor_map_type(int onnx_type, bool to_tf32) {
    switch (onnx_type) {
      case 1: return to_tf32 ? 11 : 7;  // FLOAT -> TFLOAT32, FLOAT32
      case 6: return 3;    // INT32
      case 10: return 6;   // FLOAT16
      case 12: return 2;   // UINT32
      case 16: return 9;   // BFLOAT16
      case 5: case 4: return 1;  // INT16, UINT16 -> UINT16: a copy does not look at the bits
      default: throw std::runtime_error("a tensor map of element type " + std::to_string(onnx_type));
    }
  }
};

std::vector<TensorMap> tensor_maps_in(const py::object& maps) {
  std::vector<TensorMap> all;
  for (const py::handle& map : maps) all.emplace_back(map);
  return all;
}

// Something of Python's that others share; the last one to let go of it may hold no GIL.
using SharedObject = std::shared_ptr<const py::object>;

SharedObject shared(py::object object) {
  return SharedObject(new py::object(std::move(object)), [](const py::object* held) {
    if (python_is_leaving()) return;
    py::gil_scoped_acquire gil;
    delete held;
  });
}

// A kernel that programs launch.
struct Loaded {
  cuda::Function function = nullptr;  // none: not compiled yet
  bool early = false;
  SharedObject owner;  // keeps the function's module loaded
  mutable std::atomic<unsigned> shared_bytes{cuda::kSharedBytesWithoutAsking};  // that were asked for

  explicit Loaded(const py::handle& kernel)
      : function(reinterpret_cast<cuda::Function>(kernel.attr("function").cast<uintptr_t>())),
        early(kernel.attr("early").cast<bool>()),
        owner(shared(py::reinterpret_borrow<py::object>(kernel.attr("module")))) {}
};

// What answers for the shapes of a family on one device, by pointers of one kind.
struct Program {
  tape::Tape tape;
  std::vector<std::shared_ptr<const Loaded>> kernels;
  int64_t family;        // the number by which a program takes the place of the one before
  int64_t context;
  bool aligned;
  std::vector<std::vector<int64_t>> apart;  // shapes that the planner plans itself: those with a measured variant
  SharedObject rooms;    // bytes -> what gives scratch memory, as a launch of the planner's has it

  Program(const py::handle& program, int64_t context, bool aligned)
      : tape(program.attr("tape").cast<std::string>()),
        family(program.attr("family").cast<int64_t>()),
        context(context),
        aligned(aligned),
        apart(program.attr("apart").cast<std::vector<std::vector<int64_t>>>()),
        rooms(shared(program.attr("rooms"))) {
    for (const py::handle& kernel : program.attr("kernels")) kernels.push_back(std::make_shared<const Loaded>(kernel));
    if (kernels.size() != tape.kernels) throw std::runtime_error("a launch program of other kernels than are there");
  }

  bool plans_itself(const int64_t* begin, const int64_t* end) const {
    return std::any_of(apart.begin(), apart.end(), [&](const auto& shapes) {
      return std::equal(shapes.begin(), shapes.end(), begin, end);
    });
  }
};

struct Launch {
  cuda::Function function;
  Dim3 grid, block;
  unsigned shared_bytes;
  bool early;
  std::string parameters;
  std::vector<Shape> output_shapes;
  std::vector<TensorMap> tensor_maps;
  bool uses_scratch;
  bool passing = false;  // the scratch memory is the op's, for all of its shapes
  mutable std::mutex scratch_mutex;
  mutable std::unordered_map<void*, void*> scratch;  // by stream, on which launches run one after the other
  std::vector<std::unique_ptr<const Launch>> then;  // after this one, on the same pointers
  // Keeps the function's module loaded, and the scratch memory; touched only under the GIL. By a program there is none
  // until there is scratch memory.
  mutable py::object owner;
  size_t scratch_bytes = 0;
  std::shared_ptr<const Program> program;  // by which it was made, and its kernel
  std::shared_ptr<const Loaded> kernel;

  explicit Launch(const py::object& answer)
      : function(reinterpret_cast<cuda::Function>(answer.attr("function").cast<uintptr_t>())),
        grid(answer.attr("grid").cast<Dim3>()),
        block(answer.attr("block").cast<Dim3>()),
        shared_bytes(answer.attr("shared_bytes").cast<unsigned>()),
        early(answer.attr("early").cast<bool>()),
        parameters(answer.attr("parameters").cast<py::bytes>()),
        output_shapes(answer.attr("output_shapes").cast<std::vector<Shape>>()),
        tensor_maps(tensor_maps_in(answer.attr("tensor_maps"))),
        uses_scratch(answer.attr("scratch_bytes").cast<size_t>() > 0),
        passing(answer.attr("passing").cast<bool>()),
        owner(answer),
        scratch_bytes(answer.attr("scratch_bytes").cast<size_t>()) {
    for (const py::handle& next : answer.attr("then"))
      then.push_back(std::make_unique<const Launch>(py::reinterpret_borrow<py::object>(next)));
  }

  // The answer of a program that its tape has found at `at`; the tape was checked, so its words are in their bounds.
  Launch(std::shared_ptr<const Program> by, const tape::Register* held, size_t& at) : program(std::move(by)) {
    const std::vector<uint32_t>& words = program->tape.words;
    const auto number = [&] { return held[words[at++]].integer; };
    const auto small = [&] {
      const int64_t value = number();
      if (value < 0 || value > UINT_MAX) throw std::runtime_error("a launch program that launches nothing possible");
      return static_cast<unsigned>(value);
    };
    const auto several = [&](auto& to) {
      to.resize(words[at++]);
      for (auto& value : to) value = static_cast<std::decay_t<decltype(value)>>(number());
    };
    kernel = program->kernels[words[at++]];
    function = kernel->function;
    early = kernel->early;
    for (unsigned& n : grid) n = small();
    for (unsigned& n : block) n = small();
    shared_bytes = small();
    scratch_bytes = static_cast<size_t>(number());
    uses_scratch = scratch_bytes > 0;
    passing = words[at++] != 0;
    const size_t width = words[at++] / 8, count = words[at++];
    parameters.resize(width * count);
    for (size_t i = 0; i < count; ++i) {
      const int64_t value = number();
      std::memcpy(&parameters[i * width], &value, width);  // the low half first: little-endian, as the GPU
    }
    output_shapes.resize(words[at++]);
    for (Shape& shape : output_shapes) several(shape);
    tensor_maps.resize(words[at++]);
    for (TensorMap& map : tensor_maps) {
      map.pointer = words[at++];
      const int type = static_cast<int>(words[at++]);
      map.type = TensorMap::tensor_map_type(type, words[at++] != 0);
      const bool window = words[at++] != 0;
      map.offset = static_cast<size_t>(number());
      several(map.extents);
      several(map.strides);
      several(map.box);
      map.steps.assign(map.extents.size(), 1);
      if (window) {
        several(map.lower);
        several(map.upper);
        std::vector<uint32_t> steps;
        several(steps);
        std::copy(steps.begin(), steps.end(), map.steps.begin() + 1);
      }
    }
    const uint32_t after = words[at++];
    for (uint32_t i = 0; i < after; ++i) then.push_back(std::make_unique<const Launch>(program, held, at));
  }

  bool has_owner() const {
    return owner || std::any_of(then.begin(), then.end(), [](const auto& next) { return next->has_owner(); });
  }
  bool is_loaded() const {
    return function && std::all_of(then.begin(), then.end(), [](const auto& next) { return next->is_loaded(); });
  }
  bool has_scratch() const {
    return (uses_scratch && !passing) || std::any_of(then.begin(), then.end(), [](const auto& next) { return next->has_scratch(); });
  }
  bool empty() const { return grid[0] == 0 || grid[1] == 0 || grid[2] == 0; }
};

// The CUDA context, whether all pointers are aligned, then rank and dimensions of each input.
using Key = std::vector<int64_t>;
constexpr size_t kAlignedWord = 1, kShapesBegin = 2;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 1469598103934665603ull;
    for (int64_t word : key) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 1099511628211ull;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// Whoever uses a launch shares it: another thread may drop it for other shapes meanwhile.
using SharedLaunch = std::shared_ptr<const Launch>;

// The last one to let go of a launch may be a run, without the GIL.
void free_launch(const Launch* launch) {
  if (!launch->has_owner()) {
    delete launch;
    return;
  }
  if (python_is_leaving()) return;  // the process takes it with it
  py::gil_scoped_acquire gil;
  delete launch;
}

// The launch that a program has for these shapes, if it has one and its kernels are loaded; in the registers given.
SharedLaunch launch_by(const std::shared_ptr<const Program>& program, const Key& key, std::vector<tape::Register>& held) {
  if (program->context != key[0] || program->aligned != (key[kAlignedWord] != 0)) return nullptr;
  const int64_t found = program->tape.evaluate(key.data() + kShapesBegin, key.size() - kShapesBegin, held);
  if (found < 0 || program->plans_itself(key.data() + kShapesBegin, key.data() + key.size())) return nullptr;
  size_t at = static_cast<size_t>(found);
  SharedLaunch launch(new Launch(program, held.data(), at), free_launch);
  return launch->is_loaded() ? launch : nullptr;
}

struct Kept {
  SharedLaunch launch;
  std::atomic<bool> met{false};  // again, since it was looked at for a place

  explicit Kept(SharedLaunch launch) : launch(std::move(launch)) {}
};

using Launches = std::unordered_map<Key, Kept, KeyHash>;
constexpr size_t kMostPrograms = 64;    // of an op: families of shapes, each for the nodes that have the same weights
constexpr size_t kMostLaunches = 1024;  // of an op: a server's lengths of text; each is a few kilobytes

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

size_t inplace_mask(const std::vector<size_t>& inputs) {
  size_t mask = 0;
  for (size_t input : inputs)
    if (input < kInplaceInputs) mask |= size_t{1} << input;
  return mask;
}

// ---- The fused op --------------------------------------------------------------------------------------------------

using Counter = std::atomic<uint64_t>;

// An op without elements is called and launches nothing; a plan may be several launches. Programs answer for shapes.
struct Counts {
  Counter calls{0}, launches{0}, answers{0};
};

// By op name, for the whole process. Never destroyed: a session may outlive static destructors.
struct Counters {
  std::mutex mutex;
  std::map<std::string, Counts> by_name;
};

Counters& counters() {
  static auto* all = new Counters;
  return *all;
}

Counts& counts_of(const std::string& name) {
  std::lock_guard<std::mutex> lock(counters().mutex);
  return counters().by_name[name];
}

// Scratch memory that holds nothing from one plan to the next.
struct Room {
  void* memory;
  size_t bytes;
  py::object owner;  // touched only under the GIL
};

struct Op : ort::CustomOp {
  std::string op_name;
  std::vector<ort::ElementType> inputs, outputs;
  py::object planner;   // (shapes, aligned, device, which extents vary or None) -> launch
  py::object planning;  // a threading.Lock: one thread plans, and the GIL is free while others wait
  Counts& counts;
  size_t kernels = 0;      // of living sessions; guarded by the GIL
  bool registered = true;  // in options that are still there; guarded by the GIL
  std::shared_mutex mutex;
  Launches launches;  // guarded by `mutex`
  std::vector<std::shared_ptr<const Program>> programs;  // guarded by `mutex`
  std::vector<Launches::value_type*> ring;  // of all `launches`, by which the place for a new one is found
  size_t hand = 0;                          // in the ring, where that begins
  std::mutex launching;  // plans of several launches that share a room: those of two threads do not mix on a stream
  std::unordered_map<void*, std::vector<Room>> rooms;  // by stream; guarded by `launching`

  explicit Op(const py::handle& row);

  SharedLaunch find(const Key& key) {
    std::shared_lock<std::shared_mutex> lock(mutex);
    auto found = launches.find(key);
    if (found == launches.end()) return nullptr;
    auto& met = found->second.met;
    if (!met.load(std::memory_order_relaxed)) met.store(true, std::memory_order_relaxed);
    return found->second.launch;
  }

  SharedLaunch keep(const Key& key, SharedLaunch launch) {
    SharedLaunch gone;  // freed outside the lock: that can run Python code
    std::unique_lock<std::shared_mutex> lock(mutex);
    const auto [at, fresh] = launches.try_emplace(key, std::move(launch));
    if (!fresh) return at->second.launch;
    Launches::value_type** const place = launches.size() > kMostLaunches ? unmet() : nullptr;
    if (place) {
      gone = std::move((*place)->second.launch);
      launches.erase(launches.find((*place)->first));
      *place = &*at;
    } else {
      ring.push_back(&*at);
    }
    return at->second.launch;
  }

  // The place in the ring of a launch that was not met again since the hand came by, behind which the hand then is: a
  // few steps, however many there are. None where all have scratch memory.
  Launches::value_type** unmet() {
    for (size_t left = 2 * ring.size(); left > 0; --left) {
      Launches::value_type*& one = ring[hand];
      hand = (hand + 1) % ring.size();
      Kept& kept = one->second;
      if (!kept.launch->has_scratch() && !kept.met.exchange(false, std::memory_order_relaxed)) return &one;
    }
    return nullptr;
  }

  // The launch that a program has for these shapes, if one has; without the GIL, in the registers that are given.
  SharedLaunch by_program(const Key& key, std::vector<tape::Register>& held) {
    std::shared_lock<std::shared_mutex> lock(mutex);
    for (const auto& program : programs)
      if (SharedLaunch launch = launch_by(program, key, held)) return launch;
    return nullptr;
  }

  // In the place of the program that it grew from; the newest first.
  void learn(std::shared_ptr<const Program> program) {
    std::shared_ptr<const Program> gone;  // freed outside the lock: that can run Python code
    std::unique_lock<std::shared_mutex> lock(mutex);
    for (auto& one : programs)
      if (one->family == program->family && one->context == program->context) {
        gone = std::exchange(one, std::move(program));
        return lock.unlock();
      }
    programs.insert(programs.begin(), std::move(program));
    if (programs.size() > kMostPrograms) {
      gone = std::move(programs.back());
      programs.pop_back();
    }
    lock.unlock();
  }

  // With the GIL: where no session and no options are left that could ask, nothing is planned any more.
  void forget_planner() {
    if (kernels > 0 || registered) return;
    planner = py::none();
    planning = py::none();
  }

  void forget_launches() {
    Launches gone;  // freed outside the lock: that can run Python code
    std::vector<std::shared_ptr<const Program>> programs_gone;
    rooms.clear();  // with the GIL, and no run is left
    {
      std::unique_lock<std::shared_mutex> lock(mutex);
      gone.swap(launches);
      ring.clear();
      hand = 0;
      programs_gone.swap(programs);
    }
  }
};

// Of one node.
struct Kernel {
  Op& op;
  ort::Api api;
  mutable std::mutex mutex;
  mutable std::vector<int64_t> first;  // rank and extents of each input in its first run; guarded by `mutex`
  mutable std::vector<char> varies;    // which of them have been others since; guarded by `mutex`

  Kernel(Op& op, ort::Api api) : op(op), api(api) {}

  // Which words of the shapes have varied in this node's runs, with this one; none where none has.
  std::vector<char> varied(const Key& key) const {
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
    return any ? varies : std::vector<char>();
  }
};

// As many as onnxfuse/kernels/limits.py lets a plan have.
constexpr size_t kMostTensorMaps = 24;

// What one call works with.
struct Call {
  Key key;
  std::vector<void*> pointers;   // inputs, outputs, scratch memory
  std::array<cuda::TensorMap, kMostTensorMaps> tensor_maps;
  std::vector<void*> arguments;  // addresses of the pointers, then of the tensor maps, then of the parameters
  std::vector<tape::Register> held;  // what programs compute with

  bool aligned() const {
    return std::all_of(pointers.begin(), pointers.end(),
                       [](void* p) { return reinterpret_cast<uintptr_t>(p) % kAlignment == 0; });
  }
};

// A call's own work space, from those that are idle in this thread so that a launch allocates nothing. Not one for all
// calls of a thread: a planner is Python, which may run another session before it answers.
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

std::string text(const Dim3& d) {
  return "(" + std::to_string(d[0]) + ", " + std::to_string(d[1]) + ", " + std::to_string(d[2]) + ")";
}

std::string text(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

std::string place(const Op& op, const Key& key) {
  std::string out = std::string(kDomain) + "." + op.op_name + " with inputs";
  for (const Shape& shape : shapes_in(key)) out += " " + text(shape);
  return out;
}

// ---- One call ------------------------------------------------------------------------------------------------------

// A status of ONNX Runtime's own, on its way back to ONNX Runtime.
struct Failed {
  ort::Status* status;
};

void check(ort::Status* status) {
  if (status) throw Failed{status};
}

[[noreturn]] void fail(int cuda_result, const std::string& what) {
  throw std::runtime_error(what + " failed: " + cuda::driver().words(cuda_result));
}

void check(int cuda_result, const char* what) {
  if (cuda_result != cuda::kSuccess) fail(cuda_result, what);
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
    call.key.push_back(static_cast<int64_t>(rank));
    call.key.insert(call.key.end(), dims, dims + rank);
    void* data = nullptr;
    check(ort::TensorData::in(kernel.api)(const_cast<ort::Value*>(value), &data));
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

// `with lock:`, for a Python lock.
class Held {
 public:
  explicit Held(const py::object& lock) : lock_(lock) { lock_.attr("acquire")(); }
  ~Held() { lock_.attr("release")(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  const py::object& lock_;
};

void ask_for_shared_memory(const Launch& launch) {
  for (const auto& next : launch.then) ask_for_shared_memory(*next);
  if (launch.shared_bytes <= (launch.kernel ? launch.kernel->shared_bytes.load() : cuda::kSharedBytesWithoutAsking))
    return;
  int result = cuda::driver().set_function_attribute(launch.function, cuda::kMaxDynamicSharedBytes,
                                                     static_cast<int>(launch.shared_bytes));
  if (result != cuda::kSuccess)
    fail(result, "asking for " + std::to_string(launch.shared_bytes) + " bytes of shared memory per block");
  if (launch.kernel) launch.kernel->shared_bytes.store(launch.shared_bytes);
}

// Which extents vary, as the planner takes it: for each input, for each extent.
py::object extents_that_vary(const Key& key, const std::vector<char>& varied) {
  if (varied.empty()) return py::none();
  py::list inputs;
  for (size_t i = kShapesBegin; i < key.size(); i += 1 + key[i]) {
    py::list extents;
    for (int64_t n = 1; n <= key[i]; ++n) extents.append(varied[i - kShapesBegin + n] != 0);
    inputs.append(py::tuple(extents));
  }
  return py::tuple(inputs);
}

std::shared_ptr<const Program> learned(Op& op, const py::object& program, const Key& key) {
  auto made = std::make_shared<const Program>(program, key[0], key[kAlignedWord] != 0);
  if (made->tape.outputs != op.outputs.size()) throw std::runtime_error("a launch program of other outputs");
  op.learn(made);
  return made;
}

// Python answers with a launch, which may bring a program along, or with a program alone that has the launch.
SharedLaunch ask_python(const Kernel& kernel, const Key& key) {
  Op& op = kernel.op;
  int device = 0;
  check(cuda::driver().device(&device), "cuCtxGetDevice");
  py::tuple shapes(py::cast(shapes_in(key)));
  for (size_t i = 0; i < shapes.size(); ++i) shapes[i] = py::tuple(shapes[i]);
  const bool aligned = key[kAlignedWord] != 0;
  const py::object answer = op.planner(shapes, aligned, device, extents_that_vary(key, kernel.varied(key)));
  SharedLaunch launch;
  if (py::hasattr(answer, "tape")) {
    const auto program = learned(op, answer, key);
    std::vector<tape::Register> held;
    launch = launch_by(program, key, held);
    if (!launch) throw std::runtime_error("the launch program that was given has no launch for these shapes");
    op.counts.answers.fetch_add(1, std::memory_order_relaxed);
  } else {
    launch = SharedLaunch(new Launch(answer), free_launch);
    if (launch->output_shapes.size() != op.outputs.size())
      throw std::runtime_error("the plan has " + std::to_string(launch->output_shapes.size()) +
                               " output shapes, the op " + std::to_string(op.outputs.size()) + " outputs");
    const py::object program = answer.attr("program");
    if (!program.is_none()) learned(op, program, key);
  }
  ask_for_shared_memory(*launch);
  return launch;
}

// The message and the hint of an OnnxfuseError; anything else is a defect and keeps its traceback.
std::string words(const py::error_already_set& error) {
  if (!py::hasattr(error.value(), "hint")) return error.what();
  return py::str(error.value()).cast<std::string>() + " " + py::str(error.value().attr("hint")).cast<std::string>();
}

SharedLaunch plan(const Kernel& kernel, const Key& key) {
  Op& op = kernel.op;
  if (python_is_leaving()) throw std::runtime_error("Python is shutting down, no kernel can be planned");
  py::gil_scoped_acquire gil;
  Held lock(op.planning);
  if (SharedLaunch launch = op.find(key)) return launch;  // another thread planned it meanwhile
  try {
    return op.keep(key, ask_python(kernel, key));
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(words(error));  // as text, while the GIL is held
  }
}

SharedLaunch launch_for(const Kernel& kernel, Call& call) {
  if (SharedLaunch launch = kernel.op.find(call.key)) return launch;
  if (SharedLaunch launch = kernel.op.by_program(call.key, call.held)) {
    ask_for_shared_memory(*launch);
    kernel.op.counts.answers.fetch_add(1, std::memory_order_relaxed);
    return kernel.op.keep(call.key, std::move(launch));
  }
  return plan(kernel, call.key);
}

// The addresses of tensors change from run to run, so the maps are encoded for every launch.
void encode(const std::vector<TensorMap>& maps, const std::vector<void*>& pointers,
            std::array<cuda::TensorMap, kMostTensorMaps>& encoded) {
  if (maps.size() > encoded.size())
    throw std::runtime_error(std::to_string(maps.size()) + " tensor maps, expected at most " +
                             std::to_string(encoded.size()));
  for (size_t i = 0; i < maps.size(); ++i) {
    const TensorMap& map = maps[i];
    const unsigned rank = static_cast<unsigned>(map.extents.size());
    void* const address = static_cast<char*>(pointers.at(map.pointer)) + map.offset;
    if (map.lower.empty())
      check(cuda::driver().encode_tensor_map(&encoded[i], map.type, rank, address, map.extents.data(),
                                             map.strides.data(), map.box.data(), map.steps.data(), 0,
                                             cuda::kSwizzle128B, cuda::kPromoteToL2_128B, 0),
            "cuTensorMapEncodeTiled");
    else
      check(cuda::driver().encode_window_map(&encoded[i], map.type, rank, address, map.extents.data(),
                                             map.strides.data(), map.lower.data(), map.upper.data(), map.box.at(0),
                                             map.box.at(1), map.steps.data(), 0, cuda::kSwizzle128B,
                                             cuda::kPromoteToL2_128B, 0),
            "cuTensorMapEncodeIm2col");
  }
}

// The scratch memory of a stream: asked for once, in one of the runs before a CUDA graph is captured.
void* scratch_of(const Launch& launch, void* stream) {
  {
    std::lock_guard<std::mutex> lock(launch.scratch_mutex);
    if (auto found = launch.scratch.find(stream); found != launch.scratch.end()) return found->second;
  }
  if (python_is_leaving()) throw std::runtime_error("Python is shutting down, no scratch memory can be allocated");
  void* memory = nullptr;
  {
    py::gil_scoped_acquire gil;
    try {
      if (!launch.owner) launch.owner = (*launch.program->rooms)(launch.scratch_bytes);
      memory = reinterpret_cast<void*>(launch.owner.attr("scratch")().cast<uintptr_t>());
    } catch (const py::error_already_set& error) {
      throw std::runtime_error(words(error));  // as text, while the GIL is held
    }
  }
  std::lock_guard<std::mutex> lock(launch.scratch_mutex);
  return launch.scratch.emplace(stream, memory).first->second;
}

// The first room of the op that is large enough, so that all launches of a plan get the same.
void* room_of(Op& op, const Launch& launch, void* stream) {
  std::vector<Room>& rooms = op.rooms[stream];
  for (const Room& room : rooms)
    if (room.bytes >= launch.scratch_bytes) return room.memory;
  if (python_is_leaving()) throw std::runtime_error("Python is shutting down, no scratch memory can be allocated");
  py::gil_scoped_acquire gil;
  try {
    py::object owner = launch.program ? (*launch.program->rooms)(launch.scratch_bytes) : launch.owner;
    void* memory = reinterpret_cast<void*>(owner.attr("scratch")().cast<uintptr_t>());
    rooms.push_back({memory, launch.scratch_bytes, std::move(owner)});
    return memory;
  } catch (const py::error_already_set& error) {
    throw std::runtime_error(words(error));  // as text, while the GIL is held
  }
}

void launch_kernel(const Kernel& kernel, void* stream, const Launch& launch, Call& call) {
  if (launch.uses_scratch)
    call.pointers.push_back(launch.passing ? room_of(kernel.op, launch, stream) : scratch_of(launch, stream));
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

void launch_kernels(const Kernel& kernel, void* stream, const Launch& launch, Call& call) {
  const size_t tensors = call.pointers.size();
  if (!launch.empty()) launch_kernel(kernel, stream, launch, call);
  call.pointers.resize(tensors);  // without the scratch memory
  for (const auto& next : launch.then) launch_kernels(kernel, stream, *next, call);
}

void run(const Kernel& kernel, ort::KernelContext* context, Call& call) {
  cuda::Context current = nullptr;
  check(cuda::driver().context(&current), "cuCtxGetCurrent");
  call.pointers.clear();
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
  std::unique_lock<std::mutex> launching;
  if (launch->passing) launching = std::unique_lock<std::mutex>(kernel.op.launching);
  launch_kernels(kernel, stream, *launch, call);
  kernel.op.counts.calls.fetch_add(1, std::memory_order_relaxed);
}

ort::Status* status(ort::Api api, const std::string& message) {
  return ort::CreateStatus::in(api)(ort::kFail, message.c_str());
}

// ---- What ONNX Runtime calls ----------------------------------------------------------------------------------------

const Op& of(const ort::CustomOp* op) { return *static_cast<const Op*>(op); }

ort::Status* create_kernel(const ort::CustomOp* op, ort::Api api, const ort::KernelInfo*, void** kernel) {
  py::gil_scoped_acquire gil;
  auto& mine = const_cast<Op&>(of(op));
  ++mine.kernels;
  *kernel = new Kernel(mine, api);
  return nullptr;
}

void destroy_kernel(void* raw) {
  std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(raw));
  if (python_is_leaving()) return;  // the process takes the launches with it
  py::gil_scoped_acquire gil;
  if (--kernel->op.kernels > 0) return;
  kernel->op.forget_launches();
  kernel->op.forget_planner();
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

Op::Op(const py::handle& row)
    : op_name(row.attr("name").cast<std::string>()),
      inputs(row.attr("inputs").cast<std::vector<ort::ElementType>>()),
      outputs(row.attr("outputs").cast<std::vector<ort::ElementType>>()),
      planner(row.attr("planner")),
      planning(py::module_::import("threading").attr("Lock")()),
      counts(counts_of(op_name)) {
  name = [](const CustomOp* op) { return of(op).op_name.c_str(); };
  provider = [](const CustomOp*) { return kProvider; };
  input_type = [](const CustomOp* op, size_t i) { return of(op).inputs[i]; };
  input_count = [](const CustomOp* op) { return of(op).inputs.size(); };
  output_type = [](const CustomOp* op, size_t i) { return of(op).outputs[i]; };
  output_count = [](const CustomOp* op) { return of(op).outputs.size(); };
  input_arity = output_arity = [](const CustomOp*, size_t) { return ort::kRequired; };
  input_memory = [](const CustomOp*, size_t) { return ort::kDeviceMemory; };
  start_version = [](const CustomOp*) { return 1; };
  end_version = [](const CustomOp*) { return INT_MAX; };
  may_inplace = kMayInplace[inplace_mask(row.attr("may_alias").cast<std::vector<size_t>>())];
  release_may_inplace = [](int*, int*) {};  // the arrays are static
  create_kernel = ::create_kernel;
  compute = ::compute;
  destroy_kernel = ::destroy_kernel;
}

// ---- Registration ---------------------------------------------------------------------------------------------------

// The rows for the registration that this thread is about to ask for. The ops are not freed, see the top.
thread_local std::vector<Op*> staged;

// Returns the ops, for `forget`.
std::vector<uintptr_t> stage(const py::iterable& rows) {
  staged.clear();
  for (const py::handle& row : rows) staged.push_back(new Op(row));
  std::vector<uintptr_t> ops;
  for (const Op* op : staged) ops.push_back(reinterpret_cast<uintptr_t>(op));
  return ops;
}

// The options that these ops were registered in are gone.
void forget(const std::vector<uintptr_t>& ops) {
  for (uintptr_t address : ops) {
    Op* op = reinterpret_cast<Op*>(address);
    op->registered = false;
    op->forget_planner();
  }
}

py::dict facts(const Launch& launch) {
  py::list maps, then;
  for (const TensorMap& map : launch.tensor_maps)
    maps.append(py::make_tuple(map.pointer, map.offset, map.type, map.extents, map.strides, map.box, map.lower,
                               map.upper, map.steps));
  for (const auto& next : launch.then) then.append(facts(*next));
  return py::dict(py::arg("function") = reinterpret_cast<uintptr_t>(launch.function), py::arg("grid") = launch.grid,
                  py::arg("block") = launch.block, py::arg("shared_bytes") = launch.shared_bytes,
                  py::arg("parameters") = py::bytes(launch.parameters), py::arg("output_shapes") = launch.output_shapes,
                  py::arg("tensor_maps") = maps, py::arg("scratch_bytes") = launch.scratch_bytes,
                  py::arg("passing") = launch.passing,
                  py::arg("then") = then);
}

std::map<std::string, uint64_t> counted(Counter Counts::*which) {
  std::lock_guard<std::mutex> lock(counters().mutex);
  std::map<std::string, uint64_t> all;
  for (const auto& [name, counts] : counters().by_name)
    all.emplace(name, (counts.*which).load(std::memory_order_relaxed));
  return all;
}

void reset_counts() {
  std::lock_guard<std::mutex> lock(counters().mutex);
  for (auto& [name, counts] : counters().by_name)
    for (Counter* count : {&counts.calls, &counts.launches, &counts.answers})
      count->store(0, std::memory_order_relaxed);
}

// What a program answers, for tests: the fields of a launch by name, None where the planner has to be asked.
py::object evaluated(const py::object& program, const std::vector<Shape>& shapes) {
  auto made = std::make_shared<const Program>(program, 0, true);
  std::vector<int64_t> words;
  for (const Shape& shape : shapes) {
    words.push_back(static_cast<int64_t>(shape.size()));
    words.insert(words.end(), shape.begin(), shape.end());
  }
  std::vector<tape::Register> held;
  const int64_t found = made->tape.evaluate(words.data(), words.size(), held);
  if (found < 0 || made->plans_itself(words.data(), words.data() + words.size())) return py::none();
  size_t at = static_cast<size_t>(found);
  return facts(Launch(made, held.data(), at));
}

// Of many shapes, each as ranks and extents and all equally long, those that a tape does not answer, by their numbers.
std::vector<size_t> unanswered(const std::string& bytes, const py::bytes& shapes, size_t width) {
  const tape::Tape tape(bytes);
  const std::string_view given = shapes;
  if (width == 0 || given.size() % (width * sizeof(int64_t)) != 0) throw std::runtime_error("shapes of unequal lengths");
  py::gil_scoped_release release;
  std::vector<size_t> found;
  std::vector<tape::Register> held;
  std::vector<int64_t> words(width);
  const size_t count = given.size() / (width * sizeof(int64_t));
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(words.data(), given.data() + i * width * sizeof(int64_t), width * sizeof(int64_t));
    if (tape.evaluate(words.data(), width, held) < 0) found.push_back(i);
  }
  return found;
}

ort::Status* add_domain(ort::Api api, ort::SessionOptions* options) {
  ort::CustomOpDomain* domain = nullptr;
  if (auto* failed = ort::CreateDomain::in(api)(kDomain, &domain)) return failed;
  for (const Op* op : std::exchange(staged, {}))
    if (auto* failed = ort::AddOp::in(api)(domain, op)) return failed;
  return ort::AddDomain::in(api)(options, domain);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(ort::SessionOptions* options,
                                                                                 const ort::ApiBase* base) {
  ort::Api api = base->get_api(ort::kApiVersion);
  if (!api)
    return status(base->get_api(1),
                  std::string("onnxfuse needs ONNX Runtime 1.24 or newer, this is ") + base->version());
  if (staged.empty())
    return status(api, "no fused ops are staged: register with onnxfuse.register(session_options, model)");
  return add_domain(api, options);
}

// What a launch would pass between pointers and parameters; for those who launch by other means.
py::bytes encoded_tensor_maps(const py::object& maps, const std::vector<uintptr_t>& addresses) {
  std::vector<void*> pointers;
  for (uintptr_t address : addresses) pointers.push_back(reinterpret_cast<void*>(address));
  const std::vector<TensorMap> all = tensor_maps_in(maps);
  std::array<cuda::TensorMap, kMostTensorMaps> encoded;
  encode(all, pointers, encoded);
  return py::bytes(reinterpret_cast<const char*>(encoded.data()), all.size() * sizeof(cuda::TensorMap));
}

PYBIND11_MODULE(_bridge, m) {
  m.def("stage", &stage, py::arg("rows"));
  m.def("forget", &forget, py::arg("ops"));
  m.def("encoded_tensor_maps", &encoded_tensor_maps, py::arg("maps"), py::arg("addresses"));
  m.def("calls", [] { return counted(&Counts::calls); });
  m.def("launches", [] { return counted(&Counts::launches); });
  m.def("answers", [] { return counted(&Counts::answers); });
  m.def("reset_counts", &reset_counts);
  m.def("evaluated", &evaluated, py::arg("program"), py::arg("shapes"));
  m.def("unanswered", &unanswered, py::arg("tape"), py::arg("shapes"), py::arg("width"));
  m.attr("API_VERSION") = ort::kApiVersion;
  m.attr("API_SLOTS") = py::dict(
      py::arg("CreateStatus") = ort::CreateStatus::number, py::arg("CreateCustomOpDomain") = ort::CreateDomain::number,
      py::arg("CustomOpDomain_Add") = ort::AddOp::number, py::arg("AddCustomOpDomain") = ort::AddDomain::number,
      py::arg("GetTensorMutableData") = ort::TensorData::number,
      py::arg("KernelContext_GetInput") = ort::ContextInput::number,
      py::arg("KernelContext_GetOutput") = ort::ContextOutput::number,
      py::arg("KernelContext_GetGPUComputeStream") = ort::ContextStream::number,
      py::arg("GetTensorElementTypeAndShapeDataReference") = ort::TensorShape::number);
}
