"""Compiling the shape of an answer for one vocabulary, with the llguidance library; apart from MLX and its thread.

llguidance (Microsoft, MIT licence) reads JSON schemas, regular expressions and Lark grammars, and computes for every
state which tokens may follow (Earley parser over a lexer of regex derivatives). It is a native library and holds no
lock of Python's while it works.

A compile runs on a thread of its own that lives as long as it does: `submit` can wait for it, be interrupted, and give
up. What it may use is bounded by the library's limits and by ours (`core.work`), so such a thread ends by itself.
Compiled grammars are kept by vocabulary and source, least recently used first out, by an estimate of their bytes.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.bell import Latch
from mlx_notebook.core.grammar import GrammarKind, with_ascii_digits
from mlx_notebook.core.grammar_sizes import MOST_STATES, estimate
from mlx_notebook.core.schema import Prepared, prepared
from mlx_notebook.engine.choices import ChoiceOrder, ChoiceTally
from mlx_notebook.engine.grammar_faults import fault_of, notes_on, refuse_endless, refuse_too_much
from mlx_notebook.engine.matcher import Matcher
from mlx_notebook.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.core.grammar import GrammarSpec
    from mlx_notebook.core.placement import Reason
    from mlx_notebook.engine.vocabulary import Vocabulary

COMPILE_S = 5.0
"""How long a compile may take before it is given up."""

MASK_S = 0.5
"""How long one step may take to check: the engine's thread waits for it, and with it every other row."""

WALKED = 6

STACK = 128 << 20
"""The stack of a compile's thread, in bytes: the library follows references and rules by recursion, up to 64 MiB deep
for what may be asked of it, and where a stack ends the process ends. What is not used of it is never taken."""

CACHE_BYTES = 64 << 20
"""What kept grammars may take together, by our estimate."""

# One space after commas and colons, as Python writes JSON: models know that form best, and a grammar that leaves white
# space open lets a small model write it without end. What the library has no rule for is a warning, not an error.
JSON_FORM = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": True,
    "lenient": True,
}


class Prototype:
    """The library's compiled grammar, of which each row gets a copy.

    Copies share what the library learns of texts, and there is a limit to it; so a row may come to that limit by what
    others wrote. It then goes on in a copy of a new one.

    Args:
        vocabulary: the tokenizer's.
        source: the grammar in the library's form.
    """

    def __init__(self, vocabulary: Vocabulary, source: str) -> None:
        began = time.perf_counter()
        self._vocabulary, self._source = vocabulary, source
        self._native = self._made()
        self._generation = 0
        self._seconds = time.perf_counter() - began

    def copy(self) -> tuple[Any, int]:
        """A matcher at the beginning, and which generation it is of."""
        return self._native.deep_copy(), self._generation

    def after(self, generation: int) -> tuple[Any, int]:
        """A copy of a later generation than this one; None in its place where that would take too long."""
        if generation == self._generation:
            made = self.anew()
            if made is None:
                return None, generation
            self._native, self._generation = made, generation + 1
        return self.copy()

    def anew(self) -> Any:
        """Another of the library's objects, of which nobody has a copy; None where the engine would wait too long."""
        if self._seconds > MASK_S:
            return None
        made: list[Any] = []
        thread = threading.Thread(target=lambda: made.append(self._made()), name="mlx-notebook grammar", daemon=True)
        with deep_stack():
            thread.start()
        thread.join(COMPILE_S)
        return made[0] if made else None

    @property
    def native(self) -> Any:
        """The library's own object."""
        return self._native

    def _made(self) -> Any:
        from llguidance import LLMatcher

        return LLMatcher(self._vocabulary.made(), self._source, log_level=0, limits=limits())


