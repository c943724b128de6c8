#include "pack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "tape.h"

namespace engine::pack {
namespace {

constexpr uint32_t kVersion = 2;
constexpr uint64_t kHeader = 8 + 4 + 4 + 8 + 8 + 32 + 32;
constexpr uint64_t kMostIndex = 256'000'000, kMostBytes = 8'000'000'000;

class Reader {
 public:
  explicit Reader(const std::string& data) : data_(data) {}

  const char* take(uint64_t count) {
    if (count > data_.size() - at_) throw std::runtime_error("has an index that ends too early");
    at_ += count;
    return data_.data() + at_ - count;
  }
  template <class Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  uint32_t below(uint64_t bound, const char* what) {
    const auto found = number<uint32_t>();
    if (found >= bound)
      throw std::runtime_error(std::string("names ") + what + " " + std::to_string(found) + " of " +
                               std::to_string(bound));
    return found;
  }
  std::string blob() {
    const auto size = number<uint32_t>();
    return std::string(take(size), size);
  }
  Digest digest() {
    Digest found;
    std::memcpy(found.data(), take(found.size()), found.size());
    return found;
  }
  // One has 4 bytes and more: what says that there are many ends too early before they are made.
  template <class One>
  auto several(One one) {
    std::vector<decltype(one())> all;
    for (auto left = number<uint32_t>(); left > 0; --left) all.push_back(one());
    return all;
  }
  bool is_at_end() const { return at_ == data_.size(); }

 private:
  const std::string& data_;
  uint64_t at_ = 0;
};

}  // namespace

// What is thrown on the way gets the file's name here, once.
Pack::Pack(const std::string& path) : path(path), file_(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  try {
    if (file_ < 0) throw std::runtime_error(std::string("cannot be read (") + std::strerror(errno) + ")");
    struct stat found;
    if (fstat(file_, &found) != 0 || !S_ISREG(found.st_mode)) throw std::runtime_error("is no file");
    const auto size = static_cast<uint64_t>(found.st_size);
    const std::string header = read(std::min(size, kHeader), 0);
    if (header.size() < kHeader || header.compare(0, 8, "OFKERNEL") != 0) throw std::runtime_error("is no kernel pack");
    Reader head(header);
    head.take(8);
    const auto version = head.number<uint32_t>(), tapes = head.number<uint32_t>();
    if (version != kVersion || tapes != tape::kVersion)
      throw std::runtime_error("is a pack of version " + std::to_string(version) + "." + std::to_string(tapes) +
                               ", and this library reads version " + std::to_string(kVersion) + "." +
                               std::to_string(tape::kVersion));
    const auto told = head.number<uint64_t>(), index = head.number<uint64_t>();
    if (told != size)
      throw std::runtime_error("has " + std::to_string(size) + " bytes, and says that it has " + std::to_string(told));
    if (index > std::min(kMostIndex, size - kHeader) || size > kMostBytes)
      throw std::runtime_error("says that its index has " + std::to_string(index) + " bytes, more than there can be");
    digest = head.digest();
    const std::string bytes = read(index, kHeader);
    if (Sha256::of(bytes.data(), bytes.size()) != digest)
      throw std::runtime_error("is damaged: its index is not what was written");
    read_index(bytes, size, kHeader + index);
  } catch (const std::exception& error) {
    if (file_ >= 0) close(file_);
    throw std::runtime_error("the kernel pack " + path + " " + error.what() +
                             ". Build it again: onnxfuse compile MODEL");
  }
}

Pack::~Pack() { close(file_); }

void Pack::read_index(const std::string& index, uint64_t file_size, uint64_t first_kernel) {
  Reader reader(index);
  reader.blob();  // facts, for people
  targets = reader.several([&] {
    Target t;
    t.name = reader.blob();
    t.arch = reader.blob();
    t.kind = reader.below(2, "kind");
    for (uint32_t* n : {&t.number, &t.sm_count, &t.threads_per_sm, &t.shared_bytes}) *n = reader.number<uint32_t>();
    t.early = reader.number<uint32_t>() != 0;
    return t;
  });
  kernels = reader.several([&] {
    Kernel k;
    k.entry = reader.blob();
    k.target = reader.below(targets.size(), "target");
    k.offset = reader.number<uint64_t>();
    k.size = reader.number<uint64_t>();
    if (k.offset < first_kernel || k.size > file_size || k.offset > file_size - k.size)
      throw std::runtime_error("has the kernel " + k.entry + " beyond its end");
    k.digest = reader.digest();
    return k;
  });
  ops = reader.several([&] {
    Entry op;
    op.name = reader.blob();
    reader.digest();  // of the op, for those who have its body
    op.inputs = reader.several([&] { return reader.number<int32_t>(); });
    op.outputs = reader.several([&] { return reader.number<int32_t>(); });
    for (auto* inputs : {&op.may_alias, &op.on_host})
      *inputs = reader.several([&] { return reader.number<uint32_t>(); });
    op.programs = reader.several([&] {
      Program p;
      p.target = reader.below(targets.size(), "target");
      const uint32_t kind = reader.below(3, "flag");
      p.aligned = kind == 1;
      p.general = kind == 2;
      p.kernels = reader.several([&] { return reader.below(kernels.size(), "kernel"); });
      for (uint32_t k : p.kernels)
        if (kernels[k].target != p.target) throw std::runtime_error("has a launch program with kernels of another GPU");
      p.variant = reader.blob();
      p.tape = reader.blob();
      return p;
    });
    return op;
  });
  if (!reader.is_at_end()) throw std::runtime_error("has an index with more behind its end");
}

std::string Pack::image(const Kernel& kernel) const {
  std::string image = read(kernel.size, kernel.offset);
  if (Sha256::of(image.data(), image.size()) != kernel.digest)
    throw std::runtime_error("the kernel pack " + path + " is damaged: the kernel " + kernel.entry +
                             " is not what was written. Build it again: onnxfuse compile MODEL");
  return image;
}

std::string Pack::read(uint64_t size, uint64_t at) const {
  std::string data(size, '\0');
  uint64_t done = 0;
  while (done < size) {
    const ssize_t got = pread(file_, &data[done], size - done, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::runtime_error(std::string("cannot be read (") + std::strerror(errno) + ")");
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  data.resize(done);
  return data;
}

uint32_t best(const std::vector<Target>& targets, const Gpu& gpu) {
  const auto apart = [&](const Target& t) {
    return t.sm_count > gpu.sm_count ? t.sm_count - gpu.sm_count : gpu.sm_count - t.sm_count;
  };
  uint32_t own = kNone, later = kNone;
  for (uint32_t n = 0; n < targets.size(); ++n) {
    const Target& t = targets[n];
    if (t.kind == kCubin) {
      if (t.number == gpu.number && (own == kNone || apart(t) < apart(targets[own]))) own = n;
    } else if (t.number <= gpu.number && t.shared_bytes <= gpu.shared_bytes &&
               (later == kNone || t.number > targets[later].number)) {
      later = n;
    }
  }
  return own != kNone ? own : later;
}

}  // namespace engine::pack
