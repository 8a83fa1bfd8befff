// A dense recurrence as one launch where no cluster is there, or none has room for R: the blocks of
// a group hold all of R between them, as those of a cluster do (cluster.cuh), and hand the state to
// each other through global memory, which is the second-level cache in effect. All blocks run at
// the same time. Groups know nothing of each other; each walks some rows of the batch.
//
// A step: each warp waits until the blocks that own its slice of the state have raised their flags,
// and multiplies its columns of the block's matrix by it. After a barrier a thread adds up the sums
// of its pairs of channels, makes their new state and writes it to the other half of what is
// exchanged. After another barrier one thread raises the block's flag.
//
// A block that waits in vain says so in the host's memory, leaves, and leaves NaN in what it would
// have written. The others see its flag and do the same.
#pragma once
#include "abi/dense_group.h"
#include "cuda/dense/cluster.cuh"

namespace elman {

// I: channels, those of the state and zeros. GROUP: blocks of a group. ROWS: of the batch, for a
// group; above 8 they are multiples of 8. The warps of a block share the columns of its matrix.
// KEPT, STAGES and BACK are those of DenseClusterConfig. RESETS: whether rows may begin anew, from
// zeros.
template <class Cell_, int I_, int GROUP_, int ROWS_, int WARPS_, int KEPT_, int STAGES_,
          bool BACK_, bool RESETS_>
struct DenseGroupConfig {
  using Cell = Cell_;
  static constexpr int I = I_, GROUP = GROUP_, ROWS = ROWS_, WARPS = WARPS_, STAGES = STAGES_;
  static constexpr int HEADS = 1;  // of R, as ClusterPlaces asks
  static constexpr int K_WARPS = WARPS;
  static constexpr bool BACK = BACK_, NEW = Cell::NEW, RESETS = RESETS_;
  static constexpr int THREADS = 32 * WARPS, BLOCKS = Cell::BLOCKS, MEMO = Cell::MEMO;
  static constexpr int M = I / GROUP;  // channels of a block
  // The block's matrix is [OUT, K]; a warp multiplies TILES times 16 rows by KW columns.
  static constexpr int K = BACK ? BLOCKS * I : I, OUT = BACK ? M : BLOCKS * M;
  static constexpr int TILES = OUT / 16, KW = K / WARPS, K_BLOCKS = KW / 32;
  static constexpr int FRAGMENTS = TILES * K_BLOCKS * 2;
  static constexpr int KEPT = FRAGMENTS < KEPT_ ? FRAGMENTS : KEPT_, REST = FRAGMENTS - KEPT;
  static constexpr int STRIDE = OUT + 4;  // of partial sums: no bank conflict
  static constexpr int INPUTS =
      BACK ? 1 + NEW + Cell::OLD + MEMO + (Cell::STATES > 1) : BLOCKS + Cell::OTHERS;
  // Pointwise, a thread has pairs of channels: one pair in each of PASSES rows, AT_ONCE rows apart.
  static constexpr int PAIRS = M / 2;
  static constexpr int FIT = THREADS / PAIRS, AT_ONCE = FIT < ROWS ? FIT : ROWS;
  static constexpr int PASSES = (ROWS + AT_ONCE - 1) / AT_ONCE;
  // A product takes TILE_ROWS rows of the batch at once.
  static constexpr int TILE_ROWS = ROWS < 8 ? ROWS : 8, ROW_TILES = ROWS / TILE_ROWS;
  // Loads of the state that a thread has on their way.
  static constexpr int LOADS = ROW_TILES * K_BLOCKS, AHEAD = LOADS < 6 ? LOADS : 6;

  static constexpr int HALF = K / 2 * ROWS;                // words that a group exchanges in a step
  static constexpr int PARTS = WARPS * ROWS * STRIDE;      // floats
  static constexpr int MATRIX = REST * WARPS * 128;        // words
  static constexpr int STAGE = PASSES * INPUTS * THREADS;  // words
  static constexpr int SHARED_BYTES = 4 * (PARTS + MATRIX + STAGES * STAGE);

