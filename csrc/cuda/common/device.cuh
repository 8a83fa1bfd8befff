// What the kernels ask of the machine, answered by a GPU of compute capability 8.0 or later. Its
// counterpart emulation/device.h runs the same kernels on a CPU; a translation unit includes one
// of the two first. No header of the CUDA toolkit is needed.
#pragma once

#define DEVICE __device__ __forceinline__

namespace elman {

template <class T>
using sptr = T*;  // into shared memory

extern __shared__ __align__(16) unsigned char shared_memory[];

// Several blocks of a kernel may share one of the GPU's, ELMAN_SHARES of them, each of
// ELMAN_SHARE_WARPS warps with as many producer warps and ELMAN_SHARE_BYTES of shared memory. All
// producer warps stand behind the other warps: a multiprocessor deals its warps to four schedulers
// in turn, and those that walk would meet on two of them otherwise. Kernels see blocks of their
// own.
#if !defined(ELMAN_SHARES)
#define ELMAN_SHARES 1
#define ELMAN_SHARE_WARPS 1
#define ELMAN_SHARE_BYTES 0
#endif
inline constexpr int SHARES = ELMAN_SHARES, SHARED_WARPS = SHARES * ELMAN_SHARE_WARPS;

// Which of the blocks that share one a warp of the GPU's block belongs to, and which of its warps.
DEVICE int share_of(int warp) { return warp % SHARED_WARPS / ELMAN_SHARE_WARPS; }
DEVICE int index_of(int warp) {
  return warp / SHARED_WARPS * ELMAN_SHARE_WARPS + warp % ELMAN_SHARE_WARPS;
}

// Hands out arrays of the block's shared memory, each on a boundary of 16 bytes.
struct Arena {
  int carved = SHARES == 1 ? 0 : share_of(threadIdx.x / 32) * ELMAN_SHARE_BYTES;
  template <class T>
  DEVICE sptr<T> take(int length) {
    T* array = (T*)(shared_memory + carved);
    carved += (length * (int)sizeof(T) + 15) / 16 * 16;
    return array;
  }
};

DEVICE int thread_index() {
  if constexpr (SHARES == 1) return threadIdx.x;
  return index_of(threadIdx.x / 32) * 32 + (int)threadIdx.x % 32;
}
DEVICE long long block_index() {
  if constexpr (SHARES == 1) return blockIdx.x;
  return (long long)blockIdx.x * SHARES + share_of(threadIdx.x / 32);
}

// The warp among those of the GPU's block, such that the compiler sees all lanes agree: otherwise
// it takes a branch on it for one that parts them, and shuffles behind it cost more.
DEVICE int uniform_warp() { return __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); }
DEVICE int warp_index() {
  if constexpr (SHARES == 1) return uniform_warp();
  return index_of(uniform_warp());
}

// Whether this block is none of a grid of so many: fewer may share the last one.
DEVICE bool beyond(long long blocks) {
  if constexpr (SHARES == 1) return false;
  return (long long)blockIdx.x * SHARES + share_of(uniform_warp()) >= blocks;
}
DEVICE void sync_block() {
  if constexpr (SHARES > 1) __trap();  // blocks that share one have no barrier of their own
  __syncthreads();
}
DEVICE void sync_warp() { __syncwarp(); }

// Turn after turn, some threads of a block arrive without a stop and others wait for all of them:
// turn n is over when the ARRIVALS threads from FIRST on have arrived for it. Turns alternate
// between two barriers, so that a warp may arrive for the next turn before another has for this
// one, and a turn may be over before one that waits for the turn before has looked. sync_block, by
// contrast, is one place that all threads of a block have to come to.
template <int FIRST, int ARRIVALS>
struct Signal {
  static constexpr int STRIDE = 16;  // bytes from one barrier to the other
  unsigned barriers;

  // All threads of a block construct it together; signals_ready() has to follow. The first thread
  // is not picked in C++ for the same reason as below.
  DEVICE explicit Signal(Arena& arena)
      : barriers((unsigned)__cvta_generic_to_shared(arena.take<unsigned char>(2 * STRIDE))) {
    asm volatile(
        "{.reg .pred first; setp.eq.s32 first, %3, 0;"
        "@first mbarrier.init.shared.b64 [%0], %2; @first mbarrier.init.shared.b64 [%1], %2;}" ::
            "r"(barriers),
        "r"(barriers + STRIDE), "n"(ARRIVALS), "r"(thread_index()));
    barriers = __shfl_sync(0xffffffffu, barriers, 0);  // the same for all lanes, see uniform_warp
  }

  DEVICE unsigned barrier(unsigned turn) const { return barriers + turn % 2 * STRIDE; }

