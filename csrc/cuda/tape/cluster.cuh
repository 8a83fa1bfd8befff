// The tape engine as one launch: the blocks of a cluster hold W_h, and W_r behind it, between them
// for the whole sequence, and the tapes of some rows of the batch. A block owns some channels of
// the state and of every slot. All warps multiply; then a few warps walk, each with a row of the
// batch, or with a part of the block's channels of one. Clusters know nothing of each other.
//
// Forward. With s_n = <M_n, h_t> over the tape before the write of step t, and v = <q_t, h_t>:
//
//   w = softmax(k s)                       the write, M' = M + w (q_t - M)
//   <M_n', h_t> = s_n + w_n (v - s_n)      the scores of the next read: no pass over M'
//
// so that what a step has to learn of other blocks is h_t, s and v. h_t and each block's part of s
// go out together; W_h h_t and q_t follow as one product. v needs q_t of all channels: a second,
// small exchange of one number a row. The write is done while it is on its way. (For write=identity
// q_t is h_t, and v goes out with s: one exchange.)
//
// Backward, from the gradient G of the tape after step t. e is the gradient of the state h_t, delta
// that of the argument of tanh:
//
//   dw_n = <G_n, q_t - M_n>, ds = softmax'(w, dw)  of the round before
//   e = dy + what the next step sent back + sum_n ds_n M_n,      G_n <- (1 - w_n) G_n + ds_n h_t
//   delta = e (1 - h_t^2),   dr_n = <delta, M_n>,   dz = softmax'(r, dr)
//   G_n <- G_n + r_n delta + dz_n h_{t-1},   dq_{t-1} = sum_n w_n G_n  with w of step t - 1
//
// dr goes out first, delta beside it; then dq_{t-1} with dw of the step before: two exchanges, one
// product. The tapes before the steps are replayed from checkpoints into global memory, each thread
// its own channels, so that no thread waits for another's.
//
// What is exchanged of states and gradients is bf16; scores, sums and tapes are fp32. All sums have
// one order, so that all runs agree to the bit.
#pragma once
#include "abi/tape_cluster.h"
#include "cuda/dense/cluster.cuh"

namespace elman {

// I: channels, those of the state and zeros. CLUSTER: blocks of a cluster. ROWS: of the batch, for
// a cluster; PARTS: warps that walk one of them. ROW_WARPS and KEPT: as in DenseClusterConfig.
template <class Cell_, int I_, int SLOTS_, int CLUSTER_, int ROWS_, int PARTS_, int WARPS_,
          int ROW_WARPS_, int KEPT_, bool BACK_>
struct TapeClusterConfig {
  using Cell = Cell_;
  static constexpr int I = I_, SLOTS = SLOTS_, CLUSTER = CLUSTER_, ROWS = ROWS_, PARTS = PARTS_;
  static constexpr int WARPS = WARPS_, K_WARPS = WARPS / ROW_WARPS_, THREADS = 32 * WARPS;
  static constexpr bool BACK = BACK_, PRODUCT_VALUE = Cell::VALUE != tape::NO_PRODUCT;
  static constexpr int BLOCKS = Cell::BLOCKS, VALUE = Cell::VALUE;
  static constexpr int M = I / CLUSTER;  // channels of a block
  // The product, as ClusterMatrix has it: [OUT, K] by block.
  static constexpr int K = BACK ? BLOCKS * I : I, OUT = BACK ? M : BLOCKS * M;
  static constexpr int TILES = OUT / 16 / ROW_WARPS_, KW = K / K_WARPS, K_BLOCKS = KW / 32;
  static constexpr int FRAGMENTS = TILES * K_BLOCKS * 2;
  static constexpr int KEPT = FRAGMENTS < KEPT_ ? FRAGMENTS : KEPT_, REST = FRAGMENTS - KEPT;
  static constexpr int STRIDE = OUT + 4;  // of partial sums: no bank conflict
  // A warp that walks has PAIRS pairs of channels, a lane PER of them; slots go eight at a time.
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
  static constexpr int TAPE = ROWS * SLOTS * M;            // floats
  static constexpr int TAPES = BACK ? 3 : 1;
  static constexpr int BOXES = 2 * K_WARPS + 4;
  static constexpr int SHARED_BYTES =
      8 * BOXES + 4 * (2 * HALF + 2 * PART + MATRIX + 2 * FIRST + (2 * SECOND + 3) / 4 * 4 +
                       SHARED + TAPES * TAPE);

