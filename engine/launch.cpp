#include "launch.h"

#include <algorithm>
#include <climits>

namespace engine {

void fail(int cuda_result, const std::string& what) {
  throw std::runtime_error(what + " failed: " + cuda::driver().words(cuda_result));
}

void check(int cuda_result, const char* what) {
  if (cuda_result != cuda::kSuccess) fail(cuda_result, what);
}

std::string text(const Dim3& d) {
  return "(" + std::to_string(d[0]) + ", " + std::to_string(d[1]) + ", " + std::to_string(d[2]) + ")";
}

std::string text(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

// ---- Tensor maps ----------------------------------------------------------------------------------------------------

void TensorMap::set_type(int element, bool tf32) {
  element_type = element;
  to_tf32 = tf32;
  switch (element) {
    case 1: type = tf32 ? 11 : 7; break;  // FLOAT -> TFLOAT32, FLOAT32
    case 6: type = 3; break;              // INT32
    case 10: type = 6; break;             // FLOAT16
    case 12: type = 2; break;             // UINT32
    case 16: type = 9; break;             // BFLOAT16
    case 5:
    case 4: type = 1; break;  // INT16, UINT16 -> UINT16: a copy does not look at the bits
    case 17:
    case 3:
    case 2: type = 0; break;  // FLOAT8E4M3FN, INT8, UINT8 -> UINT8
    default: throw std::runtime_error("a tensor map of element type " + std::to_string(element));
  }
}

TensorMap::TensorMap(const onnxfuse_tensor_map& map) : pointer(map.pointer), offset(map.offset) {
  const uint32_t rank = map.rank, sides = map.is_window ? rank - 2 : 0;
  if (rank < 1 || rank > 5 || (map.is_window && rank < 3))
    throw std::runtime_error("a tensor map of " + std::to_string(rank) + " dimensions");
  set_type(static_cast<int>(map.element_type), map.to_tf32 != 0);
  extents.assign(map.extents, map.extents + rank);
  strides.assign(map.strides, map.strides + rank - 1);
  box.assign(map.box, map.box + (map.is_window ? 2 : rank));
  lower.assign(map.lower, map.lower + sides);
  upper.assign(map.upper, map.upper + sides);
  steps.assign(rank, 1);
  std::copy(map.steps, map.steps + sides, steps.begin() + 1);
}

onnxfuse_tensor_map TensorMap::shown() const {
  onnxfuse_tensor_map map{};
  map.pointer = static_cast<uint32_t>(pointer);
  map.element_type = static_cast<uint32_t>(element_type);
  map.to_tf32 = to_tf32;
  map.rank = static_cast<uint32_t>(extents.size());
  map.offset = offset;
  map.is_window = !lower.empty();
  std::copy(extents.begin(), extents.end(), map.extents);
  std::copy(strides.begin(), strides.end(), map.strides);
  std::copy(box.begin(), box.end(), map.box);
  std::copy(lower.begin(), lower.end(), map.lower);
  std::copy(upper.begin(), upper.end(), map.upper);
  if (map.is_window) std::copy(steps.begin() + 1, steps.end() - 1, map.steps);
  return map;
}

// The addresses of tensors change from run to run, so the maps are encoded for every launch.
void encode(const std::vector<TensorMap>& maps, const std::vector<void*>& pointers, EncodedMaps& encoded) {
  if (maps.size() > encoded.size())
    throw std::runtime_error(std::to_string(maps.size()) + " tensor maps, expected at most " +
                             std::to_string(encoded.size()));
  for (size_t i = 0; i < maps.size(); ++i) {
    const TensorMap& map = maps[i];
    const unsigned rank = static_cast<unsigned>(map.extents.size());
    if (map.pointer >= pointers.size())
      throw std::runtime_error("a tensor map of pointer " + std::to_string(map.pointer) + " of " +
                               std::to_string(pointers.size()));
    void* const address = static_cast<char*>(pointers[map.pointer]) + map.offset;
    if (map.lower.empty())
      check(cuda::driver().encode_tensor_map(&encoded[i], map.type, rank, address, map.extents.data(),
                                             map.strides.data(), map.box.data(), map.steps.data(), 0,
                                             cuda::kSwizzle128B, cuda::kPromoteToL2_128B, 0),
            "cuTensorMapEncodeTiled");
    else
      check(
          cuda::driver().encode_window_map(&encoded[i], map.type, rank, address, map.extents.data(), map.strides.data(),
                                           map.lower.data(), map.upper.data(), map.box[0], map.box[1], map.steps.data(),
                                           0, cuda::kSwizzle128B, cuda::kPromoteToL2_128B, 0),
          "cuTensorMapEncodeIm2col");
  }
}

// ---- Programs -------------------------------------------------------------------------------------------------------

Loaded::Loaded(const SharedHost& host, const onnxfuse_kernel& kernel)
    : function(kernel.function), early(kernel.early != 0), owner(held(host, kernel.owner)) {}

namespace {

std::vector<std::shared_ptr<const Loaded>> loaded(const SharedHost& host, const onnxfuse_program& program) {
  check_size(program, "a launch program");
  std::vector<std::shared_ptr<const Loaded>> all;
  for (size_t i = 0; i < program.kernel_count; ++i)
    all.push_back(std::make_shared<const Loaded>(host, program.kernels[i]));
  return all;
}

}  // namespace

Program::Program(const SharedHost& host, const onnxfuse_program& program, int64_t context, bool aligned)
    : kernels(loaded(host, program)),
      tape(std::string(static_cast<const char*>(program.tape), program.tape_bytes)),
      family(program.family),
      context(context),
      aligned(aligned) {
  for (size_t i = 0; i < program.apart_count; ++i)
    apart.emplace_back(program.apart[i].at, program.apart[i].at + program.apart[i].count);
  if (kernels.size() != tape.kernels) throw std::runtime_error("a launch program of other kernels than are there");
}

bool Program::plans_itself(const int64_t* begin, const int64_t* end) const {
  return std::any_of(apart.begin(), apart.end(),
                     [&](const auto& shapes) { return std::equal(shapes.begin(), shapes.end(), begin, end); });
}

// ---- Launches -------------------------------------------------------------------------------------------------------

namespace {

// First of all, so that what is refused is given back.
void take(const SharedHost& host, const onnxfuse_launch& launch, std::vector<Held>& owners) {
  check_size(launch, "a launch");
  owners.push_back(held(host, launch.owner));
  for (size_t i = 0; i < launch.then_count; ++i) take(host, launch.then[i], owners);
}

void expect_counters(const Launch& launch) {
  if (launch.counter_bytes > launch.scratch_bytes)
    throw std::runtime_error(std::to_string(launch.counter_bytes) + " bytes of counters in " +
                             std::to_string(launch.scratch_bytes) + " bytes of scratch memory");
}

}  // namespace

std::unique_ptr<const Launch> Launch::of(const SharedHost& host, const onnxfuse_launch& launch) {
  std::vector<Held> owners;
  take(host, launch, owners);
  size_t next = 0;
  return std::make_unique<const Launch>(launch, owners, next);
}

Launch::Launch(const onnxfuse_launch& answer, const std::vector<Held>& owners, size_t& next)
    : function(answer.function),
      shared_bytes(answer.shared_bytes),
      early(answer.early != 0),
      parameters(static_cast<const char*>(answer.parameters), answer.parameter_bytes),
      tensor_maps(answer.tensor_maps, answer.tensor_maps + answer.tensor_map_count),
      scratch_bytes(answer.scratch_bytes),
      counter_bytes(answer.counter_bytes),
      interim(answer.interim != 0),
      owner(owners[next++]) {
  std::copy(answer.grid, answer.grid + 3, grid.begin());
  std::copy(answer.block, answer.block + 3, block.begin());
  for (size_t i = 0; i < answer.output_count; ++i)
    output_shapes.emplace_back(answer.output_shapes[i].at, answer.output_shapes[i].at + answer.output_shapes[i].count);
  expect_counters(*this);
  for (size_t i = 0; i < answer.then_count; ++i)
    then.push_back(std::make_unique<const Launch>(answer.then[i], owners, next));
}

Launch::Launch(std::shared_ptr<const Program> by, const tape::Register* held, size_t& at) : program(std::move(by)) {
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
  counter_bytes = static_cast<size_t>(number());
  expect_counters(*this);
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
    const int element = static_cast<int>(words[at++]);
    map.set_type(element, words[at++] != 0);
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

bool Launch::is_loaded() const {
  return function && std::all_of(then.begin(), then.end(), [](const auto& next) { return next->is_loaded(); });
}

ScratchNeed Launch::scratch_need() const {
  ScratchNeed need{counter_bytes, scratch_bytes - counter_bytes};
  for (const auto& next : then) {
    const ScratchNeed after = next->scratch_need();
    need = {std::max(need.counters, after.counters), std::max(need.data, after.data)};
  }
  return need;
}

namespace {

// What a function may use is one number of the CUDA function, however many launches, programs and ops have the
// function: the function itself is asked for it, and it only grows. Kept here beside a handle the number would outlive
// the module, and miss what the host asked for. One lock for all, so that nothing is set between reading and writing.
void grow_shared_memory(cuda::Function function, unsigned bytes) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  int allowed = 0;
  check(cuda::driver().function_attribute(&allowed, cuda::kMaxDynamicSharedBytes, function), "cuFuncGetAttribute");
  if (bytes <= static_cast<unsigned>(allowed)) return;
  int result = cuda::driver().set_function_attribute(function, cuda::kMaxDynamicSharedBytes, static_cast<int>(bytes));
  if (result != cuda::kSuccess)
    fail(result, "asking for " + std::to_string(bytes) + " bytes of shared memory per block");
}

}  // namespace

void ask_for_shared_memory(const Launch& launch) {
  for (const auto& next : launch.then) ask_for_shared_memory(*next);
  // Below 48 KB, too: a function that has shared memory of its own may use less than that beside it.
  if (launch.shared_bytes) grow_shared_memory(launch.function, launch.shared_bytes);
}

namespace {

// A launch as the C ABI has it, and what it points to.
struct Shown {
  onnxfuse_launch launch{};
  std::vector<onnxfuse_tensor_map> maps;
  std::vector<onnxfuse_numbers> outputs;
  std::vector<std::unique_ptr<Shown>> parts;
  std::vector<onnxfuse_launch> then;

  explicit Shown(const Launch& of) {
    for (const TensorMap& map : of.tensor_maps) maps.push_back(map.shown());
    for (const Shape& shape : of.output_shapes) outputs.push_back({shape.data(), shape.size()});
    for (const auto& next : of.then) {
      parts.push_back(std::make_unique<Shown>(*next));
      then.push_back(parts.back()->launch);
    }
    launch.size = sizeof launch;
    launch.function = of.function;
    std::copy(of.grid.begin(), of.grid.end(), launch.grid);
    std::copy(of.block.begin(), of.block.end(), launch.block);
    launch.shared_bytes = of.shared_bytes;
    launch.early = of.early;
    launch.parameters = of.parameters.data();
    launch.parameter_bytes = of.parameters.size();
    launch.tensor_maps = maps.data();
    launch.tensor_map_count = maps.size();
    launch.output_shapes = outputs.data();
    launch.output_count = outputs.size();
    launch.scratch_bytes = of.scratch_bytes;
    launch.counter_bytes = of.counter_bytes;
    launch.interim = of.interim;
    launch.owner = of.owner.get();
    launch.then = then.data();
    launch.then_count = then.size();
  }
};

}  // namespace

void show(const Launch& launch, void (*see)(void* user, const onnxfuse_launch*), void* user) {
  const Shown shown(launch);
  see(user, &shown.launch);
}

}  // namespace engine
