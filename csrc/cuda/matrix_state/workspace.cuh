// The workspace of the backward pass: what blocks hand to the kernel that sums over them. In
// numbers of type A: gradients of the parameters [B][H][ROW_TILES][PARAM_TERMS]; where a head has
// several row tiles, the gradient of every slice that all of them add to,
// [ROW_TILES][B][T][H][width]; the recomputed states, where shared memory does not hold them.
#pragma once
#include "cuda/matrix_state/tile_config.cuh"

namespace elman {

// The role that stands for all roles on one slice.
template <class Spec>
HD constexpr int slice_of(int role) {
  return Spec::TIE[role] < 0 ? role : Spec::TIE[role];
}

template <class Spec>
HD constexpr bool is_slice(int role) {
  return has_role<Spec>(role) && slice_of<Spec>(role) == role;
}

// Whether a role over the columns lies on the slice of `role`: every row tile then adds to all of
// it.
template <class Spec>
HD constexpr bool is_wide(int role) {
  for (int i = ROLE_K; i < ROLES; i++)
    if (has_role<Spec>(i) && slice_of<Spec>(i) == role) return true;
  return false;
}

template <class G>
HD constexpr int row_tile_width(int role) {
  using Spec = typename G::Spec;
  if (G::ROW_TILES == 1 || !is_slice<Spec>(role)) return 0;
  return is_wide<Spec>(role) ? G::N : of_head(role) ? 1 : 0;
}

// Numbers per row tile, step and head that stand before those of `role`: wide slices come first,
// for their alignment.
template <class G>
HD constexpr int row_tile_offset(int role) {
  int at = 0;
  for (int i = 0; i < ROLES; i++) {
    const bool first = row_tile_width<G>(i) > 1, wide = role < ROLES && row_tile_width<G>(role) > 1;
    if (role == ROLES || (first && !wide) || (first == wide && i < role))
      at += row_tile_width<G>(i);
  }
  return at;
}

HD int64_t whole_vectors(int64_t numbers) { return (numbers + 3) / 4 * 4; }

template <class G>
HD int64_t param_numbers(const Args& a) {
  return whole_vectors(a.B * a.H * G::ROW_TILES * G::PARAM_TERMS);
}

template <class G>
HD int64_t scratch_offset(const Args& a) {
  return param_numbers<G>(a) +
         whole_vectors(row_tile_offset<G>(ROLES) * G::ROW_TILES * a.B * a.T * a.H);
}

// Where this block leaves the gradients of parameters.
template <class G>
DEVICE typename G::A* param_part(const Args& a) {
  return (typename G::A*)a.workspace + block_index() * G::PARAM_TERMS;
}

// Where a row tile leaves its part of the gradient of a slice, at one step of one head.
template <class G, int ROLE>
DEVICE typename G::A* row_tile_part(const Args& a, int row_tile, int64_t batch, int64_t t,
                                    int64_t head) {
  const int64_t steps = a.B * a.T * a.H;
  const int64_t step = (batch * a.T + t) * a.H + head;
  return (typename G::A*)a.workspace + param_numbers<G>(a) +
         row_tile_offset<G>(ROLE) * G::ROW_TILES * steps +
         (row_tile * steps + step) * row_tile_width<G>(ROLE);
}

// Where the gradient of a slice lies, at one step of one head.
template <class G, int ROLE>
DEVICE typename G::IO* gradient(const Args& a, int64_t batch, int64_t t, int64_t head) {
  constexpr int width = is_wide<typename G::Spec>(ROLE) ? G::N : of_head(ROLE) ? 1 : G::R;
  const Sequence& role = a.role[ROLE];
  return (typename G::IO*)role.grad + batch * role.grad_batch + t * role.grad_time + head * width;
}

}  // namespace elman