  static_assert(I % 32 == 0 && I % CLUSTER == 0 && M % 16 == 0, "channels");
  static_assert((CLUSTER & (CLUSTER - 1)) == 0 && CLUSTER <= 16, "cluster");
  static_assert(OUT / 16 % ROW_WARPS_ == 0 && K % (32 * K_WARPS) == 0, "warps");
  static_assert(ROWS >= 1 && ROWS <= 8 && WALKERS <= WARPS && M % (4 * PARTS) == 0, "rows");
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
  Boxes boxes;          // of the mail's slices, by half; then of both kinds of sums, by half
  sptr<unsigned> mail;  // [2, K / 32, ROWS, 16]
  sptr<float> parts;    // [2, K_WARPS, ROWS, STRIDE]
  ClusterMatrix<G> matrix;
  sptr<float> sums;    // [2, ROWS, SENDERS, PADDED]
  sptr<float> others;  // [2, ROWS, SENDERS, WIDTH]
  sptr<float> shared;  // this warp's [KINDS, PADDED]
  sptr<float> tapes;   // this warp's [TAPES, SLOTS, PAIRS, 2], WALKERS of them apart
  // Of this thread's pairs. Forward: the state. Backward: its gradient past its products.
  Numbers h;

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
  DEVICE int64_t at(int j, int t) const { return (b * a.steps + t) * a.channels + channel(j); }
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
    return tapes + (which * G::TAPE + ((warp * G::SLOTS + n) * G::PAIRS + pair(j)) * 2);
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
        if (has(j)) store<2, float>(slot(which, n, j), m);
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
  // This thread's pairs of a step of a sequence, or zeros.
  DEVICE void read(unsigned (&words)[G::PER], const void* sequence, int t) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++) {
      unsigned word[1] = {0};
      if (walks && sequence && exists(j)) load_words(word, (const bf16*)sequence + at(j, t));
      words[j] = word[0];
    }
  }
  DEVICE void write(void* sequence, int t, const unsigned (&words)[G::PER]) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++)
      if (sequence && exists(j)) store_pair((bf16*)sequence + at(j, t), words[j]);
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
    float sum[G::TILES][4];
    matrix.multiply(mail + half * G::HALF, sum);
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
  // Delivers the warp's sums of eight numbers, those of slots from n on, to every block: first
  // halved twice, so that a lane has two of them, which eight lanes send.
  DEVICE void send_sums(const float (&x)[8], sptr<float> to, int box, int n) const {
    const bool upper = lane & 16, odd = lane & 8;
    float four[4], two[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
      four[i] = (upper ? x[4 + i] : x[i]) + shuffle_xor(upper ? x[i] : x[4 + i], 16);
#pragma unroll
    for (int i = 0; i < 2; i++)
      two[i] = (odd ? four[2 + i] : four[i]) + shuffle_xor(odd ? four[i] : four[2 + i], 8);
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
  DEVICE void shared_of(float (&x)[8], int kind, int n) const {
    load<8, float>(x, shared + (kind * G::PADDED + n));
  }
  // By one warp of the cluster, another block's for every row.
  DEVICE void keep_weights(int t, int which, const Slots& w) const {
    if (!a.weights || part || rank != row % G::CLUSTER) return;
    if (b >= a.batch || lane >= G::LANES) return;
#pragma unroll
    for (int i = 0; i < G::EACH; i++)
      if (lane_slot(i) < G::SLOTS)
        store_one((float*)a.weights + at_weight(t, which, lane_slot(i)), w[i]);
  }
  DEVICE void kept_weights(Slots& w, int t, int which) const {
#pragma unroll
    for (int i = 0; i < G::EACH; i++) {
      w[i] = 0.0f;
      if (walks && b < a.batch && lane_slot(i) < G::SLOTS)
        w[i] = load_one((const float*)a.weights + at_weight(t, which, lane_slot(i)));
    }
  }

  // ---- forward

  // Every block reads all of the first state itself.
  DEVICE void fill_mail() const {
    for (int i = thread_index(); i < G::HALF; i += G::THREADS) {
      const int64_t from = first + i / 16 % G::ROWS;
      const int channel = i / (16 * G::ROWS) * 32 + i % 16 * 2;
      float x[2] = {0.0f, 0.0f};
      if (from < a.batch && channel < a.channels)
        load<2, float>(x, (const float*)a.first + (from * a.channels + channel));
      store_one(mail + i, bf16_pair(x[0], x[1]));
    }
  }
  DEVICE static float dot(const Numbers& x, const Numbers& y) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < G::PER; j++) sum += x[j][0] * y[j][0] + x[j][1] * y[j][1];
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
    return sum;
  }
  // Delivers this warp's part of <q, h>, for a step's read.
  DEVICE void send_along(float along, int t) const {
    const sptr<float> to = others_of(t) + (row * G::SENDERS + rank * G::PARTS + part);
    const int peer = lane ^ rank;
    if (lane < G::CLUSTER)
      deliver(remote_place(to, peer), boxes.of(others_box(t), peer), float_bits(along));
  }
  DEVICE float await_along(int t) const {
    boxes.wait(others_box(t), (t - 1) / 2);
    const sptr<float> from = others_of(t) + row * G::SENDERS;
    float sum = lane < G::SENDERS ? load_one(from + lane) : 0.0f;
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
    return sum;
  }
  DEVICE void send_scores(int t) const {
    each_chunk([&](int n) {
      float x[8];
#pragma unroll
      for (int s = 0; s < 8; s++) {
        x[s] = 0.0f;
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2];
          if (!is_slot(n + s) || !has(j)) continue;
          load<2, float>(m, slot(0, n + s, j));
          x[s] += m[0] * h[j][0] + m[1] * h[j][1];
        }
      }
      send_sums(x, sums_of(t), sums_box(t), n);
    });
  }
  // Writes q to the tape, with the weights that lanes share.
  DEVICE void write_tape(const Numbers& q) const {
    each_chunk([&](int n) {
      float w[8];
      shared_of(w, WRITE, n);
#pragma unroll
      for (int s = 0; s < 8; s++)
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2];
          if (!is_slot(n + s) || !has(j)) continue;
          load<2, float>(m, slot(0, n + s, j));
#pragma unroll
          for (int e = 0; e < 2; e++) m[e] = tape::written(m[e], w[s], q[j][e]);
          store<2, float>(slot(0, n + s, j), m);
        }
    });
  }
  DEVICE void read_tape(Numbers& sum) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++) sum[j][0] = sum[j][1] = 0.0f;
    each_chunk([&](int n) {
      float r[8];
      shared_of(r, READ, n);
#pragma unroll
      for (int s = 0; s < 8; s++)
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2];
          if (!is_slot(n + s) || !has(j)) continue;
          load<2, float>(m, slot(0, n + s, j));
#pragma unroll
          for (int e = 0; e < 2; e++) sum[j][e] += r[s] * m[e];
        }
    });
  }
  // Whether the state that a step leaves is multiplied.
  DEVICE bool multiplies(int t) const { return t < steps || (t == steps && G::PRODUCT_VALUE); }

  // The write of step t - 1, for which everything but its place in the tape is in `q`. Leaves the
  // scores of the read of step t.
  DEVICE void finish_write(int t, const Numbers& q, Slots& score) const {
    Slots w;
    attend(w, score);
    share(WRITE, w);
    keep_weights(t - 1, WRITE, w);
    sync_warp();
    write_tape(q);
    if (t == steps) return;
    if (a.checkpoints && t % (int)a.interval == 0)
      save_tape(0, (float*)a.checkpoints + (t / (int)a.interval - 1) * tape_size());
    const float along = await_along(t);
#pragma unroll
    for (int i = 0; i < G::EACH; i++) score[i] = tape::next_score(score[i], w[i], along);
  }
  // The read of step t, the new state and what others need of it.
  DEVICE void next_state(int t, const Slots& score, const Numbers& pre,
                         const unsigned (&input)[G::PER]) {
    Slots r;
    Numbers x, sum;
    attend(r, score);
    share(READ, r);
    sync_warp();
    read_tape(sum);
    widen(x, input);
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) h[j][e] = tape::state(x[j][e] + pre[j][e], sum[j][e]);
    unsigned words[G::PER];
    narrow(h, words);
    if (multiplies(t + 1)) send(words, t + 1, 0);
    send_scores(t + 1);
    if (!G::PRODUCT_VALUE && t + 1 < steps) send_along(dot(h, h), t + 1);
    write(a.y, t, words);
    keep_weights(t, READ, r);
  }
  DEVICE void walk(int t, const unsigned (&input)[G::PER]) {
    Numbers pre, q;
    Slots score;
    if (multiplies(t)) gather(pre, t, 0);
    if (t) {
      if (G::PRODUCT_VALUE) {
        unsigned words[G::PER];
        gather(q, t, G::PRODUCT_VALUE ? G::VALUE : 0);
        narrow(q, words);
        if (t < steps) send_along(dot(q, h), t);
        write(a.values, t - 1, words);
      } else {
#pragma unroll
        for (int j = 0; j < G::PER; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) q[j][e] = h[j][e];
      }
    }
    boxes.wait(sums_box(t), t / 2);
    if (t < steps) expect_sums(t + 1);
    if (t + 1 < steps) expect_others(t + 1);
    add_up(score, sums_of(t));
    if (t) finish_write(t, q, score);
    if (t < steps) next_state(t, score, pre, input);
  }
  DEVICE void forward() {
    load_tape(0, (const float*)a.tape);
    load_state(h, (const float*)a.first);
    fill_mail();
    sync_cluster();
    if (walks) {
      expect_sums(0);
      send_scores(0);
    }
#pragma unroll 1
    for (int t = 0; t <= steps; t++) {
      unsigned input[G::PER];
      if (t < steps) read(input, a.x, t);
      if (multiplies(t)) multiply(t, t > 0, t < steps && multiplies(t + 1));
      sync_block();
      if (walks) walk(t, input);
    }
    if (walks) {
      save_tape(0, (float*)a.last_tape);
      save_state((float*)a.last, h);
    }
    sync_cluster();
  }

  // ---- backward. Round r undoes step T - r: first of all, the last write.

  enum { DSCORE, WEIGHT, READ_WEIGHT };  // kinds of numbers that lanes share
  enum { GRADIENT = 2 };                 // the tape that is one; the others by a round's number

  // What a round reads of sequences.
  struct Kept {
    unsigned dy[G::PER], before[G::PER], value[G::PER];
    Slots read, write;  // weights: the read of this step, the write of the one before it
  };

  DEVICE const float* tape_before(int t) const {
    const int k = t % (int)a.interval, segment = t / (int)a.interval;
    if (k) return (const float*)a.replayed + (k - 1) * tape_size();
    return segment ? (const float*)a.checkpoints + (segment - 1) * tape_size()
                   : (const float*)a.tape;
  }
  DEVICE const void* values() const { return G::PRODUCT_VALUE ? a.values : a.y; }

  // Leaves the tapes behind the one before step `start`, up to that before step `end`.
  DEVICE void replay(int start, int end) const {
    const float* from = tape_before(start);
#pragma unroll
    for (int j = 0; j < G::PER; j++) {
      if (!exists(j)) continue;
      each_chunk([&](int n) {
        float m[8][2];
#pragma unroll
        for (int s = 0; s < 8; s++)
          if (is_slot(n + s)) load<2, float>(m[s], from + at_slot(j, n + s));
#pragma unroll 2
        for (int t = start; t < end; t++) {
          float* to = (float*)a.replayed + (t - start) * tape_size();
          const float* w = (const float*)a.weights + at_weight(t, WRITE, n);
          unsigned word[1];
          load_words(word, (const bf16*)values() + at(j, t));
          const float q[2] = {Half<bf16>::low(word[0]), Half<bf16>::high(word[0])};
#pragma unroll
          for (int s = 0; s < 8; s++) {
            if (!is_slot(n + s)) continue;
            const float share = load_one(w + s);
#pragma unroll
            for (int e = 0; e < 2; e++) m[s][e] = tape::written(m[s][e], share, q[e]);
            store<2, float>(to + at_slot(j, n + s), m[s]);
          }
        }
      });
    }
  }
  // Begins to copy the tape before step t for round r; those of its segment are replayed first.
  DEVICE void fetch_tape(int t, int round) const {
    const int interval = (int)a.interval;
    if (round == 0 || (t + 1) % interval == 0) replay(t / interval * interval, t);
    const float* from = tape_before(t);
    for (int n = 0; n < G::SLOTS; n++)
#pragma unroll
      for (int j = 0; j < G::PER; j++)
        if (has(j))
          copy_async<8>(cast<unsigned char>(slot((round + 1) % 2, n, j)),
                        exists(j) ? from + at_slot(j, n) : nullptr, exists(j) ? 8 : 0);
    commit_copies();
  }
  DEVICE void fetch(Kept& kept, int round) const {
    const int t = steps - round;
    if (round) {
      read(kept.dy, a.dy, t);
      kept_weights(kept.read, t, READ);
    }
    if (t == 0) return;
    read(kept.before, a.y, t - 1);
    if (G::PRODUCT_VALUE) read(kept.value, a.values, t - 1);
    kept_weights(kept.write, t - 1, WRITE);
    if (walks) fetch_tape(t - 1, round);
  }
  // The gradient of the argument of tanh, from that of the state; takes the tape's to before the
  // write of the step.
  DEVICE void state_bwd(int round, const Numbers& e, Numbers& delta, const Numbers& state) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) delta[j][i] = e[j][i];
    each_chunk([&](int n) {
      float dscore[8], w[8];
      shared_of(dscore, DSCORE, n);
      shared_of(w, WEIGHT, n);
#pragma unroll
      for (int s = 0; s < 8; s++)
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2], g[2];
          if (!is_slot(n + s) || !has(j)) continue;
          load<2, float>(m, slot(round % 2, n + s, j));
          load<2, float>(g, slot(GRADIENT, n + s, j));
#pragma unroll
          for (int i = 0; i < 2; i++) {
            delta[j][i] += dscore[s] * m[i];
            g[i] = tape::written_bwd(g[i], w[s], dscore[s], state[j][i]);
          }
          store<2, float>(slot(GRADIENT, n + s, j), g);
        }
    });
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) delta[j][i] = tape::state_bwd(state[j][i], delta[j][i]);
  }
  // Delivers the parts of <M_n, delta>.
  DEVICE void send_reads(int round, const Numbers& delta) const {
    each_chunk([&](int n) {
      float x[8];
#pragma unroll
      for (int s = 0; s < 8; s++) {
        x[s] = 0.0f;
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2];
          if (!is_slot(n + s) || !has(j)) continue;
          load<2, float>(m, slot(round % 2, n + s, j));
          x[s] += m[0] * delta[j][0] + m[1] * delta[j][1];
        }
      }
      send_sums(x, others_of(round), others_box(round), n);
    });
  }
  // Adds to the tape's gradient what the read of the step does, and leaves in h what reaches the
  // state before it by the scores. Then, for the write of the step before: the gradient of its
  // value, and parts of those of its weights.
  template <bool READS, bool WRITES>
  DEVICE void slots_bwd(int round, const Numbers& delta, const Numbers& before, const Numbers& q,
                        Numbers& dq) {
    each_chunk([&](int n) {
      float dscore[8], r[8], w[8], x[8];
      if constexpr (READS) {
        shared_of(dscore, DSCORE, n);
        shared_of(r, READ_WEIGHT, n);
      }
      if constexpr (WRITES) shared_of(w, WEIGHT, n);
#pragma unroll
      for (int s = 0; s < 8; s++) {
        x[s] = 0.0f;
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2], g[2], old[2];
          if (!is_slot(n + s) || !has(j)) continue;
          load<2, float>(g, slot(GRADIENT, n + s, j));
          if constexpr (READS) {
            load<2, float>(m, slot(round % 2, n + s, j));
#pragma unroll
            for (int i = 0; i < 2; i++) {
              h[j][i] += dscore[s] * m[i];
              g[i] = tape::read_bwd(g[i], r[s], delta[j][i], dscore[s], before[j][i]);
            }
            store<2, float>(slot(GRADIENT, n + s, j), g);
          }
          if constexpr (WRITES) {
            load<2, float>(old, slot((round + 1) % 2, n + s, j));
#pragma unroll
            for (int i = 0; i < 2; i++) {
              dq[j][i] += w[s] * g[i];
              x[s] += g[i] * (q[j][i] - old[i]);
            }
          }
        }
      }
      if constexpr (WRITES) send_sums(x, sums_of(round + 1), sums_box(round + 1), n);
    });
  }
  // The step of a round: leaves the gradient of its input, rounded, and what the read's scores are
  // pulled with.
  DEVICE void step_bwd(int round, const Kept& kept, const Numbers& state, const Slots& w,
                       Numbers& delta, unsigned (&words)[G::PER]) {
    Numbers e, dy;
    Slots pull;
    gather(e, round, 0);
    widen(dy, kept.dy);
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) e[j][i] += h[j][i] + dy[j][i];
    boxes.wait(sums_box(round), (round - 1) / 2);
    if (round < steps) {
      expect_sums(round + 1);
      expect_others(round + 1);
    }
    add_up(pull, sums_of(round));
    scores_bwd(pull, w);
    sync_warp();
    share(DSCORE, pull);
    sync_warp();
    state_bwd(round, e, delta, state);
    narrow(delta, words);
    if (G::VALUE != 0) send(words, round + 1, 0);
    send_reads(round, delta);
    write(a.dx, steps - round, words);
    boxes.wait(others_box(round), (round - 1) / 2);
    add_up(pull, others_of(round));
    scores_bwd(pull, kept.read);
    sync_warp();
    share(DSCORE, pull);
    share(READ_WEIGHT, kept.read);
  }
  DEVICE static void clear(Numbers& x) {
#pragma unroll
    for (int j = 0; j < G::PER; j++) x[j][0] = x[j][1] = 0.0f;
  }
  // state: that after the step. w: weights of its write.
  DEVICE void walk_back(int round, const Kept& kept, Numbers& state, Slots& w) {
    const int t = steps - round;
    Numbers delta, before, q, dq;
    unsigned words[G::PER];
    clear(delta);
    clear(dq);
    clear(q);
#pragma unroll
    for (int j = 0; j < G::PER; j++) words[j] = 0;
    if (t)
      widen(before, kept.before);
    else
      load_state(before, (const float*)a.first);
    if (G::PRODUCT_VALUE) {
      if (t) widen(q, kept.value);
    } else {
#pragma unroll
      for (int j = 0; j < G::PER; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) q[j][i] = before[j][i];
    }
    if (round) {
      step_bwd(round, kept, state, w, delta, words);
      clear(h);
    } else if (G::VALUE != 0) {
      send(words, 1, 0);
    }
    if (t) {
      share(WEIGHT, kept.write);
      wait_copies<0>();
    }
    sync_warp();
    if (round && t)
      slots_bwd<true, true>(round, delta, before, q, dq);
    else if (round)
      slots_bwd<true, false>(round, delta, before, q, dq);
    else
      slots_bwd<false, true>(round, delta, before, q, dq);
    pass_on(round, delta, dq);
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) state[j][i] = before[j][i];
#pragma unroll
    for (int i = 0; i < G::EACH; i++) w[i] = t ? kept.write[i] : 0.0f;
  }
  // Delivers, or keeps, the gradient of the value that the step before wrote.
  DEVICE void pass_on(int round, const Numbers& delta, const Numbers& dq) {
    Numbers x;
    unsigned words[G::PER];
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        x[j][i] = dq[j][i] + (G::VALUE == 0 ? delta[j][i] : 0.0f);
        if (!G::PRODUCT_VALUE) h[j][i] += dq[j][i];
      }
    if (!G::PRODUCT_VALUE) return;
    narrow(x, words);
    send(words, round + 1, G::PRODUCT_VALUE ? G::VALUE : 0);
    if (round == steps) return;
