// What flags.h declares.
#include "emulation/flags.h"

namespace elman::emulation {

std::unordered_map<uintptr_t, std::map<unsigned, Known>> flags;

unsigned* flag_at(const void* p, bool write) {
  if (!grid_runs) report("a flag of a kernel whose blocks do not run at the same time");
  for (int half = 0; half < 4; half += GRANULE)
    if (!may_touch(granule_at((uintptr_t)p + half), (uintptr_t)p + half, 4, write)) return nullptr;
  return (unsigned*)p;
}

void wake_waiting(const void* flag) {
  const int home = entered;
  for (size_t rank = 0; rank < cluster.size(); rank++) {
    enter((int)rank);
    for (Fiber& fiber : fibers)
      if (fiber.wait == Wait::signal && fiber.signal == flag) wake(fiber);
  }
  enter(home);
}

void raise_flag(void* p, unsigned turn, bool release) {
  unsigned* flag = flag_at(p, true);
  if (!flag || !error.empty()) return;
  if (turn <= *flag)
    report("a flag is raised to %u, which it was before (%s)", turn, here().c_str());
  *flag = turn;
  flags[(uintptr_t)p][turn] = release ? all_known() : nullptr;
  wake_waiting(p);
}

unsigned look_at_flag(const void* p, unsigned least) {
  const unsigned* flag = flag_at(p, false);
  if (!flag) return ~0u;
  const auto& told = flags[(uintptr_t)p];
  const auto turn = told.lower_bound(least);
  if (turn != told.end()) learn(*current, turn->second);
  return *flag;
}

bool await_flag(const void* p, const char* where) {
  current->signal = p;
  current->waits_in_vain = false;
  wait(Wait::signal, where);
  return !current->waits_in_vain;
}

bool end_waits_in_vain() {
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

void post(void* p, unsigned turn, unsigned number, bool release) {
  if (unsigned* place = flag_at((char*)p + 4, true)) *place = number;
  raise_flag(p, turn, release);
}

uint64_t look_at_post(const void* p, bool acquire) {
  const unsigned *turn = flag_at(p, false), *number = flag_at((const char*)p + 4, false);
  if (!turn || !number) return 0;
  if (acquire) look_at_flag(p, *turn);
  return (uint64_t)*number << 32 | *turn;
}

unsigned take_post(const void* p, unsigned turn, bool acquire, const char* where) {
  const unsigned* number = flag_at((const char*)p + 4, false);
  for (;;) {
    const unsigned* seen = flag_at(p, false);
    if (!number || !seen || !error.empty()) return 0;
    if (*seen > turn) report("a number is overwritten before all have it (%s)", where);
    if (*seen == turn) break;
    if (!await_flag(p, where)) report("a number that nobody writes is waited for (%s)", where);
  }
  if (acquire) look_at_flag(p, turn);
  return *number;
}

bool any_of_block(bool mine, const char* where) {
  const int slot = current->ballots++ & 1;
  current->votes[slot] = mine;
  wait(Wait::block, where);
  bool any = false;
  for (const Fiber& fiber : fibers) any = any || fiber.votes[slot];
  return any;
}

bool all_of_warp(bool mine, const char* where) {
  bool all = mine;
  for (int mask = 1; mask < WARP; mask *= 2)
    all = exchange((int)all, current->thread ^ mask, where) && all;
  return all;
}

std::string launch_grid(long long first, long long blocks, int threads, size_t bytes, unsigned seed,
                        const std::function<void()>& kernel) {
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
