// Muon's update on the CPU: moving averages, Newton and Schulz' iteration, decay and step, of
// several matrices of one shape.
//
// M is a matrix, or its transpose, with more rows (n) than columns (m). The iteration works on
// A = M^T M alone. A step takes the polynomial P = a + b A + c A^2, and then A is P A P; the update
// is M times the product W of all P. These matrices are symmetric, and they commute: one half of
// each product is computed and mirrored, which takes 0.55 of the operations at m = 256.
//
// Columns stand in SIMD lanes. A panel is up to three vectors of columns, row by row; a strip is
// ROWS rows, column by column. So both sides of a product's inner loop read one stream. A task is a
// panel of one matrix, computed by one thread in one order: every bit is the same for any number
// of threads.
#pragma once
#ifdef _OPENMP
#include <omp.h>
#endif
#include <vector>

#include "cpu/channel/lanes.h"

namespace elman {

struct MuonMatrix {
  void* weight;
  const void* gradient;
  void* momentum;
};

// One call; all numbers are floats, and all matrices are contiguous [rows, columns].
struct MuonCall {
  const MuonMatrix* matrices;
  void* workspace;
  int64_t count, rows, columns, steps, threads;
  double momentum;  // share of the average that stays
  double rate;      // of the orthogonal matrix
  double kept;      // what decay leaves of a weight
  double a, b, c, eps;
};

class MuonEngine {
  using T = float;
  using L = Lanes<T>;
  using V = L::V;

  static constexpr int W = L::W, WIDE = 3;
  static constexpr int ROWS = ELMAN_VECTOR_BYTES >= 64 ? 8 : 4;  // the sums fill the registers
  static constexpr int64_t CHUNK = 64;                           // rows of a task without a panel
  static_assert(W % ROWS == 0 || ROWS % W == 0, "a strip lies in one panel");

  struct Panel {
    int64_t first;
    int vectors;
    int64_t width() const { return int64_t(vectors) * W; }
  };
  struct Tile {
    alignas(64) T of[ROWS][WIDE * W];
  };

  const MuonCall& a;
  int64_t n, m, chunks;  // of M, filled up with zeros
  bool tall;
  std::vector<Panel> panels;
  std::vector<int> panel_of;  // by the number of the vector of columns

  static int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

  // ---- where numbers lie ----

  // Parts of a matrix' workspace: M by panels; then m x m, by panels or by strips.
  enum Part {
    GRAM,
    GRAM_STRIPS,
    POLYNOMIAL,
    POLYNOMIAL_STRIPS,
    PRODUCT_STRIPS,
    WHOLE,
    NEXT,
    PARTS
  };
  int64_t own_size() const { return m * n + PARTS * m * m + up(2 * chunks, W); }
  T* own(int64_t q) const { return static_cast<T*>(a.workspace) + q * own_size(); }
  T* part(int64_t q, int which) const { return own(q) + m * n + which * m * m; }
  double* squares(int64_t q) const { return reinterpret_cast<double*>(part(q, PARTS)); }
  // The number in row k of a panel's first column, of a matrix of `height` rows.
  static T* in_panel(T* matrix, const Panel& p, int64_t height, int64_t k) {
    return matrix + p.first * height + k * p.width();
  }
  // Where column i begins in row k, up to the end of its vector.
  T* at(T* matrix, int64_t height, int64_t k, int64_t i) const {
    const Panel& p = panels[panel_of[i / W]];
    return in_panel(matrix, p, height, k) + i - p.first;
  }
  T* in_strip(T* strips, int64_t row, int64_t k) const {
    return strips + row / ROWS * ROWS * m + k * ROWS + row % ROWS;
  }

  // ---- products ----

