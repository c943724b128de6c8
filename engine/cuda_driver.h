// The functions of the CUDA driver that the engine calls, found in libcuda.so.1 at run time.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace cuda {

using Context = void*;
using Function = void*;
using Stream = void*;
using Module = void*;
using Address = unsigned long long;  // CUdeviceptr

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  alignas(8) unsigned char value[64];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
constexpr int kProgrammaticStreamSerialization = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

// CUtensorMap: opaque, encoded by the driver.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

constexpr int kSwizzle128B = 3,
              kPromoteToL2_128B = 2;  // CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B
constexpr int kSuccess = 0;
constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
// CUdevice_attribute.
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kMostSharedBytes = 97;
constexpr int kRelaxedCapture = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

struct Driver {
  int (*context)(Context*);
  int (*device)(int*);
  int (*function_attribute)(int* value, int attribute, Function);
  int (*set_function_attribute)(Function, int attribute, int value);
  int (*launch)(const LaunchConfig*, Function, void** arguments, void** extra);
  int (*encode_tensor_map)(TensorMap*, int type, unsigned rank, void* address, const uint64_t* extents,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                           int swizzle, int promotion, int fill);
  int (*encode_window_map)(TensorMap*, int type, unsigned rank, void* address, const uint64_t* extents,
                           const uint64_t* strides, const int* lower, const int* upper, unsigned channels,
                           unsigned pixels, const uint32_t* steps, int interleave, int swizzle, int promotion,
                           int fill);
  // For those who have no host.
  int (*init)(unsigned);
  int (*count)(int*);
  int (*attribute)(int*, int which, int device);
  int (*push)(Context);
  int (*pop)(Context*);
  int (*load)(Module*, const void* image);
  int (*function)(Function*, Module, const char* name);
  int (*allocate)(Address*, size_t bytes);
  int (*free)(Address);
  int (*memory)(size_t* free, size_t* total);
  int (*set)(Address, unsigned char value, size_t bytes);
  int (*wait)(Stream);
  int (*is_capturing)(Stream, int* status);
  int (*exchange_capture_mode)(int*);
  int (*error_name)(int code, const char**);
  int (*error_string)(int code, const char**);

  // "CUDA_ERROR_INVALID_VALUE: invalid argument", in the driver's own words.
  std::string words(int code) const {
    const char *name = nullptr, *text = nullptr;
    error_name(code, &name);
    error_string(code, &text);
    return std::string(name ? name : std::to_string(code)) + ": " + (text ? text : "unknown error");
  }
};

template <typename Pointer>
void find(void* library, const char* symbol, Pointer& pointer) {
  pointer = reinterpret_cast<Pointer>(dlsym(library, symbol));
  if (!pointer)
    throw std::runtime_error(std::string("libcuda.so.1 has no ") + symbol + ": the NVIDIA driver is too old");
}

// Opened once and kept: ONNX Runtime's CUDA provider holds the same library for the life of the process.
inline const Driver& driver() {
  static const Driver opened = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) throw std::runtime_error(std::string("the NVIDIA driver cannot be opened: ") + dlerror());
    Driver d;
    find(library, "cuCtxGetCurrent", d.context);
    find(library, "cuCtxGetDevice", d.device);
    find(library, "cuFuncGetAttribute", d.function_attribute);
    find(library, "cuFuncSetAttribute", d.set_function_attribute);
    find(library, "cuLaunchKernelEx", d.launch);
    find(library, "cuTensorMapEncodeTiled", d.encode_tensor_map);
    find(library, "cuTensorMapEncodeIm2col", d.encode_window_map);
    find(library, "cuInit", d.init);
    find(library, "cuDeviceGetCount", d.count);
    find(library, "cuDeviceGetAttribute", d.attribute);
    find(library, "cuCtxPushCurrent_v2", d.push);
    find(library, "cuCtxPopCurrent_v2", d.pop);
    find(library, "cuModuleLoadData", d.load);
    find(library, "cuModuleGetFunction", d.function);
    find(library, "cuMemAlloc_v2", d.allocate);
    find(library, "cuMemFree_v2", d.free);
    find(library, "cuMemGetInfo_v2", d.memory);
    find(library, "cuMemsetD8_v2", d.set);
    find(library, "cuStreamSynchronize", d.wait);
    find(library, "cuStreamIsCapturing", d.is_capturing);
    find(library, "cuThreadExchangeStreamCaptureMode", d.exchange_capture_mode);
    find(library, "cuGetErrorName", d.error_name);
    find(library, "cuGetErrorString", d.error_string);
    return d;
  }();
  return opened;
}

}  // namespace cuda
