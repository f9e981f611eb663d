// What the kernels use of Metal, on a CPU.

#include "emulator.h"

#define device
#define constant
#define threadgroup static thread_local  // a threadgroup is a thread

#ifdef __FLT16_MANT_DIG__  // older compilers have no half; kernels of it then do not compile
typedef _Float16 float16_t;
#endif

template <typename To, typename From> To as_type(From from) { return bits_as<To>(from); }
template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }
namespace metal { namespace fast { inline float exp2(float x) { return ::exp2f(x); } } }

inline float simd_shuffle_xor(float x, ushort mask) {
  emulator::meet(mask, 0xffffffffu, x);
  return emulator::shown_by<float>(emulator::block->now->index ^ mask);
}
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
inline void threadgroup_barrier(mem_flags) { emulator::wait_at(0, emulator::launched.lanes); }

namespace emulator {
inline uint3 in_grid() {
  const uint3 g = launched.group, at = block->index, p = block->now->in_group;
  return {at.x * g.x + p.x, at.y * g.y + p.y, at.z * g.z + p.z};
}
}  // namespace emulator
