// States between memory and the blocks of the engine.
#pragma once
#include "cpu/matrix_state/rows.h"

namespace elman::cpu {

// Block `block` of a head, the m-th of the M whose vectors alternate from S on.
template <class Spec, int M>
struct States : Layout<Spec> {
  using L = Layout<Spec>;
  using T = typename L::T;
  using V = typename L::V;
  static constexpr int R = L::R, N = L::N, W = L::W;

  // A tensor [R][N]; null is zeros. Lanes beyond R are 0.
  static void load(const T* from, int block, V* S, int m) {
    for (int j = 0; j < N; j++) {
      V x = {};
      for (int l = 0; from && l < W; l++) {
        const int i = block * W + l;
        if (i < R) x[l] = from[i * N + j];
      }
      S[j * M + m] = x;
    }
  }
  static void store(const V* S, int m, int block, T* to) {
    for (int l = 0; l < W; l++) {
      const int i = block * W + l;
      for (int j = 0; i < R && j < N; j++) to[i * N + j] = S[j * M + m][l];
    }
  }
  // A checkpoint, [N][R].
  static void keep(const V* S, int m, int block, T* to) {
    for (int j = 0; j < N; j++) Rows<Spec, M>::write(to + j * R, block, S[j * M + m]);
  }
  static void fetch(const T* from, int block, V* S, int m) {
    for (int j = 0; j < N; j++) S[j * M + m] = Rows<Spec, M>::read(from + j * R, block);
  }
};

}  // namespace elman::cpu
