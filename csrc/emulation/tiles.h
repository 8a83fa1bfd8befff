// Products of matrices by a warp, as mma.m16n8k16 lays them out among its lanes.
#pragma once
#include "emulation/fibers.h"
#include "emulation/numbers.h"

namespace elman::emulation {

// The 16 numbers that four lanes hold of a row of a, or of a column of b: a lane's two words are of
// columns 2c and 2c + 8.
EMULATOR void gather(float (&x)[16], const Fiber* lanes, int slot, int low, int high) {
  for (int c = 0; c < 4; c++)
    for (int half = 0; half < 2; half++) {
      const unsigned word = lanes[c].fragments[slot][half ? high : low];
      const unsigned pair[2] = {word << 16, word & 0xffff0000u};
      std::memcpy(x + half * 8 + c * 2, pair, 8);
    }
}

// d += a b of a lane, by what all lanes of its warp hold.
EMULATOR void add_product(float (&d)[4], const Fiber* lanes, int slot, int lane) {
  const int g = lane / 4, c = lane % 4;
  float rows[2][16], columns[2][16];
  gather(rows[0], lanes + g * 4, slot, 0, 2);
  gather(rows[1], lanes + g * 4, slot, 1, 3);
  for (int j = 0; j < 2; j++) gather(columns[j], lanes + (c * 2 + j) * 4, slot, 4, 5);
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 16; k++) d[i] += rows[i / 2][k] * columns[i % 2][k];
}

// d += a b of the current lane's warp: see multiply_tiles in cuda/common/cluster.cuh.
EMULATOR void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                       const char* where) {
  const int slot = current->shuffles++ & 1, thread = current->thread;
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  std::memcpy(current->fragments[slot], mine, sizeof mine);
  wait(Wait::warp, where);
  add_product(d, &fibers[thread - thread % WARP], slot, thread % WARP);
}

}  // namespace elman::emulation
