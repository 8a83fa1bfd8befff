// Runs the blocks of a cluster at the same time: threads of all of them take turns in a seeded
// random order. What a block has for itself stands in the emulator's global variables while one of
// its threads runs, and is put aside otherwise; so blocks outside clusters cost what they did.
//
// What a thread knows (knowledge.h) is, in this order: of each part of each block, how often all of
// its threads have arrived at barriers; of each warp, how many meetings that order memory all of
// its lanes have had; of each box, how many turns are over.
#pragma once
#include <map>
#include <tuple>

#include "emulation/copies.h"

namespace elman::emulation {

// What a block has for itself while another one runs.
struct Aside {
  std::vector<Fiber> fibers;
  std::vector<int> ready;
  int alive = 0, second_part = 0;
  long long index = 0;
  std::vector<unsigned char> shared;
  std::vector<Word> words;
  std::vector<CopyQueue> copies;
  std::unordered_map<size_t, Barrier> barriers;
  std::unordered_map<size_t, MemoryBarrier> memory_barriers;
  bool stuck = false;  // nothing in it can run until another block does something
};

EMULATOR_DATA std::vector<Aside> cluster;
inline int entered;  // rank of the block that stands in the global variables
// How rarely a delivery arrives, and a thread of another block goes on; of each launch.
inline unsigned delay, linger;

inline constexpr unsigned EMPTY = ~0u;  // known of a part that has no threads

EMULATOR int warps_per_block() { return (threads_per_block + WARP - 1) / WARP; }
EMULATOR size_t part_number(int rank, int part) { return rank * 2 + part; }
EMULATOR size_t warp_number(int rank, int warp) {
  return cluster.size() * 2 + rank * warps_per_block() + warp;
}

// ---- the block that runs

EMULATOR void exchange_with(Aside& aside) {
  std::swap(fibers, aside.fibers);
  std::swap(ready, aside.ready);
  std::swap(alive, aside.alive);
  std::swap(second_part, aside.second_part);
  std::swap(block_index, aside.index);
  std::swap(shared, aside.shared);
  std::swap(words, aside.words);
  std::swap(copies, aside.copies);
  std::swap(barriers, aside.barriers);
  std::swap(memory_barriers, aside.memory_barriers);
}

EMULATOR void enter(int rank) {
  if (rank == entered) return;
  exchange_with(cluster[entered]);
  exchange_with(cluster[rank]);
  entered = rank;
}

// Looks into another block for as long as it lives.
struct Visit {
  const int home = entered;
  explicit Visit(int rank) { enter(rank); }
  ~Visit() { enter(home); }
};

EMULATOR long long index_of_block(int rank) {
  return rank == entered ? block_index : cluster[rank].index;
}

EMULATOR void wake(Fiber& fiber) {
  fiber.wait = Wait::none;
  ready.push_back(fiber.thread);
  cluster[entered].stuck = false;
}

// ---- what threads know

// Notes what the current thread knows of its own block among what it knows of all.
EMULATOR const Known& all_known() {
  for (int part = 0; part < 2; part++)
    if (current->known[part] != EMPTY)
      current->learned =
          raised(current->learned, part_number(current->rank, part), current->known[part]);
  return current->learned;
}

EMULATOR void learn(Fiber& fiber, const Known& told) {
  fiber.learned = joined(fiber.learned, told);
  for (int part = 0; part < 2; part++)
    fiber.known[part] =
        std::max(fiber.known[part], known_at(fiber.learned, part_number(fiber.rank, part)));
}

// What threads know together, that all of them have come here included.
EMULATOR Known known_together(int first, int last) {
  Known all;
  for (int i = first; i < last; i++) all = joined(all, fibers[i].learned);
  for (int begin = first; begin < last; begin += WARP) {
    unsigned least = ~0u;
    for (int i = begin; i < std::min(begin + WARP, last); i++)
      least = std::min(least, fibers[i].warp_epoch + 1);
    all = raised(all, warp_number(entered, begin / WARP), least);
  }
  return all;
}

EMULATOR void tell_warp(int first, int last) {
  const Known all = known_together(first, last);
  for (int i = first; i < last; i++) learn(fibers[i], all);
}

EMULATOR void tell_block() {
  Known all = known_together(0, threads_per_block);
  for (int part = 0; part < 2; part++)
    if (fibers[0].known[part] != EMPTY)
      all = raised(all, part_number(entered, part), fibers[0].known[part]);
  for (Fiber& fiber : fibers) {
    fiber.learned = all;
    fiber.warp_epoch++;
  }
}

// ---- meetings of all threads of the cluster

// A place in a source file, in words that stay.
EMULATOR const char* place_in_source(const char* what, const char* file, int line) {
  static std::map<std::tuple<const char*, const char*, int>, std::string> places;
  static struct {
    const char *what, *file, *text;
    int line;
  } recent[64];
  auto& last = recent[line % 64];
  if (last.line == line && last.file == file && last.what == what) return last.text;
  std::string& place = places[{what, file, line}];
  if (place.empty()) place = std::string(what) + " " + file + ":" + std::to_string(line);
  last = {what, file, place.c_str(), line};
  return last.text;
}

EMULATOR void meet_cluster(const char* where) { wait(Wait::cluster, where); }

// Notes that all threads of the block that runs have arrived; returns what they know together.
EMULATOR Known arrive_at_cluster() {
  unsigned least[2] = {EMPTY, EMPTY};
  for (Fiber& fiber : fibers) {
    unsigned& part = least[part_of(fiber.thread)];
    part = std::min(part, ++fiber.arrivals);
  }
  for (Fiber& fiber : fibers) std::copy(least, least + 2, fiber.known);
  Known all = known_together(0, threads_per_block);
  for (int part = 0; part < 2; part++)
    if (least[part] != EMPTY) all = raised(all, part_number(entered, part), least[part]);
  return all;
}

// Lets the cluster pass if all of its threads wait for each other; returns whether it does.
EMULATOR bool release_cluster() {
  int waiting = 0, living = 0;
  std::string gone;
  const char* where = nullptr;
  for (size_t rank = 0; rank < cluster.size(); rank++) {
    enter((int)rank);
    living += alive;
    for (const Fiber& fiber : fibers) {
      if (fiber.wait == Wait::done)
        gone =
            "thread " + std::to_string(fiber.thread) + " of block " + std::to_string(block_index);
      if (fiber.wait != Wait::cluster) continue;
      waiting++;
      if (fiber.thread % WARP == 0) where = fiber.where;
      if (where && std::strcmp(where, fiber.where))
        report("warp diverges: %s against %s", where, fiber.where);
      where = fiber.where;
    }
  }
  if (!waiting || waiting != living || !error.empty()) return false;
  if (!gone.empty()) {
    report("%s left, and others wait for it at %s", gone.c_str(), where);
    return false;
  }
  Known all;
  for (size_t rank = 0; rank < cluster.size(); rank++) {
    enter((int)rank);
    all = joined(all, arrive_at_cluster());
  }
  for (size_t rank = 0; rank < cluster.size(); rank++) {
    enter((int)rank);
    for (Fiber& fiber : fibers) {
      fiber.learned = all;
      fiber.warp_epoch++;
      fiber.meetings++;
      fiber.used_box = false;
      wake(fiber);
    }
  }
  return true;
}

// ---- which thread goes on

inline bool (*let_something_arrive)();           // returns whether anything was on its way
inline bool (*let_time_pass)() = nullptr;        // where nothing else can happen; whether it helps
inline std::string (*state_of)(const void* at);  // of what a thread waits for

// Says where threads wait of which none can go on: the first one at each place, three places.
EMULATOR void report_deadlock() {
  std::string said;
  std::vector<std::string> places;
  for (size_t rank = 0; rank < cluster.size(); rank++) {
    enter((int)rank);
    for (const Fiber& fiber : fibers) {
      if (fiber.wait == Wait::none || fiber.wait == Wait::done) continue;
      if (places.size() == 3 || std::count(places.begin(), places.end(), fiber.where)) continue;
      places.push_back(fiber.where);
      said += (said.empty() ? "" : ", ") + ("thread " + std::to_string(fiber.thread)) +
              " of block " + std::to_string(block_index) + " waits at " + fiber.where;
      if (fiber.wait == Wait::signal) said += state_of(fiber.signal);
    }
  }
  if (!said.empty()) report("deadlock: %s", said.c_str());
}

// A block of which a thread may be able to go on; -1: there is none.
EMULATOR int block_that_runs() {
  if (!cluster[entered].stuck && random_below(linger)) return entered;
  const int ranks = (int)cluster.size(), start = (int)random_below(ranks);
  for (int i = 0; i < ranks; i++)
    if (!cluster[(start + i) % ranks].stuck) return (start + i) % ranks;
  return -1;
}

// Enters a block of which a thread can go on, if there is one.
EMULATOR void choose_in_cluster() {
  if (random_below(delay) == 0) let_something_arrive();
  while (error.empty()) {
    const int rank = block_that_runs();
    if (rank < 0) {
      if (let_something_arrive() || release_cluster()) continue;
      if (let_time_pass && let_time_pass()) continue;
      return report_deadlock();
    }
    enter(rank);
    if (ready.empty()) release();
    if (!ready.empty()) return;
    cluster[rank].stuck = true;
  }
}

}  // namespace elman::emulation
