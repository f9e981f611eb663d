"""Compiling grammars: what is refused and where, what is only warned of, limits, and the cache."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core import schema
from mlx_notebook.core.closing import closed
from mlx_notebook.core.grammar import CHECKS, GrammarKind, GrammarSpec
from mlx_notebook.core.grammar_sizes import estimate
from mlx_notebook.engine import grammar
from mlx_notebook.engine.grammar import Compiled, GrammarCache
from mlx_notebook.engine.masks import MaskFiller
from mlx_notebook.engine.vocabulary import Vocabulary
from mlx_notebook.errors import GrammarError
from tests.engine.shaping import EOS, allowed_by, compiled, vocabulary
from tests.small_models import VOCAB, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

BACKWARDS = {"type": "integer", "minimum": 5, "maximum": 3}
ENDLESS = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}
BRANCHING = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 4} for i in range(30)}

REFUSED: list[tuple[str, Any, str, str]] = [
    ("json_schema", {"type": "strin"}, "", "Invalid type: strin"),
    ("json_schema", {"properties": {"a": {"items": {"type": "strin"}}}}, "/properties/a/items", "Invalid type"),
    ("json_schema", {"properties": {"a": {"pattern": "a(b"}}}, "/properties/a", "unclosed group"),
    ("json_schema", {"properties": {"a": {"pattern": "(?=b)", "type": "string"}}}, "/properties/a", "look-around"),
    ("json_schema", {"items": BACKWARDS, "minItems": 1, "type": "array"}, "/items", "never be satisfied"),
    ("json_schema", {"$ref": "#/$defs/x"}, "", "does not exist"),
    ("json_schema", {"anyOf": [{"$ref": "https://example.org/x"}, {}]}, "/anyOf/0", "example.org"),
    ("json_schema", {"type": "string", "minLength": -1}, "", "minLength"),
    ("json_schema", False, "", "never be satisfied"),
    ("json_schema", {"enum": []}, "", "never be satisfied"),
    ("json_schema", {"x-guidance": {"lenient": False}}, "/x-guidance", "x-guidance"),
    ("json_schema", {"$ref": "#/$defs/n", "$defs": {"n": ENDLESS}}, "", "no end"),
    ("json_schema", {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
     "/additionalProperties", "no end"),
    ("json_schema", {"type": "array", "items": [{"$ref": "#"}], "minItems": 1}, "/items/0", "no end"),
    ("json_schema", {"type": "object", "properties": {"a": False}, "required": ["a"]}, "/properties/a",
     "never be satisfied: required property 'a' is unsatisfiable"),
    ("regex", "a(b", "column 2", "unclosed group"),
    ("regex", "ab(?<=c)", "column 3", "look-around"),
    ("regex", r"(a)\1", "column 4", "backreferences"),
    ("regex", r"[^\x00-\U0010ffff]", "", "never be satisfied"),
    ("grammar", "start: foo\n", "line 1, column 8", "unknown name"),
    ("grammar", 'start: "a"\nfoo: "b" )', "line 2, column 10", ""),
    ("grammar", 'foo: "a"', "", "start"),
    ("grammar", 'start: "a" start', "line 1", "without end"),
    ("grammar", "start: X\nX: /[a-c]*/ & /[d-f]+/", "", "never be satisfied"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value", "place", "said"), REFUSED)
def test_what_no_answer_can_be_held_to_is_refused_with_its_place(
    option: str, value: Any, place: str, said: str
) -> None:
    with pytest.raises(GrammarError, match=option) as caught:
        compiled(**{option: value})
    assert said in str(caught.value)
    assert caught.value.place == place
    assert caught.value.option == option
    assert "\n" not in str(caught.value)


NOTED: list[tuple[Any, str]] = [
    ({"type": "array", "items": {"type": "array", "uniqueItems": True}}, "uniqueItems is not enforced at /items."),
    ({"type": "string", "format": "colour"}, "format 'colour' is not enforced at the top."),
    ({"properties": {"a": {"not": {}}}, "additionalProperties": True}, "not is not enforced at /properties/a."),
    ({"anyOf": [{"oneOf": [{}, {}]}]}, "oneOf at /anyOf/0 is taken as anyOf"),
    ({"type": "string", "maxLenght": 3}, "maxLenght is not enforced at the top: JSON Schema knows no such keyword."),
    ({"type": "integer", "nullable": True}, "nullable is not enforced at the top: JSON Schema knows no such keyword."),
    ({"type": "object", "properties": {}}, "the object at the top gets its listed properties only"),
    ({"if": {}, "then": {"type": "string"}}, "then is not enforced at the top."),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "said"), NOTED)
def test_what_is_not_enforced_is_said(schema: Any, said: str) -> None:
    assert any(said in note.text for note in compiled(json_schema=schema).notes)


THREE: dict[str, Any] = {"type": "object", "properties": {name: {"type": "integer"} for name in "abc"}}


@pytest.mark.parametrize(
    "more",
    [
        {"minProperties": 2},
        {"minProperties": 3},
        {"minProperties": 2, "additionalProperties": False},
        {"minProperties": 1, "maxProperties": 2},
        {"minProperties": 2, "maxProperties": 2},
        {"minProperties": 3, "required": ["a"]},
        {"minProperties": 1, "properties": {f"p{at}": {} for at in range(61)}},
    ],
)
def test_a_count_that_the_compiler_cannot_keep_is_said_and_no_reason_to_refuse(more: dict[str, Any]) -> None:
    """It calls them unsatisfiable."""
    notes = compiled(json_schema={**THREE, **more}).notes
    said = "minProperties is not enforced at the top: the compiler cannot count optional properties."
    assert any(said in note.text for note in notes)
    inside = compiled(json_schema={"type": "array", "items": {**THREE, **more}}).notes
    assert any("minProperties is not enforced at /items" in note.text for note in inside)


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"minProperties": 1}, False),
        ({"minProperties": 1, "maxProperties": 1}, False),
        ({"minProperties": 2, "required": ["a"]}, False),
        ({"minProperties": 2, "required": ["a", "b"]}, False),
        ({"minProperties": 1, "properties": {f"p{at}": {} for at in range(60)}}, False),
        ({"minProperties": 4, "additionalProperties": False}, True),
        ({"minProperties": 2, "maxProperties": 1}, True),
    ],
)
def test_the_counts_that_it_keeps_are_left_to_it(more: dict[str, Any], *, refused: bool) -> None:
    if refused:
        with pytest.raises(GrammarError, match="never be satisfied"):
            compiled(json_schema={**THREE, **more})
        return
    made = compiled(json_schema={**THREE, **more})
    assert not any("minProperties" in note.text for note in made.notes)
    with contextlib.closing(made.start()) as matcher:
        for token_id in vocabulary().made().tokenize_str("{"):
            matcher.accept(token_id)
        for_closing = vocabulary().made().tokenize_str("}")[0]
        assert for_closing not in allowed_by(matcher)


def test_ten_thousand_choices_are_taken() -> None:
    """As many as is promised; as rules of their own only so many could come next."""
    choices = [f"choice number {at}" for at in range(10_000)]
    made = compiled(choices=choices)
    with contextlib.closing(made.start()) as matcher:
        for token_id in vocabulary().made().tokenize_str(choices[9_321]):
            assert token_id in allowed_by(matcher)
            matcher.accept(token_id)
        assert EOS in allowed_by(matcher)


def test_a_schema_is_closed_once_however_long_its_fault_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def counted(given: Any) -> Any:
        calls.append(given)
        return closed(given)

    monkeypatch.setattr(schema, "closed", counted)
    bad = {"properties": {**{f"p{at}": {"type": "object", "properties": {}} for at in range(20)}, "x": {"type": "x"}}}
    with pytest.raises(GrammarError) as caught:
        compiled(json_schema=bad)
    assert caught.value.place == "/properties/x"
    assert len(calls) == 1


def test_a_closed_object_is_not_blamed_for_being_closed() -> None:
    """With anything let in the words are others, but it is our doing that nothing else is."""
    with pytest.raises(GrammarError) as caught:
        compiled(json_schema={"type": "object", "properties": {"a": False}, "required": ["a"]})
    assert caught.value.place == "/properties/a"
    assert schema.locate({"properties": {}, "additionalProperties": False}, "wrong", lambda _: "", [""]) == ""
    assert schema.locate({"properties": {}, "additionalProperties": False}, "wrong", lambda _: "") != ""


def test_where_there_is_no_time_to_look_for_a_fault_it_is_the_wholes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "COMPILE_S", -1.0)
    with pytest.raises(GrammarError, match="at the top: it cannot be used: Invalid type") as caught:
        compiled(json_schema={"properties": {"a": {"type": "strin"}}})
    assert caught.value.place == ""


def test_a_first_mask_that_is_slow_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "_started", lambda _native: (1.2, ""))
    with pytest.raises(GrammarError, match=r"a step of it took 1\.2 s to check"):
        compiled(regex="a+")


def test_a_compile_has_a_deep_stack_and_other_threads_have_not() -> None:
    before = threading.stack_size()
    with grammar.deep_stack():
        assert threading.stack_size() == grammar.STACK
    assert threading.stack_size() == before


def test_annotations_and_definitions_need_no_word() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "t", "description": "d", "default": 3, "examples": [1], "deprecated": True, "$comment": "c",
        "$defs": {"x": {"type": "integer"}}, "$ref": "#/$defs/x",
    }  # fmt: skip
    assert compiled(json_schema=schema).notes == ()


def chain(count: int, link: Callable[[dict[str, Any]], dict[str, Any]], last: Any) -> dict[str, Any]:
    """Definitions, each of which names the next one somehow."""
    links = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": last}}


HOSTILE: dict[str, tuple[str, Any]] = {
    "very long pattern": ("regex", "((a{100}){100}){100}"),
    "many states": ("regex", "(a|b)*a(a|b){500}(a|b)*a(a|b){500}"),
    "nested repeats": ("json_schema", {"type": "string", "pattern": "(a{1,1000}){1,1000}"}),
    "enormous lengths": ("json_schema", {"type": "string", "minLength": 10**6, "maxLength": 2 * 10**6}),
    "enormous arrays": ("json_schema", {"type": "array", "items": {}, "minItems": 10**6, "maxItems": 10**9}),
    "branching references": (
        "json_schema",
        {"$ref": "#/$defs/d0", "$defs": {**BRANCHING, "d30": {}}},
    ),
    "multiplying branches": (
        "json_schema",
        {"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(4)]} for i in range(8)]},
    ),
    "ambiguous rules": ("grammar", 'start: s\ns: s s s | s s | "a" |'),
    "one of many properties": (
        "json_schema", {"type": "object", "minProperties": 1, "properties": {f"p{i}": {} for i in range(1000)}}
    ),
    "thousands of optional properties": ("json_schema", {"properties": {f"p{i}": {} for i in range(6000)}}),
    "a fault among many": ("json_schema", {"properties": {**{f"p{i}": {} for i in range(900)}, "x": {"type": "x"}}}),
    "doubling references": ("json_schema", chain(60, lambda one: {"allOf": [one, one]}, {"format": "date"})),
    "many name patterns": ("json_schema", {"patternProperties": {f"^a{i}b$": {} for i in range(600)}}),
    "many multiples": ("json_schema", {"anyOf": [{"type": "integer", "multipleOf": 7919 + i} for i in range(300)]}),
    "many that may be missing": ("regex", r"\w?" * 5000),
    "the same in a grammar": ("grammar", "start: /" + "a?" * 60_000 + "/"),
    "nested repeats of terminals": (
        "grammar", "start: T0\n" + "".join(f"T{i}: ((T{i + 1})*)*\n" for i in range(9000)) + 'T9000: "b"'
    ),
    "doubling terminals": ("grammar", "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(60))),
    "a long chain of objects": (
        "json_schema", chain(3000, lambda one: {"type": "object", "properties": {"a": one}}, {})
    ),
    "a long chain of rules": (
        "grammar", "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(12_000)) + 'r12000: "b"'
    ),
    "a long chain of terminals": (
        "grammar", "start: T0\n" + "".join(f'T{i}: "a" T{i + 1}\n' for i in range(9000)) + 'T9000: "b"'
    ),
}  # fmt: skip


COSTLY = (
    "took longer than",
    "a step of it took",
    "too large",
    "too complex",
    "too much",
    "fuel",
    "limit",
    "Invalid type",
)
MOST_GROWTH = 1 << 30
"""Bytes: the worst of these took 0.27 GiB."""

MOST_S = 20.0
"""Seconds of its thread, far above what the worst of these took (two): some would take minutes, and all memory."""


def test_what_the_library_gives_up_on_in_its_first_steps_is_refused() -> None:
    """And not taken, for its row to fail."""
    with pytest.raises(GrammarError, match=r"^regex: too complex \(.*\)\. Make it simpler") as caught:
        compiled(regex="((a{100}){100}){100}")
    assert caught.value.option == "regex"


@pytest.mark.slow
@pytest.mark.parametrize(("option", "value"), HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_ones_are_refused_or_stay_cheap(option: str, value: Any) -> None:
    """Refused for what it would take, or walked a few steps; its thread ends by itself, and memory stays in bounds."""
    cache, before = GrammarCache(), most_bytes()
    spent = time.process_time()
    try:
        walk(cache.compiled(CHECKS[GrammarKind(option)](option, value), vocabulary()))
    except GrammarError as error:
        assert any(said in str(error) for said in COSTLY), error  # noqa: PT017 - it may be taken as well
    for thread in threading.enumerate():
        if thread.name == "mlx-notebook grammar":
            thread.join()
    assert time.process_time() - spent < MOST_S
    assert most_bytes() - before < MOST_GROWTH
    assert not cache._under_way


def walk(made: Compiled) -> None:
    """The first steps of a row, as the engine takes them."""
    with contextlib.closing(made.start()) as matcher:
        for _ in range(grammar.WALKED):
            (mask,) = MaskFiller().fill([matcher], VOCAB)
            matcher.check(mask)
            mask[EOS] = False
            if mask.any():
                matcher.accept(int(mask.argmax()))


def most_bytes() -> int:
    """The most memory that this process ever had."""
    resource = pytest.importorskip("resource", reason="Windows does not say")
    most: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def spec(pattern: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, pattern)


def test_equal_grammars_are_compiled_once_for_equal_vocabularies() -> None:
    cache = GrammarCache()
    first = cache.compiled(spec("a+"), vocabulary())
    assert cache.compiled(spec("a+"), vocabulary()) is first
    assert cache.compiled(spec("a+"), Vocabulary(tiny_tokenizer(), [2])) is first
    assert cache.compiled(spec("a+"), Vocabulary(tiny_tokenizer(), [1, 2])) is not first
    assert cache.compiled(spec("a+"), vocabulary(300)) is not first


def test_the_cache_keeps_what_was_used_last_within_its_bytes() -> None:
    one = estimate(spec("aaaa"))
    cache = GrammarCache(limit=2 * one)
    a, b = cache.compiled(spec("aaaa"), vocabulary()), cache.compiled(spec("bbbb"), vocabulary())
    assert cache.compiled(spec("aaaa"), vocabulary()) is a
    cache.compiled(spec("cccc"), vocabulary())
    assert len(cache) == 2
    assert cache.nbytes <= 2 * one
    assert cache.compiled(spec("aaaa"), vocabulary()) is a
    assert cache.compiled(spec("bbbb"), vocabulary()) is not b
    cache.clear()
    assert len(cache) == 0


def test_a_grammar_larger_than_the_cache_is_kept_till_the_next() -> None:
    cache = GrammarCache(limit=1)
    made = cache.compiled(spec("a"), vocabulary())
    assert cache.compiled(spec("a"), vocabulary()) is made
    cache.compiled(spec("b"), vocabulary())
    assert len(cache) == 1


def test_several_threads_that_ask_for_the_same_wait_for_one_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, calls, found = threading.Event(), [], []

    def slow(asked: GrammarSpec, words: Vocabulary) -> Any:
        calls.append(asked)
        gate.wait()
        return original(asked, words)

    original = grammar.compile_grammar
    monkeypatch.setattr(grammar, "compile_grammar", slow)
    cache = GrammarCache()
    threads = [threading.Thread(target=lambda: found.append(cache.compiled(spec("x"), vocabulary()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_a_compile_that_takes_too_long_is_given_up_and_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, calls = threading.Event(), []

    def stuck(asked: GrammarSpec, words: Vocabulary) -> Any:
        calls.append(asked)
        gate.wait()
        return original(asked, words)

    original = grammar.compile_grammar
    monkeypatch.setattr(grammar, "compile_grammar", stuck)
    cache = GrammarCache()
    for _ in range(2):
        with pytest.raises(GrammarError, match=r"regex: compiling it took longer than 0.01 s"):
            cache.compiled(spec("x"), vocabulary(), seconds=0.01)
    assert len(calls) == 1
    gate.set()
    assert cache.compiled(spec("x"), vocabulary()).spec == spec("x")


def test_an_interrupt_while_a_compile_starts_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, jobs = threading.Event(), []
    cache, start, original = GrammarCache(), grammar._Compile.start, grammar.compile_grammar

    def interrupted(job: Any) -> None:
        jobs.append(job)
        start(job)  # it runs already when the interrupt comes
        raise KeyboardInterrupt

    def gated(asked: GrammarSpec, words: Vocabulary) -> Any:
        gate.wait()
        return original(asked, words)

    with monkeypatch.context() as patch:
        patch.setattr(grammar._Compile, "start", interrupted)
        patch.setattr(grammar, "compile_grammar", gated)
        with pytest.raises(KeyboardInterrupt):
            cache.compiled(spec("x"), vocabulary())
    made = cache.compiled(spec("x"), vocabulary())
    gate.set()
    jobs[0]._thread.join()
    assert jobs[0].over.is_set()
    assert made.spec == spec("x")
    assert not cache._under_way
    assert len(cache) == 1


def test_what_is_kept_is_found_without_compiling() -> None:
    cache = GrammarCache()
    assert cache.kept(spec("x"), Vocabulary(object(), [1])) is None, "not even the vocabulary is made for it"
    assert cache.kept(spec("x"), vocabulary()) is None
    made = cache.compiled(spec("x"), vocabulary())
    assert cache.kept(spec("x"), vocabulary()) is made


def test_a_compiler_that_panics_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(_asked: GrammarSpec, _words: Vocabulary) -> Any:
        raise BaseException("unreachable code")  # noqa: TRY002 - what a panic of native code looks like

    monkeypatch.setattr(grammar, "compile_grammar", panic)
    with pytest.raises(GrammarError, match="the compiler failed: unreachable code"):
        GrammarCache().compiled(spec("x"), vocabulary())


def test_a_step_that_is_slow_to_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MASK_S", 0.0)
    with pytest.raises(GrammarError, match="regex: a step of it took"):
        compiled(regex="a+")


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of the fast kind"):
        Vocabulary(object(), [1]).made()
