// A model of matrix-state layers writes text in one launch: a byte of every text after another,
// from the embedding to the draw. All blocks of the GPU run at the same time. A block owns rows of
// every matrix, so it reads each weight once a byte; what the rows yield it posts to all others
// (Posts of common/grid.cuh). Row tiles of the states are dealt to the warps of all blocks. The
// stream, its norms and the draw every block computes for itself. So there are three exchanges a
// layer and no barrier of the grid. The weights that a warp needs next are on their way to shared
// memory while it waits.
//
// Sums are in the order of the kernels that take the same steps one by one (row_product.cuh,
// add_norm.cuh, the matrix-state engine), so that both write the same text.
#pragma once
#include "cuda/decode/step_config.cuh"

namespace elman {

template <class D>
struct Decode {
  using G = typename D::Tile;
  using Raw = RawInputs<D>;
  using Norm = typename D::Norm;
  static constexpr int ROWS = D::ROWS, PAIRS = D::PAIRS, WIDTH = D::WIDTH, THREADS = D::THREADS;
  static constexpr int WARPS = D::WARPS, V = Norm::V;

  const DecodeArgs& a;
  const Posts posts;
  const int block = (int)block_index(), blocks, warp = warp_index(), lane = thread_index() % 32;
  Arena arena;
  sptr<unsigned long long> matrices, layers;
  sptr<int> counts, tokens;   // tasks of the block in each kind of matrix; [B]
  sptr<float> x, other;       // [B, MOST_INPUTS]: of this product and of the next one, in turn
  sptr<float> sums, between;  // [B, warps of a norm], [B, BETWEEN]
  sptr<float> logits;         // [B, VALUES]
  const DrawRoom<typename D::Draw> room;
  sptr<unsigned char> slots;  // of the warp
  Arena of_warp;
  float stream[D::UNITS][2][V];  // as add_norm.cuh deals rows to threads
  Task<D> now, ahead;
  int slot = 0, step = 0;

  DEVICE explicit Decode(const DecodeArgs& args)
      : a(args),
        posts{(unsigned long long*)args.posts},
        blocks((int)args.blocks),
        matrices(arena.take<unsigned long long>(D::MATRICES)),
        layers(arena.take<unsigned long long>(D::LAYERS * D::LAYER_WORDS)),
        counts(arena.take<int>(D::PER_LAYER + 1)),
        tokens(arena.take<int>(ROWS)),
        x(arena.take<float>(ROWS * D::MOST_INPUTS)),
        other(arena.take<float>(ROWS * D::MOST_INPUTS)),
        sums(arena.take<float>(ROWS * Norm::WARPS)),
        between(arena.take<float>(ROWS * D::BETWEEN)),
        logits(arena.take<float>(ROWS * D::VALUES)),
        room(arena) {
    slots = arena.take<unsigned char>(D::SLOT * D::SLOTS * WARPS) + warp * D::SLOTS * D::SLOT;
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
    for (int i = thread_index(); i < D::LAYERS * D::LAYER_WORDS; i += THREADS) {
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
    if (thread_index() <= D::PER_LAYER) {
      const int left = D::tasks(thread_index()) - block;
      store_one(counts + thread_index(), left <= 0 ? 0 : (left + blocks - 1) / blocks);
    }
    if (thread_index() < ROWS)
      store_one(tokens + thread_index(), (int)load_one((const long long*)a.last + thread_index()));
    sync_block();
    now.next(warp, counts);
    ahead = now;
#pragma unroll
    for (int i = 0; i < D::SLOTS; i++) fetch(i);
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

  // Starts copying the rows of the task ahead into a slot.
  DEVICE void fetch(int to) {
    if (ahead.step < a.steps) {
      const int at_once = D::at_once(ahead.kind), row = (block + ahead.place * blocks) * at_once;
      const int left = D::outputs(ahead.kind) - row, bytes = 2 * D::inputs(ahead.kind);
      const unsigned char* from =
          (const unsigned char*)load_one(matrices + ahead.matrix()) + (long long)row * bytes;
      for (int at = lane * 16; at < bytes * least(at_once, left); at += 512)
        copy_async<16>(slots + (to * D::SLOT + at), from + at, 16);
      ahead.next(WARPS, counts);
    }
    commit_copies();
  }

  // The warp's rows of a matrix times x.
  template <int KIND, bool ORDERED = false>
  DEVICE void product(int layer) {
    constexpr int INPUTS = D::inputs(KIND), T = D::at_once(KIND);
    while (now.is(step, layer, KIND)) {
      wait_copies<D::SLOTS - 1>();
      sync_warp();
      const sptr<bf16> rows = cast<bf16>(slots + slot * D::SLOT);
      float y[T][ROWS];
#pragma unroll
      for (int i = 0; i < T * ROWS; i++) y[i / ROWS][i % ROWS] = 0.0f;
      const int task = block + now.place * blocks;
      const bool whole = T == 1 || task * T + 1 < D::outputs(KIND);
#pragma unroll 4
      for (int at = lane * 8; at < INPUTS; at += 256) {
        float w[T][8];
        load<8, bf16>(w[0], rows + at);
        if constexpr (T == 2) load<8, bf16>(w[1], rows + ((whole ? INPUTS : 0) + at));
#pragma unroll
        for (int text = 0; text < ROWS; text++) {
          float v[8];
          load<8, float>(v, x + (text * D::MOST_INPUTS + at));
#pragma unroll
          for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int row = 0; row < T; row++) y[row][text] = fused(w[row][i], v[i], y[row][text]);
          }
        }
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
        for (int i = 0; i < T * ROWS; i++)
          y[i / ROWS][i % ROWS] += shuffle_xor(y[i / ROWS][i % ROWS], mask);
      }
      if (lane == 0) {
        const int to = D::posts(KIND, layer) + task * PAIRS;
        if constexpr (T == 2) {
          posts.template put<ORDERED>(to, turn(), pack_bf16(y[0][0], y[1][0]));
        } else {
#pragma unroll
          for (int pair = 0; pair < PAIRS; pair++)
            posts.template put<ORDERED>(
                to + pair, turn(),
                pack_bf16(y[0][2 * pair], 2 * pair + 1 < ROWS ? y[0][2 * pair + 1] : 0.0f));
        }
      }
      sync_warp();
      fetch(slot);
      slot = slot + 1 == D::SLOTS ? 0 : slot + 1;
      now.next(WARPS, counts);
    }
  }

