// The backward pass: segment by segment from the last, the states of a segment are computed again
// from its checkpoint and kept on chip, then the steps are walked back.
#pragma once
#include "gradients.cuh"

namespace elman {

template <class G>
struct Backward {
  using A = typename G::A;
  using Spec = typename G::Spec;
  using Cell = typename G::Cell;
  using Kept = typename G::Kept;
  using L = Lane<G, true>;
  static constexpr int C = G::COLUMNS;

  const Args& a;
  Arena arena;
  Inputs<G, true> in;
  Sums<G> sums;
  sptr<A> reads, energies;  // [step][row], of the replay
  sptr<A> y;                // [1 + step][thread], of the replay
  sptr<Kept> history;       // states before the steps, or in global memory:
  Kept* scratch;
  const Kept* kept = nullptr;  // the checkpoint that the segment starts from
  Place at;
  L lane;
  A params[MAX_PARAMS], residual;
  A dparams[MAX_PARAMS], dresidual, dgate_bias;
  // In the walk: the state after a step and its gradient, the state before it, what the step reads,
  // and this lane's parts of the sums over the rows for the step that was walked before.
  A S[C], dS[C], before[C], q[C], parts[G::SUMS][C], dy;
  Step<G> now;

  DEVICE explicit Backward(const Args& args)
      : a(args),
        in(arena, args, (args.T - 1) / G::STEPS * G::STEPS),
        sums(arena),
        at(in.raw.at),
        lane(in.raw.at) {
    constexpr int numbers = G::STEPS * G::ROWS;
    in.clear();
    // A read is needed until its step has been walked; then the gradient of v takes its place.
    reads = sums.dv;
    if constexpr (Cell::ENERGY) energies = arena.take<A>(numbers);
    if constexpr (G::NEEDS_Y) y = arena.take<A>(G::AHEAD * G::THREADS);
    if constexpr (!G::SCRATCH) history = arena.take<Kept>(G::HISTORY);
    scratch = (Kept*)((A*)a.workspace + scratch_offset<G>(a)) + block_index() * G::HISTORY;
    read_params<G>(a, at, lane, params);
    residual = dresidual = dgate_bias = A(0);
    if constexpr (Spec::RESIDUAL)
      if (lane.live) residual = param<G>(a, PARAM_RESIDUAL, (int64_t)at.head * G::R + lane.row);
#pragma unroll
    for (int i = 0; i < MAX_PARAMS; i++) dparams[i] = A(0);
    if (!a.dout) clear_output_gradient();
  }

  // Where there is no gradient of the output, nothing is copied, and zeros are read.
  DEVICE void clear_output_gradient() {
#pragma unroll
    for (int buffer = 0; buffer < 2; buffer++) {
      const sptr<unsigned> words = cast<unsigned>(in.raw.template rows<ROLE_DOUT>(buffer));
#pragma unroll 1
      for (int i = thread_index(); i < G::STEPS * G::row_bytes(ROLE_DOUT) / 4; i += G::THREADS)
        words[i] = 0u;
    }
  }

  DEVICE void run() {
    Gradients<G> gradients(a, at);
    if (a.T > G::STEPS) kept = checkpoint<G>(a, at, (a.T - 1) / G::STEPS);
    const int64_t state = (at.batch * a.H + at.head) * G::R * G::N;
    load_or_zero(dS, (const A*)a.dlast, state);
    int64_t segment = (a.T - 1) / G::STEPS;
    int buffer = 0;
    in.raw.fetch((int)(a.T - segment * G::STEPS), buffer);
    for (; segment >= 0; segment--, buffer ^= 1) {
      const int64_t t0 = segment * G::STEPS;
      const int length = (int)least64(G::STEPS, a.T - t0);
      wait_copies<0>();
      sync<G>();
      if (segment) in.raw.fetch(G::STEPS, buffer ^ 1);
      load_start(segment);
      in.prepare(t0, buffer);
      sync<G>();
      run_steps<G, G::NEEDS_Y>(in, lane, length, params, S, y, Replayed{*this});
      sync<G>();
      if constexpr (G::NEEDS_Y) {
        gradients.output(in, sums, y, {t0, length, buffer});
        sync<G>();
      }
      walk_back(t0, length, buffer);
      sync<G>();
      gradients.write(in, sums, {t0, length, buffer});
    }
    if (a.dfirst) lane.store_state((A*)a.dfirst + state, dS);
    gradients.write_params(sums, lane, dparams, dresidual, dgate_bias);
  }

  DEVICE void load_or_zero(A* x, const A* states, int64_t state) const {
    if (states) {
      lane.load_state(x, states + state);
    } else {
#pragma unroll
      for (int j = 0; j < C; j++) x[j] = A(0);
    }
  }

