"""Reasons that no record of the log says: caches, a missing BLAS, who held the device, a turn not yet begun."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import mlx_notebook as mn
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.gateway.chats import Chat
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.loading import ModelFacts
from mlx_notebook.models.blas import BlasStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mlx_notebook.gateway.handle import Handle

PATIENCE_S = 60
LONG = "a prompt of more than sixteen tokens"


def gateway(**settings: Any) -> Gateway:
    able = Capabilities(vocab_size=0x110000, context_length=500, max_rows=2, continuous=True, prompt_cache=True)
    return Gateway.from_backend(ScriptedBackend(capabilities=able), **settings)


@pytest.fixture
def gw() -> Iterator[Gateway]:
    with gateway(name="ours") as made:
        yield made


def texts(handle: Handle) -> dict[str, str]:
    return {one.code: one.text for one in handle.explain()}


def test_nothing_kept_begins_like_this_prompt(gw: Gateway) -> None:
    handle = gw.submit(LONG, max_tokens=2)
    handle.result(PATIENCE_S)
    codes = [one.code for one in handle.explain()]
    assert codes[-2:] == ["cache-miss", "ended-max-tokens"]
    assert (
        texts(handle)["cache-miss"]
        == "The whole prompt was read: nothing that was kept could spare its first 16 tokens."
    )


def test_the_cache_was_not_to_be_used(gw: Gateway) -> None:
    handle = gw.submit(LONG, max_tokens=2, cache_prompt=False)
    handle.result(PATIENCE_S)
    assert texts(handle)["cache-off"] == "The whole prompt was read: cache_prompt=False."
    assert "cache-miss" not in texts(handle)


def test_of_a_cache_that_is_none_nothing_is_said() -> None:
    with gateway(prompt_cache=0) as without:
        handle = without.submit(LONG, max_tokens=2)
        handle.result(PATIENCE_S)
        assert not {"cache-miss", "cache-off"} & set(texts(handle))


@pytest.mark.parametrize(
    ("device", "state", "said"),
    [("CPU, 2 cores", "missing", True), ("CPU, 2 cores", "loaded", False), ("GPU", "missing", False)],
)
def test_a_missing_blas(monkeypatch: pytest.MonkeyPatch, device: str, state: Any, said: bool) -> None:
    status = BlasStatus(state, advice="apt install libopenblas0" if state == "missing" else "")
    monkeypatch.setattr("mlx_notebook.models.blas.preload_blas", lambda: status)
    with gateway(facts=ModelFacts(model=object(), device=device)) as made:
        handle = made.submit("a", max_tokens=1)
        handle.result(PATIENCE_S)
        assert ("missing-blas" in texts(handle)) is said
        if said:
            assert texts(handle)["missing-blas"].endswith("Mend it: apt install libopenblas0")


def test_a_turn_that_waits_for_the_one_before(gw: Gateway) -> None:
    chat = Chat("talk")
    gw.pause()
    first, second = (chat.submit(gw, text, max_tokens=2).handle for text in ("one", "two"))
    (reason,) = second.explain()
    assert (reason.code, reason.text) == ("not-submitted", "Not in the queue yet: about to enter the queue.")
    gw.resume()
    first.result(PATIENCE_S)
    second.result(PATIENCE_S)
    assert "not-submitted" not in texts(second)


def test_who_held_the_device(gw: Gateway, tmp_path: Path) -> None:
    with gateway(name="theirs") as other:
        with other.lease(PATIENCE_S):
            handle = gw.submit(LONG, max_tokens=2)
            handle_waits = texts(_when_it_waits(handle))
        handle.result(PATIENCE_S)
    assert handle_waits["queue-device"].endswith("It was held by theirs (lease).")
    assert texts(handle)["queue-device"].endswith("It was held by theirs (lease).")
    gw.wait_idle()
    back = mn.load_trace(gw.save_trace(tmp_path / "run.json"))
    assert [(one.code, one.text) for one in back.explain(handle.id)] == [
        (one.code, one.text) for one in handle.explain()
    ]
    assert {"queue-device", "cache-miss"} <= {one.code for one in back.explain(handle.id)}


def _when_it_waits(handle: Handle) -> Handle:
    while "queue-device" not in texts(handle):
        time.sleep(0.001)
    return handle
