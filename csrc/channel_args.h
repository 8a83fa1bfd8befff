// The arguments of one call of a channel kernel; ops/channel/arguments.py mirrors them.
#pragma once
#if defined(__CUDACC_RTC__)
using int64_t = long long;
#else
#include <stddef.h>
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
};

}  // namespace elman

#if !defined(__CUDACC_RTC__)
// Size and offsets, which the mirror is compared with when a kernel is loaded.
extern "C" const int64_t elman_channel_layout[] = {
    sizeof(elman::ChannelArgs),
    offsetof(elman::ChannelArgs, x),
    offsetof(elman::ChannelArgs, dx),
    offsetof(elman::ChannelArgs, y),
    offsetof(elman::ChannelArgs, dy),
    offsetof(elman::ChannelArgs, p),
    offsetof(elman::ChannelArgs, dp),
    offsetof(elman::ChannelArgs, first),
    offsetof(elman::ChannelArgs, dfirst),
    offsetof(elman::ChannelArgs, last),
    offsetof(elman::ChannelArgs, dlast),
    offsetof(elman::ChannelArgs, checkpoints),
    offsetof(elman::ChannelArgs, workspace),
    offsetof(elman::ChannelArgs, batch),
    offsetof(elman::ChannelArgs, steps),
    offsetof(elman::ChannelArgs, channels),
    offsetof(elman::ChannelArgs, segment),
    offsetof(elman::ChannelArgs, threads),
};
#endif
