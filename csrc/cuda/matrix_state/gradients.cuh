// From the sums of the backward walk to the gradients of the sources: the chain rule through
// everything that stands before and behind the recurrence, for a segment at once.
#pragma once
#include "cuda/matrix_state/step.cuh"
#include "cuda/matrix_state/workspace.cuh"

namespace elman {

// What the recomputation of a segment and the walk through it leave in shared memory.
template <class G>
struct Sums {
  using A = typename G::A;
  using Cell = typename G::Cell;
  static constexpr int SETS = G::sets(true), NUMBERS = G::STEPS * G::ROWS;
  static constexpr int VECTORS = G::STEPS * G::WARPS * G::SUMS * G::WIDTH;
  sptr<A> dy;                     // [step][row] gradient of y behind the residual, with gates
  sptr<A> dv, dgates[MAX_GATES];  // [step][row]; until its step is walked, dv is what a row read
  sptr<A> energies;               // [step][row], of the recomputation
  sptr<A> dgate;                  // [step][row] of the output gate's logit
  sptr<A> vectors;                // [step][warp][which][column]
  sptr<A> ddecay, dwrite;         // [step][term]

  DEVICE explicit Sums(Arena& arena) {
    if constexpr (G::NEEDS_Y) dy = arena.take<A>(SETS * NUMBERS);
    dv = arena.take<A>(SETS * NUMBERS);
#pragma unroll
    for (int i = 0; i < Cell::GATES; i++) dgates[i] = arena.take<A>(SETS * NUMBERS);
    if constexpr (Cell::ENERGY) energies = arena.take<A>(SETS * NUMBERS);
    if constexpr (G::Spec::GATE) dgate = arena.take<A>(SETS * NUMBERS);
    vectors = arena.take<A>(SETS * VECTORS);
    if constexpr (G::GRAD_DECAY) ddecay = arena.take<A>(SETS * G::STEPS * G::DECAY_STRIDE);
    if constexpr (G::GRAD_WRITE) dwrite = arena.take<A>(SETS * G::STEPS * G::WRITE_STRIDE);
  }

  // Rows that no head has keep a gradient of zero.
  DEVICE void clear() {
    if constexpr (G::ROWS > G::R && G::NEEDS_Y) {
      for (int i = worker_index<G, true>(); i < SETS * NUMBERS; i += G::workers(true)) {
        dy[i] = A(0);
        if constexpr (G::Spec::GATE) dgate[i] = A(0);
      }
    }
  }

  // Goes from one of two sets to the other.
  DEVICE void turn(bool back) {
    const int sign = back ? -1 : 1, rows = sign * NUMBERS;
    if constexpr (G::NEEDS_Y) dy = dy + rows;
    dv = dv + rows;
#pragma unroll
    for (int i = 0; i < Cell::GATES; i++) dgates[i] = dgates[i] + rows;
    if constexpr (Cell::ENERGY) energies = energies + rows;
    if constexpr (G::Spec::GATE) dgate = dgate + rows;
    vectors = vectors + sign * VECTORS;
    if constexpr (G::GRAD_DECAY) ddecay = ddecay + sign * G::STEPS * G::DECAY_STRIDE;
    if constexpr (G::GRAD_WRITE) dwrite = dwrite + sign * G::STEPS * G::WRITE_STRIDE;
  }

  // Gradients of a role of the rows, before its activation's slope.
  template <int ROLE>
  DEVICE sptr<A> of_role() const {
    if constexpr (ROLE == ROLE_V) return dv;
    if constexpr (ROLE == ROLE_G0) return dgates[0];
    if constexpr (ROLE == ROLE_G1) return dgates[1];
    if constexpr (ROLE == ROLE_GATE) return dgate;
  }

  DEVICE sptr<A> columns(int which, int step, int warp) const {
    return vectors + ((step * G::WARPS + warp) * G::SUMS + which) * G::WIDTH;
  }

