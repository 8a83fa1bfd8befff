// A lane's piece of the state, TALL rows of COLUMNS numbers: which numbers it holds, how it reads
// vectors over the columns, how its sums meet those of other lanes.
#pragma once
#include "cuda/matrix_state/inputs.cuh"

namespace elman {

// With ORDER a lane holds its columns in the order that halve() wants: register j is number
// j ^ order of the lane's columns.
template <class G, bool ORDER>
struct Lane {
  using A = typename G::A;
  static constexpr int C = G::COLUMNS, V = G::VECTOR, TALL = G::TALL;
  int lane, part, order;  // part: which of the lanes of a row
  int tile_row, row;      // the first of the lane's rows, in the row tile and in the head

  DEVICE explicit Lane(const Place& at) {
    const int thread = state_thread<G>();
    lane = thread % 32;
    part = lane % G::LANES;
    tile_row = thread / 32 * G::WARP_ROWS + lane / G::LANES * TALL;
    row = at.row_tile * G::ROWS + tile_row;
    order = 0;
    if constexpr (ORDER) {
#pragma unroll
      for (int stage = 0; stage < G::SWAPS; stage++)
        if (lane & 16 >> stage) order ^= C >> (stage + 1);
    }
  }

  // Whether the head has a row of the lane.
  DEVICE bool live(int i) const { return row + i < G::R; }

  // First column of the lane's vector m.
  DEVICE int first(int m) const { return ((m ^ order / V) * G::LANES + part) * V; }
  // Column of register j.
  DEVICE int column(int j) const { return first(j / V) + (j % V ^ order % V); }

  // Reads this lane's numbers of one step out of a vector over the columns.
  template <class T>
  DEVICE void read(A* x, sptr<T> array, int step) const {
    int copy = 0;
    if constexpr (ORDER && G::COPIES > 1) copy = order % V / (V / G::COPIES);
    const sptr<T> numbers = array + (copy * G::COPY_STRIDE + step * G::WIDTH);
#pragma unroll
    for (int m = 0; m < C / V; m++) load<V, T>(x + m * V, numbers + first(m));
  }

  // Sums over the lanes of a row, for each of the lane's rows.
  static DEVICE void row_sums(A (&x)[TALL]) {
    if constexpr (G::LANES == 4 && TALL == 1) {
      // The same sum to the bit; one more shuffle, but none of them waits for another.
      const A next = shuffle_xor(x[0], 1), others = shuffle_xor(x[0], 2);
      x[0] = (x[0] + next) + (others + shuffle_xor(x[0], 3));
    } else {
#pragma unroll
      for (int mask = 1; mask < G::LANES; mask *= 2) {
#pragma unroll
        for (int i = 0; i < TALL; i++) x[i] += shuffle_xor(x[i], mask);
      }
    }
  }

  // Reads and writes numbers of the lane's rows, [step][row] with STRIDE numbers from step to step.
  template <int STRIDE = G::ROWS>
  DEVICE void read_rows(A (&x)[TALL], sptr<A> array, int step) const {
    constexpr int N = is_power(TALL) ? TALL : 1;
#pragma unroll
    for (int i = 0; i < TALL; i += N)
      elman::load<N, A>(x + i, array + (step * STRIDE + tile_row + i));
  }
  template <int STRIDE = G::ROWS>
  DEVICE void put_rows(sptr<A> array, int step, const A (&x)[TALL]) const {
    constexpr int N = is_power(TALL) ? TALL : 1;
#pragma unroll
    for (int i = 0; i < TALL; i += N)
      elman::store<N, A>(array + (step * STRIDE + tile_row + i), x + i);
  }

  // ---- a lane's piece of a whole state [R, N] in global memory

  // `numbers` is the state's first number.
  template <class T>
  DEVICE void load_state(A* S, const T* numbers) const {
#pragma unroll
    for (int i = 0; i < TALL; i++) load_row(S + i * C, numbers + (row + i) * G::N, live(i));
  }

  template <class T>
  DEVICE void load_row(A* S, const T* numbers, bool live) const {
#pragma unroll
    for (int m = 0; m < C / V; m++) {
      A* x = S + m * V;
      if constexpr (G::N % V == 0 && sizeof(T) * V == 8 && sizeof(T) == 2) {
        unsigned w[2] = {0, 0};
        if (live && inside(m)) load_words(w, numbers + first(m));
        reorder_words(w);
        unpack<V, T>(x, w);
      } else if constexpr (G::N % V == 0) {
#pragma unroll
        for (int e = 0; e < V; e++) x[e] = A(0);
        if (live && inside(m)) elman::load<V, T>(x, numbers + first(m));
        reorder(x);
      } else {
#pragma unroll
        for (int e = 0; e < V; e++) {
          x[e] = A(0);
          if (live && first(m) + e < G::N) elman::load<1, T>(x + e, numbers + (first(m) + e));
        }
        reorder(x);
      }
    }
  }

