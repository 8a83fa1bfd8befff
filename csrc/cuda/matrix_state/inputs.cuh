// The inputs of a segment as the recurrence reads them: activated, normalised, mapped, of the
// arithmetic's type, in shared memory. All steps of a segment at once, off the critical path.
// What is prepared for steps that the segment does not have is never read.
#pragma once
#include "cells/unit.h"
#include "cuda/matrix_state/thread_map.cuh"

namespace elman {

template <class G>
DEVICE typename G::A param(const Args& a, int which, int64_t index) {
  return load_one((const typename G::A*)a.param[which].data + index);
}

// Staging: where the raw inputs stand.
template <class G, bool BACKWARD, class Staging = SmemStaging<G, BACKWARD>>
struct Inputs {
  using A = typename G::A;
  using Spec = typename G::Spec;
  using Columns = ThreadMap<G, G::N, BACKWARD>;
  using Rows = ThreadMap<G, G::width(ROLE_V), BACKWARD>;
  static constexpr int WORKERS = G::workers(BACKWARD);
  static constexpr int SETS = G::sets(BACKWARD);
  static constexpr int COPIES = BACKWARD ? G::COPIES : 1;
  static constexpr int COLUMN_NUMBERS = G::column_numbers(BACKWARD);
  static constexpr int ROW_NUMBERS = G::AHEAD * G::ROWS;
  static constexpr int TILE = Columns::TILE, NUMBERS = Columns::NUMBERS;

  Staging staging;
  sptr<A> k, q, key, col;       // [copy][step][column]; key: what a read multiplies S by
  sptr<A> v, gates[MAX_GATES];  // [step][row]
  sptr<A> decay, write;         // [step]
  // [step]: backward, of the norms of k and q, 1 / (norm + 1e-6) and 1 / norm (0 for a norm of 0)
  sptr<A> k_scale, q_scale, k_inverse, q_inverse;
  sptr<A> decay_x, decay_a;  // [step]: backward, slope of the decay in its role and in a_log
  A decay_param, dt_bias;    // of the head: what the map makes of its parameter, see map_factor

  // The segments are fetched from that at t0 on.
  DEVICE Inputs(Arena& arena, const Args& args, int64_t t0) : staging(arena, args, t0) {
    take(arena, args);
  }
  DEVICE Inputs(Arena& arena, const Args& args, const Staging& there) : staging(there) {
    take(arena, args);
  }

  DEVICE void take(Arena& arena, const Args& args) {
    k = arena.take<A>(SETS * COLUMN_NUMBERS);
    q = arena.take<A>(SETS * COLUMN_NUMBERS);
    key = k;
    if constexpr (G::OWN_KEY) key = arena.take<A>(SETS * COLUMN_NUMBERS);
    if constexpr (G::Cell::COLUMN) col = arena.take<A>(SETS * COLUMN_NUMBERS);
    v = arena.take<A>(SETS * ROW_NUMBERS);
#pragma unroll
    for (int i = 0; i < G::Cell::GATES; i++) gates[i] = arena.take<A>(SETS * ROW_NUMBERS);
    if constexpr (Spec::DECAY != Map::none) decay = arena.take<A>(SETS * G::AHEAD);
    if constexpr (Spec::WRITE != Map::none) write = arena.take<A>(SETS * G::AHEAD);
    if constexpr (BACKWARD) {
      k_scale = arena.take<A>(SETS * G::STEPS);
      q_scale = arena.take<A>(SETS * G::STEPS);
      k_inverse = arena.take<A>(SETS * G::STEPS);
      q_inverse = arena.take<A>(SETS * G::STEPS);
      if constexpr (Spec::DECAY != Map::none) {
        decay_x = arena.take<A>(SETS * G::STEPS);
        decay_a = arena.take<A>(SETS * G::STEPS);
      }
    }
    decay_param = dt_bias = A(0);
    if constexpr (has_param<Spec>(PARAM_DECAY))
      decay_param = map_factor<Spec::DECAY>(param<G>(args, PARAM_DECAY, staging.at.head));
    if constexpr (has_param<Spec>(PARAM_DT_BIAS))
      dt_bias = param<G>(args, PARAM_DT_BIAS, staging.at.head);
  }

