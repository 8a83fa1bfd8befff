// The emulator itself, see once.h.
#define ELMAN_EMULATOR
#include "emulation/flags.h"
#include "emulation/numbers.h"
#include "emulation/tiles.h"
