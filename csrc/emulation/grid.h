// What kernels whose blocks all run at the same time ask of the machine, answered by the emulator:
// the counterpart of cuda/common/grid.cuh. See flags.h for what it checks.
#pragma once
#include "emulation/cluster.h"
#include "emulation/flags.h"

namespace elman {

DEVICE bool sync_block_any(bool mine, ELMAN_CALLED) {
  return emulation::any_of_block(mine, emulation::place_in_source("sync_block_any", file, line));
}

DEVICE bool all_of_warp(bool mine, ELMAN_CALLED) {
  return emulation::all_of_warp(mine, emulation::place_in_source("all_of_warp", file, line));
}

template <int N>
DEVICE void split_block() {
  emulation::second_part = N;
}

template <int N>
DEVICE void sync_first(ELMAN_CALLED) {
  emulation::meet_first(N, emulation::place_in_source("sync_first", file, line));
}

DEVICE void pause(unsigned, unsigned) {}

struct Flags {
  static constexpr int STRIDE = 8;
  static constexpr unsigned GONE = ~0u;
  unsigned* words;

  DEVICE void raise(int flag, unsigned turn) const {
    emulation::raise_flag(words + flag * STRIDE, turn);
  }
  DEVICE bool wait(int flag, unsigned turn, ELMAN_CALLED) const {
    const char* where = emulation::place_in_source("the wait for a flag", file, line);
    for (;;) {
      const unsigned seen = emulation::look_at_flag(words + flag * STRIDE, turn);
      if (seen >= turn) return seen != GONE;
      if (!emulation::await_flag(words + flag * STRIDE, where)) return false;
    }
  }
};

struct Posts {
  unsigned long long* words;

  template <bool ORDERED = false>
  DEVICE void put(int at, unsigned turn, unsigned number) const {
    emulation::post(words + at, turn, number, ORDERED);
  }
  template <int N, bool ORDERED = false, int EACH = 1>
  DEVICE void take(unsigned (&numbers)[N * EACH], const int (&at)[N], unsigned turn,
                   ELMAN_CALLED) const {
    const char* where = emulation::place_in_source("the wait for a number", file, line);
    for (int i = 0; i < N * EACH; i++) {
      const int place = at[i / EACH];
      if (place < 0) continue;
      if (place % EACH) emulation::report("a pair of numbers at an odd place (%s)", where);
      numbers[i] = emulation::take_post(words + place + i % EACH, turn, ORDERED, where);
    }
  }
};

}  // namespace elman

// A kernel whose blocks all run at the same time. Its Python door is that of ELMAN_KERNEL; `first`
// is 0, and `blocks` all blocks of the grid.
#define ELMAN_GRID_KERNEL(NAME, THREADS, ARGS, CALL)                                              \
  extern "C" const char* NAME(const ARGS* given, long long first, long long blocks,               \
                              int shared_bytes, unsigned seed) {                                  \
    static std::string message;                                                                   \
    const ARGS& a = *given;                                                                       \
    message =                                                                                     \
        elman::emulation::launch_grid(first, blocks, THREADS, shared_bytes, seed, [&] { CALL; }); \
    return message.c_str();                                                                       \
  }
