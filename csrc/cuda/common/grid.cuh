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

// All threads of a block say, before their first barrier, that its first N will meet by themselves.
template <int N>
DEVICE void split_block() {}

// Waits for the first N threads of the block, whole warps; the others go on.
template <int N>
DEVICE void sync_first() {
  asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory");
}

// Lets so many clocks of the multiprocessor go by since `clock()` was `began`.
DEVICE void pause(unsigned began, unsigned clocks) {
  while ((unsigned)clock() - began < clocks) {
  }
}

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

// Numbers that blocks hand to each other together with the turn they belong to, 8 bytes at once:
// who sees the turn has the number, so no flag and no barrier stands between. Turns only grow, and
// the words begin as zeros. A word may be written for a next turn when all who wait for it have it.
struct Posts {
  static constexpr unsigned LOOKS = 1 << 10, PATIENCE = 3;  // as those of Flags
  unsigned long long* words;

  // ORDERED: what the thread knows to be written is told, too.
  template <bool ORDERED = false>
  DEVICE void put(int at, unsigned turn, unsigned number) const {
    const unsigned long long word = (unsigned long long)number << 32 | turn;
    if constexpr (ORDERED)
      asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(words + at), "l"(word) : "memory");
    else
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(words + at), "l"(word) : "memory");
  }

  // Waits for the words at N places, which are asked for at the same time; a place below 0 is none.
  // EACH words stand side by side and are asked for at once: 1, or 2 at an even place.
  template <int N, bool ORDERED = false, int EACH = 1>
  DEVICE void take(unsigned (&numbers)[N * EACH], const int (&at)[N], unsigned turn) const {
    unsigned missing = 0, begin = 0;
#pragma unroll
    for (int i = 0; i < N; i++) missing |= (unsigned)(at[i] >= 0) << i;
    for (unsigned looks = 1; missing; looks++) {
      unsigned long long seen[N][EACH];
#pragma unroll
      for (int i = 0; i < N; i++)
        if (missing >> i & 1) look<ORDERED>(seen[i], at[i]);
#pragma unroll
      for (int i = 0; i < N; i++)
        if (missing >> i & 1 && (unsigned)seen[i][0] == turn &&
            (unsigned)seen[i][EACH - 1] == turn) {
#pragma unroll
          for (int n = 0; n < EACH; n++) numbers[i * EACH + n] = (unsigned)(seen[i][n] >> 32);
          missing &= ~(1u << i);
        }
      if (looks % LOOKS) continue;
      unsigned now;
      asm volatile("mov.u32 %0, %%globaltimer_hi;" : "=r"(now));
      if (looks == LOOKS) begin = now;
      if (now - begin >= PATIENCE) __trap();  // a block has left, which no block does
    }
  }

 private:
  template <bool ORDERED>
  DEVICE void look(unsigned long long (&word)[1], int at) const {
    if constexpr (ORDERED)
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
                   : "=l"(word[0])
                   : "l"(words + at)
                   : "memory");
    else
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                   : "=l"(word[0])
                   : "l"(words + at)
                   : "memory");
  }
  template <bool ORDERED>
  DEVICE void look(unsigned long long (&word)[2], int at) const {
    if constexpr (ORDERED)
      asm volatile("ld.acquire.gpu.global.v2.u64 {%0, %1}, [%2];"
                   : "=l"(word[0]), "=l"(word[1])
                   : "l"(words + at)
                   : "memory");
    else
      asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                   : "=l"(word[0]), "=l"(word[1])
                   : "l"(words + at)
                   : "memory");
  }
};

}  // namespace elman

// A kernel whose blocks all run at the same time, one on a multiprocessor; see ELMAN_KERNEL.
#define ELMAN_GRID_KERNEL(NAME, THREADS, ARGS, CALL) ELMAN_KERNEL(NAME, THREADS, 1, ARGS, CALL)
