// What the warps of the channel engine read, staged in shared memory: tiles of some steps of every
// sequence, copied while tiles before them are computed. Copies in flight need no registers, so
// that there can be as many as memory's latency asks for.
//
// A warp owns 32 neighbouring channels of one sequence of the batch and its own tiles, so that no
// warp waits for another.
#pragma once
#include "abi/channel.h"
#include "cuda/common/pack.cuh"

namespace elman {

// Spec is that of cpu/channel/engine.h; its T is the arithmetic's type, IO that of the sequences.
// STEPS: steps of a tile, also between checkpoints. STAGES: tiles of a sequence in shared memory.
// UNIT: bytes of a copy, which every row of every tile begins on a multiple of; if it is 4 and a
// number has 2, a row may begin in the middle of a word.
template <class Spec_, class IO_, int STEPS_, int STAGES_, int WARPS_, int UNIT_>
struct ChannelTileConfig {
  using Spec = Spec_;
  using Cell = typename Spec::Cell;
  using A = typename Spec::T;
  using IO = IO_;
  static constexpr int STEPS = STEPS_, STAGES = STAGES_, WARPS = WARPS_, UNIT = UNIT_;
  static constexpr int THREADS = 32 * WARPS;
  // Warps of a multiprocessor: 12 give every channel of a usual model its thread, in one wave. A
  // backward pass with exact functions may need the registers of some of them, and so do resets.
  static constexpr int AT_ONCE = sizeof(IO) > 2 || Spec::RESETS ? 8 : 12;
  static constexpr int FORWARD_AT_ONCE = Spec::RESETS ? 8 : 12;
  static constexpr int BLOCKS = WARPS < FORWARD_AT_ONCE ? FORWARD_AT_ONCE / WARPS : 1;
  static constexpr int BACKWARD_BLOCKS = WARPS < AT_ONCE ? AT_ONCE / WARPS : 1;
  static constexpr int SLOTS = Spec::SLOTS;
  static_assert(STEPS % 8 == 0 && STEPS <= 32 && STAGES >= 2, "tile config");

  static constexpr bool HAS_UNIT = Spec::UNIT >= 0, HAS_QUERY = Spec::QUERY >= 0;
  // The slice of the unit input, and whether something besides it reads that slice.
  static constexpr int UNIT_SLOT = HAS_UNIT ? Spec::SLOT[HAS_UNIT ? Spec::UNIT : 0] : -1;
  HD static constexpr bool unit_slot_shared() {
    bool found = HAS_QUERY && Spec::QUERY == UNIT_SLOT;
    for (int k = 0; k < Cell::INPUTS; k++) found |= k != Spec::UNIT && Spec::SLOT[k] == UNIT_SLOT;
    return found;
  }

  static constexpr bool SHIFTS = sizeof(IO) < UNIT && UNIT == 4;
  static constexpr int NUMBER = (int)sizeof(IO);
  static constexpr int ROW = ((32 + SHIFTS) * NUMBER + UNIT - 1) / UNIT * UNIT;
  static constexpr int TILE = STEPS * ROW;
  static constexpr int SCALES = HAS_UNIT ? STEPS * (int)sizeof(A) : 0;  // behind the tiles
  HD static constexpr int stage_bytes(bool backward) { return (SLOTS + backward) * TILE + SCALES; }
  HD static constexpr int shared_bytes(bool backward) {
    return WARPS * STAGES * stage_bytes(backward);
  }
};

// The workspace, in numbers of type A: places [B, 32] for what threads without a channel write, so
// that nobody has to ask at every step; norms of the unit input and their reciprocals [B, T],
// gradients of the unit input [B, T, C], sums over time of the parameters' gradients [B, P, C].
template <class G>
struct ChannelSpace {
  using A = typename G::A;
  A *nowhere, *norms, *scales, *unit_gradients, *sums;
  DEVICE explicit ChannelSpace(const ChannelArgs& a) {
    const int64_t rows = G::HAS_UNIT ? a.batch * a.steps : 0;
    nowhere = (A*)a.workspace;
    norms = nowhere + a.batch * 32;
    scales = norms + rows;
    unit_gradients = scales + rows;
    sums = unit_gradients + rows * a.channels;
  }
};

// The channels of a warp, and which of them is the thread's.
struct ChannelPlace {
  int lane;
  int64_t batch, first;  // sequence of the batch, first channel

