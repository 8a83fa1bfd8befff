// The unit input of the channel engine, x / (|x| + 1e-6): a warp per row [C] of one step.
#pragma once
#include "cells/unit.h"
#include "cuda/channel/tiles.cuh"

namespace elman {

template <class G>
struct ChannelUnitRow {
  using A = typename G::A;
  using IO = typename G::IO;
  static constexpr int SLOT = G::HAS_UNIT ? G::UNIT_SLOT : 0;
  const ChannelArgs& a;
  int64_t row;  // of [B, T]
  int lane;

  DEVICE explicit ChannelUnitRow(const ChannelArgs& args) : a(args) {
    row = block_index() * G::WARPS + thread_index() / 32;
    lane = thread_index() % 32;
  }
  DEVICE bool exists() const { return row < a.batch * a.steps; }
  DEVICE IO* at(const ChannelSequence& sequence) const {
    return (IO*)sequence.data + (row / a.steps * sequence.batch + row % a.steps * sequence.time);
  }
  static DEVICE A sum(A x) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
};

template <class IO, class A>
DEVICE A number_at(const IO* from) {
  A x;
  load<1, IO>(&x, from);
  return x;
}

// Leaves the norms of all rows in the workspace, and what the rows are multiplied by.
template <class G>
DEVICE void channel_norms(const ChannelArgs& a) {
  using A = typename G::A;
  using IO = typename G::IO;
  const ChannelUnitRow<G> unit(a);
  const ChannelSpace<G> space(a);
  A squares = 0;
  if (unit.exists()) {
    const IO* from = unit.at(a.x[unit.SLOT]);
#pragma unroll 8
    for (int64_t i = unit.lane; i < a.channels; i += 32) {
      const A x = number_at<IO, A>(from + i);
      squares += x * x;
    }
  }
  const A norm = square_root(unit.sum(squares));
  if (!unit.exists() || unit.lane) return;
  store_one(space.norms + unit.row, norm);
  store_one(space.scales + unit.row, unit_scale(norm));
}

// From the gradient of x / (|x| + 1e-6) to that of x.
template <class G>
DEVICE void channel_norms_backward(const ChannelArgs& a) {
  using A = typename G::A;
  using IO = typename G::IO;
  const ChannelUnitRow<G> unit(a);
  const ChannelSpace<G> space(a);
  const A* gradient = space.unit_gradients + unit.row * a.channels;
  const IO* from = unit.at(a.x[unit.SLOT]);
  A along = 0;
  if (unit.exists())
#pragma unroll 8
    for (int64_t i = unit.lane; i < a.channels; i += 32)
      along += number_at<IO, A>(from + i) * load_one(gradient + i);
  along = unit.sum(along);
  if (!unit.exists()) return;
  const A norm = load_one((const A*)space.norms + unit.row);
  const A scale = load_one((const A*)space.scales + unit.row);
  // A zero row has no direction: the norm's own gradient is taken as 0.
  along = norm > A(0) ? along * scale * scale * reciprocal(norm) : A(0);
  IO* to = unit.at(a.dx[unit.SLOT]);
#pragma unroll 4
  for (int64_t i = unit.lane; i < a.channels; i += 32) {
    A dx = unit_bwd(load_one(gradient + i), number_at<IO, A>(from + i), scale, along);
    if constexpr (G::unit_slot_shared()) dx += number_at<IO, A>(to + i);
    store<1, IO>(to + i, &dx);
  }
}

}  // namespace elman
