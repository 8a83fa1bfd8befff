// What one launch of the kernel of whole steps receives, what is known of it at compile time, and
// the order of a block's work. ops/decode/step.py mirrors the sizes.
#pragma once
#include "cuda/add_norm/add_norm.cuh"
#include "cuda/decode/draw.cuh"
#include "cuda/decode/row_tile.cuh"
#include "cuda/matrix_state/step.cuh"

namespace elman {

// Contiguous tensors of a layer; null where it has no such part.
struct DecodeLayer {
  const void *norm, *in_proj, *out_proj;    // fp32 [D], bf16 [I or C, D], bf16 [D, M]
  const void* cell_proj;                    // bf16 [C, I]: behind silu of the input projection
  const void *conv, *conv_bias;             // fp32 [convolved channels, taps], [channels]
  const void *mlp_norm, *mlp_in, *mlp_out;  // fp32 [D], bf16 [2 F, D], bf16 [D, F]
  const void* param[PARAMS];                // as in abi/matrix_state.h
};

// State i before step s: `first` where s = 0, else that of step s - 1; step s leaves it in
// states[s % 2].
struct DecodeArgs {
  const void *layers, *embedding, *head, *final_norm;  // [layers], fp32 [V, D], bf16 [V, D], fp32
  const void *first, *first_past;                      // [layers, B, H, R, N]; [layers, B, ..]
  void *states[2], *pasts[2];
  const void *uniform, *last;  // fp32 [steps, B], int64 [B]
  void* drawn;                 // int64 [steps, B]
  void* posts;            // 8 bytes for every number that blocks hand over, zeros before the first
  long long steps, turn;  // turn: steps before this launch
  Sampling sampling;
  float eps;
};

// Model_: as the text of the translation unit declares it, see ops/decode/step.py.
template <class Tile_, class Model_>
struct DecodeConfig : Model_ {
  using Model = Model_;
  // A warp computes a row tile of a head.
  struct Tile : Tile_ {
    static constexpr bool INSIDE = true;
  };
  static_assert(Tile::WARPS == 1 && Tile::STEPS == 1 && !Tile::PRODUCERS, "one step, in a warp");
  HD static constexpr int most(int a, int b) { return a > b ? a : b; }
  HD static constexpr int up(int bytes) { return (bytes + 15) / 16 * 16; }
  static constexpr int ROWS = Model::ROWS, PAIRS = (ROWS + 1) / 2, WARPS = Model::WARPS;
  static constexpr int BLOCKS = Model::BLOCKS, THREADS = 32 * WARPS;
  // With BULK a warp more than compute: it begins the copies of weights.
  static constexpr bool BULK = Model::BULK;
  static constexpr int ALL_THREADS = THREADS + (BULK ? 32 : 0);
  static constexpr int MIXED = Model::HEADS * Tile::R;  // channels of the output projection
  using Norm = AddNormTileConfig<bf16, bf16, Model::WIDTH, 4, 2, (Model::WIDTH + 255) / 256>;
  static_assert(Norm::HELD && Model::WIDTH % 8 == 0 && MIXED % 8 == 0 && Model::HIDDEN % 8 == 0 &&
                    Model::INNER % 8 == 0,
                "rows are whole vectors");
  // Warps of add_norm.cuh, for all texts: of each warp here.
  static constexpr int UNITS = ceil_div(ROWS * Norm::WARPS, WARPS);
  using Draw = DrawTileConfig<bf16, Model::VALUES>;
  static_assert(THREADS >= Draw::THREADS, "a value has a thread");

  // ---- a layer's matrices, in order: IN, [CELL], OUT, [MLP_IN, MLP_OUT]; behind all layers HEAD

  static constexpr bool CELLS = Model::INNER > 0;
  static constexpr int IN = 0, CELL = CELLS, OUT = CELLS + 1, MLP_IN = OUT + 1, MLP_OUT = OUT + 2;
  static constexpr int PER_LAYER = OUT + 1 + (Model::HIDDEN ? 2 : 0), HEAD = PER_LAYER;
  static constexpr int MATRICES = Model::LAYERS * PER_LAYER + 1;

