"""A draw that fails, at every layer kind: it ends its own row, and the others draw what they would have drawn.

The oracle is the same traffic in which that row is taken away after the same step: whoever else is there computes the
same shapes, so every token and every log-probability of theirs is the same to the bit, in either mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.request import UserCode
from mlx_notebook.engine import decode, held
from tests.engine.driving import with_backend
from tests.engine.failing_draws import OPTIONS, failing_draws
from tests.engine.shaping import compiled
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import Coming, pair, run_script
from tests.small_models import KINDS, random_prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.mlx_backend import MlxBackend
    from tests.engine.driving import Told

COUNT = 9


class Panic(BaseException):
    """Native code that panics raises no Exception."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "error": lambda: ValueError("no such draw"),
    "memory": lambda: MemoryError("no room for logits"),
    "panic": lambda: Panic("index out of bounds"),
}


def unchanged(_tokens: Any, logits: Any) -> Any:
    return logits


def hosting() -> UserCode:
    return UserCode(logits_processors=(unchanged,))


HELD: dict[str, dict[str, Any]] = {
    "free": {},
    "shaped": {"shape": lambda: compiled(regex="[a-z ]{60}")},
    "hosted": {"code": hosting},
}
"""What stands between a token of the failing row and its next draw."""


def coming(length: int, options: dict[str, Any], **more: Any) -> Coming:
    if "shape" in more:
        more = {**more, "shape": more["shape"]()}
    return Coming(random_prompt(length, seed=length), options=options, **more)


def traffic(what: dict[str, Any], leaves: int | None) -> list[Coming]:
    """The failing row, free, shaped and hosted rows beside it, and two that come later, one in the same step."""
    return [
        coming(12, OPTIONS, leaves=leaves, **what),
        coming(5, {}),
        coming(19, {"temperature": 0.9, "seed": 3}),
        coming(7, {"temperature": 1.1, "seed": 4, "top_p": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.3}),
        coming(9, {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.3}, **HELD["shaped"]),
        coming(8, {"temperature": 0.7, "seed": 6, "min_p": 0.02}, **HELD["hosted"]),
        coming(30, {"temperature": 1.0, "seed": 7, "xtc_probability": 0.5}, at=3),
        coming(6, {"temperature": 1.0, "seed": 8, "frequency_penalty": 0.3}, at=5),
    ]


def told_of(one: Told) -> tuple[Any, ...]:
    return one.tokens, one.text, one.logprobs, one.finish


@pytest.mark.parametrize("deterministic", tiered([False, True], False))
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("what", HELD)
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_a_draw_that_fails_is_its_rows_failure(kind: str, what: str, at: int, *, deterministic: bool) -> None:
    def work(backend: MlxBackend) -> None:
        expected = run_script(backend, traffic(HELD[what], at + 1), COUNT)
        # Of what fails where it is computed, the scheduler is told: tests/gateway/test_failures_by_kind.py.
        for where in ("penalties", "way", "draw", *(() if what == "free" else ("computation",))):
            for error in ERRORS.values():
                with failing_draws(where, at, error):
                    told = run_script(backend, traffic(HELD[what], None), COUNT)
                assert told[0].error is not None
                assert ("only supports float32" if where == "computation" else str(error())) in told[0].error[0]
                assert "Traceback" in told[0].error[1]
                # What it had is its own: text that was held back, too.
                assert (told[0].tokens, told[0].logprobs) == (expected[0].tokens, expected[0].logprobs)
                assert len(told[0].tokens) == at
                assert [told_of(one) for one in told[1:]] == [told_of(one) for one in expected[1:]]
                assert backend.held_bytes() == 0

    with_backend(pair(kind), work, deterministic=deterministic, max_rows=8)


@pytest.mark.parametrize("where", ["penalties", "way", "draw"])
def test_several_rows_whose_draws_fail_in_one_step_each_end(where: str) -> None:
    def work(backend: MlxBackend) -> None:
        with failing_draws(where, 2, ERRORS["error"]):
            rows = [coming(5, OPTIONS), coming(7, {}), coming(9, OPTIONS), coming(9, OPTIONS, **HELD["shaped"])]
            told = run_script(backend, rows, COUNT)
        assert [one.error is not None for one in told] == [True, False, True, True]
        # Penalties are counted by their calls, which the three share.
        assert where == "penalties" or [len(one.tokens) for one in told] == [2, COUNT, 2, 2]

    with_backend(pair("llama"), work)


def test_a_draw_for_nobody_fails_nobody() -> None:
    """The token before it ends the row: by an end of sequence, or by a stop that is known once it is read."""

    def work(backend: MlxBackend) -> None:
        (plain,) = run_script(backend, [coming(12, OPTIONS)], COUNT)
        assert plain.finish == ("length", "max_tokens")

        def stop_at_three() -> UserCode:
            seen: list[int] = []

            def on_token(token_id: int, _text: str, _logprobs: object) -> bool:
                seen.append(token_id)
                return len(seen) < 3

            return UserCode(on_token=on_token)

        for where in ("penalties", "way", "draw"):
            with failing_draws(where, 3, ERRORS["error"]):
                stopped, other = run_script(backend, [coming(12, OPTIONS, code=stop_at_three), coming(5, {})], COUNT)
            assert stopped.finish == ("stop", "callback")
            assert stopped.tokens == plain.tokens[:3]
            assert other.finish == ("length", "max_tokens")
            with failing_draws(where, COUNT, ERRORS["error"]):
                (whole,) = run_script(backend, [coming(12, OPTIONS)], COUNT)
            assert whole.tokens == plain.tokens

    with_backend(pair("llama"), work)


@pytest.mark.parametrize("what", HELD)
@pytest.mark.parametrize("company", [True, False])
def test_a_draw_that_works_when_it_is_taken_again_costs_nobody_anything(what: str, *, company: bool) -> None:
    """As one for which there was no memory with all others, or for a moment."""
    rows = traffic(HELD[what], None)[: None if company else 1]

    def work(backend: MlxBackend) -> int:
        expected = run_script(backend, rows, COUNT)
        with pytest.MonkeyPatch.context() as patch:
            failed = fail_at_first(patch)
            told = run_script(backend, rows, COUNT)
        assert [one.error for one in told] == [None] * len(told)
        assert [told_of(one) for one in told] == [told_of(one) for one in expected]
        return len(failed)

    assert with_backend(pair("llama"), work) >= COUNT


def fail_at_first(patch: pytest.MonkeyPatch) -> list[int]:
    """Every draw fails unless the one before it failed for these rows, or for more; how many rows each was for."""
    failed: list[int] = []
    waiting = [0]
    for module in (decode, held):
        draw_rows = module.draw_rows

        def failing(samplers: Any, indices: Any, logits: Any, draw_rows: Any = draw_rows) -> Any:
            if not waiting[0]:
                waiting[0] = len(samplers)
                failed.append(len(samplers))
                raise MemoryError("no room for logits")
            waiting[0] -= 1
            return draw_rows(samplers, indices, logits)

        patch.setattr(module, "draw_rows", failing)
    return failed
