// The arguments of the kernels that run the dense engine step by step; ops/dense/cuda/stepwise.py
// mirrors them, which every kernel compares when it is compiled.
#pragma once
#include "abi/dense.h"

namespace elman {

// Sequences, memo and what products read ("narrow") have the dtype of the inputs, everything else
// that of the state; what is no sequence is contiguous. Shapes: B batch, I channels of the state, P
// = BLOCKS I, S parts of the state.
//
// Where R is block-diagonal, x, dx, product and narrow have the channels of one head after those of
// the other: x and dx [B, T, heads, BLOCKS, J] of J = I / heads channels each; product and narrow
// [heads, B, BLOCKS, J] or [heads, B, J].
struct DenseStepArgs {
  DenseSequence x, dx;                          // first input and its gradient [B, T, P]
  DenseSequence p[MAX_OTHERS], dp[MAX_OTHERS];  // the other inputs [B, T, I]
  DenseSequence y, dy;                          // states of all steps [B, T, I]
  // Forward: R h [B, P]. Backward: of the step after, dpre R [B, I]; null behind the last step.
  void* product;
  void* second;        // the GRU's second product [B, I]: U (r h), or the gradient of r h
  void* narrow;        // what R's product reads next: h [B, I], or dpre [B, P]
  void* narrow_extra;  // what the second product reads [B, I]: r h, or the gradient of p + U (r h)
  void* between;       // of the GRU's first kernel for its second one [B, I]: z, or h's gradient
  void* state;         // [S, B, I], advanced by every step: the state, or its gradient
  void* first;         // [S, B, I], state before the first step
  void* scale;         // the step's own number, or null
  void* dscale;        // its gradient over the steps so far [B, I]
  void* memo;          // [B, T, MEMO, I], or null: nothing is kept
  void* norms;         // 1 / root mean square [B, T]
  int64_t batch, steps, channels, step;
  int64_t head;           // channels of a head; of kernels without heads, not read
  const uint8_t* resets;  // [B, T]: whether a row's state is zero before the step; or null
};

}  // namespace elman
