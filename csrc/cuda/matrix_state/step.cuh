// One step of a lane's piece of the state, and what follows the recurrence: residual and gates.
#pragma once
#include "cells/epilogue.h"
#include "cuda/matrix_state/lane.cuh"
#include "cuda/matrix_state/resets.cuh"

namespace elman {

// What a lane needs of the inputs of one step.
template <class G>
struct Step {
  using A = typename G::A;
  static constexpr int TALL = G::TALL;
  A k[G::COLUMNS], key[G::OWN_KEY ? G::COLUMNS : 1], col[G::Cell::COLUMN ? G::COLUMNS : 1];
  Row<A> row[TALL];  // without r and e, which come from the old state

  template <class In, class L>
  DEVICE void read(const In& in, const L& lane, int step, const A (&params)[TALL][MAX_PARAMS]) {
    lane.read(k, in.k, step);
    if constexpr (G::OWN_KEY) lane.read(key, in.key, step);
    if constexpr (G::Cell::COLUMN) lane.read(col, in.col, step);
    A v[TALL], gates[MAX_GATES][TALL], decay = A(1), write = A(1);
    lane.read_rows(v, in.v, step);
#pragma unroll
    for (int n = 0; n < G::Cell::GATES; n++) lane.read_rows(gates[n], in.gates[n], step);
    if constexpr (G::Spec::DECAY != Map::none) decay = in.decay[step];
    if constexpr (G::Spec::WRITE != Map::none) write = in.write[step];
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      row[i].v = v[i];
#pragma unroll
      for (int n = 0; n < G::Cell::GATES; n++) row[i].g[n] = gates[n][i];
#pragma unroll
      for (int n = 0; n < G::Cell::PARAMS; n++) row[i].p[n] = params[i][n];
      row[i].decay = decay;
      row[i].write = write;
      row[i].r = row[i].e = A(0);
    }
  }

  // What a read multiplies the state by.
  DEVICE const A* read_key() const { return G::OWN_KEY ? key : k; }
};

// This lane's parts of the products of its rows with a vector over the columns.
template <class G, class A = typename G::A>
DEVICE void multiply(A (&sums)[G::TALL], const A* S, const A* x) {
#pragma unroll
  for (int i = 0; i < G::TALL; i++) sums[i] = dot<G::COLUMNS>(S + i * G::COLUMNS, x);
}

// What the rows read of the old state.
template <class G, class L, class A = typename G::A>
DEVICE void read_state(const L& lane, Step<G>& step, const A* S) {
  A sums[G::TALL];
  if constexpr (G::Cell::READ) {
    multiply<G>(sums, S, step.read_key());
    lane.row_sums(sums);
#pragma unroll
    for (int i = 0; i < G::TALL; i++) step.row[i].r = sums[i];
  }
  if constexpr (G::Cell::ENERGY) {
#pragma unroll
    for (int i = 0; i < G::TALL; i++)
      sums[i] = dot<G::COLUMNS>(S + i * G::COLUMNS, S + i * G::COLUMNS);
    lane.row_sums(sums);
#pragma unroll
    for (int i = 0; i < G::TALL; i++) step.row[i].e = sums[i] * A(1.0 / G::N);
  }
}

// Takes S one step further, up to phi; the rows have read it before.
template <class G, class A = typename G::A>
DEVICE void advance(const Step<G>& step, A* S) {
  using Cell = typename G::Cell;
#pragma unroll
  for (int i = 0; i < G::TALL; i++) {
    A c, w, *s = S + i * G::COLUMNS;
    Cell::row(step.row[i], c, w);
#pragma unroll
    for (int j = 0; j < G::COLUMNS; j++) {
      if constexpr (Cell::HOOK) {
        s[j] = Cell::element(s[j], c, w, step.k[j]);
      } else {
        if constexpr (Cell::COLUMN) s[j] *= step.col[j];
        if constexpr (!Cell::KEEP) s[j] *= c;
        s[j] = fused(w, step.k[j], s[j]);
      }
    }
  }
}

template <class G>
DEVICE void apply_phi(typename G::A* S) {
  if constexpr (G::Spec::TANH) {
#pragma unroll
    for (int j = 0; j < G::PIECE; j++) S[j] = tanh(S[j]);
  }
}

// Leaves this lane's parts of the reads of a step, to be summed later: [1 + step][part].
template <class G, class L, class A = typename G::A>
DEVICE void put_parts(const L& lane, sptr<A> y, int step, const A (&parts)[G::TALL]) {
#pragma unroll
  for (int i = 0; i < G::TALL; i++)
    y[(step + 1) * G::PARTS + G::part_at(lane.tile_row + i) + lane.part] = parts[i];
}

