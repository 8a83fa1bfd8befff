// The tape engine as one launch: the blocks of a cluster hold W_h, and W_r behind it, between them
// for the whole sequence, and the tapes of some rows of the batch. A block owns some channels of
// the state and of every slot. All warps multiply; then a few warps walk, each with a row of the
// batch, or with a part of the block's channels of one. Clusters know nothing of each other.
//
// What is exchanged of states and gradients is bf16; scores, sums and tapes are fp32. All sums have
// one order, so that all runs agree to the bit.
#pragma once
#include "abi/tape_cluster.h"
#include "cuda/dense/cluster.cuh"

namespace elman {

// I: channels, those of the state and zeros. CLUSTER: blocks of a cluster. ROWS: of the batch, for
// a cluster; PARTS: warps that walk one of them. ROW_WARPS and KEPT: as in DenseClusterConfig.
// AHEAD: whether a round of the way back reads for the next one, which takes one tape more.
template <class Cell_, int I_, int SLOTS_, int CLUSTER_, int ROWS_, int PARTS_, int WARPS_,
          int ROW_WARPS_, int KEPT_, bool BACK_, bool AHEAD_>
struct TapeClusterConfig {
  using Cell = Cell_;
  static constexpr int I = I_, SLOTS = SLOTS_, CLUSTER = CLUSTER_, ROWS = ROWS_, PARTS = PARTS_;
  static constexpr int WARPS = WARPS_, K_WARPS = WARPS / ROW_WARPS_, THREADS = 32 * WARPS;
  static constexpr bool SQUARES = false;  // of ClusterMatrix
  static constexpr bool BACK = BACK_, AHEAD = AHEAD_,
                        PRODUCT_VALUE = Cell::VALUE != tape::NO_PRODUCT;
  static constexpr int BLOCKS = Cell::BLOCKS, VALUE = Cell::VALUE;
  static constexpr int M = I / CLUSTER;  // channels of a block
  // The product, as ClusterMatrix has it: [OUT, K] by block.
  static constexpr int K = BACK ? BLOCKS * I : I, OUT = BACK ? M : BLOCKS * M;
  static constexpr int TILES = OUT / 16 / ROW_WARPS_, KW = K / K_WARPS, K_BLOCKS = KW / 32;
  static constexpr int FRAGMENTS = TILES * K_BLOCKS * 2;
  static constexpr int KEPT = FRAGMENTS < KEPT_ ? FRAGMENTS : KEPT_, REST = FRAGMENTS - KEPT;
  static constexpr int STRIDE = OUT + 4;  // of partial sums: no bank conflict
  // A warp that walks has PAIRS pairs of channels, a lane PER of them; slots go eight at a time.
  // Lanes without a pair compute with zeros: a branch around them would cost more. Warps that do
  // not walk replay tapes: there is one at least on the way back.
  static constexpr int WALKERS = ROWS * PARTS, PAIRS = M / 2 / PARTS, PER = (PAIRS + 31) / 32;
  static constexpr int AT_ONCE = 8, CHUNKS = (SLOTS + 7) / 8, PADDED = AT_ONCE * CHUNKS;
  // Where a lane has slots rather than channels: that of its number in LANES, and every 32nd.
  static constexpr int LANES = PADDED <= 8 ? 8 : PADDED <= 16 ? 16 : 32;
  static constexpr int EACH = (PADDED + LANES - 1) / LANES;

  static constexpr int HALF = (K / 32) * ROWS * 16;        // words of mail
  static constexpr int PART = K_WARPS * ROWS * STRIDE;     // floats
  static constexpr int MATRIX = REST * WARPS * 128;        // words
  static constexpr int SENDERS = CLUSTER * PARTS;          // of parts of a sum
  static constexpr int FIRST = ROWS * SENDERS * PADDED;    // floats of the sums sent with h or dq
  static constexpr int WIDTH = BACK ? PADDED : 1;          // numbers of the other exchange
  static constexpr int SECOND = ROWS * SENDERS * WIDTH;    // floats
  static constexpr int KINDS = BACK ? 3 : 2;               // numbers of a slot that lanes share
  static constexpr int SHARED = WALKERS * KINDS * PADDED;  // floats
  static constexpr int TAPE = WALKERS * SLOTS * PER * 64;  // floats
  static constexpr int TURNS = AHEAD ? 3 : 2;  // tapes before steps, which rounds take in turn
  static constexpr int TAPES = BACK ? TURNS + 1 : 1;
  static constexpr int BOXES = 2 * K_WARPS + 4;
  static constexpr int SHARED_BYTES =
      8 * BOXES + 4 * (2 * HALF + 2 * PART + MATRIX + 2 * FIRST + (2 * SECOND + 3) / 4 * 4 +
                       SHARED + TAPES * TAPE);

