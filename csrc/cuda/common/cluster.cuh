// What kernels that run as thread-block clusters ask of the machine, answered by a GPU of compute
// capability 9.0 or later; emulation/cluster.h answers it on a CPU. Include device.cuh before.
//
// The blocks of a cluster run at the same time and write into each other's shared memory. A block
// must not leave while another may still write to it: a kernel ends with sync_cluster().
#pragma once

namespace elman {

DEVICE int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

DEVICE long long cluster_index() {
  int index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

// Waits for all threads of all blocks of the cluster, and orders what they did to memory. It costs
// about 370 clocks: no place for it inside a loop over time.
DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A place in the shared memory of one block of the cluster, to which bytes may be added.
using Remote = unsigned;

// The place that `p` has in this block, in the block of a rank.
template <class T>
DEVICE Remote remote_place(sptr<T> p, int rank) {
  Remote place;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(place)
               : "r"((unsigned)__cvta_generic_to_shared(p)), "r"(rank));
  return place;
}

// Boxes of this block's shared memory into which other blocks, or copies of its own, deliver a
// known number of bytes, turn after turn: each has a barrier that counts them. Turn n of a box is
// over when its bytes have come.
struct Boxes {
  static constexpr int STRIDE = 8;  // bytes from one barrier to the next
  sptr<unsigned char> barriers;

  DEVICE Boxes(Arena& arena, int n) : barriers(arena.take<unsigned char>(n * STRIDE)) {}

  // By one thread, for each box; then sync_cluster() has to come before anything else, or
  // sync_block() where no other block delivers.
  DEVICE void make(int box) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(box)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  // Says how many bytes this turn has; by one thread, once for every turn, and before the turn can
  // be over.
  DEVICE void expect(int box, int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(box)), "r"(bytes)
                 : "memory");
  }

  // Ends a turn of a box to which nothing is delivered; by one thread.
  DEVICE void pass(int box) const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(box)) : "memory");
  }

  // Waits for the end of a turn that is not over for longer than one of its kind, even or odd. What
  // was delivered may be read then. After 2^24 tries the kernel ends with an error: no hang.
  DEVICE void wait(int box, unsigned turn) const {
    unsigned over = 0;
    for (unsigned tries = 0; !over; tries++) {
      asm volatile(
          "{.reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;"
          "selp.u32 %0, 1, 0, over;}"
          : "=r"(over)
          : "r"(at(box)), "r"(turn % 2)
          : "memory");
      if (tries > (1u << 24)) __trap();
    }
  }

  // Starts a copy of bytes, a multiple of 16, from global memory to this block; both places are
  // aligned to 16. No lane waits at such a copy, and loads overtake it: a multiprocessor answers
  // loads in their order, behind the copies of copy_async, but not behind these.
  template <class T>
  DEVICE void copy(int box, sptr<T> to, const void* from, int bytes) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from), "r"(bytes), "r"(at(box))
        : "memory");
  }

  // The same of what nobody reads again soon: `policy` is passing().
  template <class T>
  DEVICE void copy(int box, sptr<T> to, const void* from, int bytes,
                   unsigned long long policy) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1], %2, [%3], %4;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from), "r"(bytes), "r"(at(box)), "l"(policy)
        : "memory");
  }

  // The barrier of a box, in the block of a rank.
  DEVICE Remote of(int box, int rank) const { return remote_place(barriers + box * STRIDE, rank); }

 private:
  DEVICE unsigned at(int box) const {
    return (unsigned)__cvta_generic_to_shared(barriers) + box * STRIDE;
  }
};

// The policy by which what is copied leaves the L2 cache before all else.
DEVICE unsigned long long passing() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Sends words to a place aligned to all of them, and counts their bytes at the barrier of a box in
// the same block. Returns at once; the words arrive together, in no order with other deliveries.
DEVICE void deliver(Remote place, Remote barrier, unsigned w0) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(place),
      "r"(w0), "r"(barrier)
      : "memory");
}
DEVICE void deliver(Remote place, Remote barrier, unsigned w0, unsigned w1) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
          "r"(place),
      "r"(w0), "r"(w1), "r"(barrier)
      : "memory");
}
DEVICE void deliver(Remote place, Remote barrier, unsigned w0, unsigned w1, unsigned w2,
                    unsigned w3) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(place),
      "r"(w0), "r"(w1), "r"(w2), "r"(w3), "r"(barrier)
      : "memory");
}

// d += a b of a warp: a is 16 rows by 16 columns, b 16 rows by 8 columns, both bf16, d 16 by 8 in
// fp32. With g = lane / 4 and c = lane % 4 a lane holds, of a, the pairs of columns
// (g, 2c) (g + 8, 2c) (g, 2c + 8) (g + 8, 2c + 8); of b the pairs of rows (2c, g) (2c + 8, g); of d
// (g, 2c) (g, 2c + 1) (g + 8, 2c) (g + 8, 2c + 1).
DEVICE void multiply_tiles(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A word of a lane among the four that differ in the last two bits of their number.
DEVICE unsigned shuffle_four(unsigned word, int lane) {
  return __shfl_sync(0xffffffffu, word, lane, 4);
}

}  // namespace elman

// A kernel whose blocks form clusters of a size, which the launch sets; see ELMAN_KERNEL.
#define ELMAN_CLUSTER_KERNEL(NAME, CLUSTER, THREADS, BLOCKS, ARGS, CALL) \
  ELMAN_KERNEL(NAME, THREADS, BLOCKS, ARGS, CALL)
