// A model of matrix-state layers writes text in one launch: a byte of every text after another,
// from the embedding to the draw. All blocks of the GPU run at the same time. A block owns rows of
// every matrix, so it reads each weight once a byte; what the rows yield it posts to all others
// (Posts of common/grid.cuh). Its warps share the columns of a product, and a few lanes add up what
// all have. Row tiles of the states are dealt to the warps of all blocks. The
// stream, its norms and the draw every block computes for itself. So there are three exchanges a
// layer and no barrier of the grid. The weights of the next products are on their way to shared
// memory all the time.
//
// Sums are in the order of the kernels that take the same steps one by one (tile_product.cuh,
// add_norm.cuh, the matrix-state engine), so that both write the same text.
#pragma once
#include "cuda/decode/product.cuh"

namespace elman {

template <class D>
struct Decode : Products<D> {
  using G = typename D::Tile;
  using Raw = RawInputs<D>;
  using Norm = typename D::Norm;
  using P = Products<D>;
  using P::a, P::arena, P::block, P::BLOCKS, P::fetch, P::lane, P::matrices, P::meet, P::PAIRS;
  using P::posts, P::ROWS, P::slots, P::step, P::turn, P::warp, P::WARPS, P::x;
  static constexpr int WIDTH = D::WIDTH, THREADS = D::THREADS, V = Norm::V;

  sptr<unsigned long long> layers;
  sptr<int> tokens;           // [B]
  sptr<float> sums, between;  // [B, warps of a norm], [B, BETWEEN]
  sptr<float> logits;         // [B, VALUES]
  const DrawRoom<typename D::Draw> room;
  Arena of_warp;
  float stream[D::UNITS][2][V];  // as add_norm.cuh deals rows to threads

  DEVICE explicit Decode(const DecodeArgs& args)
      : P(args),
        layers(arena.template take<unsigned long long>(D::LAYERS * D::LAYER_WORDS)),
        tokens(arena.template take<int>(ROWS)),
        sums(arena.template take<float>(ROWS * Norm::WARPS)),
        between(arena.template take<float>(ROWS * D::BETWEEN)),
        logits(arena.template take<float>(ROWS * D::VALUES)),
        room(arena) {
    of_warp = arena;
    of_warp.carved += least(warp, WARPS - 1) * D::TILE_BYTES;
  }

  DEVICE static float low(unsigned word) { return Half<bf16>::low(word); }
  DEVICE static float half(unsigned word, bool high) {
    return high ? Half<bf16>::high(word) : Half<bf16>::low(word);
  }
  DEVICE static float rounded(float y) { return Half<bf16>::low(pack_bf16(y, 0.0f)); }

  // ---- the tables, and what stays zero

  static constexpr int NORM = 0, IN_PROJ = 1, OUT_PROJ = 2, CELL_PROJ = 3, CONV = 4, CONV_BIAS = 5,
                       MLP_NORM = 6, MLP_IN = 7, MLP_OUT = 8, PARAM = 9;
  static_assert(D::LAYER_WORDS == PARAM + PARAMS, "the words of DecodeLayer");

  DEVICE const void* of_layer(int layer, int word) const {
    return (const void*)load_one(layers + (layer * D::LAYER_WORDS + word));
  }
  // What the matrix-state engine reads of a call, as far as one step does.
  DEVICE Args arguments(int layer) const {
    Args args = {};
#pragma unroll
    for (int i = 0; i < PARAMS; i++) args.param[i].data = of_layer(layer, PARAM + i);
    return args;
  }

