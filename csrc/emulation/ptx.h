// Runs cuda/common/device.cuh and cluster.cuh themselves on a CPU: the names of CUDA that it uses,
// and its inline assembly, which tests/emulation/device_text.py turns into calls of Assembly. What
// is written there is executed as PTX's manual says, so that a wrong parity or a wait for too few
// copies is seen; the checks of every access to shared memory, which need pointers that know their
// arrays, are those of device.h alone.
#pragma once
#include <map>

#include "emulation/copies.h"
#include "emulation/flags.h"
#include "emulation/numbers.h"
#include "emulation/tiles.h"

namespace elman::emulation {

// ---- instructions

struct Instruction {
  std::string label, guard, name;
  std::vector<std::string> operands;
  bool negated = false;
};

inline std::string stripped(const std::string& text) {
  const size_t first = text.find_first_not_of(" \n\t"), last = text.find_last_not_of(" \n\t");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// What stands between separators, but for those within braces.
inline std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (char c : text) {
    depth += (c == '{') - (c == '}');
    if (c == separator && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

inline Instruction instruction_of(std::string text) {
  Instruction made;
  const size_t colon = text.find(':');  // names have two of them
  if (colon != std::string::npos && text[colon + 1] != ':') {
    made.label = stripped(text.substr(0, colon));
    text = stripped(text.substr(colon + 1));
  }
  if (text[0] == '@') {
    const size_t end = text.find(' ');
    made.negated = text[1] == '!';
    made.guard = text.substr(1 + made.negated, end - 1 - made.negated);
    text = stripped(text.substr(end));
  }
  const size_t end = text.find(' ');
  made.name = text.substr(0, end);
  if (end != std::string::npos)
    for (const std::string& operand : parts_of(text.substr(end), ','))
      made.operands.push_back(stripped(operand));
  return made;
}

inline std::vector<Instruction> program_of(std::string text) {
  text = stripped(text);
  if (text[0] == '{') text = text.substr(1, text.size() - 2);  // a scope of its own
  std::vector<Instruction> program;
  for (const std::string& part : parts_of(text, ';'))
    if (!stripped(part).empty()) program.push_back(instruction_of(stripped(part)));
  return program;
}

// One statement of inline assembly: its text, its operands, its registers.
class Assembly {
 public:
  explicit Assembly(const char* text) : program(programs[text]) {
    if (program.empty()) program = program_of(text);
  }
  template <class T>
  Assembly& out(T& x) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "results have 4 or 8 bytes");
    outputs.emplace_back(&x, sizeof x);
    numbers.push_back(0);
    return *this;
  }
  template <class T>
  Assembly& both(T& x) {
    out(x);
    std::memcpy(&numbers.back(), &x, sizeof x);
    return *this;
  }
  template <class T>
  Assembly& in(T x) {
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    numbers.push_back(bits);
    return *this;
  }
  void run() {
    for (size_t at = 0; at < program.size() && error.empty(); at++) {
      const Instruction& i = program[at];
      if (!i.guard.empty() && (registers[i.guard] != 0) == i.negated) continue;
      if (i.name == "bra" && ++jumps > MANY)
        report("assembly that never ends: %s", i.operands[0].c_str());
      else if (i.name == "bra")
        at = place_of_label(i.operands[0]) - 1;
      else if (!barriers_run(i) && !copies_run(i) && !numbers_run(i) && !clusters_run(i) &&
               i.name != ".reg")
        report("no such instruction here: %s", i.name.c_str());
    }
    if (!error.empty()) next();  // for good
    for (size_t n = 0; n < outputs.size(); n++)
      std::memcpy(outputs[n].first, &numbers[n], outputs[n].second);
  }

 private:
  static constexpr int MANY = 1 << 20;
  static inline std::map<std::string, std::vector<Instruction>> programs;
  int jumps = 0;
  std::vector<Instruction>& program;
  std::vector<uint64_t> numbers;                  // %0 ...
  std::vector<std::pair<void*, size_t>> outputs;  // the first of them, and their bytes
  std::map<std::string, uint64_t> registers;

  size_t place_of_label(const std::string& label) const {
    for (size_t n = 0; n < program.size(); n++)
      if (program[n].label == label) return n;
    report("no label %s", label.c_str());
    return program.size();
  }

  // What stands within braces.
  std::vector<std::string> list(const std::string& operand) const {
    if (operand[0] != '{') return {operand};
    std::vector<std::string> names = parts_of(operand.substr(1, operand.size() - 2), ',');
    for (std::string& name : names) name = stripped(name);
    return names;
  }

  uint64_t& place(const std::string& operand) {
    if (operand[0] == '%') return numbers.at(std::stoul(operand.substr(1)));
    return registers[operand];
  }
  uint64_t value(std::string operand) {
    if (operand[0] == '[') operand = operand.substr(1, operand.size() - 2);
    const bool literal = '0' <= operand[0] && operand[0] <= '9';
    return literal ? std::stoull(operand) : place(operand);
  }
  float number(const std::string& operand) { return bits_float((unsigned)value(operand)); }

  bool barriers_run(const Instruction& i) {
    const auto& o = i.operands;
    if (i.name == "mbarrier.init.shared.b64") {
      memory_barriers[value(o[0])] = {(int)value(o[1]), 0, 0, current->arrivals};
    } else if (i.name == "mbarrier.arrive.shared.b64") {
      arrive_at(memory_barrier(value(o[1])));
    } else if (i.name == "mbarrier.try_wait.parity.shared.b64" ||
               i.name == "mbarrier.test_wait.parity.shared.b64") {
      if (value(o[2]) > 1) report("a parity is 0 or 1, not %d", (int)value(o[2]));
      place(o[0]) = is_over(memory_barrier(value(o[1])), (unsigned)value(o[2]));
    } else {
      return false;
    }
    return true;
  }

  bool copies_run(const Instruction& i) {
    const auto& o = i.operands;
    const bool whole = i.name == "cp.async.cg.shared.global";
    if (whole || i.name == "cp.async.ca.shared.global") {
      const int bytes = (int)value(o[2]), valid = o.size() > 3 ? (int)value(o[3]) : bytes;
      if (whole ? bytes != 16 : bytes != 4 && bytes != 8 && bytes != 16)
        report("%s of %d bytes", i.name.c_str(), bytes);
      queue_copy(shared.data() + value(o[0]), (const void*)value(o[1]), bytes, valid);
    } else if (i.name == "griddepcontrol.wait") {
      current->waited = true;
    } else if (i.name == "griddepcontrol.launch_dependents") {
      // Kernels run one after another here.
    } else if (i.name == "cp.async.commit_group") {
      commit_copies();
    } else if (i.name == "cp.async.wait_group") {
      wait_copies((int)value(o[0]));
    } else {
      return false;
    }
    return true;
  }

  bool numbers_run(const Instruction& i) {
    const auto& o = i.operands;
    if (i.name == "setp.eq.s32") {
      place(o[0]) = (int)value(o[1]) == (int)value(o[2]);
    } else if (i.name == "tanh.approx.f32") {
      place(o[0]) = float_bits(near_tanh(number(o[1])));
    } else if (i.name == "sqrt.approx.ftz.f32") {
      place(o[0]) = float_bits(near_root(number(o[1])));
    } else if (i.name == "rcp.approx.ftz.f32") {
      place(o[0]) = float_bits(near_reciprocal(number(o[1])));
    } else if (i.name == "cvt.rn.bf16x2.f32") {
      place(o[0]) = bf16_bits(number(o[2])) | bf16_bits(number(o[1])) << 16;
    } else if (i.name == "cvt.rn.f16x2.f32") {
      place(o[0]) = f16_bits(number(o[2])) | f16_bits(number(o[1])) << 16;
    } else if (i.name == "cvt.f32.f16") {
      place(o[0]) = float_bits(f16_float((unsigned)value(o[1]) & 0xffffu));
    } else if (i.name == "mov.b32" && o[0][0] == '{') {
      const auto halves = list(o[0]);
      place(halves[0]) = value(o[1]) & 0xffffu;
      place(halves[1]) = value(o[1]) >> 16 & 0xffffu;
    } else {
      return false;
    }
    return true;
  }

  // Of clusters, see ptx_cluster.h.
  bool clusters_run(const Instruction& i);
  bool boxes_run(const Instruction& i);
  bool flags_run(const Instruction& i);
  void deliver_run(const Instruction& i);
  void multiply_run(const Instruction& i);
};

struct Index {
  unsigned x;
};

}  // namespace elman::emulation

#include "emulation/ptx_cluster.h"
// Then flags.
#include "emulation/ptx_grid.h"

// ---- what CUDA calls it

#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __align__(n)
#define __launch_bounds__(...)
#define __grid_constant__
#if !defined(__CUDA_ARCH__)
#define __CUDA_ARCH__ 900
#endif
#define threadIdx (elman::emulation::Index{(unsigned)elman::emulation::current->thread})
#define blockIdx (elman::emulation::Index{(unsigned)elman::emulation::block_index})

inline void __syncthreads() {
  elman::emulation::wait(elman::emulation::Wait::block, "__syncthreads");
}
inline int __syncthreads_or(int mine) {
  return elman::emulation::any_of_block(mine, "__syncthreads_or");
}
inline int __all_sync(unsigned, int mine) {
  return elman::emulation::all_of_warp(mine, "__all_sync");
}
inline void __syncwarp() { elman::emulation::meet_warp("__syncwarp"); }
inline void __trap() {
  elman::emulation::report("trap");
  elman::emulation::next();  // for good
}
template <class T>
T __shfl_sync(unsigned, T x, int lane, int width = 32) {
  const int first = elman::emulation::current->thread & -width;
  return elman::emulation::exchange(x, first | (lane & (width - 1)), "__shfl_sync");
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  const int thread = elman::emulation::current->thread;
  return elman::emulation::exchange(x, thread ^ (mask & 31), "__shfl_xor_sync");
}
inline size_t __cvta_generic_to_shared(const void* p) { return elman::emulation::shared_offset(p); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = (uint64_t)y << 32 | x;
  unsigned made = 0;
  for (int i = 0; i < 4; i++)
    made |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xffu) << 8 * i;
  return made;
}
inline unsigned __float_as_uint(float x) { return elman::emulation::float_bits(x); }
inline float __uint_as_float(unsigned u) { return elman::emulation::bits_float(u); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __expf(float x) { return elman::emulation::near_exp(x); }
inline float __fdividef(float x, float y) { return elman::emulation::near_quotient(x, y); }

// A kernel as Python starts it, by blocks and threads of the GPU's grid.
#define ELMAN_RUN(NAME, ARGS)                                                             \
  extern "C" const char* run_##NAME(const ARGS* given, long long first, long long blocks, \
                                    int threads, int shared_bytes, unsigned seed) {       \
    static std::string message;                                                           \
    message = elman::emulation::launch(first, blocks, threads, shared_bytes, seed,        \
                                       [&] { NAME(*given); });                            \
    return message.c_str();                                                               \
  }

// The same of a kernel whose blocks all run at the same time.
#define ELMAN_RUN_GRID(NAME, ARGS)                                                        \
  extern "C" const char* run_##NAME(const ARGS* given, long long first, long long blocks, \
                                    int threads, int shared_bytes, unsigned seed) {       \
    static std::string message;                                                           \
    message = elman::emulation::launch_grid(first, blocks, threads, shared_bytes, seed,   \
                                            [&] { NAME(*given); });                       \
    return message.c_str();                                                               \
  }

// The same of a kernel whose blocks form clusters of a size.
#define ELMAN_RUN_CLUSTERS(NAME, ARGS, SIZE)                                                      \
  extern "C" const char* run_##NAME(const ARGS* given, long long first, long long blocks,         \
                                    int threads, int shared_bytes, unsigned seed) {               \
    static std::string message;                                                                   \
    message = elman::emulation::launch_clusters(first, blocks, SIZE, threads, shared_bytes, seed, \
                                                [&] { NAME(*given); });                           \
    return message.c_str();                                                                       \
  }