  // Goes from one of two sets to the other.
  DEVICE void turn(bool back) {
    const int columns = back ? -COLUMN_NUMBERS : COLUMN_NUMBERS;
    const int rows = back ? -ROW_NUMBERS : ROW_NUMBERS, ahead = back ? -G::AHEAD : G::AHEAD;
    k = k + columns;
    q = q + columns;
    key = key + columns;
    if constexpr (G::Cell::COLUMN) col = col + columns;
    v = v + rows;
#pragma unroll
    for (int i = 0; i < G::Cell::GATES; i++) gates[i] = gates[i] + rows;
    if constexpr (Spec::DECAY != Map::none) decay = decay + ahead;
    if constexpr (Spec::WRITE != Map::none) write = write + ahead;
    if constexpr (BACKWARD) turn_slopes(back ? -G::STEPS : G::STEPS);
  }

  DEVICE void turn_slopes(int steps) {
    k_scale = k_scale + steps;
    q_scale = q_scale + steps;
    k_inverse = k_inverse + steps;
    q_inverse = q_inverse + steps;
    if constexpr (Spec::DECAY != Map::none) {
      decay_x = decay_x + steps;
      decay_a = decay_a + steps;
    }
  }

  // Padding is zero; nothing writes there afterwards. A barrier has to stand between this and the
  // first segment that is prepared.
  DEVICE void clear() {
    if constexpr (G::WIDTH > G::N) {
      fill(k, COLUMN_NUMBERS);
      fill(q, COLUMN_NUMBERS);
      if constexpr (G::OWN_KEY) fill(key, COLUMN_NUMBERS);
      if constexpr (G::Cell::COLUMN) fill(col, COLUMN_NUMBERS);
    }
    if constexpr (G::ROWS > G::R) {
      fill(v, ROW_NUMBERS);
#pragma unroll
      for (int i = 0; i < G::Cell::GATES; i++) fill(gates[i], ROW_NUMBERS);
    }
  }

  DEVICE void fill(sptr<A> array, int numbers) {
    for (int i = worker_index<G, BACKWARD>(); i < SETS * numbers; i += WORKERS) array[i] = A(0);
  }

  // Prepares the segment from t0 on, whose raw inputs stand in `buffer`.
  DEVICE void prepare(int64_t t0, int buffer) {
    if constexpr (Spec::DECAY != Map::none || Spec::WRITE != Map::none)
#pragma unroll
      for (int i = 0; i < ceil_div(G::STEPS, WORKERS); i++)
        if (i * WORKERS + worker_index<G, BACKWARD>() < G::STEPS)
          prepare_head(t0, i * WORKERS + worker_index<G, BACKWARD>(), buffer);
#pragma unroll 1
    for (int pass = 0; pass < Columns::PASSES; pass += TILE) prepare_columns(t0, pass, buffer);
#pragma unroll 1
    for (int pass = 0; pass < Rows::PASSES; pass += Rows::TILE) {
      prepare_rows<ROLE_V, Spec::V_ACT>(v, t0, pass, buffer);
      if constexpr (G::Cell::GATES > 0)
        prepare_rows<ROLE_G0, Act::none>(gates[0], t0, pass, buffer);
      if constexpr (G::Cell::GATES > 1)
        prepare_rows<ROLE_G1, Act::none>(gates[1], t0, pass, buffer);
    }
  }

  // ---- roles over the columns

  DEVICE void prepare_columns(int64_t t0, int pass, int buffer) {
    A xk[TILE][NUMBERS], xq[TILE][NUMBERS], norms[2 * TILE];
    read_tile<ROLE_Q>(xq, t0, pass, buffer);
    read_tile<ROLE_K>(xk, t0, pass, buffer);
    activate_tile<Spec::Q_ACT>(xq);
    activate_tile<Spec::K_ACT>(xk);
    unit(xk, xq, norms);
    put_tile(q, pass, xq);
    put_tile(k, pass, xk);
    if constexpr (BACKWARD) {
#pragma unroll
      for (int i = 0; i < TILE; i++)
        if (!Columns::first(0) && Columns::exists(pass + i))
          keep_norms(Columns::step(pass + i), norms[i], norms[TILE + i]);
    }
    if constexpr (has_role<Spec>(ROLE_Z)) prepare_z(t0, pass, buffer, xk);
    if constexpr (Spec::KEY == Key::read) {
      read_tile<ROLE_READ>(xk, t0, pass, buffer);
      put_tile(key, pass, xk);
    }
  }

