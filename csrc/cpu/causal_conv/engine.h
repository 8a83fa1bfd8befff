// Depthwise causal convolution over time on the CPU: stretches of steps on the threads, channels in
// SIMD lanes.
//
//   y_t = bias + sum_k w_k x_{t - (TAPS - 1) + k}
//
// What lies before the first step is the history, or nothing. A tap does not look across a reset:
// what lies before it is left out of the sums. The gradients of taps and bias are summed by shares
// of the stretches, and then over the shares in their order. Shares depend on the sizes alone, so
// every bit is the same for any number of threads.
//
// A Spec, which Python generates, says what is run:
//   T     float or double
//   TAPS  two or more
#pragma once
#include "cpu/channel/lanes.h"

namespace elman {

// One call. Channels are adjacent in every tensor but the weight; x and dx may be parts of wider
// rows, all else is contiguous.
struct CausalConvCall {
  const void* x;        // [batch, steps, channels]
  const void* weight;   // [channels, TAPS]
  const void* bias;     // [channels], or null
  const void* history;  // [batch, TAPS - 1, channels], or null
  const bool* resets;   // [batch, steps], or null
  void* y;
  const void* dy;
  void* dx;
  void* dhistory;  // or null
  void* dweight;
  void* dbias;
  void* workspace;
  int64_t x_batch, x_time, dx_batch, dx_time;
  int64_t batch, steps, channels, threads;
};

template <class Spec>
class CausalConvEngine {
  using T = typename Spec::T;
  using L = Lanes<T>;
  using V = typename L::V;

  static constexpr int K = Spec::TAPS;
  static constexpr int64_t STRETCH = 64, MOST_SHARES = 128;
  static constexpr int64_t SMALL = 1 << 14;  // numbers that one thread does at once

  const CausalConvCall& a;
  int64_t threads, parts, stretches, per_share, shares;

  // The rows that the taps read, or that their gradients come from; null where there is none.
  struct Rows {
    const T* of[K];
    bool all() const {
      for (int k = 0; k < K; k++)
        if (!of[k]) return false;
      return true;
    }
  };

  const T* x(int64_t b, int64_t t) const {
    return static_cast<const T*>(a.x) + b * a.x_batch + t * a.x_time;
  }
  const T* dy(int64_t b, int64_t t) const {
    return static_cast<const T*>(a.dy) + (b * a.steps + t) * a.channels;
  }
  T* past(const void* history, int64_t b, int64_t t) const {
    return static_cast<T*>(const_cast<void*>(history)) + (b * (K - 1) + t + K - 1) * a.channels;
  }
  // The taps by their number, each with the weights of all channels.
  T* tap(int k) const { return static_cast<T*>(a.workspace) + k * a.channels; }
  // The sums of a share: those of every tap, then that of the bias.
  T* sums(int64_t share) const {
    return static_cast<T*>(a.workspace) + (K + share * (K + 1)) * a.channels;
  }
  bool reset(int64_t b, int64_t t) const { return a.resets && t >= 0 && a.resets[b * a.steps + t]; }

  // What the taps of step t read.
  Rows reads(int64_t b, int64_t t) const {
    Rows r;
    bool cut = false;
    for (int k = K - 1; k >= 0; k--) {
      const int64_t at = t - (K - 1) + k;
      r.of[k] = cut ? nullptr : at >= 0 ? x(b, at) : a.history ? past(a.history, b, at) : nullptr;
      cut |= reset(b, at);
    }
    return r;
  }
  // The gradients of the outputs that read step t, which may lie in the history.
  Rows pulls(int64_t b, int64_t t) const {
    Rows r;
    bool cut = false;
    for (int k = K - 1; k >= 0; k--) {
      const int64_t at = t + (K - 1) - k;
      cut |= k < K - 1 && at < a.steps && reset(b, at);
      r.of[k] = !cut && at >= 0 && at < a.steps ? dy(b, at) : nullptr;
    }
    return r;
  }

