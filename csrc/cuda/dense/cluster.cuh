// A dense recurrence as one launch: the blocks of a cluster hold all of R between them, in
// registers and shared memory, for the whole sequence. Each block owns some channels of the state.
// At every step it multiplies its rows of R by the state of all channels, makes the new state of
// its own, and delivers that to every block. A cluster walks some rows of the batch; clusters know
// nothing of each other. Back through time the same happens with R transposed and the gradient of R
// h.
//
// Numbers that are exchanged are bf16, sums and what a block keeps of its own channels fp32.
#pragma once
#include "abi/dense.h"
#include "cuda/common/pack.cuh"

namespace elman {

// A product of every step. A block has the rows OUT of its matrix [.., K] that belong to its own M
// channels: block by block of channels. A warp multiplies TILES times 16 of them by KW columns.
// SQUARES: it also adds up the squares of what it multiplies by.
template <int I_, int M_, int ROWS_, int WARPS_, int ROW_WARPS, int K_, int OUT_, int KEPT_,
          bool SQUARES_>
struct ClusterProduct {
  static constexpr int I = I_, M = M_, ROWS = ROWS_, WARPS = WARPS_, K = K_, OUT = OUT_;
  static constexpr int K_WARPS = WARPS / ROW_WARPS;
  static constexpr int TILES = OUT / 16 / ROW_WARPS, KW = K / K_WARPS, K_BLOCKS = KW / 32;
  static constexpr int FRAGMENTS = TILES * K_BLOCKS * 2;
  static constexpr int KEPT = FRAGMENTS < KEPT_ ? FRAGMENTS : KEPT_, REST = FRAGMENTS - KEPT;
  static constexpr bool SQUARES = SQUARES_;
  // Of partial sums: no bank conflict. The first number behind the sums is that of the squares.
  static constexpr int STRIDE = OUT + 4;
  static constexpr int HALF = (K / 32) * ROWS * 16;               // words
  static constexpr int PART = OUT ? K_WARPS * ROWS * STRIDE : 0;  // floats
  static constexpr int MATRIX = REST * WARPS * 128;               // words

  static_assert(OUT / 16 % ROW_WARPS == 0 && K % (32 * K_WARPS) == 0, "warps");
};

// I: channels, those of the state and zeros. CLUSTER: blocks of a cluster. ROWS: of the batch, for
// a cluster. The warps of a block are ROW_WARPS groups, which share the rows of the block's matrix;
// within a group they share its columns. KEPT: fragments of the matrix that a thread has in
// registers, at most. STAGES: steps whose inputs are in shared memory or on their way. BACK: which
// pass. RESETS: whether rows may begin anew, from zeros. HEADS: of a block-diagonal R; a cluster
// then walks rows of one head, and I, M and ROWS are that head's.
//
// A GRU's step has two products and two exchanges in turn. The first of either goes by half 0 of
// mail and sums, the second by half 1: two phases of a step are what two steps are elsewhere.
template <class Cell_, int I_, int CLUSTER_, int ROWS_, int WARPS_, int ROW_WARPS_, int KEPT_,
          int STAGES_, bool BACK_, bool RESETS_, int HEADS_ = 1>
struct DenseClusterConfig {
  using Cell = Cell_;
  static constexpr int I = I_, CLUSTER = CLUSTER_, ROWS = ROWS_, WARPS = WARPS_;
  static constexpr int ROW_WARPS = ROW_WARPS_, K_WARPS = WARPS / ROW_WARPS, STAGES = STAGES_;
  static constexpr bool BACK = BACK_, NORM = Cell::NORM, EXTRA = Cell::EXTRA;
  static constexpr bool RESETS = RESETS_;
  static constexpr int HEADS = HEADS_;
  static constexpr bool NEW = Cell::NEW || NORM;  // backward, the state after the step is read
  static constexpr int THREADS = 32 * WARPS, BLOCKS = Cell::BLOCKS, MEMO = Cell::MEMO;
  // Parts of the state beside h; a step's own number takes the place of one that is none.
  static constexpr int PARTS_OF_C = Cell::STATES > 1 ? Cell::STATES - 1 : 1;
  static constexpr int M = I / CLUSTER;  // channels of a block
  static constexpr int K = BACK ? BLOCKS * I : I, OUT = BACK ? M : BLOCKS * M;
  using First = ClusterProduct<I, M, ROWS, WARPS, ROW_WARPS, K, OUT, KEPT_, NORM && !BACK>;
  using Second = ClusterProduct<I, M, ROWS, WARPS, ROW_WARPS, EXTRA ? I : 0, EXTRA ? M : 0,
                                KEPT_ - First::KEPT, false>;
  static constexpr int SENT = BACK ? BLOCKS : 1;  // numbers of a channel that go to every block
  static constexpr int INPUTS =
      BACK ? 1 + NEW + Cell::OLD + MEMO + Cell::KEPT : BLOCKS + Cell::OTHERS;
  // Pointwise, a thread has pairs of channels: one pair in each of PASSES rows, AT_ONCE rows apart.
  static constexpr int PAIRS = M / 2;
  static constexpr int FIT = THREADS / PAIRS, AT_ONCE = FIT < ROWS ? FIT : ROWS;
  static constexpr int PASSES = (ROWS + AT_ONCE - 1) / AT_ONCE;

