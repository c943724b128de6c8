// The runtime: host memory for device memory, an H200 for the device, nothing computed. A captured CUDA graph is empty.
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "trace.h"
#undef cudaGetDeviceProperties

namespace {

cudaError_t allocate(void** p, size_t bytes) {
  *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}

template <typename Handle>
cudaError_t make(Handle* handle) {
  *handle = static_cast<Handle>(malloc(64));
  return cudaSuccess;
}

// Kernels of ONNX Runtime, by the address that it launches them with.
std::map<const void*, std::string>& kernel_names() {
  static auto* names = new std::map<const void*, std::string>;
  return *names;
}

std::string name_of(const void* function) {
  auto found = kernel_names().find(function);
  if (found == kernel_names().end()) return "?";
  int status = 0;
  char* readable = abi::__cxa_demangle(found->second.c_str(), nullptr, nullptr, &status);
  std::string name = readable ? readable : found->second;
  free(readable);
  return name;
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  trace_launch("cudaLaunchKernel", name_of(function), {grid.x, grid.y, grid.z}, {block.x, block.y, block.z},
               shared_bytes, stream);
  return cudaSuccess;
}

int attribute(cudaDeviceAttr which) {
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor:
      return 9;
    case cudaDevAttrComputeCapabilityMinor:
      return 0;
    case cudaDevAttrMultiProcessorCount:
      return 132;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return 232448;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return 233472;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return 2048;
    case cudaDevAttrMaxThreadsPerBlock:
      return 1024;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 49152;
    default:
      return 1;
  }
}

// A function of the stand-in driver.
template <typename Function>
Function* of_driver(const char* name) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(driver, name));
}

thread_local struct {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
} pushed;

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) { return of_driver<int(int*)>("cuDeviceGetCount")(count), cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return of_driver<int(int*)>("cuCtxGetDevice")(device), cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return of_driver<void(int)>("fake_set_device")(device), cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  return *value = attribute(which), cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "fake"; }
const char* cudaGetErrorString(cudaError_t) { return "fake"; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "stand-in H200");
  p->major = 9;
  p->totalGlobalMem = 140ull << 30;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->multiProcessorCount = 132;
  p->maxThreadsPerMultiProcessor = 2048;
  p->l2CacheSize = 62914560;
  p->unifiedAddressing = p->cooperativeLaunch = 1;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *available = 100ull << 30;
  *total = 140ull << 30;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** p, size_t bytes) { return allocate(p, bytes); }
cudaError_t cudaMallocHost(void** p, size_t bytes) { return allocate(p, bytes); }
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) { return allocate(p, bytes); }
cudaError_t cudaMallocFromPoolAsync(void** p, size_t bytes, cudaMemPool_t, cudaStream_t) { return allocate(p, bytes); }
cudaError_t cudaFree(void* p) { return free(p), cudaSuccess; }
cudaError_t cudaFreeHost(void* p) { return free(p), cudaSuccess; }
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) { return make(pool); }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  return *static_cast<size_t*>(value) = 0, cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  trace("cudaMemcpyAsync", ", \"bytes\": %zu", bytes);
  memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  memset(p, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  memset(p, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return make(stream); }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) {
  return *s = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  trace("cudaStreamEndCapture");
  return make(graph);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
  return make(executable);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return make(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make(event); }

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  memset(attributes, 0, sizeof *attributes);
  attributes->type = cudaMemoryTypeDevice;
  attributes->devicePointer = const_cast<void*>(p);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 64;
  attributes->binaryVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  return *blocks = 1, cudaSuccess;
}

void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*, void*,
                            int*) {
  kernel_names()[function] = name;
}

cudaError_t cudaLaunchKernel(const void* f, dim3 g, dim3 b, void**, size_t shared_bytes, cudaStream_t s) {
  return launch(f, g, b, shared_bytes, s);
}
cudaError_t __cudaLaunchKernel(const void* f, dim3 g, dim3 b, void**, size_t shared_bytes, cudaStream_t s) {
  return launch(f, g, b, shared_bytes, s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void**) {
  return launch(f, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function)), cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  pushed = {grid, block, shared_bytes, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared_bytes = pushed.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}
}
