// What the kernels use of CUDA, on a CPU. Conversions of half-precision numbers are explicit, their arithmetic is not
// here: a kernel that rounds to them says where.

#include "emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define alignas(bytes) __attribute__((aligned(bytes)))  // in nvcc it may follow __shared__
#define __shared__ static thread_local  // a block is a thread
#define threadIdx (emulator::block->now->in_group)
#define blockIdx (emulator::block->index)
#define blockDim (emulator::launched.group)
#define gridDim (emulator::launched.groups)

// glibc has some of these names for itself.
#define __expf expf
#define rsqrtf(x) (1.0f / sqrtf(x))
#define __int_as_float bits_as<float, int>
#define __uint_as_float bits_as<float, unsigned>
#define __float_as_int bits_as<int, float>
#define __float_as_uint bits_as<unsigned, float>

template <typename A, typename B> auto min(A a, B b) -> decltype(a + b) { return b < a ? b : a; }
template <typename A, typename B> auto max(A a, B b) -> decltype(a + b) { return a < b ? b : a; }

// Not aligned to their size: MLX's memory on a CPU is to 8 bytes only.
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

typedef bfloat16_t __nv_bfloat16;
struct __half {
  uint16_t bits;
  __half() = default;
  explicit __half(float x) {  // to the nearest, ties to even
    const float size = fabsf(x);
    const int exponent = size < 0x1p-14f ? -14 : ilogbf(size);
    // A carry runs over into the exponent; numbers under the least exponent lack the first bit, which its 1 takes away.
    const int rounded = ((exponent + 15) << 10) + (int)nearbyintf(ldexpf(size, 10 - exponent)) - 1024;
    const uint16_t plain = std::isnan(x) ? 0x7E00 : size >= 65520.0f ? 0x7C00 : rounded;
    bits = plain | (std::signbit(x) ? 0x8000 : 0);
  }
  explicit operator float() const {
    const int exponent = bits >> 10 & 31, rest = bits & 1023;
    const float size = exponent == 31 ? (rest ? NAN : INFINITY)
                     : exponent ? ldexpf(1024 + rest, exponent - 25) : ldexpf(rest, -24);
    return bits & 0x8000 ? -size : size;
  }
};
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
struct alignas(4) __half2 { __half x, y; };
inline float __bfloat162float(__nv_bfloat16 x) { return static_cast<float>(x); }
inline float __half2float(__half x) { return static_cast<float>(x); }
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __half __float2half(float x) { return __half(x); }
inline float2 __bfloat1622float2(__nv_bfloat162 pair) { return {(float)pair.x, (float)pair.y}; }
inline float2 __half22float2(__half2 pair) { return {(float)pair.x, (float)pair.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }

template <typename T> T __ldg(const T* p) { return *p; }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
namespace emulator {
template <typename T> T add(T* p, T value) {
  if (value) progresses();
  return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
}
enum Meeting : uint64_t { SYNC, TAKE, EXCHANGE, MULTIPLY };
template <typename T> T exchange(uint64_t what, uint mask, T x, uint from) {
  meet(what, mask, x);
  if (!(mask >> from % WARP & 1)) fail("a lane takes from one that is not there");
  return shown_by<T>(from);
}
}  // namespace emulator
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned picks) {
  const uint64_t both = (uint64_t)high << 32 | low;
  unsigned picked = 0;
  for (int i = 0; i < 4; ++i) picked |= (unsigned)(both >> 8 * (picks >> 4 * i & 7) & 255) << 8 * i;
  return picked;
}
inline int atomicAdd(int* p, int value) { return emulator::add(p, value); }
inline unsigned atomicAdd(unsigned* p, unsigned value) { return emulator::add(p, value); }
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long value) { return emulator::add(p, value); }

inline void __syncthreads() { emulator::wait_at(0, emulator::launched.lanes); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulator::meet(emulator::SYNC, mask, 0); }
template <typename T> T __shfl_sync(unsigned mask, T x, int from) {
  return emulator::exchange(emulator::TAKE, mask, x, from);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T x, int off) {
  return emulator::exchange(emulator::EXCHANGE + (uint64_t(off) << 8), mask, x, emulator::block->now->index % 32 ^ off);
}

// What stands in PTX in our kernels' headers.
inline void meet(int barrier, int threads) {
  if (threads % 32) emulator::fail("a named barrier counts whole warps");
  emulator::wait_at(barrier, threads);
}
inline unsigned long long load_acquire(const unsigned long long* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
__attribute__((noinline)) inline void pause_spin() { emulator::spin(__builtin_return_address(0)); }
inline unsigned char* dynamic_shared() { return reinterpret_cast<unsigned char*>(emulator::block->shared); }
inline void fetch_early(const void*) {}
[[noreturn]] inline void give_up() { abort(); }
inline uint4 load_streaming(const void* p) { return *static_cast<const uint4*>(p); }
inline uint4 load_shared_by_all(const void* p) { return *static_cast<const uint4*>(p); }

namespace emulator {
struct Fragments { unsigned a[4], b[2]; };
template <typename T> float number(unsigned pair, int which) {
  return static_cast<float>(bits_as<T>(static_cast<uint16_t>(pair >> 16 * which)));
}
}  // namespace emulator
// m16n8k16: A [16, 16] by rows, B [16, 8] by columns, C [16, 8]; lane 4 g + t has of A rows g and g + 8, of B column g.
template <typename T> void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  using namespace emulator;
  Fragments mine;
  memcpy(mine.a, a, sizeof a);
  memcpy(mine.b, b, sizeof b);
  meet(MULTIPLY + (uint64_t(std::is_same<T, __half>::value) << 8), 0xffffffffu, mine);
  const uint g = block->now->index % WARP / 4, t = block->now->index % 4;
  for (uint lane = 0; lane < 4; ++lane) {  // k: 2 lane, 2 lane + 1, and 8 on
    const Fragments row = shown_by<Fragments>(4 * g + lane);
    const Fragments columns[2] = {shown_by<Fragments>(8 * t + lane), shown_by<Fragments>(8 * t + 4 + lane)};
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 4; ++k)  // i / 2: row g or g + 8; k / 2: the half of k
        c[i] += number<T>(row.a[i / 2 + k / 2 * 2], k % 2) * number<T>(columns[i % 2].b[k / 2], k % 2);
  }
}
