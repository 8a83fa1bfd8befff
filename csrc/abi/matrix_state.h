// What one call of a matrix-state kernel receives, the same for the CPU and for the CUDA engine.
// The Python mirror is elman/ops/matrix_state/abi.py, that of the order of roles and
// parameters plan.py; every kernel compares sizes, offsets and order when it is compiled.
//
// Shapes: B batch, T time, H heads, R value rows, N key columns, K steps between checkpoints. A
// role of width W (N, R or 1) is a slice of a source [B, T, C]: number j of head h at time t of row
// b is data[b * batch + t * time + h * W + j].
#pragma once
#if defined(__CUDACC_RTC__)
using int64_t = long long;
using uint8_t = unsigned char;
#else
#include <stdint.h>
#endif

namespace elman {

// Compile-time choices of a generated `struct Spec`, beside those of cells/matrix_state.h:
//   Cell, IO (dtype of sources and output), State (of everything else), R, N, TANH (phi),
//   Q_ACT, K_ACT, V_ACT, Z_ACT, GATE_ACT (an Act of cells/maps.h each), Q_UNIT, K_UNIT
//   (cells/unit.h), Z_BIAS, DECAY, WRITE (a Map of cells/maps.h each), KEY, RESIDUAL, SELF_GATE,
//   GATE, GATE_BIAS (cells/epilogue.h), RESETS (whether a call has a mask of them),
//   TIE[ROLES]: the first role, in the order of Role, on the same slice of a source; -1 if it is
//   this one. Gradients of tied roles are summed.
// What a read multiplies the state by: k, z_j k_j, or a sequence of its own.
enum class Key { k, zk, read };

// In this order the gradients of roles that share a slice of a source are written: the first
// stores, the later ones add (Sequence::add).
enum Role {
  ROLE_V,      // value [R]
  ROLE_G0,     // gate logits of the rows [R]
  ROLE_G1,     // [R]
  ROLE_GATE,   // logits of the output gate [R]
  ROLE_DECAY,  // what the decay map takes [1]
  ROLE_WRITE,  // what the write map takes [1]
  ROLE_K,      // key [N]
  ROLE_Q,      // query [N]
  ROLE_Z,      // column modulation [N]
  ROLE_READ,   // key of the read [N], where it is a sequence of its own
  ROLES
};

enum Param {
  PARAM_P0,         // row parameters of the cell [H, R]
  PARAM_P1,         // [H, R]
  PARAM_P2,         // [H, R]
  PARAM_Z_BIAS,     // [H, N]
  PARAM_DECAY,      // the decay itself, or a_log of the mamba map [H]
  PARAM_DT_BIAS,    // of the mamba map [H]
  PARAM_RESIDUAL,   // factor of v in the output [H, R]
  PARAM_GATE_BIAS,  // of the output gate [H, R]
  PARAMS
};

struct Sequence {                 // of Spec::IO
  const void* data;               // nullptr: the plan has no such role
  void* grad;                     // backward
  int64_t batch, time;            // strides of data in elements
  int64_t grad_batch, grad_time;  // and of grad
};

struct Parameter {   // of Spec::State, contiguous
  const void* data;  // nullptr: the plan has no such parameter
  void* grad;        // backward: summed over batch and time
};

struct Args {
  Sequence role[ROLES];
  Parameter param[PARAMS];
  const void* first;  // state before the first step [B, H, R, N]; nullptr is zeros
  void* last;         // forward: after the last step
  const void* dlast;  // backward: its gradient; nullptr is zeros
  void* dfirst;       // backward; nullptr where it is not wanted
  void* out;          // forward: [B, T, H, R] contiguous, of Spec::IO: y behind the epilogue
  const void* dout;   // backward: its gradient, heads and rows contiguous; nullptr is zeros
  int64_t dout_batch, dout_time;  // its strides
  // States before the steps K, 2 K, ...: B H ((T - 1) / K) R N numbers in an order of the engine's
  // own. Forward: nullptr where no gradient is wanted.
  void* checkpoints;
  void* workspace;  // as many bytes as the engine asked for
  int64_t B, T, H, R, N, K;
  int64_t threads;        // CPU: at most so many
  const uint8_t* resets;  // [B, T]: 1 where the state before a step is zero; nullptr is nowhere
};

}  // namespace elman
