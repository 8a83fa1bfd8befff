// A model of matrix-state layers writes text in one launch: a byte of every text after another,
// from the embedding to the draw. All blocks of the GPU run at the same time. A block owns rows of
// every matrix, so it reads each weight once a byte; what the rows yield it posts to all others
// (Posts of common/grid.cuh). Row tiles of the states are dealt to the warps of all blocks. The
// stream, its norms and the draw every block computes for itself. So there are three exchanges a
// layer and no barrier of the grid. The weights of the next DEPTH layers are in shared memory, or
// on their way.
//
// Sums are in the order of the kernels that take the same steps one by one (row_product.cuh,
// add_norm.cuh, the matrix-state engine), so that both write the same text.
//
// Who does what of a block: the first warps the norms, those behind them the products, the last
// ones the recurrences. So each waits for what it needs and for nothing else.
#pragma once
#include "cuda/decode/step_config.cuh"

namespace elman {

template <class D>
struct Decode {
  using G = typename D::Tile;
  using Raw = RawInputs<D>;
  using Norm = typename D::Norm;
  static constexpr int ROWS = D::ROWS, PAIRS = D::PAIRS, WIDTH = D::WIDTH, THREADS = D::THREADS;
  static constexpr int WARPS = D::WARPS, BLOCKS = D::BLOCKS, V = Norm::V;

  const DecodeArgs& a;
  const Posts posts;
  const int block = (int)block_index(), warp = warp_index(), lane = thread_index() % 32;
  Arena arena;
  sptr<unsigned long long> layers;
  sptr<int> tokens;           // [B]
  sptr<bf16> x, other;        // [B, MOST_INPUTS]: of this product and of the next one, in turn
  sptr<float> sums, between;  // [B, warps of a norm], [B, BETWEEN]
  sptr<float> logits;         // [B, VALUES]
  const DrawRoom<typename D::Draw> room;
  sptr<unsigned char> rows;  // of matrices: [DEPTH layers, ROW_BYTES], those of the head
  Arena of_warp;
  float stream[D::UNITS][2][V];  // as add_norm.cuh deals rows to threads
  int slot = 0, step = 0;        // slot: of the present layer's rows

  DEVICE explicit Decode(const DecodeArgs& args)
      : a(args),
        posts{(unsigned long long*)args.posts},
        layers(arena.take<unsigned long long>(D::LAYERS * D::LAYER_WORDS)),
        tokens(arena.take<int>(ROWS)),
        x(arena.take<bf16>(ROWS * D::MOST_INPUTS)),
        other(arena.take<bf16>(ROWS * D::MOST_INPUTS)),
        sums(arena.take<float>(ROWS * Norm::WARPS)),
        between(arena.take<float>(ROWS * D::BETWEEN)),
        logits(arena.take<float>(ROWS * D::VALUES)),
        room(arena) {
    rows = arena.take<unsigned char>(D::DEPTH * D::ROW_BYTES + D::row_bytes(D::HEAD));
    of_warp = arena;
    of_warp.carved += warp * D::TILE_BYTES;
  }

  DEVICE unsigned turn() const { return (unsigned)a.turn + step + 1; }
  DEVICE static float low(unsigned word) { return Half<bf16>::low(word); }
  DEVICE static float half(unsigned word, bool high) {
    return high ? Half<bf16>::high(word) : Half<bf16>::low(word);
  }
  DEVICE static float rounded(float y) { return Half<bf16>::low(pack_bf16(y, 0.0f)); }

  // ---- the tables, and what stays zero

