// What stretches.h declares.
#include "emulation/stretches.h"

namespace elman::emulation {

std::vector<Stretch> stretches;
std::unordered_map<uintptr_t, std::unique_ptr<Page, FreePage>> pages;

void forget_touches() {
  pages.clear();
  std::fill(std::begin(recent), std::end(recent), Recent{});
}

Granule& granule_at(uintptr_t at) {
  const uintptr_t number = at / PAGE;
  auto& last = recent[number % RECENT];
  if (!last.page || last.number != number) {
    auto& page = pages[number];
    if (!page) page.reset((Page*)std::calloc(1, sizeof(Page)));
    last = {number, page.get()};
  }
  return last.page->granules[at % PAGE / GRANULE];
}

std::string here() {
  return "thread " + std::to_string(current->thread) + " of block " + std::to_string(block_index);
}

std::string place_of(uintptr_t at) {
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

const Stretch* stretch_at(Granule& granule, uintptr_t at) {
  for (size_t i = 0; !granule.stretch && i < stretches.size(); i++)
    if (stretches[i].holds(at)) granule.stretch = (int)i + 1;
  return granule.stretch ? &stretches[granule.stretch - 1] : nullptr;
}

bool writable(uintptr_t at) {
  for (const Stretch& s : stretches)
    if (s.writable && s.holds(at)) return true;
  return false;
}

bool may_touch(Granule& granule, uintptr_t at, int bytes, bool write) {
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

void note_touch(Granule& granule, uintptr_t at, bool write) {
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

bool touch_global(const void* p, int bytes, bool write) {
  if (current == &host) return true;
  const uintptr_t first = (uintptr_t)p / GRANULE * GRANULE, end = (uintptr_t)p + bytes;
  for (uintptr_t at = first; at < end; at += GRANULE) {
    Granule& granule = granule_at(at);
    if (!may_touch(granule, at, bytes, write)) return false;
    note_touch(granule, at, write);
  }
  return true;
}

bool is_half_word(uintptr_t at) {
  const uintptr_t other = at + GRANULE;
  return at % (2 * GRANULE) == 0 && !stretch_at(granule_at(at), at) &&
         stretch_at(granule_at(other), other);
}

bool hold_global(const void* p, int bytes, int by) {
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

// Declares what the next launch may touch.
extern "C" void elman_declare(const elman::emulation::Stretch* given, int count) {
  elman::emulation::stretches.assign(given, given + count);
}

// Says whether the next launch may begin while the kernel before it still runs.
extern "C" void elman_begin_early(int early) { elman::emulation::begins_early = early; }
