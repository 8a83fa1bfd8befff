// The channel engine for steps that divide their result by a norm over all channels: one block per
// sequence of the batch. A thread has PER channels, and all of their time in registers; a step has
// one sum over the block and one barrier.
//
// What the steps read lies in a ring of rows in shared memory, one stage for each step: the barrier
// of a step also says that the next row has arrived, and that nobody reads the one before any more.
//
// The backward pass runs a segment forward again from its checkpoint, and writes the states that it
// meets to the workspace, where the thread itself reads them on the way back.
#pragma once
#include "cuda/channel/passes.cuh"

namespace elman {

// PER: channels of a thread. STEPS: between two checkpoints. The others as in ChannelTileConfig.
template <class Spec_, class IO_, int STEPS_, int STAGES_, int WARPS_, int UNIT_, int PER_>
struct ChannelRowConfig : ChannelTileConfig<Spec_, IO_, STEPS_, STAGES_, WARPS_, UNIT_> {
  using Base = ChannelTileConfig<Spec_, IO_, STEPS_, STAGES_, WARPS_, UNIT_>;
  using A = typename Base::A;
  static constexpr int PER = PER_, STAGES = STAGES_, UNIT = UNIT_;
  static constexpr int BLOCKS = 1, BACKWARD_BLOCKS = 1;
  static constexpr int HELD = PER * Base::THREADS;  // channels that a block has room for
  static_assert(STAGES >= 3, "the next row has to arrive while this one is read");

  static constexpr int ROW = ((HELD + Base::SHIFTS) * Base::NUMBER + UNIT - 1) / UNIT * UNIT;
  static constexpr int SCALE = Base::HAS_UNIT ? (int)sizeof(A) : 0;  // behind the rows
  HD static constexpr int stage_bytes(bool backward) {
    return ((Base::SLOTS + backward) * ROW + SCALE + 15) / 16 * 16;
  }
  // Behind the stages: two turns of the warps' sums; the norms of a segment.
  static constexpr int SUMS = 2 * Base::WARPS, NORMS = 2 * Base::STEPS;
  HD static constexpr int shared_bytes(bool backward) {
    return STAGES * stage_bytes(backward) + ((SUMS * (int)sizeof(A) + 15) / 16 * 16) +
           backward * ((NORMS * (int)sizeof(A) + 15) / 16 * 16);
  }
};

// The steps in the order in which a pass comes to them. Backwards, every segment is run forward
// first.
template <class G, bool BACKWARD>
struct ChannelWalk {
  int64_t segment, steps;
  int u = 0, length;
  bool back = false;

  DEVICE explicit ChannelWalk(int64_t all) : steps(all) {
    segment = BACKWARD ? (all + G::STEPS - 1) / G::STEPS - 1 : 0;
    measure();
  }
  DEVICE void measure() {
    const int64_t left = steps - segment * G::STEPS;
    length = segment < 0 || left <= 0 ? 0 : left < G::STEPS ? (int)left : G::STEPS;
  }
  DEVICE bool over() const { return length == 0; }
  DEVICE int64_t time() const { return segment * G::STEPS + u; }
  DEVICE void next() {
    if (back) {
      if (u-- > 0) return;
    } else {
      if (++u < length) return;
      back = BACKWARD;
      u--;
      if (BACKWARD) return;
    }
    back = false;
    u = 0;
    segment += BACKWARD ? -1 : 1;
    measure();
  }
};

template <class G, bool BACKWARD>
struct ChannelRing {
  using A = typename G::A;
  using IO = typename G::IO;
  static constexpr int STAGES = G::STAGES, UNIT = G::UNIT, DY = G::SLOTS;
  static constexpr int BYTES = G::stage_bytes(BACKWARD);

  const ChannelArgs& a;
  int64_t batch;
  sptr<unsigned char> memory;
  sptr<A> sums;
  ChannelWalk<G, BACKWARD> walk;  // to be fetched next
  int filled = 0, used = 0, turn = 0;

  DEVICE ChannelRing(Arena& arena, const ChannelArgs& args)
      : a(args),
        batch(block_index()),
        memory(arena.take<unsigned char>(STAGES * BYTES)),
        sums(arena.take<A>(G::SUMS)),
        walk(args.steps) {
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) fetch();
    wait_copies<STAGES - 2>();
    sync_block();
  }