  static_assert(I % 32 == 0 && I % GROUP == 0 && M % 16 == 0, "channels");
  static_assert(K % (32 * WARPS) == 0, "warps");
  static_assert(ROWS >= 1 && (ROWS < 8 || ROWS % 8 == 0) && AT_ONCE >= 1 && STAGES >= 2, "rows");
  static_assert(Cell::STATES <= 2, "a thread carries h and c");
  static_assert(!Cell::NORM && !Cell::EXTRA && !Cell::SCALE, "one product and one exchange a step");
};

template <class G>
struct DenseGroup {
  using Cell = typename G::Cell;
  const DenseGroupArgs& g;
  const DenseArgs& a = g.dense;
  const int group = (int)(block_index() / G::GROUP), rank = (int)(block_index() % G::GROUP);
  const int warp = warp_index(), lane = thread_index() % 32;
  const int64_t first = g.first + group * G::ROWS;  // row of the batch
  // This thread's pair of channels, and its first row.
  const bool active = thread_index() < G::AT_ONCE * G::PAIRS;
  const int row0 = active ? thread_index() / G::PAIRS : 0;
  const int m0 = thread_index() % G::PAIRS * 2;
  const int64_t channel = rank * G::M + m0;
  const Flags flags{g.flags + group * G::GROUP * Flags::STRIDE};
  unsigned* const exchanged = (unsigned*)g.exchanged + (int64_t)group * 2 * G::HALF;
  sptr<float> parts;  // [WARPS, ROWS, STRIDE]
  ClusterMatrix<G> matrix;
  ClusterPlaces<G> places;
  // Of this thread's pairs, forward: the state. Backward: its gradient, as far as it does not come
  // from the product with R.
  float h[G::PASSES][2], c[G::PASSES][2];
  // Whether its rows begin anew at this step, and at the one that was taken before it.
  bool reset[G::PASSES] = {}, reset_before[G::PASSES] = {};