  // Sets S to the state before the first step of a segment.
  DEVICE void load_start(int64_t segment) {
    if (segment) {
      lane.load_state(S, kept);
      kept -= a.B * a.H * G::R * G::N;
    } else {
      load_or_zero(S, (const A*)a.first, (at.batch * a.H + at.head) * G::R * G::N);
    }
  }

  // ---- the replay

  // Keeps what the walk needs: the state before every step, what a row read.
  struct Replayed {
    Backward& pass;
    DEVICE void state(int step, const A* before) const { pass.keep(step, before); }
    DEVICE void row(int step, const Row<A>& x) const {
      const int row = step * G::ROWS + pass.lane.slab_row;
      if (pass.lane.part) return;
      if constexpr (Cell::READ) pass.reads[row] = x.r;
      if constexpr (Cell::ENERGY) pass.energies[row] = x.e;
    }
  };

  // Where vector m of this thread's state before `step` stands.
  DEVICE int history_at(int step, int m) const {
    constexpr int VECTORS = G::KEPT_COLUMNS / G::KEPT_VECTOR;
    return ((step * VECTORS + m) * G::THREADS + thread_index()) * G::KEPT_VECTOR;
  }

  DEVICE void keep(int step, const A* state) const {
    A x[G::KEPT_COLUMNS] = {};
#pragma unroll
    for (int j = 0; j < C; j++) x[j] = state[j];
#pragma unroll
    for (int m = 0; m < G::KEPT_COLUMNS / G::KEPT_VECTOR; m++) {
      const A* vector = x + m * G::KEPT_VECTOR;
      if constexpr (G::SCRATCH)
        store<G::KEPT_VECTOR, Kept>(scratch + history_at(step, m), vector);
      else
        store<G::KEPT_VECTOR, Kept>(history + history_at(step, m), vector);
    }
  }

  DEVICE void recall(int step, A* state) const {
    A x[G::KEPT_COLUMNS];
#pragma unroll
    for (int m = 0; m < G::KEPT_COLUMNS / G::KEPT_VECTOR; m++) {
      A* vector = x + m * G::KEPT_VECTOR;
      if constexpr (G::SCRATCH)
        load<G::KEPT_VECTOR, Kept>(vector, (const Kept*)scratch + history_at(step, m));
      else
        load<G::KEPT_VECTOR, Kept>(vector, history + history_at(step, m));
    }
#pragma unroll
    for (int j = 0; j < C; j++) state[j] = x[j];
  }

  // ---- the walk

  // Walks back from the gradient of the state after the segment to that of the state before it.
  // Loads run a step ahead of their use, and sums over the rows a step behind.
  DEVICE void walk_back(int64_t t0, int length, int buffer) {
#pragma unroll
    for (int j = 0; j < C; j++) {
#pragma unroll
      for (int n = 0; n < G::SUMS; n++) parts[n][j] = A(0);
    }
    recall(length - 1, before);
    load_step(t0, length - 1, buffer);
#pragma unroll 2
    for (int step = length - 1; step > 0; step--) walk<true>(t0, step, length, buffer);
    walk<false>(t0, 0, length, buffer);
    const auto share = lane.halve(parts);
    put_sums(0, parts, share);
  }

  // What a step of the walk reads of the inputs.
  DEVICE void load_step(int64_t t0, int step, int buffer) {
    now.read(in, lane, step, params);
    lane.read(q, in.q, step);
    const int row = step * G::ROWS + lane.slab_row;
    if constexpr (Cell::READ) now.row.r = reads[row];
    if constexpr (Cell::ENERGY) now.row.e = energies[row];
    dy = A(0);
    if constexpr (G::NEEDS_Y)
      dy = sums.dy[row];
    else if (G::ROWS <= G::R || lane.live)
      in.raw.template read<ROLE_DOUT, 1>(&dy, buffer, t0, step, lane.slab_row);
  }

  template <class X>
  DEVICE void put_sums(int step, const X& x, const typename L::Share& share) const {
#pragma unroll
    for (int n = 0; n < G::SUMS; n++)
      lane.put(sums.columns(n, step, thread_index() / 32), x[n], share);
  }

  // One step back; with MORE the next one's inputs are loaded.
  template <bool MORE>
  DEVICE void walk(int64_t t0, int step, int length, int buffer) {
    const auto share = lane.halve(parts);
    A done[G::SUMS][L::LEFT];
#pragma unroll
    for (int n = 0; n < G::SUMS; n++) {
#pragma unroll
      for (int i = 0; i < L::LEFT; i++) done[n][i] = parts[n][i];
    }
    through_query();
    A c, w;
    Cell::row(now.row, c, w);
    RowGrad<A> d = {};
    if constexpr (Cell::HOOK)
      through_hook(c, w, d);
    else
      through_update(c, w, d);
    const Row<A> x = now.row;
    const A dread = dy;
#pragma unroll
    for (int j = 0; j < C; j++) S[j] = before[j];
    if constexpr (MORE) {
      recall(step - 1, before);
      load_step(t0, step - 1, buffer);
    }
    if (step + 1 < length) put_sums(step + 1, done, share);
    add_row(step, x, d, dread);
  }

