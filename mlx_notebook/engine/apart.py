"""Drawing for many rows in one operation, and for each by itself where that fails.

What a row draws depends on its own logits, seed and token number alone, so apart it gets the token that it would have
had among the others, and only a row whose own draw fails ends.

A draw may also fail later, as it is handed to the device with all else of the step, and then nobody can tell whose it
was: that fails the whole step. Its rows are read again, and the draws that were lost are waited for one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

Failure = tuple[str, str]


def together_or_apart(
    rows: Sequence[T], draw: Callable[[Sequence[T]], None], *, apart: bool
) -> list[tuple[T, Failure]]:
    """Have these rows drawn, in one call if that works and `apart` does not forbid it; those that failed, and why."""
    if not apart and _worked(rows, draw):
        return []
    failed: list[tuple[T, Failure]] = []
    for row in rows:
        try:
            draw([row])
        except BaseException as error:  # noqa: BLE001 - that row has no next token; the others do
            failed.append((row, as_text(error)))
    return failed


def _worked(rows: Sequence[T], draw: Callable[[Sequence[T]], None]) -> bool:
    try:
        draw(rows)
    except BaseException:  # noqa: BLE001 - whose it was shows when each is drawn alone
        return False
    return True
