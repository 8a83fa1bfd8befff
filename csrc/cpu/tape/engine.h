// The CPU engine of the tape recurrence: a loop over time inside one team of threads.
//
// A step is one product, of the new state with all matrices, and one pass over the tape, which
// writes it, reads it for the next step, makes the next state and the scores of that. Threads share
// a step by columns or by rows (cpu/common/team.h). By columns they meet twice a step: when all of
// the state is there, and when all sums over channels are.
//
// The working tape, its gradient and the tapes of a segment lie as the pass reads them: all slots
// of a vector of channels behind each other.
//
// Forward keeps every state, the slots' weights, the values that were written, and the tape of
// every `interval` steps. Backward takes the segments between those from the last to the first: it
// writes the tapes of a segment anew, without a product, and then walks back. It leaves the
// gradient of every input and of the products of every state; the gradients of the matrices are
// large products of those, left to the caller.
//
// A Spec, which Python generates, says what is run: T, float or double, Cell, of cells/tape.h, and
// RESETS. At a reset, zeros are taken for the tape, the state's product and all that goes back to
// them: nothing of them is multiplied by zero, which would let a NaN through.
#pragma once
#include <algorithm>
#include <cmath>

#include "abi/tape.h"
#include "cpu/common/product.h"
#include "cpu/common/team.h"

namespace elman {

template <class Spec>
class TapeEngine {
  using T = typename Spec::T;
  using Cell = typename Spec::Cell;
  using L = Lanes<T>;
  using V = typename L::V;
  using Product = cpu::PackedProduct<T>;
  static constexpr int W = L::W, BLOCKS = Cell::BLOCKS, VALUE = Cell::VALUE;
  static constexpr bool PRODUCT_VALUE = VALUE != tape::NO_PRODUCT, RESETS = Spec::RESETS;
  static constexpr int64_t LINE = 64 / sizeof(T);
  enum { READ, WRITE };  // the two attentions of a step

  const TapeArgs& a;
  cpu::Sharing sharing;
  int64_t wide;  // channels, up to a whole vector
  T scale;

  // What one thread owns.
  struct Share {
    int64_t me, of, rows0, rows1, begin, end;
  };
  // Where parts of the workspace begin, in numbers.
  struct Places {
    int64_t packed, rows, values, tape, segment, sums, weights, parts, first, end;
  } places;

  // ---- where things lie ----

