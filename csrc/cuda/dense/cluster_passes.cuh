// The passes of a dense recurrence as one launch, see cluster.cuh.
#pragma once
#include "cuda/dense/cluster.cuh"

namespace elman {

// ---- forward

// A pair of memos of a step, of those from `begin` to before `end`.
template <class G>
DEVICE void cluster_remember(const DenseCluster<G>& k, int pass, int begin, int end,
                             const float (&memo)[2][MAX_DENSE_MEMO]) {
  if (!k.a.memo) return;
#pragma unroll
  for (int i = begin; i < end; i++)
    k.places.write(1, pass, i * k.places.pitch(), bf16_pair(memo[0][i], memo[1][i]));
}

// Of a step with a norm, the new state is delivered before it is divided: the sum of its squares
// then needs no exchange of its own, since every block adds up those of all that it receives. The
// product is that of the undivided state, and is divided like it. This divides the state before
// step t, writes it, and returns what it was multiplied by; the first state stays as it is.
template <class G>
DEVICE float cluster_divide(DenseCluster<G>& k, int t, int pass) {
  const DenseArgs& a = k.a;
  if (t == 0) return 1.0f;
  const float mean = k.gather_squares(t, pass) / (float)(int)a.channels;
  const float factor = reciprocal(square_root(mean + (float)DENSE_NORM_EPS));
#pragma unroll
  for (int e = 0; e < 2; e++) k.h[pass][e] *= factor;
  if (!k.exists(pass)) return factor;
  k.places.write(0, pass, -a.y.time, bf16_pair(k.h[pass][0], k.h[pass][1]));
  if (k.channel == 0) store_one((float*)a.norms + (k.number(pass) * a.steps + t - 1), factor);
  return factor;
}

// Where a row begins anew, its state is zero, and so is the product with it.
template <class G>
DEVICE void cluster_reset(DenseCluster<G>& k, int pass, float (&product)[G::BLOCKS][2]) {
  if constexpr (G::RESETS) {
    if (!k.reset[pass]) return;
    k.forget(pass);
#pragma unroll
    for (int b = 0; b < G::BLOCKS; b++) product[b][0] = product[b][1] = 0.0f;
  }
}

template <class G>
DEVICE void cluster_step(DenseCluster<G>& k, int t, int pass, bool more) {
  using Cell = typename G::Cell;
  const DenseArgs& a = k.a;
  float pre[G::BLOCKS][2], x[G::INPUTS][2], memo[2][MAX_DENSE_MEMO];
#pragma unroll
  for (int b = 0; b < G::BLOCKS; b++) k.gather(pre[b], t, pass, b * G::M);
  if constexpr (G::NORM) {
    const float factor = cluster_divide(k, t, pass);
    pre[0][0] *= factor;
    pre[0][1] *= factor;
  }
  cluster_reset(k, pass, pre);
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
#pragma unroll
    for (int i = 0; i < G::PARTS_OF_C; i++) see.c[i] = k.c[pass][i][e];
    see.scale = k.scale;
    float c_new[MAX_STATES - 1] = {};
    k.h[pass][e] = Cell::step(see, memo[e], c_new);
#pragma unroll
    for (int i = 0; i < G::PARTS_OF_C; i++) k.c[pass][i][e] = c_new[i];
  }
  const unsigned word = bf16_pair(k.h[pass][0], k.h[pass][1]);
  if (more) k.send(word, t + 1, pass, 0);
  if (!k.exists(pass)) return;
  if (!G::NORM) k.places.write(0, pass, 0, word);
  if (G::MEMO) cluster_remember(k, pass, 0, G::MEMO, memo);
}

// A GRU's matrix U.
template <class G>
using ClusterSecond = ClusterMatrix<typename G::Second>;

// A GRU before its second product: makes its gates, delivers r h and keeps z.
template <class G>
DEVICE void cluster_gates(DenseCluster<G>& k, int t, int pass, int slice, float (&z)[2]) {
  using Cell = typename G::Cell;
  float pre[G::BLOCKS][2], x[G::BLOCKS][2], memo[2][MAX_DENSE_MEMO], rh[2];
#pragma unroll
  for (int b = 0; b < G::BLOCKS; b++) k.gather(pre[b], 2 * t, pass, b * G::M);
  cluster_reset(k, pass, pre);
#pragma unroll
  for (int b = 0; b < G::BLOCKS; b++) k.places.read(x[b], pass, b);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    Dense<float> see;
#pragma unroll
    for (int b = 0; b < G::BLOCKS; b++) see.a[b] = x[b][e] + pre[b][e];
    see.h = k.h[pass][e];
    rh[e] = Cell::gates(see, memo[e]);
    z[e] = memo[e][0];
  }
  k.send(bf16_pair(rh[0], rh[1]), slice, 2 * t + 1, pass, 0);
  if (k.exists(pass)) cluster_remember(k, pass, 0, 2, memo);
}

