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

// I: channels, those of the state and zeros. CLUSTER: blocks of a cluster. ROWS: of the batch, that
// a cluster multiplies at a time. GROUPS: of so many rows, in turn: while what one of two delivered
// is on its way, the other is computed. The warps of a block are ROW_WARPS groups, which share the
// rows of the block's matrix; within a group they share its columns. KEPT: fragments of the matrix
// that a thread has in registers, at most. STAGES: steps whose inputs are in shared memory or on
// their way. BACK: which pass.
template <class Cell_, int I_, int CLUSTER_, int ROWS_, int GROUPS_, int WARPS_, int ROW_WARPS_,
          int KEPT_, int STAGES_, bool BACK_>
struct DenseClusterConfig {
  using Cell = Cell_;
  static constexpr int I = I_, CLUSTER = CLUSTER_, ROWS = ROWS_, GROUPS = GROUPS_;
  static constexpr int WARPS = WARPS_, ALL_ROWS = ROWS * GROUPS;
  static constexpr int ROW_WARPS = ROW_WARPS_, K_WARPS = WARPS / ROW_WARPS, STAGES = STAGES_;
  static constexpr bool BACK = BACK_;
  static constexpr int THREADS = 32 * WARPS, BLOCKS = Cell::BLOCKS;
  static constexpr int M = I / CLUSTER;  // channels of a block
  // The block's matrix is [OUT, K]; a warp multiplies TILES times 16 of its rows by KW columns.
  static constexpr int K = BACK ? BLOCKS * I : I, OUT = BACK ? M : BLOCKS * M;
  static constexpr int TILES = OUT / 16 / ROW_WARPS, KW = K / K_WARPS, K_BLOCKS = KW / 32;
  static constexpr int FRAGMENTS = TILES * K_BLOCKS * 2;
  static constexpr int KEPT = FRAGMENTS < KEPT_ ? FRAGMENTS : KEPT_, REST = FRAGMENTS - KEPT;
  static constexpr int STRIDE = OUT + 4;          // of partial sums: no bank conflict
  static constexpr int SENT = BACK ? BLOCKS : 1;  // numbers of a channel that go to every block
  static constexpr int MEMO = Cell::MEMO;
  static constexpr int INPUTS =
      BACK ? 1 + Cell::NEW + Cell::OLD + MEMO + (Cell::STATES > 1) : BLOCKS + Cell::OTHERS;
  // Pointwise, a thread has pairs of channels: one pair in each of PASSES rows, AT_ONCE rows apart.
  static constexpr int PAIRS = M / 2;
  static constexpr int FIT = THREADS / PAIRS, AT_ONCE = FIT < ROWS ? FIT : ROWS;
  static constexpr int PASSES = (ROWS + AT_ONCE - 1) / AT_ONCE, ALL_PASSES = GROUPS * PASSES;
  static constexpr int PIECES =
      INPUTS * ALL_ROWS * (M / 8);  // copies of 16 bytes that a step takes
  static constexpr int COPIES = (PIECES + THREADS - 1) / THREADS;

  static constexpr int HALF = (K / 32) * ROWS * 16, MAIL = GROUPS * 2 * HALF;  // words
  static constexpr int PARTIAL = 2 * K_WARPS * ROWS * STRIDE;                  // floats
  static constexpr int INPUT = STAGES * INPUTS * ALL_ROWS * M;                 // numbers
  static constexpr int MATRIX = REST * WARPS * 128;                            // words
  static constexpr int BOXES = GROUPS * 2 * K_WARPS;
  static constexpr int SHARED_BYTES =
      (BOXES * 8 + 15) / 16 * 16 + 4 * (MAIL + PARTIAL + MATRIX) + (2 * INPUT + 15) / 16 * 16;

