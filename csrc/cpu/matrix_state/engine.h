// The CPU engine of the matrix-state cells: OpenMP over teams of heads and, where those are fewer
// than the threads, over groups of row tiles.
//
// Time runs in segments of K steps: what a segment reads is staged once (activation, norms, maps),
// then each row tile runs through all of its steps while its state stays in the cache. Forward
// keeps the state before every segment but the first. Backward takes the segments from the last,
// runs each forward once more, keeping every state of one row tile, and then back.
//
// Every sum has a fixed order: a result depends on the number of threads only where groups of row
// tiles share a head, and on nothing else.
#pragma once
#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu/matrix_state/columns.h"
#include "cpu/matrix_state/heads.h"
#include "cpu/matrix_state/places.h"
#include "cpu/matrix_state/states.h"
#include "cpu/matrix_state/step.h"

// Called once a segment from several places: a copy in each would only take time to compile.
#define ELMAN_APART __attribute__((noinline))

namespace elman::cpu {

template <class Spec>
class MatrixEngine : public Places<Spec> {
  using P = Places<Spec>;
  using L = Layout<Spec>;
  using T = typename L::T;
  using V = typename L::V;
  using Cell = typename L::Cell;
  using Own = Scratch<Spec>;
  using OwnHead = HeadScratch<Spec>;
  static constexpr int N = L::N, R = L::R, NP = L::NP, HEADS = L::HEADS, ROW_TILES = L::ROW_TILES;
  using P::a, P::groups, P::segments, P::in, P::ins, P::grad, P::grads, P::param, P::number;
  using P::steps_of, P::head_of, P::whole, P::checkpoint, P::state, P::part;

 public:
  MatrixEngine(const Args& a, bool backward) : P(a, backward) {}

  void forward() const {
    each(P::teams * groups, [&](Own& s, int64_t i) { forward_item(s, i / groups, i % groups); });
  }

  void backward() const {
    each(P::teams * groups, [&](Own& s, int64_t i) { backward_item(s, i / groups, i % groups); });
    if constexpr (ROW_TILES > 1)
      if (groups > 1) each(P::heads, [&](Own& s, int64_t i) { finish_item(s, i); });
    sum_parts();
  }

 private:
  // f(own memory, item) for all items
  template <class F>
  void each(int64_t items, F f) const {
#pragma omp parallel num_threads(P::threads)
    {
      int64_t mine = 0;
#ifdef _OPENMP
      mine = omp_get_thread_num();
#endif
      const FlushDenormals flush;
      Arena arena(a.workspace);
      for (int64_t i = 0; i < mine; i++) Own(arena, a.K, P::backward_);
      Own s(arena, a.K, P::backward_);
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < items; i++) f(s, i);
    }
  }
  // f(first block, number of blocks) for the row tiles of a group
  template <class F>
  void row_tiles(int64_t group, F f) const {
    const int64_t end = (group + 1) * ROW_TILES / groups;
    for (int64_t i = group * ROW_TILES / groups; i < end; i++) {
      if constexpr (L::LAST > 0)
        if (i + 1 == ROW_TILES) {
          f(int(i) * L::M, std::integral_constant<int, L::LAST>{});
          continue;
        }
      f(int(i) * L::M, std::integral_constant<int, L::M>{});
    }
  }
  // f(head, block of that head, m) for the blocks of a row tile
  template <int M, class F>
  void blocks(int64_t team, int block, F f) const {
    for (int m = 0; m < M; m++) f(head_of(team, HEADS > 1 ? m : 0), HEADS > 1 ? 0 : block + m, m);
  }

  // ---- staging ----

