// What the recomputation of a segment and the walk back through it have in common: the prepared
// inputs, the states before the steps, a lane's piece of them, the sums.
#pragma once
#include "cuda/matrix_state/gradients.cuh"

namespace elman {

template <class G>
struct Trail {
  using A = typename G::A;
  using Checkpoint = typename G::Checkpoint;
  static constexpr int PIECE = G::PIECE;

  const Args& a;
  Inputs<G, true> in;
  Sums<G> sums;
  sptr<Checkpoint> history;  // states before the steps, or in global memory:
  Checkpoint* scratch;
  Place at;
  Lane<G, true> lane;
  int thread;  // of those that hold the state
  A params[G::TALL][MAX_PARAMS];

  DEVICE Trail(const Args& args, Arena& arena)
      : a(args),
        in(arena, args, (args.T - 1) / G::STEPS * G::STEPS),
        sums(arena),
        at(in.staging.at),
        lane(in.staging.at),
        thread(state_thread<G>()) {
    if constexpr (!G::SCRATCH) history = arena.take<Checkpoint>(G::sets(true) * G::HISTORY);
    scratch = (Checkpoint*)((A*)a.workspace + scratch_offset<G>(a)) + block_index() * G::HISTORY;
    read_params<G>(a, at, lane, params);
  }

  // What is zero and stays so. A barrier has to stand between this and the first segment.
  DEVICE void clear() {
    in.clear();
    sums.clear();
    if (!a.dout) clear_output_gradient();
  }

  // Where there is no gradient of the output, nothing is copied, and zeros are read.
  DEVICE void clear_output_gradient() {
#pragma unroll
    for (int buffer = 0; buffer < G::staging_buffers(true); buffer++) {
      const sptr<unsigned> words = cast<unsigned>(in.staging.template rows<ROLE_DOUT>(buffer));
#pragma unroll 1
      for (int i = worker_index<G, true>(); i < G::STEPS * G::row_bytes(ROLE_DOUT) / 4;
           i += G::workers(true))
        words[i] = 0u;
    }
  }

  // Goes from one of two sets to the other.
  DEVICE void turn(bool back) {
    in.turn(back);
    sums.turn(back);
    history = history + (back ? -G::HISTORY : G::HISTORY);
  }

  DEVICE int64_t last_segment() const { return (a.T - 1) / G::STEPS; }
  DEVICE int length(int64_t segment) const {
    return (int)least64(G::STEPS, a.T - segment * G::STEPS);
  }

  // First number of the head's state in an array of them.
  DEVICE int64_t head_state() const { return (at.batch * a.H + at.head) * G::R * G::N; }

  DEVICE void load_or_zero(A* x, const void* states) const {
    if (states) {
      lane.load_state(x, (const A*)states + head_state());
    } else {
      clear_state<G>(x);
    }
  }

  // ---- the states before the steps

  // Where vector m of a lane's piece before `step` stands.
  DEVICE int history_at(int step, int m) const {
    constexpr int VECTORS = G::HISTORY_NUMBERS / G::HISTORY_VECTOR;
    return ((step * VECTORS + m) * G::THREADS + thread) * G::HISTORY_VECTOR;
  }

  DEVICE void keep(int step, const A* state) const {
    A x[G::HISTORY_NUMBERS] = {};
#pragma unroll
    for (int j = 0; j < PIECE; j++) x[j] = state[j];
#pragma unroll
    for (int m = 0; m < G::HISTORY_NUMBERS / G::HISTORY_VECTOR; m++) {
      const A* vector = x + m * G::HISTORY_VECTOR;
      if constexpr (G::SCRATCH)
        store<G::HISTORY_VECTOR, Checkpoint>(scratch + history_at(step, m), vector);
      else
        store<G::HISTORY_VECTOR, Checkpoint>(history + history_at(step, m), vector);
    }
  }

  DEVICE void recall(int step, A* state) const {
    A x[G::HISTORY_NUMBERS];
#pragma unroll
    for (int m = 0; m < G::HISTORY_NUMBERS / G::HISTORY_VECTOR; m++) {
      A* vector = x + m * G::HISTORY_VECTOR;
      if constexpr (G::SCRATCH)
        load<G::HISTORY_VECTOR, Checkpoint>(vector,
                                            (const Checkpoint*)scratch + history_at(step, m));
      else
        load<G::HISTORY_VECTOR, Checkpoint>(vector, history + history_at(step, m));
    }
#pragma unroll
    for (int j = 0; j < PIECE; j++) state[j] = x[j];
  }
};

}  // namespace elman
