// One byte of every text, drawn from its logits: divided by the temperature, cut to the top_k most
// probable and to the smallest set of these with the probability top_p. The numbers that are left
// stand on a line in the order of their probability, and a uniform number is a place on it. A block
// has a text. PARTS threads find the rank of a value, and then a thread has a place on the line.
// Sums are those of a tree over the lanes of a warp, and in order over the warps: so no end is
// before the end of the place before.
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
  static constexpr int PLACED = (V + 31) / 32;   // warps with a place on the line
  static constexpr int QUADS = (V + 3) / 4 * 4;  // values, as vectors of four
  static constexpr int HERE = 32 / PARTS;        // values of a warp
  static_assert(32 % PARTS == 0 && HERE % 4 == 0, "a warp has all parts of a value");
};

// What the threads of a block tell each other.
template <class G>
struct DrawRoom {
  sptr<float> logits, ordered, line;
  sptr<int> values;
  sptr<float> totals, stop;

  DEVICE explicit DrawRoom(Arena& arena)
      : logits(arena.take<float>(G::QUADS)),
        ordered(arena.take<float>(G::V)),
        line(arena.take<float>(G::V)),
        values(arena.take<int>(G::V)),
        totals(arena.take<float>(G::PLACED)),
        stop(arena.take<float>(1)) {}
};

// How many of some values are before a value; of equal ones the smaller is first. SIDE: whether
// they are all smaller (-1) or larger (1) than it, or may be either.
template <class G, int SIDE>
DEVICE int count_before(sptr<float> logits, float x, int mine, int from, int to) {
  int count = 0;
#pragma unroll 4
  for (int at = from; at < to; at += 4 * G::PARTS) {
    float y[4];
    load<4, float>(y, logits + at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const bool smaller = SIDE < 0 || (SIDE == 0 && at + i < mine);
      count += y[i] > x || (smaller && y[i] == x);
    }
  }
  return count;
}

// The rank of a value, as far as a part of the others tells it.
template <class G>
DEVICE int rank_of(sptr<float> logits, float x, int mine, int part) {
  // Only among the values of a warp itself does a lane have to ask who is the smaller.
  const int low = mine / G::HERE * G::HERE, own = 4 * part;
  const int high = low + G::HERE < G::QUADS ? low + G::HERE : G::QUADS;
  return count_before<G, -1>(logits, x, mine, own, low) +
         count_before<G, 0>(logits, x, mine, low + own, high) +
         count_before<G, 1>(logits, x, mine, high + own, G::QUADS);
}

// The end of a place's number on the line; `all` becomes the sum of all numbers. A number is that
// of the thread's place.
template <class G, class Meet>
DEVICE float end_of(float number, sptr<float> totals, float& all, const Meet& meet) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  float end = number, total = number, before = 0.0f;
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
    const float other = shuffle_xor(total, mask);
    if (lane & mask) end += other;
    total += other;
  }
  if (lane == 0 && warp < G::PLACED) store_one(totals + warp, total);
  meet();
  all = 0.0f;
#pragma unroll
  for (int i = 0; i < G::PLACED; i++) {
    if (i == warp) before = all;
    all += load_one(totals + i);
  }
  return before + end;
}

// Draws one value: `read` tells a value's logit, `write` takes the value, in one thread; `meet` is
// a barrier of all threads that come here, THREADS of a block or more. A barrier has to stand
// before the next call.
template <class G, class Read, class Write, class Meet>
DEVICE void draw_one(const DrawRoom<G>& room, const Sampling& how, float uniform, const Read& read,
                     const Write& write, const Meet& meet) {
  constexpr int V = G::V, PARTS = G::PARTS;
  const bool greedy = how.temperature == 0.0;
  const int place = thread_index(), mine = place / PARTS, part = place % PARTS;
  if (place < G::QUADS) {
    float x = bits_float(0xff800000u);  // before nobody
    if (place < V) {
      x = read(place);
      if (!greedy) x = exact_quotient(x, (float)how.temperature);
      // Not a number has no rank; as the least of all it is drawn last.
      if (x != x) x = -3.4e38f;
    }
    store_one(room.logits + place, x);
  }
  meet();
  const float x = mine < V ? load_one(room.logits + mine) : 0.0f;
  int rank = mine < V ? rank_of<G>(room.logits, x, mine, part) : 0;
#pragma unroll
  for (int mask = 1; mask < PARTS; mask *= 2) rank += shuffle_xor(rank, mask);
  if (mine < V && part == 0) {
    store_one(room.values + rank, mine);
    store_one(room.ordered + rank, x);
  }
  meet();
  if (greedy) {
    if (place == 0) write(load_one(room.values));
    return;
  }
  const int kept = how.top_k > 0 && how.top_k < V ? (int)how.top_k : V;
  const float most = load_one(room.ordered);
  float all;
  const float end =
      end_of<G>(place < kept ? exact_exp(load_one(room.ordered + place) - most) : 0.0f, room.totals,
                all, meet);
  if (place < kept) store_one(room.line + place, end);
  meet();
  const float before = place > 0 && place < kept ? load_one(room.line + (place - 1)) : 0.0f;
  // A value stays while the more probable ones have not reached top_p: at least one does.
  const auto reached = [&](float sum) { return how.top_p < 1.0 && sum >= (float)how.top_p * all; };
  const bool stays = place < kept && (place == 0 || !reached(before));
  float stop = all;
  if (how.top_p < 1.0) {
    if (stays && (place + 1 == kept || reached(end))) store_one(room.stop, end);
    meet();
    stop = load_one(room.stop);
  }
  // The first whose end is not before the point.
  const float point = uniform * stop;
  if (stays && end >= point && (place == 0 || before < point)) write(load_one(room.values + place));
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
  const auto write = [&](int value) {
    store_one((long long*)a.last + text, (long long)value);
    store_one((long long*)a.drawn + at, (long long)value);
  };
  draw_one<G>(room, a.sampling, load_one((const float*)a.uniform + at), logit, write,
              [] { sync_block(); });
}

}  // namespace elman
