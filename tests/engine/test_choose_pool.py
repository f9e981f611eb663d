"""Which kernels read pages where: CUDA's wherever they agree, Metal's only where they were asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import mlx.core as mx
import pytest

from mlx_notebook.engine.attention import AttentionRoute
from mlx_notebook.engine.parity import Choice, choose_store
from mlx_notebook.engine.stores import choose
from mlx_notebook.engine.stores.page_ops import StockPages, kernels_serve
from mlx_notebook.engine.stores.pool import PoolStore
from tests.engine.wide_heads import wide_llama
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Callable


class Agrees(StockPages):
    """Stands for kernels that are right."""


class Disagrees(StockPages):
    def attend(self, *args: Any) -> mx.array:
        return super().attend(*args) * 1.05


class Fails(StockPages):
    def attend(self, *_: Any) -> mx.array:
        raise RuntimeError("Unable to build metal library from source")


def never() -> NoReturn:
    raise AssertionError("not to be made here")


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Choice]:
    def choice(kind: str, *, switch: str | None = None, cuda: Any = never, metal: Any = never) -> Choice:
        monkeypatch.setattr(choose, "device_kind", lambda: kind)
        monkeypatch.setattr(choose, "CudaPages", cuda)
        monkeypatch.setattr(choose, "MetalPages", metal)
        monkeypatch.delenv(choose.METAL_SWITCH, raising=False)
        if switch is not None:
            monkeypatch.setenv(choose.METAL_SWITCH, switch)
        model = wide_llama()
        route = AttentionRoute(model)
        try:
            return choose_store(model, first=choose.pools(model))
        finally:
            route.close()

    return choice


def served_by(choice: Choice, kind: type[StockPages]) -> bool:
    return isinstance(choice.store, PoolStore) and type(choice.store._ops) is kind and not choice.findings


def kept_away(choice: Choice) -> bool:
    return choice.store is not None and choice.store.name == "rows" and not choice.findings


@pytest.mark.parametrize("switch", [None, "", "0", "true"])
def test_an_apple_gpu_has_no_pool_unless_it_is_switched_on(chosen: Callable[..., Choice], switch: str | None) -> None:
    assert kept_away(chosen("metal", switch=switch))


def test_switched_on_kernels_that_agree_are_used(chosen: Callable[..., Choice]) -> None:
    assert served_by(chosen("metal", switch="1", metal=Agrees), Agrees)


@pytest.mark.parametrize(
    ("kernels", "found"),
    [
        (Disagrees, "the Metal kernels do not agree with MLX's own operations here"),
        (Fails, "the Metal kernels failed when they were tried: RuntimeError: Unable to build metal library"),
    ],
    ids=["disagree", "fail"],
)
def test_others_are_kept_away_and_it_is_told(
    chosen: Callable[..., Choice], kernels: type[StockPages], found: str
) -> None:
    choice = chosen("metal", switch="1", metal=kernels)
    assert choice.store is not None
    assert choice.store.name == "rows"
    (finding,) = choice.findings
    assert finding.startswith("pool: ")
    assert found in finding


@pytest.mark.parametrize("switch", [None, "1"])
def test_on_cuda_the_switch_means_nothing(chosen: Callable[..., Choice], switch: str | None) -> None:
    assert served_by(chosen("cuda", switch=switch, cuda=Agrees), Agrees)
    assert kept_away(chosen("cuda", switch=switch, cuda=Disagrees))


def test_on_a_cpu_there_is_none(chosen: Callable[..., Choice]) -> None:
    assert kept_away(chosen("", switch="1"))


@pytest.mark.parametrize(
    ("gpu", "cuda", "metal", "kind"),
    [(False, True, True, ""), (True, True, False, "cuda"), (True, False, True, "metal"), (True, False, False, "")],
    ids=["the CPU was chosen", "CUDA", "Metal", "neither"],
)
def test_whose_kernels_run_here(monkeypatch: pytest.MonkeyPatch, gpu: bool, cuda: bool, metal: bool, kind: str) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu if gpu else mx.cpu)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
    assert choose.device_kind() == kind


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mamba2"])
def test_heads_that_no_kernel_was_written_for_are_not_tried(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(choose, "device_kind", lambda: "metal")
    monkeypatch.setattr(choose, "MetalPages", never)
    monkeypatch.setenv(choose.METAL_SWITCH, "1")
    assert choose.pools(small(kind)[0]) == []


def test_widths_and_types() -> None:
    assert kernels_serve(64, mx.float32)
    assert kernels_serve(128, mx.bfloat16)
    assert not kernels_serve(96, mx.float32)
    assert not kernels_serve(64, mx.float64)