@contextlib.contextmanager
def deep_stack() -> Iterator[None]:
    """Threads that are started inside have the stack that a compile may need."""
    before = threading.stack_size()
    with contextlib.suppress(ValueError):  # a system that has another idea of stacks
        threading.stack_size(STACK)
    try:
        yield
    finally:
        threading.stack_size(before)


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A grammar ready for any number of rows. `notes` say what of it is not enforced; `choices` are its texts if so."""

    spec: GrammarSpec
    vocabulary: Vocabulary
    prototype: Prototype
    notes: tuple[Reason, ...]
    nbytes: int
    choices: ChoiceOrder | None = None

    def start(self, *, after: tuple[int, ...] = (), tally: bool = False) -> Matcher:
        """A matcher for one row, at the beginning. Close it once.

        Args:
            after: token ids that must have come before the grammar holds.
            tally: whether to sum up the probability of each choice.
        """
        vocabulary, choices = self.vocabulary, self.choices
        native, generation = self.prototype.copy()

        def renew(alone: bool) -> Any:
            nonlocal generation
            if alone:
                return self.prototype.anew()
            renewed, generation = self.prototype.after(generation)
            return renewed

        return Matcher(
            native,
            vocabulary.made().vocab_size,
            eos_ids=vocabulary.eos_ids,
            after=after,
            tally=ChoiceTally(choices, vocabulary.bytes_of, vocabulary.eos_ids) if tally and choices else None,
            renew=renew,
        )


class GrammarCache:
    """Compiled grammars of this process, and the compiles under way. Any thread may ask."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, GrammarSpec], Compiled] = OrderedDict()
        self._under_way: dict[tuple[str, GrammarSpec], _Compile] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept, by our estimate."""
        return sum(one.nbytes for one in list(self._kept.values()))

    def __len__(self) -> int:
        return len(self._kept)

    def compiled(self, spec: GrammarSpec, vocabulary: Vocabulary, seconds: float = COMPILE_S) -> Compiled:
        """The compiled grammar, from the cache or made now; waits, interruptibly.

        Raises:
            GrammarError: the grammar is wrong, unsupported, can never be satisfied, or takes too long.
            ValueError: the vocabulary cannot be read.
        """
        key = (vocabulary.key, spec)
        with self._lock:
            found = self._found(key)
            if found is not None:
                return found
            job = self._under_way.get(key)
            if job is None:
                job = _Compile(spec, vocabulary, lambda done: self._finish(key, done))
                try:
                    self._under_way[key] = job
                    job.start()
                except BaseException:  # an interrupt, or no thread to be had: perhaps nobody will ever finish it
                    self._forget(key, job)
                    raise
        if not job.over.wait(seconds):
            raise GrammarError(
                f"{spec.kind}: compiling it took longer than {seconds:g} s; make it smaller", option=str(spec.kind)
            )
        return job.outcome()

    def kept(self, spec: GrammarSpec, vocabulary: Vocabulary) -> Compiled | None:
        """The compiled grammar if it is here already; waits for nothing."""
        if not vocabulary.ready:
            return None
        with self._lock:
            return self._found((vocabulary.key, spec))

    def clear(self) -> None:
        """Forget what is kept."""
        with self._lock:
            self._kept.clear()

    def _finish(self, key: tuple[str, GrammarSpec], job: _Compile) -> None:
        with self._lock:
            self._forget(key, job)
            if job.made is not None:
                self._kept[key] = job.made
                while len(self._kept) > 1 and self.nbytes > self._limit:
                    self._kept.popitem(last=False)

    def _forget(self, key: tuple[str, GrammarSpec], job: _Compile) -> None:
        """Take a compile from those under way; where it is not among them (any more), nothing."""
        if self._under_way.get(key) is job:
            del self._under_way[key]

    def _found(self, key: tuple[str, GrammarSpec]) -> Compiled | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found


class _Compile:
    """One compile on its own thread."""

    def __init__(self, spec: GrammarSpec, vocabulary: Vocabulary, finish: Any) -> None:
        self.over = Latch()
        self.made: Compiled | None = None
        self._error: tuple[type[Exception], tuple[Any, ...], dict[str, Any]] | None = None
        self._spec, self._vocabulary, self._finish = spec, vocabulary, finish
        self._thread = threading.Thread(target=self._run, name="mlx-notebook grammar", daemon=True)

    def start(self) -> None:
        with deep_stack():
            self._thread.start()

    def outcome(self) -> Compiled:
        """What was made; raises what went wrong, a fresh object each time."""
        if self.made is None:
            kind, args, more = self._error or (RuntimeError, ("the compile ended without an outcome",), {})
            raise kind(*args, **more)
        return self.made

    def _run(self) -> None:
        try:
            self.made = compile_grammar(self._spec, self._vocabulary)
        except GrammarError as error:
            self._error = (GrammarError, error.args, {"option": error.option, "place": error.place})
        except BaseException as error:  # noqa: BLE001 - the library panics on some inputs; whoever waits must hear of it
            text = f"{self._spec.kind}: the compiler failed: {error}"
            self._error = (GrammarError, (text,), {"option": str(self._spec.kind)})
        finally:
            try:
                self._finish(self)
            finally:
                self.over.set()


cache = GrammarCache()
"""The process's compiled grammars."""


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary) -> Compiled:
    """Compile now, on this thread, whose stack is deep enough; see `GrammarCache.compiled`."""
    refuse_endless(spec)
    refuse_too_much(spec)
    ready = prepared(spec.value) if spec.kind is GrammarKind.JSON_SCHEMA else Prepared(spec.value)
    prototype = Prototype(vocabulary, source_of(spec.kind, ready.value))
    native = prototype.native
    took, error = _started(native)  # here, so that no row has to do it again
    if error:
        ends = time.monotonic() + COMPILE_S

        def error_of(value: Any) -> str | None:
            late = time.monotonic() > ends
            return None if late else _started(Prototype(vocabulary, source_of(spec.kind, value)).native)[1]

        raise fault_of(spec, ready, error, error_of)
    _refuse_costly(spec, native.deep_copy(), took)
    notes = notes_on(spec, ready, native.get_grammar_warnings())
    choices = ChoiceOrder(spec.value) if spec.kind is GrammarKind.CHOICES else None
    return Compiled(spec, vocabulary, prototype, notes, estimate(spec), choices)


