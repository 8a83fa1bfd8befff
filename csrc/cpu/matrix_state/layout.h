// How the CPU engine lays out one head's state, and the memory that a thread works in.
//
// Rows of the state stand in SIMD lanes: a block is W rows, stored as N vectors, so that the state
// is read and written without shuffles and a cell's row function runs on whole vectors. M blocks
// are a row tile, run through a segment of K steps at once: their vectors alternate, S[j * M + m].
// Only the gradients of what lives on columns need sums over lanes.
//
// A step waits for the read of the one before it. Where one block is all that a head has, and
// small, the blocks of a row tile are those of several HEADS: each works while the others wait.
#pragma once
#include "abi/matrix_state.h"
#include "cells/matrix_state.h"
#include "cpu/common/simd.h"

namespace elman::cpu {

// Lanes of a block of rows: those that take the fewest vector operations, where narrower vectors
// count as somewhat cheaper (on some CPUs they are, on others not).
template <class T>
constexpr int lanes_for(int rows) {
  constexpr int LEAST = 16 / int(sizeof(T));
  int best = LANES<T>;
  double cost = (rows + best - 1) / best, unit = 1;
  for (int w = LANES<T> / 2; w >= LEAST; w /= 2) {
    unit *= 0.62;
    const double price = (rows + w - 1) / w * unit;
    if (price < cost) best = w, cost = price;
  }
  return best;
}

template <class Spec>
struct Layout {
  using T = typename Spec::State;
  using Cell = typename Spec::Cell;
  static_assert(std::is_same_v<typename Spec::IO, T>, "the CPU engine has one dtype");

  static constexpr int R = Spec::R, N = Spec::N;
  static constexpr int W = lanes_for<T>(R), BLOCKS = (R + W - 1) / W, TAIL = R - (BLOCKS - 1) * W;
  using V = Vector<T, W>;
  static constexpr int HEADS = BLOCKS > 1 || N > 32 ? 1 : (N > 8 ? 2 : 4);
  // Blocks of a row tile, of the last row tile if they do not divide, and row tiles.
  static constexpr int M = HEADS > 1 ? HEADS : (BLOCKS <= 3 ? BLOCKS : 2),
                       LAST = HEADS > 1 ? 0 : BLOCKS % M, ROW_TILES = (BLOCKS + M - 1) / M;
  // Vectors of staged columns, and their number with padding, also for whole vectors of rows.
  static constexpr int WC = lanes_for<T>(N), PAD = WC > W ? WC : W;
  using VC = Vector<T, WC>;
  static constexpr int NP = (N + PAD - 1) / PAD * PAD;

  static constexpr bool COLUMN = Spec::Cell::COLUMN, HAS_Z = COLUMN || Spec::KEY == Key::zk;
  static constexpr bool OWN_KEY = Spec::KEY != Key::k;  // the read's key is not the write's
  static constexpr bool HEAD_DECAY = Cell::DECAYS && Spec::DECAY != Map::none;
  static constexpr bool HEAD_WRITE = Spec::WRITE != Map::none;
  static constexpr bool SCALES = !Cell::KEEP && (!Cell::DECAYS || HEAD_DECAY);  // c is not 1
  static constexpr bool HAS_P[PARAMS] = {Cell::PARAMS > 0,
                                         Cell::PARAMS > 1,
                                         Cell::PARAMS > 2,
                                         Spec::Z_BIAS,
                                         HEAD_DECAY && Spec::DECAY != Map::sigmoid,
                                         HEAD_DECAY && Spec::DECAY == Map::mamba,
                                         Spec::RESIDUAL,
                                         Spec::GATE_BIAS};
  static constexpr int WIDTH[PARAMS] = {R, R, R, N, 1, 1, R, R};
  static constexpr bool ON_ROWS[PARAMS] = {true, true, true, false, false, false, true, true};
};

// Memory handed out piece by piece; from a null start it only counts.
class Arena {
 public:
  explicit Arena(void* start = nullptr) : at(reinterpret_cast<uintptr_t>(start)) {}
  template <class U>
  U* take(int64_t count) {
    at = (at + 63) / 64 * 64;
    U* piece = reinterpret_cast<U*>(at);
    at += count * sizeof(U);
    return piece;
  }
  int64_t used() const { return int64_t(at); }

 private:
  uintptr_t at;
};

// What a thread keeps of a head's columns and numbers, for one segment, and of their gradients.
template <class Spec>
struct HeadScratch : Layout<Spec> {
  using L = Layout<Spec>;
  using T = typename L::T;
  using V = typename L::V;

