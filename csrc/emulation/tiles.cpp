// What tiles.h declares.
#include "emulation/tiles.h"

namespace elman::emulation {

void gather(float (&x)[16], const Fiber* lanes, int slot, int low, int high) {
  for (int c = 0; c < 4; c++)
    for (int half = 0; half < 2; half++) {
      const unsigned word = lanes[c].fragments[slot][half ? high : low];
      const unsigned pair[2] = {word << 16, word & 0xffff0000u};
      std::memcpy(x + half * 8 + c * 2, pair, 8);
    }
}

void add_product(float (&d)[4], const Fiber* lanes, int slot, int lane) {
  const int g = lane / 4, c = lane % 4;
  float rows[2][16], columns[2][16];
  gather(rows[0], lanes + g * 4, slot, 0, 2);
  gather(rows[1], lanes + g * 4, slot, 1, 3);
  for (int j = 0; j < 2; j++) gather(columns[j], lanes + (c * 2 + j) * 4, slot, 4, 5);
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 16; k++) d[i] += rows[i / 2][k] * columns[i % 2][k];
}

void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, const char* where) {
  const int slot = current->shuffles++ & 1, thread = current->thread;
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  std::memcpy(current->fragments[slot], mine, sizeof mine);
  wait(Wait::warp, where);
  add_product(d, &fibers[thread - thread % WARP], slot, thread % WARP);
}

}  // namespace elman::emulation
