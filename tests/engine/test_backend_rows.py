"""Rows in the backend: how they end, what their user code sees, and how they fail."""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from functools import cache
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.core.events import Decode, StepFailed
from mlx_notebook.core.request import UserCode
from tests.engine.driving import Told, finish, on_thread, prefill, request, run_row, step, with_backend
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.small_models import KINDS, VOCAB, random_prompt, small

if TYPE_CHECKING:
    from mlx_notebook.core.request import Request
    from mlx_notebook.core.results import TokenLogprob
    from mlx_notebook.engine.mlx_backend import MlxBackend

PROMPT = random_prompt(11, seed=1)

pair = cache(small)


def ran(asked: Request, kind: str = "llama", context_length: int | None = None) -> Told:
    return with_backend(pair(kind), lambda backend: run_row(backend, asked), context_length)


@cache
def plain(count: int = 12, kind: str = "llama") -> Told:
    return ran(request(1, PROMPT, max_tokens=count), kind)


def calling(on_token: Any, context: Context | None = None) -> UserCode:
    """A row's code that is a callback."""
    return UserCode(on_token=on_token, context=context)


def hosting(processor: Any) -> UserCode:
    """A row's code that is one logits processor."""
    return UserCode(logits_processors=(processor,))


class Raised(BaseException):
    """Not even an Exception: user code may raise anything."""


# ---------------------------------------------------------------- how rows end


def test_at_max_tokens() -> None:
    told = ran(request(1, PROMPT, max_tokens=5))
    assert told.finish == ("length", "max_tokens")
    assert told.tokens == plain().tokens[:5]
    assert told.text == pair("llama")[1].decode(told.tokens)


def test_at_the_contexts_end() -> None:
    told = ran(request(1, PROMPT, max_tokens=100), context_length=len(PROMPT) + 4)
    assert told.finish == ("length", "context")
    assert len(told.tokens) == 4


def test_at_an_end_of_sequence_token_which_is_kept_but_neither_shown_nor_handed_on() -> None:
    tokens = plain().tokens
    eos = tokens[6]
    at = tokens.index(eos)
    seen: list[int] = []
    code = calling(lambda token_id, _text, _logprobs: seen.append(token_id))
    told = ran(request(1, PROMPT, max_tokens=12, eos=[eos], code=code))
    assert told.finish == ("stop", "eos")
    assert told.tokens == tokens[: at + 1]
    assert told.text == pair("llama")[1].decode(tokens[:at])
    assert seen == tokens[:at]


def test_at_a_stop_string_cut_anywhere_by_tokens() -> None:
    text = plain().text
    for start in range(len(text) - 3):
        stop = text[start : start + 3]
        told = ran(request(1, PROMPT, max_tokens=12, stop=(stop,), logprobs=0))
        assert told.finish == ("stop", "stop_string")
        assert told.text == text[: text.find(stop)]
        assert told.tokens == plain().tokens[: len(told.tokens)]
        # The stop string's own tokens stay.
        assert stop in pair("llama")[1].decode(told.tokens)
        assert [p.token_id for p in told.logprobs] == told.tokens


def test_a_stop_string_that_never_completes_is_shown_at_the_end() -> None:
    text = plain().text
    told = ran(request(1, PROMPT, max_tokens=12, stop=(text[-2:] + "\x01never",)))
    assert told.text == text
    assert told.outcomes[-1].text.endswith(text[-2:])


def test_when_on_token_says_false() -> None:
    pieces: list[str] = []

    def on_token(_token_id: int, text: str, _logprobs: object) -> bool | None:
        pieces.append(text)
        return False if len(pieces) == 4 else None

    # The stop string holds text back; at the callback's end the text up to and including that token is shown.
    held = pair("llama")[1].decode(plain().tokens[:4])[-2:]
    told = ran(request(1, PROMPT, max_tokens=12, stop=(held + "\x01never",), code=calling(on_token)))
    assert told.finish == ("stop", "callback")
    assert told.tokens == plain().tokens[:4]
    assert told.text == pair("llama")[1].decode(told.tokens)


@pytest.mark.parametrize("value", [None, True, 0, "", []])
def test_only_false_itself_ends_a_row(value: object) -> None:
    told = ran(request(1, PROMPT, max_tokens=3, code=calling(lambda *_: value)))
    assert told.finish == ("length", "max_tokens")


# ---------------------------------------------------------------- what user code sees


