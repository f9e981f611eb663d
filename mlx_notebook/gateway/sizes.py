"""Byte arguments: numbers or texts such as "4GB"."""

from __future__ import annotations

import re
from typing import Any

from mlx_notebook.core.options import shown

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}

LARGEST = 2**62


def parse_bytes(name: str, value: object) -> int:
    """A number of bytes from 512, "512", "4GB" (10**9) or "1.5 GiB" (2**30).

    Raises:
        TypeError, ValueError: naming the argument and the forms that it takes.
    """
    if isinstance(value, bool) or not (isinstance(value, float | str) or hasattr(value, "__index__")):
        raise TypeError(f"{name}={shown(value)}: a number of bytes or a text such as '4GB', not {type(value).__name__}")
    if not isinstance(value, str):
        return _in_range(name, value)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{name}={shown(value)}: a number of bytes, or a text such as '4GB', '512MB' or '1.5GiB'")
    return _in_range(name, float(match[1]) * _UNITS[match[2].upper()])


def _in_range(name: str, count: Any) -> int:
    if not 0 <= count <= LARGEST:  # false for NaN, too
        raise ValueError(f"{name}={shown(count)}: bytes from 0 to {show_bytes(LARGEST)}")
    return int(count)


def show_bytes(count: int) -> str:
    """A count of bytes for people: '512 B', '1.3 GB' (powers of ten)."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
