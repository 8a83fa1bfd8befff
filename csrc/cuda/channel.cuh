// The channel engine: one thread per (batch, channel), all of time in registers. Every value is
// read once, a segment of steps ahead of its use, with neighbouring lanes at neighbouring channels.
//
// Spec is that of cpu/channel_engine.h; its T is the arithmetic's type, IO that of the sequences. A
// segment of STEPS steps is unrolled: what is known of its steps stays in registers.
#pragma once
#include "../channel_args.h"
#include "pack.cuh"

namespace elman {

template <class Spec_, class IO_, int STEPS_>
struct ChannelGeometry {
  using Spec = Spec_;
  using Cell = typename Spec::Cell;
  using A = typename Spec::T;
  using IO = IO_;
  // So many blocks at a time give every channel of a usual model its thread, in one wave.
  static constexpr int STEPS = STEPS_, THREADS = 128, BLOCKS = 3, SLOTS = Spec::SLOTS;
  static constexpr bool HAS_UNIT = Spec::UNIT >= 0, HAS_QUERY = Spec::QUERY >= 0;
  // The slice of the unit input, and whether something besides it reads that slice.
  static constexpr int UNIT_SLOT = HAS_UNIT ? Spec::SLOT[HAS_UNIT ? Spec::UNIT : 0] : -1;
  HD static constexpr bool unit_slot_shared() {
    bool found = HAS_QUERY && Spec::QUERY == UNIT_SLOT;
    for (int k = 0; k < Cell::INPUTS; k++) found |= k != Spec::UNIT && Spec::SLOT[k] == UNIT_SLOT;
    return found;
  }
};

// The workspace, in numbers of type A: norms [B, T], gradients of the unit input [B, T, C], sums
// over time of the parameters' gradients [B, P, C].
template <class G>
struct ChannelSpace {
  using A = typename G::A;
  A *norms, *unit_gradients, *sums;
  DEVICE explicit ChannelSpace(const ChannelArgs& a) {
    norms = (A*)a.workspace;
    unit_gradients = norms + (G::HAS_UNIT ? a.batch * a.steps : 0);
    sums = unit_gradients + (G::HAS_UNIT ? a.batch * a.steps * a.channels : 0);
  }
};

// What a thread reads of a segment, as it lies in memory: conversion would wait for it.
template <class G, bool BACKWARD>
struct ChannelSegment {
  using A = typename G::A;
  using IO = typename G::IO;
  IO x[G::STEPS][G::SLOTS], dy[BACKWARD ? G::STEPS : 1];
  A norm[G::HAS_UNIT ? G::STEPS : 1];
};

template <class IO, class A>
DEVICE A widened(IO x) {
  if constexpr (sizeof(IO) == 2)
    return Half<IO>::low(x.bits);
  else
    return x;
}

template <class G>
struct ChannelLane {
  using A = typename G::A;
  using IO = typename G::IO;
  using Cell = typename G::Cell;
  const ChannelArgs& a;
  ChannelSpace<G> space;
  int64_t index, batch, channel;  // index: of the thread among all with a channel
  A p[MAX_PARAMETERS];

  DEVICE explicit ChannelLane(const ChannelArgs& args) : a(args), space(args) {
    index = block_index() * G::THREADS + thread_index();
    batch = index / a.channels;
    channel = index % a.channels;
    if (!exists()) return;
#pragma unroll
    for (int i = 0; i < Cell::PARAMETERS; i++) p[i] = load_one((const A*)a.p[i] + channel);
  }

  DEVICE bool exists() const { return index < a.batch * a.channels; }

  DEVICE IO* at(const ChannelSequence& sequence, int64_t t) const {
    return (IO*)sequence.data + (batch * sequence.batch + t * sequence.time + channel);
  }

  DEVICE A* checkpoint(int64_t segment) const {
    const int64_t segments = (a.steps + G::STEPS - 1) / G::STEPS;
    return (A*)a.checkpoints + ((batch * segments + segment) * a.channels + channel);
  }

  // Loads the segment from t0 on; beyond the last step, and where there is no gradient, zeros.
  template <bool BACKWARD>
  DEVICE void load_segment(int64_t t0, ChannelSegment<G, BACKWARD>& segment) const {
#pragma unroll
    for (int u = 0; u < G::STEPS; u++) {
      const bool there = t0 >= 0 && t0 + u < a.steps;
#pragma unroll
      for (int s = 0; s < G::SLOTS; s++)
        segment.x[u][s] = there ? load_one((const IO*)at(a.x[s], t0 + u)) : IO{};
      if constexpr (BACKWARD)
        segment.dy[u] = there && a.dy.data ? load_one((const IO*)at(a.dy, t0 + u)) : IO{};
      if constexpr (G::HAS_UNIT)
        segment.norm[u] = there ? load_one(space.norms + (batch * a.steps + t0 + u)) : A(0);
    }
  }

