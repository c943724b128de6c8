// Runs a fused model from C++, without Python: `serve MODEL.onnx LIBRARY [options]`.
//
// LIBRARY is libonnxfuse.so; the model's kernel pack (onnxfuse compile) lies beside it, or --pack names it. Prints for
// each session what comes out of float inputs of known values, and how much memory the last of the sessions took.
//
//   --pack FILE      the kernel pack
//   --rows N         what the dimensions are that the model leaves open (4)
//   --threads N      sessions at the same time, each in a thread of its own (1)
//   --cycles N       how often each of them is opened, run and closed (1)
//   --old            as Triton does it: options that are copied, RegisterCustomOpsLibrary in the place of _V2
//   --user-stream    run on a stream of the program's own
//   --device N       the GPU (0)

#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>

#include "session.h"

namespace {

struct Asked : How {
  int64_t rows = 4;
  int threads = 1, cycles = 1;
};

class Served : public Opened {
 public:
  using Opened::Opened;

  // What comes out, as text: each output's shape and values.
  std::string run(int64_t rows) const {
    auto memory = made<ort::kCreateCpuMemoryInfo, MemoryInfo>(0, 0);
    std::vector<std::vector<float>> data(inputs.size());
    std::vector<Value> values;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::vector<int64_t> shape = input_shape(i, rows);
      data[i].resize(std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>()));
      for (size_t n = 0; n < data[i].size(); ++n) data[i][n] = (static_cast<float>((n + i) % 17) - 8) / 8;
      values.push_back(made<ort::kCreateTensorWithDataAsOrtValue, Value>(
          static_cast<const OrtMemoryInfo*>(memory.get()), static_cast<void*>(data[i].data()),
          data[i].size() * sizeof(float), shape.data(), shape.size(), 1));
    }
    std::vector<const OrtValue*> in;
    for (const Value& value : values) in.push_back(value.get());
    std::vector<const char*> input_names, output_names;
    for (const std::string& name : inputs) input_names.push_back(name.c_str());
    for (const std::string& name : outputs) output_names.push_back(name.c_str());
    std::vector<OrtValue*> out(outputs.size());
    ort::call<ort::kRun>(session(), static_cast<const OrtRunOptions*>(nullptr), input_names.data(), in.data(),
                         in.size(), output_names.data(), output_names.size(), out.data());
    std::ostringstream text;
    text.precision(9);
    for (OrtValue* value : out) {
      const Value owned(value);
      auto info = made<ort::kGetTensorTypeAndShape, Shape>(static_cast<const OrtValue*>(value));
      size_t count = 1;
      for (int64_t n : dims_of(info.get())) {
        count *= static_cast<size_t>(n);
        text << n << " ";
      }
      void* from = nullptr;
      ort::call<ort::kGetTensorMutableData>(value, &from);
      text << ":";
      for (size_t i = 0; i < count; ++i) text << " " << static_cast<const float*>(from)[i];
      text << "\n";
    }
    return text.str();
  }

 private:
  std::vector<int64_t> input_shape(size_t input, int64_t rows) const {
    auto type = made<ort::kSessionGetInputTypeInfo, TypeInfo>(static_cast<const OrtSession*>(session()), input);
    const OrtTensorTypeAndShapeInfo* info = nullptr;
    ort::call<ort::kCastTypeInfoToTensorInfo>(static_cast<const OrtTypeInfo*>(type.get()), &info);
    int element = 0;
    ort::call<ort::kGetTensorElementType>(info, &element);
    if (element != 1) throw std::runtime_error("input " + inputs[input] + " is no float tensor");
    std::vector<int64_t> shape = dims_of(info);
    for (int64_t& n : shape) n = n < 0 ? rows : n;
    return shape;
  }
};

size_t kilobytes() {
  malloc_trim(0);
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

Asked asked_for(int count, char** words) {
  Asked asked;
  std::vector<std::string> plain;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto next = [&] {
      if (++i >= count) throw std::runtime_error(word + " wants a value");
      return std::string(words[i]);
    };
    if (word == "--pack") asked.pack = next();
    else if (word == "--rows") asked.rows = std::stol(next());
    else if (word == "--threads") asked.threads = std::stoi(next());
    else if (word == "--cycles") asked.cycles = std::stoi(next());
    else if (word == "--device") asked.device = std::stoi(next());
    else if (word == "--old") asked.old = true;
    else if (word == "--user-stream") asked.user_stream = true;
    else plain.push_back(word);
  }
  if (plain.size() != 2) throw std::runtime_error("usage: serve MODEL.onnx LIBRARY [--pack FILE] [--rows N] ...");
  asked.model = plain[0];
  asked.library = plain[1];
  return asked;
}

void serve(const Asked& asked) {
  auto environment = made<ort::kCreateEnv, Environment>(3, "serve");
  std::vector<std::string> answers(static_cast<size_t>(asked.threads)), errors(answers.size());
  size_t before = 0;
  for (int cycle = 0; cycle < asked.cycles; ++cycle) {
    if (cycle == asked.cycles / 2) before = kilobytes();
    std::vector<std::thread> threads;
    for (size_t n = 0; n < answers.size(); ++n)
      threads.emplace_back([&, n] {
        try {
          const Served served(environment.get(), asked);
          answers[n] = served.run(asked.rows + static_cast<int64_t>(n));
        } catch (const std::exception& error) {
          errors[n] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors)
      if (!error.empty()) throw std::runtime_error(error);
  }
  for (const std::string& answer : answers) std::printf("%s", answer.c_str());
  std::printf("kilobytes: %ld\n", static_cast<long>(kilobytes()) - static_cast<long>(before));
}

}  // namespace

int main(int count, char** words) {
  int code = 0;
  try {
    serve(asked_for(count, words));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "serve: %s\n", error.what());
    code = 1;
  }
  std::fflush(nullptr);
  _Exit(code);  // what CUDA's libraries tear down at the end of a process is not waited for
}
