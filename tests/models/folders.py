"""mlx-lm folders with small random models, whole and broken in one way or another."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.small_models import small

if TYPE_CHECKING:
    from pathlib import Path


def write_folder(folder: Path, kind: str = "llama", *, dtype: str = "float32", **config: Any) -> Any:
    """A whole folder; the model that it holds. `config` overrides or adds to config.json."""
    model, tokenizer = small(kind)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    arguments = {key: value for key, value in asdict(model.args).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(arguments | {"eos_token_id": 2} | config))
    flat = cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))
    weights = {name: value.astype(getattr(mx, dtype)) for name, value in flat}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return model


def write_quantised_folder(folder: Path, bits: int = 4, group_size: int = 32) -> Any:
    """A folder as `mlx_lm.convert -q` writes one; the quantised model that it holds."""
    import mlx.nn as nn  # noqa: PLR0402 - mlx.nn re-exports by star, which the short form hides from mypy

    model, tokenizer = small("llama")
    quantise: Any = getattr(nn, "quantize")  # noqa: B009 - the same
    quantise(model, group_size=group_size, bits=bits)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    arguments = {key: value for key, value in asdict(model.args).items() if value is not None}
    settings = {"eos_token_id": 2, "quantization": {"group_size": group_size, "bits": bits}}
    (folder / "config.json").write_text(json.dumps(arguments | settings))
    weights = dict(cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return model


def change_config(folder: Path, **changes: Any) -> None:
    """Override keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