  DEVICE void begin() {
    if constexpr (D::BULK) split_block<THREADS>();
    for (int i = thread_index(); i < D::LAYERS * D::LAYER_WORDS; i += D::ALL_THREADS) {
      const unsigned long long word = load_one((const unsigned long long*)a.layers + i);
      store_one(layers + i, word);
      const int layer = i / D::LAYER_WORDS, which = i % D::LAYER_WORDS;
      const int kind = which == IN_PROJ                 ? D::IN
                       : which == CELL_PROJ && D::CELLS ? D::CELL
                       : which == OUT_PROJ              ? D::OUT
                       : which == MLP_IN                ? D::MLP_IN
                       : which == MLP_OUT               ? D::MLP_OUT
                                                        : D::PER_LAYER;
      if (kind < D::PER_LAYER) store_one(matrices + (layer * D::PER_LAYER + kind), word);
    }
    if (thread_index() == 0) store_one(matrices + (D::MATRICES - 1), (unsigned long long)a.head);
    if (thread_index() < D::BOXES) this->boxes.make(thread_index());
    if (thread_index() < ROWS)
      store_one(tokens + thread_index(), (int)load_one((const long long*)a.last + thread_index()));
    sync_block();
    if (warp == WARPS) return;
    if constexpr (!D::BULK) {
#pragma unroll
      for (int i = 0; i < D::SLOTS; i++) fetch(i);
    }
    const Args args = arguments(0);
    Arena mine = of_warp;
    const sptr<float> numbers = raw_numbers(mine);
    for (int i = lane; i < RAW_ROOM; i += 32) store_one(numbers + i, 0.0f);
    Inputs<G, false, Raw> in(mine, args, Raw{numbers, args, Place{0, 0, 0}});
    in.clear();
    sync_warp();
  }

  static constexpr int RAW_ROOM = D::raw_offset(ROLES);
  DEVICE static sptr<float> raw_numbers(Arena& mine) { return mine.take<float>(RAW_ROOM); }

  // ---- what others yield

  // Shows every number of a matrix's outputs to `put(text, output, number)`.
  template <int KIND, bool ORDERED = false, class Put>
  DEVICE void take(int layer, const Put& put) const {
    constexpr int N = 2, TASKS = D::tasks(KIND), WORDS = PAIRS * TASKS, T = D::at_once(KIND);
    for (int first = thread_index(); first < WORDS; first += N * THREADS) {
      unsigned words[N];
      int at[N];
#pragma unroll
      for (int i = 0; i < N; i++) {
        const int word = first + i * THREADS;
        at[i] = -1;
        if (word < WORDS)
          at[i] = D::posts(KIND, layer) + word / TASKS * D::line(KIND) + word % TASKS;
      }
      posts.template take<N, ORDERED>(words, at, turn(layer));
#pragma unroll
      for (int i = 0; i < N; i++) {
        const int word = first + i * THREADS, text = word / TASKS * 2, output = word % TASKS * T;
        if (word >= WORDS) continue;
        put(text, output, half(words[i], false));
        if (T == 2 && output + 1 < D::outputs(KIND)) put(0, output + 1, half(words[i], true));
        if (T == 1 && text + 1 < ROWS) put(text + 1, output, half(words[i], true));
      }
    }
  }

  // ---- the stream and its norms

  // A unit is what a warp of add_norm.cuh does: the unit's text, and the column of a vector.
  DEVICE int unit(int i) const { return i * WARPS + warp; }
  DEVICE bool has(int i) const { return unit(i) < ROWS * Norm::WARPS; }
  DEVICE int column(int i, int chunk) const {
    return (chunk * Norm::THREADS + unit(i) % Norm::WARPS * 32 + lane) * V;
  }
  static constexpr bool FULL = WIDTH == 2 * Norm::THREADS * V;  // no column is beyond a row's end

  DEVICE void embed() {
#pragma unroll
    for (int i = 0; i < D::UNITS; i++) {
      const int text = unit(i) / Norm::WARPS;
#pragma unroll
      for (int chunk = 0; chunk < 2; chunk++) {
        const int c = column(i, chunk);
#pragma unroll
        for (int e = 0; e < V; e++) stream[i][chunk][e] = 0.0f;
        if (has(i) && c < WIDTH)
          load<V, float>(stream[i][chunk], (const float*)a.embedding +
                                               ((long long)load_one(tokens + text) * WIDTH + c));
      }
    }
  }

