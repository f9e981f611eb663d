"""Free memory as containers see it, and sizes of models from their headers alone."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from mlx_notebook.models import memory

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_positive_and_no_more_than_the_machine_has() -> None:
    assert 0 < memory.free_memory() <= psutil.virtual_memory().total + memory._reusable_cache()


def group(folder: Path, limit: str, used: int, cache: int, *, v1: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(f"{limit}\n")
    (folder / ("memory.usage_in_bytes" if v1 else "memory.current")).write_text(f"{used}\n")
    key = "total_inactive_file" if v1 else "inactive_file"
    (folder / "memory.stat").write_text(f"anon 5\n{key} {cache}\nactive_file 3\n")
    return folder


def test_what_mlx_keeps_for_reuse_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available_memory", lambda: 10_000)
    monkeypatch.setattr(memory, "_cgroup_v2_rooms", list)
    monkeypatch.setattr(memory, "_cgroup_v1_rooms", list)
    monkeypatch.setitem(sys.modules, "mlx.core", SimpleNamespace(get_cache_memory=lambda: 500))
    assert memory._free_host_memory() == 10_500
    monkeypatch.delitem(sys.modules, "mlx.core")
    assert memory._free_host_memory() == 10_000


def test_a_groups_limit_counts_with_the_cache_it_can_drop(tmp_path: Path) -> None:
    folder = group(tmp_path / "a", "1000", used=700, cache=100)
    assert memory._rooms([folder], "memory.max", "memory.current", "inactive_file") == [400]


def test_every_group_above_counts(tmp_path: Path) -> None:
    inner = group(tmp_path / "outer" / "inner", "max", used=700, cache=0)
    group(tmp_path / "outer", "5000", used=2000, cache=0)
    folders = memory._ancestors(tmp_path, "/outer/inner")
    assert folders == [inner, tmp_path / "outer", tmp_path]
    assert memory._rooms(folders, "memory.max", "memory.current", "inactive_file") == [3000]


def test_version_1_and_its_number_for_no_limit(tmp_path: Path) -> None:
    limited = group(tmp_path / "a", "1000", used=900, cache=50, v1=True)
    free = group(tmp_path / "b", str(2**63 - 4096), used=900, cache=50, v1=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    assert memory._rooms([limited, free], *names) == [150]


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux'")
def test_the_smallest_room_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available_memory", lambda: 10_000)
    monkeypatch.setattr(memory, "_reusable_cache", lambda: 0)
    monkeypatch.setattr(memory, "_cgroup_v2_rooms", lambda: [7_000])
    monkeypatch.setattr(memory, "_cgroup_v1_rooms", lambda: [8_000])
    assert memory._free_host_memory() == 7_000
    monkeypatch.setattr(memory, "_cgroup_v2_rooms", lambda: [-5])
    assert memory._free_host_memory() == 0


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"max_recommended_working_set_size": 900, "memory_size": 1200}, 600),
        ({"memory_size": 1200}, 900),
        ({"free_memory": 50, "total_memory": 1200}, 50),
        ({}, None),
    ],
)
def test_a_gpu_is_asked_itself(info: dict[str, int], expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        gpu="gpu", default_device=lambda: "gpu", device_info=lambda: info, get_active_memory=lambda: 300
    )
    monkeypatch.setitem(sys.modules, "mlx.core", fake)
    assert memory._free_device_memory() == expected
    monkeypatch.setattr(fake, "default_device", lambda: "cpu")
    assert memory._free_device_memory() is None