  static constexpr int HALF = First::HALF, MAIL = HALF + (EXTRA ? Second::HALF : HALF);   // words
  static constexpr int PART = First::PART, PARTS = PART + (EXTRA ? Second::PART : PART);  // floats
  static constexpr int STAGE = PASSES * INPUTS * THREADS;                                 // words
  // Backward through a norm: what the threads of a block leave for a sum over channels, and what
  // blocks tell each other of it, in two halves; floats.
  static constexpr int LEFT = NORM && BACK ? ROWS * (M / 16) : 0;
  static constexpr int TOLD = NORM && BACK ? 2 * ROWS * CLUSTER : 0;
  static constexpr int TOLD_BOX = 2 * K_WARPS, BOXES = TOLD_BOX + (NORM && BACK);
  static constexpr int SHARED_BYTES =
      (BOXES * 8 + 15) / 16 * 16 + 4 * (MAIL + PARTS + First::MATRIX + Second::MATRIX +
                                        STAGES * STAGE + (LEFT + 3) / 4 * 4 + (TOLD + 3) / 4 * 4);

  static_assert(I % 32 == 0 && I % CLUSTER == 0 && M % 16 == 0, "channels");
  static_assert((CLUSTER & (CLUSTER - 1)) == 0 && CLUSTER <= 16, "cluster");
  static_assert(WARPS % ROW_WARPS == 0, "warps");
  static_assert(ROWS >= 1 && ROWS <= 8 && AT_ONCE >= 1 && STAGES >= 2, "rows");
  static_assert(HEADS == 1 || (!NORM && !EXTRA && !Cell::SCALE), "channels of one head alone");
  static_assert(!NORM || (BLOCKS == 1 && !EXTRA && Cell::STATES == 1), "a norm of what is sent");
  static_assert(!NORM || ROWS * CLUSTER <= THREADS, "a thread tells one block of one row");
};

// The rows of the matrix that a block multiplies: each warp's part, in the order in which its lanes
// hold it for multiply_tiles. Of every 32 columns a lane has 8 adjacent ones, so that it reads
// them, and the numbers that they meet, 16 bytes at a time.
template <class P>
struct ClusterMatrix {
  unsigned kept[P::KEPT > 0 ? P::KEPT : 1][4];
  sptr<unsigned> rest;
  int warp, lane;

