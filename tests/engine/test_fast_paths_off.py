"""Every way in which the engine does things at once or ahead, turned off one by one: the answers stay the same.

`ROWS_PATHS` and `POOL_PATHS` are the lists. A path has its one place in the code, where a test replaces it by the plain
way to the same end, and a count that says whether it was taken: in the run with all of them on it must have been, in
the run without it never.

Tokens, texts and ends must be equal, and whole log-probability vectors too, up to float noise (`bound`). What rows
draw hangs on more than that: see `test_no_answer_is_a_tie`.

Compiled steps are not among them: only pages that are written where they lie can be compiled, and only CUDA's are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_notebook.core.request import SamplingOptions
from mlx_notebook.engine import decode, draws, held, mlx_backend, prefill
from mlx_notebook.engine.apart import together_or_apart
from mlx_notebook.engine.masks import MaskFiller
from mlx_notebook.engine.prompt_cache import PromptCache
from mlx_notebook.engine.row import RowState
from mlx_notebook.engine.sampling import Sampler
from mlx_notebook.engine.stores import caches, chunk_attention, joined, rows
from mlx_notebook.engine.stores.late import Late
from mlx_notebook.engine.stores.pack import Pack, PackLayer
from mlx_notebook.engine.stores.page_ops import StockPages
from mlx_notebook.engine.stores.pool import PoolStore
from mlx_notebook.engine.stores.rows import RowsStore
from tests.engine.driving import with_backend
from tests.engine.mixed_work import LEFT, PIECE, ROWS, run_all
from tests.engine.parity import vectors_of
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import noise, pair
from tests.small_models import KINDS, VOCAB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.engine.mlx_backend import MlxBackend
    from tests.engine.driving import Told

COLUMNS = ("llama", "qwen2", "lfm2", "qwen3_next")
"""Kinds with layers that keep every column, beside which no narrow window stands."""
STATES = ("mamba2", "lfm2", "qwen3_next")
POOLED = ("llama", "qwen2")

LONG_NOISE = 2e-4
"""Sums over 300 columns in another order; the noise that `traffic` measures is of short prompts."""


# ---------------------------------------------------------------- the plain ways


def rows_by_themselves(patch: pytest.MonkeyPatch) -> None:
    def step(store: RowsStore, places: Sequence[Any], tokens: mx.array) -> mx.array:
        return mx.concatenate([store._alone(row, tokens[at : at + 1]) for at, row in enumerate(places)])

    patch.setattr(RowsStore, "order", lambda _store, some: list(some))
    patch.setattr(RowsStore, "step", step)


def draws_apart(patch: pytest.MonkeyPatch) -> None:
    def each(some: Sequence[Any], draw: Callable[[Sequence[Any]], None], *, apart: bool) -> Any:
        assert not apart, "no step failed"
        return together_or_apart(some, draw, apart=True)

    for module in (decode, held):
        patch.setattr(module, "together_or_apart", each)


def masks_apart(patch: pytest.MonkeyPatch) -> None:
    fill = MaskFiller.fill
    patch.setattr(
        MaskFiller,
        "fill",
        lambda filler, matchers, width: np.concatenate([fill(filler, [one], width) for one in matchers]),
    )


def tokens_read_first(patch: pytest.MonkeyPatch) -> None:
    dispatch = decode.dispatch

    def waiting(store: Any, some: Sequence[RowState], *args: Any, **kwargs: Any) -> Any:
        decode.read(some)
        return dispatch(store, some, *args, **kwargs)

    patch.setattr(decode, "dispatch", waiting)


def states_apart(patch: pytest.MonkeyPatch) -> None:
    step = RowsStore.step

    def anew(store: RowsStore, *args: Any) -> mx.array:
        if store._state is not None:
            for row in store._state.slots:
                if row is not None:
                    store._state.hand_back(row)
            store._state = None
        return step(store, *args)

    patch.setattr(RowsStore, "step", anew)


def no_entries(patch: pytest.MonkeyPatch) -> None:
    opened = mlx_backend.MlxBackend.open
    patch.setattr(mlx_backend.MlxBackend, "open", lambda backend, request, *_entry: opened(backend, request))


def prompts_apart(patch: pytest.MonkeyPatch) -> None:
    class Never:
        def __get__(self, *_: object) -> bool:
            return False

        def __set__(self, *_: object) -> None:
            pass

    patch.setattr(mlx_backend.MlxBackend, "_cohorts", Never(), raising=False)


def twin_is_the_model(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mlx_backend, "pools", lambda model: [partial(PoolStore, model, StockPages(), twin=model)])


def positions_from_the_host(patch: pytest.MonkeyPatch) -> None:
    step = PoolStore.step

    def anew(store: PoolStore, *args: Any) -> mx.array:
        store._positions = None
        return step(store, *args)

    patch.setattr(PoolStore, "step", anew)


# ---------------------------------------------------------------- the lists


@dataclass(frozen=True)
class Path:
    """A fast path.

    Attributes:
        what: it does.
        off: puts the plain way in its place.
        count: what counts how often it was taken.
        kinds: of models for which it is taken.
    """

    what: str
    off: Callable[[pytest.MonkeyPatch], None]
    count: str
    kinds: Sequence[str] = KINDS


ROWS_PATHS = (
    Path("one forward for all rows that write", rows_by_themselves, "step of several"),
    Path("one draw for all rows", draws_apart, "draw of several"),
    Path("masks of all grammars at once", masks_apart, "masks of several"),
    Path(
        "a draw a step ahead, before the token before it is known",
        lambda patch: patch.setattr(RowState, "held", True),
        "draw ahead",
    ),
    Path("the next forward begins before tokens are read", tokens_read_first, "step before tokens are read"),
    Path("prompts start from what another left in the cache", no_entries, "start from an entry"),
    Path("short prompts are read in one forward", prompts_apart, "prompts together"),
    Path(
        "chunks attend by products, not by MLX's fused kernel",
        lambda patch: patch.setattr(chunk_attention, "serves", lambda *_: False),
        "chunk by products",
        (*COLUMNS, "gemma3_text"),
    ),
    Path(
        "a prompt that comes in chunks gets its room at once",
        lambda patch: patch.setattr(
            prefill, "make_room", lambda cache, tokens, _coming: caches.make_room(cache, tokens)
        ),
        "room at once",
        (*COLUMNS, "gemma3_text"),
    ),
    Path(
        "rows of about one length side by side",
        lambda patch: patch.setattr(RowsStore, "_due", lambda *_: False),
        "pack",
        COLUMNS,
    ),
    Path(
        "long packs are widened layer by layer, ahead of need",
        lambda patch: patch.setattr(Pack, "widen_ahead", lambda _: None),
        "widening",
        COLUMNS,
    ),
    Path("recurrent state stays side by side while rows go on", states_apart, "state that stayed", STATES),
)

POOL_PATHS = (
    Path("rows in pages of one pool", lambda patch: patch.setattr(mlx_backend, "pools", lambda _: ()), "paged", POOLED),
    Path("sibling projections as one product", twin_is_the_model, "joined product", POOLED),
    Path(
        "heads and positions are left to attention",
        lambda patch: patch.setattr(Late, "split", lambda late, product, cuts: late._split(product, cuts)),
        "late heads",
        POOLED,
    ),
    Path(
        "prompts that are read together go straight into pages",
        lambda patch: patch.setattr(
            PoolStore, "_prefill_from_the_start", lambda store, *args: store._rows.prefill(*args)
        ),
        "pages of several prompts",
        POOLED,
    ),
    Path("positions stay on the device", positions_from_the_host, "positions that stayed", POOLED),
)
"""Beside those of rows that do not depend on the store."""


# ---------------------------------------------------------------- counting


def count_paths(patch: pytest.MonkeyPatch, kind: str, counts: Counter[str]) -> None:
    """Count what is taken from now on."""

    def watch(owner: Any, attribute: str, count: Callable[..., str]) -> None:
        original = getattr(owner, attribute)

        def counting(*args: Any, **kwargs: Any) -> Any:
            if name := count(*args):
                counts[name] += 1
            return original(*args, **kwargs)

        patch.setattr(owner, attribute, counting)

    def forward(_model: Any, tokens: mx.array, *_: Any) -> str:
        several, length = tokens.shape[0] > 1, tokens.shape[1]
        return "" if not several else "step of several" if length == 1 else "prompts together"

    def unread(places: Sequence[RowState | None]) -> str:
        waits = [row.ready.together for row in places if row is not None and row.ready is not None]
        return "step before tokens are read" if any(one._ids is None for one in waits) else ""

    def moved(store: PoolStore, *_: Any) -> str:
        return "" if store._positions is None else "positions that stayed"

    def state(store: RowsStore, places: tuple[Any, ...]) -> str:
        return "state that stayed" if store._state is not None and store._state.slots == places else ""

    def several(some: Sequence[Any], *_: Any) -> str:
        return "draw of several" if len(some) > 1 else ""

    def room(array: mx.array, columns: int) -> str:
        return "room at once" if columns > array.shape[2] + PIECE else ""

    watch(type(pair(kind)[0]), "__call__", forward)
    watch(decode, "_next_tokens", unread)
    watch(decode, "_draw_ahead", lambda *_: "draw ahead")
    watch(decode, "draw_rows", several)
    watch(held, "draw_rows", several)
    watch(MaskFiller, "_threads", lambda *_: "masks of several")
    watch(PromptCache, "start", lambda *_: "start from an entry")
    watch(chunk_attention, "attend", lambda *_: "chunk by products")
    watch(caches, "widened", room)
    watch(rows, "pack_rows", lambda groups, _old: "pack" if groups else "")
    watch(PackLayer, "widen", lambda _: "widening")
    watch(RowsStore, "_batched", state)
    watch(StockPages, "attend", lambda *_: "paged")
    watch(StockPages, "attend_heads", lambda *_: "late heads")
    watch(StockPages, "fill", lambda *args: "pages of several prompts" if args[-1].shape[0] > 1 else "")
    watch(joined._Group, "part", lambda *_: "joined product")
    watch(PoolStore, "_table_of", moved)


# ---------------------------------------------------------------- running


def stock_pools(model: Any) -> list[Callable[[], PoolStore]]:
    """A pool as a GPU would have it, over MLX's own operations."""
    ops = StockPages()
    late = Late(model.layers[0].self_attn.rope.dims, ops.split)
    twin = joined.joined(model, late.split, late)
    return [partial(PoolStore, model, ops, twin=twin, late=late)]


