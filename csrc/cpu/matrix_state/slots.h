// The CPU engine of E63m (matrix-state specification 4), whose slots all read one another:
//
//   r = tanh(S k), v = tanh(input + mix r), S' = a > S + (1 - a) > v k^T, y = S' q
//
// Threads have sequences of the batch, channels stand in SIMD lanes. A step of the forward pass
// goes over the state once: it leaves y and what the next step reads. The values of all steps are
// kept, so that a segment's states follow again from its checkpoint without any product. The
// gradient of `mix` is a large product over all of time, left to the caller.
//
// With RESETS a step may start from zeros; checkpoints and the states of a segment are those before
// that.
#pragma once
#ifdef _OPENMP
#include <omp.h>
#endif
#include <cstring>

#include "abi/slots.h"
#include "cells/math.h"
#include "cpu/channel/lanes.h"
#include "cpu/common/rates.h"

namespace elman {

template <class T, bool RESETS>
class SlotsEngine {
  using L = Lanes<T>;
  using V = typename L::V;
  static constexpr int64_t LINE = 64 / sizeof(T);

  const SlotsArgs& a;
  int64_t segments, threads;

  static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
  int64_t size() const { return a.slots * a.channels; }  // of a state
  // Of a thread: the states of a segment and the one behind it; two rows of slots; zeros.
  int64_t own_size() const {
    return up((a.segment + 1) * size(), LINE) + 2 * up(a.slots, LINE) +
           RESETS * up(a.channels, LINE);
  }
  static T* row(void* tensor, int64_t index, int64_t width) {
    return static_cast<T*>(tensor) + index * width;
  }
  T* own() const {
#ifdef _OPENMP
    return row(a.workspace, omp_get_thread_num(), own_size());
#else
    return static_cast<T*>(a.workspace);
#endif
  }

  // Whether a step starts from zeros.
  bool starts(int64_t bt) const {
    if constexpr (RESETS) return a.resets[bt];
    return false;
  }
  static void clear(T* to, int64_t count) { std::memset(to, 0, count * sizeof(T)); }

  // f(first, how many) for the vectors of a row.
  template <class F>
  HD static void each(int64_t width, F f) {
    for (int64_t i = 0; i < width; i += L::W) f(i, L::count(i, width));
  }
  HD static T dot(const T* x, const T* y, int64_t width) {
    V sum = {};
    each(width, [&](int64_t i, int n) { sum += L::load(x + i, n) * L::load(y + i, n); });
    return L::sum(sum);
  }
  HD static void add(T* to, T scale, const T* x, int64_t width) {
    each(width, [&](int64_t i, int n) {
      L::store(to + i, L::load(to + i, n) + L::load(x + i, n) * scale, n);
    });
  }
  void squash(T* to, const T* x) const {
    each(a.slots, [&](int64_t i, int n) { L::store(to + i, tanh(L::load(x + i, n)), n); });
  }

  // ---- forward ----