  DEVICE ClusterMatrix(Arena& arena, const bf16* matrix, int rank)
      : rest(arena.take<unsigned>(P::MATRIX)), warp(warp_index()), lane(thread_index() % 32) {
#pragma unroll
    for (int tile = 0; tile < P::TILES; tile++) {
      const int out = (warp / P::K_WARPS * P::TILES + tile) * 16;
      const int row = (out / P::M) * P::I + rank * P::M + out % P::M + lane / 4;
#pragma unroll
      for (int block = 0; block < P::K_BLOCKS; block++) {
        const int column = warp % P::K_WARPS * P::KW + block * 32 + lane % 4 * 8;
        const bf16* from = matrix + (int64_t)row * P::K + column;
        unsigned u[4], v[4];
        load_words(u, from);
        load_words(v, from + 8 * P::K);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const unsigned words[4] = {u[2 * half], v[2 * half], u[2 * half + 1], v[2 * half + 1]};
          put((tile * P::K_BLOCKS + block) * 2 + half, words);
        }
      }
    }
  }
  DEVICE sptr<unsigned> place(int fragment) const {
    return rest + (((fragment - P::KEPT) * P::WARPS + warp) * 128 + lane * 4);
  }
  DEVICE void put(int fragment, const unsigned (&words)[4]) {
    if (fragment < P::KEPT) {
#pragma unroll
      for (int i = 0; i < 4; i++) kept[fragment < P::KEPT ? fragment : 0][i] = words[i];
    } else {
      store_words(place(fragment), words);
    }
  }
  // sums = the warp's part of the matrix times its part of what stands in the mail. Adds to
  // `squares` those of what the lane reads of its row there.
  DEVICE void multiply(sptr<unsigned> mail, float (&sums)[P::TILES][4], float& squares) const {
#pragma unroll
    for (int tile = 0; tile < P::TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[tile][i] = 0.0f;
    unsigned read[2][4];
    fetch(mail, 0, read[0]);
#pragma unroll
    for (int block = 0; block < P::K_BLOCKS; block++) {
      if (block + 1 < P::K_BLOCKS) fetch(mail, block + 1, read[(block + 1) % 2]);
      const unsigned (&b)[4] = read[block % 2];
      if constexpr (P::SQUARES) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float low = Half<bf16>::low(b[i]), high = Half<bf16>::high(b[i]);
          squares = fused(high, high, fused(low, low, squares));
        }
      }
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int tile = 0; tile < P::TILES; tile++) {
          const int fragment = (tile * P::K_BLOCKS + block) * 2 + half;
          if (fragment < P::KEPT) {
            multiply_tiles(sums[tile], kept[fragment < P::KEPT ? fragment : 0], b[2 * half],
                           b[2 * half + 1]);
          } else {
            unsigned words[4];
            load_words(words, place(fragment));
            multiply_tiles(sums[tile], words, b[2 * half], b[2 * half + 1]);
          }
        }
    }
  }
  // A lane's 8 numbers of 32: those of the row of the batch that it has in multiply_tiles.
  DEVICE void fetch(sptr<unsigned> mail, int block, unsigned (&words)[4]) const {
    const int row = lane / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = 0;
    if (P::ROWS == 8 || row < P::ROWS)
      load_words(words, mail + (((warp % P::K_WARPS * P::K_BLOCKS + block) * P::ROWS + row) * 16 +
                                lane % 4 * 4));
  }
};

DEVICE unsigned bf16_pair(float low, float high) { return Half<bf16>::pack(low, high); }

DEVICE void store_pair(bf16* to, unsigned word) {
  const unsigned words[1] = {word};
  store_words(to, words);
}

// This thread's pairs of what a pass reads at every step, and where the pass writes. All of it lies
// at one place of a sequence in global memory; a place moves on by one step at a time. What is read
// is copied into shared memory some steps before: [STAGES, PASSES, INPUTS, THREADS].
template <class G>
struct ClusterPlaces {
  using Cell = typename G::Cell;
  static constexpr int SOURCES = G::BACK ? 2 + (G::NEW || Cell::OLD) : 1 + Cell::OTHERS;
  static constexpr int TARGETS = G::BACK ? 1 + Cell::OTHERS : 2;
  const DenseArgs& a;
  sptr<unsigned> words;
  const bf16* from[SOURCES];  // of the next step to be copied
  bf16* to[TARGETS];
  int filled = 0, used = 0;  // where the stages of the next steps to be copied and computed begin

