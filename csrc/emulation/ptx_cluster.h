// The inline assembly of cuda/common/cluster.cuh, see ptx.h. A place in another block's shared
// memory is a number here whose highest 8 bits are the rank of the block and 1; the place in the
// block itself, without them, is one in its own memory.
#pragma once

namespace elman::emulation {

inline constexpr int RANK_BIT = 24;

// All that is known of a place that is a mere number: it lies in the shared memory of a block.
inline Remote decoded(unsigned place) {
  const int rank = place >> RANK_BIT ? (int)(place >> RANK_BIT) - 1 : current->rank;
  if (rank >= (int)cluster.size()) {
    report("place %u is in no block of the cluster (thread %d of block %lld)", place,
           current->thread, block_index);
    return {current->rank};
  }
  return {rank, place & ((1u << RANK_BIT) - 1), 0, (long long)shared_bytes};
}

inline unsigned mapped(unsigned place, unsigned rank) {
  if (rank >= cluster.size() || place >> RANK_BIT) {
    report("mapa of byte %u to rank %u of a cluster of %zu (thread %d of block %lld)", place, rank,
           cluster.size(), current->thread, block_index);
    return place;
  }
  return place | (rank + 1) << RANK_BIT;
}

inline bool Assembly::clusters_run(const Instruction& i) {
  const auto& o = i.operands;
  if (i.name == "mov.u32" && o[1] == "%%cluster_ctarank") {
    place(o[0]) = (unsigned)current->rank;
  } else if (i.name == "mov.u32" && o[1] == "%%clusterid.x") {
    place(o[0]) = (unsigned)(block_index / (long long)cluster.size());
  } else if (i.name == "mapa.shared::cluster.u32") {
    place(o[0]) = mapped((unsigned)value(o[1]), (unsigned)value(o[2]));
  } else if (i.name == "barrier.cluster.arrive.release.aligned") {
    if (current->arrived) report("thread %d arrives twice for its cluster", current->thread);
    current->arrived = true;
  } else if (i.name == "barrier.cluster.wait.acquire.aligned") {
    if (!current->arrived) report("thread %d waits for its cluster first", current->thread);
    meet_cluster("barrier.cluster.wait");
    current->arrived = false;
  } else if (i.name == "selp.u32") {
    place(o[0]) = value(o[3]) ? value(o[1]) : value(o[2]);
  } else if (i.name == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") {
    multiply_run(i);
  } else {
    return boxes_run(i);
  }
  return true;
}

inline bool Assembly::boxes_run(const Instruction& i) {
  const auto& o = i.operands;
  if (i.name == "mbarrier.init.shared::cta.b64") {
    make_box(value(o[0]), (int)value(o[1]), false);
  } else if (i.name == "fence.mbarrier_init.release.cluster") {
    announce_boxes();
  } else if (i.name == "mbarrier.arrive.expect_tx.shared::cta.b64") {
    if (o[0] != "_") report("%s with a state", i.name.c_str());
    if (Box* box = box_of(entered, value(o[1]))) expect_bytes(*box, (int)value(o[2]));
  } else if (i.name == "mbarrier.arrive.shared::cta.b64") {
    if (o[0] != "_") report("%s with a state", i.name.c_str());
    if (Box* box = box_of(entered, value(o[1]))) end_empty_turn(*box);
  } else if (i.name == "mbarrier.try_wait.parity.shared::cta.b64") {
    if (value(o[2]) > 1) report("a parity is 0 or 1, not %d", (int)value(o[2]));
    Box* box = box_of(entered, value(o[1]));
    place(o[0]) = box && try_turn(*box, (unsigned)value(o[2]));
  } else if (i.name == "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes") {
    copy_to_box(shared.data() + value(o[0]), (const void*)value(o[1]), (int)value(o[2]),
                value(o[3]));
  } else if (i.name ==
             "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint") {
    check_policy(value(o[4]));
    copy_to_box(shared.data() + value(o[0]), (const void*)value(o[1]), (int)value(o[2]),
                value(o[3]));
  } else if (i.name == "createpolicy.fractional.L2::evict_first.b64") {
    if (o[1] != "1.0") report("a policy for a part of what is copied");
    place(o[0]) = PASSING;
  } else if (i.name.rfind("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes", 0) == 0) {
    deliver_run(i);
  } else {
    return flags_run(i);
  }
  return true;
}

inline void Assembly::deliver_run(const Instruction& i) {
  const std::string type = i.name.substr(i.name.find("bytes") + 5);
  const std::vector<std::string> names = list(i.operands[1]);
  const size_t count = type == ".b32" ? 1 : type == ".v2.b32" ? 2 : type == ".v4.b32" ? 4 : 0;
  if (names.size() != count) report("%s of %zu words", i.name.c_str(), names.size());
  unsigned words[4] = {};
  for (size_t n = 0; n < names.size(); n++) words[n % 4] = (unsigned)value(names[n]);
  if (error.empty())
    deliver_words(decoded((unsigned)value(i.operands[0])), decoded((unsigned)value(i.operands[2])),
                  words, (int)count);
}

inline void Assembly::multiply_run(const Instruction& i) {
  const auto &o = i.operands, &to = list(o[0]), &of = list(o[3]);
  const auto left = list(o[1]), right = list(o[2]);
  if (to.size() != 4 || of.size() != 4 || left.size() != 4 || right.size() != 2)
    return report("%s with other operands", i.name.c_str());
  float d[4];
  unsigned a[4];
  for (int n = 0; n < 4; n++) d[n] = number(of[n]), a[n] = (unsigned)value(left[n]);
  multiply(d, a, (unsigned)value(right[0]), (unsigned)value(right[1]), "mma.sync");
  for (int n = 0; n < 4; n++) place(to[n]) = float_bits(d[n]);
}

}  // namespace elman::emulation
