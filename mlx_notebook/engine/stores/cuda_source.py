"""The CUDA kernels' source.

Attention: one block serves one row, one key/value head and one span of columns; the query heads of a group share each
key that is read. Eight numbers a lane are one load; running maximum and sum are kept in float32, a softmax in base 2.
The new column is taken from its inputs, turned to its position where that is still to be done, and written into its
page by the block whose span it ends. Long rows are split at fixed columns and merged, so that a row's bits depend on
its own length alone. New queries, keys and values may be columns of one product: QROW and KROW are the numbers from
one row to the next, K0 and V0 where keys and values begin.

Source of the method: Dao et al., FlashAttention; Dao et al., Flash-Decoding (split over columns); Kwon et
al., PagedAttention. The code is our own.
"""

from __future__ import annotations

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores.ptx import PTX
from mlx_notebook.engine.stores.tile_source import TILES

WARPS, DEEP = 4, 2
SPAN = 512
"""Columns that one block reads; rows up to it need no merge."""

_DEFINES = f"#define BLOCK {BLOCK}\n#define SPAN {SPAN}\n#define DEEP {DEEP}\n"

_BASICS = """
template <typename T> struct Eight {};  // numbers that are loaded at once; raw, they take half the registers
template <> struct Eight<__nv_bfloat16> {
  using Raw = uint4;
  static __device__ Raw take(const __nv_bfloat16* p) { return *reinterpret_cast<const uint4*>(p); }
  static __device__ void open(const Raw& w, float* x) {
    const __nv_bfloat162* h = reinterpret_cast<const __nv_bfloat162*>(&w);
    for (int i = 0; i < 4; ++i) { float2 f = __bfloat1622float2(h[i]); x[2 * i] = f.x; x[2 * i + 1] = f.y; }
  }
  static __device__ void load(const __nv_bfloat16* p, float* x) { open(take(p), x); }
};
template <> struct Eight<__half> {
  using Raw = uint4;
  static __device__ Raw take(const __half* p) { return *reinterpret_cast<const uint4*>(p); }
  static __device__ void open(const Raw& w, float* x) {
    const __half2* h = reinterpret_cast<const __half2*>(&w);
    for (int i = 0; i < 4; ++i) { float2 f = __half22float2(h[i]); x[2 * i] = f.x; x[2 * i + 1] = f.y; }
  }
  static __device__ void load(const __half* p, float* x) { open(take(p), x); }
};
template <> struct Eight<float> {
  struct Raw { float4 a, b; };
  static __device__ Raw take(const float* p) {
    return {*reinterpret_cast<const float4*>(p), *reinterpret_cast<const float4*>(p + 4)};
  }
  static __device__ void open(const Raw& w, float* x) {
    x[0] = w.a.x; x[1] = w.a.y; x[2] = w.a.z; x[3] = w.a.w; x[4] = w.b.x; x[5] = w.b.y; x[6] = w.b.z; x[7] = w.b.w;
  }
  static __device__ void load(const float* p, float* x) { open(take(p), x); }
};
template <typename T, int D> __device__ inline void turn_eight(float* x, const float* turn, int part) {
  constexpr int HALF = D / 2;
  const int low = part * 8 % HALF;
  const float sign = part * 8 < HALF ? -1.0f : 1.0f;
  for (int i = 0; i < 8; ++i) {
    const float other = __shfl_xor_sync(0xffffffffu, x[i], D / 16);
    x[i] = static_cast<float>(static_cast<T>(x[i] * turn[low + i] + sign * other * turn[HALF + low + i]));
  }
}
__device__ inline float weight(float from, float to) { return from == -INFINITY ? 0.0f : exp2f(from - to); }

// What each warp saw, in `room`: maxima, sums, values; store(g, d, maximum, sum, value) is called for each number.
template <int G, int D, int WARPS, typename Store>
__device__ __forceinline__ void merge_warps(int thread, int barrier, const float* room, Store store) {
  const float* tops = room;
  const float* sums = tops + WARPS * G;
  const float* accs = sums + WARPS * G;
  meet(barrier, WARPS * 32);
  for (int index = thread; index < G * D; index += WARPS * 32) {
    const int g = index / D, d = index % D;
    float high = -INFINITY, total = 0.0f, value = 0.0f;
    for (int w = 0; w < WARPS; ++w) high = fmaxf(high, tops[w * G + g]);
    for (int w = 0; w < WARPS; ++w) {
      const float scaled = weight(tops[w * G + g], high);
      total += sums[w * G + g] * scaled;
      value += accs[(w * G + g) * D + d] * scaled;
    }
    store(g, d, high, total, value);
  }
}
"""

