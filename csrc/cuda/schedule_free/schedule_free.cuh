// The update of schedule-free AdamW, in place: one kernel counts it, another goes once over the
// weights. With y the trained weight, g its clipped gradient and k the updates before this one:
//
//   s <- beta2 s + (1 - beta2) g^2
//   d  = rate (g / (sqrt(s / (1 - beta2^(k+1))) + eps) + decay y)
//   y <- y + share (z - y) + (beta1 (1 - share) - 1) d
//   z <- z - d
//
// `share` is the weight of this update in the average, over the sum of all weights so far.
#pragma once
#include "cuda/common/pack.cuh"

namespace elman {

// Groups of weights that one launch counts, and tensors that one launch updates: together with the
// rest of the arguments less than 4 KB, which every driver takes.
inline constexpr int SCHEDULE_FREE_GROUPS = 8, SCHEDULE_FREE_TENSORS = 80;

// What the update of a group reads, fp32; FACTOR: of the gradients, so that their norm is clipped.
enum ScheduleFreeScalar { RATE, SHARE, PULL, INVERSE, FACTOR, SCHEDULE_FREE_SCALARS };

struct ScheduleFreeCountArgs {
  const void* blocked;                        // bool: whether nothing is to change
  const void* norm;                           // of all gradients, fp32; null: they stay
  void* counts[SCHEDULE_FREE_GROUPS];         // fp64: updates, sum of weights, largest rate
  void* scalars[SCHEDULE_FREE_GROUPS];        // fp32, as above
  double lr[SCHEDULE_FREE_GROUPS];            // after the warm-up
  double warmup_steps[SCHEDULE_FREE_GROUPS];  // 0: none
  double weight_power[SCHEDULE_FREE_GROUPS];  // of the largest rate: an update's weight
  double beta1[SCHEDULE_FREE_GROUPS], beta2[SCHEDULE_FREE_GROUPS];
  double limit;  // of the norm
  long long groups;
};

struct ScheduleFreeArgs {
  const void* blocked;
  const void* scalars;                          // of the group
  const void* gradient[SCHEDULE_FREE_TENSORS];  // fp32, contiguous, like the next three
  void* weight[SCHEDULE_FREE_TENSORS];          // y
  void* z[SCHEDULE_FREE_TENSORS];
  void* square[SCHEDULE_FREE_TENSORS];     // s
  long long sizes[SCHEDULE_FREE_TENSORS];  // numbers of each tensor
  long long ends[SCHEDULE_FREE_TENSORS];   // chunks up to the end of each tensor
  double beta2, eps, decay;
  long long tensors;
};
static_assert(sizeof(ScheduleFreeCountArgs) <= 4096 && sizeof(ScheduleFreeArgs) <= 4096);

// ---- the counts of every group, by a thread of its own

// As torch.nn.utils.clip_grads_with_norm_ has it, to the bit; NaN goes through.
DEVICE float clip_factor(const void* norm, double limit) {
  if (norm == nullptr) return 1.0f;
  const float factor = reciprocal(load_one((const float*)norm) + 1e-6f) * (float)limit;
  return factor >= 1.0f ? 1.0f : factor;
}

DEVICE void schedule_free_count(const ScheduleFreeCountArgs& a) {
  const int group = thread_index();
  if (group >= a.groups || load_one((const unsigned char*)a.blocked)) return;
  double* counts = (double*)a.counts[group];
  const double k = load_one(counts) + 1.0, before = load_one(counts + 2);
  const double warm = k < a.warmup_steps[group] ? k / a.warmup_steps[group] : 1.0;
  const double rate = a.lr[group] * warm, largest = rate > before ? rate : before;
  const double weight = ::pow(largest, a.weight_power[group]);
  const double total = load_one(counts + 1) + weight;
  const double share = weight / total;
  store_one(counts, k);
  store_one(counts + 1, total);
  store_one(counts + 2, largest);
  float* scalars = (float*)a.scalars[group];
  store_one(scalars + RATE, (float)rate);
  store_one(scalars + SHARE, (float)share);
  store_one(scalars + PULL, (float)(a.beta1[group] * (1.0 - share) - 1.0));
  store_one(scalars + INVERSE, (float)(1.0 / (1.0 - ::pow(a.beta2[group], k))));
  store_one(scalars + FACTOR, clip_factor(a.norm, a.limit));
}

// ---- the weights of a group

// The update of one weight, from numbers that all weights of the group share.
struct ScheduleFreeUpdate {
  float rate, share, pull, inverse, factor, beta2, rest, eps, decay;

