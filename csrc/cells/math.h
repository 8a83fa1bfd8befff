// Functions of one number that the cells are written in, for float, double and, on the CPU, SIMD
// vectors of either; maps.h has activations and what else is made of them. Relative errors,
// measured over all floats unless it says otherwise:
//
//   vectors of float   tanh 4e-7, exp 2e-7 (on [-87.3, 88.3], beyond it the value at the bound),
//                      sigmoid 3e-7 above x = -87, softplus 4e-7
//   float, double      the C library (CUDA: its own), and what follows from it; with
//                      ELMAN_TANH_APPROX, floats: what cuda/common/device.cuh says of its fast
//                      functions
//   vectors of double  the C library, lane by lane: fp64 is for checks, not for speed
//
// NaN goes through every function. Include it as "cells/math.h" and never put this folder on an
// include path: the C library has a math.h, too.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define HD __host__ __device__ __forceinline__
#else
#include <cmath>
#include <cstdint>
#include <type_traits>
#define HD inline __attribute__((always_inline))
// Bytes of the widest vector that the target computes with at full speed. Wider ones are no use:
// g++ lowers their comparisons and shuffles to scalar code.
#if defined(__AVX512F__)
#define ELMAN_VECTOR_BYTES 64
#elif defined(__AVX__)
#define ELMAN_VECTOR_BYTES 32
#else
#define ELMAN_VECTOR_BYTES 16
#endif
#endif

