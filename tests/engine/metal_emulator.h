// What the kernels use of Metal, on a CPU: every lane is a fiber, threadgroups run one after another.
//
// A shuffle goes on when all lanes of its SIMD group are at one with the same mask, a barrier when the whole threadgroup
// is at it; where neither comes about, the kernel would hang or compute nonsense on a GPU, and the launch says so.
// What is not seen here: address spaces (which only Metal's compiler knows), races that this order hides, and speed.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

#define device
#define constant
#define threadgroup static  // one for all fibers; threadgroups do not overlap

typedef unsigned int uint;
typedef unsigned short ushort;
struct uint3 { uint x, y, z; };

#ifdef __FLT16_MANT_DIG__  // older compilers have no half; kernels of it then do not compile
typedef _Float16 float16_t;
#endif
struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  explicit bfloat16_t(float x) {
    uint32_t word;
    memcpy(&word, &x, 4);
    bits = std::isnan(x) ? 0x7FC0 : (word + 0x7FFF + (word >> 16 & 1)) >> 16;  // to the nearest, ties to even
  }
  explicit operator float() const {
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
  }
};

template <typename To, typename From> To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the bits");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}
template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }
namespace metal { namespace fast { inline float exp2(float x) { return ::exp2f(x); } } }

namespace emulator {
enum State { RUNS, AT_SHUFFLE, AT_BARRIER, ENDED };
constexpr size_t STACK = 1 << 16;
struct Lane {
  ucontext_t context;
  State state;
  float given[2];  // of this shuffle and the one before: others may still read that
  int mask, shuffles;
  uint3 in_group, in_grid;
};
static Lane lanes[1024];
static Lane* now;
static uint3 group_in_grid, groups, group_size;
static ucontext_t home;
static void (*body)();
static char* stacks;

inline void wait(State state) {
  now->state = state;
  swapcontext(&now->context, &home);
}
inline void live() {
  body();
  wait(ENDED);
}
inline bool all(uint from, uint to, State state) {
  for (uint i = from; i < to; ++i)
    if (lanes[i].state != state || (state == AT_SHUFFLE && lanes[i].mask != lanes[from].mask)) return false;
  for (uint i = from; i < to && state != ENDED; ++i) lanes[i].state = RUNS;
  return true;
}
inline const char* run_group(uint count) {
  for (uint i = 0; i < count; ++i) {
    Lane& lane = lanes[i];
    const uint3 g = group_size, p = {i % g.x, i / g.x % g.y, i / g.x / g.y};
    lane.in_group = p;
    lane.in_grid = {group_in_grid.x * g.x + p.x, group_in_grid.y * g.y + p.y, group_in_grid.z * g.z + p.z};
    lane.state = RUNS;
    lane.shuffles = 0;
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = stacks + i * STACK;
    lane.context.uc_stack.ss_size = STACK;
    makecontext(&lane.context, live, 0);
  }
  while (!all(0, count, ENDED)) {
    for (uint i = 0; i < count; ++i)
      if (lanes[i].state == RUNS) {
        now = &lanes[i];
        swapcontext(&home, &now->context);
      }
    bool moves = all(0, count, AT_BARRIER) || all(0, count, ENDED);
    for (uint i = 0; i < count; i += 32) moves |= all(i, min(i + 32, count), AT_SHUFFLE);
    if (!moves) return "lanes part: not all of them reach a shuffle or a barrier";
  }
  return nullptr;
}
inline const char* launch(const uint* grid, const uint* group, void (*kernel)()) {
  body = kernel;
  group_size = {group[0], group[1], group[2]};
  groups = {grid[0] / group[0], grid[1] / group[1], grid[2] / group[2]};
  const uint count = group[0] * group[1] * group[2];
  if (grid[0] % group[0] || grid[1] % group[1] || grid[2] % group[2]) return "the grid is no multiple of its groups";
  if (count > 1024) return "a threadgroup has at most 1024 threads";
  stacks = static_cast<char*>(malloc(count * STACK));
  const char* failed = nullptr;
  for (uint z = 0; z < groups.z; ++z)
    for (uint y = 0; y < groups.y; ++y)
      for (uint x = 0; x < groups.x && !failed; ++x) {
        group_in_grid = {x, y, z};
        failed = run_group(count);
      }
  free(stacks);
  return failed;
}
}  // namespace emulator

inline float simd_shuffle_xor(float x, ushort mask) {
  emulator::Lane* self = emulator::now;
  const int which = self->shuffles++ % 2;
  self->given[which] = x;
  self->mask = mask;
  emulator::wait(emulator::AT_SHUFFLE);
  return emulator::lanes[(self - emulator::lanes) ^ mask].given[which];
}
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
inline void threadgroup_barrier(mem_flags) { emulator::wait(emulator::AT_BARRIER); }
