"""Requests that begin alike, through a gateway: read once, and the answers are those that each gives alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.placement import Capabilities
from mlx_notebook.core.scheduler_settings import WORTH_WAITING
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.gateway.boundaries import shared_by
from mlx_notebook.gateway.gateway import Gateway
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import noise
from tests.small_models import KINDS, random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.events import Prefill, PrefillDone
    from mlx_notebook.core.results import Result

ROWS = 32
SHARED = [5 + at % 90 for at in range(2_000)]
PROMPTS = [[*SHARED, *([100 + row] * 20)] for row in range(ROWS)]


class Counting(ScriptedBackend):
    """Counts the tokens of prompts that it computes."""

    computed = 0

    def prefill(self, instruction: Prefill) -> PrefillDone:
        self.computed += sum(part.computed for part in instruction.parts)
        return super().prefill(instruction)


def counting(*, trimmable: bool = True) -> Counting:
    can = Capabilities(
        vocab_size=0x110000, context_length=4096, continuous=True, prompt_cache=True, trimmable=trimmable
    )
    return Counting(capabilities=can)


@pytest.mark.parametrize("trimmable", [True, False], ids=["cut back", "kept whole"])
@pytest.mark.parametrize("calls", ["one call", "a call each"])
def test_the_beginning_of_thirty_two_prompts_is_read_once(
    gateway_of: Callable[..., Gateway], calls: str, *, trimmable: bool
) -> None:
    backend = counting(trimmable=trimmable)
    gateway = gateway_of(backend, batch=ROWS)
    gateway.pause()
    if calls == "one call":
        handle = gateway.submit(PROMPTS, max_tokens=3)
        gateway.resume()
        results = handle.results()
    else:
        handles = [gateway.submit(one, max_tokens=3, seed=at) for at, one in enumerate(PROMPTS)]
        gateway.resume()
        results = [one.result() for one in handles]
    assert backend.computed == len(SHARED) + ROWS * (20 - 1)
    assert [one.cached_tokens for one in results] == [0] + [len(SHARED)] * (ROWS - 1)
    cache = gateway.stats().prompt_cache
    assert (cache.hits, cache.misses, cache.tokens_reused) == (ROWS - 1, 1, (ROWS - 1) * len(SHARED))


@pytest.mark.parametrize("trimmable", [True, False], ids=["cut back", "kept whole"])
def test_what_cannot_be_cut_back_is_kept_there_before_any_other_row_has_asked(
    gateway_of: Callable[..., Gateway], *, trimmable: bool
) -> None:
    gateway = gateway_of(counting(trimmable=trimmable), batch=ROWS)
    handles = _paused(gateway, PROMPTS[:3])
    found = {handle._record.row.request.boundaries[-1:] for handle in handles}
    assert found == {() if trimmable else (len(SHARED),)}
    gateway.resume()


def _paused(gateway: Gateway, prompts: list[list[int]]) -> list[Any]:
    gateway.pause()
    return list(gateway.submit(prompts, max_tokens=3))


def test_map_reads_it_once(gateway_of: Callable[..., Gateway]) -> None:
    backend = counting()
    gateway = gateway_of(backend, batch=8)
    frame = gateway.map(PROMPTS, max_tokens=3)
    assert len(frame) == ROWS
    # The first may be on its way past the place before another comes: then one more reads it.
    assert backend.computed <= 2 * len(SHARED) + ROWS * 20


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        ([[*range(200), 1], [*range(200), 2], [*range(200), 3]], 200),
        ([[*range(200)], [*range(200)]], 199),
        ([[*range(150)], [*range(200)]], 149),
        ([[*range(WORTH_WAITING), 1], [*range(WORTH_WAITING), 2]], WORTH_WAITING),
        ([[*range(WORTH_WAITING - 1), 1], [*range(WORTH_WAITING - 1), 2]], None),
        ([[*range(200), 1], [*range(200), 2], [5, 5]], None),
        ([[*range(200)]], None),
    ],
)
def test_what_the_prompts_of_a_call_share(prompts: list[list[int]], shared: int | None) -> None:
    assert shared_by([tuple(one) for one in prompts]) == (() if shared is None else (shared,))


def test_the_reason_names_the_request_that_read_it(gateway_of: Callable[..., Gateway]) -> None:
    gateway = gateway_of(counting(), batch=ROWS)
    first, second, *_ = handles = _paused(gateway, PROMPTS[:4])
    gateway.resume()
    for handle in handles:
        handle.result()
    said = {one.code: one.text for one in second.explain()}
    assert said["queue-shared-beginning"].endswith(
        f"in the queue for row {first.id}, which read the beginning that both share (2,000 tokens)."
    )
    assert said["cache-hit"].startswith("2,000 of 2,020")
    assert "queue-shared-beginning" not in {one.code for one in first.explain()}


# ---------------------------------------------------------------- real models

BEGINNING = random_prompt(200, seed=3)
ENDS = [random_prompt(6 + 3 * at, seed=40 + at) for at in range(5)]
OPTIONS: dict[str, Any] = {"max_tokens": 6, "logit_bias": {2: -100.0}, "logprobs": 10}


@pytest.mark.parametrize("deterministic", tiered([False, True], False))
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS, "gemma3_text"))
def test_answers_are_those_of_each_alone(kind: str, *, deterministic: bool) -> None:
    settings: dict[str, Any] = {"deterministic": True, "prefill_chunk": 64} if deterministic else {}
    with Gateway.from_loaded(*small(kind), batch=8, **settings) as gateway:
        prompts = [[*BEGINNING, *end] for end in ENDS]
        alone = [gateway.generate(one, cache_prompt=False, **OPTIONS) for one in prompts]
        gateway.pause()
        handle = gateway.submit(prompts, **OPTIONS)
        gateway.resume()
        shared = handle.results()
    spared = 192 if deterministic else len(BEGINNING)
    assert [one.cached_tokens for one in shared] == [0] + [spared] * (len(ENDS) - 1)
    for mine, theirs in zip(shared, alone, strict=True):
        check(mine, theirs, 0.0 if deterministic else noise(kind))


def check(mine: Result, theirs: Result, bound: float) -> None:
    """The same tokens, as likely; where noise decided between two, they go on differently and comparing ends."""
    for one, other in zip(mine.logprobs or (), theirs.logprobs or (), strict=True):
        if one.token_id != other.token_id:
            assert abs(other.top[0][1] - other.top[1][1]) <= 2 * bound
            return
        assert abs(one.logprob - other.logprob) <= bound
        for (_, first), (_, second) in zip(one.top, other.top, strict=True):
            assert abs(first - second) <= bound
