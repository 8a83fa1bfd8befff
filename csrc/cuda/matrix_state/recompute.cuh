// The recomputation of a segment: from the state before its first step to those before the others,
// and what the rows read of them.
#pragma once
#include "cuda/matrix_state/trail.cuh"

namespace elman {

// Room for the lanes' parts of the reads y = S q of a segment, see put_parts.
template <class G>
DEVICE sptr<typename G::A> reads_of(Arena& arena) {
  if constexpr (G::NEEDS_Y) return arena.take<typename G::A>(G::AHEAD * G::PARTS);
  return sptr<typename G::A>();
}

template <class G>
struct Recompute {
  using A = typename G::A;
  using Checkpoint = typename G::Checkpoint;
  using Cell = typename G::Cell;
  static constexpr int TALL = G::TALL;

  Trail<G>& trail;
  const Checkpoint* next_checkpoint = nullptr;  // from which the next segment starts
  sptr<A> y;                                    // see reads_of
  Resets<G> resets;
  A S[G::PIECE];

  DEVICE Recompute(Trail<G>& shared, sptr<A> reads) : trail(shared), y(reads) {
    const int64_t last = trail.last_segment();
    if (last > 0) next_checkpoint = checkpoint<G>(trail.a, trail.at, last);
    resets.fetch(trail.a, trail.at, last * G::STEPS);
  }

  // Starts copying the state before the first step of a segment to where the recomputation will
  // keep the state before its last one, which is not needed until then.
  DEVICE void copy_start(int64_t segment) {
    if constexpr (G::COPIES_CHECKPOINT) {
      if (segment <= 0) return;
      constexpr int EACH = G::HISTORY_VECTOR / G::VECTOR;
      const auto to = [&](int n) {
        return cast<unsigned char>(trail.history + trail.history_at(G::STEPS - 1, n / EACH)) +
               n % EACH * G::VECTOR * (int)sizeof(Checkpoint);
      };
      trail.lane.copy_state(to, next_checkpoint);
      commit_copies();
      to_segment_before();
    }
  }

  DEVICE void to_segment_before() { next_checkpoint -= trail.a.B * trail.a.H * G::R * G::N; }

  // Sets S to the state before the first step of a segment; its copies have come.
  DEVICE void load_start(int64_t segment) {
    if (segment == 0) {
      trail.load_or_zero(S, trail.a.first);
    } else if constexpr (G::COPIES_CHECKPOINT) {
      trail.recall(G::STEPS - 1, S);
      trail.lane.unpack_state(S);
    } else {
      trail.lane.load_state(S, next_checkpoint);
      to_segment_before();
    }
  }

  // Recomputes the segment from t0 on; S is then the state behind it.
  DEVICE void run(int64_t t0, int length) {
    Visitor visitor{trail};
    const unsigned now = resets.take(trail.a, trail.at, t0 - G::STEPS);
    run_steps<G, G::NEEDS_Y>(trail.in, trail.lane, length, trail.params, S, y, visitor, now);
    if constexpr (G::produces(true)) trail.keep(length, S);
  }

  // Keeps what the walk needs: the state before every step, what a row read.
  struct Visitor {
    const Trail<G>& trail;
    DEVICE int stop(int, int length, const A*) const { return length; }
    DEVICE void state(int step, const A* before) const { trail.keep(step, before); }
    DEVICE void rows(int step, const Row<A>* x) const {
      if (trail.lane.part) return;
      A r[TALL], e[TALL];
#pragma unroll
      for (int i = 0; i < TALL; i++) {
        r[i] = x[i].r;
        e[i] = x[i].e;
      }
      if constexpr (Cell::READ) trail.lane.put_rows(trail.sums.dv, step, r);
      if constexpr (Cell::ENERGY) trail.lane.put_rows(trail.sums.energies, step, e);
    }
  };
};

}  // namespace elman
