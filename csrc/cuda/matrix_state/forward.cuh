// The forward pass of a matrix-state recurrence: one block per (batch, head, row tile), one launch
// per layer. It runs in one of two ways. In the first, every thread holds a piece of the state, and
// prepares, walks and writes one segment after another. In the second, some warps only walk, while
// producer warps prepare the next segment and write the last one, so that nothing else delays the
// recurrence. The second is faster where few warps share a multiprocessor, and of no use where they
// fill it.
#pragma once
#include "cuda/matrix_state/step.cuh"

namespace elman {

// Tells walking warps and producer warps how far the others are. A warp that walks waits for a
// producer only if that one is late.
template <class G>
struct Relay {
  using ByProducers = Signal<G::THREADS, G::producer_threads(false)>;
  ByProducers prepared;          // turn n: segment n - 1 is, and n - 3 is written
  Signal<0, G::THREADS> walked;  // turn n: segment n is

  DEVICE explicit Relay(Arena& arena) : prepared(arena), walked(arena) { signals_ready(); }

  // A barrier of the producer warps.
  DEVICE void meet(unsigned turn) const {
    prepared.arrive(turn);
    prepared.wait(turn);
  }
};

template <class G>
struct Forward {
  using A = typename G::A;
  using IO = typename G::IO;
  using Spec = typename G::Spec;
  using Rows = typename Output<G, false>::Rows;
  static constexpr int V = Rows::V, READS = G::AHEAD * G::PARTS;

  const Args& a;
  Inputs<G, false> in;
  sptr<A> y;  // [set]: every lane's parts of the reads, see put_parts
  Place at;
  int64_t segments;

  DEVICE Forward(const Args& args, Arena& arena)
      : a(args),
        in(arena, args, 0),
        y(arena.take<A>(G::sets(false) * READS)),
        at(in.staging.at),
        segments((args.T + G::STEPS - 1) / G::STEPS) {}

  DEVICE int length(int64_t segment) const {
    return (int)least64(G::STEPS, a.T - segment * G::STEPS);
  }

  // A lane's piece of the state on its way through time.
  struct Walk {
    Forward& pass;
    const Lane<G, false> lane;
    typename G::Checkpoint* next_checkpoint;
    // Steps until the next checkpoint: the segments of the backward pass may be others.
    int64_t due;
    Resets<G> resets;
    A S[G::PIECE], params[G::TALL][MAX_PARAMS];

    DEVICE explicit Walk(Forward& forward)
        : pass(forward),
          lane(forward.at),
          next_checkpoint(checkpoint<G>(forward.a, forward.at, 1)),
          due(forward.a.checkpoints ? forward.a.K : forward.a.T) {
      read_params<G>(pass.a, pass.at, lane, params);
      load_first<G>(pass.a, pass.at, lane, S);
      resets.fetch(pass.a, pass.at, 0);
    }

    // As a visitor of the steps, see run_steps.
    DEVICE int stop(int step, int length, const A* state) {
      if (due == 0) {
        lane.store_state(next_checkpoint, state);
        next_checkpoint += pass.a.B * pass.a.H * G::R * G::N;
        due = pass.a.K;
      }
      const int steps = (int)least64(length - step, due);
      due -= steps;
      return step + steps;
    }
    DEVICE void state(int, const A*) const {}
    DEVICE void rows(int, const Row<A>*) const {}

    DEVICE void run(int64_t segment, sptr<A> reads) {
      const unsigned now = resets.take(pass.a, pass.at, (segment + 1) * G::STEPS);
      run_steps<G, true>(pass.in, lane, pass.length(segment), params, S, reads, *this, now);
    }

    DEVICE void end() const {
      const Place& at = pass.at;
      lane.store_state((A*)pass.a.last + (at.batch * pass.a.H + at.head) * G::R * G::N, S);
    }
  };

  // ---- all threads alike

