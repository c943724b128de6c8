// y[n, p, q, f] = body(sum over r, s, c of x[n, p stride + r dilation - pad, q stride + s dilation - pad, c] w[f, r, s, c],
//                      ...)
//
// Convolution of few channels on the tensor cores, as an implicit GEMM (Chetlur et al., cuDNN, 2014): first layers, whose x
// is [N, C, H, W] (PLANES), and groups, x [N, H, W, C]. Outputs and operands [N, P, Q, F]; w [F, R, S, C / groups] (PACKED)
// or [F, C / groups, R, S]. Accuracy: exact products of 16-bit elements, of float32 rounded to TF32 unless PRECISE (see
// include/split.cuh); sums in float. Of 8-bit integers, x [N, H, W, C], exact sums in int32.
//
// A block keeps the weights of BLOCK_FILTERS filters of BLOCK_GROUPS groups in shared memory, as the tensor cores read
// them, and goes through tiles of TILE_ROWS x TILE_COLUMNS outputs. It copies what a tile's windows see to shared memory
// as it lies in x, once: the terms of a product are picked from there, a word (one float32, two 16-bit or
// four 8-bit elements) at a time. A word's elements are neighbours in a run of terms: along the row of a plane, or along the channels of a
// pixel. Where a run has an odd end in a plane, the element behind it belongs to the image, too: it is masked, so that an
// infinity there does not become NaN.
//
// A warp computes STACK x TILES_N products of 16 outputs by 8 filters at a time: 2 rows of 8 columns, or of tiles of one row
// 16 columns, so that signals, which are images of one row, leave none of them idle. Which filters stand in which of the TILES_N columns of products is free: so that a lane ends with VECTOR neighbours of an output pixel.

