// The products of a launch that writes text: a block has rows of every matrix. The weights that a
// warp reads are in shared memory before x is known.
#pragma once
#include "cuda/decode/step_config.cuh"

namespace elman {

template <class D>
struct Products {
  static constexpr int ROWS = D::ROWS, PAIRS = D::PAIRS, WARPS = D::WARPS, BLOCKS = D::BLOCKS;

  const DecodeArgs& a;
  const int block = (int)block_index(), warp = warp_index(), lane = thread_index() % 32;
  const Posts posts, seen;  // all copies, and the one that the block looks at
  Arena arena;
  sptr<unsigned long long> matrices;
  sptr<bf16> x, other;        // [B, MOST_INPUTS]: of this product and of the next one, in turn
  sptr<float> partial;        // [chunks, lines, lanes]: sums of the warps
  sptr<unsigned char> slots;  // of the warp
  Pass<D> ahead;
  int slot = 0, step = 0;

  DEVICE explicit Products(const DecodeArgs& args)
      : a(args),
        posts{(unsigned long long*)args.posts},
        seen{posts.words + block % D::COPIES * D::POSTS},
        matrices(arena.take<unsigned long long>(D::MATRICES)),
        x(arena.take<bf16>(ROWS * D::MOST_INPUTS)),
        other(arena.take<bf16>(ROWS * D::MOST_INPUTS)),
        partial(arena.take<float>(D::PARTIAL)),
        slots(arena.take<unsigned char>(D::SLOT * D::SLOTS * WARPS) + warp * D::SLOTS * D::SLOT) {}

  DEVICE unsigned turn() const { return (unsigned)a.turn + step + 1; }

  // The next product reads what is written to x from now on. Who still multiplies reads the other
  // one, until all have met.
  DEVICE void turn_x() {
    const sptr<bf16> last = x;
    x = other;
    other = last;
  }

  // A row's part of the chunks, and the group of rows, that the warp has.
  template <int KIND>
  DEVICE int part() const {
    constexpr int PARTS = D::parts(KIND);
    return warp % PARTS;
  }
  template <int KIND>
  DEVICE int group() const {
    constexpr int PARTS = D::parts(KIND);
    return (warp + WARPS - D::FIRST_WARP) % WARPS / PARTS;
  }
  // A place of a pass among the tasks of the grid.
  template <int KIND>
  DEVICE int task(int pass, int place) const {
    constexpr int PLACES = D::at_a_pass(KIND);
    return block + (pass * PLACES + place) * BLOCKS;
  }

  // Starts copying what the warp reads in the pass ahead into a slot: each lane its own numbers.
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
    constexpr int T = D::at_once(KIND), CHUNKS = D::own_chunks(KIND), INPUTS = D::inputs(KIND);
    constexpr int GROUPS = D::groups(KIND), HELD = D::held(KIND);
    if (group<KIND>() >= GROUPS) return;
    const bf16* matrix = (const bf16*)load_one(matrices + ahead.matrix());
    const sptr<unsigned char> slot = slots + (to * D::SLOT + lane * 16);
#pragma unroll
    for (int n = 0; n < HELD; n++) {
      const int first = task<KIND>(ahead.pass, n * GROUPS + group<KIND>()) * T;
#pragma unroll
      for (int row = 0; row < T; row++) {
        // A row that is not there is another one, whose sum nobody posts.
        const bf16* from = matrix + (long long)least(first + row, D::outputs(KIND) - 1) * INPUTS;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
          const int at = column<KIND>(c);
          const bool here = at < INPUTS;  // zeros stand behind the last column
          copy_async<16>(slot + ((n * T + row) * CHUNKS + c) * 512, from + (here ? at : 0),
                         here ? 16 : 0);
        }
      }
    }
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
      wait_copies<D::SLOTS - 1>();
      if constexpr (D::SPLIT) {
        if (group<KIND>() < GROUPS) multiply<KIND>();
        sync_block();
        post_sums<KIND, ORDERED>(layer, pass);
      } else {
        multiply_rows<KIND, ORDERED>(layer, pass);
      }
      fetch(slot);
      slot = slot + 1 == D::SLOTS ? 0 : slot + 1;
      if (D::SPLIT && pass + 1 < PASSES) sync_block();
    }
  }

  // Leaves the lane's sums of each chunk, row and text. All numbers of a chunk are asked for before
  // the first is used, and no branch keeps the rows from being multiplied side by side.
  template <int KIND>
  DEVICE void multiply() const {
    constexpr int T = D::at_once(KIND), CHUNKS = D::own_chunks(KIND), LINES = D::lines(KIND);
    constexpr int INPUTS = D::inputs(KIND), HELD = D::held(KIND) * T, PARTS = D::parts(KIND);
    constexpr int GROUPS = D::groups(KIND), ALL = D::chunks(KIND);
    const sptr<bf16> weights = cast<bf16>(slots + (slot * D::SLOT + lane * 16));
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
      for (int n = 0; n < HELD; n++) w8[n].read(weights + (n * CHUNKS + c) * D::CHUNK);
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
#pragma unroll
          for (int text = 0; text < ROWS; text++) y[n][text] = fused(w[i], v[text][i], y[n][text]);
        }
      }
