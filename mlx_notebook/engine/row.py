"""One row's state in the engine: caches, history, sampler, text. It computes nothing by itself."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.engine.stores.caches import nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.request import Request
    from mlx_notebook.engine.detokenize import TextStream
    from mlx_notebook.engine.matcher import Matcher
    from mlx_notebook.engine.sampling import Drawn, Sampler
    from mlx_notebook.engine.stop import StopMatcher


@dataclass(slots=True)
class RowText:
    """A row's text as it grows: decoded, then watched for stop strings."""

    decoder: TextStream
    stop: StopMatcher

    def push(self, token_id: int) -> str:
        """What may be shown now that this token is known."""
        return self.stop.push(self.decoder.push(token_id))

    def flush(self) -> str:
        """The rest, at the row's end."""
        return self.stop.push(self.decoder.flush()) + self.stop.flush()


def _they_are() -> bool:
    return True


@dataclass(slots=True, eq=False)
class RowState:
    """What the backend holds for one open row.

    `fed` counts the tokens whose state the caches hold; `converted` says whether those were quantised where the
    scheme asks for it.
    `committed` are the output tokens so far. `ready` is the token that the next step commits; `ahead` the one after
    it, where it could be sampled before `ready` was read; `logits` (an array [R, V] and the row's place in it) stand
    in for `ahead` where user processors or the grammar must see `ready` first. `grammar` is the row's own matcher.
    `branches` are the ids that the grammar allowed for `ready` with their log-probabilities, where choices are summed.
    `drawable` says whether `ready` was at all possible, where bias, penalties or processors came before a grammar.
    `streams_are_there` looks, after the row's own code ran, and mends them where they are not.
    `user_ns` counts what the row's own code took since it was last asked.
    `hosted`: user code stands between a token and the draw of the next. `reach`: how many of the last tokens are
    remembered; None for all.
    `history` [n] holds the last tokens, prompt and output, as far back as somebody looks.
    """

    request: Request
    cache: list[Any]
    sampler: Sampler
    text: RowText
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    history: mx.array = field(default_factory=lambda: mx.array([], dtype=mx.int32))
    committed: list[int] = field(default_factory=list)
    fed: int = 0
    converted: bool = False
    ready: Drawn | None = None
    ahead: Drawn | None = None
    logits: tuple[mx.array, int] | None = None
    user_ns: int = 0
    grammar: Matcher | None = None
    branches: tuple[list[int], mx.array] | None = None
    drawable: mx.array | None = None
    streams_are_there: Callable[[], bool] = _they_are
    hosted: bool = field(init=False)
    reach: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.hosted = bool(self.request.code.logits_processors)
        self.reach = None if self.hosted else self.sampler.reach

    @property
    def known(self) -> tuple[int, ...]:
        """Prompt and committed output: what prefill may be asked to compute."""
        prompt = self.request.shape.prompt_ids
        return (*prompt, *self.committed) if self.committed else prompt

    @property
    def last_known(self) -> int:
        """The last of the known tokens."""
        return self.committed[-1] if self.committed else self.request.shape.prompt_ids[-1]

    @property
    def held(self) -> bool:
        """Whether a token must be known on the host before the next can be drawn."""
        return self.grammar is not None or self.hosted

    @property
    def produced(self) -> int:
        """Number of the token that the next forward draws: those committed, and the one that waits."""
        return len(self.committed) + (self.ready is not None)

    def remember_known(self) -> None:
        """Start the history with all that is known."""
        ids = self.known
        reach = self.reach
        if reach != 0:
            self.history = mx.array(ids if reach is None else ids[-reach:], dtype=mx.int32)

    def remember(self, token: mx.array) -> None:
        """Add a token [1], perhaps still being computed, to the history."""
        reach = self.reach
        if reach != 0:
            history = mx.concatenate([self.history, token.astype(mx.int32)])
            self.history = history if reach is None else history[-reach:]

    def is_last(self, context_length: int | None) -> bool:
        """Whether the token `ready` ends the row by length, whatever it says."""
        if self.ready is None:
            return False
        if self.produced >= self.request.shape.sampling.max_tokens:
            return True
        return context_length is not None and len(self.request.shape.prompt_ids) + self.produced >= context_length

    def rewind(self, cache: list[Any]) -> None:
        """Start over with empty caches; what was committed, shown and drawn stays.

        A token that user processors let through stays too, so that they see no position twice: such a token was
        computed before anybody fed it. Any other is drawn again, from the same number of the row's stream.
        """
        self.cache, self.fed, self.converted = cache, 0, False
        self.ahead = self.logits = None
        if not self.hosted:
            self.ready = self.branches = self.drawable = None

    def close(self) -> None:
        """Free what the row owns beside arrays; again does nothing."""
        if self.grammar is not None:
            self.grammar.close()

    def held_bytes(self) -> int:
        """Bytes of the row's own caches."""
        return nbytes_of(self.cache)
