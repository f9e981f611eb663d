"""What a run of `map` was: enough to tell whether another call asks for the same, and what differs if not.

An identity is plain JSON: it heads the saved file and stands in a frame's `attrs`. Prompts are in it as
checksums (SHA-256), so that it stays small and tells nothing of their text.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlx_notebook.gateway.frames.rows import Answering, Row

KEY = "mlx_notebook"
"""Where the identity stands in `DataFrame.attrs`."""

FORMAT = 1
PER_ROW = "one value a row"

# These change when an answer comes, or whether it is waited for, and not what it says.
_NOT_THE_ANSWER = {"seed", "n", "priority", "deadline", "cache_prompt"}


def identity(
    gateway: Answering,
    rows: Sequence[Row],
    *,
    template: str | None,
    options: Mapping[str, Any],
    per_row: Sequence[str],
    n: int,
    seed: int,
) -> dict[str, Any]:
    """The identity of one call; `options` are those for all rows, `per_row` names those that a Series gives."""
    held = gateway.check_options(**options).to_dict()
    shown = {name: value for name, value in held.items() if name not in _NOT_THE_ANSWER and name not in per_row}
    whole = {
        "kind": "map",
        "format": FORMAT,
        "model": gateway.model_name,
        "revision": gateway.revision,
        "template": template,
        "options": {**shown, **dict.fromkeys((name for name in per_row if name not in _NOT_THE_ANSWER), PER_ROW)},
        "n": n,
        "seed": seed,
        "rows": len(rows),
        "prompts": checksum([row_checksum(row) for row in rows]),
    }
    plain: dict[str, Any] = json.loads(json.dumps(whole, default=repr))
    return plain


def row_checksum(row: Row) -> str:
    """A short checksum of a row's prompt and its own options."""
    own = {name: value for name, value in row.own.items() if name == "seed" or name not in _NOT_THE_ANSWER}
    return checksum([row.prompt, own])[:16]


def checksum(value: Any) -> str:
    """SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a call asks for otherwise than the run before; empty if it asks for the same."""
    found = [
        f"{name} was {then.get(name)!r} and is {now.get(name)!r}"
        for name in ("model", "revision", "template", "n", "seed")
        if then.get(name) != now.get(name)
    ]
    options_then, options_now = then.get("options", {}), now.get("options", {})
    found += [
        f"{name} was {options_then.get(name)!r} and is {options_now.get(name)!r}"
        for name in dict.fromkeys([*options_then, *options_now])
        if options_then.get(name) != options_now.get(name)
    ]
    if then.get("rows") != now.get("rows"):
        found.append(f"there were {then.get('rows')} rows and are {now.get('rows')}")
    elif then.get("prompts") != now.get("prompts") and not found:
        found.append("the prompts (or the values that a Series gives each row) are others")
    return found
