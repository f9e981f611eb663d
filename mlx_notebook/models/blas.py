"""A fast BLAS for MLX on a Linux CPU, loaded before MLX binds the slow one that it ships.

The `mlx[cpu]` wheel carries the reference BLAS (about 7 GFLOP/s in float32 on two cores). A
library with the standard, unprefixed symbols, loaded with global visibility before
`mlx.core`, takes its place (about 72 with OpenBLAS). This file finds and loads one. It never
imports MLX, and it does nothing on macOS or beside a CUDA build.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlx_notebook.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT_VARIABLE = "MLX_NOTEBOOK_BLAS"

# NumPy's and SciPy's own copies prefix their names and cannot serve.
REQUIRED_SYMBOL = "cblas_sgemm"

# Fedora's plain libopenblas.so.0 is single-threaded and its threaded one ends in p;
# elsewhere the plain name is threaded.
SYSTEM_NAMES = ("libopenblasp.so.0", "libopenblas.so.0")

_INSTALLERS = (
    ("apt-get", "sudo apt-get install -y libopenblas0-pthread"),
    ("dnf", "sudo dnf install -y openblas-threads"),
    ("zypper", "sudo zypper install -y libopenblas_pthreads0"),
    ("pacman", "sudo pacman -S --noconfirm openblas"),
)


@dataclass(frozen=True, slots=True)
class BlasStatus:
    """Which BLAS MLX computes with, and what mends it.

    Attributes:
        state: `loaded`; `missing` (none found); `too-late` (MLX was imported before);
            `not-needed` (macOS, or MLX runs on a GPU).
        path: the library, as given to the loader; None where none was loaded.
        advice: the exact command or step that mends it; empty where nothing is wrong.
    """

    state: Literal["loaded", "missing", "too-late", "not-needed"]
    path: str | None = None
    advice: str = ""

    @property
    def slow(self) -> bool:
        """Whether MLX runs with the slow BLAS that it ships."""
        return self.state in {"missing", "too-late"}


_loaded: BlasStatus | None = None
_was_missing = False


def preload_blas() -> BlasStatus:
    """Load a fast BLAS for MLX where one is needed and found; cheap to call again.

    Order: the file named by `MLX_NOTEBOOK_BLAS`, the system's OpenBLAS, then that of the
    conda environment. Call it before anything imports `mlx.core`.

    Raises:
        ModelLoadError: `MLX_NOTEBOOK_BLAS` names no usable library.
    """
    global _loaded, _was_missing
    if _loaded is not None:  # asked first: whether one is needed takes a look at everything that is installed
        return _loaded
    if not _needs_blas():
        return BlasStatus("not-needed")
    found = _look()
    _loaded = found if found.state == "loaded" else None
    _was_missing = found.state == "missing"
    return found


def _look() -> BlasStatus:
    wanted = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    if wanted:
        _check_wanted(wanted)
    if _already_global():
        return BlasStatus("loaded", path="already in the process (LD_PRELOAD or an earlier load)")
    if "mlx.core" in sys.modules:
        # Where none was found before MLX came, "too late" would be the wrong reason.
        return BlasStatus("missing" if _was_missing else "too-late", advice=_after_import_advice())
    for candidate in [wanted] if wanted else _candidates():
        if _load_globally(candidate):
            return BlasStatus("loaded", path=candidate)
    return BlasStatus("missing", advice=_install_command())


def _needs_blas() -> bool:
    if sys.platform != "linux":
        return False
    names = {(d.metadata["Name"] or "").lower().replace("_", "-") for d in importlib.metadata.distributions()}
    return not any(name.startswith(("mlx-cuda", "mlx-metal")) for name in names)


def _check_wanted(wanted: str) -> None:
    """Refuse a wrong path loudly: whoever sets the variable wants that library and no other."""
    if not Path(wanted).is_file():
        raise ModelLoadError(
            f"{ENVIRONMENT_VARIABLE}={wanted!r} is not a file. Give the full path of a BLAS library, or unset it.",
            model=wanted,
        )
    try:
        library = ctypes.CDLL(wanted)
    except OSError as error:
        raise ModelLoadError(
            f"{ENVIRONMENT_VARIABLE}={wanted!r} cannot be loaded as a library: {error}", model=wanted
        ) from error
    if not hasattr(library, REQUIRED_SYMBOL):
        raise ModelLoadError(
            f"{ENVIRONMENT_VARIABLE}={wanted!r} does not export {REQUIRED_SYMBOL!r} under its plain name, so MLX "
            "cannot use it (NumPy's and SciPy's own copies are built that way). Name a system OpenBLAS instead.",
            model=wanted,
        )


def _already_global() -> bool:
    """Whether OpenBLAS' symbols are visible to libraries loaded from now on."""
    process = ctypes.CDLL(None)
    return hasattr(process, "openblas_get_config") and hasattr(process, REQUIRED_SYMBOL)


def _candidates() -> Iterator[str]:
    yield from SYSTEM_NAMES
    prefixes = [sys.prefix, os.environ.get("CONDA_PREFIX", "")]
    for prefix in dict.fromkeys(p for p in prefixes if p):
        for name in ("libopenblas.so.0", "libopenblas.so"):
            path = Path(prefix) / "lib" / name
            if path.is_file():
                yield str(path)


def _load_globally(candidate: str) -> bool:
    try:
        # Privately first: a library with the wrong names must not shadow anything.
        library = ctypes.CDLL(candidate)
        if not hasattr(library, REQUIRED_SYMBOL):
            return False
        ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _in_conda() -> bool:
    return bool(os.environ.get("CONDA_PREFIX")) or (Path(sys.prefix) / "conda-meta").is_dir()


def _install_command() -> str:
    if _in_conda():
        return "conda install -y -c conda-forge libopenblas"
    for tool, command in _INSTALLERS:
        if shutil.which(tool):
            return command
    return f"install OpenBLAS with your system's package manager, or set {ENVIRONMENT_VARIABLE} to its path"


def _after_import_advice() -> str:
    found = any(_exports_symbol(candidate) for candidate in _candidates())
    install = "" if found else f"run `{_install_command()}`, then "
    return (
        f"{install}restart the kernel and run `%load_ext mlx_notebook` before anything imports mlx "
        "(or start Jupyter with `LD_PRELOAD=libopenblas.so.0 jupyter lab`)"
    )


def _exports_symbol(candidate: str) -> bool:
    try:
        return hasattr(ctypes.CDLL(candidate), REQUIRED_SYMBOL)
    except OSError:
        return False
