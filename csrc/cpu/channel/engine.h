// The CPU engine of the channel cells: OpenMP over (batch, tile of channels), channels in SIMD
// lanes, all of time in one task.
//
// A tile is as wide as the threads' even load allows, so that every step reads whole rows. Forward
// writes the output and, every `segment` steps, the state. Backward runs each segment forward once
// more into a workspace that stays in the cache, with all that the derivative needs, then back.
//
// A cell with a NORM has one tile, of all channels: each of its steps passes over the row twice.
//
// A Spec, which Python generates, says what is run:
//   T           float or double
//   Cell        of cells/channel.h
//   SLOTS       distinct slices; SLOT[i]: the one that input i reads
//   UNIT        input that is divided by its norm over the channels, or -1
//   QUERY       slot that the state is multiplied by in the output, or -1
//   SELF_GATE   whether the output y is replaced by y silu(y)
//   RESETS      whether some steps begin with a state of zeros
#pragma once
#ifdef _OPENMP
#include <omp.h>
#endif

#include "abi/channel.h"
#include "cells/epilogue.h"
#include "cpu/channel/lanes.h"
#include "cpu/channel/unit.h"

namespace elman {

template <class Spec>
class ChannelEngine {
  using T = typename Spec::T;
  using Cell = typename Spec::Cell;
  using L = Lanes<T>;
  using V = typename L::V;
  using Unit = ChannelUnit<T>;

  static constexpr int64_t LINE = 64 / sizeof(T);      // a cache line
  static constexpr int64_t WIDEST = 2048 / sizeof(T);  // channels of a tile
  static constexpr int64_t SMALL = 1 << 14;            // elements that one thread does at once
  static constexpr bool HAS_UNIT = Spec::UNIT >= 0, HAS_QUERY = Spec::QUERY >= 0;
  static constexpr bool HAS_NORM = Cell::NORM != NO_NORM;

  const ChannelArgs& a;
  int64_t threads, tile, tiles, segments;

  static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

  // ---- where things lie ----

  HD static T* at(const ChannelSequence& s, int64_t b, int64_t t) {
    return static_cast<T*>(s.data) + b * s.batch + t * s.time;
  }
  HD static T* row(void* tensor, int64_t b, int64_t channels) {
    return static_cast<T*>(tensor) + b * channels;
  }
  HD T* checkpoint(int64_t b, int64_t segment) const {
    return row(a.checkpoints, b * segments + segment, a.channels);
  }
  HD int64_t end_of(int64_t begin) const {
    return begin + tile < a.channels ? begin + tile : a.channels;
  }

  // The workspace: norms [B, T], gradients of the unit input [B, T, C], sums over time of the
  // parameters' gradients [B, P, C], and a part for each thread.
  int64_t norms_size() const { return HAS_UNIT ? up(a.batch * a.steps, LINE) : 0; }
  int64_t unit_size() const { return HAS_UNIT ? up(a.batch * a.steps * a.channels, LINE) : 0; }
  int64_t sums_size() const { return up(a.batch * Cell::PARAMETERS * a.channels, LINE); }
  int64_t states_size() const { return (1 + a.segment * (1 + Cell::MEMO)) * up(tile, L::W); }
  int64_t own_size() const { return states_size() + (HAS_NORM ? up(2 * a.segment, L::W) : 0); }
  int64_t shared_size() const { return norms_size() + unit_size() + sums_size(); }
  T* norms() const { return static_cast<T*>(a.workspace); }
  T* unit_gradients() const { return norms() + norms_size(); }
  T* sums() const { return unit_gradients() + unit_size(); }
  T* own(int64_t thread) const { return norms() + shared_size() + thread * own_size(); }

  // The rows of one (batch, step).
  struct Rows {
    const T *x[MAX_SLOTS], *dy;
    T *dx[MAX_SLOTS], *y, *unit_gradient;
    T scale;     // of the unit input
    bool reset;  // whether the state before the step is zero
  };
  HD Rows rows(int64_t b, int64_t t, bool backward) const {
    Rows r;
    for (int s = 0; s < Spec::SLOTS; s++) {
      r.x[s] = at(a.x[s], b, t);
      if (backward) r.dx[s] = at(a.dx[s], b, t);
    }
    if (HAS_UNIT) r.scale = unit_scale(norms()[b * a.steps + t]);
    if constexpr (Spec::RESETS) r.reset = a.resets[b * a.steps + t];
    if (HAS_UNIT && backward) r.unit_gradient = row(unit_gradients(), b * a.steps + t, a.channels);
    if (backward)
      r.dy = a.dy.data ? at(a.dy, b, t) : nullptr;
    else
      r.y = at(a.y, b, t);
    return r;
  }

