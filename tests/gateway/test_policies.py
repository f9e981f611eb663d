"""A user's policy through a gateway: it says who begins, its ids may be of any kind, its failure is said once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mlx_notebook.gateway.explaining import recording_now
from tests.gateway.fakes import Stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]

PROMPTS = ([5] * 9, [5] * 3, [5] * 6)


def begun(make: Make, policy: Any) -> tuple[Gateway, list[int]]:
    """The places of the prompts in the order in which they began, one row at a time."""
    backend = Stepped()
    backend.free()
    gateway = make(backend, policy=policy)
    gateway.pause()
    handles = [gateway.submit(prompt, max_tokens=2) for prompt in PROMPTS]
    gateway.resume()
    for handle in handles:
        handle.result()
    ids = [handle.id for handle in handles]
    return gateway, [ids.index(row_id) for row_id in backend.opened]


def newest_first(waiting: Sequence[Any], _running: Sequence[Any]) -> list[int]:
    return [row.id for row in reversed(waiting)]


@pytest.mark.parametrize(
    "answer",
    [list, tuple, iter, np.array, lambda ids: [np.int64(one) for one in ids]],
    ids=["list", "tuple", "iterator", "array", "numpy numbers"],
)
def test_it_says_who_begins(gateway_of: Make, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    gateway, order = begun(gateway_of, lambda waiting, running: answer(newest_first(waiting, running)))
    assert order == [2, 1, 0]
    assert not caplog.records
    assert not recording_now(gateway._engine).controls_of("policy")


def test_the_views_that_it_was_given_will_do(gateway_of: Make) -> None:
    _, order = begun(gateway_of, lambda waiting, _running: sorted(waiting, key=lambda row: -row.prompt_tokens))
    assert order == [0, 2, 1]
    _, order = begun(gateway_of, lambda waiting, running: [*running, *reversed(waiting)])
    assert order == [2, 1, 0]


@pytest.mark.parametrize(("policy", "order"), [("priority", [0, 1, 2]), ("shortest", [1, 2, 0])])
def test_the_built_in_ones_do_too(gateway_of: Make, policy: str, order: list[int]) -> None:
    assert begun(gateway_of, policy)[1] == order


@pytest.mark.parametrize("nobody", [-1, "first", None, [1, 2], 1.0])
def test_what_names_no_row_is_ignored_and_said_once(
    gateway_of: Make, nobody: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mlx_notebook"):
        gateway, order = begun(gateway_of, lambda waiting, running: [nobody, *newest_first(waiting, running), nobody])
    assert order == [2, 1, 0]
    (said,) = caplog.records
    assert repr(nobody) in said.getMessage()
    assert not recording_now(gateway._engine).controls_of("policy")


def raises(waiting: Sequence[Any], running: Sequence[Any]) -> list[int]:
    raise ValueError(f"no idea about {len(waiting)} and {len(running)}")


@pytest.mark.parametrize(
    ("policy", "words"), [(raises, "no idea"), (lambda *_: 7, "row ids")], ids=["raises", "answers nonsense"]
)
def test_a_failing_one_is_said_once_and_first_come_is_first_served(
    gateway_of: Make, policy: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mlx_notebook"):
        gateway, order = begun(gateway_of, policy)
    assert order == [0, 1, 2]
    (said,) = caplog.records
    assert words in said.getMessage()
    assert len(recording_now(gateway._engine).controls_of("policy")) == 1
    assert gateway.generate([5, 6], max_tokens=2).generated_tokens == 2
