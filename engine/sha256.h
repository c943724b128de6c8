// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace engine {

using Digest = std::array<unsigned char, 32>;

class Sha256 {
 public:
  static Digest of(const void* data, size_t size) {
    Sha256 hash;
    const auto* bytes = static_cast<const unsigned char*>(data);
    size_t at = 0;
    for (; at + 64 <= size; at += 64) hash.block(bytes + at);
    unsigned char last[128] = {};
    const size_t rest = size - at, padded = rest < 56 ? 64 : 128;
    if (rest) std::memcpy(last, bytes + at, rest);
    last[rest] = 0x80;
    for (size_t i = 0; i < 8; ++i) last[padded - 1 - i] = static_cast<unsigned char>(uint64_t{size} * 8 >> 8 * i);
    hash.block(last);
    if (padded == 128) hash.block(last + 64);
    Digest digest;
    for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<unsigned char>(hash.state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
  }

 private:
  static uint32_t turned(uint32_t x, int by) { return x >> by | x << (32 - by); }

  // The first 32 bits of the fraction of a prime's root: the square root's, the cube root's.
  struct Constants {
    uint32_t start[8], round[64];
    Constants() {
      int found = 0;
      for (int n = 2; found < 64; ++n) {
        bool prime = true;
        for (int d = 2; d * d <= n; ++d) prime &= n % d != 0;
        if (!prime) continue;
        const auto fraction = [](long double root) {
          return static_cast<uint32_t>((root - std::floor(root)) * 4294967296.0L);
        };
        if (found < 8) start[found] = fraction(std::sqrt(static_cast<long double>(n)));
        round[found++] = fraction(std::cbrt(static_cast<long double>(n)));
      }
    }
  };
  static const Constants& constants() {
    static const Constants all;
    return all;
  }

  Sha256() { std::memcpy(state_, constants().start, sizeof state_); }

  void block(const unsigned char* bytes) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i)
      w[i] = uint32_t{bytes[4 * i]} << 24 | uint32_t{bytes[4 * i + 1]} << 16 | uint32_t{bytes[4 * i + 2]} << 8 |
             bytes[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    uint32_t s[8];
    std::memcpy(s, state_, sizeof s);
    for (int i = 0; i < 64; ++i) {
      const uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) +
                           ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants().round[i] + w[i];
      const uint32_t two =
          (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      for (int j = 7; j > 0; --j) s[j] = s[j - 1];
      s[4] += one;
      s[0] = one + two;
    }
    for (int i = 0; i < 8; ++i) state_[i] += s[i];
  }

  uint32_t state_[8];
};

}  // namespace engine
