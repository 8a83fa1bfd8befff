// What a segment's steps read on the columns of the state, and back: activation, norm, modulation.
#pragma once
#include <algorithm>

#include "cells/unit.h"
#include "cpu/matrix_state/layout.h"

namespace elman::cpu {

template <class Spec>
class Columns : Layout<Spec> {
  using L = Layout<Spec>;
  using T = typename L::T;
  using VC = typename L::VC;
  static constexpr int N = L::N, NP = L::NP, W = L::WC, FULL = N / W, TAIL = N % W;

  // f(first column, load, store) for all vectors of a row; what lies beyond the row reads as 0.
  template <class F>
  HD static void each(F f) {
    for (int i = 0; i < FULL; i++) f(i * W, load<VC>, store<VC>);
    if constexpr (TAIL > 0) f(FULL * W, load_first<VC, TAIL>, store_first<VC, TAIL>);
  }
  // sums[t] is the sum over the columns of f(t, first, load); of steps beyond `steps` too.
  template <class F>
  static void sum_rows(int64_t steps, T* sums, F f) {
    for (int64_t t = 0; t < steps; t += W) {
      Sums<VC, 1> found = lane_sums<VC, 1, W>([&](auto i) __attribute__((always_inline)) {
        Sums<VC, 1> sum = {};
        each([&](int j, auto in, auto)
                 __attribute__((always_inline)) { sum.of[0] += f(t + i, j, in); });
        return sum;
      });
      store(sums + t, found.of[0]);
    }
  }

 public:
  // to[t][j] = act(from[t][j]), divided by its norm + 1e-6 if UNIT. Keeps norms, and slopes of the
  // activation where they are wanted.
  template <Act ACT, bool UNIT>
  static void stage(const T* from, int64_t stride, int64_t steps, T* to, T* norms, T* slopes) {
    auto one = [&](int64_t t, int j, auto in) __attribute__((always_inline)) {
      VC slope, x = activate<ACT>(in(from + std::min(t, steps - 1) * stride + j), slope);
      if (ACT != Act::none && slopes) store(slopes + t * NP + j, slope);
      store(to + t * NP + j, x);
      return x;
    };
    if constexpr (UNIT) {
      sum_rows(steps, norms, [&](int64_t t, int j, auto in) __attribute__((always_inline)) {
        VC x = one(t, j, in);
        return x * x;
      });
      for (int64_t t = 0; t < steps; t += W) store(norms + t, square_root(load<VC>(norms + t)));
      for (int64_t t = 0; t < steps; t++) {
        const T scale = unit_scale(norms[t]);
        for (int j = 0; j < NP; j += W) store(to + t * NP + j, load<VC>(to + t * NP + j) * scale);
      }
    } else {
      for (int64_t t = 0; t < steps; t++)
        each([&](int j, auto in, auto) __attribute__((always_inline)) { one(t, j, in); });
    }
  }

  // From the gradient d of what `stage` gave to that of what it read; ADD adds it to what is there.
  template <Act ACT, bool UNIT, bool ADD>
  static void back(int64_t steps, const T* staged, const T* norms, const T* slopes, const T* d,
                   T* to, int64_t to_stride) {
    T dots[LANES<T>];
    for (int64_t begin = 0; begin < steps; begin += W) {
      const int64_t end = std::min(begin + W, steps);
      if constexpr (UNIT)
        sum_rows(end - begin, dots, [&](int64_t i, int j, auto) __attribute__((always_inline)) {
          const int64_t at = (begin + i) * NP + j;
          return load<VC>(staged + at) * load<VC>(d + at);
        });
      for (int64_t t = begin; t < end; t++) {
        const T scale = UNIT ? unit_scale(norms[t]) : T(1);
        const T along = UNIT && norms[t] > 0 ? dots[t - begin] / norms[t] : T(0);
        each([&](int j, auto in, auto out) __attribute__((always_inline)) {
          VC x = load<VC>(d + t * NP + j);
          if constexpr (UNIT) x = unit_bwd(x, load<VC>(staged + t * NP + j), scale, along);
          if constexpr (ACT != Act::none) x *= load<VC>(slopes + t * NP + j);
          if constexpr (ADD) x += in(to + t * to_stride + j);
          out(to + t * to_stride + j, x);
        });
      }
    }
  }

  // z = act(z + bias)
  static void stage_z(const T* from, int64_t stride, int64_t steps, const T* bias, T* to) {
    for (int64_t t = 0; t < steps; t++)
      each([&](int j, auto in, auto) __attribute__((always_inline)) {
        VC x = in(from + t * stride + j);
        if constexpr (Spec::Z_BIAS) x += in(bias + j);
        store(to + t * NP + j, activate<Spec::Z_ACT>(x));
      });
  }
  // d becomes the gradient of z before the bias, and is summed into dbias.
  static void back_z(int64_t steps, const T* z, T* d, T* dbias) {
    for (int j = 0; j < NP; j += W) {
      VC sum = load<VC>(dbias + j);
      for (int64_t t = 0; t < steps; t++) {
        VC x = load<VC>(d + t * NP + j) * slope_of<Spec::Z_ACT>(load<VC>(z + t * NP + j));
        store(d + t * NP + j, x);
        sum += x;
      }
      store(dbias + j, sum);
    }
  }

  // key = z o k
  static void stage_key(int64_t steps, const T* z, const T* k, T* key) {
    for (int64_t i = 0; i < steps * NP; i += W) store(key + i, load<VC>(z + i) * load<VC>(k + i));
  }
  static void back_key(int64_t steps, const T* z, const T* k, const T* dkey, T* dz, T* dk) {
    for (int64_t i = 0; i < steps * NP; i += W) {
      const VC d = load<VC>(dkey + i);
      store(dz + i, load<VC>(dz + i) + d * load<VC>(k + i));
      store(dk + i, load<VC>(dk + i) + d * load<VC>(z + i));
    }
  }
};

}  // namespace elman::cpu