  // Through y = S q and phi.
  DEVICE void through_query() {
#pragma unroll
    for (int j = 0; j < C; j++) {
      parts[G::SUM_Q][j] = S[j] * dy;
      dS[j] = fused(dy, q[j], dS[j]);
      if constexpr (Spec::TANH) dS[j] *= fused(-S[j], S[j], A(1));
    }
  }

  // Through c S + w k, or c col_j S + w k, and the read.
  DEVICE void through_update(A c, A w, RowGrad<A>& d) {
    A sums_of_row[2] = {dot<C>(dS, now.k), A(0)};
    if constexpr (G::NEEDS_DC) {
      A scaled[C];
#pragma unroll
      for (int j = 0; j < C; j++) scaled[j] = Cell::COLUMN ? before[j] * now.col[j] : before[j];
      sums_of_row[1] = dot<C>(dS, scaled);
    }
    lane.template row_sums<true, G::NEEDS_DC && !G::LANE_DECAY>(sums_of_row);
    Cell::row_bwd(now.row, c, w, sums_of_row[1], sums_of_row[0], d);
#pragma unroll
    for (int j = 0; j < C; j++) {
      parts[G::SUM_K][j] = dS[j] * w;
      if constexpr (Cell::COLUMN) {
        parts[G::SUM_COL][j] = dS[j] * before[j];
        if constexpr (!Cell::KEEP) parts[G::SUM_COL][j] *= c;
        dS[j] *= now.col[j];
      }
      if constexpr (!Cell::KEEP) dS[j] *= c;
    }
    through_read(d);
  }

  DEVICE void through_hook(A c, A w, RowGrad<A>& d) {
    A sums_of_row[2] = {A(0), A(0)};
#pragma unroll
    for (int j = 0; j < C; j++) {
      A ds, dc, dw;
      Cell::element_bwd(before[j], c, w, now.k[j], dS[j], ds, dc, dw, parts[G::SUM_K][j]);
      dS[j] = ds;
      sums_of_row[0] += dw;
      sums_of_row[1] += dc;
    }
    lane.template row_sums<true, true>(sums_of_row);
    Cell::row_bwd(now.row, c, w, sums_of_row[1], sums_of_row[0], d);
    through_read(d);
  }

  // Through r = S key and e.
  DEVICE void through_read(const RowGrad<A>& d) {
    constexpr int sum = G::OWN_KEY ? G::SUM_KEY : G::SUM_K;
#pragma unroll
    for (int j = 0; j < C; j++) {
      if constexpr (Cell::READ) {
        dS[j] = fused(d.r, now.read_key()[j], dS[j]);
        parts[sum][j] = G::OWN_KEY ? d.r * before[j] : fused(d.r, before[j], parts[sum][j]);
      }
      if constexpr (Cell::ENERGY) dS[j] += d.e * A(2.0 / G::N) * before[j];
    }
  }

  // Hands on the gradients of what the row saw, and sums those of its parameters.
  DEVICE void add_row(int step, const Row<A>& x, const RowGrad<A>& d, A dread) {
    const int row = step * G::ROWS + lane.slab_row;
#pragma unroll
    for (int i = 0; i < Cell::PARAMS; i++) dparams[i] += d.p[i];
    if constexpr (Spec::RESIDUAL) dresidual += dread * x.v;
    if constexpr (Spec::GATE_BIAS) dgate_bias += sums.dgate[row];
    if constexpr (G::LANE_DECAY) sums.ddecay[step * G::DECAY_STRIDE + thread_index()] = d.decay;
    if constexpr (Cell::READ) sync_warp();  // every lane of the row has its read
    if (lane.part) return;
    sums.dv[row] = Spec::RESIDUAL ? d.v + dread * residual : d.v;
#pragma unroll
    for (int i = 0; i < Cell::GATES; i++) sums.dgates[i][row] = d.g[i];
    if constexpr (G::GRAD_DECAY && !G::LANE_DECAY)
      sums.ddecay[step * G::DECAY_STRIDE + lane.slab_row] = d.decay;
    if constexpr (G::GRAD_WRITE) sums.dwrite[step * G::WRITE_STRIDE + lane.slab_row] = d.write;
  }
};

template <class G>
DEVICE void matrix_backward(const Args& a) {
  Backward<G> pass(a);
  pass.run();
}

}  // namespace elman
