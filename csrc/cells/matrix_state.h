// The matrix-state cells, each written once for the CPU engine and for the CUDA engine.
//
// Per head the state is S [R value rows, N key columns]. One step:
//
//   key_j = k_j, or col_j k_j, or a sequence of its own        (Spec::KEY)
//   r_i   = sum_j S_ij key_j                                   (Cell::READ)
//   e_i   = mean_j S_ij^2                                      (Cell::ENERGY)
//   c_i, w_i = row(inputs of row i)
//   S'_ij = phi(element(S_ij, c_i [col_j], w_i, k_j))          phi: tanh or identity (Spec::TANH)
//   y_i   = sum_j S'_ij q_j
//
// A cell is `row` and its derivative `row_bwd`; the engine owns time, memory, sums and phi. T is a
// float, a double or a SIMD vector of either. Gates arrive as raw logits: their biases are row
// parameters, so that no elementwise pass over the sequence stands outside the engine.
#pragma once
#include "cells/maps.h"

namespace elman {

inline constexpr int MAX_GATES = 2, MAX_PARAMS = 3;

// What a row sees at one step.
template <class T>
struct Row {
  T v;              // value, activated
  T g[MAX_GATES];   // gate logits of the row
  T p[MAX_PARAMS];  // parameters of the row, the same at every step
  T decay, write;   // numbers of the head, mapped; 1 where the cell has none
  T r, e;           // read and energy of the old state
};

// Its gradient; the engine zeroes it, a cell sets what it uses.
template <class T>
struct RowGrad {
  T v, g[MAX_GATES], p[MAX_PARAMS], decay, write, r, e;
};

struct MatrixCell {
  static constexpr int GATES = 0, PARAMS = 0;
  static constexpr bool READ = false;    // needs r
  static constexpr bool ENERGY = false;  // needs e
  static constexpr bool COLUMN = false;  // c_i is multiplied by col_j
  static constexpr bool KEEP = false;    // c_i is 1: its gradient is not needed
  static constexpr bool DECAYS = false;  // c_i is the decay: as KEEP where there is none
  static constexpr bool HOOK = false;    // has an `element` of its own
};

// ---- S' = phi(c S + w k^T) with w = v: E14, E70, E73, E74 simple and ema ----

// c = decay.
struct Decayed : MatrixCell {
  static constexpr bool DECAYS = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = x.decay;
    w = x.v;
  }
  template <class T>
  HD static void row_bwd(const Row<T>&, T, T, T dc, T dw, RowGrad<T>& d) {
    d.decay = dc;
    d.v = dw;
  }
};

// c = act(g0 + p0), or act(g0) without a bias.
template <Act ACT, bool BIAS, bool COL = false>
struct RowGated : MatrixCell {
  static constexpr int GATES = 1, PARAMS = BIAS;
  static constexpr bool COLUMN = COL;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = activate<ACT>(BIAS ? x.g[0] + x.p[0] : x.g[0]);
    w = x.v;
  }
  template <class T>
  HD static void row_bwd(const Row<T>&, T c, T, T dc, T dw, RowGrad<T>& d) {
    d.g[0] = dc * slope_of<ACT>(c);
    if (BIAS) d.p[0] = d.g[0];
    d.v = dw;
  }
};

// c = decay, w = write sigmoid(g0) v: E97 that does not erase.
struct GatedWrite : MatrixCell {
  static constexpr int GATES = 1;
  static constexpr bool DECAYS = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = x.decay;
    w = x.write * sigmoid(x.g[0]) * x.v;
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T, T, T dc, T dw, RowGrad<T>& d) {
    T a = sigmoid(x.g[0]);
    d.decay = dc;
    d.write = dw * a * x.v;
    d.v = x.write * a * dw;
    d.g[0] = x.write * dw * x.v * a * (1.0f - a);
  }
};

// c = col_j alone: E73 in its published form.
struct ColumnGated : MatrixCell {
  static constexpr bool COLUMN = true, KEEP = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = T{} + 1.0f;
    w = x.v;
  }
  template <class T>
  HD static void row_bwd(const Row<T>&, T, T, T, T dw, RowGrad<T>& d) {
    d.v = dw;
  }
};

// c = sigmoid(g0 + p0), w = (1 - c) v: E74 ema.
struct Averaged : MatrixCell {
  static constexpr int GATES = 1, PARAMS = 1;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = sigmoid(x.g[0] + x.p[0]);
    w = (1.0f - c) * x.v;
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T c, T, T dc, T dw, RowGrad<T>& d) {
    d.g[0] = (dc - x.v * dw) * c * (1.0f - c);
    d.p[0] = d.g[0];
    d.v = (1.0f - c) * dw;
  }
};