  DEVICE const ChannelSequence& sequence(int role) const {
    return role == DY && a.dy.data ? a.dy : a.x[role == DY ? 0 : role];
  }
  DEVICE const unsigned char* row(int role, int64_t t) const {
    const ChannelSequence& from = sequence(role);
    return (const unsigned char*)((const IO*)from.data + (batch * from.batch + t * from.time));
  }
  // Bytes between the place where the copies of a row begin and the row.
  DEVICE static int shift_of(const unsigned char* row) {
    return G::SHIFTS ? (int)((unsigned long long)row % UNIT) : 0;
  }

  // Starts copying the rows of the step that comes next, if there is one.
  DEVICE void fetch() {
    if (!walk.over()) {
      const int64_t t = walk.time();
      const sptr<unsigned char> to = memory + filled * BYTES;
#pragma unroll
      for (int role = 0; role < G::SLOTS + BACKWARD; role++)
        if (role != DY || walk.back) fetch_row(to + role * G::ROW, role, t);
      if constexpr (G::HAS_UNIT) {
        constexpr int NUMBER = (int)sizeof(A);
        const A* scale = ChannelSpace<G>(a).scales + (batch * a.steps + t);
        if (thread_index() == 0)
          copy_async<NUMBER>(to + (G::SLOTS + BACKWARD) * G::ROW, scale, NUMBER);
      }
      walk.next();
    }
    commit_copies();
    filled = filled == STAGES - 1 ? 0 : filled + 1;
  }
  // Where the gradient of the output is absent, its row is zeros.
  DEVICE void fetch_row(sptr<unsigned char> to, int role, int64_t t) const {
    const unsigned char* from = row(role, t);
    const int shift = shift_of(from), bytes = (int)a.channels * G::NUMBER + shift;
    const bool absent = role == DY && !a.dy.data;
    for (int at = thread_index() * UNIT; at < bytes; at += G::THREADS * UNIT) {
      const int valid = absent ? 0 : bytes - at < UNIT ? bytes - at : UNIT;
      copy_async<UNIT>(to + at, from - shift + (absent ? 0 : at), valid);
    }
  }

  // A number of the step in use.
  DEVICE A read(int role, int64_t t, int channel) const {
    const int shift = G::SHIFTS ? shift_of(row(role, t)) / (int)sizeof(IO) : 0;
    A x;
    load<1, IO>(&x, cast<IO>(memory + (used * BYTES + role * G::ROW)) + (channel + shift));
    return x;
  }
  DEVICE A scale() const {
    return load_one(cast<A>(memory + (used * BYTES + (G::SLOTS + BACKWARD) * G::ROW)));
  }

  // The sum over all threads of the block, the same to the last bit in all of them. Behind its
  // barrier lies the next row, and nobody reads the row before any more.
  DEVICE A sum(A x) {
    const int warp = thread_index() / 32, lane = thread_index() % 32;
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
    const sptr<A> own = sums + turn * G::WARPS;
    if (lane == 0) store_one(own + warp, x);
    wait_copies<STAGES - 3>();
    sync_block();
    fetch();
    turn ^= 1;
    x = lane < G::WARPS ? load_one(own + lane) : A(0);
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
  DEVICE void advance() { used = used == STAGES - 1 ? 0 : used + 1; }
};

// What a thread of either pass has.
template <class G, bool BACKWARD>
struct ChannelRow {
  using A = typename G::A;
  using IO = typename G::IO;
  using Cell = typename G::Cell;
  static constexpr int PER = G::PER;
  const ChannelArgs& a;
  ChannelRing<G, BACKWARD> ring;
  ChannelResets<G, BACKWARD> resets;
  A p[PER][MAX_PARAMETERS], h[PER];

  DEVICE ChannelRow(Arena& arena, const ChannelArgs& args)
      : a(args), ring(arena, args), resets(args, ring.batch) {
#pragma unroll
    for (int k = 0; k < PER; k++)
#pragma unroll
      for (int i = 0; i < Cell::PARAMETERS; i++)
        p[k][i] = exists(k) ? load_one((const A*)a.p[i] + channel(k)) : A(0);
  }