// Behind it: the new state.
template <class G>
DEVICE void cluster_candidate(DenseCluster<G>& k, int t, int pass, bool more, const float (&z)[2]) {
  using Cell = typename G::Cell;
  float product[2], x[2], memo[2][MAX_DENSE_MEMO];
  k.template gather<typename G::Second>(product, 2 * t + 1, pass, 0);
  k.places.read(x, pass, 2);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    Dense<float> see;
    float none[MAX_STATES - 1];
    see.p[0] = x[e] + product[e];
    see.h = k.h[pass][e];
    memo[e][0] = z[e];
    k.h[pass][e] = Cell::step(see, memo[e], none);
  }
  const unsigned word = bf16_pair(k.h[pass][0], k.h[pass][1]);
  if (more) k.send(word, 2 * t + 2, pass, 0);
  if (!k.exists(pass)) return;
  k.places.write(0, pass, 0, word);
  cluster_remember(k, pass, 2, 3, memo);
}

// Runs the steps of a GRU.
template <class G>
DEVICE void cluster_gru(DenseCluster<G>& k, const ClusterSecond<G>& second) {
  const int steps = (int)k.a.steps, slice = k.template slice_of<typename G::Second>(0);
#pragma unroll 1
  for (int t = 0; t < steps; t++) {
    const bool more = t + 1 < steps;
    float z[G::PASSES][2];
    k.look(t);
    k.multiply(2 * t, t > 0, true);
    wait_copies<G::STAGES - 2>();
    sync_block();
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) cluster_gates(k, t, pass, slice, z[pass]);
    k.multiply(second, 2 * t + 1, true, more);
    sync_block();
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) cluster_candidate(k, t, pass, more, z[pass]);
    k.fetch(t + G::STAGES - 1);
    k.places.next_target();
  }
}

// Runs the steps of all others.
template <class G>
DEVICE void cluster_steps(DenseCluster<G>& k) {
  const int steps = (int)k.a.steps;
#pragma unroll 1
  for (int t = 0; t < steps; t++) {
    const bool more = G::NORM || t + 1 < steps;
    k.look(t);
    k.multiply(t, t > 0, more);
    wait_copies<G::STAGES - 2>();
    sync_block();
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) cluster_step(k, t, pass, more);
    k.fetch(t + G::STAGES - 1);
    k.places.next_target();
  }
  if (!G::NORM) return;
  k.multiply(steps, true, false);  // for the squares of the last state
  sync_block();
#pragma unroll
  for (int pass = 0; pass < G::PASSES; pass++) cluster_divide(k, steps, pass);
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
      load<2, float>(
          x, (const float*)a.first + (row * k.places.pitch() + k.head * a.channels + channel));
    store_one(k.mail + i, bf16_pair(x[0], x[1]));
  }
  if constexpr (G::EXTRA) {
    const ClusterSecond<G> second(arena, (const bf16*)a.extra, k.rank);
    sync_cluster();
    cluster_gru(k, second);
  } else {
    sync_cluster();
    cluster_steps(k);
  }
  k.end((float*)a.last);
  sync_cluster();
}

// ---- backward

// The product for the gradient of the state before the step of the product; nothing passes a reset.
template <class G>
DEVICE void cluster_product_back(const DenseCluster<G>& k, float (&dh)[2], int step, int pass,
                                 bool reset) {
  k.gather(dh, step, pass, 0);
  if constexpr (G::RESETS)
    if (reset) dh[0] = dh[1] = 0.0f;
}

// Where the inputs of a step back stand, behind the gradient of its output.
template <class G>
struct ClusterInputs {
  using Cell = typename G::Cell;
  static constexpr int NEW = 1, OLD = NEW + G::NEW, MEMO = OLD + Cell::OLD, OLD_C = MEMO + G::MEMO;
};

