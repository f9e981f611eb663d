"""The shape of an answer at both ends of a request: compiled before it is queued, read off the text when it is over."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from mlx_notebook.core.grammar import GrammarKind
from mlx_notebook.core.placement import Reason, resolve
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.core.unenforced import unenforced
from mlx_notebook.errors import GrammarError, UnsupportedRequest, WouldDeadlock
from mlx_notebook.gateway.waiting import on_engine_thread

if TYPE_CHECKING:
    from mlx_notebook.core.grammar import GrammarSpec
    from mlx_notebook.core.placement import Capabilities, Placement
    from mlx_notebook.core.request import Request
    from mlx_notebook.gateway.loading import ModelFacts
    from mlx_notebook.gateway.record import RowRecord

SHOWN = 300
"""How much of a validator's complaint a parse error shows."""


def compiled_for(spec: GrammarSpec | None, facts: ModelFacts) -> Any:
    """The compiled grammar of a request; None without one. Waits for the compile, on the caller's thread.

    An engine's thread waits for none, since all its rows would: it gets what was compiled before.

    Raises:
        WouldDeadlock: called on an engine thread, and nobody asked for this shape before.
        GrammarError: the grammar is wrong, unsupported or can never be satisfied; its place is named.
        UnsupportedRequest: there is no tokenizer that a grammar could be compiled for.
    """
    if spec is None:
        return None
    if facts.vocabulary is None:
        raise _unsupported(spec, "this backend has no tokenizer")
    from mlx_notebook.engine.grammar import cache

    if on_engine_thread():
        found = cache.kept(spec, facts.vocabulary)
        if found is None:
            raise WouldDeadlock(
                f"{spec.kind}: compiling a shape on the engine thread (in a callback or processor) would hold up every"
                " row; hand the work to another thread, or ask place() with the same shape before."
            )
        return found
    try:
        return cache.compiled(spec, facts.vocabulary)
    except GrammarError:
        raise
    except ValueError as error:  # the library cannot read the tokenizer
        raise _unsupported(spec, str(error)) from None


def _unsupported(spec: GrammarSpec, why: str) -> UnsupportedRequest:
    text = f"{spec.kind}: an answer cannot be held to a shape here: {why}."
    return UnsupportedRequest(text, reasons=[Reason("grammar-unsupported", text)])


def placement_of(request: Request, capabilities: Capabilities, epoch: int, *, cache_bytes: int) -> Placement:
    """Where a request goes, with what the compiler of its grammar had to say, and what it left unsaid.

    Args:
        cache_bytes: what the gateway's prompt cache may take, 0 for none.
    """
    spec = request.shape.grammar
    notes = () if request.compiled is None else request.compiled.notes
    if spec is not None and spec.kind is GrammarKind.JSON_SCHEMA:
        notes += _left_unsaid(spec)
    off = "prompt_cache=0" if not cache_bytes else "cache_prompt=False" if not request.cache_prompt else None
    return resolve(request.shape, capabilities, epoch, notes, cache_off=off)


@lru_cache(maxsize=64)
def _left_unsaid(spec: GrammarSpec) -> tuple[Reason, ...]:
    return unenforced(spec.value)


class Parsed(NamedTuple):
    """An answer as a value, or why it is none."""

    value: Any = None
    error: str | None = None


def parse_answer(
    spec: GrammarSpec,
    text: str,
    reason: FinishReason | None,
    detail: FinishDetail | None,
    *,
    max_tokens: int,
    model_class: Any = None,
) -> Parsed:
    """The value of an answer: of JSON what it says (or the pydantic object), of the others the text itself.

    An answer that was cut has none, even where what there is of it could be read: `12` may have become `123`.
    """
    if reason is FinishReason.STOP and detail in (FinishDetail.GRAMMAR, FinishDetail.EOS):
        return _value_of(spec, text, model_class)
    return Parsed(error=f"{_why_cut(reason, detail, max_tokens)}: the answer is not complete")


def _value_of(spec: GrammarSpec, text: str, model_class: Any) -> Parsed:
    if spec.kind is GrammarKind.CHOICES:
        return Parsed(_choice(spec.value, text))
    if spec.kind is not GrammarKind.JSON_SCHEMA:
        return Parsed(text)
    try:
        value = json.loads(text, parse_float=_finite)
    except ValueError as error:
        return Parsed(error=f"no JSON that Python can hold: {error}")
    if model_class is None:
        return Parsed(value)
    try:
        return Parsed(model_class.model_validate_json(text))
    except Exception as error:  # noqa: BLE001 - a validator is the user's code, and may raise anything
        shown = " ".join(str(error).split())
        return Parsed(error=f"{model_class.__name__} refused it: {shown[:SHOWN]}")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"the number {number[:40]} is too large")
    return value


def _choice(choices: list[str], text: str) -> str:
    """The choice that a text is: some tokenizers leave out the space that a text begins with."""
    return next((one for one in choices if one == text), "") or next(
        (one for one in choices if one.removeprefix(" ") == text), text
    )


def _why_cut(reason: FinishReason | None, detail: FinishDetail | None, max_tokens: int) -> str:
    if detail is FinishDetail.MAX_TOKENS:
        return f"cut at max_tokens={max_tokens}"
    words = {
        FinishDetail.CONTEXT: "cut at the end of the model's context",
        FinishDetail.STOP_STRING: "ended at a stop string",
        FinishDetail.CALLBACK: "ended by on_token",
    }
    return words.get(detail, f"the row was {reason}") if detail is not None else f"the row ended: {reason}"


def answer_of(record: RowRecord, max_tokens: int) -> dict[str, Any]:
    """A row's answer under its shape, as the fields of a Result; empty without a shape. The row is over."""
    request = record.row.request
    spec = request.shape.grammar
    if spec is None:
        return {}
    found = parse_answer(
        spec, record.text, record.reason, record.detail, max_tokens=max_tokens, model_class=request.model_class
    )
    fields: dict[str, Any] = {"parsed": found.value, "parse_error": found.error}
    if record.shares:
        *shares, undecided = record.shares
        fields |= {"probabilities": dict(zip(spec.value, shares, strict=True)), "undecided": undecided}
    return fields
