// The two passes of the tape engine's clusters, see cluster.cuh.
//
// Forward. With s_n = <M_n, h_t> over the tape before the write of step t, and v = <q_t, h_t>:
//
//   w = softmax(k s)                       the write, M' = M + w (q_t - M)
//   <M_n', h_t> = s_n + w_n (v - s_n)      the scores of the next read: no pass over M'
//
// so that what a step has to learn of other blocks is h_t, s and v. h_t and each block's part of s
// go out together; W_h h_t and q_t follow as one product. v needs q_t of all channels: a second,
// small exchange of one number a row. The write is done while it is on its way. (For write=identity
// q_t is h_t, and v goes out with s: one exchange.)
//
// Backward, from the gradient G of the tape after step t. e is the gradient of the state h_t, delta
// that of the argument of tanh:
//
//   dw_n = <G_n, q_t - M_n>, ds = softmax'(w, dw)  of the round before
//   e = dy + what the next step sent back + sum_n ds_n M_n,      G_n <- (1 - w_n) G_n + ds_n h_t
//   delta = e (1 - h_t^2),   dr_n = <delta, M_n>,   dz = softmax'(r, dr)
//   G_n <- G_n + r_n delta + dz_n h_{t-1},   dq_{t-1} = sum_n w_n G_n  with w of step t - 1
//
// dr goes out first, delta beside it; then dq_{t-1} with dw of the step before: two exchanges, one
// product. The tapes before the steps are replayed from checkpoints into global memory, by the
// warps that do not walk: one segment while the others walk through the next.
#pragma once
#include "cuda/tape/cluster.cuh"

namespace elman {

template <class G>
struct TapeForward : TapeCluster<G> {
  using Base = TapeCluster<G>;
  using Base::a, Base::rank, Base::warp, Base::lane, Base::steps, Base::walks, Base::row;
  using Base::gather, Base::sums_box, Base::others_box, Base::expect_sums, Base::expect_others;
  using Base::is_slot, Base::each_chunk, Base::load_tape, Base::save_tape, Base::load_state;
  using Base::part, Base::first, Base::boxes, Base::mail, Base::has, Base::slot, Base::tape_size;
  using Base::READ, Base::WRITE;
  using Base::save_state, Base::read, Base::write, Base::widen, Base::narrow, Base::multiply;
  using Base::send, Base::send_dots, Base::sums_of, Base::others_of, Base::add_up, Base::attend;
  using Base::share, Base::shared_of, Base::keep_weights;
  using typename Base::Numbers, typename Base::Slots;

  Numbers h;  // the state, of this thread's pairs
  // Where a step stands in sequences and, of this lane's first slot, in the weights; and how many
  // steps are to the next checkpoint. They move on by one step at a time, because no step has time
  // to multiply or divide for them.
  int64_t place, weight_place;
  int until_checkpoint;

  DEVICE TapeForward(Arena& arena, const TapeClusterArgs& args)
      : Base(arena, args),
        place(Base::at_step(0)),
        weight_place(Base::at_weight(0, READ, Base::lane_slot(0))),
        until_checkpoint((int)args.interval) {}

