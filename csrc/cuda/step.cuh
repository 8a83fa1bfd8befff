// One step of a lane's piece of the state, and what follows the recurrence: residual and gates.
#pragma once
#include "lane.cuh"

namespace elman {

// What a lane needs of the inputs of one step.
template <class G>
struct Step {
  using A = typename G::A;
  A k[G::COLUMNS], key[G::OWN_KEY ? G::COLUMNS : 1], col[G::Cell::COLUMN ? G::COLUMNS : 1];
  Row<A> row;  // without r and e, which come from the old state

  template <class In, class L>
  DEVICE void read(const In& in, const L& lane, int step, const A* params) {
    lane.read(k, in.k, step);
    if constexpr (G::OWN_KEY) lane.read(key, in.key, step);
    if constexpr (G::Cell::COLUMN) lane.read(col, in.col, step);
    const int at = step * G::ROWS + lane.slab_row;
    row.v = in.v[at];
#pragma unroll
    for (int i = 0; i < G::Cell::GATES; i++) row.g[i] = in.gates[i][at];
#pragma unroll
    for (int i = 0; i < G::Cell::PARAMS; i++) row.p[i] = params[i];
    row.decay = row.write = A(1);
    row.r = row.e = A(0);
    if constexpr (G::Spec::DECAY != Map::none) row.decay = in.decay[step];
    if constexpr (G::Spec::WRITE != Map::none) row.write = in.write[step];
  }

  // What a read multiplies the state by.
  DEVICE const A* read_key() const { return G::OWN_KEY ? key : k; }
};

// Takes S one step further, up to phi. With READS returns this lane's part of S q, of the old S.
template <class G, bool READS, class L>
DEVICE typename G::A advance(const L& lane, Step<G>& step, const typename G::A* q,
                             typename G::A* S) {
  using A = typename G::A;
  using Cell = typename G::Cell;
  constexpr int C = G::COLUMNS;
  A sums[2] = {A(0), A(0)}, read = 0;
  if constexpr (Cell::READ) sums[0] = dot<C>(S, step.read_key());
  if constexpr (Cell::ENERGY) sums[1] = dot<C>(S, S);
  if constexpr (READS) read = dot<C>(S, q);
  lane.template row_sums<Cell::READ, Cell::ENERGY>(sums);
  step.row.r = sums[0];
  step.row.e = sums[1] * A(1.0 / G::N);
  A c, w;
  Cell::row(step.row, c, w);
#pragma unroll
  for (int j = 0; j < C; j++) {
    if constexpr (Cell::HOOK) {
      S[j] = Cell::element(S[j], c, w, step.k[j]);
    } else {
      if constexpr (Cell::COLUMN) S[j] *= step.col[j];
      if constexpr (!Cell::KEEP) S[j] *= c;
      S[j] = fused(w, step.k[j], S[j]);
    }
  }
  return read;
}

template <class G>
DEVICE void apply_phi(typename G::A* S) {
  if constexpr (G::Spec::TANH) {
#pragma unroll
    for (int j = 0; j < G::COLUMNS; j++) S[j] = tanh(S[j]);
  }
}

// Runs the `length` steps of a prepared segment. With READS every lane's parts of the reads y = S q
// are left in `y` [1 + step][thread], to be summed later. `visitor` sees the state before every
// step, and what each row saw. What a step needs is loaded one step ahead.
template <class G, bool READS, class In, class L, class F>
DEVICE void run_steps(const In& in, const L& lane, int length, const typename G::A* params,
                      typename G::A* S, sptr<typename G::A> y, const F& visitor) {
  using A = typename G::A;
  A q[G::COLUMNS];
  Step<G> now;
  now.read(in, lane, 0, params);
#pragma unroll
  for (int j = 0; j < G::COLUMNS; j++) q[j] = A(0);
#pragma unroll 2
  for (int step = 0; step < length; step++) {
    visitor.state(step, S);
    const A read = advance<G, READS>(lane, now, q, S);
    const Row<A> row = now.row;
    now.read(in, lane, step + 1, params);
    if constexpr (READS) lane.read(q, in.q, step);
    apply_phi<G>(S);
    if constexpr (READS) y[step * G::THREADS + thread_index()] = read;  // of the step before
    visitor.row(step, row);
  }
  if constexpr (READS) y[length * G::THREADS + thread_index()] = dot<G::COLUMNS>(S, q);
}

// The reads of V rows from `row` on: the sums of their LANES parts.
template <class G, int V>
DEVICE void sum_parts(typename G::A* x, sptr<typename G::A> y, int step, int row) {
  using A = typename G::A;
  const sptr<A> parts = y + ((step + 1) * G::THREADS + row * G::LANES);
  if constexpr (G::LANES == 1) {
    load<V, A>(x, parts);
  } else {
    constexpr int N = least(4, G::LANES);
#pragma unroll
    for (int e = 0; e < V; e++) {
      x[e] = A(0);
#pragma unroll
      for (int i = 0; i < G::LANES; i += N) {
        A part[N];
        load<N, A>(part, parts + (e * G::LANES + i));
#pragma unroll
        for (int n = 0; n < N; n++) x[e] += part[n];
      }
    }
  }
}

// A visitor that looks at nothing.
template <class A>
struct Unseen {
  DEVICE void state(int, const A*) const {}
  DEVICE void row(int, const Row<A>&) const {}
};

// Reads a lane's row parameters; zero where the head has no such row.
template <class G, class L>
DEVICE void read_params(const Args& a, const Place& at, const L& lane, typename G::A* params) {
#pragma unroll
  for (int i = 0; i < MAX_PARAMS; i++) {
    params[i] = typename G::A(0);
    if constexpr (G::Cell::PARAMS > 0)
      if (i < G::Cell::PARAMS && lane.live)
        params[i] = param<G>(a, i, (int64_t)at.head * G::R + lane.row);
  }
}

template <class G, class L>
DEVICE void load_first(const Args& a, const Place& at, const L& lane, typename G::A* S) {
  const int64_t state = (at.batch * a.H + at.head) * G::R * G::N;
  if (a.first) {
    lane.load_state(S, (const typename G::A*)a.first + state);
  } else {
#pragma unroll
    for (int j = 0; j < G::COLUMNS; j++) S[j] = typename G::A(0);
  }
}

// The state before step `segment` K, segment > 0.
template <class G>
DEVICE typename G::Kept* checkpoint(const Args& a, const Place& at, int64_t segment) {
  const int64_t head = at.batch * a.H + at.head;
  return (typename G::Kept*)a.checkpoints + ((segment - 1) * a.B * a.H + head) * G::R * G::N;
}

// What follows the recurrence at one number: y += residual v, y silu(y), y act(gate + bias).
template <class G, bool BACKWARD>
struct Output {
  using A = typename G::A;
  using Spec = typename G::Spec;
  using Rows = Spread<G, G::width(ROLE_V), BACKWARD>;
  A residual[Rows::NUMBERS], bias[Rows::NUMBERS];  // of the rows that a thread deals with

