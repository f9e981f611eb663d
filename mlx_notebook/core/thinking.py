"""Thinking apart from answering: splits a model's text at its thinking marks while it streams.

A block of thinking stands where an answer would begin: first of all, or right after another block; or the prompt
itself opened it. Marks in the middle of an answer (a model that writes about them) are text. Text that could
still turn out to be a mark is held back until it is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BETWEEN_BLOCKS = "\n\n"


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """What a model writes around its thinking, as text and as token ids."""

    start: str
    end: str
    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]

    def left_open_by(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt ends inside a block of thinking, so that the answer begins in it.

        By ids, as in mlx-lm's server: the same characters in a user's text are other tokens.
        """
        return _last(prompt_ids, self.start_ids) > _last(prompt_ids, self.end_ids)


def _last(ids: Sequence[int], wanted: tuple[int, ...]) -> int:
    """Where `wanted` begins for the last time; -1 if it does not occur."""
    size = len(wanted)
    for at in range(len(ids) - size, -1, -1):
        if ids[at] == wanted[0] and tuple(ids[at : at + size]) == wanted:
            return at
    return -1


class ThinkingSplitter:
    """Splits one row's text. However the text was cut into pieces, the sums are the same.

    Args:
        marks: the model's.
        inside: whether the prompt opened a block.
    """

    def __init__(self, marks: ThinkingMarks, *, inside: bool = False) -> None:
        self._marks = marks
        self._inside = inside
        self._answering = False
        self._blocks = int(inside)
        self._held = ""

    @property
    def inside(self) -> bool:
        """Whether the row is thinking now."""
        return self._inside

    @property
    def thought(self) -> bool:
        """Whether there was any block of thinking so far."""
        return self._blocks > 0

    def push(self, text: str) -> tuple[str, str]:
        """Take the next piece; (thinking, answer) that are certain now."""
        self._held += text
        thinking: list[str] = []
        while not self._answering:
            moved = self._leave(thinking) if self._inside else self._enter(thinking)
            if not moved:
                break
        if not self._answering:
            return "".join(thinking), ""
        answer, self._held = self._held, ""
        return "".join(thinking), answer

    def flush(self) -> tuple[str, str]:
        """No text will follow: give out what was held back."""
        held, self._held = self._held, ""
        if self._inside:
            return held, ""
        return "", held.lstrip() if self._blocks else held

    def _leave(self, thinking: list[str]) -> bool:
        """Inside a block: out to its end mark if that is there, else show all but what may be its beginning."""
        at = self._held.find(self._marks.end)
        if at < 0:
            keep = _overlap(self._held, self._marks.end)
            thinking.append(self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
            return False
        thinking.append(self._held[:at])
        self._held = self._held[at + len(self._marks.end) :]
        self._inside = False
        return True

    def _enter(self, thinking: list[str]) -> bool:
        """Before an answer: into the next block, or on to the answer; False while that is open."""
        start = self._marks.start
        begun = self._held.lstrip()
        if begun.startswith(start):
            if self._blocks:
                thinking.append(BETWEEN_BLOCKS)
            self._held = begun[len(start) :]
            self._inside = True
            self._blocks += 1
            return True
        if start.startswith(begun):
            return False
        self._answering = True
        if self._blocks:  # the blank lines after a block belong to nobody
            self._held = begun
        return True


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of `mark` (and not all of it)."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0)
