// The channel cells, each written once for the CPU engine and for a CUDA engine.
//
// Every (batch, channel) is independent: one step is h' = step(h, inputs, parameters), all numbers.
// A cell with a NORM is not: what its step returns is divided by a norm over all channels of the
// row. A cell is `step` and its derivative `step_bwd`; the engine owns time, memory, norms and the
// sums over batch and time. T is a float, a double or a SIMD vector of either. Inputs arrive raw:
// biases and activations are part of the step, so that no elementwise pass stands outside the
// engine.
//
// `step` leaves in `m` what its derivative needs and is dear to compute again (sigmoid, tanh):
// the engine hands it to `step_bwd` of the same step. Inputs and parameters are numbered in the
// order in which the cell's comment names them.
#pragma once
#include "cells/maps.h"

namespace elman {

inline constexpr int MAX_INPUTS = 3, MAX_PARAMETERS = 4, MAX_MEMO = 4;

// What a channel sees at one step.
template <class T>
struct Channel {
  T h;                  // old state
  T x[MAX_INPUTS];      // inputs
  T p[MAX_PARAMETERS];  // parameters, the same at every step
};

// Its gradient; a cell sets what it uses.
template <class T>
struct ChannelGrad {
  T h, x[MAX_INPUTS], p[MAX_PARAMETERS];
};

// What a cell's NORM divides a row v of C channels by (vector-state specification 3.12,
// matrix-state specification 9): nothing, sqrt(v.v / C + eps), sqrt(v.v / C) + eps, |v| + eps.
enum ChannelNorm : int { NO_NORM, NORM_ROOT, NORM_RMS, NORM_FROBENIUS };
inline constexpr double CHANNEL_NORM_EPS = 1e-6;

struct ChannelCell {
  static constexpr int INPUTS = 1, PARAMETERS = 0, MEMO = 0, NORM = NO_NORM;
};

// The row h' = v factor; the gradient of v is e factor - h' share (e . h').
template <class A>
struct RowNorm {
  A factor, share;
};

// From v.v to what the row is divided by. A row of zeros has no direction: the norm's own gradient
// is then taken as 0.
template <int NORM, class A>
HD RowNorm<A> row_norm(A squares, A channels) {
  const A eps = A(CHANNEL_NORM_EPS);
  if constexpr (NORM == NORM_ROOT) {
    const A factor = reciprocal(square_root(squares / channels + eps));
    return {factor, factor / channels};
  } else {
    const A length = square_root(squares);
    const A scale = NORM == NORM_RMS ? reciprocal(square_root(channels)) : A(1);
    return {reciprocal(length * scale + eps), length > A(0) ? scale * reciprocal(length) : A(0)};
  }
}

// ---- a tanh of the state: E34 ----

// h' = tanh(candidate + candidate_bias + coefficient h).
struct Elman : ChannelCell {
  static constexpr int PARAMETERS = 2;
  template <class T>
  HD static T step(const Channel<T>& c, T*) {
    return tanh(c.p[1] * c.h + (c.x[0] + c.p[0]));
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T*, T h_new, T e, ChannelGrad<T>& d) {
    T delta = e * (1.0f - h_new * h_new);
    d.x[0] = delta;
    d.p[0] = delta;
    d.p[1] = delta * c.h;
    d.h = delta * c.p[1];
  }
};

// ---- h' = a h + (1 - a) v, a = sigmoid(retain + retain_bias): E61, E64, E65, E68 ----

template <class T>
HD T mixed(T a, T h, T v) {
  return v + a * (h - v);
}

// Gradient of `mixed` through a = sigmoid(x[0] + p[0]); returns that of v.
template <class T>
HD T mixed_bwd(T a, T h, T v, T e, ChannelGrad<T>& d) {
  T dv = e * (1.0f - a);
  d.h = e * a;
  d.x[0] = dv * a * (h - v);
  d.p[0] = d.x[0];
  return dv;
}

// v = candidate + candidate_bias, or its tanh: E61.
template <bool TANH>
struct Retained : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 2, MEMO = 2;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    T v = c.x[1] + c.p[1];
    m[0] = sigmoid(c.x[0] + c.p[0]);
    m[1] = TANH ? tanh(v) : v;
    return mixed(m[0], c.h, m[1]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dv = mixed_bwd(m[0], c.h, m[1], e, d);
    d.x[1] = TANH ? dv * (1.0f - m[1] * m[1]) : dv;
    d.p[1] = d.x[1];
  }
};

