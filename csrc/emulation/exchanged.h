// Numbers that threads of a block, or blocks that run at the same time, hand to each other through
// global memory.
//
// What is handed over is declared as such. A touch of it is right if no order of events breaks it:
// who reads a word must know that it was written, and who writes it must know that all who read or
// wrote it before have done so. What a thread knows is said in boxes.h. A write counts as over when
// all threads of its block, or of its warp, have met since.
#pragma once
#include "emulation/boxes.h"

namespace elman::emulation {

// What is known of a word that blocks hand over.
struct Exchanged {
  int writer_rank = NOBODY, writer = NOBODY;
  unsigned arrivals = 0, warp_epoch = 0;             // of the writer, then
  std::vector<std::pair<size_t, unsigned>> readers;  // parts of blocks, and their arrivals, then
};

EMULATOR_DATA std::unordered_map<uintptr_t, Exchanged> exchanged_words;

EMULATOR bool knows_written(const Known& known, const Exchanged& word) {
  if (word.writer_rank == NOBODY) return true;
  if (word.writer_rank == current->rank) {
    if (word.writer == current->thread) return true;
    if (word.writer / WARP == current->thread / WARP && word.warp_epoch != current->warp_epoch)
      return true;
  }
  const size_t part = part_number(word.writer_rank, part_of(word.writer));
  const size_t warp = warp_number(word.writer_rank, word.writer / WARP);
  return known_at(known, part) > word.arrivals || known_at(known, warp) > word.warp_epoch;
}

EMULATOR void note_exchanged_read(Exchanged& word) {
  const size_t part = part_number(current->rank, part_of(current->thread));
  for (auto& [reader, arrivals] : word.readers)
    if (reader == part) {
      arrivals = std::max(arrivals, current->arrivals);
      return;
    }
  word.readers.emplace_back(part, current->arrivals);
}

EMULATOR void touch_word_exchanged(uintptr_t at, bool write, const char* name) {
  if (at % 4) return;  // the word's first half has been looked at
  Exchanged& word = exchanged_words[at];
  const Known& known = all_known();
  if (!write && word.writer_rank == NOBODY)
    report("%s is read before anybody has written it (%s)", name, here().c_str());
  if (!knows_written(known, word))
    report("race: %s is %s without knowing that thread %d of block %d has written it (%s)", name,
           write ? "written" : "read", word.writer, word.writer_rank, here().c_str());
  if (!write) return note_exchanged_read(word);
  for (const auto& [part, arrivals] : word.readers)
    if (known_at(known, part) <= arrivals)
      report("race: %s is written without knowing that block %zu has read what stood there (%s)",
             name, part / 2, here().c_str());
  word = {current->rank, current->thread, current->arrivals, current->warp_epoch, {}};
}

// For as long as it lives, what is declared as handed over is checked.
struct WatchExchanged {
  WatchExchanged() {
    exchanged_words.clear();
    touch_exchanged = touch_word_exchanged;
  }
  ~WatchExchanged() { touch_exchanged = nullptr; }
};

}  // namespace elman::emulation
