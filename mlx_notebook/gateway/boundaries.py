"""Where another prompt is likely to part from this one: the positions at which a state is worth keeping.

Only for models whose kept states cannot be cut back (wrapped windows, recurrent layers): the others
serve any common beginning from what is kept at the end. Two places matter in a conversation: where
an edited last message would begin to differ, and up to where the next turn repeats this prompt.
Both are found by encoding such a neighbour and comparing, so that no template needs to be known. A third is where
the prompts of one call part from each other. One within
the first few tokens (all texts share a template's head) is none: nobody would start from so little, and a chunk
that ends there would keep a short prompt from being read together with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.prefix import MIN_REUSE
from mlx_notebook.core.scheduler_settings import WORTH_WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EDITED = "0"
"""A stand-in for another last message; any text serves that begins unlike most."""


def boundaries_of(prompt: Any, ids: Sequence[int], encode: Callable[[Any], Sequence[int]]) -> tuple[int, ...]:
    """Positions in `ids`, ascending, each leaving at least one token to compute.

    Args:
        prompt: text or messages, as the user gave it; ids have no neighbours.
        ids: its tokens.
        encode: tokens of another prompt under the same options.
    """
    messages = _messages(prompt)
    if not messages:
        return ()
    last = messages[-1]
    neighbours: list[Any] = [[*messages[:-1], {**last, "content": EDITED}]]
    if last.get("role") == "user":
        turn = [{"role": "assistant", "content": EDITED}, {"role": "user", "content": EDITED}]
        neighbours.append([*messages, *turn])
    found = set()
    for neighbour in neighbours:
        try:
            other = encode(neighbour)
        except (TypeError, ValueError):  # a template that refuses the neighbour: nothing is lost but a saving
            continue
        found.add(min(_common(ids, other), len(ids) - 1))
    return tuple(sorted(position for position in found if position >= MIN_REUSE))


def shared_by(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The position up to which all of these prompts begin alike; none for one prompt, or too few tokens.

    The scheduler finds by itself what waiting rows share with one that is read. This is for the one that is read in a
    single chunk before it has heard of the others.
    """
    if len(prompts) < 2:
        return ()
    # In order of their tokens, whatever the first and the last have in common all have.
    shared = min(_common(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
    return (shared,) if shared >= WORTH_WAITING else ()


def _messages(prompt: Any) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    items = list(prompt)
    return [dict(item) for item in items] if items and all(isinstance(item, Mapping) for item in items) else []


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
