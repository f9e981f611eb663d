"""MlxBackend: executes the scheduler's instructions on an mlx-lm model, with our own step loop.

It uses the model's own forward and mlx-lm's public caches, one per row. Every method runs on the engine thread;
the device stream is made there on first use and given back by `close`, the thread's last act with MLX.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from mlx_notebook.core.events import Decode, Keep, Kept, Prefill, PrefillDone, PrefillPart, StepDone, StepFailed
from mlx_notebook.engine import decode, prefill, wired
from mlx_notebook.engine.backend import release_all
from mlx_notebook.engine.detokenize import Detokenizer
from mlx_notebook.engine.probe import capabilities_of
from mlx_notebook.engine.row import RowState, RowText
from mlx_notebook.engine.sampling import Sampler
from mlx_notebook.engine.stop import StopMatcher
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlx_notebook.core.placement import Capabilities
    from mlx_notebook.core.request import Request

STEPS_BETWEEN_CLEANS = 256  # as in mlx-lm: caches grow, and freed blocks of every past size would stay behind


def device_name() -> str:
    """What MLX computes on by default, for people."""
    device = mx.default_device()
    named = mx.device_info().get("device_name")
    return f"{device.type.name.upper()} ({named})" if named else device.type.name.upper()


class MlxBackend:
    """A loaded model as a `Backend`.

    Args:
        model: an mlx-lm model; every array that it reaches is evaluated.
        tokenizer: mlx-lm's wrapper or a transformers tokenizer.
        vocab_size: an upper bound for token ids, where the caller knows a lower one than the model's tables show.
        context_length: tokens of prompt and answer together; None for no limit.
        eos_token_ids: the model's ends of sequence, which XTC never drops.
        tokenizer_lock: held around uses of the tokenizer, if other threads use it too.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        vocab_size: int | None = None,
        context_length: int | None = None,
        eos_token_ids: Iterable[int] = (),
        tokenizer_lock: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._lock = tokenizer_lock if tokenizer_lock is not None else contextlib.nullcontext()
        self._detokenizer = Detokenizer(tokenizer, self._lock)
        self._capabilities = capabilities_of(model, context_length=context_length, vocab_size=vocab_size)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._requests: dict[int, Request] = {}
        self._rows: dict[int, RowState] = {}
        self._made_stream: mx.Stream | None = None
        self._steps = 0

    @property
    def capabilities(self) -> Capabilities:
        """Plain facts about the model."""
        return self._capabilities

    def open(self, request: Request, entry_id: int | None = None, cached_tokens: int = 0) -> None:  # noqa: ARG002
        """Make a row's state.

        Raises:
            ValueError: an id is outside the vocabulary. `drop` still releases what the request owns.
        """
        self._requests[request.id] = request
        with mx.stream(self._stream):
            self._rows[request.id] = self._row_for(request)

    def prefill(self, instruction: Prefill) -> PrefillDone:
        """Compute known positions [start, stop) of each part; with `last`, also draw the token after them."""
        began = time.monotonic_ns()
        told = {part.row_id: self._prefill(self._rows[part.row_id], part) for part in instruction.parts}
        errors = {row_id: error for row_id, error in told.items() if error is not None}
        return PrefillDone(time.monotonic_ns(), began, instruction.parts, errors)

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        """Commit one token of each row; the forward of the next is under way before any is read."""
        began = time.monotonic_ns()
        rows = [self._rows[row_id] for row_id in instruction.row_ids]
        limit = self._capabilities.context_length
        with mx.stream(self._stream):
            try:
                for row in rows:
                    decode.dispatch(self._model, row, limit)
                tokens = [decode.read(row) for row in rows]
            except Exception as error:  # noqa: BLE001 - a forward or an allocation failed: the step's failure
                return StepFailed(time.monotonic_ns(), instruction.row_ids, as_text(error))
            outcomes = tuple(decode.commit(row, *token, limit) for row, token in zip(rows, tokens, strict=True))
        self._steps += 1
        if self._steps % STEPS_BETWEEN_CLEANS == 0:
            mx.clear_cache()
        return StepDone(time.monotonic_ns(), began, outcomes)

    def rewind(self, row_id: int) -> None:
        """Empty a row's caches and keep what it committed: `prefill` starts again at 0."""
        self._rows[row_id].rewind(make_prompt_cache(self._model))

    def keep(self, instruction: Keep) -> Kept:
        """No prompt cache yet."""
        return Kept(time.monotonic_ns(), instruction.entry_id, 0, 0)

    def evict(self, entry_id: int) -> None:
        """No prompt cache yet."""

    def warm(self, rows: int) -> bool:  # noqa: ARG002
        """Nothing to warm."""
        return False

    def drop(self, row_id: int, keep_as: int | None = None) -> Kept | None:  # noqa: ARG002
        """Free a row's state and release what it owns; unknown rows are ignored."""
        request = self._requests.pop(row_id, None)
        self._rows.pop(row_id, None)
        if request is not None:
            release_all(request)
        return None

    def synchronize(self) -> None:
        """Wait till the device has done all that was dispatched."""
        if self._made_stream is not None:
            mx.synchronize(self._made_stream)

    def held_bytes(self) -> int:
        """Bytes of all rows' caches; may be asked from any thread."""
        return sum(row.held_bytes() for row in list(self._rows.values()))

    def close(self) -> None:
        """Drop every row, wait for the device and give the thread's streams back. Nothing works here afterwards."""
        for row_id in list(self._requests):
            self.drop(row_id)
        if self._made_stream is not None:
            mx.synchronize(self._made_stream)
            wired.release()
            self._made_stream = None
        # A thread that ends with live streams can abort the process at exit; cleared by others they still can.
        mx.clear_streams()

    @property
    def _stream(self) -> mx.Stream:
        if self._made_stream is None:
            self._made_stream = mx.new_stream(mx.default_device())
            wired.hold()
        return self._made_stream

    def _row_for(self, request: Request) -> RowState:
        shape = request.shape
        size = self._capabilities.vocab_size
        prefill.check_ids(shape.prompt_ids, size, "prompt token")
        prefill.check_ids([token_id for token_id, _ in shape.sampling.logit_bias], size, "logit_bias token")
        sampler = Sampler(shape.sampling, self._spared(request))
        text = RowText(self._detokenizer.stream(), StopMatcher(shape.sampling.stop))
        row = RowState(request, make_prompt_cache(self._model), sampler, text)
        if request.code.context is not None:
            row.context = request.code.context
        return row

    def _spared(self, request: Request) -> list[int]:
        """Tokens that XTC leaves alone, as in mlx-lm: ends of sequence and newlines."""
        if request.shape.sampling.xtc_probability <= 0.0:
            return []
        with self._lock:
            newlines = self._tokenizer.encode("\n", add_special_tokens=False)
        spared = (*request.shape.eos_ids, *self._eos_token_ids, *newlines)
        return [token_id for token_id in spared if 0 <= token_id < self._capabilities.vocab_size]

    def _prefill(self, row: RowState, instruction: PrefillPart) -> tuple[str, str] | None:
        ids = row.known[instruction.start : instruction.stop]
        body = ids[:-1] if instruction.last else ids
        try:
            if row.fed != instruction.start or not ids:
                raise RuntimeError(f"row {row.request.id}: chunk {instruction} after {row.fed} tokens")  # noqa: TRY301
            with mx.stream(self._stream):
                if body:
                    prefill.feed(self._model, row, body)
                if instruction.last:
                    prefill.first_token(self._model, row, ids[-1])
        except BaseException as error:  # noqa: BLE001 - a processor may raise anything; whatever it is, this row ends
            return as_text(error)
        return None
