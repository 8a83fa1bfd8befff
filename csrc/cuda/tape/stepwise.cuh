// The tape engine step by step: what stands between two products of PyTorch's. A block has a row of
// the batch, a thread V neighbouring channels of it at a time, with all their slots. So a thread
// reads and writes the tape of its own channels alone, and threads meet only for sums over
// channels.
//
// Forward, one kernel does the write of step t - 1, the read of step t, the new state and its
// scores (cells/tape.h). Backward, one kernel goes from the gradient of the state after step t to
// those of its input and of the value that step t - 1 wrote.
//
// The tape, its gradient and all sums are in the arithmetic's type A, the states and the values
// that are written in the inputs' type IO: what a step writes is what the backward pass finds.
//
// Where a step has a reset, it takes zeros for the tape, for the state's product with W_h, and for
// all that goes back. The caller has cleared the first tape and the first state.
#pragma once
#include "abi/tape_step.h"
#include "cuda/common/pack.cuh"

namespace elman {

// A Spec, which Python generates, has the arithmetic's type T and the Cell.
template <class Spec, class IO_, int V_, int THREADS_>
struct TapeStepConfig {
  using Cell = typename Spec::Cell;
  using A = typename Spec::T;
  using IO = IO_;
  static constexpr int V = V_, THREADS = THREADS_, WARPS = THREADS / 32;
  static constexpr bool RESETS = Spec::RESETS;
};

template <class G>
struct TapeStep {
  using A = typename G::A;
  using IO = typename G::IO;
  using Numbers = A[G::V];
  static constexpr int V = G::V, WARPS = G::WARPS, TILE = G::THREADS * V;
  static constexpr int BLOCKS = G::Cell::BLOCKS, VALUE = G::Cell::VALUE;
  static constexpr bool PRODUCT_VALUE = VALUE != tape::NO_PRODUCT;
  static constexpr int AT_ONCE = 8;  // slots whose numbers a thread holds in registers
  enum { READ, WRITE };              // the two attentions of a step

  const TapeStepArgs& a;
  const int64_t b;  // row
  const int slots, warp, lane;
  const A scale;
  const sptr<A> sums;         // every warp's part of a sum for each slot, and of one more
  const sptr<A> read, write;  // the slots' weights, or gradients of their scores

  DEVICE TapeStep(Arena& arena, const TapeStepArgs& args, int64_t row)
      : a(args),
        b(row),
        slots((int)args.slots),
        warp(thread_index() / 32),
        lane(thread_index() % 32),
        scale(A(1) / square_root(A(args.channels))),
        sums(arena.take<A>((slots + 1) * WARPS)),
        read(arena.take<A>(slots)),
        write(arena.take<A>(slots)) {}

  // ---- where things lie ----

  DEVICE IO* at(void* sequence, int64_t t, int64_t ch) const {
    return (IO*)sequence + ((b * a.steps + t) * a.channels + ch);
  }
  template <class S>
  DEVICE S* row(void* tensor, int64_t ch, int block = 0, int blocks = 1) const {
    return (S*)tensor + ((b * blocks + block) * a.channels + ch);
  }
  DEVICE A* slot(void* tensor, int64_t k, int64_t ch) const {
    return (A*)tensor + ((b * slots + k) * a.channels + ch);
  }
  DEVICE A* score(int k) const { return (A*)a.scores + (b * slots + k); }
  DEVICE A* weight(int64_t t, int which, int k) const {
    return (A*)a.weights + (((b * a.steps + t) * 2 + which) * slots + k);
  }
  // The state before step t, and the value that step t wrote.
  DEVICE void state_before(int64_t t, int64_t ch, Numbers& h) const {
    if (t)
      load<V, IO>(h, at(a.y, t - 1, ch));
    else
      load<V, A>(h, row<A>(a.first, ch));
  }
  DEVICE void kept_value(int64_t t, int64_t ch, Numbers& q) const {
    load<V, IO>(q, at(PRODUCT_VALUE ? a.values : a.y, t, ch));
  }

  // Whether tape and state of this row are zero before a step.
  DEVICE bool reset(int64_t t) const {
    if constexpr (G::RESETS) return load_one(a.resets + (b * a.steps + t));
    return false;
  }

