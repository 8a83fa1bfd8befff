// How a head's state is mapped to threads, and what a block keeps in shared memory; all of it
// known at compile time. elman/ops/matrix_state/cuda/tile_config.py chooses the numbers and mirrors
// the sizes, which the generated translation unit compares.
//
// A block owns a row tile of value rows of one head. LANES neighbouring lanes of a warp share TALL
// neighbouring rows; each holds COLUMNS elements of every one of them in registers, in vectors of
// VECTOR that alternate between the lanes. Rows and columns beyond R and N are zero and stay zero.
// A taller piece needs fewer reads of shared memory for its numbers, and fewer sums over the rows,
// but more sums over the columns.
#pragma once
#include "abi/matrix_state.h"
#include "cells/matrix_state.h"
#include "cuda/common/pack.cuh"

namespace elman {

inline constexpr int ROLE_DOUT = ROLES;  // staged like a role of the rows, in the backward pass

HD constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
HD constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
HD constexpr int least(int a, int b) { return a < b ? a : b; }
HD constexpr int64_t least64(int64_t a, int64_t b) { return a < b ? a : b; }
HD constexpr bool is_power(int n) { return (n & (n - 1)) == 0; }
HD constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }
// The least number, no smaller, that leaves a remainder modulo the banks of shared memory.
HD constexpr int above(int n, int remainder) { return n + ((remainder - n) % 32 + 32) % 32; }
HD constexpr int power_above(int n) { return n <= 1 ? 1 : 2 * power_above(ceil_div(n, 2)); }

HD constexpr bool on_columns(int role) { return role >= ROLE_K && role < ROLES; }
HD constexpr bool of_head(int role) { return role == ROLE_DECAY || role == ROLE_WRITE; }

template <class Spec>
HD constexpr bool has_role(int role) {
  using Cell = typename Spec::Cell;
  if (role == ROLE_G0) return Cell::GATES > 0;
  if (role == ROLE_G1) return Cell::GATES > 1;
  if (role == ROLE_GATE) return Spec::GATE;
  if (role == ROLE_DECAY) return Spec::DECAY == Map::sigmoid || Spec::DECAY == Map::mamba;
  if (role == ROLE_WRITE) return Spec::WRITE == Map::sigmoid;
  if (role == ROLE_Z) return Cell::COLUMN || Spec::KEY == Key::zk;
  if (role == ROLE_READ) return Spec::KEY == Key::read;
  return role < ROLES;
}

template <class Spec>
HD constexpr bool has_param(int param) {
  if (param <= PARAM_P2) return Spec::Cell::PARAMS > param;
  if (param == PARAM_Z_BIAS) return Spec::Z_BIAS;
  if (param == PARAM_DECAY) return Spec::DECAY == Map::parameter || Spec::DECAY == Map::mamba;
  if (param == PARAM_DT_BIAS) return Spec::DECAY == Map::mamba;
  if (param == PARAM_RESIDUAL) return Spec::RESIDUAL;
  return Spec::GATE_BIAS;
}

// Checkpoint: type of the states in checkpoints and in the recomputed segment. ALIGN: bytes that
// every slice and stride of the sources and their gradients is a multiple of, at most 16. SCRATCH:
// the recomputed states stand in global memory, since shared memory does not hold them. PRODUCERS:
// the pass has producer warps.
template <class Spec_, class Checkpoint_, int LANES_, int TALL_, int WARPS_, int VECTOR_,
          int STEPS_, int ALIGN_, bool SCRATCH_, bool PRODUCERS_>
struct TileConfig {
  using Spec = Spec_;
  using Cell = typename Spec::Cell;
  using A = typename Spec::State;
  using IO = typename Spec::IO;
  using Checkpoint = Checkpoint_;
  static constexpr int R = Spec::R, N = Spec::N;
  static constexpr int LANES = LANES_, TALL = TALL_, WARPS = WARPS_, VECTOR = VECTOR_;
  static constexpr int STEPS = STEPS_;
  static constexpr int ALIGN = ALIGN_;
  static constexpr bool SCRATCH = SCRATCH_, PRODUCERS = PRODUCERS_;
  static constexpr bool INSIDE = false;  // whether a warp of a larger block does what a block does
  static_assert(is_power(LANES) && LANES <= 32 && is_power(VECTOR) && VECTOR <= 4, "tile config");
  static_assert(TALL >= 1 && TALL <= 4, "tile config");

