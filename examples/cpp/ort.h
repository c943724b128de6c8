// The part of ONNX Runtime's C API that is called here, found in the function table of the libonnxruntime that the
// Python wheel brings: that has no headers. With ONNX Runtime's own headers include onnxruntime_c_api.h in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

extern "C" {
struct OrtStatus;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtIoBinding;
struct OrtValue;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtCUDAProviderOptionsV2;
struct OrtApiBase {
  const void* const* (*get_api)(uint32_t version);
  const char* (*version)();
};
const OrtApiBase* OrtGetApiBase();
}

namespace ort {

constexpr uint32_t kVersion = 24;

// A function of the table, by its place there, which no release changes.
template <size_t kSlot, class Signature>
Signature* function() {
  static const void* const* const table = OrtGetApiBase()->get_api(kVersion);
  if (!table) throw std::runtime_error("ONNX Runtime 1.24 or newer is needed, this is " + std::string(OrtGetApiBase()->version()));
  return reinterpret_cast<Signature*>(const_cast<void*>(table[kSlot]));
}

inline void check(OrtStatus* status) {
  if (!status) return;
  const std::string words = function<2, const char*(const OrtStatus*)>()(status);
  function<93, void(OrtStatus*)>()(status);
  throw std::runtime_error(words);
}

// Calls the function of a slot, and throws the words of the status that it returns.
template <size_t kSlot, class... Arguments>
void call(Arguments... arguments) {
  check(function<kSlot, OrtStatus*(Arguments...)>()(arguments...));
}

// Gives a thing back by the function of a slot.
template <size_t kSlot>
struct Release {
  template <class Thing>
  void operator()(Thing* thing) const {
    function<kSlot, void(Thing*)>()(thing);
  }
};

constexpr size_t kCreateEnv = 3, kCreateSession = 7, kRun = 9, kCreateSessionOptions = 10,
                 kCloneSessionOptions = 12, kSetIntraOpNumThreads = 24,
                 kRegisterCustomOpsLibrary = 29, kSessionGetInputCount = 30, kSessionGetOutputCount = 31,
                 kSessionGetInputTypeInfo = 33, kSessionGetInputName = 36, kSessionGetOutputName = 37,
                 kCreateRunOptions = 39, kCreateTensorWithDataAsOrtValue = 49, kGetTensorMutableData = 51,
                 kCastTypeInfoToTensorInfo = 55, kGetTensorElementType = 60, kGetDimensionsCount = 61,
                 kGetDimensions = 62, kGetTensorTypeAndShape = 65, kCreateMemoryInfo = 68, kCreateCpuMemoryInfo = 69,
                 kAllocatorFree = 76, kGetAllocatorWithDefaultOptions = 78, kReleaseEnv = 92, kReleaseMemoryInfo = 94,
                 kReleaseSession = 95, kReleaseValue = 96, kReleaseRunOptions = 97, kReleaseTypeInfo = 98,
                 kReleaseTensorTypeAndShapeInfo = 99, kReleaseSessionOptions = 100, kAddSessionConfigEntry = 130,
                 kRunWithBinding = 133, kCreateIoBinding = 134, kReleaseIoBinding = 135, kBindInput = 136,
                 kBindOutput = 137, kBindOutputToDevice = 138, kGetBoundOutputValues = 140, kAddRunConfigEntry = 165,
                 kSessionOptionsAppendExecutionProvider_CUDA_V2 = 204, kCreateCUDAProviderOptions = 205,
                 kUpdateCUDAProviderOptions = 206, kReleaseCUDAProviderOptions = 208,
                 kRegisterCustomOpsLibrary_V2 = 228;

}  // namespace ort
