// The dense cells, each written once for the CPU engine and for a CUDA engine.
//
// A step adds R h, a product with all channels of the old state, to its first input. What follows
// is pointwise: one channel's new state is h' = step(a, p, h, c), all numbers; c are the parts of
// the state beside h. A cell is `step` and
// its derivative `step_bwd`; the engine owns the product, time, memory and the sums over batch and
// time. T is a float, a double or a SIMD vector of either.
//
// `step` leaves in `m` what its derivative needs and is dear to compute again. The equations stand
// in elman/ops/dense/op.py.
#pragma once
#include "cells/math.h"

namespace elman {

inline constexpr int MAX_BLOCKS = 4, MAX_OTHERS = 2, MAX_STATES = 4, MAX_DENSE_MEMO = 7;
inline constexpr double DENSE_NORM_EPS = 1e-6;  // added to the mean square of a state

// What a channel sees at one step.
template <class T>
struct Dense {
  T a[MAX_BLOCKS];      // the first input plus R h, block by block
  T p[MAX_OTHERS];      // the other inputs, before their activations
  T h;                  // old state
  T c[MAX_STATES - 1];  // its other parts
  T scale;              // the step's own number, the same at every step
};

// Its gradient; a cell sets what it uses.
template <class T>
struct DenseGrad {
  T a[MAX_BLOCKS], p[MAX_OTHERS], h, c[MAX_STATES - 1], scale;
};

// BLOCKS: of R h. OTHERS: inputs beside the first. STATES: parts of the state, h among them. KEPT:
// how many of the other parts the derivative reads, the first ones; a memo ends with them, as they
// are after the step. NORM: the new state is divided by its root mean square over the channels.
// SCALE: whether it has a number of its own. EXTRA: a second product, with r h, stands inside the
// step. OLD and NEW: whether the derivative reads h before the step, and after it; what it needs of
// the inputs it has from the memo. DIVIDES: whether the derivative divides by what it reads, so
// that zeros, which stand for channels that are none, give no zeros.
struct DenseCell {
  static constexpr int BLOCKS = 1, OTHERS = 0, STATES = 1, KEPT = 0, MEMO = 0;
  static constexpr bool NORM = false, SCALE = false, EXTRA = false;
  static constexpr bool OLD = true, NEW = true, DIVIDES = false;
};

// A cell whose derivative reads no more than the old state and the memo.
struct DenseMemoCell : DenseCell {
  static constexpr bool NEW = false;
};

// h' = tanh(a), or a: E0 to E56.
template <bool TANH>
struct DensePlain : DenseCell {
  static constexpr bool OLD = false, NEW = TANH;
  template <class T>
  HD static T step(const Dense<T>& x, T*, T*) {
    return TANH ? tanh(x.a[0]) : x.a[0];
  }
  template <class T>
  HD static void step_bwd(const Dense<T>&, const T*, T h_new, T e, const T*, DenseGrad<T>& d) {
    d.a[0] = TANH ? e * (1.0f - h_new * h_new) : e;
    d.h = T{};
  }
};

// c' = s(f) c + s(i) tanh(n), h' = s(o) tanh(c'); a = [f i o n].
struct DenseLstm : DenseMemoCell {
  static constexpr int BLOCKS = 4, STATES = 2, KEPT = 1, MEMO = 5;
  static constexpr bool OLD = false;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T* c_new) {
    for (int k = 0; k < 3; k++) m[k] = sigmoid(x.a[k]);
    m[3] = tanh(x.a[3]);
    m[4] = c_new[0] = m[0] * x.c[0] + m[1] * m[3];
    return m[2] * tanh(m[4]);
  }
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T* ec, DenseGrad<T>& d) {
    T t = tanh(m[4]);
    T de = ec[0] + e * m[2] * (1.0f - t * t);
    d.a[0] = de * x.c[0] * m[0] * (1.0f - m[0]);
    d.a[1] = de * m[3] * m[1] * (1.0f - m[1]);
    d.a[2] = e * t * m[2] * (1.0f - m[2]);
    d.a[3] = de * m[1] * (1.0f - m[3] * m[3]);
    d.c[0] = de * m[0];
    d.h = T{};
  }
};