  int64_t products() const { return BLOCKS * a.channels; }
  bool is_backward() const { return a.dx; }
  HD T* sequence(void* tensor, int64_t b, int64_t t) const {
    return static_cast<T*>(tensor) + (b * a.steps + t) * a.channels;
  }
  HD T* state(void* tensor, int64_t b) const { return static_cast<T*>(tensor) + b * a.channels; }
  HD T* slot(void* tensor, int64_t b, int64_t k) const {
    return static_cast<T*>(tensor) + (b * a.slots + k) * a.channels;
  }
  HD T* checkpoint(int64_t t) const {  // the tape before step t, a multiple of the interval
    if (t == 0) return static_cast<T*>(a.tape);
    return slot(a.checkpoints, (t / a.interval - 1) * a.batch, 0);
  }
  HD T* work(int64_t place) const { return static_cast<T*>(a.workspace) + place; }
  HD T* packed() const { return work(places.packed); }
  HD T* row(int64_t b) const { return work(places.rows) + b * wide; }  // of numbers of its own
  int64_t tape_size() const { return cpu::up(a.batch * a.slots * wide, LINE); }
  // All slots of the vector of channels at `ch`.
  HD T* slots_at(T* tape, int64_t b, int64_t ch) const { return tape + (b * wide + ch) * a.slots; }
  T* working() const { return work(places.tape); }
  T* replayed(int64_t t, int64_t start) const {  // the tape before step t of a segment
    return work(places.segment) + (t - start) * tape_size();
  }
  // Whether tape and state of a row are zero before a step.
  HD bool reset(int64_t b, int64_t t) const {
    if constexpr (RESETS) return t < a.steps && a.resets[b * a.steps + t];
    return false;
  }
  // What was written at step t, and where the state before step t stands.
  HD T* value(int64_t b, int64_t t) const {
    if constexpr (!PRODUCT_VALUE) return sequence(a.y, b, t);
    return a.values ? sequence(a.values, b, t) : work(places.values) + b * wide;
  }
  HD const T* before(int64_t b, int64_t t) const {
    return t ? sequence(a.y, b, t - 1) : state(a.first, b);
  }
  // The gradient of the products of the state after step t; -1: of the first state.
  HD T* pull(int64_t b, int64_t t) const {
    if (t < 0) return work(places.first) + b * products();
    return static_cast<T*>(a.pulls) + (b * a.steps + t) * products();
  }
  // A thread's parts of sums over channels: of every row and slot, and one beside the slots.
  int64_t sum_size() const { return cpu::up(a.slots + 1, LINE); }
  HD T* partial(int64_t parity, int64_t thread, int64_t b) const {
    return work(places.sums) + ((parity * a.threads + thread) * a.batch + b) * sum_size();
  }
  // Numbers of every slot that a thread keeps for itself, in both attentions.
  HD T* kept(const Share& s, int which, int64_t b) const {
    return work(places.weights) + ((s.me * 2 + which) * a.batch + b) * sum_size();
  }
  // The weights of a step, as the forward pass left them.
  HD T* weights(int64_t b, int64_t t, int which) const {
    return static_cast<T*>(a.weights) + ((b * a.steps + t) * 2 + which) * a.slots;
  }
  // A thread's own: a vector of sums for every row, or a number for every slot.
  int64_t parts_size() const {
    return cpu::up(a.batch * W > a.slots ? a.batch * W : a.slots, LINE);
  }
  HD T* parts(const Share& s) const { return work(places.parts) + s.me * parts_size(); }
  HD static void add(T* to, V v) { cpu::store(to, cpu::load<V>(to) + v); }

  // ---- loops ----

  // f(row, first channel, how many) for all that a thread owns of a row.
  template <class F>
  HD void own(const Share& s, int64_t b, F f) const {
    for (int64_t ch = s.begin; ch < s.end; ch += W) f(ch, L::count(ch, s.end));
  }
  // f(row, first channel, how many, place in the tile) for the vectors of a product's tile.
  template <class F>
  HD void each(int64_t r, int n_rows, int64_t c, int n, F f) const {
    for (int i = 0; i < n_rows; i++)
      for (int j = 0; j < n; j++) {
        const int64_t ch = c + j * W;
        if (ch < a.channels) f(r + i, ch, L::count(ch, a.channels), (i * n + j) * W);
      }
  }
  // A tape of the call to one of the workspace, or the other way round.
  void take(const Share& s, const T* from, T* to) const {
    for (int64_t b = s.rows0; b < s.rows1; b++)
      own(s, b, [&](int64_t ch, int n) {
        for (int64_t k = 0; k < a.slots; k++) {
          const T* there = from ? from + (b * a.slots + k) * a.channels + ch : nullptr;
          cpu::store(slots_at(to, b, ch) + k * W, there ? L::load(there, n) : V{});
        }
      });
  }
  void clear(const Share& s, int64_t b, T* tape) const {
    own(s, b, [&](int64_t ch, int) {
      for (int64_t k = 0; k < a.slots; k++) cpu::store(slots_at(tape, b, ch) + k * W, V{});
    });
  }
  void give(const Share& s, T* from, T* to) const {
    for (int64_t b = s.rows0; b < s.rows1; b++)
      own(s, b, [&](int64_t ch, int n) {
        for (int64_t k = 0; k < a.slots; k++)
          L::store(to + (b * a.slots + k) * a.channels + ch,
                   cpu::load<V>(slots_at(from, b, ch) + k * W), n);
      });
  }

