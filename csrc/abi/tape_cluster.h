// The arguments of the kernels that run the tape engine as thread-block clusters;
// ops/tape/cuda/cluster.py mirrors them, which every kernel compares when it is compiled.
#pragma once
#include "abi/tape.h"

namespace elman {

// Every tensor is contiguous and begins at a multiple of 16 bytes. Sequences and the matrix are
// bf16, everything else fp32. Shapes: B batch, T steps, I channels of the state, N slots, J
// channels of the state and zeros, P = BLOCKS J.
struct TapeClusterArgs {
  const void *x, *dy;  // input, gradient of the states [B, T, I]; dy: or null
  void* dx;            // gradient of the input [B, T, I]
  void* y;             // states of all steps [B, T, I]
  const void* matrix;  // forward: W_h, and W_r behind it [P, J]; backward: their transpose [J, P]
  const void* first;   // state before the first step [B, I]
  void* last;          // state after the last [B, I]
  const void* dlast;   // its gradient, or null
  void* dfirst;        // [B, I]
  const void* tape;    // before the first step [B, N, I]
  void* last_tape;     // after the last [B, N, I]
  const void* dlast_tape;  // its gradient, or null
  void* dtape;             // [B, N, I]
  void* weights;           // of the slots: read, write [B, T, 2, N], or null: nothing is kept
  void* values;            // what was written [B, T, I]; null: it is the state, or nothing is kept
  void* dvalues;           // its gradient, or null
  void* checkpoints;       // tapes before steps K, 2 K .. [C, B, N, I], or null
  void* replayed;          // room for the tapes behind two of them [2, K - 1, B, N, I]
  int64_t batch, steps, channels;
  int64_t interval;  // K
};

}  // namespace elman