  DEVICE DenseGroup(Arena& arena, const DenseGroupArgs& args)
      : g(args),
        parts(arena.take<float>(G::PARTS)),
        matrix(arena, (const bf16*)a.matrix, rank),
        places(arena, a, first + row0, channel) {
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

  // Reads which rows begin anew at a step.
  DEVICE void find_resets(int step) {
    if constexpr (G::RESETS)
#pragma unroll
      for (int pass = 0; pass < G::PASSES; pass++) {
        reset_before[pass] = reset[pass];
        const int64_t at = (first + row(pass)) * a.steps + step;
        reset[pass] = exists(pass) && load_one(a.resets + at);
      }
  }
  // Forgets the state, or its gradient, of a row that begins anew.
  DEVICE void forget(int pass) {
    if (!G::RESETS || !reset[pass]) return;
#pragma unroll
    for (int e = 0; e < 2; e++) h[pass][e] = c[pass][e] = 0.0f;
  }

  // ---- the exchange

  // What is exchanged for a turn: [ROW_TILES, K / 32, TILE_ROWS, 16]. Turns have two halves in
  // turn. Nobody writes a turn's words before all blocks have raised their flags to the turn
  // before, for which they have read what stood there.
  DEVICE unsigned* half(unsigned turn) const { return exchanged + turn % 2 * G::HALF; }

  // Writes a pair for the others to read; `block` is that of R h.
  DEVICE void publish(unsigned word, unsigned turn, int pass, int block) const {
    if (!has(pass)) return;
    const int k = block * G::I + rank * G::M + m0;
    const int row = this->row(pass), tile = row / G::TILE_ROWS;
    const int at = ((tile * (G::K / 32) + k / 32) * G::TILE_ROWS + row % G::TILE_ROWS) * 16;
    store_one(half(turn) + (at + k % 32 / 2), word);
  }
  // Says that all of this block's words of a turn are there.
  DEVICE void raise(unsigned turn) const {
    sync_block();
    if (thread_index() == 0) flags.raise(rank, turn);
  }
  // Waits for the blocks that own this warp's slice; returns whether they came.
  DEVICE bool await(unsigned turn) const {
    const int begin = warp * G::KW / G::M, end = (warp * G::KW + G::KW - 1) / G::M + 1;
    bool come = true;
#pragma unroll 1
    for (int owner = begin + lane; owner < end; owner += 32)
      come = come && flags.wait(owner % G::GROUP, turn);
    sync_warp();
    return all_of_warp(come);
  }

  // ---- the product

  // Leaves each warp's sums for everybody to add up; returns whether what they are made of came.
  DEVICE bool multiply(unsigned turn) const {
    if (!await(turn)) return false;
    const unsigned* from = half(turn);
    unsigned read[G::AHEAD][4];
#pragma unroll
    for (int load = 0; load < G::AHEAD; load++) read_state(from, load, read[load]);
    float sums[G::TILES][4];
#pragma unroll
    for (int load = 0; load < G::LOADS; load++) {
      const int block = load % G::K_BLOCKS;
      if (block == 0)
#pragma unroll
        for (int tile = 0; tile < G::TILES; tile++)
#pragma unroll
          for (int i = 0; i < 4; i++) sums[tile][i] = 0.0f;
      multiply_block(block, read[load % G::AHEAD], sums);
      if (load + G::AHEAD < G::LOADS) read_state(from, load + G::AHEAD, read[load % G::AHEAD]);
      if (block + 1 == G::K_BLOCKS) leave_sums(load / G::K_BLOCKS, sums);
    }
    return true;
  }
  // A lane's 8 numbers of 32: those of the row of the batch that it has in multiply_tiles.
  DEVICE void read_state(const unsigned* from, int load, unsigned (&words)[4]) const {
    const int row = lane / 4, block = warp * G::K_BLOCKS + load % G::K_BLOCKS;
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = 0;
    const int tile = load / G::K_BLOCKS * (G::K / 32);
    if (G::TILE_ROWS == 8 || row < G::TILE_ROWS)
      load_words(words, from + (((tile + block) * G::TILE_ROWS + row) * 16 + lane % 4 * 4));
  }
  DEVICE void multiply_block(int block, const unsigned (&b)[4], float (&sums)[G::TILES][4]) const {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int tile = 0; tile < G::TILES; tile++) {
        const int fragment = (tile * G::K_BLOCKS + block) * 2 + half;
        if (fragment < G::KEPT) {
          multiply_tiles(sums[tile], matrix.kept[fragment < G::KEPT ? fragment : 0], b[2 * half],
                         b[2 * half + 1]);
        } else {
          unsigned words[4];
          load_words(words, matrix.place(fragment));
          multiply_tiles(sums[tile], words, b[2 * half], b[2 * half + 1]);
        }
      }
  }
  DEVICE void leave_sums(int row_tile, const float (&sums)[G::TILES][4]) const {
    const int n = lane % 4 * 2, row = warp * G::ROWS + row_tile * G::TILE_ROWS + n;
    const sptr<float> to = parts + (row * G::STRIDE + lane / 4);
#pragma unroll
    for (int tile = 0; tile < G::TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (n + i % 2 < G::TILE_ROWS)
          store_one(to + (i % 2 * G::STRIDE + tile * 16 + i / 2 * 8), sums[tile][i]);
  }
  // Adds up a pair of outputs; in one order, so that all runs agree to the bit.
  DEVICE void gather(float (&x)[2], int pass, int out) const {
    const int row = has(pass) ? this->row(pass) : 0;
    const sptr<float> from = parts + (row * G::STRIDE + out + m0);
    float part[G::WARPS][2];
#pragma unroll
    for (int slice = 0; slice < G::WARPS; slice++)
      load<2, float>(part[slice], from + slice * (G::ROWS * G::STRIDE));
#pragma unroll
    for (int half = 1; half < G::WARPS; half *= 2)
#pragma unroll
      for (int slice = 0; slice + half < G::WARPS; slice += 2 * half)
#pragma unroll
        for (int i = 0; i < 2; i++) part[slice][i] += part[slice + half][i];
#pragma unroll
    for (int i = 0; i < 2; i++) x[i] = part[0][i];
  }

  // ---- where a block does not come

  // Tells the host and the other blocks, and leaves NaN from the `done`-th step on.
  DEVICE void give_up(int done, float* state) {
    wait_copies<0>();
    if (thread_index() == 0) {
      store_one(g.stalled, 1);
      flags.raise(rank, Flags::GONE);
    }
#pragma unroll 1
    for (int step = done; step < (int)a.steps; step++) {
#pragma unroll
      for (int pass = 0; pass < G::PASSES; pass++) leave_nan(pass);
      places.next_target();
    }
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++)
#pragma unroll
      for (int e = 0; e < 2; e++) h[pass][e] = c[pass][e] = bits_float(0x7fc00000u);
    end(state);
  }
  DEVICE void leave_nan(int pass) const {
    constexpr unsigned PAIR = 0x7fff7fffu;
    if (!exists(pass)) return;
#pragma unroll
    for (int i = 0; i < (G::BACK ? G::BLOCKS : 1); i++) places.write(0, pass, i * a.channels, PAIR);
    if (!G::BACK) return;
#pragma unroll
    for (int i = 0; i < Cell::OTHERS; i++) places.write(G::BACK ? 1 + i : 0, pass, 0, PAIR);
  }
};

// Makes the new state of a pair; leaves the words that go to global memory: y, then the memo.
template <class G>
DEVICE void group_step(DenseGroup<G>& k, int pass, unsigned (&words)[1 + G::MEMO]) {
  using Cell = typename G::Cell;
  float pre[G::BLOCKS][2], x[G::INPUTS][2], memo[2][MAX_DENSE_MEMO];
#pragma unroll
  for (int b = 0; b < G::BLOCKS; b++) {
    k.gather(pre[b], pass, b * G::M);
    if (G::RESETS && k.reset[pass]) pre[b][0] = pre[b][1] = 0.0f;
  }
  k.forget(pass);
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
    see.c[0] = k.c[pass][e];
    float c_new[MAX_STATES - 1] = {};
    k.h[pass][e] = Cell::step(see, memo[e], c_new);
    k.c[pass][e] = c_new[0];
  }
  words[0] = bf16_pair(k.h[pass][0], k.h[pass][1]);
#pragma unroll
  for (int i = 0; i < G::MEMO; i++) words[1 + i] = bf16_pair(memo[0][i], memo[1][i]);
}

