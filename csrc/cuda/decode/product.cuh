// The products of a launch that writes text: a block has adjacent rows of every matrix, and a few
// lanes of it post all that these yield: words that many blocks write to one line of the L2 cache
// take twice as long to arrive. Its weights are in shared memory before x is known, and where they
// fit in registers.
//
// With BULK the copy engine brings a slot's rows, whole, and a box counts them; a warp that does
// nothing else begins the copies. Else each lane copies what it reads, and looks at posts wait for
// the weights that were asked for before, since a multiprocessor answers loads in order. Posts wait
// for copies of both kinds that travel at the same time (docs/performance.md, 2026-11-28).
#pragma once
#include "cuda/decode/step_config.cuh"

namespace elman {

template <class D>
struct Products {
  static constexpr int ROWS = D::ROWS, PAIRS = D::PAIRS, WARPS = D::WARPS, BLOCKS = D::BLOCKS;

  const DecodeArgs& a;
  const int block = (int)block_index(), warp = warp_index(), lane = thread_index() % 32;
  const Posts posts;
  Arena arena;
  sptr<unsigned long long> matrices;
  sptr<bf16> x;         // [B, MOST_INPUTS]
  sptr<float> partial;  // [chunks, lines]: sums of the warps
  const Boxes boxes;    // see step_config.cuh
  sptr<bf16> slots;     // [SLOTS, rows of a pass, stride]
  Pass<D> ahead;
  int slot = 0, step = 0;
  unsigned round = 0;             // how often all slots were used
  unsigned long long policy = 0;  // of the L2 cache, for the warp that brings weights

  DEVICE explicit Products(const DecodeArgs& args)
      : a(args),
        posts{(unsigned long long*)args.posts},
        matrices(arena.take<unsigned long long>(D::MATRICES)),
        x(arena.take<bf16>(ROWS * D::MOST_INPUTS)),
        partial(arena.take<float>(D::PARTIAL)),
        boxes(arena, D::BOXES),
        slots(arena.take<bf16>(D::SLOT * D::SLOTS)) {}

  // Of a layer's words, or of the last product's.
  DEVICE unsigned turn(int layer) const {
    return ((unsigned)a.turn + step) * (D::LAYERS + 1) + layer + 1;
  }

  // A place of a pass among the tasks of the grid.
  template <int KIND>
  DEVICE int task(int pass, int place) const {
    constexpr int PASSES = D::passes(KIND), PLACES = D::at_a_pass(KIND);
    return (block * PASSES + pass) * PLACES + place;
  }

  // A barrier of the warps that compute.
  DEVICE static void meet() {
    if constexpr (D::BULK)
      sync_first<D::THREADS>();
    else
      sync_block();
  }

  // ---- the warp that brings weights

  // Begins the copies of every pass when it is told that its slot was used.
  DEVICE void bring_weights() {
    if (lane > 0) return;
    policy = passing();
    for (int pass = 0; ahead.step < a.steps; pass++) {
      const int to = pass % D::SLOTS;
      if (pass >= D::SLOTS) boxes.wait(D::USED_BOX + to, pass / D::SLOTS - 1);
      fetch_kind<0>(to);
    }
  }

  // Starts copying the rows of the pass ahead into a slot.
  DEVICE void fetch(int to) {
    if (ahead.step < a.steps) fetch_kind<0>(to);
    commit_copies();
  }
  template <int KIND>
  DEVICE void fetch_kind(int to) {
    if (ahead.kind == KIND) {
      fetch_rows<KIND>(to);
      ahead.template next<KIND>();
    } else if constexpr (KIND < D::HEAD) {
      fetch_kind<KIND + 1>(to);
    }
  }
  template <int KIND>
  DEVICE void fetch_rows(int to) const {
    const bf16* matrix = (const bf16*)load_one(matrices + ahead.matrix());
    const sptr<bf16> target = slots + to * D::SLOT;
    if constexpr (D::BULK)
      fetch_whole<KIND>(to, matrix, target);
    else
      fetch_own<KIND>(matrix, target);
  }
  // The row of a matrix that a pass has; one that is not there is another, whose sum nobody posts.
  template <int KIND>
  DEVICE int row_of(int row) const {
    constexpr int T = D::at_once(KIND), TASKS = D::tasks(KIND);
    const int to = task<KIND>(ahead.pass, row / T);
    return least((to < TASKS ? to : to % TASKS) * T + row % T, D::outputs(KIND) - 1);
  }
  // One thread begins the copies of whole rows, at most PACE bytes a clock.
  template <int KIND>
  DEVICE void fetch_whole(int to, const bf16* matrix, sptr<bf16> target) const {
    constexpr int INPUTS = D::inputs(KIND), STRIDE = D::stride(KIND), N = D::rows(KIND), PACE = 16;
    boxes.expect(to, 2 * INPUTS * N);
#pragma unroll 1
    for (int row = 0; row < N; row++) {
      const unsigned began = clock();
      boxes.copy(to, target + row * STRIDE, matrix + (long long)row_of<KIND>(row) * INPUTS,
                 2 * INPUTS, policy);
      pause(began, 2 * INPUTS / PACE);
    }
  }
  // Each lane copies its own numbers.
  template <int KIND>
  DEVICE void fetch_own(const bf16* matrix, sptr<bf16> target) const {
    constexpr int CHUNKS = D::own_chunks(KIND), INPUTS = D::inputs(KIND), N = D::rows(KIND);
#pragma unroll 1
    for (int row = RowTile::group(); row < N; row += 8) {
      const bf16* from = matrix + (long long)row_of<KIND>(row) * INPUTS;
      for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int part = 0; part < RowTile::PARTS; part++) {
          const int at = RowTile::column(warp + c * WARPS, part);
          if (at < INPUTS)
            copy_async<16>(cast<unsigned char>(target + (row * D::stride(KIND) + at)), from + at,
                           16);
        }
    }
  }
  // Waits for the rows of the slot that is next.
  DEVICE void await() const {
    if constexpr (D::BULK)
      boxes.wait(slot, round);
    else
      wait_copies<D::SLOTS - 1>();
  }

