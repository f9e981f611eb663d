"""What a view reads of a row: the part of a handle that the notebook's views use.

Views depend on this and not on the gateway's class, so that they can be fed by a fake.
No method may wait: they are called on the publisher thread, for many rows, many times a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.core.results import TokenLogprob
    from mlx_notebook.core.rows import RowStatus


class RowProgress(Protocol):
    """A row's figures at one moment. Counts are tokens, times are milliseconds."""

    @property
    def status(self) -> RowStatus: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def prefilled(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def generated_tokens(self) -> int: ...
    @property
    def decode_tps(self) -> float | None: ...
    @property
    def ttft_ms(self) -> float | None: ...
    @property
    def elapsed_ms(self) -> float: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def finish_detail(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def waiting(self) -> str:
        """A sentence saying why the row waits, or ""."""
        ...

    @property
    def thinking(self) -> str:
        """A sentence while the model writes inside its thinking marks, or ""."""
        ...

    @property
    def paused(self) -> bool:
        """Whether the row's gateway is paused."""
        ...


class RowSource(Protocol):
    """One row, as a view sees it. `gateway.handle.Handle` is one."""

    @property
    def id(self) -> int: ...
    @property
    def prompt_text(self) -> str: ...
    @property
    def text_so_far(self) -> str: ...
    def text_from(self, position: int, /) -> str:
        """The text after a position in characters."""
        ...

    def pieces(self, after: int = 0, /) -> list[str]:
        """The text that each token after the first `after` brought."""
        ...

    def logprobs_so_far(self, after: int = 0, /) -> Sequence[TokenLogprob]:
        """Log-probabilities of the tokens after the first `after`; empty where they were not asked for."""
        ...

    def progress(self) -> RowProgress: ...
    def cancel(self) -> bool: ...
    def done(self) -> bool: ...
