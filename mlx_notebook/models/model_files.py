"""What lies in a model's folder, read and checked before anything is loaded."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import ModelLoadError
from mlx_notebook.models.safetensors_file import TensorInfo, read_header

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model", "tokenizer_config.json")


@dataclass(frozen=True)
class ModelFiles:
    """A checked folder: its configuration, its tensors by name, and what the model's makers recommend."""

    folder: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    tensors: dict[str, TensorInfo]


def setting(config: dict[str, Any], key: str) -> Any:
    """A value of config.json, also where a multimodal model keeps it under `text_config`; None where it has none."""
    if config.get(key) is not None:
        return config[key]
    inner = config.get("text_config")
    return inner.get(key) if isinstance(inner, dict) else getattr(inner, key, None)


def read_model_files(folder: Path, *, trust_remote_code: bool) -> ModelFiles:
    """Read and check a model's folder without importing MLX or loading a weight.

    Raises:
        ModelLoadError: a file is missing or damaged, the architecture is not supported, or the
            model needs code of its own and `trust_remote_code` is false.
    """
    config = read_json(folder / "config.json", required=True)
    if not isinstance(config.get("model_type"), str):
        raise ModelLoadError(
            f"{folder / 'config.json'} names no 'model_type', so its architecture is unknown.", model=str(folder)
        )
    _check_code(folder, config, trust_remote_code)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelLoadError(
            f"{folder} holds no tokenizer (looked for {', '.join(TOKENIZER_FILES)}). Copy it from the original model.",
            model=str(folder),
        )
    return _read_files(folder, config)


def read_headers(folder: Path) -> ModelFiles:
    """What a folder holds, whether or not it could be loaded: for its size.

    Raises:
        ModelLoadError: a file is missing or damaged.
    """
    return _read_files(folder, read_json(folder / "config.json", required=True))


def _read_files(folder: Path, config: dict[str, Any]) -> ModelFiles:
    return ModelFiles(
        folder, config, read_json(folder / "generation_config.json", required=False), _read_weights(folder)
    )


def read_json(path: Path, *, required: bool) -> dict[str, Any]:
    """A JSON object from a file; empty where the file is absent and not required.

    Raises:
        ModelLoadError: absent though required, or no JSON object.
    """
    if not path.is_file():
        if required:
            raise ModelLoadError(
                f"{path.parent} lacks {path.name}; it is not a model folder in mlx-lm's form.", model=str(path.parent)
            )
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"{path} is not readable JSON ({error}). Download it again.", model=str(path.parent)
        ) from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} holds {type(value).__name__}, not a JSON object.", model=str(path.parent))
    return value


def _check_code(folder: Path, config: dict[str, Any], trusted: bool) -> None:
    """Refuse what would run code from the folder, and architectures that nothing here knows."""
    known = is_known_architecture(config)
    own_file = config.get("model_file")
    tokenizer_map = read_json(folder / "tokenizer_config.json", required=False).get("auto_map")
    # With an architecture that mlx-lm has, config.json's auto_map is for other libraries: its code is never run.
    wants = own_file or tokenizer_map or (config.get("auto_map") if not known else None)
    if wants and not trusted:
        what = own_file if isinstance(own_file, str) else "its auto_map"
        raise ModelLoadError(
            f"This model runs Python code of its own ({what} in {folder}). Read that code; if you trust it, "
            "pass trust_remote_code=True to Gateway.",
            model=str(folder),
        )
    if not known and not own_file:
        raise ModelLoadError(
            f"Architecture {config['model_type']!r} is not supported by the installed mlx-lm. "
            "`pip install -U mlx-lm` may bring it; the names it knows are its modules in mlx_lm.models.",
            model=str(folder),
        )


def is_known_architecture(config: dict[str, Any]) -> bool:
    """Whether mlx-lm has a module for the model's type (by its own renaming table)."""
    from mlx_lm import utils

    name = str(config["model_type"])
    remapped = getattr(utils, "MODEL_REMAPPING", {}).get(name, name)
    if not str(remapped).isidentifier():
        return False
    return importlib.util.find_spec(f"mlx_lm.models.{remapped}") is not None


def _read_weights(folder: Path) -> dict[str, TensorInfo]:
    files = sorted(folder.glob("model*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        wanted = set(read_json(index, required=True).get("weight_map", {}).values())
        missing = sorted(name for name in wanted if not (folder / name).is_file())
        if missing:
            raise ModelLoadError(
                f"{folder} lacks {len(missing)} of {len(wanted)} weight files, the first being {missing[0]}. "
                "Download it again.",
                model=str(folder),
            )
    if not files:
        raise ModelLoadError(
            f"{folder} holds no weights (model*.safetensors).{_other_weights(folder)}", model=str(folder)
        )
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        tensors |= read_header(file)
    return tensors


def _other_weights(folder: Path) -> str:
    for pattern in ("*.bin", "*.pth", "*.safetensors", "*.npz", "*.gguf"):
        found = next(folder.glob(pattern), None)
        if found is not None:
            return (
                f" It holds {found.name}: give the .gguf file itself."
                if found.suffix == ".gguf"
                else f" It holds {found.name}; convert the model with "
                f"`mlx_lm.convert --hf-path {folder} --mlx-path NEW_FOLDER`."
            )
    return ""