  // The next product reads what is written to x from now on. Who still multiplies reads the other
  // one, until all have met.
  DEVICE void turn_x() {
    const sptr<float> last = x;
    x = other;
    other = last;
  }

  // Shows every number of a matrix's outputs to `put(text, output, number)`.
  template <int KIND, bool ORDERED = false, class Put>
  DEVICE void take(int layer, const Put& put) const {
    constexpr int N = 2, WORDS = D::words(KIND), T = D::at_once(KIND);
    for (int first = thread_index(); first < WORDS; first += N * THREADS) {
      unsigned words[N];
      int at[N];
#pragma unroll
      for (int i = 0; i < N; i++)
        at[i] = first + i * THREADS < WORDS ? D::posts(KIND, layer) + first + i * THREADS : -1;
      posts.template take<N, ORDERED>(words, at, turn());
#pragma unroll
      for (int i = 0; i < N; i++) {
        const int word = first + i * THREADS;
        if (word >= WORDS) continue;
        if constexpr (T == 2) {
          put(0, 2 * word, half(words[i], false));
          if (2 * word + 1 < D::outputs(KIND)) put(0, 2 * word + 1, half(words[i], true));
        } else {
          const int output = word / PAIRS, text = word % PAIRS * 2;
          put(text, output, half(words[i], false));
          if (text + 1 < ROWS) put(text + 1, output, half(words[i], true));
        }
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

  // Adds what a matrix yields to the stream; x becomes the norm of the sum. KIND < 0: nothing.
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
      if constexpr (KIND >= 0) add_branch<KIND>(i, layer);
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
        for (int e = 0; e < V; e++)
          y[e] = rounded(stream[i][chunk][e] * (rstd * gain[i][chunk][e]));
        store<V, float>(x + (text * D::MOST_INPUTS + c), y);
      }
    }
    sync_block();
  }