template <class G>
DEVICE void dense_group_forward(const DenseGroupArgs& g) {
  const DenseArgs& a = g.dense;
  Arena arena;
  DenseGroup<G> k(arena, g);
  k.begin((const float*)a.first);
#pragma unroll
  for (int pass = 0; pass < G::PASSES; pass++)
    k.publish(bf16_pair(k.h[pass][0], k.h[pass][1]), 1, pass, 0);
  k.raise(1);
  const int steps = (int)a.steps;
#pragma unroll 1
  for (int t = 0; t < steps; t++) {
    k.find_resets(t);
    const bool more = t + 1 < steps, come = k.multiply(t + 1);
    wait_copies<G::STAGES - 2>();
    if (sync_block_any(!come)) return k.give_up(t, (float*)a.last);
    unsigned words[G::PASSES][1 + G::MEMO];
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) {
      group_step(k, pass, words[pass]);
      if (more) k.publish(words[pass][0], t + 2, pass, 0);
    }
    if (more) k.raise(t + 2);
    // Nobody waits for what follows.
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) {
      if (!k.exists(pass)) continue;
      k.places.write(0, pass, 0, words[pass][0]);
      if (G::MEMO && a.memo)
#pragma unroll
        for (int i = 0; i < G::MEMO; i++)
          k.places.write(1, pass, i * a.channels, words[pass][1 + i]);
    }
    k.fetch(t + G::STAGES - 1);
    k.places.next_target();
  }
  k.end((float*)a.last);
}

