// TensorRT whose parser supports no operator. Objects of the Itanium C++ ABI: a pointer to virtual functions, and one to
// an implementation, which has functions of its own; no interface of TensorRT has as many as there are here.
#include <cstdint>

namespace {

struct Object {
  const void* const* functions;
  const Object* implementation;
};

template <typename Function>
const Object* object(Function* returned) {
  static const void* functions[512];
  for (const void*& function : functions) function = reinterpret_cast<const void*>(returned);
  static const Object one{functions, &one};
  return &one;
}

int64_t zero() { return 0; }
// A builder makes networks and settings, whose functions return objects, too.
const Object* maker() {
  return object(+[]() -> const void* { return maker(); });
}

}  // namespace

extern "C" {

int getInferLibVersion() { return 101300; }
const Object* getPluginRegistry() { return object(zero); }
const Object* createInferBuilder_INTERNAL(void*, int) { return maker(); }
const Object* createInferRuntime_INTERNAL(void*, int) { return maker(); }
const Object* createInferRefitter_INTERNAL(void*, void*, int) { return maker(); }
const Object* createNvOnnxParser_INTERNAL(void*, void*, int) { return object(zero); }
const Object* createNvOnnxParserRefitter_INTERNAL(void*, void*, int) { return object(zero); }
}
