"""From a user's call to checked requests: everything wrong is said here, before anything is queued."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.options import ParsedOptions, parse_options
from mlx_notebook.core.request import Request, RequestShape, UserCode
from mlx_notebook.errors import OverBudget, OverContext, PlacementMismatch
from mlx_notebook.gateway.boundaries import boundaries_of, shared_by
from mlx_notebook.gateway.registry import request_ids
from mlx_notebook.gateway.shapes import compiled_for
from mlx_notebook.gateway.sizes import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.placement import Capabilities, Placement
    from mlx_notebook.gateway.loading import ModelFacts
    from mlx_notebook.gateway.record import RowRecord


TITLE_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Submission:
    """Checked requests of one call, with the options that hold for each."""

    requests: tuple[Request, ...]
    options: tuple[dict[str, Any], ...]
    several: bool


def refuse_mismatch(given: Placement | None, records: Sequence[RowRecord]) -> None:
    """Raise PlacementMismatch unless `given` was made for this very call, its seeds aside where none was named.

    The samples of one prompt share its placement; several prompts have one each.
    """
    if given is None:
        return
    own = records[0].placement
    if any(record.placement.shape.prompt_ids != own.shape.prompt_ids for record in records):
        raise PlacementMismatch(
            "a placement is for one prompt: submit the prompts one by one, each with its own.", placement=given
        )
    if not _same(given, own):
        raise PlacementMismatch(
            "this placement was made for another request or by another gateway, or before this one was restarted:"
            " call place() again with the same arguments.",
            placement=given,
        )


def _same(given: Placement, own: Placement) -> bool:
    if given.epoch != own.epoch:
        return False
    if given.shape == own.shape:
        return True
    # Neither call named a seed: each drew its own, and the requests are the same but for that.
    drawn = not given.shape.seed_given and not own.shape.seed_given
    return drawn and given.shape.without_seed() == own.shape.without_seed()


def draw_seed() -> int:
    """A seed for a request that named none; 32 bits, so that people can type it."""
    return secrets.randbits(32)


def is_several(prompt: Any) -> bool:
    """Whether a prompt argument is a list of prompts (texts, or lists) rather than one prompt."""
    if isinstance(prompt, str | Mapping) or not isinstance(prompt, Sequence) or not prompt:
        return False
    first = prompt[0]
    return isinstance(first, str) or (isinstance(first, Sequence) and not isinstance(first, bytes))


def title_of(prompt: Any) -> str:
    """The first line that says something of what the user wrote (of the last message); "" for token ids."""
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt and isinstance(prompt[-1], Mapping):
        prompt = prompt[-1].get("content")
    lines = prompt.splitlines() if isinstance(prompt, str) else ()
    return next((line.strip()[:TITLE_CHARACTERS] for line in lines if line.strip()), "")


def messages_of(prompt: Any, parsed: ParsedOptions) -> tuple[tuple[str, str], ...]:
    """(role, content) of each message, the system's first; none for a raw prompt and for token ids."""
    if parsed.raw:
        return ()
    system = () if parsed.system is None else (("system", parsed.system),)
    if isinstance(prompt, str):
        return (*system, ("user", prompt))
    items = list(prompt)
    if not all(isinstance(item, Mapping) for item in items):
        return ()
    return (*system, *((str(item.get("role", "")), str(item.get("content") or "")) for item in items))


def check_call(
    prompt: Any,
    options: Mapping[str, Any],
    *,
    facts: ModelFacts,
    capabilities: Capabilities,
    kv_budget: int,
    prompt_cache: int,
    on_token: Callable[..., Any] | None = None,
) -> Submission:
    """Check one call of `submit`.

    A seed that is given holds for every prompt; without one each prompt draws its own. Samples count up from it.
    `kv_budget` and `prompt_cache` are the bytes that rows, and kept prefixes, may take at most now.

    Raises:
        TypeError, ValueError, UnsupportedRequest: an option or a prompt is wrong; it is named.
        GrammarError: the answer cannot be held to the shape that is asked for; the place is named.
        OverContext: a prompt leaves no room for an answer.
        OverBudget: a request alone would take more than the KV budget.
    """
    if on_token is not None and not callable(on_token):
        raise TypeError(f"on_token: a function (token_id, text, logprobs), not {type(on_token).__name__}")
    if iscoroutinefunction(on_token):
        raise TypeError("on_token: a plain function, not an async one: the engine thread runs no event loop")
    parsed = parse_options(
        options, vocab_size=capabilities.vocab_size, draw_seed=draw_seed, recommended=facts.recommended_sampling
    )
    compiled = compiled_for(parsed.grammar, facts)
    several = is_several(prompt)
    prompts = list(prompt) if several else [prompt]
    shapes: list[tuple[RequestShape, str, tuple[int, ...]]] = []
    keeps = capabilities.prompt_cache and prompt_cache > 0 and parsed.cache_prompt
    wants_boundaries = keeps and not capabilities.trimmable
    for position, one in enumerate(prompts):
        try:
            shape, text = _shape_of(one, parsed, facts, capabilities, kv_budget, has_callback=on_token is not None)
            cuts = (
                boundaries_of(one, shape.prompt_ids, lambda other: encode(other, parsed, facts, capabilities)[0])
                if wants_boundaries
                else ()
            )
            shapes.append((shape, text, cuts))
        except (TypeError, ValueError) as error:
            if several:
                error.add_note(f"in prompt {position} of {len(prompts)}")
            raise
    shared = shared_by([shape.prompt_ids for shape, _, _ in shapes]) if wants_boundaries else ()
    requests, held = [], []
    for (shape, text, cuts), one in zip(shapes, prompts, strict=True):
        title, messages = title_of(one), messages_of(one, parsed)
        seed = shape.sampling.seed if parsed.seed_given or not several else draw_seed()
        for sample in range(parsed.n):
            own = replace(shape, sampling=replace(shape.sampling, seed=(seed + sample) % 2**64))
            code = UserCode(on_token, parsed.logits_processors, copy_context())
            requests.append(
                Request(
                    next(request_ids),
                    own,
                    text,
                    title,
                    parsed.priority,
                    parsed.deadline,
                    parsed.cache_prompt,
                    tuple(sorted({*cuts, *shared})),
                    messages,
                    code,
                    compiled=compiled,
                    model_class=parsed.model_class,
                )
            )
            held.append({**parsed.to_dict(), "seed": own.sampling.seed})
    return Submission(tuple(requests), tuple(held), several or parsed.n > 1)