  DEVICE int channel(int k) const { return k * G::THREADS + thread_index(); }
  DEVICE bool exists(int k) const { return channel(k) < a.channels; }
  // The numbers of the thread's channels, in one of the rows [rows, C] of a tensor.
  DEVICE void take(A (&to)[PER], const void* rows, int64_t row) const {
#pragma unroll
    for (int k = 0; k < PER; k++)
      to[k] = exists(k) && rows ? load_one((const A*)rows + (row * a.channels + channel(k))) : A(0);
  }
  DEVICE void leave(const A (&from)[PER], void* rows, int64_t row) const {
#pragma unroll
    for (int k = 0; k < PER; k++)
      if (exists(k)) store_one((A*)rows + (row * a.channels + channel(k)), from[k]);
  }
  DEVICE IO* at(const ChannelSequence& s, int64_t t) const {
    return (IO*)s.data + (ring.batch * s.batch + t * s.time);
  }

  // What the cell sees of a channel, whose state is `old`.
  DEVICE Channel<A> read(int k, int64_t t, A old) const {
    Channel<A> c;
    c.h = resets.across((int)(t % G::STEPS), old);
#pragma unroll
    for (int i = 0; i < Cell::INPUTS; i++) {
      c.x[i] = ring.read(G::Spec::SLOT[i], t, channel(k));
      if (i == G::Spec::UNIT) c.x[i] *= ring.scale();
    }
#pragma unroll
    for (int i = 0; i < Cell::PARAMETERS; i++) c.p[i] = p[k][i];
    return c;
  }
  DEVICE A query(int k, int64_t t) const {
    if constexpr (G::HAS_QUERY) return ring.read(G::Spec::QUERY, t, channel(k));
    return A(1);
  }

  // Takes the states through a step; returns what the row was divided by.
  DEVICE RowNorm<A> step(int64_t t) {
    A squares = 0;
#pragma unroll
    for (int k = 0; k < PER; k++) {
      A memo[MAX_MEMO];
      if (exists(k)) h[k] = Cell::step(read(k, t, h[k]), memo);
      squares += h[k] * h[k];
    }
    const RowNorm<A> norm = row_norm<Cell::NORM>(ring.sum(squares), A(a.channels));
#pragma unroll
    for (int k = 0; k < PER; k++) h[k] *= norm.factor;
    return norm;
  }
};

template <class G>
struct ChannelRowForward {
  using A = typename G::A;
  using IO = typename G::IO;
  ChannelRow<G, false> row;
  const ChannelArgs& a;

  DEVICE ChannelRowForward(Arena& arena, const ChannelArgs& args) : row(arena, args), a(args) {}

  DEVICE void run() {
    const int64_t batch = row.ring.batch, segments = (a.steps + G::STEPS - 1) / G::STEPS;
    row.take(row.h, a.first, batch);
#pragma unroll 1
    for (int64_t t = 0; t < a.steps; t++) {
      if (t % G::STEPS == 0) {
        row.resets.enter(t / G::STEPS);
        row.leave(row.h, a.checkpoints, batch * segments + t / G::STEPS);
      }
      row.step(t);
      write(t);
      row.ring.advance();
    }
    row.leave(row.h, a.last, batch);
  }
  DEVICE void write(int64_t t) const {
    IO* y = row.at(a.y, t);
#pragma unroll
    for (int k = 0; k < G::PER; k++) {
      if (!row.exists(k)) continue;
      const A out = channel_output<G::HAS_QUERY, G::Spec::SELF_GATE>(row.h[k], row.query(k, t));
      store<1, IO>(y + row.channel(k), &out);
    }
  }
};

template <class G>
struct ChannelRowBackward {
  using A = typename G::A;
  using IO = typename G::IO;
  using Cell = typename G::Cell;
  static constexpr int PER = G::PER, STEPS = G::STEPS;
  ChannelRow<G, true> row;
  const ChannelArgs& a;
  sptr<A> norms;
  A *states, *unit_gradients;
  A dh[PER], old[PER], sums[PER][MAX_PARAMETERS];

