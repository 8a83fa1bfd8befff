// Signals between the two parts of a block, as barriers in shared memory behave: a barrier counts
// arrivals, whoever makes them, and a thread that waits sees only whether its phase is even or odd.
// The first thread of a block makes them.
#pragma once
#include <unordered_map>

#include "emulation/fibers.h"

namespace elman::emulation {

struct Barrier {
  int expected = 0, arrived = 0;
  unsigned phases = 0;             // that are over
  std::vector<unsigned> arrivals;  // of every thread, the number of the last phase it arrived in
  unsigned made = ~0u;             // arrivals of the thread that made it, then
  // Of those that arrived in this phase and in the last: the least of their arrivals, and what one
  // of them knew of the other part.
  unsigned least = ~0u, other = 0, last_least = 0, last_other = 0;
  Known gathered, told;  // the same of what they knew of other blocks
};

extern std::unordered_map<size_t, Barrier> barriers;  // by place in shared memory

void make_barrier(size_t at, int first, int arrivals);

// Returns a barrier; a meeting of the block has to stand between making one and using it.
Barrier& made_barrier(size_t at);

void arrive(size_t at, int first);

// Waits while the number of phases that are over is even for phase 0, odd for phase 1, and so on.
void wait_for(size_t at, int first, unsigned phase);

// ---- the same as PTX has it

// An mbarrier in shared memory.
struct MemoryBarrier {
  int expected = 0, arrived = 0;
  unsigned phase = 0;  // phases that are over
  unsigned made = 0;   // arrivals of the thread that made it, then
  Known gathered, told;
};

extern std::unordered_map<size_t, MemoryBarrier> memory_barriers;  // by place

MemoryBarrier& memory_barrier(size_t at);

void arrive_at(MemoryBarrier& barrier);

// Whether the phase of a parity is over. Where it is not, others run first, perhaps until it is:
// nothing is promised of how long the instruction waits.
bool is_over(MemoryBarrier& barrier, unsigned parity);

void no_barriers();

}  // namespace elman::emulation
