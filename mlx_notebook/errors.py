"""Every error that the package raises on purpose, as one tree.

    MlxNotebookError
    +-- ModelNotFound            (also LookupError)
    +-- ModelLoadError
    |   +-- BackendMissing       (also ImportError)
    +-- QueueFull
    +-- OverContext              (also ValueError)
    +-- OverBudget               (also MemoryError)
    +-- UnsupportedRequest       (also ValueError)
    +-- GrammarError             (also ValueError)
    +-- PlacementMismatch        (also ValueError)
    +-- GatewayClosed
    +-- GatewayDead
    +-- WouldDeadlock            (also RuntimeError)
    +-- RowFailed
    +-- RowsFailed
    +-- Cancelled

Each carries the object that it is about and says what to do next. Nothing here imports
anything of ours at run time: errors belong to no room.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pandas import DataFrame

    from mlx_notebook.core.placement import Placement, Reason
    from mlx_notebook.core.results import Result


class MlxNotebookError(Exception):
    """Root of all errors of this package."""


class ModelNotFound(MlxNotebookError, LookupError):  # noqa: N818 - a public name, fixed
    """No model stands behind this name.

    Attributes:
        name: what was asked for.
        suggestions: names that were probably meant, best first.
    """

    def __init__(self, message: str, *, name: str = "", suggestions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.name = name
        self.suggestions = tuple(suggestions)


class ModelLoadError(MlxNotebookError):
    """The model was found but cannot be used; the message says why and what helps.

    Attributes:
        model: the name or path that was being loaded (of a library, where that is what cannot be used).
    """

    def __init__(self, message: str, *, model: str = "") -> None:
        super().__init__(message)
        self.model = model


@contextmanager
def about_model(model: str) -> Iterator[None]:
    """Have a ModelLoadError from inside carry the model, where what raised it knew only a part of it."""
    try:
        yield
    except ModelLoadError as error:
        error.model = error.model or model
        raise


class BackendMissing(ModelLoadError, ImportError):  # noqa: N818 - reads as what it says
    """MLX itself cannot be imported; the message holds the exact command that mends it."""


class QueueFull(MlxNotebookError):  # noqa: N818 - a public name, fixed
    """The gateway's queue holds as many rows as it may.

    Attributes:
        queued: rows waiting now.
        limit: how many may wait (`max_queued`).
    """

    def __init__(self, message: str, *, queued: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.queued = queued
        self.limit = limit


class OverContext(MlxNotebookError, ValueError):  # noqa: N818 - a public name, fixed
    """The prompt leaves no room for an answer within the model's context.

    Attributes:
        needed: tokens that the prompt and one token of an answer take.
        limit: the model's context length, in tokens.
    """

    def __init__(self, message: str, *, needed: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.needed = needed
        self.limit = limit


class OverBudget(MlxNotebookError, MemoryError):  # noqa: N818 - a public name, fixed
    """Something needs more memory than it may have.

    Attributes:
        needed: bytes needed.
        budget: bytes allowed.
    """

    def __init__(self, message: str, *, needed: int = 0, budget: int = 0) -> None:
        super().__init__(message)
        self.needed = needed
        self.budget = budget


class UnsupportedRequest(MlxNotebookError, ValueError):  # noqa: N818 - a public name, fixed
    """A known option that this version or this model cannot honour; nothing was submitted.

    Attributes:
        reasons: every reason, each with a code and a sentence.
    """

    def __init__(self, message: str, *, reasons: Sequence[Reason] = ()) -> None:
        super().__init__(message)
        self.reasons = tuple(reasons)


class GrammarError(MlxNotebookError, ValueError):
    """A schema, pattern, list of choices or grammar that no answer can be held to; nothing was submitted.

    Attributes:
        option: `json_schema`, `regex`, `choices` or `grammar`.
        place: where in it: a JSON pointer ("/properties/age"), "line 2, column 7", "choice 3"; empty for all of it.
    """

    def __init__(self, message: str, *, option: str = "", place: str = "") -> None:
        super().__init__(message)
        self.option = option
        self.place = place


class PlacementMismatch(MlxNotebookError, ValueError):  # noqa: N818 - a public name, fixed
    """The placement was made for another request or by another gateway, or before this one was restarted.

    Attributes:
        placement: what was given as `placement=`.
    """

    def __init__(self, message: str, *, placement: Placement | None = None) -> None:
        super().__init__(message)
        self.placement = placement


class GatewayClosed(MlxNotebookError):  # noqa: N818 - a public name, fixed
    """The gateway was closed; make a new one.

    Attributes:
        gateway: the gateway's name.
    """

    def __init__(self, message: str, *, gateway: str = "") -> None:
        super().__init__(message)
        self.gateway = gateway


class GatewayDead(MlxNotebookError):  # noqa: N818 - a public name, fixed
    """The engine thread died (or stayed behind in a parent process); `restart()` brings it back.

    Attributes:
        gateway: the gateway's name.
        traceback_text: what killed the thread, as text; empty where nothing was recorded.
    """

    def __init__(self, message: str, *, gateway: str = "", traceback_text: str = "") -> None:
        super().__init__(message)
        self.gateway = gateway
        self.traceback_text = traceback_text


class WouldDeadlock(MlxNotebookError, RuntimeError):  # noqa: N818 - reads as what it says
    """A blocking call on the engine thread, or by the holder of the device lease, that would wait for itself."""


class RowFailed(MlxNotebookError):  # noqa: N818 - a public name, fixed
    """One request failed; the batch and the gateway go on.

    Attributes:
        result: what the row had produced until then.
        traceback_text: the failing code's traceback as text. The frames themselves are not
            kept: they would pin the arrays they hold.
    """

    def __init__(self, message: str, *, result: Result | None = None, traceback_text: str = "") -> None:
        super().__init__(message)
        self.result = result
        self.traceback_text = traceback_text


class RowsFailed(MlxNotebookError):  # noqa: N818 - reads as what it says
    """A row of `map` or `compare` with errors="raise" failed, or cannot be run; the rest was cancelled.

    Attributes:
        frame: what there is so far, a pandas frame as the call would have returned it.
    """

    def __init__(self, message: str, *, frame: DataFrame | None = None) -> None:
        super().__init__(message)
        self.frame = frame


class Cancelled(MlxNotebookError):  # noqa: N818 - a public name, fixed
    """The request was cancelled before it was done.

    Attributes:
        result: what the row had produced until then.
    """

    def __init__(self, message: str, *, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result
