"""What a schema forces, and what feeding that in one forward would save: `python -m benchmarks.forced_tokens`.

Two questions. How many tokens of real answers leave no choice, by llguidance's own word, and how many forwards would do
if each run of them were fed together with the token before it? And what does one forward over a span of tokens take
beside as many steps: for one row alone, for eight rows that are all forced at once, and for one row of eight, which
would need a forward of its own beside the step of its neighbours? The forwards are those of mlx-lm's model and caches.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.grammars import ITEM
from benchmarks.harness import Line, Report, Samples, compare, finish, interleave, markdown_table
from benchmarks.smollm2 import Shared, arguments, load_shared, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROWS = 8
SPANS = (2, 5, 10)
"""Tokens fed at once: a drawn one and those that are forced behind it."""

CONTEXT = 128
MAX_TOKENS = 200

SCHEMAS: dict[str, dict[str, Any]] = {
    "two short fields": {
        "type": "object",
        "properties": {"mood": {"enum": ["happy", "angry"]}, "stars": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["mood", "stars"],
    },
    "an item of a shop": ITEM,
    "nested objects": {
        "type": "object",
        "properties": {"customer": {"$ref": "#/$defs/person"}, "seller": {"$ref": "#/$defs/person"}},
        "required": ["customer", "seller"],
        "$defs": {
            "person": {
                "type": "object",
                "properties": {"first_name": {"type": "string", "maxLength": 12}, "is_known": {"type": "boolean"}},
                "required": ["first_name", "is_known"],
            }
        },
    },
    "a list of words": {
        "type": "array",
        "items": {"type": "string", "pattern": "^[a-z]{2,10}$"},
        "minItems": 4,
        "maxItems": 4,
    },
}


@dataclass(frozen=True, slots=True)
class Forced:
    """What is forced in one answer: its tokens, and the lengths of the runs that the grammar leaves no choice in."""

    tokens: int
    runs: tuple[int, ...]

    @property
    def forwards(self) -> int:
        """Forwards that would do: a run goes along with the token before it, or with the prompt."""
        return self.tokens - sum(self.runs)


def forced_in(native: Any, token_ids: Sequence[int]) -> Forced:
    """Walk an answer with llguidance's matcher and count what it forces.

    Raises:
        RuntimeError: the answer goes on otherwise than the matcher says that it must.
    """
    at, runs = 0, []
    while at < len(token_ids):
        must = list(native.compute_ff_tokens())[: len(token_ids) - at]
        if must and list(token_ids[at : at + len(must)]) != must:
            raise RuntimeError(f"at token {at} the grammar forces {must}, and the answer is {token_ids[at:]}")
        taken = must or [token_ids[at]]
        if must:
            runs.append(len(must))
        if not native.consume_tokens(taken):
            raise RuntimeError(f"the grammar does not take {taken} at token {at}")
        at += len(taken)
    return Forced(len(token_ids), tuple(runs))


def counted(shared: Shared) -> dict[str, Forced]:
    """What is forced in the model's greedy answer to each schema."""
    from mlx_notebook.core.grammar import check_json_schema
    from mlx_notebook.engine.grammar import compile_grammar
    from mlx_notebook.engine.vocabulary import Vocabulary

    ends = set(shared.tokenizer.eos_token_ids)
    vocabulary = Vocabulary(shared.tokenizer, ends)
    found = {}
    for name, schema in SCHEMAS.items():
        result = shared.gateway.generate(shared.prompt, json_schema=schema, max_tokens=MAX_TOKENS)
        matcher = compile_grammar(check_json_schema("json_schema", schema), vocabulary).start()
        try:
            found[name] = forced_in(matcher.native, [one for one in result.token_ids if one not in ends])
        finally:
            matcher.close()
    return found