  static_assert(I % CLUSTER == 0 && M % 16 == 0 && (CLUSTER & (CLUSTER - 1)) == 0, "channels");
  static_assert(WARPS % ROW_WARPS == 0 && OUT / 16 % ROW_WARPS == 0 && K % (32 * K_WARPS) == 0,
                "warps");
  static_assert(ROWS >= 1 && ROWS <= 8 && (GROUPS == 1 || GROUPS == 2) && AT_ONCE >= 1 &&
                    STAGES >= 2,
                "rows");
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

// One of the sequences that a pass reads at every step; `before`: its number of the step before.
struct ClusterInput {
  const bf16* data;
  int64_t batch, time;
  bool before;
};

template <class G>
DEVICE ClusterInput cluster_input(const DenseArgs& a, int which) {
  using Cell = typename G::Cell;
  const auto of = [](const DenseSequence& s, int64_t skip, bool before) {
    return ClusterInput{(const bf16*)s.data + skip, s.batch, s.time, before};
  };
  const auto memo = [&](int k, bool before) {
    const int64_t step = (int64_t)G::MEMO * a.channels;
    return ClusterInput{(const bf16*)a.memo + k * a.channels, a.steps * step, step, before};
  };
  if (!G::BACK)
    return which < G::BLOCKS ? of(a.x, which * a.channels, false)
                             : of(a.p[which - G::BLOCKS], 0, false);
  if (which-- == 0) return of(a.dy, 0, false);
  if (Cell::NEW && which-- == 0) return of(a.y, 0, false);
  if (Cell::OLD && which-- == 0) return of(a.y, 0, true);
  if (which < G::MEMO) return memo(which, false);
  return memo(G::MEMO - 1, true);  // c before the step
}

// The inputs of the next steps, on their way into shared memory: [STAGES, INPUTS, ALL_ROWS, M].
template <class G>
struct ClusterInputs {
  const DenseArgs& a;
  sptr<bf16> numbers;
  const bf16* from[G::COPIES];  // of the next step to be fetched; null: zeros are read instead
  int64_t back[G::COPIES];      // numbers from one step to the next
  bool before[G::COPIES];
  int steps = 0;  // fetched

  DEVICE ClusterInputs(Arena& arena, const DenseArgs& args, int rank, int64_t first)
      : a(args), numbers(arena.take<bf16>(G::INPUT)) {
#pragma unroll
    for (int i = 0; i < G::COPIES; i++) {
      const int piece = thread_index() + i * G::THREADS, row = piece / (G::M / 8) % G::ALL_ROWS;
      const int64_t channel = rank * G::M + piece % (G::M / 8) * 8;
      const ClusterInput input = cluster_input<G>(a, piece / (G::ALL_ROWS * (G::M / 8)));
      const bool exists = piece < G::PIECES && first + row < a.batch && channel < a.channels;
      before[i] = input.before;
      back[i] = G::BACK ? -input.time : input.time;
      from[i] = nullptr;
      if (exists && input.data)
        from[i] = input.data + (first + row) * input.batch + channel +
                  (G::BACK ? a.steps - 1 - input.before : 0) * input.time;
    }
  }
  DEVICE void fetch() {
    const int stage = steps % G::STAGES * (G::INPUTS * G::ALL_ROWS * G::M);
    if (steps < a.steps) {
#pragma unroll
      for (int i = 0; i < G::COPIES; i++) {
        const int piece = thread_index() + i * G::THREADS;
        const bool there = from[i] && !(before[i] && steps + 1 == a.steps);
        if (piece < G::PIECES)
          copy_async<16>(cast<unsigned char>(numbers + (stage + piece * 8)),
                         there ? from[i] : nullptr, there ? 16 : 0);
        if (from[i]) from[i] += back[i];
      }
    }
    commit_copies();
    steps++;
  }
  // A pair of neighbouring channels of an input.
  DEVICE void read(float (&x)[2], int step, int which, int row, int channel) const {
    const int at = ((step % G::STAGES * G::INPUTS + which) * G::ALL_ROWS + row) * G::M + channel;
    load<2, bf16>(x, numbers + at);
  }
};

template <class G>
struct DenseCluster {
  using Cell = typename G::Cell;
  const DenseArgs& a;
  const int rank = cluster_rank(), warp = warp_index(), lane = thread_index() % 32;
  const int64_t first = cluster_index() * G::ALL_ROWS;  // row of the batch
  // This thread's pair of channels, and its first row.
  const bool active = thread_index() < G::AT_ONCE * G::PAIRS;
  const int row0 = active ? thread_index() / G::PAIRS : 0;
  const int m0 = thread_index() % G::PAIRS * 2;
  const int64_t channel = rank * G::M + m0;
  Boxes boxes;
  sptr<unsigned> mail;  // [GROUPS, 2, K / 32, ROWS, 16]
  sptr<float> partial;  // [2, K_WARPS, ROWS, STRIDE]
  ClusterInputs<G> inputs;
  ClusterMatrix<G> matrix;
  // Of this thread's pairs, forward: the state. Backward: its gradient, as far as it does not come
  // from the product with R.
  float h[G::ALL_PASSES][2], c[G::ALL_PASSES][2];

