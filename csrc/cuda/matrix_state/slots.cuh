// E63m on a GPU (matrix-state specification 4), whose slots all read one another:
//
//   r = tanh(S k), v = tanh(input + mix r), S' = a > S + (1 - a) > v k^T, y = S' q
//
// One block per sequence of the batch, states in global memory. Forward, every warp owns slots: it
// needs r of all of them, which a step leaves for the next one; so a step has one barrier.
// Backward, sums over channels take a warp for each slot, sums over slots a thread for each
// channel, and a step has three barriers. The gradient of `mix` is a large product over all of
// time, left to the caller.
//
// With RESETS a step may start from zeros; checkpoints and the states of a segment are those before
// that.
#pragma once
#include "abi/slots.h"
#include "cells/math.h"

namespace elman {

template <class A, int WARPS, bool RESETS>
struct SlotsBlock {
  static constexpr int THREADS = 32 * WARPS;
  const SlotsArgs& a;
  const int64_t batch, size;  // which sequence; numbers of a state
  const int warp, lane, slots, channels;

  DEVICE explicit SlotsBlock(const SlotsArgs& args)
      : a(args),
        batch(block_index()),
        size(args.slots * args.channels),
        warp(thread_index() / 32),
        lane(thread_index() % 32),
        slots((int)args.slots),
        channels((int)args.channels) {}

  DEVICE static A* row(void* tensor, int64_t index, int64_t width) {
    return (A*)tensor + index * width;
  }
  DEVICE static A get(const void* tensor, int64_t index) {
    return load_one((const A*)tensor + index);
  }
  DEVICE static A sum(A x) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
  // Whether a step starts from zeros.
  DEVICE bool starts(int64_t bt) const {
    if constexpr (RESETS) return load_one(a.resets + bt);
    return false;
  }
  DEVICE int64_t segments() const { return (a.steps + a.segment - 1) / a.segment; }
  DEVICE A* checkpoint(int64_t segment) const {
    return row(a.checkpoints, batch * segments() + segment, size);
  }
};

template <class A, int WARPS, bool RESETS>
struct SlotsForward : SlotsBlock<A, WARPS, RESETS> {
  using Base = SlotsBlock<A, WARPS, RESETS>;
  using Base::a, Base::batch, Base::channels, Base::get, Base::lane, Base::row, Base::size;
  using Base::slots, Base::starts, Base::sum, Base::warp;
  A* state;
  sptr<A> read;  // r of this step and of the next one

  DEVICE SlotsForward(Arena& arena, const SlotsArgs& args)
      : Base(args), state(row(args.last, batch, size)), read(arena.take<A>(2 * slots)) {}

  DEVICE void run() {
    begin();
    sync_block();
#pragma unroll 1
    for (int64_t t = 0; t < a.steps; t++) {
      A* kept = t % a.segment == 0 ? this->checkpoint(t / a.segment) : nullptr;
      for (int j = warp; j < slots; j += WARPS) step(t, j, kept);
      sync_block();
    }
  }
  // The first state, and what the first step reads of it.
  DEVICE void begin() const {
    const bool zero = starts(batch * a.steps);
    for (int j = warp; j < slots; j += WARPS) {
      A seen = 0;
      for (int i = lane; i < channels; i += 32) {
        const A s = get(a.first, batch * size + j * channels + i);
        store_one(state + (j * channels + i), s);
        seen += s * get(a.k, batch * a.steps * channels + i);
      }
      seen = sum(seen);
      leave(0, j, zero ? A(0) : seen);
    }
  }
  DEVICE void leave(int64_t t, int j, A seen) const {
    if (lane || t == a.steps) return;
    const A r = tanh(seen);
    store_one(read + ((int)(t % 2) * slots + j), r);
    store_one(row(a.read, batch * a.steps + t, slots) + j, r);
  }
  DEVICE void step(int64_t t, int j, A* kept) const {
    const int64_t bt = batch * a.steps + t;
    const sptr<A> r = read + (int)(t % 2) * slots;
    const bool zero = starts(bt), next_zero = t + 1 < a.steps && starts(bt + 1);
    A z = 0;
    for (int n = lane; n < slots; n += 32)
      z += get(a.mix, (int64_t)j * slots + n) * load_one(r + n);
    const A v = tanh(get(a.input, bt * slots + j) + sum(z)), keep = get(a.row, bt * slots + j);
    const A written = (A(1) - keep) * v;
    const int64_t key = bt * channels, next = (t + 1 < a.steps ? bt + 1 : bt) * channels;
    A y = 0, seen = 0;
#pragma unroll 4
    for (int i = lane; i < channels; i += 32) {
      A* at = state + ((int64_t)j * channels + i);
      const A old = load_one(at);
      const A s = (zero ? A(0) : old) * keep + get(a.k, key + i) * written;
      if (kept) store_one(kept + ((int64_t)j * channels + i), old);
      store_one(at, s);
      y += s * get(a.q, key + i);
      seen += s * get(a.k, next + i);
    }
    y = sum(y);
    seen = sum(seen);
    leave(t + 1, j, next_zero ? A(0) : seen);
    if (lane) return;
    store_one(row(a.y, bt, slots) + j, y);
    store_one(row(a.value, bt, slots) + j, v);
  }
};

template <class A, int WARPS, bool RESETS>
struct SlotsBackward : SlotsBlock<A, WARPS, RESETS> {
  using Base = SlotsBlock<A, WARPS, RESETS>;
  using Base::a, Base::batch, Base::channels, Base::get, Base::lane, Base::row, Base::size;
  using Base::slots, Base::starts, Base::sum, Base::warp;
  static constexpr int THREADS = Base::THREADS;
  A *gradient, *states;   // of the state; states of a segment and the one behind it
  sptr<A> dinput, dseen;  // gradients of input + mix r, and of S k

