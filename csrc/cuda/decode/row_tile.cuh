// Products of 8 rows of a matrix with up to 4 rows x, by tensor cores. A kernel of a single product
// (tile_product.cuh) and one of whole steps (product.cuh) share them, so that both have one order
// of sums: of the parts of a chunk of 128 columns, and then of the chunks.
//
// With g = lane / 4 and c = lane % 4 a lane holds, of every 32 columns of row g, the 8 from 8 c on:
// as it reads them, they are what multiply_tiles takes. A tile there has 16 rows. So a row is two
// of them, with half of the columns each, and x n is the columns 2 n and 2 n + 1 of the other
// factor: the first has the numbers that meet one half, the second those that meet the other.
#pragma once
#include "cells/math.h"
#include "cuda/common/pack.cuh"

namespace elman {

struct RowTile {
  static constexpr int CHUNK = 128, PARTS = CHUNK / 32, ROWS = 8, MOST_X = 4;

  // A lane's numbers of a chunk: of a row of the matrix as they stand in memory, and of x.
  struct Row {
    unsigned words[PARTS][4];
  };
  struct Column {
    unsigned words[PARTS][2];
  };

  HD static constexpr int chunks(int inputs) { return (inputs + CHUNK - 1) / CHUNK; }
  DEVICE static int group() { return thread_index() % 32 / 4; }

  // The first of the lane's columns in a part of a chunk.
  DEVICE static int column(int chunk, int part) {
    return chunk * CHUNK + part * 32 + thread_index() % 4 * 8;
  }

  // Reads the lane's numbers of a chunk; its row begins at `row`, in memory of any kind. Zeros
  // stand for columns from INPUTS on, and for a row that is not there.
  template <int INPUTS, class P>
  DEVICE static void read(Row& to, P row, int chunk, bool there) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      const int at = column(chunk, part);
#pragma unroll
      for (int i = 0; i < 4; i++) to.words[part][i] = 0;
      if (there && (INPUTS % CHUNK == 0 || at < INPUTS)) load_words(to.words[part], row + at);
    }
  }
  // The same of WIDE rows x, `pitch` numbers from one to the next.
  template <int INPUTS, int WIDE, class P>
  DEVICE static void read_x(Column& to, P x, int pitch, int chunk) {
    static_assert(WIDE <= MOST_X, "rows x");
    const int of = group() / 2;
    const bool second = group() % 2;
    Row all;
    read<INPUTS>(all, x + of * pitch, chunk, of < WIDE);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      to.words[part][0] = second ? all.words[part][1] : all.words[part][0];
      to.words[part][1] = second ? all.words[part][3] : all.words[part][2];
    }
  }

  // The sum of a chunk, by the whole warp: of row g with x c.
  DEVICE static float multiply(const Row& row, const Column& x) {
    float sums[4] = {};
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      multiply_tiles(sums, row.words[part], x.words[part][0], x.words[part][1]);
    return sums[0] + sums[3];
  }
};

}  // namespace elman
