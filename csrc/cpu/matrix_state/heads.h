// The numbers of a head at every step: decay and write gate, and back.
#pragma once
#include "cpu/matrix_state/layout.h"

namespace elman::cpu {

template <class Spec>
class Heads : Layout<Spec> {
  using L = Layout<Spec>;
  using T = typename L::T;
  using V = Vector<T, LANES<T>>;
  static constexpr int W = LANES<T>;

  // f(t, vector of W steps from t on, of which `count` are there)
  template <class F>
  HD static void each(const T* from, int64_t stride, int64_t steps, F f) {
    for (int64_t t = 0; t < steps; t += W) {
      V x = {};
      const int count = int(steps - t < W ? steps - t : W);
      if (from)
        for (int i = 0; i < count; i++) x[i] = from[(t + i) * stride];
      f(t, x, count);
    }
  }

 public:
  // Numbers of steps beyond `steps` are written too. `number` and `dt_bias` are the head's own.
  template <Map MAP>
  static void stage(const T* from, int64_t stride, int64_t steps, T number, T dt_bias, T* to) {
    const V factor = V{} + map_factor<MAP>(number), bias = V{} + dt_bias;
    each(from, stride, steps, [&](int64_t t, V x, int) __attribute__((always_inline)) {
      store(to + t, elman::mapped<MAP>(x, factor, bias));
    });
  }

  // From the gradients d of the mapped numbers to those of what was read, if anything; adds to
  // those of the head's own two numbers. d is 0 for steps beyond `steps` in the last vector.
  template <Map MAP, bool ADD>
  static void back(const T* from, int64_t stride, int64_t steps, T number, T dt_bias,
                   const T* mapped, const T* d, T* to, int64_t to_stride, T* dnumbers) {
    const V factor = V{} + map_factor<MAP>(number), bias = V{} + dt_bias;
    V sums[2] = {};
    each(from, stride, steps, [&](int64_t t, V x, int count) __attribute__((always_inline)) {
      V dnumber = {};
      const V dx = mapped_bwd<MAP>(load<V>(d + t), x, load<V>(mapped + t), factor, bias, dnumber);
      sums[0] += dnumber, sums[1] += dx;
      for (int i = 0; MAP != Map::parameter && i < count; i++) {
        T* at = to + (t + i) * to_stride;
        *at = ADD ? *at + dx[i] : dx[i];
      }
    });
    for (int i = 0; i < W; i++) {
      dnumbers[0] += sums[0][i];
      if constexpr (MAP == Map::mamba) dnumbers[1] += sums[1][i];
    }
  }
};

}  // namespace elman::cpu
