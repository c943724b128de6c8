// The CPU twin of include/device.cuh, cluster.cuh, sm80.cuh and sm90.cuh: the same functions, so that functors and whole kernels
// run without a GPU.
// The threads of a block are fibers that run in lockstep from one exchange to the next; at the barrier of a block the
// threads that are still there wait for each other, as many exchanges as some warps have in between.

// What is the same for all kernels is compiled once, in host.cpp.

#include <cmath>
#include <cstdlib>
#include <cstring>

struct f16;
struct bf16;

#define DEVICE inline
#define KERNEL(...) static void
#define CLUSTER_KERNEL(blocks, ...) \
  static const unsigned clustered = (machine.cluster = blocks); \
  static void
#define PARAMETERS const Parameters
#define SHARED static
#define DYNAMIC_SHARED_AT(boundary, type, name, count) alignas(boundary) static type name[count]
#define DYNAMIC_SHARED(type, name, count) DYNAMIC_SHARED_AT(16, type, name, count)
#define OWN_DYNAMIC_SHARED(type, name, count) static OfBlock<type, count> name
#define UNROLLED

DEVICE void join_stream() {}
DEVICE void bring_near(const void*, unsigned) {}
DEVICE void bring_run_near(const void*, unsigned) {}
struct Machine {
  static constexpr int MOST = 8 * 1024;
  // `thread` of all `threads` of a cluster, whose first block is `block`.
  unsigned block = 0, blocks = 1, thread = 0, threads = 1, cluster = 1;
  static unsigned word[MOST], fragments[MOST][6];
  static const char* row[MOST];

  void pause();
  void wait_for_block();
  void cluster_sync();
};
extern Machine machine;

void run_on_fibers(unsigned blocks, unsigned threads, void (*body)(void*), void* captured);
template <class Body> void run_kernel(unsigned blocks, unsigned threads, Body body) {
  run_on_fibers(blocks, threads, [](void* captured) { (*(Body*)captured)(); }, &body);
}

DEVICE unsigned cluster_rank() { return machine.thread / (machine.threads / machine.cluster); }
DEVICE unsigned block_index() { return machine.block + cluster_rank(); }
// Of each block of a cluster its own.
template <class T, int N> struct OfBlock {
  struct alignas(16) One {
    T item[N];
  } of[8];
  operator T*() { return of[cluster_rank()].item; }
};
DEVICE unsigned last_block() { return machine.blocks - 1; }
DEVICE unsigned block_from_end() { return last_block() - block_index(); }
DEVICE unsigned thread_index() { return machine.thread % (machine.threads / machine.cluster); }
DEVICE unsigned select_bytes(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned selected = 0;
  for (int i = 0; i < 4; ++i) selected |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return selected;
}
template <bool A_SIGNED, bool B_SIGNED> DEVICE int add_products_of_bytes(unsigned a, unsigned b, int sum) {
  for (int i = 0; i < 4; ++i) {
    const unsigned char x = a >> 8 * i & 255, y = b >> 8 * i & 255;
    sum += (A_SIGNED ? (int)(signed char)x : (int)x) * (B_SIGNED ? (int)(signed char)y : (int)y);
  }
  return sum;
}
DEVICE void wait_for_block() { machine.wait_for_block(); }
DEVICE bool any_of_block(bool holds) {
  machine.word[machine.thread] = holds;
  machine.wait_for_block();
  bool any = false;
  const unsigned threads = machine.threads / machine.cluster, first = machine.thread / threads * threads;
  for (unsigned t = first; t < first + threads; ++t) any |= machine.word[t] != 0;
  machine.wait_for_block();
  return any;
}
DEVICE void wait_for_warp() { machine.pause(); }
DEVICE void cluster_sync() { machine.cluster_sync(); }
DEVICE void publish() {}
DEVICE unsigned count_round(unsigned* counter, unsigned all) {
  const unsigned before = *counter;
  *counter = before + 1 == all ? 0 : before + 1;
  return before;
}
DEVICE unsigned exchange(unsigned word, int distance) {
  machine.word[machine.thread] = word;
  machine.pause();
  const unsigned other = machine.word[machine.thread ^ distance];
  machine.pause();
  return other;
}

