// Numbers as the machine has them: 16-bit types by their bits, and instructions that are right to a
// documented part alone, here wrong by as much as that, so that nothing relies on more.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

namespace elman::emulation {

unsigned float_bits(float x);

float bits_float(unsigned u);

// Bits of bf16, rounded to nearest even; NaN stays NaN.
unsigned bf16_bits(float x);

// Bits of fp16, rounded to nearest even.
unsigned f16_bits(float x);

float f16_float(unsigned bits);

// A number between -1 and 1 that looks random, always the same for the same x.
double noise(float x);

// A value that is wrong by what is documented of the instruction, relative to it, and no more.
float off_by(double exact, float x, double relative);
inline constexpr double LAST_PLACE = 1.0 / (1 << 23);  // in the last place

// What is not a normal number counts as 0, as the instructions that end in .ftz have it.
float flushed(float x);

// The relative error of tanh.approx.f32 is 2^-11, those of sqrt.approx.ftz and rcp.approx.ftz a
// unit in the last place; __expf has 2 + floor(1.173 |x|) of them, __fdividef 2.
float near_tanh(float x);
float near_exp(float x);
float near_quotient(float x, float y);
float near_root(float x);
float near_reciprocal(float x);

}  // namespace elman::emulation