  DEVICE void alone() {
    const Output<G, false> output(a, at);
    Walk walk(*this);
    in.clear();
    in.staging.fetch(length(0), 0);
    for (int64_t segment = 0; segment < segments; segment++) {
      wait_copies<0>();
      sync<G>();
      if (segment + 1 < segments) in.staging.fetch(length(segment + 1), buffer(segment + 1));
      in.prepare(segment * G::STEPS, buffer(segment));
      sync<G>();
      walk.run(segment, y);
      sync<G>();
      write_outputs(output, y, segment);
    }
    walk.end();
  }

  // ---- the warps that walk, beside producer warps

  DEVICE void recur(const Relay<G>& relay) {
    Walk walk(*this);
    for (int64_t segment = 0; segment < segments; segment++) {
      const bool second = segment % 2;
      relay.prepared.wait((unsigned)segment + 1);
      walk.run(segment, y + (second ? READS : 0));
      relay.walked.arrive((unsigned)segment);
      in.turn(second);
    }
    walk.end();
  }

  // ---- the producer warps

  // In round n segment n is prepared, while n - 1 is walked, and n - 2 is written.
  DEVICE void produce(const Relay<G>& relay) {
    const Output<G, false> output(a, at);
    in.clear();
    in.staging.fetch(length(0), 0);
    wait_copies<0>();
    relay.meet(0);
    for (int64_t round = 0; round < segments + 2; round++) {
      const bool second = round % 2;
      if (round + 1 < segments) in.staging.fetch(length(round + 1), buffer(round + 1));
      if (round >= 2) relay.walked.wait((unsigned)round - 2);
      if (round < segments) in.prepare(round * G::STEPS, buffer(round));
      if (round >= 2) write_outputs(output, y + (second ? READS : 0), round - 2);
      wait_copies<0>();
      if (round <= segments) relay.meet((unsigned)round + 1);
      in.turn(second);
    }
  }

  static DEVICE int buffer(int64_t segment) {
    return (int)((unsigned)segment % SmemStaging<G, false>::BUFFERS);
  }

  // Applies what follows the recurrence to the reads of a segment and writes them.
  DEVICE void write_outputs(const Output<G, false>& output, sptr<A> reads, int64_t segment) {
    const int64_t t0 = segment * G::STEPS;
    IO* out = (IO*)a.out + ((at.batch * a.T + t0) * a.H + at.head) * G::R + at.row_tile * G::ROWS;
#pragma unroll 4
    for (int pass = 0; pass < Rows::PASSES; pass++) {
      const int step = Rows::step(pass);
      if (step >= length(segment)) continue;
#pragma unroll
      for (int m = 0; m < Rows::VECTORS; m++) {
        const int first = Rows::first(m);
        if (first >= rows_here<G>(at)) continue;
        A x[V];
        sum_parts<G, V>(x, reads, step, first);
        finish(output, x, segment, step, m);
        store<V, IO>(out + step * (a.H * G::R) + first, x);
      }
    }
  }

  // From reads to outputs, of one step and V rows.
  DEVICE void finish(const Output<G, false>& output, A* x, int64_t segment, int step, int m) {
    const int first = Rows::first(m);
    const int64_t t0 = segment * G::STEPS;
    A v[V] = {}, gate[V] = {};
    if constexpr (Spec::RESIDUAL)
      in.staging.template read<ROLE_V, V>(v, buffer(segment), t0, step, first);
    if constexpr (Spec::GATE)
      in.staging.template read<ROLE_GATE, V>(gate, buffer(segment), t0, step, first);
#pragma unroll
    for (int e = 0; e < V; e++)
      x[e] = output.of(m * V + e).forward(x[e], activate<Spec::V_ACT>(v[e]), gate[e]);
  }
};

template <class G>
DEVICE void matrix_forward(const Args& a) {
  Arena arena;
  if constexpr (G::produces(false)) {
    const Relay<G> relay(arena);
    if (beyond(a.B * a.H * G::ROW_TILES)) return;
    Forward<G> pass(a, arena);
    if (warp_index() < G::WARPS)
      pass.recur(relay);
    else
      pass.produce(relay);
  } else {
    Forward<G> pass(a, arena);
    pass.alone();
  }
}

}  // namespace elman
