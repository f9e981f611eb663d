"""A gateway's own settings, checked by name; what a later version brings is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlx_notebook.core.options import as_int
from mlx_notebook.core.placement import Reason
from mlx_notebook.errors import UnsupportedRequest
from mlx_notebook.gateway.sizes import parse_bytes

DEFAULT_CHUNK = 128
"""Prompt tokens a chunk: how long a cancel may wait, against the cost of more forwards."""

AUTO_BUDGET_SHARE = 0.8
"""Of the memory that is free after the load, how much the rows may take."""

DTYPES = ("float32", "float16", "bfloat16", "4bit")


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked settings. `kv_budget` and `batch` are None for "auto"."""

    batch: int | None
    kv_budget: int | None
    prompt_cache: int
    chunk: int
    max_queued: int
    dtype: str | None
    revision: str | None
    trust_remote_code: bool
    name: str | None

    def budget(self, free_bytes: int) -> int:
        """Bytes that all rows together may take, given what the load left free."""
        return int(free_bytes * AUTO_BUDGET_SHARE) if self.kv_budget is None else self.kv_budget


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
) -> Settings:
    """Check a gateway's settings before anything is loaded.

    Raises:
        TypeError, ValueError: naming the setting and what it takes.
        UnsupportedRequest: a setting that a later version brings.
    """
    _later("kv", kv, "native", "quantised KV caches")
    _later("deterministic", deterministic, False, "deterministic batches")
    _later("policy", policy, "priority", "other policies")
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
        chunk=DEFAULT_CHUNK
        if prefill_chunk is None
        else as_int("prefill_chunk", prefill_chunk, 1, 1_000_000, "a whole number of tokens from 1, or None"),
        max_queued=as_int("max_queued", max_queued, 1, 10_000_000, "a whole number from 1"),
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        name=name,
    )


def _later(name: str, value: Any, only: Any, what: str) -> None:
    if type(value) is type(only) and value == only:
        return
    text = f"{name}={value!r} is not served by this version, only {only!r}: {what} come with a later one."
    raise UnsupportedRequest(text, reasons=[Reason(f"{name}-unsupported", text)])
