// The arguments of one call of a tape kernel; ops/tape/abi.py mirrors them, which every kernel
// compares when it is compiled.
#pragma once
#if defined(__CUDACC_RTC__)
using int64_t = long long;
using uint8_t = unsigned char;
#else
#include <stdint.h>
#endif

#include "cells/tape.h"

namespace elman {

// Every tensor is contiguous and has the dtype of the state. Shapes: B batch, T steps, I channels
// of the state, N slots, P = BLOCKS I. Null: what a call does not have.
struct TapeArgs {
  void *x, *dx;                                 // input and its gradient [B, T, I]
  void *y, *dy;                                 // states of all steps [B, T, I]
  void* matrix;                                 // W_h, and W_r behind it [P, I]
  void* pulls;                                  // gradient of the products of a state [B, T, P]
  void *first, *last, *dlast, *dfirst;          // state [B, I]
  void *tape, *last_tape, *dlast_tape, *dtape;  // [B, N, I]
  void* weights;                                // of the slots: read, write [B, T, 2, N], or null
  void* values;                                 // what was written [B, T, I], or null
  void* checkpoints;                            // tapes before steps K, 2 K .. [C, B, N, I]
  void* workspace;                              // as many bytes as the kernel asks for
  int64_t batch, steps, channels, slots, threads;  // threads: at most
  int64_t interval;                                // K; 0: nothing is kept for a backward pass
  const uint8_t* resets;  // [B, T]: whether state and tape of a row begin anew; or null
};

}  // namespace elman