// The `round`-th step from the end: from the gradient of the new state to those of all that the
// step read. Of a step with a norm and of a GRU, the gradient stands in k.h, and something was
// found between: `between(e)` is that of the state before the norm, or of r h.
template <class G, class Between>
DEVICE void cluster_step_back(DenseCluster<G>& k, int round, int pass, Between between) {
  using Cell = typename G::Cell;
  using At = ClusterInputs<G>;
  const DenseArgs& a = k.a;
  float x[G::INPUTS][2], y[2] = {}, old[2] = {}, old_c[G::PARTS_OF_C][2] = {}, dh[2] = {};
  if (!G::NORM && !G::EXTRA && round)
    cluster_product_back(k, dh, round, pass, k.reset_before[pass]);
#pragma unroll
  for (int i = 0; i < G::INPUTS; i++) k.places.read(x[i], pass, i);
  const bool at_first = round + 1 == (int)a.steps && k.exists(pass);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    if (Cell::NEW) y[e] = x[Cell::NEW ? At::NEW : 0][e];
    if (Cell::OLD) old[e] = x[Cell::OLD ? At::OLD : 0][e];
#pragma unroll
    for (int i = 0; i < Cell::KEPT; i++) old_c[i][e] = x[At::OLD_C + i][e];
  }
  if (at_first && Cell::OLD) load<2, float>(old, (const float*)a.first + k.place(pass, 0));
  if (at_first && Cell::STATES > 1) {
#pragma unroll
    for (int i = 0; i < Cell::KEPT; i++)
      load<2, float>(old_c[i], (const float*)a.first + k.place(pass, 1 + i));
  }
  if constexpr (G::RESETS) {
    if (k.reset[pass]) old[0] = old[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < Cell::KEPT; i++)
      if (k.reset[pass]) old_c[i][0] = old_c[i][1] = 0.0f;
  }
  DenseGrad<float> d[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    Dense<float> see;
    see.h = old[e];
#pragma unroll
    for (int i = 0; i < G::PARTS_OF_C; i++) see.c[i] = old_c[i][e];
    see.scale = k.scale;
    float m[MAX_DENSE_MEMO];
#pragma unroll
    for (int i = 0; i < G::MEMO; i++) m[i] = x[At::MEMO + i][e];
    if constexpr (G::NORM) {
      Cell::step_bwd(see, m, y[e], between(e), (const float*)nullptr, d[e]);
    } else if constexpr (G::EXTRA) {
      const float drh = between(e);
      Cell::step_bwd(see, m, y[e], k.h[pass][e], &drh, d[e]);
    } else {
      float ec[G::PARTS_OF_C];
#pragma unroll
      for (int i = 0; i < G::PARTS_OF_C; i++) ec[i] = k.c[pass][i][e];
      Cell::step_bwd(see, m, y[e], k.h[pass][e] + dh[e] + x[0][e], ec, d[e]);
    }
    k.h[pass][e] = d[e].h;
#pragma unroll
    for (int i = 0; i + 1 < Cell::STATES; i++) k.c[pass][i][e] = d[e].c[i];
    if (Cell::SCALE) k.c[pass][0][e] += d[e].scale;
    if constexpr (G::RESETS) {
      if (k.reset[pass]) k.h[pass][e] = 0.0f;
#pragma unroll
      for (int i = 0; i + 1 < Cell::STATES; i++)
        if (k.reset[pass]) k.c[pass][i][e] = 0.0f;
    }
  }
  unsigned words[G::BLOCKS];
#pragma unroll
  for (int b = 0; b < G::BLOCKS; b++) {
    words[b] = bf16_pair(d[0].a[b], d[1].a[b]);
    if (Cell::DIVIDES && !k.exists(pass)) words[b] = 0;
    k.send(words[b], (G::EXTRA ? 2 : 1) * (round + 1), pass, b);
  }
  if (!k.exists(pass)) return;
#pragma unroll
  for (int i = 0; i < G::BLOCKS; i++) k.places.write(0, pass, i * a.channels, words[i]);
#pragma unroll
  for (int i = 0; i < (G::EXTRA ? 0 : Cell::OTHERS); i++)
    k.places.write(1 + i, pass, 0, bf16_pair(d[0].p[i], d[1].p[i]));
}