def _started(matcher: Any) -> tuple[float, str]:
    """How long the first mask took, and what is wrong with a matcher, "" for nothing; it finds what cannot begin."""
    began = time.perf_counter()
    if not matcher.is_error():
        matcher.compute_bitmask()
    return time.perf_counter() - began, str(matcher.get_error()) if matcher.is_error() else ""


def _refuse_costly(spec: GrammarSpec, matcher: Any, first: float) -> None:
    """Raise GrammarError where one of the first steps, along first allowed tokens, is slow or more than the limits.

    Args:
        first: what the first mask took in seconds, when it was new.
    """
    slowest = max(first, _walk(matcher))
    if matcher.is_error():
        said = str(matcher.get_error()).splitlines()[0]
        raise GrammarError(f"{spec.kind}: too complex ({said}). Make it simpler", option=str(spec.kind))
    if slowest > MASK_S:
        text = (
            f"{spec.kind}: a step of it took {slowest:.1f} s to check; at most {MASK_S:g} s are given. Make it simpler"
        )
        raise GrammarError(text, option=str(spec.kind))


def _walk(matcher: Any) -> float:
    """The slowest of a grammar's first steps, in seconds; the matcher stands where they led."""
    slowest = 0.0
    for _step in range(WALKED):
        began = time.perf_counter()
        mask = matcher.compute_bitmask()
        slowest = max(slowest, time.perf_counter() - began)
        if matcher.is_error() or matcher.is_stopped():
            break
        place = next((at for at, byte in enumerate(mask) if byte), None)
        if place is None or not matcher.consume_token(8 * place + (mask[place] & -mask[place]).bit_length() - 1):
            break
    return slowest


def source_of(kind: GrammarKind, value: Any) -> str:
    """The library's own form of a grammar; of a schema as `prepared` gives it."""
    from llguidance import LLMatcher

    if kind is GrammarKind.JSON_SCHEMA:
        return str(LLMatcher.grammar_from_json_schema(json.dumps(value), overrides=JSON_FORM))  # type: ignore[arg-type]
    if kind is GrammarKind.REGEX:
        return str(LLMatcher.grammar_from_regex(with_ascii_digits(value)))
    if kind is GrammarKind.CHOICES:  # one terminal: as many rules would be more than may come next
        return str(LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, value))))
    return str(LLMatcher.grammar_from_lark(value))


def limits() -> Any:
    """What one grammar may use: about 20 ms of lexer building, a few ms and some MB a step on a present-day core."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=4_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=50_000,
        step_max_items=20_000,
        max_lexer_states=MOST_STATES,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
