// RMSNorm of short rows, such as each head's read, and a gate behind it in the same pass:
// out = y / sqrt(mean(y^2) + eps) gain act(gate), over rows of W numbers. A team of LANES lanes
// has a row, a warp several teams. The row stays in registers, so each tensor is moved once.
// Statistics are in fp32; rounding is where plain PyTorch rounds.
#pragma once
#include "cells/math.h"
#include "cuda/common/pack.cuh"
#include "cuda/common/sums.cuh"

namespace elman {

// Contiguous tensors [rows, W], [rows] (rstd), [W] (gain, dgain) and [blocks, W] (partial), but for
// the gate. Its rows are HEADS W long and `stride` numbers apart: a part of a projection.
struct HeadNormArgs {
  const void *y, *gain, *gate, *dout;  // dout: backward alone
  void *out, *rstd;                    // forward; backward reads rstd
  void *dy, *dgate, *partial, *dgain;  // backward
  long long rows, stride, blocks;      // blocks: of the backward launch
  double eps;
};

enum class HeadGate { NONE, SILU, SIGMOID };

// Y: dtype of y and its gradient. Z: of the gate and its gradient. Out: of out and its gradient.
template <class Y_, class Z_, class Out_, HeadGate ACT_, int W_, int HEADS_, int V_, int CHUNKS_,
          int LANES_>
struct HeadNormTileConfig {
  using Y = Y_;
  using Z = Z_;
  using Out = Out_;
  // A lane has CHUNKS vectors of V numbers of a row, LANES vectors apart.
  static constexpr HeadGate ACT = ACT_;
  static constexpr bool GATED = ACT != HeadGate::NONE;
  static constexpr int W = W_, HEADS = HEADS_, V = V_, CHUNKS = CHUNKS_, LANES = LANES_;
  static constexpr int N = V * CHUNKS, TEAMS = 32 / LANES, WARPS = 8, THREADS = 32 * WARPS;
  static constexpr int BLOCKS = N <= 8 ? 4 : N <= 16 ? 2 : 1;  // that a multiprocessor holds
  static constexpr int SLICES = 16;                 // warps that share a column of the partial sums
  static constexpr long long ROWS = WARPS * TEAMS;  // of a block at a time
  static_assert(W % V == 0 && N * LANES >= W, "a row is whole vectors, all of them in registers");
};

// A number as it is stored in type S.
template <class S>
DEVICE float rounded(float x) {
  if constexpr (sizeof(S) == 2) x = Half<S>::low(Half<S>::pack(x, 0.0f));
  return x;
}

// The gate's factor and its derivative. The factor has the gate's dtype, as plain PyTorch has it,
// which also takes the derivative of a sigmoid from that.
template <class G>
DEVICE void head_gate(float& factor, float& slope, float z) {
  const float s = sigmoid(z), silu = z * s;
  factor = rounded<typename G::Z>(G::ACT == HeadGate::SILU ? silu : s);
  slope = G::ACT == HeadGate::SILU ? s + silu * (1.0f - s) : factor * (1.0f - factor);
}

template <class G>
struct HeadNormTeam {
  static constexpr int V = G::V, N = G::N;
  const HeadNormArgs& a;
  int lane = thread_index() % G::LANES;
  float gain[N];

  DEVICE explicit HeadNormTeam(const HeadNormArgs& args) : a(args) {
    read<float>(gain, a.gain, 0, true);
  }

  // The first row of all teams of a block; theirs follow one another.
  DEVICE static long long first() { return block_index() * G::ROWS; }
  DEVICE static int team() { return thread_index() / G::LANES; }

  DEVICE int column(int chunk) const { return (chunk * G::LANES + lane) * V; }

  // The lane's numbers of what starts at a place; zeros beyond the end of a row.
  template <class S>
  DEVICE void read(float (&x)[N], const void* tensor, long long start, bool there) const {
#pragma unroll
    for (int chunk = 0; chunk < G::CHUNKS; chunk++) {
      const int at = column(chunk);
      if (there && at < G::W) {
        load<V, S>(x + chunk * V, (const S*)tensor + (start + at));
      } else {
#pragma unroll
        for (int i = 0; i < V; i++) x[chunk * V + i] = 0.0f;
      }
    }
  }

  template <class S>
  DEVICE void write(void* tensor, long long row, bool there, const float (&x)[N]) const {
#pragma unroll
    for (int chunk = 0; chunk < G::CHUNKS; chunk++) {
      const int at = column(chunk);
      if (there && at < G::W) store<V, S>((S*)tensor + (row * G::W + at), x + chunk * V);
    }
  }

