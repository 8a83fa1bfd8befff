// The step of the tape engine, written once for the CPU engine and for a CUDA engine.
//
// With M the tape, h the state, s(.) = softmax over the slots of scale <M_n, .>:
//
//   h' = tanh(W_h h + x + sum_n r_n M_n),   r = s(h)      reads the tape as it was
//   M_n' = M_n + w_n (q - M_n),             w = s(h')     so does w
//
// The scores of the next read need no pass over M' (`next_score`), so that one pass over the tape
// does the write of a step and the read of the next. The engine owns the products, time, memory and
// the sums over channels and slots. T is a float, a double or a SIMD vector of either, S a float or
// a double. The functions with `_bwd` are derivatives; their sums are over the slots.
#pragma once
#include "cells/math.h"

namespace elman::tape {

// Which value q a step writes. BLOCKS: products of the state that a step needs, W_h h' first.
// VALUE: which of them q is; NO_PRODUCT: q is h' itself.
inline constexpr int NO_PRODUCT = -1;
struct Full {
  static constexpr int BLOCKS = 2, VALUE = 1;
};
struct Shared {
  static constexpr int BLOCKS = 1, VALUE = 0;
};
struct Identity {
  static constexpr int BLOCKS = 1, VALUE = NO_PRODUCT;
};

// ---- the weights of the slots ----

// A slot's share before the division by their sum; `most` is the greatest score.
template <class T, class S>
HD T power(T score, S most, S scale) {
  return exp((score - most) * scale);
}
// The gradient of a score from that of its weight, dw; `mean` is sum_n dw_n w_n.
template <class T>
HD T score_bwd(T w, T dw, T mean, T scale) {
  return scale * w * (dw - mean);
}
// <M_n', h'> of the tape after the write, from <M_n, h'> and <q, h'>.
template <class T>
HD T next_score(T score, T w, T value_score) {
  return score + w * (value_score - score);
}

// ---- one channel ----

// M_n' of one slot.
template <class T, class S>
HD T written(T m, S w, T q) {
  return m + w * (q - m);
}
// h', from W_h h + x and the sum that was read.
template <class T>
HD T state(T pre, T read) {
  return tanh(pre + read);
}
// The gradient of the argument of tanh, from that of h'.
template <class T>
HD T state_bwd(T h_new, T e) {
  return e * (1.0f - h_new * h_new);
}
// Adds to dM_n what comes by the read: r_n delta, and the score's gradient times h.
template <class T, class S>
HD T read_bwd(T dm, S r, T delta, S dscore, T h) {
  return dm + (r * delta + dscore * h);
}
// From dM_n' to dM_n, with what comes by the score of the write.
template <class T, class S>
HD T written_bwd(T dm, S w, S dscore, T h_new) {
  return dm + (dscore * h_new - w * dm);
}

}  // namespace elman::tape