  DEVICE SlotsBackward(Arena& arena, const SlotsArgs& args)
      : Base(args),
        gradient(row(args.dfirst, batch, size)),
        states(row(args.workspace, batch * (args.segment + 1), size)),
        dinput(arena.take<A>(slots)),
        dseen(arena.take<A>(slots)) {}

  DEVICE void run() {
    for (int64_t i = thread_index(); i < size; i += THREADS)
      store_one(gradient + i, a.dlast ? get(a.dlast, batch * size + i) : A(0));
    for (int64_t segment = this->segments() - 1; segment >= 0; segment--) {
      const int64_t t0 = segment * a.segment;
      const int64_t left = a.steps - t0, steps = left < a.segment ? left : a.segment;
      for (int i = thread_index(); i < channels; i += THREADS) recompute(segment, steps, i);
      sync_block();
#pragma unroll 1
      for (int64_t u = steps - 1; u >= 0; u--) step(batch * a.steps + t0 + u, states + u * size);
    }
  }
  // The states of a channel through a segment.
  DEVICE void recompute(int64_t segment, int64_t steps, int i) const {
    for (int j = 0; j < slots; j++) {
      const int64_t at = (int64_t)j * channels + i;
      A s = load_one(this->checkpoint(segment) + at);
      store_one(states + at, s);
      for (int64_t u = 0; u < steps; u++) {
        const int64_t bt = batch * a.steps + segment * a.segment + u;
        const A keep = get(a.row, bt * slots + j);
        if (starts(bt)) s = A(0);
        s = s * keep + get(a.k, bt * channels + i) * ((A(1) - keep) * get(a.value, bt * slots + j));
        store_one(states + ((u + 1) * size + at), s);
      }
    }
  }
  DEVICE A dy(int64_t bt, int j) const { return a.dy ? get(a.dy, bt * slots + j) : A(0); }

  DEVICE void step(int64_t bt, const A* s) const {
    for (int j = warp; j < slots; j += WARPS) over_channels(bt, s, j);
    sync_block();
    for (int n = thread_index(); n < slots; n += THREADS) through_mix(bt, n);
    sync_block();
    for (int i = thread_index(); i < channels; i += THREADS) over_slots(bt, s, i);
    sync_block();
  }
  // A slot's gradients of a and of its input.
  DEVICE void over_channels(int64_t bt, const A* s, int j) const {
    const A dout = dy(bt, j);
    const bool zero = starts(bt);
    A with_key = 0, with_state = 0;
#pragma unroll 4
    for (int i = lane; i < channels; i += 32) {
      const int64_t at = (int64_t)j * channels + i;
      const A e = load_one(gradient + at) + dout * get(a.q, bt * channels + i);
      with_key += e * get(a.k, bt * channels + i);
      with_state += e * (zero ? A(0) : load_one(s + at));
    }
    with_key = sum(with_key);
    with_state = sum(with_state);
    if (lane) return;
    const A v = get(a.value, bt * slots + j), keep = get(a.row, bt * slots + j);
    const A dz = with_key * (A(1) - keep) * (A(1) - v * v);
    store_one(row(a.drow, bt, slots) + j, with_state - v * with_key);
    store_one(row(a.dinput, bt, slots) + j, dz);
    store_one(dinput + j, dz);
  }
  DEVICE void through_mix(int64_t bt, int n) const {
    A sum = 0;
#pragma unroll 4
    for (int j = 0; j < slots; j++)
      sum += load_one(dinput + j) * get(a.mix, (int64_t)j * slots + n);
    const A r = get(a.read, bt * slots + n);
    store_one(dseen + n, sum * (A(1) - r * r));
  }
  // A channel's gradients of key and query, and of the state before the step.
  DEVICE void over_slots(int64_t bt, const A* s, int i) const {
    const A k = get(a.k, bt * channels + i), q = get(a.q, bt * channels + i);
    const bool zero = starts(bt);
    A dk = 0, dq = 0;
#pragma unroll 4
    for (int j = 0; j < slots; j++) {
      const int64_t at = (int64_t)j * channels + i;
      const A dout = dy(bt, j), keep = get(a.row, bt * slots + j), du = load_one(dseen + j);
      const A e = load_one(gradient + at) + dout * q;
      dq += dout * load_one(s + size + at);
      const A old = zero ? A(0) : load_one(s + at);
      dk += (A(1) - keep) * get(a.value, bt * slots + j) * e + du * old;
      store_one(gradient + at, zero ? A(0) : keep * e + du * k);
    }
    store_one(row(a.dk, bt, channels) + i, dk);
    store_one(row(a.dq, bt, channels) + i, dq);
  }
};

template <class A, int WARPS, bool RESETS>
DEVICE void slots_forward(const SlotsArgs& a) {
  Arena arena;
  SlotsForward<A, WARPS, RESETS>(arena, a).run();
}

template <class A, int WARPS, bool RESETS>
DEVICE void slots_backward(const SlotsArgs& a) {
  Arena arena;
  SlotsBackward<A, WARPS, RESETS>(arena, a).run();
}

}  // namespace elman
