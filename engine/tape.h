// A launch program (cuda/launch_programs/tape.py): from the extents of an op's inputs to a launch, without Python,
// without the GIL, without allocation. What is read is checked against its bounds once, so that evaluating needs no
// checks; what does not fit 64 bits is not answered, and the planner is asked.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace tape {

constexpr uint32_t kVersion = 3;
constexpr uint32_t kMostRegisters = 1u << 16, kMostInstructions = 1u << 20, kMostWords = 1u << 22;
constexpr uint32_t kMostRank = 64, kMostThen = 64;

// In the order of symbolic/operations.py, OPERATIONS.
enum Op : uint32_t {
  kJump,
  kAnswer,
  kMiss,
  kAdd = 16,
  kSub,
  kMul,
  kFloorDiv,
  kMod,
  kGcd,
  kBitLength,
  kShl,
  kMultiplier,
  kLt,
  kEq,
  kNot,
  kAnd,
  kOr,
  kSelect,
  kRealOf,
  kRealAdd,
  kRealSub,
  kRealMul,
  kRealDiv,
  kRealLt,
  kRealEq,
  kRealSelect,
  kRound,
  kFloor,
  kEnd,
};

struct Instruction {
  uint32_t op, to, a, b, c;
};

union Register {
  int64_t integer;
  double real;
};

class Reader {  // of words, each within its bounds
 public:
  Reader(const std::vector<uint32_t>& words, size_t at) : words_(words), at_(at) {}
  uint32_t one() {
    if (at_ >= words_.size()) throw std::runtime_error("a launch program whose answer ends too early");
    return words_[at_++];
  }
  uint32_t below(uint32_t bound, const char* what) {
    const uint32_t word = one();
    if (word >= bound) throw std::runtime_error(std::string("a launch program with ") + what + " out of range");
    return word;
  }
  size_t at() const { return at_; }

 private:
  const std::vector<uint32_t>& words_;
  size_t at_;
};

class Tape {
 public:
  explicit Tape(const std::string& bytes) {
    struct Header {
      char magic[4];
      uint32_t version, ranks, dims, constants, registers, instructions, words, kernels, outputs;
    } head;
    if (bytes.size() < sizeof head) throw std::runtime_error("a launch program that is cut off");
    std::memcpy(&head, bytes.data(), sizeof head);
    if (std::memcmp(head.magic, "OFLP", 4) != 0 || head.version != kVersion)
      throw std::runtime_error("a launch program of version " + std::to_string(head.version) + ", expected " +
                               std::to_string(kVersion));
    const uint64_t known = uint64_t{head.dims} + head.constants;
    const uint64_t size = sizeof head + 8 * known + 4 * (uint64_t{head.ranks} + 5ull * head.instructions + head.words);
    if (bytes.size() != size || known > head.registers || head.registers == 0 || head.registers > kMostRegisters ||
        head.instructions > kMostInstructions || head.instructions == 0 || head.words > kMostWords)
      throw std::runtime_error("a launch program of another size than it says");
    registers = head.registers;
    kernels = head.kernels;
    outputs = head.outputs;
    const char* from = bytes.data() + sizeof head;
    take(from, fixed, head.dims);
    take(from, constants, head.constants);
    take(from, ranks, head.ranks);
    take(from, code, head.instructions);
    take(from, words, head.words);
    uint64_t dims = 0;
    for (uint32_t rank : ranks) dims += rank;
    if (dims != head.dims) throw std::runtime_error("a launch program whose ranks are not those of its extents");
    check();
  }

  // `shapes`: rank and extents of each input in turn. Returns the place of the answer among `words`, -1 where there is
  // none; `held` then has its numbers.
  int64_t evaluate(const int64_t* shapes, size_t length, std::vector<Register>& held) const {
    if (length != ranks.size() + fixed.size()) return -1;
    if (held.size() < registers) held.resize(registers);
    size_t at = 0, dim = 0;
    for (uint32_t rank : ranks) {
      if (shapes[at++] != rank) return -1;
      for (uint32_t i = 0; i < rank; ++i, ++at, ++dim) {
        if (shapes[at] < 0 || (fixed[dim] >= 0 && fixed[dim] != shapes[at])) return -1;
        held[dim].integer = shapes[at];
      }
    }
    if (!constants.empty()) std::memcpy(&held[dim], constants.data(), constants.size() * sizeof(int64_t));
    return run(held.data());
  }