  // Every block reads all of the first state itself.
  DEVICE void fill_mail() const {
    for (int i = thread_index(); i < G::HALF; i += G::THREADS) {
      const int64_t from = first + i / 16 % G::ROWS;
      const int channel = i / (16 * G::ROWS) * 32 + i % 16 * 2;
      float x[2] = {0.0f, 0.0f};
      if (from < a.batch && channel < a.channels)
        load<2, float>(x, (const float*)a.first + (from * a.channels + channel));
      store_one(mail + i, bf16_pair(x[0], x[1]));
    }
  }
  DEVICE static float dot(const Numbers& x, const Numbers& y) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < G::PER; j++) sum += x[j][0] * y[j][0] + x[j][1] * y[j][1];
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
    return sum;
  }
  // Delivers this warp's part of <q, h>, for a step's read.
  DEVICE void send_along(float along, int t) const {
    const sptr<float> to = others_of(t) + (row * G::SENDERS + rank * G::PARTS + part);
    const int peer = lane ^ rank;
    if (lane < G::CLUSTER)
      deliver(remote_place(to, peer), boxes.of(others_box(t), peer), float_bits(along));
  }
  DEVICE float await_along(int t) const {
    boxes.wait(others_box(t), (t - 1) / 2);
    const sptr<float> from = others_of(t) + row * G::SENDERS;
    float sum = lane < G::SENDERS ? load_one(from + lane) : 0.0f;
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
    return sum;
  }
  // Writes q to the tape, with the weights that lanes share.
  DEVICE void write_tape(const Numbers& q) const {
    each_chunk([&](int n) {
      float w[4];
#pragma unroll
      for (int s = 0; s < 8; s++) {
        if (s % 4 == 0) shared_of(w, WRITE, n + s);
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2];
          if (!is_slot(n + s)) continue;
          load<2, float>(m, slot(0, n + s, j));
#pragma unroll
          for (int e = 0; e < 2; e++) m[e] = tape::written(m[e], w[s % 4], q[j][e]);
          store<2, float>(slot(0, n + s, j), m);
        }
      }
    });
  }
  DEVICE void read_tape(Numbers& sum) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++) sum[j][0] = sum[j][1] = 0.0f;
    each_chunk([&](int n) {
      float r[4];
#pragma unroll
      for (int s = 0; s < 8; s++) {
        if (s % 4 == 0) shared_of(r, READ, n + s);
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2];
          if (!is_slot(n + s)) continue;
          load<2, float>(m, slot(0, n + s, j));
#pragma unroll
          for (int e = 0; e < 2; e++) sum[j][e] += r[s % 4] * m[e];
        }
      }
    });
  }
  // Whether the state that a step leaves is multiplied.
  DEVICE bool multiplies(int t) const { return t < steps || (t == steps && G::PRODUCT_VALUE); }

  // The write of step t - 1, for which everything but its place in the tape is in `q`. Leaves the
  // scores of the read of step t.
  DEVICE void finish_write(int t, const Numbers& q, Slots& score) {
    Slots w;
    attend(w, score);
    share(WRITE, w);
    keep_weights(weight_place - (2 - WRITE) * G::SLOTS, w);
    sync_warp();
    write_tape(q);
    if (t == steps) return;
    if (--until_checkpoint == 0) {
      until_checkpoint = (int)a.interval;
      if (a.checkpoints)
        save_tape(0, (float*)a.checkpoints + (t / (int)a.interval - 1) * tape_size());
    }
    const float along = await_along(t);
#pragma unroll
    for (int i = 0; i < G::EACH; i++) score[i] = tape::next_score(score[i], w[i], along);
  }
  // The read of step t, the new state and what others need of it.
  DEVICE void next_state(int t, const Slots& score, const Numbers& pre,
                         const unsigned (&input)[G::PER]) {
    Slots r;
    Numbers x, sum;
    attend(r, score);
    share(READ, r);
    sync_warp();
    read_tape(sum);
    widen(x, input);
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) h[j][e] = tape::state(x[j][e] + pre[j][e], sum[j][e]);
    unsigned words[G::PER];
    narrow(h, words);
    if (multiplies(t + 1)) send(words, t + 1, 0);
    send_dots(0, h, sums_of(t + 1), sums_box(t + 1));
    if (!G::PRODUCT_VALUE && t + 1 < steps) send_along(dot(h, h), t + 1);
    write(a.y, place, words);
    keep_weights(weight_place, r);
  }
  DEVICE void walk(int t, const unsigned (&input)[G::PER]) {
    Numbers pre, q;
    Slots score;
    if (multiplies(t)) gather(pre, t, 0);
    if (t) {
      if (G::PRODUCT_VALUE) {
        unsigned words[G::PER];
        gather(q, t, G::PRODUCT_VALUE ? G::VALUE : 0);
        narrow(q, words);
        if (t < steps) send_along(dot(q, h), t);
        write(a.values, place - a.channels, words);
      } else {
#pragma unroll
        for (int j = 0; j < G::PER; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) q[j][e] = h[j][e];
      }
    }
    boxes.wait(sums_box(t), t / 2);
    if (t < steps) expect_sums(t + 1);
    if (t + 1 < steps) expect_others(t + 1);
    add_up(score, sums_of(t));
    if (t) finish_write(t, q, score);
    if (t < steps) next_state(t, score, pre, input);
  }
  DEVICE void run() {
    load_tape(0, (const float*)a.tape);
    load_state(h, (const float*)a.first);
    fill_mail();
    sync_cluster();
    if (walks) {
      expect_sums(0);
      send_dots(0, h, sums_of(0), sums_box(0));
    }
#pragma unroll 1
    for (int t = 0; t <= steps; t++) {
      unsigned input[G::PER];
      if (t < steps) read(input, a.x, place);
      if (multiplies(t)) multiply(t, t > 0, t < steps && multiplies(t + 1));
      sync_block();
      if (walks) walk(t, input);
      place += a.channels;
      weight_place += 2 * G::SLOTS;
    }
    if (walks) {
      save_tape(0, (float*)a.last_tape);
      save_state((float*)a.last, h);
    }
    sync_cluster();
  }
};

