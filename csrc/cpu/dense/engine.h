// The CPU engine of the dense cells: a loop over time inside one team of threads.
//
// The threads share a step in one of two ways. By columns, each owns channels of the state: it
// keeps its rows of R in its own cache, and meets the others after every product, since the next
// one reads all channels. By rows, each owns rows of the batch, reads all of R and meets nobody.
//
// Forward writes every state and, where gradients are asked for, the memo of every step. Backward
// writes the gradient of every pre-activation, which is that of the first input; the gradients of
// the matrices are large products of it, left to the caller.
//
// A Spec, which Python generates, says what is run: T, float or double, Cell, of cells/dense.h, and
// RESETS. At a reset, products and parts of the old state are not read: what a document has left is
// not multiplied by zero, which would let a NaN through.
#pragma once
#include <cmath>

#include "abi/dense.h"
#include "cpu/common/product.h"
#include "cpu/common/team.h"

namespace elman {

template <class Spec>
class DenseEngine {
  using T = typename Spec::T;
  using Cell = typename Spec::Cell;
  using L = Lanes<T>;
  using V = typename L::V;
  using Product = cpu::PackedProduct<T>;
  static constexpr int W = L::W, BLOCKS = Cell::BLOCKS;
  static constexpr int64_t LINE = 64 / sizeof(T);
  static constexpr bool RESETS = Spec::RESETS;

  const DenseArgs& a;
  int64_t threads, wide;  // wide: channels, up to a whole vector
  bool by_rows;

  // What one thread owns.
  struct Share {
    int64_t me, of, rows0, rows1, begin, end, inner0, inner1;
  };

  static int64_t up(int64_t n, int64_t to) { return cpu::up(n, to); }
  int64_t rows_of_r() const { return BLOCKS * a.channels; }
  int64_t k_of_r() const { return a.rank ? a.rank : a.channels; }

  // ---- where things lie ----

  HD static T* at(const DenseSequence& s, int64_t b, int64_t t) {
    return static_cast<T*>(s.data) + b * s.batch + t * s.time;
  }
  HD T* part(void* tensor, int part, int64_t b) const {  // of the state
    return static_cast<T*>(tensor) + (part * a.batch + b) * a.pitch;
  }
  HD T* memo(int64_t b, int64_t t) const {
    return static_cast<T*>(a.memo) + (b * a.steps + t) * Cell::MEMO * a.pitch;
  }
  HD T& norm(int64_t b, int64_t t) const { return static_cast<T*>(a.norms)[b * a.steps + t]; }
  // The state before a step: rows at a distance of `stride`.
  const T* before(int64_t t, int64_t& stride) const {
    stride = t ? a.y.batch : a.pitch;
    return t ? at(a.y, 0, t - 1) : part(a.first, 0, 0);
  }

  // Whether the state of a row is zero before a step.
  HD bool reset(int64_t b, int64_t t) const {
    if constexpr (RESETS) return a.resets[b * a.steps + t];
    return false;
  }

  // The workspace: packed matrices, rows that threads exchange, sums of squares.
  int64_t matrix_size() const { return up(k_of_r() * BLOCKS * wide, LINE); }  // forward
  int64_t back_size() const { return up(rows_of_r() * up(k_of_r(), W), LINE); }
  int64_t inner_size() const {
    return a.rank ? up(a.channels * up(a.rank, W), LINE) + up(a.rank * wide, LINE) : 0;
  }
  int64_t extra_size() const { return Cell::EXTRA ? up(a.channels * wide, LINE) : 0; }
  int64_t rows_size() const { return up(a.batch * wide, LINE); }
  int64_t low_size() const { return a.rank ? up(a.batch * up(a.rank, W), LINE) : 0; }
  int64_t sums_size() const { return Cell::NORM ? up(a.threads * up(a.batch, LINE), LINE) : 0; }
  T* packed() const { return static_cast<T*>(a.workspace); }
  T* packed_inner() const {
    const int64_t r = matrix_size(), b = back_size();
    return packed() + (r > b ? r : b);
  }
  T* packed_extra() const { return packed_inner() + inner_size(); }
  T* rows() const { return packed_extra() + extra_size(); }  // [B, wide]
  T* low() const { return rows() + rows_size(); }            // [B, rank], up to a whole vector
  T* sums() const { return low() + low_size(); }             // [threads, B]
  int64_t low_stride() const { return up(a.rank, W); }
  T& sum(int64_t thread, int64_t b) const { return sums()[thread * up(a.batch, LINE) + b]; }

