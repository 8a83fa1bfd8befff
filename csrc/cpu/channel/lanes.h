// Channels in SIMD lanes: vectors of the native width, whole or the first few of them.
#pragma once
#include <cstdint>
#include <cstring>

#include "cpu/common/simd.h"

namespace elman {

template <class T>
struct Lanes {
  static constexpr int W = LANES<T>;
  using V = Vector<T, W>;

  // How many of the channels from `i` on belong to one vector.
  HD static int count(int64_t i, int64_t end) { return end - i < W ? int(end - i) : W; }
  // The first n channels; the other lanes are 0.
  HD static V load(const T* from, int n) {
    if (__builtin_expect(n == W, 1)) return cpu::load<V>(from);
    V v = {};
    std::memcpy(&v, from, n * sizeof(T));
    return v;
  }
  HD static void store(T* to, V v, int n) {
    if (__builtin_expect(n == W, 1)) return cpu::store(to, v);
    std::memcpy(to, &v, n * sizeof(T));
  }
  // The first n lanes of v, 0 in the others.
  HD static V first(V v, int n) {
    if (__builtin_expect(n == W, 1)) return v;
    V kept = {};
    std::memcpy(&kept, &v, n * sizeof(T));
    return kept;
  }
  HD static T sum(V v) {
    T total = 0;
    for (int i = 0; i < W; i++) total += v[i];
    return total;
  }
};

}  // namespace elman
