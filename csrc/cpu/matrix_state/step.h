// One step of M blocks of rows, forward and back: all that touches the state itself.
#pragma once
#include "cells/epilogue.h"
#include "cpu/matrix_state/layout.h"

namespace elman::cpu {

template <class Spec, int M>
class RowTile : Layout<Spec> {
  using L = Layout<Spec>;
  using T = typename L::T;
  using V = typename L::V;
  using Cell = typename L::Cell;
  using Head = HeadScratch<Spec>;
  static constexpr int N = L::N, NP = L::NP, W = L::W, HEADS = L::HEADS;

  const Scratch<Spec>& s;
  const int block;  // the first of its blocks

  // The head that a block belongs to.
  HD static constexpr int of(int m) { return HEADS > 1 ? m : 0; }
  HD const Head& head(int m) const { return s.head[of(m)]; }

 public:
  RowTile(const Scratch<Spec>& s, int block) : s(s), block(block) {}

  HD Row<V> row(int64_t t, int m, V r, V e) const {
    Row<V> x;
    x.v = s.v[t * M + m];
    for (int i = 0; i < Cell::GATES; i++) x.g[i] = s.g[i][t * M + m];
    for (int i = 0; i < Cell::PARAMS; i++) x.p[i] = s.p[i][block + m];
    x.decay = V{} + (L::HEAD_DECAY ? head(m).decay[t] : T(1));
    x.write = V{} + (L::HEAD_WRITE ? head(m).write[t] : T(1));
    x.r = r, x.e = e;
    return x;
  }

  // Whether a step starts a block's head from zeros.
  HD bool starts(int64_t t, int m) const {
    if constexpr (Spec::RESETS) return head(m).resets[t];
    return false;
  }
  HD bool starts(int64_t t) const {
    bool any = false;
    for (int m = 0; m < M; m++) any = any || starts(t, m);
    return any;
  }
  // The state S before a step as that step sees it: zeros where it starts.
  HD const V* seen(int64_t t, const V* S) const {
    if (!starts(t)) return S;
    for (int j = 0; j < N; j++)
      for (int m = 0; m < M; m++) s.cut[j * M + m] = starts(t, m) ? V{} : S[j * M + m];
    return s.cut;
  }
  // Takes the reads and energies of blocks that start from what the step sees.
  HD void look_again(int64_t t, const V* S, V (&r)[M], V (&e)[M]) const {
    V r_new[M], e_new[M];
    look(t, S, r_new, e_new);
    for (int m = 0; m < M; m++)
      if (starts(t, m)) r[m] = r_new[m], e[m] = e_new[m];
  }

  // Reads and energies of the state before a step.
  HD void look(int64_t t, const V* S, V (&r)[M], V (&e)[M]) const {
    for (int m = 0; m < M; m++) r[m] = e[m] = V{};
    for (int j = 0; j < N; j++)
      for (int m = 0; m < M; m++) {
        const V x = S[j * M + m];
        if constexpr (Cell::READ) r[m] += x * head(m).key[t * NP + j];
        if constexpr (Cell::ENERGY) e[m] += x * x;
      }
    for (int m = 0; m < M; m++) e[m] *= T(1) / N;
  }

  // From the state S_old before step t to the one after it, which may be the same memory. r and e
  // are those of S_old, then those of the new state with the next key. RECOMPUTE keeps what `back`
  // needs.
  template <bool Y, bool RECOMPUTE>
  HD void step(int64_t t, const V* S_old, V* S_new, V (&r)[M], V (&e)[M]) const {
    const V* S = seen(t, S_old);
    if (S != S_old) look_again(t, S, r, e);
    V c[M], w[M], y[M][2] = {}, r_new[M][2] = {}, e_new[M][2] = {};
    for (int m = 0; m < M; m++) {
      Cell::row(row(t, m, r[m], e[m]), c[m], w[m]);
      if constexpr (RECOMPUTE) {
        s.c[t * M + m] = c[m], s.w[t * M + m] = w[m];
        if constexpr (Cell::READ) s.r[t * M + m] = r[m];
        if constexpr (Cell::ENERGY) s.e[t * M + m] = e[m];
      }
    }
    Columns k(&Head::k, s, t), q(&Head::q, s, t), z(&Head::z, s, t), key(&Head::key, s, t + 1);
    // Two sums of each kind: one addition need not wait for the last.
    auto column = [&](int j, int half) __attribute__((always_inline)) {
      for (int m = 0; m < M; m++) {
        V x = S[j * M + m];
        if constexpr (Cell::HOOK)
          x = Cell::element(x, c[m], w[m], V{} + k(m, j));
        else if constexpr (L::COLUMN)
          x = (L::SCALES ? c[m] * z(m, j) : V{} + z(m, j)) * x + w[m] * k(m, j);
        else
          x = (L::SCALES ? c[m] * x : x) + w[m] * k(m, j);
        if constexpr (Spec::TANH) x = tanh(x);
        S_new[j * M + m] = x;
        if constexpr (Y) y[m][half] += x * q(m, j);
        if constexpr (Cell::READ) r_new[m][half] += x * key(m, j);
        if constexpr (Cell::ENERGY) e_new[m][half] += x * x;
      }
    };
#pragma GCC unroll 2
    for (int j = 0; j + 1 < N; j += 2) column(j, 0), column(j + 1, 1);
    if constexpr (N % 2) column(N - 1, 0);
    for (int m = 0; m < M; m++) {
      if constexpr (Y) s.y[t * M + m] = y[m][0] + y[m][1];
      r[m] = r_new[m][0] + r_new[m][1];
      e[m] = (e_new[m][0] + e_new[m][1]) * (T(1) / N);
    }
  }