  // r and v of a step from `seen`, which has S k.
  void values(int64_t bt, T* seen) const {
    T *r = row(a.read, bt, a.slots), *v = row(a.value, bt, a.slots);
    const T* input = row(a.input, bt, a.slots);
    squash(r, seen);
    for (int64_t j = 0; j < a.slots; j++)
      seen[j] = input[j] + dot(row(a.mix, j, a.slots), r, a.slots);
    squash(v, seen);
  }
  // One slot through a step; returns its product with q, and leaves that with the next key.
  HD T advance(T* s, T kept, T written, const T* k, const T* q, const T* next, T& seen) const {
    V read = {}, ahead = {};
    each(a.channels, [&](int64_t i, int n) {
      const V h = L::load(s + i, n) * kept + L::load(k + i, n) * written;
      L::store(s + i, h, n);
      read += h * L::load(q + i, n);
      ahead += h * L::load(next + i, n);
    });
    seen = L::sum(ahead);
    return L::sum(read);
  }
  void forward_of(int64_t b, T* seen) const {
    T* s = row(a.last, b, size());
    std::memcpy(s, row(a.first, b, size()), size() * sizeof(T));
    for (int64_t j = 0; j < a.slots; j++)
      seen[j] = dot(s + j * a.channels, row(a.k, b * a.steps, a.channels), a.channels);
    for (int64_t t = 0; t < a.steps; t++) {
      const int64_t bt = b * a.steps + t, after = t + 1 < a.steps ? bt + 1 : bt;
      if (t % a.segment == 0)
        std::memcpy(row(a.checkpoints, b * segments + t / a.segment, size()), s,
                    size() * sizeof(T));
      if (starts(bt)) clear(s, size()), clear(seen, a.slots);
      values(bt, seen);
      const T *kept = row(a.row, bt, a.slots), *v = row(a.value, bt, a.slots);
      T* y = row(a.y, bt, a.slots);
      for (int64_t j = 0; j < a.slots; j++)
        y[j] =
            advance(s + j * a.channels, kept[j], (T(1) - kept[j]) * v[j], row(a.k, bt, a.channels),
                    row(a.q, bt, a.channels), row(a.k, after, a.channels), seen[j]);
    }
  }

  // ---- backward ----

  // A slot's state before a step as that step sees it.
  const T* slot(const T* s, int64_t j, int64_t bt, const T* zeros) const {
    return starts(bt) ? zeros : s + j * a.channels;
  }
  // The states of a segment from its checkpoint, and the one behind it.
  void recompute(int64_t b, int64_t segment, int64_t steps, T* states, const T* zeros) const {
    std::memcpy(states, row(a.checkpoints, b * segments + segment, size()), size() * sizeof(T));
    for (int64_t u = 0; u < steps; u++) {
      const int64_t bt = b * a.steps + segment * a.segment + u;
      const T *kept = row(a.row, bt, a.slots), *v = row(a.value, bt, a.slots);
      const T* k = row(a.k, bt, a.channels);
      for (int64_t j = 0; j < a.slots; j++) {
        const T *s = slot(states + u * size(), j, bt, zeros), written = (T(1) - kept[j]) * v[j];
        T* s_new = states + (u + 1) * size() + j * a.channels;
        each(a.channels, [&](int64_t i, int n) {
          L::store(s_new + i, L::load(s + i, n) * kept[j] + L::load(k + i, n) * written, n);
        });
      }
    }
  }
  // A slot's part of a step back, up to its value: the output's part joins its gradient g. Returns
  // g k, and leaves g s.
  HD T gather(T* g, const T* s, const T* s_new, T dy, T written, int64_t bt, T& along) const {
    const T *k = row(a.k, bt, a.channels), *q = row(a.q, bt, a.channels);
    T *dk = row(a.dk, bt, a.channels), *dq = row(a.dq, bt, a.channels);
    V with_key = {}, with_state = {};
    each(a.channels, [&](int64_t i, int n) {
      const V e = L::load(g + i, n) + L::load(q + i, n) * dy;
      L::store(g + i, e, n);
      L::store(dq + i, L::load(dq + i, n) + L::load(s_new + i, n) * dy, n);
      L::store(dk + i, L::load(dk + i, n) + e * written, n);
      with_key += e * L::load(k + i, n);
      with_state += e * L::load(s + i, n);
    });
    along = L::sum(with_state);
    return L::sum(with_key);
  }
  // The rest: from g of the new state to that of the old one, through what was read of it.
  HD void pass_on(T* g, const T* s, T kept, T dseen, int64_t bt) const {
    const T* k = row(a.k, bt, a.channels);
    T* dk = row(a.dk, bt, a.channels);
    each(a.channels, [&](int64_t i, int n) {
      L::store(dk + i, L::load(dk + i, n) + L::load(s + i, n) * dseen, n);
      L::store(g + i, L::load(g + i, n) * kept + L::load(k + i, n) * dseen, n);
    });
  }
  void back(int64_t bt, const T* s, T* g, T* dread, const T* zeros) const {
    const T *kept = row(a.row, bt, a.slots), *v = row(a.value, bt, a.slots);
    const T* r = row(a.read, bt, a.slots);
    T *dinput = row(a.dinput, bt, a.slots), *drow = row(a.drow, bt, a.slots);
    clear(row(a.dk, bt, a.channels), a.channels);
    clear(row(a.dq, bt, a.channels), a.channels);
    clear(dread, a.slots);
    for (int64_t j = 0; j < a.slots; j++) {
      const int64_t at = j * a.channels;
      T along;
      const T dy = a.dy ? row(a.dy, bt, a.slots)[j] : T(0), fresh = T(1) - kept[j];
      const T with_key =
          gather(g + at, slot(s, j, bt, zeros), s + size() + at, dy, fresh * v[j], bt, along);
      drow[j] = along - v[j] * with_key;
      dinput[j] = with_key * fresh * (T(1) - v[j] * v[j]);
      add(dread, dinput[j], row(a.mix, j, a.slots), a.slots);
    }
    for (int64_t j = 0; j < a.slots; j++)
      pass_on(g + j * a.channels, slot(s, j, bt, zeros), kept[j], dread[j] * (T(1) - r[j] * r[j]),
              bt);
    if (starts(bt)) clear(g, size());
  }
  void backward_of(int64_t b, T* work) const {
    T *g = row(a.dfirst, b, size()), *dread = work + up((a.segment + 1) * size(), LINE);
    T* zeros = dread + 2 * up(a.slots, LINE);
    if constexpr (RESETS) clear(zeros, a.channels);
    if (a.dlast)
      std::memcpy(g, row(a.dlast, b, size()), size() * sizeof(T));
    else
      clear(g, size());
    for (int64_t s = segments - 1; s >= 0; s--) {
      const int64_t t0 = s * a.segment;
      const int64_t steps = a.steps - t0 < a.segment ? a.steps - t0 : a.segment;
      recompute(b, s, steps, work, zeros);
      for (int64_t u = steps - 1; u >= 0; u--)
        back(b * a.steps + t0 + u, work + u * size(), g, dread, zeros);
    }
  }

