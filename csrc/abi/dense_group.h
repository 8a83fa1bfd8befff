// The arguments of one launch of the dense engine's group form; ops/dense/cuda/groups.py mirrors
// them, which every kernel compares when it is compiled.
#pragma once
#include "abi/dense.h"

namespace elman {

struct DenseGroupArgs {
  DenseArgs dense;
  void* exchanged;  // what blocks tell each other: bf16 [groups, 2, K, rows of a group]
  unsigned* flags;  // one of each block, Flags::STRIDE apart; zeros before the launch
  int* stalled;     // 1 where a block gave up; lies in the host's memory
  int64_t first;    // row of the batch that the first group begins with
};

}  // namespace elman
