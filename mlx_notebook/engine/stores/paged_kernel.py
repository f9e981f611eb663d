"""Attention of one new token a row over the row's own pages: a CUDA kernel, and the same with stock operations.

One block serves one row, one key/value head and one span of columns; the query heads of a group share each key
that is read. Eight numbers a lane are one load; running maximum and sum are kept in float32, a softmax in base 2.
The new column is taken from its inputs and written into its page by the block whose span it ends: the pool is
updated in place, which MLX does not see, so steps must follow each other on one stream. Long rows are
split at fixed columns and merged, so that a row's bits depend on its own length alone.

Source of the method: Dao et al., FlashAttention; Dao et al., Flash-Decoding (split over columns); Kwon et
al., PagedAttention. The code is our own.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx

from mlx_notebook.core.projection import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WARPS, DEEP = 4, 2
SPAN = 512
"""Columns that one block reads; rows up to it need no merge."""


class LayerPool:
    """One layer's keys and values: [pages, H, BLOCK, D] each."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: mx.array, values: mx.array) -> None:
        self.keys = keys
        self.values = values

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.keys.nbytes + self.values.nbytes


class PageOps(Protocol):
    """What the pool store does with pages."""

    in_place: bool

    def fill(self, pool: LayerPool, pages: mx.array, keys: mx.array, values: mx.array, columns: int) -> mx.array:
        """Write a row's first `columns` columns [1, H, C, D] into its pages [n]; something to evaluate."""
        ...

    def attend(  # noqa: PLR0917 - one call, all of it needed
        self,
        pool: LayerPool,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        table: mx.array,
        positions: mx.array,
        scale: float,
    ) -> mx.array:
        """Write each row's new column [R, H, 1, D] at its position and attend, [R, Hq, 1, D].

        `table` [R, M] names pages, `positions` [R] the columns held before; -1 is an idle place, which gets zeros
        (its table names pages that are nobody's: it may be written to).
        """
        ...

    def split(self, product: mx.array, cuts: list[int]) -> Sequence[mx.array]:
        """The parts of a product [..., n] cut at these columns."""
        ...


