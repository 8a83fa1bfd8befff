// The residual stream: s = stream + branch, normed = s / sqrt(mean(s^2) + eps) gain, over rows of D
// numbers. A block takes a row at a time; where D permits, the row stays in its threads' registers
// between the two passes over it. Statistics are in fp32; what is narrower is rounded once.
#pragma once
#include "cuda/common/pack.cuh"
#include "cuda/common/sums.cuh"

namespace elman {

// Contiguous tensors [rows, D], [rows] (rstd), [D] (gain, dgain) and [blocks, D] (partial). Those
// of one pass are null in the other; without a branch so are branch, sum and dbranch.
struct AddNormArgs {
  const void *stream, *branch, *gain;         // forward; backward reads the gain alone
  void *sum, *normed, *rstd;                  // its results; backward reads sum and rstd
  const void *dsum, *dnormed;                 // dsum may be null
  void *dstream, *dbranch, *partial, *dgain;  // dbranch is null where dstream serves for both
  long long rows, blocks;                     // blocks: of the launch; no more than rows
  double eps;
};

template <class Branch_, class Out_, int D_, int V_, int CHUNKS_, int WARPS_>
struct AddNormTileConfig {
  using Branch = Branch_;
  using Out = Out_;
  // A thread has CHUNKS vectors of V numbers of every tile of a row, THREADS vectors apart.
  static constexpr int D = D_, V = V_, CHUNKS = CHUNKS_, WARPS = WARPS_;
  static constexpr int THREADS = 32 * WARPS, NUMBERS = V * CHUNKS, TILE = THREADS * NUMBERS;
  static constexpr int TILES = (D + TILE - 1) / TILE;
  static constexpr bool HELD = TILES == 1;  // the row stays in registers
  static constexpr int BLOCKS = 32 / WARPS < 16 ? 32 / WARPS : 16;
  static constexpr int SLICES = 16;  // warps that share a column of the partial sums
};

template <class G>
struct AddNormBlock {
  static constexpr int V = G::V, N = G::NUMBERS;
  sptr<float> sums;  // of the warps; the rows take turns at two of these arrays
  int turn = 0;

  DEVICE AddNormBlock() {
    Arena arena;
    sums = arena.take<float>(2 * G::WARPS);
  }

  DEVICE static int column(int tile, int chunk) {
    return tile * G::TILE + (chunk * G::THREADS + thread_index()) * V;
  }

  // The thread's numbers of a tile; zeros beyond the end of the row.
  template <class S>
  DEVICE static void read(float (&x)[N], const void* tensor, long long row, int tile) {
    const S* from = (const S*)tensor + row * G::D;
#pragma unroll
    for (int chunk = 0; chunk < G::CHUNKS; chunk++) {
      const int at = column(tile, chunk);
      if (at < G::D) {
        load<V, S>(x + chunk * V, from + at);
      } else {
#pragma unroll
        for (int i = 0; i < V; i++) x[chunk * V + i] = 0.0f;
      }
    }
  }

  template <class S>
  DEVICE static void write(void* tensor, long long row, int tile, const float (&x)[N]) {
    S* to = (S*)tensor + row * G::D;
#pragma unroll
    for (int chunk = 0; chunk < G::CHUNKS; chunk++) {
      const int at = column(tile, chunk);
      if (at < G::D) store<V, S>(to + at, x + chunk * V);
    }
  }

