"""Late ropes: angles read off any rope, and what is none of that kind stays where it is."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx.nn.layers.positional_encoding import RoPE
from mlx_lm.models.rope_utils import initialize_rope

from mlx_notebook.engine.stores.late_rope import LateRope, Turns, angles, key_of, turned

WIDTH = 64
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
OFFSETS = mx.array([0, 3, 900, 7_001], dtype=mx.int32)


def ropes() -> dict[str, Any]:
    return {
        "plain": RoPE(WIDTH, base=10_000),
        "large base, scaled positions": RoPE(WIDTH, base=500_000, scale=0.5),
        "llama 3": initialize_rope(WIDTH, 500_000, False, LLAMA3, 131_072),
        "yarn, which scales too": initialize_rope(WIDTH, 10_000, False, YARN, 16_384),
    }


@pytest.mark.parametrize("name", list(ropes()))
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_turning_by_the_angles_is_what_the_rope_does(name: str, dtype: mx.Dtype) -> None:
    rope = ropes()[name]
    assert key_of(rope, WIDTH) is not None
    x = mx.random.normal((4, 3, 1, WIDTH), key=mx.random.key(1)).astype(dtype)
    got = turned(x, angles(rope, WIDTH, OFFSETS))
    assert got.dtype == dtype
    noise = 1e-3 if dtype == mx.float32 else 5e-2
    assert mx.allclose(got.astype(mx.float32), rope(x, offset=OFFSETS).astype(mx.float32), atol=noise)
    assert not mx.allclose(got[1].astype(mx.float32), x[1].astype(mx.float32), atol=0.1)


def adds(x: mx.array, offset: Any = 0) -> mx.array:
    """No turn of pairs: what it adds does not scale with what it gets."""
    return x + offset[:, None, None, None]  # type: ignore[no-any-return]


def asks(x: mx.array, offset: Any, length: int) -> mx.array:  # noqa: ARG001
    """Wants more than a position."""
    return x * length


@pytest.mark.parametrize(
    "rope", [RoPE(WIDTH, traditional=True), RoPE(WIDTH // 2), adds, asks], ids=["pairs", "half", "adds", "asks"]
)
def test_what_does_something_else_stays(rope: Any) -> None:
    assert key_of(rope, WIDTH) is None
    turns = Turns(WIDTH)
    assert turns.rope(rope) is rope
    assert turns.found == 0


def test_layers_share_angles_where_they_turn_alike() -> None:
    asked = []

    class Counting(RoPE):
        def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
            asked.append(offset)
            return super().__call__(x, offset)  # type: ignore[no-any-return]

    turns = Turns(WIDTH)
    alike = [turns.rope(Counting(WIDTH)) for _ in range(3)]
    other = turns.rope(Counting(WIDTH, base=1_000))
    assert all(type(rope) is LateRope for rope in (*alike, other))
    asked.clear()
    x = mx.ones((4, 2, 1, WIDTH))
    for rope in (*alike, other):
        assert rope(x, offset=OFFSETS) is x
    assert len(asked) == 2


def test_each_of_a_pair_gets_what_it_lacks() -> None:
    rope: Any = RoPE(WIDTH)
    turns = Turns(WIDTH)
    late = turns.rope(rope)
    queries, keys = (mx.random.normal((4, 2, 1, WIDTH), key=mx.random.key(n)) for n in (1, 2))
    expected = rope(queries, offset=OFFSETS)
    late(queries, offset=OFFSETS)
    late(keys, offset=OFFSETS)
    same, also, turn = turns.both(queries, keys)
    assert same is queries
    assert also is keys
    assert mx.allclose(turned(queries, turn), expected, atol=1e-4)
    assert turns.both(queries, keys)[2] is None, "what was taken is not turned twice"
    late(queries, offset=OFFSETS)
    mine, theirs, turn = turns.both(queries, keys)  # keys without positions, as some models have them
    assert turn is None
    assert theirs is keys
    assert mx.allclose(mine, expected, atol=1e-4)
    late(queries, offset=OFFSETS)
    turns.clear()
    assert turns.both(queries, keys) == (queries, keys, None)


def test_with_one_position_for_all_or_switched_off_it_is_the_rope() -> None:
    rope: Any = RoPE(WIDTH)
    turns = Turns(WIDTH)
    late = turns.rope(rope)
    x = mx.random.normal((2, 2, 5, WIDTH), key=mx.random.key(1))
    assert mx.array_equal(late(x, offset=7), rope(x, offset=7))
    turns.late = False
    one = x[:, :, :1]
    at = mx.array([3, 9], dtype=mx.int32)
    assert mx.array_equal(late(one, offset=at), rope(one, offset=at))
