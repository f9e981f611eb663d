"""The BLAS is found in the right order, before MLX, and what is wrong comes with the command that mends it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_notebook.errors import ModelLoadError
from mlx_notebook.models import blas

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the BLAS is preloaded on Linux only")


def has_openblas() -> bool:
    try:
        return hasattr(ctypes.CDLL("libopenblas.so.0"), "cblas_sgemm")
    except OSError:
        return False


def on_gpu_build() -> bool:
    names = [(d.metadata["Name"] or "").lower() for d in importlib.metadata.distributions()]
    return any(name.startswith("mlx-cuda") for name in names)


needs_openblas = pytest.mark.skipif(
    not has_openblas() or on_gpu_build(), reason="needs the system's libopenblas.so.0 and MLX's CPU build"
)


def ask(before: str = "", **environment: str) -> str:
    """What `preload_blas` says in a fresh interpreter, after `before` ran there."""
    code = before + "\nfrom mlx_notebook.models.blas import preload_blas\ns = preload_blas()\n"
    code += "print(s.state, '|', s.path, '|', s.advice)"
    kept = {k: v for k, v in os.environ.items() if k not in {"LD_PRELOAD", blas.ENVIRONMENT_VARIABLE}}
    run = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


@needs_openblas
def test_the_systems_library_is_loaded_globally_and_without_mlx() -> None:
    code = "import ctypes, sys; from mlx_notebook.models.blas import preload_blas; preload_blas(); preload_blas(); "
    code += "print(hasattr(ctypes.CDLL(None), 'openblas_get_config'), any(m.startswith('mlx.') for m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False"]


@needs_openblas
def test_mlx_imported_first_is_too_late() -> None:
    said = ask("import mlx.core")
    assert said.startswith("too-late | None |")
    assert "restart the kernel" in said


@needs_openblas
def test_a_library_that_is_global_already_serves_even_after_mlx() -> None:
    assert ask("import mlx.core", LD_PRELOAD="libopenblas.so.0").startswith("loaded | already in the process")


@needs_openblas
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc's loader which library it bound")
def test_mlx_really_computes_with_it(tmp_path: Path) -> None:
    code = (
        "from mlx_notebook.models.backend_check import import_mlx\n"
        "mx = import_mlx()\n"
        "a = mx.random.normal((64, 64)); mx.eval(a @ a)\n"
    )
    watched = {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(tmp_path / "ld")}
    subprocess.run([sys.executable, "-c", code], env=os.environ | watched, capture_output=True, check=True)
    said = "".join(p.read_text(errors="replace") for p in tmp_path.glob("ld.*"))
    bound = [line for line in said.splitlines() if "libmlx" in line.split(" to ")[0] and "`cblas_sgemm'" in line]
    assert bound
    assert all("openblas" in line.split(" to ")[1] for line in bound)


@on_linux
@pytest.mark.skipif(on_gpu_build(), reason="MLX's GPU build needs no BLAS")
def test_a_wrong_path_is_refused_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_loaded", None)
    monkeypatch.setenv(blas.ENVIRONMENT_VARIABLE, str(tmp_path / "absent.so"))
    with pytest.raises(ModelLoadError, match="is not a file"):
        blas.preload_blas()
    (tmp_path / "text.so").write_text("no library")
    monkeypatch.setenv(blas.ENVIRONMENT_VARIABLE, str(tmp_path / "text.so"))
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        blas.preload_blas()
    libm = next(w for w in Path("/proc/self/maps").read_text().split() if "libm.so" in w)
    monkeypatch.setenv(blas.ENVIRONMENT_VARIABLE, libm)
    with pytest.raises(ModelLoadError, match="does not export 'cblas_sgemm'") as caught:
        blas.preload_blas()
    assert caught.value.model == libm


@on_linux
@pytest.mark.skipif(on_gpu_build(), reason="MLX's GPU build needs no BLAS")
def test_none_found_says_how_to_install_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_loaded", None)
    monkeypatch.setattr(blas, "_was_missing", False)
    monkeypatch.setattr(blas, "_already_global", lambda: False)
    monkeypatch.setattr(blas, "_candidates", lambda: iter(["libnosuchblas.so.77"]))
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr("shutil.which", lambda tool: f"/usr/bin/{tool}" if tool == "apt-get" else None)
    status = blas.preload_blas()
    assert (status.state, status.path, status.slow) == ("missing", None, True)
    assert status.advice == "sudo apt-get install -y libopenblas0-pthread"
    # Once MLX is imported the reason stays the true one, and the kernel must be restarted too.
    monkeypatch.setitem(sys.modules, "mlx.core", SimpleNamespace())
    again = blas.preload_blas()
    assert again.state == "missing"
    assert "libopenblas0-pthread" in again.advice
    assert "restart the kernel" in again.advice


@on_linux
@pytest.mark.parametrize(
    ("tool", "expected"), [("dnf", "openblas-threads"), ("pacman", "pacman -S"), ("nothing", "package manager")]
)
def test_each_system_has_its_command(tool: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name == tool else None)
    assert expected in blas._install_command()


def test_conda_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")
    assert blas._install_command().startswith("conda install")


def test_condas_library_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libopenblas.so.0").write_bytes(b"")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    found = list(blas._candidates())
    assert found[: len(blas.SYSTEM_NAMES)] == list(blas.SYSTEM_NAMES)
    assert found[-1] == str(tmp_path / "lib" / "libopenblas.so.0")


@pytest.mark.parametrize("case", ["mac", "cuda"])
def test_not_needed_on_a_mac_or_beside_cuda(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "mac":
        monkeypatch.setattr(sys, "platform", "darwin")
    else:
        monkeypatch.setattr(sys, "platform", "linux")
        cuda = SimpleNamespace(metadata={"Name": "mlx_cuda_13"})
        monkeypatch.setattr(importlib.metadata, "distributions", lambda: [cuda])
    assert blas.preload_blas() == blas.BlasStatus("not-needed")