  // What the cell sees of a step; returns the query.
  template <class Segment>
  DEVICE A read(const Segment& segment, int u, A h, Channel<A>& c) const {
    c.h = h;
#pragma unroll
    for (int k = 0; k < Cell::INPUTS; k++) {
      c.x[k] = widened<IO, A>(segment.x[u][G::Spec::SLOT[k]]);
      if (k == G::Spec::UNIT) c.x[k] *= reciprocal(segment.norm[u] + A(1e-6));
    }
#pragma unroll
    for (int k = 0; k < Cell::PARAMETERS; k++) c.p[k] = p[k];
    if constexpr (G::HAS_QUERY) return widened<IO, A>(segment.x[u][G::Spec::QUERY]);
    return A(1);
  }
};

template <class G>
DEVICE void channel_forward(const ChannelArgs& a) {
  using A = typename G::A;
  using IO = typename G::IO;
  const ChannelLane<G> lane(a);
  if (!lane.exists()) return;
  ChannelSegment<G, false> now, next;
  A h = load_one((const A*)a.first + lane.index);
  lane.load_segment(0, next);
  for (int64_t t0 = 0; t0 < a.steps; t0 += G::STEPS) {
    now = next;
    lane.load_segment(t0 + G::STEPS, next);
    store_one(lane.checkpoint(t0 / G::STEPS), h);
#pragma unroll
    for (int u = 0; u < G::STEPS; u++) {
      if (t0 + u >= a.steps) continue;
      Channel<A> c;
      A memo[MAX_MEMO];
      const A query = lane.read(now, u, h, c);
      h = G::Cell::step(c, memo);
      A y = G::HAS_QUERY ? h * query : h;
      if constexpr (G::Spec::SELF_GATE) y = self_gate(y);
      store<1, IO>(lane.at(a.y, t0 + u), &y);
    }
  }
  store_one((A*)a.last + lane.index, h);
}

template <class G>
struct ChannelBackward {
  using A = typename G::A;
  using IO = typename G::IO;
  using Cell = typename G::Cell;
  static constexpr int STEPS = G::STEPS;
  ChannelLane<G> lane;
  const ChannelArgs& a;
  A dh, sums[MAX_PARAMETERS];
  A h[STEPS + 1], memo[STEPS][MAX_MEMO];

  DEVICE explicit ChannelBackward(const ChannelArgs& args) : lane(args), a(args) {}

  DEVICE void run() {
    if (!lane.exists()) return;
    ChannelSegment<G, true> now, next;
    dh = a.dlast ? load_one((const A*)a.dlast + lane.index) : A(0);
#pragma unroll
    for (int k = 0; k < Cell::PARAMETERS; k++) sums[k] = A(0);
    int64_t segment = (a.steps - 1) / STEPS;
    lane.load_segment(segment * STEPS, next);
    A start = load_one((const A*)lane.checkpoint(segment));
    for (; segment >= 0; segment--) {
      now = next;
      h[0] = start;
      lane.load_segment((segment - 1) * STEPS, next);
      if (segment) start = load_one((const A*)lane.checkpoint(segment - 1));
      walk(now, segment * STEPS);
    }
    store_one((A*)a.dfirst + lane.index, dh);
#pragma unroll
    for (int k = 0; k < Cell::PARAMETERS; k++)
      store_one(lane.space.sums + ((lane.batch * Cell::PARAMETERS + k) * a.channels + lane.channel),
                sums[k]);
  }

  // Runs a segment forward, then back.
  DEVICE void walk(const ChannelSegment<G, true>& segment, int64_t t0) {
    Channel<A> c;
#pragma unroll
    for (int u = 0; u < STEPS; u++) {
      lane.read(segment, u, h[u], c);
      h[u + 1] = Cell::step(c, memo[u]);
    }
#pragma unroll
    for (int u = STEPS - 1; u >= 0; u--) {
      if (t0 + u >= a.steps) continue;
      ChannelGrad<A> d = {};
      const A query = lane.read(segment, u, h[u], c);
      A dy = widened<IO, A>(segment.dy[u]);
      if constexpr (G::Spec::SELF_GATE)
        dy *= self_gate_slope(G::HAS_QUERY ? h[u + 1] * query : h[u + 1]);
      Cell::step_bwd(c, memo[u], h[u + 1], dh + dy * query, d);
      dh = d.h;
#pragma unroll
      for (int k = 0; k < Cell::PARAMETERS; k++) sums[k] += d.p[k];
      write(t0 + u, d, dy * h[u + 1]);
    }
  }