DEVICE unsigned lanes_where(bool holds) {
  machine.word[machine.thread] = holds;
  machine.pause();
  unsigned lanes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) lanes |= (machine.word[machine.thread / 32 * 32 + lane] != 0) << lane;
  machine.pause();
  return lanes;
}
DEVICE bool any_of_warp(bool holds) { return lanes_where(holds) != 0; }

struct Arrivals {
  long long left;
  bool announced;
  unsigned ended;

  void begin() { *this = {}; }
  void announce(unsigned bytes) {
    left += bytes;
    announced = true;
    end();
  }
  void come(unsigned bytes) {
    left -= bytes;
    end();
  }
  void wait_for(unsigned phase) {
    do machine.pause();
    while (ended % 2 == phase % 2);
  }
  void end() {
    if (!announced || left) return;
    announced = false;
    ++ended;
  }
};

template <class T, int N> struct Shared {
  T item[8][N];
  T* mine() { return item[cluster_rank()]; }
  T of(unsigned rank, int i) { return item[rank][i]; }
  template <int M> void send(unsigned rank, int i, const T& value, Shared<Arrivals, M>& arrivals, int which) {
    item[rank][i] = value;
    arrivals.item[rank][which].come(sizeof(T));
  }
};

template <class T> DEVICE T* settled(T* pointer) { return pointer; }

// What a launch has read outside of its buffers and how much it has written beside its scratch memory, in bytes.
struct Buffer {
  const char *start, *end;
};
constexpr int MOST_BUFFERS = 128;
extern Buffer buffers[MOST_BUFFERS], scratch;
extern int buffer_count;
extern unsigned long long strayed, written;
bool is_inside(const char* at, unsigned long bytes);
template <class T> DEVICE T read(const T* from) {
  if (!is_inside((const char*)from, sizeof(T))) strayed += sizeof(T);
  return *from;
}
template <class T> DEVICE void write(T* to, const T& value) {
  if (!(scratch.start <= (const char*)to && (const char*)to < scratch.end)) written += sizeof(T);
  *to = value;
}

