"""A kv scheme is tried by a model's shapes once on the way to a gateway, before anything is closed or read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.engine.kv import convert
from mlx_notebook.errors import ModelLoadError
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.hooks import Execution, hooks
from mlx_notebook.models import load as load_module
from tests.models.folders import write_folder
from tests.small_models import small

if TYPE_CHECKING:
    from pathlib import Path

FITS = {"bits": 8, "group_size": 32}


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models whose shapes were tried, one for each time."""
    found: list[Any] = []
    check = convert.check_model

    def counted(model: Any, scheme: Any) -> None:
        found.append(model)
        check(model, scheme)

    monkeypatch.setattr(convert, "check_model", counted)
    return found


@pytest.mark.parametrize("replaces", [False, True])
def test_a_named_model_is_tried_once(
    replaces: bool, trials: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "m", "qwen3_next")
    monkeypatch.setattr(hooks, "execution", lambda: Execution("cell", "1"))
    with Gateway.from_backend(ScriptedBackend()) as before:
        if replaces:
            monkeypatch.setattr(hooks, "execution", lambda: Execution("cell", "2"))
        gateway = Gateway(tmp_path / "m", kv=FITS)
        assert before.closed == replaces
        assert len(trials) == 1
        gateway.restart()
        assert gateway.generate([1, 2, 3], max_tokens=2).generated_tokens == 2
        gateway.close()
    assert len(trials) == 1


def test_so_is_a_loaded_one(trials: list[Any]) -> None:
    with Gateway.from_loaded(*small("qwen3_next"), kv=FITS) as gateway:
        assert gateway.generate([1, 2, 3], max_tokens=2).generated_tokens == 2
    assert len(trials) == 1


def test_natively_there_is_nothing_to_try(trials: list[Any], tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    with Gateway(tmp_path / "m"), Gateway.from_loaded(*small("llama")):
        assert not trials


def test_heads_that_do_not_divide_are_named_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "m")

    def read(*_args: Any) -> Any:
        raise AssertionError("weights were read")

    monkeypatch.setattr(load_module, "_settle_weights", read)
    with pytest.raises(ModelLoadError, match="16 values a head, which groups of 32 do not divide") as caught:
        Gateway(tmp_path / "m", kv=FITS)
    assert caught.value.model == str(tmp_path / "m")
