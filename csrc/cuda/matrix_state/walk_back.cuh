// The walk back through a segment: from the gradient of the state after each step to that of the
// state before it, and to those of what the step saw.
#pragma once
#include "cuda/matrix_state/trail.cuh"

namespace elman {

template <class G>
struct WalkBack {
  using A = typename G::A;
  using Spec = typename G::Spec;
  using Cell = typename G::Cell;
  using L = Lane<G, true>;
  static constexpr int C = G::COLUMNS, TALL = G::TALL, PIECE = G::PIECE;

  Trail<G>& trail;
  // The state after a step and its gradient, the state before it, what the step reads, and this
  // lane's parts of the sums over the rows for the step that was walked before.
  A S[PIECE], dS[PIECE], before[PIECE], q[C], parts[G::SUMS][C], dy[TALL];
  Step<G> now;
  Resets<G> resets;
  A residual[TALL];
  A dparams[TALL][MAX_PARAMS], dresidual[TALL], dgate_bias[TALL];

  DEVICE explicit WalkBack(Trail<G>& shared) : trail(shared) {
    const Args& a = trail.a;
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      residual[i] = dresidual[i] = dgate_bias[i] = A(0);
      if constexpr (Spec::RESIDUAL)
        if (trail.lane.live(i))
          residual[i] =
              param<G>(a, PARAM_RESIDUAL, (int64_t)trail.at.head * G::R + trail.lane.row + i);
#pragma unroll
      for (int n = 0; n < MAX_PARAMS; n++) dparams[i][n] = A(0);
    }
    trail.load_or_zero(dS, a.dlast);
    resets.fetch(a, trail.at, trail.last_segment() * G::STEPS);
  }

  // Takes up a segment behind its last step, where the state is `last`.
  DEVICE void start(int length, const A* last) {
#pragma unroll
    for (int j = 0; j < PIECE; j++) S[j] = last[j];
    trail.recall(length - 1, before);
  }

  // The same where others have recomputed the segment.
  DEVICE void start(int length) {
    trail.recall(length, S);
    trail.recall(length - 1, before);
  }

  // Walks back from the gradient of the state after the segment to that of the state before it,
  // with the state before the last step in `before`. Loads run a step ahead of their use, and sums
  // over the rows a step behind.
  DEVICE void run(int64_t t0, int length, int buffer) {
#pragma unroll
    for (int j = 0; j < C; j++) {
#pragma unroll
      for (int n = 0; n < G::SUMS; n++) parts[n][j] = A(0);
    }
    load_step(t0, length - 1, buffer);
    const unsigned cuts = resets.take(trail.a, trail.at, t0 - G::STEPS);
    // Large pieces with gates have no registers left for two.
    constexpr int UNROLL = G::PIECE >= 32 && Cell::GATES > 0 ? 1 : 2;
    int step = length - 1;
#pragma unroll 1
    for (; step >= UNROLL; step -= UNROLL) {
#pragma unroll
      for (int i = 0; i < UNROLL; i++) walk<true>(t0, step - i, length, buffer, cuts);
    }
#pragma unroll 1
    for (; step > 0; step--) walk<true>(t0, step, length, buffer, cuts);
    walk<false>(t0, 0, length, buffer, cuts);
    const auto share = trail.lane.halve(parts);
    put_sums(0, parts, share);
  }

