"""Where converted models are kept, and how a folder comes into being whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ENVIRONMENT_VARIABLE = "MLX_NOTEBOOK_CACHE"
# Written last into a converted folder: what it was made from, and the size of each file.
MANIFEST = "conversion.json"


def cache_root() -> Path:
    """The folder of converted models: `MLX_NOTEBOOK_CACHE`, else the platform's cache folder."""
    override = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    if override:
        return Path(override).expanduser() / "models"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mlx-notebook" / "models"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx-notebook" / "models"


def sha256_of(path: Path) -> str:
    """The file's SHA-256, remembered by path, size and modification time (big files take seconds to read)."""
    stat = path.stat()
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    store = cache_root() / "hashes.json"
    known = _read_json(store)
    if isinstance(known.get(key), str):
        return str(known[key])
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
        _write_atomically(store, json.dumps({**_read_json(store), key: digest}, indent=0))
    return digest


def is_whole(folder: Path) -> bool:
    """Whether a converted folder has every file at the size that its manifest says."""
    sizes = _read_json(folder / MANIFEST).get("files")
    if not isinstance(sizes, dict) or not sizes:
        return False
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())


def build_folder(folder: Path, fill: Callable[[Path], dict[str, str]]) -> Path:
    """Make `folder` by calling `fill` on a private one beside it and moving that into place.

    Several processes may do so at once: one wins, the others use what it made. `fill` returns
    what the manifest should say besides the files' sizes.
    """
    if is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        notes = fill(work)
        sizes = {p.name: p.stat().st_size for p in sorted(work.iterdir())}
        (work / MANIFEST).write_text(json.dumps({**notes, "files": sizes}, indent=2), encoding="utf-8")
        work.chmod(0o755)
        _move_into_place(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _move_into_place(work: Path, folder: Path) -> None:
    """A rename replaces only an empty folder, so whoever comes second sees it fail."""
    try:
        work.replace(folder)
    except OSError:
        if is_whole(folder):
            return
        # A damaged folder from a broken disk or a careless hand: out of the way, then once more.
        rubbish = Path(tempfile.mkdtemp(prefix=".damaged-", dir=folder.parent))
        with contextlib.suppress(FileNotFoundError):
            folder.replace(rubbish)
        try:
            work.replace(folder)
        except OSError:
            if not is_whole(folder):
                raise
        finally:
            shutil.rmtree(rubbish, ignore_errors=True)


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
