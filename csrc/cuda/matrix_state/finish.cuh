// Sums of the backward pass over blocks, always in the same order: gradients of parameters over
// the batch, and gradients of slices over the row tiles of a head. A thread has one number of a
// parameter, or a vector of a slice.
#pragma once
#include "cuda/matrix_state/workspace.cuh"

namespace elman {

// Divides numbers that are not negative. Most need 32 bits, which take a quarter of the time.
DEVICE int64_t quotient(int64_t n, int64_t divisor) {
  if ((n | divisor) >> 32) return n / divisor;
  return (unsigned)n / (unsigned)divisor;
}

template <class G>
struct Finish {
  using A = typename G::A;
  using Spec = typename G::Spec;
  const Args& a;
  int64_t index;  // of this thread among all that have work

  // Which numbers there are in front of those of a parameter, and of all parameters.
  HD static int64_t numbers(const Args& a, int params) {
    int64_t count = 0;
    for (int i = 0; i < params; i++)
      if (has_param<Spec>(i)) count += a.H * length(i);
    return count;
  }
  HD static constexpr int length(int param) {
    const int width = G::param_width(param);
    return width == G::ROWS && param != PARAM_Z_BIAS && param != PARAM_DECAY &&
                   param != PARAM_DT_BIAS
               ? G::R
               : width;
  }

  template <int PARAM>
  DEVICE bool params() const {
    if constexpr (PARAM < PARAMS) {
      if constexpr (has_param<Spec>(PARAM)) {
        const int64_t number = index - numbers(a, PARAM);
        if (number < a.H * length(PARAM)) {
          store_one((A*)a.param[PARAM].grad + number, sum<PARAM>(number));
          return true;
        }
      }
      return params<PARAM + 1>();
    }
    return false;
  }

  template <int PARAM>
  DEVICE A sum(int64_t number) const {
    constexpr bool by_rows =
        PARAM != PARAM_Z_BIAS && PARAM != PARAM_DECAY && PARAM != PARAM_DT_BIAS;
    const int64_t head = number / length(PARAM);
    const int i = number % length(PARAM);
    const int first = by_rows ? i / G::ROWS : 0, last = by_rows ? first + 1 : G::ROW_TILES;
    A total = 0;
#pragma unroll 4
    for (int64_t batch = 0; batch < a.B; batch++)
      for (int row_tile = first; row_tile < last; row_tile++) {
        const int64_t block = (batch * a.H + head) * G::ROW_TILES + row_tile;
        const A* part = (const A*)a.workspace + block * G::PARAM_TERMS;
        total += load_one(part + G::param_offset(PARAM) + (by_rows ? i % G::ROWS : i));
      }
    return total;
  }

  // Numbers of a slice that a thread sums.
  HD static constexpr int vector(int role) { return of_head(role) ? 1 : G::STAGED_VECTOR; }

  template <int ROLE>
  DEVICE void slices(int64_t number) const {
    if constexpr (ROLE < ROLES) {
      constexpr int vectors = row_tile_width<G>(ROLE) / vector(ROLE);
      const int64_t count = a.B * a.T * a.H * vectors;
      if constexpr (vectors > 0) {
        if (number < count) {
          slice<ROLE>(quotient(number, vectors), count / vectors, number);
          return;
        }
      }
      slices<ROLE + 1>(number - count);
    }
  }

  // Sums vector `number` of a slice, which lies in one of `steps` steps of a head.
  template <int ROLE>
  DEVICE void slice(int64_t step, int64_t steps, int64_t number) const {
    constexpr int V = vector(ROLE), width = row_tile_width<G>(ROLE);
    const A* parts = row_tile_part<G, ROLE>(a, 0, 0, 0, 0) + number * V;
    A x[G::ROW_TILES][V];
#pragma unroll
    for (int row_tile = 0; row_tile < G::ROW_TILES; row_tile++)
      load<V, A>(x[row_tile], parts + row_tile * steps * width);
#pragma unroll
    for (int row_tile = 1; row_tile < G::ROW_TILES; row_tile++) {
#pragma unroll
      for (int e = 0; e < V; e++) x[0][e] += x[row_tile][e];
    }
    const int64_t row = quotient(step, a.H), batch = quotient(row, a.T);
    auto* to = gradient<G, ROLE>(a, batch, row - batch * a.T, step - row * a.H);
    store<V, typename G::IO>(to + (number * V - step * width), x[0]);
  }
};

inline constexpr int FINISH_THREADS = 256;

template <class G>
DEVICE void matrix_finish(const Args& a) {
  const int64_t index = block_index() * FINISH_THREADS + thread_index();
  const Finish<G> finish{a, index};
  if (!finish.template params<0>()) finish.template slices<0>(index - finish.numbers(a, PARAMS));
}

}  // namespace elman
