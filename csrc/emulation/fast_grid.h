// The emulator as kernels of bf16 see it whose blocks all run at the same time: with the machine's
// fast functions, see device.h.
#pragma once
#include "emulation/fast_device.h"
// Then what grids add.
#include "emulation/grid.h"
