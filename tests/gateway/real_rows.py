"""Rows over the real engine and small models: what is asked, what its own code does to it, how it may end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.errors import Cancelled, RowFailed
from tests.small_models import SPECIALS, VOCAB, small

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.results import Result
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle

LATE_S = 0.02


@dataclass(frozen=True)
class Ask:
    """One request: the first `length` tokens of one of a few long texts, options, and what its own code does.

    Attributes:
        conduct: a name in `CONDUCTS`.
        at: the token, or the processor's call, at which it does it, counted from 1.
    """

    text: int
    length: int
    options: tuple[tuple[str, Any], ...] = ()
    conduct: str = "plain"
    at: int = 1

    @property
    def prompt(self) -> list[int]:
        """Prompts of one text begin alike, so that the prompt cache has something to do."""
        import random

        drawn = random.Random(self.text)
        return [drawn.randrange(len(SPECIALS), VOCAB) for _ in range(self.length)]

    @property
    def max_tokens(self) -> int:
        return int(dict(self.options)["max_tokens"])

    @property
    def shaped(self) -> bool:
        return not dict(self.options).keys().isdisjoint(("regex", "choices"))

    @property
    def fails(self) -> bool:
        """Whether its own code fails it; under a shape also where no number is left to choose by."""
        return self.conduct in FAILING or (self.conduct == "nan" and self.shaped)

    def with_limit(self, max_tokens: int) -> Ask:
        """The same with another answer limit."""
        return replace(self, options=tuple({**dict(self.options), "max_tokens": max_tokens}.items()))

    def submit(self, gateway: Gateway, **more: Any) -> Handle:
        """Ask it."""
        handle: Handle = gateway.submit(
            self.prompt, raw=True, **dict(self.options), **CONDUCTS[self.conduct](self.at), **more
        )
        return handle

    def alone(self, gateway: Gateway) -> Result:
        """What it says by itself, without code of its own, from scratch."""
        result: Result = gateway.generate(self.prompt, raw=True, cache_prompt=False, **dict(self.options))
        return result


def _callback(at: int, what: Callable[[], object]) -> dict[str, Any]:
    seen: list[int] = []

    def on_token(token_id: int, _text: str, _logprobs: object) -> object:
        seen.append(token_id)
        return what() if len(seen) == at else None

    return {"on_token": on_token}


def _raise(error: BaseException) -> Any:
    raise error


def _is_late() -> None:
    """Come back when the deadline has passed."""
    end = time.monotonic() + LATE_S
    while time.monotonic() < end:
        pass


def _processor(at: int, what: Callable[[Any], object]) -> dict[str, Any]:
    calls: list[int] = []

    def processor(tokens: Any, logits: Any) -> object:
        calls.append(len(tokens))
        return what(logits) if len(calls) == at else logits

    return {"logits_processors": [processor]}


CONDUCTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "plain": lambda _at: {},
    "listens": lambda at: _callback(at, lambda: True),
    "stops": lambda at: _callback(at, lambda: False),
    "raises": lambda at: _callback(at, lambda: _raise(ValueError("mine"))),
    "exits": lambda at: _callback(at, lambda: _raise(SystemExit(3))),
    "late": lambda at: {**_callback(at, _is_late), "deadline": LATE_S},
    "too late": lambda _at: {"deadline": 1e-9},
    "watches": lambda at: _processor(at, lambda logits: logits),
    "processor raises": lambda at: _processor(at, lambda _logits: _raise(KeyError("mine"))),
    "processor interrupts": lambda at: _processor(at, lambda _logits: _raise(KeyboardInterrupt())),
    "wrong shape": lambda at: _processor(at, lambda logits: logits[:, :3]),
    "wrong type": lambda at: _processor(at, lambda _logits: None),
    "nan": lambda at: _processor(at, lambda logits: logits * mx.nan),
}

FAILING = {"raises", "exits", "processor raises", "processor interrupts", "wrong shape", "wrong type"}


@dataclass
class Asked:
    """A row that was submitted.

    Attributes:
        shaken: whether a forward failed while it was open, which may end it.
        cut: whether somebody cancelled it.
        squeezed: whether the budget sank below what it needs while it was open, which ends it if it still waits.
        ends: how often it was told to be over.
    """

    ask: Ask
    handle: Handle
    shaken: bool = False
    cut: bool = False
    squeezed: bool = False
    ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.handle.add_done_callback(lambda handle: self.ends.append(handle.id))

    def check(self, alone: Result, *, to_the_bit: bool) -> None:
        """It is over, once, for a reason that it has, and said what it says alone as far as it came.

        With `to_the_bit` its log-probabilities are compared too, also where its answer had to be read again.
        """
        assert self.handle.done()
        assert self.ends == [self.handle.id]
        tokens, text = self.handle._record.token_ids, self.handle.text_so_far
        sound = min(len(tokens), self.ask.at - 1 if self.ask.conduct == "nan" else len(tokens))
        assert tuple(tokens[:sound]) == alone.token_ids[:sound], self.ask
        if sound == len(tokens) == len(alone.token_ids):
            assert text == alone.text, self.ask
        if dict(self.ask.options).get("logprobs") is not None:
            found = self.handle.logprobs_so_far()
            assert [one.token_id for one in found] == tokens
            if to_the_bit:
                assert tuple(found[:sound]) == (alone.logprobs or ())[:sound], self.ask
        self._check_end(self.handle.exception(), len(tokens), alone)

    def _check_end(self, error: Exception | None, came: int, alone: Result) -> None:
        conduct, at, whole = self.ask.conduct, self.ask.at, len(alone.token_ids)
        if isinstance(error, Cancelled):
            assert self.cut or conduct in ("late", "too late"), self.ask
            return
        if isinstance(error, RowFailed):
            assert error.result is not None
            assert error.result.generated_tokens == came
            if self.squeezed and came == 0 and "OverBudget" in str(error):
                return
            if self.ask.fails:
                # A raising callback has its token; a processor fails before the token that it was asked for.
                assert self.shaken or came == (at if conduct in ("raises", "exits") else at - 1), self.ask
            else:
                assert self.shaken, (self.ask, error.traceback_text)
            return
        assert error is None
        result = self.handle.result()
        if conduct == "stops" and result.finish_detail == "callback":
            assert came == at
        elif conduct != "nan" or self.ask.shaped:
            assert came == whole, self.ask
            assert (result.finish_reason, result.finish_detail) == (alone.finish_reason, alone.finish_detail)
        assert not self.ask.fails or whole <= at, self.ask
        assert conduct != "too late"


class Faults:
    """Forwards of a model that are to fail after they have written into the caches.

    Attributes:
        pending: how many.
    """

    def __init__(self) -> None:
        self.pending = self._passing = 0
        self._meant: Callable[[tuple[int, ...]], bool] = bool

    def fail(self, forwards: int, meant: Callable[[tuple[int, ...]], bool], *, passing: int = 0) -> None:
        """Have so many forwards fail of those whose tokens have a shape that is `meant`, after so many that pass."""
        self.pending, self._meant, self._passing = forwards, meant, passing

    def meet(self, shape: tuple[int, ...]) -> None:
        if not self.pending or not self._meant(shape):
            return
        if self._passing:
            self._passing -= 1
            return
        self.pending -= 1
        raise MemoryError("no room")


def faltering(kind: str) -> tuple[Any, Any, Faults]:
    """A small model whose forwards can be made to fail, with its tokenizer."""
    model, tokenizer = small(kind)
    own, faults = type(model), Faults()

    def call(self: Any, tokens: mx.array, *args: Any, **kwargs: Any) -> Any:
        logits = own.__call__(self, tokens, *args, **kwargs)
        faults.meet(tokens.shape)
        return logits

    model.__class__ = type(own.__name__, (own,), {"__call__": call, "__module__": own.__module__})
    return model, tokenizer, faults