// The `round`-th step from the end; leaves words: the gradients of the first input, block by block,
// and of the others.
template <class G>
DEVICE void group_step_back(DenseGroup<G>& k, int round, int pass,
                            unsigned (&words)[G::BLOCKS + G::Cell::OTHERS]) {
  using Cell = typename G::Cell;
  const DenseArgs& a = k.a;
  float x[G::INPUTS][2], y[2] = {}, old[2] = {}, old_c[2] = {}, dh[2] = {};
  if (round) k.gather(dh, pass, 0);
  if (G::RESETS && k.reset_before[pass]) dh[0] = dh[1] = 0.0f;
#pragma unroll
  for (int i = 0; i < G::INPUTS; i++) k.places.read(x[i], pass, i);
  constexpr int NEW = 1, OLD = NEW + Cell::NEW, MEMO = OLD + Cell::OLD, OLD_C = MEMO + G::MEMO;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    if (Cell::NEW) y[e] = x[Cell::NEW ? NEW : 0][e];
    if (Cell::OLD) old[e] = x[Cell::OLD ? OLD : 0][e];
    if (Cell::STATES > 1) old_c[e] = x[Cell::STATES > 1 ? OLD_C : 0][e];
  }
  const bool at_first = round + 1 == (int)a.steps && k.exists(pass);
  if (at_first && Cell::OLD) load<2, float>(old, (const float*)a.first + k.place(pass, 0));
  if (at_first && Cell::STATES > 1) load<2, float>(old_c, (const float*)a.first + k.place(pass, 1));
  if (G::RESETS && k.reset[pass]) old[0] = old[1] = old_c[0] = old_c[1] = 0.0f;
  DenseGrad<float> d[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    Dense<float> see;
    see.h = old[e];
    see.c[0] = old_c[e];
    float m[MAX_DENSE_MEMO];
#pragma unroll
    for (int i = 0; i < G::MEMO; i++) m[i] = x[MEMO + i][e];
    Cell::step_bwd(see, m, y[e], k.h[pass][e] + dh[e] + x[0][e], &k.c[pass][e], d[e]);
    k.h[pass][e] = d[e].h;
    if (Cell::STATES > 1) k.c[pass][e] = d[e].c[0];
  }
  k.forget(pass);
#pragma unroll
  for (int b = 0; b < G::BLOCKS; b++) words[b] = bf16_pair(d[0].a[b], d[1].a[b]);
#pragma unroll
  for (int i = 0; i < Cell::OTHERS; i++) words[G::BLOCKS + i] = bf16_pair(d[0].p[i], d[1].p[i]);
}

template <class G>
DEVICE void dense_group_backward(const DenseGroupArgs& g) {
  using Cell = typename G::Cell;
  const DenseArgs& a = g.dense;
  Arena arena;
  DenseGroup<G> k(arena, g);
  k.begin((const float*)a.dlast);
  const int steps = (int)a.steps;
  // One round more than there are steps: the gradient of the first state takes a product, too.
#pragma unroll 1
  for (int round = 0; round < steps; round++) {
    k.find_resets(steps - 1 - round);
    const bool come = !round || k.multiply(round);
    wait_copies<G::STAGES - 2>();
    if (sync_block_any(!come)) return k.give_up(round, (float*)a.dfirst);
    unsigned words[G::PASSES][G::BLOCKS + Cell::OTHERS];
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) {
      group_step_back(k, round, pass, words[pass]);
#pragma unroll
      for (int b = 0; b < G::BLOCKS; b++) k.publish(words[pass][b], round + 1, pass, b);
    }
    k.raise(round + 1);
    // Nobody waits for what follows.
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) {
      if (!k.exists(pass)) continue;
#pragma unroll
      for (int i = 0; i < G::BLOCKS; i++) k.places.write(0, pass, i * a.channels, words[pass][i]);
#pragma unroll
      for (int i = 0; i < Cell::OTHERS; i++)
        k.places.write(1 + i, pass, 0, words[pass][G::BLOCKS + i]);
    }
    k.fetch(round + G::STAGES - 1);
    k.places.next_target();
  }
  const bool come = k.multiply(steps);
  if (sync_block_any(!come)) return k.give_up(steps, (float*)a.dfirst);
#pragma unroll
  for (int pass = 0; pass < G::PASSES; pass++) {
    float dh[2];
    k.gather(dh, pass, 0);
#pragma unroll
    for (int e = 0; e < 2; e++)
      if (!G::RESETS || !k.reset[pass]) k.h[pass][e] += dh[e];
  }
  k.end((float*)a.dfirst);
}

}  // namespace elman
