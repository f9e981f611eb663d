"""What the load's probe found is a plain fact of the gateway's statistics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn

from mlx_notebook.engine.stores import choose
from mlx_notebook.gateway.gateway import Gateway
from tests.engine.test_batch_families import pair
from tests.engine.wide_heads import wide_llama
from tests.small_models import small

if TYPE_CHECKING:
    import pytest


def test_why_a_model_is_not_served_in_the_first_way() -> None:
    with Gateway.from_loaded(*pair("baichuan_m1"), batch=2) as gateway:
        stats = gateway.stats()
    assert stats.store == "rows"
    assert [found.partition(":")[0] for found in stats.store_findings] == ["prompts in one forward"]
    assert json.loads(json.dumps(stats.to_dict()))["store_findings"] == list(stats.store_findings)


def test_nothing_was_found_where_the_first_way_serves() -> None:
    with Gateway.from_loaded(*small("llama"), batch=2) as gateway:
        assert gateway.stats().store_findings == ()


def test_kernels_that_were_asked_for_and_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> NoReturn:
        raise RuntimeError("Unable to build metal library from source")

    monkeypatch.setattr(choose, "device_kind", lambda: "metal")
    monkeypatch.setattr(choose, "MetalPages", fails)
    monkeypatch.setenv(choose.METAL_SWITCH, "1")
    with Gateway.from_loaded(wide_llama(), small("llama")[1], batch=2) as gateway:
        stats = gateway.stats()
    assert stats.store == "rows"
    (found,) = stats.store_findings
    assert found.endswith("failed when they were tried: RuntimeError: Unable to build metal library from source")