DEVICE unsigned multiply_high(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
DEVICE unsigned long long multiply_high(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}

template <class To, class From> inline To same_bits(From from) {
  To to;
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
DEVICE float float_of_bits(unsigned bits) { return same_bits<float>(bits); }
DEVICE unsigned bits_of_float(float value) { return same_bits<unsigned>(value); }
DEVICE double double_of_bits(unsigned long long bits) { return same_bits<double>(bits); }
DEVICE unsigned long long bits_of_double(double value) { return same_bits<unsigned long long>(value); }

DEVICE float f16_to_float(unsigned bits) {
  const unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                          : exponent == 0 ? std::ldexp((float)fraction, -24)
                                          : std::ldexp((float)(fraction + 1024), (int)exponent - 25);
  return bits & 0x8000u ? -magnitude : magnitude;
}
DEVICE unsigned float_to_f16(float value) {
  const unsigned sign = std::signbit(value) ? 0x8000u : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7fff;
  if (magnitude >= 65520.0f) return sign | 0x7c00u;
  if (magnitude == 0.0f) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int scale = exponent < -13 ? 24 : 11 - exponent;  // below 2^-14 the spacing stays 2^-24
  const float steps = std::nearbyint(std::ldexp(magnitude, scale));
  if (exponent < -13) return sign | (unsigned)steps;
  return sign | ((unsigned)(exponent + 14) * 1024u + (unsigned)steps - 1024u);
}
DEVICE unsigned floats_to_f16x2(float low, float high) { return float_to_f16(low) | float_to_f16(high) << 16; }
DEVICE unsigned minus_f16x2(unsigned a, unsigned b) {
  return floats_to_f16x2(f16_to_float(a & 0xffffu) - f16_to_float(b & 0xffffu), f16_to_float(a >> 16) - f16_to_float(b >> 16));
}
DEVICE float bf16_to_float(unsigned bits) { return float_of_bits(bits << 16); }
DEVICE unsigned float_to_bf16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const unsigned bits = bits_of_float(value);
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
DEVICE unsigned floats_to_bf16x2(float low, float high) { return float_to_bf16(low) | float_to_bf16(high) << 16; }

DEVICE unsigned round_to_tf32(unsigned bits) {
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

DEVICE float greater(float a, float b) { return a > b || a != a ? a : b; }
DEVICE float lesser(float a, float b) { return a < b || a != a ? a : b; }
DEVICE float minus(float a, float b) { return a - b; }
DEVICE double minus(double a, double b) { return a - b; }
DEVICE float divide_fast(float numerator, float denominator) { return numerator / denominator; }
DEVICE float reciprocal_fast(float x) { return 1.0f / x; }
DEVICE float sqrt_fast(float x) { return std::sqrt(x); }
DEVICE float exp2_fast(float x) { return std::exp2(x); }

// The warp's product of [16, 16] by [16, 8], gathered from the lanes as PTX describes mma.m16n8k16.
template <class Decode>
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Decode decode) {
  unsigned* mine = machine.fragments[machine.thread];
  for (int i = 0; i < 4; ++i) mine[i] = a[i];
  mine[4] = b0;
  mine[5] = b1;
  machine.pause();
  const unsigned first = machine.thread & ~31u, lane = machine.thread & 31u;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2, half = k % 2 * 16;
      const unsigned left = machine.fragments[first + row % 8 * 4 + pair][row / 8 + k / 8 * 2] >> half & 0xffffu;
      const unsigned right = machine.fragments[first + column * 4 + pair][4 + k / 8] >> half & 0xffffu;
      d[i] += decode(left) * decode(right);
    }
  }
  machine.pause();
}
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, f16*) {
  mma(d, a, b0, b1, f16_to_float);
}
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bf16*) {
  mma(d, a, b0, b1, bf16_to_float);
}
// mma.m16n8k8: element k of a row is with lane k % 4, in its word for k / 4. Of the factors the bits of TF32 are read; the
// sum is cut off, not rounded.
DEVICE float factor(unsigned bits) { return float_of_bits(bits & ~0x1fffu); }
DEVICE float cut_off(double value) {
  const float rounded = (float)value;
  return std::fabs(rounded) > std::fabs(value) ? std::nextafterf(rounded, 0.0f) : rounded;
}
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float*) {
  unsigned* mine = machine.fragments[machine.thread];
  for (int i = 0; i < 4; ++i) mine[i] = a[i];
  mine[4] = b0;
  mine[5] = b1;
  machine.pause();
  const unsigned first = machine.thread & ~31u, lane = machine.thread & 31u;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double sum = d[i];
    for (int k = 0; k < 8; ++k)
      sum += (double)factor(machine.fragments[first + row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]) *
             factor(machine.fragments[first + column * 4 + k % 4][4 + k / 4]);
    d[i] = cut_off(sum);
  }
  machine.pause();
}

// integers.cuh: mma.m16n8k32. A row's 32 elements lie four to a word, with the lanes as those of m16n8k16 do; sums are
// exact, or wrap.
template <class A, class B> struct Bytes { unsigned char bits; };
template <class A, class B> DEVICE float add_sums(float a, float b, Bytes<A, B>*) {
  return float_of_bits(bits_of_float(a) + bits_of_float(b));
}
template <class A, class B>
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Bytes<A, B>*) {
  unsigned* mine = machine.fragments[machine.thread];
  for (int i = 0; i < 4; ++i) mine[i] = a[i];
  mine[4] = b0;
  mine[5] = b1;
  machine.pause();
  const unsigned first = machine.thread & ~31u, lane = machine.thread & 31u;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    unsigned sum = bits_of_float(d[i]);
    for (int k = 0; k < 32; ++k) {
      const int word = k % 16 / 4, shift = k % 4 * 8;
      const A left = (A)(machine.fragments[first + row % 8 * 4 + word][row / 8 + k / 16 * 2] >> shift);
      const B right = (B)(machine.fragments[first + column * 4 + word][4 + k / 16] >> shift);
      sum += (unsigned)((int)left * (int)right);
    }
    d[i] = float_of_bits(sum);
  }
  machine.pause();
}

