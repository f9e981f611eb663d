"""Imports MLX in the one right way: BLAS first, and our own error where there is no backend."""

from __future__ import annotations

import importlib
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_notebook.errors import BackendMissing
from mlx_notebook.models.blas import preload_blas

if TYPE_CHECKING:
    from types import ModuleType

# The oldest macOS that mlx's wheels install on.
OLDEST_MACOS = 14


def import_mlx() -> ModuleType:
    """The module `mlx.core`, with a fast BLAS loaded before it where one is needed and found.

    Raises:
        BackendMissing: MLX or its backend is not installed, or this machine cannot run it; the
            message holds the command that mends it.
        ModelLoadError: `MLX_NOTEBOOK_BLAS` names no usable library.
    """
    preload_blas()
    try:
        return importlib.import_module("mlx.core")
    except (ImportError, OSError) as error:
        raise BackendMissing(f"{missing_backend_message()} (The import said: {error})") from error


def only_float32_is_fast() -> bool:
    """Whether MLX computes fast in float32 only where it runs by default: on a Linux CPU.

    MLX is asked only where it was imported already; on a Linux where it was not, it is taken to run on the CPU.
    """
    mx = sys.modules.get("mlx.core")
    return sys.platform == "linux" and (mx is None or bool(mx.default_device() == mx.cpu))


def slowed_by(dtype: str) -> bool:
    """Whether weights in this type (`none`: there are no weights) run slower here than in float32."""
    return dtype not in {"none", "float32"} and only_float32_is_fast()


def missing_backend_message() -> str:
    """Why MLX cannot be imported on this machine, and the command that mends it."""
    here: str = sys.platform
    if here == "darwin":
        return _mac_message()
    if here == "linux":
        if _has_nvidia_gpu():
            return (
                'MLX has no backend here. Run `pip install "mlx-notebook[cuda]"` for the NVIDIA GPU of this machine, '
                'or `pip install "mlx-notebook[cpu]"` to use the CPU, then restart the kernel.'
            )
        return (
            'MLX has no backend here: on Linux it is an extra. Run `pip install "mlx-notebook[cpu]"`, '
            'or `pip install "mlx-notebook[cuda]"` where there is an NVIDIA GPU, then restart the kernel.'
        )
    system = platform.system() or sys.platform
    return f"MLX runs on Apple-silicon Macs and on Linux, not on {system}. On Windows, use WSL 2."


def _mac_message() -> str:
    if platform.machine() != "arm64":
        return (
            "MLX needs a Mac with Apple silicon; this Python runs on Intel (or under Rosetta). "
            "On an Apple-silicon Mac, install an arm64 Python and run `pip install mlx-notebook` with it."
        )
    version = platform.mac_ver()[0]
    major = int(version.split(".")[0]) if version else 0
    if 0 < major < OLDEST_MACOS:
        return (
            f"MLX needs macOS {OLDEST_MACOS} or newer; this is {version}. "
            "Update macOS, then run `pip install mlx-notebook`."
        )
    return "MLX is not installed properly. Run `pip install --force-reinstall mlx mlx-metal`, then restart the kernel."


def _has_nvidia_gpu() -> bool:
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None