  // Forward: x, the other inputs | y, memo. Backward: dy, memo, y | dx, gradients of the others.
  DEVICE DenseSequence source(int i) const {
    if (!G::BACK) return i == 0 ? a.x : a.p[i > 0 ? i - 1 : 0];
    return i == 0 ? a.dy : i == 1 ? memo() : a.y;
  }
  DEVICE DenseSequence target(int i) const {
    if (!G::BACK) return i == 0 ? a.y : memo();
    return i == 0 ? a.dx : a.dp[i > 0 ? i - 1 : 0];
  }
  DEVICE DenseSequence memo() const {
    return {a.memo, a.steps * G::MEMO * pitch(), G::MEMO * pitch()};
  }
  DEVICE bf16* start(const DenseSequence& s, int64_t row, int64_t channel) const {
    return (bf16*)s.data + (row * s.batch + (G::BACK ? a.steps - 1 : 0) * s.time + channel);
  }
  // Of the first input and its gradient a head has BLOCKS times as many channels as of all others.
  DEVICE ClusterPlaces(Arena& arena, const DenseArgs& args, int64_t row, int64_t channel,
                       int head = 0)
      : a(args), words(arena.take<unsigned>(G::STAGES * G::STAGE)) {
    const int64_t before = head * a.channels;
#pragma unroll
    for (int i = 0; i < SOURCES; i++)
      from[i] = start(source(i), row, channel + (G::BACK || i ? 1 : G::BLOCKS) * before);
#pragma unroll
    for (int i = 0; i < TARGETS; i++)
      to[i] = start(target(i), row, channel + (!G::BACK || i ? 1 : G::BLOCKS) * before);
  }
  // Channels of all heads together.
  DEVICE int64_t pitch() const { return G::HEADS * a.channels; }
  DEVICE sptr<unsigned> word(int stage, int pass, int input) const {
    return words + (stage + (pass * G::INPUTS + input) * G::THREADS + thread_index());
  }
  // Copies one of a pass's inputs, or zeros.
  DEVICE void copy(int input, int i, int pass, int64_t skip, bool there) const {
    const DenseSequence s = source(i);
    if (G::BACK && i == 0) there = there && s.data;
    const bf16* at = from[i] + (pass * G::AT_ONCE * s.batch + skip);
    copy_async<4>(cast<unsigned char>(word(filled, pass, input)), there ? at : nullptr,
                  there ? 4 : 0);
  }
  // Copies a pass's inputs of the next step. `first`: whether no step is before that one.
  DEVICE void fetch(int pass, bool there, bool first) const {
    int n = 0;
    if (!G::BACK) {
#pragma unroll
      for (int b = 0; b < G::BLOCKS; b++) copy(n++, 0, pass, b * a.channels, there);
#pragma unroll
      for (int i = 0; i < Cell::OTHERS; i++) copy(n++, 1 + i, pass, 0, there);
      return;
    }
    copy(n++, 0, pass, 0, there);
    if (G::NEW) copy(n++, 2, pass, 0, there);
    if (Cell::OLD) copy(n++, 2, pass, -a.y.time, there && !first);
#pragma unroll
    for (int k = 0; k < G::MEMO; k++) copy(n++, 1, pass, k * pitch(), there);
#pragma unroll
    for (int k = Cell::KEPT; k > 0; k--)  // a memo ends with them
      copy(n++, 1, pass, -k * pitch(), there && !first);
  }
  DEVICE static int after(int stage) {
    return stage + G::STAGE == G::STAGES * G::STAGE ? 0 : stage + G::STAGE;
  }
  DEVICE void next_source() {
#pragma unroll
    for (int i = 0; i < SOURCES; i++) from[i] += G::BACK ? -source(i).time : source(i).time;
    filled = after(filled);
  }
  DEVICE void next_target() {
#pragma unroll
    for (int i = 0; i < TARGETS; i++) to[i] += G::BACK ? -target(i).time : target(i).time;
    used = after(used);
  }
  DEVICE void write(int i, int pass, int64_t skip, unsigned word) const {
    store_pair(to[i] + (pass * G::AT_ONCE * target(i).batch + skip), word);
  }
  DEVICE void read(float (&x)[2], int pass, int input) const {
    unsigned pair[1];
    load_words(pair, word(used, pass, input));
    unpack<2, bf16>(x, pair);
  }
};

template <class G>
struct DenseCluster {
  using Cell = typename G::Cell;
  using First = typename G::First;
  const DenseArgs& a;
  const int rank = cluster_rank(), warp = warp_index(), lane = thread_index() % 32;
  const int head = G::HEADS > 1 ? cluster_index() % G::HEADS : 0;
  const int64_t first = cluster_index() / G::HEADS * G::ROWS;  // row of the batch
  // This thread's pair of channels, and its first row.
  const bool active = thread_index() < G::AT_ONCE * G::PAIRS;
  const int row0 = active ? thread_index() / G::PAIRS : 0;
  const int m0 = thread_index() % G::PAIRS * 2;
  const int64_t channel = rank * G::M + m0;
  Boxes boxes;
  sptr<unsigned> mail;  // [2, K / 32, ROWS, 16]
  sptr<float> parts;    // [2, K_WARPS, ROWS, STRIDE]
  ClusterMatrix<First> matrix;
  ClusterPlaces<G> places;
  // Of this thread's pairs, forward: the state. Backward: its gradient, as far as it does not come
  // from the product with R; without a c, that of the step's own number in its place.
  float h[G::PASSES][2], c[G::PASSES][G::PARTS_OF_C][2];
  const float scale = Cell::SCALE ? load_one((const float*)a.scale) : 0.0f;  // that number
  // Whether the state before this step is zero, and before the one that this thread was at before.
  bool reset[G::PASSES] = {}, reset_before[G::PASSES] = {};
  // Where this thread delivers its first pair: a word of the mail's half, and boxes by block.
  int letter, slices[G::SENT];

