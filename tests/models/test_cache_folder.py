"""A converted folder is there whole or not at all, whoever else makes it at the same time."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.models.cache_folder import MANIFEST, build_folder, cache_root, is_whole, sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable


def fill_with(text: str) -> Callable[[Path], dict[str, str]]:
    def fill(work: Path) -> dict[str, str]:
        (work / "config.json").write_text(text)
        return {"source": "test"}

    return fill


def leftovers(parent: Path) -> list[str]:
    return [p.name for p in parent.iterdir() if p.name.startswith(".")]


def test_a_folder_is_built_once(tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "m", fill_with("one"))
    assert is_whole(folder)
    assert build_folder(tmp_path / "m", fill_with("two")) == folder
    assert (folder / "config.json").read_text() == "one"
    assert leftovers(tmp_path) == []


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(work: Path) -> dict[str, str]:
        (work / "config.json").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_folder(tmp_path / "m", fail)
    assert list(tmp_path.iterdir()) == []


def test_two_makers_at_once_agree_on_one(tmp_path: Path) -> None:
    both_inside = threading.Barrier(2)

    def slowly(text: str) -> Callable[[Path], dict[str, str]]:
        def fill(work: Path) -> dict[str, str]:
            both_inside.wait()  # neither has finished when the other begins
            return fill_with(text)(work)

        return fill

    makers = [
        threading.Thread(target=build_folder, args=(tmp_path / "m", slowly(text))) for text in ("first", "second")
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert is_whole(tmp_path / "m")
    assert (tmp_path / "m" / "config.json").read_text() in {"first", "second"}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "gone", "no manifest", "bad manifest"])
def test_a_damaged_folder_is_made_anew(damage: str, tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "m", fill_with("good"))
    if damage == "cut":
        (folder / "config.json").write_text("go")
    elif damage == "gone":
        (folder / "config.json").unlink()
    elif damage == "no manifest":
        (folder / MANIFEST).unlink()
    else:
        (folder / MANIFEST).write_text("{")
    assert not is_whole(folder)
    assert (build_folder(folder, fill_with("anew")) / "config.json").read_text() == "anew"
    assert leftovers(tmp_path) == []


def test_a_hash_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_NOTEBOOK_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "f"
    file.write_bytes(b"abc")
    assert sha256_of(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    opened: list[Path] = []
    original = Path.open

    def watched(self: Path, *args: Any, **options: Any) -> Any:
        opened.append(self)
        return original(self, *args, **options)

    monkeypatch.setattr(Path, "open", watched)
    sha256_of(file)
    assert file not in opened
    file.write_bytes(b"abcd")
    assert sha256_of(file).startswith("88d4266fd4e6338d13b845fcf289579d")
    assert file in opened


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MLX_NOTEBOOK_CACHE", str(tmp_path / "file"))
    assert len(sha256_of(tmp_path / "file")) == 64


def test_the_root_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLX_NOTEBOOK_CACHE", str(tmp_path))
    assert cache_root() == tmp_path / "models"
    monkeypatch.delenv("MLX_NOTEBOOK_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "mlx-notebook" / "models"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_root() == Path.home() / "Library" / "Caches" / "mlx-notebook" / "models"