  // ---- sums over channels and slots ----

  // to[k] = the sum of term(channels, how many)(k) over a row's channels, for every slot: up to
  // eight sums at a time, in registers.
  template <class F>
  void sum_slots(const Share& s, T* to, F term) const {
    int64_t k = 0;
    for (; k + 8 <= a.slots; k += 8) sum_some<8>(s, to, k, term);
    for (; k + 4 <= a.slots; k += 4) sum_some<4>(s, to, k, term);
    for (; k < a.slots; k++) sum_some<1>(s, to, k, term);
  }
  template <int SLOTS, class F>
  HD void sum_some(const Share& s, T* to, int64_t first, F term) const {
    V sums[SLOTS] = {};
    for (int64_t ch = s.begin, end = s.end; ch < end; ch += W) {
      const auto of_slot = term(ch, L::count(ch, end));
#pragma GCC unroll 8
      for (int k = 0; k < SLOTS; k++) sums[k] += of_slot(first + k);
    }
    for (int k = 0; k < SLOTS; k++) to[first + k] = L::sum(sums[k]);
  }
  // The parts of <x, M_n> of a row, x one of its own.
  HD void score(const Share& s, int64_t parity, int64_t b, const T* x, T* tape) const {
    const T* row = slots_at(tape, b, 0);
    const int64_t slots = a.slots;
    sum_slots(s, partial(parity, s.me, b), [=](int64_t ch, int n) {
      const V there = L::load(x + ch, n);
      return [=](int64_t k) { return there * cpu::load<V>(row + ch * slots + k * W); };
    });
  }
  // The sum of all threads' parts, in their order.
  HD T total(const Share& s, int64_t parity, int64_t b, int64_t k) const {
    if (s.of == 1) return partial(parity, s.me, b)[k];
    T sum = 0;
    for (int64_t thread = 0; thread < s.of; thread++) sum += partial(parity, thread, b)[k];
    return sum;
  }
  // The weights of slots with these scores.
  void attend(const T* score, T* weight) const {
    T most = score[0], sum = 0;
    for (int64_t k = 1; k < a.slots; k++) most = score[k] > most ? score[k] : most;
    for (int64_t k = 0; k < a.slots; k += W) {
      const int n = L::count(k, a.slots);
      L::store(weight + k, tape::power(L::load(score + k, n), most, scale), n);
    }
    for (int64_t k = 0; k < a.slots; k++) sum += weight[k];
    for (int64_t k = 0; k < a.slots; k++) weight[k] /= sum;
  }
  // The gradients of the scores of all rows, from the sums that are those of the weights.
  void scores_bwd(const Share& s, int64_t t, int which) const {
    for (int64_t b = s.rows0; b < s.rows1; b++) {
      const T* w = weights(b, t, which);
      T *dscore = kept(s, which, b), mean = 0;
      for (int64_t k = 0; k < a.slots; k++) {
        dscore[k] = total(s, which, b, k);
        mean += dscore[k] * w[k];
      }
      for (int64_t k = 0; k < a.slots; k++)
        dscore[k] = tape::score_bwd(w[k], dscore[k], mean, scale);
    }
  }

  // ---- forward ----

