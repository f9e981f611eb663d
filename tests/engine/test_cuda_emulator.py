"""The emulator of CUDA kernels itself: what it stands in for, and what it says of kernels that cannot end."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.cuda_emulator import cuda_kernel
from tests.engine.emulator import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++ or c++) to emulate CUDA kernels with")

BLOCKS, LANES = 8, 512
GRID_BARRIER = """
__device__ void grid_barrier(unsigned long long* count, unsigned long long target) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(count, 1ull);
    while (load_acquire(count) < target) pause_spin();
    __threadfence();
  }
  __syncthreads();
}
"""


def run(
    source: str, *inputs: mx.array, lanes: int = 32, blocks: int = 1, out: Any = mx.float32, **more: Any
) -> mx.array:
    """A kernel over inputs `a`, `b`, `c` that writes one number a lane to `out`."""
    template = more.pop("template", [])
    kernel = cuda_kernel("tried", list("abc"[: len(inputs)]), ["out"], source, **more)
    return kernel(
        inputs=inputs,
        template=template,
        grid=(blocks * lanes, 1, 1),
        threadgroup=(lanes, 1, 1),
        output_shapes=[(blocks * lanes,)],
        output_dtypes=[out],
    )[0]


def test_blocks_wait_for_each_other() -> None:
    """A sum over all lanes of all blocks, in three rounds, each of which reads what other blocks wrote in the last."""
    source = """
    unsigned long long* count = const_cast<unsigned long long*>(reinterpret_cast<const unsigned long long*>(a));
    const int me = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    float x = b[me];
    for (int round = 1; round <= 3; ++round) {
      out[me] = x;
      grid_barrier(count, (2ull * round - 1) * gridDim.x);
      x = 0.0f;
      for (int i = threadIdx.x % 32; i < all; i += 32) x += out[i];
      for (int off = 16; off > 0; off /= 2) x += __shfl_xor_sync(0xffffffffu, x, off);
      x = x / all + me;
      grid_barrier(count, 2ull * round * gridDim.x);
    }
    out[me] = x;
    """
    all_lanes = BLOCKS * LANES
    count, b = mx.zeros(1, dtype=mx.uint64), mx.random.normal((all_lanes,), key=mx.random.key(1))
    x = np.array(b, dtype=np.float64)
    for _ in range(3):
        x = x.mean() + np.arange(all_lanes)
    found = run(source, count, b, lanes=LANES, blocks=BLOCKS, header=GRID_BARRIER)
    assert np.allclose(np.array(found), x, atol=1e-2)
    assert count.item() == 6 * BLOCKS, "an input is written where it lies"


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_fragments_lie_as_the_instruction_wants_them(dtype: mx.Dtype) -> None:
    """A [16, 16], B [16, 8] and C [16, 8] by rows."""
    source = """
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    auto pair = [](T x, T y) { T both[2] = {x, y}; return *reinterpret_cast<const unsigned*>(both); };
    unsigned fa[4], fb[2];
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8, k = 2 * t + i / 2 * 8;
      fa[i] = pair(a[row * 16 + k], a[row * 16 + k + 1]);
    }
    for (int i = 0; i < 2; ++i) fb[i] = pair(b[(2 * t + 8 * i) * 8 + g], b[(2 * t + 8 * i + 1) * 8 + g]);
    float fc[4];
    for (int i = 0; i < 4; ++i) fc[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    mma<T>(fc, fa, fb);
    for (int i = 0; i < 4; ++i) const_cast<float*>(c)[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fc[i];
    out[threadIdx.x] = 0.0f;
    """
    a, b, c = (
        mx.random.normal(shape, key=mx.random.key(seed)) for seed, shape in enumerate([(16, 16), (16, 8), (16, 8)])
    )
    a, b, c = a.astype(dtype), b.astype(dtype), c + 0
    expected = a.astype(mx.float32) @ b.astype(mx.float32) + c
    mx.eval(expected)
    run(source, a, b, c, template=[("T", dtype)])
    assert mx.allclose(c, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_numbers_are_rounded_as_mlx_rounds_them(dtype: mx.Dtype) -> None:
    """All numbers of the type, those midway between two of them, those just beside, and what is too large or none."""
    words = np.arange(1 << 16, dtype=np.uint32)
    exact = np.array(mx.array(words.astype(np.uint16)).view(dtype).astype(mx.float32))
    step = words << 16 if dtype == mx.bfloat16 else exact.view(np.uint32)
    half = np.uint32(1 << 15 if dtype == mx.bfloat16 else 1 << 12)
    bits = np.concatenate([step, step + half, step + half + 1, step + half - 1])
    numbers = mx.array(bits).view(mx.float32)
    source = """
    const int me = blockIdx.x * blockDim.x + threadIdx.x;
    out[me] = static_cast<float>(static_cast<T>(a[me]));
    """
    found = run(source, numbers, lanes=1024, blocks=len(bits) // 1024, template=[("T", dtype)])
    assert mx.array_equal(found, numbers.astype(dtype).astype(mx.float32), equal_nan=True)


def test_shapes_strides_and_dimensions_are_values_that_the_body_asks_for() -> None:
    a = mx.zeros((2, 3, 5))
    source = "out[threadIdx.x] = a_shape[1] * 1000 + a_strides[0] * 10 + a_ndim + WIDE * (YES ? 10000 : 0);"
    assert run(source, a, template=[("WIDE", 2), ("YES", True)])[0].item() == 20000 + 3000 + 150 + 3


def test_part_of_a_block_meets_at_a_named_barrier() -> None:
    """Of four warps two hand a number over in dynamic shared memory; the others go their own way."""
    source = """
    int* slots = reinterpret_cast<int*>(dynamic_shared());
    if (threadIdx.x < 64) {
      slots[threadIdx.x] = threadIdx.x * 3;
      meet(1, 64);
      out[threadIdx.x] = slots[63 - threadIdx.x];
    } else {
      out[threadIdx.x] = -1;
    }
    """
    found = run(source, lanes=128, shared_memory=256)
    assert found.tolist() == [(63 - i) * 3 for i in range(64)] + [-1] * 64


def test_assembly_in_a_header_is_left_out() -> None:
    header = '//PTX\n__device__ void fetch_early(const void* p) { asm("prefetch [%0];" :: "l"(p)); }\n//END PTX\n'
    assert run("fetch_early(out); out[threadIdx.x] = 1;", header=header).sum().item() == 32


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("if (threadIdx.x < 40) __syncthreads();", "lanes part"),
        ("if (threadIdx.x % 2) __shfl_sync(0xffffffffu, 1, 0);", "lanes part"),
        ("if (threadIdx.x % 2) __syncwarp(); else __shfl_sync(0xffffffffu, 1, 0);", "lanes part"),
        ("__shfl_xor_sync(0xffffffffu, 1, threadIdx.x % 2 ? 1 : 2);", "lanes part"),
        ("if (threadIdx.x < 32) meet(1, 64); else __syncthreads();", "lanes part"),
        ("if (threadIdx.x < 32) meet(1, 32); else meet(1, 64);", "wait for different numbers"),
        ("if (threadIdx.x % 2) meet(1, 32);", "part of a warp"),
        ("__shfl_sync(0xffffu, 1, 0);", "not one of those it names"),
        ("grid_barrier(reinterpret_cast<unsigned long long*>(dynamic_shared()), ~0ull);", "nobody writes"),
        ("dynamic_shared()[256] = 0;", "past the end of shared memory"),
        ("volatile char large[140000]; for (int i = 0; i < 140000; ++i) large[i] = 1;", "more stack"),
    ],
)
def test_what_cannot_go_on_is_told(source: str, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        run(source, lanes=64, header=GRID_BARRIER, shared_memory=256)


def test_a_barrier_of_more_blocks_than_run_at_once_is_told() -> None:
    source = "grid_barrier(const_cast<unsigned long long*>((const unsigned long long*)a), gridDim.x);"
    with pytest.raises(RuntimeError, match="nobody writes"):
        run(source, mx.zeros(1, dtype=mx.uint64), lanes=64, blocks=BLOCKS + 1, header=GRID_BARRIER)


def test_what_was_not_written_is_no_number() -> None:
    found = run("if (threadIdx.x) out[threadIdx.x] = *reinterpret_cast<float*>(dynamic_shared());", shared_memory=16)
    assert mx.isnan(found).all().item()
