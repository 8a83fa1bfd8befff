// Where the numbers of a call lie: of roles, parameters, states, checkpoints, and in the workspace.
#pragma once
#include <algorithm>

#include "cpu/matrix_state/rows.h"

namespace elman::cpu {

// Heads are numbered through the batch: head b * H + h. A team is HEADS of them, run together; in
// the last one the last head may stand in for heads that are not there.
template <class Spec>
class Places : protected Layout<Spec> {
 protected:
  using L = Layout<Spec>;
  using T = typename L::T;
  using Own = Scratch<Spec>;
  static constexpr int R = L::R, N = L::N, NP = L::NP, HEADS = L::HEADS, ROW_TILES = L::ROW_TILES;
  static constexpr int64_t SMALL = 1 << 15;  // state elements times steps that one thread does
  // A group's sums over its own row tiles, for every step: of dq, dk, dkey, dz; then of numbers.
  static constexpr int64_t SUMS = (2 + L::OWN_KEY + L::HAS_Z) * NP + L::HEAD_DECAY + L::HEAD_WRITE;

  const Args& a;
  const bool backward_;
  const int64_t heads, teams, segments, threads, groups;

  Places(const Args& a, bool backward)
      : a(a),
        backward_(backward),
        heads(a.B * a.H),
        teams((heads + HEADS - 1) / HEADS),
        segments((a.T + a.K - 1) / a.K),
        threads(wanted_threads(a)),
        groups(teams >= threads ? 1 : std::min<int64_t>(ROW_TILES, (threads + teams - 1) / teams)) {
  }

  static int64_t wanted_threads(const Args& a) {
    const int64_t size = a.B * a.H * a.T * R * N;
    return size < SMALL ? 1 : std::min<int64_t>(a.threads, 1 + size / SMALL);
  }
  static constexpr int width(Role role) {
    if (role == ROLE_DECAY || role == ROLE_WRITE) return 1;
    return role < ROLE_DECAY ? R : N;
  }
  static int64_t whole(int64_t steps) { return (steps + LANES<T> - 1) / LANES<T> * LANES<T>; }
  int64_t steps_of(int64_t segment) const { return std::min(a.K, a.T - segment * a.K); }
  int64_t head_of(int64_t team, int g) const { return std::min(team * HEADS + g, heads - 1); }
  int live(int64_t team) const { return int(std::min<int64_t>(HEADS, heads - team * HEADS)); }

  // ---- tensors ----

  Strip<const T> in(Role role, int64_t head, int64_t t) const {
    const Sequence& x = a.role[role];
    return {static_cast<const T*>(x.data) + head / a.H * x.batch + t * x.time +
                head % a.H * width(role),
            x.time};
  }
  Strip<T> grad(Role role, int64_t head, int64_t t) const {
    const Sequence& x = a.role[role];
    return {static_cast<T*>(x.grad) + head / a.H * x.grad_batch + t * x.grad_time +
                head % a.H * width(role),
            x.grad_time};
  }
  Strip<T> out(int64_t head, int64_t t) const {
    T* first = static_cast<T*>(a.out);
    return {first + ((head / a.H * a.T + t) * a.H + head % a.H) * R, a.H * R};
  }
  Strip<const T> dout(int64_t head, int64_t t) const {
    if (!a.dout) return {};
    const T* first = static_cast<const T*>(a.dout);
    return {first + head / a.H * a.dout_batch + t * a.dout_time + head % a.H * R, a.dout_time};
  }
  // f(head) for the heads of a team
  template <class F>
  auto of_team(int64_t team, F f) const {
    std::array<decltype(f(team)), HEADS> all;
    for (int g = 0; g < HEADS; g++) all[g] = f(head_of(team, g));
    return all;
  }
  Strips<Spec, const T> ins(Role role, int64_t team, int64_t t) const {
    return of_team(team, [&](int64_t head) { return in(role, head, t); });
  }
  Strips<Spec, T> grads(Role role, int64_t team, int64_t t) const {
    return of_team(team, [&](int64_t head) { return grad(role, head, t); });
  }
  const T* param(int i, int64_t head) const {
    return static_cast<const T*>(a.param[i].data) + head % a.H * L::WIDTH[i];
  }
  T number(int i, int64_t head) const { return L::HAS_P[i] ? *param(i, head) : T(0); }
  template <class Pointer>
  auto state(Pointer states, int64_t head) const {
    using U = std::conditional_t<std::is_same_v<Pointer, void*>, T, const T>;
    return states ? static_cast<U*>(states) + head * R * N : nullptr;
  }
  T* checkpoint(int64_t head, int64_t segment) const {
    return static_cast<T*>(a.checkpoints) + (head * (segments - 1) + segment - 1) * R * N;
  }

  // ---- workspace: each thread's own, then the parameters' gradients of every row of the batch,
  // then the sums of groups ----

  // Numbers of all parameters' gradients, or of those before one.
  int64_t parts(int before = PARAMS) const {
    int64_t sum = 0;
    for (int i = 0; i < before; i++) sum += L::HAS_P[i] ? a.H * L::WIDTH[i] : 0;
    return sum;
  }
  int64_t group_sums() const { return groups > 1 ? heads * groups * a.T * SUMS : 0; }
  T* shared(Arena& arena, bool sums) const {
    for (int64_t i = 0; i < threads; i++) Own(arena, a.K, backward_);
    T* first = arena.take<T>(a.B * parts());
    T* second = arena.take<T>(group_sums());
    return sums ? second : first;
  }
  T* part(int64_t head, int i) const {
    Arena arena(a.workspace);
    return shared(arena, false) + head / a.H * parts() + parts(i) + head % a.H * L::WIDTH[i];
  }
  T* group_sum(int64_t head, int64_t group, int64_t t) const {
    Arena arena(a.workspace);
    return shared(arena, true) + ((head * groups + group) * a.T + t) * SUMS;
  }

 public:
  int64_t workspace() const {
    Arena arena(reinterpret_cast<void*>(64));
    shared(arena, true);
    return arena.used();
  }
};

}  // namespace elman::cpu