  void stage(Own& s, int64_t team, int64_t t, int64_t steps) const {
    for (int g = 0; g < HEADS; g++) stage_head(s.head[g], head_of(team, g), t, steps);
  }
  ELMAN_APART void stage_head(OwnHead& s, int64_t head, int64_t t, int64_t steps) const {
    using C = Columns<Spec>;
    if constexpr (Spec::RESETS) s.resets = a.resets + head / a.H * a.T + t;
    const auto q = in(ROLE_Q, head, t), k = in(ROLE_K, head, t);
    C::template stage<Spec::Q_ACT, Spec::Q_UNIT>(q.at, q.stride, steps, s.q, s.q_norm, s.q_slope);
    C::template stage<Spec::K_ACT, Spec::K_UNIT>(k.at, k.stride, steps, s.k, s.k_norm, s.k_slope);
    if constexpr (L::HAS_Z) {
      const auto z = in(ROLE_Z, head, t);
      C::stage_z(z.at, z.stride, steps, Spec::Z_BIAS ? param(PARAM_Z_BIAS, head) : nullptr, s.z);
    }
    if constexpr (Spec::KEY == Key::zk) C::stage_key(steps, s.z, s.k, s.key);
    if constexpr (Spec::KEY == Key::read) {
      const auto key = in(ROLE_READ, head, t);
      C::template stage<Act::none, false>(key.at, key.stride, steps, s.key, nullptr, nullptr);
    }
    // The last step reads its new state with this; the result is not used.
    std::memset(s.key + steps * NP, 0, NP * sizeof(T));
    if constexpr (L::HEAD_DECAY) {
      const auto from = Spec::DECAY == Map::parameter ? Strip<const T>{} : in(ROLE_DECAY, head, t);
      Heads<Spec>::template stage<Spec::DECAY>(from.at, from.stride, steps,
                                               number(PARAM_DECAY, head),
                                               number(PARAM_DT_BIAS, head), s.decay);
    }
    if constexpr (L::HEAD_WRITE) {
      const auto from = in(ROLE_WRITE, head, t);
      Heads<Spec>::template stage<Spec::WRITE>(from.at, from.stride, steps, T(0), T(0), s.write);
    }
  }
  template <int M>
  void stage_rows(const Rows<Spec, M>& rows, Own& s, int64_t team, int64_t t) const {
    rows.template stage<Spec::V_ACT>(ins(ROLE_V, team, t), s.v, s.v_slope);
    for (int i = 0; i < Cell::GATES; i++)
      rows.template stage<Act::none>(ins(Role(ROLE_G0 + i), team, t), s.g[i], nullptr);
  }
  void load_params(Own& s, int64_t team) const {
    for (int i = 0; i < PARAMS; i++)
      for (int g = 0; s.p[i] && g < HEADS; g++)
        for (int n = 0; n < L::BLOCKS; n++)
          s.p[i][g * L::BLOCKS + n] = Rows<Spec, 1>::read(param(i, head_of(team, g)), n);
  }
  // The states of a row tile, from a tensor [R][N] for every head; null is zeros.
  template <int M>
  void load_states(const void* states, int64_t team, int block, V* S) const {
    blocks<M>(team, block, [&](int64_t head, int n, int m) {
      States<Spec, M>::load(state(states, head), n, S, m);
    });
  }
  template <int M>
  void store_states(const V* S, int64_t team, int block, void* states) const {
    blocks<M>(team, block, [&](int64_t head, int n, int m) {
      States<Spec, M>::store(S, m, n, state(states, head));
    });
  }

  // ---- forward ----

  void forward_item(Own& s, int64_t team, int64_t group) const {
    load_params(s, team);
    row_tiles(group, [&](int block, auto m) {
      load_states<m.value>(a.first, team, block, s.S + block * N);
    });
    for (int64_t segment = 0; segment < segments; segment++) {
      const int64_t t = segment * a.K, steps = steps_of(segment);
      stage(s, team, t, steps);
      row_tiles(group, [&](int block, auto m) {
        constexpr int M = decltype(m)::value;
        V* S = s.S + block * N;
        if (a.checkpoints && segment > 0)
          blocks<M>(team, block, [&](int64_t head, int n, int i) {
            States<Spec, M>::keep(S, i, n, checkpoint(head, segment));
          });
        forward_row_tile<M>(s, team, t, steps, block, S);
      });
    }
    row_tiles(group, [&](int block, auto m) {
      store_states<m.value>(s.S + block * N, team, block, a.last);
    });
  }
  template <int M>
  ELMAN_APART void forward_row_tile(Own& s, int64_t team, int64_t t, int64_t steps, int block,
                                    V* S) const {
    const Rows<Spec, M> rows(s, block, P::live(team), steps);
    const RowTile<Spec, M> row_tile(s, block);
    stage_rows<M>(rows, s, team, t);
    V r[M], e[M];
    row_tile.look(0, S, r, e);
    for (int64_t i = 0; i < steps; i++) row_tile.template step<true, false>(i, S, S, r, e);
    const auto gate = Spec::GATE ? ins(ROLE_GATE, team, t) : Strips<Spec, const T>{};
    rows.finish(gate, P::of_team(team, [&](int64_t head) { return P::out(head, t); }));
  }