// The scalar cell of xLSTM (arXiv 2405.04517, equations 8 to 17), with sigmoid as forget gate;
// a = [z o i f], all of it before activations:
//   c' = F c + I tanh(z), n' = F n + I, h' = s(o) c' / n', m' = max(log s(f) + m, i),
//   F = exp(log s(f) + m - m'), I = exp(i - m').
// n = 0 is the empty memory, of which nothing is read: m' = i. The larger of F and I is 1, so that
// n never falls below 1, from an empty memory on.
//
// The derivative is exact for every loss of all parts. c and n count in units of exp(m), so a loss
// that knows c exp(m) and n exp(m) alone, as h does, has dm' = c' dc' + n' dn', and does not see
// which number m' is. What is left of dm' goes to the argument that the maximum took.
struct DenseSlstm : DenseMemoCell {
  static constexpr int BLOCKS = 4, STATES = 4, KEPT = 2, MEMO = 7;
  static constexpr bool OLD = false, DIVIDES = true;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T* c_new) {
    const T zero = T{}, lost = softplus(-x.a[3]);  // -log s(f)
    // How far the memory's weight stands above the input's, as logarithms.
    const T above = x.c[1] == zero ? zero - 1e30f : x.c[2] - lost - x.a[2];
    const T write = exp(-positive(above));
    m[0] = tanh(x.a[0]);
    m[1] = sigmoid(x.a[1]);
    m[2] = zero < above ? -write : write;  // I; the sign says what m' is, which bf16 may not
    m[3] = exp(-positive(-above));         // F
    m[4] = exp(-lost - x.a[3]);            // 1 - s(f), which bf16 would lose in s(f)
    m[5] = c_new[0] = m[3] * x.c[0] + write * m[0];
    m[6] = c_new[1] = m[3] * x.c[1] + write;
    c_new[2] = x.a[2] + positive(above);
    return m[1] * m[5] / m[6];
  }
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T* ec, DenseGrad<T>& d) {
    const T zero = T{}, write = zero < m[2] ? m[2] : -m[2];
    // Not m[5] / m[6], which bf16 rounds: z - c' / n' and c - c' / n' n would cancel to its error.
    const T now = m[3] * x.c[1] + write, ratio = (m[3] * x.c[0] + write * m[0]) / now;
    const T de = e * m[1] / now, change = de * (m[0] * x.c[1] - x.c[0]) / now;
    const T dc = ec[0] + de, dn = ec[1] - de * ratio;
    const T left = ec[2] - ec[0] * m[5] - ec[1] * m[6];
    const T past = zero < m[2] ? zero : left;
    d.a[0] = dc * write * (1.0f - m[0] * m[0]);
    d.a[1] = e * ratio * m[1] * (1.0f - m[1]);
    d.a[2] = write * (ec[0] * m[0] + ec[1] + m[3] * change) + left - past;
    d.c[2] = m[3] * (ec[0] * x.c[0] + ec[1] * x.c[1] - write * change) + past;
    d.a[3] = d.c[2] * m[4];
    d.c[0] = dc * m[3];
    d.c[1] = dn * m[3];
    d.h = zero;
  }
};

// h' = s h + (1 - s) v and the gradients of h, v and of the argument of s = sigmoid(.).
template <class T>
HD T blend(T s, T h, T v) {
  return v + s * (h - v);
}
template <class T>
HD void blend_bwd(T s, T h, T v, T e, T& dh, T& dv, T& ds) {
  dh = e * s;
  dv = e - dh;
  ds = dv * s * (h - v);
}

// h' = s(p) h + (1 - s(p)) tanh(a): E63, E66.
struct DenseMix : DenseMemoCell {
  static constexpr int OTHERS = 1, MEMO = 2;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T*) {
    m[0] = tanh(x.a[0]);
    m[1] = sigmoid(x.p[0]);
    return blend(m[1], x.h, m[0]);
  }
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T*, DenseGrad<T>& d) {
    T dv;
    blend_bwd(m[1], x.h, m[0], e, d.h, dv, d.p[0]);
    d.a[0] = dv * (1.0f - m[0] * m[0]);
  }
};

// h' = s(c) h + (1 - s(c)) tanh(a); a = [a c]: E60c.
struct DenseMixAll : DenseMemoCell {
  static constexpr int BLOCKS = 2, MEMO = 2;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T*) {
    m[0] = tanh(x.a[0]);
    m[1] = sigmoid(x.a[1]);
    return blend(m[1], x.h, m[0]);
  }
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T*, DenseGrad<T>& d) {
    T dv;
    blend_bwd(m[1], x.h, m[0], e, d.h, dv, d.a[1]);
    d.a[0] = dv * (1.0f - m[0] * m[0]);
  }
};

// h' = s(a) h + (1 - s(a)) tanh(p): E67lr.
struct DenseMixGate : DenseMemoCell {
  static constexpr int OTHERS = 1, MEMO = 2;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T*) {
    m[0] = tanh(x.p[0]);
    m[1] = sigmoid(x.a[0]);
    return blend(m[1], x.h, m[0]);
  }
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T*, DenseGrad<T>& d) {
    T dv;
    blend_bwd(m[1], x.h, m[0], e, d.h, dv, d.a[0]);
    d.p[0] = dv * (1.0f - m[0] * m[0]);
  }
};

// h' = r h + w v with gates r = s(.), w = s(.) and v = tanh(.): the gradients of their arguments.
template <class T>
HD void two_gates_bwd(T r, T w, T v, T h, T e, T& dr, T& dw, T& dv, T& dh) {
  dr = e * h * r * (1.0f - r);
  dw = e * v * w * (1.0f - w);
  dv = e * w * (1.0f - v * v);
  dh = e * r;
}

// h' = s(p) h + s(q) tanh(a): E63 independent.
struct DenseTwoGates : DenseMemoCell {
  static constexpr int OTHERS = 2, MEMO = 3;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T*) {
    m[0] = sigmoid(x.p[0]);
    m[1] = sigmoid(x.p[1]);
    m[2] = tanh(x.a[0]);
    return m[0] * x.h + m[1] * m[2];
  }
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T*, DenseGrad<T>& d) {
    two_gates_bwd(m[0], m[1], m[2], x.h, e, d.p[0], d.p[1], d.a[0], d.h);
  }
};

