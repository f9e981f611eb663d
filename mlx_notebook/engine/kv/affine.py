"""One row's keys and values of one layer, quantised in groups along the head.

The cache behind it (full or sliding window, of whatever class the row would have natively) stores
columns and knows nothing of heads; here three of them hold packed values, scales and biases side by
side. So windows, growth and trimming are the native ones. Models see what they see of mlx-lm's
quantised cache: `bits` and `group_size`, and triples instead of arrays.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from mlx_notebook.core.kv_scheme import LayerScheme

Triple = tuple[mx.array, mx.array, mx.array]


class AffineCache:
    """A quantised cache over three native ones.

    Args:
        parts: native caches of one kind, for packed values, scales and biases.
        scheme: bits a value and values a group.
    """

    def __init__(self, parts: tuple[Any, Any, Any], scheme: LayerScheme) -> None:
        self.bits = scheme.bits
        self.group_size = scheme.group_size
        self._parts = parts

    @classmethod
    def of_native(cls, native: Any, scheme: LayerScheme) -> AffineCache:
        """Quantise what a native cache holds, column for column; the native one is left as it is."""
        keys = _quantised(native.keys, scheme)
        values = _quantised(native.values, scheme)
        parts = []
        for key, value in zip(keys, values, strict=True):
            part = copy.copy(native)
            part.keys, part.values = key, value
            parts.append(part)
        return cls((parts[0], parts[1], parts[2]), scheme)

    @property
    def parts(self) -> tuple[Any, Any, Any]:
        """The native caches of packed values, scales and biases."""
        return self._parts

    @property
    def offset(self) -> int:
        """Tokens fed so far."""
        return int(self._parts[0].offset)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Triple, Triple]:
        """Add columns [1, H, N, D]; all that attention may look at, each as (packed, scales, biases)."""
        new_keys = mx.quantize(keys, group_size=self.group_size, bits=self.bits)
        new_values = mx.quantize(values, group_size=self.group_size, bits=self.bits)
        held = [part.update_and_fetch(k, v) for part, k, v in zip(self._parts, new_keys, new_values, strict=True)]
        (kp, vp), (ks, vs), (kb, vb) = held
        return (kp, ks, kb), (vp, vs, vb)

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        """As the native cache's."""
        return self._parts[0].make_mask(*args, **kwargs)

    def size(self) -> int:
        """Columns that attention may look at."""
        return int(self._parts[0].size())

    def is_trimmable(self) -> bool:
        """Whether the last tokens can be taken back."""
        return bool(self._parts[0].is_trimmable())

    def trim(self, n: int) -> int:
        """Take the last `n` tokens back; how many were."""
        return min(int(part.trim(n)) for part in self._parts)

    @property
    def state(self) -> list[Any]:
        """The arrays, to be evaluated together."""
        return [part.state for part in self._parts]

    def arrays(self) -> list[mx.array]:
        """Every array that is held."""
        return [array for part in self._parts for array in (part.keys, part.values) if array is not None]

    def empty(self) -> bool:
        """Whether nothing was fed."""
        return bool(self._parts[0].empty())

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(int(part.nbytes) for part in self._parts)

    def shared(self) -> AffineCache:
        """A cache of its own over the same arrays: what one writes later the other does not see."""
        twin = copy.copy(self)
        parts = [copy.copy(part) for part in self._parts]
        for part in parts:  # a write replaces the array object in place: the objects must differ, the buffers need not
            if part.keys is not None:
                part.keys, part.values = part.keys[...], part.values[...]
        twin._parts = (parts[0], parts[1], parts[2])  # noqa: SLF001 - our own class
        return twin


def _quantised(array: mx.array, scheme: LayerScheme) -> Triple:
    packed, scales, biases = mx.quantize(array, group_size=scheme.group_size, bits=scheme.bits)
    return packed, scales, biases
