// The driver. A function handle is a name and, if a test gave one, a host function that stands for the kernel. An image
// that is "host-kernels:" and the path of a library has the functions of that.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "trace.h"

namespace {

using HostKernel = void (*)(void** arguments);

constexpr int kMostDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kSharedWithoutAsking = 48 * 1024, kSharedOfBlock = 232448;

struct Function {
  std::string name;
  HostKernel host;
  std::atomic<int> most_shared{kSharedWithoutAsking};  // the last value that was set, as on a GPU: also a smaller one

  Function(const char* name, HostKernel host) : name(name), host(host) {}
};

struct Module {
  void* library;
};

constexpr char kHostKernels[] = "host-kernels:";
constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidImage = 200;
constexpr unsigned kMostThreads = 1024;

thread_local int current = 0;  // device

// Of a device: one H200, unless FAKE_CUDA_CAPABILITY names others: 75, or 90,75 for two.
int capability(int device) {
  const char* at = getenv("FAKE_CUDA_CAPABILITY");
  if (!at) return device == 0 ? 90 : 0;
  for (; device > 0 && at; --device) at = strchr(at, ',') ? strchr(at, ',') + 1 : nullptr;
  return at ? atoi(at) : 0;
}

}  // namespace

extern "C" {

// Not part of CUDA: tests make their handles with it.
void* fake_function(const char* name, HostKernel host) { return new Function(name, host); }

// Not part of CUDA: what the runtime's cudaSetDevice does to the driver.
void fake_set_device(int device) { current = device; }

bool initialized = false;
int cuInit(unsigned) { return initialized = true, 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetCount(int* count) {
  for (*count = 1; capability(*count); ++*count) {}
  return initialized ? 0 : 3;  // CUDA_ERROR_NOT_INITIALIZED
}
int cuCtxGetCurrent(void** context) { return *context = reinterpret_cast<void*>(1 + current), 0; }
int cuCtxSynchronize() { return 0; }
int cuCtxGetDevice(int* device) { return *device = current, 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) {
  trace("cuThreadExchangeStreamCaptureMode", ", \"mode\": %d", *mode);
  return *mode = 0, 0;
}
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void** context) { return cuCtxGetCurrent(context); }
int cuStreamSynchronize(void*) { return 0; }

// Not part of CUDA: whether a graph is captured on all streams.
bool capturing = false;
void fake_capture(bool on) { capturing = on; }
int cuStreamIsCapturing(void*, int* status) { return *status = capturing, 0; }

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 16: return *value = 132, 0;  // MULTIPROCESSOR_COUNT
    case 39: return *value = 2048, 0;  // MAX_THREADS_PER_MULTIPROCESSOR
    case 75: return *value = capability(device) / 10, 0;
    case 76: return *value = capability(device) % 10, 0;
    case 97: return *value = kSharedOfBlock, 0;  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    default: return *value = 1, 0;
  }
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = 100ull << 30;
  *total = 140ull << 30;
  return 0;
}

// Not part of CUDA: the largest allocation that succeeds.
size_t most_memory = ~size_t{0};
void fake_memory(size_t bytes) { most_memory = bytes; }

// Not part of CUDA: a line in the trace.
void fake_mark(const char* text) { trace(text); }

int cuMemAlloc_v2(void** memory, size_t bytes) {
  if (bytes > most_memory) return kOutOfMemory;
  *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  trace("cuMemAlloc", ", \"bytes\": %zu, \"address\": %zu", bytes, reinterpret_cast<size_t>(*memory));
  return 0;
}
int cuMemFree_v2(void* memory) {
  trace("cuMemFree", ", \"address\": %zu", reinterpret_cast<size_t>(memory));
  return free(memory), 0;
}
int cuMemsetD8_v2(void* memory, unsigned char value, size_t bytes) { return memset(memory, value, bytes), 0; }