// Runs the first `length` steps of a prepared segment. With READS every lane's parts of the reads y
// = S q are left in `y`. `visitor` is shown the state before every step and what each row read;
// `visitor.stop` says how far to run until it is asked again. The inputs of a step are loaded one
// step ahead. Bits of `resets` are steps that start from zeros.
template <class G, bool READS, class In, class L, class F, class A = typename G::A>
DEVICE void run_steps(const In& in, const L& lane, int length,
                      const A (&params)[G::TALL][MAX_PARAMS], A* S, sptr<A> y, F& visitor,
                      unsigned resets) {
  A q[G::COLUMNS], parts[G::TALL];
  Step<G> now;
  now.read(in, lane, 0, params);
  // The read before the first step is not used.
  if constexpr (READS) lane.read(q, in.q, 0);
  const auto advance_to = [&](int step) {
    visitor.state(step, S);
    if constexpr (READS) multiply<G>(parts, S, q);  // of the step before
    if (starts<G>(resets, step)) clear_state<G>(S);
    read_state<G>(lane, now, S);
    advance<G>(now, S);
    visitor.rows(step, now.row);
    now.read(in, lane, step + 1, params);
    if constexpr (READS) lane.read(q, in.q, step);
    apply_phi<G>(S);
    if constexpr (READS) put_parts<G>(lane, y, step - 1, parts);
  };
  // Several steps at once: where addresses change, the assembler waits for the loads of the last
  // one. The inner loop has a constant length, since NVRTC 13.0 does not unroll the outer one when
  // it is asked to.
  constexpr int SMALL = G::Cell::READ ? 8 : 16;
  constexpr int UNROLL = G::PIECE <= SMALL ? 8 : G::PIECE <= 32 ? 4 : 1;
  for (int step = 0; step < length;) {
    const int to = visitor.stop(step, length, S);
    if constexpr (UNROLL > 1) {
#pragma unroll 1
      for (; step <= to - UNROLL; step += UNROLL) {
#pragma unroll
        for (int i = 0; i < UNROLL; i++) advance_to(step + i);
      }
    }
#pragma unroll 1
    for (; step < to; step++) advance_to(step);
  }
  if constexpr (READS) {
    multiply<G>(parts, S, q);
    put_parts<G>(lane, y, length - 1, parts);
  }
}

// The reads of V rows from `row` on: the sums of their LANES parts.
template <class G, int V, class A = typename G::A>
DEVICE void sum_parts(A* x, sptr<A> y, int step, int row) {
  constexpr int N = least(4, G::LANES);
#pragma unroll
  for (int e = 0; e < V; e++) {
    const sptr<A> parts = y + ((step + 1) * G::PARTS + G::part_at(row + e));
    x[e] = A(0);
#pragma unroll
    for (int n = 0; n < G::LANES; n += N) {
      A part[N];
      load<N, A>(part, parts + n);
#pragma unroll
      for (int m = 0; m < N; m++) x[e] += part[m];
    }
  }
}

// A visitor that looks at nothing.
template <class A>
struct Unseen {
  DEVICE int stop(int, int length, const A*) const { return length; }
  DEVICE void state(int, const A*) const {}
  DEVICE void rows(int, const Row<A>*) const {}
};

// Reads the parameters of a lane's rows; zero where the head has no such row.
template <class G, class L, class A = typename G::A>
DEVICE void read_params(const Args& a, const Place& at, const L& lane,
                        A (&params)[G::TALL][MAX_PARAMS]) {
#pragma unroll
  for (int i = 0; i < G::TALL; i++) {
#pragma unroll
    for (int n = 0; n < MAX_PARAMS; n++) {
      params[i][n] = A(0);
      if constexpr (G::Cell::PARAMS > 0)
        if (n < G::Cell::PARAMS && lane.live(i))
          params[i][n] = param<G>(a, n, (int64_t)at.head * G::R + lane.row + i);
    }
  }
}

template <class G, class L>
DEVICE void load_first(const Args& a, const Place& at, const L& lane, typename G::A* S) {
  const int64_t state = (at.batch * a.H + at.head) * G::R * G::N;
  if (a.first) {
    lane.load_state(S, (const typename G::A*)a.first + state);
  } else {
    clear_state<G>(S);
  }
}

// The state before step `segment` K of the pass that keeps it, segment > 0.
template <class G>
DEVICE typename G::Checkpoint* checkpoint(const Args& a, const Place& at, int64_t segment) {
  const int64_t head = at.batch * a.H + at.head;
  return (typename G::Checkpoint*)a.checkpoints + ((segment - 1) * a.B * a.H + head) * G::R * G::N;
}

// What the epilogue needs of the rows that a thread deals with.
template <class G, bool BACKWARD>
struct Output {
  using A = typename G::A;
  using Spec = typename G::Spec;
  using Rows = ThreadMap<G, G::width(ROLE_V), BACKWARD>;
  A residual[Rows::NUMBERS], bias[Rows::NUMBERS];

  DEVICE Output(const Args& a, const Place& at) {
#pragma unroll
    for (int i = 0; i < Rows::NUMBERS; i++) {
      const int row = Rows::first(i / Rows::V) + i % Rows::V;
      const int64_t index = (int64_t)at.head * G::R + at.row_tile * G::ROWS + row;
      const bool there = row < rows_here<G>(at);
      residual[i] = bias[i] = A(0);
      if constexpr (Spec::RESIDUAL)
        if (there) residual[i] = param<G>(a, PARAM_RESIDUAL, index);
      if constexpr (Spec::GATE_BIAS)
        if (there) bias[i] = param<G>(a, PARAM_GATE_BIAS, index);
    }
  }

  // Of number i of the thread.
  DEVICE Epilogue<Spec, A> of(int i) const { return {residual[i], bias[i]}; }
};

}  // namespace elman