#pragma unroll
      for (int n = 0; n < HELD; n++) {
        const int row = (n / T * GROUPS + group<KIND>()) * T + n % T;
#pragma unroll
        for (int text = 0; text < ROWS; text++)
          store_one(partial + ((chunk * LINES + row * ROWS + text) * 32 + lane), y[n][text]);
      }
    }
  }

  // Posts a word of a task: lanes below COPIES have both numbers.
  template <int KIND, bool ORDERED>
  DEVICE void put_word(int layer, int task, int pair, float low, float high) const {
    const int word = D::posts(KIND, layer) + pair * D::line(KIND) + task;
    posts.template put<ORDERED>(lane * D::POSTS + word, turn(), pack_bf16(low, high));
  }

  // Multiplies the warp's rows, whole, and posts what they yield.
  template <int KIND, bool ORDERED>
  DEVICE void multiply_rows(int layer, int pass) const {
    constexpr int T = D::at_once(KIND), CHUNKS = D::own_chunks(KIND), INPUTS = D::inputs(KIND);
    constexpr int HELD = D::held(KIND), GROUPS = D::groups(KIND);
#pragma unroll 1
    for (int n = 0; n < HELD; n++) {
      const int to = task<KIND>(pass, n * GROUPS + group<KIND>());
      if (to >= D::tasks(KIND)) break;
      const sptr<bf16> weights =
          cast<bf16>(slots + (slot * D::SLOT + n * T * CHUNKS * 512 + lane * 16));
      float y[T][ROWS] = {};
#pragma unroll 4
      for (int c = 0; c < CHUNKS; c++) {
        const int at = column<KIND>(c);
        const bool here = INPUTS % D::CHUNK == 0 || at < INPUTS;
        float w[T][8];
#pragma unroll
        for (int row = 0; row < T; row++)
          load<8, bf16>(w[row], weights + (row * CHUNKS + c) * D::CHUNK);
#pragma unroll
        for (int text = 0; text < ROWS; text++) {
          float v[8], sums[T] = {};
          load<8, bf16>(v, x + (text * D::MOST_INPUTS + (here ? at : 0)));
#pragma unroll
          for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int row = 0; row < T; row++)
              sums[row] = fused(w[row][i], here ? v[i] : 0.0f, sums[row]);
          }
#pragma unroll
          for (int row = 0; row < T; row++) y[row][text] += sums[row];
        }
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
        for (int i = 0; i < T * ROWS; i++)
          y[i / ROWS][i % ROWS] += shuffle_xor(y[i / ROWS][i % ROWS], mask);
      }
      if (lane >= D::COPIES) continue;
      if constexpr (T == 2) {
        put_word<KIND, ORDERED>(layer, to, 0, y[0][0], y[1][0]);
      } else {
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++)
          put_word<KIND, ORDERED>(layer, to, pair, y[0][2 * pair],
                                  2 * pair + 1 < ROWS ? y[0][2 * pair + 1] : 0.0f);
      }
    }
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
      if (lane < D::COPIES) put_word<KIND, ORDERED>(layer, to, pair, y, other);
    }
  }
};

}  // namespace elman