  // ---- backward ----

  void backward_item(Own& s, int64_t team, int64_t group) const {
    load_params(s, team);
    clear(s);
    row_tiles(group, [&](int block, auto m) {
      load_states<m.value>(a.dlast, team, block, s.dS + block * N);
    });
    for (int64_t segment = segments - 1; segment >= 0; segment--) {
      const int64_t t = segment * a.K, steps = steps_of(segment);
      stage(s, team, t, steps);
      for (auto& own : s.head) clear_sums(own, steps);
      row_tiles(group, [&](int block, auto m) {
        constexpr int M = decltype(m)::value;
        if (segment == 0)
          load_states<M>(a.first, team, block, s.path);
        else
          blocks<M>(team, block, [&](int64_t head, int n, int i) {
            States<Spec, M>::fetch(checkpoint(head, segment), n, s.path, i);
          });
        backward_row_tile<M>(s, team, t, steps, block);
      });
      for (int g = 0; g < P::live(team); g++) {
        sum_numbers(s.head[g], steps);
        if (ROW_TILES > 1 && groups > 1)
          move_sums<true>(s.head[g], team, group, t, steps);
        else
          back_columns(s.head[g], head_of(team, g), t, steps);
      }
    }
    row_tiles(group, [&](int block, auto m) {
      constexpr int M = decltype(m)::value;
      if (a.dfirst) store_states<M>(s.dS + block * N, team, block, a.dfirst);
      blocks<M>(team, block, [&](int64_t head, int n, int i) {
        for (int p = 0; p < PARAMS; p++)
          if (s.dp[p]) Rows<Spec, M>::write(part(head, p), n, s.dp[p][block + i]);
      });
    });
    for (int g = 0; groups == 1 && g < P::live(team); g++)
      write_numbers(s.head[g], head_of(team, g));
  }
  template <int M>
  ELMAN_APART void backward_row_tile(Own& s, int64_t team, int64_t t, int64_t steps,
                                     int block) const {
    constexpr int SIZE = N * M;
    const Rows<Spec, M> rows(s, block, P::live(team), steps);
    const RowTile<Spec, M> row_tile(s, block);
    stage_rows<M>(rows, s, team, t);
    V r[M], e[M];
    row_tile.look(0, s.path, r, e);
    constexpr bool NEEDS_Y = Spec::SELF_GATE || Spec::GATE;
    for (int64_t i = 0; i < steps; i++)
      row_tile.template step<NEEDS_Y, true>(i, s.path + i * SIZE, s.path + (i + 1) * SIZE, r, e);
    rows.template back_finish<(Spec::TIE[ROLE_GATE] >= 0)>(
        Spec::GATE ? ins(ROLE_GATE, team, t) : Strips<Spec, const T>{},
        P::of_team(team, [&](int64_t head) { return P::dout(head, t); }),
        Spec::GATE ? grads(ROLE_GATE, team, t) : Strips<Spec, T>{});
    for (int64_t i = steps - 1; i >= 0; i--)
      row_tile.back(i, s.path + i * SIZE, s.path + (i + 1) * SIZE, s.dS + block * N);
    rows.template back<Spec::V_ACT, false>(s.dv, s.v_slope, grads(ROLE_V, team, t));
    back_gate<M, 0>(rows, s, team, t);
    back_gate<M, 1>(rows, s, team, t);
  }
  template <int M, int I>
  void back_gate(const Rows<Spec, M>& rows, Own& s, int64_t team, int64_t t) const {
    constexpr Role ROLE = Role(ROLE_G0 + I);
    if constexpr (I < Cell::GATES)
      rows.template back<Act::none, (Spec::TIE[ROLE] >= 0)>(s.dg[I], nullptr, grads(ROLE, team, t));
  }