  // Adds up what the warps left for a vector over the columns.
  template <class Columns>
  DEVICE void gather(A* x, int which, int step) const {
    Columns::recall(x, columns(which, step, 0), 0, 0);
#pragma unroll
    for (int warp = 1; warp < G::WARPS; warp++) {
      A part[Columns::NUMBERS];
      Columns::recall(part, columns(which, step, warp), 0, 0);
#pragma unroll
      for (int i = 0; i < Columns::NUMBERS; i++) x[i] += part[i];
    }
  }
};

template <class G>
struct Gradients {
  using A = typename G::A;
  using IO = typename G::IO;
  using Spec = typename G::Spec;
  using Cell = typename G::Cell;
  using In = Inputs<G, true>;
  using Columns = typename In::Columns;
  using Rows = typename In::Rows;
  static constexpr int NUMBERS = Columns::NUMBERS;
  // Lanes that add up the terms of a head's number.
  static constexpr int TERM_LANES = least(32, power_above(In::WORKERS / G::STEPS + 1) / 2);

  const Args& a;
  Place at;
  Output<G, true> epilogue;
  A dz_bias[NUMBERS], ddecay_param, ddt_bias;
  char* targets[ROLES];  // of every slice, where this thread's first gradient of the segment goes

  // Where in time the segment lies that is worked on.
  struct Segment {
    int64_t t0;
    int length, buffer;
  };
  // Gradients of the roles over the columns, at a lane's numbers of one step.
  struct Vectors {
    A k[NUMBERS], q[NUMBERS], z[NUMBERS], read[NUMBERS];
  };

  DEVICE Gradients(const Args& args, const Place& place)
      : a(args), at(place), epilogue(args, place) {
    ddecay_param = ddt_bias = A(0);
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) dz_bias[i] = A(0);
    aim<0>((args.T - 1) / G::STEPS * G::STEPS);
  }

  // ---- where gradients go: to the source's, or where a head has several row tiles, to this row
  // tile's part

  template <int SLICE>
  HD static constexpr bool in_parts() {
    return row_tile_width<G>(SLICE) > 0;
  }

  template <int SLICE>
  DEVICE int64_t step_bytes() const {
    if constexpr (in_parts<SLICE>())
      return a.H * row_tile_width<G>(SLICE) * (int64_t)sizeof(A);
    else
      return a.role[SLICE].grad_time * (int64_t)sizeof(IO);
  }

  template <int SLICE>
  DEVICE void aim(int64_t t0) {
    if constexpr (SLICE < ROLES) {
      if constexpr (is_slice<Spec>(SLICE)) {
        constexpr bool wide = is_wide<Spec>(SLICE);
        const int step = of_head(SLICE) ? worker_index<G, true>() / TERM_LANES
                         : wide         ? Columns::step(0)
                                        : Rows::step(0);
        const int first = of_head(SLICE) ? 0
                          : wide         ? Columns::first(0)
                                         : at.row_tile * G::ROWS + Rows::first(0);
        if constexpr (in_parts<SLICE>())
          targets[SLICE] =
              (char*)(row_tile_part<G, SLICE>(a, at.row_tile, at.batch, t0, at.head) + first);
        else
          targets[SLICE] = (char*)(gradient<G, SLICE>(a, at.batch, t0, at.head) + first);
        targets[SLICE] += step * step_bytes<SLICE>();
      }
      aim<SLICE + 1>(t0);
    }
  }

  // To the segment before.
  template <int SLICE>
  DEVICE void step_back() {
    if constexpr (SLICE < ROLES) {
      if constexpr (is_slice<Spec>(SLICE)) targets[SLICE] -= G::STEPS * step_bytes<SLICE>();
      step_back<SLICE + 1>();
    }
  }

