"""Filters, penalties and their order give bit for bit what mlx-lm's own functions give."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm import sample_utils

from mlx_notebook.core.request import SamplingOptions
from mlx_notebook.engine import filters
from mlx_notebook.engine.penalties import reach_of, stages_of
from mlx_notebook.engine.sampling import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 97


@pytest.fixture(scope="module", autouse=True)
def plain_graphs() -> Iterator[None]:
    """mlx-lm compiles its filters anew for each value of p or k, which takes a second each on a CPU."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def random_logprobs(seed: int, rows: int = 1, spread: float = 3.0) -> mx.array:
    logits = mx.random.normal((rows, WIDTH), key=mx.random.key(seed)) * spread
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def same(first: mx.array, second: mx.array) -> bool:
    return bool(mx.array_equal(first, second).item())


seeds = st.integers(0, 2**32 - 1)
spreads = st.sampled_from([0.0, 0.5, 3.0, 20.0])  # 0: all equal, so that ties are met


@settings(deadline=None, max_examples=50)
@given(seeds, spreads, st.floats(0.01, 0.999))
def test_top_p(seed: int, spread: float, top_p: float) -> None:
    logprobs = random_logprobs(seed, spread=spread)
    assert same(filters.keep_top_p(logprobs, top_p), sample_utils.apply_top_p(logprobs, top_p))


@settings(deadline=None, max_examples=50)
@given(seeds, spreads, st.floats(0.001, 1.0))
def test_min_p(seed: int, spread: float, min_p: float) -> None:
    logprobs = random_logprobs(seed, spread=spread)
    assert same(filters.keep_min_p(logprobs, min_p), sample_utils.apply_min_p(logprobs, min_p))


@settings(deadline=None, max_examples=50)
@given(seeds, spreads, st.integers(1, WIDTH - 1))
def test_top_k(seed: int, spread: float, top_k: int) -> None:
    logprobs = random_logprobs(seed, spread=spread)
    assert same(filters.keep_top_k(logprobs, top_k), sample_utils.apply_top_k(logprobs, top_k))


def test_top_k_of_everything_keeps_everything() -> None:
    logprobs = random_logprobs(1)
    assert same(filters.keep_top_k(logprobs, WIDTH), logprobs)
    assert same(filters.keep_top_k(logprobs, WIDTH + 5), logprobs)


@settings(deadline=None, max_examples=50)
@given(seeds, spreads, st.floats(0.0, 0.5), st.lists(st.integers(0, WIDTH - 1), max_size=5))
def test_xtc_with_the_coin_fallen(seed: int, spread: float, threshold: float, spared: list[int]) -> None:
    logprobs = random_logprobs(seed, spread=spread)
    ours = filters.drop_top_choices(logprobs, threshold, tuple(spared))
    assert same(ours, sample_utils.apply_xtc(logprobs, 1.0, threshold, spared))


def test_xtc_spares_what_it_is_told_to() -> None:
    logprobs = mx.log(mx.array([[0.4, 0.3, 0.2, 0.1]]))
    assert filters.drop_top_choices(logprobs, 0.15, ())[0, :2].tolist() == [float("-inf")] * 2
    assert filters.drop_top_choices(logprobs, 0.15, (0,))[0, 0].item() == logprobs[0, 0].item()


chains = st.fixed_dictionaries(
    {
        "top_p": st.sampled_from([1.0, 0.3, 0.9]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5]),
        "top_k": st.sampled_from([0, 1, 7, 60]),
        "xtc_probability": st.sampled_from([0.0, 1.0]),
        "xtc_threshold": st.just(0.05),
    }
)


@settings(deadline=None, max_examples=60)
@given(seeds, spreads, chains)
def test_the_whole_chain_in_its_order(seed: int, spread: float, chain: dict[str, Any]) -> None:
    caught: list[mx.array] = []
    logprobs = random_logprobs(seed, spread=spread)
    spared = [3, 5]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_utils, "categorical_sampling", lambda kept, _temp: caught.append(kept))
        sample_utils.make_sampler(1.0, xtc_special_tokens=spared, **chain)(logprobs)
    sampler = Sampler(SamplingOptions(temperature=1.0, **chain), spared)
    assert same(sampler.filtered(logprobs, 0), caught[0])


