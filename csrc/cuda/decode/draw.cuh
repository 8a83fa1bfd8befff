// One byte of every text, drawn from its logits: divided by the temperature, cut to the top_k most
// probable and to the smallest set of these with the probability top_p. The numbers that are left
// stand on a line in the order of their probability, and a uniform number is a place on it. A block
// has a text, a thread a value; every thread sums for itself, in one order, so that all agree.
#pragma once
#include "cells/math.h"
#include "cuda/common/pack.cuh"

namespace elman {

// Contiguous tensors: logits [texts, V]; uniform [steps, texts]; place [1], the step; last [texts];
// drawn [steps, texts].
struct DrawArgs {
  const void *logits, *uniform, *place;
  void *last, *drawn;
  long long texts, top_k;
  double temperature, top_p;
};

template <class Number_, int V_>
struct DrawTileConfig {
  using Number = Number_;
  static constexpr int V = V_, WARPS = (V + 31) / 32, THREADS = 32 * WARPS;
};

template <class G>
DEVICE void draw(const DrawArgs& a) {
  constexpr int V = G::V;
  Arena arena;
  const sptr<float> logits = arena.take<float>(V), line = arena.take<float>(V);
  const sptr<int> values = arena.take<int>(V);
  const sptr<float> ends = arena.take<float>(1);
  const long long text = block_index();
  wait_for_predecessor();
  const long long place = load_one((const long long*)a.place);
  const bool greedy = a.temperature == 0.0;
  const int mine = thread_index();
  if (mine < V) {
    float x[1];
    load<1, typename G::Number>(x, (const typename G::Number*)a.logits + text * V + mine);
    const float scaled = greedy ? x[0] : x[0] / (float)a.temperature;
    // Not a number has no rank; as the least of all it is drawn last.
    store_one(logits + mine, scaled == scaled ? scaled : -3.4e38f);
  }
  sync_block();
  // The rank of a value is the number of those before it; of equal ones the smaller is first.
  if (mine < V) {
    const float x = load_one(logits + mine);
    int rank = 0;
    for (int other = 0; other < V; other++) {
      const float y = load_one(logits + other);
      rank += y > x || (y == x && other < mine);
    }
    store_one(values + rank, mine);
  }
  sync_block();
  if (greedy) {
    if (mine == 0) {
      const long long value = load_one(values);
      store_one((long long*)a.last + text, value);
      store_one((long long*)a.drawn + place * a.texts + text, value);
    }
    return;
  }
  const int kept = a.top_k > 0 && a.top_k < V ? (int)a.top_k : V;
  const float most = load_one(logits + load_one(values));
  if (mine < V) {
    const float x = load_one(logits + load_one(values + mine));
    store_one(line + mine, mine < kept ? exp(x - most) : 0.0f);
  }
  sync_block();
  float end = 0.0f, own = 0.0f, all = 0.0f;
  if (mine < V) {
    for (int rank = 0; rank < kept; rank++) {
      const float probability = load_one(line + rank);
      all += probability;
      if (rank <= mine) end += probability;
      if (rank == mine) own = probability;
    }
  }
  // A value stays while the more probable ones have not reached top_p: at least one does.
  const bool stays = mine < kept && (a.top_p >= 1.0 || end - own < (float)a.top_p * all);
  sync_block();
  if (mine < V) store_one(line + mine, stays ? end : -1.0f);
  sync_block();
  if (stays && (mine + 1 == V || load_one(line + (mine + 1 < V ? mine + 1 : mine)) < 0.0f))
    store_one(ends, end);
  sync_block();
  if (!stays) return;
  const float point = load_one((const float*)a.uniform + place * a.texts + text) * load_one(ends);
  // The first whose end is not before the point.
  if (end >= point && (mine == 0 || load_one(line + (mine > 0 ? mine - 1 : 0)) < point)) {
    const long long value = load_one(values + mine);
    store_one((long long*)a.last + text, value);
    store_one((long long*)a.drawn + place * a.texts + text, value);
  }
}

}  // namespace elman