  // Adds what a layer's matrix yields to the stream; x becomes the norm of the sum. No layer is
  // before the first one.
  template <int KIND>
  DEVICE void norm(const void* gains, int layer) {
    float gain[D::UNITS][2][V];
#pragma unroll
    for (int i = 0; i < D::UNITS; i++) {
#pragma unroll
      for (int chunk = 0; chunk < 2; chunk++)
        if (has(i) && column(i, chunk) < WIDTH)
          load<V, float>(gain[i][chunk], (const float*)gains + column(i, chunk));
    }
#pragma unroll
    for (int i = 0; i < D::UNITS; i++) {
      if (!has(i)) continue;
      if (layer >= 0) add_branch<KIND>(i, layer);
      float squares = 0.0f;
#pragma unroll
      for (int chunk = 0; chunk < 2; chunk++) {
#pragma unroll
        for (int e = 0; e < V; e++)
          squares = fused(stream[i][chunk][e], stream[i][chunk][e], squares);
      }
#pragma unroll
      for (int mask = 1; mask < 32; mask *= 2) squares += shuffle_xor(squares, mask);
      if (lane == 0) store_one(sums + unit(i), squares);
    }
    meet();
#pragma unroll
    for (int i = 0; i < D::UNITS; i++) {
      if (!has(i)) continue;
      const int text = unit(i) / Norm::WARPS;
      float all = 0.0f;
#pragma unroll
      for (int n = 0; n < Norm::WARPS; n++) all += load_one(sums + (text * Norm::WARPS + n));
      const float mean = all * (1.0f / WIDTH);
      const float rstd = exact_quotient(1.0f, exact_root(mean + a.eps));
#pragma unroll
      for (int chunk = 0; chunk < 2; chunk++) {
        const int c = column(i, chunk);
        if (!FULL && c >= WIDTH) continue;
        float y[V];
#pragma unroll
        for (int e = 0; e < V; e++) y[e] = stream[i][chunk][e] * (rstd * gain[i][chunk][e]);
        store<V, bf16>(x + (text * D::MOST_INPUTS + c), y);
      }
    }
    meet();
  }

  template <int KIND>
  DEVICE void add_branch(int i, int layer) {
    constexpr int EACH = D::at_once(KIND) == 2 ? V / 2 : V;  // words of a vector
    static_assert(EACH % 2 == 0, "words are asked for in pairs");
    const int text = unit(i) / Norm::WARPS;
    unsigned words[2 * EACH];
    int at[EACH];
#pragma unroll
    for (int n = 0; n < EACH; n++) {
      const int c = column(i, 2 * n / EACH) + 2 * n % EACH * (V / EACH);
      at[n] = c < WIDTH ? D::posts(KIND, layer) + D::word(KIND, text, c) : -1;
    }
    posts.template take<EACH, false, 2>(words, at, turn(layer));
#pragma unroll
    for (int chunk = 0; chunk < 2; chunk++) {
#pragma unroll
      for (int e = 0; e < V; e++)
        if (column(i, chunk) < WIDTH)
          stream[i][chunk][e] +=
              half(words[chunk * EACH + e * EACH / V], D::at_once(KIND) == 2 ? e % 2 : text % 2);
    }
  }

  // ---- the recurrence

  DEVICE const float* before(const void* first, void* const (&kept)[2]) const {
    return (const float*)(step == 0 ? first : kept[(step - 1) % 2]);
  }
  DEVICE static Place place_of(int item) {
    const int head = item / G::ROW_TILES;
    return {head / D::HEADS, head % D::HEADS, item % G::ROW_TILES};
  }

  // The row tiles of a layer's states that the warp has.
  DEVICE void recur(int layer) {
    for (int item = (WARPS - 1 - warp) * BLOCKS + block; item < D::ITEMS; item += WARPS * BLOCKS)
      advance(layer, place_of(item));
  }

  // One step of a row tile, as the forward pass of the engine takes it.
  DEVICE void advance(int layer, const Place& at) {
    const Lane<G, false> lanes(at);
    const long long state =
        (long long)layer * D::STATE + (at.batch * D::HEADS + at.head) * G::R * G::N;
    float S[G::PIECE], params[G::TALL][MAX_PARAMS];
    lanes.load_state(S, before(a.first, a.states) + state);
    const Args args = arguments(layer);
    Arena mine = of_warp;
    const sptr<float> numbers = raw_numbers(mine);
    Inputs<G, false, Raw> in(mine, args, Raw{numbers, args, at});
    const sptr<float> y = mine.take<float>(G::AHEAD * G::PARTS);
    const sptr<float> heads = mine.take<float>(D::HEAD_NUMBERS);
    read_params<G>(args, at, lanes, params);
    const Output<G, false> output(args, at);
    take_raw(layer, at, numbers);
    sync_warp();
    prepare(in, heads);
    sync_warp();
    Unseen<float> visitor;
    run_steps<G, true>(in, lanes, 1, params, S, y, visitor);
    sync_warp();
    if (D::Rows::step(0) == 0) {
#pragma unroll
      for (int m = 0; m < D::Rows::VECTORS; m++) post_reads(layer, in.staging, output, y, at, m);
    }
    lanes.store_state((float*)a.states[step % 2] + state, S);
    sync_warp();
  }