  // Writes the gradients of the slices: each the sum over those that read it. What the unit input
  // gets is kept for the pass that knows its whole row.
  DEVICE void write(int64_t t, const ChannelGrad<A>& d, A dquery) const {
#pragma unroll
    for (int s = 0; s < G::SLOTS; s++) {
      A sum = 0;
      bool read = false;
#pragma unroll
      for (int k = 0; k < Cell::INPUTS; k++) {
        if (G::Spec::SLOT[k] != s || k == G::Spec::UNIT) continue;
        sum += d.x[k];
        read = true;
      }
      if (G::Spec::QUERY == s) {
        sum += dquery;
        read = true;
      }
      if (read) store<1, IO>(lane.at(a.dx[s], t), &sum);
    }
    if constexpr (G::HAS_UNIT)
      store_one(
          lane.space.unit_gradients + ((lane.batch * a.steps + t) * a.channels + lane.channel),
          d.x[G::Spec::UNIT]);
  }
};

template <class G>
DEVICE void channel_backward(const ChannelArgs& a) {
  ChannelBackward<G> pass(a);
  pass.run();
}

// Sums the parameters' gradients over the batch, always in the same order: a thread per number.
template <class G>
DEVICE void channel_finish(const ChannelArgs& a) {
  using A = typename G::A;
  constexpr int parameters = G::Cell::PARAMETERS;
  const int64_t index = block_index() * G::THREADS + thread_index();
  if (index >= parameters * a.channels) return;
  const ChannelSpace<G> space(a);
  A sum = 0;
  for (int64_t b = 0; b < a.batch; b++)
    sum += load_one(space.sums + (b * parameters * a.channels + index));
#pragma unroll
  for (int k = 0; k < parameters; k++)
    if (index / a.channels == k) store_one((A*)a.dp[k] + index % a.channels, sum);
}

// ---- the unit input: a warp per row [C] of one step

template <class G>
struct ChannelUnitRow {
  using A = typename G::A;
  using IO = typename G::IO;
  static constexpr int SLOT = G::HAS_UNIT ? G::UNIT_SLOT : 0;
  const ChannelArgs& a;
  int64_t row;  // of [B, T]
  int lane;

  DEVICE explicit ChannelUnitRow(const ChannelArgs& args) : a(args) {
    row = block_index() * (G::THREADS / 32) + thread_index() / 32;
    lane = thread_index() % 32;
  }
  DEVICE bool exists() const { return row < a.batch * a.steps; }
  DEVICE IO* at(const ChannelSequence& sequence) const {
    return (IO*)sequence.data + (row / a.steps * sequence.batch + row % a.steps * sequence.time);
  }
  DEVICE A x(int64_t channel) const {
    return widened<IO, A>(load_one((const IO*)at(a.x[SLOT]) + channel));
  }
  static DEVICE A sum(A x) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
};

// Leaves the norms of all rows in the workspace.
template <class G>
DEVICE void channel_norms(const ChannelArgs& a) {
  using A = typename G::A;
  const ChannelUnitRow<G> unit(a);
  A squares = 0;
  if (unit.exists())
    for (int64_t i = unit.lane; i < a.channels; i += 32) squares += unit.x(i) * unit.x(i);
  squares = unit.sum(squares);
  if (unit.exists() && unit.lane == 0)
    store_one(ChannelSpace<G>(a).norms + unit.row, square_root(squares));
}

// From the gradient of x / (|x| + 1e-6) to that of x.
template <class G>
DEVICE void channel_norms_backward(const ChannelArgs& a) {
  using A = typename G::A;
  using IO = typename G::IO;
  const ChannelUnitRow<G> unit(a);
  const ChannelSpace<G> space(a);
  const A* gradient = space.unit_gradients + unit.row * a.channels;
  A along = 0;
  if (unit.exists())
    for (int64_t i = unit.lane; i < a.channels; i += 32)
      along += unit.x(i) * load_one(gradient + i);
  along = unit.sum(along);
  if (!unit.exists()) return;
  const A norm = load_one((const A*)space.norms + unit.row), scale = reciprocal(norm + A(1e-6));
  // A zero row has no direction: the norm's own gradient is taken as 0.
  along = norm > A(0) ? along * scale * scale * reciprocal(norm) : A(0);
  IO* to = unit.at(a.dx[ChannelUnitRow<G>::SLOT]);
  for (int64_t i = unit.lane; i < a.channels; i += 32) {
    A dx = load_one(gradient + i) * scale - unit.x(i) * along;
    if constexpr (G::unit_slot_shared()) dx += widened<IO, A>(load_one((const IO*)to + i));
    store<1, IO>(to + i, &dx);
  }
}

}  // namespace elman
