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

// I: channels, those of the state and zeros. CLUSTER: blocks of a cluster. ROWS: of the batch, for
// a cluster. The warps of a block are ROW_WARPS groups, which share the rows of the block's matrix;
// within a group they share its columns. KEPT: fragments of the matrix that a thread has in
// registers, at most. STAGES: steps whose inputs are in shared memory or on their way. BACK: which
// pass.
template <class Cell_, int I_, int CLUSTER_, int ROWS_, int WARPS_, int ROW_WARPS_, int KEPT_,
          int STAGES_, bool BACK_>
struct DenseClusterConfig {
  using Cell = Cell_;
  static constexpr int I = I_, CLUSTER = CLUSTER_, ROWS = ROWS_, WARPS = WARPS_;
  static constexpr int ROW_WARPS = ROW_WARPS_, K_WARPS = WARPS / ROW_WARPS, STAGES = STAGES_;
  static constexpr bool BACK = BACK_;
  static constexpr int THREADS = 32 * WARPS, BLOCKS = Cell::BLOCKS, MEMO = Cell::MEMO;
  static constexpr int M = I / CLUSTER;  // channels of a block
  // The block's matrix is [OUT, K]; a warp multiplies TILES times 16 of its rows by KW columns.
  static constexpr int K = BACK ? BLOCKS * I : I, OUT = BACK ? M : BLOCKS * M;
  static constexpr int TILES = OUT / 16 / ROW_WARPS, KW = K / K_WARPS, K_BLOCKS = KW / 32;
  static constexpr int FRAGMENTS = TILES * K_BLOCKS * 2;
  static constexpr int KEPT = FRAGMENTS < KEPT_ ? FRAGMENTS : KEPT_, REST = FRAGMENTS - KEPT;
  static constexpr int STRIDE = OUT + 4;          // of partial sums: no bank conflict
  static constexpr int SENT = BACK ? BLOCKS : 1;  // numbers of a channel that go to every block
  static constexpr int INPUTS =
      BACK ? 1 + Cell::NEW + Cell::OLD + MEMO + (Cell::STATES > 1) : BLOCKS + Cell::OTHERS;
  // Pointwise, a thread has pairs of channels: one pair in each of PASSES rows, AT_ONCE rows apart.
  static constexpr int PAIRS = M / 2;
  static constexpr int FIT = THREADS / PAIRS, AT_ONCE = FIT < ROWS ? FIT : ROWS;
  static constexpr int PASSES = (ROWS + AT_ONCE - 1) / AT_ONCE;

  static constexpr int HALF = (K / 32) * ROWS * 16, MAIL = 2 * HALF;      // words
  static constexpr int PART = K_WARPS * ROWS * STRIDE, PARTS = 2 * PART;  // floats
  static constexpr int MATRIX = REST * WARPS * 128;                       // words
  static constexpr int STAGE = PASSES * INPUTS * THREADS;                 // words
  static constexpr int BOXES = 2 * K_WARPS;
  static constexpr int SHARED_BYTES =
      (BOXES * 8 + 15) / 16 * 16 + 4 * (MAIL + PARTS + MATRIX + STAGES * STAGE);

  static_assert(I % 32 == 0 && I % CLUSTER == 0 && M % 16 == 0, "channels");
  static_assert((CLUSTER & (CLUSTER - 1)) == 0 && CLUSTER <= 16, "cluster");
  static_assert(WARPS % ROW_WARPS == 0 && OUT / 16 % ROW_WARPS == 0 && K % (32 * K_WARPS) == 0,
                "warps");
  static_assert(ROWS >= 1 && ROWS <= 8 && AT_ONCE >= 1 && STAGES >= 2, "rows");
  static_assert(!Cell::NORM && !Cell::EXTRA && !Cell::SCALE, "one product and one exchange a step");
};

// The rows of the matrix that a block multiplies: each warp's part, in the order in which its lanes
// hold it for multiply_tiles. Of every 32 columns a lane has 8 adjacent ones, so that it reads
// them, and the numbers that they meet, 16 bytes at a time.
template <class G>
struct ClusterMatrix {
  unsigned kept[G::KEPT > 0 ? G::KEPT : 1][4];
  sptr<unsigned> rest;
  int warp, lane;