#pragma unroll
    for (int j = 0; j < G::PER; j++) words[j] = bf16_pair(dq[j][0], dq[j][1]);
    write(a.dvalues, steps - round - 1, words);
  }
  DEVICE void backward() {
    Numbers state;
    Slots w;
    load_tape(GRADIENT, (const float*)a.dlast_tape);
    load_state(h, (const float*)a.dlast);
    clear(state);
#pragma unroll
    for (int i = 0; i < G::EACH; i++) w[i] = 0.0f;
    sync_cluster();
    expect_mail(1);
    expect_sums(1);
    expect_others(1);
    // One round more than there are writes: the gradient of the first state takes a product, too.
#pragma unroll 1
    for (int round = 0; round <= steps; round++) {
      Kept kept;
      fetch(kept, round);
      if (round) multiply(round, true, true);
      sync_block();
      if (walks) walk_back(round, kept, state, w);
    }
    multiply(steps + 1, true, false);
    sync_block();
    if (walks) {
      gather(state, steps + 1, 0);
#pragma unroll
      for (int j = 0; j < G::PER; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) h[j][i] += state[j][i];
      save_state((float*)a.dfirst, h);
      save_tape(GRADIENT, (float*)a.dtape);
    }
    sync_cluster();
  }
};

template <class G>
DEVICE void tape_cluster_forward(const TapeClusterArgs& a) {
  Arena arena;
  TapeCluster<G>(arena, a).forward();
}

template <class G>
DEVICE void tape_cluster_backward(const TapeClusterArgs& a) {
  Arena arena;
  TapeCluster<G>(arena, a).backward();
}

}  // namespace elman