  // Stores a vector `steps` steps and `numbers` numbers behind the thread's first.
  template <int SLICE, int V>
  DEVICE void put(int steps, int numbers, const A* x) const {
    char* to = targets[SLICE] + steps * step_bytes<SLICE>();
    if constexpr (in_parts<SLICE>())
      store<V, A>((A*)to + numbers, x);
    else
      store<V, IO>((IO*)to + numbers, x);
  }

  // ---- a segment

  // Leaves in `sums` the gradient of y and of the output gate's logits.
  DEVICE void output(const In& in, Sums<G>& sums, sptr<A> y, const Segment& s) const {
    constexpr int V = Rows::V;
#pragma unroll 2
    for (int pass = 0; pass < Rows::PASSES; pass++) {
      const int step = Rows::step(pass);
      if (step >= s.length) continue;
#pragma unroll
      for (int m = 0; m < Rows::VECTORS; m++) {
        const int first = Rows::first(m), row = step * G::ROWS + first;
        if (!Rows::inside(m)) continue;
        A dout[V], x[V], v[V] = {}, gate[V] = {}, dgate[V] = {};
        in.staging.template read<ROLE_DOUT, V>(dout, s.buffer, s.t0, step, first);
        sum_parts<G, V>(x, y, step, first);
        if constexpr (Spec::RESIDUAL) load<V, A>(v, in.v + row);
        if constexpr (Spec::GATE)
          in.staging.template read<ROLE_GATE, V>(gate, s.buffer, s.t0, step, first);
#pragma unroll
        for (int e = 0; e < V; e++)
          dout[e] = epilogue.of(m * V + e).backward(x[e], v[e], gate[e], dout[e], dgate[e]);
        store<V, A>(sums.dy + row, dout);
        if constexpr (Spec::GATE) store<V, A>(sums.dgate + row, dgate);
      }
    }
  }

  DEVICE void write(const In& in, const Sums<G>& sums, const Segment& s) {
    if constexpr (G::GRAD_DECAY || G::GRAD_WRITE) {
      constexpr int steps = In::WORKERS / TERM_LANES;
      for (int base = 0; base < G::STEPS; base += steps) write_head(in, sums, s, base);
    }
    // All lanes of a warp take part in its sums, also those that have no row.
#pragma unroll 2
    for (int pass = 0; pass < Columns::PASSES; pass++) write_columns(in, sums, s, pass);
#pragma unroll 2
    for (int pass = 0; pass < Rows::PASSES; pass++)
      if (Rows::step(pass) < s.length) write_rows<ROLE_V>(in, sums, s, pass);
    step_back<0>();
  }

  // ---- roles over the columns, and those of the rows that share a slice with one

  DEVICE void write_columns(const In& in, const Sums<G>& sums, const Segment& s, int pass) {
    const int step = Columns::readable(pass);
    const bool live = Columns::exists(pass) && Columns::step(pass) < s.length;
    Vectors d;
    sums.template gather<Columns>(d.k, G::SUM_K, step);
    sums.template gather<Columns>(d.q, G::SUM_Q, step);
    if constexpr (has_role<Spec>(ROLE_Z)) through_z(in, sums, s, step, live, d);
    if constexpr (Spec::KEY == Key::read) sums.template gather<Columns>(d.read, G::SUM_KEY, step);
    through_units(in, step, d);
    through_act<ROLE_K, Spec::K_ACT>(in, s, step, d.k);
    through_act<ROLE_Q, Spec::Q_ACT>(in, s, step, d.q);
    if (live) write_wide<0>(in, sums, s, pass, d);
  }

