// The arguments of one call of a dense kernel; ops/dense/abi.py mirrors them, which every kernel
// compares when it is compiled.
#pragma once
#if defined(__CUDACC_RTC__)
using int64_t = long long;
using uint8_t = unsigned char;
#else
#include <stdint.h>
#endif

#include "cells/dense.h"

namespace elman {

// A sequence [B, T, C] whose channels are adjacent; strides in numbers, not bytes.
struct DenseSequence {
  void* data;
  int64_t batch, time;
};

// Every tensor has the dtype of the state; those that are no sequences are contiguous. Shapes: B
// batch, T steps, I channels of the state, P = BLOCKS I, r rank, S parts of the state.
//
// Where R is block-diagonal, a call is one of its blocks, a head: `channels` and everything else
// are the head's, and `pitch` says how many channels all heads have together.
struct DenseArgs {
  DenseSequence x, dx;                            // first input and its gradient [B, T, P]
  DenseSequence p[MAX_OTHERS], dp[MAX_OTHERS];    // the other inputs [B, T, I]
  DenseSequence y, dy;                            // states of all steps [B, T, I]
  void* matrix;                                   // R [P, I], or its left factor [P, r]
  void* inner;                                    // its right factor [r, I], or null
  void* extra;                                    // U [I, I] of the GRU, or null
  void* scale;                                    // the step's own number, or null
  void* dscale;                                   // its gradient, over time only [B, I]
  void* memo;                                     // [B, T, MEMO, I], or null: nothing is kept
  void* norms;                                    // 1 / root mean square [B, T]
  void *first, *last, *dlast, *dfirst;            // [S, B, I]
  void* workspace;                                // as many bytes as the kernel asks for
  int64_t batch, steps, channels, rank, threads;  // rank 0: R is one matrix; threads: at most
  int64_t pitch;          // channels from a row of memo, first, last, dlast or dfirst to the next
  const uint8_t* resets;  // [B, T]: whether a row's state is zero before the step; or null
};

}  // namespace elman
