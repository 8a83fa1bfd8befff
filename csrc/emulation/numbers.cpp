// What numbers.h declares.
#include "emulation/numbers.h"

namespace elman::emulation {

unsigned float_bits(float x) {
  unsigned u;
  std::memcpy(&u, &x, 4);
  return u;
}

float bits_float(unsigned u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

unsigned bf16_bits(float x) {
  const unsigned u = float_bits(x);
  return x != x ? 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}

unsigned f16_bits(float x) {
  const unsigned sign = float_bits(x) >> 16 & 0x8000u;
  const float a = std::fabs(x);
  if (x != x) return 0x7fffu;
  if (a >= 65520.0f) return sign | 0x7c00u;
  if (a == 0.0f) return sign;  // frexp knows no exponent of it
  int exponent;
  std::frexp(a, &exponent);
  const int e = std::max(exponent, -13);  // least exponent of a normal number, as frexp counts
  const unsigned mantissa = (unsigned)std::nearbyint(std::ldexp(a, 11 - e));  // <= 2^11
  return sign | ((unsigned)(e + 13) * 1024u + mantissa);
}

float f16_float(unsigned bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                          : exponent     ? std::ldexp(1024.0f + mantissa, exponent - 25)
                                         : std::ldexp((float)mantissa, -24);
  return bits & 0x8000u ? -magnitude : magnitude;
}

double noise(float x) {
  const unsigned mixed = (float_bits(x) ^ float_bits(x) >> 15) * 2654435761u;
  return (mixed ^ mixed >> 13) * (2.0 / 4294967295.0) - 1.0;
}

float off_by(double exact, float x, double relative) {
  return (float)(exact * (1.0 + noise(x) * relative));
}

float flushed(float x) { return std::fabs(x) < 1.17549435e-38f ? x * 0.0f : x; }

float near_tanh(float x) {
  const float y = off_by(std::tanh((double)x), x, 1.0 / (1 << 11));
  return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}

float near_exp(float x) {
  const double units = std::fabs(x) < 128.0f ? 2.0 + std::floor(1.173 * std::fabs(x)) : 0.0;
  return flushed(off_by(std::exp((double)flushed(x)), x, units * LAST_PLACE));
}

float near_quotient(float x, float y) { return off_by((double)x / y, x, 2.0 * LAST_PLACE); }

float near_root(float x) { return off_by(std::sqrt((double)flushed(x)), x, LAST_PLACE); }

float near_reciprocal(float x) { return flushed(off_by(1.0 / flushed(x), x, LAST_PLACE)); }

}  // namespace elman::emulation
