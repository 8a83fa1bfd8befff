// The dense engine step by step: what stands between two products of PyTorch's. A thread has V
// neighbouring channels of one row of the batch. Where the new state is divided by its root mean
// square, a block has a whole row; otherwise THREADS V channels of one.
//
// The state over time, all sums and the products' results are in the arithmetic's type A, what is
// kept for the whole sequence in the inputs' type IO.
//
// Where a step has a reset, the step before it leaves zeros as its state, and as what the product
// reads; y and the memo have what was there. So does the step itself for the gradients.
#pragma once
#include "abi/dense_step.h"
#include "cuda/common/pack.cuh"

namespace elman {

// A Spec, which Python generates, has the arithmetic's type T and the Cell.
template <class Spec_, class IO_, int V_, int THREADS_, bool HEADS_>
struct DenseStepConfig {
  using Spec = Spec_;
  using Cell = typename Spec::Cell;
  using A = typename Spec::T;
  using IO = IO_;
  static constexpr int V = V_, THREADS = THREADS_, WARPS = THREADS / 32;
  static constexpr bool RESETS = Spec::RESETS, HEADS = HEADS_;
};

template <class G>
struct DenseStep {
  using A = typename G::A;
  using IO = typename G::IO;
  using Cell = typename G::Cell;
  using Numbers = A[G::V];
  static constexpr int V = G::V, BLOCKS = Cell::BLOCKS, OTHERS = Cell::OTHERS, MEMO = Cell::MEMO;
  static constexpr int STATES = Cell::STATES, KEPT = Cell::KEPT, PARTS = MAX_STATES - 1;
  static constexpr int TILE = G::THREADS * V;
  const DenseStepArgs& a;
  int64_t b, first, end;  // row, this thread's first channel, behind the block's last channel

  DEVICE explicit DenseStep(const DenseStepArgs& args) : a(args) {
    const int64_t tiles = Cell::NORM ? 1 : (a.channels + TILE - 1) / TILE;
    const int64_t begin = block_index() % tiles * TILE;
    b = block_index() / tiles;
    first = begin + thread_index() * V;
    end = Cell::NORM || begin + TILE > a.channels ? a.channels : begin + TILE;
  }
  // f(first of V channels) for all that this thread has.
  template <class F>
  DEVICE void each(F f) const {
    for (int64_t ch = first; ch < end; ch += TILE) f(ch);
  }

  // ---- where things lie ----

  DEVICE IO* at(const DenseSequence& s, int64_t t, int64_t ch) const {
    return (IO*)s.data + (b * s.batch + t * s.time + ch);
  }
  template <class S>
  DEVICE S* row(const void* tensor, int64_t ch, int part = 0) const {  // of [parts, B, I]
    return (S*)tensor + ((part * a.batch + b) * a.channels + ch);
  }
  // Channel of a block among the rows of R: head by head, in each block by block.
  DEVICE int64_t among_rows(int64_t ch, int block) const {
    if constexpr (!G::HEADS) return block * a.channels + ch;
    return ch / a.head * (BLOCKS * a.head) + block * a.head + ch % a.head;
  }
  // What the product reads or wrote of a row: [B, blocks I], with heads [heads, B, blocks J].
  template <class S>
  DEVICE S* of_product(const void* tensor, int64_t ch, int block, int blocks) const {
    int64_t row = b, wide = a.channels;
    if constexpr (G::HEADS) row += ch / a.head * a.batch, wide = a.head, ch %= a.head;
    return (S*)tensor + ((row * blocks + block) * wide + ch);
  }
  DEVICE IO* memo(int64_t t, int k, int64_t ch) const {
    return (IO*)a.memo + (((b * a.steps + t) * MEMO + k) * a.channels + ch);
  }
  DEVICE A* norm() const { return (A*)a.norms + (b * a.steps + a.step); }

  // Whether the state of this row is zero before a step.
  DEVICE bool reset(int64_t t) const {
    if constexpr (G::RESETS) return t < a.steps && load_one(a.resets + (b * a.steps + t));
    return false;
  }
  DEVICE static void clear(Numbers& x) {
#pragma unroll
    for (int i = 0; i < V; i++) x[i] = A(0);
  }

