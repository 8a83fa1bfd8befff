// Memory as the emulated block sees it. Shared memory starts as NaN; every access to it is checked
// against the bounds of its array and against the other threads: two that touch a word, one of them
// writing, need a barrier or a signal between them. Copies in flight own their
// destination until the wait. Global memory: no word may be written by one thread and touched by
// another in the same launch.
#pragma once
#include <unordered_map>

#include "signals.h"

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
};

inline std::vector<unsigned char> shared;
inline std::vector<Word> words;

inline size_t shared_offset(const void* p) { return (const unsigned char*)p - shared.data(); }

// Whether the current thread knows that all of a part have arrived since.
inline bool is_past(int part, unsigned arrivals) { return current->known[part] > arrivals; }

inline bool written_before(const Word& word) {
  return word.writer == NOBODY || word.writer == current->thread ||
         is_past(part_of(word.writer), word.arrivals) ||
         (word.writer / WARP == current->thread / WARP && word.warp_epoch != current->warp_epoch);
}

inline bool read_before(const Readers& readers, int part) {
  if (readers.warp == NOBODY || is_past(part, readers.arrivals)) return true;
  if (readers.warp != current->thread / WARP) return false;
  const unsigned others = readers.lanes & ~(1u << current->thread % WARP);
  return readers.warp_epoch != current->warp_epoch || !others;
}

inline void note_read(Readers& readers, int part) {
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

inline void touch_word(size_t index, bool write) {
  Word& word = words[index];
  const int at = (int)index * 4, thread = current->thread;
  if (word.in_flight)
    report("shared byte %d: thread %d %s it while a copy is in flight", at, thread,
           write ? "writes" : "reads");
  if (!written_before(word))
    report("race: shared byte %d, %s by thread %d after a write by thread %d", at,
           write ? "write" : "read", thread, word.writer);
  if (!write) return note_read(word.readers[part_of(thread)], part_of(thread));
  for (int part = 0; part < 2; part++)
    if (!read_before(word.readers[part], part))
      report("race: shared byte %d, write by thread %d after a read by another", at, thread);
  word = {thread, current->arrivals, current->warp_epoch, {}, word.in_flight};
}

inline void touch(const void* p, size_t bytes, bool write) {
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
  if (carved > shared.size())
    report("shared memory: %zu bytes needed, %zu given", carved, shared.size());
  return array;
}

inline void fresh_shared(size_t bytes) {
  shared.assign(bytes + 16, 0xff);  // NaN in every floating type
  shared.resize(bytes);
  words.assign(bytes / 4 + 1, Word());
}

// ---- asynchronous copies into shared memory: done at the wait, not before

struct Copy {
  unsigned char* to;
  const void* from;
  int bytes, valid;
};

struct CopyQueue {
  std::vector<std::vector<Copy>> groups{1};
};

inline std::vector<CopyQueue> copies;  // of every thread

inline void queue_copy(const Pointer<unsigned char>& to, const void* from, int bytes, int valid) {
  unsigned char* target = to.at(0, 1);
  to.at(bytes - 1, 1);
  if ((uintptr_t)from % bytes || shared_offset(target) % bytes)
    report("a copy of %d bytes is not aligned (thread %d)", bytes, current->thread);
  touch(target, bytes, true);
  for (int i = 0; i < bytes; i += 4) words[shared_offset(target + i) / 4].in_flight = true;
  std::memset(target, 0xff, bytes);
  copies[current->thread].groups.back().push_back({target, from, bytes, valid});
}

inline void commit_copies() { copies[current->thread].groups.emplace_back(); }

// Completes all but the `pending` last committed groups of the current thread.
inline void wait_copies(int pending) {
  auto& groups = copies[current->thread].groups;
  while ((int)groups.size() - 1 > pending) {
    for (const Copy& copy : groups.front()) {
      for (int i = 0; i < copy.bytes; i += 4)
        words[shared_offset(copy.to + i) / 4].in_flight = false;
      touch(copy.to, copy.bytes, true);
      std::memset(copy.to, 0, copy.bytes);
      std::memcpy(copy.to, copy.from, copy.valid);
    }
    groups.erase(groups.begin());
  }
}

// ---- global memory

struct Owner {
  long long writer = -1, reader = -1;  // number of the thread in the grid; -2: several
};

inline std::unordered_map<uintptr_t, Owner> owners;  // by address of every element touched

inline void touch_global(const void* p, bool write) {
  Owner& owner = owners[(uintptr_t)p];
  const long long me = block_index * threads_per_block + current->thread;
  if (owner.writer >= 0 && owner.writer != me)
    report("race: global element written by thread %lld, then %s by thread %lld", owner.writer,
           write ? "written" : "read", me);
  if (write && owner.reader != -1 && owner.reader != me)
    report("race: global element read by thread %lld, then written by thread %lld", owner.reader,
           me);
  if (write)
    owner.writer = me;
  else
    owner.reader = owner.reader == -1 || owner.reader == me ? me : -2;
}

// ---- a launch

template <class F>
std::string launch(long long blocks, int threads, size_t shared_bytes, unsigned seed, F kernel) {
  const std::function<void()> function = kernel;
  error.clear();
  owners.clear();
  random_state = seed * 2654435761ull + 1;
  for (long long index = 0; index < blocks && error.empty(); index++) {
    fresh_shared(shared_bytes);
    copies.assign(threads, CopyQueue());
    barriers.clear();
    run_block(index, threads, function);
  }
  return error;
}

}  // namespace elman::emulation