  // From the gradients of the staged columns and numbers to those of the sources.
  ELMAN_APART void back_columns(OwnHead& s, int64_t head, int64_t t, int64_t steps) const {
    using C = Columns<Spec>;
    if constexpr (L::HEAD_DECAY) back_numbers<ROLE_DECAY, Spec::DECAY>(s, head, t, steps);
    if constexpr (L::HEAD_WRITE) back_numbers<ROLE_WRITE, Spec::WRITE>(s, head, t, steps);
    if constexpr (Spec::KEY == Key::zk) C::back_key(steps, s.z, s.k, s.dkey, s.dz, s.dk);
    back_column<ROLE_K, Spec::K_ACT, Spec::K_UNIT>(head, t, steps, s.k, s.k_norm, s.k_slope, s.dk);
    back_column<ROLE_Q, Spec::Q_ACT, Spec::Q_UNIT>(head, t, steps, s.q, s.q_norm, s.q_slope, s.dq);
    if constexpr (L::HAS_Z) {
      C::back_z(steps, s.z, s.dz, s.dz_bias);
      back_column<ROLE_Z, Act::none, false>(head, t, steps, s.z, nullptr, nullptr, s.dz);
    }
    if constexpr (Spec::KEY == Key::read)
      back_column<ROLE_READ, Act::none, false>(head, t, steps, s.key, nullptr, nullptr, s.dkey);
  }
  template <Role ROLE, Act ACT, bool UNIT>
  void back_column(int64_t head, int64_t t, int64_t steps, const T* staged, const T* norms,
                   const T* slopes, const T* d) const {
    const auto to = grad(ROLE, head, t);
    Columns<Spec>::template back<ACT, UNIT, (Spec::TIE[ROLE] >= 0)>(steps, staged, norms, slopes, d,
                                                                    to.at, to.stride);
  }
  template <Role ROLE, Map MAP>
  void back_numbers(OwnHead& s, int64_t head, int64_t t, int64_t steps) const {
    constexpr bool DECAY = ROLE == ROLE_DECAY, READS = MAP != Map::parameter;
    const auto from = READS ? in(ROLE, head, t) : Strip<const T>{};
    const auto to = READS ? grad(ROLE, head, t) : Strip<T>{};
    T unused[2] = {};
    Heads<Spec>::template back<MAP, (Spec::TIE[ROLE] >= 0)>(
        from.at, from.stride, steps, DECAY ? number(PARAM_DECAY, head) : T(0),
        DECAY ? number(PARAM_DT_BIAS, head) : T(0), DECAY ? s.decay : s.write,
        DECAY ? s.ddecay : s.dwrite, to.at, to.stride, DECAY ? s.dnumbers : unused);
  }

  // ---- sums ----

