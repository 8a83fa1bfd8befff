// What the kernels of csrc/cuda ask of the machine, answered by the emulator: the counterpart of
// cuda/common/device.cuh. A translation unit includes one of the two and then the same kernels.
#pragma once
#include "emulation/copies.h"
#include "emulation/numbers.h"

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
// A GPU asks a lane of the warp, so all of its lanes have to come.
DEVICE int warp_index() {
  return emulation::exchange(thread_index() / 32, thread_index() & ~31, "warp_index");
}
DEVICE long long block_index() { return emulation::block_index; }
DEVICE bool beyond(long long blocks) { return block_index() >= blocks; }

#define ELMAN_TEXT2(x) #x
#define ELMAN_TEXT(x) ELMAN_TEXT2(x)
#define ELMAN_HERE __FILE__ ":" ELMAN_TEXT(__LINE__)
#define sync_block() elman::emulation::wait(elman::emulation::Wait::block, "barrier " ELMAN_HERE)
#define sync_warp() elman::emulation::meet_warp("warp barrier " ELMAN_HERE)

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
  std::memset(w, 0xff, WORDS * 4);
  if (emulation::touch_global(p, WORDS * 4, false)) std::memcpy(w, p, WORDS * 4);
}

template <int WORDS, class T>
DEVICE void store_words(T* p, const unsigned (&w)[WORDS]) {
  if ((uintptr_t)p % (WORDS * 4)) emulation::report("global store is not aligned");
  if (emulation::touch_global(p, WORDS * 4, true)) std::memcpy(p, w, WORDS * 4);
}

template <class T>
DEVICE T load_one(const T* p) {
  return emulation::touch_global(p, sizeof(T), false) ? *p : T{};
}

template <class T>
DEVICE void store_one(T* p, T x) {
  if (emulation::touch_global(p, sizeof(T), true)) *p = x;
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

using emulation::bits_float;
using emulation::float_bits;

template <class A>
DEVICE A fused(A a, A b, A c) {
  return a * b + c;
}
DEVICE double square_root(double x) { return std::sqrt(x); }
DEVICE double reciprocal(double x) { return 1.0 / x; }

#if defined(ELMAN_TANH_APPROX)
DEVICE float fast_tanh(float x) { return emulation::near_tanh(x); }
DEVICE float fast_exp(float x) { return emulation::near_exp(x); }
DEVICE float fast_quotient(float x, float y) { return emulation::near_quotient(x, y); }
DEVICE float square_root(float x) { return emulation::near_root(x); }
DEVICE float reciprocal(float x) { return emulation::near_reciprocal(x); }
#else
DEVICE float square_root(float x) { return std::sqrt(x); }
DEVICE float reciprocal(float x) { return 1.0f / x; }
#endif

DEVICE float exact_root(float x) { return std::sqrt(x); }
DEVICE float exact_quotient(float x, float y) { return x / y; }
DEVICE float exact_exp(float x) { return std::exp(x); }

DEVICE unsigned pack_bf16(float low, float high) {
  return emulation::bf16_bits(low) | emulation::bf16_bits(high) << 16;
}
DEVICE unsigned pack_f16(float low, float high) {
  return emulation::f16_bits(low) | emulation::f16_bits(high) << 16;
}
DEVICE float low_f16(unsigned w) { return emulation::f16_float(w & 0xffffu); }
DEVICE float high_f16(unsigned w) { return emulation::f16_float(w >> 16); }

// Kernels run one after another here; what is touched before this is reported all the same.
DEVICE void wait_for_predecessor() { emulation::current->waited = true; }

}  // namespace elman

// A kernel of its own name, for Python: runs blocks of the grid from `first` on, and returns "" or
// the first error.
#define ELMAN_KERNEL(NAME, THREADS, BLOCKS, ARGS, CALL)                                            \
  extern "C" const char* NAME(const ARGS* given, long long first, long long blocks,                \
                              int shared_bytes, unsigned seed) {                                   \
    static std::string message;                                                                    \
    const ARGS& a = *given;                                                                        \
    message = elman::emulation::launch(first, blocks, THREADS, shared_bytes, seed, [&] { CALL; }); \
    return message.c_str();                                                                        \
  }
