// A depthwise causal convolution over time, with silu behind it or without:
//   u_t = bias + sum_j w_j x_{t - (K - 1) + j},  y_t = silu(u_t).
// A thread walks V channels through STEPS steps and keeps the last K - 1 inputs in registers. The
// output, and its gradient, may be several tensors side by side, as layers use them. Sums are in
// fp32, and those of the gradients of taps and bias are made in a fixed order.
#pragma once
#include "cells/math.h"
#include "cuda/common/pack.cuh"

namespace elman {

// Of one dtype S, but for taps, bias and their gradients, which are fp32. History is the K - 1
// inputs before the first step; without one they are zeros. At a step with a reset, the inputs
// before it count as zeros for it and all later steps.
struct CausalConvArgs {
  const void* x;                    // [B, T, C], rows `x_stride` numbers apart
  const void *weight, *bias;        // [C, K], [C] or null
  const void* history;              // [B, K - 1, C] or null
  const void* resets;               // bytes [B, T] or null
  void *y0, *y1, *y2;               // forward: [B, T, W0], [B, T, W1], [B, T, W2]
  const void *dy0, *dy1, *dy2;      // backward: the same
  void *dx, *dhistory;              // backward: as x, rows `dx_stride` apart; as history, or null
  void *partial, *dweight, *dbias;  // backward: [shares, K + 1, C], [C, K], [C]
  long long x_stride, dx_stride, batch, steps, chunks, shares;
};

template <class S_, int K_, int V_, int W0_, int W1_, int W2_, bool SILU_, bool RESETS_>
struct CausalConvTileConfig {
  using S = S_;
  static constexpr int K = K_, V = V_, W0 = W0_, W1 = W1_, W2 = W2_, C = W0 + W1 + W2;
  static constexpr bool SILU = SILU_, RESETS = RESETS_;
  static constexpr int THREADS = 128, STEPS = 64;
  static constexpr int VECTORS = C / V, COLUMN_BLOCKS = (VECTORS + THREADS - 1) / THREADS;
  static constexpr int SLICES = 16;  // warps that share a column of the partial sums
  static_assert(W0 % V == 0 && W1 % V == 0 && W2 % V == 0, "a vector lies in one part");
};

// One thread's channels: where they are, their taps, and the inputs before the step at hand.
template <class G>
struct CausalConvLane {
  using S = typename G::S;
  static constexpr int K = G::K, V = G::V;
  const CausalConvArgs& a;
  int column;
  long long row, first, end;  // of a chunk: of the batch; its steps
  float w[K][V], bias[V], past[K - 1][V];

  DEVICE CausalConvLane(const CausalConvArgs& args, int at) : a(args), column(at) {
#pragma unroll
    for (int i = 0; i < V; i++) {
#pragma unroll
      for (int j = 0; j < K; j++) w[j][i] = load_one((const float*)a.weight + (column + i) * K + j);
      bias[i] = a.bias ? load_one((const float*)a.bias + (column + i)) : 0.0f;
    }
  }

  // Goes to a chunk of steps, and reads the inputs before it.
  DEVICE void begin(long long chunk) {
    const long long of_a_row = (a.steps + G::STEPS - 1) / G::STEPS;
    row = chunk / of_a_row;
    first = chunk % of_a_row * G::STEPS;
    end = first + G::STEPS < a.steps ? first + G::STEPS : a.steps;
#pragma unroll
    for (int j = 0; j < K - 1; j++) {
      const long long step = first - (K - 1) + j;
#pragma unroll
      for (int i = 0; i < V; i++) past[j][i] = 0.0f;
      if (reset_at(step)) forget();
      if (step >= 0)
        read(past[j], step);
      else if (a.history)
        load<V, S>(past[j],
                   (const S*)a.history + ((row * (K - 1) + (K - 1 + step)) * G::C + column));
    }
  }

