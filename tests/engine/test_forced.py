"""Forced text in one forward: the same answers as token by token, in fewer forwards; and where it is not done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_notebook.core.kv_scheme import KVScheme, LayerScheme
from mlx_notebook.core.request import UserCode
from mlx_notebook.engine import decode, forced
from mlx_notebook.engine import matcher as matchers
from mlx_notebook.engine.sampling import Drawn
from tests.engine.driving import finish, prefill, step, with_backend
from tests.engine.fast_forward import COUNT, both_ways, check_both_ways, check_like, one_by_one, row, widths
from tests.engine.languages import schemas
from tests.engine.shaping import allowed_by, compiled
from tests.engine.test_batch_quantised import wide
from tests.engine.tiers import tiered
from tests.engine.traffic import Coming, in_traffic, noise, pair, run_script
from tests.small_models import KINDS, random_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.core as mx

    from mlx_notebook.engine.mlx_backend import MlxBackend
    from mlx_notebook.engine.row import RowState
    from mlx_notebook.engine.stores.store import Store

UNHURRIED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
)


@pytest.fixture(autouse=True)
def every_matcher_is_freed() -> Iterator[None]:
    before = matchers.live
    yield
    assert matchers.live == before


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_says_the_same_in_fewer_forwards(kind: str) -> None:
    with widths() as together:
        told = in_traffic(kind, [row()], COUNT)
    with one_by_one(), widths() as singly:
        expected = in_traffic(kind, [row()], COUNT)
    assert told[0].finish == ("stop", "grammar")
    check_like(told[0], expected[0], 4 * noise(kind))
    fed = [width for rows, width in together if rows == 1]
    assert sum(fed) >= len(told[0].tokens), "every token was fed"
    assert max(fed) <= forced.TOGETHER
    assert set(singly[-len(told[0].tokens) :]) == {(1, 1)}
    assert len(together) <= len(singly) - len(told[0].tokens) // 2


OPTIONS: dict[str, dict[str, Any]] = {
    "drawn": {"temperature": 1.0, "seed": 3},
    "filtered": {"temperature": 0.8, "seed": 4, "top_p": 0.7, "top_k": 3, "min_p": 0.01},
    "xtc": {"temperature": 1.0, "xtc_probability": 0.9, "xtc_threshold": 0.1, "seed": 6},
    "no alternatives": {"logprobs": 0},
    "one alternative": {"logprobs": 1},
    "no log-probabilities": {"logprobs": None},
}


@pytest.mark.parametrize("how", OPTIONS)
def test_draws_and_log_probabilities_are_those_of_single_steps(how: str) -> None:
    with widths() as seen:
        check_both_ways("llama", [row(options=OPTIONS[how])])
    assert max(width for _, width in seen) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_probabilities_of_choices_are_those_of_single_steps(temperature: float) -> None:
    shape = compiled(choices=["abandoned", "abating", "zebra crossing", "q"])
    for seed in range(4):
        options = {"temperature": temperature, "seed": seed}
        (told,), (expected,) = both_ways("llama", [Coming(random_prompt(6, seed=seed), options=options, shape=shape)])
        assert len(told.outcomes[-1].shares) == 5
        check_like(told, expected, 4 * noise("llama"))


def halve(_tokens: Any, logits: Any) -> Any:
    return logits / 2


ALONE_ONLY: dict[str, tuple[list[Coming], dict[str, Any]]] = {
    "bias": ([row(options={"logit_bias": ((40, 1.0),)})], {}),
    "penalties": ([row(options={"repetition_penalty": 1.2})], {}),
    "processors": ([row(code=lambda: UserCode(logits_processors=(halve,)))], {}),
    "deterministic": ([row()], {"deterministic": True, "max_rows": 8}),
    "two rows": ([row(), row(1)], {}),
    "free": ([Coming(random_prompt(9))], {}),
}


@pytest.mark.parametrize("why", ALONE_ONLY)
def test_where_it_is_not_done(why: str) -> None:
    rows, backend = ALONE_ONLY[why]
    count = 20  # while both of two rows are there
    with widths() as seen:
        told = in_traffic("llama", rows, count, **backend)
    assert all(one.finish == ("length", "max_tokens") for one in told)
    assert {width for _, width in seen} == {1}


def test_columns_that_will_be_quantised_are_stored_as_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fed over the place where a row's columns are quantised; behind it forced text goes together again."""
    scheme = KVScheme(LayerScheme(8, 32), start=24)
    began: list[tuple[int, bool]] = []

    def fed_together(store: Store, row: RowState, following: list[int]) -> mx.array:
        began.append((row.fed, row.converted))
        return forced.feed_together(store, row, following)

    monkeypatch.setattr(decode, "feed_together", fed_together)
    told = with_backend(wide("llama"), lambda backend: run_script(backend, [row()], COUNT), kv_scheme=scheme)
    assert told[0].finish == ("stop", "grammar")
    assert began
    assert all(fed >= scheme.start and converted for fed, converted in began)


