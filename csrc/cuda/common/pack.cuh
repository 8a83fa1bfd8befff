// Numbers in memory and in registers: bf16 and fp16 as stored, vectors of any of them.
#pragma once

namespace elman {

struct bf16 {
  unsigned short bits;
};

struct f16 {
  unsigned short bits;
};

// How two numbers of a 16-bit type stand in a word.
template <class S>
struct Half;

template <>
struct Half<bf16> {
  static DEVICE unsigned pack(float low, float high) { return pack_bf16(low, high); }
  static DEVICE float low(unsigned w) { return bits_float(w << 16); }
  static DEVICE float high(unsigned w) { return bits_float(w & 0xffff0000u); }
};

template <>
struct Half<f16> {
  static DEVICE unsigned pack(float low, float high) { return pack_f16(low, high); }
  static DEVICE float low(unsigned w) { return low_f16(w); }
  static DEVICE float high(unsigned w) { return high_f16(w); }
};

// V numbers of type S to and from 4-byte words; V S is a whole number of words.
template <int V, class S, class A>
DEVICE void unpack(A* x, const unsigned* w) {
#pragma unroll
  for (int i = 0; i < V; i++) {
    if constexpr (sizeof(S) == 2) {
      x[i] = i % 2 ? Half<S>::high(w[i / 2]) : Half<S>::low(w[i / 2]);
    } else if constexpr (sizeof(S) == 4) {
      x[i] = bits_float(w[i]);
    } else {
      S number;
      memcpy(&number, w + 2 * i, sizeof(S));
      x[i] = number;
    }
  }
}

template <int V, class S, class A>
DEVICE void pack(unsigned* w, const A* x) {
#pragma unroll
  for (int i = 0; i < V; i++) {
    if constexpr (sizeof(S) == 2) {
      if (i % 2 == 0) w[i / 2] = Half<S>::pack((float)x[i], (float)x[i + 1]);
    } else if constexpr (sizeof(S) == 4) {
      w[i] = float_bits((float)x[i]);
    } else {
      const S number = x[i];
      memcpy(w + 2 * i, &number, sizeof(S));
    }
  }
}

// How many numbers of type S one access of memory moves at most, out of V.
template <int V, class S>
inline constexpr int CHUNK = V * (int)sizeof(S) > 16 ? 16 / (int)sizeof(S) : V;

// Reads V consecutive numbers of type S; `p` points to shared or to global memory and is aligned
// to all of them, or to 16 bytes.
template <int V, class S, class A, class P>
DEVICE void load(A* x, P p) {
  constexpr int N = CHUNK<V, S>, WORDS = N * (int)sizeof(S) / 4;
  if constexpr (WORDS == 0) {
    const S number = load_one(p);
    x[0] = Half<S>::low(number.bits);
  } else {
#pragma unroll
    for (int i = 0; i < V; i += N) {
      unsigned w[WORDS];
      load_words(w, p + i);
      unpack<N, S>(x + i, w);
    }
  }
}

// V consecutive numbers of type S as they stand in memory: a thread that reads them long before it
// needs them keeps half the registers of fp32, and waits where it unpacks.
template <int V, class S>
struct Packed {
  static constexpr int N = CHUNK<V, S>, WORDS = N * (int)sizeof(S) / 4;
  unsigned w[V / N][WORDS > 0 ? WORDS : 1];

  template <class P>
  DEVICE void read(P p) {
    if constexpr (WORDS == 0) {
      w[0][0] = load_one(p).bits;
    } else {
#pragma unroll
      for (int i = 0; i < V / N; i++) load_words(w[i], p + i * N);
    }
  }
  DEVICE void to(float (&x)[V]) const {
    if constexpr (WORDS == 0) {
      x[0] = Half<S>::low(w[0][0]);
    } else {
#pragma unroll
      for (int i = 0; i < V / N; i++) unpack<N, S>(x + i * N, w[i]);
    }
  }
};

template <int V, class S, class A, class P>
DEVICE void store(P p, const A* x) {
  constexpr int N = CHUNK<V, S>, WORDS = N * (int)sizeof(S) / 4;
  if constexpr (WORDS == 0) {
    store_one(p, S{(unsigned short)Half<S>::pack((float)x[0], 0.0f)});
  } else {
#pragma unroll
    for (int i = 0; i < V; i += N) {
      unsigned w[WORDS];
      pack<N, S>(w, x + i);
      store_words(p + i, w);
    }
  }
}

}  // namespace elman