  DEVICE explicit ScheduleFreeUpdate(const ScheduleFreeArgs& a)
      : rate(of(a, RATE)),
        share(of(a, SHARE)),
        pull(of(a, PULL)),
        inverse(of(a, INVERSE)),
        factor(of(a, FACTOR)),
        beta2((float)a.beta2),
        rest((float)(1.0 - a.beta2)),
        eps((float)a.eps),
        decay((float)a.decay) {}
  DEVICE static float of(const ScheduleFreeArgs& a, ScheduleFreeScalar which) {
    return load_one((const float*)a.scalars + which);
  }

  DEVICE void operator()(float& y, float& z, float& square, float gradient) const {
    const float g = factor * gradient;
    square = fused(rest * g, g, beta2 * square);
    const float d = rate * fused(decay, y, g / (square_root(square * inverse) + eps));
    y = fused(pull, d, fused(share, z - y, y));
    z -= d;
  }
};

// The numbers of one block: some of one tensor.
template <int CHUNK>
struct ScheduleFreeChunk {
  const float* gradient;
  float *weight, *z, *square;
  int numbers;

  DEVICE explicit ScheduleFreeChunk(const ScheduleFreeArgs& a) {
    const long long chunk = block_index();
    int tensor = 0, last = (int)a.tensors - 1;  // the first tensor that ends behind the chunk
    while (tensor < last) {
      const int middle = (tensor + last) / 2;
      if (chunk < a.ends[middle])
        last = middle;
      else
        tensor = middle + 1;
    }
    const long long first = (chunk - (tensor > 0 ? a.ends[tensor - 1] : 0)) * CHUNK;
    const long long left = a.sizes[tensor] - first;
    numbers = left < CHUNK ? (int)left : CHUNK;
    gradient = (const float*)a.gradient[tensor] + first;
    weight = (float*)a.weight[tensor] + first;
    z = (float*)a.z[tensor] + first;
    square = (float*)a.square[tensor] + first;
  }
  DEVICE bool aligned() const {
    const unsigned long long bits = (unsigned long long)gradient | (unsigned long long)weight |
                                    (unsigned long long)z | (unsigned long long)square;
    return bits % 16 == 0;
  }
};

// THREADS threads, each ITEMS vectors of four numbers; single numbers where an address does not
// permit vectors, and behind the last whole one.
template <int THREADS, int ITEMS>
DEVICE void schedule_free_update(const ScheduleFreeArgs& a) {
  if (load_one((const unsigned char*)a.blocked)) return;
  const ScheduleFreeUpdate update(a);
  const ScheduleFreeChunk<4 * THREADS * ITEMS> chunk(a);
  const int vectors = chunk.aligned() ? chunk.numbers / 4 : 0;
  float y[ITEMS][4], z[ITEMS][4], square[ITEMS][4], gradient[ITEMS][4];
#pragma unroll
  for (int n = 0; n < ITEMS; n++) {  // all reads before the first write, so that they overlap
    const int at = 4 * (n * THREADS + thread_index());
    if (at >= 4 * vectors) continue;
    load<4, float>(y[n], chunk.weight + at);
    load<4, float>(z[n], chunk.z + at);
    load<4, float>(square[n], chunk.square + at);
    load<4, float>(gradient[n], chunk.gradient + at);
  }
#pragma unroll
  for (int n = 0; n < ITEMS; n++) {
    const int at = 4 * (n * THREADS + thread_index());
    if (at >= 4 * vectors) continue;
#pragma unroll
    for (int i = 0; i < 4; i++) update(y[n][i], z[n][i], square[n][i], gradient[n][i]);
    store<4, float>(chunk.weight + at, y[n]);
    store<4, float>(chunk.z + at, z[n]);
    store<4, float>(chunk.square + at, square[n]);
  }
  for (int at = 4 * vectors + thread_index(); at < chunk.numbers; at += THREADS) {
    float one = load_one(chunk.weight + at), end = load_one(chunk.z + at);
    float mean = load_one(chunk.square + at);
    update(one, end, mean, load_one(chunk.gradient + at));
    store_one(chunk.weight + at, one);
    store_one(chunk.z + at, end);
    store_one(chunk.square + at, mean);
  }
}

}  // namespace elman
