"""The seam between deciding and computing: the Backend protocol, and ScriptedBackend, its small fake.

A backend executes the scheduler's instructions on the engine thread and reports what only it can
know: tokens, text, ends, errors. It never decides which row runs.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mlx_notebook.core.events import Decode, Keep, Kept, Prefill, PrefillDone, RowOutcome, StepDone, StepFailed
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.core.request import with_limit
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.core.segments import SLOW_CODE_NS
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.core.request import Request

log = logging.getLogger("mlx_notebook")


class Backend(Protocol):
    """What the engine thread asks of a model. Every method is called on the engine thread.

    A row's own failure (its callback, processor or sampler raised) comes back inside the
    outcome; a failure of the whole forward comes back as StepFailed. Only a defect of the
    backend itself may raise, and that ends the engine thread.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Plain facts about the model; constant once the backend is made."""
        ...

    def open(self, request: Request, entry_id: int | None = None, cached_tokens: int = 0) -> None:
        """Make a row's state (sampler, detokeniser, caches: empty, or the first `cached_tokens` of an entry).

        Owns `request.owned` from here.
        """
        ...

    def prefill(self, instruction: Prefill) -> PrefillDone:
        """Compute the parts; the last prompt token is left to the row's first decode step."""
        ...

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        """One step: start the next token of each row, then commit the one that the last step started."""
        ...

    def keep(self, instruction: Keep) -> Kept:
        """Copy a row's caches, exactly at so many tokens, into an entry; 0 tokens where that cannot be done."""
        ...

    def rewind(self, row_id: int) -> None:
        """Throw away a row's caches, keep what it committed (tokens, text, draws): prefill starts again at 0."""
        ...

    def drop(self, row_id: int, keep_as: int | None = None, keep_tokens: int | None = None) -> Kept | None:
        """Free a row's state and release what it owns, exactly once; unknown rows are ignored.

        With `keep_as`, its caches become that entry (cut back to `keep_tokens`, if given), and what they
        hold is said.
        """
        ...

    def evict(self, entry_id: int) -> None:
        """Free an entry; unknown ones are ignored."""
        ...

    def warm(self, rows: int) -> bool:
        """While idle: have built what a step of so many rows needs; False if there was nothing to do.

        Asked for 2, 3, ... rows in turn.
        """
        ...

    def extend(self, row_id: int, max_tokens: int) -> None:
        """From now on the open row may write so many tokens in all; unknown rows are ignored."""
        ...

    def synchronize(self) -> None:
        """Wait till the device has done all that was dispatched."""
        ...

    def held_bytes(self) -> int:
        """Bytes that rows and entries hold now (not the weights)."""
        ...

    def close(self) -> None:
        """Drop every row, synchronise, and give back the thread's streams."""
        ...


def release_all(request: Request) -> None:
    """Release what a request owns: every release is attempted, a failing one is logged."""
    for release in request.owned:
        try:
            release()
        except BaseException as error:  # noqa: BLE001 - the others must be released too
            log.error("releasing what request %d owned failed\n%s", request.id, as_text(error)[1])  # noqa: TRY400


def _letters(row_id: int, index: int) -> str:
    return chr(ord("a") + (row_id + index) % 26)


@dataclass(slots=True)
class ScriptedBackend:
    """A backend without a model: `script(row_id, index)` names each token's text, costs are waits.

    Token ids are the code point of the text's first character, so tests can read them. For
    tests, teaching and demonstrations; ids above `capabilities.vocab_size` cannot occur.
    """

    capabilities: Capabilities = field(default_factory=lambda: Capabilities(vocab_size=0x110000, context_length=32_768))
    script: Callable[[int, int], str] = _letters
    step_s: float = 0.0
    prefill_s_per_token: float = 0.0
    _rows: dict[int, Request] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)
    _entries: dict[int, int] = field(default_factory=dict)

    def open(self, request: Request, entry_id: int | None = None, cached_tokens: int = 0) -> None:
        if entry_id is not None and self._entries.get(entry_id, 0) < cached_tokens:
            raise ValueError(f"entry {entry_id} does not hold {cached_tokens} tokens")
        self._rows[request.id] = request
        self._counts[request.id] = 0

    def prefill(self, instruction: Prefill) -> PrefillDone:
        began = time.monotonic_ns()
        self._wait(self.prefill_s_per_token * sum(part.stop - part.start for part in instruction.parts))
        return PrefillDone(time.monotonic_ns(), began, instruction.parts)

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        began = time.monotonic_ns()
        self._wait(self.step_s)
        outcomes = tuple(self._outcome(row_id) for row_id in instruction.row_ids)
        return StepDone(time.monotonic_ns(), began, outcomes)

    def _outcome(self, row_id: int) -> RowOutcome:
        request, index = self._rows[row_id], self._counts[row_id]
        self._counts[row_id] = index + 1
        text = self.script(row_id, index)
        token_id = ord(text[0])
        began = time.monotonic_ns()
        try:
            go_on = request.code.on_token is None or request.code.on_token(token_id, text, None) is not False
        except BaseException as error:  # noqa: BLE001 - user code: its failure is this row's alone
            return RowOutcome(row_id, token_id, text, error=as_text(error))
        spent = time.monotonic_ns() - began
        told = RowOutcome(row_id, token_id, text, user_ns=spent if spent >= SLOW_CODE_NS else 0)
        if not go_on:
            return told._replace(finish=(FinishReason.STOP, FinishDetail.CALLBACK))
        if index + 1 >= request.shape.sampling.max_tokens:
            return told._replace(finish=(FinishReason.LENGTH, FinishDetail.MAX_TOKENS))
        return told

    def rewind(self, row_id: int) -> None:
        """A scripted row has no caches."""

    def keep(self, instruction: Keep) -> Kept:
        self._entries[instruction.entry_id] = instruction.tokens
        return self._told(instruction.entry_id)

    def drop(self, row_id: int, keep_as: int | None = None, keep_tokens: int | None = None) -> Kept | None:
        request = self._rows.pop(row_id, None)
        count = self._counts.pop(row_id, 0)
        if request is None:
            return None
        release_all(request)
        if keep_as is None:
            return None
        known = len(request.shape.prompt_ids) + count - 1
        self._entries[keep_as] = known if keep_tokens is None else min(known, keep_tokens)
        return self._told(keep_as)

    def _told(self, entry_id: int) -> Kept:
        tokens = self._entries[entry_id]
        return Kept(time.monotonic_ns(), entry_id, tokens, tokens * self.capabilities.kv_bytes_per_token)

    def evict(self, entry_id: int) -> None:
        self._entries.pop(entry_id, None)

    def warm(self, rows: int) -> bool:  # noqa: ARG002 - nothing is ever cold here
        return False

    def extend(self, row_id: int, max_tokens: int) -> None:
        if row_id in self._rows:
            self._rows[row_id] = with_limit(self._rows[row_id], max_tokens)

    def synchronize(self) -> None:
        """Nothing is ever in flight."""

    def held_bytes(self) -> int:
        return sum(self._entries.values()) * self.capabilities.kv_bytes_per_token

    def close(self) -> None:
        for row_id in list(self._rows):
            self.drop(row_id)

    @staticmethod
    def _wait(seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


def scripted_texts(texts: Sequence[str]) -> Callable[[int, int], str]:
    """A script that says `texts` over and over, one a token."""
    return lambda _row_id, index: texts[index % len(texts)]