  // ---- one vector of channels ----

  // The state that a step sees, or the gradient that it hands on: nothing crosses a reset.
  HD static V across(const Rows& r, V h) {
    if constexpr (Spec::RESETS)
      if (r.reset) return V{};
    return h;
  }

  // Reads the n channels from i on; returns the query.
  HD V read(const Rows& r, int64_t i, int n, Channel<V>& c) const {
    V slot[MAX_SLOTS];
    for (int s = 0; s < Spec::SLOTS; s++) slot[s] = L::load(r.x[s] + i, n);
    for (int k = 0; k < Cell::INPUTS; k++) c.x[k] = slot[Spec::SLOT[k]];
    if constexpr (HAS_UNIT) c.x[Spec::UNIT] *= r.scale;
    for (int k = 0; k < Cell::PARAMETERS; k++)
      c.p[k] = L::load(static_cast<const T*>(a.p[k]) + i, n);
    if constexpr (HAS_QUERY) return slot[Spec::QUERY];
    return V{};
  }
  // Writes the gradients of the slices: the sum over those that read one.
  HD static void write(const Rows& r, int64_t i, int n, const ChannelGrad<V>& d, V dquery) {
    V slot[MAX_SLOTS];
    bool written[MAX_SLOTS] = {};
    for (int k = 0; k < Cell::INPUTS; k++) {
      if (k == Spec::UNIT) {
        L::store(r.unit_gradient + i, d.x[k], n);
        continue;
      }
      const int s = Spec::SLOT[k];
      slot[s] = written[s] ? slot[s] + d.x[k] : d.x[k];
      written[s] = true;
    }
    if constexpr (HAS_QUERY) {
      slot[Spec::QUERY] = written[Spec::QUERY] ? slot[Spec::QUERY] + dquery : dquery;
      written[Spec::QUERY] = true;
    }
    for (int s = 0; s < Spec::SLOTS; s++)
      if (written[s]) L::store(r.dx[s] + i, slot[s], n);
  }

  // ---- norms of a row ----

  HD RowNorm<T> norm_of(V squares) const {
    return row_norm<Cell::NORM>(L::sum(squares), T(a.channels));
  }
  // From what the step has left in h to the new state, and the output.
  HD void finish_row(const Rows& r, T* h, V squares) const {
    const T factor = norm_of(squares).factor;
    for (int64_t i = 0; i < a.channels; i += L::W) {
      const int n = L::count(i, a.channels);
      const V h_new = L::load(h + i, n) * factor;
      V query = {};
      if constexpr (HAS_QUERY) query = L::load(r.x[Spec::QUERY] + i, n);
      L::store(h + i, h_new, n);
      L::store(r.y + i, channel_output<HAS_QUERY, Spec::SELF_GATE>(h_new, query), n);
    }
  }
  // Adds the output's part to dh, the gradient of the new states h; returns their product.
  HD T gather(const Rows& r, const V* h, T* dh) const {
    V along = {};
    for (int64_t i = 0; i < a.channels; i += L::W, h++) {
      const int n = L::count(i, a.channels);
      V query = {}, dquery = {};
      if constexpr (HAS_QUERY) query = L::load(r.x[Spec::QUERY] + i, n);
      const V dy = r.dy ? L::load(r.dy + i, n) : V{};
      const V e = L::load(dh + i, n) +
                  channel_output_bwd<HAS_QUERY, Spec::SELF_GATE>(*h, query, dy, dquery);
      L::store(dh + i, e, n);
      along += L::first(e * *h, n);
    }
    return L::sum(along);
  }

  // ---- one tile of channels through all of time ----

