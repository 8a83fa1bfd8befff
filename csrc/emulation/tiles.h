// Products of matrices by a warp, as mma.m16n8k16 lays them out among its lanes.
#pragma once
#include "emulation/fibers.h"
#include "emulation/numbers.h"

namespace elman::emulation {

// The 16 numbers that four lanes hold of a row of a, or of a column of b: a lane's two words are of
// columns 2c and 2c + 8.
inline void gather(float (&x)[16], int first, int slot, int low, int high) {
  for (int c = 0; c < 4; c++) {
    const unsigned* words = fibers[first + c].fragments[slot];
    for (int half = 0; half < 2; half++) {
      const unsigned word = words[half ? high : low];
      x[half * 8 + c * 2] = bits_float(word << 16);
      x[half * 8 + c * 2 + 1] = bits_float(word & 0xffff0000u);
    }
  }
}

// d += a b of the current lane's warp: see multiply_tiles in cuda/common/cluster.cuh.
inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                     const char* where) {
  const int slot = current->shuffles++ & 1, warp = current->thread & ~31;
  const int g = current->thread % 32 / 4, c = current->thread % 4;
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  std::copy(mine, mine + 6, current->fragments[slot]);
  wait(Wait::warp, where);
  float rows[2][16], columns[2][16];
  gather(rows[0], warp + g * 4, slot, 0, 2);
  gather(rows[1], warp + g * 4, slot, 1, 3);
  for (int j = 0; j < 2; j++) gather(columns[j], warp + (c * 2 + j) * 4, slot, 4, 5);
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 16; k++) d[i] += rows[i / 2][k] * columns[i % 2][k];
}

}  // namespace elman::emulation