 public:
  explicit SlotsEngine(const SlotsArgs& args) : a(args) {
    segments = (a.steps + a.segment - 1) / a.segment;
    threads = a.batch < a.threads ? a.batch : a.threads;
  }
  int64_t workspace_bytes() const { return threads * own_size() * int64_t(sizeof(T)); }
  void forward() const {
#pragma omp parallel num_threads(threads)
    {
      const cpu::FlushDenormals flushed;
      T* seen = own() + up((a.segment + 1) * size(), LINE);
#pragma omp for schedule(dynamic)
      for (int64_t b = 0; b < a.batch; b++) forward_of(b, seen);
    }
  }
  void backward() const {
#pragma omp parallel num_threads(threads)
    {
      const cpu::FlushDenormals flushed;
      T* work = own();
#pragma omp for schedule(dynamic)
      for (int64_t b = 0; b < a.batch; b++) backward_of(b, work);
    }
  }
};

}  // namespace elman

// The C interface for one dtype, with or without resets.
#define ELMAN_SLOTS(NAME, T, RESETS)                               \
  extern "C" void NAME##_forward(const elman::SlotsArgs* a) {      \
    elman::SlotsEngine<T, RESETS>(*a).forward();                   \
  }                                                                \
  extern "C" void NAME##_backward(const elman::SlotsArgs* a) {     \
    elman::SlotsEngine<T, RESETS>(*a).backward();                  \
  }                                                                \
  extern "C" int64_t NAME##_workspace(const elman::SlotsArgs* a) { \
    return elman::SlotsEngine<T, RESETS>(*a).workspace_bytes();    \
  }
