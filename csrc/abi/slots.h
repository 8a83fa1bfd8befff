// The arguments of one call of the kernels of E63m; ops/matrix_state/slots.py mirrors them, which
// the kernels compare when they are compiled.
#pragma once
#if defined(__CUDACC_RTC__)
using int64_t = long long;
using uint8_t = unsigned char;
#else
#include <stdint.h>
#endif

namespace elman {

// Every tensor is contiguous and has one dtype. N slots, C channels.
struct SlotsArgs {
  void *k, *q, *input, *row, *mix;      // [B, T, C] twice, [B, T, N] twice, [N, N]
  void *y, *dy;                         // [B, T, N]
  void *first, *last, *dlast, *dfirst;  // state [B, N, C]
  void* checkpoints;                    // state before every segment [B, segments, N, C]
  void *read, *value;                   // tanh(S k) and the values of all steps [B, T, N]
  void *dk, *dq, *dinput, *drow;        // gradients
  void* workspace;                      // as many bytes as the kernel asks for
  int64_t batch, steps, slots, channels;
  int64_t segment;        // steps between checkpoints
  int64_t threads;        // at most
  const uint8_t* resets;  // [B, T]: 1 where the state before a step is zero; null is nowhere
};

}  // namespace elman
