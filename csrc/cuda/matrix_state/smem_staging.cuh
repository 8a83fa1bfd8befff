// Raw inputs of a segment in shared memory: copied there, while the previous segment is computed,
// straight from the views of the projections' output that the roles are.
#pragma once
#include "cuda/matrix_state/tile_config.cuh"

namespace elman {

// Which part of which head of which sequence a block works on.
struct Place {
  int64_t batch;
  int head, row_tile;
};

template <class G>
DEVICE Place place_of_block(const Args& a) {
  const int64_t unit = block_index() / G::ROW_TILES;
  return {unit / a.H, (int)(unit % a.H), (int)(block_index() % G::ROW_TILES)};
}

// Value rows of this row tile.
template <class G>
DEVICE int rows_here(const Place& at) {
  return G::R % G::ROWS == 0 ? G::ROWS : least(G::ROWS, G::R - at.row_tile * G::ROWS);
}

template <class G>
DEVICE void sync() {
  if constexpr (G::WARPS == 1)
    sync_warp();
  else
    sync_block();
}

// A thread's number among those that copy, prepare and finish segments. Where those are the
// producer warps, the number has no meaning in other threads.
template <class G, bool BACKWARD>
DEVICE int worker_index() {
  if constexpr (G::INSIDE) return thread_index() % 32;
  return G::produces(BACKWARD) ? thread_index() - G::THREADS : thread_index();
}

// A thread's number among those that hold the pieces of a state.
template <class G>
DEVICE int state_thread() {
  if constexpr (G::INSIDE) return thread_index() % 32;
  return G::PRODUCERS ? thread_index() % G::THREADS : thread_index();
}

// The barrier of a backward pass's workers: that of the block, or one of its producer warps alone.
template <class G>
struct Crew {
  const Signal<G::THREADS, G::producer_threads(true)>* met = nullptr;
  unsigned turn = 0;

  DEVICE void meet() {
    if constexpr (G::produces(true) && G::WARPS > 1) {
      met->arrive(turn);
      met->wait(turn++);
    } else {
      sync<G>();
    }
  }
};

// Addresses as numbers.
using Address = unsigned long long;

template <class G, bool BACKWARD>
struct SmemStaging {
  using IO = typename G::IO;
  static constexpr int WORKERS = G::workers(BACKWARD), BUFFERS = G::staging_buffers(BACKWARD);
  sptr<unsigned char> memory;  // all buffers
  const Args& a;
  Place at;
  const IO* sources[ROLE_DOUT + 1];  // where the first step lies, in global memory
  const IO* cursors[ROLE_DOUT + 1];  // and the step of this thread's first piece, in the segment to
                                     // be fetched next

  // The segments are fetched one after another from that at t0 on, forwards or backwards.
  DEVICE SmemStaging(Arena& arena, const Args& args, int64_t t0)
      : memory(arena.take<unsigned char>(BUFFERS * G::staging_bytes(BACKWARD))),
        a(args),
        at(place_of_block<G>(args)) {
    find<0>(t0);
  }

  template <int ROLE>
  DEVICE void find(int64_t t0) {
    if constexpr (ROLE <= ROLE_DOUT) {
      if constexpr (G::stages(ROLE, BACKWARD)) {
        sources[ROLE] = source<ROLE>();
        const int step = worker_index<G, BACKWARD>() / pieces<ROLE>();
        cursors[ROLE] = sources[ROLE] + (t0 + step) * stride<ROLE>();
      }
      find<ROLE + 1>(t0);
    }
  }

  // Copies that a row takes.
  template <int ROLE>
  HD static constexpr int pieces() {
    return G::row_bytes(ROLE) / G::unit(ROLE);
  }

  template <int ROLE>
  DEVICE const IO* source() const {
    constexpr bool by_rows = !on_columns(ROLE) && !of_head(ROLE);
    constexpr int width = by_rows ? G::R : G::width(ROLE);
    const int64_t first = at.head * width + (by_rows ? at.row_tile * G::ROWS : 0);
    if constexpr (ROLE == ROLE_DOUT)
      return a.dout ? (const IO*)a.dout + (at.batch * a.dout_batch + first) : nullptr;
    else
      return (const IO*)a.role[ROLE].data + (at.batch * a.role[ROLE].batch + first);
  }

