"""The CUDA source of attention in half precision: scores and sums over values by tensor cores, 16 columns a tile.

The query heads of a group are the rows of the left side (8 of its 16 are used at most). A score's sum runs over a
head's numbers in whatever order both sides have them, so a lane takes 16 bytes of a key as they lie. Scores then lie
where the next product wants its left side. Of values a lane takes 16 bytes of each of four columns and pairs them by
number; which number of a head is which column of the product is again free, as long as the end knows it.

Source of the method: Dao et al., FlashAttention-2 (scores stay in registers); of the fragments' layout: NVIDIA, PTX
ISA, mma.m16n8k16. The code is our own.
"""

from __future__ import annotations

TILES = """
template <typename T> __device__ __forceinline__ unsigned pair(float low, float high) {
  struct alignas(4) Two { T n[2]; };
  const Two two = {{static_cast<T>(low), static_cast<T>(high)}};
  return *reinterpret_cast<const unsigned*>(&two);
}
__device__ __forceinline__ unsigned word(const uint4& w, int i) {
  return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
}

// As attend_span, for T of two bytes and G of at most 8.
template <typename T, int H, int G, int D, int TURN, int WARPS, typename Store>
__device__ __forceinline__ void attend_tiles(
    const T* q, const T* knew, const T* vnew, const T* kpool, const T* vpool, const int* table, int position, int split,
    int head, const float* turn, float scale, int thread, int barrier, float* room, Store store) {
  constexpr int QUARTERS = D / 32, HALVES = D / 64, TILE = 16;
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int start = split * SPAN, stop = min(position, start + SPAN);
  const bool writes = position >= start && position < start + SPAN && warp == WARPS - 1;

  const uint4 none = make_uint4(0, 0, 0, 0);
  uint4 keys[2][QUARTERS], values[4][HALVES];
  auto fetch = [&](int base) {
    if (base >= stop) return;
    const size_t page = (static_cast<size_t>(table[base / BLOCK]) * H + head) * BLOCK;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int c = base + j * 8 + g;
#pragma unroll
      for (int h = 0; h < QUARTERS; ++h)
        keys[j][h] = c < stop ? Eight<T>::take(kpool + (page + c % BLOCK) * D + h * 32 + t * 8) : none;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int c = base + j / 2 * 8 + t * 2 + j % 2;
#pragma unroll
      for (int v = 0; v < HALVES; ++v)
        values[j][v] = c < stop ? Eight<T>::take(vpool + (page + c % BLOCK) * D + v * 64 + g * 8) : none;
    }
  };
  fetch(start + warp * TILE);

  // Numbers of a head that this lane has: 8 from each 32; the other one of a turned pair is D / 2 further.
  auto turned = [&](const T* from, float (&x)[QUARTERS][8]) {
#pragma unroll
    for (int h = 0; h < QUARTERS; ++h) Eight<T>::load(from + h * 32 + t * 8, x[h]);
    if (TURN)
#pragma unroll
      for (int h = 0; h < HALVES; ++h)
        for (int i = 0; i < 8; ++i) {
          const float c = turn[h * 32 + t * 8 + i], s = turn[D / 2 + h * 32 + t * 8 + i];
          const float low = x[h][i], high = x[h + HALVES][i];
          x[h][i] = static_cast<float>(static_cast<T>(low * c - high * s));
          x[h + HALVES][i] = static_cast<float>(static_cast<T>(high * c + low * s));
        }
  };
  float x[QUARTERS][8];
  unsigned query[QUARTERS][4];
  const bool asks = g < G;
  turned(q + (head * G + (asks ? g : 0)) * D, x);
#pragma unroll
  for (int h = 0; h < QUARTERS; ++h)
#pragma unroll
    for (int i = 0; i < 4; ++i) query[h][i] = asks ? pair<T>(x[h][2 * i], x[h][2 * i + 1]) : 0u;

  float acc[HALVES][8][4], top = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int v = 0; v < HALVES; ++v)
#pragma unroll
    for (int i = 0; i < 8; ++i)
      for (int k = 0; k < 4; ++k) acc[v][i][k] = 0.0f;

  // The new column first: it is nobody's tile.
  if (writes) {
    float k[QUARTERS][8], part = 0.0f;
    turned(knew + head * D, k);
    const size_t at = ((static_cast<size_t>(table[position / BLOCK]) * H + head) * BLOCK + position % BLOCK) * D;
    if (g == 0)
#pragma unroll
      for (int h = 0; h < QUARTERS; ++h) {
        const uint4 whole = make_uint4(pair<T>(k[h][0], k[h][1]), pair<T>(k[h][2], k[h][3]),
                                       pair<T>(k[h][4], k[h][5]), pair<T>(k[h][6], k[h][7]));
        *reinterpret_cast<uint4*>(const_cast<T*>(kpool) + at + h * 32 + t * 8) = whole;
        const uint4 value = Eight<T>::take(vnew + head * D + h * 32 + t * 8);
        *reinterpret_cast<uint4*>(const_cast<T*>(vpool) + at + h * 32 + t * 8) = value;
      }
#pragma unroll
    for (int h = 0; h < QUARTERS; ++h)
      for (int i = 0; i < 8; ++i) part += x[h][i] * k[h][i];
    part += __shfl_xor_sync(0xffffffffu, part, 1);
    part += __shfl_xor_sync(0xffffffffu, part, 2);
    top = part * scale;
    sum = t == 0 ? 1.0f : 0.0f;  // lanes of a row are added up at the end
#pragma unroll
    for (int v = 0; v < HALVES; ++v) {
      float low[8], high[8];
      Eight<T>::load(vnew + head * D + v * 64 + t * 16, low);
      Eight<T>::load(vnew + head * D + v * 64 + t * 16 + 8, high);
#pragma unroll
      for (int i = 0; i < 8; ++i) { acc[v][i][0] = low[i]; acc[v][i][1] = high[i]; }
    }
  }

  for (int base = start + warp * TILE; base < stop; base += WARPS * TILE) {
    float p[2][2], high = top;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int h = 0; h < QUARTERS; ++h) {
        const uint4 k = keys[j][h];
        const unsigned left[4] = {query[h][0], 0u, query[h][1], 0u}, right[4] = {query[h][2], 0u, query[h][3], 0u};
        const unsigned first[2] = {k.x, k.y}, second[2] = {k.z, k.w};
        mma<T>(s, left, first);
        mma<T>(s, right, second);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        p[j][e] = base + j * 8 + t * 2 + e < stop ? s[e] * scale : -INFINITY;
        high = fmaxf(high, p[j][e]);
      }
    }
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
    const float keep = weight(top, high);
    top = high;
    sum *= keep;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        p[j][e] = static_cast<float>(static_cast<T>(weight(p[j][e], high)));
        sum += p[j][e];
      }
    const unsigned seen[4] = {pair<T>(p[0][0], p[0][1]), 0u, pair<T>(p[1][0], p[1][1]), 0u};
#pragma unroll
    for (int v = 0; v < HALVES; ++v)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const unsigned picks = i % 2 ? 0x7632 : 0x5410;
        const unsigned two[2] = {__byte_perm(word(values[0][v], i / 2), word(values[1][v], i / 2), picks),
                                 __byte_perm(word(values[2][v], i / 2), word(values[3][v], i / 2), picks)};
        acc[v][i][0] *= keep;
        acc[v][i][1] *= keep;
        mma<T>(acc[v][i], seen, two);
      }
    fetch(base + WARPS * TILE);
  }

  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  float* tops = room;
  float* sums = tops + WARPS * G;
  float* accs = sums + WARPS * G;
  if (asks) {
    if (t == 0) { tops[warp * G + g] = top; sums[warp * G + g] = sum; }
#pragma unroll
    for (int v = 0; v < HALVES; ++v)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        accs[(warp * G + g) * D + v * 64 + t * 16 + i] = acc[v][i][0];
        accs[(warp * G + g) * D + v * 64 + t * 16 + 8 + i] = acc[v][i][1];
      }
  }
  merge_warps<G, D, WARPS>(thread, barrier, room, store);
}

template <typename T, int H, int G, int D, int TURN, int WARPS, typename Store>
__device__ __forceinline__ void attend(
    const T* q, const T* knew, const T* vnew, const T* kpool, const T* vpool, const int* table, int position, int split,
    int head, const float* turn, float scale, int thread, int barrier, float* room, Store store) {
  if constexpr (sizeof(T) == 2 && G <= 8)
    attend_tiles<T, H, G, D, TURN, WARPS>(q, knew, vnew, kpool, vpool, table, position, split, head, turn, scale,
                                          thread, barrier, room, store);
  else
    attend_span<T, H, G, D, TURN, WARPS>(q, knew, vnew, kpool, vpool, table, position, split, head, turn, scale,
                                         thread, barrier, room, store);
}
"""
