// What the kernels of csrc/cuda ask of the machine, answered by the emulator: the counterpart of
// cuda/device.cuh. A translation unit includes one of the two and then the same kernels.
#pragma once
#include <cmath>

#include "memory.h"

#define DEVICE inline

namespace elman {

template <class T>
using sptr = emulation::Pointer<T>;

// Hands out arrays of the block's shared memory, each on a boundary of 16 bytes.
struct Arena {
  size_t carved = 0;
  template <class T>
  sptr<T> take(int length) {
    return emulation::carve<T>(carved, length);
  }
};

DEVICE int thread_index() { return emulation::current->thread; }
DEVICE int warp_index() { return thread_index() / 32; }
DEVICE long long block_index() { return emulation::block_index; }
DEVICE bool beyond(long long blocks) { return block_index() >= blocks; }

#define ELMAN_TEXT2(x) #x
#define ELMAN_TEXT(x) ELMAN_TEXT2(x)
#define ELMAN_HERE __FILE__ ":" ELMAN_TEXT(__LINE__)
#define sync_block() elman::emulation::wait(elman::emulation::Wait::block, "barrier " ELMAN_HERE)
#define sync_warp()                                                                  \
  (elman::emulation::wait(elman::emulation::Wait::warp, "warp barrier " ELMAN_HERE), \
   (void)elman::emulation::current->warp_epoch++)

template <int FIRST, int ARRIVALS>
struct Signal {
  static constexpr int STRIDE = 16;
  size_t barriers;

  DEVICE explicit Signal(Arena& arena) : barriers(arena.carved) {
    arena.take<unsigned char>(2 * STRIDE);
    for (int i = 0; i < 2; i++) emulation::make_barrier(barrier(i), FIRST, ARRIVALS);
  }
  DEVICE size_t barrier(unsigned turn) const { return barriers + turn % 2 * STRIDE; }
  DEVICE void arrive(unsigned turn) const { emulation::arrive(barrier(turn), FIRST); }
  DEVICE void wait(unsigned turn) const { emulation::wait_for(barrier(turn), FIRST, turn / 2); }
};

DEVICE void signals_ready() { sync_block(); }

template <class T>
DEVICE T shuffle_xor(T x, int mask) {
  const int thread = emulation::current->thread;
  return emulation::exchange(x, (thread & ~31) | ((thread ^ mask) & 31), "shuffle");
}

// ---- memory, in words of 4 bytes; an access of several must be aligned to all of them

template <int WORDS, class T>
DEVICE void load_words(unsigned (&w)[WORDS], sptr<T> p) {
  const unsigned* from = p.template as<unsigned>().at(0, WORDS);
  emulation::touch(from, WORDS * 4, false);
  for (int i = 0; i < WORDS; i++) w[i] = from[i];
}

template <int WORDS, class T>
DEVICE void store_words(sptr<T> p, const unsigned (&w)[WORDS]) {
  unsigned* to = p.template as<unsigned>().at(0, WORDS);
  emulation::touch(to, WORDS * 4, true);
  for (int i = 0; i < WORDS; i++) to[i] = w[i];
}

template <int WORDS, class T>
DEVICE void load_words(unsigned (&w)[WORDS], const T* p) {
  if ((uintptr_t)p % (WORDS * 4)) emulation::report("global load is not aligned");
  for (int i = 0; i < WORDS; i++) emulation::touch_global((const unsigned*)p + i, false);
  std::memcpy(w, p, WORDS * 4);
}

template <int WORDS, class T>
DEVICE void store_words(T* p, const unsigned (&w)[WORDS]) {
  if ((uintptr_t)p % (WORDS * 4)) emulation::report("global store is not aligned");
  for (int i = 0; i < WORDS; i++) emulation::touch_global((const unsigned*)p + i, true);
  std::memcpy(p, w, WORDS * 4);
}

template <class T>
DEVICE T load_one(const T* p) {
  emulation::touch_global(p, false);
  return *p;
}

template <class T>
DEVICE void store_one(T* p, T x) {
  emulation::touch_global(p, true);
  *p = x;
}

template <class T>
DEVICE T load_one(sptr<T> p) {
  return p[0];
}

template <class T>
DEVICE void store_one(sptr<T> p, T x) {
  p[0] = x;
}

// The same memory as an array of another type.
template <class U, class T>
DEVICE sptr<U> cast(sptr<T> p) {
  return p.template as<U>();
}

// ---- copies from global to shared memory that run beside the computation

// Starts a copy of BYTES bytes, of which the first `valid` are read and the others zero.
template <int BYTES>
DEVICE void copy_async(sptr<unsigned char> to, const void* from, int valid) {
  emulation::queue_copy(to, from, BYTES, valid);
}

DEVICE void commit_copies() { emulation::commit_copies(); }

// Waits for this thread's copies, all but the last PENDING committed groups.
template <int PENDING>
DEVICE void wait_copies() {
  emulation::wait_copies(PENDING);
}

// The halves of a word, exchanged if `swapped`.
DEVICE unsigned exchange_halves(unsigned w, bool swapped) {
  return swapped ? w << 16 | w >> 16 : w;
}

// ---- conversions

DEVICE unsigned float_bits(float x) {
  unsigned u;
  std::memcpy(&u, &x, 4);
  return u;
}

DEVICE float bits_float(unsigned u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

template <class A>
DEVICE A fused(A a, A b, A c) {
  return a * b + c;
}
DEVICE float square_root(float x) { return std::sqrt(x); }
DEVICE double square_root(double x) { return std::sqrt(x); }
DEVICE float reciprocal(float x) { return 1.0f / x; }
DEVICE double reciprocal(double x) { return 1.0 / x; }

// Bits of bf16, rounded to nearest even; NaN stays NaN.
DEVICE unsigned bf16_bits(float x) {
  const unsigned u = float_bits(x);
  return x != x ? 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}

// Bits of fp16, rounded to nearest even.
DEVICE unsigned f16_bits(float x) {
  const unsigned sign = float_bits(x) >> 16 & 0x8000u;
  const float a = std::fabs(x);
  if (x != x) return 0x7fffu;
  if (a >= 65520.0f) return sign | 0x7c00u;
  int exponent;
  std::frexp(a, &exponent);
  const int e = std::max(exponent, -13);  // least exponent of a normal number, as frexp counts
  const unsigned mantissa = (unsigned)std::nearbyint(std::ldexp(a, 11 - e));  // <= 2^11
  return sign | ((unsigned)(e + 13) * 1024u + mantissa);
}

DEVICE float f16_float(unsigned bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                          : exponent     ? std::ldexp(1024.0f + mantissa, exponent - 25)
                                         : std::ldexp((float)mantissa, -24);
  return bits & 0x8000u ? -magnitude : magnitude;
}

DEVICE unsigned pack_bf16(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
DEVICE unsigned pack_f16(float low, float high) { return f16_bits(low) | f16_bits(high) << 16; }
DEVICE float low_f16(unsigned w) { return f16_float(w & 0xffffu); }
DEVICE float high_f16(unsigned w) { return f16_float(w >> 16); }

}  // namespace elman

// A kernel of its own name, for Python: runs the grid and returns "" or the first error.
#define ELMAN_KERNEL(NAME, THREADS, BLOCKS, ARGS, CALL)                                     \
  extern "C" const char* NAME(const ARGS* given, long long blocks, int shared_bytes,        \
                              unsigned seed) {                                              \
    static std::string message;                                                             \
    const ARGS& a = *given;                                                                 \
    message = elman::emulation::launch(blocks, THREADS, shared_bytes, seed, [&] { CALL; }); \
    return message.c_str();                                                                 \
  }
