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

EMULATOR_DATA std::unordered_map<size_t, Barrier> barriers;  // by place in shared memory

EMULATOR void make_barrier(size_t at, int first, int arrivals) {
  const int end = first + arrivals;
  second_part = first ? first : end;
  if (first != 0 && end != threads_per_block) report("a signal of the middle of a block");
  Barrier& barrier = barriers[at];
  barrier.expected = arrivals;
  if (current->thread == 0) barrier.made = current->arrivals;
}

// Returns a barrier; a meeting of the block has to stand between making one and using it.
EMULATOR Barrier& made_barrier(size_t at) {
  Barrier& barrier = barriers[at];
  barrier.arrivals.resize(threads_per_block);
  if (current->known[0] <= barrier.made)
    report("thread %d uses a signal that may not be made yet", current->thread);
  return barrier;
}

EMULATOR void arrive(size_t at, int first) {
  Barrier& barrier = made_barrier(at);
  const int part = part_of(current->thread);
  if (part != (first != 0)) report("thread %d arrives for others", current->thread);
  unsigned& last = barrier.arrivals[current->thread];
  if (last == barrier.phases + 1) report("thread %d arrives twice for a turn", current->thread);
  last = barrier.phases + 1;
  barrier.least = std::min(barrier.least, ++current->arrivals);
  barrier.other = std::max(barrier.other, current->known[!part]);
  if (choose_block) barrier.gathered = joined(barrier.gathered, current->learned);
  if (++barrier.arrived == barrier.expected) {
    barrier.last_least = barrier.least;
    barrier.last_other = barrier.other;
    barrier.told = std::move(barrier.gathered);
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
EMULATOR void wait_for(size_t at, int first, unsigned phase) {
  Barrier& barrier = made_barrier(at);
  while (barrier.phases % 2 == phase % 2) {
    current->signal = &barrier;
    wait(Wait::signal, first ? "signal of producers" : "signal of those that walk");
  }
  const int part = first != 0;
  unsigned* known = current->known;
  known[part] = std::max(known[part], barrier.last_least);
  known[!part] = std::max(known[!part], barrier.last_other);
  if (choose_block) current->learned = joined(current->learned, barrier.told);
}

// ---- the same as PTX has it

// An mbarrier in shared memory.
struct MemoryBarrier {
  int expected = 0, arrived = 0;
  unsigned phase = 0;  // phases that are over
  unsigned made = 0;   // arrivals of the thread that made it, then
  Known gathered, told;
};

EMULATOR_DATA std::unordered_map<size_t, MemoryBarrier> memory_barriers;  // by place

EMULATOR MemoryBarrier& memory_barrier(size_t at) {
  static MemoryBarrier none;
  const auto found = memory_barriers.find(at);
  if (found != memory_barriers.end() && current->known[0] > found->second.made)
    return found->second;
  report("shared byte %zu: thread %d uses a barrier that may not be made yet", at, current->thread);
  return none;
}

EMULATOR void arrive_at(MemoryBarrier& barrier) {
  if (choose_block) barrier.gathered = joined(barrier.gathered, current->learned);
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    barrier.phase++;
    barrier.told = std::move(barrier.gathered);
    for (Fiber& fiber : fibers)
      if (fiber.wait == Wait::signal && fiber.signal == &barrier) {
        fiber.wait = Wait::none;
        ready.push_back(fiber.thread);
      }
  }
  ready.push_back(current->thread);
  next();
}

// Whether the phase of a parity is over. Where it is not, others run first, perhaps until it is:
// nothing is promised of how long the instruction waits.
EMULATOR bool is_over(MemoryBarrier& barrier, unsigned parity) {
  if (barrier.phase % 2 == parity) {
    if (random_below(2)) {
      current->signal = &barrier;
      wait(Wait::signal, "mbarrier");
    } else {
      ready.push_back(current->thread);
      next();
    }
  }
  const bool over = barrier.phase % 2 != parity;
  if (over && choose_block) current->learned = joined(current->learned, barrier.told);
  return over;
}

EMULATOR void no_barriers() {
  barriers.clear();
  memory_barriers.clear();
}

}  // namespace elman::emulation
