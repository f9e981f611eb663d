"""Which tokens each row's grammar allows next, as one array for the draw.

Filled while the device computes the logits that it will be laid over: the library works outside of Python's lock, on
threads of its own where several rows want a mask.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from mlx_notebook.engine.matcher import Matcher

MOST_THREADS = 8


class MaskFiller:
    """Fills masks for one backend; keeps the library's threads and a buffer between steps."""

    def __init__(self) -> None:
        self._executor: Any = None
        self._buffer = np.zeros((0, 0), dtype=np.int32)

    def fill(self, matchers: Sequence[Matcher], width: int) -> npt.NDArray[np.bool_]:
        """Masks [R, width]: true where a token may come. Ids beyond the tokenizer are false, always."""
        words = -(-max(width, *(matcher.vocab_size for matcher in matchers)) // 32)
        if self._buffer.shape[0] < len(matchers) or self._buffer.shape[1] != words:
            self._buffer = np.zeros((len(matchers), words), dtype=np.int32)
        buffer = self._buffer[: len(matchers)]
        buffer[:] = 0
        wanted = [(matcher.native, row) for row, matcher in enumerate(matchers) if not matcher.waits]
        sizes = {matcher.words for matcher in matchers}
        if len(wanted) > 1 and sizes == {words}:
            self._threads().unsafe_compute_mask_ptr(wanted, buffer.ctypes.data, words * 4, len(matchers))
        else:
            for native, row in wanted:
                native.unsafe_compute_mask_ptr(buffer[row].ctypes.data, matchers[row].words * 4)
        allowed = np.unpackbits(buffer.view(np.uint8), axis=1, bitorder="little")[:, :width].view(np.bool_)
        for row, matcher in enumerate(matchers):
            if matcher.waits:  # the row may not end either: without its answer it would be no answer
                allowed[row, : matcher.vocab_size] = True
                allowed[row, [end for end in matcher.eos_ids if end < width]] = False
            allowed[row, matcher.vocab_size :] = False
        return allowed

    def close(self) -> None:
        """Let the threads go."""
        self._executor = None

    def _threads(self) -> Any:
        if self._executor is None:
            from llguidance import LLExecutor

            # A core is left to the thread that drives the device.
            self._executor = LLExecutor(max(1, min(MOST_THREADS, (os.cpu_count() or 2) - 1)))
        return self._executor


def masked(logits: mx.array, allowed: npt.NDArray[np.bool_]) -> mx.array:
    """Logits [R, V] with -inf where a mask [R, V] does not let a token through.

    Whole numbers, which a processor may give, have no such value: they become float32.
    """
    if not mx.issubdtype(logits.dtype, mx.floating):
        logits = logits.astype(mx.float32)
    return mx.where(mx.array(allowed), logits, mx.array(-mx.inf, dtype=logits.dtype))