def test_as_compiled_they_are_the_same() -> None:
    logprobs = random_logprobs(2)
    mx.enable_compile()
    try:
        assert same(filters.keep_top_p(logprobs, 0.8), sample_utils.apply_top_p(logprobs, 0.8))
        assert same(filters.keep_min_p(logprobs, 0.05), sample_utils.apply_min_p(logprobs, 0.05))
        assert same(filters.keep_top_k(logprobs, 9), sample_utils.apply_top_k(logprobs, 9))
        assert same(filters.drop_top_choices(logprobs, 0.02, ()), sample_utils.apply_xtc(logprobs, 1.0, 0.02, []))
    finally:
        mx.disable_compile()


def test_the_xtc_coin_is_the_rows_own() -> None:
    logprobs = random_logprobs(4, spread=1.0)
    sampler = Sampler(SamplingOptions(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.01, seed=9), ())
    struck = [not same(sampler.filtered(logprobs, index), logprobs) for index in range(60)]
    assert 15 <= sum(struck) <= 45
    mx.random.seed(0)
    other = Sampler(SamplingOptions(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.01, seed=10), ())
    [other.filtered(logprobs, index) for index in range(60)]  # a neighbour's draws change nothing
    assert [not same(sampler.filtered(logprobs, index), logprobs) for index in range(60)] == struck


PENALTIES: list[dict[str, Any]] = [
    {"logit_bias": ((2, 4.0), (7, -3.5), (96, 0.25))},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "repetition_context_size": 3},
    {"presence_penalty": 0.8},
    {"presence_penalty": -0.5, "presence_context_size": 2},
    {"frequency_penalty": 0.4},
    {"frequency_penalty": 1.1, "frequency_context_size": 5},
    {
        "logit_bias": ((1, -1.0),),
        "repetition_penalty": 1.2,
        "repetition_context_size": 4,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "frequency_context_size": 50,
    },
]


def mlx_lm_processors(options: SamplingOptions) -> list[Any]:
    """The same options through mlx-lm's own maker."""
    names = [f.name for f in fields(options) if "penalty" in f.name or "context_size" in f.name]
    values = {name: getattr(options, name) for name in names}
    return list(sample_utils.make_logits_processors(logit_bias=dict(options.logit_bias) or None, **values))


@settings(deadline=None, max_examples=60)
@given(seeds, st.sampled_from(PENALTIES), st.lists(st.integers(0, WIDTH - 1), min_size=1, max_size=40))
def test_penalties_and_bias(seed: int, chosen: dict[str, Any], tokens: list[int]) -> None:
    options = SamplingOptions(**chosen)
    logits = random_logprobs(seed)
    theirs, ours = mx.array(logits), mx.array(logits)
    for processor in mlx_lm_processors(options):
        theirs = processor(mx.array(tokens), theirs)
    reach = reach_of(options)
    for stage in stages_of(options):
        ours = stage(mx.array(tokens[-reach:] if reach else [], dtype=mx.int32), ours)
    assert same(ours, theirs)


def test_no_option_no_stage() -> None:
    assert stages_of(SamplingOptions()) == ()
    assert reach_of(SamplingOptions()) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("filtered", [{}, {"top_p": 0.8, "top_k": 20}])
def test_asking_for_log_probabilities_changes_no_draw(temperature: float, filtered: dict[str, Any]) -> None:
    logits = random_logprobs(8)

    def draws(logprobs: int | None) -> list[Any]:
        options = SamplingOptions(temperature=temperature, seed=3, logprobs=logprobs, **filtered)
        sampler = Sampler(options, ())
        return [sampler.draw(logits, index).token.item() for index in range(40)]

    assert draws(None) == draws(5)