// h' = a h + candidate + candidate_bias: E61 additive.
struct Additive : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 2, MEMO = 1;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.x[0] + c.p[0]);
    return m[0] * c.h + (c.x[1] + c.p[1]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    d.h = e * m[0];
    d.x[0] = d.h * c.h * (1.0f - m[0]);
    d.x[1] = e;
    d.p[0] = d.x[0];
    d.p[1] = e;
  }
};

// h' = a h + (1 - a) tanh(q), a = sigmoid(q), q = candidate + candidate_bias: E61 and E62 tied.
// Both follow from t = tanh(q / 2): a = (1 + t) / 2, tanh(q) = 2 t / (1 + t^2).
struct Tied : ChannelCell {
  static constexpr int PARAMETERS = 1, MEMO = 2;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    T t = tanh((c.x[0] + c.p[0]) * 0.5f);
    m[0] = t * 0.5f + 0.5f;
    m[1] = (t + t) / (1.0f + t * t);
    return mixed(m[0], c.h, m[1]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dv = mixed_bwd(m[0], c.h, m[1], e, d);
    d.x[0] += dv * (1.0f - m[1] * m[1]);
    d.p[0] = d.x[0];
  }
};

// v = tanh(h + candidate + candidate_bias): E64.
struct StateInCandidate : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 2, MEMO = 2;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.x[0] + c.p[0]);
    m[1] = tanh(c.h + (c.x[1] + c.p[1]));
    return mixed(m[0], c.h, m[1]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dv = mixed_bwd(m[0], c.h, m[1], e, d);
    d.x[1] = dv * (1.0f - m[1] * m[1]);
    d.p[1] = d.x[1];
    d.h += d.x[1];
  }
};

// v = tanh(coefficient h + candidate + candidate_bias): E65.
struct ScaledStateInCandidate : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 3, MEMO = 2;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.x[0] + c.p[0]);
    m[1] = tanh(c.p[2] * c.h + (c.x[1] + c.p[1]));
    return mixed(m[0], c.h, m[1]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dv = mixed_bwd(m[0], c.h, m[1], e, d);
    d.x[1] = dv * (1.0f - m[1] * m[1]);
    d.p[1] = d.x[1];
    d.p[2] = d.x[1] * c.h;
    d.h += d.x[1] * c.p[2];
  }
};

// a = sigmoid(retain + retain_bias + coefficient h), v = tanh(candidate + candidate_bias): E67.
struct StateInGate : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 3, MEMO = 2;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.p[2] * c.h + (c.x[0] + c.p[0]));
    m[1] = tanh(c.x[1] + c.p[1]);
    return mixed(m[0], c.h, m[1]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dv = mixed_bwd(m[0], c.h, m[1], e, d);
    d.x[1] = dv * (1.0f - m[1] * m[1]);
    d.p[1] = d.x[1];
    d.p[2] = d.x[0] * c.h;
    d.h += d.x[0] * c.p[2];
  }
};

// v = tanh(candidate + candidate_bias) f, f = sigmoid(coefficient h + self_bias): E68.
// INVERSE: f = sigmoid(self_bias - coefficient |h|).
template <bool INVERSE>
struct SelfGatedCandidate : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 4, MEMO = 3;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    T seen = INVERSE ? -absolute(c.h) : c.h;
    m[0] = sigmoid(c.x[0] + c.p[0]);
    m[1] = tanh(c.x[1] + c.p[1]);
    m[2] = sigmoid(c.p[2] * seen + c.p[3]);
    return mixed(m[0], c.h, m[1] * m[2]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dv = mixed_bwd(m[0], c.h, m[1] * m[2], e, d) * m[2];
    T dlogit = dv * m[1] * (1.0f - m[2]);
    d.x[1] = dv * (1.0f - m[1] * m[1]);
    d.p[1] = d.x[1];
    d.p[2] = dlogit * (INVERSE ? -absolute(c.h) : c.h);
    d.p[3] = dlogit;
    d.h += dlogit * c.p[2] * (INVERSE ? -sign(c.h) : T{} + 1.0f);
  }
};

// ---- h' = keep h + k v, k = sigmoid(write + write_bias): E62 ----