  DEVICE DenseCluster(Arena& arena, const DenseArgs& args)
      : a(args),
        boxes(arena, G::BOXES),
        mail(arena.take<unsigned>(G::MAIL)),
        parts(arena.take<float>(G::PARTS)),
        matrix(arena, (const bf16*)args.matrix + head * (G::BLOCKS * G::I * G::I), rank),
        places(arena, args, first + row0, channel, head) {
    if (thread_index() < G::BOXES) boxes.make(thread_index());
    const int k = rank * G::M + (m0 & ~3);
    letter = (k / 32 * G::ROWS + row0) * 16 + k % 32 / 2;
#pragma unroll
    for (int block = 0; block < G::SENT; block++) slices[block] = slice_of<First>(block);
#pragma unroll 1
    for (int step = 0; step + 1 < G::STAGES; step++) fetch(step);
  }
  // Which warps multiply what this thread delivers, of a block of its channels.
  template <class P>
  DEVICE int slice_of(int block) const {
    return (block * G::I + rank * G::M + (m0 & ~3)) / P::KW;
  }
  DEVICE int row(int pass) const { return row0 + pass * G::AT_ONCE; }
  DEVICE bool has(int pass) const { return active && row(pass) < G::ROWS; }
  // Whether a pair is one of the batch's, and of the state's.
  DEVICE bool exists(int pass) const {
    return has(pass) && first + row(pass) < a.batch && channel < a.channels;
  }
  DEVICE int64_t number(int pass) const { return first + row(pass); }  // of the row
  DEVICE int64_t place(int pass, int part) const {
    return (part * a.batch + number(pass)) * places.pitch() + head * a.channels + channel;
  }
  // What the state was multiplied by that a step made.
  DEVICE float norm(int pass, int step) const {
    return exists(pass) ? load_one((const float*)a.norms + (number(pass) * a.steps + step)) : 0.0f;
  }
  // Reads which rows begin anew at a step; also for channels that are none, which would otherwise
  // keep a NaN.
  DEVICE void look(int step) {
    if constexpr (G::RESETS) {
#pragma unroll
      for (int pass = 0; pass < G::PASSES; pass++) {
        reset_before[pass] = reset[pass];
        reset[pass] = has(pass) && number(pass) < a.batch &&
                      load_one(a.resets + (number(pass) * a.steps + step));
      }
    }
  }
  // Zeros for all parts of a state.
  DEVICE void forget(int pass) {
    h[pass][0] = h[pass][1] = 0.0f;
#pragma unroll
    for (int i = 0; i < G::PARTS_OF_C; i++) c[pass][i][0] = c[pass][i][1] = 0.0f;
  }
  // Reads a state [S, B, I], or zeros.
  DEVICE void begin(const float* state) {
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) {
      forget(pass);
      if (!state || !exists(pass)) continue;
      load<2, float>(h[pass], state + place(pass, 0));
#pragma unroll
      for (int i = 1; i < Cell::STATES; i++) load<2, float>(c[pass][i - 1], state + place(pass, i));
    }
  }
  DEVICE void end(float* state) {
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) {
      if (!exists(pass)) continue;
      store<2, float>(state + place(pass, 0), h[pass]);
#pragma unroll
      for (int i = 1; i < Cell::STATES; i++)
        store<2, float>(state + place(pass, i), c[pass][i - 1]);
    }
  }
  DEVICE void end_scale(float* dscale) {
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++)
      if (exists(pass)) store<2, float>(dscale + place(pass, 0), c[pass][0]);
  }
  // Copies the inputs of the `step`-th step, the next one.
  DEVICE void fetch(int step) {
    const int steps = (int)a.steps;
    if (step < steps) {
#pragma unroll
      for (int pass = 0; pass < G::PASSES; pass++)
        places.fetch(pass, exists(pass), step + 1 == steps);
      places.next_source();
    }
    commit_copies();
  }

  // ---- the products

  // Leaves each warp's sums for everybody to add up. What is delivered for a step is written into
  // the other half of the mail than what is read at it; nobody delivers for the step after the
  // next one before all blocks have read this half. Of a GRU, `step` counts products.
  template <class P>
  DEVICE void multiply(const ClusterMatrix<P>& matrix, int step, bool delivered, bool more) const {
    const int slice = warp % G::K_WARPS, half = step % 2;
    if (delivered) boxes.wait(half * G::K_WARPS + slice, (step - 1) / 2);
    float sums[P::TILES][4], squares = 0.0f;
    matrix.multiply(mail + half * G::HALF, sums, squares);
    if (more) expect(step + 1);
    const int n = lane % 4 * 2, out = warp / G::K_WARPS * P::TILES * 16 + lane / 4;
    const sptr<float> to = parts + (half * G::PART + (slice * G::ROWS + n) * P::STRIDE + out);
#pragma unroll
    for (int tile = 0; tile < P::TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (n + i % 2 < G::ROWS)
          store_one(to + (i % 2 * P::STRIDE + tile * 16 + i / 2 * 8), sums[tile][i]);
    if constexpr (P::SQUARES) leave(squares, half);
  }
  DEVICE void multiply(int step, bool delivered, bool more) const {
    multiply(matrix, step, delivered, more);
  }
  // Says how much will be delivered for a step.
  DEVICE void expect(int step) const {
    const int columns = G::EXTRA && step % 2 ? G::Second::KW : First::KW;
    if (warp < G::K_WARPS && lane == 0)
      boxes.expect(step % 2 * G::K_WARPS + warp, columns * G::ROWS * 2);
  }
  // Adds up numbers of all slices; in one order, so that all runs agree to the bit.
  template <int N>
  DEVICE static void add_up(float (&part)[G::K_WARPS][N]) {
#pragma unroll
    for (int half = 1; half < G::K_WARPS; half *= 2)
#pragma unroll
      for (int slice = 0; slice + half < G::K_WARPS; slice += 2 * half)
#pragma unroll
        for (int i = 0; i < N; i++) part[slice][i] += part[slice + half][i];
  }
  // Adds up a pair of outputs.
  template <class P = First>
  DEVICE void gather(float (&x)[2], int step, int pass, int out) const {
    const int row = has(pass) ? this->row(pass) : 0;
    const sptr<float> from = parts + (step % 2 * G::PART + row * P::STRIDE + out + m0);
    float part[G::K_WARPS][2];
#pragma unroll
    for (int slice = 0; slice < G::K_WARPS; slice++)
      load<2, float>(part[slice], from + slice * (G::ROWS * P::STRIDE));
    add_up(part);
#pragma unroll
    for (int i = 0; i < 2; i++) x[i] = part[0][i];
  }
  // Leaves a warp's sum of squares of each row. Warps that share columns have the same.
  DEVICE void leave(float squares, int half) const {
    squares += shuffle_xor(squares, 1);
    squares += shuffle_xor(squares, 2);
    const int row = lane / 4;
    if (warp < G::K_WARPS && lane % 4 == 0 && row < G::ROWS)
      store_one(parts + (half * G::PART + (warp * G::ROWS + row) * First::STRIDE + G::OUT),
                squares);
  }
  DEVICE float gather_squares(int step, int pass) const {
    const int row = has(pass) ? this->row(pass) : 0;
    const sptr<float> from = parts + (step % 2 * G::PART + row * First::STRIDE + G::OUT);
    float part[G::K_WARPS][1];
#pragma unroll
    for (int slice = 0; slice < G::K_WARPS; slice++)
      part[slice][0] = load_one(from + slice * (G::ROWS * First::STRIDE));
    add_up(part);
    return part[0][0];
  }

  // ---- the exchange

  // Delivers a pair, as one word, to every block for a step. Two lanes join their words; each sends
  // to every other block, and no two blocks begin with the same one.
  DEVICE void send(unsigned word, int step, int pass, int block) const {
    send(word, slices[block], step, pass, block);
  }
  DEVICE void send(unsigned word, int slice, int step, int pass, int block) const {
    const unsigned other = shuffle_xor(word, 1);
    if (!has(pass)) return;
    const int odd = lane % 2, half = step % 2, box = half * G::K_WARPS + slice;
    const unsigned low = odd ? other : word, high = odd ? word : other;
    constexpr int PASS = G::AT_ONCE * 16, BLOCK = G::I / 32 * G::ROWS * 16;
    const sptr<unsigned> to = mail + (letter + half * G::HALF + pass * PASS + block * BLOCK);
#pragma unroll
    for (int i = 0; i < (G::CLUSTER + 1) / 2; i++) {
      const int peer = (odd + 2 * i) ^ rank;
      if (G::CLUSTER > 1 || odd == 0)
        deliver(remote_place(to, peer), boxes.of(box, peer), low, high);
    }
  }
};

}  // namespace elman