  static constexpr int NORM = 0, IN_PROJ = 1, OUT_PROJ = 2, CELL_PROJ = 3, CONV = 4, CONV_BIAS = 5,
                       MLP_NORM = 6, MLP_IN = 7, MLP_OUT = 8, PARAM = 9;
  static_assert(D::LAYER_WORDS == PARAM + PARAMS, "the words of DecodeLayer");
  HD static constexpr int matrix_word(int kind) {
    return kind == D::OUT                ? OUT_PROJ
           : kind == D::MLP_IN           ? MLP_IN
           : kind == D::MLP_OUT          ? MLP_OUT
           : D::CELLS && kind == D::CELL ? CELL_PROJ
                                         : IN_PROJ;
  }

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
    for (int i = thread_index(); i < D::LAYERS * D::LAYER_WORDS; i += THREADS)
      store_one(layers + i, load_one((const unsigned long long*)a.layers + i));
    if (thread_index() < ROWS)
      store_one(tokens + thread_index(), (int)load_one((const long long*)a.last + thread_index()));
    sync_block();
    fetch_all<D::HEAD>(0, 0);
    for (int layer = 0; layer < D::DEPTH; layer++) {
      fetch_all<D::IN>(layer, layer);
      if constexpr (D::CELLS) fetch_all<D::CELL>(layer, layer);
      fetch_all<D::OUT>(layer, layer);
      if constexpr (D::HIDDEN > 0) {
        fetch_all<D::MLP_IN>(layer, layer);
        fetch_all<D::MLP_OUT>(layer, layer);
      }
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

  // ---- products

  // A task is at_once(KIND) rows of a matrix. Each chunk of the block's tasks gives a warp one.
  DEVICE int place(int chunk) const {
    return chunk * WARPS + (warp + WARPS - D::FIRST_WARP) % WARPS;
  }
  template <int KIND>
  DEVICE bool has_task(int chunk) const {
    return block + place(chunk) * BLOCKS < D::tasks(KIND);
  }
  template <int KIND>
  DEVICE sptr<unsigned char> room_of(int chunk, int slot) const {
    const int first =
        KIND == D::HEAD ? D::DEPTH * D::ROW_BYTES : slot * D::ROW_BYTES + D::row_bytes_before(KIND);
    return rows + (first + place(chunk) * D::task_bytes(KIND));
  }

  // Starts copying the warp's rows of a layer's matrix to shared memory.
  template <int KIND>
  DEVICE void fetch(int chunk, int layer, int slot) {
    constexpr int BYTES = D::task_bytes(KIND), EACH = 2 * D::inputs(KIND);
    const int task = block + place(chunk) * BLOCKS;
    const unsigned char* from =
        (const unsigned char*)(KIND == D::HEAD ? a.head : of_layer(layer, matrix_word(KIND))) +
        (long long)task * BYTES;
    const bool whole = D::at_once(KIND) == 1 || 2 * task + 1 < D::outputs(KIND);
    const sptr<unsigned char> to = room_of<KIND>(chunk, slot);
#pragma unroll
    for (int first = 0; first < BYTES; first += 512) {
      const int at = first + lane * 16;
      if (at < BYTES && (whole || at < EACH)) copy_async<16>(to + at, from + at, 16);
    }
  }
  // One group of copies for each chunk, even where the warp has no task in it.
  template <int KIND>
  DEVICE void fetch_all(int layer, int slot) {
    for (int chunk = 0; chunk < D::chunks(KIND); chunk++) {
      if (has_task<KIND>(chunk)) fetch<KIND>(chunk, layer, slot);
      commit_copies();
    }
  }
  // The same of the matrix that takes the room of layer's matrix: DEPTH layers behind it.
  template <int KIND>
  DEVICE void fetch_next(int chunk, int layer) {
    if constexpr (KIND == D::HEAD) {
      if (step + 1 < a.steps) fetch<KIND>(chunk, layer, 0);
    } else {
      const int next = layer + D::DEPTH;
      if (next < D::LAYERS)
        fetch<KIND>(chunk, next, slot);
      else if (step + 1 < a.steps)
        fetch<KIND>(chunk, next - D::LAYERS, slot);
    }
  }

  // The block's rows of a matrix times x.
  template <int KIND, bool ORDERED = false>
  DEVICE void product(int layer) {
    for (int chunk = 0; chunk < D::chunks(KIND); chunk++) {
      // Of DEPTH layers the oldest group is this one's; the head's makes it one more.
      wait_copies<D::DEPTH * D::GROUPS - 1>();
      if (has_task<KIND>(chunk)) {
        sync_warp();
        multiply<KIND, ORDERED>(chunk, layer);
        sync_warp();
        fetch_next<KIND>(chunk, layer);
      }
      commit_copies();
    }
  }
  template <int KIND, bool ORDERED>
  DEVICE void multiply(int chunk, int layer) const {
    constexpr int INPUTS = D::inputs(KIND), T = D::at_once(KIND);
    const sptr<bf16> w = cast<bf16>(room_of<KIND>(chunk, slot));
    const int task = block + place(chunk) * BLOCKS;
    const int second = T == 1 || 2 * task + 1 < D::outputs(KIND) ? INPUTS : 0;
    float y[T][ROWS];
#pragma unroll
    for (int i = 0; i < T * ROWS; i++) y[i / ROWS][i % ROWS] = 0.0f;
#pragma unroll(T == 2 ? 8 : 4)
    for (int at = lane * 8; at < INPUTS; at += 256) {
      float weights[T][8];
#pragma unroll
      for (int row = 0; row < T; row++) load<8, bf16>(weights[row], w + (row * second + at));
#pragma unroll
      for (int text = 0; text < ROWS; text++) {
        float v[8];
        load<8, bf16>(v, x + (text * D::MOST_INPUTS + at));
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
          for (int row = 0; row < T; row++)
            y[row][text] = fused(weights[row][i], v[i], y[row][text]);
        }
      }
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
      for (int i = 0; i < T * ROWS; i++)
        y[i / ROWS][i % ROWS] += shuffle_xor(y[i / ROWS][i % ROWS], mask);
    }
    if (lane > 0) return;
    const int to = D::posts(KIND, layer) + task;
    if constexpr (T == 2) {
      posts.template put<ORDERED>(to, turn(), pack_bf16(y[0][0], y[1][0]));
    } else {
#pragma unroll
      for (int pair = 0; pair < PAIRS; pair++)
        posts.template put<ORDERED>(
            to + pair * D::line(KIND), turn(),
            pack_bf16(y[0][2 * pair], 2 * pair + 1 < ROWS ? y[0][2 * pair + 1] : 0.0f));
    }
  }

