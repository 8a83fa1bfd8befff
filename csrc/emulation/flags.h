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
extern std::unordered_map<uintptr_t, std::map<unsigned, Known>> flags;

// ---- flags

unsigned* flag_at(const void* p, bool write);

// Wakes whoever waits for a flag.
void wake_waiting(const void* flag);

// Raises a flag; `release`: so that what the thread knows is told with it.
void raise_flag(void* p, unsigned turn, bool release = true);

// Returns what a flag stands at; `least` is the turn that is waited for.
unsigned look_at_flag(const void* p, unsigned least);

// Waits until somebody raises a flag; returns whether anybody can.
bool await_flag(const void* p, const char* where);

// Ends all waits for flags, which nobody can raise any more.
bool end_waits_in_vain();

// ---- numbers that come with their turn: words of 8 bytes, the turn and then the number

void post(void* p, unsigned turn, unsigned number, bool release);

// What a word holds; `acquire`: what the writer told with it is learnt.
uint64_t look_at_post(const void* p, bool acquire);

// Waits for a number; `acquire`: what its writer told is learnt.
unsigned take_post(const void* p, unsigned turn, bool acquire, const char* where);

// ---- a launch

// Asks all threads of a block; returns whether any of them came with `mine`.
bool any_of_block(bool mine, const char* where);

// The same of a warp: whether all of its lanes came with it.
bool all_of_warp(bool mine, const char* where);

// Runs all blocks of a grid side by side.
std::string launch_grid(long long first, long long blocks, int threads, size_t bytes, unsigned seed,
                        const std::function<void()>& kernel);

}  // namespace elman::emulation
