// What copies.h declares.
#include "emulation/copies.h"

namespace elman::emulation {

std::vector<CopyQueue> copies;

bool in_shared(const void* p) { return shared.data() <= p && p < shared.data() + shared.size(); }

bool hold_source(const Copy& copy, int by) {
  if (!in_shared(copy.from)) return hold_global(copy.from, copy.valid, by);
  if (by > 0) touch(copy.from, copy.valid, false);
  for (int i = 0; i < copy.valid; i += 4) words[shared_offset(copy.from + i) / 4].copies += by;
  return true;
}

void hold_target(const Copy& copy, bool held) {
  for (int i = 0; i < copy.bytes; i += 4) words[shared_offset(copy.to + i) / 4].in_flight = held;
}

void queue_copy(unsigned char* to, const void* from, int bytes, int valid) {
  Copy copy{to, (const unsigned char*)from, bytes, valid};
  if ((uintptr_t)from % bytes || shared_offset(to) % bytes)
    report("a copy of %d bytes is not aligned (thread %d)", bytes, current->thread);
  if (valid < 0 || valid > bytes)
    report("a copy of %d bytes, of which %d are read (thread %d)", bytes, valid, current->thread);
  if (!hold_source(copy, 1)) copy.valid = 0;
  touch(to, bytes, true);
  hold_target(copy, true);
  std::memset(to, 0xff, bytes);
  copies[current->thread].groups.back().push_back(copy);
}

void queue_copy(const Pointer<unsigned char>& to, const void* from, int bytes, int valid) {
  unsigned char* target = to.at(0, 1);
  to.at(bytes - 1, 1);
  queue_copy(target, from, bytes, valid);
}

void commit_copies() { copies[current->thread].groups.emplace_back(); }

void complete(const Copy& copy) {
  hold_target(copy, false);
  touch(copy.to, copy.bytes, true);
  std::memset(copy.to, 0, copy.bytes);
  if (hold_source(copy, -1)) std::memcpy(copy.to, copy.from, copy.valid);
}

void wait_copies(int pending) {
  auto& groups = copies[current->thread].groups;
  while ((int)groups.size() - 1 > pending) {
    for (const Copy& copy : groups.front()) complete(copy);
    groups.erase(groups.begin());
  }
}

void check_copies() {
  for (const auto& group : copies[current->thread].groups)
    if (!group.empty()) report("thread %d ends while a copy of its is in flight", current->thread);
}

std::string launch(long long first, long long blocks, int threads, size_t bytes, unsigned seed,
                   const std::function<void()>& kernel) {
  const std::function<void()> function = [&] {
    kernel();
    check_copies();
  };
  error.clear();
  forget_touches();
  random_state = seed * 2654435761ull + 1;
  for (long long index = first; index < first + blocks && error.empty(); index++) {
    fresh_shared(bytes);
    copies.assign(threads, CopyQueue());
    no_barriers();
    run_block(index, threads, function);
    check_guard();
  }
  fibers.clear();  // their stacks: every library has its own, and a process loads hundreds
  return error;
}

}  // namespace elman::emulation
