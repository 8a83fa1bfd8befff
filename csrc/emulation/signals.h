// Signals between the two parts of a block, as barriers in shared memory behave: a barrier counts
// arrivals, whoever makes them, and one that waits sees only whether its phases are even or odd.
#pragma once
#include <unordered_map>

#include "fibers.h"

namespace elman::emulation {

struct Barrier {
  int expected = 0, arrived = 0;
  unsigned phases = 0;  // that are over
  // Of those that arrived in this phase and in the last: the least of their arrivals, and what one
  // of them knew of the other part.
  unsigned least = ~0u, other = 0, last_least = 0, last_other = 0;
};

inline std::unordered_map<size_t, Barrier> barriers;  // by place in shared memory

inline void make_barrier(size_t at, int first, int arrivals) {
  const int end = first + arrivals;
  second_part = first ? first : end;
  if (first != 0 && end != threads_per_block) report("a signal of the middle of a block");
  barriers[at].expected = arrivals;
}

inline void arrive(size_t at, int first) {
  Barrier& barrier = barriers[at];
  const int part = part_of(current->thread);
  if (part != (first != 0)) report("thread %d arrives for others", current->thread);
  barrier.least = std::min(barrier.least, ++current->arrivals);
  barrier.other = std::max(barrier.other, current->known[!part]);
  if (++barrier.arrived == barrier.expected) {
    barrier.last_least = barrier.least;
    barrier.last_other = barrier.other;
    barrier.least = ~0u;
    barrier.other = barrier.arrived = 0;
    barrier.phases++;
    for (Fiber& fiber : fibers)
      if (fiber.wait == Wait::signal && fiber.signal == &barrier) {
        fiber.wait = Wait::none;
        ready.push_back(fiber.thread);
      }
  }
  ready.push_back(current->thread);
  next();
}

// Waits while the number of phases that are over is even for phase 0, odd for phase 1, and so on.
inline void wait_for(size_t at, int first, unsigned phase) {
  Barrier& barrier = barriers[at];
  while (barrier.phases % 2 == phase % 2) {
    current->signal = &barrier;
    wait(Wait::signal, first ? "signal of helpers" : "signal of those that walk");
  }
  const int part = first != 0;
  unsigned* known = current->known;
  known[part] = std::max(known[part], barrier.last_least);
  known[!part] = std::max(known[!part], barrier.last_other);
}

}  // namespace elman::emulation
