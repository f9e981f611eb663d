"""A placement serves the request that it was made for, on the gateway as it was then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import GatewayClosed, PlacementMismatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]


@pytest.mark.parametrize("options", [{}, {"seed": 5}, {"temperature": 0.5, "stop": "x"}, {"n": 3}, {"n": 2, "seed": 1}])
def test_the_same_call_is_taken_and_shows_it(gateway_of: Make, options: dict[str, Any]) -> None:
    gateway = gateway_of()
    placement = gateway.place("a", **options)
    asked = gateway.submit("a", placement=placement, max_tokens=256, **options)
    for handle in asked if isinstance(asked, list) else [asked]:
        handle.cancel()
        assert handle.placement.to_dict() == placement.to_dict()


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("b", {}),
        ("a", {"temperature": 0.5}),
        ("a", {"seed": 1}),
        ("a", {"max_tokens": 5}),
        ("a", {"on_token": print}),
        ("a", {"logits_processors": [print]}),
    ],
)
def test_another_request_is_not(gateway_of: Make, prompt: str, options: dict[str, Any]) -> None:
    gateway = gateway_of()
    placement = gateway.place("a")
    with pytest.raises(PlacementMismatch, match=r"place\(\) again"):
        gateway.submit(prompt, placement=placement, **options)
    assert not gateway.busy


def test_nor_one_with_another_seed(gateway_of: Make) -> None:
    gateway = gateway_of()
    with pytest.raises(PlacementMismatch):
        gateway.submit("a", seed=2, placement=gateway.place("a", seed=1))


def test_nor_any_after_a_restart(gateway_of: Make) -> None:
    gateway = gateway_of()
    placement = gateway.place("a")
    gateway.restart()
    with pytest.raises(PlacementMismatch, match="restarted"):
        gateway.submit("a", placement=placement)
    gateway.submit("a", max_tokens=256, placement=gateway.place("a")).cancel()


def test_nor_another_gateways(gateway_of: Make) -> None:
    one, two = gateway_of(), gateway_of()
    theirs = one.place("a")
    with pytest.raises(PlacementMismatch, match="another gateway") as caught:
        two.submit("a", placement=theirs)
    assert caught.value.placement is theirs
    assert not two.busy
    one.submit("a", max_tokens=256, placement=theirs).cancel()


CACHING = Capabilities(vocab_size=300, prompt_cache=True)


@pytest.mark.parametrize(
    ("settings", "options", "off"),
    [
        ({}, {}, None),
        ({}, {"cache_prompt": False}, "cache_prompt=False"),
        ({"prompt_cache": 0}, {}, "prompt_cache=0"),
        ({"prompt_cache": 0}, {"cache_prompt": False}, "prompt_cache=0"),
    ],
)
def test_a_prompt_cache_that_is_off_is_not_promised(
    gateway_of: Make, settings: dict[str, Any], options: dict[str, Any], off: str | None
) -> None:
    gateway = gateway_of(ScriptedBackend(capabilities=CACHING), **settings)
    first = gateway.submit("a", max_tokens=1, **options)
    after = gateway.submit_after(first, lambda: "b", "b", max_tokens=1, **options)
    for placement in (gateway.place("a", **options), first.placement, after.placement):
        said = [reason.text for reason in placement.reasons if reason.code == "prompt-cache-off"]
        assert placement.prompt_cache == (off is None)
        assert len(said) == (off is not None)
        assert all(str(off) in text for text in said)
    after.result()


def test_several_prompts_have_one_each(gateway_of: Make) -> None:
    gateway = gateway_of()
    with pytest.raises(PlacementMismatch, match="one prompt"):
        gateway.submit(["a", "b"], placement=gateway.place("a"))


def test_looking_is_pure(gateway_of: Make) -> None:
    gateway = gateway_of()
    before = gateway.stats().submitted
    assert gateway.place("a", seed=1) == gateway.place("a", seed=1)
    assert gateway.place("a", on_token=print).shape.has_callback
    assert gateway.stats().submitted == before
    assert not gateway.busy
    with pytest.raises(ValueError, match="temperature"):
        gateway.place("a", temperature=-1)
    gateway.close()
    with pytest.raises(GatewayClosed):
        gateway.place("a")
