"""What a pooled step leaves to its attention kernel: slicing, heads, rotary positions. Half of a layer's operations.

A step is bound by what the host does for each operation, so that views cost as well. In a twin (`joined`) queries,
keys and values are no arrays but `Heads`: columns of the one product that made them, and how they are to be turned.
They can be brought into heads and turned, and nothing else: a model that does more with them before attention
(norms, scales) fails with them in the parity probe at load, and is served the plain way.

Whatever family a rope is of, what it does to a head at one position is to turn pairs of numbers, perhaps to scale them
as well. So what it makes of ones (first half) and zeros (second half) is its cosines and sines, and nothing else
needs to be known of it; a rope that does more, or pairs its numbers otherwise, fails the comparison in `key_of`.
Layers with equal ropes share the angles of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Rope = Callable[..., mx.array]
    Split = Callable[[mx.array, list[int]], Sequence[mx.array]]

HEADS_FIRST = (0, 2, 1, 3)
TRIED = (0, 1, 37, 5_000)
NOISE = 1e-3


class NotForLateError(TypeError):
    """A model does with heads what they cannot."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads [R, H, 1, D] that are still columns `start` to `stop` of a product [R, 1, W], to be turned by `turn`."""

    product: mx.array
    start: int
    stop: int
    width: int
    turn: mx.array | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return (self.stop - self.start) // self.width

    def reshape(self, *shape: int) -> Heads:
        """As [R, 1, H, D], which they are."""
        rows, one, heads, width = shape
        if (rows, one) != self.product.shape[:2] or heads not in (self.count, -1) or width not in (self.width, -1):
            raise NotForLateError(f"heads reshaped to {shape}")
        return self

    def transpose(self, *axes: int) -> Heads:
        """As [R, H, 1, D], which they are."""
        if axes != HEADS_FIRST:
            raise NotForLateError(f"heads transposed by {axes}")
        return self

    def array(self) -> mx.array:
        """As an array [R, H, 1, D]."""
        rows = self.product.shape[0]
        own = self.product[..., self.start : self.stop].reshape(rows, 1, -1, self.width)
        return turned(own.transpose(*HEADS_FIRST), self.turn)


@dataclass(frozen=True, slots=True)
class Seen:
    """What attention gives back, [R, Hq, 1, D], where it lies already as the model wants it: [R, 1, Hq * D]."""

    flat: mx.array

    def transpose(self, *axes: int) -> Seen:
        """As [R, 1, Hq, D]."""
        if axes != HEADS_FIRST:
            raise NotForLateError(f"seen values transposed by {axes}")
        return self

    def reshape(self, *shape: int) -> mx.array:
        """As [R, 1, Hq * D]."""
        if shape[:2] != self.flat.shape[:2] or shape[2:] not in ((-1,), self.flat.shape[2:]):
            raise NotForLateError(f"seen values reshaped to {shape}")
        return self.flat


class Late:
    """What one twin leaves to attention.

    Attributes:
        width: of a head.
        on: whether it does; if not, all is as in the model.
        found: how many of the model's ropes can wait.
    """

    def __init__(self, width: int, split: Split) -> None:
        self.width = width
        self.on = True
        self.found = 0
        self._split = split
        self._made: dict[bytes, tuple[mx.array, mx.array]] = {}

    def split(self, product: mx.array, cuts: list[int]) -> Sequence[Any]:
        """The parts of a product [..., n]; of three, which are queries, keys and values, heads."""
        bounds = [0, *cuts, product.shape[-1]]
        if not self.on or len(cuts) != 2 or any(bound % self.width for bound in bounds):
            return self._split(product, cuts)
        return [Heads(product, start, stop, self.width) for start, stop in pairwise(bounds)]

    def rope(self, original: Any) -> Any:
        """What stands for a rope in a twin: itself, where it is not one that turns pairs."""
        key = key_of(original, self.width)
        if key is None:
            return original
        self.found += 1
        return LateRope(original, key, self)

    def angles(self, rope: Rope, key: bytes, offset: mx.array) -> mx.array:
        """Those of a rope at these positions [R], computed once a step."""
        made = self._made.get(key)
        if made is None or made[0] is not offset:
            made = self._made[key] = (offset, angles(rope, self.width, offset))
        return made[1]

    def clear(self) -> None:
        """Forget a step: what is traced must not outlive its trace."""
        self._made.clear()


class LateRope:
    """Stands where a rope stood."""

    __slots__ = ("_key", "_late", "_rope")

    def __init__(self, rope: Rope, key: bytes, late: Late) -> None:
        self._rope = rope
        self._key = key
        self._late = late

    def __call__(self, x: Any, offset: Any = 0) -> Any:
        if type(x) is not Heads:
            return self._rope(x, offset=offset)
        if x.turn is not None:
            raise NotForLateError("heads turned twice")
        return replace(x, turn=self.angles(offset))

    @property
    def width(self) -> int:
        """Of the heads that it turns."""
        return self._late.width

    def angles(self, offset: mx.array) -> mx.array:
        """Those at positions [R], computed once a step."""
        return self._late.angles(self._rope, self._key, offset)


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