  DEVICE void read_gate(float (&z)[N], long long row, bool there) const {
    const long long start = row / G::HEADS * a.stride + row % G::HEADS * G::W;
    read<typename G::Z>(z, a.gate, start, there);
  }

  // The mean over a row of a number per lane, the same in all lanes of the team.
  DEVICE static float mean(float x) {
#pragma unroll
    for (int mask = 1; mask < G::LANES; mask *= 2) x += shuffle_xor(x, mask);
    return x * (1.0f / G::W);
  }
};

template <class G>
DEVICE void head_norm_forward(const HeadNormArgs& a) {
  constexpr int N = G::N;
  const HeadNormTeam<G> team(a);
  const long long row = team.first() + team.team();
  const bool there = row < a.rows;
  float y[N], z[N];
  team.template read<typename G::Y>(y, a.y, row * G::W, there);
  if constexpr (G::GATED) team.read_gate(z, row, there);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++) squares = fused(y[i], y[i], squares);
  const float rstd = reciprocal(square_root(team.mean(squares) + (float)a.eps));
  if (there && team.lane == 0) store_one((float*)a.rstd + row, rstd);
#pragma unroll
  for (int i = 0; i < N; i++) {
    y[i] *= rstd * team.gain[i];
    if constexpr (G::GATED) {
      float factor, slope;
      head_gate<G>(factor, slope, z[i]);
      y[i] *= factor;
    }
  }
  team.template write<typename G::Out>(a.out, row, there, y);
}

// With n = y rstd and dn = dout act(gate) gain: dy = rstd (dn - n mean(dn n)), dgate = dout n gain
// act'(gate), and dgain is the sum over rows of dout act(gate) n, of which every block keeps its
// own. The lanes of a warp stay together, beyond the last row too: they shuffle.
template <class G>
DEVICE void head_norm_backward(const HeadNormArgs& a) {
  constexpr int N = G::N;
  Arena arena;
  const sptr<float> sums = arena.take<float>(G::WARPS * G::W);
  const HeadNormTeam<G> team(a);
  float dgain[N] = {};
  for (long long first = team.first(); first < a.rows; first += a.blocks * G::ROWS) {
    const long long row = first + team.team();
    const bool there = row < a.rows;
    float n[N], z[N], dn[N];
    team.template read<typename G::Y>(n, a.y, row * G::W, there);
    team.template read<typename G::Out>(dn, a.dout, row * G::W, there);
    if constexpr (G::GATED) team.read_gate(z, row, there);
    const float rstd = there ? load_one((const float*)a.rstd + row) : 0.0f;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
      n[i] *= rstd;
      if constexpr (G::GATED) {
        float factor, slope;
        head_gate<G>(factor, slope, z[i]);
        z[i] = rounded<typename G::Z>(dn[i] * (n[i] * team.gain[i])) * slope;
        dn[i] *= factor;
      }
      dgain[i] = fused(dn[i], n[i], dgain[i]);
      dn[i] *= team.gain[i];
      dot = fused(dn[i], n[i], dot);
    }
    const float mean = team.mean(dot);
#pragma unroll
    for (int i = 0; i < N; i++) dn[i] = rstd * (dn[i] - n[i] * mean);
    team.template write<typename G::Y>(a.dy, row, there, dn);
    if constexpr (G::GATED) team.template write<typename G::Z>(a.dgate, row, there, z);
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
#pragma unroll
    for (int mask = G::LANES; mask < 32; mask *= 2) dgain[i] += shuffle_xor(dgain[i], mask);
  }
  const int warp = thread_index() / 32;
  if (thread_index() % 32 < G::LANES) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      const int at = team.column(i / G::V) + i % G::V;
      if (at < G::W) store_one(sums + (warp * G::W + at), dgain[i]);
    }
  }
  sync_block();
  for (int at = thread_index(); at < G::W; at += G::THREADS) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < G::WARPS; w++) total += load_one(sums + (w * G::W + at));
    store_one((float*)a.partial + (block_index() * G::W + at), total);
  }
}

template <class G>
DEVICE void head_norm_finish(const HeadNormArgs& a) {
  sum_columns<G::W, G::SLICES>((float*)a.dgain, (const float*)a.partial, a.blocks);
}

}  // namespace elman