  // Back through step t: dS is the gradient of the state S_new after it, then of S before it.
  // Adds to the columns' gradients of this step; sets those of its rows; adds to the parameters'.
  HD void back(int64_t t, const V* S_old, const V* S_new, V* dS) const {
    const V* S = seen(t, S_old);
    V dc[M] = {}, dw[M] = {}, c[M], w[M], dy[M];
    for (int m = 0; m < M; m++)
      c[m] = s.c[t * M + m], w[m] = s.w[t * M + m], dy[m] = s.dy[t * M + m];
    in_groups([&](int first, auto count) __attribute__((always_inline)) {
      through_phi<decltype(count)::value>(t, first, S, S_new, dS, c, w, dy, dc, dw);
    });
    V dr[M], de[M];
    for (int m = 0; m < M; m++) rows_back(t, m, c[m], w[m], dc[m], dw[m], dr[m], de[m]);
    in_groups([&](int first, auto count) __attribute__((always_inline)) {
      to_old_state<decltype(count)::value>(t, first, S, dS, c, w, dr, de);
    });
    if (S == S_old) return;
    for (int j = 0; j < N; j++)
      for (int m = 0; m < M; m++)
        if (starts(t, m)) dS[j * M + m] = V{};
  }

 private:
  // f(first column, number of columns) for vectors of columns.
  template <class F>
  HD static void in_groups(F f) {
    for (int first = 0; first + W <= N; first += W) f(first, std::integral_constant<int, W>{});
    if constexpr (N % W) f(N - N % W, std::integral_constant<int, N % W>{});
  }
  // One kind of columns of every head, from step t on.
  struct Columns {
    T* at[HEADS];
    HD Columns(T* Head::* kind, const Scratch<Spec>& s, int64_t t, int first = 0) {
      for (int h = 0; h < HEADS; h++) {
        T* all = s.head[h].*kind;
        at[h] = all ? all + t * NP + first : nullptr;
      }
    }
    HD T operator()(int m, int j) const { return at[of(m)][j]; }
  };
  // Adds the sums over lanes of leaf(j).of[kind * HEADS + head] to kinds of columns.
  template <int COUNT, int KINDS, class Leaf>
  HD static void add_sums(const Columns (&to)[KINDS], Leaf leaf) {
    Sums<V, KINDS * HEADS> sums = lane_sums<V, KINDS * HEADS, COUNT>(leaf);
    for (int i = 0; i < KINDS * HEADS; i++) {
      T* at = to[i / HEADS].at[i % HEADS];
      store(at, load<V>(at) + sums.of[i]);
    }
  }
  // Where the sums of a kind for a block's head stand.
  HD static constexpr int sum_of(int kind, int m) { return kind * HEADS + of(m); }

