"""The Metal kernels' source: the CUDA attention's twin for Apple GPUs, which only reads.

One threadgroup serves one row, one key/value head (or a few of its query heads, so that registers suffice) and one
span of columns. Eight numbers a lane; running maximum and sum in float32, a softmax in base 2; spans are fixed, so
that a row's bits depend on its own length alone. The new column is in its page already: `metal_pages` says why.

Written for Metal 3.1 (C++14, no lambdas). MLX passes small arrays in another address space than large ones, so tables
and positions are never handed on as pointers.

Source of the method: Dao et al., FlashAttention; Dao et al., Flash-Decoding (split over columns); Kwon et
al., PagedAttention. The code is our own.
"""

from __future__ import annotations

from mlx_notebook.core.projection import BLOCK

WARPS = 4
TOGETHER = 4
"""Query heads that share the keys of one threadgroup at most: a lane has 128 registers, and each head takes 18."""

SPAN = 512
"""Columns that one threadgroup reads; rows up to it need no merge."""

_DEFINES = f"#define BLOCK {BLOCK}\n#define SPAN {SPAN}\n#define WARPS {WARPS}\n"

HEADER = (
    _DEFINES
    + """
template <typename T, int D>
inline float turned_at(const device T* x, int64_t step, const device float* turn, int d) {
  constexpr int HALF = D / 2;
  const float own = static_cast<float>(x[d * step]);
  const float other = static_cast<float>(x[(d + HALF) % D * step]);
  const float sign = d < HALF ? -1.0f : 1.0f;
  const float made = own * turn[d % HALF] + sign * other * turn[HALF + d % HALF];
  return static_cast<float>(static_cast<T>(made));
}
inline float weight(float from, float to) { return from == -INFINITY ? 0.0f : metal::fast::exp2(from - to); }
"""
)

TURN = """
const int d = thread_position_in_grid.x, head = thread_position_in_grid.y, row = thread_position_in_grid.z;
const device T* from = fresh + row * fresh_strides[0] + head * fresh_strides[1];
const size_t at = ((size_t)row * fresh_shape[1] + head) * D + d;
out[at] = static_cast<T>(turned_at<T, D>(from, fresh_strides[3], turn + (size_t)row * D, d));
"""

ATTEND = """
constexpr int LANES = D / 8;
constexpr int COLS = 32 / LANES;
constexpr int PARTS = (G + EACH - 1) / EACH;
const int split = threadgroup_position_in_grid.x, splits = threadgroups_per_grid.x;
const int head = threadgroup_position_in_grid.y / PARTS, first = threadgroup_position_in_grid.y % PARTS * EACH;
const int row = threadgroup_position_in_grid.z;
const int warp = simdgroup_index_in_threadgroup, lane = thread_index_in_simdgroup;
const int sub = lane / LANES, part = lane % LANES;
const int pages = table_shape[1], position = positions[row];
const int start = split * SPAN, stop = min(position + 1, start + SPAN);
const float scale = as_type<float>(SCALE_BITS);
float qs[EACH][8], acc[EACH][8], top[EACH], sum[EACH];
for (int g = 0; g < EACH; ++g) {
  const int one = head * G + min(first + g, G - 1);  // a head too many is computed and not stored
  const device T* from = q + row * q_strides[0] + one * q_strides[1];
  top[g] = -INFINITY;
  sum[g] = 0.0f;
  for (int i = 0; i < 8; ++i) {
    const int d = part * 8 + i;
    const float x = TURN ? turned_at<T, D>(from, q_strides[3], turn + (size_t)row * D, d)
                         : static_cast<float>(from[d * q_strides[3]]);
    qs[g][i] = x * scale;
    acc[g][i] = 0.0f;
  }
}
for (int base = start + warp * COLS; base < stop; base += WARPS * COLS) {
  const bool valid = base + sub < stop;
  const int c = valid ? base + sub : base;  // shuffles need every lane: those without a column read another's
  const size_t at = (((size_t)table[row * pages + c / BLOCK] * H + head) * BLOCK + c % BLOCK) * D + part * 8;
  float k[8], v[8];
  for (int i = 0; i < 8; ++i) {
    k[i] = static_cast<float>(kpool[at + i]);
    v[i] = static_cast<float>(vpool[at + i]);
  }
  for (int g = 0; g < EACH; ++g) {
    float s = 0.0f;
    for (int i = 0; i < 8; ++i) s += qs[g][i] * k[i];
    for (int off = LANES / 2; off > 0; off /= 2) s += simd_shuffle_xor(s, ushort(off));
    if (valid) {
      const float high = max(top[g], s), keep = weight(top[g], high), p = weight(s, high);
      sum[g] = sum[g] * keep + p;
      top[g] = high;
      for (int i = 0; i < 8; ++i) acc[g][i] = acc[g][i] * keep + p * v[i];
    }
  }
}
for (int off = LANES; off < 32; off *= 2)
  for (int g = 0; g < EACH; ++g) {
    const float top2 = simd_shuffle_xor(top[g], ushort(off)), sum2 = simd_shuffle_xor(sum[g], ushort(off));
    const float high = max(top[g], top2), a = weight(top[g], high), b = weight(top2, high);
    sum[g] = sum[g] * a + sum2 * b;
    for (int i = 0; i < 8; ++i) acc[g][i] = acc[g][i] * a + simd_shuffle_xor(acc[g][i], ushort(off)) * b;
    top[g] = high;
  }
threadgroup float tops[WARPS][EACH], sums[WARPS][EACH], accs[WARPS][EACH][D];
if (sub == 0)
  for (int g = 0; g < EACH; ++g) {
    if (part == 0) {
      tops[warp][g] = top[g];
      sums[warp][g] = sum[g];
    }
    for (int i = 0; i < 8; ++i) accs[warp][g][part * 8 + i] = acc[g][i];
  }
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int index = thread_position_in_threadgroup.x; index < EACH * D; index += WARPS * 32) {
  const int g = index / D, d = index % D;
  if (first + g < G) {
    float high = -INFINITY, total = 0.0f, value = 0.0f;
    for (int w = 0; w < WARPS; ++w) high = max(high, tops[w][g]);
    for (int w = 0; w < WARPS; ++w) {
      const float scaled = weight(tops[w][g], high);
      total += sums[w][g] * scaled;
      value += accs[w][g][d] * scaled;
    }
    const size_t at = ((size_t)row * H + head) * G + first + g;
    STORE
  }
}
"""

WHOLE = "out[at * D + d] = static_cast<T>(total > 0.0f ? value / total : 0.0f);"

PART = """
    spans[(at * splits + split) * D + d] = value;
    if (d == 0) {
      stat[(at * splits + split) * 2] = high;
      stat[(at * splits + split) * 2 + 1] = total;
    }
"""

MERGE = """
const int d = thread_position_in_grid.x, splits = stat_shape[2];
const size_t at = thread_position_in_grid.y;
float high = -INFINITY, total = 0.0f, value = 0.0f;
for (int s = 0; s < splits; ++s) high = max(high, stat[(at * splits + s) * 2]);
for (int s = 0; s < splits; ++s) {
  const float scaled = weight(stat[(at * splits + s) * 2], high);
  total += stat[(at * splits + s) * 2 + 1] * scaled;
  value += spans[(at * splits + s) * D + d] * scaled;
}
out[at * D + d] = static_cast<T>(total > 0.0f ? value / total : 0.0f);
"""
