// What layers compute with silu beside their recurrence, over rows of W numbers: the silu of the
// first half of a projection, that times its second half (SwiGLU), and an output gated by a branch,
// h silu(z), or by itself, h silu(h). A thread has one vector of one row. All of it is memory's
// time: each tensor is moved once.
#pragma once
#include "cells/math.h"
#include "cuda/common/pack.cuh"

namespace elman {

// H: dtype of h and its gradient. Z: of everything else.
struct SiluGateArgs {
  const void* h;        // [rows, W]
  const void* z;        // [rows, W], rows `stride` numbers apart: a branch, or a first half
                        // (of a SwiGLU, the second half follows it)
  const void* dout;     // backward: gradient of out [rows, W]
  const void* dsecond;  // backward of a split: gradient of the second half [rows, W]
  void* out;            // forward: [rows, W]
  void *dh, *dz;        // backward: [rows, W]; of a split or a SwiGLU, dz has rows of 2 W
  long long rows, stride;
};

template <class H_, class Z_, int W_, int V_>
struct SiluGateTileConfig {
  using H = H_;
  using Z = Z_;
  static constexpr int W = W_, V = V_, THREADS = 256, VECTORS = W / V;  // VECTORS: of a row
  static_assert(W % V == 0, "a row is whole vectors");
};

// s = silu(x) and its derivative.
template <int V>
DEVICE void silu(float (&s)[V], float (&slope)[V], const float (&x)[V]) {
#pragma unroll
  for (int i = 0; i < V; i++) {
    const float gate = sigmoid(x[i]);
    s[i] = x[i] * gate;
    slope[i] = gate + s[i] * (1.0f - gate);
  }
}

// This thread's vector.
template <class G>
struct SiluGateVector {
  static constexpr int V = G::V;
  const SiluGateArgs& a;
  long long row;
  int column;
  bool there;

  DEVICE explicit SiluGateVector(const SiluGateArgs& args) : a(args) {
    const unsigned long long vector = block_index() * G::THREADS + thread_index();
    row = vector / G::VECTORS;
    column = (int)(vector % G::VECTORS) * V;
    there = row < a.rows;
  }
  template <class S>
  DEVICE void read(float (&x)[V], const void* tensor, long long stride = G::W) const {
    load<V, S>(x, (const S*)tensor + (row * stride + column));
  }
  template <class S>
  DEVICE void write(void* tensor, const float (&x)[V], long long stride = G::W) const {
    store<V, S>((S*)tensor + (row * stride + column), x);
  }
};

// out = silu(z).
template <class G>
DEVICE void silu_split_forward(const SiluGateArgs& a) {
  const SiluGateVector<G> at(a);
  if (!at.there) return;
  float z[G::V], s[G::V], slope[G::V];
  at.template read<typename G::Z>(z, a.z, a.stride);
  silu(s, slope, z);
  at.template write<typename G::Z>(a.out, s);
}

// The gradient of a projection, both halves of it.
template <class G>
DEVICE void silu_split_backward(const SiluGateArgs& a) {
  using Z = typename G::Z;
  const SiluGateVector<G> at(a);
  if (!at.there) return;
  float z[G::V], s[G::V], slope[G::V], dout[G::V], dsecond[G::V];
  at.template read<Z>(z, a.z, a.stride);
  at.template read<Z>(dout, a.dout);
  at.template read<Z>(dsecond, a.dsecond);
  silu(s, slope, z);
#pragma unroll
  for (int i = 0; i < G::V; i++) dout[i] *= slope[i];
  at.template write<Z>(a.dz, dout, 2 * G::W);
  at.template write<Z>((Z*)a.dz + G::W, dsecond, 2 * G::W);
}

// out = silu(z) v, v the half behind z.
template <class G>
DEVICE void swiglu_forward(const SiluGateArgs& a) {
  using Z = typename G::Z;
  const SiluGateVector<G> at(a);
  if (!at.there) return;
  float z[G::V], v[G::V], s[G::V], slope[G::V];
  at.template read<Z>(z, a.z, a.stride);
  at.template read<Z>(v, (const Z*)a.z + G::W, a.stride);
  silu(s, slope, z);
#pragma unroll
  for (int i = 0; i < G::V; i++) s[i] *= v[i];
  at.template write<Z>(a.out, s);
}

// The gradient of a projection, both halves of it.
template <class G>
DEVICE void swiglu_backward(const SiluGateArgs& a) {
  using Z = typename G::Z;
  const SiluGateVector<G> at(a);
  if (!at.there) return;
  float z[G::V], v[G::V], s[G::V], slope[G::V], dout[G::V];
  at.template read<Z>(z, a.z, a.stride);
  at.template read<Z>(v, (const Z*)a.z + G::W, a.stride);
  at.template read<Z>(dout, a.dout);
  silu(s, slope, z);
#pragma unroll
  for (int i = 0; i < G::V; i++) {
    slope[i] *= v[i] * dout[i];
    s[i] *= dout[i];
  }
  at.template write<Z>(a.dz, slope, 2 * G::W);
  at.template write<Z>((Z*)a.dz + G::W, s, 2 * G::W);
}

// out = h silu(z).
template <class G>
DEVICE void silu_gate_forward(const SiluGateArgs& a) {
  const SiluGateVector<G> at(a);
  if (!at.there) return;
  float h[G::V], z[G::V], s[G::V], slope[G::V];
  at.template read<typename G::H>(h, a.h);
  at.template read<typename G::Z>(z, a.z, a.stride);
  silu(s, slope, z);
#pragma unroll
  for (int i = 0; i < G::V; i++) s[i] *= h[i];
  at.template write<typename G::Z>(a.out, s);
}

template <class G>
DEVICE void silu_gate_backward(const SiluGateArgs& a) {
  const SiluGateVector<G> at(a);
  if (!at.there) return;
  float h[G::V], z[G::V], s[G::V], slope[G::V], dout[G::V];
  at.template read<typename G::H>(h, a.h);
  at.template read<typename G::Z>(z, a.z, a.stride);
  at.template read<typename G::Z>(dout, a.dout);
  silu(s, slope, z);
#pragma unroll
  for (int i = 0; i < G::V; i++) {
    slope[i] *= h[i] * dout[i];
    s[i] *= dout[i];
  }
  at.template write<typename G::H>(a.dh, s);
  at.template write<typename G::Z>(a.dz, slope);
}

// out = h silu(h).
template <class G>
DEVICE void silu_self_gate_forward(const SiluGateArgs& a) {
  const SiluGateVector<G> at(a);
  if (!at.there) return;
  float h[G::V], s[G::V], slope[G::V];
  at.template read<typename G::H>(h, a.h);
  silu(s, slope, h);
#pragma unroll
  for (int i = 0; i < G::V; i++) s[i] *= h[i];
  at.template write<typename G::Z>(a.out, s);
}

template <class G>
DEVICE void silu_self_gate_backward(const SiluGateArgs& a) {
  const SiluGateVector<G> at(a);
  if (!at.there) return;
  float h[G::V], s[G::V], slope[G::V], dout[G::V];
  at.template read<typename G::H>(h, a.h);
  at.template read<typename G::Z>(dout, a.dout);
  silu(s, slope, h);
#pragma unroll
  for (int i = 0; i < G::V; i++) dout[i] *= s[i] + h[i] * slope[i];
  at.template write<typename G::H>(a.dh, dout);
}

}  // namespace elman