// ---- the delta rule, w from v - r: E73cp, E74, E75, E88 ----

// c = decay, w = write (v - r): E88, E74 delta and fixed decay (their missing factors are 1).
struct Delta : MatrixCell {
  static constexpr bool READ = true, DECAYS = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = x.decay;
    w = x.write * (x.v - x.r);
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T, T, T dc, T dw, RowGrad<T>& d) {
    d.decay = dc;
    d.write = dw * (x.v - x.r);
    d.v = x.write * dw;
    d.r = -d.v;
  }
};

// c = decay, w = write (sigmoid(g0) v - r): E97, whose key of the read is z k.
struct SplitEdit : MatrixCell {
  static constexpr int GATES = 1;
  static constexpr bool READ = true, DECAYS = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = x.decay;
    w = x.write * (sigmoid(x.g[0]) * x.v - x.r);
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T, T, T dc, T dw, RowGrad<T>& d) {
    T a = sigmoid(x.g[0]), dedit = x.write * dw;
    d.decay = dc;
    d.write = dw * (a * x.v - x.r);
    d.v = a * dedit;
    d.g[0] = dedit * x.v * a * (1.0f - a);
    d.r = -dedit;
  }
};

// c = sigmoid(g0 + p0), w = v - r: E75.
struct RowGatedDelta : MatrixCell {
  static constexpr int GATES = 1, PARAMS = 1;
  static constexpr bool READ = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = sigmoid(x.g[0] + x.p[0]);
    w = x.v - x.r;
  }
  template <class T>
  HD static void row_bwd(const Row<T>&, T c, T, T dc, T dw, RowGrad<T>& d) {
    d.g[0] = dc * c * (1.0f - c);
    d.p[0] = d.g[0];
    d.v = dw;
    d.r = -dw;
  }
};

// c = 1, w = v - act(g0 + p0) r: E73 delta, variants row and full.
template <Act ACT>
struct ScaledReadDelta : MatrixCell {
  static constexpr int GATES = 1, PARAMS = 1;
  static constexpr bool READ = true, KEEP = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = T{} + 1.0f;
    w = x.v - activate<ACT>(x.g[0] + x.p[0]) * x.r;
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T, T, T, T dw, RowGrad<T>& d) {
    T a = activate<ACT>(x.g[0] + x.p[0]);
    d.g[0] = -dw * x.r * slope_of<ACT>(a);
    d.p[0] = d.g[0];
    d.v = dw;
    d.r = -dw * a;
  }
};

// c = 1, w = sigmoid(g0 + p0) (v - r): E74 retrieved gate.
struct WriteGatedDelta : MatrixCell {
  static constexpr int GATES = 1, PARAMS = 1;
  static constexpr bool READ = true, KEEP = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = T{} + 1.0f;
    w = sigmoid(x.g[0] + x.p[0]) * (x.v - x.r);
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T, T, T, T dw, RowGrad<T>& d) {
    T a = sigmoid(x.g[0] + x.p[0]);
    d.v = a * dw;
    d.r = -d.v;
    d.g[0] = dw * (x.v - x.r) * a * (1.0f - a);
    d.p[0] = d.g[0];
  }
};

// c = 1, w = a (v - r) or (1 - a) (v - r), a = sigmoid(p0 e + p1): E74 state and retain gates.
template <bool RETAIN>
struct EnergyGatedDelta : MatrixCell {
  static constexpr int PARAMS = 2;
  static constexpr bool READ = true, ENERGY = true, KEEP = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    T a = sigmoid(x.p[0] * x.e + x.p[1]);
    c = T{} + 1.0f;
    w = (RETAIN ? 1.0f - a : a) * (x.v - x.r);
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T, T, T, T dw, RowGrad<T>& d) {
    T a = sigmoid(x.p[0] * x.e + x.p[1]);
    T delta = x.v - x.r, dlogit = dw * delta * a * (1.0f - a);
    if (RETAIN) dlogit = -dlogit;
    d.v = (RETAIN ? 1.0f - a : a) * dw;
    d.r = -d.v;
    d.e = dlogit * x.p[0];
    d.p[0] = dlogit * x.e;
    d.p[1] = dlogit;
  }
};

// ---- gates that read the state: E71, E72 ----

