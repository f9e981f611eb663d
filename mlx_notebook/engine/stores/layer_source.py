"""The CUDA source of a whole transformer layer in one launch: norms, products, attention, sums of the residual stream.

All blocks of the launch stay on the GPU from its first phase to its last and meet between phases, at a counter that
each block raises; so the grid must not be larger than what the GPU holds at once. While a block waits for the others
it already reads its first weights of the next phase, which depend on nothing.

A product has few rows and many outputs, so it is as fast as weights can be read. They are read once, from memory
straight into the registers of the tensor cores' fragments: a thread takes 16 bytes of a row of weights and the same 16
bytes of each row of inputs, so that both sides number the inputs in one order, which a sum does not mind. Weights are
the left side (16 outputs a tile), rows of inputs the right side (8 a tile). The warps of a block share tiles (WT) and
inputs (WK); sums over warps are taken in one order, so that a row's bits depend on nobody else's.

Rounding follows the operations that it stands for: what they would have put into an array of type T is rounded to T.

Source of the fragments' layout: NVIDIA, PTX ISA, mma.m16n8k16. The code is our own.
"""

from __future__ import annotations

THREADS = 256
PAD = 32
"""Numbers between rows in shared memory: neighbours then lie in different banks."""

HEADER = (
    f"constexpr int PAD = {PAD};\n"
    """
constexpr unsigned PATIENCE = 1u << 26;

__device__ inline unsigned long long arrive(unsigned long long* count) {
  unsigned long long goal = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    goal = (atomicAdd(count, 1ull) / gridDim.x + 1) * gridDim.x;
  }
  return goal;
}
__device__ inline void wait_for_all(const unsigned long long* count, unsigned long long goal) {
  if (threadIdx.x == 0) {
    unsigned spins = 0;
    while (load_acquire(count) < goal) {
      if (++spins == PATIENCE) give_up();
      pause_spin();
    }
    __threadfence();
  }
  __syncthreads();
}

template <typename T> struct alignas(16) Row8 { T n[8]; };
template <typename T> __device__ inline float rounded(float x) { return static_cast<float>(static_cast<T>(x)); }

// A row of inputs, normed, to anywhere: by one warp, all of whose loads are under way at once.
template <typename T, int K> __device__ __forceinline__ void norm_row(const T* x, const T* weight, T* to, float eps) {
  constexpr int LOADS = (K + 255) / 256;
  const int lane = threadIdx.x % 32;
  typename Eight<T>::Raw held[LOADS];
  float total = 0.0f, v[8], w[8];
#pragma unroll
  for (int i = 0; i < LOADS; ++i) if (i * 256 + lane * 8 < K) held[i] = Eight<T>::take(x + i * 256 + lane * 8);
#pragma unroll
  for (int i = 0; i < LOADS; ++i)
    if (i * 256 + lane * 8 < K) {
      Eight<T>::open(held[i], v);
      for (int j = 0; j < 8; ++j) total += v[j] * v[j];
    }
  for (int off = 16; off > 0; off /= 2) total += __shfl_xor_sync(0xffffffffu, total, off);
  const float scale = rsqrtf(total / K + eps);
#pragma unroll
  for (int i = 0; i < LOADS; ++i)
    if (i * 256 + lane * 8 < K) {
      Eight<T>::open(held[i], v);
      Eight<T>::load(weight + i * 256 + lane * 8, w);
      Row8<T> normed;
      for (int j = 0; j < 8; ++j) normed.n[j] = static_cast<T>(v[j] * scale * w[j]);
      *reinterpret_cast<Row8<T>*>(to + i * 256 + lane * 8) = normed;
    }
}

// How many of so many steps are under way at once: a number that divides them.
__device__ constexpr int deepest(int steps, int most) {
  return most <= 1 ? 1 : steps % most == 0 ? most : deepest(steps, most - 1);
}

// Sums over K inputs for AT * 16 outputs a tile and NT * 8 rows.
template <typename T, int K, int ROWS, int AT, int WT, int MOST> struct Product {
  static constexpr int WARPS_IN = 8, WK = WARPS_IN / WT, NT = (ROWS + 7) / 8, PITCH = NT * 8 + 8;
  static constexpr int BLOCKS = K / 64, STEPS = (BLOCKS + WK - 1) / WK;
  static constexpr int AHEAD = deepest(STEPS, MOST);
  uint4 held[AHEAD][AT][4];
  const T* weight;
  size_t apart;
  int total, warp, lane, tiles;

  // The parts of a tile are so many numbers of `weight` apart.
  __device__ Product(const T* weight, int tiles, size_t apart) : weight(weight), apart(apart), tiles(tiles) {
    warp = threadIdx.x / 32; lane = threadIdx.x % 32;
    const int groups = (tiles + WT - 1) / WT, mine = static_cast<int>(blockIdx.x);
    const int grid = static_cast<int>(gridDim.x);
    total = mine < groups ? ((groups - mine + grid - 1) / grid) * STEPS : 0;
#pragma unroll
    for (int j = 0; j < AHEAD; ++j) fetch(held[j], j);
  }
  __device__ __forceinline__ int tile_of(int i) const {
    return (static_cast<int>(blockIdx.x) + i / STEPS * static_cast<int>(gridDim.x)) * WT + warp % WT;
  }
  __device__ __forceinline__ int block_of(int i) const { return i % STEPS * WK + warp / WT; }
  __device__ __forceinline__ void fetch(uint4 (&to)[AT][4], int i) {
    const int tile = tile_of(i), block = block_of(i);
    if (i >= total || tile >= tiles || block >= BLOCKS) return;
    const T* from = weight + (static_cast<size_t>(tile) * 16 + lane / 4) * K + block * 64 + lane % 4 * 8;
#pragma unroll
    for (int a = 0; a < AT; ++a)
#pragma unroll
      for (int q = 0; q < 4; ++q)
        to[a][q] = load_streaming(from + a * apart + (q / 2) * 8 * static_cast<size_t>(K) + q % 2 * 32);
  }
  // x: rows of inputs, `pitch` numbers from one to the next; done(tile, output, row, values of the AT parts).
  // EARLY: inputs are fetched a block ahead, for they come from afar; those in shared memory are not.
  template <bool EARLY, typename Done>
  __device__ __forceinline__ void run(const T* x, int pitch, float* sums, Done done) {
    float c[AT][NT][4];
    uint4 in[NT][2], next[NT][2];
    if (EARLY) take(next, x, pitch, 0);
    for (int first = 0; first < total; first += STEPS) {
      clear(c);
      for (int step = 0; step < STEPS; step += AHEAD) {
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
          const int i = first + step + j;
          if (EARLY) {
#pragma unroll
            for (int n = 0; n < NT; ++n) { in[n][0] = next[n][0]; in[n][1] = next[n][1]; }
            take(next, x, pitch, i + 1);
          }
          if (tile_of(i) < tiles && block_of(i) < BLOCKS) multiply<EARLY>(c, held[j], in, x, pitch, i);
          fetch(held[j], i + AHEAD);
        }
      }
      finish(c, first, sums, done);
    }
  }
  __device__ __forceinline__ void take(uint4 (&in)[NT][2], const T* x, int pitch, int i) const {
    if (i >= total || block_of(i) >= BLOCKS) return;
#pragma unroll
    for (int n = 0; n < NT; ++n) take_row(in[n], x, pitch, i, n);
  }
  __device__ __forceinline__ void take_row(uint4 (&in)[2], const T* x, int pitch, int i, int n) const {
    const int row = n * 8 + lane / 4;
    const T* from = x + row * pitch + block_of(i) * 64 + lane % 4 * 8;
    const bool there = ROWS % 8 == 0 || row < ROWS;
    in[0] = there ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    in[1] = there ? *reinterpret_cast<const uint4*>(from + 32) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void clear(float (&c)[AT][NT][4]) {
#pragma unroll
    for (int a = 0; a < AT; ++a)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[a][n][i] = 0.0f;
  }
  template <bool EARLY>
  __device__ __forceinline__ void multiply(
      float (&c)[AT][NT][4], const uint4 (&w)[AT][4], uint4 (&in)[NT][2], const T* x, int pitch, int i) const {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if (!EARLY) take_row(in[n], x, pitch, i, n);
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const unsigned first[2] = {in[n][q].x, in[n][q].y}, second[2] = {in[n][q].z, in[n][q].w};
#pragma unroll
        for (int a = 0; a < AT; ++a) {
          const uint4 top = w[a][q], low = w[a][2 + q];
          const unsigned left[4] = {top.x, low.x, top.y, low.y}, right[4] = {top.z, low.z, top.w, low.w};
          mma<T>(c[a][n], left, first);
          mma<T>(c[a][n], right, second);
        }
      }
    }
  }
  template <typename Done>
  __device__ __forceinline__ void finish(const float (&c)[AT][NT][4], int i, float* sums, Done done) {
#pragma unroll
    for (int a = 0; a < AT; ++a)
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        float* to = sums + ((warp * AT + a) * 16 + lane / 4) * PITCH + n * 8 + lane % 4 * 2;
        to[0] = c[a][n][0]; to[1] = c[a][n][1];
        to[8 * PITCH] = c[a][n][2]; to[8 * PITCH + 1] = c[a][n][3];
      }
    __syncthreads();
    const int first = (static_cast<int>(blockIdx.x) + i / STEPS * static_cast<int>(gridDim.x)) * WT;
    for (int index = threadIdx.x; index < WT * 16 * ROWS; index += WARPS_IN * 32) {
      const int row = index % ROWS, output = index / ROWS % 16, tile = index / ROWS / 16;
      if (first + tile < tiles) {
        float values[AT];
#pragma unroll
        for (int a = 0; a < AT; ++a) {
          values[a] = 0.0f;
#pragma unroll
          for (int k = 0; k < WK; ++k) values[a] += sums[(((k * WT + tile) * AT + a) * 16 + output) * PITCH + row];
        }
        done(first + tile, output, row, values);
      }
    }
    __syncthreads();
  }
};
"""
)