  DEVICE DenseCluster(Arena& arena, const DenseArgs& args)
      : a(args),
        boxes(arena, G::BOXES),
        mail(arena.take<unsigned>(G::MAIL)),
        partial(arena.take<float>(G::PARTIAL)),
        inputs(arena, args, rank, first),
        matrix(arena, (const bf16*)args.matrix, rank) {
    if (thread_index() < G::BOXES) boxes.make(thread_index());
#pragma unroll
    for (int stage = 0; stage + 1 < G::STAGES; stage++) inputs.fetch();
  }
  // A pass is one of those of a group: its row in the group, and in the cluster.
  DEVICE int row_of_group(int pass) const { return row0 + pass % G::PASSES * G::AT_ONCE; }
  DEVICE int row(int pass) const { return pass / G::PASSES * G::ROWS + row_of_group(pass); }
  DEVICE bool has(int pass) const { return active && row_of_group(pass) < G::ROWS; }
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
    for (int pass = 0; pass < G::ALL_PASSES; pass++) {
      h[pass][0] = h[pass][1] = c[pass][0] = c[pass][1] = 0.0f;
      if (!state || !exists(pass)) continue;
      load<2, float>(h[pass], state + place(pass, 0));
      if (Cell::STATES > 1) load<2, float>(c[pass], state + place(pass, 1));
    }
  }
  DEVICE void end(float* state) {
#pragma unroll
    for (int pass = 0; pass < G::ALL_PASSES; pass++) {
      if (!exists(pass)) continue;
      store<2, float>(state + place(pass, 0), h[pass]);
      if (Cell::STATES > 1) store<2, float>(state + place(pass, 1), c[pass]);
    }
  }

  // ---- the product

  DEVICE sptr<unsigned> letters(int step, int group) const {
    return mail + (group * 2 + step % 2) * G::HALF;
  }
  DEVICE int box(int step, int group, int slice) const {
    return (group * 2 + step % 2) * G::K_WARPS + slice;
  }