  void transpose_taps() const {
    const T* weight = static_cast<const T*>(a.weight);
    for (int64_t i = 0; i < a.channels; i++)
      for (int k = 0; k < K; k++) tap(k)[i] = weight[i * K + k];
  }
  // to = sum_k tap k times row k, plus `more` if it is there.
  template <bool ALL>
  void combine(const Rows& r, const T* more, T* to) const {
    for (int64_t i = 0; i < a.channels; i += L::W) {
      const int n = L::count(i, a.channels);
      V sum = {};
#pragma GCC unroll 8
      for (int k = 0; k < K; k++)
        if (ALL || r.of[k]) sum += L::load(tap(k) + i, n) * L::load(r.of[k] + i, n);
      if (more) sum += L::load(more + i, n);
      L::store(to + i, sum, n);
    }
  }
  void combined(const Rows& r, const T* more, T* to) const {
    r.all() ? combine<true>(r, more, to) : combine<false>(r, more, to);
  }
  // Adds one step's part to the gradients of taps and bias.
  template <bool ALL>
  void add(const Rows& r, const T* d, T* to) const {
    for (int64_t i = 0; i < a.channels; i += L::W) {
      const int n = L::count(i, a.channels);
      const V pull = L::load(d + i, n);
#pragma GCC unroll 8
      for (int k = 0; k < K; k++)
        if (ALL || r.of[k]) {
          T* at = to + k * a.channels + i;
          L::store(at, L::load(at, n) + pull * L::load(r.of[k] + i, n), n);
        }
      T* at = to + K * a.channels + i;
      L::store(at, L::load(at, n) + pull, n);
    }
  }

  void forward_stretch(int64_t s) const {
    const int64_t b = s / parts, begin = s % parts * STRETCH, end = end_of(begin);
    T* y = static_cast<T*>(a.y) + (b * a.steps + begin) * a.channels;
    for (int64_t t = begin; t < end; t++, y += a.channels)
      combined(reads(b, t), static_cast<const T*>(a.bias), y);
  }
  void backward_stretch(int64_t s, T* to) const {
    const int64_t b = s / parts, begin = s % parts * STRETCH, end = end_of(begin);
    if (begin == 0 && a.dhistory)
      for (int64_t t = 1 - K; t < 0; t++) combined(pulls(b, t), nullptr, past(a.dhistory, b, t));
    for (int64_t t = begin; t < end; t++) {
      const Rows read = reads(b, t);
      read.all() ? add<true>(read, dy(b, t), to) : add<false>(read, dy(b, t), to);
      combined(pulls(b, t), nullptr, static_cast<T*>(a.dx) + b * a.dx_batch + t * a.dx_time);
    }
  }
  int64_t end_of(int64_t begin) const {
    return begin + STRETCH < a.steps ? begin + STRETCH : a.steps;
  }
  void backward_share(int64_t share) const {
    T* to = sums(share);
    std::memset(to, 0, (K + 1) * a.channels * sizeof(T));
    const int64_t end = (share + 1) * per_share;
    for (int64_t s = share * per_share; s < end && s < stretches; s++) backward_stretch(s, to);
  }
  void sum_shares() const {
    T *dweight = static_cast<T*>(a.dweight), *dbias = static_cast<T*>(a.dbias), *whole = sums(0);
    for (int64_t s = 1; s < shares; s++)
      for (int64_t i = 0; i < (K + 1) * a.channels; i++) whole[i] += sums(s)[i];
    for (int64_t i = 0; i < a.channels; i++)
      for (int k = 0; k < K; k++) dweight[i * K + k] = whole[k * a.channels + i];
    std::memcpy(dbias, whole + K * a.channels, a.channels * sizeof(T));
  }

 public:
  explicit CausalConvEngine(const CausalConvCall& call) : a(call) {
    threads = a.batch * a.steps * a.channels <= SMALL ? 1 : a.threads;
    parts = (a.steps + STRETCH - 1) / STRETCH;
    stretches = a.batch * parts;
    per_share = (stretches + MOST_SHARES - 1) / MOST_SHARES;
    shares = (stretches + per_share - 1) / per_share;
  }
  // The backward pass needs the sums beside the taps.
  int64_t workspace_bytes() const {
    return (K + (a.dy ? shares * (K + 1) : 0)) * a.channels * int64_t(sizeof(T));
  }
  void forward() const {
    transpose_taps();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t s = 0; s < stretches; s++) forward_stretch(s);
  }
  void backward() const {
    transpose_taps();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t s = 0; s < shares; s++) backward_share(s);
    sum_shares();
  }
};

}  // namespace elman

// The C interface of one Spec.
#define ELMAN_CAUSAL_CONV(NAME, SPEC)                                   \
  extern "C" void NAME##_forward(const elman::CausalConvCall* a) {      \
    elman::CausalConvEngine<SPEC>(*a).forward();                        \
  }                                                                     \
  extern "C" void NAME##_backward(const elman::CausalConvCall* a) {     \
    elman::CausalConvEngine<SPEC>(*a).backward();                       \
  }                                                                     \
  extern "C" int64_t NAME##_workspace(const elman::CausalConvCall* a) { \
    return elman::CausalConvEngine<SPEC>(*a).workspace_bytes();         \
  }