  // dS becomes the gradient before phi (with a hook: of the old state); sums dc, dw; adds to dq
  // (with a hook: and dk).
  template <int COUNT>
  HD void through_phi(int64_t t, int first, const V* S, const V* S_new, V* dS, const V (&c)[M],
                      const V (&w)[M], const V (&dy)[M], V (&dc)[M], V (&dw)[M]) const {
    const Columns q(&Head::q, s, t, first), k(&Head::k, s, t, first), z(&Head::z, s, t, first);
    S += first * M, S_new += first * M, dS += first * M;
    constexpr int KINDS = Cell::HOOK ? 2 : 1;
    using Found = Sums<V, KINDS * HEADS>;
    auto column = [&](auto j) __attribute__((always_inline)) {
      Found sums = {};
      for (int m = 0; m < M; m++) {
        const V x = S_new[j * M + m];
        V g = dS[j * M + m] + dy[m] * q(m, j);
        sums.of[sum_of(0, m)] += x * dy[m];
        if constexpr (Spec::TANH) g *= T(1) - x * x;
        if constexpr (Cell::HOOK) {
          V dx, dcj, dwj, dkj;
          Cell::element_bwd(S[j * M + m], c[m], w[m], V{} + k(m, j), g, dx, dcj, dwj, dkj);
          dc[m] += dcj, dw[m] += dwj, sums.of[sum_of(1, m)] += dkj, g = dx;
        } else {
          dw[m] += g * k(m, j);
          if constexpr (L::SCALES) dc[m] += g * (L::COLUMN ? S[j * M + m] * z(m, j) : S[j * M + m]);
        }
        dS[j * M + m] = g;
      }
      return sums;
    };
    const Columns dq(&Head::dq, s, t, first), dk(&Head::dk, s, t, first);
    if constexpr (KINDS > 1)
      add_sums<COUNT>({dq, dk}, column);
    else
      add_sums<COUNT>({dq}, column);
  }

  // What the cell makes of dc and dw.
  HD void rows_back(int64_t t, int m, V c, V w, V dc, V dw, V& dr, V& de) const {
    const int64_t at = t * M + m;
    RowGrad<V> d = {};
    Cell::row_bwd(row(t, m, Cell::READ ? s.r[at] : V{}, Cell::ENERGY ? s.e[at] : V{}), c, w, dc, dw,
                  d);
    const V residual = Spec::RESIDUAL ? s.p[PARAM_RESIDUAL][block + m] : V{};
    s.dv[at] = Epilogue<Spec, V>{residual, V{}}.value_bwd(d.v, s.dy[at]);
    for (int i = 0; i < Cell::GATES; i++) s.dg[i][at] = d.g[i];
    for (int i = 0; i < Cell::PARAMS; i++) s.dp[i][block + m] += d.p[i];
    if constexpr (L::HEAD_DECAY) head(m).ddecay_lanes[t] += d.decay;
    if constexpr (L::HEAD_WRITE) head(m).dwrite_lanes[t] += d.write;
    dr = d.r, de = d.e * (T(2) / N);
  }

  // From the gradient before phi to that of the old state; adds to dk, dkey and dz.
  template <int COUNT>
  HD void to_old_state(int64_t t, int first, const V* S, V* dS, const V (&c)[M], const V (&w)[M],
                       const V (&dr)[M], const V (&de)[M]) const {
    constexpr bool KEY = L::OWN_KEY && Cell::READ, WRITES = !Cell::HOOK;
    constexpr bool FOR_K = WRITES || (Cell::READ && !KEY);
    constexpr int KINDS = FOR_K + KEY + L::COLUMN;
    const Columns key(&Head::key, s, t, first), z(&Head::z, s, t, first);
    S += first * M, dS += first * M;
    using Found = Sums<V, KINDS * HEADS>;
    auto column = [&](auto j) __attribute__((always_inline)) {
      Found sums = {};
      for (int m = 0; m < M; m++) {
        const V x = S[j * M + m], g = dS[j * M + m];
        V d = g;
        if constexpr (WRITES) sums.of[sum_of(0, m)] += g * w[m];
        if constexpr (L::COLUMN) sums.of[sum_of(KINDS - 1, m)] += L::SCALES ? g * x * c[m] : g * x;
        if constexpr (Cell::READ) sums.of[sum_of(KEY ? int(FOR_K) : 0, m)] += dr[m] * x;
        if constexpr (WRITES && L::COLUMN) d = g * (L::SCALES ? c[m] * z(m, j) : V{} + z(m, j));
        if constexpr (WRITES && !L::COLUMN && L::SCALES) d = g * c[m];
        if constexpr (Cell::READ) d += dr[m] * key(m, j);
        if constexpr (Cell::ENERGY) d += de[m] * x;
        dS[j * M + m] = d;
      }
      return sums;
    };
    const Columns dk(&Head::dk, s, t, first), dkey(&Head::dkey, s, t, first),
        dz(&Head::dz, s, t, first);
    if constexpr (FOR_K && KEY)
      add_sums<COUNT>({dk, dkey}, column);
    else if constexpr (FOR_K && L::COLUMN)
      add_sums<COUNT>({dk, dz}, column);
    else if constexpr (FOR_K)
      add_sums<COUNT>({dk}, column);
    static_assert(KINDS <= 2 && (FOR_K || KINDS == 0), "a kind of columns is left out");
  }
};

}  // namespace elman::cpu