  // Leaves each warp's sums for everybody to add up. What is delivered for a step is written into
  // the other half of the mail than what is read at it; nobody delivers for the step after the
  // next one before all blocks have read this half.
  DEVICE void multiply(int step, int group, bool delivered, bool more) const {
    const int slice = warp % G::K_WARPS;
    if (delivered) boxes.wait(box(step, group, slice), (step - 1) / 2);
    float sums[G::TILES][4];
    matrix.multiply(letters(step, group), sums);
    if (more && warp < G::K_WARPS && lane == 0)
      boxes.expect(box(step + 1, group, slice), G::KW * G::ROWS * 2);
    const int n = lane % 4 * 2, out = warp / G::K_WARPS * G::TILES * 16 + lane / 4;
    const sptr<float> to = sums_of(step, group, slice, n) + out;
#pragma unroll
    for (int tile = 0; tile < G::TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (n + i % 2 < G::ROWS)
          store_one(to + (i % 2 * G::STRIDE + tile * 16 + i / 2 * 8), sums[tile][i]);
  }
  // Whoever adds up has left one half when it is written again: two groups have one each.
  DEVICE sptr<float> sums_of(int step, int group, int slice, int row) const {
    return partial +
           (((G::GROUPS == 1 ? step % 2 : group) * G::K_WARPS + slice) * G::ROWS + row) * G::STRIDE;
  }
  // Adds up a pair of outputs; in one order, so that all runs agree to the bit.
  DEVICE void gather(float (&x)[2], int step, int pass, int out) const {
    const int row = has(pass) ? row_of_group(pass) : 0;
    float part[G::K_WARPS][2];
#pragma unroll
    for (int slice = 0; slice < G::K_WARPS; slice++)
      load<2, float>(part[slice], sums_of(step, pass / G::PASSES, slice, row) + out);
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
    const int odd = lane % 2, k = block * G::I + rank * G::M + (m0 & ~3);
    const unsigned low = odd ? other : word, high = odd ? word : other;
    const sptr<unsigned> to = letters(step, pass / G::PASSES) +
                              ((k / 32 * G::ROWS + row_of_group(pass)) * 16 + k % 32 / 2);
    const int at = box(step, pass / G::PASSES, k / G::KW);
#pragma unroll
    for (int i = 0; i < (G::CLUSTER + 1) / 2; i++) {
      const int peer = (odd + 2 * i) ^ rank;
      if (G::CLUSTER > 1 || odd == 0)
        deliver(remote_place(to, peer), boxes.of(at, peer), low, high);
    }
  }
};

DEVICE unsigned bf16_pair(float low, float high) { return Half<bf16>::pack(low, high); }

DEVICE bf16* cluster_at(const DenseSequence& s, int64_t row, int64_t step) {
  return (bf16*)s.data + (row * s.batch + step * s.time);
}

DEVICE void store_pair(bf16* to, unsigned word) {
  const unsigned words[1] = {word};
  store_words(to, words);
}

template <class G>
DEVICE void cluster_step(DenseCluster<G>& k, int64_t t, int pass, bool more) {
  using Cell = typename G::Cell;
  const DenseArgs& a = k.a;
  const int row = k.has(pass) ? k.row(pass) : 0;
  float pre[G::BLOCKS][2], x[G::BLOCKS][2], p[MAX_OTHERS][2], memo[2][MAX_DENSE_MEMO];
#pragma unroll
  for (int b = 0; b < G::BLOCKS; b++) {
    k.gather(pre[b], t, pass, b * G::M + k.m0);
    k.inputs.read(x[b], t, b, row, k.m0);
  }
#pragma unroll
  for (int i = 0; i < Cell::OTHERS; i++) k.inputs.read(p[i], t, G::BLOCKS + i, row, k.m0);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    Dense<float> see;
#pragma unroll
    for (int b = 0; b < G::BLOCKS; b++) see.a[b] = x[b][e] + pre[b][e];
#pragma unroll
    for (int i = 0; i < Cell::OTHERS; i++) see.p[i] = p[i][e];
    see.h = k.h[pass][e];
    see.c = k.c[pass][e];
    float c_new = 0.0f;
    k.h[pass][e] = Cell::step(see, memo[e], c_new);
    k.c[pass][e] = c_new;
  }
  const unsigned word = bf16_pair(k.h[pass][0], k.h[pass][1]);
  if (more) k.send(word, (int)t + 1, pass, 0);
  if (!k.exists(pass)) return;
  const int64_t b = k.first + k.row(pass);
  store_pair(cluster_at(a.y, b, t) + k.channel, word);
  if (G::MEMO && a.memo) {
    bf16* to = (bf16*)a.memo + (b * a.steps + t) * G::MEMO * a.channels + k.channel;
#pragma unroll
    for (int i = 0; i < G::MEMO; i++)
      store_pair(to + i * a.channels, bf16_pair(memo[0][i], memo[1][i]));
  }
}

template <class G>
DEVICE void dense_cluster_forward(const DenseArgs& a) {
  Arena arena;
  DenseCluster<G> k(arena, a);
  k.begin((const float*)a.first);
  sync_block();
  // Every block reads all of the first state itself.
  const float* first = (const float*)a.first;
  for (int i = thread_index(); i < G::GROUPS * G::HALF; i += G::THREADS) {
    const int group = i / G::HALF, word = i % G::HALF;
    const int64_t row = k.first + group * G::ROWS + word / 16 % G::ROWS;
    const int channel = word / (16 * G::ROWS) * 32 + word % 16 * 2;
    float x[2] = {0.0f, 0.0f};
    if (row < a.batch && channel < a.channels)
      load<2, float>(x, first + (row * a.channels + channel));
    store_one(k.letters(0, group) + word, bf16_pair(x[0], x[1]));
  }
  sync_cluster();
#pragma unroll 1
  for (int t = 0; t < (int)a.steps; t++) {
    const bool more = t + 1 < (int)a.steps;
#pragma unroll
    for (int group = 0; group < G::GROUPS; group++) {
      k.multiply(t, group, t > 0, more);
      if (group == 0) wait_copies<G::STAGES - 2>();
      sync_block();
#pragma unroll
      for (int pass = 0; pass < G::PASSES; pass++)
        cluster_step(k, t, group * G::PASSES + pass, more);
    }
    k.inputs.fetch();
  }
  k.end((float*)a.last);
  sync_cluster();
}

