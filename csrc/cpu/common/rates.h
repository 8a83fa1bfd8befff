// What this CPU can do at most: multiply-adds and the engines' own tanh, in native vectors of float
// that stay in registers, by all threads together. The floors of mode=bench divide by it.
#pragma once
#include <omp.h>

#include <chrono>

#include "cells/math.h"

namespace elman::cpu {

inline constexpr int CHAINS = 12;  // independent of each other: more than the latency of a unit

struct MultiplyAdd {
  template <class V>
  HD static V apply(V x) {
    return x * 0.999f + 0.001f;
  }
};
struct Tanh {
  template <class V>
  HD static V apply(V x) {
    return tanh(x);
  }
};

// Evaluations a second in about `seconds`.
template <class Work>
double rate(int threads, double seconds) {
  using V = Vector<float, LANES<float>>;
  using Timer = std::chrono::steady_clock;
  constexpr int REPEATS = 512;
  double count = 0;
  const auto began = Timer::now();
#pragma omp parallel num_threads(threads) reduction(+ : count)
  {
    V x[CHAINS];
    for (int i = 0; i < CHAINS; i++) x[i] = V{} + 0.1f * float(i + 1);
    do {
      for (int j = 0; j < REPEATS; j++)
        for (int i = 0; i < CHAINS; i++) x[i] = Work::apply(x[i]);
      asm volatile("" : : "r"(x) : "memory");  // every lane of every x is wanted here
      count += double(REPEATS) * CHAINS * LANES<float>;
    } while (std::chrono::duration<double>(Timer::now() - began).count() < seconds);
  }
  return count / std::chrono::duration<double>(Timer::now() - began).count();
}

}  // namespace elman::cpu