  void clear(Own& s) const {
    for (int i = 0; i < PARAMS; i++)
      if (s.dp[i]) std::memset(s.dp[i], 0, Own::BLOCKS * sizeof(V));
    for (auto& own : s.head) clear_numbers(own);
  }
  void clear_numbers(OwnHead& s) const {
    std::memset(s.dz_bias, 0, NP * sizeof(T));
    s.dnumbers[0] = s.dnumbers[1] = T(0);
  }
  void clear_sums(OwnHead& s, int64_t steps) const {
    for (T* sums : {s.dq, s.dk, s.dkey, s.dz})
      if (sums) std::memset(sums, 0, steps * NP * sizeof(T));
    for (V* sums : {s.ddecay_lanes, s.dwrite_lanes})
      if (sums) std::memset(sums, 0, whole(steps) * sizeof(V));
  }
  void sum_numbers(OwnHead& s, int64_t steps) const {
    auto sum = [&](const V* lanes, T* to) {
      for (int64_t t = 0; t < whole(steps); t += L::W) {
        auto one = [&](auto i) { return Sums<V, 1>{{lanes[t + i]}}; };
        elman::cpu::store(to + t, lane_sums<V, 1, L::W>(one).of[0]);
      }
    };
    if constexpr (L::HEAD_DECAY) sum(s.ddecay_lanes, s.ddecay);
    if constexpr (L::HEAD_WRITE) sum(s.dwrite_lanes, s.dwrite);
  }
  // Moves the sums over a group's row tiles to the shared memory (OUT), or adds those that are
  // there.
  template <bool OUT>
  void move_sums(OwnHead& s, int64_t head, int64_t group, int64_t t, int64_t steps) const {
    T* at = P::group_sum(head, group, t);
    auto move = [&](T* own, int64_t count) {
      for (int64_t i = 0; own && i < count; i++)
        if (OUT)
          at[i] = own[i];
        else
          own[i] += at[i];
      at += own ? count : 0;
    };
    for (T* own : {s.dq, s.dk, s.dkey, s.dz}) move(own, steps * NP);
    for (T* own : {s.ddecay, s.dwrite}) move(own, steps);
  }
  // What is left of a head whose row tiles several groups ran.
  void finish_item(Own& own, int64_t head) const {
    OwnHead& s = own.head[0];
    clear_numbers(s);
    for (int64_t segment = segments - 1; segment >= 0; segment--) {
      const int64_t t = segment * a.K, steps = steps_of(segment);
      stage_head(s, head, t, steps);
      clear_sums(s, steps);
      for (T* sums : {s.ddecay, s.dwrite})
        if (sums) std::memset(sums, 0, whole(steps) * sizeof(T));
      for (int64_t group = 0; group < groups; group++) move_sums<false>(s, head, group, t, steps);
      back_columns(s, head, t, steps);
    }
    write_numbers(s, head);
  }
  // Gradients of the parameters that do not lie on rows.
  void write_numbers(const OwnHead& s, int64_t head) const {
    if (L::HAS_P[PARAM_Z_BIAS]) std::memcpy(part(head, PARAM_Z_BIAS), s.dz_bias, N * sizeof(T));
    if (L::HAS_P[PARAM_DECAY]) *part(head, PARAM_DECAY) = s.dnumbers[0];
    if (L::HAS_P[PARAM_DT_BIAS]) *part(head, PARAM_DT_BIAS) = s.dnumbers[1];
  }
  void sum_parts() const {
    Arena arena(a.workspace);
    const T* from = P::shared(arena, false);
    for (int i = 0; i < PARAMS; i++) {
      if (!L::HAS_P[i]) continue;
      T* to = static_cast<T*>(a.param[i].grad);
      for (int64_t n = 0; n < a.H * L::WIDTH[i]; n++) {
        T sum = 0;
        for (int64_t b = 0; b < a.B; b++) sum += from[b * P::parts() + P::parts(i) + n];
        to[n] = sum;
      }
    }
  }
};

}  // namespace elman::cpu

// A generated Spec as three functions. Workspace: bytes that a call's `workspace` must have.
#define ELMAN_MATRIX(NAME, SPEC)                                                \
  extern "C" int64_t NAME##_workspace(const elman::Args* a, int64_t backward) { \
    return elman::cpu::MatrixEngine<SPEC>(*a, backward).workspace();            \
  }                                                                             \
  extern "C" void NAME##_forward(const elman::Args* a) {                        \
    elman::cpu::MatrixEngine<SPEC>(*a, false).forward();                        \
  }                                                                             \
  extern "C" void NAME##_backward(const elman::Args* a) {                       \
    elman::cpu::MatrixEngine<SPEC>(*a, true).backward();                        \
  }
