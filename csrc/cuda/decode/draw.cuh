// One byte of every text, drawn from its logits: divided by the temperature, cut to the top_k most
// probable and to the smallest set of these with the probability top_p. The numbers that are left
// stand on a line in the order of their probability, and a uniform number is a place on it. A block
// has a text, and PARTS threads a value; every thread sums for itself, in one order, so that all
// agree.
#pragma once
#include "cells/math.h"
#include "cuda/common/pack.cuh"

namespace elman {

// How values are chosen.
struct Sampling {
  long long top_k;
  double temperature, top_p;
};

// Contiguous tensors: logits [texts, V]; uniform [steps, texts]; place [1], the step; last [texts];
// drawn [steps, texts].
struct DrawArgs {
  const void *logits, *uniform, *place;
  void *last, *drawn;
  long long texts;
  Sampling sampling;
};

template <class Number_, int V_, int PARTS_ = 1>
struct DrawTileConfig {
  using Number = Number_;
  static constexpr int V = V_, PARTS = PARTS_;
  static constexpr int WARPS = (V * PARTS + 31) / 32, THREADS = 32 * WARPS;
  static_assert(32 % PARTS == 0, "a warp has all parts of a value");
};

// What the threads of a block tell each other.
template <class G>
struct DrawRoom {
  sptr<float> logits, line;
  sptr<int> values;
  sptr<float> ends;

  DEVICE explicit DrawRoom(Arena& arena)
      : logits(arena.take<float>(G::V)),
        line(arena.take<float>(G::V)),
        values(arena.take<int>(G::V)),
        ends(arena.take<float>(1)) {}
};

// How many logits of every PARTS-th value are such, from `begin` on.
template <class G, class Such>
DEVICE int count(const DrawRoom<G>& room, int begin, int end, const Such& such) {
  int n = 0;
#pragma unroll 8
  for (int value = begin; value < end; value += G::PARTS)
    n += such(load_one(room.logits + value), value);
  return n;
}

// Draws one value: `read` tells a value's logit, `write` takes the value, in one thread. All
// threads of a block come here, THREADS or more of them; a barrier has to stand before the next
// call.
template <class G, class Read, class Write>
DEVICE void draw_one(const DrawRoom<G>& room, const Sampling& how, float uniform, const Read& read,
                     const Write& write) {
  constexpr int V = G::V, PARTS = G::PARTS;
  const bool greedy = how.temperature == 0.0;
  const int mine = thread_index() / PARTS, part = thread_index() % PARTS;
  const bool first = mine < V && part == 0;
  if (first) {
    const float x = read(mine), scaled = greedy ? x : exact_quotient(x, (float)how.temperature);
    // Not a number has no rank; as the least of all it is drawn last.
    store_one(room.logits + mine, scaled == scaled ? scaled : -3.4e38f);
  }
  sync_block();
  // The rank of a value is the number of those before it; of equal ones the smaller is first.
  const float x = mine < V ? load_one(room.logits + mine) : 0.0f;
  int rank = 0;
  if (mine < V) {
    // Which of two is smaller has to be asked of the values of this warp alone.
    const int low = thread_index() / 32 * 32 / PARTS;
    const int high = low + 32 / PARTS < V ? low + 32 / PARTS : V;
    rank = count<G>(room, part, low, [&](float y, int) { return y >= x; }) +
           count<G>(room, high + part, V, [&](float y, int) { return y > x; }) +
           count<G>(room, low + part, high,
                    [&](float y, int other) { return y > x || (y == x && other < mine); });
  }
#pragma unroll
  for (int mask = 1; mask < PARTS; mask *= 2) rank += shuffle_xor(rank, mask);
  if (first) store_one(room.values + rank, mine);
  sync_block();
  if (greedy) {
    if (thread_index() == 0) write(load_one(room.values));
    return;
  }
  const int kept = how.top_k > 0 && how.top_k < V ? (int)how.top_k : V;
  const float most = load_one(room.logits + load_one(room.values));
  if (first) {
    const float y = load_one(room.logits + load_one(room.values + mine));
    store_one(room.line + mine, mine < kept ? exact_exp(y - most) : 0.0f);
  }
  sync_block();
  float end = 0.0f, own = 0.0f, all = 0.0f;
  if (first && mine < kept) {
#pragma unroll 8
    for (int rank = 0; rank < kept; rank++) {
      const float probability = load_one(room.line + rank);
      all += probability;
      if (rank <= mine) end += probability;
      if (rank == mine) own = probability;
    }
  }
  // A value stays while the more probable ones have not reached top_p: at least one does.
  const bool stays =
      first && mine < kept && (how.top_p >= 1.0 || end - own < (float)how.top_p * all);
  sync_block();
  if (first) store_one(room.line + mine, stays ? end : -1.0f);
  sync_block();
  if (stays && (mine + 1 == V || load_one(room.line + (mine + 1 < V ? mine + 1 : mine)) < 0.0f))
    store_one(room.ends, end);
  sync_block();
  if (!stays) return;
  const float point = uniform * load_one(room.ends);
  // The first whose end is not before the point.
  if (end >= point && (mine == 0 || load_one(room.line + (mine > 0 ? mine - 1 : 0)) < point))
    write(load_one(room.values + mine));
}

template <class G>
DEVICE void draw(const DrawArgs& a) {
  Arena arena;
  const DrawRoom<G> room(arena);
  const long long text = block_index();
  wait_for_predecessor();
  const long long at = load_one((const long long*)a.place) * a.texts + text;
  const auto logit = [&](int value) {
    float x[1];
    load<1, typename G::Number>(x, (const typename G::Number*)a.logits + text * G::V + value);
    return x[0];
  };
  draw_one<G>(room, a.sampling, load_one((const float*)a.uniform + at), logit, [&](int value) {
    store_one((long long*)a.last + text, (long long)value);
    store_one((long long*)a.drawn + at, (long long)value);
  });
}

}  // namespace elman
