// y = x W^T for a few rows x, as one byte of text after another asks for: W is read once, and a
// warp owns a number of y, so that nothing waits for anything but memory. Sums are in fp32.
#pragma once
#include "pack.cuh"

namespace elman {

// Contiguous tensors x [rows, I], W [outputs, I] and y [rows, outputs] of one dtype.
struct RowProductArgs {
  const void *x, *weight;
  void* y;
  long long outputs;
};

template <class Number_, int I_, int V_, int ROWS_, int WARPS_>
struct RowProductGeometry {
  using Number = Number_;
  static constexpr int I = I_, V = V_, ROWS = ROWS_, WARPS = WARPS_;
  static constexpr int THREADS = 32 * WARPS, STEP = 32 * V;
};

template <class G>
DEVICE void row_product(const RowProductArgs& a) {
  using S = typename G::Number;
  constexpr int V = G::V;
  const long long output = block_index() * G::WARPS + thread_index() / 32;
  if (output >= a.outputs) return;  // a whole warp at once
  const int lane = thread_index() % 32;
  const S* weight = (const S*)a.weight + output * G::I;
  float sums[G::ROWS];
#pragma unroll
  for (int row = 0; row < G::ROWS; row++) sums[row] = 0.0f;
  // Eight accesses are under way at a time: the latency of memory is paid once, not for each.
#pragma unroll 8
  for (int at = lane * V; at < G::I; at += G::STEP) {
    float w[V], x[V];
    load<V, S>(w, weight + at);
#pragma unroll
    for (int row = 0; row < G::ROWS; row++) {
      load<V, S>(x, (const S*)a.x + (long long)row * G::I + at);
#pragma unroll
      for (int i = 0; i < V; i++) sums[row] = fused(w[i], x[i], sums[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < G::ROWS; row++) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sums[row] += shuffle_xor(sums[row], mask);
    if (lane == 0) store<1, S>((S*)a.y + row * a.outputs + output, &sums[row]);
  }
}

}  // namespace elman
