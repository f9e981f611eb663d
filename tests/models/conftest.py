"""Every test of this room works in caches of its own and without the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of converted models for all tests, so that the same file is converted once."""
    return tmp_path_factory.mktemp("converted")


@pytest.fixture(autouse=True)
def own_caches(session_cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Converted models and the Hugging Face cache lie in temporary folders; the hub is offline."""
    import huggingface_hub.constants as hub

    empty = tmp_path_factory.mktemp("hub")
    monkeypatch.setenv("MLX_NOTEBOOK_CACHE", str(session_cache))
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(empty))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    return empty
