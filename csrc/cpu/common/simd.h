// What the matrix-state engine does with vectors beyond arithmetic: unaligned and partial loads,
// sums over lanes, and the treatment of denormal numbers.
#pragma once
#include <cstring>
#include <utility>

#include "cells/math.h"

namespace elman::cpu {

template <class V>
HD V load(const LaneOf<V>* from) {
  V x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
template <class V>
HD void store(LaneOf<V>* to, V x) {
  std::memcpy(to, &x, sizeof x);
}
// Keeps a vector that is used several times in a register. Compilers otherwise put its load into
// every use of it, and a product then waits for loads: 60 instead of 89 GFLOP/s with AVX2.
template <class V>
HD void in_register(V& x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) <= 64) asm("" : "+v"(x));
#elif defined(__AVX__)
  if constexpr (sizeof(V) <= 32) asm("" : "+x"(x));
#elif defined(__SSE2__)
  if constexpr (sizeof(V) <= 16) asm("" : "+x"(x));
#elif defined(__aarch64__)
  if constexpr (sizeof(V) <= 16) asm("" : "+w"(x));
#endif
}
// The first COUNT lanes; the others are 0, or not written.
template <class V, int COUNT>
HD V load_first(const LaneOf<V>* from) {
  V x = {};
  std::memcpy(&x, from, COUNT * sizeof(LaneOf<V>));
  return x;
}
template <class V, int COUNT>
HD void store_first(LaneOf<V>* to, V x) {
  std::memcpy(to, &x, COUNT * sizeof(LaneOf<V>));
}

// Lanes whose number has bit D from b, the others from a; `crossed` takes lane l ^ D instead of l.
template <int D, bool CROSSED, class V, size_t... LANE>
HD V mixed(V a, V b, std::index_sequence<LANE...>) {
  constexpr int W = LANES_OF<V>;
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, ((LANE & D ? W : 0) + int(CROSSED ? LANE ^ D : LANE))...);
#else
  return __builtin_shuffle(a, b,
                           BitsOf<V>{((LANE & D ? W : 0) + int(CROSSED ? LANE ^ D : LANE))...});
#endif
}

// COUNT vectors of each of S sums.
template <class V, int S>
struct Sums {
  V of[S];
};

// lane_sums<V, S, COUNT>(leaf): leaf(j), j = 0 .. COUNT - 1 at compile time and in this order,
// gives S vectors; lane j of vector s of the result is the sum over the lanes of leaf(j).of[s].
// Lanes from COUNT on hold no meaning. A sum of W columns costs W - 1 additions and 2 (W - 1)
// shuffles, and no more than log2(W) vectors wait at any time.
template <class V, int S, int COUNT, int SPAN, int FIRST, class Leaf>
HD Sums<V, S> lane_sums_of(Leaf& leaf) {
  if constexpr (SPAN == 1) {
    return leaf(std::integral_constant<int, FIRST>{});
  } else {
    constexpr int D = SPAN / 2;
    constexpr auto lanes = std::make_index_sequence<LANES_OF<V>>{};
    Sums<V, S> low = lane_sums_of<V, S, COUNT, D, FIRST>(leaf), high = low;
    if constexpr (FIRST + D < COUNT) high = lane_sums_of<V, S, COUNT, D, FIRST + D>(leaf);
    for (int s = 0; s < S; s++)
      low.of[s] = mixed<D, false>(low.of[s], high.of[s], lanes) +
                  mixed<D, true>(low.of[s], high.of[s], lanes);
    return low;
  }
}
template <class V, int S, int COUNT, class Leaf>
HD Sums<V, S> lane_sums(Leaf leaf) {
  return lane_sums_of<V, S, COUNT, LANES_OF<V>, 0>(leaf);
}

// While one lives, its thread takes denormal numbers for 0: arithmetic on them can be a hundred
// times slower, and a state that decays is full of them. The thread's own setting comes back after.
class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : saved(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved | 0x8040); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved); }

 private:
  unsigned saved;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved));
    asm volatile("msr fpcr, %0" ::"r"(saved | (1ull << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved)); }

 private:
  unsigned long long saved;
#endif
};

}  // namespace elman::cpu
