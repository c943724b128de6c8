// Handles must not be null, and status codes need words.
#include <cstdlib>

extern "C" {

int cublasCreate_v2(void** handle) { return *handle = malloc(64), 0; }
int cublasGetMathMode(void*, int* mode) { return *mode = 0, 0; }
const char* cublasGetStatusName(int) { return "fake"; }
const char* cublasGetStatusString(int) { return "fake"; }
}
