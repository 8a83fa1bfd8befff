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
  static constexpr int C = G::COLUMNS, TALL = G::TALL, PIECE = G::PIECE;

  const Args& a;
  Arena arena;
  Inputs<G, true> in;
  Sums<G> sums;
  sptr<A> reads, energies;  // [step][row], of the replay
  sptr<A> y;                // of the replay, see put_parts
  sptr<Kept> history;       // states before the steps, or in global memory:
  Kept* scratch;
  const Kept* kept = nullptr;  // the checkpoint that the segment starts from
  Place at;
  L lane;
  A params[TALL][MAX_PARAMS], residual[TALL];
  A dparams[TALL][MAX_PARAMS], dresidual[TALL], dgate_bias[TALL];
  // In the walk: the state after a step and its gradient, the state before it, what the step reads,
  // and this lane's parts of the sums over the rows for the step that was walked before.
  A S[PIECE], dS[PIECE], before[PIECE], q[C], parts[G::SUMS][C], dy[TALL];
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
    if constexpr (G::NEEDS_Y) y = arena.take<A>(G::AHEAD * G::PARTS);
    if constexpr (!G::SCRATCH) history = arena.take<Kept>(G::HISTORY);
    scratch = (Kept*)((A*)a.workspace + scratch_offset<G>(a)) + block_index() * G::HISTORY;
    read_params<G>(a, at, lane, params);
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      residual[i] = dresidual[i] = dgate_bias[i] = A(0);
      if constexpr (Spec::RESIDUAL)
        if (lane.live(i))
          residual[i] = param<G>(a, PARAM_RESIDUAL, (int64_t)at.head * G::R + lane.row + i);
