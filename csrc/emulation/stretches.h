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

EMULATOR_DATA std::vector<Stretch> stretches;

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
EMULATOR_DATA std::unordered_map<uintptr_t, std::unique_ptr<Page, FreePage>> pages;
inline constexpr int RECENT = 64;
struct Recent {
  uintptr_t number;
  Page* page;
};
inline Recent recent[RECENT];

EMULATOR void forget_touches() {
  pages.clear();
  std::fill(std::begin(recent), std::end(recent), Recent{});
}

EMULATOR Granule& granule_at(uintptr_t at) {
  const uintptr_t number = at / PAGE;
  auto& last = recent[number % RECENT];
  if (!last.page || last.number != number) {
    auto& page = pages[number];
    if (!page) page.reset((Page*)std::calloc(1, sizeof(Page)));
    last = {number, page.get()};
  }
  return last.page->granules[at % PAGE / GRANULE];
}

// ---- what is wrong with a place

EMULATOR std::string here() {
  return "thread " + std::to_string(current->thread) + " of block " + std::to_string(block_index);
}

// Says where an address lies, by the nearest row of a stretch.
EMULATOR std::string place_of(uintptr_t at) {
  long long least = -1;
  std::string said = "where nothing was declared";
  for (const Stretch& s : stretches) {
    const long long from = s.from_row(at);
    const long long away = from < 0 ? -from : from < s.row ? 0 : from - s.row + 1;
    if (least >= 0 && away >= least) continue;
    least = away;
    const bool rows = s.counts[0] * s.counts[1] > 1;
    said = std::to_string(away) + " bytes " + (from < 0 ? "before " : "behind ") +
           (rows       ? "a row of "
            : from < 0 ? "the start of "
                       : "the end of ") +
           s.name;
  }
  return said;
}

// The stretch of a granule, found once; nullptr if there is none.
EMULATOR const Stretch* stretch_at(Granule& granule, uintptr_t at) {
  for (size_t i = 0; !granule.stretch && i < stretches.size(); i++)
    if (stretches[i].holds(at)) granule.stretch = (int)i + 1;
  return granule.stretch ? &stretches[granule.stretch - 1] : nullptr;
}

// Roles may lie on one slice, of which a launch reads the one and writes the other.
EMULATOR bool writable(uintptr_t at) {
  for (const Stretch& s : stretches)
    if (s.writable && s.holds(at)) return true;
  return false;
}

EMULATOR bool may_touch(Granule& granule, uintptr_t at, int bytes, bool write) {
  const Stretch* found = stretch_at(granule, at);
  const char* what = write ? "write" : "read";
  if (!found)
    report("global %s of %d bytes outside every tensor, %s (%s)", what, bytes, place_of(at).c_str(),
           here().c_str());
  else if (found->freed)
    report("global %s of %s, which was freed (%s)", what, found->name, here().c_str());
  else if (found->owner != EVERYBODY && found->owner != block_index)
    report("global %s of %s, which is of block %lld (%s)", what, found->name, found->owner,
           here().c_str());
  else if (write && !found->writable && !writable(at))
    report("global write to %s, which the launch only reads (%s)", found->name, here().c_str());
  else if (!current->waited && !found->settled)
    report("global %s of %s before the wait for the kernel before (%s)", what, found->name,
           here().c_str());
  else
    return true;
  return false;
}

// Checks an access to what blocks hand to each other; nullptr where they run one after another.
inline void (*touch_exchanged)(uintptr_t at, bool write, const char* name) = nullptr;

EMULATOR void note_touch(Granule& granule, uintptr_t at, bool write) {
  const Stretch& found = stretches[granule.stretch - 1];
  if (found.unwatched) return;
  if (found.exchanged && touch_exchanged) return touch_exchanged(at, write, found.name);
  const long long me = block_index * threads_per_block + current->thread + 1;
  const char* name = stretches[granule.stretch - 1].name;
  if (granule.writer && granule.writer != me)
    report("race: global number of %s written by thread %lld, then %s by thread %lld", name,
           granule.writer - 1, write ? "written" : "read", me - 1);
  if (!write) {
    granule.reader = !granule.reader || granule.reader == me ? me : SEVERAL;
    return;
  }
  if (granule.reader && granule.reader != me)
    report("race: global number of %s read by thread %lld, then written by thread %lld", name,
           granule.reader - 1, me - 1);
  if (granule.copies)
    report("race: %s is written while a copy from it is in flight (%s)", name, here().c_str());
  granule.writer = me;
}

// Notes an access of the current thread; returns whether it may be made at all.
EMULATOR bool touch_global(const void* p, int bytes, bool write) {
  if (current == &host) return true;
  const uintptr_t first = (uintptr_t)p / GRANULE * GRANULE, end = (uintptr_t)p + bytes;
  for (uintptr_t at = first; at < end; at += GRANULE) {
    Granule& granule = granule_at(at);
    if (!may_touch(granule, at, bytes, write)) return false;
    note_touch(granule, at, write);
  }
  return true;
}

// ---- copies that read global memory after they have been started

// Whether a number begins in the second half of the word at an address: a copy begins with a whole
// word, and what stands in the other half is nobody's business.
EMULATOR bool is_half_word(uintptr_t at) {
  const uintptr_t other = at + GRANULE;
  return at % (2 * GRANULE) == 0 && !stretch_at(granule_at(at), at) &&
         stretch_at(granule_at(other), other);
}

// Notes that a copy reads so many bytes from now on, or no more; returns whether it may.
EMULATOR bool hold_global(const void* p, int bytes, int by) {
  const uintptr_t start = (uintptr_t)p / GRANULE * GRANULE, end = (uintptr_t)p + bytes;
  for (uintptr_t at = start; at < end; at += GRANULE) {
    if (at == start && end - at > GRANULE && is_half_word(at)) continue;
    Granule& granule = granule_at(at);
    if (!may_touch(granule, at, bytes, false)) return false;
    if (by > 0) note_touch(granule, at, false);
    granule.copies += by;
  }
  return true;
}

}  // namespace elman::emulation

#if defined(ELMAN_EMULATOR)
// Declares what the next launch may touch.
extern "C" void elman_declare(const elman::emulation::Stretch* given, int count) {
  elman::emulation::stretches.assign(given, given + count);
}

// Says whether the next launch may begin while the kernel before it still runs.
extern "C" void elman_begin_early(int early) { elman::emulation::begins_early = early; }
#endif