  static constexpr int THREADS = 32 * WARPS;  // that hold the state
  // Producer warps prepare the next segment's inputs and write the last one's results, while the
  // other warps walk from step to step. In the backward pass they recompute the next segment, too,
  // and hold as many pieces of the state. Workers are the threads that do this: those of the
  // producer warps, or all threads where there are none.
  HD static constexpr bool produces(bool backward) { return PRODUCERS && !(backward && SCRATCH); }
  HD static constexpr int producer_threads(bool backward) {
    return !produces(backward) ? 0 : backward ? THREADS : 32 * least(WARPS, 4);
  }
  HD static constexpr int workers(bool backward) {
    return produces(backward) ? producer_threads(backward) : THREADS;
  }
  static constexpr int FORWARD_THREADS = THREADS + producer_threads(false);
  static constexpr int BACKWARD_THREADS = THREADS + producer_threads(true);
  static constexpr int COLUMNS = round_up(ceil_div(N, LANES), VECTOR);  // of a lane
  static constexpr int PIECE = TALL * COLUMNS;                          // numbers of a lane
  static constexpr int WIDTH = COLUMNS * LANES;                         // N and its padding
  static constexpr int ROW_LANES = 32 / LANES;                          // of a warp, in a column
  static constexpr int WARP_ROWS = ROW_LANES * TALL, ROWS = WARP_ROWS * WARPS;
  static constexpr int ROW_TILES = ceil_div(R, ROWS);
  // Numbers that are read from raw inputs at once: unaligned sources are read number by number.
  static constexpr int STAGED_VECTOR =
      ALIGN == 4 && sizeof(IO) == 2 ? 1 : least(4, ALIGN / (int)sizeof(IO));

  // The parts of the reads of a step, before they are summed: one of every lane of a row. The rows
  // of a warp lie in an order such that neither its lanes, which write them, nor threads that sum
  // STAGED_VECTOR neighbouring rows each meet in the banks of shared memory.
  static constexpr int PART_ROWS = least(STAGED_VECTOR, WARP_ROWS & -WARP_ROWS);
  static constexpr int PART_NUMBERS = 32 * TALL / PART_ROWS;  // of every PART_ROWS-th row of a warp
  static constexpr int WARP_PARTS = WARPS == 1 ? 32 * TALL : above(32 * TALL, PART_NUMBERS);
  static constexpr int PARTS =  // from step to step
      above(WARPS * WARP_PARTS,
            LANES > 4 ? 4 : LANES * power_above(ceil_div(least(ROWS, R), STAGED_VECTOR)));
  // Where the parts of a row of the row tile begin.
  HD static constexpr int part_at(int row) {
    constexpr int M = least(TALL, PART_ROWS), N = PART_ROWS % M ? 1 : M;
    const int e = row % PART_ROWS, place = e % N * (PART_ROWS / N) + e / N;
    return row / WARP_ROWS * WARP_PARTS + place * PART_NUMBERS +
           row % WARP_ROWS / PART_ROWS * LANES;
  }

  // Sums over the rows of a warp by recursive halving: in SWAPS stages a lane keeps one half of
  // its columns and sends the other. A lane holds its columns in an order such that it always keeps
  // the first half, so that no register is chosen at run time. Where that reorders the numbers of
  // a vector, shared memory holds COPIES of the inputs, each in another order.
  static constexpr bool ORDERED = is_power(COLUMNS);
  static constexpr int SWAPS = ORDERED ? least(log2_of(ROW_LANES), log2_of(COLUMNS)) : 0;
  static constexpr int LAST_SWAP = COLUMNS >> SWAPS;
  static constexpr int COPIES = ORDERED && LAST_SWAP < VECTOR ? VECTOR / LAST_SWAP : 1;
  // Numbers from one copy to the next: not a multiple of 32 words, so that lanes which read the
  // same numbers from different copies meet different banks.
  static constexpr int COPY_STRIDE = STEPS * WIDTH + (LANES > 4 ? 0 : LANES > 2 ? 16 : 8);

  // Gradients of vectors over columns: of the key, the query, the key of the read, the column gate.
  static constexpr bool OWN_KEY = Cell::READ && Spec::KEY != Key::k;
  static constexpr int SUM_K = 0, SUM_Q = 1, SUM_KEY = 2, SUM_COL = OWN_KEY ? 3 : 2;
  static constexpr int SUMS = 2 + OWN_KEY + Cell::COLUMN;
  // Whether the gradient of the output has to pass gates, which need the reads, to become that of
  // y.
  static constexpr bool NEEDS_Y = Spec::SELF_GATE || Spec::GATE;
  static constexpr bool NEEDS_DC = !Cell::KEEP;

  // The gradient of the decay: summed by each lane over its columns, or over the row as well.
  static constexpr bool GRAD_DECAY = NEEDS_DC && Spec::DECAY != Map::none;
  static constexpr bool GRAD_WRITE = Spec::WRITE != Map::none;
  static constexpr bool LANE_DECAY =
      GRAD_DECAY && Cell::GATES + Cell::PARAMS == 0 && !Cell::HOOK && WARPS <= 4;
  static constexpr int DECAY_TERMS = LANE_DECAY ? THREADS : ROWS;
  static constexpr int DECAY_STRIDE = DECAY_TERMS + 4, WRITE_STRIDE = ROWS + 4;