class StockPages:
    """The same with MLX's own operations: the oracle, and what runs where the kernel can't."""

    in_place = False

    def split(self, product: mx.array, cuts: list[int]) -> Sequence[mx.array]:
        return list(mx.split(product, cuts, axis=-1))

    def fill(self, pool: LayerPool, pages: mx.array, keys: mx.array, values: mx.array, columns: int) -> mx.array:
        count = pages.shape[0]
        for name, source in (("keys", keys), ("values", values)):
            _, heads, _, width = source.shape
            held = source[0, :, :columns]
            padded = mx.pad(held, [(0, 0), (0, count * BLOCK - columns), (0, 0)])
            target = getattr(pool, name)
            target[pages] = padded.reshape(heads, count, BLOCK, width).transpose(1, 0, 2, 3)
            setattr(pool, name, target)
        return pool.keys

    def attend(  # noqa: PLR0917
        self,
        pool: LayerPool,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        table: mx.array,
        positions: mx.array,
        scale: float,
    ) -> mx.array:
        rows, width = table.shape
        at = mx.maximum(positions, 0)
        page = mx.take_along_axis(table, (at // BLOCK)[:, None], axis=1)[:, 0]
        column = at % BLOCK
        for name, new in (("keys", keys), ("values", values)):
            target = getattr(pool, name)
            target[page, :, column] = new[:, :, 0]  # an idle place's table names the page that is nobody's
            setattr(pool, name, target)
        held = [
            array[table].transpose(0, 2, 1, 3, 4).reshape(rows, array.shape[1], width * BLOCK, array.shape[3])
            for array in (pool.keys, pool.values)
        ]
        mask = (mx.arange(width * BLOCK)[None] <= at[:, None])[:, None, None]
        seen = mx.fast.scaled_dot_product_attention(queries, *held, scale=scale, mask=mask)
        return mx.where((positions >= 0)[:, None, None, None], seen, 0)


_HEADER = """
template <typename T> struct Eight {};
template <> struct Eight<__nv_bfloat16> {
  static __device__ void load(const __nv_bfloat16* p, float* x) {
    uint4 w = *reinterpret_cast<const uint4*>(p);
    const __nv_bfloat162* h = reinterpret_cast<const __nv_bfloat162*>(&w);
    for (int i = 0; i < 4; ++i) { float2 f = __bfloat1622float2(h[i]); x[2 * i] = f.x; x[2 * i + 1] = f.y; }
  }
};
template <> struct Eight<__half> {
  static __device__ void load(const __half* p, float* x) {
    uint4 w = *reinterpret_cast<const uint4*>(p);
    const __half2* h = reinterpret_cast<const __half2*>(&w);
    for (int i = 0; i < 4; ++i) { float2 f = __half22float2(h[i]); x[2 * i] = f.x; x[2 * i + 1] = f.y; }
  }
};
template <> struct Eight<float> {
  static __device__ void load(const float* p, float* x) {
    float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
    x[0] = a.x; x[1] = a.y; x[2] = a.z; x[3] = a.w; x[4] = b.x; x[5] = b.y; x[6] = b.z; x[7] = b.w;
  }
};
__device__ inline float weight(float from, float to) { return from == -INFINITY ? 0.0f : exp2f(from - to); }
"""

_ATTEND = """
constexpr int LANES = D / 8;
constexpr int COLS = 32 / LANES;
const int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z;
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
const int sub = lane / LANES, part = lane % LANES;
const int pages = table_shape[1], splits = gridDim.x;
const float scale = __int_as_float(SCALE_BITS);
const int position = positions[row];
const int start = split * SPAN, stop = min(position, start + SPAN);
const bool owns = position >= start && position < start + SPAN;
float qs[G][8], acc[G][8], top[G], sum[G];
for (int g = 0; g < G; ++g) {
  Eight<T>::load(q + ((size_t)row * H * G + head * G + g) * D + part * 8, qs[g]);
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
for (int base = start + warp * COLS; base < stop; base += DEEP * WARPS * COLS) {
  float k[DEEP][8], v[DEEP][8];
  bool valid[DEEP];
#pragma unroll
  for (int j = 0; j < DEEP; ++j) {
    const int c = base + j * WARPS * COLS + sub;
    valid[j] = c < stop;
    for (int i = 0; i < 8; ++i) { k[j][i] = 0.0f; v[j][i] = 0.0f; }
    if (valid[j]) {
      const size_t at = (((size_t)table[row * pages + c / BLOCK] * H + head) * BLOCK + c % BLOCK) * D + part * 8;
      Eight<T>::load(kpool + at, k[j]);
      Eight<T>::load(vpool + at, v[j]);
    }
  }
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
if (owns && warp == 0) {
  const size_t from = ((size_t)row * H + head) * D + part * 8;
  float k[8], v[8];
  Eight<T>::load(knew + from, k);
  Eight<T>::load(vnew + from, v);
  see(k, v, sub == 0);
  if (sub == 0) {
    const size_t page = table[row * pages + position / BLOCK];
    const size_t at = ((page * H + head) * BLOCK + position % BLOCK) * D + part * 8;
    T* kp = const_cast<T*>(kpool); T* vp = const_cast<T*>(vpool);
    for (int i = 0; i < 8; ++i) { kp[at + i] = knew[from + i]; vp[at + i] = vnew[from + i]; }
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
__shared__ float tops[WARPS][G], sums[WARPS][G], accs[WARPS][G][D];
if (sub == 0)
  for (int g = 0; g < G; ++g) {
    if (part == 0) { tops[warp][g] = top[g]; sums[warp][g] = sum[g]; }
    for (int i = 0; i < 8; ++i) accs[warp][g][part * 8 + i] = acc[g][i];
  }
__syncthreads();
for (int index = threadIdx.x; index < G * D; index += WARPS * 32) {
  const int g = index / D, d = index % D;
  float high = -INFINITY, total = 0.0f, value = 0.0f;
  for (int w = 0; w < WARPS; ++w) high = fmaxf(high, tops[w][g]);
  for (int w = 0; w < WARPS; ++w) {
    const float scaled = weight(tops[w][g], high);
    total += sums[w][g] * scaled;
    value += accs[w][g][d] * scaled;
  }
  const size_t at = (size_t)row * H * G + head * G + g;
  STORE
}
"""

_WHOLE = "out[at * D + d] = static_cast<T>(total > 0.0f ? value / total : 0.0f);"

_PART = """
  part_out[(at * splits + split) * D + d] = value;
  if (d == 0) { stat[(at * splits + split) * 2] = high; stat[(at * splits + split) * 2 + 1] = total; }
"""

_MERGE = """
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

_FILL = """
const int lanes = D / 8;
const long index = (long)blockIdx.x * blockDim.x + threadIdx.x;
const int columns = dims[0], capacity = dims[1];
if (index < (long)H * columns * lanes) {
  const int part = index % lanes, c = (index / lanes) % columns, head = index / lanes / columns;
  const size_t from = ((size_t)head * capacity + c) * D + part * 8;
  const size_t at = (((size_t)pages[c / BLOCK] * H + head) * BLOCK + c % BLOCK) * D + part * 8;
  T* kp = const_cast<T*>(kpool); T* vp = const_cast<T*>(vpool);
  for (int i = 0; i < 8; ++i) { kp[at + i] = ksrc[from + i]; vp[at + i] = vsrc[from + i]; }
}
if (index == 0) done[0] = 1;
"""

_SPLIT = """
constexpr int EACH = 16 / sizeof(T);  // numbers of one load
const int at = (blockIdx.x * blockDim.x + threadIdx.x) * EACH;
const size_t row = blockIdx.y;
if (at < A + B + C) {
  const uint4 word = *reinterpret_cast<const uint4*>(whole + row * (A + B + C) + at);
  T* to = at < A ? first + row * A + at : at < A + B ? second + row * B + at - A : third + row * C + at - A - B;
  *reinterpret_cast<uint4*>(to) = word;
}
"""

_DEFINES = f"#define BLOCK {BLOCK}\n#define SPAN {SPAN}\n#define WARPS {WARPS}\n#define DEEP {DEEP}\n"


class CudaPages:
    """Pages through CUDA kernels, updated in place. Head sizes 64 and 128."""

    in_place = True

    def __init__(self) -> None:
        header = _DEFINES + _HEADER
        inputs = ["q", "knew", "vnew", "kpool", "vpool", "table", "positions"]
        whole, part = (_ATTEND.replace("STORE", way) for way in (_WHOLE, _PART))
        self._attend_whole = _kernel("mlxnb_attend_pages", inputs, ["out"], whole, header)
        self._attend_part = _kernel("mlxnb_attend_spans", inputs, ["part_out", "stat"], part, header)
        self._merge = _kernel("mlxnb_merge_spans", ["part", "stat"], ["out"], _MERGE, header)
        self._fill = _kernel(
            "mlxnb_fill_pages", ["ksrc", "vsrc", "kpool", "vpool", "pages", "dims"], ["done"], _FILL, header
        )

        self._split = _kernel("mlxnb_split_three", ["whole"], ["first", "second", "third"], _SPLIT)

    def split(self, product: mx.array, cuts: list[int]) -> Sequence[mx.array]:
        """Three parts (queries, keys, values) in one launch, where stock operations copy each when it is used.

        Others are left to stock operations: gate and up go as they are into the one kernel that multiplies them.
        """
        *outer, width = product.shape
        each = 16 // product.dtype.size
        if len(cuts) != 2 or any(cut % each for cut in (*cuts, width)):
            return list(mx.split(product, cuts, axis=-1))
        sizes = [cuts[0], cuts[1] - cuts[0], width - cuts[1]]
        threads = -(-width // (each * 256)) * 256
        parts: list[mx.array] = self._split(
            inputs=[product],
            template=[("T", product.dtype), *zip("ABC", sizes, strict=True)],
            grid=(threads, math.prod(outer), 1),
            threadgroup=(256, 1, 1),
            output_shapes=[(*outer, size) for size in sizes],
            output_dtypes=[product.dtype] * 3,
        )
        return parts

    def fill(self, pool: LayerPool, pages: mx.array, keys: mx.array, values: mx.array, columns: int) -> mx.array:
        _, heads, capacity, width = keys.shape
        threads = heads * columns * (width // 8)
        done: list[mx.array] = self._fill(
            inputs=[keys, values, pool.keys, pool.values, pages, mx.array([columns, capacity], dtype=mx.int32)],
            template=[("T", keys.dtype), ("H", heads), ("D", width)],
            grid=(-(-threads // 256) * 256, 1, 1),
            threadgroup=(256, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.int32],
        )
        return done[0]

    def attend(  # noqa: PLR0917
        self,
        pool: LayerPool,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        table: mx.array,
        positions: mx.array,
        scale: float,
    ) -> mx.array:
        rows, heads, _, width = queries.shape
        own = keys.shape[1]
        splits = -(-table.shape[1] * BLOCK // SPAN)
        whole = splits == 1
        dtype = queries.dtype
        shapes = [(rows, heads, width)] if whole else [(rows, heads, splits, width), (rows, heads, splits, 2)]
        outputs: list[mx.array] = (self._attend_whole if whole else self._attend_part)(
            inputs=[queries, keys, values, pool.keys, pool.values, table, positions],
            template=[
                ("T", dtype),
                ("H", own),
                ("G", heads // own),
                ("D", width),
                ("SCALE_BITS", _bits_of(scale * math.log2(math.e))),
            ],
            grid=(splits * WARPS * 32, own, rows),
            threadgroup=(WARPS * 32, 1, 1),
            output_shapes=shapes,
            output_dtypes=[dtype] if whole else [mx.float32, mx.float32],
        )
        if whole:
            return outputs[0][:, :, None]
        merged: list[mx.array] = self._merge(
            inputs=outputs,
            template=[("T", dtype), ("D", width)],
            grid=(width, rows * heads, 1),
            threadgroup=(width, 1, 1),
            output_shapes=[(rows, heads, width)],
            output_dtypes=[dtype],
        )
        return merged[0][:, :, None]


def _bits_of(number: float) -> int:
    """A float32's bits: kernels take whole numbers as constants, and an array a launch would be read from memory."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits


def _kernel(name: str, inputs: list[str], outputs: list[str], source: str, header: str = "") -> Callable[..., Any]:
    made: Any = mx.fast.cuda_kernel(name=name, input_names=inputs, output_names=outputs, source=source, header=header)
    kernel: Callable[..., Any] = made
    return kernel


def kernel_serves(head_width: int, dtype: mx.Dtype) -> bool:
    """Whether the CUDA kernel can run here for such heads."""
    return (
        mx.default_device() == mx.gpu
        and mx.cuda.is_available()
        and head_width in (64, 128)
        and dtype in (mx.bfloat16, mx.float16, mx.float32)
    )


def agrees_with_stock(ops: PageOps, heads: int, own: int, width: int, dtype: mx.Dtype) -> bool:
    """The self-check at load: ragged rows, two of them longer than a span, one idle place, against stock operations."""
    key = mx.random.key(7)
    lengths, table_width = [5, 70, 600, 0, 130, 1100], 32
    total = len(lengths) * table_width
    pools = [_random_pool(total, own, width, dtype, key) for _ in range(2)]
    table = mx.arange(total, dtype=mx.int32).reshape(len(lengths), table_width)
    positions = mx.array([n or -1 for n in lengths], dtype=mx.int32)
    shapes = [(len(lengths), heads, 1, width), (len(lengths), own, 1, width), (len(lengths), own, 1, width)]
    new = [
        mx.random.normal(shape, key=k).astype(dtype) for shape, k in zip(shapes, mx.random.split(key, 3), strict=True)
    ]
    mx.eval(new, table, positions)
    queries, keys, values = new
    further = mx.where(positions >= 0, positions + 1, positions)
    results = []
    ways: list[PageOps] = [ops, StockPages()]
    for pool, way in zip(pools, ways, strict=True):
        first = way.attend(pool, queries, keys, values, table, positions, width**-0.5)
        mx.eval(first)
        again = way.attend(pool, queries, keys, values, table, further, width**-0.5)
        mx.eval(again)  # reads what the first one wrote
        results.append((first.astype(mx.float32), again.astype(mx.float32)))
    bound = 2e-5 if dtype == mx.float32 else 2e-2
    return all(float(mx.max(mx.abs(a - b))) <= bound for a, b in zip(*results, strict=True))


def _random_pool(pages: int, heads: int, width: int, dtype: mx.Dtype, key: mx.array) -> LayerPool:
    k1, k2 = mx.random.split(key)
    shape = (pages, heads, BLOCK, width)
    pool = LayerPool(mx.random.normal(shape, key=k1).astype(dtype), mx.random.normal(shape, key=k2).astype(dtype))
    mx.eval(pool.keys, pool.values)
    return pool