_SPAN_OF_ROW = """
// One span of columns of one row, for the query heads of one key head: by WARPS warps that meet at `barrier`.
// The columns of the next round are under way while those of this one are summed up.
// Pointers are the row's own; `room` has WARPS * G * (D + 2) numbers; store(g, d, maximum, sum, value).
template <typename T, int H, int G, int D, int TURN, int WARPS, typename Store>
__device__ __forceinline__ void attend_span(
    const T* q, const T* knew, const T* vnew, const T* kpool, const T* vpool, const int* table, int position, int split,
    int head, const float* turn, float scale, int thread, int barrier, float* room, Store store) {
constexpr int LANES = D / 8;
constexpr int COLS = 32 / LANES;
const int warp = thread / 32, lane = thread % 32;
const int sub = lane / LANES, part = lane % LANES;
const int start = split * SPAN, stop = min(position, start + SPAN);
const bool owns = position >= start && position < start + SPAN;
float qs[G][8], acc[G][8], top[G], sum[G];
for (int g = 0; g < G; ++g) {
  Eight<T>::load(q + (head * G + g) * D + part * 8, qs[g]);
  if (TURN) turn_eight<T, D>(qs[g], turn, part);
  top[g] = -INFINITY; sum[g] = 0.0f;
  for (int i = 0; i < 8; ++i) { qs[g][i] *= scale; acc[g][i] = 0.0f; }
}
auto see = [&](const float* k, const float* v, bool valid) {
  for (int g = 0; g < G; ++g) {
    float s = 0.0f;
    for (int i = 0; i < 8; ++i) s += qs[g][i] * k[i];
    for (int off = LANES / 2; off > 0; off /= 2) s += __shfl_xor_sync(0xffffffffu, s, off);
    if (valid) {
      const float high = fmaxf(top[g], s), keep = weight(top[g], high), p = exp2f(s - high);
      sum[g] = sum[g] * keep + p; top[g] = high;
      for (int i = 0; i < 8; ++i) acc[g][i] = acc[g][i] * keep + p * v[i];
    }
  }
};
const bool writes = owns && warp == WARPS - 1;  // the warp that has the fewest columns
typename Eight<T>::Raw keys[DEEP], values[DEEP], new_key = {}, new_value = {};
size_t page = 0;
if (writes) {
  page = table[position / BLOCK];
  new_key = Eight<T>::take(knew + head * D + part * 8);
  new_value = Eight<T>::take(vnew + head * D + part * 8);
}
auto fetch = [&](int base) {
#pragma unroll
  for (int j = 0; j < DEEP; ++j) {
    const int c = base + j * WARPS * COLS + sub;
    if (c < stop) {
      const size_t at = (((size_t)table[c / BLOCK] * H + head) * BLOCK + c % BLOCK) * D + part * 8;
      keys[j] = Eight<T>::take(kpool + at);
      values[j] = Eight<T>::take(vpool + at);
    }
  }
};
fetch(start + warp * COLS);
for (int base = start + warp * COLS; base < stop; base += DEEP * WARPS * COLS) {
  float k[DEEP][8], v[DEEP][8];
  bool valid[DEEP];
#pragma unroll
  for (int j = 0; j < DEEP; ++j) {
    valid[j] = base + j * WARPS * COLS + sub < stop;
    for (int i = 0; i < 8; ++i) { k[j][i] = 0.0f; v[j][i] = 0.0f; }
    if (valid[j]) { Eight<T>::open(keys[j], k[j]); Eight<T>::open(values[j], v[j]); }
  }
  fetch(base + DEEP * WARPS * COLS);
#pragma unroll
  for (int g = 0; g < G; ++g) {
    float s[DEEP];
#pragma unroll
    for (int j = 0; j < DEEP; ++j) {
      s[j] = 0.0f;
      for (int i = 0; i < 8; ++i) s[j] += qs[g][i] * k[j][i];
    }
    for (int off = LANES / 2; off > 0; off /= 2)
#pragma unroll
      for (int j = 0; j < DEEP; ++j) s[j] += __shfl_xor_sync(0xffffffffu, s[j], off);
    float high = top[g];
#pragma unroll
    for (int j = 0; j < DEEP; ++j) if (valid[j]) high = fmaxf(high, s[j]);
    if (valid[0]) {
      const float keep = weight(top[g], high);
      sum[g] *= keep; top[g] = high;
      for (int i = 0; i < 8; ++i) acc[g][i] *= keep;
#pragma unroll
      for (int j = 0; j < DEEP; ++j) {
        const float p = valid[j] ? exp2f(s[j] - high) : 0.0f;
        sum[g] += p;
        for (int i = 0; i < 8; ++i) acc[g][i] += p * v[j][i];
      }
    }
  }
}
if (writes) {
  float k[8], v[8];
  Eight<T>::open(new_key, k);
  Eight<T>::open(new_value, v);
  if (TURN) turn_eight<T, D>(k, turn, part);
  see(k, v, sub == 0);
  if (sub == 0) {
    const size_t at = ((page * H + head) * BLOCK + position % BLOCK) * D + part * 8;
    T* kp = const_cast<T*>(kpool); T* vp = const_cast<T*>(vpool);
    for (int i = 0; i < 8; ++i) { kp[at + i] = static_cast<T>(k[i]); vp[at + i] = static_cast<T>(v[i]); }
  }
}
for (int off = LANES; off < 32; off *= 2)
  for (int g = 0; g < G; ++g) {
    const float top2 = __shfl_xor_sync(0xffffffffu, top[g], off), sum2 = __shfl_xor_sync(0xffffffffu, sum[g], off);
    const float high = fmaxf(top[g], top2), a = weight(top[g], high), b = weight(top2, high);
    sum[g] = sum[g] * a + sum2 * b;
    for (int i = 0; i < 8; ++i) acc[g][i] = acc[g][i] * a + __shfl_xor_sync(0xffffffffu, acc[g][i], off) * b;
    top[g] = high;
  }
float* tops = room;
float* sums = tops + WARPS * G;
float* accs = sums + WARPS * G;
if (sub == 0)
  for (int g = 0; g < G; ++g) {
    if (part == 0) { tops[warp * G + g] = top[g]; sums[warp * G + g] = sum[g]; }
    for (int i = 0; i < 8; ++i) accs[(warp * G + g) * D + part * 8 + i] = acc[g][i];
  }
merge_warps<G, D, WARPS>(thread, barrier, room, store);
}
"""

