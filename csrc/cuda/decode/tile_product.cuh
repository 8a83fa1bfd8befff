// y = x W^T for a few rows x in bf16, by tensor cores: the counterpart of row_product.cuh, which
// has every other dtype. A block has 8 rows of W, its warps share the chunks of a row, and W is
// read once.
#pragma once
#include "cuda/decode/row_product.cuh"
#include "cuda/decode/row_tile.cuh"

namespace elman {

template <int I_, int ROWS_, int WARPS_>
struct TileProductConfig {
  static constexpr int I = I_, ROWS = ROWS_, WARPS = WARPS_, THREADS = 32 * WARPS;
  static constexpr int TALL = RowTile::ROWS, SUMS = TALL * ROWS;
  static constexpr int CHUNKS = RowTile::chunks(I), EACH = (CHUNKS + WARPS - 1) / WARPS;
  static constexpr int AHEAD = EACH < 4 ? EACH : 4;
  static_assert(SUMS <= 32, "a sum has a lane of the first warp");
};

template <class G>
struct TileProduct {
  const RowProductArgs& a;
  const sptr<float> partial;  // [CHUNKS, TALL, ROWS]
  const long long first = block_index() * G::TALL;
  const int warp = warp_index();  // by all lanes, so not where some of them are

  DEVICE TileProduct(const RowProductArgs& args, Arena arena)
      : a(args), partial(arena.take<float>(G::CHUNKS * G::SUMS)) {}

  DEVICE int chunk(int n) const { return warp + n * G::WARPS; }

  DEVICE void read(RowTile::Row& to, int n) const {
    const long long row = first + RowTile::group();
    RowTile::read<G::I>(to, (const bf16*)a.weight + row * G::I, chunk(n),
                        row < a.outputs && chunk(n) < G::CHUNKS);
  }
  // Leaves the sums of a chunk.
  DEVICE void multiply(const RowTile::Row& weights, int n) const {
    if (chunk(n) >= G::CHUNKS) return;  // a whole warp at once
    RowTile::Column x;
    RowTile::read_x<G::I, G::ROWS>(x, (const bf16*)a.x, G::I, chunk(n));
    const float sum = RowTile::multiply(weights, x);
    const int row = thread_index() % 4;
    if (row < G::ROWS)
      store_one(partial + (chunk(n) * G::SUMS + RowTile::group() * G::ROWS + row), sum);
  }
  DEVICE void add_up() const {
    const int mine = thread_index(), row = mine % G::ROWS;
    const long long output = first + mine / G::ROWS;
    if (mine >= G::SUMS || output >= a.outputs) return;
    float sum[1] = {0.0f};
#pragma unroll
    for (int n = 0; n < G::CHUNKS; n++) sum[0] += load_one(partial + (n * G::SUMS + mine));
    store<1, bf16>((bf16*)a.y + row * a.outputs + output, sum);
  }
  DEVICE void run() const {
    // The weights are nobody's result: they are on their way while the kernel before still runs.
    RowTile::Row ahead[G::AHEAD];
#pragma unroll
    for (int n = 0; n < G::AHEAD; n++) read(ahead[n], n);
    wait_for_predecessor();
#pragma unroll
    for (int n = 0; n < G::AHEAD; n++) multiply(ahead[n], n);
#pragma unroll 1
    for (int n = G::AHEAD; n < G::EACH; n++) {
      RowTile::Row weights;
      read(weights, n);
      multiply(weights, n);
    }
    sync_block();
    add_up();
  }
};

template <class G>
DEVICE void tile_product(const RowProductArgs& a) {
  TileProduct<G>(a, Arena()).run();
}

}  // namespace elman