  // W_h h and, where it is a product, the value of the state after step t; its part of <q, h>.
  void multiply(const Share& s, int64_t t) const {
    const T* h = t < 0 ? state(a.first, 0) : sequence(a.y, 0, t);
    const int64_t stride = t < 0 ? a.channels : a.steps * a.channels;
    std::memset(parts(s), 0, a.batch * W * sizeof(T));
    Product::template run<BLOCKS>(
        h, stride, packed(), a.channels, s.rows0, s.rows1, s.begin, s.end,
        [&](int64_t r, int n_rows, int64_t c, int n, const auto& out) {
          each(r, n_rows, c, n, [&](int64_t b, int64_t ch, int count, int place) {
            L::store(row(b) + ch, cpu::load<V>(out[0] + place), count);
            if (!PRODUCT_VALUE || t < 0) return;
            const V q = cpu::load<V>(out[PRODUCT_VALUE ? VALUE : 0] + place);
            L::store(value(b, t) + ch, q, count);
            add(parts(s) + b * W, q * L::load(h + b * stride + ch, count));
          });
        });
    if (!PRODUCT_VALUE || t < 0) return;
    for (int64_t b = s.rows0; b < s.rows1; b++)
      partial(t & 1, s.me, b)[a.slots] = L::sum(cpu::load<V>(parts(s) + b * W));
  }
  // The scores of the first read.
  void first_scores(const Share& s) const {
    for (int64_t b = s.rows0; b < s.rows1; b++) score(s, 1, b, state(a.first, b), working());
  }
  // The weights of the write of step t and those of the next read, from the sums over channels.
  void attend_all(const Share& s, int64_t t) const {
    for (int64_t b = s.rows0; b < s.rows1; b++) {
      T *read = kept(s, READ, b), *write = kept(s, WRITE, b);
      T* scores = parts(s);
      for (int64_t k = 0; k < a.slots; k++) scores[k] = total(s, t & 1, b, k);
      if (t >= 0) {
        attend(scores, write);
        const T of_value = total(s, t & 1, b, a.slots);
        for (int64_t k = 0; k < a.slots; k++)
          scores[k] = tape::next_score(scores[k], write[k], of_value);
      }
      if (reset(b, t + 1)) std::fill(scores, scores + a.slots, T(0));
      attend(scores, read);
      if (!a.weights || s.begin) continue;  // one of those that own the row keeps them
      if (t >= 0) std::memcpy(weights(b, t, WRITE), write, a.slots * sizeof(T));
      if (t + 1 < a.steps) std::memcpy(weights(b, t + 1, READ), read, a.slots * sizeof(T));
    }
  }
  // The write of step t.
  void write(const Share& s, int64_t t) const {
    for (int64_t b = s.rows0; b < s.rows1; b++)
      rewrite(s, b, t, kept(s, WRITE, b), working(), working());
  }
  // The tape after step t from the tape before it.
  HD void rewrite(const Share& s, int64_t b, int64_t t, const T* w, T* from, T* to) const {
    const int64_t slots = a.slots;
    own(s, b, [&](int64_t ch, int n) {
      const V q = L::load(value(b, t) + ch, n);
      const T* m = slots_at(from, b, ch);
      T* m_new = slots_at(to, b, ch);
      for (int64_t k = 0; k < slots; k++)
        cpu::store(m_new + k * W, tape::written(cpu::load<V>(m + k * W), w[k], q));
    });
  }
  // The write of step t - 1, the read of step t, its new state and the scores of that.
  template <bool WRITES>
  void read(const Share& s, int64_t t) const {
    const int64_t slots = a.slots;
    for (int64_t b = s.rows0; b < s.rows1; b++) {
      const T *r = kept(s, READ, b), *w = kept(s, WRITE, b);
      T* y = sequence(a.y, b, t);
      V square = {};
      const bool anew = reset(b, t);
      own(s, b, [&](int64_t ch, int n) {
        T* m = slots_at(working(), b, ch);
        const V q = WRITES ? L::load(value(b, t - 1) + ch, n) : V{};
        V sum = {};
        for (int64_t k = 0; k < slots; k++) {
          V one = cpu::load<V>(m + k * W);
          if (WRITES) one = tape::written(one, w[k], q);
          if (anew) one = V{};
          if (WRITES || RESETS) cpu::store(m + k * W, one);
          sum += r[k] * one;
        }
        const V product = anew ? V{} : L::load(row(b) + ch, n);
        const V pre = L::load(sequence(a.x, b, t) + ch, n) + product;
        const V h = tape::state(pre, sum);
        L::store(y + ch, h, n);
        square += h * h;  // lanes without a channel are 0
      });
      score(s, t & 1, b, y, working());
      if (!PRODUCT_VALUE) partial(t & 1, s.me, b)[slots] = L::sum(square);
    }
  }
  void forward_step(cpu::Team& team, const Share& s, int64_t t) const {
    t ? read<true>(s, t) : read<false>(s, t);
    if (a.interval && t && t % a.interval == 0) give(s, working(), checkpoint(t));
    team.meet(s.me, s.of);
    multiply(s, t);
    if (PRODUCT_VALUE) team.meet(s.me, s.of);
    attend_all(s, t);
  }

