"""A row: one request's life in the scheduler, and the words for its states.

A row holds only plain facts: counts and times in monotonic nanoseconds, as the engine thread
stamped them. The tokens themselves live with the handle; the arrays live with the backend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_notebook.core.request import Request


class RowStatus(StrEnum):
    """Where a row is. The same words in code, wire, widgets, docs and traces."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """Whether nothing can happen to the row any more."""
        return self in (RowStatus.FINISHED, RowStatus.CANCELLED, RowStatus.FAILED)


class FinishReason(StrEnum):
    """Why a row ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"

    @property
    def status(self) -> RowStatus:
        """The final status that goes with this reason."""
        if self is FinishReason.CANCELLED:
            return RowStatus.CANCELLED
        return RowStatus.FAILED if self is FinishReason.ERROR else RowStatus.FINISHED


class FinishDetail(StrEnum):
    """What exactly ended it."""

    EOS = "eos"
    STOP_STRING = "stop_string"
    CALLBACK = "callback"
    GRAMMAR = "grammar"
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    USER = "user"
    DEADLINE = "deadline"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One prefill chunk: prompt positions [start, stop) computed between two times (ns)."""

    start: int
    stop: int
    began_ns: int
    ended_ns: int


@dataclass(slots=True, eq=False)
class Row:
    """One request in the scheduler; equal to itself alone. All times are monotonic nanoseconds, 0 = not yet.

    `stops` are the places of its prompt at which it leaves an entry for rows that wait for it, each with the most
    tokens that one of those shares with it.
    """

    request: Request
    seq: int
    status: RowStatus = RowStatus.QUEUED
    prefilled: int = 0
    cached_tokens: int = 0
    queued_ns: int = 0
    lease_wanted_ns: int = 0
    admitted_ns: int = 0
    first_token_ns: int = 0
    ended_ns: int = 0
    slot: int = -1
    passed_over: int = 0
    rewinds: int = 0
    token_ids: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    stops: dict[int, int] = field(default_factory=dict)
    finish_reason: FinishReason | None = None
    finish_detail: FinishDetail | None = None

    @property
    def id(self) -> int:
        """The row's number, unique in the process."""
        return self.request.id

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, in tokens."""
        return len(self.request.shape.prompt_ids)

    @property
    def generated_tokens(self) -> int:
        """Tokens committed so far."""
        return len(self.token_ids)

    @property
    def known_tokens(self) -> int:
        """Tokens whose state may be computed: the prompt and what was committed."""
        return len(self.request.shape.prompt_ids) + len(self.token_ids)

    @property
    def opened(self) -> bool:
        """Whether the backend holds state of the row."""
        return self.status in (RowStatus.PREFILL, RowStatus.DECODE) or (self.rewinds > 0 and not self.status.final)

    @property
    def deadline_ns(self) -> int | None:
        """When the row must be over, or None."""
        seconds = self.request.deadline
        return None if seconds is None else self.queued_ns + int(seconds * 1e9)