  uint32_t registers = 0, kernels = 0, outputs = 0;
  std::vector<int64_t> fixed, constants;  // an extent that is -1 can be any
  std::vector<uint32_t> ranks, words;
  std::vector<Instruction> code;

 private:
  template <class T>
  static void take(const char*& from, std::vector<T>& to, size_t count) {
    to.resize(count);
    if (count) std::memcpy(to.data(), from, count * sizeof(T));
    from += count * sizeof(T);
  }

  void check() const {
    size_t looked_at = 0;
    for (size_t i = 0; i < code.size(); ++i) {
      const Instruction& now = code[i];
      const bool last = i + 1 == code.size();
      // Evaluating reads these of every instruction, whatever it is.
      if (now.to >= registers || now.a >= registers || now.b >= registers)
        throw std::runtime_error("a launch program with an instruction out of range");
      if (now.op == kJump) {
        if (now.c <= i || now.c >= code.size()) throw std::runtime_error("a launch program with a jump out of range");
      } else if (now.op == kAnswer) {
        Reader reader(words, now.c);
        check_answer(reader, 0);
        looked_at += reader.at() - now.c;
        if (looked_at > words.size())  // each has words of its own; looking at the same again and again takes days
          throw std::runtime_error("a launch program with answers that overlap");
      } else if (now.op != kMiss && (now.op < kAdd || now.op >= kEnd || now.c >= registers)) {
        throw std::runtime_error("a launch program with an instruction out of range");
      }
      if (last && now.op != kMiss && now.op != kAnswer) throw std::runtime_error("a launch program without an end");
    }
  }

  uint32_t several(Reader& reader, uint32_t most) const {
    const uint32_t count = reader.below(most + 1, "a count");
    for (uint32_t i = 0; i < count; ++i) reader.below(registers, "a register");
    return count;
  }

  void check_answer(Reader& reader, uint32_t depth) const {
    if (depth > kMostThen) throw std::runtime_error("a launch program of too many launches");
    reader.below(kernels, "a kernel");
    for (int i = 0; i < 9; ++i) reader.below(registers, "a register");
    const uint32_t bits = reader.one();
    if (bits != 32 && bits != 64) throw std::runtime_error("a launch program with parameters of no known width");
    several(reader, 1024);
    if (reader.below(65, "a count") != outputs) throw std::runtime_error("a launch program of other outputs");
    for (uint32_t i = 0; i < outputs; ++i) several(reader, kMostRank);
    const uint32_t maps = reader.below(25, "a count");
    for (uint32_t i = 0; i < maps; ++i) {
      reader.below(1024, "a pointer");
      reader.one();  // the element type: what none is known for is told when it is used
      reader.below(2, "a flag");
      const uint32_t window = reader.below(2, "a flag");
      reader.below(registers, "a register");
      const uint32_t rank = several(reader, 5);
      const uint32_t strides = several(reader, 5), box = several(reader, 5);
      if (rank == 0 || strides + 1 != rank || box != (window ? 2 : rank))
        throw std::runtime_error("a launch program with a tensor map of no known form");
      for (uint32_t side = 0; side < (window ? 3u : 0u); ++side)
        if (several(reader, 5) + 2 != rank) throw std::runtime_error("a launch program with a window of no known form");
    }
    const uint32_t then = reader.below(kMostThen, "a count");
    for (uint32_t i = 0; i < then; ++i) check_answer(reader, depth + 1);
  }

  static bool is_exact(int64_t value) { return value <= (1ll << 53) && value >= -(1ll << 53); }

  static bool floor_divide(int64_t a, int64_t b, int64_t& quotient, int64_t& rest) {
    if (b == 0 || (b == -1 && a == INT64_MIN)) return false;
    if (((a | b) >> 32) == 0) {  // most of them, and half the time of a division by 64 bits
      quotient = static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
      rest = static_cast<uint32_t>(a) % static_cast<uint32_t>(b);
      return true;
    }
    if (a < 0 && a > -(1ll << 31) && b > 0 && b < (1ll << 31)) {  // of a quotient that is rounded up
      quotient =
          -static_cast<int64_t>((static_cast<uint32_t>(-a) + static_cast<uint32_t>(b) - 1) / static_cast<uint32_t>(b));
      rest = a - quotient * b;
      return true;
    }
    quotient = a / b;
    rest = a % b;
    if (rest != 0 && ((rest < 0) != (b < 0))) {
      --quotient;
      rest += b;
    }
    return true;
  }

