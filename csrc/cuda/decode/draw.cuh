// One byte of every text, drawn from its logits: divided by the temperature, cut to the top_k most
// probable and to the smallest set of these with the probability top_p. The numbers that are left
// stand on a line in the order of their probability, and a uniform number is a place on it. A block
// has a text. A thread has a value and finds its rank: a warp orders its values, a run, and then
// each value looks for its place in all other runs at once, by bisection. Then a thread has a place
// on the line. Sums are those of a tree over the lanes of a warp, and in order over the warps: so
// no end is before the end of the place before.
#pragma once
#include "cells/math.h"
#include "cuda/common/pack.cuh"

namespace elman {

// How values are chosen.
struct Sampling {
  long long top_k;
  float temperature, top_p;  // as they are used: a draw has no time to round them
};

// Contiguous tensors: logits [texts, V]; uniform [steps, texts]; place [1], the step; last [texts];
// drawn [steps, texts].
struct DrawArgs {
  const void *logits, *uniform, *place;
  void *last, *drawn;
  long long texts;
  Sampling sampling;
};

template <class Number_, int V_>
struct DrawTileConfig {
  using Number = Number_;
  static constexpr int V = V_;
  static constexpr int WARPS = (V + 31) / 32, THREADS = 32 * WARPS;
  // What DrawRoom takes of an arena.
  static constexpr int SHARED_BYTES = 16 * THREADS + (4 * WARPS + 15) / 16 * 16 + 16;
};

// What the threads of a block tell each other. A key is smaller the earlier a logit comes; equal
// logits have equal keys, and the smaller value is before.
template <class G>
struct DrawRoom {
  sptr<unsigned> keys;  // of each value
  sptr<unsigned> runs;  // keys of each warp, in order; twice, so that behind the last is the first
  sptr<float> numbers;  // of each place, as the values; where the keys were
  sptr<int> values;
  sptr<float> totals, stop;

  DEVICE explicit DrawRoom(Arena& arena)
      : keys(arena.take<unsigned>(G::THREADS)),
        runs(arena.take<unsigned>(2 * G::THREADS)),
        numbers(cast<float>(keys)),
        values(arena.take<int>(G::THREADS)),
        totals(arena.take<float>(G::WARPS)),
        stop(arena.take<float>(1)) {}
};

// The key of no value: behind those of all, and there is one behind it.
inline constexpr unsigned BEHIND_ALL = 0xfffffffeu;

DEVICE unsigned key_of(float x) {
  const unsigned bits = float_bits(x + 0.0f);  // of one zero, not of two
  return bits >> 31 ? bits : bits ^ 0x7fffffffu;
}
DEVICE float logit_of(unsigned key) { return bits_float(key >> 31 ? key : key ^ 0x7fffffffu); }

// A count in the last bits of an fp32 number: its additions have units of their own, while those of
// integers share one with the comparisons.
struct Count {
  static constexpr float ZERO = 8388608.0f;  // 2^23
  float odd = 0.0f, even = ZERO;
  DEVICE void add(int i, bool one) {
    if (one) (i % 2 ? odd : even) += 1.0f;
  }
  DEVICE int value() const { return (int)(float_bits(odd + even) - float_bits(ZERO)); }
};

// The rank of a lane's key among those of its warp.
DEVICE int rank_in_warp(sptr<unsigned> keys, unsigned key) {
  const int lane = thread_index() % 32, quad = lane / 4 * 4;
  Count rank;
  unsigned other[4];
#pragma unroll
  for (int at = 0; at < 32; at += 4) {
    load_words(other, keys + at);
    const unsigned limit = at < quad ? key + 1 : key;
#pragma unroll
    for (int i = 0; i < 4; i++) rank.add(i, other[i] < limit);
  }
  // Of equal ones in its own quad the lane has not counted any.
  load_words(other, keys + quad);
#pragma unroll
  for (int i = 0; i < 4; i++) rank.add(i, other[i] == key && i < lane - quad);
  return rank.value();
}

// How many values of all other warps are before a key: in all their runs at once, by bisection.
// `next`: the run of the warp behind one's own.
template <class G>
DEVICE int rank_in_others(sptr<unsigned> next, unsigned key, int warp) {
  constexpr int OTHERS = G::WARPS - 1, AT_ONCE = 7;
  // Places are bytes: to scale indices would take as long as to compare keys.
  constexpr int SIZE = 4, RUN = 32 * SIZE;
  const sptr<unsigned char> runs = cast<unsigned char>(next);
  unsigned rank = 0;
#pragma unroll
  for (int first = 0; first < OTHERS; first += AT_ONCE) {
    const int count = OTHERS - first < AT_ONCE ? OTHERS - first : AT_ONCE;
    unsigned found[AT_ONCE], limit[AT_ONCE], other[AT_ONCE];
#pragma unroll
    for (int i = 0; i < count; i++) {
      found[i] = 0;
      limit[i] = first + i + warp < OTHERS ? key : key + 1;
    }
#pragma unroll
    for (int step = 0; step < 6; step++) {
      const int ahead = (step < 5 ? 16 >> step : 1) * SIZE;
#pragma unroll
      for (int i = 0; i < count; i++) {
        const int place = (int)found[i] + (first + i) * RUN + ahead - SIZE;
        other[i] = load_one(cast<unsigned>(runs + place));
      }
#pragma unroll
      for (int i = 0; i < count; i++)
        if (other[i] < limit[i]) found[i] += ahead;
    }
#pragma unroll
    for (int i = 0; i < count; i++) rank += found[i];
  }
  return (int)(rank / SIZE);
}

// On the line: where a place's number begins and ends, and where all end.
struct Ends {
  float before, end, all;
};

// The ends of the thread's place, whose number it has.
template <class G, class Meet>
DEVICE Ends ends_of(float number, sptr<float> totals, const Meet& meet) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  float end = number, total = number, before = 0.0f, all = 0.0f;
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
    const float other = shuffle_xor(total, mask);
    if (lane & mask) end += other;
    total += other;
  }
  if (lane == 0 && warp < G::WARPS) store_one(totals + warp, total);
  const float last = shuffle_xor(end, lane ^ ((lane + 31) & 31));  // of the lane before
  meet();