// ---- sm80.cuh

using SharedAddress = char*;
DEVICE SharedAddress shared_address(void* pointer) { return (char*)pointer; }

// What is still read there meets NaN; what has arrived is there only once the copy is waited for.
void deliver_later(char* to, const char* bytes, int count);
void commit_copies();
void deliver_all_but(unsigned groups);
template <int BYTES> DEVICE void copy_async(SharedAddress to, const void* from, bool there) {
  struct Piece { char bytes[BYTES]; };
  const Piece piece = there ? read((const Piece*)from) : Piece{};
  std::memset(to, 0xff, BYTES);
  deliver_later(to, piece.bytes, BYTES);
}
DEVICE void copy_async_prefix(SharedAddress to, const void* from, int bytes) {
  char piece[16] = {};
  // Not a byte beyond those is looked at, as the copy may not either.
  for (int i = 0; i < bytes; i += 2) {
    const auto half = read((const unsigned short*)((const char*)from + i));
    std::memcpy(piece + i, &half, 2);
  }
  std::memset(to, 0xff, 16);
  deliver_later(to, piece, 16);
}
template <int GROUPS> DEVICE void wait_for_copies() { deliver_all_but(GROUPS); }

DEVICE unsigned load_shared(SharedAddress from) { return *(const unsigned*)from; }
DEVICE void load_shared(unsigned (&word)[2], SharedAddress from) { std::memcpy(word, from, 8); }
DEVICE void load_shared(unsigned (&word)[4], SharedAddress from) { std::memcpy(word, from, 16); }
DEVICE void store_shared(SharedAddress to, const unsigned (&word)[4]) { std::memcpy(to, word, 16); }

DEVICE unsigned masked_onto(unsigned word, unsigned mask, unsigned base) { return word & mask | base; }
DEVICE unsigned minus_bf16x2(unsigned a, unsigned b) {
  return floats_to_bf16x2(bf16_to_float(a & 0xffff) - bf16_to_float(b & 0xffff), bf16_to_float(a >> 16) - bf16_to_float(b >> 16));
}
DEVICE unsigned product_f16x2(unsigned a, unsigned b) {
  return floats_to_f16x2(f16_to_float(a & 0xffff) * f16_to_float(b & 0xffff), f16_to_float(a >> 16) * f16_to_float(b >> 16));
}
DEVICE unsigned product_bf16x2(unsigned a, unsigned b) {
  return floats_to_bf16x2(bf16_to_float(a & 0xffff) * bf16_to_float(b & 0xffff), bf16_to_float(a >> 16) * bf16_to_float(b >> 16));
}

// Matrices of 8 x 8 from the rows that the lanes give, as PTX describes ldmatrix.
template <bool TRANSPOSED> DEVICE void load_matrices(unsigned (&block)[4], SharedAddress row) {
  machine.row[machine.thread] = row;
  machine.pause();
  const unsigned first = machine.thread & ~31u, lane = machine.thread & 31u;
  for (unsigned i = 0; i < 4; ++i) {
    unsigned short pair[2];
    for (unsigned next = 0; next < 2; ++next) {
      const unsigned along = lane % 4 * 2 + next, across = lane / 4;
      const char* from = machine.row[first + i * 8 + (TRANSPOSED ? along : across)];
      std::memcpy(&pair[next], from + 2 * (TRANSPOSED ? across : along), 2);
    }
    block[i] = pair[0] | (unsigned)pair[1] << 16;
  }
  machine.pause();
}

// ---- sm90.cuh: an address in shared memory is a place in `bytes`

#define TENSOR_MAPS const TensorMaps

