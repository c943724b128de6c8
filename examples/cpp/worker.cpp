// A session that answers over its standard input and output: `worker MODEL.onnx LIBRARY|- [--graph] [--user-stream]
// [--old] [--device N] [--pack FILE]`. For tests and measurements (bench/worker.py); a library "-" is none.
//
// Numbers are as the machine has them. Asked for is `r` with a tensor for each of the model's inputs, in order: int32 type
// (as ONNX numbers it), uint32 rank, int64 dimensions, uint64 bytes, data; answered is `k`, uint32 count, the outputs. The
// tensors stay bound on the GPU: `t`, uint32 runs, uint32 whether each is waited for, is answered by `k`, uint32 count,
// the microseconds of each as doubles. What goes wrong is `e`, uint64 bytes, text.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "session.h"

namespace {

void read(void* to, size_t bytes) {
  if (std::fread(to, 1, bytes, stdin) != bytes) throw std::runtime_error("the input has ended");
}

template <class Number>
Number read() {
  Number value;
  read(&value, sizeof value);
  return value;
}

void write(const void* from, size_t bytes) {
  if (std::fwrite(from, 1, bytes, stdout) != bytes) throw std::runtime_error("the output is closed");
}

template <class Number>
void write(Number value) {
  write(&value, sizeof value);
}

void copy(void* to, const void* from, size_t bytes) {
  constexpr int kWhereverTheyAre = 4;  // cudaMemcpyDefault
  static auto* const copied = cuda_function<int(void*, const void*, size_t, int)>("cudaMemcpy");
  if (bytes && copied(to, from, bytes, kWhereverTheyAre) != 0) throw std::runtime_error("cudaMemcpy has failed");
}

// Of a type by its ONNX number; strings are none.
size_t bytes_of(int type) {
  static const size_t sizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2};
  if (type < 1 || type > 16 || !sizes[type]) throw std::runtime_error("a tensor of type " + std::to_string(type));
  return sizes[type];
}

struct Tensor {
  int type = 0;
  std::vector<int64_t> dims;
  size_t bytes = 0;
  void* data = nullptr;
};

Tensor described(OrtValue* value) {
  Tensor found;
  auto info = made<ort::kGetTensorTypeAndShape, Shape>(static_cast<const OrtValue*>(value));
  ort::call<ort::kGetTensorElementType>(static_cast<const OrtTensorTypeAndShapeInfo*>(info.get()), &found.type);
  found.dims = dims_of(info.get());
  found.bytes = bytes_of(found.type);
  for (int64_t n : found.dims) found.bytes *= static_cast<size_t>(n);
  ort::call<ort::kGetTensorMutableData>(value, &found.data);
  return found;
}

// A session whose inputs and outputs are bound on the GPU.
class Worker : public Opened {
 public:
  Worker(OrtEnv* environment, const How& how) : Opened(environment, how), graph_(how.graph) {
    gpu_ = made<ort::kCreateMemoryInfo, MemoryInfo>("Cuda", 0, how.device, 0);  // device allocator, default memory
    cpu_ = made<ort::kCreateCpuMemoryInfo, MemoryInfo>(0, 0);
    enqueued_ = options("disable_synchronize_execution_providers", "1");
    without_graph_ = options("gpu_graph_id", "-1");
  }