  // The sum over the block of a number per thread, the same in all of them. One barrier a row: who
  // writes to an array again has passed the other's barrier, and so has everyone read the first.
  DEVICE float total(float x) {
    const sptr<float> mine = sums + turn * G::WARPS;
    turn ^= 1;
    return block_sum<G::WARPS>(x, mine);
  }
};

template <class G>
DEVICE void add_norm_forward(const AddNormArgs& a) {
  constexpr int N = G::NUMBERS;
  AddNormBlock<G> block;
  float s[N], gain[N];
  if constexpr (G::HELD) block.template read<float>(gain, a.gain, 0, 0);
  for (long long row = block_index(); row < a.rows; row += a.blocks) {
    float squares = 0.0f;
    for (int tile = 0; tile < G::TILES; tile++) {
      block.template read<float>(s, a.stream, row, tile);
      if (a.branch) {
        float y[N];
        block.template read<typename G::Branch>(y, a.branch, row, tile);
#pragma unroll
        for (int i = 0; i < N; i++) s[i] += y[i];
        block.template write<float>(a.sum, row, tile, s);
      }
#pragma unroll
      for (int i = 0; i < N; i++) squares = fused(s[i], s[i], squares);
    }
    const float mean = block.total(squares) * (1.0f / G::D);
    const float rstd = reciprocal(square_root(mean + (float)a.eps));
    if (thread_index() == 0) store_one((float*)a.rstd + row, rstd);
    for (int tile = 0; tile < G::TILES; tile++) {
      if constexpr (!G::HELD) {
        block.template read<float>(s, a.branch ? a.sum : a.stream, row, tile);
        block.template read<float>(gain, a.gain, 0, tile);
      }
#pragma unroll
      for (int i = 0; i < N; i++) s[i] *= rstd * gain[i];
      block.template write<typename G::Out>(a.normed, row, tile, s);
    }
  }
}

// With n = s rstd: dstream = dsum + rstd (gain dnormed - n mean(gain dnormed n)); dgain is the sum
// over rows of dnormed n, of which every block keeps its own, in registers where the row is.
template <class G>
DEVICE void add_norm_backward(const AddNormArgs& a) {
  constexpr int N = G::NUMBERS;
  AddNormBlock<G> block;
  float n[N], dy[N], ds[N] = {}, gain[N], dgain[N] = {};
  if constexpr (G::HELD) block.template read<float>(gain, a.gain, 0, 0);
  for (long long row = block_index(); row < a.rows; row += a.blocks) {
    float dot = 0.0f;
    const float rstd = load_one((const float*)a.rstd + row);
    for (int tile = 0; tile < G::TILES; tile++) {
      block.template read<float>(n, a.sum, row, tile);
      block.template read<typename G::Out>(dy, a.dnormed, row, tile);
      if constexpr (!G::HELD) block.template read<float>(gain, a.gain, 0, tile);
      // Asked for here, not where it is used: the barrier stands between.
      if (G::HELD && a.dsum) block.template read<float>(ds, a.dsum, row, tile);
#pragma unroll
      for (int i = 0; i < N; i++) {
        n[i] *= rstd;
        dot = fused(n[i], gain[i] * dy[i], dot);
      }
    }
    const float mean = block.total(dot) * (1.0f / G::D);
    for (int tile = 0; tile < G::TILES; tile++) {
      if constexpr (!G::HELD) {
        block.template read<float>(n, a.sum, row, tile);
        block.template read<typename G::Out>(dy, a.dnormed, row, tile);
        block.template read<float>(gain, a.gain, 0, tile);
        if (a.dsum) block.template read<float>(ds, a.dsum, row, tile);
        if (row >= a.blocks) block.template read<float>(dgain, a.partial, block_index(), tile);
#pragma unroll
        for (int i = 0; i < N; i++) {
          n[i] *= rstd;
          if (row < a.blocks) dgain[i] = 0.0f;
        }
      }
      float dx[N];
#pragma unroll
      for (int i = 0; i < N; i++) {
        dgain[i] = fused(dy[i], n[i], dgain[i]);
        dx[i] = fused(rstd, gain[i] * dy[i] - n[i] * mean, ds[i]);
      }
      block.template write<float>(a.dstream, row, tile, dx);
      if (a.dbranch) block.template write<typename G::Branch>(a.dbranch, row, tile, dx);
      if constexpr (!G::HELD) block.template write<float>(a.partial, block_index(), tile, dgain);
    }
  }
  if constexpr (G::HELD) block.template write<float>(a.partial, block_index(), 0, dgain);
}

template <class G>
DEVICE void add_norm_finish(const AddNormArgs& a) {
  sum_columns<G::D, G::SLICES>((float*)a.dgain, (const float*)a.partial, a.blocks);
}

}  // namespace elman
