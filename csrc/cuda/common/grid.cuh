// What kernels whose blocks all run at the same time ask of the machine, answered by a GPU;
// emulation/grid.h answers it on a CPU. Include device.cuh before. The launch is a cooperative one:
// the driver refuses it where not all blocks have room at once.
//
// Such blocks hand numbers to each other through global memory. Who has written some raises a flag
// behind them; who has seen the flag may read them.
#pragma once

namespace elman {

// sync_block, which also says whether any thread of the block came with `mine`.
DEVICE bool sync_block_any(bool mine) { return __syncthreads_or(mine); }

// Whether all lanes of the warp came with `mine`.
DEVICE bool all_of_warp(bool mine) { return __all_sync(0xffffffffu, mine); }

// Words of global memory that only grow, one of each block of a group. They begin as zeros.
struct Flags {
  static constexpr int STRIDE = 8;            // words from one to the next: a sector of the cache
  static constexpr unsigned GONE = ~0u;       // the block has left before its end
  static constexpr unsigned LOOKS = 1 << 10;  // between two looks at the clock
  static constexpr unsigned PATIENCE = 3;     // ticks of 4.3 s, of which the first is a part of one
  unsigned* words;

  // By one thread: tells all that it knows to be written, by itself or before a barrier.
  DEVICE void raise(int flag, unsigned turn) const {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(words + flag * STRIDE), "r"(turn)
                 : "memory");
  }
  DEVICE unsigned look(int flag) const {
    unsigned seen;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(seen)
                 : "l"(words + flag * STRIDE)
                 : "memory");
    return seen;
  }
  // Waits until a flag is raised to a turn; the other threads of the warp know by sync_warp().
  // Returns whether it was: not where that block has left, or does not come for 8 to 13 seconds.
  DEVICE bool wait(int flag, unsigned turn) const {
    unsigned begin = 0;
    for (unsigned looks = 0;; looks++) {
      const unsigned seen = look(flag);
      if (seen >= turn) return seen != GONE;
      if (looks % LOOKS) continue;
      unsigned now;
      asm volatile("mov.u32 %0, %%globaltimer_hi;" : "=r"(now));
      if (looks == 0) begin = now;
      if (now - begin >= PATIENCE) return false;
    }
  }
};

}  // namespace elman

// A kernel whose blocks all run at the same time, one on a multiprocessor; see ELMAN_KERNEL.
#define ELMAN_GRID_KERNEL(NAME, THREADS, ARGS, CALL) ELMAN_KERNEL(NAME, THREADS, 1, ARGS, CALL)