struct TensorMap {
  const char* start;
  long long extents[5], strides[5], box[5];  // strides in bytes, the first one an element's
};
struct DynamicShared {
  alignas(1024) char bytes[228 * 1024];
};
static DynamicShared dynamic_shared;
DEVICE unsigned shared_address(DynamicShared&) { return 0; }

struct PhaseBarrier {
  unsigned count : 15, left : 15, phase : 1;
  int bytes;

  void end() {
    if (left || bytes) return;
    left = count;
    phase ^= 1;
  }
};
DEVICE PhaseBarrier& barrier_at(unsigned address) { return *(PhaseBarrier*)(dynamic_shared.bytes + address); }
DEVICE void mbarrier_init(unsigned barrier, int count) { barrier_at(barrier) = {(unsigned)count, (unsigned)count, 0, 0}; }
DEVICE void fence_mbarrier_init() {}
DEVICE void mbarrier_arrive(unsigned barrier) {
  --barrier_at(barrier).left;
  barrier_at(barrier).end();
}
DEVICE void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
  barrier_at(barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}
DEVICE void mbarrier_wait(unsigned barrier, unsigned parity) {
  do machine.pause();
  while (barrier_at(barrier).phase == (parity & 1));
}

// Rows of 128 bytes; pieces of 16 are swizzled by the place of their row among eight.
DEVICE unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
template <bool TO_MANY>
DEVICE void tma_load(unsigned to, const TensorMap* map, int x, int y, int z, int w, unsigned barrier, unsigned short) {
  const int first[4] = {x, y, z, w};
  unsigned bytes = 0, row = to;
  for (int d = 0; d < (map->box[3] ? map->box[3] : 1); ++d)
    for (int c = 0; c < (map->box[2] ? map->box[2] : 1); ++c)
      for (int b = 0; b < map->box[1]; ++b, row += 128)
        for (int a = 0; a < map->box[0]; ++a, bytes += map->strides[0]) {
          const int place[4] = {a, b, c, d};
          const char* from = map->start;
          bool inside = true;
          for (int i = 0; i < 4 && map->box[i]; ++i) {
            const long long index = (long long)first[i] + place[i];
            inside &= 0 <= index && index < map->extents[i];
            from += index * map->strides[i];
          }
          for (int byte = 0; byte < map->strides[0]; ++byte) dynamic_shared.bytes[swizzled(row + a * map->strides[0] + byte)] = inside ? read(from + byte) : 0;
        }
  barrier_at(barrier).bytes -= bytes;
  barrier_at(barrier).end();
}
template <bool TO_MANY>
DEVICE void tma_load(unsigned to, const TensorMap* map, int x, int y, unsigned barrier, unsigned short blocks) {
  tma_load<TO_MANY>(to, map, x, y, 0, 0, barrier, blocks);
}
template <bool TO_MANY>
DEVICE void tma_load(unsigned to, const TensorMap* map, int x, int y, int z, unsigned barrier, unsigned short blocks) {
  tma_load<TO_MANY>(to, map, x, y, z, 0, barrier, blocks);
}
DEVICE void tma_store(const TensorMap* map, int x, int y, int z, unsigned from) {
  for (int row = 0; row < map->box[1]; ++row)
    for (int column = 0; column < map->box[0]; ++column) {
      const unsigned at = row * 128 + column * map->strides[0];
      if (x + column >= map->extents[0] || y + row >= map->extents[1]) continue;
      const long long place = (x + column) * map->strides[0] + (y + row) * map->strides[1] + z * map->strides[2];
      for (int byte = 0; byte < map->strides[0]; ++byte) write((char*)map->start + place + byte, dynamic_shared.bytes[swizzled(from + at + byte)]);
    }
}
DEVICE void tma_store(const TensorMap* map, int x, int y, unsigned from) { tma_store(map, x, y, 0, from); }
DEVICE void tma_store_commit() {}
template <int GROUPS> DEVICE void tma_store_wait_read() {}
DEVICE void fence_async_proxy() {}
DEVICE void prefetch_tensor_map(const TensorMap*) {}
DEVICE void wait_for_previous_kernel() {}
DEVICE void launch_next_kernel() {}

