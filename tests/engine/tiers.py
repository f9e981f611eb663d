"""Parameters of which some go with the quick tests and the rest with the slow ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

QUICK_KINDS = ("llama", "mamba2")


def tiered(values: Mapping[str, Any] | Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters, all but the quick ones (named by key or value) marked slow: every subject keeps a quick case."""
    pairs = list(values.items()) if isinstance(values, Mapping) else [(value, value) for value in values]
    missing = set(quick) - {key for key, _ in pairs}
    if missing:
        raise ValueError(f"no such values: {missing}")
    return [pytest.param(value, id=str(key), marks=() if key in quick else pytest.mark.slow) for key, value in pairs]