  DEVICE void keep_norms(int step, A k_length, A q_length) {
    if constexpr (Spec::K_UNIT) {
      k_scale[step] = unit_scale(k_length);
      k_inverse[step] = unit_inverse(k_length);
    }
    if constexpr (Spec::Q_UNIT) {
      q_scale[step] = unit_scale(q_length);
      q_inverse[step] = unit_inverse(q_length);
    }
  }

  DEVICE void prepare_z(int64_t t0, int pass, int buffer, A (&xk)[TILE][NUMBERS]) {
    A z[TILE][NUMBERS];
#pragma unroll
    for (int i = 0; i < TILE; i++) {
      read_z(z[i], t0, Columns::readable(pass + i), buffer);
#pragma unroll
      for (int j = 0; j < NUMBERS; j++) xk[i][j] *= z[i][j];
    }
    if constexpr (G::Cell::COLUMN) put_tile(col, pass, z);
    if constexpr (Spec::KEY == Key::zk) put_tile(key, pass, xk);
  }

  template <int ROLE>
  DEVICE void read_tile(A (&x)[TILE][NUMBERS], int64_t t0, int pass, int buffer) const {
#pragma unroll
    for (int i = 0; i < TILE; i++)
      read_columns<ROLE>(x[i], t0, Columns::readable(pass + i), buffer);
  }

  // The lane's raw numbers of one step; zero beyond the row.
  template <int ROLE>
  DEVICE void read_columns(A* x, int64_t t0, int step, int buffer) const {
#pragma unroll
    for (int m = 0; m < Columns::VECTORS; m++) {
      if (Columns::inside(m)) {
        staging.template read<ROLE, Columns::V>(x + m * Columns::V, buffer, t0, step,
                                                Columns::first(m));
      } else {
#pragma unroll
        for (int e = 0; e < Columns::V; e++) x[m * Columns::V + e] = A(0);
      }
    }
  }

  // z of one step after bias and activation.
  DEVICE void read_z(A* z, int64_t t0, int step, int buffer) const {
    read_columns<ROLE_Z>(z, t0, step, buffer);
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) {
      if constexpr (Spec::Z_BIAS) {
        const int column = Columns::first(i / Columns::V) + i % Columns::V;
        if (Columns::inside(i / Columns::V))
          z[i] += param<G>(staging.a, PARAM_Z_BIAS, (int64_t)staging.at.head * G::N + column);
      }
      z[i] = activate<Spec::Z_ACT>(z[i]);
    }
  }

  template <Act ACT>
  static DEVICE void activate_tile(A (&x)[TILE][NUMBERS]) {
#pragma unroll
    for (int i = 0; i < TILE; i++) {
#pragma unroll
      for (int j = 0; j < NUMBERS; j++) x[i][j] = activate<ACT>(x[i][j]);
    }
  }

  // Divides rows of k and q by their norms + 1e-6, where the plan says so; leaves the norms.
  static DEVICE void unit(A (&xk)[TILE][NUMBERS], A (&xq)[TILE][NUMBERS], A (&norms)[2 * TILE]) {
    if constexpr (Spec::K_UNIT || Spec::Q_UNIT) {
#pragma unroll
      for (int i = 0; i < TILE; i++) {
        norms[i] = dot<NUMBERS>(xk[i], xk[i]);
        norms[TILE + i] = dot<NUMBERS>(xq[i], xq[i]);
      }
#pragma unroll
      for (int mask = 1; mask < Columns::GROUP; mask *= 2) {
#pragma unroll
        for (int i = 0; i < 2 * TILE; i++)
          if (i < TILE ? Spec::K_UNIT : Spec::Q_UNIT) norms[i] += shuffle_xor(norms[i], mask);
      }
#pragma unroll
      for (int i = 0; i < TILE; i++) {
        if constexpr (Spec::K_UNIT) norms[i] = scale(xk[i], norms[i]);
        if constexpr (Spec::Q_UNIT) norms[TILE + i] = scale(xq[i], norms[TILE + i]);
      }
    }
  }

