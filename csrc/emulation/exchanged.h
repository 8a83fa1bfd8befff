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

extern std::unordered_map<uintptr_t, Exchanged> exchanged_words;

bool knows_written(const Known& known, const Exchanged& word);

void note_exchanged_read(Exchanged& word);

void touch_word_exchanged(uintptr_t at, bool write, const char* name);

// For as long as it lives, what is declared as handed over is checked.
struct WatchExchanged {
  WatchExchanged() {
    exchanged_words.clear();
    touch_exchanged = touch_word_exchanged;
  }
  ~WatchExchanged() { touch_exchanged = nullptr; }
};

}  // namespace elman::emulation