class Fed:
    """Rows of equal length over mlx-lm's caches, to feed tokens to and take them back."""

    def __init__(self, model: Any, rows: int, context: int = CONTEXT) -> None:
        from mlx_lm.models.cache import make_prompt_cache

        self._model, self._rows = model, rows
        self._caches = make_prompt_cache(model)
        self.feed(context)

    def feed(self, tokens: int) -> None:
        """One forward over so many tokens of each row, until the last logits are there."""
        import mlx.core as mx

        ids = mx.full((self._rows, tokens), 7)
        mx.eval(self._model(ids, cache=self._caches)[:, -1], [cache.state for cache in self._caches])

    def take_back(self, tokens: int) -> None:
        """Forget the last tokens."""
        from mlx_lm.models.cache import trim_prompt_cache

        trim_prompt_cache(self._caches, tokens)


def timed(parts: Sequence[tuple[Fed, Sequence[int]]]) -> dict[str, float]:
    """The seconds of some forwards one after the other; what they fed is taken back."""
    began = time.perf_counter()
    for fed, sizes in parts:
        for size in sizes:
            fed.feed(size)
    seconds = time.perf_counter() - began
    for fed, sizes in parts:
        fed.take_back(sum(sizes))
    return {"ms": 1_000 * seconds}


def at_once(where: str, span: int) -> str:
    """The name of the case that feeds a span in one forward."""
    return f"{where}, {span} at once"


def in_steps(where: str, span: int) -> str:
    """The name of the case that it is set beside."""
    return f"{where}, {span} steps"


ALONE, ALL, BESIDE = "one row", f"{ROWS} rows", f"one of {ROWS} rows"
STEP = f"a step of {ROWS} rows"


def cases(model: Any) -> dict[str, Callable[[], dict[str, float]]]:
    """Every forward by its name."""
    one, own, many = Fed(model, 1), Fed(model, 1), Fed(model, ROWS)
    found: dict[str, Callable[[], dict[str, float]]] = {STEP: partial(timed, [(many, [1])])}
    for span in SPANS:
        for where, fed in ((ALONE, one), (ALL, many)):
            found[at_once(where, span)] = partial(timed, [(fed, [span])])
            found[in_steps(where, span)] = partial(timed, [(fed, [1] * span)])
        found[at_once(BESIDE, span)] = partial(timed, [(many, [1]), (own, [span])])
    return found


def lines(samples: Samples) -> list[Line]:
    """The table's lines: a span in one forward beside its steps, and what it costs its neighbours."""
    found = [
        compare(
            samples,
            "ms",
            ours=at_once(where, span),
            theirs=in_steps(where, span),
            what=f"{where}: {span} tokens in one forward",
            unit="ms",
            more_is_better=False,
        )
        for where in (ALONE, ALL)
        for span in SPANS
    ]
    beside = [
        compare(
            samples,
            "ms",
            ours=at_once(BESIDE, span),
            theirs=STEP,
            what=f"{BESIDE}: a forward of its own for {span} tokens",
            unit="ms",
            more_is_better=False,
        )
        for span in SPANS
    ]
    return found + beside


def table(answers: dict[str, Forced]) -> str:
    """What is forced, for the reader."""
    head = ["answer", "tokens", "forced", "runs", "forwards"]
    rows = [
        [name, str(one.tokens), str(sum(one.runs)), " ".join(map(str, one.runs)), str(one.forwards)]
        for name, one in answers.items()
    ]
    return markdown_table([head, *rows])


def main() -> int:
    """Count, measure, print, keep."""
    options = arguments(__doc__, rounds=10)
    shared = load_shared()
    try:
        answers = counted(shared)
    finally:
        shared.gateway.close()
    print(f"{table(answers)}\n")
    samples = interleave(cases(shared.model), rounds=options.rounds)
    kept = {name: {**asdict(one), "forced": sum(one.runs), "forwards": one.forwards} for name, one in answers.items()}
    about = {**settings(shared), "max_tokens": MAX_TOKENS, "rows": ROWS, "context": CONTEXT, "answers": kept}
    title = "Tokens that a schema forces, fed together"
    return finish(Report("forced_tokens", title, lines(samples), samples, about), keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())