  DEVICE explicit ChannelPlace(const ChannelArgs& a, int64_t warp) : lane(thread_index() % 32) {
    const int64_t warps = (a.channels + 31) / 32;  // of a sequence
    batch = warp / warps;
    first = warp % warps * 32;
  }
  DEVICE bool exists(const ChannelArgs& a) const { return batch < a.batch; }
  DEVICE int channels(const ChannelArgs& a) const {
    return a.channels - first < 32 ? (int)(a.channels - first) : 32;
  }
};

// Which steps of a segment begin with a state of zeros, the same for all channels of a sequence. A
// lane looks up one step, a segment ahead of its use.
template <class G, bool BACKWARD>
struct ChannelResets {
  static constexpr bool RESETS = G::Spec::RESETS;
  const uint8_t* row;  // of the sequence
  int64_t steps;
  unsigned ahead, mask;  // this lane's bit of the next segment; all bits of the one in use

  DEVICE ChannelResets(const ChannelArgs& a, int64_t batch) {
    if constexpr (RESETS) {
      row = a.resets + batch * a.steps;
      steps = a.steps;
      look(BACKWARD ? (steps + G::STEPS - 1) / G::STEPS - 1 : 0);
    }
  }
  DEVICE void look(int64_t segment) {
    const int lane = thread_index() % 32;
    const int64_t t = segment * G::STEPS + lane;
    const bool there = lane < G::STEPS && segment >= 0 && t < steps;
    ahead = there && load_one(row + t) ? 1u << lane : 0;
  }
  // Segments are entered in the order in which the pass comes to them, by whole warps.
  DEVICE void enter(int64_t segment) {
    if constexpr (RESETS) {
      mask = ahead;
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) mask |= shuffle_xor(mask, lanes);
      look(segment + (BACKWARD ? -1 : 1));
    }
  }
  // The state that step u of the segment sees, or the gradient that it hands on.
  template <class A>
  DEVICE A across(int u, A h) const {
    if constexpr (RESETS) return mask >> u & 1 ? A(0) : h;
    return h;
  }
};

template <class G, bool BACKWARD>
struct ChannelTiles {
  using A = typename G::A;
  using IO = typename G::IO;
  static constexpr int STEPS = G::STEPS, STAGES = G::STAGES, UNIT = G::UNIT;
  static constexpr int ROLES = G::SLOTS + BACKWARD, DY = G::SLOTS;
  static constexpr int PIECES = G::ROW / UNIT;                // copies that a row takes
  static constexpr int ROWS = PIECES < 32 ? 32 / PIECES : 1;  // rows that a warp copies at once
  static_assert(PIECES <= 32 && STEPS % ROWS == 0, "tile config");
  static constexpr int BYTES = G::stage_bytes(BACKWARD);  // of a stage

  const ChannelArgs& a;
  sptr<unsigned char> memory;           // this warp's
  const unsigned char* cursors[ROLES];  // row of this lane's first piece, to be fetched next
  const A* scales;                      // this lane's, to be fetched next
  int lane, row, piece;                 // row and piece: of the lane's copies
  int channels, dy_channels;            // to be copied
  unsigned shift[ROLES];                // whether the first row begins in the middle of a word
  int64_t segment, segments;            // to be fetched next; all
  int filled = 0, used = STAGES - 1;    // stages

  // Tiles are fetched from the first to the last, or backwards.
  DEVICE ChannelTiles(Arena& arena, const ChannelArgs& args, const ChannelPlace& place)
      : a(args),
        memory(arena.take<unsigned char>(G::shared_bytes(BACKWARD)) +
               thread_index() / 32 * (STAGES * BYTES)),
        lane(place.lane),
        row(lane / PIECES),
        piece(lane % PIECES),
        channels(place.channels(args)),
        dy_channels(args.dy.data ? channels : 0),
        segments((args.steps + STEPS - 1) / STEPS) {
    segment = BACKWARD ? segments - 1 : 0;
#pragma unroll
    for (int role = 0; role < ROLES; role++) {
      const ChannelSequence& from = sequence(role);
      const IO* first = (const IO*)from.data + (place.batch * from.batch + place.first);
      cursors[role] = (const unsigned char*)(first + (segment * STEPS + row) * from.time);
      if constexpr (G::SHIFTS) shift[role] = (unsigned)((unsigned long long)first / sizeof(IO)) % 2;
    }
    if constexpr (G::HAS_UNIT)
      scales = ChannelSpace<G>(a).scales + (place.batch * a.steps + segment * STEPS + lane);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fetch();
  }