  // What a step of the walk reads of the inputs.
  DEVICE void load_step(int64_t t0, int step, int buffer) {
    now.read(trail.in, trail.lane, step, trail.params);
    trail.lane.read(q, trail.in.q, step);
    A r[TALL] = {}, e[TALL] = {};
    if constexpr (Cell::READ) trail.lane.read_rows(r, trail.sums.dv, step);
    if constexpr (Cell::ENERGY) trail.lane.read_rows(e, trail.sums.energies, step);
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      now.row[i].r = r[i];
      now.row[i].e = e[i];
    }
    if constexpr (G::NEEDS_Y)
      trail.lane.read_rows(dy, trail.sums.dy, step);
    else
      load_output_gradient(t0, step, buffer);
  }

  // The gradient of the output where that is the gradient of y.
  DEVICE void load_output_gradient(int64_t t0, int step, int buffer) {
    constexpr int V = Inputs<G, true>::Rows::V % TALL == 0 ? TALL : 1;
#pragma unroll
    for (int i = 0; i < TALL; i += V) {
#pragma unroll
      for (int n = 0; n < V; n++) dy[i + n] = A(0);
      if (G::ROWS <= G::R || trail.lane.live(i))
        trail.in.staging.template read<ROLE_DOUT, V>(dy + i, buffer, t0, step,
                                                     trail.lane.tile_row + i);
    }
  }

  template <class X>
  DEVICE void put_sums(int step, const X& x, const typename L::Share& share) const {
#pragma unroll
    for (int n = 0; n < G::SUMS; n++)
      trail.lane.put(trail.sums.columns(n, step, thread_index() / 32), x[n], share);
  }

  // One step back; with MORE the next one's inputs are loaded. Bits of `cuts` are steps that start
  // from zeros.
  template <bool MORE>
  DEVICE void walk(int64_t t0, int step, int length, int buffer, unsigned cuts) {
    const auto share = trail.lane.halve(parts);
    A done[G::SUMS][L::LEFT];
#pragma unroll
    for (int n = 0; n < G::SUMS; n++) {
#pragma unroll
      for (int i = 0; i < L::LEFT; i++) done[n][i] = parts[n][i];
    }
    through_query();
    const bool zero = starts<G>(cuts, step);
    if (zero) clear_state<G>(before);
    RowGrad<A> d[TALL] = {};
    if constexpr (Cell::HOOK)
      through_hook(d);
    else
      through_update(d);
    through_read(d);
    Row<A> x[TALL];
    A dread[TALL];
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      x[i] = now.row[i];
      dread[i] = dy[i];
    }
#pragma unroll
    for (int j = 0; j < PIECE; j++) S[j] = before[j];
    if (zero) {
      clear_state<G>(dS);
      trail.recall(step, S);
    }
    if constexpr (MORE) {
      trail.recall(step - 1, before);
      load_step(t0, step - 1, buffer);
    }
    if (step + 1 < length) put_sums(step + 1, done, share);
    add_rows(step, x, d, dread);
  }

  // Adds what row i of the lane gives to a sum over the rows.
  static DEVICE void add_part(A& sum, int i, A x, A y) { sum = i ? fused(x, y, sum) : x * y; }

  // Through y = S q and phi.
  DEVICE void through_query() {
#pragma unroll
    for (int i = 0; i < TALL; i++) {
#pragma unroll
      for (int j = 0; j < C; j++) {
        const A s = S[i * C + j];
        A& ds = dS[i * C + j];
        add_part(parts[G::SUM_Q][j], i, s, dy[i]);
        ds = fused(dy[i], q[j], ds);
        if constexpr (Spec::TANH) ds *= fused(-s, s, A(1));
      }
    }
  }

  // Through c S + w k, or c col_j S + w k.
  DEVICE void through_update(RowGrad<A> (&d)[TALL]) {
    A dw[TALL], dc[TALL] = {};
    multiply<G>(dw, dS, now.k);
    trail.lane.row_sums(dw);
    if constexpr (G::NEEDS_DC) {
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        A scaled[C];
#pragma unroll
        for (int j = 0; j < C; j++)
          scaled[j] = Cell::COLUMN ? before[i * C + j] * now.col[j] : before[i * C + j];
        dc[i] = dot<C>(dS + i * C, scaled);
      }
      if constexpr (!G::LANE_DECAY) trail.lane.row_sums(dc);
    }
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      A c, w;
      Cell::row(now.row[i], c, w);
      Cell::row_bwd(now.row[i], c, w, dc[i], dw[i], d[i]);
#pragma unroll
      for (int j = 0; j < C; j++) {
        A& ds = dS[i * C + j];
        add_part(parts[G::SUM_K][j], i, ds, w);
        if constexpr (Cell::COLUMN) {
          add_part(parts[G::SUM_COL][j], i, ds,
                   Cell::KEEP ? before[i * C + j] : before[i * C + j] * c);
          ds *= now.col[j];
        }
        if constexpr (!Cell::KEEP) ds *= c;
      }
    }
  }

  DEVICE void through_hook(RowGrad<A> (&d)[TALL]) {
    A c[TALL], w[TALL], dc[TALL], dw[TALL];
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      Cell::row(now.row[i], c[i], w[i]);
      dc[i] = dw[i] = A(0);
#pragma unroll
      for (int j = 0; j < C; j++) {
        A ds, dc_part, dw_part, dk;
        Cell::element_bwd(before[i * C + j], c[i], w[i], now.k[j], dS[i * C + j], ds, dc_part,
                          dw_part, dk);
        dS[i * C + j] = ds;
        dc[i] += dc_part;
        dw[i] += dw_part;
        parts[G::SUM_K][j] = i ? parts[G::SUM_K][j] + dk : dk;
      }
    }
    trail.lane.row_sums(dw);
    trail.lane.row_sums(dc);