  template <int ROLE>
  DEVICE int64_t stride() const {
    if constexpr (ROLE == ROLE_DOUT)
      return a.dout_time;
    else
      return a.role[ROLE].time;
  }

  // Starts copying the next segment, of `length` steps, into a buffer.
  DEVICE void fetch(int length, int buffer) {
    fetch_roles<0>(length, buffer);
    commit_copies();
  }

  template <int ROLE>
  DEVICE void fetch_roles(int length, int buffer) {
    if constexpr (ROLE <= ROLE_DOUT) {
      if constexpr (G::stages(ROLE, BACKWARD)) {
        if (ROLE != ROLE_DOUT || a.dout) fetch_role<ROLE>(length, buffer);
        cursors[ROLE] += (BACKWARD ? -G::STEPS : G::STEPS) * stride<ROLE>();
      }
      fetch_roles<ROLE + 1>(length, buffer);
    }
  }

  template <int ROLE>
  DEVICE void fetch_role(int length, int buffer) const {
    constexpr int UNIT = G::unit(ROLE), BYTES = G::row_bytes(ROLE), PIECES = pieces<ROLE>();
    const sptr<unsigned char> to = rows<ROLE>(buffer);
    const int worker = worker_index<G, BACKWARD>(), first = worker / PIECES;
#pragma unroll 4
    for (int i = 0; i < ceil_div(G::STEPS * PIECES, WORKERS); i++) {
      const int n = i * WORKERS + worker;
      const int step = n / PIECES, piece = n % PIECES;
      if (step < length) {
        const Address from = (Address)(cursors[ROLE] + (step - first) * stride<ROLE>());
        copy_piece<ROLE>(to + (step * BYTES + piece * UNIT), from, piece);
      }
    }
  }

  template <int ROLE>
  DEVICE void copy_piece(sptr<unsigned char> to, Address from, int piece) const {
    constexpr int UNIT = G::unit(ROLE);
    constexpr bool by_rows = !on_columns(ROLE) && !of_head(ROLE);
    // A row that begins in the middle of a word is copied from that word on.
    const Address begin = (G::shifts(ROLE) ? from / UNIT * UNIT : from) + piece * UNIT;
    if constexpr (of_head(ROLE)) {
      copy_async<UNIT>(to, (const void*)begin, (int)sizeof(IO) + (int)(from - begin));
    } else if constexpr (!G::shifts(ROLE) && (!by_rows || G::R % G::ROWS == 0)) {
      copy_async<UNIT>(to, (const void*)begin, UNIT);
    } else {
      const int numbers = by_rows ? rows_here<G>(at) : G::width(ROLE);
      const int64_t left = (int64_t)(from + numbers * sizeof(IO) - begin);
      const int valid = left < 0 ? 0 : left < UNIT ? (int)left : UNIT;
      // A copy of nothing needs an address all the same.
      copy_async<UNIT>(to, (const void*)(valid ? begin : begin - piece * UNIT), valid);
    }
  }

  template <int ROLE>
  DEVICE sptr<unsigned char> rows(int buffer) const {
    return memory + (buffer * G::staging_bytes(BACKWARD) + G::staging_offset(ROLE, BACKWARD));
  }

  // Reads V numbers of one step from number `first` on. Rows of steps that the segment does not
  // have hold anything.
  template <int ROLE, int V, class A>
  DEVICE void read(A* x, int buffer, int64_t t0, int step, int first) const {
    static_assert(V == 1 || !G::shifts(ROLE), "vectors of words that may be shifted");
    int shift = 0;
    if constexpr (G::shifts(ROLE)) {
      const unsigned number = (unsigned)((Address)sources[ROLE] / sizeof(IO));
      shift = (number + (unsigned)(t0 + step) * (unsigned)stride<ROLE>()) % 2;
    }
    const sptr<unsigned char> row = rows<ROLE>(buffer) + step * G::row_bytes(ROLE);
    load<V, IO>(x, cast<IO>(row) + (first + shift));
  }
};

}  // namespace elman