namespace elman {

// ---- numbers ----

#if defined(ELMAN_TANH_APPROX)
// The machine's own fast functions, of the device header that a kernel's text includes first.
HD float exp(float x) { return fast_exp(x); }
// On [0, 1], all that softplus needs; relative error 4e-7, as for vectors below.
HD float log1p(float x) {
  float s = fast_quotient(x, x + 2.0f), z = s * s;
  float p = z * 0.2801198661327362f + 0.28001806139945984f;
  p = (p * z + 0.4002152681350708f) * z + 0.666664183139801f;
  return (p * z) * s + s * 2.0f;
}
HD float tanh(float x) { return fast_tanh(x); }
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
HD float exp(float x) { return expf(x); }
HD float log1p(float x) { return log1pf(x); }
HD float tanh(float x) { return tanhf(x); }
#else
HD float exp(float x) { return std::exp(x); }
HD float log1p(float x) { return std::log1p(x); }
HD float tanh(float x) { return std::tanh(x); }
#endif
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
HD double exp(double x) { return ::exp(x); }
HD double log1p(double x) { return ::log1p(x); }
HD double tanh(double x) { return ::tanh(x); }
#else
HD double exp(double x) { return std::exp(x); }
HD double log1p(double x) { return std::log1p(x); }
HD double tanh(double x) { return std::tanh(x); }
#endif
#if !defined(DEVICE) && !defined(__CUDACC_RTC__)  // a device header has its machine's own
HD float square_root(float x) { return std::sqrt(x); }
HD double square_root(double x) { return std::sqrt(x); }
HD float reciprocal(float x) { return 1.0f / x; }
HD double reciprocal(double x) { return 1.0 / x; }
#endif

// ---- vectors ----

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
// A vector of W lanes. g++ takes no attribute that depends on a template's argument, so each width
// is named; a lane count that no width has is an error at the use.
template <class T, int W>
struct VectorOf;
#define ELMAN_VECTOR(T, INT, W)                                   \
  template <>                                                     \
  struct VectorOf<T, W> {                                         \
    typedef T type __attribute__((vector_size(W * sizeof(T))));   \
    typedef INT bits __attribute__((vector_size(W * sizeof(T)))); \
  };
ELMAN_VECTOR(float, int32_t, 4)
ELMAN_VECTOR(double, int64_t, 2)
#if ELMAN_VECTOR_BYTES >= 32
ELMAN_VECTOR(float, int32_t, 8)
ELMAN_VECTOR(double, int64_t, 4)
#endif
#if ELMAN_VECTOR_BYTES >= 64
ELMAN_VECTOR(float, int32_t, 16)
ELMAN_VECTOR(double, int64_t, 8)
#endif
#undef ELMAN_VECTOR

template <class T, int W>
using Vector = typename VectorOf<T, W>::type;

// Lanes of the native vector.
template <class T>
inline constexpr int LANES = ELMAN_VECTOR_BYTES / int(sizeof(T));

template <class V>
using LaneOf = std::remove_cv_t<std::remove_reference_t<decltype(V{}[0])>>;
template <class V>
inline constexpr int LANES_OF = int(sizeof(V) / sizeof(LaneOf<V>));
template <class V>
using BitsOf = typename VectorOf<LaneOf<V>, LANES_OF<V>>::bits;
template <class V>
inline constexpr bool IS_FLOAT = std::is_same_v<LaneOf<V>, float>;

// The smaller or larger of x and a bound. x stands last, so a NaN in it stays; for the same reason
// compilers do not find x86's instructions by themselves. (Its header takes half a second to read.)
#if defined(__clang__)
#define ELMAN_X86_512(NAME, A, B) __builtin_ia32_##NAME##512(A, B, 4)
#else
#define ELMAN_X86_512(NAME, A, B) __builtin_ia32_##NAME##512_mask(A, B, B, -1, 4)
#endif
#if defined(__AVX512F__)
#define ELMAN_X86(NAME, A, B)                                             \
  if constexpr (sizeof(A) == 64) return ELMAN_X86_512(NAME, A, B);        \
  if constexpr (sizeof(A) == 32) return __builtin_ia32_##NAME##256(A, B); \
  if constexpr (sizeof(A) == 16) return __builtin_ia32_##NAME(A, B);
#elif defined(__AVX__)
#define ELMAN_X86(NAME, A, B)                                             \
  if constexpr (sizeof(A) == 32) return __builtin_ia32_##NAME##256(A, B); \
  if constexpr (sizeof(A) == 16) return __builtin_ia32_##NAME(A, B);
#elif defined(__SSE2__)
#define ELMAN_X86(NAME, A, B) return __builtin_ia32_##NAME(A, B);
#else
#define ELMAN_X86(NAME, A, B)
#endif
template <class V>
HD V at_most(V x, float bound) {
  V b = V{} + bound;
  ELMAN_X86(minps, b, x)
  return b < x ? b : x;
}
template <class V>
HD V at_least(V x, float bound) {
  V b = V{} + bound;
  ELMAN_X86(maxps, b, x)
  return b > x ? b : x;
}
#undef ELMAN_X86
#undef ELMAN_X86_512

// A rational minimax fit of our own, of the lowest degrees whose error is that of rounding.
template <class V>
HD V tanh(V x) {
  if constexpr (IS_FLOAT<V>) {
    x = at_least(at_most(x, 8.0f), -8.0f);  // tanh(8) = 1 - 2e-7, where the fit is 1 - 6e-8
    V u = x * x;
    V p = u * 1.1428417565184645e-05f + 0.002951023168861866f;
    V q = u * 2.459209156313591e-07f + 0.00023866909032221884f;
    p = p * u + 0.12925662100315094f;
    q = q * u + 0.02381555177271366f;
    p = p * u + 0.9999998807907104f;
    q = q * u + 0.4625887870788574f;
    q = q * u + 1.0f;
    return x * p / q;
  } else {
    for (int i = 0; i < LANES_OF<V>; i++) x[i] = std::tanh(x[i]);
    return x;
  }
}

template <class V>
HD V exp(V x) {
  if constexpr (IS_FLOAT<V>) {
    x = at_least(at_most(x, 88.3f), -87.3f);
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves a whole number in the low bits
    V shifted = x * 1.44269504088896341f + round;
    V n = shifted - round;
    V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
    V p = r * 0.001381461275741458f + 0.008368710055947304f;
    p = p * r + 0.04166838899254799f;
    p = p * r + 0.1666652113199234f;
    p = p * r + 0.4999999403953552f;
    p = (p * r + 1.0f) * r + 1.0f;
    BitsOf<V> bits = (BitsOf<V>)p + ((BitsOf<V>)shifted << 23);  // times 2^n
    return (V)bits;
  } else {
    for (int i = 0; i < LANES_OF<V>; i++) x[i] = std::exp(x[i]);
    return x;
  }
}

template <class V>
HD V square_root(V x) {
  for (int i = 0; i < LANES_OF<V>; i++) x[i] = std::sqrt(x[i]);
  return x;
}

// log(1 + x) for x in [0, 1], all that softplus needs.
template <class V>
HD V log1p(V x) {
  if constexpr (IS_FLOAT<V>) {
    V s = x / (x + 2.0f), z = s * s;  // log(1 + x) = 2 artanh(s)
    V p = z * 0.2801198661327362f + 0.28001806139945984f;
    p = p * z + 0.4002152681350708f;
    p = p * z + 0.666664183139801f;
    return (p * z) * s + s * 2.0f;
  } else {
    for (int i = 0; i < LANES_OF<V>; i++) x[i] = std::log1p(x[i]);
    return x;
  }
}
#endif

// ---- what follows from them ----

HD float absolute(float x) { return x < 0 ? -x : x; }
HD double absolute(double x) { return x < 0 ? -x : x; }
HD float sign(float x) { return float(x > 0) - float(x < 0); }
HD double sign(double x) { return double(x > 0) - double(x < 0); }
HD float positive(float x) { return x < 0 ? 0 : x; }
HD double positive(double x) { return x < 0 ? 0 : x; }
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
template <class V>
HD V absolute(V x) {
  return x < V{} ? -x : x;
}
template <class V>
HD V sign(V x) {
  V one = V{} + LaneOf<V>(1);
  return x > V{} ? one : (x < V{} ? -one : V{});
}
template <class V>
HD V positive(V x) {
  return x < V{} ? V{} : x;
}
#endif

template <class T>
HD T sigmoid(T x) {
#if defined(ELMAN_TANH_APPROX)
  return tanh(x * 0.5f) * 0.5f + 0.5f;  // one instruction of the special function unit, not two
#else
  return 1.0f / (1.0f + exp(-x));
#endif
}

// log(1 + exp(x)), without overflow.
template <class T>
HD T softplus(T x) {
  return positive(x) + log1p(exp(-absolute(x)));
}

}  // namespace elman
