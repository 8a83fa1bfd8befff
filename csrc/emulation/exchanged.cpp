// What exchanged.h declares.
#include "emulation/exchanged.h"

namespace elman::emulation {

std::unordered_map<uintptr_t, Exchanged> exchanged_words;

bool knows_written(const Known& known, const Exchanged& word) {
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

void note_exchanged_read(Exchanged& word) {
  const size_t part = part_number(current->rank, part_of(current->thread));
  for (auto& [reader, arrivals] : word.readers)
    if (reader == part) {
      arrivals = std::max(arrivals, current->arrivals);
      return;
    }
  word.readers.emplace_back(part, current->arrivals);
}

void touch_word_exchanged(uintptr_t at, bool write, const char* name) {
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

}  // namespace elman::emulation
