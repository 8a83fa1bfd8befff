// The emulator as kernels of bf16 see it: with the machine's fast functions, see device.h.
#pragma once
#define ELMAN_TANH_APPROX
#include "emulation/device.h"
