"""Answers with a shape through a gateway: what is refused, what comes out, and that nothing is left behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable  # noqa: TC003 - pydantic reads it
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import mlx.core as mx
import pydantic
import pytest

from mlx_notebook.core.grammar import check_json_schema
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.core.thinking import ThinkingMarks
from mlx_notebook.engine import matcher as matchers
from mlx_notebook.errors import (
    Cancelled,
    GrammarError,
    PlacementMismatch,
    RowFailed,
    UnsupportedRequest,
    WouldDeadlock,
)
from mlx_notebook.gateway import loading
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.lease import device_lease
from mlx_notebook.gateway.shapes import parse_answer
from tests.engine.shaping import tokens
from tests.gateway.fakes import wait_for
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pair(pydantic.BaseModel):
    """What the answers are to be."""

    kind: Literal["ab", "cd"]
    flag: bool


class Never(Pair):
    @pydantic.field_validator("kind")
    @classmethod
    def refuse(cls, _value: str) -> str:
        raise ValueError("not today")


SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["ab", "cd"]}, "flag": {"type": "boolean"}},
    "required": ["kind", "flag"],
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway.from_loaded(*small("llama"), batch=8) as made:
        yield made


@pytest.fixture(autouse=True)
def no_thread_left() -> None:
    """The gateway is the module's: it outlives each test."""


@pytest.fixture(autouse=True)
def device_is_free() -> Iterator[None]:
    """The engine gives the device back a moment after its last row."""
    yield
    wait_for(lambda: device_lease().holder is None)


@pytest.fixture(autouse=True)
def every_matcher_is_freed() -> Iterator[None]:
    before = matchers.live
    yield
    wait_for(lambda: matchers.live == before)


def test_an_answer_is_a_value(gateway: Gateway) -> None:
    result = gateway.generate("the fox", json_schema=SCHEMA)
    assert result.parsed == json.loads(result.text)
    assert result.parsed["kind"] in ("ab", "cd")
    assert result.parse_error is None
    assert (result.finish_reason, result.finish_detail) == ("stop", "grammar")
    assert json.loads(json.dumps(result.to_dict()))["parsed"] == result.parsed
    as_text = gateway.generate("the fox", json_schema=json.dumps(SCHEMA))
    assert as_text.text == result.text


def test_a_pydantic_class_gives_an_object_of_it_once(gateway: Gateway) -> None:
    handle = gateway.submit("the hen", json_schema=Pair)
    result = handle.result()
    assert isinstance(result.parsed, Pair)
    assert handle.result().parsed is result.parsed is handle.parsed
    assert result.to_dict()["parsed"] == result.parsed.model_dump()
    assert handle.options["json_schema"]["properties"]["flag"] == {"title": "Flag", "type": "boolean"}


def test_what_a_validator_refuses_is_a_parse_error(gateway: Gateway) -> None:
    result = gateway.generate("the hen", json_schema=Never)
    assert result.parsed is None
    assert result.parse_error is not None
    assert result.parse_error.startswith("Never refused it: 1 validation error")
    assert "not today" in result.parse_error


def test_a_cut_answer_has_no_value_and_says_so(gateway: Gateway) -> None:
    result = gateway.generate("the fox", json_schema=SCHEMA, max_tokens=3)
    assert (result.parsed, result.parse_error) == (None, "cut at max_tokens=3: the answer is not complete")
    number = gateway.generate("the fox", json_schema={"type": "integer"}, max_tokens=1)
    assert number.parsed is None, "a number that may have gone on is none"


def test_other_ends_say_what_they_were(gateway: Gateway) -> None:
    stopped = gateway.generate("the fox", regex="[a-z]{4}==", stop="=")
    assert stopped.parse_error == "ended at a stop string: the answer is not complete"
    called = gateway.submit("the fox", regex="[a-z]{9}", on_token=lambda *_: False).result()
    assert called.parse_error == "ended by on_token: the answer is not complete"


def test_the_other_shapes_give_their_text(gateway: Gateway) -> None:
    assert gateway.generate("a", choices=["yes", "no"]).parsed in ("yes", "no")
    assert len(gateway.generate("a", regex=r"[ab]{5}").parsed) == 5
    assert gateway.generate("a", grammar='start: A B\nA: "x" | "y"\nB: /[0-9]{2}/').parsed[0] in "xy"
    free = gateway.generate("a", max_tokens=2)
    assert (free.parsed, free.parse_error, free.probabilities) == (None, None, None)