def run(
    kind: str, *, pooled: bool, off: Callable[[pytest.MonkeyPatch], None] | None = None, **more: Any
) -> tuple[list[Told], Counter[str]]:
    """What every row of the workload says, and how often each path was taken; `more` sampling options for all."""
    counts: Counter[str] = Counter()

    def work(backend: MlxBackend) -> list[Told]:
        counts.clear()  # the check at load took some too
        return run_all(backend, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "PATIENCE", 2)  # few steps are enough then
        if pooled:
            patch.setattr(mlx_backend, "pools", stock_pools)
        if off is not None:
            off(patch)
        count_paths(patch, kind, counts)
        return with_backend(pair(kind), work), counts


def bound(kind: str) -> float:
    """How far float noise moves log-probabilities; a lost column or position moves them by whole units."""
    return max(LONG_NOISE, noise(kind))


@cache
def with_all(kind: str, *, pooled: bool) -> tuple[list[Told], Counter[str]]:
    """The run that the others are compared with."""
    return run(kind, pooled=pooled)


def cases(paths: Sequence[Path]) -> list[Any]:
    """Each path on each kind of model for which it is taken; the first of them is quick."""

    def case(kind: str, path: Path) -> Any:
        marks = () if kind == path.kinds[0] else pytest.mark.slow
        return pytest.param(kind, path, id=f"{kind}-{path.count}", marks=marks)

    return [case(kind, path) for path in paths for kind in path.kinds]


