"""What happened (inputs of the scheduler) and what to do (its instructions).

Each event carries `at_ns`, monotonic nanoseconds stamped by the engine thread as it drained the
event. Steps are columnar: one object a step, whatever the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlx_notebook.core.placement import Placement
    from mlx_notebook.core.request import Request
    from mlx_notebook.core.results import TokenLogprob
    from mlx_notebook.core.rows import FinishDetail, FinishReason


# ---------------------------------------------------------------- what happened


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request entered the queue; `asked_ns` is when the caller asked (its own clock reading, payload)."""

    at_ns: int
    asked_ns: int
    request: Request
    placement: Placement


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Somebody wants the row gone: the user, or the gateway as it closes."""

    at_ns: int
    row_id: int
    detail: FinishDetail


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """The device is ours, by the place in its line that has this number."""

    at_ns: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease was broken, or its request was given up."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class LeaseWanted:
    """Somebody waits for the device behind this place of ours: rows submitted from now on do not go on it."""

    at_ns: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class LeaseUnwanted:
    """Nobody waits behind this place any more."""

    at_ns: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """Positions [start, stop) of one row's known tokens: the prompt, and after a rewind the committed answer too.

    With `last`, `stop` is all that is known: the last of them is fed by the row's first decode step.
    """

    row_id: int
    start: int
    stop: int
    last: bool

    @property
    def computed(self) -> int:
        """Tokens that this part runs through the model."""
        return self.stop - self.start - self.last


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The backend computed these parts, in one forward where there are several.

    `errors` names the rows whose part failed, as row id to (message, traceback text); those rows end.
    """

    at_ns: int
    began_ns: int
    parts: tuple[PrefillPart, ...]
    errors: Mapping[int, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """A row's state became a prompt-cache entry of exactly so many of its tokens; 0 tokens: it could not be kept."""

    at_ns: int
    entry_id: int
    tokens: int
    nbytes: int


class RowOutcome(NamedTuple):
    """What one step brought one row. A tuple: one is made for each token, in a third of the time of a frozen dataclass.

    `token_id` is the committed token (None if the step failed before one). `text` is what may be
    shown now: text that could still begin a stop string is held back until it can't. `finish`
    is set where the row ended at this token by its own doing (end of sequence, stop string,
    callback, length). `error` is (message, traceback text): that row ends, the others go on.
    `shares` are the probability of each choice, then how much of that is a guess: at the end of a row that asked.
    `user_ns` is what the row's own code (callback, processors) took, where that was worth a word, else 0.
    """

    row_id: int
    token_id: int | None
    text: str = ""
    logprob: TokenLogprob | None = None
    finish: tuple[FinishReason, FinishDetail] | None = None
    error: tuple[str, str] | None = None
    user_ns: int = 0
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepDone:
    """One decode step. A row that was in it for the first time has no outcome yet: its first token is under way."""

    at_ns: int
    began_ns: int
    outcomes: tuple[RowOutcome, ...]


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A forward or an allocation failed for all these rows; none of them committed a token."""

    at_ns: int
    row_ids: tuple[int, ...]
    error: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Turn:
    """The engine thread is free: decide what to compute next.

    `order` is what a user's policy answered (row ids, best first); None where it was not asked.
    """

    at_ns: int
    order: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    """The user's policy failed and is asked no more. Decides nothing."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class BudgetSet:
    """The rows and entries of this gateway may from now on take so many bytes together."""

    at_ns: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """The gateway closes: no row lives on."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """Compute nothing more until told; rows keep what they have."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """Go on."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class StepAsked:
    """Pause, but compute so many turns first (each at most one chunk and one decode step)."""

    at_ns: int
    steps: int = 1


@dataclass(frozen=True, slots=True)
class PaceAsked:
    """Slow motion: rest so long after each turn that computed something; 0 for full speed. Decides nothing."""

    at_ns: int
    delay_ns: int


@dataclass(frozen=True, slots=True)
class PriorityAsked:
    """Another priority for a row; one that runs already keeps running."""

    at_ns: int
    row_id: int
    priority: int


@dataclass(frozen=True, slots=True)
class ExtendAsked:
    """So many more tokens for a row, if context and budget allow it; answered by `Extended`."""

    at_ns: int
    row_id: int
    tokens: int


Event = (
    Submitted
    | CancelAsked
    | LeaseGranted
    | LeaseLost
    | LeaseWanted
    | LeaseUnwanted
    | PrefillDone
    | Kept
    | StepDone
    | StepFailed
    | Turn
    | PolicyFailed
    | BudgetSet
    | CloseAsked
    | PauseAsked
    | ResumeAsked
    | StepAsked
    | PaceAsked
    | PriorityAsked
    | ExtendAsked
)


# ---------------------------------------------------------------- what to do


@dataclass(frozen=True, slots=True)
class AskLease:
    """Queue for the device."""


@dataclass(frozen=True, slots=True)
class GiveLease:
    """Synchronise the stream and hand the device on."""


@dataclass(frozen=True, slots=True)
class Open:
    """Give a row its state in the backend; what it owns passes to the backend now.

    With `entry_id`, it starts from the first `cached_tokens` tokens of that entry, which stays as it is.
    """

    row_id: int
    entry_id: int | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prefill:
    """Compute these parts: one row's chunk, or a cohort of short prompts in one forward."""

    parts: tuple[PrefillPart, ...]


@dataclass(frozen=True, slots=True)
class Decode:
    """One step: commit one token of each of these rows, dispatch the next."""

    row_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Free a row's state in the backend; with `keep_as`, its caches become that entry, without a copy.

    `keep_tokens` caps how many of the row's tokens the entry stands for; None for all that were fed.
    """

    row_id: int
    keep_as: int | None = None
    keep_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Copy a row's state, exactly at its first `tokens` tokens, into a new entry; the row goes on."""

    row_id: int
    entry_id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Free a prompt-cache entry; rows that started from it keep what they have."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class Rewind:
    """Throw away a row's caches but keep what it committed: it will be prefilled again, answer included."""

    row_id: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The row is over: tell its handle. `opened` says whether the backend ever held it."""

    row_id: int
    reason: FinishReason
    detail: FinishDetail | None
    error: tuple[str, str] | None = field(default=None)
    opened: bool = True


@dataclass(frozen=True, slots=True)
class Extended:
    """The answer to `ExtendAsked`: from now on the row may write `max_tokens`; or why it may not.

    `refused` is None, or "over" (the row is), "context" or "budget"; then `needed` and `limit` are
    tokens or bytes, and `max_tokens` is what still holds.
    """

    row_id: int
    max_tokens: int
    refused: str | None = None
    needed: int = 0
    limit: int = 0


Instruction = AskLease | GiveLease | Open | Prefill | Decode | Keep | Drop | Evict | Rewind | Settle | Extended
