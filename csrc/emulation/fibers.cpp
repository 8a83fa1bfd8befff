// What fibers.h declares.
#include "emulation/fibers.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if ELMAN_OWN_SWITCH
extern "C" void elman_switch_stack(void** save, void* load);
asm(R"(
.text
.globl elman_switch_stack
.type elman_switch_stack,@function
elman_switch_stack:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp,(%rdi)
    mov %rsi,%rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");
#endif

namespace elman::emulation {

std::vector<Fiber> fibers;
std::vector<int> ready;
Fiber host;
std::string error;

void report(const char* format, ...) {
  if (!error.empty()) return;
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  error = text;
  if (choose_block && error.find("block ") == std::string::npos)
    error += " (block " + std::to_string(block_index) + ")";
}

int part_of(int thread) { return thread >= second_part; }

unsigned random_below(size_t n) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (random_state >> 33) % n;
}

#if defined(__SANITIZE_ADDRESS__)
const void* host_stack;
size_t host_stack_bytes;

void finish_switch(void* fake_stack) {
  const void* left;
  size_t size;
  __sanitizer_finish_switch_fiber(fake_stack, &left, &size);
  if (previous == &host) {
    host_stack = left;
    host_stack_bytes = size;
  }
}
#endif

void switch_to(Fiber* to, [[maybe_unused]] bool dying) {
  Fiber* from = current;
  previous = from;
  current = to;
#if defined(__SANITIZE_ADDRESS__)
  const bool home = to == &host;
  __sanitizer_start_switch_fiber(dying ? nullptr : &from->fake_stack,
                                 home ? host_stack : to->stack.get(),
                                 home ? host_stack_bytes : STACK_BYTES);
#endif
#if ELMAN_OWN_SWITCH
  elman_switch_stack(&from->stack_pointer, to->stack_pointer);
#else
  swapcontext(&from->context, &to->context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  finish_switch(from->fake_stack);
#endif
}

void wake(int first, int last, Wait from) {
  for (int i = first; i < last; i++)
    if (fibers[i].wait == from) {
      fibers[i].wait = Wait::none;
      ready.push_back(i);
    }
}

void release_warp(int first, int last) {
  int live = 0, waiting = 0;
  const char* where = nullptr;
  for (int i = first; i < last; i++) {
    live += fibers[i].wait != Wait::done;
    waiting += fibers[i].wait == Wait::warp;
  }
  if (!live || waiting != live) return;
  if (live != last - first) report("a thread left its warp before %s", fibers[first].where);
  for (int i = first; i < last; i++) {
    if (where && std::strcmp(where, fibers[i].where))
      report("warp diverges: %s against %s", where, fibers[i].where);
    where = fibers[i].where;
  }
  if (warp_met && fibers[first].orders_memory) warp_met(first, last);
  wake(first, last, Wait::warp);
}

void release_first() {
  unsigned least = ~0u;
  for (int i = 0; i < second_part; i++) least = std::min(least, ++fibers[i].arrivals);
  for (int i = 0; i < second_part; i++) fibers[i].known[0] = least;
  if (first_met) first_met();
  wake(0, second_part, Wait::first);
}

void release() {
  int at_block = 0, at_first = 0;
  for (const Fiber& fiber : fibers) {
    at_block += fiber.wait == Wait::block;
    at_first += fiber.wait == Wait::first;
  }
  if (at_first && at_first == second_part) release_first();
  for (int first = 0; first < threads_per_block; first += WARP)
    release_warp(first, std::min(first + WARP, threads_per_block));
  if (at_block && at_block == alive) {
    if (alive != threads_per_block) report("a thread left before a barrier of its block");
    unsigned least[2] = {~0u, ~0u};
    for (Fiber& fiber : fibers) {
      unsigned& part = least[part_of(fiber.thread)];
      part = std::min(part, ++fiber.arrivals);
    }
    for (Fiber& fiber : fibers) std::copy(least, least + 2, fiber.known);
    if (block_met) block_met();
    wake(0, threads_per_block, Wait::block);
  }
}

void next(bool dying) {
  if (choose_block) choose_block();
  if (ready.empty()) release();
  if (ready.empty() || !error.empty()) {
    for (const Fiber& fiber : fibers)
      if (fiber.wait != Wait::none && fiber.wait != Wait::done)
        report("deadlock: thread %d waits at %s", fiber.thread, fiber.where);
    return switch_to(&host, dying);
  }
  const unsigned at = random_below(ready.size());
  Fiber* to = &fibers[ready[at]];
  ready[at] = ready.back();
  ready.pop_back();
  if (to != current) switch_to(to, dying);
}

void wait(Wait what, const char* where) {
  current->wait = what;
  current->where = where;
  next();
}

void meet_warp(const char* where) {
  current->orders_memory = true;
  wait(Wait::warp, where);
  current->orders_memory = false;
  current->warp_epoch++;
}

void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  finish_switch(nullptr);
#endif
  (*body)();
  current->wait = Wait::done;
  alive--;
  next(true);
  std::abort();
}

void start(Fiber& fiber, int thread) {
  if (!fiber.stack) fiber.stack.reset(new char[STACK_BYTES]);
  fiber.thread = thread;
  fiber.wait = Wait::none;
  fiber.warp_epoch = fiber.shuffles = fiber.ballots = 0;
  fiber.waited = !begins_early;
  fiber.arrivals = fiber.known[0] = fiber.known[1] = 0;
  fiber.fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  // A fiber that was abandoned leaves the poison of its frames behind.
  __asan_unpoison_memory_region(fiber.stack.get(), STACK_BYTES);
#endif
#if ELMAN_OWN_SWITCH
  void** top = (void**)((uintptr_t)(fiber.stack.get() + STACK_BYTES) & ~uintptr_t(15));
  *--top = nullptr;
  *--top = (void*)fiber_main;
  fiber.stack_pointer = top - 6;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = STACK_BYTES;
  makecontext(&fiber.context, fiber_main, 0);
#endif
  ready.push_back(thread);
}

void start_block(long long index, int threads) {
  if (fibers.size() != (size_t)threads) {
    fibers.clear();
    fibers.resize(threads);
  }
  block_index = index;
  threads_per_block = alive = second_part = threads;
  ready.clear();
  for (int i = 0; i < threads; i++) start(fibers[i], i);
}

void run_block(long long index, int threads, const std::function<void()>& function) {
  body = &function;
  start_block(index, threads);
  next();
}

}  // namespace elman::emulation