def check(kind: str, path: Path, *, pooled: bool) -> None:
    """With and without a path every row says the same."""
    told, counts = with_all(kind, pooled=pooled)
    without, left = run(kind, pooled=pooled, off=path.off)
    assert counts[path.count] > 0, counts
    assert left[path.count] == 0, left
    for number, (one, other) in enumerate(zip(told, without, strict=True)):
        said = f"row {number}, {path.what}"
        assert one.error is None, one.error
        assert (other.tokens, other.text, other.finish) == (one.tokens, one.text, one.finish), said
        assert (one.finish is None) is (number == LEFT)
        assert (
            len(other.logprobs) == len(one.logprobs) == (len(one.tokens) if "logprobs" in ROWS[number].options else 0)
        )
        for vector, expected in zip(vectors_of(other.logprobs, VOCAB), vectors_of(one.logprobs, VOCAB), strict=True):
            np.testing.assert_allclose(vector, expected, rtol=0, atol=bound(kind), err_msg=said)


@pytest.mark.parametrize(("kind", "path"), cases(ROWS_PATHS))
def test_rows_say_the_same_without(kind: str, path: Path) -> None:
    check(kind, path, pooled=False)


@pytest.mark.parametrize(("kind", "path"), cases(POOL_PATHS))
def test_rows_in_a_pool_say_the_same_without(kind: str, path: Path) -> None:
    check(kind, path, pooled=True)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_no_answer_is_a_tie(kind: str) -> None:
    """Else equal tokens would be luck: what was drawn is ahead of the next by more than noise could move both."""
    told, _ = run(kind, pooled=False, logprobs=VOCAB)
    for number, (row, one) in enumerate(zip(ROWS, told, strict=True)):
        options = SamplingOptions(**row.options)
        assert one.tokens == with_all(kind, pooled=False)[0][number].tokens, "asking for log-probabilities changes none"
        for index, (token, vector) in enumerate(zip(one.tokens, vectors_of(one.logprobs, VOCAB), strict=True)):
            scores = mx.array(np.nan_to_num(vector, nan=-np.inf))[None]
            if not options.greedy:
                gumbel = draws.gumbel_rows(draws.keys_of([draws.key_words(options.seed, index)]), VOCAB)
                scores = Sampler(options, ()).filtered(scores, index) / options.temperature + gumbel
            found = np.array(scores[0])
            second, best = np.sort(found)[-2:]
            assert found[token] == best
            assert best - second > 2 * bound(kind) / (options.temperature or 1.0), f"row {number}, token {index}"
