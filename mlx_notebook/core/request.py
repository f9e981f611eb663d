"""What a user asks for, checked and frozen: all that changes the output is in the shape.

Nothing here knows a model; `core.options` turns a user's keywords into these.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from mlx_notebook.core.grammar import GrammarSpec


COLDEST = 1e-5
"""Temperatures below it take the likeliest token: logits divided by much less overflow float32."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are drawn. Deep-frozen; field names are the public option names.

    `logit_bias` is a tuple of (token id, bias) sorted by id; `logprobs` is None (not asked),
    0 (of the chosen token) or k (and of the k likeliest alternatives). A `temperature` below `COLDEST` is 0.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    repetition_context_size: int = 20
    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken: at temperature 0, as in mlx-lm, and so close to it."""
        return self.temperature < COLDEST


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Everything that changes a request's output; two equal shapes ask for the same text.

    `seed_given` says whether the user named the seed; the seed itself is in `sampling`.
    `eos_ids` are the tokens that end the row (counted, kept in `token_ids`, not in `text`).
    `grammar` is what the answer is held to, once the tokens `grammar_after` have come (none: from the first token on).
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingOptions
    eos_ids: frozenset[int] = frozenset()
    seed_given: bool = False
    has_processors: bool = False
    has_callback: bool = False
    grammar: GrammarSpec | None = None
    grammar_after: tuple[int, ...] = ()

    def without_seed(self) -> RequestShape:
        """The same shape with the seed left out, to compare requests that named none."""
        return replace(self, sampling=replace(self.sampling, seed=0))


@dataclass(frozen=True, slots=True, eq=False)
class UserCode:
    """A request's Python callables, run on the engine thread in the submitter's copied context.

    `on_token(token_id, text, logprobs)`: False ends the row at that token.
    `logits_processors`: each `(token_ids, logits) -> logits`, as in mlx-lm; token_ids is a
    1-D array of prompt and output so far, logits has shape [1, vocabulary].
    """

    on_token: Callable[[int, str, object], object] | None = None
    logits_processors: tuple[Callable[[object, object], object], ...] = ()
    context: Context | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One row to be: its shape, how it is to be served, and the user's code.

    `title` is the first line of what the user wrote, for views.
    `messages` are a chat's (role, content) before its template, empty for a raw prompt and for token ids.
    `owned` are native resources that somebody must release exactly once (grammar matchers,
    media embeddings); the gateway owns them until the row opens, the backend from then on.
    `compiled` is the shape's grammar, compiled: shared, and only the engine starts anything from it.
    `model_class` is the pydantic class that a JSON answer is to become an object of.
    `boundaries` are prompt positions, ascending, where another prompt is likely to part from this one.
    """

    id: int
    shape: RequestShape
    prompt_text: str = ""
    title: str = ""
    priority: int = 0
    deadline: float | None = None
    cache_prompt: bool = True
    boundaries: tuple[int, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    code: UserCode = field(default_factory=UserCode)
    owned: tuple[Callable[[], None], ...] = ()
    compiled: Any = None
    model_class: type | None = None


def with_limit(request: Request, max_tokens: int) -> Request:
    """The same request with another answer limit; what it owns is the same too."""
    sampling = replace(request.shape.sampling, max_tokens=max_tokens)
    return replace(request, shape=replace(request.shape, sampling=sampling))
