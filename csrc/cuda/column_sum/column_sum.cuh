// The sum over the rows of a tensor: the gradient of a bias. A block sums some rows of a tile of
// columns, and a second kernel sums what all blocks left. All sums are fp32, in one order.
#pragma once
#include "cuda/common/pack.cuh"
#include "cuda/common/sums.cuh"

namespace elman {

struct ColumnSumArgs {
  const void* x;           // [rows, C]
  void* partial;           // [chunks, C], fp32
  void* out;               // [C], fp32
  long long rows, chunks;  // chunks: of the rows, each of as many blocks as a row has tiles
};

// T: dtype of x. C: columns. V: numbers of a row that a thread has.
template <class T_, int C_, int V_>
struct ColumnSumTileConfig {
  using T = T_;
  static constexpr int C = C_, V = V_, WARPS = 8, THREADS = 32 * WARPS;
  static constexpr int TILE = 32 * V, TILES = (C + TILE - 1) / TILE;
  static constexpr int SLICES = 16;  // warps that share a column of the partial sums
  static_assert(C % V == 0 && TILE <= THREADS, "a row is whole vectors; a thread ends a column");
};

template <class G>
DEVICE void column_sum_parts(const ColumnSumArgs& a) {
  constexpr int V = G::V;
  Arena arena;
  const sptr<float> sums = arena.take<float>(G::WARPS * G::TILE);
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const long long chunk = block_index() / G::TILES;
  const int first = (int)(block_index() % G::TILES) * G::TILE, column = first + lane * V;
  const long long some = (a.rows + a.chunks - 1) / a.chunks;
  const long long end = (chunk + 1) * some < a.rows ? (chunk + 1) * some : a.rows;
  float sum[V] = {};
  if (column < G::C) {
#pragma unroll 8
    for (long long row = chunk * some + warp; row < end; row += G::WARPS) {
      float x[V];
      load<V, typename G::T>(x, (const typename G::T*)a.x + (row * G::C + column));
#pragma unroll
      for (int i = 0; i < V; i++) sum[i] += x[i];
    }
  }
#pragma unroll
  for (int i = 0; i < V; i++) store_one(sums + (warp * G::TILE + lane * V + i), sum[i]);
  sync_block();
  const int mine = thread_index();
  if (mine >= G::TILE || first + mine >= G::C) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < G::WARPS; w++) total += load_one(sums + (w * G::TILE + mine));
  store_one((float*)a.partial + (chunk * G::C + first + mine), total);
}

template <class G>
DEVICE void column_sum_finish(const ColumnSumArgs& a) {
  sum_columns<G::C, G::SLICES>((float*)a.out, (const float*)a.partial, a.chunks);
}

}  // namespace elman