  // ---- backward ----

  // The tapes of the segment that begins at `start`, and the one behind it.
  void replay(const Share& s, int64_t start) const {
    take(s, checkpoint(start), replayed(start, start));
    for (int64_t b = s.rows0; b < s.rows1; b++)
      if (reset(b, start)) clear(s, b, replayed(start, start));
    const int64_t end = start + a.interval < a.steps ? start + a.interval : a.steps - 1;
    for (int64_t t = start; t < end; t++)
      for (int64_t b = s.rows0; b < s.rows1; b++)
        if (reset(b, t + 1))
          clear(s, b, replayed(t + 1, start));
        else
          rewrite(s, b, t, weights(b, t, WRITE), replayed(t, start), replayed(t + 1, start));
  }
  // What the read of step t + 1 adds to the tape's gradient, and passes on to the state before it
  // by its scores, which is returned. Adds w_n dM_n of every slot to dq. LAST: there is no such
  // step. Where that step has a reset, nothing goes back.
  template <bool LAST>
  HD V read_bwd(const Share& s, int64_t b, int64_t t, int64_t ch, int n, const T* m_next,
                const T* w, V& dq) const {
    const T* r = LAST ? nullptr : weights(b, t + 1, READ);
    const T* dscore = kept(s, READ, b);
    const V delta = LAST ? V{} : L::load(sequence(a.dx, b, t + 1) + ch, n);
    const V h = L::load(before(b, t + 1) + ch, n);
    T* g = slots_at(working(), b, ch);
    V carried = LAST && a.dlast ? L::load(state(a.dlast, b) + ch, n) : V{};
    const bool anew = reset(b, t + 1);
    for (int64_t k = 0, slots = a.slots; k < slots; k++) {
      V one = cpu::load<V>(g + k * W);
      if constexpr (!LAST) {
        carried += dscore[k] * cpu::load<V>(m_next + k * W);
        one = anew ? V{} : tape::read_bwd(one, r[k], delta, dscore[k], h);
        cpu::store(g + k * W, one);
      }
      dq += w[k] * one;
    }
    return anew ? V{} : carried;
  }
  // The gradients of the value of step t and, in part, of the weights that it is written with.
  template <bool LAST>
  void value_bwd(const Share& s, int64_t t, int64_t start) const {
    const int64_t slots = a.slots;
    for (int64_t b = s.rows0; b < s.rows1; b++) {
      const T *w = weights(b, t, WRITE), *q = value(b, t);
      own(s, b, [&](int64_t ch, int n) {
        const T* m_next = LAST ? nullptr : slots_at(replayed(t + 1, start), b, ch);
        V dq = {}, carried = read_bwd<LAST>(s, b, t, ch, n, m_next, w, dq);
        if (LAST) L::store(pull(b, t) + ch, V{}, n);
        T* to = pull(b, t) + (PRODUCT_VALUE ? VALUE : 0) * a.channels + ch;
        if (VALUE > 0) L::store(to, dq, n);
        if (VALUE == 0) L::store(to, L::load(to, n) + dq, n);
        if (!PRODUCT_VALUE) carried += dq;
        L::store(row(b) + ch, carried, n);
      });
      const T *g = slots_at(working(), b, 0), *m = slots_at(replayed(t, start), b, 0);
      sum_slots(s, partial(WRITE, s.me, b), [=](int64_t ch, int n) {
        const V q_there = L::load(q + ch, n);
        return [=](int64_t k) {
          const int64_t at = ch * slots + k * W;
          return cpu::load<V>(g + at) * (q_there - cpu::load<V>(m + at));
        };
      });
    }
  }
  // Adds to row() the gradient that reaches the state after step t through its products.
  void multiply_bwd(const Share& s, int64_t t) const {
    const int64_t stride = t < 0 ? products() : a.steps * products();
    Product::template run<1>(
        pull(0, t), stride, packed(), products(), s.rows0, s.rows1, s.begin, s.end,
        [&](int64_t r, int n_rows, int64_t c, int n, const auto& out) {
          each(r, n_rows, c, n, [&](int64_t b, int64_t ch, int count, int place) {
            T* to = row(b) + ch;
            L::store(to, L::load(to, count) + cpu::load<V>(out[0] + place), count);
          });
        });
  }
  // From the gradient of the state after step t to that of its input, and what comes before both.
  void state_bwd(const Share& s, int64_t t, int64_t start) const {
    const int64_t slots = a.slots;
    for (int64_t b = s.rows0; b < s.rows1; b++) {
      const T *w = weights(b, t, WRITE), *dscore = kept(s, WRITE, b);
      own(s, b, [&](int64_t ch, int n) {
        const T* m = slots_at(replayed(t, start), b, ch);
        T* g = slots_at(working(), b, ch);
        const V h = L::load(sequence(a.y, b, t) + ch, n);
        V e = L::load(row(b) + ch, n);
        if (a.dy) e += L::load(sequence(a.dy, b, t) + ch, n);
        for (int64_t k = 0; k < slots; k++) {
          e += dscore[k] * cpu::load<V>(m + k * W);
          const V one = tape::written_bwd(cpu::load<V>(g + k * W), w[k], dscore[k], h);
          cpu::store(g + k * W, one);
        }
        const V delta = tape::state_bwd(h, e);
        L::store(sequence(a.dx, b, t) + ch, delta, n);
        L::store(pull(b, t - 1) + ch, reset(b, t) ? V{} : delta, n);
      });
      score(s, READ, b, sequence(a.dx, b, t), replayed(t, start));
    }
  }
  void backward_step(cpu::Team& team, const Share& s, int64_t t) const {
    const int64_t start = t / a.interval * a.interval;
    const bool last = t + 1 == a.steps;
    if (last || (t + 1) % a.interval == 0) replay(s, start);
    last ? value_bwd<true>(s, t, start) : value_bwd<false>(s, t, start);
    team.meet(s.me, s.of);
    scores_bwd(s, t, WRITE);
    multiply_bwd(s, t);
    state_bwd(s, t, start);
    team.meet(s.me, s.of);
    scores_bwd(s, t, READ);
  }
  // The gradients of the first tape and the first state.
  void finish_bwd(const Share& s) const {
    for (int64_t b = s.rows0; b < s.rows1; b++)
      own(s, b, [&](int64_t ch, int n) {
        const T* m = slots_at(replayed(0, 0), b, ch);
        V none = {};
        L::store(row(b) + ch, read_bwd<false>(s, b, -1, ch, n, m, weights(b, 0, READ), none), n);
      });
    multiply_bwd(s, -1);
    give(s, working(), static_cast<T*>(a.dtape));
    for (int64_t b = s.rows0; b < s.rows1; b++)
      own(s, b, [&](int64_t ch, int n) {
        L::store(state(a.dfirst, b) + ch, L::load(row(b) + ch, n), n);
      });
  }