  void bind() {
    std::vector<std::vector<char>> data(inputs.size());
    auto binding = made<ort::kCreateIoBinding, Binding>(session());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int type = read<int32_t>();
      std::vector<int64_t> dims(read<uint32_t>());
      read(dims.data(), dims.size() * sizeof dims[0]);
      data[i].resize(read<uint64_t>());
      read(data[i].data(), data[i].size());
      const Value value = made<ort::kCreateTensorWithDataAsOrtValue, Value>(
          static_cast<const OrtMemoryInfo*>(cpu_.get()), static_cast<void*>(data[i].data()), data[i].size(),
          static_cast<const int64_t*>(dims.data()), dims.size(), type);
      // To the GPU, where the session wants it there.
      ort::call<ort::kBindInput>(binding.get(), inputs[i].c_str(), static_cast<const OrtValue*>(value.get()));
    }
    for (const std::string& name : outputs)
      ort::call<ort::kBindOutputToDevice>(binding.get(), name.c_str(), static_cast<const OrtMemoryInfo*>(gpu_.get()));
    binding_ = std::move(binding);
    run(without_graph_.get());
    // The next runs write where this one has, as a CUDA graph has to.
    bound_ = values();
    for (size_t i = 0; i < outputs.size(); ++i)
      ort::call<ort::kBindOutput>(binding_.get(), outputs[i].c_str(), static_cast<const OrtValue*>(bound_[i].get()));
    for (int n = 0; n < (graph_ ? 3 : 1); ++n) run();  // into the graph, and by it
    write('k');
    write(static_cast<uint32_t>(outputs.size()));
    for (const Value& value : bound_) {
      const Tensor tensor = described(value.get());
      std::vector<char> out(tensor.bytes);
      copy(out.data(), tensor.data, out.size());
      write(static_cast<int32_t>(tensor.type));
      write(static_cast<uint32_t>(tensor.dims.size()));
      write(tensor.dims.data(), tensor.dims.size() * sizeof tensor.dims[0]);
      write(static_cast<uint64_t>(out.size()));
      write(out.data(), out.size());
    }
  }

  void time() {
    const auto runs = read<uint32_t>();
    const bool waited = read<uint32_t>() != 0;
    if (!binding_) throw std::runtime_error("nothing is bound: ask for a run first");
    static auto* const wait = cuda_function<int()>("cudaDeviceSynchronize");
    std::vector<double> spent(runs);
    for (double& one : spent) {
      const auto begun = std::chrono::steady_clock::now();
      run(waited ? nullptr : enqueued_.get());
      one = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
      if (!waited) wait();
    }
    write('k');
    write(runs);
    write(spent.data(), spent.size() * sizeof spent[0]);
  }

 private:
  void run(const OrtRunOptions* options = nullptr) const {
    ort::call<ort::kRunWithBinding>(session(), options, static_cast<const OrtIoBinding*>(binding_.get()));
  }

  static RunOptions options(const char* key, const char* value) {
    auto made_of = made<ort::kCreateRunOptions, RunOptions>();
    ort::call<ort::kAddRunConfigEntry>(made_of.get(), key, value);
    return made_of;
  }

  std::vector<Value> values() const {
    OrtAllocator* allocator = nullptr;
    ort::call<ort::kGetAllocatorWithDefaultOptions>(&allocator);
    OrtValue** all = nullptr;
    size_t count = 0;
    ort::call<ort::kGetBoundOutputValues>(static_cast<const OrtIoBinding*>(binding_.get()), allocator, &all, &count);
    std::vector<Value> found;
    for (size_t i = 0; i < count; ++i) found.emplace_back(all[i]);
    ort::call<ort::kAllocatorFree>(allocator, static_cast<void*>(all));
    return found;
  }

  bool graph_;
  MemoryInfo gpu_, cpu_;
  RunOptions enqueued_, without_graph_;
  std::vector<Value> bound_;
  Binding binding_;
};

How asked_for(int count, char** words) {
  How how;
  std::vector<std::string> plain;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--graph") how.graph = true;
    else if (word == "--user-stream") how.user_stream = true;
    else if (word == "--old") how.old = true;
    else if (word == "--device" && i + 1 < count) how.device = std::stoi(words[++i]);
    else if (word == "--pack" && i + 1 < count) how.pack = words[++i];
    else plain.push_back(word);
  }
  if (plain.size() != 2) throw std::runtime_error("usage: worker MODEL.onnx LIBRARY [--graph] ...");
  how.model = plain[0];
  how.library = plain[1] == "-" ? "" : plain[1];
  return how;
}

void refuse(const std::string& words) {
  write('e');
  write(static_cast<uint64_t>(words.size()));
  write(words.data(), words.size());
}

}  // namespace

int main(int count, char** words) {
  int code = 0;
  try {
    auto environment = made<ort::kCreateEnv, Environment>(3, "worker");
    Worker worker(environment.get(), asked_for(count, words));
    for (int command; std::fflush(stdout), (command = std::getchar()) != EOF;) {
      if (command == 'r') worker.bind();
      else if (command == 't') worker.time();
      else throw std::runtime_error("no such command");
    }
  } catch (const std::exception& error) {
    refuse(error.what());
    code = 1;
  }
  std::fflush(nullptr);
  _Exit(code);  // what CUDA's libraries tear down at the end of a process is not waited for
}