// Step t of the backward pass, the `round`-th from the end.
template <class G>
DEVICE void cluster_step_back(DenseCluster<G>& k, int64_t t, int round, int pass) {
  using Cell = typename G::Cell;
  const DenseArgs& a = k.a;
  const int row = k.has(pass) ? k.row(pass) : 0;
  float dy[2], y[2] = {}, old[2] = {}, old_c[2] = {}, memo[MAX_DENSE_MEMO][2];
  float dh[2] = {};
  int which = 0;
  if (round) k.gather(dh, round, pass, k.m0);
  k.inputs.read(dy, round, which++, row, k.m0);
  if (Cell::NEW) k.inputs.read(y, round, which++, row, k.m0);
  if (Cell::OLD) k.inputs.read(old, round, which++, row, k.m0);
#pragma unroll
  for (int i = 0; i < G::MEMO; i++) k.inputs.read(memo[i], round, which++, row, k.m0);
  if (Cell::STATES > 1) k.inputs.read(old_c, round, which++, row, k.m0);
  if (t == 0 && k.exists(pass)) {
    if (Cell::OLD) load<2, float>(old, (const float*)a.first + k.place(pass, 0));
    if (Cell::STATES > 1) load<2, float>(old_c, (const float*)a.first + k.place(pass, 1));
  }
  DenseGrad<float> d[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    Dense<float> see;
    see.h = old[e];
    see.c = old_c[e];
    float m[MAX_DENSE_MEMO];
#pragma unroll
    for (int i = 0; i < G::MEMO; i++) m[i] = memo[i][e];
    const float c_new = Cell::STATES > 1 ? m[G::MEMO > 0 ? G::MEMO - 1 : 0] : 0.0f;
    Cell::step_bwd(see, m, y[e], c_new, k.h[pass][e] + dh[e] + dy[e], k.c[pass][e], d[e]);
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
  const int64_t b = k.first + k.row(pass);
#pragma unroll
  for (int i = 0; i < G::BLOCKS; i++)
    store_pair(cluster_at(a.dx, b, t) + (i * a.channels + k.channel), words[i]);
#pragma unroll
  for (int i = 0; i < Cell::OTHERS; i++)
    store_pair(cluster_at(a.dp[i], b, t) + k.channel, bf16_pair(d[0].p[i], d[1].p[i]));
}

template <class G>
DEVICE void dense_cluster_backward(const DenseArgs& a) {
  Arena arena;
  DenseCluster<G> k(arena, a);
  k.begin((const float*)a.dlast);
  sync_cluster();
  const int steps = (int)a.steps;
  // One round more than there are steps: the gradient of the first state takes a product, too.
#pragma unroll 1
  for (int round = 0; round <= steps; round++) {
    const bool more = round < steps;
#pragma unroll
    for (int group = 0; group < G::GROUPS; group++) {
      if (round)
        k.multiply(round, group, true, more);
      else if (k.warp < G::K_WARPS && k.lane == 0)
        k.boxes.expect(k.box(1, group, k.warp), G::KW * G::ROWS * 2);
      if (group == 0) wait_copies<G::STAGES - 2>();
      sync_block();
      if (!more) continue;
#pragma unroll
      for (int pass = 0; pass < G::PASSES; pass++)
        cluster_step_back(k, steps - 1 - round, round, group * G::PASSES + pass);
    }
    if (more) k.inputs.fetch();
  }
#pragma unroll
  for (int pass = 0; pass < G::ALL_PASSES; pass++) {
    float dh[2];
    k.gather(dh, steps, pass, k.m0);
#pragma unroll
    for (int e = 0; e < 2; e++) k.h[pass][e] += dh[e];
  }
  k.end((float*)a.dfirst);
  sync_cluster();
}

}  // namespace elman