  // ---- loops and sums ----

  // f(first of V channels) for all that this thread has.
  template <class F>
  DEVICE void each(F f) const {
    for (int64_t ch = thread_index() * V; ch < a.channels; ch += TILE) f(ch);
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
  // To numbers that IO has.
  DEVICE static void round(Numbers& x) {
    if constexpr (sizeof(IO) == 2) {
#pragma unroll
      for (int i = 0; i < V; i++) x[i] = Half<IO>::low(Half<IO>::pack(x[i], 0.0f));
    }
  }
  DEVICE static A dot(const Numbers& x, const Numbers& y) {
    A sum = A(0);
#pragma unroll
    for (int i = 0; i < V; i++) sum += x[i] * y[i];
    return sum;
  }
  DEVICE static A warp_sum(A x) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
  // Leaves this warp's part of a sum; after a barrier `total` is all of it.
  DEVICE void leave(int k, A part) const {
    part = warp_sum(part);
    if (lane == 0) store_one(sums + (k * WARPS + warp), part);
  }
  DEVICE A total(int k) const {
    A sum = A(0);
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += load_one(sums + (k * WARPS + w));
    return sum;
  }
  // Leaves the sums over channels of <tape_n, y> for every slot. left(channel, numbers) sets
  // numbers x that all slots share, right(channel, slot, x, y) sets y of a slot.
  template <class L, class R>
  DEVICE void sum_slots(void* tape, L left, R right) const {
    int k = 0;
    for (; k + AT_ONCE <= slots; k += AT_ONCE) sum_some<AT_ONCE>(tape, k, left, right);
    for (; k < slots; k++) sum_some<1>(tape, k, left, right);
  }
  template <int S, class L, class R>
  DEVICE void sum_some(void* tape, int first, L left, R right) const {
    A part[S];
#pragma unroll
    for (int s = 0; s < S; s++) part[s] = A(0);
    each([&](int64_t ch) {
      Numbers x, y, m;
      left(ch, x);
#pragma unroll
      for (int s = 0; s < S; s++) {
        load<V, A>(m, slot(tape, first + s, ch));
        right(ch, first + s, x, y);
        part[s] += dot(m, y);
      }
    });
#pragma unroll
    for (int s = 0; s < S; s++) leave(first + s, part[s]);
  }
  // Leaves <M_n, x> for every slot; x(channel, numbers) sets numbers of x.
  template <class F>
  DEVICE void sum_scores(void* tape, F x) const {
    sum_slots(tape, x, [](int64_t, int, const Numbers& shared, Numbers& y) {
#pragma unroll
      for (int i = 0; i < V; i++) y[i] = shared[i];
    });
  }
  // Keeps the sums for the next kernel.
  DEVICE void keep_sums() const {
    sync_block();
    if (warp == 0)
      for (int k = lane; k < slots; k += 32) store_one(score(k), total(k));
  }

  // ---- the weights of the slots, by one warp; a lane reads what it has written itself ----

  template <class F>
  DEVICE void attend(sptr<A> to, F score_of) const {
    A most = lane < slots ? score_of(lane) : A(-3.0e38f), sum = A(0);
    for (int k = lane + 32; k < slots; k += 32) {
      const A one = score_of(k);
      most = one > most ? one : most;
    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
      const A other = shuffle_xor(most, mask);
      most = other > most ? other : most;
    }
    for (int k = lane; k < slots; k += 32) {
      const A share = tape::power(score_of(k), most, scale);
      store_one(to + k, share);
      sum += share;
    }
    sum = warp_sum(sum);
    for (int k = lane; k < slots; k += 32) store_one(to + k, load_one(to + k) / sum);
  }
  // The weights of the write of the step before and of the read of this one.
  DEVICE void attend_all() const {
    const int64_t t = a.step;
    if (t) attend(write, [&](int k) { return load_one(score(k)); });
    const A of_value = t ? total(slots) : A(0);
    if (t < a.steps) {
      const bool anew = reset(t);
      attend(read, [&](int k) {
        const A before = load_one(score(k));
        if (anew) return A(0);
        return t ? tape::next_score(before, load_one(write + k), of_value) : before;
      });
    }
    if (!a.weights) return;
    for (int k = lane; k < slots; k += 32) {
      if (t) store_one(weight(t - 1, WRITE, k), load_one(write + k));
      if (t < a.steps) store_one(weight(t, READ, k), load_one(read + k));
    }
  }
  // The gradients of the scores, from those of the weights.
  template <class F>
  DEVICE void scores_bwd(sptr<A> to, int which, F dweight) const {
    A mean = A(0);
    for (int k = lane; k < slots; k += 32) mean += dweight(k) * load_one(weight(a.step, which, k));
    mean = warp_sum(mean);
    for (int k = lane; k < slots; k += 32) {
      const A w = load_one(weight(a.step, which, k));
      store_one(to + k, tape::score_bwd(w, dweight(k), mean, scale));
    }
  }

  // ---- forward ----

  // The value that the step before writes.
  DEVICE void value(int64_t ch, Numbers& q) const {
    if constexpr (PRODUCT_VALUE) {
      load<V, A>(q, row<A>(a.product, ch, VALUE, BLOCKS));
      round(q);
    } else {
      state_before(a.step, ch, q);
    }
  }
  DEVICE void measure_value() const {
    A along = A(0);
    each([&](int64_t ch) {
      Numbers q, h;
      value(ch, q);
      state_before(a.step, ch, h);
      along += dot(q, h);
      if (PRODUCT_VALUE && a.values) store<V, IO>(at(a.values, a.step - 1, ch), q);
    });
    leave(slots, along);
  }
  // Writes q to some slots and reads them.
  template <int S, bool WRITES, bool READS>
  DEVICE void advance_some(int first, int64_t ch, const Numbers& q, bool anew, Numbers& sum) const {
    A m[S][V];
#pragma unroll
    for (int s = 0; s < S; s++) load<V, A>(m[s], slot(a.tape, first + s, ch));
#pragma unroll
    for (int s = 0; s < S; s++) {
      if constexpr (WRITES) {
        const A w = load_one(write + (first + s));
#pragma unroll
        for (int i = 0; i < V; i++) m[s][i] = tape::written(m[s][i], w, q[i]);
        if (anew) clear(m[s]);
        store<V, A>(slot(a.tape, first + s, ch), m[s]);
        if (a.checkpoint) store<V, A>(slot(a.checkpoint, first + s, ch), m[s]);
      }
      if constexpr (READS) {
        const A r = load_one(read + (first + s));
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] += r * m[s][i];
      }
    }
  }
  template <bool WRITES, bool READS>
  DEVICE void advance(int64_t ch) const {
    Numbers q, sum;
    const bool anew = READS && reset(a.step);
    clear(sum);
    if constexpr (WRITES) value(ch, q);
    int k = 0;
    for (; k + AT_ONCE <= slots; k += AT_ONCE)
      advance_some<AT_ONCE, WRITES, READS>(k, ch, q, anew, sum);
    for (; k < slots; k++) advance_some<1, WRITES, READS>(k, ch, q, anew, sum);
    if constexpr (READS) {
      Numbers h;
      load<V, IO>(h, at(a.x, a.step, ch));
      if (!anew) add(h, row<A>(a.product, ch, 0, BLOCKS));
#pragma unroll
      for (int i = 0; i < V; i++) h[i] = tape::state(h[i], sum[i]);
      store<V, IO>(at(a.y, a.step, ch), h);
      store<V, IO>(row<IO>(a.narrow, ch), h);
    }
  }
  // The scores of the first read.
  DEVICE void begin() const {
    sum_scores(a.tape, [&](int64_t ch, Numbers& h) { state_before(0, ch, h); });
    keep_sums();
  }
  DEVICE void forward() const {
    if (a.step) measure_value();
    sync_block();
    if (warp == 0) attend_all();
    sync_block();
    if (a.step == 0)
      each([&](int64_t ch) { advance<false, true>(ch); });
    else if (a.step < a.steps)
      each([&](int64_t ch) { advance<true, true>(ch); });
    else
      each([&](int64_t ch) { advance<true, false>(ch); });
    if (a.step == a.steps) return;
    sum_scores(a.tape, [&](int64_t ch, Numbers& h) { state_before(a.step + 1, ch, h); });
    keep_sums();
  }