// h' = s(c) h + s(d) tanh(a); a = [a c d]: E63 h_dependent.
struct DenseTwoGatesAll : DenseMemoCell {
  static constexpr int BLOCKS = 3, MEMO = 3;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T*) {
    m[0] = sigmoid(x.a[1]);
    m[1] = sigmoid(x.a[2]);
    m[2] = tanh(x.a[0]);
    return m[0] * x.h + m[1] * m[2];
  }
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T*, DenseGrad<T>& d) {
    two_gates_bwd(m[0], m[1], m[2], x.h, e, d.a[1], d.a[2], d.a[0], d.h);
  }
};

// h' = h + s(p) tanh(a): E63 residual; divided by its root mean square: E60b.
template <bool NORMED>
struct DenseResidual : DenseMemoCell {
  static constexpr int OTHERS = 1, MEMO = 2;
  static constexpr bool NORM = NORMED, OLD = false;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T*) {
    m[0] = sigmoid(x.p[0]);
    m[1] = tanh(x.a[0]);
    return x.h + m[0] * m[1];
  }
  template <class T>
  HD static void step_bwd(const Dense<T>&, const T* m, T, T e, const T*, DenseGrad<T>& d) {
    d.p[0] = e * m[1] * m[0] * (1.0f - m[0]);
    d.a[0] = e * m[0] * (1.0f - m[1] * m[1]);
    d.h = e;
  }
};

// h' = h + scale tanh(a), divided by its root mean square: E60.
struct DenseScaled : DenseMemoCell {
  static constexpr int MEMO = 1;
  static constexpr bool NORM = true, SCALE = true, OLD = false;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T*) {
    m[0] = tanh(x.a[0]);
    return x.h + x.scale * m[0];
  }
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T*, DenseGrad<T>& d) {
    d.a[0] = e * x.scale * (1.0f - m[0] * m[0]);
    d.scale = e * m[0];
    d.h = e;
  }
};

// h' = h + a, divided by its root mean square: E59c.
struct DenseSum : DenseMemoCell {
  static constexpr bool NORM = true, OLD = false;
  template <class T>
  HD static T step(const Dense<T>& x, T*, T*) {
    return x.h + x.a[0];
  }
  template <class T>
  HD static void step_bwd(const Dense<T>&, const T*, T, T e, const T*, DenseGrad<T>& d) {
    d.a[0] = e;
    d.h = e;
  }
};

// h' = (1 - s(z)) h + s(z) tanh(p + U (s(r) h)); a = [z r]: CudaGRU. `gates` comes before the
// product with U, which the engine adds to p; so with the derivative, the other way round.
struct DenseGru : DenseMemoCell {
  static constexpr int BLOCKS = 2, OTHERS = 1, MEMO = 3;
  static constexpr bool EXTRA = true;
  // Returns r h.
  template <class T>
  HD static T gates(const Dense<T>& x, T* m) {
    m[0] = sigmoid(x.a[0]);
    m[1] = sigmoid(x.a[1]);
    return m[1] * x.h;
  }
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T*) {
    m[2] = tanh(x.p[0]);
    return x.h + m[0] * (m[2] - x.h);
  }
  // Returns the gradient of the argument of tanh.
  template <class T>
  HD static T candidate_bwd(const T* m, T e) {
    return e * m[0] * (1.0f - m[2] * m[2]);
  }
  // `drh` points to the gradient of r h.
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T* drh, DenseGrad<T>& d) {
    d.a[0] = e * (m[2] - x.h) * m[0] * (1.0f - m[0]);
    d.a[1] = drh[0] * x.h * m[1] * (1.0f - m[1]);
    d.h = e - e * m[0] + drh[0] * m[1];
  }
};

// h' = s(z) h + (1 - s(z)) tanh(p + s(r) q); a = [r z q]: PyTorch's GRU, which resets behind the
// matrix. q is U h and a bias of its own, so what else is in the argument of tanh is p.
struct DenseGruResetAfter : DenseMemoCell {
  static constexpr int BLOCKS = 3, OTHERS = 1, MEMO = 4;
  template <class T>
  HD static T step(const Dense<T>& x, T* m, T*) {
    m[0] = sigmoid(x.a[0]);
    m[1] = sigmoid(x.a[1]);
    m[2] = x.a[2];
    m[3] = tanh(x.p[0] + m[0] * m[2]);
    return blend(m[1], x.h, m[3]);
  }
  template <class T>
  HD static void step_bwd(const Dense<T>& x, const T* m, T, T e, const T*, DenseGrad<T>& d) {
    T dv;
    blend_bwd(m[1], x.h, m[3], e, d.h, dv, d.a[1]);
    d.p[0] = dv * (1.0f - m[3] * m[3]);
    d.a[0] = d.p[0] * m[2] * m[0] * (1.0f - m[0]);
    d.a[2] = d.p[0] * m[0];
  }
};

}  // namespace elman
