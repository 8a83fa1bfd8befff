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

extern std::vector<unsigned char> shared;
extern std::vector<Word> words;
inline size_t shared_bytes;  // of the block

size_t shared_offset(const void* p);

// Whether the current thread knows that all of a part have arrived since.
bool is_past(int part, unsigned arrivals);

bool written_before(const Word& word);

bool read_before(const Readers& readers, int part);

void note_read(Readers& readers, int part);

void touch_word(size_t index, bool write);

void touch(const void* p, size_t bytes, bool write);

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

void fresh_shared(size_t bytes);

void check_guard();

}  // namespace elman::emulation
