// One JSON object per call, appended to the file that FAKE_CUDA_TRACE names.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

inline FILE* trace_file() {
  static FILE* file = [] {
    const char* path = getenv("FAKE_CUDA_TRACE");
    FILE* opened = path ? fopen(path, "a") : nullptr;
    if (opened) setvbuf(opened, nullptr, _IOLBF, 1 << 16);  // whole lines, also when the process leaves with _exit
    return opened;
  }();
  return file;
}

// `more` is the rest of the object: trace("cudaMemcpyAsync", ", \"bytes\": %zu", bytes)
inline void trace(const char* call, const char* more = "", ...) {
  if (!trace_file()) return;
  char rest[2048];
  va_list values;
  va_start(values, more);
  vsnprintf(rest, sizeof rest, more, values);
  va_end(values);
  fprintf(trace_file(), "{\"call\": \"%s\"%s}\n", call, rest);
}

inline void trace_launch(const char* call, const std::string& kernel, const unsigned (&grid)[3],
                         const unsigned (&block)[3], size_t shared_bytes, const void* stream) {
  trace(call,
        ", \"kernel\": \"%.1500s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"shared_bytes\": %zu, "
        "\"stream\": \"%p\"",
        kernel.c_str(), grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, stream);
}
