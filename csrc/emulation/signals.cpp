// What signals.h declares.
#include "emulation/signals.h"

namespace elman::emulation {

std::unordered_map<size_t, Barrier> barriers;

void make_barrier(size_t at, int first, int arrivals) {
  const int end = first + arrivals;
  second_part = first ? first : end;
  if (first != 0 && end != threads_per_block) report("a signal of the middle of a block");
  Barrier& barrier = barriers[at];
  barrier.expected = arrivals;
  if (current->thread == 0) barrier.made = current->arrivals;
}

Barrier& made_barrier(size_t at) {
  Barrier& barrier = barriers[at];
  barrier.arrivals.resize(threads_per_block);
  if (current->known[0] <= barrier.made)
    report("thread %d uses a signal that may not be made yet", current->thread);
  return barrier;
}

void arrive(size_t at, int first) {
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

void wait_for(size_t at, int first, unsigned phase) {
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

std::unordered_map<size_t, MemoryBarrier> memory_barriers;

MemoryBarrier& memory_barrier(size_t at) {
  static MemoryBarrier none;
  const auto found = memory_barriers.find(at);
  if (found != memory_barriers.end() && current->known[0] > found->second.made)
    return found->second;
  report("shared byte %zu: thread %d uses a barrier that may not be made yet", at, current->thread);
  return none;
}

void arrive_at(MemoryBarrier& barrier) {
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

bool is_over(MemoryBarrier& barrier, unsigned parity) {
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

void no_barriers() {
  barriers.clear();
  memory_barriers.clear();
}

}  // namespace elman::emulation