  DEVICE void through_z(const In& in, const Sums<G>& sums, const Segment& s, int step, bool live,
                        Vectors& d) {
    A z[NUMBERS];
    in.read_z(z, s.t0, step, s.buffer);
    if constexpr (Cell::COLUMN) {
      sums.template gather<Columns>(d.z, G::SUM_COL, step);
    } else {
#pragma unroll
      for (int i = 0; i < NUMBERS; i++) d.z[i] = A(0);
    }
    if constexpr (Spec::KEY == Key::zk) {
      A dkey[NUMBERS], k[NUMBERS];
      sums.template gather<Columns>(dkey, G::SUM_KEY, step);
      Columns::recall(k, in.k, step, G::WIDTH);
#pragma unroll
      for (int i = 0; i < NUMBERS; i++) {
        d.k[i] += dkey[i] * z[i];
        d.z[i] += dkey[i] * k[i];
      }
    }
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) {
      d.z[i] *= slope_of<Spec::Z_ACT>(z[i]);
      if constexpr (Spec::Z_BIAS) dz_bias[i] += live ? d.z[i] : A(0);
    }
  }

  // Through x / (|x| + 1e-6), of k and q at once.
  static DEVICE void through_units(const In& in, int step, Vectors& d) {
    if constexpr (Spec::K_UNIT || Spec::Q_UNIT) {
      A k[NUMBERS], q[NUMBERS], along[2] = {A(0), A(0)};
      if constexpr (Spec::K_UNIT) {
        Columns::recall(k, in.k, step, G::WIDTH);
        along[0] = dot<NUMBERS>(d.k, k);
      }
      if constexpr (Spec::Q_UNIT) {
        Columns::recall(q, in.q, step, G::WIDTH);
        along[1] = dot<NUMBERS>(d.q, q);
      }
#pragma unroll
      for (int mask = 1; mask < Columns::GROUP; mask *= 2) {
        if constexpr (Spec::K_UNIT) along[0] += shuffle_xor(along[0], mask);
        if constexpr (Spec::Q_UNIT) along[1] += shuffle_xor(along[1], mask);
      }
      // A zero vector has no direction: the norm's own gradient is taken as 0.
      if constexpr (Spec::K_UNIT)
        through_unit(d.k, k, along[0] * in.k_inverse[step], in.k_scale[step]);
      if constexpr (Spec::Q_UNIT)
        through_unit(d.q, q, along[1] * in.q_inverse[step], in.q_scale[step]);
    }
  }

  static DEVICE void through_unit(A* d, const A* x, A along, A scale) {
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) d[i] = unit_bwd(d[i], x[i], scale, along);
  }

  template <int ROLE, Act ACT>
  static DEVICE void through_act(const In& in, const Segment& s, int step, A* d) {
    if constexpr (ACT != Act::none) {
      A x[NUMBERS];
      in.template read_columns<ROLE>(x, s.t0, step, s.buffer);
#pragma unroll
      for (int i = 0; i < NUMBERS; i++) d[i] *= slope_at<ACT>(x[i]);
    }
  }

  template <int SLICE>
  DEVICE void write_wide(const In& in, const Sums<G>& sums, const Segment& s, int pass,
                         const Vectors& d) const {
    if constexpr (SLICE < ROLES) {
      if constexpr (is_slice<Spec>(SLICE) && is_wide<Spec>(SLICE)) {
        A total[NUMBERS] = {};
        if constexpr (slice_of<Spec>(ROLE_K) == SLICE) add(total, d.k);
        if constexpr (slice_of<Spec>(ROLE_Q) == SLICE) add(total, d.q);
        if constexpr (has_role<Spec>(ROLE_Z) && slice_of<Spec>(ROLE_Z) == SLICE) add(total, d.z);
        if constexpr (has_role<Spec>(ROLE_READ) && slice_of<Spec>(ROLE_READ) == SLICE)
          add(total, d.read);
#pragma unroll
        for (int m = 0; m < Columns::VECTORS; m++) {
          const int first = Columns::first(m);
          if (!Columns::inside(m)) continue;
          A* x = total + m * Columns::V;
          const int step = Columns::step(pass), row = first - at.row_tile * G::ROWS;
          add_rows<SLICE, 0, Columns::V>(in, sums, s, step, row, x);
          put<SLICE, Columns::V>(pass * Columns::ROWS, first - Columns::first(0), x);
        }
      }
      write_wide<SLICE + 1>(in, sums, s, pass, d);
    }
  }

  static DEVICE void add(A* x, const A* y) {
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) x[i] += y[i];
  }

  // Adds the gradients of the roles of the rows that lie on a slice, from row `first` of the row
  // tile on; rows of other row tiles add nothing.
  template <int SLICE, int ROLE, int V>
  DEVICE void add_rows(const In& in, const Sums<G>& sums, const Segment& s, int step, int first,
                       A* x) const {
    if constexpr (ROLE <= ROLE_GATE) {
      if constexpr (has_role<Spec>(ROLE) && slice_of<Spec>(ROLE) == SLICE) {
#pragma unroll
        for (int e = 0; e < V; e++)
          if (first + e >= 0 && first + e < rows_here<G>(at))
            x[e] += row_gradient<ROLE>(in, sums, s, step, first + e);
      }
      add_rows<SLICE, ROLE + 1, V>(in, sums, s, step, first, x);
    }
  }

  template <int ROLE>
  DEVICE A row_gradient(const In& in, const Sums<G>& sums, const Segment& s, int step,
                        int row) const {
    const int index = step * G::ROWS + row;
    A d = sums.template of_role<ROLE>()[index];
    if constexpr (ROLE == ROLE_V && Spec::V_ACT != Act::none) {
      A x;
      in.staging.template read<ROLE_V, 1>(&x, s.buffer, s.t0, step, row);
      d *= slope_at<Spec::V_ACT>(x);
    }
    return d;
  }

  // The same for a vector of rows that all lie in the row tile.
  template <int SLICE, int ROLE>
  DEVICE void add_whole_rows(const In& in, const Sums<G>& sums, const Segment& s, int step,
                             int first, A* x) const {
    if constexpr (ROLE <= ROLE_GATE) {
      if constexpr (has_role<Spec>(ROLE) && slice_of<Spec>(ROLE) == SLICE) {
        A d[Rows::V], raw[Rows::V];
        load<Rows::V, A>(d, sums.template of_role<ROLE>() + (step * G::ROWS + first));
        if constexpr (ROLE == ROLE_V && Spec::V_ACT != Act::none)
          in.staging.template read<ROLE_V, Rows::V>(raw, s.buffer, s.t0, step, first);
#pragma unroll
        for (int e = 0; e < Rows::V; e++) {
          if constexpr (ROLE == ROLE_V && Spec::V_ACT != Act::none)
            d[e] *= slope_at<Spec::V_ACT>(raw[e]);
          x[e] += d[e];
        }
      }
      add_whole_rows<SLICE, ROLE + 1>(in, sums, s, step, first, x);
    }
  }

  // ---- roles of the rows that share no slice with one over the columns

  template <int SLICE>
  DEVICE void write_rows(const In& in, const Sums<G>& sums, const Segment& s, int pass) const {
    if constexpr (SLICE <= ROLE_GATE) {
      if constexpr (is_slice<Spec>(SLICE) && !is_wide<Spec>(SLICE)) {
#pragma unroll
        for (int m = 0; m < Rows::VECTORS; m++) {
          const int first = Rows::first(m);
          if (first >= rows_here<G>(at)) continue;
          A x[Rows::V] = {};
          add_whole_rows<SLICE, 0>(in, sums, s, Rows::step(pass), first, x);
          put<SLICE, Rows::V>(pass * Rows::ROWS, first - Rows::first(0), x);
        }
      }
      write_rows<SLICE + 1>(in, sums, s, pass);
    }
  }

  // ---- numbers of the head

  // The sum of a step's terms, TERMS of them, for the first of the lanes that share it.
  template <int TERMS>
  static DEVICE A term_sum(sptr<A> terms) {
    constexpr int V = TERMS % (4 * TERM_LANES) == 0 ? 4 : 1;
    A sums[4] = {A(0), A(0), A(0), A(0)};
    const int first = worker_index<G, true>() % TERM_LANES * V;
#pragma unroll
    for (int i = 0; i < ceil_div(TERMS, TERM_LANES * V); i++) {
      A x[V];
      if (TERMS % (TERM_LANES * V) && i * TERM_LANES + first >= TERMS) continue;
      load<V, A>(x, terms + (i * TERM_LANES * V + first));
#pragma unroll
      for (int e = 0; e < V; e++) sums[V == 4 ? e : i % 4] += x[e];
    }
    A sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
    for (int mask = 1; mask < TERM_LANES; mask *= 2) sum += shuffle_xor(sum, mask);
    return sum;
  }

  DEVICE void write_head(const In& in, const Sums<G>& sums, const Segment& s, int base) {
    const int worker = worker_index<G, true>();
    const int step = base + worker / TERM_LANES, readable = least(step, G::STEPS - 1);
    const bool writes = step < s.length && worker % TERM_LANES == 0;
    if constexpr (G::GRAD_DECAY) {
      A d = term_sum<G::DECAY_TERMS>(sums.ddecay + readable * G::DECAY_STRIDE);
      if (writes) through_decay(in, step, base, d);
    }
    if constexpr (G::GRAD_WRITE) {
      A d = term_sum<G::ROWS>(sums.dwrite + readable * G::WRITE_STRIDE);
      A none;
      d *= mapped_bwd<Spec::WRITE>(A(1), A(0), (A)in.write[readable], A(0), A(0), none);
      if (writes) put<ROLE_WRITE, 1>(base, 0, &d);
    }
  }

  DEVICE void through_decay(const In& in, int step, int base, A d) {
    if constexpr (Spec::DECAY == Map::parameter) {
      ddecay_param += d;
    } else {
      if constexpr (Spec::DECAY == Map::mamba) ddecay_param += d * in.decay_a[step];
      d *= in.decay_x[step];
      ddt_bias += d;
      put<ROLE_DECAY, 1>(base, 0, &d);
    }
  }

  // ---- parameters that are not of the rows: this block's part

  DEVICE void write_params(const Sums<G>& sums, Crew<G>& crew) const {
    A* part = param_part<G>(a);
    const int worker = worker_index<G, true>();
    if constexpr (Spec::Z_BIAS) {
      for (int i = 0; i < NUMBERS; i++) {
        const int column = Columns::first(i / Columns::V) + i % Columns::V;
        const A sum = group_sum<Columns::GROUP>(sums.vectors, dz_bias[i], crew);
        if (worker < Columns::GROUP && column < G::N)
          store_one(part + G::param_offset(PARAM_Z_BIAS) + column, sum);
      }
    }
    if constexpr (has_param<Spec>(PARAM_DECAY)) {
      const A sum = group_sum<1>(sums.vectors, ddecay_param, crew);
      if (worker == 0) store_one(part + G::param_offset(PARAM_DECAY), sum);
    }
    if constexpr (has_param<Spec>(PARAM_DT_BIAS)) {
      const A sum = group_sum<1>(sums.vectors, ddt_bias, crew);
      if (worker == 0) store_one(part + G::param_offset(PARAM_DT_BIAS), sum);
    }
  }

  // Sum over the workers whose indices agree modulo GROUP, for the first GROUP of them.
  template <int GROUP>
  static DEVICE A group_sum(sptr<A> room, A x, Crew<G>& crew) {
    static_assert(G::STEPS * G::SUMS * G::WIDTH >= 32, "room for a number per thread");
    const int worker = worker_index<G, true>();
    crew.meet();
    room[worker] = x;
    crew.meet();
    if (worker >= GROUP) return x;
    A sum = 0;
#pragma unroll 1
    for (int i = worker; i < In::WORKERS; i += GROUP) sum += room[i];
    return sum;
  }
};

}  // namespace elman
