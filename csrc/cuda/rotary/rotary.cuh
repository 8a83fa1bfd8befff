// Rotary positions (Su et al. 2021): channels 2p and 2p + 1 of every head turn by the angle of
// their position. A block has one position of one row of the batch, queries and keys at once. The
// backward pass turns the gradients back and lays them and that of the values side by side, so that
// nothing is copied beside it. All of it is memory's time: each tensor is moved once.
#pragma once
#include "cuda/common/pack.cuh"

namespace elman {

// Rows of the batch and time together; A = H C channels of all heads.
struct RotaryArgs {
  const void* qkv;           // forward: [rows, 3 A], rows `stride` numbers apart
  const void* turns;         // fp32 [steps, C / 2, 2]: cosine and sine of every angle
  void *q, *k;               // forward: [rows, A]
  const void *dq, *dk, *dv;  // backward: [B, T, H, C], at strides of their own, below
  void* dqkv;                // backward: [rows, 3 A]
  long long rows, steps, stride;
  long long dq_b, dq_t, dq_h, dk_b, dk_t, dk_h, dv_b, dv_t, dv_h;
};

template <class S_, int A_, int C_, int V_>
struct RotaryTileConfig {
  using S = S_;
  static constexpr int A = A_, C = C_, V = V_, VECTORS = A / V;  // VECTORS: of a part of a row
  static constexpr int THREADS = 256;
  static_assert(C % V == 0 && A % C == 0 && V % 2 == 0, "a vector is whole pairs of one head");
};

// Turns pairs by angles, forwards (sign 1) or back (sign -1).
template <class G>
DEVICE void turn(float (&x)[G::V], const RotaryArgs& a, long long step, int channel, float sign) {
  float turns[G::V];
  load<G::V, float>(turns, (const float*)a.turns + step * G::C + channel);
#pragma unroll
  for (int i = 0; i < G::V; i += 2) {
    const float even = x[i], odd = x[i + 1], sine = sign * turns[i + 1];
    x[i] = even * turns[i] - odd * sine;
    x[i + 1] = even * sine + odd * turns[i];
  }
}

template <class G>
DEVICE void rotary_forward(const RotaryArgs& a) {
  using S = typename G::S;
  const long long row = block_index(), step = row % a.steps;
  for (int vector = thread_index(); vector < 2 * G::VECTORS; vector += G::THREADS) {
    const bool key = vector >= G::VECTORS;
    const int column = (key ? vector - G::VECTORS : vector) * G::V;
    float x[G::V];
    load<G::V, S>(x, (const S*)a.qkv + (row * a.stride + (long long)vector * G::V));
    turn<G>(x, a, step, column % G::C, 1.0f);
    store<G::V, S>((S*)(key ? a.k : a.q) + (row * G::A + column), x);
  }
}

template <class G>
DEVICE void rotary_backward(const RotaryArgs& a) {
  using S = typename G::S;
  const long long row = block_index(), step = row % a.steps, batch = row / a.steps;
  const long long q_row = batch * a.dq_b + step * a.dq_t, k_row = batch * a.dk_b + step * a.dk_t,
                  v_row = batch * a.dv_b + step * a.dv_t;
  for (int vector = thread_index(); vector < 3 * G::VECTORS; vector += G::THREADS) {
    const int part = vector / G::VECTORS, column = (vector - part * G::VECTORS) * G::V;
    const int head = column / G::C, channel = column % G::C;
    const S* from = part == 0   ? (const S*)a.dq + (q_row + head * a.dq_h)
                    : part == 1 ? (const S*)a.dk + (k_row + head * a.dk_h)
                                : (const S*)a.dv + (v_row + head * a.dv_h);
    float x[G::V];
    load<G::V, S>(x, from + channel);
    if (part < 2) turn<G>(x, a, step, channel, -1.0f);
    store<G::V, S>((S*)a.dqkv + (row * 3 * G::A + (long long)vector * G::V), x);
  }
}

}  // namespace elman
