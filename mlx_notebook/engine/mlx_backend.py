"""MlxBackend: executes the scheduler's instructions on an mlx-lm model, with our own step loop.

It uses the model's own forward and mlx-lm's public caches, one set a row; a store takes several rows through one
forward. Every method runs on the engine thread;
the device stream is made there on first use and given back by `close`, the thread's last act with MLX.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.core.events import Decode, Keep, Kept, Prefill, PrefillDone, PrefillPart, StepDone, StepFailed
from mlx_notebook.core.kv_scheme import KVScheme
from mlx_notebook.core.request import with_limit
from mlx_notebook.engine import decode, prefill
from mlx_notebook.engine.attention import AttentionRoute
from mlx_notebook.engine.backend import release_all
from mlx_notebook.engine.determinism import check_deterministic
from mlx_notebook.engine.detokenize import Detokenizer
from mlx_notebook.engine.kv.convert import convert_due
from mlx_notebook.engine.masks import MaskFiller
from mlx_notebook.engine.parity import Choice, choose_store
from mlx_notebook.engine.probe import capabilities_of
from mlx_notebook.engine.prompt_cache import Entry, PromptCache
from mlx_notebook.engine.row import RowState, RowText
from mlx_notebook.engine.sampling import Sampler
from mlx_notebook.engine.stop import StopMatcher
from mlx_notebook.engine.stores import chunk_attention
from mlx_notebook.engine.stores.caches import make_caches
from mlx_notebook.engine.stores.choose import pools
from mlx_notebook.engine.stores.rows import RowsStore
from mlx_notebook.engine.streams import EngineStream
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mlx_notebook.core.placement import Capabilities
    from mlx_notebook.core.request import Request
    from mlx_notebook.engine.stores.store import Store

log = logging.getLogger("mlx_notebook")

STEPS_BETWEEN_CLEANS = 256  # as in mlx-lm: caches grow, and freed blocks of every past size would stay behind

PLACES = 8  # places come in multiples of this: with 5 rows, for one, which of them a row is changes its bits
READ_AGAIN = 512  # tokens a chunk where rows of a failed forward are read again


def device_name() -> str:
    """What MLX computes on by default, for people."""
    device = mx.default_device()
    named = mx.device_info().get("device_name")
    return f"{device.type.name.upper()} ({named})" if named else device.type.name.upper()


class MlxBackend:
    """A loaded model as a `Backend`.

    Args:
        model: an mlx-lm model; every array that it reaches is evaluated.
        tokenizer: mlx-lm's wrapper or a transformers tokenizer.
        vocab_size: an upper bound for token ids, where the caller knows a lower one than the model's tables show.
        context_length: tokens of prompt and answer together; None for no limit.
        eos_token_ids: the model's ends of sequence, which XTC never drops.
        tokenizer_lock: held around uses of the tokenizer, if other threads use it too.
        kv_scheme: how keys and values are stored; one that the model's shapes fit (`check_model`).
        max_rows: rows that may decode together in deterministic mode; otherwise there is no limit here.
        deterministic: a row's bits never depend on its neighbours: the batch has a fixed number of places, also
            for one row, prompts go alone, and an answer that is read again goes token by token.

    Raises:
        UnsupportedRequest: `deterministic` is asked for and can't be proven for this model here.
        ModelLoadError: the model can't read what is stored by the scheme.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        vocab_size: int | None = None,
        context_length: int | None = None,
        eos_token_ids: Iterable[int] = (),
        tokenizer_lock: contextlib.AbstractContextManager[Any] | None = None,
        kv_scheme: KVScheme | None = None,
        max_rows: int = 32,
        deterministic: bool = False,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._lock = tokenizer_lock if tokenizer_lock is not None else contextlib.nullcontext()
        self._detokenizer = Detokenizer(tokenizer, self._lock)
        self._stream = EngineStream()
        self._scheme = kv_scheme or KVScheme()
        self._route = AttentionRoute(model)
        try:
            with self._stream.used():
                choice = self._choose(max_rows, deterministic=deterministic)
                facts = capabilities_of(
                    model, context_length=context_length, vocab_size=vocab_size, scheme=self._scheme
                )
        except BaseException:
            self._let_go()
            raise
        self._store: Store = choice.store or RowsStore(model, waste=None)
        self._findings = tuple(choice.findings)
        self._deterministic = deterministic
        self._cohorts = choice.cohorts and not deterministic
        self._entries = PromptCache()
        together = choice.store is not None
        most = (max_rows if deterministic else facts.max_rows) if together else 1
        self._capabilities = replace(
            facts,
            continuous=together,
            continuous_code="cache-not-batchable",
            continuous_why_not="" if together else f"the load-time probe found that {choice.why_not}",
            max_rows=most,
            prompt_cache=True,
        )
        self._eos_token_ids = frozenset(eos_token_ids)
        self._requests: dict[int, Request] = {}
        self._rows: dict[int, RowState] = {}
        self._lost: dict[int, int] = {}  # of rows whose step failed: the number of the last draw that was under way
        self._masks = MaskFiller()
        self._steps = 0
        # On a GPU kernels are built for a shape when it is first run; with fixed places the load has run theirs.
        self._builds = together and not deterministic and mx.default_device() == mx.gpu
        self._warm = 1
        self._by_products = chunk_attention.fits_here()

    @property
    def capabilities(self) -> Capabilities:
        """Plain facts about the model."""
        return self._capabilities

    def open(self, request: Request, entry_id: int | None = None, cached_tokens: int = 0) -> None:
        """Make a row's state.

        Raises:
            ValueError: an id is outside the vocabulary. `drop` still releases what the request owns.
        """
        self._requests[request.id] = request
        with self._stream.used():
            # Known from here on, so that `drop` frees it also where the rest fails.
            row = self._rows[request.id] = self._row_for(request)
            if entry_id is not None and cached_tokens:
                row.cache = self._entries.start(entry_id, cached_tokens)
                row.fed = cached_tokens
            if request.compiled is not None:
                shape = request.shape
                row.grammar = request.compiled.start(
                    after=shape.grammar_after, tally=shape.sampling.logprobs is not None
                )

    def prefill(self, instruction: Prefill) -> PrefillDone:
        """Compute known positions [start, stop) of each part, several parts in one forward.

        Where that forward fails, each of its rows is read again, alone.
        """
        began = time.monotonic_ns()
        errors: dict[int, tuple[str, str]] = {}
        with self._stream.used(), self._reading():
            if len(instruction.parts) == 1 or not self._cohorts:
                for part in instruction.parts:
                    self._contained(errors, part, lambda part=part: self._feed([part]))  # type: ignore[misc]
            else:
                try:
                    self._feed(instruction.parts)
                except Exception:  # noqa: BLE001 - whoever of them it was shows alone
                    for part in instruction.parts:
                        self._contained(errors, part, lambda part=part: self._read_again(part))  # type: ignore[misc]
        return PrefillDone(time.monotonic_ns(), began, instruction.parts, errors)

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        """Commit one token of each row; the forward of the next is under way before any is read."""
        began = time.monotonic_ns()
        rows = [self._rows[row_id] for row_id in instruction.row_ids]
        limit = self._capabilities.context_length
        apart = bool(self._lost) and any(row.produced <= self._lost.get(row.request.id, -1) for row in rows)
        with self._stream.used():
            try:
                undrawn = decode.dispatch(self._store, rows, limit, apart=apart)
                tokens = decode.read(rows)
                self._convert(rows)  # between this forward and the next
            except Exception as error:  # noqa: BLE001 - a forward or an allocation failed: the step's failure
                self._stream.is_there()  # else the rows, read again, would fail as well
                return StepFailed(time.monotonic_ns(), instruction.row_ids, as_text(error))
            outcomes = tuple(decode.commit(rows, tokens, limit, self._masks, undrawn, apart=apart))
        self._steps += 1
        if self._steps % STEPS_BETWEEN_CLEANS == 0:
            mx.clear_cache()
        return StepDone(time.monotonic_ns(), began, outcomes)

    def rewind(self, row_id: int) -> None:
        """Empty a row's caches and keep what it committed: `prefill` starts again at 0."""
        row = self._rows[row_id]
        self._store.forget(row)
        self._lost[row_id] = row.produced
        row.rewind(make_caches(self._model))

    def keep(self, instruction: Keep) -> Kept:
        """Snapshot a row's caches at so many tokens; 0 where that cannot be had exactly."""
        row = self._rows[instruction.row_id]
        with self._stream.used():
            self._store.settle(row)
            return _told(instruction.entry_id, self._entries.keep(instruction.entry_id, row, instruction.tokens))

    def drop(self, row_id: int, keep_as: int | None = None, keep_tokens: int | None = None) -> Kept | None:
        """Free a row's state and release what it owns; unknown rows are ignored."""
        request, row = self._requests.pop(row_id, None), self._rows.pop(row_id, None)
        self._lost.pop(row_id, None)
        try:
            if row is None or keep_as is None:
                return None
            with self._stream.used():
                self._store.settle(row)
                entry = self._entries.take_over(keep_as, row, row.fed if keep_tokens is None else keep_tokens)
            return _told(keep_as, entry)
        finally:  # also where there is no room for an entry: its place in the store must not stay taken
            if row is not None:
                self._store.forget(row)
                row.close()
            if request is not None:
                release_all(request)

    def evict(self, entry_id: int) -> None:
        """Free an entry; unknown ones are ignored."""
        self._entries.evict(entry_id)

    def warm(self, rows: int) -> bool:
        """Run a step of so many rows for nobody, once. Where nothing is built for a shape there is nothing to do."""
        if not self._builds or rows <= self._warm or rows > self._capabilities.max_rows:
            return False
        self._warm = rows  # also if it fails: nothing depends on it
        try:
            with self._stream.used():
                self._warm = self._store.warm(rows)
        except Exception as error:  # noqa: BLE001 - a step that somebody needs will say it again
            log.warning("warming up a step of %d rows failed\n%s", rows, as_text(error)[1])
        return True

    def extend(self, row_id: int, max_tokens: int) -> None:
        """Another answer limit for an open row; unknown rows are ignored."""
        row = self._rows.get(row_id)
        if row is not None:
            row.request = self._requests[row_id] = with_limit(row.request, max_tokens)

    def synchronize(self) -> None:
        """Wait till the device has done all that was dispatched."""
        self._stream.synchronize()

    def held_bytes(self) -> int:
        """Bytes of all rows and entries; may be asked from any thread."""
        rows = sum(row.held_bytes() for row in list(self._rows.values()))
        return rows + self._store.held_bytes() + self._entries.held_bytes()

    def close(self) -> None:
        """Drop every row, wait for the device and give the thread's streams back. Nothing works here afterwards."""
        for row_id in list(self._requests):
            self.drop(row_id)
        self._entries.clear()
        self._masks.close()
        self._let_go()
        self._store.close()  # last: the device has done all that it had

    def _let_go(self) -> None:
        self._route.close()
        self._stream.close()

    @property
    def store(self) -> str:
        """Which store holds the rows, for people."""
        return self._store.name if self._capabilities.continuous else "one row at a time"

    @property
    def store_findings(self) -> tuple[str, ...]:
        """What the probe at load found against stores and ways that it tried and that are not used, a sentence each."""
        return self._findings

    def _choose(self, max_rows: int, *, deterministic: bool) -> Choice:
        model = self._model
        if deterministic:
            slots = -(-max_rows // PLACES) * PLACES
            check_deterministic(model, slots, self._scheme)
            return choose_store(model, slots, scheme=self._scheme)
        # Quantised rows convert in caches of their own, which the pool would not leave them.
        return choose_store(model, first=pools(model) if self._scheme.native else (), scheme=self._scheme)

    def _row_for(self, request: Request) -> RowState:
        shape = request.shape
        size = self._capabilities.vocab_size
        prefill.check_ids(shape.prompt_ids, size, "prompt token")
        prefill.check_ids([token_id for token_id, _ in shape.sampling.logit_bias], size, "logit_bias token")
        sampler = Sampler(shape.sampling, self._spared(request))
        text = RowText(self._detokenizer.stream(), StopMatcher(shape.sampling.stop))
        row = RowState(request, make_caches(self._model), sampler, text)
        if request.code.context is not None:
            row.context = request.code.context
        row.streams_are_there = self._stream.is_there
        return row

    def _spared(self, request: Request) -> list[int]:
        """Tokens that XTC leaves alone, as in mlx-lm: ends of sequence and newlines."""
        if request.shape.sampling.xtc_probability <= 0.0:
            return []
        with self._lock:
            newlines = self._tokenizer.encode("\n", add_special_tokens=False)
        spared = (*request.shape.eos_ids, *self._eos_token_ids, *newlines)
        return [token_id for token_id in spared if 0 <= token_id < self._capabilities.vocab_size]

    def _feed(self, parts: Sequence[PrefillPart]) -> None:
        rows = [self._rows[part.row_id] for part in parts]
        bodies = [(row, prefill.body_of(row, part)) for row, part in zip(rows, parts, strict=True)]
        if self._deterministic:
            for row, ids in bodies:
                self._feed_as_at_first(row, ids)
        else:
            prefill.feed(self._store, bodies)
            self._convert(rows)
        for row, part in zip(rows, parts, strict=True):
            if part.last and row.ready is not None:
                row.remember_known()

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        """How chunks attend. On a CPU a row alone has mlx-lm's bits, and in deterministic mode all always have."""
        exact = mx.default_device() == mx.cpu and (self._deterministic or len(self._rows) == 1)
        return chunk_attention.preferred() if self._by_products and not exact else contextlib.nullcontext()

    def _convert(self, rows: Sequence[RowState]) -> None:
        """Quantise the caches of rows that have come to where the scheme starts."""
        if self._scheme.native:
            return
        for row in rows:
            if not row.converted and row.fed and row.fed >= self._scheme.start:
                self._store.settle(row)
                convert_due(row.cache, self._scheme)
                row.converted = True

    def _feed_as_at_first(self, row: RowState, ids: Sequence[int]) -> None:
        """Of a row that starts over after a failed forward, the prompt is a chunk again and its answer steps."""
        prompt = max(0, len(row.request.shape.prompt_ids) - 1 - row.fed)
        prefill.feed(self._store, [(row, tuple(ids[:prompt]))])
        self._convert([row])
        for token_id in ids[prompt:]:
            prefill.step_through(self._store, row, token_id)
            self._convert([row])

    def _read_again(self, part: PrefillPart) -> None:
        """A forward over several rows failed and left them in between: this row starts over, by itself."""
        row = self._rows[part.row_id]
        self._store.forget(row)
        row.cache, row.fed, row.converted = make_caches(self._model), 0, False
        while row.fed < part.start:
            prefill.feed(self._store, [(row, row.known[row.fed : min(row.fed + READ_AGAIN, part.start)])])
        self._feed([part])

    def _contained(self, errors: dict[int, tuple[str, str]], part: PrefillPart, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, this row ends
            if self._stream.is_there():
                errors[part.row_id] = as_text(error)
            else:  # somebody else's doing
                self._contained(errors, part, lambda: self._read_again(part))


def _told(entry_id: int, entry: Entry | None) -> Kept:
    tokens, nbytes = (entry.tokens, entry.nbytes) if entry is not None else (0, 0)
    return Kept(time.monotonic_ns(), entry_id, tokens, nbytes)
