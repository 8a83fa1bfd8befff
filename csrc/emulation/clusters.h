// Runs the blocks of a cluster at the same time: threads of all of them take turns in a seeded
// random order. What a block has for itself stands in the emulator's global variables while one of
// its threads runs, and is put aside otherwise; so blocks outside clusters cost what they did.
//
// What a thread knows (knowledge.h) is, in this order: of each part of each block, how often all of
// its threads have arrived at barriers; of each warp, how many meetings that order memory all of
// its lanes have had; of each box, how many turns are over.
#pragma once
#include <map>
#include <tuple>

#include "emulation/copies.h"

namespace elman::emulation {

// What a block has for itself while another one runs.
struct Aside {
  std::vector<Fiber> fibers;
  std::vector<int> ready;
  int alive = 0, second_part = 0;
  long long index = 0;
  std::vector<unsigned char> shared;
  std::vector<Word> words;
  std::vector<CopyQueue> copies;
  std::unordered_map<size_t, Barrier> barriers;
  std::unordered_map<size_t, MemoryBarrier> memory_barriers;
  bool stuck = false;  // nothing in it can run until another block does something
};

inline bool grid_runs;  // whether the blocks that run are a grid, each of them alone

extern std::vector<Aside> cluster;
inline int entered;  // rank of the block that stands in the global variables
// How rarely a delivery arrives, and a thread of another block goes on; of each launch.
inline unsigned delay, linger;

inline constexpr unsigned EMPTY = ~0u;  // known of a part that has no threads

int warps_per_block();
size_t part_number(int rank, int part);
size_t warp_number(int rank, int warp);

// ---- the block that runs

void exchange_with(Aside& aside);

void enter(int rank);

// Looks into another block for as long as it lives.
struct Visit {
  const int home = entered;
  explicit Visit(int rank) { enter(rank); }
  ~Visit() { enter(home); }
};

long long index_of_block(int rank);

void wake(Fiber& fiber);

// ---- what threads know

// Notes what the current thread knows of its own block among what it knows of all.
const Known& all_known();

void learn(Fiber& fiber, const Known& told);

// What threads know together, that all of them have come here included.
Known known_together(int first, int last);

void tell_warp(int first, int last);

void tell_block();

void tell_first();

// ---- meetings of all threads of the cluster

// A place in a source file, in words that stay.
const char* place_in_source(const char* what, const char* file, int line);

void meet_cluster(const char* where);

// Meets the first `threads` of a block that was split there.
void meet_first(int threads, const char* where);

// Notes that all threads of the block that runs have arrived; returns what they know together.
Known arrive_at_cluster();

// Lets the cluster pass if all of its threads wait for each other; returns whether it does.
bool release_cluster();

// ---- which thread goes on

inline bool (*let_something_arrive)();           // returns whether anything was on its way
inline bool (*let_time_pass)() = nullptr;        // where nothing else can happen; whether it helps
inline std::string (*state_of)(const void* at);  // of what a thread waits for

// Says where threads wait of which none can go on: the first one at each place, three places.
void report_deadlock();

// A block of which a thread may be able to go on; -1: there is none.
int block_that_runs();

// Enters a block of which a thread can go on, if there is one.
void choose_in_cluster();

}  // namespace elman::emulation
