// The backward pass: segment by segment from the last, the states of a segment are computed again
// from its checkpoint and kept on chip, then the steps are walked back. It runs in one of two ways.
// In the first, every thread prepares, recomputes, walks and writes one segment after another. In
// the second, some warps only walk, while producer warps prepare and recompute the segment before
// it and write the gradients of the one behind it. The second is faster where a scheduler has one
// or two warps, which wait for their own results; elsewhere there is no room for two histories.
#pragma once
#include "cuda/matrix_state/recompute.cuh"
#include "cuda/matrix_state/walk_back.cuh"

namespace elman {

// What walking warps and producer warps tell each other.
template <class G>
struct Handover {
  using ByProducers = Signal<G::THREADS, G::producer_threads(true)>;
  ByProducers met;               // a barrier of the producer warps
  ByProducers recomputed;        // turn n: the n-th segment from the end is
  Signal<0, G::THREADS> walked;  // turn n: it is

  DEVICE explicit Handover(Arena& arena) : met(arena), recomputed(arena), walked(arena) {
    signals_ready();
  }
};

template <class G>
struct Backward {
  using Segment = typename Gradients<G>::Segment;

  Trail<G>& trail;
  sptr<typename G::A> y;  // see Recompute

  DEVICE Segment segment_at(int64_t index, int buffer) const {
    return {index * G::STEPS, trail.length(index), buffer};
  }

  // ---- all threads alike

  DEVICE void alone() {
    Gradients<G> gradients(trail.a, trail.at);
    Recompute<G> recompute(trail, y);
    WalkBack<G> walk(trail);
    Crew<G> crew;
    int64_t index = trail.last_segment();
    trail.clear();
    recompute.copy_start(index);
    trail.in.staging.fetch(trail.length(index), 0);
    for (int buffer = 0; index >= 0; index--, buffer ^= 1) {
      const Segment segment = segment_at(index, buffer);
      wait_copies<0>();
      sync<G>();
      recompute.load_start(index);
      if (index) trail.in.staging.fetch(G::STEPS, buffer ^ 1);
      trail.in.prepare(segment.t0, buffer);
      sync<G>();
      recompute.run(segment.t0, segment.length);
      sync<G>();
      if constexpr (G::NEEDS_Y) {
        gradients.output(trail.in, trail.sums, y, segment);
        sync<G>();
      }
      walk.start(segment.length, recompute.S);
      // The walk needs the room for the copy again where a step starts from zeros.
      if constexpr (!Resets<G>::ANY) recompute.copy_start(index - 1);
      walk.run(segment.t0, segment.length, buffer);
      if constexpr (Resets<G>::ANY) recompute.copy_start(index - 1);
      sync<G>();
      gradients.write(trail.in, trail.sums, segment);
    }
    walk.end();
    gradients.write_params(trail.sums, crew);
  }

  // ---- the warps that walk, beside producer warps

  DEVICE void recur(const Handover<G>& handover) {
    WalkBack<G> walk(trail);
    int64_t index = trail.last_segment();
    for (unsigned round = 0; index >= 0; index--, round++) {
      const Segment segment = segment_at(index, buffer(round));
      handover.recomputed.wait(round);
      walk.start(segment.length);
      walk.run(segment.t0, segment.length, segment.buffer);
      handover.walked.arrive(round);
      trail.turn(round % 2);
    }
    walk.end();
  }

  // ---- the producer warps

  // In round n the n-th segment from the end is prepared and recomputed, while the one behind it is
  // walked, whose gradients are written then.
  DEVICE void produce(const Handover<G>& handover) {
    Gradients<G> gradients(trail.a, trail.at);
    Recompute<G> recompute(trail, y);
    Crew<G> crew{&handover.met};
    int64_t index = trail.last_segment();
    trail.clear();
    recompute.copy_start(index);
    trail.in.staging.fetch(trail.length(index), 0);
    unsigned round = 0;
    for (; index >= 0; index--, round++) {
      const Segment segment = segment_at(index, buffer(round));
      wait_copies<0>();
      crew.meet();
      recompute.load_start(index);
      if (index) trail.in.staging.fetch(G::STEPS, buffer(round + 1));
      trail.in.prepare(segment.t0, segment.buffer);
      crew.meet();
      recompute.run(segment.t0, segment.length);
      if constexpr (G::NEEDS_Y) {
        crew.meet();
        gradients.output(trail.in, trail.sums, y, segment);
      }
      handover.recomputed.arrive(round);
      trail.turn(round % 2);
      if (round) handover.walked.wait(round - 1);
      recompute.copy_start(index - 1);
      if (round) gradients.write(trail.in, trail.sums, segment_at(index + 1, buffer(round - 1)));
    }
    trail.turn(round % 2);
    handover.walked.wait(round - 1);
    gradients.write(trail.in, trail.sums, segment_at(0, buffer(round - 1)));
    gradients.write_params(trail.sums, crew);
  }

  static DEVICE int buffer(unsigned round) { return (int)(round % G::staging_buffers(true)); }
};

template <class G>
DEVICE void matrix_backward(const Args& a) {
  Arena arena;
  if constexpr (G::produces(true)) {
    const Handover<G> handover(arena);
    Trail<G> trail(a, arena);
    Backward<G> pass{trail, reads_of<G>(arena)};
    if (warp_index() < G::WARPS)
      pass.recur(handover);
    else
      pass.produce(handover);
  } else {
    Trail<G> trail(a, arena);
    Backward<G> pass{trail, reads_of<G>(arena)};
    pass.alone();
  }
}

}  // namespace elman