  // What Inputs::prepare does for one step. All lanes find the numbers of the head: a lane that did
  // so alone would keep the others from their columns.
  DEVICE static void prepare(Inputs<G, false, Raw>& in, sptr<float> heads) {
    using Spec = typename G::Spec;
    using Read = Inputs<G, false, Raw>;
    const int lane = thread_index() % 32;
    if constexpr (Spec::DECAY != Map::none) {
      float decay = in.decay_param;
      if constexpr (has_role<Spec>(ROLE_DECAY)) {
        float u;
        in.staging.template read<ROLE_DECAY, 1>(&u, 0, 0, 0, 0);
        decay = mapped<Spec::DECAY>(u, in.decay_param, in.dt_bias);
      }
      in.decay = heads;
      store_one(heads + lane, decay);
    }
    if constexpr (Spec::WRITE != Map::none) {
      float u;
      in.staging.template read<ROLE_WRITE, 1>(&u, 0, 0, 0, 0);
      in.write = heads + 32;
      store_one(heads + 32 + lane, mapped<Spec::WRITE>(u, 0.0f, 0.0f));
    }
    for (int pass = 0; pass < Read::Columns::PASSES; pass += Read::TILE)
      in.prepare_columns(0, pass, 0);
    for (int pass = 0; pass < Read::Rows::PASSES; pass += Read::Rows::TILE) {
      in.template prepare_rows<ROLE_V, Spec::V_ACT>(in.v, 0, pass, 0);
      if constexpr (G::Cell::GATES > 0)
        in.template prepare_rows<ROLE_G0, Act::none>(in.gates[0], 0, pass, 0);
      if constexpr (G::Cell::GATES > 1)
        in.template prepare_rows<ROLE_G1, Act::none>(in.gates[1], 0, pass, 0);
    }
  }

  // Which channel is raw input i of a row tile, where it goes, and whether the tile writes its
  // past.
  template <int ROLE>
  DEVICE static void find_raw(int i, const Place& at, int& channel, int& place, bool& writes) {
    if constexpr (ROLE < ROLES) {
      constexpr bool BY_ROWS = D::by_rows(ROLE);
      constexpr int BEGIN = D::begin(ROLE), COUNT = D::count(ROLE), OFFSET = D::raw_offset(ROLE);
      constexpr int START = D::start(ROLE), WIDE = BY_ROWS ? G::R : G::width(ROLE);
      const int j = i - BEGIN, row = BY_ROWS ? at.row_tile * G::ROWS + j : j;
      if (j >= 0 && j < COUNT) {
        place = OFFSET + j;
        // Of roles on one slice the first one's.
        writes = G::Spec::TIE[ROLE] < 0 && (BY_ROWS || at.row_tile == 0);
        if (row < WIDE) channel = START + at.head * WIDE + row;
      }
      find_raw<ROLE + 1>(i, at, channel, place, writes);
    }
  }

  // Puts a row tile's raw inputs into shared memory, convolved where there is a convolution.
  DEVICE void take_raw(int layer, const Place& at, sptr<float> numbers) const {
    constexpr int N = D::RAW_NUMBERS;
    int channel[N], place[N], words[N];
    bool writes[N];
    unsigned found[N];
    float past[N][D::TAPS > 0 ? D::TAPS : 1], tap[N][D::TAPS > 0 ? D::TAPS : 1], bias[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
      channel[n] = words[n] = -1;
      place[n] = 0;
      writes[n] = false;
      find_raw<0>(n * 32 + lane, at, channel[n], place[n], writes[n]);
      if (channel[n] >= 0)
        words[n] = D::posts(D::CELL, layer) + D::word(D::CELL, (int)at.batch, channel[n]);
      if constexpr (CONVOLVES)
        read_past(layer, (int)at.batch, channel[n], past[n], tap[n], bias[n]);
    }
    posts.template take<N>(found, words, turn(layer));
#pragma unroll
    for (int n = 0; n < N; n++) {
      if (channel[n] < 0) continue;
      float u = half(found[n], D::is_high(D::CELL, (int)at.batch, channel[n]));
      if constexpr (CONVOLVES)
        u = convolved(layer, (int)at.batch, channel[n], u, past[n], tap[n], bias[n], writes[n]);
      store_one(numbers + place[n], u);
    }
  }

