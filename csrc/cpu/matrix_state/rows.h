// What a segment's steps read on the rows of the state, what they give, and back: values, gate
// logits, and the epilogue from the reads y to the output.
#pragma once
#include <array>

#include "cells/epilogue.h"
#include "cpu/matrix_state/layout.h"

namespace elman::cpu {

// Rows of a sequence from one step on: of a batch's head, in steps of `stride`.
template <class T>
struct Strip {
  T* at = nullptr;
  int64_t stride = 0;
};
// Those of the heads that are run together.
template <class Spec, class T>
using Strips = std::array<Strip<T>, Layout<Spec>::HEADS>;

template <class Spec, int M>
class Rows : Layout<Spec> {
  using L = Layout<Spec>;
  using T = typename L::T;
  using V = typename L::V;
  using From = Strips<Spec, const T>;
  using To = Strips<Spec, T>;
  static constexpr int W = L::W, HEADS = L::HEADS;

  const Scratch<Spec>& s;
  const int block, live;  // the first block; how many heads are there, not stand-ins
  const int64_t steps;

 public:
  Rows(const Scratch<Spec>& s, int block, int live, int64_t steps)
      : s(s), block(block), live(live), steps(steps) {}

  HD static V read(const T* row, int block) {
    if (L::TAIL == W || block + 1 < L::BLOCKS) return load<V>(row + block * W);
    return load_first<V, L::TAIL>(row + block * W);
  }
  HD static void write(T* row, int block, V x) {
    if (L::TAIL == W || block + 1 < L::BLOCKS) return store(row + block * W, x);
    store_first<V, L::TAIL>(row + block * W, x);
  }

  // f(t, m, number of step and block) for every step and block
  template <class F>
  HD void each(F f) const {
    for (int64_t t = 0; t < steps; t++)
      for (int m = 0; m < M; m++) f(t, m, t * M + m);
  }
  template <Act ACT>
  void stage(const From& from, V* to, V* slopes) const {
    each([&](int64_t t, int m, int64_t i) __attribute__((always_inline)) {
      V slope;
      to[i] = activate<ACT>(read_of(from, t, m), slope);
      if (ACT != Act::none && slopes) slopes[i] = slope;
    });
  }
  template <Act ACT, bool ADD>
  void back(const V* d, const V* slopes, const To& to) const {
    each([&](int64_t t, int m, int64_t i) __attribute__((always_inline)) {
      V x = d[i];
      if constexpr (ACT != Act::none) x *= slopes[i];
      write_to<ADD>(to, t, m, x);
    });
  }

  // The output of every step, from the reads y.
  void finish(const From& gate, const To& out) const {
    each([&](int64_t t, int m, int64_t i) __attribute__((always_inline)) {
      write_to<false>(out, t, m, epilogue(m).forward(s.y[i], s.v[i], gate_of(gate, t, m)));
    });
  }
  // Sets dy; writes the gate's gradient; adds to the epilogue's parameters'.
  template <bool ADD>
  void back_finish(const From& gate, const From& dout, const To& dgate) const {
    each([&](int64_t t, int m, int64_t i) __attribute__((always_inline)) {
      V dlogit, d = dout[0].at ? read_of(dout, t, m) : V{};
      d = epilogue(m).backward(s.y[i], s.v[i], gate_of(gate, t, m), d, dlogit);
      if constexpr (Spec::GATE_BIAS) s.dp[PARAM_GATE_BIAS][block + m] += dlogit;
      if constexpr (Spec::GATE) write_to<ADD>(dgate, t, m, dlogit);
      if constexpr (Spec::RESIDUAL) s.dp[PARAM_RESIDUAL][block + m] += d * s.v[i];
      s.dy[i] = d;
    });
  }

 private:
  HD V read_of(const From& from, int64_t t, int m) const {
    if constexpr (HEADS > 1) return read(from[m].at + t * from[m].stride, 0);
    return read(from[0].at + t * from[0].stride, block + m);
  }
  template <bool ADD>
  HD void write_to(const To& to, int64_t t, int m, V x) const {
    if (HEADS > 1 && m >= live) return;
    const auto& strip = to[HEADS > 1 ? m : 0];
    T* row = strip.at + t * strip.stride;
    const int n = HEADS > 1 ? 0 : block + m;
    if constexpr (ADD) x += read(row, n);
    write(row, n, x);
  }
  HD Epilogue<Spec, V> epilogue(int m) const {
    return {Spec::RESIDUAL ? s.p[PARAM_RESIDUAL][block + m] : V{},
            Spec::GATE_BIAS ? s.p[PARAM_GATE_BIAS][block + m] : V{}};
  }
  HD V gate_of(const From& gate, int64_t t, int m) const {
    if constexpr (Spec::GATE) return read_of(gate, t, m);
    return V{};
  }
};

}  // namespace elman::cpu
