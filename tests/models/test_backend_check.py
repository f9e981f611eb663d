"""Where MLX cannot run, the error is ours and holds the command that mends it."""

from __future__ import annotations

import importlib
import platform
import sys
from typing import Any

import pytest

from mlx_notebook.errors import BackendMissing, ModelLoadError
from mlx_notebook.models import backend_check


def broken_import(name: str) -> Any:
    raise ImportError(f"libmlx.so: cannot open shared object file ({name})")


def test_mlx_is_imported_where_it_can() -> None:
    assert backend_check.import_mlx().__name__ == "mlx.core"


@pytest.mark.parametrize(
    ("machine", "gpu", "expected"),
    [
        (("linux", "x86_64", ""), False, 'pip install "mlx-notebook[cpu]"'),
        (("linux", "x86_64", ""), True, 'pip install "mlx-notebook[cuda]"'),
        (("darwin", "x86_64", "15.0"), False, "Apple silicon"),
        (("darwin", "arm64", "13.6.1"), False, "macOS 14 or newer; this is 13.6.1"),
        (("darwin", "arm64", "15.1"), False, "--force-reinstall mlx mlx-metal"),
        (("win32", "AMD64", ""), False, "WSL 2"),
    ],
)
def test_the_message_fits_the_machine(
    machine: tuple[str, str, str], gpu: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, processor, version = machine
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), processor))
    monkeypatch.setattr(backend_check, "_has_nvidia_gpu", lambda: gpu)
    monkeypatch.setattr(importlib, "import_module", broken_import)
    monkeypatch.setattr(backend_check, "preload_blas", lambda: None)
    with pytest.raises(BackendMissing) as caught:
        backend_check.import_mlx()
    assert expected in str(caught.value)
    assert "libmlx.so" in str(caught.value)
    assert isinstance(caught.value, ModelLoadError)
    assert isinstance(caught.value, ImportError)
