// y = x W^T for a few rows x, as one byte of text after another asks for: W is read once, and a
// warp owns a number of y, so that nothing waits for anything but memory. Sums are in fp32. A lane
// sums V numbers of each step by themselves and then the steps. bf16 on a boundary of 16 bytes is
// for tile_product.cuh.
#pragma once
#include "cuda/common/pack.cuh"

namespace elman {

// Contiguous tensors x [rows, I], W [outputs, I] and y [rows, outputs] of one dtype.
struct RowProductArgs {
  const void *x, *weight;
  void* y;
  long long outputs;
};

template <class Number_, int I_, int V_, int ROWS_, int WARPS_>
struct RowProductTileConfig {
  using Number = Number_;
  static constexpr int I = I_, V = V_, ROWS = ROWS_, WARPS = WARPS_;
  static constexpr int THREADS = 32 * WARPS, STEP = 32 * V;
};

// Adds the products of V weights with the same columns of every row, summed by themselves.
template <class G>
DEVICE void add_products(float (&sums)[G::ROWS], const RowProductArgs& a, const float* w, int at) {
  using S = typename G::Number;
#pragma unroll
  for (int row = 0; row < G::ROWS; row++) {
    float x[G::V];
    load<G::V, S>(x, (const S*)a.x + (long long)row * G::I + at);
    float step = 0.0f;
#pragma unroll
    for (int i = 0; i < G::V; i++) step = fused(w[i], x[i], step);
    sums[row] += step;
  }
}

template <class G>
DEVICE void row_product(const RowProductArgs& a) {
  using S = typename G::Number;
  constexpr int V = G::V;
  const long long output = block_index() * G::WARPS + thread_index() / 32;
  if (output >= a.outputs) return;  // a whole warp at once
  const int lane = thread_index() % 32;
  const S* weight = (const S*)a.weight + output * G::I;
  // The weights are nobody's result: they are on their way while the kernel before still runs.
  constexpr int AHEAD = (G::I + G::STEP - 1) / G::STEP < 8 ? (G::I + G::STEP - 1) / G::STEP : 8;
  float ahead[AHEAD][V];
#pragma unroll
  for (int step = 0; step < AHEAD; step++) {
    const int at = step * G::STEP + lane * V;
    if (at < G::I) load<V, S>(ahead[step], weight + at);
  }
  wait_for_predecessor();
  float sums[G::ROWS];
#pragma unroll
  for (int row = 0; row < G::ROWS; row++) sums[row] = 0.0f;
#pragma unroll
  for (int step = 0; step < AHEAD; step++) {
    const int at = step * G::STEP + lane * V;
    if (at < G::I) add_products<G>(sums, a, ahead[step], at);
  }
#pragma unroll 4
  for (int at = AHEAD * G::STEP + lane * V; at < G::I; at += G::STEP) {
    float w[V];
    load<V, S>(w, weight + at);
    add_products<G>(sums, a, w, at);
  }
#pragma unroll
  for (int row = 0; row < G::ROWS; row++) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sums[row] += shuffle_xor(sums[row], mask);
    if (lane == 0) store<1, S>((S*)a.y + row * a.outputs + output, &sums[row]);
  }
}

}  // namespace elman
