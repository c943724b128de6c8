// What all emulated kernels share: fibers for threads, the copies beside them, and the bounds of the buffers.

#include "host.hpp"

#include <csetjmp>
#include <deque>
#include <memory>
#include <ucontext.h>
#include <vector>

Machine machine;
unsigned Machine::word[MOST], Machine::fragments[MOST][6];
const char* Machine::row[MOST];

Buffer buffers[MOST_BUFFERS], scratch;
int buffer_count = 0;
unsigned long long strayed = 0, written = 0;
extern "C" unsigned long long bytes_strayed() { return strayed; }
extern "C" unsigned long long bytes_written() { return written; }

bool is_inside(const char* at, unsigned long bytes) {
  for (int i = 0; i < buffer_count; ++i)
    if (buffers[i].start <= at && at + bytes <= buffers[i].end) return true;
  return false;
}

namespace {

constexpr size_t STACK = 64 * 1024;  // of a fiber

// Copies beside the threads: of each thread, by groups, what arrives when they are waited for.
struct Copy {
  char* to;
  std::vector<char> bytes;
};
std::vector<std::deque<std::vector<Copy>>> copies;

// The barrier of each block of a cluster: threads that have come, that are still running, and how often it has opened.
struct Barrier {
  unsigned come = 0, present = 0, opened = 0;

  void open_when_complete() {
    if (come < present || !come) return;
    come = 0;
    ++opened;
  }
};
Barrier barriers[8], of_cluster;

// Whoever comes last pauses, too: the lanes of a warp go on in the same round.
void wait_at(Barrier& barrier) {
  const unsigned opened = barrier.opened;
  ++barrier.come;
  barrier.open_when_complete();
  do machine.pause();
  while (barrier.opened == opened);
}

// A fiber begins by its context and goes on by its jump: swapcontext would ask the system for the signals each time.
struct Fiber {
  ucontext_t begin;
  jmp_buf at;
  bool has_begun;
};
bool finished[Machine::MOST];
jmp_buf scheduler;
std::vector<Fiber> fiber;
std::unique_ptr<char[]> stack;
void (*body)(void*);
void* captured;

// One block after another.
void run_fiber() {
  for (;; machine.pause()) {
    body(captured);
    finished[machine.thread] = true;
    Barrier& mine = barriers[cluster_rank()];
    for (Barrier* barrier : {&mine, &of_cluster}) {
      --barrier->present;
      barrier->open_when_complete();
    }
  }
}

void begin_fibers() {
  for (unsigned t = 0; t < machine.threads; ++t) {
    getcontext(&fiber[t].begin);
    fiber[t].begin.uc_stack.ss_sp = stack.get() + t * STACK;
    fiber[t].begin.uc_stack.ss_size = STACK;
    makecontext(&fiber[t].begin, run_fiber, 0);
    fiber[t].has_begun = false;
  }
}

// A function of its own: its caller's variables are on no jump's way.
__attribute__((noinline)) void go_on(Fiber& with) {
  if (_setjmp(scheduler)) return;
  if (with.has_begun) _longjmp(with.at, 1);
  with.has_begun = true;
  setcontext(&with.begin);
}

void run_block() {
  for (Barrier& barrier : barriers) barrier = {0, machine.threads / machine.cluster, 0};
  of_cluster = {0, machine.threads, 0};
  for (unsigned t = 0; t < machine.threads; ++t) {
    finished[t] = false;
    copies[t].assign(1, {});
  }
  for (unsigned left = machine.threads; left > 0;) {
    left = 0;
    for (machine.thread = 0; machine.thread < machine.threads; ++machine.thread) {
      if (finished[machine.thread]) continue;
      go_on(fiber[machine.thread]);
      left += !finished[machine.thread];
    }
  }
}

}  // namespace

void Machine::pause() {
  if (!_setjmp(fiber[thread].at)) _longjmp(scheduler, 1);
}

void Machine::wait_for_block() { wait_at(barriers[cluster_rank()]); }
void Machine::cluster_sync() { wait_at(of_cluster); }

void run_on_fibers(unsigned blocks, unsigned threads, void (*of_thread)(void*), void* with) {
  machine.blocks = blocks;
  machine.threads = threads * machine.cluster;
  body = of_thread;
  captured = with;
  copies.resize(machine.threads);
  fiber.resize(machine.threads);
  stack.reset(new char[machine.threads * STACK]);
  begin_fibers();
  for (machine.block = 0; machine.block < blocks; machine.block += machine.cluster) run_block();
  // Libraries stay loaded: what each would keep adds up to gigabytes.
  copies = {};
  fiber = {};
  stack.reset();
}

void deliver_later(char* to, const char* bytes, int count) {
  copies[machine.thread].back().push_back({to, {bytes, bytes + count}});
}

void commit_copies() { copies[machine.thread].emplace_back(); }

void deliver_all_but(unsigned groups) {
  auto& waiting = copies[machine.thread];
  for (; waiting.size() > groups + 1; waiting.pop_front())
    for (const auto& copy : waiting.front()) std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
}
