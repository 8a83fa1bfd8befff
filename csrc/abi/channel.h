// The arguments of one call of a channel kernel; ops/channel/arguments.py mirrors them,
// which every kernel compares when it is compiled.
#pragma once
#if defined(__CUDACC_RTC__)
using int64_t = long long;
using uint8_t = unsigned char;
#else
#include <stdint.h>
#endif

#include "cells/channel.h"

namespace elman {

// Distinct slices of the sources: those of the inputs, and of a query.
inline constexpr int MAX_SLOTS = MAX_INPUTS + 1;

// A sequence [B, T, C] whose channels are adjacent; strides in numbers, not bytes.
struct ChannelSequence {
  void* data;
  int64_t batch, time;
};

// Every tensor has the dtype of the state; those that are no sequences are contiguous.
struct ChannelArgs {
  ChannelSequence x[MAX_SLOTS], dx[MAX_SLOTS];   // slices, and where their gradients go
  ChannelSequence y, dy;                         // output and its gradient
  void *p[MAX_PARAMETERS], *dp[MAX_PARAMETERS];  // parameters [C]
  void *first, *dfirst;                          // state before the first step [B, C]
  void *last, *dlast;                            // and after the last
  void* checkpoints;                             // state before every segment [B, segments, C]
  void* workspace;                               // as many bytes as the kernel asks for
  int64_t batch, steps, channels;
  int64_t segment;  // steps between checkpoints
  int64_t threads;  // at most
  // Whether the state before a step is zero [B, T]; null for a kernel without RESETS.
  const uint8_t* resets;
};

}  // namespace elman
