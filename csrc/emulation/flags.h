// Blocks that all run at the same time and hand numbers to each other through global memory. One
// thread raises a flag by a store with release, another one sees it by a load with acquire.
//
// exchanged.h checks what they hand over. A thread knows what it has seen by flags, and what others
// knew who met it (sync_warp, sync_block) or raised a flag that it has seen.
//
// A wait for a flag ends in vain when no thread of any block can go on otherwise: that is how long
// the patience of a GPU's thread lasts here.
#pragma once
#include "emulation/exchanged.h"

namespace elman::emulation {

// What was told with each turn of a flag: who waits for a turn learns no more than that.
EMULATOR_DATA std::unordered_map<uintptr_t, std::map<unsigned, Known>> flags;
inline bool grid_runs;  // whether the blocks that run are a grid

// ---- flags

EMULATOR unsigned* flag_at(const void* p, bool write) {
  if (!grid_runs) report("a flag of a kernel whose blocks do not run at the same time");
  for (int half = 0; half < 4; half += GRANULE)
    if (!may_touch(granule_at((uintptr_t)p + half), (uintptr_t)p + half, 4, write)) return nullptr;
  return (unsigned*)p;
}

// Wakes whoever waits for a flag.
EMULATOR void wake_waiting(const void* flag) {
  const int home = entered;
  for (size_t rank = 0; rank < cluster.size(); rank++) {
    enter((int)rank);
    for (Fiber& fiber : fibers)
      if (fiber.wait == Wait::signal && fiber.signal == flag) wake(fiber);
  }
  enter(home);
}

// Raises a flag; `release`: so that what the thread knows is told with it.
EMULATOR void raise_flag(void* p, unsigned turn, bool release = true) {
  unsigned* flag = flag_at(p, true);
  if (!flag || !error.empty()) return;
  if (turn <= *flag)
    report("a flag is raised to %u, which it was before (%s)", turn, here().c_str());
  *flag = turn;
  flags[(uintptr_t)p][turn] = release ? all_known() : nullptr;
  wake_waiting(p);
}

// Returns what a flag stands at; `least` is the turn that is waited for.
EMULATOR unsigned look_at_flag(const void* p, unsigned least) {
  const unsigned* flag = flag_at(p, false);
  if (!flag) return ~0u;
  const auto& told = flags[(uintptr_t)p];
  const auto turn = told.lower_bound(least);
  if (turn != told.end()) learn(*current, turn->second);
  return *flag;
}

// Waits until somebody raises a flag; returns whether anybody can.
EMULATOR bool await_flag(const void* p, const char* where) {
  current->signal = p;
  current->waits_in_vain = false;
  wait(Wait::signal, where);
  return !current->waits_in_vain;
}

// Ends all waits for flags, which nobody can raise any more.
EMULATOR bool end_waits_in_vain() {
  bool ended = false;
  for (size_t rank = 0; rank < cluster.size(); rank++) {
    enter((int)rank);
    for (Fiber& fiber : fibers)
      if (fiber.wait == Wait::signal) {
        ended = fiber.waits_in_vain = true;
        wake(fiber);
      }
  }
  return ended;
}

// ---- a launch

// Asks all threads of a block; returns whether any of them came with `mine`.
EMULATOR bool any_of_block(bool mine, const char* where) {
  const int slot = current->ballots++ & 1;
  current->votes[slot] = mine;
  wait(Wait::block, where);
  bool any = false;
  for (const Fiber& fiber : fibers) any = any || fiber.votes[slot];
  return any;
}

// The same of a warp: whether all of its lanes came with it.
EMULATOR bool all_of_warp(bool mine, const char* where) {
  bool all = mine;
  for (int mask = 1; mask < WARP; mask *= 2)
    all = exchange((int)all, current->thread ^ mask, where) && all;
  return all;
}

// Runs all blocks of a grid side by side.
EMULATOR std::string launch_grid(long long first, long long blocks, int threads, size_t bytes,
                                 unsigned seed, const std::function<void()>& kernel) {
  const WatchExchanged watched;
  flags.clear();
  grid_runs = true;
  let_time_pass = end_waits_in_vain;
  std::string said = launch_clusters(first, blocks, (int)blocks, threads, bytes, seed, kernel);
  grid_runs = false;
  let_time_pass = nullptr;
  return said;
}

}  // namespace elman::emulation
