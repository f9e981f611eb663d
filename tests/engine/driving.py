"""Driving a backend in a test: a thread of its own, as the engine's is, and rows run to their end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mlx_notebook.core.events import Decode, Prefill, PrefillPart, RowOutcome, StepDone
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions, UserCode
from mlx_notebook.engine.mlx_backend import MlxBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.core.results import TokenLogprob
    from mlx_notebook.engine.grammar import Compiled

T = TypeVar("T")

CHUNK = 8


@dataclass
class Told:
    """Everything that a backend told of one row."""

    outcomes: list[RowOutcome] = field(default_factory=list)
    prefill_error: tuple[str, str] | None = None

    @property
    def tokens(self) -> list[int]:
        return [o.token_id for o in self.outcomes if o.token_id is not None]

    @property
    def text(self) -> str:
        return "".join(o.text for o in self.outcomes)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [o.logprob for o in self.outcomes if o.logprob is not None]

    @property
    def finish(self) -> tuple[str, str] | None:
        last = self.outcomes[-1] if self.outcomes else None
        return (str(last.finish[0]), str(last.finish[1])) if last is not None and last.finish is not None else None

    @property
    def error(self) -> tuple[str, str] | None:
        return self.prefill_error or (self.outcomes[-1].error if self.outcomes else None)

    @property
    def over(self) -> bool:
        return self.finish is not None or self.error is not None


def on_thread(work: Callable[[], T]) -> T:
    """Run `work` on a new thread, as an engine thread would, and give its value or raise its error here."""
    value: list[T] = []
    raised: list[BaseException] = []

    def body() -> None:
        try:
            value.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            raised.append(error)

    thread = threading.Thread(target=body, name="test-engine")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return value[0]


def with_backend(
    pair: tuple[Any, Any], work: Callable[[MlxBackend], T], context_length: int | None = None, **options: Any
) -> T:
    """Run `work(backend)` on a new thread with a backend for this (model, tokenizer); closed afterwards."""

    def body() -> T:
        backend = MlxBackend(*pair, context_length=context_length, **options)
        try:
            return work(backend)
        finally:
            backend.close()

    return on_thread(body)


def request(
    row_id: int,
    prompt: Sequence[int],
    *,
    code: UserCode | None = None,
    eos: Sequence[int] = (),
    **options: Any,
) -> Request:
    """A request for these prompt ids; options as in SamplingOptions."""
    shape = RequestShape(tuple(prompt), SamplingOptions(**options), eos_ids=frozenset(eos))
    return Request(row_id, shape, code=code or UserCode())


def shaped(asked: Request, compiled: Compiled, after: tuple[int, ...] = ()) -> Request:
    """The same request, its answer held to a grammar."""
    shape = replace(asked.shape, grammar=compiled.spec, grammar_after=after)
    return replace(asked, shape=shape, compiled=compiled)


def prefill(backend: MlxBackend, asked: Request, chunk: int = CHUNK, told: Told | None = None) -> Told:
    """Open a row and compute its prompt in chunks, as mlx-lm would cut them: the last token is never in one."""
    told = told if told is not None else Told()
    backend.open(asked)
    length = len(asked.shape.prompt_ids)
    start = 0
    while start < length:
        # mlx-lm cuts the prompt without its last token; the last instruction takes that token along.
        stop = min(start + chunk, length - 1)
        last = stop == length - 1
        part = PrefillPart(asked.id, start, length if last else stop, last)
        done = backend.prefill(Prefill((part,)))
        if done.errors:
            told.prefill_error = done.errors[asked.id]
            break
        start = part.stop
    return told


def read_again(backend: MlxBackend, row_id: int, prompt: Sequence[int], told: Told) -> None:
    """What the scheduler asks for after a failed forward: known tokens in chunks from 0."""
    backend.rewind(row_id)
    known, start = len(prompt) + len(told.tokens), 0
    while start < known:
        stop = min((start // CHUNK + 1) * CHUNK, known)
        stop = known if stop >= known - 1 else stop
        assert not backend.prefill(Prefill((PrefillPart(row_id, start, stop, last=stop == known),))).errors
        start = stop


def step(backend: MlxBackend, rows: dict[int, Told]) -> None:
    """One step of all these rows."""
    done = backend.decode(Decode(tuple(rows)))
    assert isinstance(done, StepDone), done
    for outcome in done.outcomes:
        rows[outcome.row_id].outcomes.append(outcome)


def finish(backend: MlxBackend, row_id: int, told: Told) -> Told:
    """Decode one row to its end and drop it."""
    while not told.over:
        step(backend, {row_id: told})
    backend.drop(row_id)
    return told


def run_row(backend: MlxBackend, asked: Request, chunk: int = CHUNK) -> Told:
    """One request from opening to its end."""
    return finish(backend, asked.id, prefill(backend, asked, chunk))