  // The next product reads what is written to x from now on. Who still multiplies reads the other
  // one, until all have met.
  DEVICE void turn_x() {
    const sptr<bf16> last = x;
    x = other;
    other = last;
  }

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
      posts.template take<N, ORDERED>(words, at, turn());
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
  // before the first.
  template <int KIND>
  DEVICE void norm(const void* gains, int layer) {
    float gain[D::UNITS][2][V];
    turn_x();
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
    sync_block();
#pragma unroll
    for (int i = 0; i < D::UNITS; i++) {
      if (!has(i)) continue;
      const int text = unit(i) / Norm::WARPS;
      float all = 0.0f;
#pragma unroll
      for (int n = 0; n < Norm::WARPS; n++) all += load_one(sums + (text * Norm::WARPS + n));
      const float mean = all * (1.0f / WIDTH);
      const float rstd = exact_quotient(1.0f, exact_root(mean + (float)a.eps));
#pragma unroll
      for (int chunk = 0; chunk < 2; chunk++) {
        const int c = column(i, chunk);
        if (c >= WIDTH) continue;
        float y[V];
#pragma unroll
        for (int e = 0; e < V; e++) y[e] = stream[i][chunk][e] * (rstd * gain[i][chunk][e]);
        store<V, bf16>(x + (text * D::MOST_INPUTS + c), y);
      }
    }
    sync_block();
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
    posts.template take<EACH, false, 2>(words, at, turn());
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
    read_params<G>(args, at, lanes, params);
    const Output<G, false> output(args, at);
    take_raw(layer, at, numbers);
    sync_warp();
    in.prepare(0, 0);
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
#pragma unroll
      for (int role = 0; role < ROLES; role++) {
        const int j = n * 32 + lane - D::begin(role);
        if (j < 0 || j >= D::count(role)) continue;
        const int row = D::by_rows(role) ? at.row_tile * G::ROWS + j : j;
        const int width = D::by_rows(role) ? G::R : G::width(role);
        place[n] = D::raw_offset(role) + j;
        // Of roles on one slice the first one's.
        writes[n] = G::Spec::TIE[role] < 0 && (D::by_rows(role) || at.row_tile == 0);
        if (row < width) channel[n] = D::start(role) + at.head * width + row;
      }
      if (channel[n] >= 0)
        words[n] = D::posts(D::CELL, layer) + D::word(D::CELL, (int)at.batch, channel[n]);
      if constexpr (CONVOLVES)
        read_past(layer, (int)at.batch, channel[n], past[n], tap[n], bias[n]);
    }
    posts.template take<N>(found, words, turn());
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
      posts.put(D::reads(layer) + (channel + e) / EACH, turn(),
                pack_bf16(out[e], EACH == 2 ? out[e + 1] : 0.0f));
  }

  // x becomes the outputs of a layer's recurrence, of which a thread takes two words at once.
  DEVICE void take_reads(int layer) {
    constexpr int EACH = 2 * D::READS_OF_WORD;
    turn_x();
    for (int pair = thread_index(); 2 * pair < D::READ_WORDS; pair += THREADS) {
      unsigned words[2];
      const int at[1] = {D::reads(layer) + 2 * pair};
      posts.template take<1, false, 2>(words, at, turn());
      const int text = EACH * pair / D::MIXED, channel = EACH * pair % D::MIXED;
      const sptr<bf16> to = x + (text * D::MOST_INPUTS + channel);
      if constexpr (EACH == 4)
        store_words(cast<unsigned>(to), words);
      else
        store_one(cast<unsigned>(to), words[0] & 0xffffu | words[1] << 16);
    }
    sync_block();
  }

