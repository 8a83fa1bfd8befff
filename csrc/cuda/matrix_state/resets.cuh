// Which steps of a segment start from zeros, whatever the state before them is.
#pragma once
#include "cuda/matrix_state/smem_staging.cuh"

namespace elman {

// A warp reads the mask of a segment at once, a byte in every lane, and a segment before it is
// needed. States that are kept, in checkpoints and for the way back, are those before a reset.
template <class G, bool ANY = G::Spec::RESETS>
struct Resets {
  static_assert(G::STEPS <= 32, "a bit for every step of a segment");
  unsigned bit;   // this lane's, of the segment at t0
  unsigned bits;  // of the segment that runs: bit i is step i
  int64_t t0;

  DEVICE void begin(const Args& a, const Place& at, int64_t first) {
    t0 = first;
    fetch(a, at);
  }

  DEVICE void fetch(const Args& a, const Place& at) {
    const int step = thread_index() % 32;
    bit = 0;
    if (t0 >= 0 && step < G::STEPS && t0 + step < a.T)
      bit = (unsigned)(load_one(a.resets + at.batch * a.T + t0 + step) != 0) << step;
  }

  // Goes on to the segment that was fetched, and fetches the one `steps` from it.
  DEVICE void next(const Args& a, const Place& at, int steps) {
    bits = bit;
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) bits |= shuffle_xor(bits, mask);
    t0 += steps;
    fetch(a, at);
  }

  DEVICE bool starts(int step) const { return bits >> step & 1; }
};

template <class G>
struct Resets<G, false> {
  DEVICE void begin(const Args&, const Place&, int64_t) const {}
  DEVICE void next(const Args&, const Place&, int) const {}
  DEVICE bool starts(int) const { return false; }
};

template <class G>
DEVICE void clear_state(typename G::A* S) {
#pragma unroll
  for (int j = 0; j < G::PIECE; j++) S[j] = typename G::A(0);
}

}  // namespace elman