#pragma unroll
    for (int i = 0; i < TALL; i++) Cell::row_bwd(now.row[i], c[i], w[i], dc[i], dw[i], d[i]);
  }

  // Through r = S key and e.
  DEVICE void through_read(const RowGrad<A> (&d)[TALL]) {
    constexpr int sum = G::OWN_KEY ? G::SUM_KEY : G::SUM_K;
#pragma unroll
    for (int i = 0; i < TALL; i++) {
#pragma unroll
      for (int j = 0; j < C; j++) {
        A& ds = dS[i * C + j];
        if constexpr (Cell::READ) {
          ds = fused(d[i].r, now.read_key()[j], ds);
          add_part(parts[sum][j], G::OWN_KEY ? i : 1, d[i].r, before[i * C + j]);
        }
        if constexpr (Cell::ENERGY) ds += d[i].e * A(2.0 / G::N) * before[i * C + j];
      }
    }
  }

  // Hands on the gradients of what the rows saw, and sums those of their parameters.
  DEVICE void add_rows(int step, const Row<A> (&x)[TALL], const RowGrad<A> (&d)[TALL],
                       const A (&dread)[TALL]) {
    A dv[TALL], ddecay[TALL], dwrite[TALL], decay_sum = A(0);
#pragma unroll
    for (int i = 0; i < TALL; i++) {
#pragma unroll
      for (int n = 0; n < Cell::PARAMS; n++) dparams[i][n] += d[i].p[n];
      if constexpr (Spec::RESIDUAL) dresidual[i] += dread[i] * x[i].v;
      if constexpr (Spec::GATE_BIAS)
        dgate_bias[i] += trail.sums.dgate[step * G::ROWS + trail.lane.tile_row + i];
      dv[i] = Epilogue<Spec, A>{residual[i], A(0)}.value_bwd(d[i].v, dread[i]);
      ddecay[i] = d[i].decay;
      dwrite[i] = d[i].write;
      decay_sum += d[i].decay;
    }
    if constexpr (G::LANE_DECAY)
      trail.sums.ddecay[step * G::DECAY_STRIDE + thread_index()] = decay_sum;
    if constexpr (Cell::READ) sync_warp();  // every lane of the rows has its reads
    if (trail.lane.part) return;
    trail.lane.put_rows(trail.sums.dv, step, dv);
#pragma unroll
    for (int n = 0; n < Cell::GATES; n++) {
      A dgate[TALL];
#pragma unroll
      for (int i = 0; i < TALL; i++) dgate[i] = d[i].g[n];
      trail.lane.put_rows(trail.sums.dgates[n], step, dgate);
    }
    if constexpr (G::GRAD_DECAY && !G::LANE_DECAY)
      trail.lane.template put_rows<G::DECAY_STRIDE>(trail.sums.ddecay, step, ddecay);
    if constexpr (G::GRAD_WRITE)
      trail.lane.template put_rows<G::WRITE_STRIDE>(trail.sums.dwrite, step, dwrite);
  }

  // ---- the end of the sequence

  // Writes the gradient of the first state, and this block's part of those of the rows' parameters.
  DEVICE void end() const {
    const Args& a = trail.a;
    if (a.dfirst) trail.lane.store_state((A*)a.dfirst + trail.head_state(), dS);
    A* part = param_part<G>(a);
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      if (!trail.lane.live(i) || trail.lane.part) continue;
      const int row = trail.lane.tile_row + i;
#pragma unroll
      for (int n = 0; n < Cell::PARAMS; n++)
        store_one(part + G::param_offset(n) + row, dparams[i][n]);
      if constexpr (Spec::RESIDUAL)
        store_one(part + G::param_offset(PARAM_RESIDUAL) + row, dresidual[i]);
      if constexpr (Spec::GATE_BIAS)
        store_one(part + G::param_offset(PARAM_GATE_BIAS) + row, dgate_bias[i]);
    }
  }
};

}  // namespace elman