LAYER = """
constexpr int QUERIES = H * G * D, NUMBERS = (G + 2) * H * D, PITCH = HID + PAD;
unsigned char* shared = dynamic_shared();
T* normed = reinterpret_cast<T*>(shared);
float* sums = reinterpret_cast<float*>(shared + ROWS * PITCH * sizeof(T));
T* product = room;
T* seen = product + ROWS * NUMBERS;
T* middle = seen + ROWS * QUERIES;
T* inner = middle + ROWS * HID;
unsigned long long* count = reinterpret_cast<unsigned long long*>(const_cast<int*>(counter));
const float eps = __int_as_float(EPS_BITS), scale = __int_as_float(SCALE_BITS);
const int grid = gridDim.x, block = blockIdx.x;
const int splits = (table_shape[1] * BLOCK + SPAN - 1) / SPAN;  // not a constant: pages come while rows go on
auto norm = [&](const T* from, const T* weight) {  // by every block for itself
  for (int row = threadIdx.x / 32; row < ROWS; row += 8)
    norm_row<T, HID>(from + row * HID, weight, normed + row * PITCH, eps);
  __syncthreads();
};
auto add = [&](const T* stream, T* to, float value, int row, int tile, int output) {
  const size_t at = static_cast<size_t>(row) * HID + tile * 16 + output;
  to[at] = static_cast<T>(static_cast<float>(stream[at]) + rounded<T>(value));
};
unsigned long long goal;
{
  Product<T, HID, ROWS, 1, WT_QKV, AHEAD_ONE> products(wqkv, NUMBERS / 16, 0);
  norm(x, norm1);
  products.template run<false>(normed, PITCH, sums, [&](int tile, int output, int row, const float* v) {
    product[row * NUMBERS + tile * 16 + output] = static_cast<T>(v[0]);
  });
}
wait_for_all(count, arrive(count));
{
  constexpr int TEAM = 32 * AT_WARPS, TEAMS = 256 / TEAM;
  const int team = threadIdx.x / TEAM;
  float* mine = sums + team * (AT_WARPS * G * (D + 2));
  for (int item = team * grid + block; item < ROWS * H * splits; item += TEAMS * grid) {
    const int head = item % H, split = item / H % splits, row = item / H / splits;
    const T* from = product + row * NUMBERS;
    attend<T, H, G, D, 1, AT_WARPS>(
        from, from + QUERIES, from + QUERIES + H * D, kpool, vpool, table + row * table_shape[1], positions[row],
        split, head, turn + row * D, scale, threadIdx.x % TEAM, 1 + team, mine,
        [&](int g, int d, float high, float total, float value) {
          const size_t at = static_cast<size_t>(row) * H * G + head * G + g;
          if (splits == 1) seen[at * D + d] = static_cast<T>(total > 0.0f ? value / total : 0.0f);
          else {
            parts[(at * splits + split) * (D + 2) + 2 + d] = value;
            if (d == 0) { parts[(at * splits + split) * (D + 2)] = high;
                          parts[(at * splits + split) * (D + 2) + 1] = total; }
          }
        });
    meet(1 + team, TEAM);
  }
}
if (splits > 1) {
  wait_for_all(count, arrive(count));
  for (int index = block * 256 + threadIdx.x; index < ROWS * QUERIES; index += grid * 256) {
    const float* all = parts + static_cast<size_t>(index / D) * splits * (D + 2);
    float high = -INFINITY, total = 0.0f, value = 0.0f;
    for (int s = 0; s < splits; ++s) high = fmaxf(high, all[s * (D + 2)]);
    for (int s = 0; s < splits; ++s) {
      const float scaled = weight(all[s * (D + 2)], high);
      total += all[s * (D + 2) + 1] * scaled;
      value += all[s * (D + 2) + 2 + index % D] * scaled;
    }
    seen[index] = static_cast<T>(total > 0.0f ? value / total : 0.0f);
  }
}
goal = arrive(count);
{
  Product<T, QUERIES, ROWS, 1, WT_OUT, AHEAD_ONE> products(wo, HID / 16, 0);
  wait_for_all(count, goal);
  products.template run<true>(seen, QUERIES, sums, [&](int tile, int output, int row, const float* v) {
    add(x, middle, v[0], row, tile, output);
  });
}
goal = arrive(count);
{
  Product<T, HID, ROWS, 2, WT_UP, AHEAD_TWO> products(wgu, INNER / 16, static_cast<size_t>(INNER) * HID);
  wait_for_all(count, goal);
  norm(middle, norm2);
  products.template run<false>(normed, PITCH, sums, [&](int tile, int output, int row, const float* v) {
    const float gate = rounded<T>(v[0]), up = rounded<T>(v[1]);
    const float opened = rounded<T>(gate * rounded<T>(1.0f / (1.0f + __expf(-gate))));
    inner[static_cast<size_t>(row) * INNER + tile * 16 + output] = static_cast<T>(opened * up);
  });
}
goal = arrive(count);
{
  Product<T, INNER, ROWS, 1, WT_DOWN, AHEAD_ONE> products(wd, HID / 16, 0);
  wait_for_all(count, goal);
  products.template run<true>(inner, INNER, sums, [&](int tile, int output, int row, const float* v) {
    add(middle, out, v[0], row, tile, output);
  });
}
"""