#pragma unroll
  for (int i = 0; i < G::WARPS; i++) {
    if (i == warp) before = all;
    all += load_one(totals + i);
  }
  // The last lane's end is the total, to the bit.
  return {lane == 0 ? before : before + last, before + end, all};
}

// Draws one value: `read` tells a value's logit, `write` takes the value, in one thread; `meet` is
// a barrier of all threads that come here, THREADS of a block or more. A barrier has to stand
// before the next call.
template <class G, class Read, class Write, class Meet>
DEVICE void draw_one(const DrawRoom<G>& room, const Sampling& how, float uniform, const Read& read,
                     const Write& write, const Meet& meet) {
  // The warp as warp_index tells it: of what follows from thread_index the compiler keeps registers
  // for all of a kernel's steps.
  const int place = thread_index(), warp = warp_index(), first = 32 * warp;
  const bool here = place < G::THREADS, greedy = how.temperature == 0.0f;
  unsigned key = BEHIND_ALL;
  int rank = 0;
  if (here) {
    if (place < G::V) {
      float x = read(place);
      if (!greedy) x = exact_quotient(x, how.temperature);
      // Not a number has no rank; as the least of all it is drawn last.
      key = key_of(x == x ? x : -3.4e38f);
    }
    store_one(room.keys + place, key);
    sync_warp();
    rank = rank_in_warp(room.keys + first, key);
    store_one(room.runs + (first + rank), key);
    store_one(room.runs + (first + rank + G::THREADS), key);
  }
  meet();
  if (here) {
    unsigned most = BEHIND_ALL;
#pragma unroll
    for (int i = 0; i < G::WARPS; i++) {
      const unsigned other = load_one(room.runs + 32 * i);
      most = other < most ? other : most;
    }
    const float number = exact_exp(logit_of(key) - logit_of(most));
    rank += rank_in_others<G>(room.runs + (first + 32), key, warp);
    store_one(room.numbers + rank, number);
    store_one(room.values + rank, place);
  }
  meet();
  if (greedy) {
    if (place == 0) write(load_one(room.values));
    return;
  }
  const int most_kept = how.top_k > 0 && how.top_k < G::V ? (int)how.top_k : G::V;
  const bool kept = place < most_kept, cuts = how.top_p < 1.0f;
  const Ends at = ends_of<G>(kept ? load_one(room.numbers + place) : 0.0f, room.totals, meet);
  // A value stays while the more probable ones have not reached top_p: at least one does.
  const auto reached = [&](float sum) { return cuts && sum >= how.top_p * at.all; };
  const bool stays = kept && (place == 0 || !reached(at.before));
  float stop = at.all;
  if (cuts) {
    if (stays && (place + 1 == most_kept || reached(at.end))) store_one(room.stop, at.end);
    meet();
    stop = load_one(room.stop);
  }
  // The first whose end is not before the point.
  const float point = uniform * stop;
  if (stays && at.end >= point && (place == 0 || at.before < point))
    write(load_one(room.values + place));
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
