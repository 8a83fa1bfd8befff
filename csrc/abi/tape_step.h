// The arguments of the kernels that run the tape engine step by step; ops/tape/cuda/stepwise.py
// mirrors them, which every kernel compares when it is compiled.
#pragma once
#include "abi/tape.h"

namespace elman {

// Every tensor is contiguous. Sequences and what products read ("narrow") have the dtype of the
// inputs, everything else that of the state. Shapes: B batch, T steps, I channels of the state,
// N slots, P = BLOCKS I.
struct TapeStepArgs {
  void *x, *dx;  // input and its gradient [B, T, I]
  void *y, *dy;  // states of all steps [B, T, I]; dy: their gradient, or null
  // Forward: of the state before the step with all matrices [B, P]. Backward: of `narrow` with all
  // matrices [B, I], what reaches the state after the step through its products.
  void* product;
  // What the next product reads. Forward: h [B, I]. Backward: the gradient of the products of the
  // state before the step [B, P].
  void* narrow;
  void* first;       // state before the first step [B, I]
  void* tape;        // [B, N, I], advanced by every step: the tape, or its gradient
  void* scores;      // for the next step [B, N]: <M_n, h>, or the gradient of the write's weights
  void* weights;     // of the slots: read, write [B, T, 2, N], or null: nothing is kept
  void* values;      // what was written [B, T, I]; null: it is the state, or nothing is kept
  void* dvalues;     // its gradient, or null
  void* carried;     // gradient that reaches the state before the step past its products [B, I]
  void* checkpoint;  // where this step keeps the tape before it [B, N, I], or null
  void *here, *before;  // backward: the tapes before this step and before the one before it
  void* replayed;       // the tapes behind `here`, up to K - 1 of them [., B, N, I]
  int64_t batch, steps, channels, slots, step;
  int64_t count;          // how many tapes are replayed
  const uint8_t* resets;  // [B, T]: whether state and tape of a row begin anew; or null
};

}  // namespace elman
