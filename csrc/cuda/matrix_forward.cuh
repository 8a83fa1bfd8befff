// The forward pass of a matrix-state recurrence: one block per (batch, head, slab), one launch per
// layer.
#pragma once
#include "step.cuh"

namespace elman {

// Applies what follows the recurrence to the reads of a segment and writes them.
template <class G, class In>
DEVICE void write_outputs(const In& in, const Output<G>& output, sptr<typename G::A> y, int64_t t0,
                          int length, int buffer) {
  using A = typename G::A;
  using IO = typename G::IO;
  using Rows = typename Output<G>::Rows;
  constexpr int V = Rows::V;
  const Args& a = in.raw.a;
  const Place& at = in.raw.at;
  IO* out = (IO*)a.out + ((at.batch * a.T + t0) * a.H + at.head) * G::R + at.slab * G::ROWS;
#pragma unroll 4
  for (int pass = 0; pass < Rows::PASSES; pass++) {
    const int step = Rows::step(pass);
    if (step >= length) continue;
#pragma unroll
    for (int m = 0; m < Rows::VECTORS; m++) {
      const int first = Rows::first(m);
      if (first >= rows_here<G>(at)) continue;
      A x[V], v[V] = {}, gate[V] = {};
      sum_parts<G, V>(x, y, step, first);
      if constexpr (G::Spec::RESIDUAL) load<V, A>(v, in.v + (step * G::ROWS + first));
      if constexpr (G::Spec::GATE)
        in.raw.template read<ROLE_GATE, V>(gate, buffer, t0, step, first);
#pragma unroll
      for (int e = 0; e < V; e++) x[e] = output.forward(x[e], v[e], gate[e], m * V + e);
      store<V, IO>(out + step * (a.H * G::R) + first, x);
    }
  }
}

template <class G>
DEVICE void matrix_forward(const Args& a) {
  using A = typename G::A;
  Arena arena;
  Inputs<G, false> in(arena, a, 0);
  const sptr<A> y = arena.take<A>(G::AHEAD * G::THREADS);
  const Place at = in.raw.at;
  const Lane<G, false> lane(at);
  const Output<G> output(a, at);
  A S[G::COLUMNS], params[MAX_PARAMS];
  read_params<G>(a, at, lane, params);
  load_first<G>(a, at, lane, S);
  in.raw.fetch((int)least64(G::STEPS, a.T), 0);
  typename G::Kept* kept = checkpoint<G>(a, at, 1);
  int buffer = 0;
  for (int64_t t0 = 0; t0 < a.T; t0 += G::STEPS, buffer ^= 1) {
    const int length = (int)least64(G::STEPS, a.T - t0);
    const int64_t next = t0 + G::STEPS;
    if (t0 && a.checkpoints) {
      lane.store_state(kept, S);
      kept += a.B * a.H * G::R * G::N;
    }
    wait_copies<0>();
    sync<G>();
    if (next < a.T) in.raw.fetch((int)least64(G::STEPS, a.T - next), buffer ^ 1);
    in.prepare(t0, buffer);
    sync<G>();
    run_steps<G, true>(in, lane, length, params, S, y, Unseen<A>());
    sync<G>();
    write_outputs<G>(in, output, y, t0, length, buffer);
  }
  lane.store_state((A*)a.last + (at.batch * a.H + at.head) * G::R * G::N, S);
}

}  // namespace elman
