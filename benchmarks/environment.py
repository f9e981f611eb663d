"""What a measurement depends on: machine, versions, BLAS, commit, date. Names no host and no user."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGES = ("mlx-notebook", "mlx", "mlx-lm", "numpy", "ipykernel", "transformers", "torch")


def record() -> dict[str, Any]:
    """A JSON-ready description of where and when this runs; call it once MLX is imported, for the BLAS in use."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": cores(),
        "blas": blas_in_use(),
        "load_average": round(os.getloadavg()[0], 2),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def blas_in_use() -> str:
    """The shared library that MLX's CPU backend takes its matrix products from, as far as the process shows it."""
    if platform.system() == "Darwin":
        return "Accelerate"
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    paths = {line.split()[-1] for line in mapped.splitlines() if "openblas" in line}
    # NumPy brings a copy of its own with prefixed names, which serves nobody else.
    own = sorted(path for path in paths if "numpy.libs" not in path and "scipy" not in path)
    return own[0] if own else "MLX's own reference BLAS"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    commit = _output("git", "-C", str(CHECKOUT), "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    changed = _output("git", "-C", str(CHECKOUT), "status", "--porcelain", "--", "mlx_notebook", "benchmarks/*.py")
    return commit + (" with changes" if changed else "")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