// Clusters of this kernel are run of one block: all of them would have the same shared memory here.
#define CLUSTERED_KERNEL(threads, blocks) \
  static_assert(blocks == 1, "one block"); \
  static void
DEVICE unsigned remote_address(unsigned, unsigned) { std::abort(); }
DEVICE void mbarrier_arrive_remote(unsigned, unsigned) { std::abort(); }
DEVICE void store_remote(unsigned, const float*) { std::abort(); }
DEVICE void load_from_shared(float (&)[4], unsigned) { std::abort(); }

struct NamedBarrier {
  unsigned come, opened;
};
static NamedBarrier named_barriers[16];
template <int THREADS_OF_BOTH> DEVICE void named_barrier_arrive(int number) {
  NamedBarrier& barrier = named_barriers[number];
  if (++barrier.come < THREADS_OF_BOTH) return;
  barrier.come = 0;
  ++barrier.opened;
}
template <int THREADS_OF_BOTH> DEVICE void named_barrier_sync(int number) {
  const unsigned opened = named_barriers[number].opened;
  named_barrier_arrive<THREADS_OF_BOTH>(number);
  do machine.pause();
  while (named_barriers[number].opened == opened);
}

template <int REGISTERS> DEVICE void decrease_registers() {}
template <int REGISTERS> DEVICE void increase_registers() {}
DEVICE void wgmma_fence() {}
DEVICE void wgmma_commit() {}
template <int GROUPS> DEVICE void wgmma_wait() {}
template <class T, int COUNT> DEVICE void fence_registers(T (&)[COUNT][4]) {}

DEVICE unsigned load_shared(unsigned from) { return load_shared(dynamic_shared.bytes + from); }
template <int WORDS> DEVICE void load_shared(unsigned (&word)[WORDS], unsigned from) {
  load_shared(word, dynamic_shared.bytes + from);
}
template <template <int> class Chunk> DEVICE void load_shared(Chunk<16>& to, unsigned from) {
  std::memcpy(&to, dynamic_shared.bytes + from, 16);
}
DEVICE void store_shared(unsigned to, unsigned word) { std::memcpy(dynamic_shared.bytes + to, &word, 4); }
DEVICE void store_shared(unsigned to, const unsigned (&word)[4]) { std::memcpy(dynamic_shared.bytes + to, word, 16); }
DEVICE void store_shared(unsigned to, unsigned short half) { std::memcpy(dynamic_shared.bytes + to, &half, 2); }
DEVICE unsigned short load_shared_half(unsigned from) {
  unsigned short half;
  std::memcpy(&half, dynamic_shared.bytes + from, 2);
  return half;
}
template <int BYTES> DEVICE void copy_async(unsigned to, const void* from, bool there) {
  copy_async<BYTES>(dynamic_shared.bytes + to, from, there);
}
template <bool TRANSPOSED> DEVICE void load_matrices(unsigned (&block)[4], unsigned row) {
  load_matrices<TRANSPOSED>(block, dynamic_shared.bytes + row);
}

