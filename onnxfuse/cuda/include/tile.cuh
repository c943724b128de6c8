// Tiles of matrices in shared memory, and their fragments in the registers of a warp.
//
// A tile's rows are ROW_BYTES apart and consist of pieces of 16 bytes. ldmatrix reads a piece of eight rows at once: they lie
// in different banks where rows are padded to an odd number of pieces, or where the pieces of a row are swizzled, exchanged
// by the row's number.
//
// A fragment is what mma.sync takes (mma_sync.cuh): sixteen rows of a left factor, or sixteen columns of a right one, by 32
// bytes of terms, in four parts of eight rows by 16 bytes; those of a left factor have its halves of rows next to each
// other, those of a right one its halves of terms. A tile's row has terms of one row or column of the factor; TRANSPOSED
// (elements of 16 bits), it has rows or columns of one term.

enum class FactorOf { LEFT, RIGHT };

// Which row of which part a lane points ldmatrix to.
template <FactorOf SIDE, bool TRANSPOSED> struct FragmentLane {
  int down, right;  // the part: eights of rows, and pieces, behind the fragment's first one
  int row;          // of the part

  DEVICE FragmentLane() {
    constexpr bool ROWS_LAST = (SIDE == FactorOf::RIGHT) != TRANSPOSED;
    const int lane = thread_index() % 32, upper = lane / 16, lower = lane / 8 % 2;
    down = ROWS_LAST ? upper : lower;
    right = ROWS_LAST ? lower : upper;
    row = lane % 8;
  }
};

// ---- padded rows

template <int ROW_BYTES> struct PaddedTile {
  SharedAddress start;

  DEVICE SharedAddress at(int row, int piece) const { return start + row * ROW_BYTES + piece * 16; }
};

// The fragments of a tile, from where this lane reads the first one.
template <FactorOf SIDE, bool TRANSPOSED, int ROW_BYTES> struct PaddedFragments {
  SharedAddress first;

  DEVICE explicit PaddedFragments(const PaddedTile<ROW_BYTES>& tile) {
    const FragmentLane<SIDE, TRANSPOSED> lane;
    first = tile.at(lane.down * 8 + lane.row, lane.right);
  }
  DEVICE void load(unsigned (&fragment)[4], int row, int piece) const {
    load_matrices<TRANSPOSED>(fragment, first + row * ROW_BYTES + piece * 16);
  }
};

// ---- swizzled rows

// Of rows of PIECES pieces, a power of two up to 8; every eight rows it begins again.
template <int PIECES> struct XorSwizzle {
  static DEVICE int swizzle(int row, int piece) { return piece ^ row * PIECES / 8 % PIECES; }
};

template <int ROW_BYTES, class Swizzle> struct SwizzledTile {
  SharedAddress start;

  DEVICE SharedAddress at(int row, int piece) const { return like(row, row, piece); }
  // Of a row that is a multiple of 8 away from `known`.
  DEVICE SharedAddress like(int known, int row, int piece) const {
    return start + (row * ROW_BYTES + (Swizzle::swizzle(known, piece) << 4));
  }
  // The fragment from this row, a multiple of 8, and this piece on.
  template <FactorOf SIDE, bool TRANSPOSED> DEVICE void load(unsigned (&fragment)[4], int row, int piece) const {
    const FragmentLane<SIDE, TRANSPOSED> lane;
    load_matrices<TRANSPOSED>(fragment, like(lane.row, row + lane.down * 8 + lane.row, piece + lane.right));
  }
};

// ---- from global memory: a piece of 16 bytes of a row

// The first `count` elements, zeros behind them. CHUNK: the bytes that one copy may take, by how the row is aligned; PARTIAL:
// the row may end within the piece; ALL: all elements are there, or none. Below 4 bytes elements go through registers.
template <int CHUNK, bool PARTIAL = false, bool ALL = false, class T>
DEVICE void copy_piece(SharedAddress to, const T* from, int count) {
  constexpr int ELEMENTS = 16 / int(sizeof(T)), PER_WORD = 4 / int(sizeof(T)), PER_CHUNK = CHUNK / int(sizeof(T));
  if constexpr (CHUNK == 16 && PARTIAL) {
    copy_async_prefix(to, from, count < ELEMENTS ? count * int(sizeof(T)) : 16);
  } else if constexpr (CHUNK >= 4) {
    UNROLLED for (int part = 0; part < 16 / CHUNK; ++part)
        copy_async<CHUNK>(to + part * CHUNK, from + part * PER_CHUNK, part * PER_CHUNK < count);
  } else {
    unsigned word[4] = {};
    if (!ALL || count > 0)
      UNROLLED for (int i = 0; i < ELEMENTS; ++i) word[i / PER_WORD] |=
          i < count ? (unsigned)load_bits(from + i) << i % PER_WORD * (8 * int(sizeof(T))) : 0u;
    store_shared(to, word);
  }
}
