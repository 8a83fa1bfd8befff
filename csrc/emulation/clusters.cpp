// What clusters.h declares.
#include "emulation/clusters.h"

namespace elman::emulation {

std::vector<Aside> cluster;

int warps_per_block() { return (threads_per_block + WARP - 1) / WARP; }

size_t part_number(int rank, int part) { return rank * 2 + part; }

size_t warp_number(int rank, int warp) {
  return cluster.size() * 2 + rank * warps_per_block() + warp;
}

void exchange_with(Aside& aside) {
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

void enter(int rank) {
  if (rank == entered) return;
  exchange_with(cluster[entered]);
  exchange_with(cluster[rank]);
  entered = rank;
}

long long index_of_block(int rank) { return rank == entered ? block_index : cluster[rank].index; }

void wake(Fiber& fiber) {
  fiber.wait = Wait::none;
  ready.push_back(fiber.thread);
  cluster[entered].stuck = false;
}

const Known& all_known() {
  for (int part = 0; part < 2; part++)
    if (current->known[part] != EMPTY)
      current->learned =
          raised(current->learned, part_number(current->rank, part), current->known[part]);
  return current->learned;
}

void learn(Fiber& fiber, const Known& told) {
  fiber.learned = joined(fiber.learned, told);
  for (int part = 0; part < 2; part++)
    fiber.known[part] =
        std::max(fiber.known[part], known_at(fiber.learned, part_number(fiber.rank, part)));
}

Known known_together(int first, int last) {
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

void tell_warp(int first, int last) {
  const Known all = known_together(first, last);
  for (int i = first; i < last; i++) learn(fibers[i], all);
}

void tell_block() {
  Known all = known_together(0, threads_per_block);
  for (int part = 0; part < 2; part++)
    if (fibers[0].known[part] != EMPTY)
      all = raised(all, part_number(entered, part), fibers[0].known[part]);
  for (Fiber& fiber : fibers) {
    fiber.learned = all;
    fiber.warp_epoch++;
    fiber.meetings += grid_runs;
  }
}

void tell_first() {
  Known all = known_together(0, second_part);
  for (int part = 0; part < 2; part++)
    if (fibers[0].known[part] != EMPTY)
      all = raised(all, part_number(entered, part), fibers[0].known[part]);
  for (int i = 0; i < second_part; i++) {
    fibers[i].learned = all;
    fibers[i].warp_epoch++;
  }
}

void meet_first(int threads, const char* where) {
  if (threads != second_part || current->thread >= threads)
    report("thread %d: %d threads meet of a block that is not split there (%s)", current->thread,
           threads, where);
  wait(Wait::first, where);
}

const char* place_in_source(const char* what, const char* file, int line) {
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

void meet_cluster(const char* where) { wait(Wait::cluster, where); }

Known arrive_at_cluster() {
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

bool release_cluster() {
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

void report_deadlock() {
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

int block_that_runs() {
  if (!cluster[entered].stuck && random_below(linger)) return entered;
  const int ranks = (int)cluster.size(), start = (int)random_below(ranks);
  for (int i = 0; i < ranks; i++)
    if (!cluster[(start + i) % ranks].stuck) return (start + i) % ranks;
  return -1;
}

void choose_in_cluster() {
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
