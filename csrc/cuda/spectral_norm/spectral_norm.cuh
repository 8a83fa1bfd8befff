// A matrix W that is divided by its largest singular value: normed = k W with k = radius / (|s| +
// eps) and s = u^T W v. With G the gradient of the result, that of W is
//
//   k (G - sign(s) <G, W> / (|s| + eps) u v^T)
//
// Each pass takes two kernels, because all of a sum has to be known before the first number can be
// written: the blocks leave parts of the sum, and every block of the other kernel adds them up.
#pragma once
#include "cuda/common/pack.cuh"
#include "cuda/common/sums.cuh"

namespace elman {

// Contiguous fp32 tensors [rows, C] (weight, dnormed, out), [rows] (u), [C] (v), [blocks] (parts).
struct SpectralNormArgs {
  const void *weight, *u, *v;
  const void* dnormed;     // backward: gradient of the result
  void *parts, *dparts;    // of u^T W v, which the forward pass leaves; backward: of <G, W>
  void* out;               // forward: the result; backward: gradient of W
  long long rows, blocks;  // blocks: of every launch
  double radius, eps;
};

template <int C_, int V_>
struct SpectralNormTileConfig {
  static constexpr int C = C_, V = V_, WARPS = 8, THREADS = 32 * WARPS;
  static constexpr int VECTORS = C / V;  // of a row
  static_assert(C % V == 0, "a row is whole vectors");
};

template <class G>
struct SpectralNormBlock {
  static constexpr int V = G::V;
  const SpectralNormArgs& a;
  sptr<float> sums;

  DEVICE explicit SpectralNormBlock(const SpectralNormArgs& args) : a(args) {
    Arena arena;
    sums = arena.take<float>(2 * G::WARPS);
  }

  // f(row, column, place) for every vector of this thread.
  template <class F>
  DEVICE void each(F f) const {
    const long long vectors = a.rows * G::VECTORS, step = a.blocks * G::THREADS;
#pragma unroll 4
    for (long long i = block_index() * G::THREADS + thread_index(); i < vectors; i += step)
      f(i / G::VECTORS, (int)(i % G::VECTORS) * V, i * V);
  }
  DEVICE static void read(float (&x)[V], const void* tensor, long long place) {
    load<V, float>(x, (const float*)tensor + place);
  }
  DEVICE static float dot(const float (&x)[V], const float (&y)[V]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < V; i++) sum = fused(x[i], y[i], sum);
    return sum;
  }
  DEVICE void leave(void* parts, float part) const {
    const float sum = block_sum<G::WARPS>(part, sums);
    if (thread_index() == 0) store_one((float*)parts + block_index(), sum);
  }
  // What all blocks left; turn: another one for every call.
  DEVICE float total(const void* parts, int turn) const {
    const bool has = thread_index() < a.blocks;
    const float part = has ? load_one((const float*)parts + thread_index()) : 0.0f;
    return block_sum<G::WARPS>(part, sums + turn * G::WARPS);
  }
};

template <class G>
DEVICE void spectral_norm_size(const SpectralNormArgs& a) {
  const SpectralNormBlock<G> block(a);
  float part = 0.0f;
  block.each([&](long long row, int column, long long place) {
    float w[G::V], v[G::V];
    block.read(w, a.weight, place);
    block.read(v, a.v, column);
    part = fused(load_one((const float*)a.u + row), block.dot(w, v), part);
  });
  block.leave(a.parts, part);
}

template <class G>
DEVICE void spectral_norm_forward(const SpectralNormArgs& a) {
  const SpectralNormBlock<G> block(a);
  const float size = block.total(a.parts, 0);
  const float scale = (float)a.radius / ((size < 0.0f ? -size : size) + (float)a.eps);
  block.each([&](long long, int, long long place) {
    float w[G::V];
    block.read(w, a.weight, place);
#pragma unroll
    for (int i = 0; i < G::V; i++) w[i] *= scale;
    store<G::V, float>((float*)a.out + place, w);
  });
}

template <class G>
DEVICE void spectral_norm_along(const SpectralNormArgs& a) {
  const SpectralNormBlock<G> block(a);
  float part = 0.0f;
  block.each([&](long long, int, long long place) {
    float w[G::V], g[G::V];
    block.read(w, a.weight, place);
    block.read(g, a.dnormed, place);
    part += block.dot(w, g);
  });
  block.leave(a.dparts, part);
}

template <class G>
DEVICE void spectral_norm_backward(const SpectralNormArgs& a) {
  const SpectralNormBlock<G> block(a);
  const float size = block.total(a.parts, 0), along = block.total(a.dparts, 1);
  const float whole = (size < 0.0f ? -size : size) + (float)a.eps;
  const float scale = (float)a.radius / whole;
  // The sign of 0 is 0, as PyTorch has it.
  const float pull = (size < 0.0f ? -along : size > 0.0f ? along : 0.0f) / whole;
  block.each([&](long long row, int column, long long place) {
    float g[G::V], v[G::V];
    block.read(g, a.dnormed, place);
    block.read(v, a.v, column);
    const float u = pull * load_one((const float*)a.u + row);
#pragma unroll
    for (int i = 0; i < G::V; i++) g[i] = scale * (g[i] - u * v[i]);
    store<G::V, float>((float*)a.out + place, g);
  });
}

}  // namespace elman
