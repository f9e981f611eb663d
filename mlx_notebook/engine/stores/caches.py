"""One row's caches: mlx-lm's own classes, made to hold little more than they need, cut, shared and copied.

A write into a cache replaces an array object in place, so two caches must never hold the same object;
they may hold the same buffer, since MLX copies a buffer that somebody else still reads.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.kv.affine import AffineCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def make_caches(model: Any) -> list[Any]:
    """Empty caches for one row, as the model wants them, that grow by BLOCK columns instead of 256."""
    caches = make_prompt_cache(model)
    for leaf in leaves(caches):
        if hasattr(leaf, "step"):
            leaf.step = BLOCK
    return list(caches)


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """Every cache that holds arrays, nested ones unfolded, in order."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def natives(caches: Sequence[Any]) -> Iterator[Any]:
    """Every cache of mlx-lm's that holds columns, quantised ones unfolded into their three."""
    for leaf in leaves(caches):
        if isinstance(leaf, AffineCache):
            yield from leaf.parts
        elif not is_state(leaf):
            yield leaf


def arrays_of(caches: Sequence[Any]) -> list[mx.array]:
    """Every array that these caches hold."""
    found: list[mx.array] = []
    for leaf in leaves(caches):
        if isinstance(leaf, ArraysCache):
            found += [array for array in leaf.cache if array is not None]
        elif isinstance(leaf, AffineCache):
            found += leaf.arrays()
        else:
            found += _arrays_in(leaf.state)
    return found


def _arrays_in(state: Any) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, list | tuple):
        return [array for part in state for array in _arrays_in(part)]
    return []


def nbytes_of(caches: Sequence[Any]) -> int:
    """Bytes that these caches take."""
    total = 0
    for leaf in leaves(caches):
        if type(leaf) is KVCache:  # asked for every row many times a second, and nearly all caches are such
            total += 0 if leaf.keys is None else leaf.keys.nbytes + leaf.values.nbytes
        else:
            total += sum(int(array.nbytes) for array in arrays_of([leaf]))
    return total


def is_state(leaf: Any) -> bool:
    """Whether a cache is recurrent or convolution state: one array of constant size, no columns."""
    return isinstance(leaf, ArraysCache)


def keeps_past(leaf: Any) -> bool:
    """Whether a cache is of a kind that surely holds every token it was fed, so that the last ones can be cut off.

    Others say of themselves that they can be trimmed, but have let go of what a shorter prefix would look at.
    """
    if type(leaf) is AffineCache:
        return all(keeps_past(part) for part in leaf.parts)
    return type(leaf) is KVCache


def _is_whole_window(leaf: Any) -> bool:
    """Whether a cache is a window that has lost nothing yet."""
    if type(leaf) is AffineCache:
        return all(_is_whole_window(part) for part in leaf.parts)
    return type(leaf) is RotatingKVCache and leaf.is_trimmable()


def twin(caches: Sequence[Any]) -> list[Any]:
    """Caches of their own over the same buffers: what one side writes later, the other does not see."""
    return [_twin(cache) for cache in caches]


def _twin(cache: Any) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*twin(cache.caches))
    other = copy.copy(cache)
    _replace_arrays(other, lambda array: array[...])  # another object over the same buffer
    return other


def _replace_arrays(leaf: Any, change: Callable[[mx.array], mx.array]) -> None:
    """Put `change(array)` in the place of every array of a cache; containers are replaced too."""
    for name, value in vars(leaf).items():
        if isinstance(leaf, AffineCache) and name == "_parts":
            parts = [copy.copy(part) for part in value]
            for part in parts:
                _replace_arrays(part, change)
            setattr(leaf, name, tuple(parts))
        else:
            setattr(leaf, name, _changed(value, change))


def _changed(value: Any, change: Callable[[mx.array], mx.array]) -> Any:
    if isinstance(value, mx.array):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_changed(part, change) for part in value)
    return value


def cut(caches: Sequence[Any], back: int) -> bool:
    """Take the last `back` tokens out of caches, in place; False (and caches of no use) where that can't be done.

    State layers hold no past, a window that has wrapped lost its own, and of other kinds nobody here knows: those can
    only be had as they are.
    """
    if back == 0:
        return True
    found = list(leaves(caches))
    if not all(keeps_past(leaf) or _is_whole_window(leaf) for leaf in found):
        return False
    return all(leaf.trim(back) == back for leaf in found)


def in_blocks(tokens: int) -> int:
    """Columns that so many tokens take."""
    return -(-tokens // BLOCK) * BLOCK


def compact(caches: Sequence[Any]) -> None:
    """Let go of columns that were cut off, where they are many; the arrays are replaced by copies."""
    for leaf in natives(caches):
        if isinstance(leaf, KVCache) and leaf.keys is not None:
            needed = in_blocks(leaf.offset)
            if needed < leaf.keys.shape[2]:
                leaf.keys = mx.contiguous(leaf.keys[..., :needed, :])
                leaf.values = mx.contiguous(leaf.values[..., :needed, :])


def make_room(caches: Sequence[Any], tokens: int, coming: int = 0) -> None:
    """Before so many tokens are fed, of `coming` that surely will be: widen full-attention caches to whole blocks.

    By themselves they would add whole blocks behind the last column, wherever in a block that is. All that will come
    gets its room at once: a prompt that goes through in small chunks would else be copied every few of them.
    """
    for leaf in natives(caches):
        if not isinstance(leaf, KVCache) or leaf.keys is None:
            continue
        wanted = in_blocks(leaf.offset + tokens)
        if wanted > leaf.keys.shape[2]:
            wanted = max(wanted, in_blocks(leaf.offset + coming))
            leaf.keys, leaf.values = (
                widened(array[..., : leaf.offset, :], wanted) for array in (leaf.keys, leaf.values)
            )


def tidy_windows(caches: Sequence[Any]) -> None:
    """After a chunk was fed: windows hold their last tokens only, and until they are full, whole blocks.

    A chunk leaves in a window's cache all that any of its tokens looked at, till the next one is fed.
    """
    for leaf in natives(caches):
        if not isinstance(leaf, RotatingKVCache) or leaf.keys is None:
            continue
        keys, values, offset, keep, size, at = leaf.state
        held = keys.shape[2]
        if at != held:  # a ring already, or with room left
            continue
        if held > size:
            back = held - size
            keys, values = (_without(array, keep, back) for array in (keys, values))
            leaf.state = (keys, values, offset, keep, size, size)
        elif held < (wanted := min(in_blocks(offset), size)):
            leaf.state = (widened(keys, wanted), widened(values, wanted), offset, keep, size, at)


def _without(array: mx.array, keep: int, count: int) -> mx.array:
    """Columns without `count` of them after the first `keep`."""
    if keep:
        return mx.concatenate([array[..., :keep, :], array[..., keep + count :, :]], axis=2)
    return mx.contiguous(array[..., count:, :])


def widened(array: mx.array, columns: int) -> mx.array:
    """Columns [..., n, D] and zeros behind them, a buffer of its own."""
    more = columns - array.shape[-2]
    if more <= 0:
        return mx.contiguous(array)
    return mx.concatenate([array, mx.zeros((*array.shape[:-2], more, array.shape[-1]), array.dtype)], axis=-2)


def detach(caches: Sequence[Any]) -> None:
    """Give every array a buffer of its own, evaluated: nothing larger stays alive behind it."""
    for leaf in leaves(caches):
        _replace_arrays(leaf, mx.contiguous)
    mx.eval(arrays_of(caches))
