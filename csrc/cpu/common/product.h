// Products of a few rows with a matrix that all steps share, packed once for a call.
//
// The columns of the result stand in SIMD lanes. A panel is up to three vectors of columns and the
// matrix' weights for them, row of K by row of K, so that the inner loop reads one stream. A tile
// is a panel for up to eight rows; its sums stay in registers for all of K.
#pragma once
#include <vector>

#include "cpu/channel/lanes.h"

namespace elman::cpu {

template <class T>
class PackedProduct {
  using L = Lanes<T>;
  using V = typename L::V;
  static constexpr int AHEAD = 8;  // rows of K that are fetched before they are needed
  static constexpr int64_t LINE = 64 / sizeof(T);
  static constexpr int64_t COPIED_BYTES = 2048;  // of a row; shorter ones cost more than they gain

 public:
  static constexpr int W = L::W, WIDE = 3;
  // So that the sums fill the registers: 24 of 32, or 12 of 16.
  static constexpr int ROWS = ELMAN_VECTOR_BYTES >= 64 ? 8 : 4;
  static constexpr int TILE = ROWS * WIDE * W;

  // f(first column, vectors) for each panel of the columns [c0, c1).
  template <class F>
  static void panels(int64_t c0, int64_t c1, F f) {
    for (int64_t c = c0; c < c1;) {
      const int64_t left = (c1 - c + W - 1) / W;
      const int n = left == 4 ? 2 : left < WIDE ? int(left) : WIDE;
      f(c, n);
      c += n * W;
    }
  }

  // Packs the columns [c0, c1) of `blocks` matrices that lie behind each other. With TRANSPOSED,
  // column c of block b is row b * columns + c of `from`, which has K numbers; else it is column c
  // of `from`, which has K rows of `columns` numbers. `to` is that of column 0.
  template <bool TRANSPOSED>
  static void pack(const T* from, T* to, int64_t k_size, int64_t columns, int blocks, int64_t c0,
                   int64_t c1) {
    panels(c0, c1, [&](int64_t c, int n) {
      for (int b = 0; b < blocks; b++) {
        T* at = to + (c * blocks + b * n * W) * k_size;
        const int64_t there = columns - c < n * W ? columns - c : n * W;
        if (there < n * W) std::memset(at, 0, n * W * k_size * sizeof(T));
        if constexpr (TRANSPOSED) {
          const T* rows = from + (b * columns + c) * k_size;
          for (int64_t k0 = 0; k0 < k_size; k0 += W) {  // a line of each row
            const int64_t k1 = k0 + W < k_size ? k0 + W : k_size;
            for (int64_t j = 0; j < there; j++)
              for (int64_t k = k0; k < k1; k++) at[k * n * W + j] = rows[j * k_size + k];
          }
        } else {
          for (int64_t k = 0; k < k_size; k++)
            std::memcpy(at + k * n * W, from + k * columns + c, there * sizeof(T));
        }
      }
    });
  }

  // use(first row, rows, first column, vectors, sums) for every tile of the rows [r0, r1) and the
  // columns [c0, c1) of the product of `a` with what was packed. sums[block] has `rows` rows of
  // vectors * W numbers.
  template <int BLOCKS, class Use>
  static void run(const T* a, int64_t stride, const T* packed, int64_t k_size, int64_t r0,
                  int64_t r1, int64_t c0, int64_t c1, Use use) {
    // Rows of one step often lie a power of two apart, and crowd each other out of a cache.
    thread_local std::vector<T> copies;
    const bool long_rows = k_size * int64_t(sizeof(T)) >= COPIED_BYTES;
    if (long_rows && r1 - r0 > 1 && c1 - c0 > WIDE * W)
      a = adjacent_rows(copies, a, stride, k_size, r0, r1);
    panels(c0, c1, [&](int64_t c, int n) {
      const T* w = packed + c * BLOCKS * k_size;
      for (int64_t r = r0; r < r1;) {
        const int rows = r1 - r >= ROWS ? ROWS : r1 - r >= 4 ? 4 : r1 - r >= 2 ? 2 : 1;
        alignas(64) T sums[BLOCKS][TILE];
        for (int b = 0; b < BLOCKS; b++)
          tile(rows, n, a + r * stride, stride, w + b * n * W * k_size, k_size, sums[b]);
        use(r, rows, c, n, sums);
        r += rows;
      }
    });
  }

 private:
  // Copies the rows [r0, r1) into `to`, and returns where row 0 would be. `stride` becomes that of
  // the copy: a line more than a row.
  static const T* adjacent_rows(std::vector<T>& to, const T* a, int64_t& stride, int64_t k_size,
                                int64_t r0, int64_t r1) {
    const int64_t near = (k_size + LINE - 1) / LINE * LINE + LINE;
    if (int64_t(to.size()) < (r1 - r0) * near) to.resize((r1 - r0) * near);
    for (int64_t r = r0; r < r1; r++)
      std::memcpy(to.data() + (r - r0) * near, a + r * stride, k_size * sizeof(T));
    stride = near;
    return to.data() - r0 * near;
  }
  static void tile(int rows, int n, const T* a, int64_t stride, const T* w, int64_t k, T* to) {
    if (n == 3) return tall<3>(rows, a, stride, w, k, to);
    if (n == 2) return tall<2>(rows, a, stride, w, k, to);
    tall<1>(rows, a, stride, w, k, to);
  }
  template <int N>
  static void tall(int rows, const T* a, int64_t stride, const T* w, int64_t k, T* to) {
    if (rows == 8) return sums<8, N, 1>(a, stride, w, k, to);
    if (rows == 4) return sums<4, N, N == 1 ? 2 : 1>(a, stride, w, k, to);
    if (rows == 2) return sums<2, N, 2>(a, stride, w, k, to);
    sums<1, N, 4>(a, stride, w, k, to);
  }
  // With PARTS, that many partial sums over k: few rows alone give too few independent sums.
  template <int R, int N, int PARTS>
  static void sums(const T* a, int64_t stride, const T* w, int64_t k_size, T* to) {
    if constexpr (R <= ROWS) {
      V sum[PARTS][R][N] = {};
      const int64_t whole = k_size / PARTS * PARTS;
      for (int64_t k = 0; k < whole; k += PARTS) {
#pragma GCC unroll 4
        for (int u = 0; u < PARTS; u++) add<R, N>(a + k + u, stride, w + (k + u) * N * W, sum[u]);
      }
      for (int64_t k = whole; k < k_size; k++) add<R, N>(a + k, stride, w + k * N * W, sum[0]);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 3
        for (int j = 0; j < N; j++) {
          V total = sum[0][r][j];
#pragma GCC unroll 4
          for (int u = 1; u < PARTS; u++) total += sum[u][r][j];
          cpu::store(to + (r * N + j) * W, total);
        }
      }
    }
  }
  template <int R, int N>
  HD static void add(const T* a, int64_t stride, const T* w, V (&sum)[R][N]) {
    V b[N];
#pragma GCC unroll 3
    for (int j = 0; j < N; j++) {
      b[j] = cpu::load<V>(w + j * W);
      if (R > 1) in_register(b[j]);
      __builtin_prefetch(w + (AHEAD * N + j) * W);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const V x = a[r * stride] - V{};  // V{} + a number would be an addition: -0 + 0 is 0
#pragma GCC unroll 3
      for (int j = 0; j < N; j++) sum[r][j] += x * b[j];
    }
  }
};

}  // namespace elman::cpu