  DEVICE void read(float (&x)[V], long long step) const {
    load<V, S>(x, (const S*)a.x + ((row * a.steps + step) * a.x_stride + column));
  }
  DEVICE bool reset_at(long long step) const {
    if constexpr (!G::RESETS) return false;
    return step >= 0 && step < a.steps &&
           load_one((const unsigned char*)a.resets + (row * a.steps + step)) != 0;
  }
  DEVICE void forget() {
#pragma unroll
    for (int j = 0; j < K - 1; j++) {
#pragma unroll
      for (int i = 0; i < V; i++) past[j][i] = 0.0f;
    }
  }
  DEVICE void convolve(float (&u)[V], const float (&x)[V]) const {
#pragma unroll
    for (int i = 0; i < V; i++) {
      u[i] = bias[i];
#pragma unroll
      for (int j = 0; j < K - 1; j++) u[i] = fused(w[j][i], past[j][i], u[i]);
      u[i] = fused(w[K - 1][i], x[i], u[i]);
    }
  }
  DEVICE void push(const float (&x)[V]) {
#pragma unroll
    for (int i = 0; i < V; i++) {
#pragma unroll
      for (int j = 0; j < K - 2; j++) past[j][i] = past[j + 1][i];
      past[K - 2][i] = x[i];
    }
  }
  // This lane's numbers of a step in one of the parts that lie side by side.
  template <class P>
  DEVICE P* part(P* t0, P* t1, P* t2, long long step) const {
    const long long at = row * a.steps + step;
    if (column < G::W0) return t0 + (at * G::W0 + column);
    if (column < G::W0 + G::W1) return t1 + (at * G::W1 + (column - G::W0));
    return t2 + (at * G::W2 + (column - G::W0 - G::W1));
  }
};

template <class G>
DEVICE int causal_conv_column() {
  return (int)(block_index() % G::COLUMN_BLOCKS * G::THREADS + thread_index()) * G::V;
}

template <class G>
DEVICE void causal_conv_forward(const CausalConvArgs& a) {
  using S = typename G::S;
  constexpr int V = G::V, AHEAD = 4;
  const int column = causal_conv_column<G>();
  if (column >= G::C) return;
  CausalConvLane<G> lane(a, column);
  lane.begin(block_index() / G::COLUMN_BLOCKS);
  for (long long from = lane.first; from < lane.end; from += AHEAD) {
    float x[AHEAD][V];
#pragma unroll
    for (int n = 0; n < AHEAD; n++)
      if (from + n < lane.end) lane.read(x[n], from + n);
#pragma unroll
    for (int n = 0; n < AHEAD; n++) {
      const long long step = from + n;
      if (step >= lane.end) break;
      if (lane.reset_at(step)) lane.forget();
      float u[V];
      lane.convolve(u, x[n]);
      if constexpr (G::SILU) {
#pragma unroll
        for (int i = 0; i < V; i++) u[i] *= sigmoid(u[i]);
      }
      store<V, S>(lane.part((S*)a.y0, (S*)a.y1, (S*)a.y2, step), u);
      lane.push(x[n]);
    }
  }
}

// What a lane of the backward pass knows besides: the sums of its taps and bias, and the gradients
// of the last K inputs, of which the oldest is complete after each step.
template <class G>
struct CausalConvBack {
  using S = typename G::S;
  static constexpr int K = G::K, V = G::V;
  float dw[K + 1][V], due[K][V];
  int since;  // steps since a reset

  DEVICE CausalConvBack() {
#pragma unroll
    for (int j = 0; j <= K; j++) {
#pragma unroll
      for (int i = 0; i < V; i++) dw[j][i] = 0.0f;
    }
  }
  DEVICE void begin() {
    since = K;
#pragma unroll
    for (int j = 0; j < K; j++) {
#pragma unroll
      for (int i = 0; i < V; i++) due[j][i] = 0.0f;
    }
  }
  // The gradient of u at a step, whose input is x; only the chunk's own steps count for the taps.
  DEVICE void add(const CausalConvLane<G>& lane, const float (&du)[V], const float (&x)[V],
                  bool own) {
#pragma unroll
    for (int j = 0; j < K; j++) {
      if (G::RESETS && K - 1 - j > since) continue;
#pragma unroll
      for (int i = 0; i < V; i++) due[j][i] = fused(lane.w[j][i], du[i], due[j][i]);
    }
    if (!own) return;
#pragma unroll
    for (int i = 0; i < V; i++) {
#pragma unroll
      for (int j = 0; j < K - 1; j++) dw[j][i] = fused(du[i], lane.past[j][i], dw[j][i]);
      dw[K - 1][i] = fused(du[i], x[i], dw[K - 1][i]);
      dw[K][i] += du[i];
    }
  }
  // Writes the gradient that is complete after a step.
  DEVICE void finish(const CausalConvLane<G>& lane, long long step) {
    const CausalConvArgs& a = lane.a;
    const long long at = step - (K - 1);
    if (at >= lane.first)
      store<V, S>((S*)a.dx + ((lane.row * a.steps + at) * a.dx_stride + lane.column), due[0]);
    else if (at < 0 && a.dhistory)
      store<V, S>((S*)a.dhistory + ((lane.row * (K - 1) + step) * G::C + lane.column), due[0]);
#pragma unroll
    for (int i = 0; i < V; i++) {
#pragma unroll
      for (int j = 0; j < K - 1; j++) due[j][i] = due[j + 1][i];
      due[K - 1][i] = 0.0f;
    }
  }
};

// du = dy silu'(u).
template <class G>
DEVICE void causal_conv_slope(float (&du)[G::V], const float (&u)[G::V]) {
  if constexpr (G::SILU) {
#pragma unroll
    for (int i = 0; i < G::V; i++) {
      const float gate = sigmoid(u[i]);
      du[i] *= gate + u[i] * gate * (1.0f - gate);
    }
  }
}

// The inputs and gradients of some steps that follow each other, on their way from memory.
template <class G, int AHEAD>
struct CausalConvSteps {
  Packed<G::V, typename G::S> x[AHEAD], dy[AHEAD];