// Factors of warpgroup products: in shared memory as PTX describes matrices with swizzled rows of 128 bytes, or the left
// one with the lanes.
struct Operand {
  unsigned address, leading, stride;
};
DEVICE Operand operand_of(unsigned long long told) {
  return {(unsigned)(told & 0x3fff) << 4, (unsigned)(told >> 16 & 0x3fff) << 4, (unsigned)(told >> 32 & 0x3fff) << 4};
}
template <bool ROWS> DEVICE unsigned element_of(const Operand& factor, int outer, int term) {
  const unsigned at = ROWS ? factor.address + outer / 64 * factor.leading + term / 8 * factor.stride + term % 8 * 128 + outer % 64 * 2
                           : factor.address + outer / 8 * factor.stride + outer % 8 * 128 + term * 2;
  unsigned short bits;
  std::memcpy(&bits, dynamic_shared.bytes + swizzled(at), 2);
  return bits;
}
template <bool RIGHT_ROWS, int COUNT, class Decode, class Left>
DEVICE void add_products(float (&d)[COUNT][4], unsigned long long b, int add, Decode decode, Left left) {
  const Operand right = operand_of(b);
  const int lane = machine.thread % 32;
  float factors[2][16];
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k) factors[half][k] = decode(left(lane / 4 + half * 8, k));
  for (int column = 0; column < COUNT; ++column)
    for (int next = 0; next < 2; ++next) {
      float sums[2] = {add ? d[column][next] : 0.0f, add ? d[column][2 + next] : 0.0f};
      for (int k = 0; k < 16; ++k) {
        const float factor = decode(element_of<RIGHT_ROWS>(right, column * 8 + lane % 4 * 2 + next, k));
        sums[0] += factors[0][k] * factor;
        sums[1] += factors[1][k] * factor;
      }
      d[column][next] = sums[0];
      d[column][2 + next] = sums[1];
    }
}
template <bool RIGHT_ROWS, int COUNT, class Decode>
DEVICE void emulated_product(float (&d)[COUNT][4], const unsigned (&a)[4], unsigned long long b, int add, Decode decode) {
  for (int i = 0; i < 4; ++i) machine.fragments[machine.thread][i] = a[i];
  machine.pause();
  const unsigned first = machine.thread & ~31u;
  add_products<RIGHT_ROWS>(d, b, add, decode, [&](int row, int k) {
    return machine.fragments[first + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> k % 2 * 16 & 0xffffu;
  });
  machine.pause();
}
template <bool RIGHT_ROWS, int COUNT, class Decode>
DEVICE void emulated_product(float (&d)[COUNT][4], unsigned long long a, unsigned long long b, int add, Decode decode) {
  const int warp = thread_index() / 32 % 4;
  add_products<RIGHT_ROWS>(d, b, add, decode,
                           [&](int row, int k) { return element_of<false>(operand_of(a), warp * 16 + row, k); });
}
// The same of 32 terms of a byte each, both factors in shared memory with adjacent terms. Terms and sum are aligned to the
// largest of them and cut off behind BITS, and so is their sum (MatrixInstruction.sum_bits).
template <int BITS> DEVICE float cut_off(float x, float largest) {
  const float last = std::ldexp(1.0f, std::ilogb(largest) - (BITS - 1));
  return std::trunc(x / last) * last;
}
template <int BITS, int COUNT, class Decode>
DEVICE void emulated_product_of_bytes(float (&d)[COUNT], unsigned long long a, unsigned long long b, int add, Decode decode) {
  const Operand left = operand_of(a), right = operand_of(b);
  const int lane = machine.thread % 32, warp = thread_index() / 32 % 4;
  const auto byte_of = [](const Operand& factor, int outer, int term) {
    return (unsigned)(unsigned char)(dynamic_shared.bytes[swizzled(factor.address + outer / 8 * factor.stride + outer % 8 * 128 + term)]);
  };
  for (int i = 0; i < COUNT; ++i) {
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float terms[33] = {add ? d[i] : 0.0f}, largest = std::fabs(terms[0]), sum = 0.0f;
    for (int k = 0; k < 32; ++k) {
      terms[1 + k] = decode(byte_of(left, row, k)) * decode(byte_of(right, column, k));
      largest = std::fmax(largest, std::fabs(terms[1 + k]));
    }
    const bool cut = largest > 0.0f && std::isfinite(largest);
    for (float term : terms) sum += cut ? cut_off<BITS>(term, largest) : term;
    d[i] = sum == 0.0f || !std::isfinite(sum) ? sum : cut_off<BITS>(sum, sum);
  }
}
// The same of sums that are one array.
template <bool RIGHT_ROWS, int COUNT, class Decode, class Left>
DEVICE void emulated_product(float (&d)[COUNT], const Left& a, unsigned long long b, int add, Decode decode) {
  emulated_product<RIGHT_ROWS>(reinterpret_cast<float(&)[COUNT / 4][4]>(d), a, b, add, decode);
}