// c = a, w = (1 - a) v, a = sigmoid(g0 + p0 + p1 r): E71.
struct ReadGated : MatrixCell {
  static constexpr int GATES = 1, PARAMS = 2;
  static constexpr bool READ = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = sigmoid(x.g[0] + x.p[0] + x.p[1] * x.r);
    w = (1.0f - c) * x.v;
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T c, T, T dc, T dw, RowGrad<T>& d) {
    T dlogit = (dc - x.v * dw) * c * (1.0f - c);
    d.g[0] = dlogit;
    d.p[0] = dlogit;
    d.p[1] = dlogit * x.r;
    d.r = dlogit * x.p[1];
    d.v = (1.0f - c) * dw;
  }
};

// c = a, w = (1 - a) v b; a = sigmoid(g0 + p0), b = sigmoid(p1 r + p2), or p2 - p1 |r|: E72.
template <bool INVERSE>
struct ValueGated : MatrixCell {
  static constexpr int GATES = 1, PARAMS = 3;
  static constexpr bool READ = true;
  template <class T>
  HD static T value_gate(const Row<T>& x) {
    return sigmoid(INVERSE ? x.p[2] - x.p[1] * absolute(x.r) : x.p[2] + x.p[1] * x.r);
  }
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = sigmoid(x.g[0] + x.p[0]);
    w = (1.0f - c) * x.v * value_gate(x);
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T c, T, T dc, T dw, RowGrad<T>& d) {
    T b = value_gate(x);
    T dlogit = dw * (1.0f - c) * x.v * b * (1.0f - b);
    d.g[0] = (dc - dw * x.v * b) * c * (1.0f - c);
    d.p[0] = d.g[0];
    d.p[1] = INVERSE ? -dlogit * absolute(x.r) : dlogit * x.r;
    d.p[2] = dlogit;
    d.r = INVERSE ? -dlogit * x.p[1] * sign(x.r) : dlogit * x.p[1];
    d.v = dw * (1.0f - c) * b;
  }
};

// ---- cells whose elements are not c S + w k: E74 ntm and residual ----
// element_bwd: from ds (gradient of the new element) to the gradients of its four inputs.

// S' = S + k (w - c S), c = sigmoid(g0 + p0) erases, w = sigmoid(g1 + p1) v writes: E74 ntm.
struct EraseWrite : MatrixCell {
  static constexpr int GATES = 2, PARAMS = 2;
  static constexpr bool HOOK = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = sigmoid(x.g[0] + x.p[0]);
    w = sigmoid(x.g[1] + x.p[1]) * x.v;
  }
  template <class T>
  HD static void row_bwd(const Row<T>& x, T c, T, T dc, T dw, RowGrad<T>& d) {
    T b = sigmoid(x.g[1] + x.p[1]);
    d.g[0] = dc * c * (1.0f - c);
    d.g[1] = dw * x.v * b * (1.0f - b);
    d.p[0] = d.g[0];
    d.p[1] = d.g[1];
    d.v = dw * b;
  }
  template <class T>
  HD static T element(T s, T c, T w, T k) {
    return s + k * (w - c * s);
  }
  template <class T>
  HD static void element_bwd(T s, T c, T w, T k, T ds_new, T& ds, T& dc, T& dw, T& dk) {
    T dwrite = ds_new * k;
    ds = ds_new - dwrite * c;
    dc = -(dwrite * s);
    dw = dwrite;
    dk = ds_new * (w - c * s);
  }
};

// S' = S + c tanh(w k), w = v - r, c = p0: E74 residual.
struct Residual : MatrixCell {
  static constexpr int PARAMS = 1;
  static constexpr bool READ = true, HOOK = true;
  template <class T>
  HD static void row(const Row<T>& x, T& c, T& w) {
    c = x.p[0];
    w = x.v - x.r;
  }
  template <class T>
  HD static void row_bwd(const Row<T>&, T, T, T dc, T dw, RowGrad<T>& d) {
    d.p[0] = dc;
    d.v = dw;
    d.r = -dw;
  }
  template <class T>
  HD static T element(T s, T c, T w, T k) {
    return s + c * tanh(w * k);
  }
  template <class T>
  HD static void element_bwd(T, T c, T w, T k, T ds_new, T& ds, T& dc, T& dw, T& dk) {
    T t = tanh(w * k), dproduct = ds_new * c * (1.0f - t * t);
    ds = ds_new;
    dc = ds_new * t;
    dw = dproduct * k;
    dk = dproduct * w;
  }
};

}  // namespace elman
