// What kernels that run as thread-block clusters ask of the machine, answered by the emulator: the
// counterpart of cuda/common/cluster.cuh. See boxes.h for what it checks.
#pragma once
#include "emulation/boxes.h"
#include "emulation/device.h"
#include "emulation/exchanged.h"
#include "emulation/tiles.h"

// Where a function is called, for reports.
#define ELMAN_CALLED const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace elman {

using emulation::Remote;

DEVICE int cluster_rank() { return emulation::current->rank; }
DEVICE long long cluster_index() {
  return emulation::block_index / (long long)emulation::cluster.size();
}

DEVICE void sync_cluster(ELMAN_CALLED) {
  emulation::meet_cluster(emulation::place_in_source("sync_cluster", file, line));
}

template <class T>
DEVICE Remote remote_place(sptr<T> p, int rank) {
  if (rank < 0 || rank >= (int)emulation::cluster.size()) {
    emulation::report("a place in a block of rank %d of a cluster of %zu (thread %d of block %lld)",
                      rank, emulation::cluster.size(), thread_index(), block_index());
    rank = 0;
  }
  const long long first = (long long)emulation::shared_offset(p.begin), bytes = sizeof(T);
  return {rank, first + p.offset * bytes, first, first + p.length * bytes};
}

struct Boxes {
  static constexpr int STRIDE = 8;
  sptr<unsigned char> barriers;

  DEVICE Boxes(Arena& arena, int n) : barriers(arena.take<unsigned char>(n * STRIDE)) {}

  DEVICE void make(int box) const { emulation::make_box(place(box), 1, true); }
  DEVICE void expect(int box, int bytes) const {
    if (emulation::Box* found = emulation::box_of(cluster_rank(), place(box)))
      emulation::expect_bytes(*found, bytes);
  }
  DEVICE void pass(int box) const {
    if (emulation::Box* found = emulation::box_of(cluster_rank(), place(box)))
      emulation::end_empty_turn(*found);
  }
  DEVICE void wait(int box, unsigned turn, ELMAN_CALLED) const {
    if (emulation::Box* found = emulation::box_of(cluster_rank(), place(box)))
      emulation::await_turn(*found, turn % 2,
                            emulation::place_in_source("the wait for a box", file, line));
  }
  template <class T>
  DEVICE void copy(int box, sptr<T> to, const void* from, int bytes) const {
    unsigned char* target = (unsigned char*)to.at(0, 1);
    to.at(bytes / (int)sizeof(T) - 1, 1);
    emulation::copy_to_box(target, from, bytes, place(box));
  }
  template <class T>
  DEVICE void copy(int box, sptr<T> to, const void* from, int bytes,
                   unsigned long long policy) const {
    emulation::check_policy(policy);
    copy(box, to, from, bytes);
  }
  DEVICE Remote of(int box, int rank) const { return remote_place(barriers + box * STRIDE, rank); }

 private:
  DEVICE size_t place(int box) const {
    const sptr<unsigned char> barrier = barriers + box * STRIDE;
    barrier.at(STRIDE - 1, 1);
    return emulation::shared_offset(barrier.at(0, 1));
  }
};

DEVICE unsigned long long passing() { return emulation::PASSING; }

template <class... Words>
DEVICE void deliver(Remote place, Remote barrier, Words... w) {
  static_assert(sizeof...(w) == 1 || sizeof...(w) == 2 || sizeof...(w) == 4, "words at a time");
  const unsigned words[] = {(unsigned)w...};
  emulation::deliver_words(place, barrier, words, sizeof...(w));
}

DEVICE void multiply_tiles(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                           ELMAN_CALLED) {
  emulation::multiply(d, a, b0, b1, emulation::place_in_source("multiply_tiles", file, line));
}

DEVICE unsigned shuffle_four(unsigned word, int lane, ELMAN_CALLED) {
  const int first = thread_index() & ~3;
  return emulation::exchange(word, first | (lane & 3),
                             emulation::place_in_source("shuffle_four", file, line));
}

}  // namespace elman

// A kernel whose blocks form clusters of a size. Its Python door is that of ELMAN_KERNEL: `first`
// and `blocks` count blocks, of whole clusters.
#define ELMAN_CLUSTER_KERNEL(NAME, CLUSTER, THREADS, BLOCKS, ARGS, CALL)                       \
  extern "C" const char* NAME(const ARGS* given, long long first, long long blocks,            \
                              int shared_bytes, unsigned seed) {                               \
    static std::string message;                                                                \
    const ARGS& a = *given;                                                                    \
    const elman::emulation::WatchExchanged watched;                                            \
    message = elman::emulation::launch_clusters(first, blocks, CLUSTER, THREADS, shared_bytes, \
                                                seed, [&] { CALL; });                          \
    return message.c_str();                                                                    \
  }