  void forward_tile(int64_t b, int64_t begin) const {
    const int64_t end = end_of(begin), bytes = (end - begin) * sizeof(T);
    T* h = row(a.last, b, a.channels);
    std::memcpy(h + begin, row(a.first, b, a.channels) + begin, bytes);
    for (int64_t t = 0; t < a.steps; t++) {
      if (t % a.segment == 0) std::memcpy(checkpoint(b, t / a.segment) + begin, h + begin, bytes);
      const Rows r = rows(b, t, false);
      V squares = {};
      for (int64_t i = begin; i < end; i += L::W) {
        const int n = L::count(i, end);
        Channel<V> c;
        V memo[MAX_MEMO];
        const V query = read(r, i, n, c);
        c.h = across(r, L::load(h + i, n));
        const V h_new = Cell::step(c, memo);
        L::store(h + i, h_new, n);
        if constexpr (HAS_NORM)
          squares += L::first(h_new * h_new, n);
        else
          L::store(r.y + i, channel_output<HAS_QUERY, Spec::SELF_GATE>(h_new, query), n);
      }
      if constexpr (HAS_NORM) finish_row(r, h, squares);
    }
  }

  // Runs one step forward, from the states h to h + width; leaves its norm.
  void recompute(const Rows& r, int64_t begin, int64_t end, int64_t width, V* h, V* memo,
                 T* norm) const {
    V squares = {}, *h_new = h + width;
    for (int64_t i = begin; i < end; i += L::W, h++, memo += Cell::MEMO) {
      const int n = L::count(i, end);
      Channel<V> c;
      V m[MAX_MEMO];
      read(r, i, n, c);
      c.h = across(r, *h);
      h[width] = Cell::step(c, m);
      if constexpr (HAS_NORM) squares += L::first(h[width] * h[width], n);
      for (int k = 0; k < Cell::MEMO; k++) memo[k] = m[k];
    }
    if constexpr (HAS_NORM) {
      const RowNorm<T> row = norm_of(squares);
      for (int64_t j = 0; j < width; j++) h_new[j] *= row.factor;
      norm[0] = row.factor;
      norm[1] = row.share;
    }
  }
  // Runs it back: dh goes from the gradient of the new states to that of the old ones.
  void back(const Rows& r, int64_t begin, int64_t end, int64_t width, const V* h, const V* memo,
            const T* norm, T* dh, T* sum) const {
    T along = 0;
    if constexpr (HAS_NORM) along = gather(r, h + width, dh) * norm[1];
    for (int64_t i = begin; i < end; i += L::W, h++, memo += Cell::MEMO) {
      const int n = L::count(i, end);
      Channel<V> c;
      ChannelGrad<V> d;
      V m[MAX_MEMO], dquery = {};
      const V query = read(r, i, n, c);
      c.h = across(r, *h);
      for (int k = 0; k < Cell::MEMO; k++) m[k] = memo[k];
      const V h_new = h[width], dy = r.dy ? L::load(r.dy + i, n) : V{};
      const V dread = channel_output_bwd<HAS_QUERY, Spec::SELF_GATE>(h_new, query, dy, dquery);
      V e = L::load(dh + i, n);
      if constexpr (HAS_NORM)
        e = e * norm[0] - h_new * along;
      else
        e += dread;
      Cell::step_bwd(c, m, h_new, e, d);
      L::store(dh + i, across(r, d.h), n);
      write(r, i, n, d, dquery);
      for (int k = 0; k < Cell::PARAMETERS; k++) {
        T* to = sum + k * a.channels + i;
        L::store(to, L::load(to, n) + d.p[k], n);
      }
    }
  }
  void backward_tile(int64_t b, int64_t begin, T* work) const {
    const int64_t end = end_of(begin), bytes = (end - begin) * sizeof(T);
    const int64_t width = up(end - begin, L::W) / L::W;
    V *h = reinterpret_cast<V*>(work), *memo = h + (a.segment + 1) * width;
    T* norm = work + states_size();
    T *dh = row(a.dfirst, b, a.channels), *sum = row(sums(), b * Cell::PARAMETERS, a.channels);
    if (a.dlast)
      std::memcpy(dh + begin, row(a.dlast, b, a.channels) + begin, bytes);
    else
      std::memset(dh + begin, 0, bytes);
    for (int k = 0; k < Cell::PARAMETERS; k++) std::memset(sum + k * a.channels + begin, 0, bytes);
    h[width - 1] = V{};  // lanes without a channel
    for (int64_t s = segments - 1; s >= 0; s--) {
      const int64_t t0 = s * a.segment;
      const int64_t steps = a.steps - t0 < a.segment ? a.steps - t0 : a.segment;
      std::memcpy(h, checkpoint(b, s) + begin, bytes);
      for (int64_t u = 0; u < steps; u++)
        recompute(rows(b, t0 + u, true), begin, end, width, h + u * width,
                  memo + u * width * Cell::MEMO, norm + 2 * u);
      for (int64_t u = steps - 1; u >= 0; u--)
        back(rows(b, t0 + u, true), begin, end, width, h + u * width, memo + u * width * Cell::MEMO,
             norm + 2 * u, dh, sum);
    }
  }

