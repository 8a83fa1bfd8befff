// Which steps of a segment start from zeros, whatever the state before them is.
#pragma once
#include "cuda/matrix_state/smem_staging.cuh"

namespace elman {

// A warp reads the mask of a segment at once, a byte in every lane, and a segment before it is
// needed; bit i of what take() returns is step i. States that are kept, in checkpoints and for the
// way back, are those before a reset.
template <class G>
struct Resets {
  static constexpr bool ANY = G::Spec::RESETS;
  static_assert(!ANY || G::STEPS <= 32, "a bit for every step of a segment");
  unsigned bit = 0;  // this lane's, of the segment that was fetched

  DEVICE void fetch(const Args& a, const Place& at, int64_t t0) {
    if constexpr (ANY) {
      const int step = thread_index() % 32;
      bit = 0;
      if (t0 >= 0 && step < G::STEPS && t0 + step < a.T)
        bit = (unsigned)(load_one(a.resets + at.batch * a.T + t0 + step) != 0) << step;
    }
  }

  // Returns the segment that was fetched, and fetches that at t0.
  DEVICE unsigned take(const Args& a, const Place& at, int64_t t0) {
    unsigned word = bit;
    if constexpr (ANY) {
#pragma unroll
      for (int mask = 1; mask < 32; mask *= 2) word |= shuffle_xor(word, mask);
      fetch(a, at, t0);
    }
    return word;
  }
};

template <class G>
DEVICE bool starts(unsigned resets, int step) {
  if constexpr (G::Spec::RESETS) return resets >> step & 1;
  return false;
}

template <class G>
DEVICE void clear_state(typename G::A* S) {
#pragma unroll
  for (int j = 0; j < G::PIECE; j++) S[j] = typename G::A(0);
}

}  // namespace elman