def test_a_row_that_joins_meets_one_that_is_ahead_and_both_go_on_token_by_token() -> None:
    """Two rows step by step: the first has tokens in its caches that it did not commit yet when the second comes."""
    first, second, free = row(), row(1), Coming(random_prompt(7, seed=5))

    def work(backend: MlxBackend) -> None:
        told = [prefill(backend, first.asked(1, COUNT))]
        step(backend, {1: told[0]})
        step(backend, {1: told[0]})
        assert len(backend._rows[1].forced) > 3
        assert backend._rows[1].ahead_of_known
        told += [prefill(backend, one.asked(at, COUNT)) for at, one in ((2, second), (3, free))]
        live = {at + 1: one for at, one in enumerate(told)}
        while live:
            before = {at: len(one.outcomes) for at, one in live.items()}
            step(backend, live)
            assert len(told[0].outcomes) == before.get(1, 0) + 1 or 1 not in live
            for at in [at for at, one in live.items() if one.over]:
                backend.drop(at)
                del live[at]
        with one_by_one():
            for at, one in enumerate((first, second, free)):
                alone = finish(backend, 10 + at, prefill(backend, one.asked(10 + at, COUNT)))
                check_like(told[at], alone, 4 * noise("llama"))

    with_backend(pair("llama"), work)


@pytest.mark.parametrize("kind", tiered(("llama", "gemma3_text", "lfm2"), "llama"))
def test_random_shapes_limits_and_joiners_say_the_same(kind: str) -> None:
    wider: list[bool] = []

    @settings(UNHURRIED, max_examples=25)
    @given(drawn=st.lists(schemas, min_size=1, max_size=3), data=st.data())
    def batch(drawn: list[dict[str, Any]], data: st.DataObject) -> None:
        rows = []
        for at, schema in enumerate(drawn):
            options: dict[str, Any] = {"max_tokens": data.draw(st.integers(1, 40))}
            if data.draw(st.booleans()):
                options |= {"temperature": 0.9, "seed": at}
            if data.draw(st.booleans()):
                options |= {"stop": (data.draw(st.sampled_from([",", '"', "a", "1"])),)}
            joins = data.draw(st.integers(0, 12)) if at else 0
            leaves = data.draw(st.none() | st.integers(joins + 1, joins + 20))
            prompt = random_prompt(5 + at, seed=at)
            rows.append(Coming(prompt, joins, leaves, options=options, shape=compiled(json_schema=schema)))
        with widths() as seen:
            told = in_traffic(kind, rows)
        with one_by_one():
            expected = in_traffic(kind, rows)
        wider.append(any(width > 1 for _, width in seen))
        for one, other in zip(told, expected, strict=True):
            if one.outcomes or other.outcomes:
                check_like(one, other, 4 * noise(kind))

    batch()
    assert sum(wider) >= 3


@settings(UNHURRIED, max_examples=60)
@given(schema=schemas, data=st.data())
def test_what_is_forced_is_what_masks_leave(schema: dict[str, Any], data: st.DataObject) -> None:
    """From any place of an answer: where a token is forced, each mask on the way lets it through alone."""
    shape = compiled(json_schema=schema)
    here = shape.start()
    try:
        for _ in range(data.draw(st.integers(0, 12))):
            if here.satisfied:
                return
            token_id = data.draw(st.sampled_from(sorted(allowed_by(here))))
            if token_id in shape.vocabulary.eos_ids:
                return
            here.accept(token_id)
        for token_id in here.forced(None, 15):
            assert allowed_by(here) == {token_id}
            here.accept(token_id)
    finally:
        here.close()


def test_a_token_is_waited_for_only_where_it_may_force_others(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    original = Drawn.token_id

    def token_id(self: Drawn) -> int:
        waited.append(self.place)
        return original(self)

    monkeypatch.setattr(Drawn, "token_id", token_id)
    for never in ("[0-9]{40}", "[^x]{40}"):
        (told,) = in_traffic("llama", [Coming(random_prompt(5), shape=compiled(regex=never))], 20)
        assert told.finish == ("length", "max_tokens")
    assert waited == []
    in_traffic("llama", [Coming(random_prompt(5), shape=compiled(regex="(ab?cdefgh){9}"))], 20)
    assert waited


def test_a_long_text_goes_in_pieces_of_the_most() -> None:
    text = "QXZKVJ" * (forced.TOGETHER // 2)  # no merges: a token a letter
    with widths() as seen:
        told = in_traffic("llama", [Coming(random_prompt(5), shape=compiled(choices=[text]))], 4 * forced.TOGETHER)
    assert told[0].text == text
    fed = [width for _, width in seen if width > 1]
    assert fed[:3] == [forced.TOGETHER] * 3