  // Columns of every step [K + 1][NP], the extra step being the key after the last one; slopes are
  // those of activations. Numbers of the head [K].
  T *q = nullptr, *k = nullptr, *key = nullptr, *z = nullptr, *q_slope = nullptr,
    *k_slope = nullptr, *q_norm = nullptr, *k_norm = nullptr, *decay = nullptr, *write = nullptr;
  T *dq = nullptr, *dk = nullptr, *dkey = nullptr, *dz = nullptr, *ddecay = nullptr,
    *dwrite = nullptr, *dz_bias = nullptr;
  V *ddecay_lanes = nullptr, *dwrite_lanes = nullptr;
  T dnumbers[2] = {};               // of the decay's two parameters
  const uint8_t* resets = nullptr;  // of every step, where there are any

  HeadScratch() = default;
  HeadScratch(Arena& arena, int64_t K, bool backward) {
    auto columns = [&](bool needed) { return needed ? arena.take<T>(K * L::NP) : nullptr; };
    auto numbers = [&](bool needed) { return needed ? arena.take<T>(K) : nullptr; };
    auto lanes = [&](bool needed) { return needed ? arena.take<V>(K) : nullptr; };
    q = columns(true), k = columns(true), z = columns(L::HAS_Z);
    key = L::OWN_KEY ? columns(true) : k;
    q_norm = numbers(Spec::Q_UNIT), k_norm = numbers(Spec::K_UNIT);
    decay = numbers(L::HEAD_DECAY), write = numbers(L::HEAD_WRITE);
    if (!backward) return;
    dq = columns(true), dk = columns(true), dkey = columns(L::OWN_KEY), dz = columns(L::HAS_Z);
    q_slope = columns(Spec::Q_ACT != Act::none), k_slope = columns(Spec::K_ACT != Act::none);
    ddecay = numbers(L::HEAD_DECAY), dwrite = numbers(L::HEAD_WRITE);
    ddecay_lanes = lanes(L::HEAD_DECAY), dwrite_lanes = lanes(L::HEAD_WRITE);
    dz_bias = arena.take<T>(L::NP);
  }
};

// All that a thread works in.
template <class Spec>
struct Scratch : Layout<Spec> {
  using L = Layout<Spec>;
  using T = typename L::T;
  using V = typename L::V;
  static constexpr int BLOCKS = L::HEADS * L::BLOCKS;

  HeadScratch<Spec> head[L::HEADS];
  // Rows of every step, [K][M] of one row tile.
  V *v = nullptr, *g[MAX_GATES] = {}, *y = nullptr, *r = nullptr, *e = nullptr, *c = nullptr,
    *w = nullptr;
  V *v_slope = nullptr, *dy = nullptr, *dv = nullptr, *dg[MAX_GATES] = {};
  // Row parameters [BLOCKS] by their number in Param, and their gradients.
  V *p[PARAMS] = {}, *dp[PARAMS] = {};
  // States [BLOCKS][N], and those of a row tile before and after every step.
  V *S = nullptr, *dS = nullptr, *path = nullptr;
  V* cut = nullptr;  // those of a row tile before a step that begins with resets

  Scratch(Arena& arena, int64_t steps, bool backward) {
    const int64_t K = (steps + LANES<T>) / LANES<T> * LANES<T>;  // steps + 1, in whole vectors
    for (auto& one : head) one = HeadScratch<Spec>(arena, K, backward);
    auto rows = [&](bool needed) { return needed ? arena.take<V>(K * L::M) : nullptr; };
    v = rows(true), y = rows(true), r = rows(L::Cell::READ), e = rows(L::Cell::ENERGY);
    c = rows(true), w = rows(true);
    S = arena.take<V>(BLOCKS * L::N);
    if (Spec::RESETS) cut = arena.take<V>(L::M * L::N);
    for (int i = 0; i < MAX_GATES; i++) g[i] = rows(i < L::Cell::GATES);
    for (int i = 0; i < PARAMS; i++)
      p[i] = L::HAS_P[i] && L::ON_ROWS[i] ? arena.take<V>(BLOCKS) : nullptr;
    if (!backward) return;
    v_slope = rows(Spec::V_ACT != Act::none);
    dy = rows(true), dv = rows(true);
    dS = arena.take<V>(BLOCKS * L::N), path = arena.take<V>((steps + 1) * L::M * L::N);
    for (int i = 0; i < MAX_GATES; i++) dg[i] = rows(i < L::Cell::GATES);
    for (int i = 0; i < PARAMS; i++) dp[i] = p[i] ? arena.take<V>(BLOCKS) : nullptr;
  }
};

}  // namespace elman::cpu
