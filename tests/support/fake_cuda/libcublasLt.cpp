// Handles and descriptors must not be null.
#include <cstdlib>

extern "C" {

int cublasLtCreate(void** handle) { return *handle = malloc(64), 0; }
int cublasLtMatmulDescCreate(void** descriptor, int, int) { return *descriptor = malloc(64), 0; }
int cublasLtMatrixLayoutCreate(void** layout, int, long, long, long) { return *layout = malloc(64), 0; }
int cublasLtMatmulPreferenceCreate(void** preference) { return *preference = malloc(64), 0; }
}
