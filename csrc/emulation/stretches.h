// Memory that several blocks see, as stretches: what each is called, where its rows lie, whose it
// is and what may be done with it. A launch may touch nothing else. Of every two bytes of it the
// emulator knows who wrote and read them in this launch, and how many copies still read them: no
// number may be written by one thread and touched by another, or written while a copy reads it.
#pragma once
#include <unordered_map>

#include "emulation/fibers.h"

namespace elman::emulation {

enum class Space : int {
  global,  // of the launch: whoever runs it declares the tensors
  shared   // of a block, which is the owner: made and freed with it
};
inline constexpr long long EVERYBODY = -1;

// Rows of bytes at two distances, the larger one first; Python mirrors it.
struct Stretch {
  const char* name;
  uintptr_t first;
  long long row, counts[2], strides[2];
  Space space;
  int writable;
  long long owner;  // the block that alone may touch it, or EVERYBODY
  int freed;
  int settled;    // written by no kernel that may still run when this one begins
  int unwatched;  // another checker watches it
  int exchanged;  // threads or blocks hand it to each other, see exchanged.h

  // Bytes from the nearest row's first byte to an address, by rounding down; `row` and more is
  // behind the row, less than 0 before it.
  long long from_row(uintptr_t at) const {
    long long rest = (long long)(at - first);
    for (int i = 0; i < 2; i++)
      if (counts[i] > 1 && strides[i] > 0 && rest > 0)
        rest -= std::min(rest / strides[i], counts[i] - 1) * strides[i];
    return rest;
  }
  bool holds(uintptr_t at) const {
    const long long from = from_row(at);
    return 0 <= from && from < row && counts[0] > 0 && counts[1] > 0;
  }
};

extern std::vector<Stretch> stretches;

// ---- who touched what

inline constexpr int GRANULE = 2;  // bytes, the least number there is
inline constexpr uintptr_t PAGE = 4096;
inline constexpr long long SEVERAL = -1;

struct Granule {             // zeros: nobody touched it
  long long writer, reader;  // number of the thread in the grid, from 1 on; or SEVERAL
  int stretch;               // where it lies, counted from 1 on
  int copies;                // in flight, that read it
};

struct Page {
  Granule granules[PAGE / GRANULE];
};
struct FreePage {
  void operator()(Page* page) const { std::free(page); }
};

// Tensors may be far larger than what a test touches of them: pages are made when they are touched.
extern std::unordered_map<uintptr_t, std::unique_ptr<Page, FreePage>> pages;
inline constexpr int RECENT = 64;
struct Recent {
  uintptr_t number;
  Page* page;
};
inline Recent recent[RECENT];

void forget_touches();

Granule& granule_at(uintptr_t at);

// ---- what is wrong with a place

std::string here();

// Says where an address lies, by the nearest row of a stretch.
std::string place_of(uintptr_t at);

// The stretch of a granule, found once; nullptr if there is none.
const Stretch* stretch_at(Granule& granule, uintptr_t at);

// Roles may lie on one slice, of which a launch reads the one and writes the other.
bool writable(uintptr_t at);

bool may_touch(Granule& granule, uintptr_t at, int bytes, bool write);

// Checks an access to what blocks hand to each other; nullptr where they run one after another.
inline void (*touch_exchanged)(uintptr_t at, bool write, const char* name) = nullptr;

void note_touch(Granule& granule, uintptr_t at, bool write);

// Notes an access of the current thread; returns whether it may be made at all.
bool touch_global(const void* p, int bytes, bool write);

// ---- copies that read global memory after they have been started

// Whether a number begins in the second half of the word at an address: a copy begins with a whole
// word, and what stands in the other half is nobody's business.
bool is_half_word(uintptr_t at);

// Notes that a copy reads so many bytes from now on, or no more; returns whether it may.
bool hold_global(const void* p, int bytes, int by);

}  // namespace elman::emulation