  static_assert(I % 32 == 0 && I % CLUSTER == 0 && M % 16 == 0, "channels");
  static_assert((CLUSTER & (CLUSTER - 1)) == 0 && CLUSTER <= 16, "cluster");
  static_assert(OUT / 16 % ROW_WARPS_ == 0 && K % (32 * K_WARPS) == 0, "warps");
  static_assert(ROWS >= 1 && ROWS <= 8 && WALKERS <= WARPS - BACK && M % (4 * PARTS) == 0, "rows");
  // Of write=identity nothing tells a block that two warps of another have read its sums.
  static_assert((PARTS == 1 || PRODUCT_VALUE) && SENDERS <= 32, "parts");
};

template <class G>
struct TapeCluster {
  enum { READ, WRITE };  // the two attentions of a step
  using Numbers = float[G::PER][2];
  using Slots = float[G::EACH];

  const TapeClusterArgs& a;
  const int rank = cluster_rank(), warp = warp_index(), lane = thread_index() % 32;
  const int steps = (int)a.steps;
  const bool walks = warp < G::WALKERS;
  const int row = walks ? warp / G::PARTS : 0, part = walks ? warp % G::PARTS : 0;
  const int64_t first = cluster_index() * G::ROWS, b = first + row;  // rows of the batch
  const float scale = 1.0f / square_root((float)a.channels);
  // All bits where a lane is of the upper half of its warp, or of the upper quarter of a half. A
  // shuffle hides from the compiler what they are: it would put the shuffles of `send_sums` into
  // the two arms of a branch, where each costs as much as a barrier.
  const unsigned upper_half = shuffle_xor(lane & 16 ? ~0u : 0u, 0);
  const unsigned upper_quarter = shuffle_xor(lane & 8 ? ~0u : 0u, 0);
  Boxes boxes;          // of the mail's slices, by half; then of both kinds of sums, by half
  sptr<unsigned> mail;  // [2, K / 32, ROWS, 16]
  sptr<float> parts;    // [2, K_WARPS, ROWS, STRIDE]
  ClusterMatrix<G> matrix;
  sptr<float> sums;    // [2, ROWS, SENDERS, PADDED]
  sptr<float> others;  // [2, ROWS, SENDERS, WIDTH]
  sptr<float> shared;  // this warp's [KINDS, PADDED]
  sptr<float> tapes;   // [TAPES, WALKERS, SLOTS, PER, 32, 2]

  DEVICE TapeCluster(Arena& arena, const TapeClusterArgs& args)
      : a(args),
        boxes(arena, G::BOXES),
        mail(arena.take<unsigned>(2 * G::HALF)),
        parts(arena.take<float>(2 * G::PART)),
        matrix(arena, (const bf16*)args.matrix, rank),
        sums(arena.take<float>(2 * G::FIRST)),
        others(arena.take<float>(2 * G::SECOND)),
        shared(arena.take<float>(G::SHARED) + (walks ? warp : 0) * G::KINDS * G::PADDED),
        tapes(arena.take<float>(G::TAPES * G::TAPE)) {
    if (thread_index() < G::BOXES) boxes.make(thread_index());
  }

  // ---- where things lie

  DEVICE int pair(int j) const { return lane + 32 * j; }
  DEVICE bool has(int j) const { return G::PAIRS % 32 == 0 || pair(j) < G::PAIRS; }
  DEVICE int own(int j) const { return (part * G::PAIRS + pair(j)) * 2; }  // channel of the block
  DEVICE int64_t channel(int j) const { return rank * G::M + own(j); }
  // Whether a pair is one of the batch's, and of the state's.
  DEVICE bool exists(int j) const { return has(j) && b < a.batch && channel(j) < a.channels; }
  // The first of this thread's pairs at a step of a sequence; others are 64 numbers apart.
  DEVICE int64_t at_step(int t) const { return (b * a.steps + t) * a.channels + channel(0); }
  DEVICE int64_t at_state(int j) const { return b * a.channels + channel(j); }
  DEVICE int64_t at_slot(int j, int n) const {
    return (b * G::SLOTS + n) * a.channels + channel(j);
  }
  DEVICE int64_t tape_size() const { return a.batch * G::SLOTS * a.channels; }
  DEVICE int64_t at_weight(int t, int which, int n) const {
    return ((b * a.steps + t) * 2 + which) * G::SLOTS + n;
  }
  // A pair of a slot. Which: of the tapes.
  DEVICE sptr<float> slot(int which, int n, int j) const {
    return tapes + (which * G::TAPE + ((warp * G::SLOTS + n) * G::PER * 32 + pair(j)) * 2);
  }
  DEVICE static bool is_slot(int n) { return G::SLOTS == G::PADDED || n < G::SLOTS; }
  DEVICE int lane_slot(int i) const { return lane % G::LANES + 32 * i; }