  DEVICE static void add(Numbers& to, const A* from) {
    Numbers x;
    load<V, A>(x, from);
#pragma unroll
    for (int i = 0; i < V; i++) to[i] += x[i];
  }
  DEVICE void remember(int k, int64_t ch, const Numbers& x) const {
    if (a.memo) store<V, IO>(memo(a.step, k, ch), x);
  }
  // The sum over the block of a number per thread, the same in all of them.
  DEVICE A total(A x) const {
    Arena arena;
    const sptr<A> sums = arena.take<A>(G::WARPS);
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
    if (thread_index() % 32 == 0) store_one(sums + thread_index() / 32, x);
    sync_block();
    x = A(0);
#pragma unroll
    for (int warp = 0; warp < G::WARPS; warp++) x += load_one(sums + warp);
    return x;
  }

  // ---- forward ----

  // The pre-activations: the first input plus R h.
  DEVICE void before(int64_t ch, Numbers (&in)[BLOCKS]) const {
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
      load<V, IO>(in[k], at(a.x, a.step, among_rows(ch, k)));
      add(in[k], of_product<A>(a.product, ch, k, BLOCKS));
    }
  }
  // Writes new states to where the next step, its product and the caller read them.
  DEVICE void put(int64_t ch, const Numbers& h) const {
    if constexpr (G::RESETS) {
      const bool anew = reset(a.step + 1);
      Numbers next;
#pragma unroll
      for (int i = 0; i < V; i++) next[i] = anew ? A(0) : h[i];
      pass_on(ch, next);
    } else {
      pass_on(ch, h);
    }
    store<V, IO>(at(a.y, a.step, ch), h);
  }
  DEVICE void pass_on(int64_t ch, const Numbers& h) const {
    store<V, A>(row<A>(a.state, ch), h);
    store<V, IO>(of_product<IO>(a.narrow, ch, 0, 1), h);
  }
  // The GRU before its second product: writes r h for it and keeps z.
  DEVICE void gates(int64_t ch) const {
    Numbers in[BLOCKS], h, rh, m[MAX_DENSE_MEMO];
    before(ch, in);
    load<V, A>(h, row<A>(a.state, ch));
#pragma unroll
    for (int i = 0; i < V; i++) {
      Dense<A> x;
#pragma unroll
      for (int k = 0; k < BLOCKS; k++) x.a[k] = in[k][i];
      x.h = h[i];
      A kept[MAX_DENSE_MEMO];
      rh[i] = Cell::gates(x, kept);
      m[0][i] = kept[0];
      m[1][i] = kept[1];
    }
    store<V, IO>(row<IO>(a.narrow_extra, ch), rh);
    store<V, A>(row<A>(a.between, ch), m[0]);
    remember(0, ch, m[0]);
    remember(1, ch, m[1]);
  }
  // New states of V channels; where they are not divided yet, returns the sum of their squares.
  DEVICE A advance(int64_t ch) const {
    Numbers in[BLOCKS], p[MAX_OTHERS], h, c[PARTS], h_new, c_new[PARTS], m[MAX_DENSE_MEMO];
    if constexpr (Cell::EXTRA)
      load<V, A>(m[0], row<A>(a.between, ch));
    else
      before(ch, in);
#pragma unroll
    for (int k = 0; k < OTHERS; k++) load<V, IO>(p[k], at(a.p[k], a.step, ch));
    if constexpr (Cell::EXTRA) add(p[0], row<A>(a.second, ch));
    load<V, A>(h, row<A>(a.state, ch));
#pragma unroll
    for (int k = 1; k < STATES; k++) load<V, A>(c[k - 1], row<A>(a.state, ch, k));
    A squares = A(0);
#pragma unroll
    for (int i = 0; i < V; i++) {
      Dense<A> x;
#pragma unroll
      for (int k = 0; k < (Cell::EXTRA ? 0 : BLOCKS); k++) x.a[k] = in[k][i];
#pragma unroll
      for (int k = 0; k < OTHERS; k++) x.p[k] = p[k][i];
      x.h = h[i];
#pragma unroll
      for (int k = 1; k < STATES; k++) x.c[k - 1] = c[k - 1][i];
      if constexpr (Cell::SCALE) x.scale = load_one((const A*)a.scale);
      A kept[MAX_DENSE_MEMO], parts[PARTS];
      if constexpr (Cell::EXTRA) kept[0] = m[0][i];
      h_new[i] = Cell::step(x, kept, parts);
#pragma unroll
      for (int k = 1; k < STATES; k++) c_new[k - 1][i] = parts[k - 1];
#pragma unroll
      for (int k = 0; k < MEMO; k++) m[k][i] = kept[k];
      squares += h_new[i] * h_new[i];
    }
#pragma unroll
    for (int k = Cell::EXTRA ? 2 : 0; k < MEMO; k++) remember(k, ch, m[k]);
#pragma unroll
    for (int k = 1; k < STATES; k++) {
      if (reset(a.step + 1)) clear(c_new[k - 1]);
      store<V, A>(row<A>(a.state, ch, k), c_new[k - 1]);
    }
    if constexpr (Cell::NORM)
      store<V, A>(row<A>(a.state, ch), h_new);
    else
      put(ch, h_new);
    return squares;
  }
  DEVICE void forward() const {
    A squares = A(0);
    each([&](int64_t ch) { squares += advance(ch); });
    if constexpr (Cell::NORM) {
      const A mean = total(squares) / A(a.channels);
      const A factor = reciprocal(square_root(mean + A(DENSE_NORM_EPS)));
      if (thread_index() == 0) store_one(norm(), factor);
      each([&](int64_t ch) {
        Numbers h;
        load<V, A>(h, row<A>(a.state, ch));
#pragma unroll
        for (int i = 0; i < V; i++) h[i] *= factor;
        put(ch, h);
      });
    }
  }