HEADER = _DEFINES + PTX + _BASICS + _SPAN_OF_ROW + TILES

ATTEND = """
const int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z;
[[maybe_unused]] const int splits = gridDim.x;
__shared__ float room[TEAM * G * (D + 2)];
const size_t from = (size_t)row * KROW;
attend<T, H, G, D, TURN, TEAM>(
    q + (size_t)row * QROW, knew + K0 + from, vnew + V0 + from, kpool, vpool, table + row * table_shape[1],
    positions[row], split, head, turn + (size_t)row * (TURN ? D : 0), __int_as_float(SCALE_BITS), threadIdx.x, 1, room,
    [&](int g, int d, float high, float total, float value) {
      const size_t at = (size_t)row * H * G + head * G + g;
      STORE
    });
"""

WHOLE = "out[at * D + d] = static_cast<T>(total > 0.0f ? value / total : 0.0f);"

PART = """
  part_out[(at * splits + split) * D + d] = value;
  if (d == 0) { stat[(at * splits + split) * 2] = high; stat[(at * splits + split) * 2 + 1] = total; }
"""

MERGE = """
const int d = threadIdx.x;
const size_t at = blockIdx.y;
const int splits = stat_shape[2];
float high = -INFINITY, total = 0.0f, value = 0.0f;
for (int s = 0; s < splits; ++s) high = fmaxf(high, stat[(at * splits + s) * 2]);
for (int s = 0; s < splits; ++s) {
  const float scaled = weight(stat[(at * splits + s) * 2], high);
  total += stat[(at * splits + s) * 2 + 1] * scaled;
  value += part[(at * splits + s) * D + d] * scaled;
}
out[at * D + d] = static_cast<T>(total > 0.0f ? value / total : 0.0f);
"""

FILL = """
constexpr int LANES = D / 8;
const int rows = ksrc_shape[0], capacity = ksrc_shape[2], width = pages_shape[1], most = min(capacity, width * BLOCK);
const size_t index = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
const int part = index % LANES, c = index / LANES % most, head = index / LANES / most % H;
const size_t row = index / LANES / most / H;
if (row < rows && c < lengths[row]) {
  const size_t from = ((row * H + head) * capacity + c) * D + part * 8;
  const size_t at = (((size_t)pages[row * width + c / BLOCK] * H + head) * BLOCK + c % BLOCK) * D + part * 8;
  T* kp = const_cast<T*>(kpool); T* vp = const_cast<T*>(vpool);
  for (int i = 0; i < 8; ++i) { kp[at + i] = ksrc[from + i]; vp[at + i] = vsrc[from + i]; }
}
if (index == 0) done[0] = 1;
"""

SPLIT = """
constexpr int EACH = 16 / sizeof(T);  // numbers of one load
const int at = (blockIdx.x * blockDim.x + threadIdx.x) * EACH;
const size_t row = blockIdx.y;
if (at < A + B + C) {
  const uint4 word = *reinterpret_cast<const uint4*>(whole + row * (A + B + C) + at);
  T* to = at < A ? first + row * A + at : at < A + B ? second + row * B + at - A : third + row * C + at - A - B;
  *reinterpret_cast<uint4*>(to) = word;
}
"""
