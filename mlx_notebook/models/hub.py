"""Hugging Face ids to folders: the cache first, the network only for what it lacks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_notebook.errors import MlxNotebookError, ModelLoadError, ModelNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

# What an mlx-lm model is made of.
ALLOWED_FILES = [
    "*.json",
    "model*.safetensors",
    "*.py",
    "tokenizer.model",
    "*.tiktoken",
    "tiktoken.model",
    "*.txt",
    "*.jsonl",
    "*.jinja",
]
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def looks_like_id(name: str) -> bool:
    """Whether `name` has the form `owner/model` of a Hugging Face id."""
    return _ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def snapshot(repo_id: str, revision: str | None, progress: Callable[[str, float | None], None] | None) -> Path:
    """The snapshot folder of a model; downloaded where the cache does not hold it whole.

    Raises:
        ModelNotFound: no such model or revision, or neither cache nor network has it.
        ModelLoadError: access is refused (a gated or private model), or the disk is full.
    """
    from huggingface_hub import snapshot_download

    cached = _cached(repo_id, revision)
    if cached is not None:
        return cached
    if progress is not None:
        progress(f"downloading {repo_id}", None)
    try:
        folder = Path(snapshot_download(repo_id, revision=revision, allow_patterns=ALLOWED_FILES))
    except Exception as error:
        raise _explained(repo_id, revision, error) from error
    if not _is_whole(folder):  # without a network the client gives what it has, whole or not
        raise ModelLoadError(
            f"{folder} lacks config.json or model*.safetensors. Either {repo_id} could not be downloaded whole "
            "(is there a network, is HF_HUB_OFFLINE set?), or it has its weights in another form only: "
            f"then convert it with `mlx_lm.convert --hf-path {repo_id} --mlx-path NEW_FOLDER`.",
            model=repo_id,
        )
    return folder


def is_cached(repo_id: str) -> bool:
    """Whether the cache holds a model's newest known revision whole."""
    return _cached(repo_id, None) is not None


def _cached(repo_id: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(repo_id, revision=revision, allow_patterns=ALLOWED_FILES, local_files_only=True)
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, FileNotFoundError, ValueError):
        return None
    return folder if _is_whole(folder) else None


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))


def _explained(repo_id: str, revision: str | None, error: Exception) -> MlxNotebookError:
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    from mlx_notebook.models.catalog import close_names

    at = f" at revision {revision!r}" if revision else ""
    if isinstance(error, GatedRepoError):
        return ModelLoadError(
            f"{repo_id} is gated: accept its terms at https://huggingface.co/{repo_id}, then run `hf auth login`.",
            model=repo_id,
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelNotFound(f"{repo_id} has no revision {revision!r}. Leave it out for the newest.", name=repo_id)
    near = close_names(repo_id)
    hint = f" Did you mean {', '.join(repr(n) for n in near)}?" if near else ""
    if isinstance(error, RepositoryNotFoundError):
        return ModelNotFound(
            f"Hugging Face has no model {repo_id!r}{at}, or it is private (then run `hf auth login`).{hint}",
            name=repo_id,
            suggestions=near,
        )
    if isinstance(error, OSError) and error.errno == 28:  # no space left on device
        return ModelLoadError(
            f"The disk is full while downloading {repo_id}. Free some space, or set HF_HOME to another disk.",
            model=repo_id,
        )
    if isinstance(error, LocalEntryNotFoundError | OSError) or type(error).__module__.startswith(("httpx", "httpcore")):
        return ModelNotFound(
            f"{repo_id!r}{at} is not on this machine whole, and the Hugging Face hub cannot be reached "
            f"({_first_line(error)}). "
            f"Check the network (and HF_HUB_OFFLINE), or name a model that is here: `%mlxmodels` lists them.{hint}",
            name=repo_id,
            suggestions=near,
        )
    return ModelLoadError(f"{repo_id}{at} could not be fetched: {_first_line(error)}", model=repo_id)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