  HD static constexpr int outputs(int kind) {
    return kind == HEAD     ? Model::VALUES
           : kind == CELL   ? Model::CHANNELS
           : kind == IN     ? Model::INNER
           : kind == MLP_IN ? 2 * Model::HIDDEN
                            : Model::WIDTH;
  }
  HD static constexpr int inputs(int kind) {
    return kind == IN || kind == MLP_IN || kind == HEAD ? Model::WIDTH
           : kind == CELL                               ? Model::INNER
           : kind == OUT                                ? MIXED
                                                        : Model::HIDDEN;
  }
  static constexpr int MOST_INPUTS =
      most(most(Model::WIDTH, MIXED), most(Model::HIDDEN, Model::INNER));
  static constexpr int BETWEEN = most(Model::INNER, 2 * Model::HIDDEN);

  // Rows whose outputs share a word, and how many such tasks a matrix has: in all, and of a block.
  HD static constexpr int at_once(int kind) { return ROWS == 1 && kind != HEAD ? 2 : 1; }
  HD static constexpr int tasks(int kind) { return ceil_div(outputs(kind), at_once(kind)); }
  HD static constexpr int places(int kind) { return ceil_div(tasks(kind), BLOCKS); }

  // A block has adjacent tasks, so that what it yields lies side by side. It multiplies them in
  // passes of at most PASS_ROWS rows; its warps share the chunks of a row.
  HD static constexpr int chunks(int kind) { return RowTile::chunks(inputs(kind)); }
  HD static constexpr int own_chunks(int kind) { return ceil_div(chunks(kind), WARPS); }
  HD static constexpr int passes(int kind) {
    return ceil_div(places(kind), Model::PASS_ROWS / at_once(kind));
  }
  // Of a pass: tasks of the block, its rows, and those for all texts.
  HD static constexpr int at_a_pass(int kind) { return ceil_div(places(kind), passes(kind)); }
  HD static constexpr int rows(int kind) { return at_a_pass(kind) * at_once(kind); }
  HD static constexpr int lines(int kind) { return rows(kind) * ROWS; }
  HD static constexpr int tiles(int kind) { return ceil_div(rows(kind), RowTile::ROWS); }
  static constexpr int TILES = ceil_div(Model::PASS_ROWS, RowTile::ROWS);
  // Numbers from one row of a slot to the next: 64 bytes more than a multiple of 128, so that two
  // rows of which a warp reads 64 bytes each have all banks.
  HD static constexpr int stride(int kind) {
    return inputs(kind) + (32 + 64 - inputs(kind) % 64) % 64;
  }
  HD static constexpr int most_slot(int kind) {
    const int slot = rows(kind) * stride(kind);
    return kind == HEAD ? slot : most(slot, most_slot(kind + 1));
  }
  HD static constexpr int most_partial(int kind) {
    return kind == HEAD ? chunks(kind) * lines(kind)
                        : most(chunks(kind) * lines(kind), most_partial(kind + 1));
  }
  static constexpr int SLOT = most_slot(IN), PARTIAL = most_partial(IN);
  static_assert(Model::PASS_ROWS % 2 == 0, "two rows share a word");

  // ---- the words that blocks post: two numbers each, of two outputs or of two texts

  // A line of words for every two texts, or for one; each begins at an even place.
  HD static constexpr int line(int kind) { return round_up(tasks(kind), 2); }
  HD static constexpr int word(int kind, int text, int output) {
    return at_once(kind) == 2 ? output / 2 : text / 2 * line(kind) + output;
  }
  HD static constexpr bool is_high(int kind, int text, int output) {
    return at_once(kind) == 2 ? output % 2 : text % 2;
  }
  using Rows = typename Output<Tile, false>::Rows;
  static constexpr int READS_OF_WORD = Rows::V % 2 == 0 ? 2 : 1;
  static constexpr int READ_WORDS = ROWS * MIXED / READS_OF_WORD;
  HD static constexpr int before(int kind) {
    int sum = READ_WORDS;
    for (int i = 0; i < kind; i++) sum += PAIRS * line(i);
    return sum;
  }
  // Two layers have words of their own, and then others have them again, so that all words stay in
  // the L2 cache. A block posts for a layer when it has what all have posted of the one before,
  // which they did behind all that they took of the one before that.
  HD static constexpr int reads(int layer) {
    return (layer == Model::LAYERS ? 2 : layer % 2) * before(PER_LAYER);
  }
  HD static constexpr int posts(int kind, int layer) {
    return reads(layer) + (kind == HEAD ? 0 : before(kind));
  }

