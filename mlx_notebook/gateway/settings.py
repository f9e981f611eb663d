"""A gateway's own settings, checked by name; what a later version brings is refused by name."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.kv_scheme import KVScheme, check_scheme
from mlx_notebook.core.options import as_int, not_served
from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.gateway.sizes import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DTYPES = ("float32", "float16", "bfloat16", "4bit")

LATER_SETTINGS = {"checkpoints": "checkpoints", "draft": "draft models", "adapters": "adapters"}
"""Names that the interface has fixed but this version does not serve, with what brings them."""

OF_A_LOAD = {
    "dtype": "convert the model before, or give Gateway its folder and dtype=",
    "revision": "give Gateway the Hugging Face id and revision=",
    "trust_remote_code": "give Gateway the model's folder and trust_remote_code=",
}
"""Settings of how Gateway reads a model by its name, and the way out where it is given one that is loaded already."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked settings. `kv_budget` and `batch` are None for "auto"."""

    batch: int | None
    kv_budget: int | None
    prompt_cache: int
    chunk: int | None
    deterministic: bool
    policy: BuiltIn | Callable[..., Any]
    kv: KVScheme
    max_queued: int
    dtype: str | None
    revision: str | None
    trust_remote_code: bool
    name: str | None


def check_settings(
    *,
    batch: Any = "auto",
    kv: Any = "native",
    kv_budget: Any = "auto",
    prompt_cache: Any = "1GB",
    deterministic: Any = False,
    policy: Any = "priority",
    prefill_chunk: Any = None,
    max_queued: Any = 10_000,
    dtype: Any = None,
    revision: Any = None,
    trust_remote_code: Any = False,
    name: Any = None,
    **others: Any,
) -> Settings:
    """Check a gateway's settings before anything is loaded.

    Raises:
        TypeError, ValueError: naming the setting and what it takes.
        UnsupportedRequest: a setting that a later version brings.
    """
    for other in others:
        if other in LATER_SETTINGS:
            raise not_served(f"setting {other!r}", other, LATER_SETTINGS[other])
        raise TypeError(f"unknown setting {other!r}{_near(other)}")
    if not isinstance(deterministic, bool):
        raise TypeError(f"deterministic={deterministic!r}: True or False")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: one of {', '.join(DTYPES)}, or None for this machine's best")
    for label, value in (("revision", revision), ("name", name)):
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise TypeError(f"{label}={value!r}: a non-empty string, or None")
    if not isinstance(trust_remote_code, bool):
        raise TypeError(f"trust_remote_code={trust_remote_code!r}: True or False")
    return Settings(
        batch=None if batch == "auto" else as_int("batch", batch, 1, 1024, "'auto' or a whole number from 1 to 1024"),
        kv_budget=None if kv_budget == "auto" else parse_bytes("kv_budget", kv_budget),
        prompt_cache=parse_bytes("prompt_cache", prompt_cache),
        chunk=None
        if prefill_chunk is None
        else as_int("prefill_chunk", prefill_chunk, 1, 1_000_000, "a whole number of tokens from 1, or None"),
        deterministic=deterministic,
        policy=_policy(policy),
        kv=check_scheme(_read_if_file(kv)),
        max_queued=as_int("max_queued", max_queued, 1, 10_000_000, "a whole number from 1"),
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        name=name,
    )


def check_settings_of_loaded(settings: Mapping[str, Any]) -> Settings:
    """The settings of a gateway over a model that is loaded already; raises as `check_settings`.

    Raises:
        ValueError: a setting that only a load by name heeds; the way out is said.
    """
    checked = check_settings(**settings)
    for name, way_out in OF_A_LOAD.items():
        if getattr(checked, name):
            raise ValueError(
                f"{name}={settings[name]!r} says how a model is loaded, and this one is loaded already: {way_out}."
            )
    return checked


def _near(name: str) -> str:
    known = [each for each in signature(check_settings).parameters if each != "others"]
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else f"; known settings: {', '.join(known)}"


def _read_if_file(kv: Any) -> Any:
    """What a `kv_config.json` holds, where a path to one was given."""
    if not isinstance(kv, str | Path) or Path(kv).suffix != ".json":
        return kv
    try:
        return json.loads(Path(kv).read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"kv={str(kv)!r} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"kv={str(kv)!r} isn't JSON: {error}") from error


def _policy(value: Any) -> BuiltIn | Callable[..., Any]:
    if callable(value):
        function: Callable[..., Any] = value
        return function
    if not isinstance(value, str) or value not in list(BuiltIn):
        names = ", ".join(repr(str(name)) for name in BuiltIn)
        raise ValueError(f"policy={value!r}: one of {names}, or a function (waiting, running) -> row ids, best first")
    return BuiltIn(value)
