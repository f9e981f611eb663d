"""A cell that is run again closes the gateways of its earlier run, once what it asks for is found to be good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import MlxNotebookError, ModelLoadError, ModelNotFound, OverBudget
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.hooks import Execution, hooks
from mlx_notebook.gateway.loading import ModelFacts
from mlx_notebook.models import load as load_module
from mlx_notebook.models.backend_check import only_float32_is_fast
from mlx_notebook.models.model_files import read_model_files
from mlx_notebook.models.sizes import choose_types, load_bytes
from tests.models.folders import change_config, write_folder
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Runs = Callable[[str, str], None]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """`running(cell, run)`: from now on this thread is that run of that cell."""

    def set_to(cell: str, run: str) -> None:
        execution = Execution(cell, run)
        monkeypatch.setattr(hooks, "execution", lambda: execution)

    return set_to


@pytest.fixture
def kept(running: Runs) -> Iterator[Gateway]:
    """What the cell made the first time; the cell is running again."""
    running("cell", "1")
    with Gateway.from_backend(ScriptedBackend(), facts=ModelFacts(weight_bytes=10**6)) as gateway:
        running("cell", "2")
        yield gateway


def folder_of(path: Path) -> Path:
    write_folder(path)
    return path


def test_the_constructor_closes_its_own_cells_and_no_others(running: Runs) -> None:
    pair = small("llama")
    running("one", "1")
    first = Gateway.from_loaded(*pair)
    running("two", "2")
    other = Gateway.from_loaded(*pair)
    assert not first.closed
    running("one", "3")
    again = Gateway.from_loaded(*pair)
    beside = Gateway.from_loaded(*pair)  # the same run makes two
    assert [gateway.closed for gateway in (first, other, again, beside)] == [True, False, False, False]
    for gateway in (other, again, beside):
        gateway.close()


def test_so_does_one_by_name_and_one_over_a_backend(running: Runs, kept: Gateway, tmp_path: Path) -> None:
    with Gateway(folder_of(tmp_path / "m")) as named:
        assert kept.closed
        running("cell", "3")
        with Gateway.from_backend(ScriptedBackend()):
            assert named.closed


def lacks_a_tokenizer(folder: Path) -> dict[str, Any]:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    return {}


def lacks_weights(folder: Path) -> dict[str, Any]:
    (folder / "model.safetensors").unlink()
    return {}


def runs_code(folder: Path) -> dict[str, Any]:
    change_config(folder, model_file="own.py")
    return {}


def is_of_another_architecture(folder: Path) -> dict[str, Any]:
    change_config(folder, model_type="unheard_of")
    return {}


BAD: dict[str, tuple[Callable[[Path], dict[str, Any]], type[Exception], str]] = {
    "no tokenizer": (lacks_a_tokenizer, ModelLoadError, "holds no tokenizer"),
    "no weights": (lacks_weights, ModelLoadError, "holds no weights"),
    "code": (runs_code, ModelLoadError, "trust_remote_code=True"),
    "architecture": (is_of_another_architecture, ModelLoadError, "'unheard_of' is not supported"),
    "dtype": (lambda _folder: {"dtype": "4bit"}, ValueError, "are not"),
    "kv": (lambda _folder: {"kv": "8bit"}, ModelLoadError, "64 do not divide"),
    "a setting": (lambda _folder: {"batch": 0}, ValueError, "batch=0"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_cell_that_asks_for_what_cannot_be_loaded_keeps_its_gateway(how: str, kept: Gateway, tmp_path: Path) -> None:
    spoil, error, said = BAD[how]
    folder = folder_of(tmp_path / "m")
    settings = spoil(folder)
    with pytest.raises(error, match=said):
        Gateway(folder, **settings)
    assert kept.generate("abc", max_tokens=2).generated_tokens == 2


def test_nor_does_a_name_that_nothing_has_cost_it(kept: Gateway) -> None:
    with pytest.raises(ModelNotFound, match="smollm3"):
        Gateway("smollm3")
    assert not kept.closed


def test_a_scheme_that_does_not_fit_a_loaded_model_costs_nothing_either(kept: Gateway) -> None:
    with pytest.raises(ModelLoadError, match="64 do not divide"):
        Gateway.from_loaded(*small("llama"), kv="8bit")
    assert not kept.closed


def test_looking_first_leaves_the_threads_random_state_alone(kept: Gateway, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m")
    mx.random.seed(3)
    expected = mx.random.uniform().item()
    mx.random.seed(3)
    with pytest.raises(MlxNotebookError):
        Gateway(folder, kv="8bit")
    assert mx.random.uniform().item() == expected
    assert not kept.closed


@pytest.mark.parametrize("spare", [0, 1])
def test_memory_that_the_predecessor_holds_counts_as_free(
    spare: int, kept: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path / "m")
    files = read_model_files(folder, trust_remote_code=False)
    needed = load_bytes(files, choose_types(files, None, slow_halves=only_float32_is_fast()))
    free = needed - kept.weight_bytes - 1 + spare
    monkeypatch.setattr(load_module, "free_memory", lambda: free + kept.closed * 10**6)
    if spare:
        with Gateway(folder):
            assert kept.closed
    else:
        with pytest.raises(OverBudget) as caught:
            Gateway(folder)
        assert (caught.value.needed, caught.value.budget) == (needed, needed - 1)
        assert kept.generate("abc", max_tokens=2).generated_tokens == 2


@pytest.mark.parametrize("spare", [0, 1])
def test_weights_that_the_caller_loaded_do_not(
    spare: int, running: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever called from_loaded may still hold them."""
    running("cell", "1")
    with Gateway.from_loaded(*small("llama")) as kept:
        running("cell", "2")
        folder = folder_of(tmp_path / "m")
        files = read_model_files(folder, trust_remote_code=False)
        needed = load_bytes(files, choose_types(files, None, slow_halves=only_float32_is_fast()))
        assert kept.generate([1, 2, 3], max_tokens=2).generated_tokens == 2
        assert 0 <= kept.freed_by_close < kept.weight_bytes, "rows alone"

        def free() -> int:  # what its rows take changes until they are settled
            return needed - 1 + spare - (0 if kept.closed else kept.freed_by_close)

        monkeypatch.setattr(load_module, "free_memory", free)
        if spare:
            with Gateway(folder) as gateway:
                assert kept.closed
                assert gateway.freed_by_close >= gateway.weight_bytes > 0
        else:
            with pytest.raises(OverBudget):
                Gateway(folder)
            assert kept.generate([1, 2, 3], max_tokens=2).generated_tokens == 2