  template <int KIND>
  DEVICE void add_branch(int i, int layer) {
    constexpr int EACH = D::at_once(KIND) == 2 ? V / 2 : V;  // words of a vector
    const int text = unit(i) / Norm::WARPS;
    unsigned words[2 * EACH];
    int at[2 * EACH];
#pragma unroll
    for (int n = 0; n < 2 * EACH; n++) {
      const int c = column(i, n / EACH) + n % EACH * (V / EACH);
      at[n] = c < WIDTH ? D::posts(KIND, layer) + D::word(KIND, text, c) : -1;
    }
    posts.template take<2 * EACH>(words, at, turn());
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
    for (int item = (WARPS - 1 - warp) * blocks + block; item < D::ITEMS; item += WARPS * blocks)
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

  // x becomes the outputs of a layer's recurrence.
  DEVICE void take_reads(int layer) {
    constexpr int N = 2, WORDS = D::READ_WORDS, EACH = D::READS_OF_WORD;
    turn_x();
    for (int first = thread_index(); first < WORDS; first += N * THREADS) {
      unsigned words[N];
      int at[N];
#pragma unroll
      for (int i = 0; i < N; i++)
        at[i] = first + i * THREADS < WORDS ? D::reads(layer) + first + i * THREADS : -1;
      posts.template take<N>(words, at, turn());
#pragma unroll
      for (int i = 0; i < N; i++) {
        const int channel = (first + i * THREADS) * EACH;
        if (at[i] < 0) continue;
#pragma unroll
        for (int e = 0; e < EACH; e++)
          store_one(x + (channel / D::MIXED * D::MOST_INPUTS + channel % D::MIXED + e),
                    half(words[i], e == 1));
      }
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

  // x becomes silu of what the input projection yields, convolved before.
  DEVICE void activate_inner(int layer) {
    take_between<D::IN>(layer);
    for (int n = thread_index(); n < ROWS * D::INNER; n += THREADS) {
      const int text = n / D::INNER, c = n % D::INNER;
      float u = load_one(between + (text * D::BETWEEN + c));
      if constexpr (D::TAPS > 0) {
        float past[D::TAPS], tap[D::TAPS], bias;
        read_past(layer, text, c, past, tap, bias);
        u = convolved(layer, text, c, u, past, tap, bias, c % blocks == block);
      }
      // As PyTorch has it.
      if constexpr (D::ACTIVATED) u = rounded(exact_quotient(u, 1.0f + exact_exp(-u)));
      store_one(x + (text * D::MOST_INPUTS + c), u);
    }
    sync_block();
  }

  // x becomes the hidden channels of the MLP: silu of one half times the other half.
  DEVICE void swiglu(int layer) {
    take_between<D::MLP_IN>(layer);
    for (int n = thread_index(); n < ROWS * D::HIDDEN; n += THREADS) {
      const int text = n / D::HIDDEN, c = n % D::HIDDEN;
      const sptr<float> place = between + (text * D::BETWEEN + c);
      const float z = load_one(place), v = load_one(place + D::HIDDEN);
      float s = z * sigmoid(z);
      s *= v;
      store_one(x + (text * D::MOST_INPUTS + c), rounded(s));
    }
    sync_block();
  }

  // ---- the draw, and the whole

  DEVICE void draw_all() {
    // What all have written in this step, the states, is known behind this.
    take<D::HEAD, true>(D::LAYERS, [&](int text, int value, float number) {
      store_one(logits + (text * D::VALUES + value), number);
    });
    for (int text = 0; text < ROWS; text++) {
      sync_block();
      const long long at = (long long)step * ROWS + text;
      const auto logit = [&](int value) { return load_one(logits + (text * D::VALUES + value)); };
      draw_one<typename D::Draw>(room, a.sampling, load_one((const float*)a.uniform + at), logit,
                                 [&](int value) {
                                   store_one(tokens + text, value);
                                   if (block == 0)
                                     store_one((long long*)a.drawn + at, (long long)value);
                                 });
    }
    sync_block();
  }

  // A layer, behind one that yields KIND; KIND < 0: it is the first.
  template <int KIND>
  DEVICE void pass_layer(int layer) {
    norm<KIND>(of_layer(layer, NORM), layer - 1);
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
  }

  DEVICE void run() {
    begin();
    constexpr int LAST = D::PER_LAYER - 1;
    for (; step < a.steps; step++) {
      embed();
      pass_layer<-1>(0);
#pragma unroll 1
      for (int layer = 1; layer < D::LAYERS; layer++) pass_layer<LAST>(layer);
      norm<LAST>(a.final_norm, D::LAYERS - 1);
      product<D::HEAD, true>(D::LAYERS);
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
