// Sums in one order, so that all runs agree to the bit: over the threads of a block, and over rows
// of partial sums.
#pragma once

namespace elman {

// The sum over a block of WARPS warps of a number per thread, the same in all of them. `sums` has
// room for a number of every warp; who writes to it again has to come by another barrier first.
template <int WARPS>
DEVICE float block_sum(float x, sptr<float> sums) {
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
  if constexpr (WARPS > 1) {
    if (thread_index() % 32 == 0) store_one(sums + thread_index() / 32, x);
    sync_block();
    x = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) x += load_one(sums + warp);
  }
  return x;
}

// Sums 32 columns of partial sums [count, COLUMNS] by a block of SLICES warps: a lane to a column,
// and every SLICES-th row to a warp.
template <int COLUMNS, int SLICES>
DEVICE void sum_columns(float* to, const float* partial, long long count) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const long long column = block_index() * 32 + lane;
  float sum = 0.0f;
  if (column < COLUMNS) {
#pragma unroll 8
    for (long long row = warp; row < count; row += SLICES)
      sum += load_one(partial + row * COLUMNS + column);
  }
  Arena arena;
  const sptr<float> sums = arena.take<float>(SLICES * 32);
  store_one(sums + (warp * 32 + lane), sum);
  sync_block();
  if (warp > 0 || column >= COLUMNS) return;
  sum = 0.0f;
  for (int slice = 0; slice < SLICES; slice++) sum += load_one(sums + (slice * 32 + lane));
  store_one(to + column, sum);
}

}  // namespace elman