  // f(chunk) for every eight slots.
  template <class F>
  DEVICE static void each_chunk(F f) {
#pragma unroll 1
    for (int chunk = 0; chunk < G::CHUNKS; chunk++) f(chunk * G::AT_ONCE);
  }
  DEVICE void load_tape(int which, const float* from) const {
    if (!walks) return;
    for (int n = 0; n < G::SLOTS; n++)
#pragma unroll
      for (int j = 0; j < G::PER; j++) {
        float m[2] = {0.0f, 0.0f};
        if (from && exists(j)) load<2, float>(m, from + at_slot(j, n));
        store<2, float>(slot(which, n, j), m);
      }
  }
  DEVICE void save_tape(int which, float* to) const {
    for (int n = 0; n < G::SLOTS; n++)
#pragma unroll
      for (int j = 0; j < G::PER; j++) {
        float m[2];
        if (!exists(j)) continue;
        load<2, float>(m, slot(which, n, j));
        store<2, float>(to + at_slot(j, n), m);
      }
  }
  DEVICE void load_state(Numbers& x, const float* from) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++) {
      x[j][0] = x[j][1] = 0.0f;
      if (walks && from && exists(j)) load<2, float>(x[j], from + at_state(j));
    }
  }
  DEVICE void save_state(float* to, const Numbers& x) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++)
      if (exists(j)) store<2, float>(to + at_state(j), x[j]);
  }
  // This thread's pairs of a step of a sequence, or zeros. Place: as `at_step` has it.
  DEVICE void read(unsigned (&words)[G::PER], const void* sequence, int64_t place) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++) {
      unsigned word[1] = {0};
      if (walks && sequence && exists(j)) load_words(word, (const bf16*)sequence + place + 64 * j);
      words[j] = word[0];
    }
  }
  DEVICE void write(void* sequence, int64_t place, const unsigned (&words)[G::PER]) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++)
      if (sequence && exists(j)) store_pair((bf16*)sequence + place + 64 * j, words[j]);
  }
  DEVICE static void widen(Numbers& x, const unsigned (&words)[G::PER]) {
#pragma unroll
    for (int j = 0; j < G::PER; j++) {
      x[j][0] = Half<bf16>::low(words[j]);
      x[j][1] = Half<bf16>::high(words[j]);
    }
  }
  // To numbers that bf16 has, which it leaves as words, too.
  DEVICE static void narrow(Numbers& x, unsigned (&words)[G::PER]) {
#pragma unroll
    for (int j = 0; j < G::PER; j++) words[j] = bf16_pair(x[j][0], x[j][1]);
    widen(x, words);
  }

  // ---- the product

  // As in DenseCluster: each warp's sums stay for those that walk. What is delivered for a step
  // goes into the other half of the mail than what is read at it; nobody delivers for the step
  // after the next one before all blocks have read this half.
  DEVICE void multiply(int step, bool delivered, bool more) const {
    const int slice = warp % G::K_WARPS, half = step % 2;
    if (delivered) boxes.wait(half * G::K_WARPS + slice, (step - 1) / 2);
    float sum[G::TILES][4], unused = 0.0f;
    matrix.multiply(mail + half * G::HALF, sum, unused);
    if (more) expect_mail(step + 1);
    const int n = lane % 4 * 2, out = warp / G::K_WARPS * G::TILES * 16 + lane / 4;
    const sptr<float> to = parts + (half * G::PART + (slice * G::ROWS + n) * G::STRIDE + out);
#pragma unroll
    for (int tile = 0; tile < G::TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (n + i % 2 < G::ROWS)
          store_one(to + (i % 2 * G::STRIDE + tile * 16 + i / 2 * 8), sum[tile][i]);
  }
  // Adds up the block's sums of this thread's pairs, of one of the matrices.
  DEVICE void gather(Numbers& x, int step, int block) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++) {
      const int m0 = has(j) ? own(j) : 0;
      const sptr<float> from = parts + (step % 2 * G::PART + row * G::STRIDE + block * G::M + m0);
      x[j][0] = x[j][1] = 0.0f;
#pragma unroll
      for (int slice = 0; slice < G::K_WARPS; slice++) {
        float one[2];
        load<2, float>(one, from + slice * (G::ROWS * G::STRIDE));
        x[j][0] += one[0];
        x[j][1] += one[1];
      }
      if (!has(j)) x[j][0] = x[j][1] = 0.0f;
    }
  }

  // ---- the exchange

  // Says how much will be delivered for a step: of the mail, by a lane of each slice's warp; of
  // sums, by one lane, which has waited for them.
  DEVICE void expect_mail(int step) const {
    if (warp < G::K_WARPS && lane == 0)
      boxes.expect(step % 2 * G::K_WARPS + warp, G::KW * G::ROWS * 2);
  }
  DEVICE int sums_box(int step) const { return 2 * G::K_WARPS + step % 2; }
  DEVICE int others_box(int step) const { return 2 * G::K_WARPS + 2 + step % 2; }
  DEVICE void expect_sums(int step) const {
    if (warp == 0 && lane == 0) boxes.expect(sums_box(step), G::FIRST * 4);
  }
  DEVICE void expect_others(int step) const {
    if (warp == 0 && lane == 0) boxes.expect(others_box(step), G::SECOND * 4);
  }
  // Delivers pairs to every block for a step. Two lanes join their words; each sends to every other
  // block, and no two blocks begin with the same one.
  DEVICE void send(const unsigned (&words)[G::PER], int step, int block) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++) {
      const unsigned word = words[j], other = shuffle_xor(word, 1);
      if (!has(j)) continue;
      const int odd = lane % 2, half = step % 2, k = block * G::I + rank * G::M + (own(j) & ~3);
      const unsigned low = odd ? other : word, high = odd ? word : other;
      const int box = half * G::K_WARPS + k / G::KW;
      const sptr<unsigned> to =
          mail + (half * G::HALF + (k / 32 * G::ROWS + row) * 16 + k % 32 / 2);
#pragma unroll
      for (int i = 0; i < (G::CLUSTER + 1) / 2; i++) {
        const int peer = (odd + 2 * i) ^ rank;
        if (G::CLUSTER > 1 || odd == 0)
          deliver(remote_place(to, peer), boxes.of(box, peer), low, high);
      }
    }
  }
  // One of two numbers and what another lane has of the other one.
  DEVICE static float kept_and_given(float lower, float upper, unsigned swapped, int mask) {
    const unsigned both = (float_bits(lower) ^ float_bits(upper)) & swapped;
    const float kept = bits_float(float_bits(lower) ^ both);
    return kept + shuffle_xor(bits_float(float_bits(upper) ^ both), mask);
  }
  // Delivers the warp's sums of eight numbers, those of slots from n on, to every block: first
  // halved twice, so that a lane has two of them, which eight lanes send.
  DEVICE void send_sums(const float (&x)[8], sptr<float> to, int box, int n) const {
    float four[4], two[2];
#pragma unroll
    for (int i = 0; i < 4; i++) four[i] = kept_and_given(x[i], x[4 + i], upper_half, 16);
#pragma unroll
    for (int i = 0; i < 2; i++) two[i] = kept_and_given(four[i], four[2 + i], upper_quarter, 8);
#pragma unroll
    for (int mask = 4; mask; mask /= 2)
#pragma unroll
      for (int i = 0; i < 2; i++) two[i] += shuffle_xor(two[i], mask);
    const sptr<float> mine =
        to + ((row * G::SENDERS + rank * G::PARTS + part) * G::PADDED + n + lane / 8 * 2);
#pragma unroll
    for (int i = 0; i < (G::CLUSTER + 7) / 8; i++) {
      const int peer = lane % 8 + 8 * i;
      if (G::CLUSTER >= 8 || peer < G::CLUSTER)
        deliver(remote_place(mine, peer ^ rank), boxes.of(box, peer ^ rank), float_bits(two[0]),
                float_bits(two[1]));
    }
  }
  // Delivers this warp's parts of <M_n, x> of every slot of a tape.
  DEVICE void send_dots(int which, const Numbers& x, sptr<float> to, int box) const {
    each_chunk([&](int n) {
      float dots[8];
#pragma unroll
      for (int s = 0; s < 8; s++) {
        dots[s] = 0.0f;
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2];
          if (!is_slot(n + s)) continue;
          load<2, float>(m, slot(which, n + s, j));
          dots[s] += m[0] * x[j][0] + m[1] * x[j][1];
        }
      }
      send_sums(dots, to, box, n);
    });
  }
  DEVICE sptr<float> sums_of(int step) const { return sums + step % 2 * G::FIRST; }
  DEVICE sptr<float> others_of(int step) const { return others + step % 2 * G::SECOND; }

  // ---- slots, of which a lane has some

  // All blocks' sums, of the lane's slots.
  DEVICE void add_up(Slots& x, sptr<float> from) const {
    const sptr<float> mine = from + row * G::SENDERS * G::PADDED;
#pragma unroll
    for (int i = 0; i < G::EACH; i++) {
      const int n = lane_slot(i);
      x[i] = 0.0f;
#pragma unroll
      for (int s = 0; s < G::SENDERS; s += 32 / G::LANES) {
        const int sender = s + lane / G::LANES;
        if (sender < G::SENDERS && n < G::PADDED) x[i] += load_one(mine + (sender * G::PADDED + n));
      }
#pragma unroll
      for (int mask = G::LANES; mask < 32; mask *= 2) x[i] += shuffle_xor(x[i], mask);
    }
  }
  DEVICE static float slots_sum(float x) {
#pragma unroll
    for (int mask = 1; mask < G::LANES; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
  DEVICE void attend(Slots& w, const Slots& score) const {
    float most = -3.0e38f, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < G::EACH; i++)
      if (lane_slot(i) < G::SLOTS) most = score[i] > most ? score[i] : most;
#pragma unroll
    for (int mask = 1; mask < G::LANES; mask *= 2) {
      const float other = shuffle_xor(most, mask);
      most = other > most ? other : most;
    }
#pragma unroll
    for (int i = 0; i < G::EACH; i++) {
      w[i] = lane_slot(i) < G::SLOTS ? tape::power(score[i], most, scale) : 0.0f;
      sum += w[i];
    }
    sum = slots_sum(sum);
#pragma unroll
    for (int i = 0; i < G::EACH; i++) w[i] /= sum;
  }
  // From the gradients of weights to those of their scores.
  DEVICE void scores_bwd(Slots& dweight, const Slots& w) const {
    float mean = 0.0f;
#pragma unroll
    for (int i = 0; i < G::EACH; i++) mean += w[i] * dweight[i];
    mean = slots_sum(mean);
#pragma unroll
    for (int i = 0; i < G::EACH; i++) dweight[i] = tape::score_bwd(w[i], dweight[i], mean, scale);
  }
  // Leaves numbers of slots for all lanes; after sync_warp() they may read them.
  DEVICE void share(int kind, const Slots& x) const {
#pragma unroll
    for (int i = 0; i < G::EACH; i++)
      if (lane < G::LANES && lane_slot(i) < G::PADDED)
        store_one(shared + (kind * G::PADDED + lane_slot(i)), x[i]);
  }
  DEVICE void shared_of(float (&x)[4], int kind, int n) const {
    load<4, float>(x, shared + (kind * G::PADDED + n));
  }
  // By one warp of the cluster, another block's for every row. Place: that of the lane's first
  // slot.
  DEVICE void keep_weights(int64_t place, const Slots& w) const {
    if (!a.weights || part || rank != row % G::CLUSTER) return;
    if (b >= a.batch || lane >= G::LANES) return;
#pragma unroll
    for (int i = 0; i < G::EACH; i++)
      if (lane_slot(i) < G::SLOTS) store_one((float*)a.weights + place + 32 * i, w[i]);
  }
  DEVICE void kept_weights(Slots& w, int64_t place) const {
#pragma unroll
    for (int i = 0; i < G::EACH; i++) {
      w[i] = 0.0f;
      if (walks && b < a.batch && lane_slot(i) < G::SLOTS)
        w[i] = load_one((const float*)a.weights + place + 32 * i);
    }
  }
};

}  // namespace elman