int cuModuleLoadData(void** module, const void* image) {
  const char* text = static_cast<const char*>(image);
  trace("cuModuleLoadData");
  if (strncmp(text, kHostKernels, sizeof kHostKernels - 1) != 0) return *module = new Module{nullptr}, 0;
  void* library = dlopen(text + sizeof kHostKernels - 1, RTLD_NOW | RTLD_LOCAL);
  return library ? (*module = new Module{library}, 0) : kInvalidImage;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  void* library = static_cast<Module*>(module)->library;
  return *function = fake_function(name, library ? reinterpret_cast<HostKernel>(dlsym(library, name)) : nullptr), 0;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  trace("cuFuncSetAttribute", ", \"kernel\": \"%s\", \"attribute\": %d, \"value\": %d",
        static_cast<Function*>(function)->name.c_str(), attribute, value);
  if (attribute != kMostDynamicShared) return 0;
  if (value < 0 || value > kSharedOfBlock) return kInvalidValue;
  static_cast<Function*>(function)->most_shared = value;
  return 0;
}

int cuFuncGetAttribute(int* value, int attribute, void* function) {
  *value = attribute == kMostDynamicShared ? static_cast<Function*>(function)->most_shared.load() : 0;
  return 0;
}

int cuGetErrorName(int code, const char** name) {
  return *name = code == kInvalidValue   ? "CUDA_ERROR_INVALID_VALUE"
                 : code == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
                                        : "CUDA_SUCCESS",
         0;
}
int cuGetErrorString(int code, const char** text) {
  return *text = code == kInvalidValue ? "invalid argument" : "no error", 0;
}

int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const uint64_t* extents,
                           const uint64_t* strides, const uint32_t* box, const uint32_t*, int, int swizzle, int, int) {
  trace("cuTensorMapEncodeTiled", ", \"type\": %d, \"rank\": %u, \"box\": [%u, %u], \"swizzle\": %d", type, rank, box[0],
        box[1], swizzle);
  const uint64_t facts[] = {reinterpret_cast<uint64_t>(address), extents[0], extents[1], strides[0], box[0], box[1]};
  memcpy(map, facts, sizeof facts);
  return 0;
}

int cuTensorMapEncodeIm2col(void* map, int type, unsigned rank, void* address, const uint64_t* extents,
                            const uint64_t* strides, const int* lower, const int* upper, unsigned channels,
                            unsigned pixels, const uint32_t* steps, int, int swizzle, int, int) {
  trace("cuTensorMapEncodeIm2col",
        ", \"type\": %d, \"rank\": %u, \"box\": [%u, %u], \"lower\": [%d, %d], \"upper\": [%d, %d], \"steps\": [%u, %u], "
        "\"swizzle\": %d",
        type, rank, channels, pixels, lower[0], lower[1], upper[0], upper[1], steps[1], steps[2], swizzle);
  const uint64_t facts[] = {reinterpret_cast<uint64_t>(address), extents[0], extents[1], strides[0], channels, pixels};
  memcpy(map, facts, sizeof facts);
  return 0;
}

int cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared_bytes, void* stream, void** arguments, void**) {
  auto* function = static_cast<Function*>(handle);
  if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > kMostThreads) return kInvalidValue;
  if (shared_bytes > static_cast<unsigned>(function->most_shared.load())) return kInvalidValue;
  trace_launch("cuLaunchKernel", function->name, {gx, gy, gz}, {bx, by, bz}, shared_bytes, stream);
  if (function->host) function->host(arguments);
  return 0;
}

// CUlaunchAttribute, CUlaunchConfig.
struct LaunchAttribute {
  int id;
  alignas(8) int value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};

int cuLaunchKernelEx(const LaunchConfig* c, void* handle, void** arguments, void** extra) {
  for (unsigned i = 0; i < c->attribute_count; ++i)
    trace("cuLaunchKernelEx", ", \"attribute\": %d, \"value\": %d", c->attributes[i].id, c->attributes[i].value[0]);
  return cuLaunchKernel(handle, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
                        c->shared_bytes, c->stream, arguments, extra);
}
}