  // f(row, first channel, how many, row in the tile, vector of its row) for a tile's vectors.
  template <class F>
  HD void each(int64_t r, int n_rows, int64_t c, int n, F f) const {
    for (int i = 0; i < n_rows; i++)
      for (int j = 0; j < n; j++) {
        const int64_t ch = c + j * W;
        if (ch < a.channels) f(r + i, ch, L::count(ch, a.channels), (i * n + j) * W);
      }
  }
  // f(row, first channel, how many) for all that a thread owns.
  template <class F>
  HD void own(const Share& s, F f) const {
    for (int64_t b = s.rows0; b < s.rows1; b++)
      for (int64_t ch = s.begin; ch < s.end; ch += W) f(b, ch, L::count(ch, s.end));
  }

  // ---- forward ----

  // What a channel sees of a step but for the first input; a backward pass has no inputs.
  template <bool INPUTS = true>
  HD Dense<V> see(int64_t b, int64_t t, int64_t ch, int n, const T* h) const {
    Dense<V> x;
    for (int k = 0; k < (INPUTS ? Cell::OTHERS : 0); k++)
      x.p[k] = L::load(at(a.p[k], b, t) + ch, n);
    x.h = reset(b, t) ? V{} : L::load(h + ch, n);
    if constexpr (Cell::SCALE) x.scale = V{} + *static_cast<const T*>(a.scale);
    return x;
  }
  HD void remember(int64_t b, int64_t t, int64_t ch, int n, const V* m) const {
    if (Cell::MEMO == 0 || !a.memo) return;
    for (int k = 0; k < Cell::MEMO; k++) L::store(memo(b, t) + k * a.pitch + ch, m[k], n);
  }

  // V h of every row, where R has factors; all rows of it are there when it returns.
  const T* read(cpu::Team& team, const Share& s, const T* h, int64_t& stride) const {
    if (!a.rank) return h;
    Product::template run<1>(h, stride, packed_inner(), a.channels, s.rows0, s.rows1, s.inner0,
                             s.inner1, [&](int64_t r, int rows, int64_t c, int n, const auto& out) {
                               for (int i = 0; i < rows; i++)
                                 for (int j = 0; j < n; j++)
                                   cpu::store(low() + (r + i) * low_stride() + c + j * W,
                                              cpu::load<V>(out[0] + (i * n + j) * W));
                             });
    team.meet(s.me, s.of);
    stride = low_stride();
    return low();
  }

