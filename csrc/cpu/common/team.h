// Threads that run a loop over time together, and how they share its rows and channels.
#pragma once
#ifdef _OPENMP
#include <omp.h>
#endif
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "cpu/common/simd.h"

namespace elman::cpu {

// Threads of one team that wait for each other between products.
class Team {
  struct alignas(64) Flag {
    std::atomic<int64_t> times{0};
  };
  static constexpr int SPINS = 4000;
  std::vector<Flag> flags;

 public:
  explicit Team(int64_t threads) : flags(threads) {}
  // Returns when all of `threads` have called it as often as `me` has.
  void meet(int64_t me, int64_t threads) {
    if (threads == 1) return;
    const int64_t now = flags[me].times.load(std::memory_order_relaxed) + 1;
    flags[me].times.store(now, std::memory_order_release);
    for (int64_t i = 0; i < threads; i++) {
      int64_t spins = 0;
      while (flags[i].times.load(std::memory_order_acquire) < now) {
        // Where there are fewer cores than threads, the one that is waited for needs this core.
        if (++spins > SPINS) std::this_thread::yield();
#if defined(__SSE2__)
        __builtin_ia32_pause();
#endif
      }
    }
  }
};

// n, up to a multiple of `to`.
inline int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Where share `i` of `of` begins when n things are dealt out in whole units; share i ends where
// share i + 1 begins.
inline int64_t cut(int64_t n, int64_t unit, int64_t i, int64_t of) {
  const int64_t begin = (n + unit - 1) / unit * i / of * unit;
  return begin < n ? begin : n;
}

// f(team, which thread, of how many) in each of at most `threads` threads.
template <class F>
void with_team(int64_t threads, F f) {
  Team team(threads);
#pragma omp parallel num_threads(threads)
  {
    const FlushDenormals flushed;
#ifdef _OPENMP
    const int64_t me = omp_get_thread_num(), of = omp_get_num_threads();
#else
    const int64_t me = 0, of = 1;
#endif
    f(team, me, of);
  }
}

// Whether the threads of a loop over time share its batch, and how many there are. By columns, each
// thread owns columns of the matrix and meets the others after every product. By rows, each owns
// rows of the batch, reads all of the matrix and meets nobody.
struct Sharing {
  static constexpr int64_t SMALL = 1 << 16;         // multiply-adds of a step for one thread
  static constexpr int64_t MATRIX_BYTES = 3 << 19;  // that every thread can keep to itself
  int64_t threads;
  bool by_rows;

  // `tile`: rows of the batch that a product takes together. `vectors`: of the columns.
  static Sharing of(int64_t threads, int64_t batch, int64_t tile, int64_t matrix, int64_t bytes,
                    int64_t vectors) {
    if (batch * matrix <= SMALL) threads = 1;
    const bool by_rows =
        threads > 1 && batch >= 2 * tile * threads && matrix * bytes <= MATRIX_BYTES;
    return {by_rows || threads <= vectors ? threads : vectors, by_rows};
  }
};

}  // namespace elman::cpu