  // ---- raw inputs of a row tile: the numbers of every role, one after another

  HD static constexpr bool by_rows(int role) { return !on_columns(role) && !of_head(role); }
  HD static constexpr int count(int role) {
    return has_role<typename Tile::Spec>(role) ? Tile::width(role) : 0;
  }
  HD static constexpr int begin(int role) {
    int sum = 0;
    for (int i = 0; i < role; i++) sum += count(i);
    return sum;
  }
  HD static constexpr int raw_offset(int role) {
    int sum = 0;
    for (int i = 0; i < role; i++) sum += round_up(count(i), 4);
    return sum;
  }
  static constexpr int RAW = begin(ROLES), RAW_NUMBERS = (RAW + 31) / 32;  // of a lane
  static constexpr int ITEMS = ROWS * Model::HEADS * Tile::ROW_TILES;
  static constexpr int STATE = ROWS * Model::HEADS * Tile::R * Tile::N;  // of a layer
  static constexpr int HEAD_NUMBERS = 2 * 32;  // of a row tile's head, a copy for each lane
  static constexpr int TILE_BYTES = up(4 * raw_offset(ROLES)) + Tile::input_bytes(false) +
                                    Tile::bytes(Tile::AHEAD * Tile::PARTS) + 4 * HEAD_NUMBERS;

  // Boxes: for each slot one that its weights have come, and one that they were used.
  static constexpr int USED_BOX = Model::SLOTS, BOXES = BULK ? 2 * Model::SLOTS : 0;

  static constexpr int LAYER_WORDS = sizeof(DecodeLayer) / 8;
  // What Decode takes of an arena, in its order.
  static constexpr int SHARED_BYTES =
      up(8 * MATRICES) + up(8 * Model::LAYERS * LAYER_WORDS) + up(4 * ROWS) +
      up(2 * ROWS * MOST_INPUTS) + up(4 * PARTIAL) + up(8 * BOXES) + up(4 * ROWS * Norm::WARPS) +
      up(4 * ROWS * BETWEEN) + up(4 * ROWS * Model::VALUES) + Draw::SHARED_BYTES +
      up(2 * SLOT * Model::SLOTS) + WARPS * TILE_BYTES;
};

// A pass of a product among all that a block goes through in a launch.
template <class D>
struct Pass {
  int step = 0, layer = 0, kind = 0, pass = 0;

  template <int KIND>
  DEVICE void next() {
    if (++pass < D::passes(KIND)) return;
    pass = 0;
    if constexpr (KIND == D::HEAD) {
      kind = layer = 0;
      step++;
    } else {
      kind = KIND + 1;
      if (kind == D::PER_LAYER && ++layer < D::LAYERS) kind = 0;
    }
  }
  DEVICE int matrix() const { return layer * D::PER_LAYER + (kind == D::HEAD ? 0 : kind); }
};

// The raw inputs of a step as the matrix-state engine reads them.
template <class D>
struct RawInputs {
  using G = typename D::Tile;
  sptr<float> numbers;
  const Args& a;
  Place at;

  template <int ROLE, int V, class A>
  DEVICE void read(A* x, int, int64_t, int, int first) const {
    constexpr int OFFSET = D::raw_offset(ROLE);  // not summed up by the GPU
    load<V, float>(x, numbers + (OFFSET + first));
  }
};

}  // namespace elman
