"""Sums of the residual stream that wait for the norm which reads them: two launches a layer less.

A block of most models adds what attention made to its input, norms the sum, and adds what the feed-forward layer
made of that. In a twin (`joined`) a `LateBlock` stands for such a block, by the names of its parts: each sum is
computed by the kernel that norms it, and the block's own sum is left to the next block, or to the model's last norm.
A block that does anything else (scales, other norms) says something else; the parity probe at load tells, and
takes the next way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx.nn.layers.base import Module
from mlx.nn.layers.normalization import RMSNorm

if TYPE_CHECKING:
    import mlx.core as mx

    from mlx_notebook.engine.stores.page_ops import PageOps

PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
LAST = "norm"


@dataclass(frozen=True, slots=True)
class Sum:
    """`x + more`, not computed yet."""

    x: mx.array
    more: mx.array


class Sums:
    """Makes late blocks and norms.

    Attributes:
        late: whether sums wait; if not, blocks are what they were.
        found: blocks of the model that can be late.
    """

    def __init__(self, ops: PageOps) -> None:
        self.ops = ops
        self.late = True
        self.found = 0

    def instead_of(self, twin: Any) -> Any:
        """What stands for a module of a twin: itself, where it is neither a block nor has blocks and a last norm."""
        if type(twin.get(LAST)) is RMSNorm and any(type(part) is LateBlock for part in twin.get("layers") or ()):
            twin[LAST] = LateNorm(twin[LAST], self.ops)
        if not all(isinstance(twin.get(name), Module) for name in PARTS[1::2]):
            return twin
        if not all(type(twin.get(name)) is RMSNorm for name in PARTS[::2]):
            return twin
        self.found += 1
        return LateBlock(twin, self)


class LateNorm:
    """A norm that may get a sum that waits."""

    __slots__ = ("_norm", "_ops")

    def __init__(self, norm: RMSNorm, ops: PageOps) -> None:
        self._norm, self._ops = norm, ops

    def __call__(self, x: mx.array | Sum) -> mx.array:
        return self.both(x)[1]

    def both(self, x: mx.array | Sum) -> tuple[mx.array, mx.array]:
        """What x is, and its norm."""
        if isinstance(x, Sum):
            return self._ops.add_norm(x.x, x.more, self._norm.weight, self._norm.eps)
        normed: mx.array = self._norm(x)
        return x, normed


class LateBlock:
    """Stands where a block stood."""

    __slots__ = ("_block", "_first", "_second", "_sums")

    def __init__(self, block: Any, sums: Sums) -> None:
        self._block, self._sums = block, sums
        self._first, self._second = LateNorm(block[PARTS[0]], sums.ops), LateNorm(block[PARTS[2]], sums.ops)

    def __call__(self, x: mx.array | Sum, *args: Any, **kwargs: Any) -> mx.array | Sum:
        if not self._sums.late:
            plain: mx.array = self._block(x, *args, **kwargs)
            return plain
        x, normed = self._first.both(x)
        x, normed = self._second.both(Sum(x, self._block[PARTS[1]](normed, *args, **kwargs)))
        return Sum(x, self._block[PARTS[3]](normed))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)  # models look at what kind of layer it is