  // ---- backward ----

  // The tapes behind `here`, of one slot.
  DEVICE void replay(int64_t k, int64_t ch) const {
    Numbers m, q;
    load<V, A>(m, slot(a.here, k, ch));
    A* to = slot(a.replayed, k, ch);
    for (int64_t t = a.step; t < a.step + a.count; t++) {
      const A w = load_one(weight(t, WRITE, (int)k));
      kept_value(t, ch, q);
#pragma unroll
      for (int i = 0; i < V; i++) m[i] = tape::written(m[i], w, q[i]);
      if (reset(t + 1)) clear(m);
      store<V, A>(to, m);
      to += a.batch * slots * a.channels;
    }
  }
  // Takes the gradients of some slots to before the write of the step; adds to e what comes by its
  // scores.
  template <int S>
  DEVICE void write_bwd(int first, int64_t ch, const Numbers& h, Numbers& e) const {
    A m[S][V], g[S][V];
#pragma unroll
    for (int s = 0; s < S; s++) {
      load<V, A>(m[s], slot(a.here, first + s, ch));
      load<V, A>(g[s], slot(a.tape, first + s, ch));
    }
#pragma unroll
    for (int s = 0; s < S; s++) {
      const A w = load_one(weight(a.step, WRITE, first + s));
      const A dscore = load_one(write + (first + s));
#pragma unroll
      for (int i = 0; i < V; i++) {
        e[i] += dscore * m[s][i];
        g[s][i] = tape::written_bwd(g[s][i], w, dscore, h[i]);
      }
      store<V, A>(slot(a.tape, first + s, ch), g[s]);
    }
  }
  // From the gradient of the state after the step to that of its input, and to the tape before its
  // write.
  DEVICE void state_bwd(int64_t ch) const {
    Numbers e, h;
    load<V, A>(e, row<A>(a.carried, ch));
    add(e, row<A>(a.product, ch));
    if (a.dy) {
      Numbers dy;
      load<V, IO>(dy, at(a.dy, a.step, ch));
#pragma unroll
      for (int i = 0; i < V; i++) e[i] += dy[i];
    }
    state_before(a.step + 1, ch, h);
    int k = 0;
    for (; k + AT_ONCE <= slots; k += AT_ONCE) write_bwd<AT_ONCE>(k, ch, h, e);
    for (; k < slots; k++) write_bwd<1>(k, ch, h, e);
#pragma unroll
    for (int i = 0; i < V; i++) e[i] = tape::state_bwd(h[i], e[i]);
    store<V, IO>(at(a.dx, a.step, ch), e);
  }
  // Adds to the gradients of some slots what the read of the step does; then the written value has
  // its part of them.
  template <int S, bool READS, bool WRITES>
  DEVICE void read_bwd(int first, int64_t ch, const Numbers& delta, const Numbers& h, bool anew,
                       Numbers& carried, Numbers& dq) const {
    A m[S][V], g[S][V];
#pragma unroll
    for (int s = 0; s < S; s++) {
      if constexpr (READS) load<V, A>(m[s], slot(a.here, first + s, ch));
      load<V, A>(g[s], slot(a.tape, first + s, ch));
    }
#pragma unroll
    for (int s = 0; s < S; s++) {
      if constexpr (READS) {
        const A r = load_one(weight(a.step, READ, first + s));
        const A dscore = load_one(read + (first + s));
#pragma unroll
        for (int i = 0; i < V; i++) {
          carried[i] += dscore * m[s][i];
          g[s][i] = tape::read_bwd(g[s][i], r, delta[i], dscore, h[i]);
        }
        if (anew) clear(g[s]);
        store<V, A>(slot(a.tape, first + s, ch), g[s]);
      }
      if constexpr (WRITES) {
        const A w = load_one(weight(a.step - 1, WRITE, first + s));
#pragma unroll
        for (int i = 0; i < V; i++) dq[i] += w * g[s][i];
      }
    }
  }
  // What the read of this step adds to the gradients of the tape and of the state before it; then
  // the gradient of the value that the step before wrote.
  template <bool READS, bool WRITES>
  DEVICE void value_bwd(int64_t ch) const {
    Numbers carried, delta, dq, h;
    const bool anew = READS && reset(a.step);
    clear(carried);
    clear(delta);
    clear(dq);
    if constexpr (READS) {
      load<V, IO>(delta, at(a.dx, a.step, ch));
      state_before(a.step, ch, h);
    } else {
      load<V, A>(carried, row<A>(a.carried, ch));
    }
    int k = 0;
    for (; k + AT_ONCE <= slots; k += AT_ONCE)
      read_bwd<AT_ONCE, READS, WRITES>(k, ch, delta, h, anew, carried, dq);
    for (; k < slots; k++) read_bwd<1, READS, WRITES>(k, ch, delta, h, anew, carried, dq);
    if (anew) {
      clear(carried);
      clear(delta);
      clear(dq);
    }
    pass_on(ch, carried, delta, dq);
    if constexpr (WRITES && PRODUCT_VALUE) store<V, IO>(at(a.dvalues, a.step - 1, ch), dq);
  }
  // Leaves the gradients that reach the state before the step: through its products, and past them.
  DEVICE void pass_on(int64_t ch, Numbers& carried, Numbers& delta, const Numbers& dq) const {
#pragma unroll
    for (int i = 0; i < V; i++) {
      if (VALUE == 0) delta[i] += dq[i];
      if (!PRODUCT_VALUE) carried[i] += dq[i];
    }
    store<V, A>(row<A>(a.carried, ch), carried);
    store<V, IO>(row<IO>(a.narrow, ch, 0, BLOCKS), delta);
    if constexpr (VALUE > 0) store<V, IO>(row<IO>(a.narrow, ch, VALUE, BLOCKS), dq);
  }
  // Leaves the gradients of the weights of the write of the step before.
  DEVICE void sum_write() const {
    sum_slots(
        a.tape, [&](int64_t ch, Numbers& q) { kept_value(a.step - 1, ch, q); },
        [&](int64_t ch, int k, const Numbers& q, Numbers& y) {
          Numbers m;
          load<V, A>(m, slot(a.before, k, ch));
#pragma unroll
          for (int i = 0; i < V; i++) y[i] = q[i] - m[i];
        });
    keep_sums();
  }
  // READS: there is a step. WRITES: there is one before it.
  template <bool READS, bool WRITES>
  DEVICE void back() const {
    if constexpr (READS) {
      if (warp == 0) scores_bwd(write, WRITE, [&](int k) { return load_one(score(k)); });
      sync_block();
      each([&](int64_t ch) { state_bwd(ch); });
      sum_scores(a.here, [&](int64_t ch, Numbers& x) { load<V, IO>(x, at(a.dx, a.step, ch)); });
      sync_block();
      if (warp == 0) scores_bwd(read, READ, [&](int k) { return total(k); });
      sync_block();
    }
    each([&](int64_t ch) { value_bwd<READS, WRITES>(ch); });
    if constexpr (WRITES) sum_write();
  }
  DEVICE void backward() const {
    if (a.step == a.steps)
      back<false, true>();
    else if (a.step)
      back<true, true>();
    else
      back<true, false>();
  }
};

template <class G>
DEVICE void tape_step_first(const TapeStepArgs& a) {
  Arena arena;
  TapeStep<G>(arena, a, block_index()).begin();
}
template <class G>
DEVICE void tape_step_forward(const TapeStepArgs& a) {
  Arena arena;
  TapeStep<G>(arena, a, block_index()).forward();
}
template <class G>
DEVICE void tape_step_backward(const TapeStepArgs& a) {
  Arena arena;
  TapeStep<G>(arena, a, block_index()).backward();
}
// A block has THREADS V channels of one slot of a row.
template <class G>
DEVICE void tape_step_replay(const TapeStepArgs& a) {
  constexpr int TILE = TapeStep<G>::TILE;
  const int64_t tiles = (a.channels + TILE - 1) / TILE, row = block_index() / tiles;
  const int64_t ch = block_index() % tiles * TILE + thread_index() * G::V;
  Arena arena;
  const TapeStep<G> step(arena, a, row / a.slots);
  if (ch < a.channels) step.replay(row % a.slots, ch);
}

}  // namespace elman