  DEVICE ClusterMatrix(Arena& arena, const bf16* matrix, int rank)
      : rest(arena.take<unsigned>(G::MATRIX)), warp(warp_index()), lane(thread_index() % 32) {
#pragma unroll
    for (int tile = 0; tile < G::TILES; tile++) {
      const int out = (warp / G::K_WARPS * G::TILES + tile) * 16;
      const int row = (out / G::M) * G::I + rank * G::M + out % G::M + lane / 4;
#pragma unroll
      for (int block = 0; block < G::K_BLOCKS; block++) {
        const int column = warp % G::K_WARPS * G::KW + block * 32 + lane % 4 * 8;
        const bf16* from = matrix + (int64_t)row * G::K + column;
        unsigned u[4], v[4];
        load_words(u, from);
        load_words(v, from + 8 * G::K);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const unsigned words[4] = {u[2 * half], v[2 * half], u[2 * half + 1], v[2 * half + 1]};
          put((tile * G::K_BLOCKS + block) * 2 + half, words);
        }
      }
    }
  }
  DEVICE sptr<unsigned> place(int fragment) const {
    return rest + (((fragment - G::KEPT) * G::WARPS + warp) * 128 + lane * 4);
  }
  DEVICE void put(int fragment, const unsigned (&words)[4]) {
    if (fragment < G::KEPT) {
#pragma unroll
      for (int i = 0; i < 4; i++) kept[fragment < G::KEPT ? fragment : 0][i] = words[i];
    } else {
      store_words(place(fragment), words);
    }
  }
  // sums = the warp's part of the matrix times its part of what stands in the mail.
  DEVICE void multiply(sptr<unsigned> mail, float (&sums)[G::TILES][4]) const {
#pragma unroll
    for (int tile = 0; tile < G::TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[tile][i] = 0.0f;
    unsigned read[2][4];
    fetch(mail, 0, read[0]);
#pragma unroll
    for (int block = 0; block < G::K_BLOCKS; block++) {
      if (block + 1 < G::K_BLOCKS) fetch(mail, block + 1, read[(block + 1) % 2]);
      const unsigned (&b)[4] = read[block % 2];
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int tile = 0; tile < G::TILES; tile++) {
          const int fragment = (tile * G::K_BLOCKS + block) * 2 + half;
          if (fragment < G::KEPT) {
            multiply_tiles(sums[tile], kept[fragment < G::KEPT ? fragment : 0], b[2 * half],
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
    if (G::ROWS == 8 || row < G::ROWS)
      load_words(words, mail + (((warp % G::K_WARPS * G::K_BLOCKS + block) * G::ROWS + row) * 16 +
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
  static constexpr int SOURCES = G::BACK ? 2 + (Cell::NEW || Cell::OLD) : 1 + Cell::OTHERS;
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
    return {a.memo, a.steps * G::MEMO * a.channels, G::MEMO * a.channels};
  }
  DEVICE bf16* start(const DenseSequence& s, int64_t row, int64_t channel) const {
    return (bf16*)s.data + (row * s.batch + (G::BACK ? a.steps - 1 : 0) * s.time + channel);
  }
  DEVICE ClusterPlaces(Arena& arena, const DenseArgs& args, int64_t row, int64_t channel)
      : a(args), words(arena.take<unsigned>(G::STAGES * G::STAGE)) {
#pragma unroll
    for (int i = 0; i < SOURCES; i++) from[i] = start(source(i), row, channel);
#pragma unroll
    for (int i = 0; i < TARGETS; i++) to[i] = start(target(i), row, channel);
  }
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
    if (Cell::NEW) copy(n++, 2, pass, 0, there);
    if (Cell::OLD) copy(n++, 2, pass, -a.y.time, there && !first);
#pragma unroll
    for (int k = 0; k < G::MEMO; k++) copy(n++, 1, pass, k * a.channels, there);
    if (Cell::STATES > 1) copy(n++, 1, pass, -a.channels, there && !first);  // c ends a memo
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
  const DenseArgs& a;
  const int rank = cluster_rank(), warp = warp_index(), lane = thread_index() % 32;
  const int64_t first = cluster_index() * G::ROWS;  // row of the batch
  // This thread's pair of channels, and its first row.
  const bool active = thread_index() < G::AT_ONCE * G::PAIRS;
  const int row0 = active ? thread_index() / G::PAIRS : 0;
  const int m0 = thread_index() % G::PAIRS * 2;
  const int64_t channel = rank * G::M + m0;
  Boxes boxes;
  sptr<unsigned> mail;  // [2, K / 32, ROWS, 16]
  sptr<float> parts;    // [2, K_WARPS, ROWS, STRIDE]
  ClusterMatrix<G> matrix;
  ClusterPlaces<G> places;
  // Of this thread's pairs, forward: the state. Backward: its gradient, as far as it does not come
  // from the product with R.
  float h[G::PASSES][2], c[G::PASSES][2];
  // Where this thread delivers its first pair: a word of the mail's half, and boxes by block.
  int letter, slices[G::SENT];

  DEVICE DenseCluster(Arena& arena, const DenseArgs& args)
      : a(args),
        boxes(arena, G::BOXES),
        mail(arena.take<unsigned>(G::MAIL)),
        parts(arena.take<float>(G::PARTS)),
        matrix(arena, (const bf16*)args.matrix, rank),
        places(arena, args, first + row0, channel) {
    if (thread_index() < G::BOXES) boxes.make(thread_index());
    const int k = rank * G::M + (m0 & ~3);
    letter = (k / 32 * G::ROWS + row0) * 16 + k % 32 / 2;
#pragma unroll
    for (int block = 0; block < G::SENT; block++) slices[block] = (block * G::I + k) / G::KW;
#pragma unroll 1
    for (int step = 0; step + 1 < G::STAGES; step++) fetch(step);
  }
  DEVICE int row(int pass) const { return row0 + pass * G::AT_ONCE; }
  DEVICE bool has(int pass) const { return active && row(pass) < G::ROWS; }
  // Whether a pair is one of the batch's, and of the state's.
  DEVICE bool exists(int pass) const {
    return has(pass) && first + row(pass) < a.batch && channel < a.channels;
  }
  DEVICE int64_t place(int pass, int part) const {
    return (part * a.batch + first + row(pass)) * a.channels + channel;
  }
  // Reads a state [S, B, I], or zeros.
  DEVICE void begin(const float* state) {
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) {
      h[pass][0] = h[pass][1] = c[pass][0] = c[pass][1] = 0.0f;
      if (!state || !exists(pass)) continue;
      load<2, float>(h[pass], state + place(pass, 0));
      if (Cell::STATES > 1) load<2, float>(c[pass], state + place(pass, 1));
    }
  }
  DEVICE void end(float* state) {
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) {
      if (!exists(pass)) continue;
      store<2, float>(state + place(pass, 0), h[pass]);
      if (Cell::STATES > 1) store<2, float>(state + place(pass, 1), c[pass]);
    }
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

  // ---- the product

  // Leaves each warp's sums for everybody to add up. What is delivered for a step is written into
  // the other half of the mail than what is read at it; nobody delivers for the step after the
  // next one before all blocks have read this half.
  DEVICE void multiply(int step, bool delivered, bool more) const {
    const int slice = warp % G::K_WARPS, half = step % 2;
    if (delivered) boxes.wait(half * G::K_WARPS + slice, (step - 1) / 2);
    float sums[G::TILES][4];
    matrix.multiply(mail + half * G::HALF, sums);
    if (more) expect(step + 1);
    const int n = lane % 4 * 2, out = warp / G::K_WARPS * G::TILES * 16 + lane / 4;
    const sptr<float> to = parts + (half * G::PART + (slice * G::ROWS + n) * G::STRIDE + out);
#pragma unroll
    for (int tile = 0; tile < G::TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (n + i % 2 < G::ROWS)
          store_one(to + (i % 2 * G::STRIDE + tile * 16 + i / 2 * 8), sums[tile][i]);
  }
  // Says how much will be delivered for a step.
  DEVICE void expect(int step) const {
    if (warp < G::K_WARPS && lane == 0)
      boxes.expect(step % 2 * G::K_WARPS + warp, G::KW * G::ROWS * 2);
  }
  // Adds up a pair of outputs; in one order, so that all runs agree to the bit.
  DEVICE void gather(float (&x)[2], int step, int pass, int out) const {
    const int row = has(pass) ? this->row(pass) : 0;
    const sptr<float> from = parts + (step % 2 * G::PART + row * G::STRIDE + out + m0);
    float part[G::K_WARPS][2];
#pragma unroll
    for (int slice = 0; slice < G::K_WARPS; slice++)
      load<2, float>(part[slice], from + slice * (G::ROWS * G::STRIDE));
#pragma unroll
    for (int half = 1; half < G::K_WARPS; half *= 2)
#pragma unroll
      for (int slice = 0; slice + half < G::K_WARPS; slice += 2 * half)
#pragma unroll
        for (int i = 0; i < 2; i++) part[slice][i] += part[slice + half][i];
#pragma unroll
    for (int i = 0; i < 2; i++) x[i] = part[0][i];
  }

  // ---- the exchange

  // Delivers a pair, as one word, to every block for a step. Two lanes join their words; each sends
  // to every other block, and no two blocks begin with the same one.
  DEVICE void send(unsigned word, int step, int pass, int block) const {
    const unsigned other = shuffle_xor(word, 1);
    if (!has(pass)) return;
    const int odd = lane % 2, half = step % 2, box = half * G::K_WARPS + slices[block];
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

template <class G>
DEVICE void cluster_step(DenseCluster<G>& k, int t, int pass, bool more) {
  using Cell = typename G::Cell;
  const DenseArgs& a = k.a;
  float pre[G::BLOCKS][2], x[G::INPUTS][2], memo[2][MAX_DENSE_MEMO];
#pragma unroll
  for (int b = 0; b < G::BLOCKS; b++) k.gather(pre[b], t, pass, b * G::M);
#pragma unroll
  for (int i = 0; i < G::INPUTS; i++) k.places.read(x[i], pass, i);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    Dense<float> see;
#pragma unroll
    for (int b = 0; b < G::BLOCKS; b++) see.a[b] = x[b][e] + pre[b][e];
#pragma unroll
    for (int i = 0; i < Cell::OTHERS; i++) see.p[i] = x[G::BLOCKS + i][e];
    see.h = k.h[pass][e];
    see.c = k.c[pass][e];
    float c_new = 0.0f;
    k.h[pass][e] = Cell::step(see, memo[e], c_new);
    k.c[pass][e] = c_new;
  }
  const unsigned word = bf16_pair(k.h[pass][0], k.h[pass][1]);
  if (more) k.send(word, t + 1, pass, 0);
  if (!k.exists(pass)) return;
  k.places.write(0, pass, 0, word);
  if (G::MEMO && a.memo)
#pragma unroll
    for (int i = 0; i < G::MEMO; i++)
      k.places.write(1, pass, i * a.channels, bf16_pair(memo[0][i], memo[1][i]));
}

template <class G>
DEVICE void dense_cluster_forward(const DenseArgs& a) {
  Arena arena;
  DenseCluster<G> k(arena, a);
  k.begin((const float*)a.first);
  // Every block reads all of the first state itself.
  for (int i = thread_index(); i < G::HALF; i += G::THREADS) {
    const int64_t row = k.first + i / 16 % G::ROWS;
    const int channel = i / (16 * G::ROWS) * 32 + i % 16 * 2;
    float x[2] = {0.0f, 0.0f};
    if (row < a.batch && channel < a.channels)
      load<2, float>(x, (const float*)a.first + (row * a.channels + channel));
    store_one(k.mail + i, bf16_pair(x[0], x[1]));
  }
  sync_cluster();
  const int steps = (int)a.steps;
#pragma unroll 1
  for (int t = 0; t < steps; t++) {
    const bool more = t + 1 < steps;
    k.multiply(t, t > 0, more);
    wait_copies<G::STAGES - 2>();
    sync_block();
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) cluster_step(k, t, pass, more);
    k.fetch(t + G::STAGES - 1);
    k.places.next_target();
  }
  k.end((float*)a.last);
  sync_cluster();
}

// The `round`-th step from the end.
template <class G>
DEVICE void cluster_step_back(DenseCluster<G>& k, int round, int pass) {
  using Cell = typename G::Cell;
  const DenseArgs& a = k.a;
  float x[G::INPUTS][2], y[2] = {}, old[2] = {}, old_c[2] = {}, dh[2] = {};
  if (round) k.gather(dh, round, pass, 0);
#pragma unroll
  for (int i = 0; i < G::INPUTS; i++) k.places.read(x[i], pass, i);
  constexpr int NEW = 1, OLD = NEW + Cell::NEW, MEMO = OLD + Cell::OLD, OLD_C = MEMO + G::MEMO;
  const bool at_first = round + 1 == (int)a.steps && k.exists(pass);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    if (Cell::NEW) y[e] = x[Cell::NEW ? NEW : 0][e];
    if (Cell::OLD) old[e] = x[Cell::OLD ? OLD : 0][e];
    if (Cell::STATES > 1) old_c[e] = x[Cell::STATES > 1 ? OLD_C : 0][e];
  }
  if (at_first && Cell::OLD) load<2, float>(old, (const float*)a.first + k.place(pass, 0));
  if (at_first && Cell::STATES > 1) load<2, float>(old_c, (const float*)a.first + k.place(pass, 1));
  DenseGrad<float> d[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    Dense<float> see;
    see.h = old[e];
    see.c = old_c[e];
    float m[MAX_DENSE_MEMO];
#pragma unroll
    for (int i = 0; i < G::MEMO; i++) m[i] = x[MEMO + i][e];
    const float c_new = Cell::STATES > 1 ? m[G::MEMO > 0 ? G::MEMO - 1 : 0] : 0.0f;
    Cell::step_bwd(see, m, y[e], c_new, k.h[pass][e] + dh[e] + x[0][e], k.c[pass][e], d[e]);
    k.h[pass][e] = d[e].h;
    if (Cell::STATES > 1) k.c[pass][e] = d[e].c;
  }
  unsigned words[G::BLOCKS];
#pragma unroll
  for (int b = 0; b < G::BLOCKS; b++) {
    words[b] = bf16_pair(d[0].a[b], d[1].a[b]);
    k.send(words[b], round + 1, pass, b);
  }
  if (!k.exists(pass)) return;
#pragma unroll
  for (int i = 0; i < G::BLOCKS; i++) k.places.write(0, pass, i * a.channels, words[i]);
#pragma unroll
  for (int i = 0; i < Cell::OTHERS; i++)
    k.places.write(1 + i, pass, 0, bf16_pair(d[0].p[i], d[1].p[i]));
}

template <class G>
DEVICE void dense_cluster_backward(const DenseArgs& a) {
  Arena arena;
  DenseCluster<G> k(arena, a);
  k.begin((const float*)a.dlast);
  sync_cluster();
  k.expect(1);
  const int steps = (int)a.steps;
  // One round more than there are steps: the gradient of the first state takes a product, too.
#pragma unroll 1
  for (int round = 0; round < steps; round++) {
    if (round) k.multiply(round, true, true);
    wait_copies<G::STAGES - 2>();
    sync_block();
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) cluster_step_back(k, round, pass);
    k.fetch(round + G::STAGES - 1);
    k.places.next_target();
  }
  k.multiply(steps, true, false);
  sync_block();
#pragma unroll
  for (int pass = 0; pass < G::PASSES; pass++) {
    float dh[2];
    k.gather(dh, steps, pass, 0);
#pragma unroll
    for (int e = 0; e < 2; e++) k.h[pass][e] += dh[e];
  }
  k.end((float*)a.dfirst);
  sync_cluster();
}

}  // namespace elman
