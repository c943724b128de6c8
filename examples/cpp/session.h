// A fused model, opened by ONNX Runtime's C API with onnxfuse's library registered.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "ort.h"

using Environment = std::unique_ptr<OrtEnv, ort::Release<ort::kReleaseEnv>>;
using Options = std::unique_ptr<OrtSessionOptions, ort::Release<ort::kReleaseSessionOptions>>;
using Session = std::unique_ptr<OrtSession, ort::Release<ort::kReleaseSession>>;
using Value = std::unique_ptr<OrtValue, ort::Release<ort::kReleaseValue>>;
using MemoryInfo = std::unique_ptr<OrtMemoryInfo, ort::Release<ort::kReleaseMemoryInfo>>;
using CudaOptions = std::unique_ptr<OrtCUDAProviderOptionsV2, ort::Release<ort::kReleaseCUDAProviderOptions>>;
using Binding = std::unique_ptr<OrtIoBinding, ort::Release<ort::kReleaseIoBinding>>;
using RunOptions = std::unique_ptr<OrtRunOptions, ort::Release<ort::kReleaseRunOptions>>;
using TypeInfo = std::unique_ptr<OrtTypeInfo, ort::Release<ort::kReleaseTypeInfo>>;
using Shape = std::unique_ptr<OrtTensorTypeAndShapeInfo, ort::Release<ort::kReleaseTensorTypeAndShapeInfo>>;

// Makes a thing by the function of a slot, whose last argument is where it goes.
template <size_t kSlot, class Owned, class... Arguments>
Owned made(Arguments... arguments) {
  typename Owned::pointer thing = nullptr;
  ort::call<kSlot, Arguments..., typename Owned::pointer*>(arguments..., &thing);
  return Owned(thing);
}

// A function of the CUDA runtime that ONNX Runtime's CUDA provider has loaded.
template <class Signature>
Signature* cuda_function(const char* name) {
  void* runtime = nullptr;
  for (const char* library : {"libcudart.so.13", "libcudart.so.12"})
    if (!runtime) runtime = dlopen(library, RTLD_NOW);
  void* const found = runtime ? dlsym(runtime, name) : nullptr;
  if (!found) throw std::runtime_error(std::string("there is no ") + name);
  return reinterpret_cast<Signature*>(found);
}

// How a session is opened.
struct How {
  std::string model, library, pack;  // no library: ONNX Runtime alone; no pack: the one beside the library
  int device = 0;
  bool old = false;          // as Triton does it: options that are copied, RegisterCustomOpsLibrary in the place of _V2
  bool user_stream = false;  // on a stream of the program's own
  bool graph = false;        // runs are captured in a CUDA graph
};

class Opened {
 public:
  Opened(OrtEnv* environment, const How& how) {
    auto options = made<ort::kCreateSessionOptions, Options>();
    ort::call<ort::kSetIntraOpNumThreads>(options.get(), 1);
    auto cuda = made<ort::kCreateCUDAProviderOptions, CudaOptions>();
    set(cuda.get(), "device_id", std::to_string(how.device));
    if (how.graph) set(cuda.get(), "enable_cuda_graph", "1");
    if (how.user_stream) {
      void* stream = nullptr;
      if (cuda_function<int(void**)>("cudaStreamCreate")(&stream) != 0) throw std::runtime_error("no stream can be made");
      set(cuda.get(), "user_compute_stream", std::to_string(reinterpret_cast<uintptr_t>(stream)));
    }
    if (!how.pack.empty()) ort::call<ort::kAddSessionConfigEntry>(options.get(), "onnxfuse.pack", how.pack.c_str());
    if (how.old)  // each instance of a model has options of its own
      options = made<ort::kCloneSessionOptions, Options>(static_cast<const OrtSessionOptions*>(options.get()));
    ort::call<ort::kSessionOptionsAppendExecutionProvider_CUDA_V2>(
        options.get(), static_cast<const OrtCUDAProviderOptionsV2*>(cuda.get()));
    if (how.old) {
      void* handle = nullptr;
      ort::call<ort::kRegisterCustomOpsLibrary>(options.get(), how.library.c_str(), &handle);
      library_.reset(handle);
    } else if (!how.library.empty()) {
      ort::call<ort::kRegisterCustomOpsLibrary_V2>(options.get(), how.library.c_str());
    }
    session_ = made<ort::kCreateSession, Session>(environment, how.model.c_str(),
                                                  static_cast<const OrtSessionOptions*>(options.get()));
    inputs = names<ort::kSessionGetInputCount, ort::kSessionGetInputName>();
    outputs = names<ort::kSessionGetOutputCount, ort::kSessionGetOutputName>();
  }

  OrtSession* session() const { return session_.get(); }

  std::vector<std::string> inputs, outputs;  // names

 private:
  // A library that the old registration has opened, for the program to close.
  struct Closed {
    void operator()(void* library) const { dlclose(library); }
  };

  static void set(OrtCUDAProviderOptionsV2* cuda, const char* key, const std::string& value) {
    const char* text = value.c_str();
    ort::call<ort::kUpdateCUDAProviderOptions>(cuda, static_cast<const char* const*>(&key),
                                               static_cast<const char* const*>(&text), size_t{1});
  }

  template <size_t kCount, size_t kName>
  std::vector<std::string> names() const {
    const auto* session = static_cast<const OrtSession*>(session_.get());
    OrtAllocator* allocator = nullptr;
    ort::call<ort::kGetAllocatorWithDefaultOptions>(&allocator);
    size_t count = 0;
    ort::call<kCount>(session, &count);
    std::vector<std::string> all;
    for (size_t i = 0; i < count; ++i) {
      char* name = nullptr;
      ort::call<kName>(session, i, allocator, &name);
      all.emplace_back(name);
      ort::call<ort::kAllocatorFree>(allocator, static_cast<void*>(name));
    }
    return all;
  }

  std::unique_ptr<void, Closed> library_;  // closed behind the session
  Session session_;
};

inline std::vector<int64_t> dims_of(const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  ort::call<ort::kGetDimensionsCount>(info, &rank);
  std::vector<int64_t> found(rank);
  ort::call<ort::kGetDimensions>(info, found.data(), rank);
  return found;
}