  // From reads to outputs, of some rows.
  DEVICE void post_reads(int layer, const Raw& raw, const Output<G, false>& output, sptr<float> y,
                         const Place& at, int m) const {
    constexpr int N = D::Rows::V, EACH = D::READS_OF_WORD;
    const int first = D::Rows::first(m);
    if (first >= rows_here<G>(at)) return;
    float out[N], v[N] = {}, gate[N] = {};
    sum_parts<G, N>(out, y, 0, first);
    if constexpr (G::Spec::RESIDUAL) raw.template read<ROLE_V, N>(v, 0, 0, 0, first);
    if constexpr (G::Spec::GATE) raw.template read<ROLE_GATE, N>(gate, 0, 0, 0, first);
#pragma unroll
    for (int e = 0; e < N; e++)
      out[e] = output.of(m * N + e).forward(out[e], activate<G::Spec::V_ACT>(v[e]), gate[e]);
    const int channel = (int)at.batch * D::MIXED + at.head * G::R + at.row_tile * G::ROWS + first;
#pragma unroll
    for (int e = 0; e < N; e += EACH)
      posts.put(D::reads(layer) + (channel + e) / EACH, turn(layer),
                pack_bf16(out[e], EACH == 2 ? out[e + 1] : 0.0f));
  }

  // x becomes the outputs of a layer's recurrence. A thread takes two words of them.
  DEVICE void take_reads(int layer) {
    constexpr int EACH = 2 * D::READS_OF_WORD;
    for (int pair = thread_index(); 2 * pair < D::READ_WORDS; pair += THREADS) {
      unsigned words[2];
      const int at[1] = {D::reads(layer) + 2 * pair};
      posts.template take<1, false, 2>(words, at, turn(layer));
      const int text = EACH * pair / D::MIXED, channel = EACH * pair % D::MIXED;
      const sptr<bf16> to = x + (text * D::MOST_INPUTS + channel);
      if constexpr (EACH == 4)
        store_words(cast<unsigned>(to), words);
      else
        store_one(cast<unsigned>(to), words[0] & 0xffffu | words[1] << 16);
    }
    meet();
  }

  // ---- the convolution: of what the recurrence reads, or of what stands before the cell's matrix

  static constexpr bool CONVOLVES = D::TAPS > 0 && !D::CELLS;
  // A state is read by the threads that wrote it, and a past by others too, a step later.
  static constexpr bool TELLS = D::TAPS > 0;

  DEVICE static int past_of(int layer, int text, int tap, int channel) {
    return ((layer * ROWS + text) * (D::TAPS - 1) + tap) * D::CONVOLVED + channel;
  }
  template <int N>
  DEVICE void read_past(int layer, int text, int channel, float (&past)[N], float (&tap)[N],
                        float& bias) const {
    bias = 0.0f;
    if (channel < 0 || channel >= D::CONVOLVED) return;
    const float* taps = (const float*)of_layer(layer, CONV);
    const float* biases = (const float*)of_layer(layer, CONV_BIAS);
    const float* from = before(a.first_past, a.pasts);
#pragma unroll
    for (int j = 0; j < N; j++) tap[j] = load_one(taps + (channel * N + j));
#pragma unroll
    for (int j = 0; j < N - 1; j++) past[j] = load_one(from + past_of(layer, text, j, channel));
    if (biases) bias = load_one(biases + channel);
  }
  template <int N>
  DEVICE float convolved(int layer, int text, int channel, float u, float (&past)[N],
                         const float (&tap)[N], float bias, bool writes) const {
    if (channel >= D::CONVOLVED) return u;
    past[N - 1] = u;
#pragma unroll
    for (int j = 0; j < N; j++) bias = fused(tap[j], past[j], bias);
    if (writes) {
      float* to = (float*)a.pasts[step % 2];
#pragma unroll
      for (int j = 0; j < N - 1; j++) store_one(to + past_of(layer, text, j, channel), past[j + 1]);
    }
    return rounded(bias);
  }

  // ---- what stands before the cell's matrix, and between those of the MLP