  void forward_step(cpu::Team& team, const Share& s, int64_t t) const {
    int64_t h_stride, stride;
    const T* h = before(t, h_stride);
    stride = h_stride;
    const T* from = read(team, s, h, stride);
    if (Cell::NORM)
      for (int64_t b = s.rows0; b < s.rows1; b++) sum(s.me, b) = 0;
    Product::template run<BLOCKS>(
        from, stride, packed(), k_of_r(), s.rows0, s.rows1, s.begin, s.end,
        [&](int64_t r, int n_rows, int64_t c, int n, const auto& out) {
          each(r, n_rows, c, n, [&](int64_t b, int64_t ch, int count, int place) {
            Dense<V> x = see(b, t, ch, count, h + b * h_stride);
            for (int k = 0; k < BLOCKS; k++)
              x.a[k] = L::load(at(a.x, b, t) + k * a.channels + ch, count) +
                       (reset(b, t) ? V{} : cpu::load<V>(out[k] + place));
            advance(s, b, t, ch, count, x);
          });
        });
    if constexpr (Cell::NORM) normalize(team, s, t);
    if constexpr (Cell::EXTRA) candidate(team, s, t, h, h_stride);
    team.meet(s.me, s.of);
  }
  // One vector of channels, with the product in x.
  HD void advance(const Share& s, int64_t b, int64_t t, int64_t ch, int n, Dense<V>& x) const {
    V m[MAX_DENSE_MEMO], c_new[MAX_STATES - 1];
    T* y = at(a.y, b, t) + ch;
    if constexpr (Cell::EXTRA) {
      // The update gate waits in the output for the candidate.
      L::store(rows() + b * wide + ch, Cell::gates(x, m), n);
      L::store(y, m[0], n);
      if (a.memo) L::store(memo(b, t) + a.pitch + ch, m[1], n);
    } else {
      for (int k = 1; k < Cell::STATES; k++)
        x.c[k - 1] = reset(b, t) ? V{} : L::load(part(a.last, k, b) + ch, n);
      const V h_new = Cell::step(x, m, c_new);
      for (int k = 1; k < Cell::STATES; k++) L::store(part(a.last, k, b) + ch, c_new[k - 1], n);
      L::store(y, h_new, n);
      remember(b, t, ch, n, m);
      if constexpr (Cell::NORM) {
        V square = {};
        square = L::load(y, n);  // lanes without a channel are 0
        sum(s.me, b) += L::sum(square * square);
      }
    }
  }
  // Divides the new states by their root mean square.
  void normalize(cpu::Team& team, const Share& s, int64_t t) const {
    team.meet(s.me, s.of);
    for (int64_t b = s.rows0; b < s.rows1; b++) {
      T total = 0;
      for (int64_t i = 0; i < (by_rows ? 1 : s.of); i++) total += sum(by_rows ? s.me : i, b);
      const T factor = T(1) / std::sqrt(total / T(a.channels) + T(DENSE_NORM_EPS));
      if (s.begin == 0) norm(b, t) = factor;
      T* y = at(a.y, b, t);
      for (int64_t ch = s.begin; ch < s.end; ch += W) {
        const int n = L::count(ch, s.end);
        L::store(y + ch, L::load(y + ch, n) * factor, n);
      }
    }
  }
  // The second product of the GRU and the new states.
  void candidate(cpu::Team& team, const Share& s, int64_t t, const T* h, int64_t h_stride) const {
    if constexpr (Cell::EXTRA) {
      team.meet(s.me, s.of);
      Product::template run<1>(
          rows(), wide, packed_extra(), a.channels, s.rows0, s.rows1, s.begin, s.end,
          [&](int64_t r, int n_rows, int64_t c, int n, const auto& out) {
            each(r, n_rows, c, n, [&](int64_t b, int64_t ch, int count, int place) {
              Dense<V> x = see(b, t, ch, count, h + b * h_stride);
              V m[MAX_DENSE_MEMO], none[MAX_STATES - 1];
              T* y = at(a.y, b, t) + ch;
              m[0] = L::load(y, count);
              x.p[0] += cpu::load<V>(out[0] + place);
              L::store(y, Cell::step(x, m, none), count);
              if (a.memo) {
                L::store(memo(b, t) + ch, m[0], count);
                L::store(memo(b, t) + 2 * a.pitch + ch, m[2], count);
              }
            });
          });
    }
  }

  // ---- backward ----