  // The lane's weights of a chunk.
  struct Weights {
    RowTile::Row tiles[D::TILES];
  };
  // Whether a warp has all its weights of a pass in registers before x is known.
  HD static constexpr bool early(int kind) { return D::own_chunks(kind) == 1 && ROWS <= 2; }

  // Reads weights from the slot that is next.
  template <int KIND>
  DEVICE void read_weights(Weights& to, int chunk) const {
    constexpr int STRIDE = D::stride(KIND);
    const sptr<bf16> from = slots + (slot * D::SLOT + RowTile::group() * STRIDE);
#pragma unroll
    for (int tile = 0; tile < D::tiles(KIND); tile++)
      RowTile::read<D::inputs(KIND)>(
          to.tiles[tile], from + tile * RowTile::ROWS * STRIDE, chunk,
          chunk < D::chunks(KIND) && RowTile::group() + tile * RowTile::ROWS < D::rows(KIND));
  }
  // Those of a product's first pass, for product().
  template <int KIND>
  DEVICE void read_early(Weights& to) const {
    if constexpr (early(KIND)) {
      await();
      read_weights<KIND>(to, warp);
    }
  }

  // The block's rows of a matrix times x.
  template <int KIND, bool ORDERED = false>
  DEVICE void product(int layer, Weights& weights) {
    constexpr int PASSES = D::passes(KIND);
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++) {
      if (pass > 0) read_early<KIND>(weights);
      if constexpr (!early(KIND)) await();
      multiply<KIND>(weights);
      meet();
      post_sums<KIND, ORDERED>(layer, pass);
      if constexpr (!D::BULK)
        fetch(slot);
      else if (thread_index() == 0)
        boxes.pass(D::USED_BOX + slot);  // the slot was used
      slot = slot + 1 == D::SLOTS ? 0 : slot + 1;
      round += slot == 0;
      if (pass + 1 < PASSES) meet();
    }
  }

  // Leaves the sums of each chunk of the warp, row and text.
  template <int KIND>
  DEVICE void multiply(Weights& weights) const {
    constexpr int CHUNKS = D::own_chunks(KIND), LINES = D::lines(KIND), INPUTS = D::inputs(KIND);
    const int text = lane % 4;
#pragma unroll 1
    for (int c = 0; c < CHUNKS; c++) {
      const int chunk = warp + c * WARPS;
      if (chunk >= D::chunks(KIND)) break;
      if constexpr (!early(KIND)) read_weights<KIND>(weights, chunk);
      RowTile::Column v;
      RowTile::read_x<INPUTS, ROWS>(v, x, D::MOST_INPUTS, chunk);
#pragma unroll
      for (int tile = 0; tile < D::tiles(KIND); tile++) {
        const float sum = RowTile::multiply(weights.tiles[tile], v);
        const int row = tile * RowTile::ROWS + RowTile::group();
        if (text < ROWS && row < D::rows(KIND))
          store_one(partial + (chunk * LINES + row * ROWS + text), sum);
      }
    }
  }

  // Posts a word of a task.
  template <int KIND, bool ORDERED>
  DEVICE void put_word(int layer, int task, int pair, float low, float high) const {
    posts.template put<ORDERED>(D::posts(KIND, layer) + pair * D::line(KIND) + task, turn(layer),
                                pack_bf16(low, high));
  }

  // Adds up what all warps have, a sum to a lane and two to a word, and posts the words.
  template <int KIND, bool ORDERED>
  DEVICE void post_sums(int layer, int pass) const {
    constexpr int T = D::at_once(KIND), LINES = D::lines(KIND), PLACES = D::at_a_pass(KIND);
    constexpr int WORDS = PLACES * PAIRS;
#pragma unroll
    for (int first = 0; first < 2 * WORDS; first += D::THREADS) {
      if (first + warp * 32 >= 2 * WORDS) break;  // a whole warp at once
      const int word = (first + thread_index()) / 2, upper = thread_index() % 2;
      const int pair = PAIRS == 1 ? 0 : word / PLACES, place = word - pair * PLACES;
      const int to = task<KIND>(pass, place);
      const int text = T == 2 ? 0 : 2 * pair + upper;
      const int line = (T == 2 ? 2 * place + upper : place) * ROWS + text;
      float y = 0.0f;
      if (word < WORDS && text < ROWS) {
#pragma unroll
        for (int chunk = 0; chunk < D::chunks(KIND); chunk++)
          y += load_one(partial + (chunk * LINES + line));
      }
      const float other = shuffle_xor(y, 1);
      if (!upper && word < WORDS && to < D::tasks(KIND))
        put_word<KIND, ORDERED>(layer, to, pair, y, other);
    }
  }
};

}  // namespace elman
