// What memory.h declares.
#include "emulation/memory.h"

namespace elman::emulation {

std::vector<unsigned char> shared;
std::vector<Word> words;

size_t shared_offset(const void* p) { return (const unsigned char*)p - shared.data(); }

bool is_past(int part, unsigned arrivals) { return current->known[part] > arrivals; }

bool written_before(const Word& word) {
  return word.writer == NOBODY || word.writer == current->thread ||
         is_past(part_of(word.writer), word.arrivals) ||
         (word.writer / WARP == current->thread / WARP && word.warp_epoch != current->warp_epoch);
}

bool read_before(const Readers& readers, int part) {
  if (readers.warp == NOBODY || is_past(part, readers.arrivals)) return true;
  if (readers.warp != current->thread / WARP) return false;
  const unsigned others = readers.lanes & ~(1u << current->thread % WARP);
  return readers.warp_epoch != current->warp_epoch || !others;
}

void note_read(Readers& readers, int part) {
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

void touch_word(size_t index, bool write) {
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

void touch(const void* p, size_t bytes, bool write) {
  if (current == &host) return;
  const size_t first = shared_offset(p) / 4, last = (shared_offset(p) + bytes - 1) / 4;
  for (size_t index = first; index <= last; index++) touch_word(index, write);
}

void fresh_shared(size_t bytes) {
  shared_bytes = bytes;
  shared.assign(bytes + GUARD_BYTES, 0xff);  // NaN in every floating type
  std::fill(shared.begin() + bytes, shared.end(), GUARD);
  words.assign((bytes + GUARD_BYTES) / 4 + 1, Word());
}

void check_guard() {
  for (size_t i = shared_bytes; i < shared.size(); i++)
    if (shared[i] != GUARD)
      return report("shared memory is written %zu bytes behind its end (block %lld)",
                    i - shared_bytes + 1, block_index);
}

}  // namespace elman::emulation