  DEVICE Output(const Args& a, const Place& at) {
#pragma unroll
    for (int i = 0; i < Rows::NUMBERS; i++) {
      const int row = Rows::first(i / Rows::V) + i % Rows::V;
      const int64_t index = (int64_t)at.head * G::R + at.slab * G::ROWS + row;
      const bool there = row < rows_here<G>(at);
      residual[i] = bias[i] = A(0);
      if constexpr (Spec::RESIDUAL)
        if (there) residual[i] = param<G>(a, PARAM_RESIDUAL, index);
      if constexpr (Spec::GATE_BIAS)
        if (there) bias[i] = param<G>(a, PARAM_GATE_BIAS, index);
    }
  }

  DEVICE A forward(A y, A v, A gate, int i) const {
    if constexpr (Spec::RESIDUAL) y += residual[i] * v;
    if constexpr (Spec::SELF_GATE) y = self_gate(y);
    if constexpr (Spec::GATE) y *= activate<Spec::GATE_ACT>(gate + bias[i]);
    return y;
  }

  // From the gradient of the output to that of y behind the residual, and of the gate's logit.
  DEVICE A backward(A y, A v, A gate, A dout, int i, A& dgate) const {
    if constexpr (Spec::RESIDUAL) y += residual[i] * v;
    A before = y;
    if constexpr (Spec::SELF_GATE) y = self_gate(y);
    if constexpr (Spec::GATE) {
      const A logit = gate + bias[i];
      dgate = dout * y * slope_at<Spec::GATE_ACT>(logit);
      dout *= activate<Spec::GATE_ACT>(logit);
    }
    if constexpr (Spec::SELF_GATE) dout *= self_gate_slope(before);
    return dout;
  }
};

}  // namespace elman
