// The backward pass: segment by segment from the last, the states of a segment are computed again
// from its checkpoint and kept on chip, then the steps are walked back. Either every thread
// prepares, replays, walks and writes one segment after another; or some warps do nothing but walk,
// while helpers beside them prepare and replay the segment before the one that is walked and write
// the gradients of the one behind it: faster where a scheduler has one or two warps, which wait for
// their own results; elsewhere there is no room for two histories.
#pragma once
#include "cuda/matrix_state/recompute.cuh"
#include "cuda/matrix_state/walk_back.cuh"

namespace elman {

// What walking warps and helpers tell each other.
template <class G>
struct Handover {
  Signal<G::THREADS, G::helpers(true)> met;       // a barrier of the helpers
  Signal<G::THREADS, G::helpers(true)> replayed;  // turn n: the n-th segment from the end is
  Signal<0, G::THREADS> walked;                   // turn n: it is

  DEVICE explicit Handover(Arena& arena) : met(arena), replayed(arena), walked(arena) {
    signals_ready();
  }
};

template <class G>
struct Backward {
  using Segment = typename Gradients<G>::Segment;

  Trail<G>& trail;
  sptr<typename G::A> y;  // see Replay

  DEVICE Segment segment_at(int64_t index, int buffer) const {
    return {index * G::STEPS, trail.length(index), buffer};
  }

  // ---- all threads alike

  DEVICE void alone() {
    Gradients<G> gradients(trail.a, trail.at);
    Replay<G> replay(trail, y);
    WalkBack<G> walk(trail);
    Crew<G> crew;
    int64_t index = trail.last_segment();
    trail.clear();
    replay.copy_start(index);
    trail.in.raw.fetch(trail.length(index), 0);
    for (int buffer = 0; index >= 0; index--, buffer ^= 1) {
      const Segment segment = segment_at(index, buffer);
      wait_copies<0>();
      sync<G>();
      replay.load_start(index);
      if (index) trail.in.raw.fetch(G::STEPS, buffer ^ 1);
      trail.in.prepare(segment.t0, buffer);
      sync<G>();
      replay.run(segment.length);
      sync<G>();
      if constexpr (G::NEEDS_Y) {
        gradients.output(trail.in, trail.sums, y, segment);
        sync<G>();
      }
      walk.start(segment.length, replay.S);
      replay.copy_start(index - 1);
      walk.run(segment.t0, segment.length, buffer);
      sync<G>();
      gradients.write(trail.in, trail.sums, segment);
    }
    walk.end();
    gradients.write_params(trail.sums, crew);
  }

  // ---- the warps that walk, beside helpers

  DEVICE void recur(const Handover<G>& handover) {
    WalkBack<G> walk(trail);
    int64_t index = trail.last_segment();
    for (unsigned round = 0; index >= 0; index--, round++) {
      const Segment segment = segment_at(index, buffer(round));
      handover.replayed.wait(round);
      walk.start(segment.length);
      walk.run(segment.t0, segment.length, segment.buffer);
      handover.walked.arrive(round);
      trail.turn(round % 2);
    }
    walk.end();
  }

  // ---- the helpers

  // In round n the n-th segment from the end is prepared and replayed, while the one behind it is
  // walked, whose gradients are written then.
  DEVICE void help(const Handover<G>& handover) {
    Gradients<G> gradients(trail.a, trail.at);
    Replay<G> replay(trail, y);
    Crew<G> crew{&handover.met};
    int64_t index = trail.last_segment();
    trail.clear();
    replay.copy_start(index);
    trail.in.raw.fetch(trail.length(index), 0);
    unsigned round = 0;
    for (; index >= 0; index--, round++) {
      const Segment segment = segment_at(index, buffer(round));
      wait_copies<0>();
      crew.meet();
      replay.load_start(index);
      if (index) trail.in.raw.fetch(G::STEPS, buffer(round + 1));
      trail.in.prepare(segment.t0, segment.buffer);
      crew.meet();
      replay.run(segment.length);
      if constexpr (G::NEEDS_Y) {
        crew.meet();
        gradients.output(trail.in, trail.sums, y, segment);
      }
      handover.replayed.arrive(round);
      trail.turn(round % 2);
      if (round) handover.walked.wait(round - 1);
      replay.copy_start(index - 1);
      if (round) gradients.write(trail.in, trail.sums, segment_at(index + 1, buffer(round - 1)));
    }
    trail.turn(round % 2);
    handover.walked.wait(round - 1);
    gradients.write(trail.in, trail.sums, segment_at(0, buffer(round - 1)));
    gradients.write_params(trail.sums, crew);
  }

  static DEVICE int buffer(unsigned round) { return (int)(round % G::raw_buffers(true)); }
};

template <class G>
DEVICE void matrix_backward(const Args& a) {
  Arena arena;
  if constexpr (G::helped(true)) {
    const Handover<G> handover(arena);
    Trail<G> trail(a, arena);
    Backward<G> pass{trail, reads_of<G>(arena)};
    if (warp_index() < G::WARPS)
      pass.recur(handover);
    else
      pass.help(handover);
  } else {
    Trail<G> trail(a, arena);
    Backward<G> pass{trail, reads_of<G>(arena)};
    pass.alone();
  }
}

}  // namespace elman