  // Where the gradient of the output is absent, its tiles are zeros; a copy of nothing needs an
  // address all the same.
  DEVICE const ChannelSequence& sequence(int role) const {
    return role == DY && a.dy.data ? a.dy : a.x[role == DY ? 0 : role];
  }

  DEVICE static int next(int stage) { return stage == STAGES - 1 ? 0 : stage + 1; }

  // Steps of a segment; none beyond the last.
  DEVICE int length(int64_t which) const {
    const int64_t left = a.steps - which * STEPS;
    return which < 0 || left <= 0 ? 0 : left < STEPS ? (int)left : STEPS;
  }

  // Waits for the next tile, and lets the copies into the one before begin.
  DEVICE void advance() {
    wait_copies<STAGES - 2>();
    sync_warp();
    fetch();
    used = next(used);
  }

  // Starts copying a tile of every sequence.
  DEVICE void fetch() {
    const int steps = length(segment);
    const sptr<unsigned char> to = memory + filled * BYTES;
    const bool copies = row < ROWS;  // this lane
    // The usual case has nothing to ask of a single copy.
    const bool whole = steps == STEPS && channels == 32 && (!BACKWARD || dy_channels);
    if (copies && whole && !G::SHIFTS) {
#pragma unroll
      for (int role = 0; role < ROLES; role++) fetch_whole(to + role * G::TILE, role);
    } else if (copies) {
#pragma unroll
      for (int role = 0; role < ROLES; role++) fetch_part(to + role * G::TILE, role, steps);
    }
#pragma unroll
    for (int role = 0; role < ROLES; role++)
      cursors[role] += (BACKWARD ? -STEPS : STEPS) * sequence(role).time * G::NUMBER;
    if constexpr (G::HAS_UNIT) fetch_scales(to + ROLES * G::TILE, steps);
    commit_copies();
    segment += BACKWARD ? -1 : 1;
    filled = next(filled);
  }

  DEVICE void fetch_whole(sptr<unsigned char> to, int role) const {
    const int64_t stride = sequence(role).time * G::NUMBER;
#pragma unroll
    for (int step = 0; step < STEPS; step += ROWS)
      copy_async<UNIT>(to + ((step + row) * G::ROW + piece * UNIT),
                       cursors[role] + (piece * UNIT + step * stride), UNIT);
  }

  DEVICE void fetch_part(sptr<unsigned char> to, int role, int steps) const {
    const int64_t stride = sequence(role).time * G::NUMBER;
    const int numbers = role == DY ? dy_channels : channels;
#pragma unroll
    for (int step = 0; step < STEPS; step += ROWS) {
      if (step + row >= steps) continue;
      const unsigned char* from = cursors[role] + step * stride;
      // A row that begins in the middle of a word is copied from that word on.
      const int shift = G::SHIFTS ? (int)((unsigned long long)from % UNIT) : 0;
      const int left = numbers * G::NUMBER + shift - piece * UNIT;
      const int valid = numbers == 0 || left < 0 ? 0 : left < UNIT ? left : UNIT;
      copy_async<UNIT>(to + ((step + row) * G::ROW + piece * UNIT),
                       from - shift + (valid ? piece * UNIT : 0), valid);
    }
  }

  DEVICE void fetch_scales(sptr<unsigned char> to, int steps) {
    constexpr int NUMBER = (int)sizeof(A);
    if (lane < steps) copy_async<NUMBER>(to + lane * NUMBER, scales, NUMBER);
    scales += BACKWARD ? -STEPS : STEPS;
  }

  // This thread's number of a step of the tile in use.
  DEVICE A read(int role, int step) const {
    int at = lane;
    // Tiles have an even number of steps, so that they all begin as the first one does.
    if constexpr (G::SHIFTS) at += (shift[role] + step * (unsigned)sequence(role).time) % 2;
    const sptr<unsigned char> from = memory + (used * BYTES + role * G::TILE + step * G::ROW);
    A x;
    load<1, IO>(&x, cast<IO>(from) + at);
    return x;
  }

  // What the unit input of a step is multiplied by.
  DEVICE A scale(int step) const {
    const sptr<unsigned char> from = memory + (used * BYTES + ROLES * G::TILE);
    return load_one(cast<A>(from) + step);
  }
};

}  // namespace elman