  DEVICE void read(const CausalConvLane<G>& lane, long long from, long long end) {
    using S = typename G::S;
    const CausalConvArgs& a = lane.a;
#pragma unroll
    for (int n = 0; n < AHEAD; n++) {
      const long long step = from + n < end ? from + n : end - 1;
      x[n].read((const S*)a.x + ((lane.row * a.steps + step) * a.x_stride + lane.column));
      dy[n].read(lane.part((const S*)a.dy0, (const S*)a.dy1, (const S*)a.dy2, step));
    }
  }
};

template <class G>
DEVICE void causal_conv_backward(const CausalConvArgs& a) {
  // Of wider numbers fewer steps, for more would not stay in registers.
  constexpr int V = G::V, K = G::K, AHEAD = sizeof(typename G::S) == 2 ? 4 : 2;
  const int column = causal_conv_column<G>();
  if (column >= G::C) return;
  CausalConvLane<G> lane(a, column);
  CausalConvBack<G> back;
  const long long share = block_index() / G::COLUMN_BLOCKS;
  for (long long chunk = share; chunk < a.chunks; chunk += a.shares) {
    lane.begin(chunk);
    back.begin();
    // The last inputs of a chunk reach into the next one.
    const long long reach = lane.end + (K - 1), end = reach < a.steps ? reach : a.steps;
    CausalConvSteps<G, AHEAD> now, next;
    now.read(lane, lane.first, end);
    for (long long from = lane.first; from < reach; from += AHEAD) {
      // Memory is on its way while the steps at hand are computed.
      next.read(lane, from + AHEAD, end);
#pragma unroll
      for (int n = 0; n < AHEAD; n++) {
        const long long step = from + n;
        if (step >= reach) break;
        if (step < a.steps) {
          back.since += back.since < K;
          if (lane.reset_at(step)) {
            lane.forget();
            back.since = 0;
          }
          float x[V], du[V], u[V];
          now.x[n].to(x);
          now.dy[n].to(du);
          lane.convolve(u, x);
          causal_conv_slope<G>(du, u);
          back.add(lane, du, x, step < lane.end);
          lane.push(x);
        }
        back.finish(lane, step);
      }
      now = next;
    }
  }
#pragma unroll
  for (int j = 0; j <= K; j++)
    store<V, float>((float*)a.partial + ((share * (K + 1) + j) * G::C + column), back.dw[j]);
}

// Sums the partial sums of 32 columns, always in the same order: a lane to a column, and of the
// shares every SLICES-th to a warp.
template <class G>
DEVICE void causal_conv_finish(const CausalConvArgs& a) {
  constexpr int COLUMNS = (G::K + 1) * G::C;
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const long long column = block_index() * 32 + lane;
  float sum = 0.0f;
  if (column < COLUMNS) {
#pragma unroll 8
    for (long long share = warp; share < a.shares; share += G::SLICES)
      sum += load_one((const float*)a.partial + share * COLUMNS + column);
  }
  Arena arena;
  const sptr<float> sums = arena.take<float>(G::SLICES * 32);
  store_one(sums + (warp * 32 + lane), sum);
  sync_block();
  if (warp > 0 || column >= COLUMNS) return;
  sum = 0.0f;
  for (int slice = 0; slice < G::SLICES; slice++) sum += load_one(sums + (slice * 32 + lane));
  const int tap = (int)(column / G::C);
  const long long channel = column % G::C;
  if (tap < G::K)
    store_one((float*)a.dweight + channel * G::K + tap, sum);
  else
    store_one((float*)a.dbias + channel, sum);
}

}  // namespace elman