def test_on_token_gets_what_is_told_and_runs_in_the_submitters_context() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    calls: list[tuple[int, str, object, str]] = []

    def on_token(token_id: int, text: str, logprobs: TokenLogprob | None) -> None:
        calls.append((token_id, text, logprobs, who.get()))

    who.set("the cell")
    code = calling(on_token, copy_context())
    who.set("another")
    told = ran(request(1, PROMPT, max_tokens=6, logprobs=2, code=code))
    assert [call[:3] for call in calls] == [(o.token_id, o.text, o.logprob) for o in told.outcomes]
    assert {call[3] for call in calls} == {"the cell"}


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_no_processor_is_called_past_the_end_however_the_row_ends(kind: str) -> None:
    base = plain(12, kind)
    calls: list[list[int]] = []

    def processor(tokens: mx.array, logits: mx.array) -> mx.array:
        calls.append(tokens.tolist())  # type: ignore[arg-type]
        return logits

    ends: list[dict[str, Any]] = [
        {"max_tokens": 1},
        {"max_tokens": 6},
        {"max_tokens": 12, "eos": [base.tokens[4]]},
        {"max_tokens": 12, "stop": (base.text[3:5],)},
    ]
    for options in ends:
        calls.clear()
        told = ran(request(1, PROMPT, code=hosting(processor), **options), kind)
        assert told.tokens == base.tokens[: len(told.tokens)]
        assert calls == [[*PROMPT, *told.tokens[:at]] for at in range(len(told.tokens))]


def test_what_a_processor_does_to_its_tokens_in_place_stays_with_it() -> None:
    def spoil(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(tokens.tolist())
        tokens[:] = 0
        return logits

    seen: list[Any] = []
    told = ran(request(1, PROMPT, max_tokens=5, code=hosting(spoil), repetition_penalty=1.5))
    assert seen == [[*PROMPT, *told.tokens[:at]] for at in range(5)]
    assert told.tokens == ran(request(1, PROMPT, max_tokens=5, repetition_penalty=1.5)).tokens


def test_seeded_draws_repeat_and_ignore_the_global_generator() -> None:
    def sampled(seed: int, disturb: bool) -> list[int]:
        def on_token(*_: object) -> None:
            if disturb:
                mx.random.seed(1)
                mx.eval(mx.random.uniform())

        options: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "xtc_probability": 0.5, "xtc_threshold": 0.05}
        return ran(request(1, PROMPT, max_tokens=12, seed=seed, code=calling(on_token), **options)).tokens

    assert sampled(5, disturb=False) == sampled(5, disturb=True)
    assert len({tuple(sampled(seed, disturb=False)) for seed in (0, 1, 2**63, 2**64 - 1)}) == 4


def test_a_row_with_host_code_draws_what_one_without_draws() -> None:
    """Sampling ahead on the device or after the host's code: the same stream, the same numbers."""
    options: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "seed": 3, "frequency_penalty": 0.3}
    ahead = ran(request(1, PROMPT, max_tokens=10, **options)).tokens
    code = hosting(lambda _tokens, logits: logits)
    assert ran(request(1, PROMPT, max_tokens=10, code=code, **options)).tokens == ahead


def counted(model: Any) -> Any:
    """The model, counting the tokens of each forward."""

    class Counted:
        layers = model.layers
        fed: list[int]

        def __init__(self) -> None:
            self.fed = []

        def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
            self.fed.append(tokens.shape[1])
            return model(tokens, cache=cache)

        def modules(self) -> Any:
            return model.modules()

    return Counted()


def test_no_forward_is_wasted_at_a_length_and_one_at_most_elsewhere() -> None:
    model, tokenizer = pair("llama")
    eos = plain().tokens[2]

    def forwards(asked: Request) -> list[int]:
        counting = counted(model)

        def work(backend: MlxBackend) -> None:
            counting.fed.clear()  # the probe's
            run_row(backend, asked)

        with_backend((counting, tokenizer), work)
        return list(counting.fed)

    assert forwards(request(1, [5], max_tokens=1)) == [1]
    assert forwards(request(1, PROMPT, max_tokens=3)) == [8, 2, 1, 1, 1]
    assert forwards(request(1, PROMPT, max_tokens=12, eos=[eos])) == [8, 2, 1, 1, 1, 1]


def test_xtc_takes_any_list_of_special_tokens() -> None:
    def work(backend: MlxBackend) -> Told:
        options: dict[str, Any] = {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.01}
        return run_row(backend, request(1, PROMPT, max_tokens=6, eos=[2, VOCAB + 9], **options))

    assert with_backend(pair("llama"), work).error is None


# ---------------------------------------------------------------- failures stay in their row


def failing_callback(at: int) -> UserCode:
    calls: list[int] = []

    def on_token(token_id: int, _text: str, _logprobs: object) -> None:
        calls.append(token_id)
        if len(calls) == at:
            raise Raised(f"callback {at}")

    return calling(on_token)


def failing_processor(at: int, how: str = "raise") -> UserCode:
    calls: list[int] = []

    def processor(_tokens: mx.array, logits: mx.array) -> Any:
        calls.append(1)
        if len(calls) < at:
            return logits
        if how == "raise":
            raise Raised(f"processor {at}")
        return {"none": None, "shape": logits[:, :5], "list": [1.0]}[how]

    return hosting(processor)