// Round r undoes step T - r: first of all, the last write.
template <class G>
struct TapeBackward : TapeCluster<G> {
  using Base = TapeCluster<G>;
  using Base::a, Base::steps, Base::walks, Base::first, Base::boxes, Base::exists;
  using Base::add_up, Base::scores_bwd, Base::share, Base::shared_of, Base::kept_weights;
  using Base::at_step, Base::slot, Base::at_slot, Base::at_weight, Base::tape_size, Base::is_slot;
  using Base::each_chunk, Base::load_tape, Base::save_tape, Base::load_state, Base::save_state;
  using Base::expect_mail, Base::sums_box, Base::others_box, Base::expect_sums;
  using Base::expect_others, Base::send, Base::send_sums, Base::send_dots, Base::sums_of,
      Base::others_of;
  using Base::rank, Base::warp, Base::lane;
  using Base::READ, Base::WRITE;
  using Base::read, Base::write, Base::widen, Base::narrow, Base::multiply, Base::gather;
  using typename Base::Numbers, typename Base::Slots;

  Numbers h;  // of this thread's pairs, the gradient of the state past its products
  // Where a round's step stands in sequences and, of this lane's first slot, in the weights. Of the
  // step before that of the round that is fetched next: its segment, and the steps to it there.
  // They move on by one step at a time, as those of the forward pass do.
  int64_t place, weight_place;
  int segment, inside;

  DEVICE TapeBackward(Arena& arena, const TapeClusterArgs& args)
      : Base(arena, args),
        place(at_step(steps)),
        weight_place(at_weight(steps, READ, Base::lane_slot(0))),
        segment(steps ? (steps - 1) / (int)a.interval : 0),
        inside(steps ? (steps - 1) % (int)a.interval : 0) {}

  enum { DSCORE, WEIGHT, READ_WEIGHT };  // kinds of numbers that lanes share
  enum { GRADIENT = G::TURNS };          // the tape that is one; the others by a round's number

  // What a round reads of sequences.
  struct Kept {
    unsigned dy[G::PER], before[G::PER], value[G::PER];
    Slots read, write;  // weights: the read of this step, the write of the one before it
  };

  // Segments are replayed into two places in turn.
  DEVICE float* replayed(int of, int steps_in) const {
    return (float*)a.replayed + (of % 2 * ((int)a.interval - 1) + steps_in - 1) * tape_size();
  }
  DEVICE float* replayed(int t) const { return replayed(t / (int)a.interval, t % (int)a.interval); }
  // The tape before a step of a segment.
  DEVICE const float* tape_before(int of, int steps_in) const {
    if (steps_in) return replayed(of, steps_in);
    return of ? (const float*)a.checkpoints + (of - 1) * tape_size() : (const float*)a.tape;
  }
  DEVICE const void* values() const { return G::PRODUCT_VALUE ? a.values : a.y; }

