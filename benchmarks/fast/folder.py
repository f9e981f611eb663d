"""For peers in processes of their own: a loaded model as a folder that they read, and prompts as text."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mlx_lm.utils import save_config, save_model

from benchmarks.fast.shapes import GROUP

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.fast.shapes import Loaded

STORY = "a fox and a hen keep a small shop by the river and sell what the others find in the rain; "


def save_folder(loaded: Loaded, folder: Path) -> None:
    """Weights, configuration and tokenizer. No token ends an answer there: the one that is named never comes."""
    save_model(folder, loaded.model)
    save_config(config_of(loaded), folder / "config.json")
    loaded.tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["eos_token"] = None  # else mlx-lm ends answers there, whatever the configuration says
    path.write_text(json.dumps(settings), encoding="utf-8")


def config_of(loaded: Loaded) -> dict[str, Any]:
    """What `config.json` holds: nothing that is None, which Transformers takes for a value and refuses."""
    said = {name: value for name, value in asdict(loaded.model.args).items() if value is not None}
    config = {**said, "eos_token_id": [never(loaded)], "dtype": _name(loaded)}
    if loaded.shape.bits is not None:
        config["quantization"] = {"group_size": GROUP, "bits": loaded.shape.bits}
    return config


def never(loaded: Loaded) -> int:
    """An id that no model of this vocabulary can say."""
    return loaded.vocab + 1


def _name(loaded: Loaded) -> str:
    return str(loaded.shape.dtype).removeprefix("mlx.core.")


def text_of(loaded: Loaded, number: int, length: int) -> str:
    """A prompt of about so many tokens (exactly, where a character is one) that begins unlike every other number's."""
    ids = loaded.tokenizer.encode(f"{str(number)[::-1]} {STORY * (1 + length // 12)}", add_special_tokens=False)
    return str(loaded.tokenizer.decode(ids[:length]))