  // The states before the steps of a segment; where producer warps recompute it, also the state
  // behind its last step. A thread reads only what it wrote itself, or what the producer of the
  // same piece wrote.
  static constexpr int HISTORY_NUMBERS = sizeof(Checkpoint) == 2 ? round_up(PIECE, 2) : PIECE;
  static constexpr int HISTORY_VECTOR =
      least(16 / (int)sizeof(Checkpoint), HISTORY_NUMBERS & -HISTORY_NUMBERS);
  static constexpr int HISTORY = (STEPS + produces(true)) * HISTORY_NUMBERS * THREADS;
  // Whether a lane's vectors of a checkpoint can be copied there while others work.
  static constexpr bool COPIES_CHECKPOINT =
      !SCRATCH && N % VECTOR == 0 && VECTOR * sizeof(Checkpoint) >= 4 &&
      VECTOR * sizeof(Checkpoint) <= 16 && HISTORY_NUMBERS == PIECE;

  // ---- staging: raw inputs as they lie in the sources, one row of bytes per step and role

  HD static constexpr int width(int role) {
    return on_columns(role) ? N : of_head(role) ? 1 : least(ROWS, R);
  }
  HD static constexpr int unit(int role) {
    if (!of_head(role)) return ALIGN;
    return sizeof(IO) > 4 ? (int)sizeof(IO) : 4;
  }
  // Whether a row may begin in the middle of a word.
  HD static constexpr bool shifts(int role) { return sizeof(IO) == 2 && unit(role) == 4; }
  HD static constexpr int row_bytes(int role) {
    return round_up((width(role) + shifts(role)) * (int)sizeof(IO), unit(role));
  }
  HD static constexpr bool stages(int role, bool backward) {
    return role == ROLE_DOUT ? backward : has_role<Spec>(role);
  }
  // Where the rows of a role begin; of ROLE_DOUT + 1: the size of a buffer.
  HD static constexpr int staging_offset(int role, bool backward) {
    int at = 0;
    for (int i = 0; i < role; i++)
      if (stages(i, backward)) at += round_up(STEPS * row_bytes(i), 16);
    return at;
  }
  HD static constexpr int staging_bytes(bool backward) {
    return staging_offset(ROLE_DOUT + 1, backward);
  }
  // Buffers of raw inputs. Producer warps write outputs two segments later than they prepared the
  // inputs, and may need them once more; gradients one segment later.
  HD static constexpr int staging_buffers(bool backward) {
    if (!produces(backward)) return 2;
    return backward ? 3 : Spec::GATE || Spec::RESIDUAL ? 4 : 2;
  }
  // Sets of prepared inputs, of reads and sums: producer warps work on one while another is used.
  HD static constexpr int sets(bool backward) { return produces(backward) ? 2 : 1; }

  // ---- shared memory

  HD static constexpr int bytes(int count) { return round_up(count * (int)sizeof(A), 16); }
  // One step more than a segment has: the next step is loaded ahead, whether it exists or not.
  static constexpr int AHEAD = STEPS + 1;
  // Numbers of a vector over the columns, with its copies.
  HD static constexpr int column_numbers(bool backward) {
    return (backward ? COPIES - 1 : 0) * COPY_STRIDE + AHEAD * WIDTH;
  }
  HD static constexpr int input_bytes(bool backward) {
    return (2 + OWN_KEY + Cell::COLUMN) * bytes(column_numbers(backward)) +
           (1 + Cell::GATES) * bytes(AHEAD * ROWS) +
           ((Spec::DECAY != Map::none) + (Spec::WRITE != Map::none)) * bytes(AHEAD) +
           (backward ? 4 + 2 * (Spec::DECAY != Map::none) : 0) * bytes(STEPS);
  }
  static constexpr int FORWARD_BYTES = staging_buffers(false) * staging_bytes(false) +
                                       sets(false) * (input_bytes(false) + bytes(AHEAD * PARTS)) +
                                       64 * produces(false);  // of the signals
  // What the recomputation and the walk leave for each other and for the gradients.
  static constexpr int SUM_BYTES =
      (1 + Cell::ENERGY + NEEDS_Y + Cell::GATES + Spec::GATE) * bytes(STEPS * ROWS) +
      bytes(STEPS * WARPS * SUMS * WIDTH) + (GRAD_DECAY ? bytes(STEPS * DECAY_STRIDE) : 0) +
      (GRAD_WRITE ? bytes(STEPS * WRITE_STRIDE) : 0) +
      (SCRATCH ? 0 : round_up(HISTORY * (int)sizeof(Checkpoint), 16));
  static constexpr int BACKWARD_BYTES =
      staging_buffers(true) * staging_bytes(true) + sets(true) * (input_bytes(true) + SUM_BYTES) +
      NEEDS_Y * bytes(AHEAD * PARTS) + 96 * produces(true);  // of the signals

  // ---- workspace of the backward pass, in numbers of type A unless said otherwise

  // Gradients of parameters, of one block: rows of p0 p1 p2 residual gate_bias, columns of z_bias,
  // decay, dt_bias.
  HD static constexpr int param_offset(int param) {
    int at = 0;
    for (int i = 0; i < param; i++)
      if (has_param<Spec>(i)) at += param_width(i);
    return at;
  }
  HD static constexpr int param_width(int param) {
    if (param == PARAM_Z_BIAS) return N;
    return param == PARAM_DECAY || param == PARAM_DT_BIAS ? 1 : ROWS;
  }
  static constexpr int PARAM_TERMS = param_offset(PARAMS);
};

}  // namespace elman