  // round(a, 2), as Python has it: the decimal nearest to the very value, of ties the even one.
  static bool round2(double a, double& out) {
    if (!(std::fabs(a) < 1099511627776.0)) return false;
    const double scaled = a * 100.0, error = std::fma(a, 100.0, -scaled);
    double whole = std::nearbyint(scaled);
    const double apart = scaled - whole;
    if (apart == 0.5 && error > 0) whole += 1;
    if (apart == -0.5 && error < 0) whole -= 1;
    out = whole / 100.0;
    return true;
  }

  static int bit_length(uint64_t value) { return value ? 64 - __builtin_clzll(value) : 0; }

  static bool multiplier(int64_t extent, int64_t bits, int64_t& out) {
    if (extent < 0 || extent >= (1ll << 62) || (bits != 32 && bits != 64)) return false;
    const int shift = bit_length(static_cast<uint64_t>(extent > 0 ? extent - 1 : 0));
    const unsigned __int128 one = 1;
    const unsigned __int128 found = (one << bits) * ((one << shift) - static_cast<uint64_t>(extent)) /
                                        static_cast<uint64_t>(extent > 0 ? extent : 1) +
                                    1;
    out = bits == 32 ? static_cast<int64_t>(static_cast<uint32_t>(found))
                     : static_cast<int64_t>(static_cast<uint64_t>(found));
    return true;
  }

  int64_t run(Register* held) const {
    const Instruction* const begin = code.data();
    for (const Instruction* now = begin;; ++now) {
      const Register a = held[now->a], b = held[now->b];
      Register& to = held[now->to];
      int64_t quotient, rest;
      switch (now->op) {
        case kJump:
          if (a.integer != b.integer) now = begin + now->c - 1;
          break;
        case kAnswer: return now->c;
        case kMiss: return -1;
        case kAdd:
          if (__builtin_add_overflow(a.integer, b.integer, &to.integer)) return -1;
          break;
        case kSub:
          if (__builtin_sub_overflow(a.integer, b.integer, &to.integer)) return -1;
          break;
        case kMul:
          if (__builtin_mul_overflow(a.integer, b.integer, &to.integer)) return -1;
          break;
        case kFloorDiv:
          if (!floor_divide(a.integer, b.integer, quotient, rest)) return -1;
          to.integer = quotient;
          break;
        case kMod:
          if (!floor_divide(a.integer, b.integer, quotient, rest)) return -1;
          to.integer = rest;
          break;
        case kGcd: {
          int64_t x = a.integer, y = b.integer;
          if (x == INT64_MIN || y == INT64_MIN) return -1;
          while (y) {
            const int64_t r = x % y;
            x = y;
            y = r;
          }
          to.integer = x < 0 ? -x : x;
          break;
        }
        case kBitLength:
          to.integer =
              bit_length(a.integer < 0 ? ~static_cast<uint64_t>(a.integer) + 1 : static_cast<uint64_t>(a.integer));
          break;
        case kShl:
          if (b.integer < 0 || b.integer >= 63 || a.integer > (INT64_MAX >> b.integer) ||
              a.integer < (INT64_MIN >> b.integer))
            return -1;
          to.integer = static_cast<int64_t>(static_cast<uint64_t>(a.integer) << b.integer);
          break;
        case kMultiplier:
          if (!multiplier(a.integer, b.integer, to.integer)) return -1;
          break;
        case kLt: to.integer = a.integer < b.integer; break;
        case kEq: to.integer = a.integer == b.integer; break;
        case kNot: to.integer = !a.integer; break;
        case kAnd: to.integer = a.integer && b.integer; break;
        case kOr: to.integer = a.integer || b.integer; break;
        case kSelect:
        case kRealSelect: to.integer = a.integer ? b.integer : held[now->c].integer; break;
        case kRealOf:
          if (!is_exact(a.integer)) return -1;
          to.real = static_cast<double>(a.integer);
          break;
        case kRealAdd: to.real = a.real + b.real; break;
        case kRealSub: to.real = a.real - b.real; break;
        case kRealMul: to.real = a.real * b.real; break;
        case kRealDiv:
          if (b.real == 0) return -1;
          to.real = a.real / b.real;
          break;
        case kRealLt: to.integer = a.real < b.real; break;
        case kRealEq: to.integer = a.real == b.real; break;
        case kRound:
          if (b.integer != 2 || !round2(a.real, to.real)) return -1;
          break;
        case kFloor:
          if (!(std::fabs(a.real) <= 9007199254740992.0)) return -1;
          to.integer = static_cast<int64_t>(std::floor(a.real));
          break;
        default: return -1;
      }
    }
  }
};

}  // namespace tape
