// The channel engine: one thread per (batch, channel), all of time in registers. What it reads lies
// in tiles of shared memory; what it writes goes straight to memory, neighbouring lanes to
// neighbouring channels.
//
// A whole segment of STEPS steps is unrolled, so that what does not wait for the state, the
// activations of the inputs, runs ahead of it; the last one, if it is shorter, is not.
#pragma once
#include "cells/epilogue.h"
#include "cuda/channel/tiles.cuh"

namespace elman {

// Numbers of type S of one channel, written one step after another.
template <class S>
struct ChannelOutput {
  unsigned char* at;
  int64_t stride;  // bytes

  template <class A>
  DEVICE void put(A x) {
    store<1, S>((S*)at, &x);
    at += stride;
  }
};

template <class G, bool BACKWARD>
struct ChannelLane {
  using A = typename G::A;
  using IO = typename G::IO;
  using Cell = typename G::Cell;
  const ChannelArgs& a;
  const ChannelPlace& place;
  ChannelTiles<G, BACKWARD> tiles;
  ChannelResets<G, BACKWARD> resets;
  bool exists;  // whether the thread has a channel: the warp needs it in any case
  int64_t channel, index;
  A p[MAX_PARAMETERS];

  DEVICE ChannelLane(Arena& arena, const ChannelArgs& args, const ChannelPlace& at)
      : a(args),
        place(at),
        tiles(arena, args, at),
        resets(args, at.batch),
        exists(at.lane < at.channels(args)),
        channel(at.first + at.lane),
        index(at.batch * args.channels + channel) {
#pragma unroll
    for (int i = 0; i < Cell::PARAMETERS; i++) p[i] = number(a.p[i], channel);
  }

  // A number of this channel; 0 where there is none.
  DEVICE A number(const void* from, int64_t at) const {
    return exists && from ? load_one((const A*)from + at) : A(0);
  }
  DEVICE void put(void* to, int64_t at, A x) const {
    if (exists) store_one((A*)to + at, x);
  }

  // Where the passes write a sequence.
  template <class S>
  DEVICE ChannelOutput<S> output(const ChannelSequence& to) const {
    if (!exists) {
      const A* nowhere = ChannelSpace<G>(a).nowhere + (place.batch * 32 + place.lane);
      return {(unsigned char*)nowhere, 0};
    }
    const int64_t t = BACKWARD ? a.steps - 1 : 0;
    const S* first = (const S*)to.data + (place.batch * to.batch + t * to.time + channel);
    return {(unsigned char*)first, (BACKWARD ? -to.time : to.time) * (int)sizeof(S)};
  }
  // The state before a segment.
  DEVICE A* checkpoint(int64_t segment) const {
    return (A*)a.checkpoints + ((place.batch * tiles.segments + segment) * a.channels + channel);
  }

  // What the cell sees of a step.
  DEVICE Channel<A> read(int step, A h) const {
    Channel<A> c;
    c.h = resets.across(step, h);
#pragma unroll
    for (int k = 0; k < Cell::INPUTS; k++) {
      c.x[k] = tiles.read(G::Spec::SLOT[k], step);
      if (k == G::Spec::UNIT) c.x[k] *= tiles.scale(step);
    }
#pragma unroll
    for (int k = 0; k < Cell::PARAMETERS; k++) c.p[k] = p[k];
    return c;
  }

  DEVICE A query(int step) const {
    if constexpr (G::HAS_QUERY) return tiles.read(G::Spec::QUERY, step);
    return A(1);
  }
};

template <class G>
struct ChannelForward {
  using A = typename G::A;
  using IO = typename G::IO;
  ChannelLane<G, false> lane;
  const ChannelArgs& a;
  A h;
  ChannelOutput<IO> y;

  DEVICE ChannelForward(Arena& arena, const ChannelArgs& args, const ChannelPlace& place)
      : lane(arena, args, place), a(args) {
    h = lane.number(a.first, lane.index);
    y = lane.template output<IO>(a.y);
  }

  DEVICE void run() {
    A* next_checkpoint = lane.checkpoint(0);
    for (int64_t segment = 0; segment < lane.tiles.segments; segment++) {
      lane.tiles.advance();
      lane.resets.enter(segment);
      lane.put(next_checkpoint, 0, h);
      next_checkpoint += a.channels;
      const int steps = lane.tiles.length(segment);
      if (steps == G::STEPS) {
#pragma unroll
        for (int u = 0; u < G::STEPS; u++) step(u);
      } else {
#pragma unroll 1
        for (int u = 0; u < steps; u++) step(u);
      }
    }
    lane.put(a.last, lane.index, h);
  }