  // The gradient of the state after step t, without that of the output: dpre R and what the step
  // after it passed on. dfirst holds the latter, zero at a reset; both stand in rows() when it
  // returns.
  void gradient_of_state(cpu::Team& team, const Share& s, int64_t t) const {
    if (t + 1 == a.steps) {
      own(s, [&](int64_t b, int64_t ch, int n) {
        L::store(rows() + b * wide + ch, L::load(part(a.dfirst, 0, b) + ch, n), n);
      });
      return;
    }
    const T* from = at(a.dx, 0, t + 1);
    int64_t stride = a.dx.batch, k = rows_of_r();
    if (a.rank) {
      Product::template run<1>(from, stride, packed(), k, s.rows0, s.rows1, s.inner0, s.inner1,
                               [&](int64_t r, int rows, int64_t c, int n, const auto& out) {
                                 for (int i = 0; i < rows; i++)
                                   for (int j = 0; j < n; j++)
                                     cpu::store(low() + (r + i) * low_stride() + c + j * W,
                                                cpu::load<V>(out[0] + (i * n + j) * W));
                               });
      team.meet(s.me, s.of);
      from = low(), stride = low_stride(), k = a.rank;
    }
    Product::template run<1>(
        from, stride, a.rank ? packed_inner() : packed(), k, s.rows0, s.rows1, s.begin, s.end,
        [&](int64_t r, int n_rows, int64_t c, int n, const auto& out) {
          each(r, n_rows, c, n, [&](int64_t b, int64_t ch, int count, int place) {
            const V carried = L::load(part(a.dfirst, 0, b) + ch, count);
            const V by_product = reset(b, t + 1) ? V{} : cpu::load<V>(out[0] + place);
            L::store(rows() + b * wide + ch, carried + by_product, count);
          });
        });
  }
  void backward_step(cpu::Team& team, const Share& s, int64_t t) const {
    gradient_of_state(team, s, t);
    if (a.dy.data)
      own(s, [&](int64_t b, int64_t ch, int n) {
        T* e = rows() + b * wide + ch;
        L::store(e, L::load(e, n) + L::load(at(a.dy, b, t) + ch, n), n);
      });
    if constexpr (Cell::NORM) normalize_bwd(team, s, t);
    if constexpr (Cell::EXTRA) {
      candidate_bwd(team, s, t);
    } else {
      own(s, [&](int64_t b, int64_t ch, int n) {
        differentiate(b, t, ch, n, L::load(rows() + b * wide + ch, n), V{});
      });
    }
    team.meet(s.me, s.of);
  }
  // One vector of channels; e is the gradient of its new state.
  HD void differentiate(int64_t b, int64_t t, int64_t ch, int n, V e, V drh) const {
    int64_t stride;
    const T* h = before(t, stride) + b * stride;
    Dense<V> x = see<false>(b, t, ch, n, h);
    DenseGrad<V> d;
    V m[MAX_DENSE_MEMO], ec[MAX_STATES - 1] = {drh};
    for (int k = 0; k < Cell::MEMO; k++) m[k] = L::load(memo(b, t) + k * a.pitch + ch, n);
    for (int k = 0; k < Cell::KEPT; k++) {
      constexpr int C = Cell::MEMO - Cell::KEPT;  // where the memo has the parts beside h
      const T* c = t ? memo(b, t - 1) + (C + k) * a.pitch : part(a.first, 1 + k, b);
      x.c[k] = reset(b, t) ? V{} : L::load(c + ch, n);
    }
    for (int k = 1; k < Cell::STATES; k++) ec[k - 1] = L::load(part(a.dfirst, k, b) + ch, n);
    Cell::step_bwd(x, m, L::load(at(a.y, b, t) + ch, n), e, ec, d);
    for (int k = 0; k < BLOCKS; k++) L::store(at(a.dx, b, t) + k * a.channels + ch, d.a[k], n);
    for (int k = 0; k < (Cell::EXTRA ? 0 : Cell::OTHERS); k++)
      L::store(at(a.dp[k], b, t) + ch, d.p[k], n);
    L::store(part(a.dfirst, 0, b) + ch, reset(b, t) ? V{} : d.h, n);
    for (int k = 1; k < Cell::STATES; k++)
      L::store(part(a.dfirst, k, b) + ch, reset(b, t) ? V{} : d.c[k - 1], n);
    if constexpr (Cell::SCALE) {
      T* to = static_cast<T*>(a.dscale) + b * a.channels + ch;
      L::store(to, L::load(to, n) + d.scale, n);
    }
  }
  // From the gradient of y = g / rms(g) to that of g, in rows(): (e - y mean(e y)) / rms(g).
  void normalize_bwd(cpu::Team& team, const Share& s, int64_t t) const {
    for (int64_t b = s.rows0; b < s.rows1; b++) {
      T total = 0;
      for (int64_t ch = s.begin; ch < s.end; ch += W) {
        const int n = L::count(ch, s.end);
        total += L::sum(L::load(rows() + b * wide + ch, n) * L::load(at(a.y, b, t) + ch, n));
      }
      sum(s.me, b) = total;
    }
    team.meet(s.me, s.of);
    for (int64_t b = s.rows0; b < s.rows1; b++) {
      T total = 0;
      for (int64_t i = 0; i < (by_rows ? 1 : s.of); i++) total += sum(by_rows ? s.me : i, b);
      const T mean = total / T(a.channels), factor = norm(b, t);
      for (int64_t ch = s.begin; ch < s.end; ch += W) {
        const int n = L::count(ch, s.end);
        T* e = rows() + b * wide + ch;
        L::store(e, (L::load(e, n) - L::load(at(a.y, b, t) + ch, n) * mean) * factor, n);
      }
    }
  }
  void candidate_bwd(cpu::Team& team, const Share& s, int64_t t) const {
    if constexpr (Cell::EXTRA) {
      own(s, [&](int64_t b, int64_t ch, int n) {
        V m[MAX_DENSE_MEMO];
        for (int k = 0; k < Cell::MEMO; k++) m[k] = L::load(memo(b, t) + k * a.pitch + ch, n);
        const V e = L::load(rows() + b * wide + ch, n);
        L::store(at(a.dp[0], b, t) + ch, Cell::candidate_bwd(m, e), n);
      });
      team.meet(s.me, s.of);
      Product::template run<1>(
          at(a.dp[0], 0, t), a.dp[0].batch, packed_extra(), a.channels, s.rows0, s.rows1, s.begin,
          s.end, [&](int64_t r, int n_rows, int64_t c, int n, const auto& out) {
            each(r, n_rows, c, n, [&](int64_t b, int64_t ch, int count, int place) {
              differentiate(b, t, ch, count, L::load(rows() + b * wide + ch, count),
                            cpu::load<V>(out[0] + place));
            });
          });
    }
  }