// v = tanh(candidate + candidate_bias); keep = 1 - k.
struct Overwritten : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 2, MEMO = 2;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.x[0] + c.p[0]);
    m[1] = tanh(c.x[1] + c.p[1]);
    return mixed(m[0], m[1], c.h);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dv = e * m[0];
    d.h = e - dv;
    d.x[0] = d.h * m[0] * (m[1] - c.h);
    d.x[1] = dv * (1.0f - m[1] * m[1]);
    d.p[0] = d.x[0];
    d.p[1] = d.x[1];
  }
};

// As above with keep = a (1 - k), a = sigmoid(retain + retain_bias): E62 decay.
struct DecayedOverwritten : ChannelCell {
  static constexpr int INPUTS = 3, PARAMETERS = 3, MEMO = 3;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.x[0] + c.p[0]);
    m[1] = tanh(c.x[1] + c.p[1]);
    m[2] = sigmoid(c.x[2] + c.p[2]);
    return mixed(m[0], m[1], m[2] * c.h);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dv = e * m[0], dkept = e - dv;
    d.h = dkept * m[2];
    d.x[0] = dkept * m[0] * (m[1] - m[2] * c.h);
    d.x[1] = dv * (1.0f - m[1] * m[1]);
    d.x[2] = d.h * c.h * (1.0f - m[2]);
    d.p[0] = d.x[0];
    d.p[1] = d.x[1];
    d.p[2] = d.x[2];
  }
};

// ---- minGRU and minLSTM: candidate g(x) = x + 1/2, or sigmoid(x) below 0 ----

template <class T>
HD T minimal_candidate(T x) {
  T low = sigmoid(x), high = x + 0.5f;
  return x < T{} ? low : high;
}

// g'(x) from x and g(x).
template <class T>
HD T minimal_slope(T x, T g) {
  T low = g * (1.0f - g), high = T{} + 1.0f;
  return x < T{} ? low : high;
}

// h' = (1 - z) h + z g(candidate), z = sigmoid(gate).
struct MinGru : ChannelCell {
  static constexpr int INPUTS = 2, MEMO = 2;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.x[1]);
    m[1] = minimal_candidate(c.x[0]);
    return mixed(m[0], m[1], c.h);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dg = e * m[0];
    d.h = e - dg;
    d.x[0] = dg * minimal_slope(c.x[0], m[1]);
    d.x[1] = d.h * m[0] * (m[1] - c.h);
  }
};

// h' = (f h + i g(candidate)) / (f + i), f = sigmoid(forget), i = sigmoid(write).
// f / (f + i) = sigmoid(log f - log i): no quotient that may underflow.
struct MinLstm : ChannelCell {
  static constexpr int INPUTS = 3, MEMO = 4;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(softplus(-c.x[2]) - softplus(-c.x[1]));
    m[1] = minimal_candidate(c.x[0]);
    m[2] = sigmoid(-c.x[1]);
    m[3] = sigmoid(-c.x[2]);
    return mixed(m[0], c.h, m[1]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    T dg = e * (1.0f - m[0]);
    T dlogit = dg * m[0] * (c.h - m[1]);
    d.h = e * m[0];
    d.x[0] = dg * minimal_slope(c.x[0], m[1]);
    d.x[1] = dlogit * m[2];
    d.x[2] = -dlogit * m[3];
  }
};

// ---- E74 with a diagonal state: s' = phi(sum), phi tanh or identity, keys k normalised ----

template <bool TANH, class T>
HD T phi(T sum) {
  return TANH ? tanh(sum) : sum;
}

// Gradient of the sum.
template <bool TANH, class T>
HD T phi_bwd(T s_new, T e) {
  return TANH ? e * (1.0f - s_new * s_new) : e;
}

