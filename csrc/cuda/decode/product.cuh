// The products of a launch that writes text: a block has rows of every matrix. Its weights are in
// shared memory before x is known.
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
  sptr<float> partial;  // [chunks, lines, lanes]: sums of the warps
  const Boxes boxes;    // see step_config.cuh
  sptr<bf16> slots;     // [SLOTS, rows of a pass, inputs]
  Pass<D> ahead;
  int slot = 0, step = 0;
  int used = 0, told = 0;  // passes whose weights were used, and of which bring_weights() knows
  unsigned round = 0;      // how often all slots were used

  DEVICE explicit Products(const DecodeArgs& args)
      : a(args),
        posts{(unsigned long long*)args.posts},
        matrices(arena.take<unsigned long long>(D::MATRICES)),
        x(arena.take<bf16>(ROWS * D::MOST_INPUTS)),
        partial(arena.take<float>(D::PARTIAL)),
        boxes(arena, D::BOXES),
        slots(arena.take<bf16>(D::SLOT * D::SLOTS)) {}

  DEVICE unsigned turn() const { return (unsigned)a.turn + step + 1; }

  // A row's part of the chunks, and the group of rows, that the warp has.
  template <int KIND>
  DEVICE int part() const {
    constexpr int PARTS = D::parts(KIND);
    return warp % PARTS;
  }
  template <int KIND>
  DEVICE int group() const {
    constexpr int PARTS = D::parts(KIND);
    return warp / PARTS;
  }
  // A place of a pass among the tasks of the grid.
  template <int KIND>
  DEVICE int task(int pass, int place) const {
    constexpr int PLACES = D::at_a_pass(KIND);
    return block + (pass * PLACES + place) * BLOCKS;
  }

  // A row of the warp's among those of the pass.
  template <int KIND>
  DEVICE int line(int n) const {
    constexpr int T = D::at_once(KIND), GROUPS = D::groups(KIND);
    return (n / T * GROUPS + group<KIND>()) * T + n % T;
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
    for (int pass = 0; ahead.step < a.steps; pass++) {
      const int to = pass % D::SLOTS;
      if (pass >= D::SLOTS) boxes.wait(D::USED_BOX + to, pass / D::SLOTS - 1);
      fetch_kind<0>(to);
    }
  }
  // Tells it which slots were used, but for MOST of them: by one thread, behind a barrier. Copies
  // that travel together with posts hold these up. So it is told when a norm has all that it waits
  // for, and before that only where hardly a slot is left.
  template <int MOST>
  DEVICE void tell_used() {
    if (thread_index() > 0) return;
    for (; used - told > MOST; told++) boxes.pass(D::USED_BOX + told % D::SLOTS);
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
    constexpr int INPUTS = D::inputs(KIND), N = D::rows(KIND), PACE = 16;
    boxes.expect(to, 2 * INPUTS * N);
#pragma unroll 1
    for (int row = 0; row < N; row++) {
      const unsigned began = clock();
      boxes.copy(to, target + row * INPUTS, matrix + (long long)row_of<KIND>(row) * INPUTS,
                 2 * INPUTS);
      pause(began, 2 * INPUTS / PACE);
    }
  }
  // Each lane copies its own numbers.
  template <int KIND>
  DEVICE void fetch_own(const bf16* matrix, sptr<bf16> target) const {
    constexpr int CHUNKS = D::own_chunks(KIND), INPUTS = D::inputs(KIND);
    constexpr int GROUPS = D::groups(KIND), HELD = D::held(KIND) * D::at_once(KIND);
    if (group<KIND>() >= GROUPS) return;
#pragma unroll
    for (int n = 0; n < HELD; n++) {
      const int row = line<KIND>(n);
      const bf16* from = matrix + (long long)row_of<KIND>(row) * INPUTS;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const int at = column<KIND>(c);
        if (at < INPUTS)
          copy_async<16>(cast<unsigned char>(target + (row * INPUTS + at)), from + at, 16);
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
  // The first of the lane's columns in a chunk of its warp.
  template <int KIND>
  DEVICE int column(int chunk) const {
    constexpr int PARTS = D::parts(KIND);
    return (part<KIND>() + chunk * PARTS) * D::CHUNK + lane * 8;
  }

  // The block's rows of a matrix times x.
  template <int KIND, bool ORDERED = false>
  DEVICE void product(int layer) {
    constexpr int PASSES = D::passes(KIND), GROUPS = D::groups(KIND);
#pragma unroll 1
    for (int pass = 0; pass < PASSES; pass++) {
      await();
      if (group<KIND>() < GROUPS) multiply<KIND>();
      meet();
      post_sums<KIND, ORDERED>(layer, pass);
      used++;
      if constexpr (D::BULK)
        tell_used<(D::SLOTS > 2 ? D::SLOTS - 2 : 0)>();
      else
        fetch(slot);
      slot = slot + 1 == D::SLOTS ? 0 : slot + 1;
      round += slot == 0;
      if (pass + 1 < PASSES) meet();
    }
  }

  // Leaves the lane's sums of each chunk, row and text. All numbers of a chunk are asked for before
  // the first is used, and no branch keeps the rows from being multiplied side by side.
  template <int KIND>
  DEVICE void multiply() const {
    constexpr int CHUNKS = D::own_chunks(KIND), ALL = D::chunks(KIND), LINES = D::lines(KIND);
    constexpr int INPUTS = D::inputs(KIND), PARTS = D::parts(KIND);
    constexpr int HELD = D::held(KIND) * D::at_once(KIND);
    const sptr<bf16> weights = slots + slot * D::SLOT;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const int chunk = part<KIND>() + c * PARTS, at = column<KIND>(c);
      if (CHUNKS * PARTS > ALL && chunk >= ALL) break;
      const bool here = INPUTS % D::CHUNK == 0 || at < INPUTS;
      Packed<8, bf16> x8[ROWS], w8[HELD];
      float v[ROWS][8], y[HELD][ROWS] = {};
#pragma unroll
      for (int text = 0; text < ROWS; text++)
        x8[text].read(x + (text * D::MOST_INPUTS + (here ? at : 0)));
#pragma unroll
      for (int n = 0; n < HELD; n++)
        if (here) w8[n].read(weights + (line<KIND>(n) * INPUTS + at));
#pragma unroll
      for (int text = 0; text < ROWS; text++) {
        x8[text].to(v[text]);
#pragma unroll
        for (int i = 0; i < 8; i++) v[text][i] = here ? v[text][i] : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < HELD; n++) {
        float w[8];
        w8[n].to(w);
#pragma unroll
        for (int i = 0; i < 8; i++) {
          w[i] = here ? w[i] : 0.0f;
#pragma unroll
          for (int text = 0; text < ROWS; text++) y[n][text] = fused(w[i], v[text][i], y[n][text]);
        }
      }
#pragma unroll
      for (int n = 0; n < HELD; n++) {
        const int first = chunk * LINES + line<KIND>(n) * ROWS;
#pragma unroll
        for (int text = 0; text < ROWS; text++)
          store_one(partial + ((first + text) * 32 + lane), y[n][text]);
      }
    }
  }

  // Posts a word of a task.
  template <int KIND, bool ORDERED>
  DEVICE void put_word(int layer, int task, int pair, float low, float high) const {
    posts.template put<ORDERED>(D::posts(KIND, layer) + pair * D::line(KIND) + task, turn(),
                                pack_bf16(low, high));
  }

  // Adds up what all warps have, two sums to a word and a word to a warp, and posts the words.
  template <int KIND, bool ORDERED>
  DEVICE void post_sums(int layer, int pass) const {
    constexpr int T = D::at_once(KIND), LINES = D::lines(KIND), WORDS = D::at_a_pass(KIND) * PAIRS;
    constexpr int ALL = D::chunks(KIND);
#pragma unroll
    for (int i = 0; i < ceil_div(WORDS, WARPS); i++) {
      const int word = i * WARPS + warp, place = word / PAIRS, pair = word % PAIRS;
      const int to = task<KIND>(pass, place);
      if (word >= WORDS || to >= D::tasks(KIND)) break;
      const int line = place * T * ROWS + 2 * pair;
      const bool two = T == 2 || 2 * pair + 1 < ROWS;
      float low = 0.0f, high = 0.0f;
#pragma unroll
      for (int chunk = 0; chunk < ALL; chunk++) {
        const sptr<float> here = partial + ((chunk * LINES + line) * 32 + lane);
        low += load_one(here);
        if (two) high += load_one(here + 32);
      }
      // Half of the lanes go on with each.
      const bool upper = lane >= 16;
      float y = upper ? high : low;
      y += shuffle_xor(upper ? low : high, 16);
#pragma unroll
      for (int mask = 8; mask > 0; mask /= 2) y += shuffle_xor(y, mask);
      const float other = shuffle_xor(y, 16);
      if (lane == 0) put_word<KIND, ORDERED>(layer, to, pair, y, other);
    }
  }
};

}  // namespace elman