// The gradient of the new states of such a step: what later steps and the output pass on.
template <class G>
DEVICE void cluster_gradient(DenseCluster<G>& k, int round, int pass) {
  float dh[2] = {}, dy[2];
  const int product = (G::EXTRA ? 2 : 1) * round;
  if (round) cluster_product_back(k, dh, product, pass, k.reset_before[pass]);
  k.places.read(dy, pass, 0);
#pragma unroll
  for (int e = 0; e < 2; e++) k.h[pass][e] += dh[e] + dy[e];
}

// The sum over all channels of the gradient of a divided state times that state, for every row:
// the second exchange of a step back through a norm.
template <class G>
struct ClusterSums {
  sptr<float> left;  // [ROWS, M / 16]: of the block's channels, by 16
  sptr<float> told;  // [2, ROWS, CLUSTER]: of each block's channels

  DEVICE explicit ClusterSums(Arena& arena)
      : left(arena.take<float>(G::LEFT)), told(arena.take<float>(G::TOLD)) {}

  // Leaves what the eight threads have that share 16 channels of a row.
  DEVICE void leave(const DenseCluster<G>& k, int pass, float x) const {
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) x += shuffle_xor(x, mask);
    if (k.has(pass) && k.lane % 8 == 0)
      store_one(left + (k.row(pass) * (G::M / 16) + k.m0 / 16), x);
  }
  // Tells every block of this one's sums. Later turns of the box cannot begin before all threads
  // of all blocks have waited for this one.
  DEVICE void tell(const DenseCluster<G>& k, int round) const {
    const int thread = thread_index(), row = thread / G::CLUSTER;
    if (thread == 0) k.boxes.expect(G::TOLD_BOX, G::ROWS * G::CLUSTER * 4);
    if (row >= G::ROWS) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < G::M / 16; i++) sum += load_one(left + (row * (G::M / 16) + i));
    const int peer = thread % G::CLUSTER ^ k.rank;
    const sptr<float> to = told + ((round % 2 * G::ROWS + row) * G::CLUSTER + k.rank);
    deliver(remote_place(to, peer), k.boxes.of(G::TOLD_BOX, peer), float_bits(sum));
  }
  DEVICE float total(const DenseCluster<G>& k, int round, int pass) const {
    const int row = k.has(pass) ? k.row(pass) : 0;
    float x[G::CLUSTER];
    load<G::CLUSTER, float>(x, told + (round % 2 * G::ROWS + row) * G::CLUSTER);
#pragma unroll
    for (int half = 1; half < G::CLUSTER; half *= 2)
#pragma unroll
      for (int i = 0; i < G::CLUSTER; i += 2 * half) x[i] += x[i + half];
    return x[0];
  }
};

// A step back through a norm: from the gradient e of y = u / rms(u) to that of u, which is
// (e - y mean(e y)) / rms(u).
template <class G>
DEVICE void cluster_norm_back(DenseCluster<G>& k, const ClusterSums<G>& sums, int round,
                              const float (&factors)[G::PASSES]) {
  float y[G::PASSES][2];
#pragma unroll
  for (int pass = 0; pass < G::PASSES; pass++) {
    cluster_gradient(k, round, pass);
    k.places.read(y[pass], pass, ClusterInputs<G>::NEW);
    sums.leave(k, pass, k.h[pass][0] * y[pass][0] + k.h[pass][1] * y[pass][1]);
  }
  sync_block();
  sums.tell(k, round);
  k.boxes.wait(G::TOLD_BOX, round);
#pragma unroll
  for (int pass = 0; pass < G::PASSES; pass++) {
    const float mean = sums.total(k, round, pass) / (float)(int)k.a.channels;
    cluster_step_back(k, round, pass,
                      [&](int e) { return (k.h[pass][e] - y[pass][e] * mean) * factors[pass]; });
  }
}

// A GRU before its second product back: delivers the gradient of the argument of tanh.
template <class G>
DEVICE void cluster_candidate_back(DenseCluster<G>& k, int round, int pass, int slice) {
  float memo[G::MEMO][2], dn[2];
  cluster_gradient(k, round, pass);
#pragma unroll
  for (int i = 0; i < G::MEMO; i++) k.places.read(memo[i], pass, ClusterInputs<G>::MEMO + i);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float m[MAX_DENSE_MEMO];
#pragma unroll
    for (int i = 0; i < G::MEMO; i++) m[i] = memo[i][e];
    dn[e] = G::Cell::candidate_bwd(m, k.h[pass][e]);
  }
  const unsigned word = bf16_pair(dn[0], dn[1]);
  k.send(word, slice, 2 * round + 1, pass, 0);
  if (k.exists(pass)) k.places.write(1, pass, 0, word);
}

