"""Rotary positions that the attention kernel applies itself: two launches a layer less, and one set of angles a step.

Whatever family a rope is of, what it does to a head at one position is to turn pairs of numbers, perhaps to scale them
as well. So what it makes of ones (first half) and zeros (second half) is its cosines and sines, and nothing else
needs to be known of it: a rope that does more, or pairs its numbers otherwise, fails the comparison in `key_of` and
stays where it is.

In a twin (`joined`) a `LateRope` stands for a rope: it gives back what it gets, and `Turns` keeps in mind that this
very array is still to be turned. A model that does anything else with it before attention would be wrong; the parity
probe at load tries each model with late ropes first, and without them next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable

    Rope = Callable[..., mx.array]

TRIED = (0, 1, 37, 5_000)
NOISE = 1e-3


class Turns:
    """What is still to be turned in a forward, and by how much.

    Attributes:
        width: of a head.
        late: whether ropes are late; if not they do what they always do.
        found: how many ropes of the model can be.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.late = True
        self.found = 0
        self._noted: dict[int, tuple[mx.array, mx.array]] = {}
        self._made: dict[bytes, tuple[mx.array, mx.array]] = {}

    def rope(self, original: Any) -> Any:
        """What stands for a rope in a twin: itself, where it is not one that turns pairs."""
        key = key_of(original, self.width)
        if key is None:
            return original
        self.found += 1
        return LateRope(original, key, self)

    def note(self, x: mx.array, rope: Rope, key: bytes, offset: mx.array) -> None:
        """Keep in mind that x is to be turned as the rope would at `offset` [R]."""
        made = self._made.get(key)
        if made is None or made[0] is not offset:
            made = self._made[key] = (offset, angles(rope, self.width, offset))
        self._noted[id(x)] = (x, made[1])

    def both(self, queries: mx.array, keys: mx.array) -> tuple[mx.array, mx.array, mx.array | None]:
        """Queries, keys and how both are to be turned; what only one of them lacks is made up for here."""
        one, other = self._take(queries), self._take(keys)
        if one is other:
            return queries, keys, one
        return turned(queries, one), turned(keys, other), None

    def clear(self) -> None:
        """Forget everything: what is traced must not outlive its trace."""
        self._noted.clear()
        self._made.clear()

    def _take(self, x: mx.array) -> mx.array | None:
        noted = self._noted.pop(id(x), None)
        return None if noted is None else noted[1]


class LateRope:
    """Stands where a rope stood."""

    __slots__ = ("_key", "_rope", "_turns")

    def __init__(self, rope: Rope, key: bytes, turns: Turns) -> None:
        self._rope = rope
        self._key = key
        self._turns = turns

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        if not self._turns.late or not isinstance(offset, mx.array):
            return self._rope(x, offset=offset)
        self._turns.note(x, self._rope, self._key, offset)
        return x


def angles(rope: Rope, width: int, offset: mx.array) -> mx.array:
    """Cosines and sines, scaled as the rope scales, side by side: [R, width] in float32."""
    half = width // 2
    basis = mx.concatenate([mx.ones(half), mx.zeros(half)])
    rows = offset.shape[0]
    # Contiguous: of a broadcast array MLX 0.32 on CUDA turns the wrong numbers.
    heads = mx.contiguous(mx.broadcast_to(basis, (rows, 1, 1, width)))
    return rope(heads, offset=offset).reshape(rows, width)


def turned(x: mx.array, turn: mx.array | None) -> mx.array:
    """Heads [R, H, 1, D] turned by `turn` [R, D]; as they are for None."""
    if turn is None:
        return x
    half = x.shape[-1] // 2
    first, second = x[..., :half].astype(mx.float32), x[..., half:].astype(mx.float32)
    cosines, sines = turn[:, None, None, :half], turn[:, None, None, half:]
    parts = [first * cosines - second * sines, first * sines + second * cosines]
    return mx.concatenate(parts, axis=-1).astype(x.dtype)


def key_of(rope: Any, width: int) -> bytes | None:
    """Bytes that two ropes share only if they turn alike; None where turning pairs is not all that it does."""
    offset = mx.array(TRIED, dtype=mx.int32)
    x = mx.random.normal((len(TRIED), 3, 1, width), key=mx.random.key(5))
    try:
        turn = angles(rope, width, offset)
        apart = float(mx.max(mx.abs(rope(x, offset=offset) - turned(x, turn))))
        return repr(turn.tolist()).encode() if apart <= NOISE else None
    except Exception:  # noqa: BLE001 - a rope of another kind may want anything else; then it is not for us
        return None