  // ---- the call ----

  Share share(int64_t me, int64_t of) const {
    if (sharing.by_rows)
      return {me, 1, cpu::cut(a.batch, 1, me, of), cpu::cut(a.batch, 1, me + 1, of), 0, a.channels};
    return {
        me, of, 0, a.batch, cpu::cut(a.channels, W, me, of), cpu::cut(a.channels, W, me + 1, of)};
  }
  Places laid_out() const {
    int64_t end = 0;
    const auto take = [&](int64_t numbers) {
      const int64_t begin = end;
      end += cpu::up(numbers, LINE);
      return begin;
    };
    const int64_t tapes = is_backward() ? a.interval + 1 : 0;
    Places p;
    p.packed = take(products() * wide);
    p.rows = take(a.batch * wide);
    p.values = take(PRODUCT_VALUE && !a.values ? a.batch * wide : 0);
    p.tape = take(tape_size());
    p.segment = take(tapes * tape_size());
    p.sums = take(2 * a.threads * a.batch * sum_size());
    p.weights = take(2 * a.threads * a.batch * sum_size());
    p.parts = take(a.threads * parts_size());
    p.first = take(is_backward() ? a.batch * products() : 0);
    p.end = end;
    return p;
  }
  // Each thread packs the columns that it owns; by rows, the first packs all for everybody.
  template <bool TRANSPOSED>
  void pack(cpu::Team& team, const Share& s, int64_t of) const {
    const int64_t k = TRANSPOSED ? a.channels : products();
    if (!sharing.by_rows || s.me == 0)
      Product::template pack<TRANSPOSED>(static_cast<const T*>(a.matrix), packed(), k, a.channels,
                                         TRANSPOSED ? BLOCKS : 1, s.begin, s.end);
    team.meet(s.me, of);
  }

