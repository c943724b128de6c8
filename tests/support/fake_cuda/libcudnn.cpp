// Versions as the provider expects them, and descriptors that are not null.
#include <cstdlib>
#include <cstring>

namespace {

int make(void** descriptor) { return *descriptor = malloc(256), 0; }

// cudnn_frontend asks for these three lists and takes the first entry; every other attribute reads as zero.
bool is_engine_list(int attribute) { return attribute >= 201 && attribute <= 203; }
constexpr int kDescriptorType = 15;  // CUDNN_TYPE_BACKEND_DESCRIPTOR: the caller owns it, leave it as it is

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return 91400; }
size_t cudnnGetCudartVersion() { return 13000; }
int cudnnGetProperty(int part, int* value) { return *value = part == 0 ? 9 : 14, 0; }
const char* cudnnGetErrorString(int) { return "fake"; }

int cudnnBackendCreateDescriptor(int, void** descriptor) { return make(descriptor); }
int cudnnBackendGetAttribute(void*, int attribute, int type, long wanted, long* count, void* values) {
  if (count) *count = is_engine_list(attribute) ? 1 : wanted > 0;
  if (values && type != kDescriptorType && wanted > 0) memset(values, 0, 8);
  return 0;
}

int cudnnCreate(void** p) { return make(p); }
int cudnnCreateActivationDescriptor(void** p) { return make(p); }
int cudnnCreateConvolutionDescriptor(void** p) { return make(p); }
int cudnnCreateDropoutDescriptor(void** p) { return make(p); }
int cudnnCreateFilterDescriptor(void** p) { return make(p); }
int cudnnCreateLRNDescriptor(void** p) { return make(p); }
int cudnnCreatePoolingDescriptor(void** p) { return make(p); }
int cudnnCreateRNNDataDescriptor(void** p) { return make(p); }
int cudnnCreateRNNDescriptor(void** p) { return make(p); }
int cudnnCreateReduceTensorDescriptor(void** p) { return make(p); }
int cudnnCreateTensorDescriptor(void** p) { return make(p); }
}