// sum = s (1 - key^2) + value key.
template <bool TANH>
struct DiagonalDelta : ChannelCell {
  static constexpr int INPUTS = 2;
  template <class T>
  HD static T step(const Channel<T>& c, T*) {
    return phi<TANH>(c.h + (c.x[1] - c.h * c.x[0]) * c.x[0]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T*, T s_new, T e, ChannelGrad<T>& d) {
    T g = phi_bwd<TANH>(s_new, e);
    d.x[1] = g * c.x[0];
    d.x[0] = g * (c.x[1] - c.h * c.x[0]) - d.x[1] * c.h;
    d.h = g - d.x[1] * c.x[0];
  }
};

// sum = a s + value key, a = sigmoid(retain_logit).
template <bool TANH>
struct DiagonalSimple : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 1, MEMO = 1;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.p[0]);
    return phi<TANH>(m[0] * c.h + c.x[1] * c.x[0]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T s_new, T e, ChannelGrad<T>& d) {
    T g = phi_bwd<TANH>(s_new, e);
    d.x[0] = g * c.x[1];
    d.x[1] = g * c.x[0];
    d.h = g * m[0];
    d.p[0] = d.h * c.h * (1.0f - m[0]);
  }
};

// sum = a s + (1 - a) value key, a = sigmoid(retain + retain_bias).
template <bool TANH>
struct DiagonalAverage : ChannelCell {
  static constexpr int INPUTS = 3, PARAMETERS = 1, MEMO = 1;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.x[2] + c.p[0]);
    return phi<TANH>(mixed(m[0], c.h, c.x[1] * c.x[0]));
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T s_new, T e, ChannelGrad<T>& d) {
    T g = phi_bwd<TANH>(s_new, e), dwrite = g * (1.0f - m[0]);
    d.x[0] = dwrite * c.x[1];
    d.x[1] = dwrite * c.x[0];
    d.x[2] = dwrite * m[0] * (c.h - c.x[1] * c.x[0]);
    d.p[0] = d.x[2];
    d.h = g * m[0];
  }
};

// sum = s + share (value - s key) key; share = a, or 1 - a for RETAIN,
// a = sigmoid(gate_scale s + gate_bias).
template <bool TANH, bool RETAIN>
struct DiagonalGated : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 2, MEMO = 1;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.p[0] * c.h + c.p[1]);
    T share = RETAIN ? 1.0f - m[0] : m[0];
    return phi<TANH>(c.h + share * (c.x[1] - c.h * c.x[0]) * c.x[0]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T s_new, T e, ChannelGrad<T>& d) {
    T g = phi_bwd<TANH>(s_new, e), delta = c.x[1] - c.h * c.x[0];
    T dwrite = g * (RETAIN ? 1.0f - m[0] : m[0]);
    T dlogit = g * delta * c.x[0] * m[0] * (1.0f - m[0]);
    if (RETAIN) dlogit = -dlogit;
    d.x[1] = dwrite * c.x[0];
    d.x[0] = dwrite * delta - d.x[1] * c.h;
    d.p[0] = dlogit * c.h;
    d.p[1] = dlogit;
    d.h = g - d.x[1] * c.x[0] + dlogit * c.p[0];
  }
};

// Any of these with the identity for phi, its sum divided by a norm.
template <class Base, int KIND>
struct Normed : Base {
  static constexpr int NORM = KIND;
};

// ---- a running sum, divided by its root mean square at every step: E59 ----

// v = h + alpha (value + value_bias).
struct RunningSum : ChannelCell {
  static constexpr int PARAMETERS = 2, NORM = NORM_ROOT;
  template <class T>
  HD static T step(const Channel<T>& c, T*) {
    return c.h + c.p[1] * (c.x[0] + c.p[0]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T*, T, T e, ChannelGrad<T>& d) {
    d.h = e;
    d.x[0] = e * c.p[1];
    d.p[0] = d.x[0];
    d.p[1] = e * (c.x[0] + c.p[0]);
  }
};

// v = h + g (value + value_bias), g = sigmoid(gate + gate_bias): E59b.
struct GatedRunningSum : ChannelCell {
  static constexpr int INPUTS = 2, PARAMETERS = 2, MEMO = 1, NORM = NORM_ROOT;
  template <class T>
  HD static T step(const Channel<T>& c, T* m) {
    m[0] = sigmoid(c.x[1] + c.p[1]);
    return c.h + m[0] * (c.x[0] + c.p[0]);
  }
  template <class T>
  HD static void step_bwd(const Channel<T>& c, const T* m, T, T e, ChannelGrad<T>& d) {
    d.h = e;
    d.x[0] = e * m[0];
    d.x[1] = d.x[0] * (c.x[0] + c.p[0]) * (1.0f - m[0]);
    d.p[0] = d.x[0];
    d.p[1] = d.x[1];
  }
};

}  // namespace elman