  // ---- backward ----

  // The gradient of the new state: what the step after it passed on, through its product and past
  // it, and that of the output.
  DEVICE void gradient(int64_t ch, Numbers& e) const {
    load<V, A>(e, row<A>(a.state, ch));
    if (a.product) add(e, of_product<A>(a.product, ch, 0, 1));
    if (a.dy.data) {
      Numbers dy;
      load<V, IO>(dy, at(a.dy, a.step, ch));
#pragma unroll
      for (int i = 0; i < V; i++) e[i] += dy[i];
    }
  }
  // The GRU before its second product: the gradient of the argument of tanh.
  DEVICE void candidate_gradient(int64_t ch) const {
    Numbers e, m[MAX_DENSE_MEMO], dn;
    gradient(ch, e);
#pragma unroll
    for (int k = 0; k < MEMO; k++) load<V, IO>(m[k], memo(a.step, k, ch));
#pragma unroll
    for (int i = 0; i < V; i++) {
      A kept[MAX_DENSE_MEMO];
#pragma unroll
      for (int k = 0; k < MEMO; k++) kept[k] = m[k][i];
      dn[i] = Cell::candidate_bwd(kept, e[i]);
    }
    store<V, A>(row<A>(a.between, ch), e);
    store<V, IO>(at(a.dp[0], a.step, ch), dn);
    store<V, IO>(row<IO>(a.narrow_extra, ch), dn);
  }
  // From the gradient e of the state before its norm to those of all that the step read.
  DEVICE void differentiate(int64_t ch, const Numbers& e) const {
    Numbers h, c[PARTS], h_new, second[PARTS], m[MAX_DENSE_MEMO];
    Numbers da[BLOCKS], dp[MAX_OTHERS], dh, dc[PARTS], dscale;
    const bool anew = reset(a.step);
    if (a.step)
      load<V, IO>(h, at(a.y, a.step - 1, ch));
    else
      load<V, A>(h, row<A>(a.first, ch));
    if (anew) clear(h);
    load<V, IO>(h_new, at(a.y, a.step, ch));
#pragma unroll
    for (int k = 0; k < MEMO; k++) load<V, IO>(m[k], memo(a.step, k, ch));
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      if (a.step)
        load<V, IO>(c[k], memo(a.step - 1, MEMO - KEPT + k, ch));  // a memo ends with them
      else
        load<V, A>(c[k], row<A>(a.first, ch, 1 + k));
      if (anew) clear(c[k]);
    }
#pragma unroll
    for (int k = 1; k < STATES; k++) load<V, A>(second[k - 1], row<A>(a.state, ch, k));
    if constexpr (Cell::EXTRA) load<V, A>(second[0], row<A>(a.second, ch));
#pragma unroll
    for (int i = 0; i < V; i++) {
      Dense<A> x;
      DenseGrad<A> d;
      A kept[MAX_DENSE_MEMO], with[PARTS];
#pragma unroll
      for (int k = 0; k < MEMO; k++) kept[k] = m[k][i];
      x.h = h[i];
#pragma unroll
      for (int k = 0; k < KEPT; k++) x.c[k] = c[k][i];
#pragma unroll
      for (int k = 1; k < STATES; k++) with[k - 1] = second[k - 1][i];
      if constexpr (Cell::EXTRA) with[0] = second[0][i];
      if constexpr (Cell::SCALE) x.scale = load_one((const A*)a.scale);
      Cell::step_bwd(x, kept, h_new[i], e[i], with, d);
#pragma unroll
      for (int k = 0; k < BLOCKS; k++) da[k][i] = d.a[k];
#pragma unroll
      for (int k = 0; k < (Cell::EXTRA ? 0 : OTHERS); k++) dp[k][i] = d.p[k];
      dh[i] = d.h;
#pragma unroll
      for (int k = 1; k < STATES; k++) dc[k - 1][i] = d.c[k - 1];
      if constexpr (Cell::SCALE) dscale[i] = d.scale;
    }
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
      store<V, IO>(at(a.dx, a.step, among_rows(ch, k)), da[k]);
      if (anew) clear(da[k]);
      store<V, IO>(of_product<IO>(a.narrow, ch, k, BLOCKS), da[k]);
    }
