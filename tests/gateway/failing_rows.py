"""Ways in which a row fails by what is its own: its code, its sampler, its grammar, its stop rule, its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.engine.grammar import Compiled
from mlx_notebook.engine.row import RowText
from mlx_notebook.engine.sampling import Sampler
from mlx_notebook.engine.stop import StopMatcher
from tests.engine.failing_draws import BAD, OPTIONS, failing_draws

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    import pytest

MARK = "\x00 the stop string of the row that fails"
SHAPE = "[a-z]{2,401}"


@dataclass(frozen=True)
class Failing:
    """A row that fails.

    Attributes:
        options: what it is asked with, made anew for each row.
        came: how many tokens it has by then.
        says: a part of what its error says.
    """

    options: dict[str, Any]
    came: int
    says: str


class Panic(BaseException):
    """Native code that panics raises no Exception."""


def _from_call(at: int, function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """The function, which raises from its call number `at` (1, 2, ...) on."""
    calls: list[int] = []

    def failing(*given: Any, **how: Any) -> Any:
        calls.append(at)
        if len(calls) >= at:
            raise error
        return function(*given, **how)

    return failing


def callback(at: int, _patch: pytest.MonkeyPatch, _open: ExitStack) -> Failing:
    code = _from_call(at, lambda *_: None, SystemExit("mine"))
    return Failing({"on_token": code}, at, "mine")


def processor(at: int, _patch: pytest.MonkeyPatch, _open: ExitStack) -> Failing:
    code = _from_call(at + 1, lambda _tokens, logits: logits, KeyboardInterrupt("mine"))
    return Failing({"logits_processors": [code]}, at, "mine")


def opening(_at: int, patch: pytest.MonkeyPatch, _open: ExitStack) -> Failing:
    """Its sampler cannot be made."""
    init = Sampler.__init__

    def failing(self: Sampler, options: Any, spared: Any) -> None:
        if options.seed == BAD:
            raise LookupError("no such sampler")
        init(self, options, spared)

    patch.setattr(Sampler, "__init__", failing)
    return Failing(OPTIONS, 0, "no such sampler")


def sampler(where: str, **more: Any) -> Callable[[int, pytest.MonkeyPatch, ExitStack], Failing]:
    def inject(at: int, _patch: pytest.MonkeyPatch, opened: ExitStack) -> Failing:
        opened.enter_context(failing_draws(where, at, lambda: Panic("no such draw")))
        return Failing({**OPTIONS, **more}, at, "only supports float32" if where == "computation" else "no such draw")

    return inject


def grammar(method: str) -> Callable[[int, pytest.MonkeyPatch, ExitStack], Failing]:
    """Its matcher panics: where it takes a token, or where it is asked whether there is a way on."""

    def inject(at: int, patch: pytest.MonkeyPatch, _open: ExitStack) -> Failing:
        start = Compiled.start

        def starting(self: Compiled, **how: Any) -> Any:
            matcher = start(self, **how)
            if self.spec.source == SHAPE:
                patch.setattr(matcher, method, _from_call(at + 1, getattr(matcher, method), Panic("out of bounds")))
            return matcher

        patch.setattr(Compiled, "start", starting)
        return Failing({"regex": SHAPE}, at, "out of bounds")

    return inject


def stop_rule(at: int, patch: pytest.MonkeyPatch, _open: ExitStack) -> Failing:
    push, calls = StopMatcher.push, [0]

    def failing(self: StopMatcher, text: str) -> str:
        calls[0] += MARK in self.stops
        if MARK in self.stops and calls[0] >= at:
            raise IndexError("no such stop")
        return push(self, text)

    patch.setattr(StopMatcher, "push", failing)
    return Failing({"stop": [MARK]}, at, "no such stop")


def last_of_the_stop_rule(at: int, patch: pytest.MonkeyPatch, _open: ExitStack) -> Failing:
    """What it held back cannot be had at its end."""
    flush = StopMatcher.flush

    def failing(self: StopMatcher) -> str:
        if MARK in self.stops:
            raise IndexError("no such stop")
        return flush(self)

    patch.setattr(StopMatcher, "flush", failing)
    return Failing({"stop": [MARK], "max_tokens": at}, at, "no such stop")


def decoder(at: int, patch: pytest.MonkeyPatch, _open: ExitStack) -> Failing:
    """Its tokens cannot be made text."""
    push, calls = RowText.push, [0]

    def failing(self: RowText, token_id: int) -> str:
        calls[0] += MARK in self.stop.stops
        if MARK in self.stop.stops and calls[0] >= at:
            raise UnicodeError("no such text")
        return push(self, token_id)

    patch.setattr(RowText, "push", failing)
    return Failing({"stop": [MARK]}, at, "no such text")


WAYS: dict[str, Callable[[int, pytest.MonkeyPatch, ExitStack], Failing]] = {
    "opening": opening,
    "callback": callback,
    "processor": processor,
    "sampler's penalties": sampler("penalties"),
    "sampler's way": sampler("way"),
    "sampler's draw": sampler("draw"),
    "sampler's computation": sampler("computation"),
    "sampler's computation under a shape": sampler("computation", regex=SHAPE),
    "sampler's computation after a processor": sampler("computation", logits_processors=[lambda _, logits: logits]),
    "grammar": grammar("accept"),
    "grammar's mask": grammar("check"),
    "stop rule": stop_rule,
    "stop rule's last": last_of_the_stop_rule,
    "decoder": decoder,
}
"""`WAYS[name](at, patch, stack)`: from now on rows with its options fail; each with about `at` tokens."""