  DEVICE ChannelRowBackward(Arena& arena, const ChannelArgs& args)
      : row(arena, args), a(args), norms(arena.take<A>(G::NORMS)) {
    const ChannelSpace<G> space(a);
    states = space.sums + a.batch * Cell::PARAMETERS * a.channels;
    unit_gradients = space.unit_gradients;
#pragma unroll
    for (int k = 0; k < PER; k++)
#pragma unroll
      for (int i = 0; i < Cell::PARAMETERS; i++) sums[k][i] = A(0);
  }

  DEVICE void run() {
    const int64_t batch = row.ring.batch, segments = (a.steps + STEPS - 1) / STEPS;
    row.take(dh, a.dlast, batch);
    for (ChannelWalk<G, true> walk(a.steps); !walk.over(); walk.next()) {
      if (!walk.back) {
        if (walk.u == 0) {
          row.resets.enter(walk.segment);
          row.take(row.h, a.checkpoints, batch * segments + walk.segment);
        }
        forth(walk.u, walk.time());
      } else {
        back(walk.u, walk.time());
      }
      row.ring.advance();
    }
    row.leave(dh, a.dfirst, batch);
    A* to = ChannelSpace<G>(a).sums + batch * Cell::PARAMETERS * a.channels;
#pragma unroll
    for (int k = 0; k < PER; k++)
#pragma unroll
      for (int i = 0; i < Cell::PARAMETERS; i++)
        if (row.exists(k)) store_one(to + (i * a.channels + row.channel(k)), sums[k][i]);
  }

  // Runs a step again, and keeps the state before it and its norm.
  DEVICE void forth(int u, int64_t t) {
    row.leave(row.h, states, row.ring.batch * STEPS + u);
    const RowNorm<A> norm = row.step(t);
    if (thread_index() > 0) return;
    store_one(norms + 2 * u, norm.factor);
    store_one(norms + 2 * u + 1, norm.share);
  }

  // Runs it back: row.h has the states behind it, and then those before it.
  DEVICE void back(int u, int64_t t) {
    row.take(old, states, row.ring.batch * STEPS + u);
    A along = 0;
#pragma unroll
    for (int k = 0; k < PER; k++) {
      if (!row.exists(k)) continue;
      A dquery;
      dh[k] += gradient_of_output(k, t, dquery);
      along += dh[k] * row.h[k];
    }
    along = row.ring.sum(along) * load_one(norms + 2 * u + 1);
    const A factor = load_one(norms + 2 * u);
#pragma unroll
    for (int k = 0; k < PER; k++) {
      if (row.exists(k)) step(k, t, dh[k] * factor - row.h[k] * along);
      row.h[k] = old[k];
    }
  }
  DEVICE A gradient_of_output(int k, int64_t t, A& dquery) const {
    const A dy = row.ring.read(row.ring.DY, t, row.channel(k));
    return channel_output_bwd<G::HAS_QUERY, G::Spec::SELF_GATE>(row.h[k], row.query(k, t), dy,
                                                                dquery);
  }
  // One channel; e is the gradient of what its step returns.
  DEVICE void step(int k, int64_t t, A e) {
    A memo[MAX_MEMO], dquery = A(0);
    ChannelGrad<A> d = {};
    const Channel<A> c = row.read(k, t, old[k]);
    Cell::step(c, memo);
    Cell::step_bwd(c, memo, row.h[k], e, d);
    dh[k] = row.resets.across((int)(t % STEPS), d.h);
#pragma unroll
    for (int i = 0; i < Cell::PARAMETERS; i++) sums[k][i] += d.p[i];
    if constexpr (G::HAS_QUERY) gradient_of_output(k, t, dquery);
    slot_gradients<G>(d, dquery, [&](int slot, A sum) {
      store<1, IO>(row.at(a.dx[slot], t) + row.channel(k), &sum);
    });
    if constexpr (G::HAS_UNIT)
      store_one(unit_gradients + ((row.ring.batch * a.steps + t) * a.channels + row.channel(k)),
                d.x[G::Spec::UNIT]);
  }
};

template <class G>
DEVICE void channel_row_forward(const ChannelArgs& a) {
  Arena arena;
  ChannelRowForward<G>(arena, a).run();
}

template <class G>
DEVICE void channel_row_backward(const ChannelArgs& a) {
  Arena arena;
  ChannelRowBackward<G>(arena, a).run();
}

}  // namespace elman