  template <int KIND>
  DEVICE void take_between(int layer) {
    take<KIND>(layer, [&](int text, int c, float number) {
      store_one(between + (text * D::BETWEEN + c), number);
    });
    meet();
  }

  // x becomes silu of what the input projection yields, convolved before.
  DEVICE void activate_inner(int layer) {
    take_between<D::IN>(layer);
    for (int n = 2 * thread_index(); n < ROWS * D::INNER; n += 2 * THREADS) {
      const int text = n / D::INNER, first = n % D::INNER;
      float u[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int c = first + i;
        u[i] = load_one(between + (text * D::BETWEEN + c));
        if constexpr (D::TAPS > 0) {
          float past[D::TAPS], tap[D::TAPS], bias;
          read_past(layer, text, c, past, tap, bias);
          u[i] = convolved(layer, text, c, u[i], past, tap, bias, c / 2 % BLOCKS == block);
        }
        // As PyTorch has it.
        if constexpr (D::ACTIVATED) u[i] = exact_quotient(u[i], 1.0f + exact_exp(-u[i]));
      }
      store<2, bf16>(x + (text * D::MOST_INPUTS + first), u);
    }
    meet();
  }

  // x becomes the hidden channels of the MLP: silu of one half times the other half.
  DEVICE void swiglu(int layer) {
    take_between<D::MLP_IN>(layer);
    for (int n = 2 * thread_index(); n < ROWS * D::HIDDEN; n += 2 * THREADS) {
      const int text = n / D::HIDDEN, c = n % D::HIDDEN;
      const sptr<float> place = between + (text * D::BETWEEN + c);
      float z[2], v[2], s[2];
      load<2, float>(z, place);
      load<2, float>(v, place + D::HIDDEN);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        s[i] = z[i] * sigmoid(z[i]);
        s[i] *= v[i];
      }
      store<2, bf16>(x + (text * D::MOST_INPUTS + c), s);
    }
    meet();
  }

  // ---- the draw, and the whole

  DEVICE void draw_all() {
    take<D::HEAD, TELLS>(D::LAYERS, [&](int text, int value, float number) {
      store_one(logits + (text * D::VALUES + value), number);
    });
    for (int text = 0; text < ROWS; text++) {
      meet();
      const long long at = (long long)step * ROWS + text;
      const auto logit = [&](int value) { return load_one(logits + (text * D::VALUES + value)); };
      const auto write = [&](int value) {
        store_one(tokens + text, value);
        if (block == 0) store_one((long long*)a.drawn + at, (long long)value);
      };
      draw_one<typename D::Draw>(room, a.sampling, load_one((const float*)a.uniform + at), logit,
                                 write, [] { P::meet(); });
    }
    meet();
  }

  static constexpr int LAST = D::PER_LAYER - 1;

  // A product, whose x `make` leaves.
  template <int KIND, bool ORDERED = false, class Make>
  DEVICE void product_of(int layer, const Make& make) {
    typename P::Weights weights;
    this->template read_early<KIND>(weights);
    make();
    this->template product<KIND, ORDERED>(layer, weights);
  }

  DEVICE void pass_layer(int layer) {
    product_of<D::IN>(layer, [&] { norm<LAST>(of_layer(layer, NORM), layer - 1); });
    if constexpr (D::CELLS) product_of<D::CELL>(layer, [&] { activate_inner(layer); });
    recur(layer);
    product_of<D::OUT>(layer, [&] { take_reads(layer); });
    if constexpr (D::HIDDEN > 0) {
      product_of<D::MLP_IN>(layer, [&] { norm<D::OUT>(of_layer(layer, MLP_NORM), layer); });
      product_of<D::MLP_OUT>(layer, [&] { swiglu(layer); });
    }
  }

  DEVICE void run() {
    begin();
    if (warp == WARPS) return this->bring_weights();
    for (; step < a.steps; step++) {
      embed();
#pragma unroll 1
      for (int layer = 0; layer < D::LAYERS; layer++) pass_layer(layer);
      product_of<D::HEAD, TELLS>(D::LAYERS, [&] { norm<LAST>(a.final_norm, D::LAYERS - 1); });
      draw_all();
    }
  }
};

template <class D>
DEVICE void decode(const DecodeArgs& a) {
  Decode<D> pass(a);
  pass.run();
}

}  // namespace elman