  // If one lane arrived for its warp, racecheck would not see that the others have.
  DEVICE void arrive(unsigned turn) const {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier(turn))
                 : "memory");
  }

  // Waits for the end of a turn that is not over for longer than one of its kind, even or odd. The
  // loop is not C++, where the compiler would take the lanes for parted.
  DEVICE void wait(unsigned turn) const {
#if __CUDA_ARCH__ >= 900
#define ELMAN_WAIT "mbarrier.try_wait.parity.shared.b64"  // sleeps for a while
#else
#define ELMAN_WAIT "mbarrier.test_wait.parity.shared.b64"
#endif
    asm volatile("{.reg .pred over; again: " ELMAN_WAIT
                 " over, [%0], %1; @!over bra again;}" ::"r"(barrier(turn)),
                 "r"(turn / 2 % 2)
                 : "memory");
  }
};

// Between the construction of signals and their use.
DEVICE void signals_ready() { __syncthreads(); }

template <class T>
DEVICE T shuffle_xor(T x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}

// ---- memory, in words of 4 bytes; an access of several must be aligned to all of them

template <int WORDS>
struct alignas(WORDS * 4) Words {
  unsigned w[WORDS];
};

template <int WORDS, class T>
DEVICE void load_words(unsigned (&w)[WORDS], const T* p) {
  const Words<WORDS> x = *(const Words<WORDS>*)p;
#pragma unroll
  for (int i = 0; i < WORDS; i++) w[i] = x.w[i];
}

template <int WORDS, class T>
DEVICE void store_words(T* p, const unsigned (&w)[WORDS]) {
  Words<WORDS> x;
#pragma unroll
  for (int i = 0; i < WORDS; i++) x.w[i] = w[i];
  *(Words<WORDS>*)p = x;
}

template <class T>
DEVICE T load_one(const T* p) {
  return *p;
}

template <class T>
DEVICE void store_one(T* p, T x) {
  *p = x;
}

// The same memory as an array of another type.
template <class U, class T>
DEVICE sptr<U> cast(sptr<T> p) {
  return (sptr<U>)p;
}

// ---- copies from global to shared memory that run beside the computation

// Starts a copy of BYTES bytes, of which the first `valid` are read and the others zero.
template <int BYTES>
DEVICE void copy_async(sptr<unsigned char> to, const void* from, int valid) {
  const unsigned target = (unsigned)__cvta_generic_to_shared(to);
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from),
                 "r"(valid)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(target), "l"(from),
                 "r"(valid), "n"(BYTES)
                 : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's copies, all but the last PENDING committed groups.
template <int PENDING>
DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// The halves of a word, exchanged if `swapped`.
DEVICE unsigned exchange_halves(unsigned w, bool swapped) {
  return __byte_perm(w, 0, swapped ? 0x1032 : 0x3210);
}

// ---- conversions

DEVICE unsigned float_bits(float x) { return __float_as_uint(x); }
DEVICE float bits_float(unsigned u) { return __uint_as_float(u); }

// a b + c, rounded once on a GPU.
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

#if defined(ELMAN_TANH_APPROX)
// One instruction of sm_75 and later, relative error 2^-11.
DEVICE float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// To 2 + 1.173 |x| units in the last place.
DEVICE float fast_exp(float x) { return __expf(x); }
// To 2 units in the last place, of a normal divisor.
DEVICE float fast_quotient(float x, float y) { return __fdividef(x, y); }
// To 1 unit in the last place; what is not a normal number counts as 0.
DEVICE float square_root(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
DEVICE float square_root(float x) { return sqrtf(x); }
DEVICE float reciprocal(float x) { return 1.0f / x; }
#endif
DEVICE double square_root(double x) { return sqrt(x); }
DEVICE double reciprocal(double x) { return 1.0 / x; }

// Rounded as the CUDA library does it, whatever options a kernel is compiled with.
DEVICE float exact_root(float x) { return __fsqrt_rn(x); }
DEVICE float exact_quotient(float x, float y) { return __fdiv_rn(x, y); }
DEVICE float exact_exp(float x) { return expf(x); }

DEVICE unsigned pack_bf16(float low, float high) {
  unsigned w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
}

DEVICE unsigned pack_f16(float low, float high) {
  unsigned w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
}

DEVICE float low_f16(unsigned w) {
  float x;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(x) : "r"(w));
  return x;
}

DEVICE float high_f16(unsigned w) {
  float x;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(w));
  return x;
}

// A kernel may be launched to begin while the one before it on the stream still runs: what it reads
// of that one's results, and all that it writes, comes after this.
DEVICE void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace elman

// Lets a kernel begin that was launched to begin early; of no effect where the next one was not.
#if __CUDA_ARCH__ >= 900
#define ELMAN_LET_SUCCESSOR_BEGIN asm volatile("griddepcontrol.launch_dependents;")
#else
#define ELMAN_LET_SUCCESSOR_BEGIN
#endif

// A kernel of its own name, at most THREADS threads a block and at least BLOCKS blocks at a time.
#define ELMAN_KERNEL(NAME, THREADS, BLOCKS, ARGS, CALL)                          \
  extern "C" __global__ void __launch_bounds__((THREADS) * ELMAN_SHARES, BLOCKS) \
      NAME(const __grid_constant__ ARGS a) {                                     \
    ELMAN_LET_SUCCESSOR_BEGIN;                                                   \
    CALL;                                                                        \
  }