def check_prompt(
    prompt: Any, parsed: ParsedOptions, *, facts: ModelFacts, capabilities: Capabilities, kv_budget: int
) -> int:
    """Check one prompt under checked options as `check_call` does; its tokens."""
    shape, _text = _shape_of(prompt, parsed, facts, capabilities, kv_budget, has_callback=False)
    return len(shape.prompt_ids)


def _shape_of(
    prompt: Any,
    parsed: ParsedOptions,
    facts: ModelFacts,
    capabilities: Capabilities,
    kv_budget: int,
    *,
    has_callback: bool,
) -> tuple[RequestShape, str]:
    ids, text = encode(prompt, parsed, facts, capabilities)
    limit = capabilities.context_length
    if limit is not None and len(ids) + 1 > limit:
        raise OverContext(
            f"the prompt has {len(ids)} tokens and the model's context is {limit}:"
            " no room for an answer; shorten the prompt.",
            needed=len(ids) + 1,
            limit=limit,
        )
    tokens = len(ids) + parsed.sampling.max_tokens
    needed = kv_bytes(capabilities, tokens if limit is None else min(tokens, limit))
    if needed > kv_budget:
        raise OverBudget(
            f"{tokens} tokens (prompt {len(ids)} + max_tokens {parsed.sampling.max_tokens}) would take"
            f" {show_bytes(needed)} of KV memory and the budget is {show_bytes(kv_budget)}:"
            " lower max_tokens, shorten the prompt, or raise kv_budget.",
            needed=needed,
            budget=kv_budget,
        )
    shape = RequestShape(
        prompt_ids=tuple(ids),
        sampling=parsed.sampling,
        eos_ids=facts.eos_ids,
        seed_given=parsed.seed_given,
        has_processors=bool(parsed.logits_processors),
        has_callback=has_callback,
        grammar=parsed.grammar,
        grammar_after=_grammar_after(ids, parsed, facts),
    )
    return shape, text


def _grammar_after(ids: Sequence[int], parsed: ParsedOptions, facts: ModelFacts) -> tuple[int, ...]:
    """What must come before a grammar holds: the end of the thinking that the prompt opened."""
    marks = facts.thinking
    if parsed.grammar is None or marks is None or not marks.left_open_by(ids):
        return ()
    return marks.end_ids


def kv_bytes(capabilities: Capabilities, tokens: int) -> int:
    """Bytes of KV memory and state that a row of this many tokens takes."""
    return capabilities.cost.of(tokens)


def encode(prompt: Any, parsed: ParsedOptions, facts: ModelFacts, capabilities: Capabilities) -> tuple[list[int], str]:
    """Token ids and text of one prompt, every id within the vocabulary.

    Raises:
        TypeError, ValueError: the prompt is of no known kind, empty, or holds an unknown id.
    """
    ids, text = facts.encoder.encode(
        prompt,
        system=parsed.system,
        raw=parsed.raw,
        allow_special=parsed.allow_special,
        chat_template_kwargs=parsed.chat_template_kwargs,
    )
    if not ids:
        raise ValueError("the prompt is empty: there is nothing to continue")
    # An id outside the vocabulary would be read from memory that is not the model's.
    wrong = next((i for i in ids if not 0 <= i < capabilities.vocab_size), None)
    if wrong is not None:
        raise ValueError(f"token id {wrong} is outside the vocabulary (0 to {capabilities.vocab_size - 1})")
    return ids, text