  // Reads what a step wrote to eight slots: their weights, and the value of a pair of channels.
  DEVICE void read_write(float (&w)[8], float (&q)[2], int64_t at_step, int c, int n) const {
    const float* from = (const float*)a.weights + ((at_step * 2 + WRITE) * G::SLOTS + n);
    unsigned word[1];
    load_words(word, (const bf16*)values() + (at_step * a.channels + c));
    q[0] = Half<bf16>::low(word[0]);
    q[1] = Half<bf16>::high(word[0]);
    if constexpr (G::SLOTS % 8 == 0) {
      load<8, float>(w, from);
    } else {
#pragma unroll
      for (int s = 0; s < 8; s++) w[s] = is_slot(n + s) ? load_one(from + s) : 0.0f;
    }
  }
  // Leaves the tapes before steps start + 1 to end, all of a segment; of eight slots of a pair.
  DEVICE void replay_pair(int start, int end, int64_t of, int c, int n) const {
    const int64_t place = (of * G::SLOTS + n) * a.channels + c;
    const float* from = tape_before(start / (int)a.interval, start % (int)a.interval) + place;
    float m[8][2];
#pragma unroll
    for (int s = 0; s < 8; s++)
      if (is_slot(n + s)) load<2, float>(m[s], from + s * a.channels);
#pragma unroll 1
    for (int t = start; t < end; t++) {
      float w[8], q[2];
      read_write(w, q, of * a.steps + t, c, n);
      float* to = replayed(t + 1) + place;
#pragma unroll
      for (int s = 0; s < 8; s++) {
        if (!is_slot(n + s)) continue;
#pragma unroll
        for (int e = 0; e < 2; e++) m[s][e] = tape::written(m[s][e], w[s], q[e]);
        store<2, float>(to + s * a.channels, m[s]);
      }
    }
  }
  // The same of the whole block, by a warp of some that share the rows.
  DEVICE void replay(int start, int end, int who, int sharing) const {
    if (start >= end) return;
    for (int row = who; row < G::ROWS && first + row < a.batch; row += sharing)
      for (int p = lane; p < G::M / 2; p += 32) {
        const int c = rank * G::M + 2 * p;
        if (c < a.channels) each_chunk([&](int n) { replay_pair(start, end, first + row, c, n); });
      }
  }
  // By the warps that do not walk, while the others do: a part of the segment before the one of
  // which round `round` fetches a tape. By the end of this segment's rounds all of it is there.
  DEVICE void replay_ahead(int round) const {
    const int interval = (int)a.interval, t = steps - round - 1, segment = t / interval;
    if (t < interval) return;
    const int behind = (segment + 1) * interval < steps ? (segment + 1) * interval : steps;
    const int rounds = behind - segment * interval, k = behind - 1 - t;
    const int start = (segment - 1) * interval;
    replay(start + k * (interval - 1) / rounds, start + (k + 1) * (interval - 1) / rounds,
           warp - G::WALKERS, G::WARPS - G::WALKERS);
  }
  // The tape after a round's step, and the one before it.
  DEVICE static int after_step(int round) { return round % G::TURNS; }
  DEVICE static int before_step(int round) { return (round + 1) % G::TURNS; }
  // Begins to copy a round's tape before the step before its own.
  DEVICE void fetch_tape(int round) const {
    const float* from = tape_before(segment, inside) + at_slot(0, 0);
    for (int n = 0; n < G::SLOTS; n++, from += a.channels)
#pragma unroll
      for (int j = 0; j < G::PER; j++)
        copy_async<8>(cast<unsigned char>(slot(before_step(round), n, j)),
                      exists(j) ? from + 64 * j : nullptr, exists(j) ? 8 : 0);
  }
  // Begins to read what a round needs, whose step stands some steps before `place`.
  DEVICE void fetch(Kept& kept, int round, int steps_back) {
    const int64_t here = place - steps_back * a.channels;
    const int64_t weight_here = weight_place - steps_back * 2 * G::SLOTS;
    if (round) {
      read(kept.dy, a.dy, here);
      kept_weights(kept.read, weight_here);
    }
    if (round < steps) {
      read(kept.before, a.y, here - a.channels);
      if (G::PRODUCT_VALUE) read(kept.value, a.values, here - a.channels);
      kept_weights(kept.write, weight_here - (2 - WRITE) * G::SLOTS);
      fetch_tape(round);
    }
    commit_copies();
    if (inside-- == 0) {
      inside = (int)a.interval - 1;
      segment--;
    }
  }
  // The same for the next round, where there is one, while this one still goes on.
  DEVICE void fetch_ahead(Kept& next, int round) {
    if (G::AHEAD && round < steps) fetch(next, round + 1, 1);
  }
  // The gradient of the argument of tanh, from that of the state; takes the tape's to before the
  // write of the step.
  DEVICE void state_bwd(int round, const Numbers& e, Numbers& delta, const Numbers& state) const {
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) delta[j][i] = e[j][i];
    each_chunk([&](int n) {
      float dscore[4], w[4];
#pragma unroll
      for (int s = 0; s < 8; s++) {
        if (s % 4 == 0) {
          shared_of(dscore, DSCORE, n + s);
          shared_of(w, WEIGHT, n + s);
        }
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2], g[2];
          if (!is_slot(n + s)) continue;
          load<2, float>(m, slot(after_step(round), n + s, j));
          load<2, float>(g, slot(GRADIENT, n + s, j));
#pragma unroll
          for (int i = 0; i < 2; i++) {
            delta[j][i] += dscore[s % 4] * m[i];
            g[i] = tape::written_bwd(g[i], w[s % 4], dscore[s % 4], state[j][i]);
          }
          store<2, float>(slot(GRADIENT, n + s, j), g);
        }
      }
    });
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) delta[j][i] = tape::state_bwd(state[j][i], delta[j][i]);
  }
  // Adds to the tape's gradient what the read of the step does, and leaves in h what reaches the
  // state before it by the scores. Then, for the write of the step before: the gradient of its
  // value, and parts of those of its weights.
  template <bool READS, bool WRITES>
  DEVICE void slots_bwd(int round, const Numbers& delta, const Numbers& before, const Numbers& q,
                        Numbers& dq) {
    each_chunk([&](int n) {
      float dscore[4], r[4], w[4], x[8];
#pragma unroll
      for (int s = 0; s < 8; s++) {
        if (READS && s % 4 == 0) {
          shared_of(dscore, DSCORE, n + s);
          shared_of(r, READ_WEIGHT, n + s);
        }
        if (WRITES && s % 4 == 0) shared_of(w, WEIGHT, n + s);
        x[s] = 0.0f;
#pragma unroll
        for (int j = 0; j < G::PER; j++) {
          float m[2], g[2], old[2];
          if (!is_slot(n + s)) continue;
          load<2, float>(g, slot(GRADIENT, n + s, j));
          if constexpr (READS) {
            load<2, float>(m, slot(after_step(round), n + s, j));
#pragma unroll
            for (int i = 0; i < 2; i++) {
              h[j][i] += dscore[s % 4] * m[i];
              g[i] = tape::read_bwd(g[i], r[s % 4], delta[j][i], dscore[s % 4], before[j][i]);
            }
            store<2, float>(slot(GRADIENT, n + s, j), g);
          }
          if constexpr (WRITES) {
            load<2, float>(old, slot(before_step(round), n + s, j));
#pragma unroll
            for (int i = 0; i < 2; i++) {
              dq[j][i] += w[s % 4] * g[i];
              x[s] += g[i] * (q[j][i] - old[i]);
            }
          }
        }
      }
      if constexpr (WRITES) send_sums(x, sums_of(round + 1), sums_box(round + 1), n);
    });
  }
  // The step of a round: leaves the gradient of its input, rounded, and what the read's scores are
  // pulled with.
  DEVICE void step_bwd(int round, const Kept& kept, Kept& next, const Numbers& state,
                       const Slots& w, Numbers& delta, unsigned (&words)[G::PER]) {
    Numbers e, dy;
    Slots pull;
    gather(e, round, 0);
    widen(dy, kept.dy);
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) e[j][i] += h[j][i] + dy[j][i];
    boxes.wait(sums_box(round), (round - 1) / 2);
    if (round < steps) {
      expect_sums(round + 1);
      expect_others(round + 1);
    }
    add_up(pull, sums_of(round));
    scores_bwd(pull, w);
    sync_warp();
    share(DSCORE, pull);
    sync_warp();
    state_bwd(round, e, delta, state);
    narrow(delta, words);
    if (G::VALUE != 0) send(words, round + 1, 0);
    send_dots(after_step(round), delta, others_of(round), others_box(round));
    write(a.dx, place, words);
    fetch_ahead(next, round);  // while the sums are on their way
    boxes.wait(others_box(round), (round - 1) / 2);
    add_up(pull, others_of(round));
    scores_bwd(pull, kept.read);
    sync_warp();
    share(DSCORE, pull);
    share(READ_WEIGHT, kept.read);
  }
  DEVICE static void clear(Numbers& x) {
#pragma unroll
    for (int j = 0; j < G::PER; j++) x[j][0] = x[j][1] = 0.0f;
  }
  // state: that after the step. w: weights of its write. kept: what was fetched for the round;
  // it leaves there what it fetched for the next one, if it did.
  DEVICE void walk_back(int round, Kept& kept, Numbers& state, Slots& w) {
    const int t = steps - round;
    Kept next;
    Numbers delta, before, q, dq;
    unsigned words[G::PER];
    clear(delta);
    clear(dq);
    clear(q);
#pragma unroll
    for (int j = 0; j < G::PER; j++) words[j] = 0;
    if (t)
      widen(before, kept.before);
    else
      load_state(before, (const float*)a.first);
    if (G::PRODUCT_VALUE) {
      if (t) widen(q, kept.value);
    } else {
#pragma unroll
      for (int j = 0; j < G::PER; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) q[j][i] = before[j][i];
    }
    if (round) {
      step_bwd(round, kept, next, state, w, delta, words);
      clear(h);
    } else {
      if (G::VALUE != 0) send(words, 1, 0);
      fetch_ahead(next, 0);
    }
    if (t) {
      share(WEIGHT, kept.write);
      wait_copies<G::AHEAD ? 1 : 0>();
    }
    sync_warp();
    if (round && t)
      slots_bwd<true, true>(round, delta, before, q, dq);
    else if (round)
      slots_bwd<true, false>(round, delta, before, q, dq);
    else
      slots_bwd<false, true>(round, delta, before, q, dq);
    pass_on(round, delta, dq);
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) state[j][i] = before[j][i];
#pragma unroll
    for (int i = 0; i < G::EACH; i++) w[i] = t ? kept.write[i] : 0.0f;
    if (G::AHEAD && t) kept = next;
    place -= a.channels;
    weight_place -= 2 * G::SLOTS;
  }
  // Delivers, or keeps, the gradient of the value that the step before wrote.
  DEVICE void pass_on(int round, const Numbers& delta, const Numbers& dq) {
    Numbers x;
    unsigned words[G::PER];
#pragma unroll
    for (int j = 0; j < G::PER; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        x[j][i] = dq[j][i] + (G::VALUE == 0 ? delta[j][i] : 0.0f);
        if (!G::PRODUCT_VALUE) h[j][i] += dq[j][i];
      }
    if (!G::PRODUCT_VALUE) return;
    narrow(x, words);
    send(words, round + 1, G::PRODUCT_VALUE ? G::VALUE : 0);
    if (round == steps) return;
#pragma unroll
    for (int j = 0; j < G::PER; j++) words[j] = bf16_pair(dq[j][0], dq[j][1]);
    write(a.dvalues, place - a.channels, words);
  }
  DEVICE void run() {
    Numbers state;
    Slots w;
    Kept kept;
    load_tape(GRADIENT, (const float*)a.dlast_tape);
    load_state(h, (const float*)a.dlast);
    if (steps) replay((steps - 1) / (int)a.interval * (int)a.interval, steps - 1, warp, G::WARPS);
    clear(state);
#pragma unroll
    for (int i = 0; i < G::EACH; i++) w[i] = 0.0f;
    sync_cluster();
    expect_mail(1);
    expect_sums(1);
    expect_others(1);
    // One round more than there are writes: the gradient of the first state takes a product, too.
#pragma unroll 1
    for (int round = 0; round <= steps; round++) {
      if (walks && (!G::AHEAD || round == 0)) fetch(kept, round, 0);
      if (!walks) replay_ahead(round);
      if (round) multiply(round, true, true);
      sync_block();
      if (walks) walk_back(round, kept, state, w);
    }
    multiply(steps + 1, true, false);
    sync_block();
    if (walks) {
      gather(state, steps + 1, 0);
#pragma unroll
      for (int j = 0; j < G::PER; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) h[j][i] += state[j][i];
      save_state((float*)a.dfirst, h);
      save_tape(GRADIENT, (float*)a.dtape);
    }
    sync_cluster();
  }
};

template <class G>
DEVICE void tape_cluster_forward(const TapeClusterArgs& a) {
  Arena arena;
  TapeForward<G>(arena, a).run();
}

template <class G>
DEVICE void tape_cluster_backward(const TapeClusterArgs& a) {
  Arena arena;
  TapeBackward<G>(arena, a).run();
}

}  // namespace elman
