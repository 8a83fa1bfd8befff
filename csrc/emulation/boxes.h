// Deliveries between the blocks of a cluster, and the boxes that count them: barriers in shared
// memory with transaction bytes, as PTX has them. A delivery arrives at a random moment after it
// was sent, in any order with others. A turn of a box is over when no arrival and no byte is
// pending; bytes may come before the arrival that says how many there are, which keeps the turn
// open.
//
// A delivery is right if no order of events breaks it, so that what is checked is not what happened
// but what is known: who sends must know that the turn before is over, and that whatever read or
// wrote the place has done so; who reads or writes the place must know that the turn of the last
// delivery is over. A thread knows what it has seen by its waits, and what others knew who met it
// (sync_warp, sync_block, sync_cluster) or delivered what it has waited for. Reads and writes count
// as over when all threads of the block have met since: sync_block, or an arrival at a Signal.
#pragma once
#include <deque>

#include "emulation/clusters.h"

namespace elman::emulation {

struct Box {
  int rank = 0;
  size_t byte = 0;    // of the block's shared memory
  unsigned made = 0;  // meetings of the cluster before that
  int maker = 0;      // thread
  bool announced = true;
  unsigned number = 0;             // among what threads know
  int count = 1, pending = 1;      // arrivals of every turn, and those that are missing
  long long missing = 0;           // bytes; negative where they came before they were expected
  long long sent = 0, wanted = 0;  // bytes of this turn
  bool expected = false;           // whether somebody has said how many bytes this turn has
  unsigned over = 0, seen = 0;     // turns that are over, and that somebody has waited for
  Known gathered, told;            // what those who delivered knew, in this turn and in the last
};

struct Delivery {
  Box* box;
  size_t byte;
  int words;
  unsigned word[4];
  int thread;
  long long sender;  // its block
  Known known;
};

EMULATOR_DATA std::deque<Box> boxes;
EMULATOR_DATA std::map<std::pair<int, size_t>, Box*> box_at;
EMULATOR_DATA std::vector<Delivery> in_flight;
inline constexpr long long MOST_BYTES = (1 << 20) - 1;  // of a turn

// A place in the shared memory of a block of the cluster.
struct Remote {
  int rank = -1;
  long long byte = 0, first = 0, end = 0;  // of an array, in the block's shared memory
  Remote operator+(long long bytes) const { return {rank, byte + bytes, first, end}; }
  Remote operator-(long long bytes) const { return *this + -bytes; }
  Remote& operator+=(long long bytes) { return *this = *this + bytes; }
};

EMULATOR std::string name_of(const Box& box) {
  return "the box at byte " + std::to_string(box.byte) + " of block " +
         std::to_string(index_of_block(box.rank));
}

// ---- making boxes, and turns of theirs

EMULATOR void make_box(size_t byte, int count, bool announced) {
  Box*& box = box_at[{entered, byte}];
  if (byte % 8 || byte + 8 > shared_bytes)
    report("a box at byte %zu of block %lld is not aligned or outside shared memory", byte,
           block_index);
  if (box) report("thread %d makes %s a second time", current->thread, name_of(*box).c_str());
  boxes.emplace_back();
  box = &boxes.back();
  box->rank = entered;
  box->byte = byte;
  box->made = current->meetings;
  box->maker = current->thread;
  box->announced = announced;
  box->count = box->pending = count;
  box->number = (unsigned)(warp_number((int)cluster.size(), 0) + boxes.size());
}

// Announces to other blocks the boxes that the current thread has made.
EMULATOR void announce_boxes() {
  for (Box& box : boxes)
    if (box.rank == entered && box.maker == current->thread && !box.announced) {
      box.announced = true;
      box.made = current->meetings;
    }
}

// The box at a place; nullptr, and a report, if it may not be used yet.
EMULATOR Box* box_of(int rank, size_t byte) {
  current->used_box = true;
  const auto found = box_at.find({rank, byte});
  if (found != box_at.end() && current->meetings > found->second->made && found->second->announced)
    return found->second;
  report(
      "thread %d of block %lld uses the box at byte %zu of block %lld before it was made and the "
      "cluster met",
      current->thread, block_index, byte, index_of_block(rank));
  return nullptr;
}

// Ends the turn if nothing is pending.
EMULATOR void end_turn(Box& box) {
  if (box.pending || box.missing) return;
  box.over++;
  box.pending = box.count;
  box.sent = box.wanted = 0;
  box.expected = false;
  box.told = raised(box.gathered, box.number, box.over);
  box.gathered = nullptr;
  const Visit visit(box.rank);
  for (Fiber& fiber : fibers)
    if (fiber.wait == Wait::signal && fiber.signal == &box) wake(fiber);
}

EMULATOR void check_amount(const Box& box) {
  if (box.expected && box.sent > box.wanted)
    report("%s would get %lld bytes in a turn of %lld (thread %d of block %lld)",
           name_of(box).c_str(), box.sent, box.wanted, current->thread, block_index);
}

EMULATOR bool knows_turns(const Box& box) {
  return known_at(current->learned, box.number) == box.over;
}

// Arrives for this turn, and says that so many more bytes belong to it.
EMULATOR void expect_bytes(Box& box, long long bytes) {
  const std::string name = name_of(box);
  if (bytes <= 0 || bytes > MOST_BYTES || bytes % 4)
    report("%s expects %lld bytes (thread %d)", name.c_str(), bytes, current->thread);
  if (box.pending == 0)
    report("%s: thread %d expects bytes twice in a turn, or before the one before is over",
           name.c_str(), current->thread);
  else if (!knows_turns(box))
    report("%s: thread %d expects bytes without knowing that the turn before is over", name.c_str(),
           current->thread);
  if (!error.empty()) return;
  box.pending--;
  box.wanted += bytes;
  box.missing += bytes;
  box.expected = true;
  check_amount(box);
  box.gathered = joined(box.gathered, all_known());
  end_turn(box);
}

// Learns what the end of the last turn tells, if that is one of a kind, even or odd.
EMULATOR bool see_turn(Box& box, unsigned parity) {
  if (box.over % 2 == parity) return false;
  learn(*current, box.told);
  box.seen = box.over;
  return true;
}

// Waits for the end of a turn of this kind.
EMULATOR void await_turn(Box& box, unsigned parity, const char* where) {
  while (!see_turn(box, parity)) {
    current->signal = &box;
    wait(Wait::signal, where);
  }
}

// The same with an instruction that may give up: nothing is promised of how long it waits.
EMULATOR bool try_turn(Box& box, unsigned parity) {
  if (see_turn(box, parity)) return true;
  if (random_below(2)) {
    current->signal = &box;
    wait(Wait::signal, "mbarrier.try_wait");
  } else {
    ready.push_back(current->thread);
    next();
  }
  return see_turn(box, parity);
}

// What a thread that waits for a box waits for.
EMULATOR std::string state_of_box(const void* at) {
  for (const Box& box : boxes)
    if (&box == at)
      return " for " + name_of(box) + ": in turn " + std::to_string(box.over) + " " +
             std::to_string(box.wanted - box.missing) + " bytes have come" +
             (box.pending ? ", how many there will be nobody has said"
                          : " of " + std::to_string(box.wanted));
  return "";
}

// ---- deliveries

// Whether the current thread, at home in another block or in this one, knows that all of a part of
// the block that is visited have arrived since.
EMULATOR bool knows_past(const Known& known, int part, unsigned arrivals) {
  return known_at(known, part_number(entered, part)) > arrivals;
}

// The same of a warp, whose lanes have met since.
EMULATOR bool knows_met(const Known& known, int warp, unsigned warp_epoch) {
  return warp >= 0 && known_at(known, warp_number(entered, warp)) > warp_epoch;
}

// Says which use of a word the sender cannot know to be over.
EMULATOR void check_word(const Word& word, const Delivery& sent, size_t byte) {
  const bool own = current->rank == entered;
  const int at = (int)byte;
  if (word.box && known_at(sent.known, word.box) <= word.turn)
    report(
        "race: shared byte %d of block %lld: thread %d of block %lld delivers there while an "
        "earlier delivery may be on its way",
        at, block_index, sent.thread, sent.sender);
  if (word.in_flight || word.copies)
    report(
        "race: shared byte %d of block %lld: thread %d of block %lld delivers there while a copy "
        "is in flight",
        at, block_index, sent.thread, sent.sender);
  if (word.writer != NOBODY && !knows_past(sent.known, part_of(word.writer), word.arrivals) &&
      !knows_met(sent.known, word.writer / WARP, word.warp_epoch) && !(own && written_before(word)))
    report(
        "race: shared byte %d of block %lld: thread %d of block %lld delivers there without "
        "knowing that thread %d has written",
        at, block_index, sent.thread, sent.sender, word.writer);
  for (int part = 0; part < 2; part++) {
    const Readers& readers = word.readers[part];
    if (readers.warp != NOBODY && !knows_past(sent.known, part, readers.arrivals) &&
        !knows_met(sent.known, readers.warp, readers.warp_epoch) &&
        !(own && read_before(readers, part)))
      report(
          "race: shared byte %d of block %lld: thread %d of block %lld delivers there without "
          "knowing that %s has read what stood there",
          at, block_index, sent.thread, sent.sender,
          readers.warp < 0 ? "every warp" : ("warp " + std::to_string(readers.warp)).c_str());
  }
}

// Takes a place over for a delivery, which arrives later.
EMULATOR void claim(const Delivery& sent) {
  const Box& box = *sent.box;
  const Visit visit(box.rank);
  if (!alive) {
    report("thread %d of block %lld delivers to block %lld, which has left", sent.thread,
           sent.sender, block_index);
    return;
  }
  for (size_t index = sent.byte / 4; index < sent.byte / 4 + sent.words; index++) {
    check_word(words[index], sent, index * 4);
    words[index] = Word();
    words[index].box = box.number;
    words[index].turn = box.over;
  }
  std::memset(shared.data() + sent.byte, 0xff, sent.words * 4);
}

EMULATOR void deliver_words(const Remote& to, const Remote& counted, const unsigned* word,
                            int count) {
  const long long bytes = count * 4;
  const int thread = current->thread;
  if (!error.empty()) return;
  if (to.rank != counted.rank)
    return report("thread %d of block %lld delivers to block %lld and counts it in block %lld",
                  thread, block_index, index_of_block(to.rank), index_of_block(counted.rank));
  if (to.byte % bytes)
    return report(
        "shared byte %lld of block %lld: a delivery of %lld bytes is not aligned (thread "
        "%d of block %lld)",
        to.byte, index_of_block(to.rank), bytes, thread, block_index);
  if (to.byte < to.first || to.byte + bytes > to.end)
    return report(
        "shared byte %lld of block %lld: a delivery of %lld bytes is outside its array of "
        "bytes %lld to %lld (thread %d of block %lld)",
        to.byte, index_of_block(to.rank), bytes, to.first, to.end - 1, thread, block_index);
  Box* box = box_of(counted.rank, (size_t)counted.byte);
  if (!box) return;
  if (!knows_turns(*box))
    return report(
        "%s: thread %d of block %lld delivers without knowing that the turn before is over",
        name_of(*box).c_str(), thread, block_index);
  Delivery sent{box, (size_t)to.byte, count, {}, thread, block_index, all_known()};
  std::copy(word, word + count, sent.word);
  box->sent += bytes;
  check_amount(*box);
  claim(sent);
  in_flight.push_back(sent);
}

EMULATOR void arrive(const Delivery& sent) {
  const Visit visit(sent.box->rank);
  Box& box = *sent.box;
  if (!alive)
    return report("a delivery of thread %d of block %lld comes to block %lld, which has left",
                  sent.thread, sent.sender, block_index);
  std::memcpy(shared.data() + sent.byte, sent.word, sent.words * 4);
  box.missing -= sent.words * 4;
  box.gathered = joined(box.gathered, sent.known);
  end_turn(box);
}

EMULATOR bool let_one_arrive() {
  if (in_flight.empty()) return false;
  std::swap(in_flight[random_below(in_flight.size())], in_flight.back());
  const Delivery sent = in_flight.back();
  in_flight.pop_back();
  arrive(sent);
  return true;
}

// ---- a launch

// What has to be true when a thread of a cluster ends.
EMULATOR void check_leaving() {
  if (current->arrived)
    report("thread %d of block %lld arrives for its cluster and does not wait", current->thread,
           block_index);
  if (current->used_box)
    report(
        "thread %d of block %lld ends without sync_cluster(): others may still deliver to its "
        "block",
        current->thread, block_index);
}

// What has to be true of the boxes when a cluster ends.
EMULATOR void check_boxes() {
  for (const Box& box : boxes)
    if (box.sent)
      report("%s: %lld bytes of turn %u are delivered, and the cluster ends before it is over",
             name_of(box).c_str(), box.sent, box.over);
    else if (box.seen < box.over)
      report("%s: nobody waits for turn %u, so that deliveries may come after the end",
             name_of(box).c_str(), box.over - 1);
}

EMULATOR void run_cluster(long long first, int size, int threads, size_t bytes) {
  if (cluster.size() == (size_t)size) {
    enter(0);  // keeps the stacks of its fibers
  } else {
    cluster.clear();
    cluster.resize(size);
    entered = 0;
  }
  boxes.clear();
  box_at.clear();
  in_flight.clear();
  for (int rank = 0; rank < size; rank++) {
    enter(rank);
    fresh_shared(bytes);
    copies.assign(threads, CopyQueue());
    no_barriers();
    start_block(first + rank, threads);
    cluster[rank].stuck = false;
    for (Fiber& fiber : fibers) {
      fiber.rank = rank;
      fiber.meetings = 0;
      fiber.used_box = fiber.arrived = false;
      fiber.learned = nullptr;
    }
  }
  delay = 1u << random_below(8);
  linger = 1u << random_below(5);
  next();
  for (int rank = 0; rank < size && error.empty(); rank++) {
    enter(rank);
    check_guard();
  }
  if (error.empty()) check_boxes();
}

// Runs blocks of a grid of clusters, from `first` on; both numbers are of whole clusters.
EMULATOR std::string launch_clusters(long long first, long long blocks, int size, int threads,
                                     size_t bytes, unsigned seed,
                                     const std::function<void()>& kernel) {
  const std::function<void()> function = [&] {
    kernel();
    check_copies();
    check_leaving();
  };
  error.clear();
  forget_touches();
  random_state = seed * 2654435761ull + 1;
  if (first % size || blocks % size)
    report("clusters of %d blocks do not fill blocks %lld to %lld", size, first,
           first + blocks - 1);
  body = &function;
  choose_block = choose_in_cluster;
  block_met = tell_block;
  warp_met = tell_warp;
  let_something_arrive = let_one_arrive;
  state_of = state_of_box;
  for (long long index = first; index < first + blocks && error.empty(); index += size)
    run_cluster(index, size, threads, bytes);
  choose_block = block_met = nullptr;
  warp_met = nullptr;
  cluster.clear();  // their stacks: every library has its own, and a process loads hundreds
  fibers.clear();
  return error;
}

}  // namespace elman::emulation