// Behind it: the gradients of its gates.
template <class G>
DEVICE void cluster_gates_back(DenseCluster<G>& k, int round, int pass) {
  float drh[2];
  k.template gather<typename G::Second>(drh, 2 * round + 1, pass, 0);
  cluster_step_back(k, round, pass, [&](int e) { return drh[e]; });
}

// The product for the gradient of the first state, behind `step` others, and the end.
template <class G>
DEVICE void cluster_end_back(DenseCluster<G>& k, int step) {
  k.multiply(step, true, false);
  sync_block();
#pragma unroll
  for (int pass = 0; pass < G::PASSES; pass++) {
    float dh[2];
    cluster_product_back(k, dh, step, pass, k.reset[pass]);
#pragma unroll
    for (int e = 0; e < 2; e++) k.h[pass][e] += dh[e];
  }
  k.end((float*)k.a.dfirst);
  if constexpr (G::Cell::SCALE) k.end_scale((float*)k.a.dscale);
  sync_cluster();
}

// Runs a GRU back.
template <class G>
DEVICE void cluster_gru_backward(Arena& arena, DenseCluster<G>& k) {
  const ClusterSecond<G> second(arena, (const bf16*)k.a.extra, k.rank);
  const int steps = (int)k.a.steps, slice = k.template slice_of<typename G::Second>(0);
  sync_cluster();
  k.expect(1);
#pragma unroll 1
  for (int round = 0; round < steps; round++) {
    k.look(steps - 1 - round);
    if (round) k.multiply(2 * round, true, true);
    wait_copies<G::STAGES - 2>();
    sync_block();
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) cluster_candidate_back(k, round, pass, slice);
    k.multiply(second, 2 * round + 1, true, true);
    sync_block();
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) cluster_gates_back(k, round, pass);
    k.fetch(round + G::STAGES - 1);
    k.places.next_target();
  }
  cluster_end_back(k, 2 * steps);
}

// Runs steps with a norm back.
template <class G>
DEVICE void cluster_norm_backward(Arena& arena, DenseCluster<G>& k) {
  const ClusterSums<G> sums(arena);
  const int steps = (int)k.a.steps;
  sync_cluster();
  k.expect(1);
#pragma unroll 1
  for (int round = 0; round < steps; round++) {
    float factors[G::PASSES];
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) factors[pass] = k.norm(pass, steps - 1 - round);
    k.look(steps - 1 - round);
    if (round) k.multiply(round, true, true);
    wait_copies<G::STAGES - 2>();
    sync_block();
    cluster_norm_back(k, sums, round, factors);
    k.fetch(round + G::STAGES - 1);
    k.places.next_target();
  }
  cluster_end_back(k, steps);
}

template <class G>
DEVICE void dense_cluster_backward(const DenseArgs& a) {
  Arena arena;
  DenseCluster<G> k(arena, a);
  k.begin((const float*)a.dlast);
  if constexpr (G::EXTRA) {
    cluster_gru_backward(arena, k);
  } else if constexpr (G::NORM) {
    cluster_norm_backward(arena, k);
  } else {
    sync_cluster();
    k.expect(1);
    const int steps = (int)a.steps;
#pragma unroll 1
    for (int round = 0; round < steps; round++) {
      k.look(steps - 1 - round);
      if (round) k.multiply(round, true, true);
      wait_copies<G::STAGES - 2>();
      sync_block();
#pragma unroll
      for (int pass = 0; pass < G::PASSES; pass++) cluster_step_back(k, round, pass, 0);
      k.fetch(round + G::STAGES - 1);
      k.places.next_target();
    }
    // As cluster_end_back, but written out: the compiler makes other code of a call, and what was
    // measured on a GPU is this.
    k.multiply(steps, true, false);
    sync_block();
#pragma unroll
    for (int pass = 0; pass < G::PASSES; pass++) {
      float dh[2];
      cluster_product_back(k, dh, steps, pass, k.reset[pass]);
#pragma unroll
      for (int e = 0; e < 2; e++) k.h[pass][e] += dh[e];
    }
    k.end((float*)a.dfirst);
    sync_cluster();
  }
}

}  // namespace elman
