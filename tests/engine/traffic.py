"""Rows that come and go: a batch driven step by step, and what each row would have said alone.

Rows join when the script says (alone in chunks, or several in one forward), decode together, and leave at
their end or when they are removed. Whole log-probability vectors are asked for, so that a wrong mask or
position shows even where the likeliest token stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_notebook.core.events import Prefill, PrefillPart
from mlx_notebook.core.request import UserCode
from tests.engine.driving import CHUNK, Told, prefill, request, run_row, shaped, step, with_backend
from tests.engine.parity import oracle, spread, vectors_of
from tests.small_models import VOCAB, random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from mlx_notebook.core.request import Request
    from mlx_notebook.engine.grammar import Compiled
    from mlx_notebook.engine.mlx_backend import MlxBackend

CAP = 1e-2
"""No noise of float32 on these models is larger; a lost context changes log-probabilities by whole units."""

REMEMBERED = 150
"""Rows alone whose answers are kept: many tests ask for the same ones."""

pair = cache(small)
_alone: dict[str, Told] = {}


@dataclass
class Coming:
    """A row of a script.

    Attributes:
        prompt: its token ids.
        at: the step before which it joins.
        leaves: the step before which it is taken away, None to let it end.
        chunk: prompt tokens a chunk; None: its body in one forward with the others that join then.
        options: sampling options beside `max_tokens` and `logprobs`.
        shape: a compiled grammar that its answer is held to.
    """

    prompt: list[int]
    at: int = 0
    leaves: int | None = None
    chunk: int | None = CHUNK
    options: dict[str, Any] = field(default_factory=dict)
    code: Callable[[], UserCode] = UserCode
    shape: Compiled | None = None

    def asked(self, row_id: int, count: int, logprobs: int | None = VOCAB) -> Request:
        """The row as a request."""
        options = {"max_tokens": count, "logprobs": logprobs, **self.options}
        if self.shape is None:
            return request(row_id, self.prompt, code=self.code(), **options)
        return shaped(
            request(row_id, self.prompt, code=self.code(), eos=self.shape.vocabulary.eos_ids, **options), self.shape
        )


def run_script(
    backend: MlxBackend, rows: Sequence[Coming], count: int = 12, logprobs: int | None = VOCAB, first_id: int = 1
) -> list[Told]:
    """Drive the rows to their ends; what was told of each."""
    told = [Told() for _ in rows]
    live: dict[int, Told] = {}
    waiting = dict(enumerate(rows))
    now = 0
    while waiting or live:
        joiners = {at: row for at, row in waiting.items() if row.at <= now}
        cohort = []
        for at, row in joiners.items():
            del waiting[at]
            asked = row.asked(first_id + at, count, logprobs)
            if row.chunk is None:
                backend.open(asked)
                cohort.append(PrefillPart(asked.id, 0, len(row.prompt), last=True))
            else:
                prefill(backend, asked, row.chunk, told[at])
            live[asked.id] = told[at]
        if cohort:
            done = backend.prefill(Prefill(tuple(cohort)))
            for row_id, error in done.errors.items():
                told[row_id - first_id].prefill_error = error
        for row_id, outcome in list(live.items()):
            leaves = rows[row_id - first_id].leaves
            if outcome.over or (leaves is not None and leaves <= now):
                backend.drop(row_id)
                del live[row_id]
        if live:
            step(backend, live)
        now += 1
    return told


def in_traffic(kind: str, rows: Sequence[Coming], count: int = 12, **backend_options: Any) -> list[Told]:
    """A script on a backend of its own."""
    return with_backend(pair(kind), lambda backend: run_script(backend, rows, count), **backend_options)


def alone(kind: str, row: Coming, count: int = 12, **backend_options: Any) -> Told:
    """The same row with nobody else there, its prompt in chunks. Remembered, unless it has code of its own."""

    def run() -> Told:
        asked = row.asked(1, count)
        return with_backend(pair(kind), lambda backend: run_row(backend, asked, row.chunk or CHUNK), **backend_options)

    if row.code is not UserCode or row.shape is not None:
        return run()
    key = repr((kind, row.prompt, row.chunk, count, sorted(row.options.items()), sorted(backend_options.items())))
    if key not in _alone:
        if len(_alone) >= REMEMBERED:
            _alone.clear()
        _alone[key] = run()
    return _alone[key]


@cache
def noise(kind: str) -> float:
    """How far float noise alone moves a log-probability of this model, with room: from mlx-lm's own chunk schedules."""
    worst = 0.0
    for length in (9, 41):
        prompt = random_prompt(length, seed=7)
        worst = max(worst, spread([oracle(pair(kind)[0], prompt, 14, size) for size in (2, 3, 8, 16, 2048)]))
    bound = 8 * worst + 2e-5
    assert bound < CAP, f"{kind}: float32 noise of {worst} would hide real faults"
    return bound


def check_same(told: Told, tokens: Sequence[int], vectors: Sequence[npt.NDArray[np.float32]], bound: float) -> None:
    """Log-probabilities within the bound, tokens equal wherever the two likeliest are further apart than that.

    After a token that noise decided otherwise the two say different things, and comparing ends.
    """
    mine = vectors_of(told.logprobs, VOCAB)
    for at, (token, expected, vector, own) in enumerate(zip(told.tokens, tokens, vectors, mine, strict=False)):
        apart = float(np.max(np.abs(own - vector)))
        assert apart <= bound, f"token {at}: log-probabilities differ by {apart}, more than {bound}"
        if token != expected:
            best, second = np.sort(vector)[[-1, -2]]
            assert best - second <= 2 * bound, f"token {at}: {token}, expected {expected}"
            return
    assert len(told.tokens) <= len(tokens)


def check_alone(kind: str, row: Coming, told: Told, count: int = 12) -> None:
    """What the row said in traffic is what it says alone, up to noise; up to its removal."""
    assert told.error is None, told.error
    by_itself = alone(kind, row, count)
    check_same(told, by_itself.tokens, vectors_of(by_itself.logprobs, VOCAB), noise(kind))
    if row.leaves is None:
        assert len(told.tokens) == len(by_itself.tokens)