  // ---- before and after the recurrence, by all threads of a team ----

  void take_norms() const {
    const ChannelSequence& x = a.x[Spec::SLOT[Spec::UNIT]];
#pragma omp for schedule(static) collapse(2)
    for (int64_t b = 0; b < a.batch; b++)
      for (int64_t t = 0; t < a.steps; t++)
        norms()[b * a.steps + t] = Unit::norm(at(x, b, t), a.channels);
  }
  // Whether something besides the unit input reads its slice.
  static constexpr bool shared() {
    bool found = HAS_QUERY && Spec::QUERY == Spec::SLOT[HAS_UNIT ? Spec::UNIT : 0];
    for (int k = 0; k < Cell::INPUTS; k++)
      found |= k != Spec::UNIT && Spec::SLOT[k] == Spec::SLOT[HAS_UNIT ? Spec::UNIT : 0];
    return found;
  }
  void norms_bwd() const {
    const int s = Spec::SLOT[Spec::UNIT];
#pragma omp for schedule(static) collapse(2)
    for (int64_t b = 0; b < a.batch; b++)
      for (int64_t t = 0; t < a.steps; t++) {
        const int64_t at_bt = b * a.steps + t;
        Unit::template bwd<shared()>(at(a.x[s], b, t), row(unit_gradients(), at_bt, a.channels),
                                     at(a.dx[s], b, t), norms()[at_bt], a.channels);
      }
  }
  // In the order of the batch, whatever thread did which part.
  void sum_parameters() const {
    for (int k = 0; k < Cell::PARAMETERS; k++) {
      T* to = static_cast<T*>(a.dp[k]);
      std::memset(to, 0, a.channels * sizeof(T));
      for (int64_t b = 0; b < a.batch; b++) {
        const T* from = row(sums(), b * Cell::PARAMETERS + k, a.channels);
        for (int64_t i = 0; i < a.channels; i++) to[i] += from[i];
      }
    }
  }
  static int64_t thread_index() {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
  }

 public:
  explicit ChannelEngine(const ChannelArgs& args) : a(args) {
    threads = a.batch * a.steps * a.channels <= SMALL ? 1 : a.threads;
    int64_t parts = 1;
    while (!HAS_NORM && a.batch * parts % threads != 0 && a.batch * parts < 4 * threads) parts++;
    tile = up((a.channels + parts - 1) / parts, LINE);
    if (!HAS_NORM && tile > WIDEST) tile = WIDEST;
    tiles = (a.channels + tile - 1) / tile;
    segments = (a.steps + a.segment - 1) / a.segment;
  }
  int64_t workspace_bytes() const {
    return (shared_size() + threads * own_size()) * int64_t(sizeof(T));
  }
  void forward() const {
#pragma omp parallel num_threads(threads)
    {
      const cpu::FlushDenormals flushed;
      if constexpr (HAS_UNIT) take_norms();
#pragma omp for schedule(dynamic) collapse(2)
      for (int64_t b = 0; b < a.batch; b++)
        for (int64_t s = 0; s < tiles; s++) forward_tile(b, s * tile);
    }
  }
  void backward() const {
#pragma omp parallel num_threads(threads)
    {
      const cpu::FlushDenormals flushed;
      T* work = own(thread_index());
      if constexpr (HAS_UNIT) take_norms();
#pragma omp for schedule(dynamic) collapse(2)
      for (int64_t b = 0; b < a.batch; b++)
        for (int64_t s = 0; s < tiles; s++) backward_tile(b, s * tile, work);
      if constexpr (HAS_UNIT) norms_bwd();
    }
    sum_parameters();
  }
};

}  // namespace elman

// The C interface of one Spec.
#define ELMAN_CHANNEL(NAME, SPEC)                                    \
  extern "C" void NAME##_forward(const elman::ChannelArgs* a) {      \
    elman::ChannelEngine<SPEC>(*a).forward();                        \
  }                                                                  \
  extern "C" void NAME##_backward(const elman::ChannelArgs* a) {     \
    elman::ChannelEngine<SPEC>(*a).backward();                       \
  }                                                                  \
  extern "C" int64_t NAME##_workspace(const elman::ChannelArgs* a) { \
    return elman::ChannelEngine<SPEC>(*a).workspace_bytes();         \
  }