  // Fills a part of a state with that of another one, or with zeros where there is none.
  void copy_part(int k, void* to, void* from) const {
    const int64_t bytes = a.channels * sizeof(T);
    for (int64_t b = 0; b < a.batch; b++)
      if (from)
        std::memcpy(part(to, k, b), part(from, k, b), bytes);
      else
        std::memset(part(to, k, b), 0, bytes);
  }

  // ---- the team ----

  Share share(int64_t me, int64_t of) const {
    const auto cut = [&](int64_t n, int64_t unit, int64_t i) { return cpu::cut(n, unit, i, of); };
    if (by_rows)
      return {me, 1, cut(a.batch, 1, me), cut(a.batch, 1, me + 1), 0, a.channels, 0, a.rank};
    return {me,
            of,
            0,
            a.batch,
            cut(a.channels, W, me),
            cut(a.channels, W, me + 1),
            cut(a.rank, W, me),
            cut(a.rank, W, me + 1)};
  }
  // Each thread packs the columns that it owns; by rows, the first packs all for everybody.
  template <class Pack, class Run>
  void with_team(Pack pack, Run run) const {
    cpu::with_team(threads, [&](cpu::Team& team, int64_t me, int64_t of) {
      const Share s = share(me, of);
      if (!by_rows || me == 0) pack(s);
      team.meet(me, of);
      run(team, s);
    });
  }

