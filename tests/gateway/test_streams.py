"""An engine thread gives MLX's streams back before it ends, however it came to its end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.gateway import loading
from mlx_notebook.gateway.gateway import Gateway
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def cleared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that gave their streams back, in order."""
    names: list[str] = []
    clear = mx.clear_streams

    def noted() -> None:
        names.append(threading.current_thread().name)
        clear()

    monkeypatch.setattr(mx, "clear_streams", noted)
    return names


def test_closed(cleared: list[str]) -> None:
    with Gateway.from_loaded(*small("llama"), name="closing") as gateway:
        gateway.submit([5, 6, 7], raw=True, max_tokens=2).result()
    assert set(cleared) == {"mlx-notebook engine closing"}


def test_a_load_that_fails_half_way(cleared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Callable[[Any], Any]:
        def load(_loading: Any) -> Any:
            mx.eval(mx.ones(3) + 1)
            raise MemoryError("half-way")

        return load

    monkeypatch.setattr(loading, "loader_of_loaded", failing)
    with pytest.raises(MemoryError, match="half-way"):
        Gateway.from_loaded(None, None, name="failing")
    assert cleared == ["mlx-notebook engine failing"]


def test_a_users_function_that_computed_there(cleared: list[str]) -> None:
    def compute() -> Any:
        twos = mx.ones(3) + 1
        return twos.tolist()

    with Gateway.from_backend(ScriptedBackend(), name="scripted") as gateway:
        assert gateway.run_exclusive(compute) == [2, 2, 2]
    assert cleared == ["mlx-notebook engine scripted"]
