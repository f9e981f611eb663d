// What kernels of any GPU need of a CPU: every lane is a fiber, every block an OS thread, AT_ONCE of them at a time.
//
// A warp's lanes meet when all of those named are at one with the same thing to do, a barrier opens when as many as it
// counts are at it. A launch that cannot go on says so: lanes that wait for others that will not come, and lanes that
// spin for what nobody writes.
// What is not seen here: address spaces, races that this order hides, the memory order of a GPU, and speed.

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <ucontext.h>

typedef unsigned int uint;
typedef unsigned short ushort;
struct uint3 { uint x, y, z; };

template <typename To, typename From> To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits are kept");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  explicit bfloat16_t(float x) {
    const uint32_t word = bits_as<uint32_t>(x);
    bits = std::isnan(x) ? 0x7FC0 : (word + 0x7FFF + (word >> 16 & 1)) >> 16;  // to the nearest, ties to even
  }
  explicit operator float() const { return bits_as<float>((uint32_t)bits << 16); }
};

namespace emulator {
constexpr uint WARP = 32, MOST_LANES = 1024, MOST_AT_ONCE = 8, BARRIERS = 16;
constexpr size_t STACK = 1 << 17, GIVEN = 64;
constexpr uint64_t INTACT = 0x5AFE5AFE5AFE5AFE;  // lies at the far ends of stacks and of shared memory
constexpr int ROUNDS = 200;  // in which a block's lanes only spin, before it counts as stuck
enum State { FRESH, RUNS, SPINS, AT_MEETING, AT_BARRIER, ENDED };

struct Lane {
  State state;
  uint index, mask;
  uint64_t meeting;  // what is done there: lanes meet only for the same
  uint barrier, waits_for;
  const void* spun_at;
  uint3 in_group;
  char given[GIVEN], shown[GIVEN];  // `shown` is what was given when all had met: a lane may be on its way to the next
  jmp_buf where;
};
struct Block {
  Lane lanes[MOST_LANES];
  uint count, arrived[BARRIERS];
  Lane* now;
  uint3 index;
  jmp_buf home;
  char *stacks, *shared;
  const char* failed;
};
static thread_local Block* block;

struct Launch {
  void (*body)();
  uint3 group, groups;
  uint lanes, blocks, workers, next, leave;
  size_t shared;
  const char* failed;
  uint64_t progress, strikes;             // progress: counts all that lanes do but spin
  uint64_t stuck_at[MOST_AT_ONCE];        // the progress at which a worker's block was last seen stuck
};
static Launch launched;
constexpr uint64_t GONE = ~0ull;

template <typename T> T seen(T& shared) { return __atomic_load_n(&shared, __ATOMIC_SEQ_CST); }
inline void progresses() {
  __atomic_add_fetch(&launched.progress, 1, __ATOMIC_SEQ_CST);
  __atomic_store_n(&launched.strikes, 0, __ATOMIC_SEQ_CST);
}
inline void fail(const char* why) {
  const char* none = nullptr;
  __atomic_compare_exchange_n(&launched.failed, &none, why, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

__attribute__((noinline)) inline void leave(State state) {
  Block* here = block;
  here->now->state = state;
  if (!_setjmp(here->now->where)) _longjmp(here->home, 1);
}
inline char* stack_of(const Block& here, uint lane) { return here.stacks + (lane + 1) * STACK; }
inline void live() {
  launched.body();
  leave(ENDED);
}
// Jumps, not swapcontext, which makes a system call each time.
__attribute__((noinline)) inline void jump_into(Lane& lane) {
  Block* here = block;
  here->now = &lane;
  if (_setjmp(here->home)) return;
  if (lane.state != FRESH) _longjmp(lane.where, 1);
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = stack_of(*here, lane.index);
  start.uc_stack.ss_size = STACK;
  start.uc_link = nullptr;
  makecontext(&start, live, 0);
  setcontext(&start);
}

inline void enter(Lane& lane) {
  jump_into(lane);
  if (memcmp(stack_of(*block, lane.index), &INTACT, sizeof INTACT)) fail("a lane needs more stack than it has here");
}

inline uint warp_of(const Lane& lane) { return lane.index / WARP * WARP; }
// All lanes in `mask` come here for the same, and see of each other what each gave.
template <typename Given> inline void meet(uint64_t what, uint mask, const Given& given) {
  static_assert(sizeof(Given) <= GIVEN, "more than lanes give each other");
  Lane& self = *block->now;
  if (!(mask >> self.index % WARP & 1)) fail("a lane meets others, but is not one of those it names");
  memcpy(self.given, &given, sizeof given);
  self.meeting = what;
  self.mask = mask;
  leave(AT_MEETING);
}
template <typename Given> inline Given shown_by(uint lane) {
  Given given;
  memcpy(&given, block->lanes[warp_of(*block->now) + lane % WARP].shown, sizeof given);
  return given;
}
inline void wait_at(uint barrier, uint lanes) {
  Block& here = *block;
  if (barrier >= BARRIERS || !lanes || lanes > here.count) return fail("no such barrier"), leave(AT_BARRIER);
  here.now->barrier = barrier;
  here.now->waits_for = lanes;
  ++here.arrived[barrier];
  leave(AT_BARRIER);
}
inline void spin(const void* at) {
  Lane& self = *block->now;
  if (self.state != SPINS || self.spun_at != at) progresses();
  self.spun_at = at;
  leave(SPINS);
}

inline uint first_lanes(uint count) { return count >= WARP ? ~0u : (1u << count) - 1; }
inline bool meetings_end(Block& here, uint from) {
  const uint to = from + WARP < here.count ? from + WARP : here.count;
  bool moved = false;
  for (uint i = from; i < to; ++i) {
    const Lane& first = here.lanes[i];
    const uint mask = first.mask & first_lanes(to - from);
    if (first.state != AT_MEETING || mask & first_lanes(i - from)) continue;  // the lowest lane speaks for all
    bool all = true;
    for (uint j = from; j < to; ++j) {
      const Lane& lane = here.lanes[j];
      if (mask >> (j - from) & 1)
        all &= lane.state == AT_MEETING && lane.meeting == first.meeting && lane.mask == first.mask;
    }
    for (uint j = from; j < to && all; ++j)
      if (mask >> (j - from) & 1) {
        memcpy(here.lanes[j].shown, here.lanes[j].given, GIVEN);
        here.lanes[j].state = RUNS;
      }
    moved |= all;
  }
  return moved;
}
inline bool barriers_open(Block& here) {
  bool moved = false;
  for (uint barrier = 0; barrier < BARRIERS; ++barrier) {
    if (!here.arrived[barrier]) continue;
    uint waits_for = 0, in_warp[MOST_LANES / WARP] = {};
    for (uint i = 0; i < here.count; ++i) {
      const Lane& lane = here.lanes[i];
      if (lane.state != AT_BARRIER || lane.barrier != barrier) continue;
      if (waits_for && lane.waits_for != waits_for)
        return fail("lanes at one barrier wait for different numbers"), false;
      waits_for = lane.waits_for;
      ++in_warp[i / WARP];
    }
    if (here.arrived[barrier] > waits_for) return fail("more lanes are at a barrier than it waits for"), false;
    if (here.arrived[barrier] < waits_for) continue;
    for (uint warp = 0; warp * WARP < here.count; ++warp) {
      const uint whole = here.count - warp * WARP < WARP ? here.count - warp * WARP : WARP;
      if (in_warp[warp] && in_warp[warp] != whole) return fail("a barrier that part of a warp is at"), false;
    }
    for (uint i = 0; i < here.count; ++i)
      if (here.lanes[i].state == AT_BARRIER && here.lanes[i].barrier == barrier) here.lanes[i].state = RUNS;
    here.arrived[barrier] = 0;
    moved = true;
  }
  return moved;
}

// Twice every block was stuck, each for many rounds: what others wrote before is seen by then.
inline void stuck(uint worker, uint64_t progress) {
  __atomic_store_n(&launched.stuck_at[worker], progress, __ATOMIC_SEQ_CST);
  for (uint i = 0; i < launched.workers; ++i) {
    const uint64_t at = seen(launched.stuck_at[i]);
    if (at != progress && at != GONE) return;
  }
  const bool still = __atomic_compare_exchange_n(&launched.progress, &progress, progress + 1, false, __ATOMIC_SEQ_CST,
                                                 __ATOMIC_SEQ_CST);
  if (!still) return;
  if (__atomic_add_fetch(&launched.strikes, 1, __ATOMIC_SEQ_CST) == 2) fail("lanes spin for what nobody writes");
}

inline void start(Block& here, uint number) {
  const uint3 g = launched.group, all = launched.groups;
  here.index = {number % all.x, number / all.x % all.y, number / all.x / all.y};
  here.count = launched.lanes;
  memset(here.arrived, 0, sizeof here.arrived);
  memset(here.shared, 0xFF, launched.shared);  // nobody's: not a number
  memcpy(here.shared + launched.shared, &INTACT, sizeof INTACT);
  for (uint i = 0; i < here.count; ++i) {
    Lane& lane = here.lanes[i];
    lane.state = FRESH;
    lane.index = i;
    lane.spun_at = nullptr;
    lane.in_group = {i % g.x, i / g.x % g.y, i / g.x / g.y};
    memcpy(stack_of(here, i), &INTACT, sizeof INTACT);
  }
}
inline void check(const Block& here) {
  if (memcmp(here.shared + launched.shared, &INTACT, sizeof INTACT)) fail("writes past the end of shared memory");
}
// One turn of every lane that can go on; `ended` counts those that have.
inline bool turn(Block& here, uint& ended, bool& spun) {
  bool moved = false;
  ended = 0;
  spun = false;
  for (uint from = 0; from < here.count && !seen(launched.failed); from += WARP) {
    const uint to = from + WARP < here.count ? from + WARP : here.count;
    do
      for (uint i = from; i < to; ++i) {
        Lane& lane = here.lanes[i];
        if ((lane.state == FRESH || lane.state == RUNS) && !seen(launched.failed)) enter(lane), moved = true;
      }
    while (meetings_end(here, from));
    for (uint i = from; i < to; ++i) {
      Lane& lane = here.lanes[i];
      if (lane.state == SPINS) {
        const void* at = lane.spun_at;
        enter(lane);
        moved |= lane.state != SPINS || lane.spun_at != at;
      }
      spun |= lane.state == SPINS;
      ended += lane.state == ENDED;
    }
    moved |= meetings_end(here, from);
  }
  return moved | barriers_open(here);
}
inline void run(Block& here, uint worker) {
  int idle = 0;
  uint64_t known = seen(launched.progress);
  while (!seen(launched.failed)) {
    uint ended;
    bool spun;
    const bool moved = turn(here, ended, spun);
    if (ended == here.count) break;
    if (!moved && !spun) fail("lanes part: not all of them reach a meeting or a barrier");
    if (moved) progresses();
    else sched_yield();
    const uint64_t progress = seen(launched.progress);
    idle = progress == known ? idle + 1 : 0;
    known = progress;
    if (idle >= ROUNDS) stuck(worker, progress);
  }
  if (!seen(launched.failed)) check(here);
}
inline void* work(void* which) {
  const uint worker = (uint)(uintptr_t)which;
  Block* here = block = static_cast<Block*>(malloc(sizeof(Block)));
  here->stacks = static_cast<char*>(malloc((launched.lanes + 1) * STACK));  // the first: what lane 0 overruns
  here->shared = static_cast<char*>(aligned_alloc(1024, (launched.shared + sizeof INTACT + 1023) / 1024 * 1024));
  for (;;) {
    const uint number = __atomic_fetch_add(&launched.next, 1, __ATOMIC_SEQ_CST);
    if (number >= launched.blocks || seen(launched.failed)) break;
    start(*here, number);
    run(*here, worker);
    progresses();
  }
  __atomic_store_n(&launched.stuck_at[worker], GONE, __ATOMIC_SEQ_CST);
  free(here->shared);
  free(here->stacks);
  free(here);
  return nullptr;
}
inline const char* launch(const uint* grid, const uint* group, size_t shared, uint at_once, void (*kernel)()) {
  if (grid[0] % group[0] || grid[1] % group[1] || grid[2] % group[2]) return "the grid is no multiple of its groups";
  const uint3 groups = {grid[0] / group[0], grid[1] / group[1], grid[2] / group[2]};
  const uint lanes = group[0] * group[1] * group[2], blocks = groups.x * groups.y * groups.z;
  if (lanes > MOST_LANES) return "a group has at most 1024 threads";
  memset(&launched, 0, sizeof launched);
  launched.body = kernel;
  launched.group = {group[0], group[1], group[2]};
  launched.groups = groups;
  launched.lanes = lanes;
  launched.blocks = blocks;
  launched.shared = shared;
  launched.workers = blocks < at_once ? blocks : at_once;
  pthread_t workers[MOST_AT_ONCE];
  for (uint i = 0; i < launched.workers; ++i)
    if (pthread_create(&workers[i], nullptr, work, (void*)(uintptr_t)i)) abort();
  for (uint i = 0; i < launched.workers; ++i) pthread_join(workers[i], nullptr);
  return launched.failed;
}
}  // namespace emulator
