// An input that is divided by its norm over the channels: the keys of E74 (matrix-state
// specification 2). The norm needs no state, so that it is taken of all rows at once, before the
// recurrence; its gradient is applied after it.
#pragma once
#include "abi/channel.h"
#include "cells/unit.h"
#include "cpu/channel/lanes.h"

namespace elman {

template <class T>
struct ChannelUnit {
  using L = Lanes<T>;
  using V = typename L::V;

  static T dot(const T* a, const T* b, int64_t channels) {
    V sum = {};
    for (int64_t i = 0; i < channels; i += L::W) {
      const int n = L::count(i, channels);
      sum += L::load(a + i, n) * L::load(b + i, n);
    }
    return L::sum(sum);
  }
  static T norm(const T* x, int64_t channels) { return __builtin_sqrt(dot(x, x, channels)); }
  // Adds to dx, or sets it to, the gradient of x from g, that of x / (norm + eps).
  template <bool ADD>
  static void bwd(const T* x, const T* g, T* dx, T norm, int64_t channels) {
    const T scale = unit_scale(norm);
    // A zero row has no direction: the norm's own gradient is taken as 0.
    const T along = norm > 0 ? dot(x, g, channels) * scale * scale / norm : T(0);
    for (int64_t i = 0; i < channels; i += L::W) {
      const int n = L::count(i, channels);
      V d = unit_bwd(L::load(g + i, n), L::load(x + i, n), scale, along);
      if (ADD) d += L::load(dx + i, n);
      L::store(dx + i, d, n);
    }
  }
};

}  // namespace elman