constexpr int WARPS = THREADS / 32;
constexpr int TERMS = 4 / int(sizeof(X));  // of a word
constexpr int ROWS_IN = (TILE_ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1;
constexpr int COLUMNS_IN = (TILE_COLUMNS - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1;
constexpr int RUN = PLANES ? KERNEL_W : GROUP_CHANNELS;  // terms that are neighbours in shared memory
constexpr int LEAD = SHIFT % TERMS;                      // elements ahead of them in their first word
constexpr int RUN_WORDS = (LEAD + RUN + TERMS - 1) / TERMS;
constexpr int RUNS = PLANES ? GROUP_CHANNELS * KERNEL_H : KERNEL_H * KERNEL_W;
constexpr int WORDS = RUNS * RUN_WORDS, STEPS = (WORDS + 7) / 8;
constexpr bool MASKED = WORDS % 8 != 0 || (PLANES && (LEAD != 0 || RUN % TERMS != 0));
static_assert(!PLANES || TERMS <= 2, "the columns of a plane are masked and shifted in halves of a word");
static_assert(!PLANES || TERMS == 1 || DILATION_W == 1 || KERNEL_W == 1, "the two elements of a word are neighbours");

// Planes. A row begins SHIFT elements early, where READ of them lie on their own boundary in x. Two columns of an odd
// stride begin in the middle of a word by turns: a second copy begins one element later.
constexpr int COPIES = PLANES && TERMS == 2 && STRIDE_W % 2 ? 2 : 1;
constexpr int ROW_READS = (SHIFT + COLUMNS_IN + READ - 1) / READ;
constexpr int ROW_WORDS = (ROW_READS * READ + TERMS - 1) / TERMS;
constexpr int PLANE = ROWS_IN * ROW_WORDS;
constexpr int COPY = (GROUP_CHANNELS * PLANE + 15) / 32 * 32 + 16;  // the other half of the banks
static_assert(COPIES == 1 || READ == 1, "a copy is made element by element");
// Pixels: 4 words more than a multiple of 8, so that eight neighbours and four words of each lie in 32 banks.
constexpr int PIXEL = (BLOCK_GROUPS * RUN_WORDS + 3) / 8 * 8 + 4;

constexpr int VECTOR_TILES = VECTOR < 2 ? 1 : VECTOR / 2;  // columns of products that a lane's vector comes from
constexpr int FILTER_TILES = (BLOCK_FILTERS + 8 * TILES_N - 1) / (8 * TILES_N) * TILES_N;  // of a group
constexpr int CHUNKS = FILTER_TILES / TILES_N;
constexpr int HIGH = TILE_ROWS == 1 ? 1 : 2, WIDE = 16 / HIGH;  // rows and columns of a product's outputs
constexpr int ACROSS = TILE_COLUMNS / WIDE, STACKS = TILE_ROWS / HIGH * ACROSS / STACK;
constexpr int UNITS = STACKS * BLOCK_GROUPS * CHUNKS;  // of STACK x TILES_N products each
static_assert(TILE_ROWS / HIGH * ACROSS % STACK == 0 && TILES_N % VECTOR_TILES == 0);

constexpr int WEIGHT_WORDS = BLOCK_GROUPS * FILTER_TILES * STEPS * 64, TABLE_WORDS = STEPS * 16;
constexpr int PATCH_WORDS = PLANES ? COPIES * COPY : ROWS_IN * COLUMNS_IN * PIXEL;
// Whole words are copied without going through registers, those of the next tile while this one is computed.
constexpr bool ASYNC = READ % TERMS == 0;
constexpr int STAGES = ASYNC ? 2 : 1;
static_assert(SHARED_WORDS == WEIGHT_WORDS + TABLE_WORDS + STAGES * PATCH_WORDS, "the plan counts as the kernel does");

using Bits = typename Raw<sizeof(X)>::Word;
DYNAMIC_SHARED(unsigned, shared_words, SHARED_WORDS);

using Mma = MmaSync<X, PRECISE>;
using Pipeline = AsyncPipeline<BlockScope, STAGES, STAGES>;

// A block's share of the channels: its first group, and the first filter in each of its groups.
struct Share { Index group, filter; };

// ---- what does not change from tile to tile

// The filter of a group that stands in column `column` of products `tile`.
DEVICE constexpr int filter_of(int tile, int column) {
  return tile / VECTOR_TILES * (8 * VECTOR_TILES) + column / 2 * (2 * VECTOR_TILES) + tile % VECTOR_TILES * 2 +
         column % 2;
}

DEVICE unsigned weight_word(const X* w, const Share& share, int group, int filter, int word) {
  const int run = word / RUN_WORDS, first = word % RUN_WORDS * TERMS - LEAD;
  if (filter >= BLOCK_FILTERS || share.filter + filter >= FILTERS || share.group + group >= GROUPS || word >= WORDS)
    return 0;
  const Index row = (share.group + group) * FILTERS + share.filter + filter;
  const int r = PLANES ? run % KERNEL_H : run / KERNEL_W;
  if constexpr (WHOLE_WORDS)
    return Mma::operand(
        load<TERMS>(w + (((row * KERNEL_H + r) * KERNEL_W + run % KERNEL_W) * GROUP_CHANNELS + first)).word(0));
  unsigned bits = 0;
  UNROLLED for (int e = 0; e < TERMS; ++e) {
    const int term = first + e, c = PLANES ? run / KERNEL_H : term, s = PLANES ? term : run % KERNEL_W;
    if (term < 0 || term >= RUN) continue;
    const Index at = PACKED ? ((row * KERNEL_H + r) * KERNEL_W + s) * GROUP_CHANNELS + c
                            : ((row * GROUP_CHANNELS + c) * KERNEL_H + r) * KERNEL_W + s;
    bits |= (unsigned)load_bits(w + at) << (e * 8 * int(sizeof(X)));
  }
  return Mma::operand(bits);
}

// Two words for each lane, product and step: mma.sync's second factor. Several are read at a time.
DEVICE void fill_weights(unsigned* weights, const X* w, const Share& share) {
  constexpr int FILLS = 8;
  for (int first = thread_index(); first < WEIGHT_WORDS; first += THREADS * FILLS) {
    unsigned held[FILLS];
    UNROLLED for (int fill = 0; fill < FILLS; ++fill) {
      const int n = first + fill * THREADS, half = n % 2, lane = n / 2 % 32, step = n / 64 % STEPS,
                tile = n / (64 * STEPS);
      const int filter = filter_of(tile % FILTER_TILES, lane / 4);
      held[fill] =
          n < WEIGHT_WORDS ? weight_word(w, share, tile / FILTER_TILES, filter, step * 8 + half * 4 + lane % 4) : 0;
    }
    UNROLLED for (int fill = 0; fill < FILLS; ++fill) if (first + fill * THREADS < WEIGHT_WORDS)
        weights[first + fill * THREADS] = held[fill];
  }
}

// Where each word of the terms lies, against a window's first one, and which of its bits count.
DEVICE void fill_table(unsigned* table) {
  for (int word = thread_index(); word < STEPS * 8; word += THREADS) {
    const int run = word / RUN_WORDS, inner = word % RUN_WORDS;
    const int r = PLANES ? run % KERNEL_H : run / KERNEL_W;
    const int plane = run / KERNEL_H * PLANE + r * DILATION_H * ROW_WORDS + inner * (TERMS == 1 ? DILATION_W : 1);
    const int pixel = (r * DILATION_H * COLUMNS_IN + run % KERNEL_W * DILATION_W) * PIXEL + inner;
    unsigned counts = word < WORDS ? 0xffffffffu : 0;
    if (LEAD != 0 && inner == 0) counts &= 0xffff0000u;
    if (PLANES && (LEAD + RUN) % TERMS != 0 && inner == RUN_WORDS - 1) counts &= 0xffffu;
    table[word * 2] = word >= WORDS ? 0 : PLANES ? plane : pixel;
    table[word * 2 + 1] = counts;
  }
}

// ---- the patch of x that a tile's windows see; zeros outside of the image

// READ neighbours: where they lie in shared memory, in elements, and in x.
struct Piece {
  int to;
  const X* from;
  bool there;  // in the image

  // Of planes: in row `n / ROW_READS` of all planes together.
  DEVICE static Piece of_planes(int n, const X* image, int top, int left, const Parameters& p) {
    const int row = n / ROW_READS, column = n % ROW_READS * READ, y = top + row % ROWS_IN, x = left - SHIFT + column;
    const bool there = (unsigned)y < (unsigned)p.height && (unsigned)x < (unsigned)p.width;
    const Offset at = (Offset)(row / ROWS_IN) * (Offset)p.x_channel + (Offset)y * (Offset)p.x_row + x;
    return {row * (ROW_WORDS * TERMS) + column, there ? image + at : image, there};
  }
  // Of pixels: the block's channels, from `channel` on.
  DEVICE static Piece of_pixels(int n, const X* image, Index channel, int top, int left, const Parameters& p) {
    constexpr int VECTORS = BLOCK_GROUPS * GROUP_CHANNELS / READ;
    const int pixel = n / VECTORS, c = n % VECTORS * READ, y = top + pixel / COLUMNS_IN, x = left + pixel % COLUMNS_IN;
    const bool there = channel + c < X_CHANNELS && (unsigned)y < (unsigned)p.height && (unsigned)x < (unsigned)p.width;
    const Offset at = (Offset)y * (Offset)p.x_row + (Offset)x * X_CHANNELS + channel + c;
    const int to = pixel * (PIXEL * TERMS) + c / GROUP_CHANNELS * (RUN_WORDS * TERMS) + c % GROUP_CHANNELS;
    return {to, there ? image + at : image, there};
  }
};
constexpr int PIECES =
    PLANES ? GROUP_CHANNELS * ROWS_IN * ROW_READS : ROWS_IN * COLUMNS_IN * (BLOCK_GROUPS * GROUP_CHANNELS / READ);

DEVICE void fill_patch(unsigned* patch, const X* image, Index channel, int top, int left, const Parameters& p) {
  constexpr int FILLS = ASYNC ? 1 : 8;  // loads in flight
  Bits* to = reinterpret_cast<Bits*>(patch);
  for (int first = thread_index(); first < PIECES; first += THREADS * FILLS) {
    Bits held[FILLS];
    int place[FILLS];
    UNROLLED for (int fill = 0; fill < FILLS; ++fill) {
      const int n = first + fill * THREADS;
      const Piece piece =
          PLANES ? Piece::of_planes(n, image, top, left, p) : Piece::of_pixels(n, image, channel, top, left, p);
      if constexpr (ASYNC) {
        copy_async<READ* int(sizeof(X))>(shared_address(to + piece.to), piece.from, piece.there);
      } else {
        place[fill] = piece.to;
        held[fill] = n < PIECES && piece.there ? load_bits(piece.from) : Bits(0);
      }
    }
    if constexpr (!ASYNC) {
      UNROLLED for (int fill = 0; fill < FILLS; ++fill) {
        if (first + fill * THREADS >= PIECES) continue;
        to[place[fill]] = held[fill];
        if (COPIES == 2 && place[fill] % (ROW_WORDS * TERMS) > 0) to[COPY * TERMS + place[fill] - 1] = held[fill];
      }
    }
  }
}

// ---- products

struct Sums { float of[STACK][TILES_N][4]; };

// What a unit is: products of a stack, a group and a chunk of its filters.
struct Unit {
  int stack, group, chunk;

  DEVICE explicit Unit(int number)
      : stack(number % STACKS), group(number / STACKS % BLOCK_GROUPS), chunk(number / STACKS / BLOCK_GROUPS) {}
  // The tile's output of a lane in one of the stack's products: the first of its two, which lie in two rows, or 8 columns
  // apart.
  DEVICE int row(int product) const { return (stack * STACK + product) / ACROSS * HIGH; }
  DEVICE int column(int product) const { return (stack * STACK + product) % ACROSS * WIDE + thread_index() % 32 / 4; }
};

// The terms of this lane's outputs, one after the other in float32: of those `from` on and `next` beyond, and of the two
// filters that each column of products gives it.
DEVICE void multiply_plainly(Sums& sums, const unsigned* const (&from)[STACK], int next, const unsigned* right,
                             const unsigned* table) {
  sums = {};
  _Pragma("unroll 1") for (int word = 0; word < WORDS; ++word) {
    const unsigned place = table[word * 2], counts = table[word * 2 + 1];
    const int term = word / 8 * 64 + word % 4 * 2 + word / 4 % 2;
    UNROLLED for (int i = 0; i < STACK; ++i) UNROLLED for (int tile = 0; tile < TILES_N; ++tile)
        UNROLLED for (int cell = 0; cell < 4; ++cell) {
      const int filter = thread_index() % 4 * 2 + cell % 2;
      const float a = float_of_bits(from[i][place + cell / 2 * next] & counts);
      sums.of[i][tile][cell] += a * float_of_bits(right[tile * STEPS * 64 + term + filter * 8]);
    }
  }
}

DEVICE void multiply(Sums& sums, const unsigned* weights, const unsigned* table, const unsigned* patch,
                     const Unit& unit) {
  constexpr int DOWN = STRIDE_H * (PLANES ? ROW_WORDS : COLUMNS_IN * PIXEL);
  constexpr int NEXT =
      HIGH == 2 ? DOWN : 8 * STRIDE_W * (PLANES ? 1 : PIXEL * TERMS) / TERMS;  // to a lane's other output
  const int lane = thread_index() % 32;
  const unsigned* from[STACK];
  UNROLLED for (int i = 0; i < STACK; ++i) {
    const int x = unit.column(i) * STRIDE_W, row = unit.row(i) * DOWN;
    from[i] = patch + row + (PLANES ? x % COPIES * COPY + (x + SHIFT) / TERMS : x * PIXEL + unit.group * RUN_WORDS);
  }
  const auto* right = reinterpret_cast<const Chunk<8>*>(weights) +
                      (unit.group * FILTER_TILES + unit.chunk * TILES_N) * STEPS * 32 + lane;
  const auto* words = reinterpret_cast<const Chunk<8>*>(table) + lane % 4;
  for (int step = 0; step < STEPS; ++step) {
    const Chunk<8> first = words[step * 8], second = words[step * 8 + 4];
    unsigned a[STACK][4];
    UNROLLED for (int i = 0; i < STACK; ++i) {
      UNROLLED for (int other = 0; other < 2; ++other) {
        a[i][other] = Mma::operand(from[i][first.word[0] + other * NEXT] & (MASKED ? first.word[1] : 0xffffffffu));
        a[i][2 + other] =
            Mma::operand(from[i][second.word[0] + other * NEXT] & (MASKED ? second.word[1] : 0xffffffffu));
      }
    }
    if constexpr (PRECISE) {
      const SplitFragments<STACK> left(a);
      UNROLLED for (int tile = 0; tile < TILES_N; ++tile) {
        const SplitFragments<1, 2> b(right[(tile * STEPS + step) * 32].word);
        left.template multiply<1>([&](int i) -> float (&)[4] { return sums.of[i][tile]; }, b, 0);
      }
    } else {
      UNROLLED for (int tile = 0; tile < TILES_N; ++tile) {
        const Chunk<8> b = right[(tile * STEPS + step) * 32];
        UNROLLED for (int i = 0; i < STACK; ++i) Mma::multiply(sums.of[i][tile], a[i], b.word[0], b.word[1]);
      }
    }
  }
  if constexpr (PRECISE) {
    if (!are_finite(sums.of))
      multiply_plainly(sums, from, NEXT, reinterpret_cast<const unsigned*>(right - lane), table);
  }
}

// The rest of the body, VECTOR neighbouring filters at a time. What it reads of HELD places is on its way before the first
// result is stored: the compiler moves no load ahead of a store.
constexpr int OPERANDS = 64 / sizeof(Each<VECTOR>), PLACES = 2 * STACK;  // 16 registers, those of a stack's terms
constexpr int HELD = OPERANDS == 0 ? 1 : OPERANDS < PLACES ? OPERANDS : PLACES;

DEVICE void finish(const Sums& sums, const Pointers& pointers, const Unit& unit, const Share& share, const Place& at,
                   const Parameters& p) {
  constexpr int SINGLES = VECTOR == 1 ? 2 : 1;  // vectors of a lane in VECTOR_TILES columns of products
  const int lane = thread_index() % 32;
  UNROLLED for (int tile = 0; tile < TILES_N; tile += VECTOR_TILES) {
    UNROLLED for (int single = 0; single < SINGLES; ++single) {
      const int filter = filter_of(unit.chunk * TILES_N + tile, lane % 4 * 2 + single);
      if (filter >= BLOCK_FILTERS || share.filter + filter >= FILTERS || share.group + unit.group >= GROUPS) continue;
      Place here = at;
      here.channel = (share.group + unit.group) * FILTERS + share.filter + filter;
      const Once once = load_once(pointers, here, p);
      UNROLLED for (int first = 0; first < PLACES; first += HELD) {
        Each<VECTOR> each[HELD];
        Index linear[HELD];
        bool there[HELD];
        UNROLLED for (int n = 0; n < HELD; ++n) {
          const int product = (first + n) / 2, other = (first + n) % 2;
          here.row = at.row + unit.row(product) + (HIGH == 2 ? other : 0);
          here.column = at.column + unit.column(product) + (HIGH == 2 ? 0 : other * 8);
          there[n] = first + n < PLACES && here.row < p.rows && here.column < p.columns;
          linear[n] = here.image * p.y_image + here.row * p.y_row + here.column * Y_CHANNELS + here.channel;
          if (there[n]) each[n] = load_each<VECTOR>(pointers, here, linear[n], 0, p);
        }
        UNROLLED for (int n = 0; n < HELD; ++n) {
          const int product = (first + n) / 2, other = (first + n) % 2;
          if (!there[n]) continue;
          Sum sum[VECTOR];
          UNROLLED for (int e = 0; e < VECTOR; ++e) sum[e] =
              sum_of(sums.of[product][tile + e / 2][other * 2 + e % 2 + single]);
          store_all(pointers, sum, once, each[n], linear[n], 0);
        }
      }
    }
  }
}

// A tile: its image, its first row and column.
DEVICE Place tile_place(Index number, const Parameters& p) {
  const Index above = p.around.quotient(number), image = p.down.quotient(above);
  return {image, 0, (above - image * p.down.value) * TILE_ROWS, (number - above * p.around.value) * TILE_COLUMNS};
}

DEVICE void fill_tile(unsigned* patch, const X* x, Index channel, const Place& at, const Parameters& p) {
  const int top = (int)at.row * STRIDE_H - (int)p.top, left = (int)at.column * STRIDE_W - (int)p.left;
  fill_patch(patch, x + at.image * p.x_image, channel, top, left, p);
}

DEVICE void direct(const Pointers& pointers, const Parameters& p) {
  unsigned *weights = shared_words, *table = weights + WEIGHT_WORDS, *patch = table + TABLE_WORDS;
  unsigned* next = patch + (STAGES - 1) * PATCH_WORDS;
  const Index workers = p.across.quotient(last_block() + 1), worker = p.across.quotient(block_index());
  const Index mine = block_index() - worker * p.across.value;
  const Share share = {GROUPS > 1 ? mine * BLOCK_GROUPS : 0, GROUPS > 1 ? 0 : mine * BLOCK_FILTERS};
  const Index channel = share.group * GROUP_CHANNELS, tiles = p.images * p.down.value * p.around.value;
  if constexpr (ASYNC) {
    if (worker < tiles) fill_tile(patch, pointers.x, channel, tile_place(worker, p), p);
    Pipeline::producer_commit();
  }
  fill_weights(weights, pointers.w, share);
  fill_table(table);
  if constexpr (!PLANES && GROUP_CHANNELS % TERMS != 0)  // the odd ends of runs
    for (int n = thread_index(); n < PATCH_WORDS; n += THREADS) patch[n] = 0;
  for (Index number = worker; number < tiles; number += workers) {
    const Place at = tile_place(number, p);
    if constexpr (ASYNC) {
      Pipeline::producer_acquire();
      if (number + workers < tiles) fill_tile(next, pointers.x, channel, tile_place(number + workers, p), p);
      Pipeline::producer_commit();
      Pipeline::consumer_wait();
    } else {
      wait_for_block();
      fill_tile(patch, pointers.x, channel, at, p);
      wait_for_block();
    }
    for (int n = thread_index() / 32; n < (UNITS + WARPS - 1) / WARPS * WARPS; n += WARPS) {
      // Past the last unit a warp computes that one again and keeps it: all warps take the same way.
      const Unit unit(n < UNITS ? n : UNITS - 1);
      Sums sums = {};
      multiply(sums, weights, table, patch, unit);
      if (n < UNITS) finish(sums, pointers, unit, share, at, p);
    }
    if constexpr (ASYNC) {
      Pipeline::consumer_release();
      unsigned* read = patch;
      patch = next;
      next = read;
    }
  }
}
