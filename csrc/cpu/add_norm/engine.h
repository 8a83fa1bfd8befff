// Residual add and RMSNorm on the CPU: rows on the threads, columns in SIMD lanes.
//
//   s = stream + branch, normed = s rstd gain, rstd = 1 / sqrt(mean(s^2) + eps)
//
// A row is read from memory once in each pass; it stays in the cache for the second loop over it.
// The gradient of the gain is summed by slices of rows, and then over the slices in their order. A
// slice depends on the number of rows alone, so every bit is the same for any number of threads.
//
// A Spec, which Python generates, says what is run:
//   T  float or double
#pragma once
#include "cpu/channel/lanes.h"

namespace elman {

// One call. Tensors are contiguous [rows, width] unless it says otherwise.
struct AddNormCall {
  const void* stream;
  const void* branch;  // null: nothing is added, and `sum` is not written
  const void* gain;    // [width]
  void* sum;           // the backward pass reads it
  void* normed;
  void* rstd;        // [rows]
  const void* dsum;  // null: zeros
  const void* dnormed;
  void* dstream;  // also the gradient of the branch
  void* dgain;    // [width]
  void* workspace;
  int64_t rows, width, threads;
  double eps;
};

template <class Spec>
class AddNormEngine {
  using T = typename Spec::T;
  using L = Lanes<T>;
  using V = typename L::V;

  static constexpr int CHAINS = 4;           // sums of a row that do not wait for each other
  static constexpr int64_t SMALL = 1 << 14;  // numbers that one thread does at once
  static constexpr int64_t MOST_SLICES = 128, LEAST_ROWS = 16;

  const AddNormCall& a;
  int64_t threads, slice, slices;

  static const T* row(const void* tensor, int64_t r, int64_t width) {
    return tensor ? static_cast<const T*>(tensor) + r * width : nullptr;
  }
  static T* row(void* tensor, int64_t r, int64_t width) {
    return static_cast<T*>(tensor) + r * width;
  }
  T* share(int64_t s) const { return row(a.workspace, s, a.width); }

  // f(first column, how many) for each vector of a row; returns the sum of what it returns.
  template <class F>
  T total(F f) const {
    V sums[CHAINS] = {};
    int64_t i = 0;
    for (; i + CHAINS * L::W <= a.width; i += CHAINS * L::W)
#pragma GCC unroll 4
      for (int u = 0; u < CHAINS; u++) sums[u] += f(i + u * L::W, L::W);
    for (; i < a.width; i += L::W) sums[0] += f(i, L::count(i, a.width));
    return L::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  void forward_row(int64_t r) const {
    const T *stream = row(a.stream, r, a.width), *branch = row(a.branch, r, a.width);
    const T *gain = row(a.gain, 0, 0), *s = stream;
    T* normed = row(a.normed, r, a.width);
    T squares;
    if (branch) {
      T* sum = row(a.sum, r, a.width);
      squares = total([&](int64_t i, int n) {
        const V v = L::load(stream + i, n) + L::load(branch + i, n);
        L::store(sum + i, v, n);
        return v * v;
      });
      s = sum;
    } else {
      squares = total([&](int64_t i, int n) {
        const V v = L::load(stream + i, n);
        return v * v;
      });
    }
    const T rstd = T(1) / square_root(squares / T(a.width) + T(a.eps));
    static_cast<T*>(a.rstd)[r] = rstd;
    for (int64_t i = 0; i < a.width; i += L::W) {
      const int n = L::count(i, a.width);
      L::store(normed + i, L::load(s + i, n) * rstd * L::load(gain + i, n), n);
    }
  }

  // Adds the row's part of the gain's gradient to dgain.
  void backward_row(int64_t r, T* dgain) const {
    const T *s = row(static_cast<const void*>(a.sum), r, a.width), *gain = row(a.gain, 0, 0);
    const T *dsum = row(a.dsum, r, a.width), *dnormed = row(a.dnormed, r, a.width);
    T* dstream = row(a.dstream, r, a.width);
    const T rstd = static_cast<const T*>(a.rstd)[r];
    const T along = total([&](int64_t i, int n) {
      return L::load(dnormed + i, n) * L::load(gain + i, n) * L::load(s + i, n);
    });
    const T mean = along * rstd * rstd / T(a.width);
    for (int64_t i = 0; i < a.width; i += L::W) {
      const int n = L::count(i, a.width);
      const V d = L::load(dnormed + i, n), x = L::load(s + i, n);
      V ds = (d * L::load(gain + i, n) - x * mean) * rstd;
      if (dsum) ds += L::load(dsum + i, n);
      L::store(dstream + i, ds, n);
      L::store(dgain + i, L::load(dgain + i, n) + d * (x * rstd), n);
    }
  }
  void backward_slice(int64_t s) const {
    T* dgain = share(s);
    std::memset(dgain, 0, a.width * sizeof(T));
    const int64_t end = (s + 1) * slice < a.rows ? (s + 1) * slice : a.rows;
    for (int64_t r = s * slice; r < end; r++) backward_row(r, dgain);
  }
  void sum_slices() const {
    T* dgain = row(a.dgain, 0, 0);
    std::memset(dgain, 0, a.width * sizeof(T));
    for (int64_t s = 0; s < slices; s++)
      for (int64_t i = 0; i < a.width; i++) dgain[i] += share(s)[i];
  }

 public:
  explicit AddNormEngine(const AddNormCall& call) : a(call) {
    threads = a.rows * a.width <= SMALL ? 1 : a.threads;
    slice = (a.rows + MOST_SLICES - 1) / MOST_SLICES;
    if (slice < LEAST_ROWS) slice = LEAST_ROWS;
    slices = (a.rows + slice - 1) / slice;
  }
  int64_t workspace_bytes() const { return slices * a.width * int64_t(sizeof(T)); }
  void forward() const {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < a.rows; r++) forward_row(r);
  }
  void backward() const {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t s = 0; s < slices; s++) backward_slice(s);
    sum_slices();
  }
};

}  // namespace elman

// The C interface of one Spec.
#define ELMAN_ADD_NORM(NAME, SPEC)                                   \
  extern "C" void NAME##_forward(const elman::AddNormCall* a) {      \
    elman::AddNormEngine<SPEC>(*a).forward();                        \
  }                                                                  \
  extern "C" void NAME##_backward(const elman::AddNormCall* a) {     \
    elman::AddNormEngine<SPEC>(*a).backward();                       \
  }                                                                  \
  extern "C" int64_t NAME##_workspace(const elman::AddNormCall* a) { \
    return elman::AddNormEngine<SPEC>(*a).workspace_bytes();         \
  }
