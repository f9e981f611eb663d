"""Placement: pure, frozen, and every feature is either used or named with a reason."""

from __future__ import annotations

import dataclasses
import json

import pytest

from mlx_notebook.core.placement import Capabilities, Mechanism, resolve
from mlx_notebook.core.request import RequestShape, SamplingOptions

SHAPE = RequestShape((1, 2, 3), SamplingOptions())
SERIAL = Capabilities(vocab_size=10)
ALL = Capabilities(vocab_size=10, continuous=True, prompt_cache=True, compiled=True)


def test_pure() -> None:
    assert resolve(SHAPE, SERIAL, 3) == resolve(SHAPE, SERIAL, 3)


def test_frozen_and_hashable() -> None:
    placement = resolve(SHAPE, SERIAL, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        placement.epoch = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        placement.reasons[0].code = "x"  # type: ignore[misc]
    assert hash(placement) == hash(resolve(SHAPE, SERIAL, 0))


def test_it_carries_its_request_and_its_epoch() -> None:
    placement = resolve(SHAPE, SERIAL, 4)
    assert (placement.shape, placement.epoch) == (SHAPE, 4)
    assert placement != resolve(SHAPE, SERIAL, 5)
    assert placement != resolve(dataclasses.replace(SHAPE, has_callback=True), SERIAL, 4)


def test_serial_says_why() -> None:
    placement = resolve(SHAPE, dataclasses.replace(SERIAL, continuous_why_not="its cache cannot be joined"), 0)
    assert placement.mechanism is Mechanism.SERIAL
    reason = placement.reasons[0]
    assert reason.code == "continuous-unavailable"
    assert "its cache cannot be joined" in reason.text


def test_what_is_served_needs_no_reason_and_what_is_not_has_one() -> None:
    for capabilities in (
        SERIAL,
        ALL,
        dataclasses.replace(ALL, prompt_cache=False),
        dataclasses.replace(SERIAL, prompt_cache=True),
    ):
        placement = resolve(SHAPE, capabilities, 0)
        codes = {reason.code for reason in placement.reasons}
        assert (placement.mechanism is Mechanism.CONTINUOUS) == ("continuous-unavailable" not in codes)
        assert placement.prompt_cache == ("prompt-cache-unavailable" not in codes)
        assert all(reason.text.endswith(".") for reason in placement.reasons)
    assert resolve(SHAPE, ALL, 0).compiled


def test_a_cache_that_the_user_turned_off_is_named_where_there_is_one() -> None:
    placement = resolve(SHAPE, ALL, 0, cache_off="cache_prompt=False")
    assert not placement.prompt_cache
    assert [(reason.code, "cache_prompt=False" in reason.text) for reason in placement.reasons] == [
        ("prompt-cache-off", True)
    ]
    unavailable = resolve(SHAPE, dataclasses.replace(ALL, prompt_cache=False), 0, cache_off="cache_prompt=False")
    assert [reason.code for reason in unavailable.reasons] == ["prompt-cache-unavailable"]


def test_as_plain_values() -> None:
    plain = resolve(SHAPE, SERIAL, 0).to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["mechanism"] == "serial"
    assert "shape" not in plain
    assert "prompt_ids" not in repr(resolve(SHAPE, SERIAL, 0))


def test_the_seed_left_out() -> None:
    one, two = (RequestShape((1,), SamplingOptions(seed=seed)) for seed in (1, 2))
    assert one != two
    assert one.without_seed() == two.without_seed()