  DEVICE void step(int u) {
    A memo[MAX_MEMO];
    h = G::Cell::step(lane.read(u, h), memo);
    y.put(channel_output<G::HAS_QUERY, G::Spec::SELF_GATE>(h, lane.query(u)));
  }
};

template <class G>
DEVICE void channel_forward(const ChannelArgs& a) {
  const ChannelPlace place(a, block_index() * G::WARPS + thread_index() / 32);
  if (!place.exists(a)) return;
  Arena arena;
  ChannelForward<G>(arena, a, place).run();
}

// Calls put(slot, gradient) for every slice: the sum over those that read it. What the unit input
// gets is left to the pass that knows its whole row.
template <class G, class A, class F>
DEVICE void slot_gradients(const ChannelGrad<A>& d, A dquery, const F& put) {
#pragma unroll
  for (int s = 0; s < G::SLOTS; s++) {
    A sum = 0;
    bool read = false;
#pragma unroll
    for (int k = 0; k < G::Cell::INPUTS; k++) {
      if (G::Spec::SLOT[k] != s || k == G::Spec::UNIT) continue;
      sum = read ? sum + d.x[k] : d.x[k];
      read = true;
    }
    if (G::Spec::QUERY == s) {
      sum = read ? sum + dquery : dquery;
      read = true;
    }
    if (read) put(s, sum);
  }
}

template <class G>
struct ChannelBackward {
  using A = typename G::A;
  using IO = typename G::IO;
  using Cell = typename G::Cell;
  static constexpr int STEPS = G::STEPS;
  ChannelLane<G, true> lane;
  const ChannelArgs& a;
  A dh, sums[MAX_PARAMETERS];
  A h[STEPS + 1], memo[STEPS][MAX_MEMO];
  ChannelOutput<IO> dx[G::SLOTS];
  ChannelOutput<A> unit_gradients;

  DEVICE ChannelBackward(Arena& arena, const ChannelArgs& args, const ChannelPlace& place)
      : lane(arena, args, place), a(args) {
    dh = lane.number(a.dlast, lane.index);
#pragma unroll
    for (int k = 0; k < Cell::PARAMETERS; k++) sums[k] = A(0);
#pragma unroll
    for (int s = 0; s < G::SLOTS; s++) dx[s] = lane.template output<IO>(a.dx[s]);
    if constexpr (G::HAS_UNIT)
      unit_gradients = lane.template output<A>(
          {ChannelSpace<G>(a).unit_gradients, a.steps * a.channels, a.channels});
  }

  DEVICE void run() {
    int64_t segment = lane.tiles.segments - 1;
    const A* next_checkpoint = lane.checkpoint(segment);
    A start = segment < 0 ? A(0) : lane.number(next_checkpoint, 0);
    for (; segment >= 0; segment--) {
      lane.tiles.advance();
      lane.resets.enter(segment);
      h[0] = start;
      next_checkpoint -= a.channels;
      if (segment) start = lane.number(next_checkpoint, 0);
      const int steps = lane.tiles.length(segment);
      if (steps == STEPS)
        walk<true>(steps);
      else
        walk<false>(steps);
    }
    lane.put(a.dfirst, lane.index, dh);
    A* to = ChannelSpace<G>(a).sums + lane.place.batch * Cell::PARAMETERS * a.channels;
#pragma unroll
    for (int k = 0; k < Cell::PARAMETERS; k++) lane.put(to, k * a.channels + lane.channel, sums[k]);
  }

  // Runs a segment forward, then back.
  template <bool WHOLE>
  DEVICE void walk(int steps) {
#pragma unroll
    for (int u = 0; u < STEPS; u++)
      if (WHOLE || u < steps) h[u + 1] = Cell::step(lane.read(u, h[u]), memo[u]);
    // Lets the compiler read inputs again where registers would not hold them until then.
    if constexpr (Cell::MEMO + G::SLOTS + G::SHIFTS > 4) sync_warp();
#pragma unroll
    for (int u = STEPS - 1; u >= 0; u--)
      if (WHOLE || u < steps) step(u);
  }

  DEVICE void step(int u) {
    ChannelGrad<A> d = {};
    const A query = lane.query(u);
    A dquery = A(0), dy = lane.tiles.read(lane.tiles.DY, u);
    dy = channel_output_bwd<G::HAS_QUERY, G::Spec::SELF_GATE>(h[u + 1], query, dy, dquery);
    Cell::step_bwd(lane.read(u, h[u]), memo[u], h[u + 1], dh + dy, d);
    dh = lane.resets.across(u, d.h);
#pragma unroll
    for (int k = 0; k < Cell::PARAMETERS; k++) sums[k] += d.p[k];
    write(d, dquery);
  }

  DEVICE void write(const ChannelGrad<A>& d, A dquery) {
    slot_gradients<G>(d, dquery, [&](int s, A sum) { dx[s].put(sum); });
    if constexpr (G::HAS_UNIT) unit_gradients.put(d.x[G::Spec::UNIT]);
  }
};

template <class G>
DEVICE void channel_backward(const ChannelArgs& a) {
  const ChannelPlace place(a, block_index() * G::WARPS + thread_index() / 32);
  if (!place.exists(a)) return;
  Arena arena;
  ChannelBackward<G>(arena, a, place).run();
}

// Sums the parameters' gradients over the batch, always in the same order: a thread per number.
template <class G>
DEVICE void channel_finish(const ChannelArgs& a) {
  using A = typename G::A;
  constexpr int parameters = G::Cell::PARAMETERS;
  const int64_t index = block_index() * G::THREADS + thread_index();
  if (index >= parameters * a.channels) return;
  const A* from = ChannelSpace<G>(a).sums + index;
  A sum = 0;
#pragma unroll 16
  for (int64_t b = 0; b < a.batch; b++) sum += load_one(from + b * parameters * a.channels);
#pragma unroll
  for (int k = 0; k < parameters; k++)
    if (index / a.channels == k) store_one((A*)a.dp[k] + index % a.channels, sum);
}

}  // namespace elman