 public:
  explicit TapeEngine(const TapeArgs& args) : a(args) {
    wide = cpu::up(a.channels, W);
    scale = T(1) / std::sqrt(T(a.channels));
    sharing = cpu::Sharing::of(a.threads, a.batch, Product::ROWS, products() * a.channels,
                               sizeof(T), wide / W);
    places = laid_out();
  }
  int64_t workspace_bytes() const { return places.end * int64_t(sizeof(T)); }
  void forward() const {
    cpu::with_team(sharing.threads, [&](cpu::Team& team, int64_t me, int64_t of) {
      const Share s = share(me, of);
      take(s, static_cast<const T*>(a.tape), working());
      pack<true>(team, s, of);
      first_scores(s);
      multiply(s, -1);
      team.meet(s.me, s.of);
      attend_all(s, -1);
      for (int64_t t = 0; t < a.steps; t++) forward_step(team, s, t);
      write(s, a.steps - 1);
      give(s, working(), static_cast<T*>(a.last_tape));
    });
    for (int64_t b = 0; b < a.batch; b++)
      std::memcpy(state(a.last, b), sequence(a.y, b, a.steps - 1), a.channels * sizeof(T));
  }
  void backward() const {
    if (BLOCKS > 1) std::memset(pull(0, -1), 0, a.batch * products() * sizeof(T));
    cpu::with_team(sharing.threads, [&](cpu::Team& team, int64_t me, int64_t of) {
      const Share s = share(me, of);
      take(s, static_cast<const T*>(a.dlast_tape), working());
      pack<false>(team, s, of);
      for (int64_t t = a.steps - 1; t >= 0; t--) backward_step(team, s, t);
      finish_bwd(s);
    });
  }
};

}  // namespace elman

// The C interface of one Spec.
#define ELMAN_TAPE(NAME, SPEC)                                    \
  extern "C" void NAME##_forward(const elman::TapeArgs* a) {      \
    elman::TapeEngine<SPEC>(*a).forward();                        \
  }                                                               \
  extern "C" void NAME##_backward(const elman::TapeArgs* a) {     \
    elman::TapeEngine<SPEC>(*a).backward();                       \
  }                                                               \
  extern "C" int64_t NAME##_workspace(const elman::TapeArgs* a) { \
    return elman::TapeEngine<SPEC>(*a).workspace_bytes();         \
  }