#pragma unroll
    for (int k = 0; k < (Cell::EXTRA ? 0 : OTHERS); k++)
      store<V, IO>(at(a.dp[k], a.step, ch), dp[k]);
    if (anew) clear(dh);
    store<V, A>(row<A>(a.state, ch), dh);
#pragma unroll
    for (int k = 1; k < STATES; k++) {
      if (anew) clear(dc[k - 1]);
      store<V, A>(row<A>(a.state, ch, k), dc[k - 1]);
    }
    if constexpr (Cell::SCALE) {
      if (a.step + 1 < a.steps) add(dscale, row<A>(a.dscale, ch));
      store<V, A>(row<A>(a.dscale, ch), dscale);
    }
  }
  DEVICE void backward() const {
    if constexpr (Cell::NORM) {
      A along = A(0);
      each([&](int64_t ch) {
        Numbers e, y;
        gradient(ch, e);
        load<V, IO>(y, at(a.y, a.step, ch));
#pragma unroll
        for (int i = 0; i < V; i++) along += e[i] * y[i];
        store<V, A>(row<A>(a.state, ch), e);
      });
      const A mean = total(along) / A(a.channels), factor = load_one(norm());
      // From the gradient of y = g / rms(g) to that of g: (e - y mean(e y)) / rms(g).
      each([&](int64_t ch) {
        Numbers e, y;
        load<V, A>(e, row<A>(a.state, ch));
        load<V, IO>(y, at(a.y, a.step, ch));
#pragma unroll
        for (int i = 0; i < V; i++) e[i] = (e[i] - y[i] * mean) * factor;
        differentiate(ch, e);
      });
    } else {
      each([&](int64_t ch) {
        Numbers e;
        if constexpr (Cell::EXTRA)
          load<V, A>(e, row<A>(a.between, ch));
        else
          gradient(ch, e);
        differentiate(ch, e);
      });
    }
  }
};

template <class G>
DEVICE void dense_step_forward(const DenseStepArgs& a) {
  DenseStep<G>(a).forward();
}
template <class G>
DEVICE void dense_step_backward(const DenseStepArgs& a) {
  DenseStep<G>(a).backward();
}
template <class G>
DEVICE void dense_step_gates(const DenseStepArgs& a) {
  const DenseStep<G> step(a);
  step.each([&](int64_t ch) { step.gates(ch); });
}
template <class G>
DEVICE void dense_step_candidate(const DenseStepArgs& a) {
  const DenseStep<G> step(a);
  step.each([&](int64_t ch) { step.candidate_gradient(ch); });
}

}  // namespace elman
