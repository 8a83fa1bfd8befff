// What boxes.h declares.
#include "emulation/boxes.h"

namespace elman::emulation {

std::deque<Box> boxes;
std::map<std::pair<int, size_t>, Box*> box_at;
std::vector<Delivery> in_flight;

std::string name_of(const Box& box) {
  return "the box at byte " + std::to_string(box.byte) + " of block " +
         std::to_string(index_of_block(box.rank));
}

void make_box(size_t byte, int count, bool announced) {
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

void announce_boxes() {
  for (Box& box : boxes)
    if (box.rank == entered && box.maker == current->thread && !box.announced) {
      box.announced = true;
      box.made = current->meetings;
    }
}

Box* box_of(int rank, size_t byte) {
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

void end_turn(Box& box) {
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

void check_amount(const Box& box) {
  if (box.expected && box.sent > box.wanted)
    report("%s would get %lld bytes in a turn of %lld (thread %d of block %lld)",
           name_of(box).c_str(), box.sent, box.wanted, current->thread, block_index);
}

bool knows_turns(const Box& box) { return known_at(current->learned, box.number) == box.over; }

void expect_bytes(Box& box, long long bytes) {
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

void end_empty_turn(Box& box) {
  if (!knows_turns(box))
    report("%s: thread %d ends a turn without knowing that the one before is over",
           name_of(box).c_str(), current->thread);
  box.pending--;
  box.gathered = joined(box.gathered, all_known());
  end_turn(box);
}

bool see_turn(Box& box, unsigned parity) {
  if (box.over % 2 == parity) return false;
  learn(*current, box.told);
  box.seen = box.over;
  return true;
}

void await_turn(Box& box, unsigned parity, const char* where) {
  while (!see_turn(box, parity)) {
    current->signal = &box;
    wait(Wait::signal, where);
  }
}

bool try_turn(Box& box, unsigned parity) {
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

std::string state_of_box(const void* at) {
  for (const Box& box : boxes)
    if (&box == at)
      return " for " + name_of(box) + ": in turn " + std::to_string(box.over) + " " +
             std::to_string(box.wanted - box.missing) + " bytes have come" +
             (box.pending ? ", how many there will be nobody has said"
                          : " of " + std::to_string(box.wanted));
  return "";
}

bool knows_past(const Known& known, int part, unsigned arrivals) {
  return known_at(known, part_number(entered, part)) > arrivals;
}

bool knows_met(const Known& known, int warp, unsigned warp_epoch) {
  return warp >= 0 && known_at(known, warp_number(entered, warp)) > warp_epoch;
}

void check_word(const Word& word, const Delivery& sent, size_t byte) {
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

void claim(const Delivery& sent) {
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

void deliver_words(const Remote& to, const Remote& counted, const unsigned* word, int count) {
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
  box->delivers = true;
  check_amount(*box);
  claim(sent);
  in_flight.push_back(sent);
}

void arrive(const Delivery& sent) {
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

void copy_to_box(unsigned char* to, const void* from, int bytes, size_t box) {
  constexpr int PIECE = 16;
  if (bytes <= 0 || bytes % PIECE || (uintptr_t)from % PIECE || shared_offset(to) % PIECE)
    return report("a copy of %d bytes to a box is not in whole vectors (thread %d)", bytes,
                  current->thread);
  // Behind an error the place may be anything.
  if (!error.empty() || !touch_global(from, bytes, false)) return;
  for (int at = 0; at < bytes && error.empty(); at += PIECE) {
    unsigned word[PIECE / 4];
    std::memcpy(word, (const unsigned char*)from + at, PIECE);
    const long long place = (long long)shared_offset(to + at);
    deliver_words({entered, place, 0, (long long)shared_bytes}, {entered, (long long)box}, word,
                  PIECE / 4);
  }
}

void check_policy(unsigned long long policy) {
  if (policy != PASSING) report("a copy with a policy that nobody made");
}

bool let_one_arrive() {
  if (in_flight.empty()) return false;
  std::swap(in_flight[random_below(in_flight.size())], in_flight.back());
  const Delivery sent = in_flight.back();
  in_flight.pop_back();
  arrive(sent);
  return true;
}

void check_leaving() {
  if (current->arrived)
    report("thread %d of block %lld arrives for its cluster and does not wait", current->thread,
           block_index);
  if (current->used_box && !grid_runs)
    report(
        "thread %d of block %lld ends without sync_cluster(): others may still deliver to its "
        "block",
        current->thread, block_index);
}

void check_boxes() {
  for (const Box& box : boxes)
    if (box.sent)
      report("%s: %lld bytes of turn %u are delivered, and the cluster ends before it is over",
             name_of(box).c_str(), box.sent, box.over);
    else if (box.delivers && box.seen < box.over)
      report("%s: nobody waits for turn %u, so that deliveries may come after the end",
             name_of(box).c_str(), box.over - 1);
}

void run_cluster(long long first, int size, int threads, size_t bytes) {
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

std::string launch_clusters(long long first, long long blocks, int size, int threads, size_t bytes,
                            unsigned seed, const std::function<void()>& kernel) {
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
  first_met = tell_first;
  warp_met = tell_warp;
  let_something_arrive = let_one_arrive;
  state_of = state_of_box;
  for (long long index = first; index < first + blocks && error.empty(); index += size)
    run_cluster(index, size, threads, bytes);
  choose_block = block_met = first_met = nullptr;
  warp_met = nullptr;
  cluster.clear();  // their stacks: every library has its own, and a process loads hundreds
  fibers.clear();
  return error;
}

}  // namespace elman::emulation