def test_choices_have_probabilities_where_log_probabilities_are_asked_for(gateway: Gateway) -> None:
    result = gateway.generate("a", choices=["yes", "no", "maybe"], logprobs=True)
    assert result.probabilities is not None
    assert list(result.probabilities) == ["yes", "no", "maybe"]
    assert sum(result.probabilities.values()) == pytest.approx(1.0)
    assert max(result.probabilities.items(), key=lambda pair: pair[1])[0] == result.text
    assert result.undecided == 0.0
    assert gateway.generate("a", choices=["yes", "no"]).probabilities is None
    assert "logprobs-masked" in {reason.code for reason in result.placement.reasons}


OPENS, CLOSES, END = 50, 51, 2


def test_a_model_cannot_end_its_answer_inside_its_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may want to: the end of sequence is the likeliest token at every step."""
    opens, closes_it = ((tokens()[at] or b"").decode() for at in (OPENS, CLOSES))
    monkeypatch.setattr(loading, "_marks_of", lambda _tokenizer: ThinkingMarks(opens, closes_it, (OPENS,), (CLOSES,)))

    def closes(seen: Any, logits: Any) -> Any:
        return mx.where(mx.arange(logits.shape[-1]) == CLOSES, 1e9, logits) if len(seen) == 8 else logits

    prompt = [7, 8, 9, OPENS]
    ask: dict[str, Any] = {"regex": r"\d+", "logit_bias": {END: 1e4}, "max_tokens": 12}
    with Gateway.from_loaded(*small("llama")) as gateway:
        closed = gateway.generate(prompt, **ask, logits_processors=[closes])
        open_still = gateway.generate(prompt, **ask)
    assert closed.generated_tokens > 6
    assert CLOSES in closed.token_ids
    assert (closed.finish_detail, closed.text.isdecimal()) == ("eos", True)
    assert closed.parsed == closed.text
    assert (open_still.parsed, open_still.parse_error) == (None, "cut at max_tokens=12: the answer is not complete")
    assert END not in open_still.token_ids


def test_samples_have_matchers_of_their_own(gateway: Gateway) -> None:
    handles = gateway.submit("the fox", json_schema=SCHEMA, n=6, temperature=1.5, seed=3)
    texts = [result.text for result in handles.results()]
    assert len(set(texts)) > 1
    for handle, text in zip(handles, texts, strict=True):
        again = gateway.generate("the fox", json_schema=SCHEMA, temperature=1.5, seed=handle.options["seed"])
        assert again.text == text
    frame = handles.to_frame()
    assert frame.parsed.map(lambda value: value["kind"] in ("ab", "cd")).all()


def test_a_prompt_is_reused_under_any_shape(gateway: Gateway) -> None:
    prompt = [7, 8, 9] * 30
    gateway.generate(prompt, max_tokens=2)
    first = gateway.generate(prompt, json_schema=SCHEMA)
    assert first.cached_tokens > 0
    assert gateway.generate(prompt, json_schema=SCHEMA, cache_prompt=False).text == first.text


def test_a_number_that_python_has_no_room_for_is_a_parse_error() -> None:
    spec = check_json_schema("json_schema", {"type": "number"})
    for text in ("1e999", "-1e999"):
        found = parse_answer(spec, text, FinishReason.STOP, FinishDetail.EOS, max_tokens=9)
        assert found == (None, f"no JSON that Python can hold: the number {text} is too large")
    assert parse_answer(spec, "1e30", FinishReason.STOP, FinishDetail.EOS, max_tokens=9).value == 1e30


class NoWordFor(pydantic.BaseModel):
    f: Callable[[int], int]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"json_schema": {"type": "x"}}, GrammarError, "json_schema at the top: it cannot be used: Invalid type: x"),
    ({"regex": "("}, GrammarError, "regex at column 1"),
    ({"grammar": "start: a"}, GrammarError, "grammar at line 1, column 8"),
    ({"choices": []}, GrammarError, "choices: there is none"),
    ({"choices": ["a"], "regex": "a"}, ValueError, "regex and choices: an answer has one shape"),
    ({"json_schema": 5}, TypeError, "json_schema"),
    ({"json_schema": NoWordFor}, GrammarError, "json_schema: no JSON schema can be made of NoWordFor: .*Callable"),
    ({"response_format": {}}, TypeError, "did you mean 'json_schema'"),
]


@pytest.mark.parametrize(("options", "kind", "said"), REFUSED)
def test_wrong_shapes_are_refused_before_anything_is_queued(
    gateway: Gateway, options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    submitted = gateway.stats().submitted
    for ask in (gateway.submit, gateway.place, gateway.check, gateway.generate):
        with pytest.raises(kind, match=said):
            ask("a", **options)
    with pytest.raises(kind, match=said):
        gateway.map(["a"], progress=False, **options)
    assert gateway.stats().submitted == submitted


def test_what_is_not_enforced_stands_in_the_placement(gateway: Gateway) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "maxItems": 2}
    placement = gateway.place("a", json_schema=schema)
    assert [(r.code, r.text) for r in placement.reasons] == [
        ("grammar-unenforced", "json_schema: uniqueItems is not enforced at the top.")
    ]
    assert gateway.submit("a", json_schema=schema, placement=placement).result().placement.reasons == placement.reasons
    with pytest.raises(PlacementMismatch):
        gateway.submit("a", json_schema={"type": "array"}, placement=placement)


def test_what_the_compiler_leaves_unsaid_stands_there_too(gateway: Gateway) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2}
    for placement in (gateway.place("a", json_schema=schema), gateway.submit("a", json_schema=schema).placement):
        assert [(r.code, r.text) for r in placement.reasons] == [
            ("grammar-unenforced", "json_schema: minProperties at the top counts a name again that is written again.")
        ]


def test_a_backend_without_a_tokenizer_says_so(gateway_of: Callable[..., Gateway]) -> None:
    with pytest.raises(UnsupportedRequest, match=r"json_schema: .* no tokenizer") as caught:
        gateway_of().submit("a", json_schema={})
    assert [reason.code for reason in caught.value.reasons] == ["grammar-unsupported"]


def test_a_shape_asked_for_on_the_engine_thread_is_not_compiled_there(gateway: Gateway) -> None:
    """Not for a callback, a processor or a job: all rows would wait. What was compiled before is taken."""
    new: dict[str, Any] = {"regex": "[ab]{3}x"}
    seen: list[Any] = []

    def on_token(*_: object) -> bool:
        with pytest.raises(WouldDeadlock, match=r"regex: compiling a shape on the engine thread"):
            gateway.submit("a", **new)
        seen.append(gateway.submit("a", choices=["yes", "no"]))
        return False

    gateway.place("a", choices=["yes", "no"])
    assert gateway.submit("a", on_token=on_token).result().finish_detail == "callback"
    assert seen[0].result().parsed in ("yes", "no")
    for ask in (gateway.submit, gateway.place):
        with pytest.raises(WouldDeadlock):
            gateway.run_exclusive(partial(ask, "a", **new))
    assert gateway.generate("a", **new).parsed.endswith("x")


def test_cancels_deadlines_failures_and_closing_free_every_matcher() -> None:
    before = matchers.live
    model, tokenizer = small("llama")
    with Gateway.from_loaded(model, tokenizer, batch=2) as gateway:
        endless: dict[str, Any] = {"regex": "[a-z]+x{400}", "max_tokens": 400}
        running = threading.Event()
        first = gateway.submit("a", on_token=lambda *_: running.set(), **endless)
        second = gateway.submit("b", **endless)
        queued = gateway.submit("c", **endless)
        running.wait()
        late = gateway.submit("d", deadline=0.001, **endless)
        for handle in (queued, first):
            handle.cancel()
        with pytest.raises(Cancelled):
            late.result()
        failing = gateway.submit("e", on_token=lambda *_: 1 / 0, **endless)
        second.cancel()
        with pytest.raises(RowFailed):
            failing.result()
        gateway.wait_idle()
        assert matchers.live == before
        left = [gateway.submit("f", **endless) for _ in range(5)]
        gateway.restart()
        assert all(handle.cancelled() for handle in left)
        assert matchers.live == before
        gateway.submit("g", **endless)
    assert matchers.live == before


def test_many_threads_submit_shapes_at_once(gateway: Gateway) -> None:
    found: list[Any] = []

    def ask(at: int) -> None:
        found.extend(gateway.generate("x" * (at + 1), choices=[f"a{at}", f"b{k}"]).parsed == "" for k in range(4))

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [False] * 24