 public:
  explicit DenseEngine(const DenseArgs& args) : a(args) {
    wide = up(a.channels, W);
    const cpu::Sharing sharing = cpu::Sharing::of(a.threads, a.batch, Product::ROWS,
                                                  rows_of_r() * k_of_r(), sizeof(T), wide / W);
    threads = sharing.threads, by_rows = sharing.by_rows;
  }
  int64_t workspace_bytes() const {
    const int64_t r = matrix_size(), b = back_size();
    return ((r > b ? r : b) + inner_size() + extra_size() + rows_size() + low_size() +
            sums_size()) *
           int64_t(sizeof(T));
  }
  void forward() const {
    for (int k = 1; k < Cell::STATES; k++) copy_part(k, a.last, a.first);
    with_team(
        [&](const Share& s) {
          Product::template pack<true>(static_cast<const T*>(a.matrix), packed(), k_of_r(),
                                       a.channels, BLOCKS, s.begin, s.end);
          if (a.rank)
            Product::template pack<true>(static_cast<const T*>(a.inner), packed_inner(), a.channels,
                                         a.rank, 1, s.inner0, s.inner1);
          if (Cell::EXTRA)
            Product::template pack<true>(static_cast<const T*>(a.extra), packed_extra(), a.channels,
                                         a.channels, 1, s.begin, s.end);
        },
        [&](cpu::Team& team, const Share& s) {
          for (int64_t t = 0; t < a.steps; t++) forward_step(team, s, t);
        });
    for (int64_t b = 0; b < a.batch; b++)
      std::memcpy(part(a.last, 0, b), at(a.y, b, a.steps - 1), a.channels * sizeof(T));
  }
  void backward() const {
    for (int k = 0; k < Cell::STATES; k++) copy_part(k, a.dfirst, a.dlast);
    if (Cell::SCALE) std::memset(a.dscale, 0, a.batch * a.channels * sizeof(T));
    with_team(
        [&](const Share& s) {
          if (a.rank) {
            Product::template pack<false>(static_cast<const T*>(a.matrix), packed(), rows_of_r(),
                                          a.rank, 1, s.inner0, s.inner1);
            Product::template pack<false>(static_cast<const T*>(a.inner), packed_inner(), a.rank,
                                          a.channels, 1, s.begin, s.end);
          } else {
            Product::template pack<false>(static_cast<const T*>(a.matrix), packed(), rows_of_r(),
                                          a.channels, 1, s.begin, s.end);
          }
          if (Cell::EXTRA)
            Product::template pack<false>(static_cast<const T*>(a.extra), packed_extra(),
                                          a.channels, a.channels, 1, s.begin, s.end);
        },
        [&](cpu::Team& team, const Share& s) {
          for (int64_t t = a.steps - 1; t >= 0; t--) backward_step(team, s, t);
          gradient_of_state(team, s, -1);
          own(s, [&](int64_t b, int64_t ch, int n) {
            L::store(part(a.dfirst, 0, b) + ch, L::load(rows() + b * wide + ch, n), n);
          });
        });
  }
};

}  // namespace elman

// The C interface of one Spec.
#define ELMAN_DENSE(NAME, SPEC)                                    \
  extern "C" void NAME##_forward(const elman::DenseArgs* a) {      \
    elman::DenseEngine<SPEC>(*a).forward();                        \
  }                                                                \
  extern "C" void NAME##_backward(const elman::DenseArgs* a) {     \
    elman::DenseEngine<SPEC>(*a).backward();                       \
  }                                                                \
  extern "C" int64_t NAME##_workspace(const elman::DenseArgs* a) { \
    return elman::DenseEngine<SPEC>(*a).workspace_bytes();         \
  }
