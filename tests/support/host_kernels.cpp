// The kernels of fused_models.chain as functions of the host, with the parameters that their real plans have: first of
// all the number of elements. GENERAL: the kernels for all shapes, which have a step, then the extents of each tensor.
#include <cmath>
#include <cstdint>

namespace {

// `output`: where the extents of the output are.
template <class Element>
void each(void** arguments, int pointers, int output, Element element) {
#ifdef GENERAL
  const auto* numbers = static_cast<int64_t*>(arguments[pointers]);
  const auto count = static_cast<uint32_t>(numbers[output] * numbers[output + 1]);
#else
  const uint32_t count = *static_cast<uint32_t*>(arguments[pointers]);
#endif
  for (uint32_t i = 0; i < count; ++i) element(i);
}

float* at(void** arguments, int pointer) { return *static_cast<float**>(arguments[pointer]); }

}  // namespace

extern "C" {

void BiasRelu_1_kernel(void** arguments) {
  float *x = at(arguments, 0), *b = at(arguments, 1), *y = at(arguments, 2);
  each(arguments, 3, 4, [&](uint32_t i) { y[i] = std::fmax(x[i] + b[i % 8], 0.0f); });
}

void TwiceTanh_2_kernel(void** arguments) {
  float *x = at(arguments, 0), *y = at(arguments, 1);
  each(arguments, 2, 3, [&](uint32_t i) { y[i] = std::tanh(x[i] + x[i]); });
}

void Negate_3_kernel(void** arguments) {
  float *x = at(arguments, 0), *y = at(arguments, 1);
  each(arguments, 2, 3, [&](uint32_t i) { y[i] = -x[i]; });
}
}
