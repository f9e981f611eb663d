"""Seeds of several prompts in one call: each its own where none is given, the given one for all where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.gateway.gateway import Gateway
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., Gateway]

ASKED = ["x"] * 4


def seeds(gateway: Gateway, **options: Any) -> list[int]:
    handles = gateway.submit(ASKED, max_tokens=1, **options)
    assert [result.seed for result in handles.results()] == [handle.options["seed"] for handle in handles]
    return [handle.options["seed"] for handle in handles]


def test_without_a_seed_each_prompt_draws_its_own(gateway_of: Make) -> None:
    gateway = gateway_of()
    drawn = seeds(gateway) + seeds(gateway)
    assert len(set(drawn)) == 2 * len(ASKED)


def test_samples_of_a_prompt_count_up_from_the_one_it_drew(gateway_of: Make) -> None:
    drawn = seeds(gateway_of(), n=2)
    assert drawn[1::2] == [(seed + 1) % 2**64 for seed in drawn[::2]]
    assert len(set(drawn[::2])) == len(ASKED)


def test_a_given_seed_holds_for_every_prompt(gateway_of: Make) -> None:
    assert seeds(gateway_of(), seed=7) == [7] * len(ASKED)
    assert seeds(gateway_of(), seed=7, n=2) == [7, 8] * len(ASKED)


def test_so_their_answers_differ_and_each_can_be_drawn_again() -> None:
    how = {"temperature": 1.0, "max_tokens": 8, "logit_bias": {2: -100.0}}
    with Gateway.from_loaded(*small("llama")) as gateway:
        results = gateway.generate(ASKED, **how)
        assert len({result.token_ids for result in results}) > 1
        again = gateway.generate(ASKED[2], seed=results[2].seed, **how)
    assert again.token_ids == results[2].token_ids
