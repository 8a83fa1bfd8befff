// Products of matrices by a warp, as mma.m16n8k16 lays them out among its lanes.
#pragma once
#include "emulation/fibers.h"
#include "emulation/numbers.h"

namespace elman::emulation {

// The 16 numbers that four lanes hold of a row of a, or of a column of b: a lane's two words are of
// columns 2c and 2c + 8.
void gather(float (&x)[16], const Fiber* lanes, int slot, int low, int high);

// d += a b of a lane, by what all lanes of its warp hold.
void add_product(float (&d)[4], const Fiber* lanes, int slot, int lane);

// d += a b of the current lane's warp: see multiply_tiles in cuda/common/cluster.cuh.
void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const char* where);

}  // namespace elman::emulation
