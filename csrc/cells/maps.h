// What is done to the inputs of a recurrence, number by number, before a cell sees them:
// activations and the maps of decays and write gates; and their derivatives. Written once for both
// machines, as the cells are: T is a float, a double or a SIMD vector of either.
#pragma once
#include "cells/math.h"

namespace elman {

// ---- activations ----

enum class Act { none, sigmoid, tanh, silu };

template <class T>
HD T silu(T x) {
#if defined(ELMAN_TANH_APPROX)
  T half = x * 0.5f;
  return half * tanh(half) + half;
#else
  return x * sigmoid(x);
#endif
}

template <Act ACT, class T>
HD T activate(T x) {
  if constexpr (ACT == Act::sigmoid) return sigmoid(x);
  if constexpr (ACT == Act::tanh) return tanh(x);
  if constexpr (ACT == Act::silu) return silu(x);
  return x;
}

// The slope at x from y = activate(x), where y tells it.
template <Act ACT, class T>
HD T slope_of(T y) {
  static_assert(ACT != Act::silu, "silu's slope needs its argument: slope_at");
  if constexpr (ACT == Act::sigmoid) return y * (1.0f - y);
  if constexpr (ACT == Act::tanh) return 1.0f - y * y;
  return T{} + 1.0f;
}

// activate(x), and its slope there.
template <Act ACT, class T>
HD T activate(T x, T& slope) {
  if constexpr (ACT == Act::silu) {
    const T s = sigmoid(x), y = x * s;
    slope = s + y * (1.0f - s);
#if defined(ELMAN_TANH_APPROX)
    return silu(x);
#else
    return y;
#endif
  } else {
    const T y = activate<ACT>(x);
    slope = slope_of<ACT>(y);
    return y;
  }
}

template <class T>
HD T silu_slope(T x) {
#if defined(ELMAN_TANH_APPROX)
  T half = x * 0.5f, t = tanh(half);
  return (half * (1.0f - t * t) + t) * 0.5f + 0.5f;
#else
  T s = sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
#endif
}

// The slope at x, for those who do not need the activation there.
template <Act ACT, class T>
HD T slope_at(T x) {
  if constexpr (ACT == Act::silu) return silu_slope(x);
  if constexpr (ACT != Act::silu) return slope_of<ACT>(activate<ACT>(x));
}

// ---- decays and write gates, one number per head and step ----

enum class Map {
  none,       // 1
  parameter,  // one number per head
  sigmoid,    // sigmoid(x)
  mamba       // exp(-exp(a_log) softplus(x + dt_bias))
};

// What a map needs of the head's own parameter, once: the number itself, or exp(a_log).
template <Map MAP, class T>
HD T map_factor(T parameter) {
  if constexpr (MAP == Map::mamba) return exp(parameter);
  return parameter;
}

// The number y that the recurrence reads, from what stands in the source and `map_factor`.
template <Map MAP, class T>
HD T mapped(T x, T factor, T dt_bias) {
  if constexpr (MAP == Map::parameter) return factor;
  if constexpr (MAP == Map::sigmoid) return sigmoid(x);
  if constexpr (MAP == Map::mamba) return exp(-factor * softplus(x + dt_bias));
  return T{} + 1.0f;
}

// From the gradient d of y to that of x, which is that of dt_bias, too; sets that of the parameter.
template <Map MAP, class T>
HD T mapped_bwd(T d, T x, T y, T factor, T dt_bias, T& dparameter) {
  if constexpr (MAP == Map::parameter) dparameter = d;
  if constexpr (MAP == Map::sigmoid) return d * y * (1.0f - y);
  if constexpr (MAP == Map::mamba) {
    const T u = x + dt_bias, rest = -d * y * factor;
    dparameter = rest * softplus(u);
    return rest * sigmoid(u);
  }
  return T{};
}

}  // namespace elman
