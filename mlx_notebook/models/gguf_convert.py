"""Turns a GGUF file into an mlx-lm folder in the cache, once for each file and converter version.

Quantised tensors that MLX's layout holds exactly stay quantised; `load` decides later in
which type the model runs. Imports no MLX.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import ModelLoadError, about_model
from mlx_notebook.models.cache_folder import build_folder, cache_root, is_whole, sha256_of
from mlx_notebook.models.gguf_families import Placed, config_of, place_tensors, unpermuted_rows
from mlx_notebook.models.gguf_file import GgufFile, check_header, open_gguf
from mlx_notebook.models.gguf_tensors import (
    GROUP_SIZE,
    KEPT_BITS,
    is_kept,
    shape_of,
    stored_arrays,
    stored_form,
    type_name,
)
from mlx_notebook.models.gguf_tokenizer import tokenizer_files
from mlx_notebook.models.safetensors_file import BYTES_OF, TensorInfo, write_file

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

# Part of a converted folder's name: raise it whenever the conversion changes.
CONVERTER_VERSION = 1

Progress = Callable[[str, float | None], None]


def convert_gguf(path: Path, progress: Progress | None = None) -> Path:
    """The mlx-lm folder that `path` becomes; made now if the cache does not hold it.

    Args:
        path: a GGUF file of the llama, qwen2 or gemma3 family.
        progress: called with a word for what is being done and the share done (None where unknown).

    Raises:
        ModelNotFound: there is no such file.
        ModelLoadError: the file cannot be used (the message says why), or the disk is full.
    """
    check_header(path)
    folder = converted_folder(path)
    if is_whole(folder):  # the same bytes were converted before, so there is nothing to check again
        return folder
    file = open_gguf(path)
    with about_model(str(path)):
        try:
            return build_folder(folder, lambda work: _fill(work, file, progress))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ModelLoadError(
                f"{path.name} contradicts itself and cannot be converted ({type(error).__name__}: {error}). "
                "Download it again, or use an mlx-lm folder or a Hugging Face id of this model."
            ) from error


def converted_folder(path: Path) -> Path:
    """Where the folder lies that `path` becomes, whether it is there or not."""
    return cache_root() / f"{_plain_name(path)}-{sha256_of(path)[:16]}-v{CONVERTER_VERSION}"


def _plain_name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem)[:80]


def _fill(work: Path, file: GgufFile, progress: Progress | None) -> dict[str, str]:
    config = config_of(file)
    placed = place_tensors(file, config)
    files = tokenizer_files(file)
    declared = _declared(file, placed)
    _check_disk(work, declared)
    _write_json(
        work / "config.json", config | _types(file, placed) | _token_ids(files.bos_token_id, files.eos_token_ids)
    )
    _write_json(work / "generation_config.json", _token_ids(files.bos_token_id, files.eos_token_ids))
    _write_json(work / "tokenizer.json", files.tokenizer)
    _write_json(work / "tokenizer_config.json", files.config)
    write_file(work / "model.safetensors", declared, _arrays(file, placed, progress))
    return {"source": file.path.name, "sha256": sha256_of(file.path), "converter": str(CONVERTER_VERSION)}


def _declared(file: GgufFile, placed: dict[str, Placed]) -> dict[str, TensorInfo]:
    return {
        _stored_name(place, stored.suffix): TensorInfo(stored.dtype, stored.shape)
        for name, place in placed.items()
        for stored in stored_form(file.tensors[name])
    }


def _stored_name(place: Placed, suffix: str) -> str:
    return f"{place.name}.{suffix or place.leaf}"


def _arrays(
    file: GgufFile, placed: dict[str, Placed], progress: Progress | None
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for done, (name, place) in enumerate(placed.items()):
        if progress is not None:
            progress("converting", done / len(placed))
        tensor = file.tensors[name]
        order = unpermuted_rows(shape_of(tensor)[0], place.heads) if place.heads else None
        for stored, array in zip(stored_form(tensor), stored_arrays(tensor, order, place.offset), strict=True):
            yield _stored_name(place, stored.suffix), array


def _types(file: GgufFile, placed: dict[str, Placed]) -> dict[str, Any]:
    """The `quantization` part of config.json, layer by layer, and the type to run in where nobody asks for another."""
    kept = {
        place.name: KEPT_BITS[type_name(file.tensors[name])]
        for name, place in placed.items()
        if is_kept(file.tensors[name])
    }
    has_bfloat = any(type_name(t) == "BF16" for t in file.tensors.values())
    types: dict[str, Any] = {"torch_dtype": "bfloat16" if has_bfloat else "float16"}
    if kept:
        usual = max(set(kept.values()), key=list(kept.values()).count)
        layers = {name: {"group_size": GROUP_SIZE, "bits": bits} for name, bits in kept.items() if bits != usual}
        types["quantization"] = {"group_size": GROUP_SIZE, "bits": usual, **layers}
    return types


def _token_ids(bos: int | None, eos: list[int]) -> dict[str, Any]:
    ids: dict[str, Any] = {}
    if bos is not None:
        ids["bos_token_id"] = bos
    if eos:
        ids["eos_token_id"] = eos if len(eos) > 1 else eos[0]
    return ids


def _check_disk(work: Path, declared: dict[str, TensorInfo]) -> None:
    needed = sum(info.size * BYTES_OF[info.dtype] for info in declared.values()) + 64_000_000
    free = shutil.disk_usage(work).free
    if needed > free:
        raise ModelLoadError(
            f"Converting needs {needed / 1e9:.1f} GB on disk and {work.parent} has {free / 1e9:.1f} GB. "
            "Free some, or set MLX_NOTEBOOK_CACHE to a folder on another disk."
        )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=None), encoding="utf-8")
