"""One workload with something for every way that the engine has of doing things at once, driven step by step.

Short prompts that are read together, long ones in chunks between steps, of which one begins with what the other left
in the prompt cache; greedy rows, drawn rows, rows with penalties and rows with a grammar, with and without
log-probabilities; ends at different times, one row taken away. At last one row is alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.events import Keep, Prefill, PrefillPart
from tests.engine.driving import Told, request, shaped, step
from tests.engine.shaping import compiled
from tests.small_models import VOCAB, random_prompt

if TYPE_CHECKING:
    from mlx_notebook.core.request import Request
    from mlx_notebook.engine.mlx_backend import MlxBackend

PIECE = 64
SHARED = 4 * PIECE
ENTRY = 1
DOCUMENT = random_prompt(SHARED, seed=11)
ALL = {"logprobs": VOCAB}


@dataclass(frozen=True)
class Coming:
    """A row.

    Attributes:
        prompt: its token ids.
        at: the step before which it is opened; rows that come at once and are short are read in one forward.
        begins_with: whether it may start from the entry.
        leaves: the step before which it is taken away; None to let it end.
        options: sampling options.
        pattern: what its answer must match; "" for anything.
    """

    prompt: list[int]
    at: int
    begins_with: bool = False
    leaves: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    pattern: str = ""

    def asked(self, row_id: int, **more: Any) -> Request:
        """As a request, with these options too."""
        options = {**self.options, **more}
        if not self.pattern:
            return request(row_id, self.prompt, **options)
        grammar = compiled(regex=self.pattern)
        return shaped(request(row_id, self.prompt, eos=grammar.vocabulary.eos_ids, **options), grammar)


LEFT = 4
ROWS = (
    Coming(random_prompt(9, seed=1), 0, options={"max_tokens": 12, **ALL}),
    Coming(random_prompt(24, seed=2), 0, options={"max_tokens": 30, "temperature": 0.9, "top_p": 0.8, "seed": 5}),
    Coming(
        random_prompt(15, seed=3),
        0,
        options={
            "max_tokens": 21,
            "temperature": 0.7,
            "seed": 6,
            "repetition_penalty": 1.3,
            "presence_penalty": 0.5,
            "logit_bias": ((5, 2.0),),
            **ALL,
        },
    ),
    Coming([*DOCUMENT, *random_prompt(44, seed=4)], 0, options={"max_tokens": 52, **ALL}),
    Coming(random_prompt(20, seed=5), 3, leaves=9, options={"max_tokens": 40, "temperature": 1.0, "seed": 8}),
    Coming(
        [*DOCUMENT, *random_prompt(43, seed=6)],
        6,
        begins_with=True,
        options={"max_tokens": 46, "temperature": 0.8, "top_k": 40, "min_p": 0.01, "seed": 7, **ALL},
    ),
    Coming(random_prompt(12, seed=7), 7, pattern="[a-z ]{18}", options={"max_tokens": 30, **ALL}),
    Coming(
        random_prompt(17, seed=8),
        7,
        pattern="[0-9]+(, [0-9]+)*\\.",
        options={"max_tokens": 25, "temperature": 0.9, "seed": 9, "frequency_penalty": 0.3},
    ),
)


def run_all(backend: MlxBackend, **more: Any) -> list[Told]:
    """Drive every row to its end; what was told of each. `more` sampling options for all rows."""
    told = [Told() for _ in ROWS]
    reading: dict[int, int] = {}
    writing: list[int] = []
    now = 0
    while now <= max(row.at for row in ROWS) or reading or writing:
        for row_id, row in enumerate(ROWS):
            if row.at == now:
                backend.open(row.asked(row_id, **more), *((ENTRY, SHARED) if row.begins_with else ()))
                reading[row_id] = backend._rows[row_id].fed
            if row.leaves == now and row_id in writing:
                backend.drop(row_id)
                writing.remove(row_id)
        writing += _read(backend, reading)
        if writing:
            step(backend, {row_id: told[row_id] for row_id in writing})
        for row_id in [row_id for row_id in writing if told[row_id].over]:
            backend.drop(row_id)
            writing.remove(row_id)
        now += 1
    return told


def _read(backend: MlxBackend, reading: dict[int, int]) -> list[int]:
    """What a turn reads: all short prompts that came, and a piece of each long one; the rows that are read now."""
    parts = []
    for row_id, start in reading.items():
        length = len(ROWS[row_id].prompt)
        stop = length if length - start <= PIECE else start + PIECE
        parts.append(PrefillPart(row_id, start, stop, last=stop == length))
    short = tuple(part for part in parts if part.start == 0 and part.last)
    alone = [(part,) for part in parts if part not in short]
    for instruction in [*([short] if short else []), *alone]:
        assert not backend.prefill(Prefill(instruction)).errors
    for part in parts:
        reading[part.row_id] = part.stop
        if part.stop == SHARED and not ROWS[part.row_id].begins_with:
            assert backend.keep(Keep(part.row_id, ENTRY, SHARED)).tokens == SHARED
    read = [part.row_id for part in parts if part.last]
    for row_id in read:
        del reading[row_id]
    return read