  static DEVICE A scale(A* x, A squares) {
    const A norm = square_root(squares), factor = unit_scale(norm);
#pragma unroll
    for (int j = 0; j < NUMBERS; j++) x[j] *= factor;
    return norm;
  }

  // Writes a lane's numbers of some steps into every copy of an array.
  DEVICE void put_tile(sptr<A> array, int pass, const A (&x)[TILE][NUMBERS]) const {
#pragma unroll
    for (int i = 0; i < TILE; i++)
      if (Columns::exists(pass + i)) put(array, Columns::step(pass + i), x[i]);
  }

  DEVICE void put(sptr<A> array, int step, const A* x) const {
    constexpr int V = Columns::V;
#pragma unroll
    for (int m = 0; m < Columns::VECTORS; m++) {
      if (!Columns::inside(m)) continue;
      const int first = Columns::first(m);
#pragma unroll
      for (int copy = 0; copy < COPIES; copy++) {
        const int order = copy * (G::VECTOR / COPIES);
        const sptr<A> row = array + (copy * G::COPY_STRIDE + step * G::WIDTH);
        if constexpr (V == 4 && (G::VECTOR == 4 || COPIES == 1)) {
          A y[V];
#pragma unroll
          for (int e = 0; e < V; e++) y[e] = x[m * V + (e ^ order)];
          // Exchanged pairs are stored as pairs: as one vector they would have to be moved.
          if (order < 2) {
            store<V, A>(row + first, y);
          } else {
            store<2, A>(row + first, y);
            store<2, A>(row + (first + 2), y + 2);
          }
        } else {
#pragma unroll
          for (int e = 0; e < V; e++) row[(first + e) ^ order] = x[m * V + e];
        }
      }
    }
  }

  // ---- roles of the rows

  template <int ROLE, Act ACT>
  DEVICE void prepare_rows(sptr<A> array, int64_t t0, int pass, int buffer) {
    constexpr int V = Rows::V;
    A x[Rows::TILE][Rows::NUMBERS];
#pragma unroll
    for (int i = 0; i < Rows::TILE; i++) {
#pragma unroll
      for (int m = 0; m < Rows::VECTORS; m++)
        if (Rows::inside(m))
          staging.template read<ROLE, V>(x[i] + m * V, buffer, t0, Rows::readable(pass + i),
                                         Rows::first(m));
    }
#pragma unroll
    for (int i = 0; i < Rows::TILE; i++) {
#pragma unroll
      for (int m = 0; m < Rows::VECTORS; m++) {
        if (!Rows::inside(m) || !Rows::exists(pass + i)) continue;
#pragma unroll
        for (int e = 0; e < V; e++) x[i][m * V + e] = activate<ACT>(x[i][m * V + e]);
        store<V, A>(array + (Rows::step(pass + i) * G::ROWS + Rows::first(m)), x[i] + m * V);
      }
    }
  }

  // ---- numbers of the head

  DEVICE void prepare_head(int64_t t0, int step, int buffer) {
    if constexpr (Spec::DECAY == Map::parameter) decay[step] = decay_param;
    if constexpr (has_role<Spec>(ROLE_DECAY)) prepare_decay(t0, step, buffer);
    if constexpr (Spec::WRITE != Map::none) {
      A x;
      staging.template read<ROLE_WRITE, 1>(&x, buffer, t0, step, 0);
      write[step] = mapped<Spec::WRITE>(x, A(0), A(0));
    }
  }

  DEVICE void prepare_decay(int64_t t0, int step, int buffer) {
    A x;
    staging.template read<ROLE_DECAY, 1>(&x, buffer, t0, step, 0);
    const A c = mapped<Spec::DECAY>(x, decay_param, dt_bias);
    decay[step] = c;
    if constexpr (BACKWARD) {
      A in_a_log;
      decay_x[step] = mapped_bwd<Spec::DECAY>(A(1), x, c, decay_param, dt_bias, in_a_log);
      if constexpr (Spec::DECAY == Map::mamba) decay_a[step] = in_a_log;
    }
  }
};

}  // namespace elman
