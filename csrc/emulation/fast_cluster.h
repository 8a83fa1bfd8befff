// The emulator as cluster kernels of bf16 see it: with the machine's fast functions, see device.h.
#pragma once
#include "emulation/fast_device.h"
// Then what clusters add.
#include "emulation/cluster.h"
