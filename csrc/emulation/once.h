// What the emulator does itself is the same for every kernel. It is compiled once, optimised, as a
// unit of its own, which defines ELMAN_EMULATOR; what a kernel is compiled to refers to that. This
// halves what compiling a kernel takes.
#pragma once

#if defined(ELMAN_EMULATOR)
#define EMULATOR
#define EMULATOR_DATA
#else
// A body that is seen and never compiled.
#define EMULATOR extern inline __attribute__((gnu_inline))
#define EMULATOR_DATA extern
#endif
