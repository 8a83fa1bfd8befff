// The inline assembly of cuda/common/grid.cuh, see ptx.h.
#pragma once

namespace elman::emulation {

inline constexpr unsigned LOOKS_A_TICK = 4;  // at the clock: time goes by where threads look at it
inline unsigned looks_at_clock;
inline constexpr int MANY_LOOKS = 1 << 19;  // at flags, since one was raised
inline int looks_at_flags;

// Runs the other threads for a while.
inline void let_others_run() {
  ready.push_back(current->thread);
  next();
}

inline bool Assembly::flags_run(const Instruction& i) {
  const auto& o = i.operands;
  const bool release = i.name == "st.release.gpu.global.u32";
  const bool acquire = i.name == "ld.acquire.gpu.global.u32";
  if (i.name == "bar.sync") {
    if (second_part == threads_per_block) second_part = (int)value(o[1]);  // nothing else says it
    meet_first((int)value(o[1]), "bar.sync");
    return true;
  }
  if (release || i.name == "st.relaxed.gpu.global.u32") {
    raise_flag((void*)value(o[0]), (unsigned)value(o[1]), release);
    looks_at_flags = 0;
  } else if (acquire || i.name == "ld.relaxed.gpu.global.u32") {
    if (++looks_at_flags > MANY_LOOKS) report("a wait for a flag that never ends");
    let_others_run();
    const void* p = (const void*)value(o[1]);
    const unsigned* flag = flag_at(p, false);
    place(o[0]) = flag ? *flag : 0;
    if (flag && acquire) look_at_flag(p, *flag);
  } else if (i.name == "st.release.gpu.global.u64" || i.name == "st.relaxed.gpu.global.u64") {
    const uint64_t word = value(o[1]);
    post((void*)value(o[0]), (unsigned)word, (unsigned)(word >> 32),
         i.name == "st.release.gpu.global.u64");
    looks_at_flags = 0;
  } else if (i.name == "ld.acquire.gpu.global.u64" || i.name == "ld.relaxed.gpu.global.u64" ||
             i.name == "ld.acquire.gpu.global.v2.u64" || i.name == "ld.relaxed.gpu.global.v2.u64") {
    if (++looks_at_flags > MANY_LOOKS) report("a wait for a number that never ends");
    const std::vector<std::string> names = list(o[0]);
    const uint64_t first = value(o[1]);
    if (first % (8 * names.size())) report("%s is not aligned", i.name.c_str());
    for (size_t n = 0; n < names.size(); n++) {  // each of them by itself
      let_others_run();
      place(names[n]) =
          look_at_post((const void*)(first + 8 * n), i.name.find("acquire") != std::string::npos);
    }
  } else if (i.name == "mov.u32" && o[1] == "%%globaltimer_hi") {
    place(o[0]) = looks_at_clock++ / LOOKS_A_TICK;
  } else {
    return false;
  }
  return true;
}

}  // namespace elman::emulation
