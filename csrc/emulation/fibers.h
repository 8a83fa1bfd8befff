// Runs the threads of one block on a CPU as fibers, switched only where they wait for others, in a
// seeded random order. A barrier that some thread never reaches, or that half a warp leaves out,
// is reported with the places where the others wait.
#pragma once
#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulation/knowledge.h"
#if defined(__x86_64__)
#define ELMAN_OWN_SWITCH 1  // ucontext, used elsewhere, is half as fast
#else
#define ELMAN_OWN_SWITCH 0
#include <ucontext.h>
#endif

namespace elman::emulation {

enum class Wait { none, warp, block, first, signal, cluster, done };

struct Fiber {
  std::unique_ptr<char[]> stack;  // not filled: pages that no frame reaches take no memory
  int thread = 0;
  Wait wait = Wait::none;
  const char* where = "";
  unsigned warp_epoch = 0;
  bool waited = false;  // until the kernel before this one has ended
  // How often it arrived at barriers of the block and at signals, and how often, as far as it
  // knows, every thread of a part of the block has.
  unsigned arrivals = 0, known[2] = {0, 0};
  const void* signal = nullptr;  // that it waits for
  // The two last values it shuffled: two, so that one meeting of the warp per shuffle is enough.
  unsigned shuffles = 0;
  uint64_t slot[2] = {0, 0};
  unsigned fragments[2][6];  // the same of matrices
  unsigned ballots = 0;
  bool votes[2] = {};          // the same of what its block has asked all threads
  bool waits_in_vain = false;  // for a flag that nobody can raise any more, see flags.h
  bool orders_memory = false;  // whether the meeting of its warp that it waits for does
  // Of a cluster: the rank of its block, how often it has met all threads, whether it has used a
  // box since, and what it knows, see clusters.h.
  int rank = 0;
  unsigned meetings = 0;
  bool used_box = false;
  bool arrived = false;  // and has not waited for the cluster yet, see ptx_cluster.h
  Known learned;
  void* fake_stack = nullptr;  // AddressSanitizer's
#if ELMAN_OWN_SWITCH
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
};

inline constexpr int WARP = 32;
inline constexpr size_t STACK_BYTES = 256 << 10;

extern std::vector<Fiber> fibers;
extern std::vector<int> ready;
extern Fiber host;
inline Fiber* current = &host;
inline Fiber* previous = &host;  // the one that ran before it
inline int threads_per_block, alive;
// Signals and split_block part a block in two: threads below this one, and those from it on.
inline int second_part;
inline long long block_index;
// Whether the kernel may begin while the one before it still runs.
inline bool begins_early;
inline uint64_t random_state;
inline const std::function<void()>* body;
extern std::string error;

// What a cluster does before a thread goes on, and where threads of a block or a warp meet.
inline void (*choose_block)() = nullptr;
inline void (*block_met)() = nullptr;
inline void (*first_met)() = nullptr;  // threads of the block's first part
inline void (*warp_met)(int first, int last) = nullptr;

// Keeps the first error: the later ones mostly follow from it.
void report(const char* format, ...);

int part_of(int thread);

unsigned random_below(size_t n);

void switch_to(Fiber* to, [[maybe_unused]] bool dying = false);

void wake(int first, int last, Wait from);

// Lets a warp pass whose every live thread waits, and says so if they wait at different places.
void release_warp(int first, int last);

void release_first();

void release();

// Leaves the current fiber for a random one that can run.
void next(bool dying = false);

void wait(Wait what, const char* where);

// A meeting of a warp that orders what its threads did to memory; shuffles do not.
void meet_warp(const char* where);

void fiber_main();

void start(Fiber& fiber, int thread);

// Makes a block ready to run.
void start_block(long long index, int threads);

// Runs one block to its end, or to the first error.
void run_block(long long index, int threads, const std::function<void()>& function);

template <class T>
T exchange(T x, int from, const char* where) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  const int slot = current->shuffles++ & 1;
  std::memcpy(&current->slot[slot], &x, sizeof(T));
  wait(Wait::warp, where);
  std::memcpy(&x, &fibers[from].slot[slot], sizeof(T));
  return x;
}

}  // namespace elman::emulation
