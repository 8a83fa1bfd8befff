// Asynchronous copies, and launches. A copy is done at the wait and not before, so that a thread
// that does not wait reads NaN. From its start to its wait a copy holds both of its ends: nobody
// else may touch the destination or write to the source, which has to be there all the while.
// Either end lies in global memory or in the block's shared memory, told by its address.
#pragma once
#include "emulation/memory.h"

namespace elman::emulation {

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes, valid;
};

struct CopyQueue {
  std::vector<std::vector<Copy>> groups{1};
};

extern std::vector<CopyQueue> copies;  // of every thread

bool in_shared(const void* p);

// Holds a copy's source, or lets it go; returns whether it may be read.
bool hold_source(const Copy& copy, int by);

void hold_target(const Copy& copy, bool held);

// Starts a copy of which the first `valid` bytes are read and the others zero.
void queue_copy(unsigned char* to, const void* from, int bytes, int valid);

void queue_copy(const Pointer<unsigned char>& to, const void* from, int bytes, int valid);

void commit_copies();

void complete(const Copy& copy);

// Completes all but the `pending` last committed groups of the current thread.
void wait_copies(int pending);

// Every copy has to be waited for: a block that ends leaves its shared memory to another one.
void check_copies();

// ---- a launch

// Runs some blocks of a grid, from `first` on; a grid may be far larger than what a test runs.
std::string launch(long long first, long long blocks, int threads, size_t bytes, unsigned seed,
                   const std::function<void()>& kernel);

}  // namespace elman::emulation
