// What stands between what a recurrence reads of its state and the output: residual and gates; and
// the derivative. Written once for both machines, as the cells are: T is a float, a double or a
// SIMD vector of either.
#pragma once
#include "cells/maps.h"

namespace elman {

// y silu(y), the gate of matrix-state specification 2, and its slope.
template <class T>
HD T self_gate(T y) {
  return y * y * sigmoid(y);
}

template <class T>
HD T self_gate_slope(T y) {
  T s = sigmoid(y);
  return y * s * (2.0f + y * (1.0f - s));
}

// The output of a matrix-state plan at one row and step, from its read y, its value v and the logit
// of its gate: y += residual v, then y silu(y), then y act(gate + bias), each where the Spec has
// it.
template <class Spec, class T>
struct Epilogue {
  T residual, bias;  // of the row

  HD T forward(T y, T v, T gate) const {
    y = with_residual(y, v);
    if constexpr (Spec::SELF_GATE) y = self_gate(y);
    if constexpr (Spec::GATE) y *= activate<Spec::GATE_ACT>(with_bias(gate));
    return y;
  }

  // From the gradient of the output to that of y + residual v; sets that of gate + bias.
  HD T backward(T y, T v, T gate, T dout, T& dgate) const {
    y = with_residual(y, v);
    if constexpr (Spec::GATE) {
      T slope, open = activate<Spec::GATE_ACT>(with_bias(gate), slope);
      dgate = dout * (Spec::SELF_GATE ? self_gate(y) : y) * slope;
      dout *= open;
    }
    if constexpr (Spec::SELF_GATE) dout *= self_gate_slope(y);
    return dout;
  }

  // The gradient of v: what the cell gives, and what the residual does.
  HD T value_bwd(T dv, T dy) const {
    if constexpr (Spec::RESIDUAL) dv += dy * residual;
    return dv;
  }

 private:
  HD T with_residual(T y, T v) const {
    if constexpr (Spec::RESIDUAL) y += residual * v;
    return y;
  }
  HD T with_bias(T gate) const {
    if constexpr (Spec::GATE_BIAS) gate += bias;
    return gate;
  }
};

// The output of a channel plan from the new state h: h query, or h without a QUERY; then y silu(y).
template <bool QUERY, bool SELF_GATE, class T>
HD T channel_output(T h, T query) {
  const T y = QUERY ? h * query : h;
  return SELF_GATE ? self_gate(y) : y;
}

// From the gradient of the output to that of h; sets that of the query.
template <bool QUERY, bool SELF_GATE, class T>
HD T channel_output_bwd(T h, T query, T dy, T& dquery) {
  if constexpr (SELF_GATE) dy *= self_gate_slope(QUERY ? h * query : h);
  if constexpr (QUERY) {
    dquery = dy * h;
    dy *= query;
  }
  return dy;
}

}  // namespace elman