  // Adds to `sums` what `size` columns of the left side give, whose ROWS rows lie `down` apart and
  // whose columns `right` apart.
  template <int N>
  HD static void add(const T* left, int64_t down, int64_t right, const T* panel, int64_t size,
                     V (&sums)[ROWS][N]) {
    for (int64_t k = 0; k < size; k++, left += right, panel += N * W) {
      V x[N];
#pragma GCC unroll 3
      for (int j = 0; j < N; j++) {
        x[j] = cpu::load<V>(panel + j * W);
        cpu::in_register(x[j]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const V y = left[r * down] - V{};
#pragma GCC unroll 3
        for (int j = 0; j < N; j++) sums[r][j] += y * x[j];
      }
    }
  }
  template <int N>
  HD static void keep(const V (&sums)[ROWS][N], Tile& to) {
    for (int r = 0; r < ROWS; r++)
      for (int j = 0; j < N; j++) cpu::store(to.of[r] + j * W, sums[r][j]);
  }
  template <int N>
  static void strip_times_panel(const T* strip, const T* panel, int64_t size, Tile& to) {
    V sums[ROWS][N] = {};
    add<N>(strip, 1, ROWS, panel, size, sums);
    keep<N>(sums, to);
  }
  // Columns of one panel times those of another: the left side is read across.
  template <int N>
  static void panel_times_panel(const T* left, int64_t width, const T* panel, int64_t size,
                                Tile& to) {
    V sums[ROWS][N] = {};
    add<N>(left, 1, width, panel, size, sums);
    keep<N>(sums, to);
  }
  // Rows of M, which lie in all of its panels.
  template <int N>
  void rows_times_panel(T* matrix, int64_t row, const T* panel, Tile& to) const {
    V sums[ROWS][N] = {};
    for (const Panel& p : panels)
      add<N>(in_panel(matrix, p, n, row), p.width(), 1, panel + p.first * N * W, p.width(), sums);
    keep<N>(sums, to);
  }

  // Writes a tile of a symmetric matrix, and its mirror image unless that is a tile, too.
  void write(const Tile& tile, int64_t row, const Panel& p, T* matrix, T* strips) const {
    const bool mirrored = row >= p.first + p.width();
    for (int r = 0; matrix && r < ROWS; r++)
      std::memcpy(in_panel(matrix, p, m, row + r), tile.of[r], p.width() * sizeof(T));
    for (int64_t j = 0; j < p.width(); j++) {
      T column[ROWS];
      for (int r = 0; r < ROWS; r++) column[r] = tile.of[r][j];
      if (strips) std::memcpy(in_strip(strips, row, p.first + j), column, sizeof column);
      if (matrix && mirrored) std::memcpy(at(matrix, m, p.first + j, row), column, sizeof column);
    }
    if (strips && mirrored)
      for (int r = 0; r < ROWS; r++)
        for (int64_t j = 0; j < p.width(); j += ROWS)
          std::memcpy(in_strip(strips, p.first + j, row + r), tile.of[r] + j, ROWS * sizeof(T));
  }
  // f(panel, tile's first row, tile) for the tiles of a panel from the diagonal on, which
  // `multiply` computes from (vectors, first row, tile).
  template <class Multiply, class F>
  void half(const Panel& p, Multiply multiply, F f) const {
    Tile tile;
    for (int64_t row = p.first; row < m; row += ROWS) {
      if (p.vectors == 3) multiply(std::integral_constant<int, 3>(), row, tile);
      if (p.vectors == 2) multiply(std::integral_constant<int, 2>(), row, tile);
      if (p.vectors == 1) multiply(std::integral_constant<int, 1>(), row, tile);
      f(row, tile);
    }
  }
  // The half of left x right that begins at the diagonal, from strips and panels.
  template <class F>
  void half_product(int64_t q, int left, int right, const Panel& p, F f) const {
    T *strips = part(q, left), *panel = in_panel(part(q, right), p, m, 0);
    half(
        p,
        [&](auto vectors, int64_t row, Tile& tile) {
          strip_times_panel<vectors.value>(in_strip(strips, row, 0), panel, m, tile);
        },
        f);
  }

  // ---- stages, each by all threads of a team ----

  HD static V lerp(V from, V to, T share) {
    return share < 0.5f ? from + (to - from) * share : to - (to - from) * (1 - share);
  }
  // Adds gradients to the moving average; returns the look ahead.
  HD V average(const T* gradient, T* momentum, int count) const {
    const V g = L::load(gradient, count);
    const V average = lerp(L::load(momentum, count), g, T(1 - a.momentum));
    L::store(momentum, average, count);
    return lerp(g, average, T(a.momentum));
  }
  void take(int64_t q, int64_t chunk) const {
    const MuonMatrix& x = a.matrices[q];
    const auto* gradient = static_cast<const T*>(x.gradient);
    auto* momentum = static_cast<T*>(x.momentum);
    const int64_t rows = tall ? a.rows : a.columns, columns = tall ? a.columns : a.rows;
    const int64_t begin = chunk * CHUNK, end = begin + CHUNK < n ? begin + CHUNK : n;
    double sum = 0;
    for (int64_t k = begin; k < end; k++) {
      V squares = {};
      for (int64_t i = 0; i < m; i += W) {
        V ahead = {};
        const int count = k < rows && i < columns ? L::count(i, columns) : 0;
        if (tall && count) {
          ahead = average(gradient + k * columns + i, momentum + k * columns + i, count);
        } else {
          for (int j = 0; j < count; j++) {
            const int64_t place = (i + j) * rows + k;
            ahead[j] = average(gradient + place, momentum + place, 1)[0];
          }
        }
        cpu::store(at(own(q), n, k, i), ahead);
        squares += ahead * ahead;
      }
      sum += L::sum(squares);
    }
    squares(q)[chunk] = sum;
  }
  // What M is multiplied by, so that its norm is at most 1.
  double scale(int64_t q) const {
    double sum = 0;
    for (int64_t i = 0; i < chunks; i++) sum += squares(q)[i];
    const double norm = std::sqrt(sum);
    return 1 / (norm > a.eps ? norm : a.eps);
  }
  void take_gram(int64_t q, const Panel& p) const {
    T *matrix = own(q), *right = in_panel(matrix, p, n, 0);
    const T factor = T(scale(q) * scale(q));
    half(
        p,
        [&](auto vectors, int64_t row, Tile& tile) {
          const int64_t width = panels[panel_of[row / W]].width();
          panel_times_panel<vectors.value>(at(matrix, n, 0, row), width, right, n, tile);
        },
        [&](int64_t row, Tile& tile) {
          for (int r = 0; r < ROWS; r++)
            for (int64_t j = 0; j < p.width(); j++) tile.of[r][j] *= factor;
          write(tile, row, p, part(q, GRAM), part(q, GRAM_STRIPS));
        });
  }
  void take_polynomial(int64_t q, const Panel& p, bool first) const {
    const T x = T(a.a), y = T(a.b), z = T(a.c);
    half_product(q, GRAM_STRIPS, GRAM, p, [&](int64_t row, Tile& tile) {
      for (int r = 0; r < ROWS; r++) {
        const T* gram = in_panel(part(q, GRAM), p, m, row + r);
        for (int64_t j = 0; j < p.width(); j++) tile.of[r][j] = tile.of[r][j] * z + gram[j] * y;
        const int64_t diagonal = row + r - p.first;
        if (diagonal < p.width()) tile.of[r][diagonal] += x;
      }
      write(tile, row, p, part(q, POLYNOMIAL), part(q, POLYNOMIAL_STRIPS));
      if (first) write(tile, row, p, part(q, WHOLE), nullptr);
    });
  }
  void multiply(int64_t q, const Panel& p, int left, int right, int to, int strips) const {
    half_product(q, left, right, p, [&](int64_t row, Tile& tile) {
      write(tile, row, p, to < 0 ? nullptr : part(q, to), strips < 0 ? nullptr : part(q, strips));
    });
  }
  // Rows of M times the product of all polynomials, from which the weights take their step.
  void finish(int64_t q, int64_t chunk, int whole) const {
    const T step = T(-a.rate * scale(q)), kept = T(a.kept);
    T* weight = static_cast<T*>(a.matrices[q].weight);
    const int64_t rows = tall ? a.rows : a.columns, columns = tall ? a.columns : a.rows;
    const int64_t begin = chunk * CHUNK, end = begin + CHUNK < n ? begin + CHUNK : n;
    Tile tile;
    for (const Panel& p : panels) {
      const T* panel = in_panel(part(q, whole), p, m, 0);
      for (int64_t row = begin; row < end; row += ROWS) {
        if (p.vectors == 3) rows_times_panel<3>(own(q), row, panel, tile);
        if (p.vectors == 2) rows_times_panel<2>(own(q), row, panel, tile);
        if (p.vectors == 1) rows_times_panel<1>(own(q), row, panel, tile);
        const int64_t width = columns - p.first < p.width() ? columns - p.first : p.width();
        for (int r = 0; r < ROWS && row + r < rows; r++)
          for (int64_t j = 0; j < width; j++) {
            T& w = tall ? weight[(row + r) * columns + p.first + j]
                        : weight[(p.first + j) * rows + row + r];
            w = w * kept + tile.of[r][j] * step;
          }
      }
    }
  }

  // f(matrix, item) for all matrices and items, by a team.
  template <class F>
  void each(int64_t items, F f) const {
#pragma omp for schedule(dynamic) collapse(2)
    for (int64_t i = 0; i < items; i++)
      for (int64_t q = 0; q < a.count; q++) f(q, i);
  }

 public:
  explicit MuonEngine(const MuonCall& call) : a(call) {
    tall = a.rows >= a.columns;
    n = up(tall ? a.rows : a.columns, ROWS);
    m = up(tall ? a.columns : a.rows, W > ROWS ? W : ROWS);
    chunks = (n + CHUNK - 1) / CHUNK;
    for (int64_t i = 0; i < m;) {
      const int64_t left = (m - i) / W;
      const int vectors = left == 4 ? 2 : left < WIDE ? int(left) : WIDE;
      panel_of.insert(panel_of.end(), vectors, int(panels.size()));
      panels.push_back({i, vectors});
      i += vectors * W;
    }
  }
  int64_t workspace_bytes() const { return a.count * own_size() * int64_t(sizeof(T)); }
  void run() const {
    const int64_t count = int64_t(panels.size());
#pragma omp parallel num_threads(a.threads)
    {
      each(chunks, [&](int64_t q, int64_t i) { take(q, i); });
      each(count, [&](int64_t q, int64_t i) { take_gram(q, panels[i]); });
      int whole = WHOLE, next = NEXT;
      for (int64_t step = 0; step < a.steps; step++) {
        const bool first = step == 0, last = step + 1 == a.steps;
        each(count, [&](int64_t q, int64_t i) { take_polynomial(q, panels[i], first); });
        each(count, [&](int64_t q, int64_t i) {
          if (!first) multiply(q, panels[i], POLYNOMIAL_STRIPS, whole, next, -1);
          if (!last) multiply(q, panels[i], POLYNOMIAL_STRIPS, GRAM, -1, PRODUCT_STRIPS);
        });
        if (!first) std::swap(whole, next);
        if (!last)
          each(count, [&](int64_t q, int64_t i) {
            multiply(q, panels[i], PRODUCT_STRIPS, POLYNOMIAL, GRAM, GRAM_STRIPS);
          });
      }
      each(chunks, [&](int64_t q, int64_t i) { finish(q, i, whole); });
    }
  }
};

}  // namespace elman

extern "C" void muon_run(const elman::MuonCall* a) { elman::MuonEngine(*a).run(); }
extern "C" int64_t muon_workspace(const elman::MuonCall* a) {
  return elman::MuonEngine(*a).workspace_bytes();
}
