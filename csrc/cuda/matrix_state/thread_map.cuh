// How the rows of a segment, one per step and WIDTH numbers long, are dealt to the threads of a
// block that work on segments: a row to a group of neighbouring lanes, in vectors. Rows are taken
// in passes; TILE passes at a time, so that loads, sums and stores of several rows overlap.
#pragma once
#include "cuda/matrix_state/smem_staging.cuh"

namespace elman {

// Sum of products, in partial sums so that no long chain of additions waits.
template <int N, class A>
DEVICE A dot(const A* x, const A* y) {
  constexpr int CHAINS = N <= 2 ? 1 : N <= 8 ? 2 : 4;
  A sums[CHAINS];
#pragma unroll
  for (int i = 0; i < N; i++)
    sums[i % CHAINS] = i < CHAINS ? x[i] * y[i] : fused(x[i], y[i], sums[i % CHAINS]);
  if constexpr (CHAINS == 4) return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if constexpr (CHAINS == 2) return sums[0] + sums[1];
  return sums[0];
}

template <class G, int WIDTH, bool BACKWARD>
struct ThreadMap {
  static constexpr int V = G::STAGED_VECTOR;
  static constexpr int GROUP = least(32, power_above(ceil_div(WIDTH, V)));
  static constexpr int VECTORS = ceil_div(WIDTH, GROUP* V);  // of a lane
  static constexpr int NUMBERS = VECTORS * V;
  static constexpr int ROWS = G::workers(BACKWARD) / GROUP;  // of a pass
  static constexpr int PASSES = ceil_div(G::STEPS, ROWS);
  static constexpr int TILE = PASSES <= 4 && PASSES * NUMBERS <= 16 ? PASSES : 1;
  static_assert(WIDTH % V == 0 && G::WIDTH % V == 0 && G::ROWS % V == 0, "vectors end with rows");

  static DEVICE int worker() { return worker_index<G, BACKWARD>(); }
  // The lane's step of a pass; at least STEPS if there is none for it.
  static DEVICE int step(int pass) { return pass * ROWS + worker() / GROUP; }
  // A step that can be read from.
  static DEVICE int readable(int pass) {
    return PASSES * ROWS > G::STEPS ? least(step(pass), G::STEPS - 1) : step(pass);
  }
  static DEVICE bool exists(int pass) { return PASSES * ROWS == G::STEPS || step(pass) < G::STEPS; }

  // First number of a lane's vector; it may lie beyond WIDTH.
  static DEVICE int first(int vector) { return (vector * GROUP + worker() % GROUP) * V; }
  static DEVICE bool inside(int vector) {
    return VECTORS * GROUP * V == WIDTH || first(vector) < WIDTH;
  }

  // Sum of what the lanes of a group hold.
  template <class A>
  static DEVICE A sum(A x) {
#pragma unroll
    for (int mask = 1; mask < GROUP; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }

  // A lane's numbers of a prepared array [step][stride]; zero beyond the row.
  template <class A>
  static DEVICE void recall(A* x, sptr<A> array, int step, int stride) {
#pragma unroll
    for (int m = 0; m < VECTORS; m++) {
      if (inside(m)) {
        load<V, A>(x + m * V, array + (step * stride + first(m)));
      } else {
#pragma unroll
        for (int e = 0; e < V; e++) x[m * V + e] = A(0);
      }
    }
  }
};

}  // namespace elman
