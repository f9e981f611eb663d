"""How much memory a model may take here: the device's recommendation, or what the system and its cgroup leave free.

A loaded model counts by itself: its bytes are no longer free. Reads files only; MLX is asked
only where it was imported already.
"""

from __future__ import annotations

import sys
from pathlib import Path

# A cgroup without a limit reports a number near 2**63.
_NO_LIMIT = 1 << 60


def free_memory() -> int:
    """Bytes that can be allocated now: on a GPU what the device recommends less what MLX holds, else free main memory.

    Inside a container the cgroup's limit counts (versions 1 and 2), with the page cache it could drop.
    """
    device = _free_device_memory()
    host = _free_host_memory()
    if device is None:
        return host
    # Apple's GPU shares main memory; a discrete card does not.
    return min(device, host) if sys.platform == "darwin" else device


def _free_device_memory() -> int | None:
    mx = sys.modules.get("mlx.core")
    if mx is None or mx.default_device() != mx.gpu:
        return None
    info = mx.device_info()
    if "free_memory" in info:
        return int(info["free_memory"])
    for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        if key in info:
            return max(0, int(info[key]) - int(mx.get_active_memory()))
    return None


def _free_host_memory() -> int:
    available = _available_memory()
    limits = [available, *_cgroup_v2_rooms(), *_cgroup_v1_rooms()] if sys.platform == "linux" else [available]
    return max(0, min(limits) + _reusable_cache())


def _reusable_cache() -> int:
    """Bytes that MLX has freed and keeps for itself: it takes them again before it asks the system."""
    mx = sys.modules.get("mlx.core")
    return int(mx.get_cache_memory()) if mx is not None else 0


def _available_memory() -> int:
    import psutil  # comes with ipykernel

    return int(psutil.virtual_memory().available)


def _cgroup_path(controller: str) -> str | None:
    """This process' group as `/proc/self/cgroup` gives it: `controller` is empty for version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _ancestors(root: Path, path: str | None) -> list[Path]:
    """The group's folder and those above it; a container often sees only the root of its own."""
    if path is None:
        return []
    group = root / path.lstrip("/")
    return [group, *(p for p in group.parents if p == root or root in p.parents)]


def _cgroup_v2_rooms() -> list[int]:
    folders = _ancestors(Path("/sys/fs/cgroup"), _cgroup_path(""))
    return _rooms(folders, "memory.max", "memory.current", "inactive_file")


def _cgroup_v1_rooms() -> list[int]:
    folders = _ancestors(Path("/sys/fs/cgroup/memory"), _cgroup_path("memory"))
    return _rooms(folders, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _rooms(folders: list[Path], limit_file: str, usage_file: str, cache_key: str) -> list[int]:
    rooms = []
    for folder in folders:
        limit, usage = _read_int(folder / limit_file), _read_int(folder / usage_file)
        if limit is None or usage is None or limit >= _NO_LIMIT:
            continue
        rooms.append(limit - usage + _droppable_cache(folder / "memory.stat", cache_key))
    return rooms


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or the word "max"
        return None


def _droppable_cache(path: Path, key: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
