// The part of ONNX Runtime's C interface that the engine uses, declared by its binary layout.
//
// `OrtApi` is a table of function pointers to which releases only append, so a slot number holds for every later
// release. The wheels ship no headers; tests/unit/runtime/engine/test_ort_api.py proves each slot against the installed
// library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

// The release whose table is asked for: 1.24, the first with TensorShape, which reads a shape without an allocation.
constexpr uint32_t kApiVersion = 24;

struct Status;
struct Env;
struct Session;
struct SessionOptions;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;
struct ShapeInferContext;
struct Value;
struct Allocator;
struct KeyValues;
struct CustomOp;

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };
enum LogLevel : int { kWarning = 2 };
enum Arity : int { kRequired = 0 };
enum MemoryType : int { kHostInput = -2, kDeviceMemory = 0 };
// The numbers are those of onnx.TensorProto.DataType.
enum ElementTypes : int { kInt32 = 6, kInt64 = 7 };
using ElementType = int;

using Api = const void* const*;

struct ApiBase {
  Api (*get_api)(uint32_t version);
  const char* (*version)();
};

// One slot: its number in the table and the signature of the function found there.
template <size_t kSlot, typename Signature>
struct Slot {
  static constexpr size_t number = kSlot;
  static Signature* in(Api api) { return reinterpret_cast<Signature*>(const_cast<void*>(api[kSlot])); }
};

using CreateStatus = Slot<0, Status*(ErrorCode, const char* message)>;
using StatusMessage = Slot<2, const char*(const Status*)>;
using CreateEnv = Slot<3, Status*(LogLevel, const char* name, Env**)>;
using CreateSession = Slot<8, Status*(const Env*, const void* model, size_t bytes, const SessionOptions*, Session**)>;
using CreateOptions = Slot<10, Status*(SessionOptions**)>;
using SetThreads = Slot<24, Status*(SessionOptions*, int)>;
using CreateDomain = Slot<26, Status*(const char* name, CustomOpDomain**)>;
using AddOp = Slot<27, Status*(CustomOpDomain*, const CustomOp*)>;
using AddDomain = Slot<28, Status*(SessionOptions*, CustomOpDomain*)>;
using TensorData = Slot<51, Status*(Value*, void**)>;
using ContextInput = Slot<90, Status*(const KernelContext*, size_t index, const Value**)>;
using ContextOutput = Slot<91, Status*(KernelContext*, size_t index, const int64_t* dims, size_t rank, Value**)>;
using AllocatorAlloc = Slot<75, Status*(Allocator*, size_t bytes, void**)>;
using AllocatorFree = Slot<76, Status*(Allocator*, void*)>;
using ContextStream = Slot<193, Status*(const KernelContext*, void** stream)>;
using ReleaseAllocator = Slot<132, void(Allocator*)>;
using HasConfig = Slot<237, Status*(const SessionOptions*, const char* key, int* there)>;
using Config = Slot<238, Status*(const SessionOptions*, const char* key, char* value, size_t* size)>;
using ReleaseEnv = Slot<92, void(Env*)>;
using ReleaseStatus = Slot<93, void(Status*)>;
using ReleaseSession = Slot<95, void(Session*)>;
using ReleaseOptions = Slot<100, void(SessionOptions*)>;
using InfoAllocator = Slot<278, Status*(const KernelInfo*, MemoryType, Allocator**)>;
using KeyValue = Slot<297, const char*(const KeyValues*, const char* key)>;
using ReleaseKeyValues = Slot<300, void(KeyValues*)>;
using AllocatorStats = Slot<319, Status*(const Allocator*, KeyValues**)>;
using TensorShape = Slot<414, Status*(const Value*, ElementType*, const int64_t** dims, size_t* rank)>;

// What a custom op tells ONNX Runtime. `version` says up to which member the struct is valid.
struct CustomOp {
  uint32_t version = kApiVersion;
  void* (*create_kernel_v1)(const CustomOp*, Api, const KernelInfo*) = nullptr;
  const char* (*name)(const CustomOp*) = nullptr;
  const char* (*provider)(const CustomOp*) = nullptr;
  ElementType (*input_type)(const CustomOp*, size_t index) = nullptr;
  size_t (*input_count)(const CustomOp*) = nullptr;
  ElementType (*output_type)(const CustomOp*, size_t index) = nullptr;
  size_t (*output_count)(const CustomOp*) = nullptr;
  void (*compute_v1)(void* kernel, KernelContext*) = nullptr;
  void (*destroy_kernel)(void* kernel) = nullptr;
  Arity (*input_arity)(const CustomOp*, size_t index) = nullptr;
  Arity (*output_arity)(const CustomOp*, size_t index) = nullptr;
  MemoryType (*input_memory)(const CustomOp*, size_t index) = nullptr;
  int (*variadic_input_min)(const CustomOp*) = nullptr;
  int (*variadic_input_same_type)(const CustomOp*) = nullptr;
  int (*variadic_output_min)(const CustomOp*) = nullptr;
  int (*variadic_output_same_type)(const CustomOp*) = nullptr;
  Status* (*create_kernel)(const CustomOp*, Api, const KernelInfo*, void** kernel) = nullptr;
  Status* (*compute)(void* kernel, KernelContext*) = nullptr;
  Status* (*infer_shapes)(const CustomOp*, ShapeInferContext*) = nullptr;
  int (*start_version)(const CustomOp*) = nullptr;
  int (*end_version)(const CustomOp*) = nullptr;
  // Pairs (input, output) whose buffers may be one. There is no op argument.
  size_t (*may_inplace)(int** inputs, int** outputs) = nullptr;
  void (*release_may_inplace)(int* inputs, int* outputs) = nullptr;
  size_t (*alias_map)(int** inputs, int** outputs) = nullptr;
  void (*release_alias_map)(int* inputs, int* outputs) = nullptr;
};

}  // namespace ort
