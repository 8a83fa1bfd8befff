// Shared memory as the emulated block sees it. It starts as NaN; every access to it is checked
// against the bounds of its array and against the other threads: two that touch a word, one of them
// writing, need a barrier or a signal between them. Copies in flight own their destination until
// the wait, and nobody may write to their source.
#pragma once
#include "emulation/signals.h"
#include "emulation/stretches.h"

namespace elman::emulation {

// ---- shared memory

inline constexpr int NOBODY = -1, SEVERAL_WARPS = -2;

// Who read a word, of one part of the block, but for those that a later reader knew to be past.
struct Readers {
  int warp = NOBODY;
  unsigned arrivals = 0, warp_epoch = 0, lanes = 0;  // arrivals: the most of theirs
};

struct Word {
  int writer = NOBODY;
  unsigned arrivals = 0, warp_epoch = 0;  // of the writer, then
  Readers readers[2];                     // since
  bool in_flight = false;                 // destination of a copy that nobody has waited for
  int copies = 0;                         // that nobody has waited for and that read it
  // Where other blocks deliver it: the box and the turn of the last time, see boxes.h.
  unsigned box = 0, turn = 0;
};

EMULATOR_DATA std::vector<unsigned char> shared;
EMULATOR_DATA std::vector<Word> words;
inline size_t shared_bytes;  // of the block

EMULATOR size_t shared_offset(const void* p) { return (const unsigned char*)p - shared.data(); }

// Whether the current thread knows that all of a part have arrived since.
EMULATOR bool is_past(int part, unsigned arrivals) { return current->known[part] > arrivals; }

EMULATOR bool written_before(const Word& word) {
  return word.writer == NOBODY || word.writer == current->thread ||
         is_past(part_of(word.writer), word.arrivals) ||
         (word.writer / WARP == current->thread / WARP && word.warp_epoch != current->warp_epoch);
}

EMULATOR bool read_before(const Readers& readers, int part) {
  if (readers.warp == NOBODY || is_past(part, readers.arrivals)) return true;
  if (readers.warp != current->thread / WARP) return false;
  const unsigned others = readers.lanes & ~(1u << current->thread % WARP);
  return readers.warp_epoch != current->warp_epoch || !others;
}

EMULATOR void note_read(Readers& readers, int part) {
  const int warp = current->thread / WARP;
  if (readers.warp == NOBODY || is_past(part, readers.arrivals))
    readers = {warp, current->arrivals, current->warp_epoch, 0};
  readers.arrivals = std::max(readers.arrivals, current->arrivals);
  if (readers.warp != warp) {
    readers.warp = SEVERAL_WARPS;
    return;
  }
  if (readers.warp_epoch != current->warp_epoch) {
    readers.warp_epoch = current->warp_epoch;
    readers.lanes = 0;
  }
  readers.lanes |= 1u << current->thread % WARP;
}

EMULATOR void touch_word(size_t index, bool write) {
  Word& word = words[index];
  const int at = (int)index * 4, thread = current->thread;
  if (word.in_flight)
    report("shared byte %d: thread %d %s it while a copy is in flight", at, thread,
           write ? "writes" : "reads");
  if (word.box && known_at(current->learned, word.box) <= word.turn)
    report(
        "race: shared byte %d of block %lld: thread %d %s it without a wait for what is delivered "
        "there",
        at, block_index, thread, write ? "writes" : "reads");
  if (!written_before(word))
    report("race: shared byte %d, %s by thread %d after a write by thread %d", at,
           write ? "write" : "read", thread, word.writer);
  if (!write) return note_read(word.readers[part_of(thread)], part_of(thread));
  if (word.copies)
    report("race: shared byte %d: thread %d writes it while a copy from it is in flight", at,
           thread);
  for (int part = 0; part < 2; part++)
    if (!read_before(word.readers[part], part))
      report("race: shared byte %d, write by thread %d after a read by another", at, thread);
  word = {thread, current->arrivals, current->warp_epoch, {}, word.in_flight, word.copies};
}

EMULATOR void touch(const void* p, size_t bytes, bool write) {
  if (current == &host) return;
  const size_t first = shared_offset(p) / 4, last = (shared_offset(p) + bytes - 1) / 4;
  for (size_t index = first; index <= last; index++) touch_word(index, write);
}

template <class T>
struct Checked {
  T* p;
  operator T() const {
    touch(p, sizeof(T), false);
    return *p;
  }
  T operator=(T x) const {
    touch(p, sizeof(T), true);
    return *p = x;
  }
  T operator=(const Checked& other) const { return *this = (T)other; }
  T operator+=(T x) const { return *this = (T) * this + x; }
};

// A pointer into an array of shared memory that knows where the array ends.
template <class T>
struct Pointer {
  T* begin = nullptr;
  long long offset = 0, length = 0;

  T* at(long long i, int count) const {
    const long long index = offset + i;
    if (index < 0 || index + count > length) {
      report("shared index %lld outside an array of %lld (thread %d)", index, length,
             current->thread);
      return (T*)shared.data();
    }
    if (count > 1 && ((uintptr_t)(begin + index)) % (count * sizeof(T)))
      report("shared index %lld: %d elements at a time are not aligned (thread %d)", index, count,
             current->thread);
    return begin + index;
  }
  Checked<T> operator[](long long i) const { return {at(i, 1)}; }
  Pointer operator+(long long i) const { return {begin, offset + i, length}; }
  template <class U>
  Pointer<U> as() const {
    constexpr long long from = sizeof(T), to = sizeof(U);
    if (offset * from % to) report("shared index %lld is not aligned", offset);
    return {(U*)begin, offset * from / to, length * from / to};
  }
};

// Returns the array that starts at byte `carved`, and moves that behind it.
template <class T>
Pointer<T> carve(size_t& carved, long long length) {
  const Pointer<T> array{(T*)(shared.data() + carved), 0, length};
  carved += (length * sizeof(T) + 15) / 16 * 16;
  if (carved > shared_bytes)
    report("shared memory: %zu bytes needed, %zu given", carved, shared_bytes);
  return array;
}

// Bytes behind a block's shared memory that nobody may write: raw pointers know no array's end.
inline constexpr size_t GUARD_BYTES = 256;
inline constexpr unsigned char GUARD = 0xa5;

EMULATOR void fresh_shared(size_t bytes) {
  shared_bytes = bytes;
  shared.assign(bytes + GUARD_BYTES, 0xff);  // NaN in every floating type
  std::fill(shared.begin() + bytes, shared.end(), GUARD);
  words.assign((bytes + GUARD_BYTES) / 4 + 1, Word());
}

EMULATOR void check_guard() {
  for (size_t i = shared_bytes; i < shared.size(); i++)
    if (shared[i] != GUARD)
      return report("shared memory is written %zu bytes behind its end (block %lld)",
                    i - shared_bytes + 1, block_index);
}

}  // namespace elman::emulation