#pragma unroll
      for (int n = 0; n < MAX_PARAMS; n++) dparams[i][n] = A(0);
    }
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
    copy_start(segment);
    in.raw.fetch((int)(a.T - segment * G::STEPS), buffer);
    for (; segment >= 0; segment--, buffer ^= 1) {
      const int64_t t0 = segment * G::STEPS;
      const int length = (int)least64(G::STEPS, a.T - t0);
      wait_copies<0>();
      sync<G>();
      load_start(segment);
      if (segment) in.raw.fetch(G::STEPS, buffer ^ 1);
      in.prepare(t0, buffer);
      sync<G>();
      Replayed replayed{*this};
      run_steps<G, G::NEEDS_Y>(in, lane, length, params, S, y, replayed);
      sync<G>();
      if constexpr (G::NEEDS_Y) {
        gradients.output(in, sums, y, {t0, length, buffer});
        sync<G>();
      }
      recall(length - 1, before);
      if (segment) copy_start(segment - 1);
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
      for (int j = 0; j < PIECE; j++) x[j] = A(0);
    }
  }

  // Starts copying the state before the first step of a segment to where the replay will keep the
  // state before its last one, which nobody needs until then.
  DEVICE void copy_start(int64_t segment) {
    if constexpr (G::COPIES_KEPT) {
      if (segment == 0) return;
      constexpr int EACH = G::KEPT_VECTOR / G::VECTOR;
      const auto to = [&](int n) {
        return cast<unsigned char>(history + history_at(G::STEPS - 1, n / EACH)) +
               n % EACH * G::VECTOR * (int)sizeof(Kept);
      };
      lane.copy_state(to, kept);
      commit_copies();
      kept -= a.B * a.H * G::R * G::N;
    }
  }

  // Sets S to the state before the first step of a segment; its copies have come.
  DEVICE void load_start(int64_t segment) {
    if (segment == 0) {
      load_or_zero(S, (const A*)a.first, (at.batch * a.H + at.head) * G::R * G::N);
    } else if constexpr (G::COPIES_KEPT) {
      recall(G::STEPS - 1, S);
      lane.unpack_state(S);
    } else {
      lane.load_state(S, kept);
      kept -= a.B * a.H * G::R * G::N;
    }
  }

  // ---- the replay

  // Keeps what the walk needs: the state before every step, what a row read.
  struct Replayed {
    Backward& pass;
    DEVICE int stop(int, int length, const A*) const { return length; }
    DEVICE void state(int step, const A* before) const { pass.keep(step, before); }
    DEVICE void rows(int step, const Row<A>* x) const {
      if (pass.lane.part) return;
      A r[TALL], e[TALL];
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        r[i] = x[i].r;
        e[i] = x[i].e;
      }
      if constexpr (Cell::READ) pass.lane.put_rows(pass.reads, step, r);
      if constexpr (Cell::ENERGY) pass.lane.put_rows(pass.energies, step, e);
    }
  };

  // Where vector m of this thread's state before `step` stands.
  DEVICE int history_at(int step, int m) const {
    constexpr int VECTORS = G::KEPT_NUMBERS / G::KEPT_VECTOR;
    return ((step * VECTORS + m) * G::THREADS + thread_index()) * G::KEPT_VECTOR;
  }

  DEVICE void keep(int step, const A* state) const {
    A x[G::KEPT_NUMBERS] = {};
#pragma unroll
    for (int j = 0; j < PIECE; j++) x[j] = state[j];
#pragma unroll
    for (int m = 0; m < G::KEPT_NUMBERS / G::KEPT_VECTOR; m++) {
      const A* vector = x + m * G::KEPT_VECTOR;
      if constexpr (G::SCRATCH)
        store<G::KEPT_VECTOR, Kept>(scratch + history_at(step, m), vector);
      else
        store<G::KEPT_VECTOR, Kept>(history + history_at(step, m), vector);
    }
  }

  DEVICE void recall(int step, A* state) const {
    A x[G::KEPT_NUMBERS];
#pragma unroll
    for (int m = 0; m < G::KEPT_NUMBERS / G::KEPT_VECTOR; m++) {
      A* vector = x + m * G::KEPT_VECTOR;
      if constexpr (G::SCRATCH)
        load<G::KEPT_VECTOR, Kept>(vector, (const Kept*)scratch + history_at(step, m));
      else
        load<G::KEPT_VECTOR, Kept>(vector, history + history_at(step, m));
    }
#pragma unroll
    for (int j = 0; j < PIECE; j++) state[j] = x[j];
  }

  // ---- the walk

  // Walks back from the gradient of the state after the segment to that of the state before it,
  // with the state before the last step in `before`. Loads run a step ahead of their use, and sums
  // over the rows a step behind.
  DEVICE void walk_back(int64_t t0, int length, int buffer) {
#pragma unroll
    for (int j = 0; j < C; j++) {
#pragma unroll
      for (int n = 0; n < G::SUMS; n++) parts[n][j] = A(0);
    }
    load_step(t0, length - 1, buffer);
    // Large pieces with gates have no registers left for two.
    constexpr int UNROLL = G::PIECE >= 32 && Cell::GATES > 0 ? 1 : 2;
    int step = length - 1;
#pragma unroll 1
    for (; step >= UNROLL; step -= UNROLL) {
#pragma unroll
      for (int i = 0; i < UNROLL; i++) walk<true>(t0, step - i, length, buffer);
    }
#pragma unroll 1
    for (; step > 0; step--) walk<true>(t0, step, length, buffer);
    walk<false>(t0, 0, length, buffer);
    const auto share = lane.halve(parts);
    put_sums(0, parts, share);
  }

  // What a step of the walk reads of the inputs.
  DEVICE void load_step(int64_t t0, int step, int buffer) {
    now.read(in, lane, step, params);
    lane.read(q, in.q, step);
    A r[TALL] = {}, e[TALL] = {};
    if constexpr (Cell::READ) lane.read_rows(r, reads, step);
    if constexpr (Cell::ENERGY) lane.read_rows(e, energies, step);
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      now.row[i].r = r[i];
      now.row[i].e = e[i];
    }
    if constexpr (G::NEEDS_Y)
      lane.read_rows(dy, sums.dy, step);
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
      if (G::ROWS <= G::R || lane.live(i))
        in.raw.template read<ROLE_DOUT, V>(dy + i, buffer, t0, step, lane.slab_row + i);
    }
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
    if constexpr (MORE) {
      recall(step - 1, before);
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
    lane.row_sums(dw);
    if constexpr (G::NEEDS_DC) {
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        A scaled[C];
#pragma unroll
        for (int j = 0; j < C; j++)
          scaled[j] = Cell::COLUMN ? before[i * C + j] * now.col[j] : before[i * C + j];
        dc[i] = dot<C>(dS + i * C, scaled);
      }
      if constexpr (!G::LANE_DECAY) lane.row_sums(dc);
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
    lane.row_sums(dw);
    lane.row_sums(dc);
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
        dgate_bias[i] += sums.dgate[step * G::ROWS + lane.slab_row + i];
      dv[i] = Spec::RESIDUAL ? d[i].v + dread[i] * residual[i] : d[i].v;
      ddecay[i] = d[i].decay;
      dwrite[i] = d[i].write;
      decay_sum += d[i].decay;
    }
    if constexpr (G::LANE_DECAY) sums.ddecay[step * G::DECAY_STRIDE + thread_index()] = decay_sum;
    if constexpr (Cell::READ) sync_warp();  // every lane of the rows has its reads
    if (lane.part) return;
    lane.put_rows(sums.dv, step, dv);
#pragma unroll
    for (int n = 0; n < Cell::GATES; n++) {
      A dgate[TALL];
#pragma unroll
      for (int i = 0; i < TALL; i++) dgate[i] = d[i].g[n];
      lane.put_rows(sums.dgates[n], step, dgate);
    }
    if constexpr (G::GRAD_DECAY && !G::LANE_DECAY)
      store<TALL, A>(sums.ddecay + (step * G::DECAY_STRIDE + lane.slab_row), ddecay);
    if constexpr (G::GRAD_WRITE)
      store<TALL, A>(sums.dwrite + (step * G::WRITE_STRIDE + lane.slab_row), dwrite);
  }
};

template <class G>
DEVICE void matrix_backward(const Args& a) {
  Backward<G> pass(a);
  pass.run();
}

}  // namespace elman
