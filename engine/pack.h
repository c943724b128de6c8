// A kernel pack (onnxfuse/cuda/pack/layout.py): launch programs and compiled kernels of a model in one file, read
// without trust. What is read is checked against its bounds and its SHA-256.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sha256.h"

namespace engine::pack {

enum Kind : uint32_t { kCubin = 0, kPtx = 1 };

// GPUs that kernels are for.
struct Target {
  std::string name, arch;
  uint32_t kind, number, sm_count, threads_per_sm, shared_bytes;  // number: compute capability, times ten
  bool early;
};

struct Kernel {
  std::string entry;
  uint32_t target;
  uint64_t offset, size;
  Digest digest;
};

struct Program {
  uint32_t target;
  bool aligned;                   // all pointers are multiples of 16; else any
  bool general;                   // for all shapes and any pointers, for where no other one answers
  std::vector<uint32_t> kernels;  // by their numbers in the tape: their places among those of the pack
  std::string
      variant;  // for shapes for which it was measured fastest on the machine that made the pack; empty: for any
  std::string tape;
};

struct Entry {
  std::string name;
  std::vector<int32_t> inputs, outputs;
  std::vector<uint32_t> may_alias, on_host;
  std::vector<Program> programs;
};

class Pack {
 public:
  // Throws in one line what is wrong with the file, which it names.
  explicit Pack(const std::string& path);
  ~Pack();
  Pack(const Pack&) = delete;
  Pack& operator=(const Pack&) = delete;

  // A compiled kernel, with a zero behind its end.
  std::string image(const Kernel&) const;

  std::string path;
  Digest digest{};  // of the index, which holds those of the kernels
  std::vector<Target> targets;
  std::vector<Kernel> kernels;
  std::vector<Entry> ops;

 private:
  std::string read(uint64_t size, uint64_t at) const;
  void read_index(const std::string& index, uint64_t file_size, uint64_t first_kernel);

  int file_;
};

// What is known of a GPU.
struct Gpu {
  uint32_t number, sm_count, shared_bytes;
};

constexpr uint32_t kNone = ~0u;

// The target whose kernels a GPU runs: of its own architecture, best planned for as many multiprocessors; else the
// latest PTX that it can take and whose plans need no more shared memory than it has.
uint32_t best(const std::vector<Target>&, const Gpu&);

}  // namespace engine::pack
