// The emulator itself. What it does is the same for every kernel: it is compiled once, optimised
// and as a whole, and linked with each of them, which makes compiling one several times faster.
#include "emulation/boxes.cpp"
#include "emulation/clusters.cpp"
#include "emulation/copies.cpp"
#include "emulation/exchanged.cpp"
#include "emulation/fibers.cpp"
#include "emulation/flags.cpp"
#include "emulation/knowledge.cpp"
#include "emulation/memory.cpp"
#include "emulation/numbers.cpp"
#include "emulation/signals.cpp"
#include "emulation/stretches.cpp"
#include "emulation/tiles.cpp"