def test_a_raising_callback_fails_its_row_at_that_token() -> None:
    told = ran(request(1, PROMPT, max_tokens=12, code=failing_callback(4)))
    assert told.error is not None
    assert told.error[0].endswith("Raised: callback 4")
    assert "in on_token" in told.error[1]
    assert told.tokens == plain().tokens[:4]
    assert told.text == pair("llama")[1].decode(told.tokens)
    assert told.finish is None


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_raising_processor_fails_its_row_before_the_token_it_was_asked_for(at: int) -> None:
    told = ran(request(1, PROMPT, max_tokens=12, code=failing_processor(at)))
    assert told.error is not None
    assert told.error[0].endswith(f"Raised: processor {at}")
    assert told.tokens == plain().tokens[: at - 1]


@pytest.mark.parametrize(("how", "word"), [("none", "NoneType"), ("shape", "[1, 5]"), ("list", "list")])
def test_a_processor_that_returns_no_logits_is_told_what_it_returned(how: str, word: str) -> None:
    told = ran(request(1, PROMPT, max_tokens=12, code=failing_processor(2, how)))
    assert told.error is not None
    assert word in told.error[0]
    assert "logits processor 0" in told.error[0]


def test_a_lazy_array_of_another_thread_fails_the_row_and_nothing_else() -> None:
    foreign = on_thread(lambda: mx.zeros((1, VOCAB)) + 1)
    code = hosting(lambda _tokens, logits: logits + foreign)

    def work(backend: MlxBackend) -> tuple[Told, Told]:
        return run_row(backend, request(1, PROMPT, max_tokens=4, code=code)), run_row(
            backend, request(2, PROMPT, max_tokens=12)
        )

    bad, good = with_backend(pair("llama"), work)
    assert bad.error is not None
    assert "Stream" in bad.error[0]
    assert good.tokens == plain().tokens


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**31, 2**70])
@pytest.mark.parametrize("where", ["prompt", "bias"])
def test_ids_outside_the_vocabulary_never_reach_the_device(bad: int, where: str) -> None:
    asked = (
        request(1, [3, bad, 4], max_tokens=2)
        if where == "prompt"
        else request(1, PROMPT, max_tokens=2, logit_bias=((bad, 1.0),))
    )

    def work(backend: MlxBackend) -> Told:
        with pytest.raises(ValueError, match=str(bad)):
            backend.open(asked)
        backend.drop(1)
        return run_row(backend, request(2, PROMPT, max_tokens=12))

    assert with_backend(pair("llama"), work).tokens == plain().tokens


def test_a_failed_forward_fails_the_step_and_a_rewound_row_goes_on_as_if_nothing_was() -> None:
    model, tokenizer = pair("llama")

    class Flaky:
        """The model, but for one forward."""

        layers = model.layers
        calls = 0

        def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
            self.calls += 1
            if self.calls == self.fails_at:
                raise MemoryError("no room")
            return model(tokens, cache=cache)

        fails_at = 0

        def modules(self) -> Any:
            return model.modules()

    seen: list[Any] = []

    def processor(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(tokens.tolist())
        return logits

    def work(backend: MlxBackend) -> list[tuple[Told, list[Any]]]:
        results = []
        for row_id, code in ((1, UserCode()), (2, hosting(processor))):
            asked = request(row_id, PROMPT, max_tokens=12, code=code, temperature=0.7, seed=4)
            told = prefill(backend, asked)
            for _ in range(3):
                step(backend, {row_id: told})
            flaky.fails_at = flaky.calls + 1
            failed = backend.decode(Decode((row_id,)))
            assert isinstance(failed, StepFailed)
            assert failed.row_ids == (row_id,)
            assert failed.error[0] == "MemoryError: no room"
            backend.rewind(row_id)
            prefill_again(backend, row_id, len(PROMPT) + 3)
            results.append((finish(backend, row_id, told), list(seen)))
        return results

    flaky = Flaky()
    straight = ran(request(1, PROMPT, max_tokens=12, temperature=0.7, seed=4))
    (plain_row, _), (hosted_row, asked_for) = with_backend((flaky, tokenizer), work)
    assert plain_row.tokens == hosted_row.tokens == straight.tokens
    assert plain_row.text == hosted_row.text == straight.text
    # The processor saw every position once, also across the rewind.
    assert asked_for == [[*PROMPT, *straight.tokens[:at]] for at in range(12)]


def prefill_again(backend: MlxBackend, row_id: int, known: int) -> None:
    from mlx_notebook.core.events import Prefill, PrefillPart

    done = backend.prefill(Prefill((PrefillPart(row_id, 0, 8, last=False),)))
    assert not done.errors
    done = backend.prefill(Prefill((PrefillPart(row_id, 8, known, last=True),)))
    assert not done.errors
