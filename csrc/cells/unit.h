// Keys and queries that are divided by their norm, x / (|x| + 1e-6) (matrix-state specification 2):
// what is done to each number. The sums over a vector, |x| and the product with a gradient, are the
// engines'. Written once for both machines, as the cells are.
#pragma once
#include "cells/math.h"

namespace elman {

inline constexpr double UNIT_EPS = 1e-6;

// What the numbers of a vector are multiplied by.
template <class T>
HD T unit_scale(T norm) {
  return reciprocal(norm + T(UNIT_EPS));
}

// 1 / |x|; a zero vector has no direction, so that the norm's own gradient is taken as 0.
template <class T>
HD T unit_inverse(T norm) {
  return norm > T(0) ? reciprocal(norm) : T(0);
}

// From the gradient d of the divided number to that of x: d scale - u (u . d) / |x|, where u is the
// divided number. `along` is what stands behind u; of x instead of u, it has `scale` as a factor.
template <class V, class T>
HD V unit_bwd(V d, V u, T scale, T along) {
  return d * scale - u * along;
}

}  // namespace elman