  // Starts copying this lane's piece into shared memory, vector n of it to to(n), where T is such
  // that a vector is copied at once; unpack_state() makes the registers of what has come.
  template <class T, class To>
  DEVICE void copy_state(const To& to, const T* numbers) const {
    constexpr int BYTES = V * sizeof(T);
#pragma unroll
    for (int i = 0; i < TALL; i++) {
#pragma unroll
      for (int m = 0; m < C / V; m++) {
        const bool there = live(i) && inside(m);
        copy_async<BYTES>(to(i * (C / V) + m), numbers + (there ? (row + i) * G::N + first(m) : 0),
                          there ? BYTES : 0);
      }
    }
  }

  DEVICE void unpack_state(A* S) const {
#pragma unroll
    for (int m = 0; m < TALL * C / V; m++) reorder(S + m * V);
  }

  DEVICE bool inside(int m) const { return G::WIDTH == G::N || first(m) < G::N; }

  template <class T>
  DEVICE void store_state(T* numbers, const A* S) const {
#pragma unroll
    for (int i = 0; i < TALL; i++) store_row(numbers + (row + i) * G::N, S + i * C, live(i));
  }

  template <class T>
  DEVICE void store_row(T* numbers, const A* S, bool live) const {
#pragma unroll
    for (int m = 0; m < C / V; m++) {
      A x[V];
#pragma unroll
      for (int e = 0; e < V; e++) x[e] = S[m * V + e];
      reorder(x);
      if constexpr (G::N % V == 0) {
        if (live && inside(m)) elman::store<V, T>(numbers + first(m), x);
      } else {
#pragma unroll
        for (int e = 0; e < V; e++)
          if (live && first(m) + e < G::N) elman::store<1, T>(numbers + (first(m) + e), x + e);
      }
    }
  }

  // Between the order of memory and that of the registers, within a vector.
  DEVICE void reorder(A* x) const {
    if constexpr (ORDER) {
#pragma unroll
      for (int bit = 1; bit < V; bit *= 2) {
        const bool swapped = order & bit;
#pragma unroll
        for (int e = 0; e < V; e++) {
          if (e & bit) continue;
          const A low = x[e], high = x[e + bit];
          x[e] = swapped ? high : low;
          x[e + bit] = swapped ? low : high;
        }
      }
    }
  }

  // The same of four numbers of 16 bits.
  DEVICE void reorder_words(unsigned (&w)[2]) const {
    if constexpr (ORDER && G::COPIES > 1) {
      const unsigned low = w[0], high = w[1];
      w[0] = exchange_halves(order & 2 ? high : low, order & 1);
      w[1] = exchange_halves(order & 2 ? low : high, order & 1);
    }
  }

  // ---- sums over the rows of a warp

  // Which of the numbers that halve() leaves to a lane are its own: registers 0 ... count - 1, for
  // its columns `begin` and on (in the order of the lane's registers); none where another lane
  // holds the same.
  struct Share {
    int begin, count;
  };

  // Sums vectors, one number per column of this lane, over the rows of the warp: every lane is left
  // with the sums for a share of the columns, in the first registers.
  template <int COUNT>
  DEVICE Share halve(A (&x)[COUNT][C]) const {
    Share share = {0, C};
    halve_stage<C, 16>(x, share);
    return share;
  }

  template <int NUMBERS, int MASK, int COUNT>
  DEVICE void halve_stage(A (&x)[COUNT][C], Share& share) const {
    if constexpr (MASK >= G::LANES) {
      constexpr int HALF = ceil_div(NUMBERS, 2);
      const bool upper = lane & MASK;
#pragma unroll
      for (int n = 0; n < COUNT; n++) {
#pragma unroll
        for (int i = 0; i < HALF; i++) {
          if constexpr (NUMBERS == 1) {
            x[n][0] += shuffle_xor(x[n][0], MASK);
          } else if constexpr (G::ORDERED) {
            x[n][i] += shuffle_xor(x[n][i + HALF], MASK);
          } else {
            const A low = x[n][i], high = i + HALF < NUMBERS ? x[n][i + HALF] : A(0);
            x[n][i] = (upper ? high : low) + shuffle_xor(upper ? low : high, MASK);
          }
        }
      }
      if constexpr (NUMBERS == 1) {
        if (upper) share.count = 0;
      } else if constexpr (G::ORDERED) {
        share.count = HALF;
      } else {
        share.begin += upper ? HALF : 0;
        share.count = upper ? share.count - HALF : least(share.count, HALF);
      }
      halve_stage<HALF, MASK / 2>(x, share);
    }
  }

  // Writes a share of sums to their columns.
  DEVICE void put(sptr<A> columns, const A* x, const Share& share) const {
    if constexpr (G::ORDERED && LEFT % V == 0) {
      if (share.count == 0) return;
#pragma unroll
      for (int m = 0; m < LEFT / V; m++) store<V, A>(columns + first(m), x + m * V);
    } else {
#pragma unroll
      for (int i = 0; i < LEFT; i++)
        if (i < share.count) columns[column(share.begin + i)] = x[i];
    }
  }

  // How many numbers halve() leaves to a lane at most.
  HD static constexpr int left(int numbers, int mask) {
    return mask < G::LANES ? numbers : left(ceil_div(numbers, 2), mask / 2);
  }
  static constexpr int LEFT = left(C, 16);
};

}  // namespace elman