  // ---- the convolution: of what the recurrence reads, or of what stands before the cell's matrix

  static constexpr bool CONVOLVES = D::TAPS > 0 && !D::CELLS;

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
    turn_x();
    take<KIND>(layer, [&](int text, int c, float number) {
      store_one(between + (text * D::BETWEEN + c), number);
    });
    sync_block();
  }

  // x becomes what `number(text, c)` tells of every input; a thread has two at once.
  template <class Number>
  DEVICE void fill_x(int inputs, const Number& number) {
    for (int pair = thread_index(); pair < ROWS * inputs / 2; pair += THREADS) {
      const int text = 2 * pair / inputs, c = 2 * pair % inputs;
      const float y[2] = {number(text, c), number(text, c + 1)};
      store<2, bf16>(x + (text * D::MOST_INPUTS + c), y);
    }
    sync_block();
  }

  // x becomes silu of what the input projection yields, convolved before.
  DEVICE void activate_inner(int layer) {
    take_between<D::IN>(layer);
    fill_x(D::INNER, [&](int text, int c) {
      float u = load_one(between + (text * D::BETWEEN + c));
      if constexpr (D::TAPS > 0) {
        float past[D::TAPS], tap[D::TAPS], bias;
        read_past(layer, text, c, past, tap, bias);
        u = convolved(layer, text, c, u, past, tap, bias, c % BLOCKS == block);
      }
      // As PyTorch has it.
      if constexpr (D::ACTIVATED) u = exact_quotient(u, 1.0f + exact_exp(-u));
      return u;
    });
  }

  // x becomes the hidden channels of the MLP: silu of one half times the other half.
  DEVICE void swiglu(int layer) {
    take_between<D::MLP_IN>(layer);
    fill_x(D::HIDDEN, [&](int text, int c) {
      const sptr<float> place = between + (text * D::BETWEEN + c);
      const float z = load_one(place), v = load_one(place + D::HIDDEN);
      float s = z * sigmoid(z);
      s *= v;
      return s;
    });
  }

  // ---- the draw, and the whole

  // Whether blocks read in the next step what others have written beside the posts. The states are
  // always read by the warp that wrote them.
  static constexpr bool TELLS = D::TAPS > 0;

  DEVICE void draw_all() {
    const float* from = (const float*)a.uniform + (long long)step * ROWS;
    float uniform[ROWS];
#pragma unroll
    for (int text = 0; text < ROWS; text++) uniform[text] = load_one(from + text);
    take<D::HEAD, TELLS>(D::LAYERS, [&](int text, int value, float number) {
      store_one(logits + (text * D::VALUES + value), number);
    });
#pragma unroll
    for (int text = 0; text < ROWS; text++) {
      sync_block();
      const long long at = (long long)step * ROWS + text;
      const auto logit = [&](int value) { return load_one(logits + (text * D::VALUES + value)); };
      draw_one<typename D::Draw>(room, a.sampling, uniform[text], logit, [&](int value) {
        store_one(tokens + text, value);
        if (block == 0) store_one((long long*)a.drawn + at, (long long)value);
      });
    }
    sync_block();
  }

  // A layer, behind its norm.
  DEVICE void pass_layer(int layer) {
    product<D::IN>(layer);
    if constexpr (D::CELLS) {
      activate_inner(layer);
      product<D::CELL>(layer);
    }
    recur(layer);
    take_reads(layer);
    product<D::OUT>(layer);
    if constexpr (D::HIDDEN > 0) {
      norm<D::OUT>(of_layer(layer, MLP_NORM), layer);
      product<D::MLP_IN>(layer);
      swiglu(layer);
      product<D::MLP_OUT>(layer);
    }
    slot = slot + 1 == D::DEPTH ? 0 : slot + 1;
  }

  DEVICE void run() {
    begin();
    for (; step < a.steps; step++) {
      embed();
      // One loop, so that each norm is there once: a multiprocessor holds few instructions.
#pragma unroll 1
      for (int layer = 0;; layer++) {
        const bool behind = layer == D::LAYERS;
        norm<D::PER_LAYER - 1>(behind ? a.final_norm : of_layer(layer, NORM), layer - 1);
        if (behind) break;
        pass_layer(layer);
      }
      product<D::HEAD, TELLS>(D::LAYERS);
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
