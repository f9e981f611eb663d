"""A layer in one launch: the kernel through the emulator against the layer as it stands in the twin; who gets it.

Not seen here: races that the emulator's order hides, and speed (docs/performance.md has what a GPU made of it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.llama import Model, ModelArgs

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.attention import AttentionRoute
from mlx_notebook.engine.stores import cuda_layers
from mlx_notebook.engine.stores.cuda_layers import CudaLayers, Layout, shared_for
from mlx_notebook.engine.stores.cuda_pages import CudaPages
from mlx_notebook.engine.stores.joined import joined
from mlx_notebook.engine.stores.late import Late
from mlx_notebook.engine.stores.page_ops import StockPages
from mlx_notebook.engine.stores.pages import Pages
from mlx_notebook.engine.stores.pool import PoolStore, _one_token
from mlx_notebook.engine.stores.whole_layer import WholeLayers
from tests.engine.cuda_emulator import cuda_kernel
from tests.engine.emulator import compiler

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++ or c++) to emulate CUDA kernels with")

BLOCKS, SHARED = 3, 227 * 1024
NOISE = 0.05
"""As a share of the logits' spread: both ways round to half precision, at other places of their sums."""


def llama(dtype: mx.Dtype = mx.bfloat16, *, width: int = 64, heads: int = 4, own: int = 2, inner: int = 320) -> Any:
    """Two layers, wide enough for the kernels, no size a multiple of what the grid takes at once."""
    mx.random.seed(8)
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=heads * 64,
            num_hidden_layers=2,
            intermediate_size=inner,
            num_attention_heads=heads,
            num_key_value_heads=own,
            head_dim=width,
            rms_norm_eps=1e-5,
            vocab_size=96,
            tie_word_embeddings=True,
        )
    )
    model.set_dtype(dtype)
    for name in ("input_layernorm", "post_attention_layernorm"):  # norms that are all ones would hide a lost weight
        for layer in model.layers:
            layer[name].weight = mx.random.uniform(0.5, 1.5, layer[name].weight.shape).astype(dtype)
    mx.eval(model.parameters())
    return model


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.fast, "cuda_kernel", cuda_kernel)


@pytest.fixture
def routed() -> Iterator[list[AttentionRoute]]:
    routes: list[AttentionRoute] = []
    yield routes
    for route in routes:
        route.close()


class Both:
    """One twin, with its layers in one launch and without."""

    def __init__(self, model: Any, width: int = 64) -> None:
        self.model, ops = model, CudaPages()
        self.late = Late(width, ops.split)
        self.twin = twin = joined(model, self.late.split, self.late)
        self.whole = WholeLayers(model, twin, self.late, CudaLayers(BLOCKS, SHARED))
        self.store = PoolStore(model, ops, compiled=False, twin=twin, late=self.late)

    def logits(self, lengths: list[int], *, on: bool, steps: int = 2) -> list[mx.array]:
        """Of steps of rows that hold so many columns (0: an idle place), [R, V] each."""
        self.whole.on = on
        pages = [-(-(length + steps) // BLOCK) for length in lengths]
        store = self.store
        store._layers, store._pages = [], Pages()
        store._reserve(sum(pages), like=_one_token(self.model))
        for at, layer in enumerate(store._layers):
            for name in ("keys", "values"):
                key = mx.random.key(2 * at + (name == "keys"))
                like = getattr(layer, name)
                setattr(layer, name, mx.random.normal(like.shape, key=key).astype(like.dtype))
            mx.eval(layer.keys, layer.values)
        width = 1 << (max(pages) - 1).bit_length()
        numbers, table = iter(range(1, 1 + sum(pages))), []
        for count in pages:
            own = [next(numbers) for _ in range(count)]
            table.append([*own, *([0] * (width - count))])
        positions = mx.array([length or -1 for length in lengths], dtype=mx.int32)
        out = []
        for step in range(steps):
            tokens = mx.array([[(3 * row + step) % 90] for row in range(len(lengths))], dtype=mx.int32)
            logits, positions = store._forward(tokens, positions, mx.array(table, dtype=mx.int32), store._arrays())
            mx.eval(logits, positions)
            out.append(logits.astype(mx.float32))
        return out


def apart(ours: list[mx.array], others: list[mx.array], live: list[int]) -> float:
    return max(float(mx.max(mx.abs(a - b)[mx.array(live)]) / mx.std(b)) for a, b in zip(ours, others, strict=True))


CASES = {
    "one row": [70],
    "an idle place, and a page that ends": [63, 0, 1, 128, 64, 5, 90, 17],
    "16 rows": [3 + 9 * row for row in range(16)],
    "24 rows": [3 + 5 * row for row in range(24)],
    "more columns than a span": [700, 20],
}


QUICK = ("one row", "an idle place, and a page that ends")


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
@pytest.mark.parametrize("dtype", [mx.bfloat16, pytest.param(mx.float16, marks=pytest.mark.slow)])
def test_one_launch_is_the_layer(case: str, dtype: mx.Dtype, routed: list[AttentionRoute]) -> None:
    model = llama(dtype)
    routed.append(AttentionRoute(model))
    both, lengths = Both(model), CASES[case]
    assert both.whole.found == 2
    live = [row for row, length in enumerate(lengths) if length]
    assert apart(both.logits(lengths, on=True), both.logits(lengths, on=False), live) < NOISE


LAYOUTS = {
    "tiles side by side": Layout((2, 4, 4, 8), (8, 4)),
    "one block at a time": Layout((1, 2, 1, 1), (1, 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_a_layout_changes_nothing(name: str, routed: list[AttentionRoute], monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    routed.append(AttentionRoute(model))
    both, lengths = Both(model), [40, 7, 0, 100]
    plain = both.logits(lengths, on=False)
    monkeypatch.setattr(cuda_layers, "LAYOUT", LAYOUTS[name])
    assert apart(both.logits(lengths, on=True), plain, [0, 1, 3]) < NOISE


def test_wide_heads_and_many_queries_a_key(routed: list[AttentionRoute]) -> None:
    model = llama(width=128, heads=8, own=1, inner=256)
    routed.append(AttentionRoute(model))
    both, lengths = Both(model, 128), [40, 7]
    assert both.whole.found == 2
    assert apart(both.logits(lengths, on=True), both.logits(lengths, on=False), [0, 1]) < NOISE


def test_a_rows_bits_do_not_depend_on_its_neighbours(routed: list[AttentionRoute]) -> None:
    model = llama()
    routed.append(AttentionRoute(model))
    both = Both(model)
    among = both.logits([40, 7, 90, 12], on=True)
    others = both.logits([40, 100, 3, 0], on=True)
    assert all(mx.array_equal(a[0], b[0]) for a, b in zip(among, others, strict=True))


def _lost(parts: str) -> Any:
    model = llama()
    attention = model.layers[1].self_attn
    if parts == "norm of heads":
        attention.q_norm = model.layers[1].input_layernorm
    elif parts == "bias":
        attention.o_proj.bias = mx.zeros(256, mx.bfloat16)
    elif parts == "float32":
        model.layers[1].set_dtype(mx.float32)
    elif parts == "a width of no whole blocks":
        mlp = model.layers[1].mlp
        mlp.gate_proj.weight, mlp.up_proj.weight = mlp.gate_proj.weight[:300], mlp.up_proj.weight[:300]
        mlp.down_proj.weight = mlp.down_proj.weight[:, :300]
    return model


@pytest.mark.parametrize("parts", ["norm of heads", "bias", "float32", "a width of no whole blocks"])
def test_a_layer_of_another_kind_stays(parts: str) -> None:
    model, ops = _lost(parts), StockPages()
    late = Late(64, ops.split)
    twin = joined(model, late.split, late)
    plain = twin.layers[1]
    whole = WholeLayers(model, twin, late, CudaLayers(BLOCKS, SHARED))
    assert whole.found == 1
    assert twin.layers[1] is plain


def test_rows_that_no_block_can_hold_go_through_products(routed: list[AttentionRoute]) -> None:
    model = llama()
    routed.append(AttentionRoute(model))
    both = Both(model)
    parts = both.twin.layers[0]._parts
    fits = shared_for(16, 256, 2, 64)
    assert CudaLayers(BLOCKS, fits).serves(16, parts)
    assert not CudaLayers(BLOCKS, fits - 1).serves(16, parts)
    assert not CudaLayers(BLOCKS, SHARED).serves(64, parts)
    lengths = [9 + row for row in range(40)]
    assert apart(both.logits(lengths, on=True), both.logits(lengths, on=False), list(range(40))) < NOISE


def test_one_object_is_open_in_a_process() -> None:
    first = CudaLayers.taken(BLOCKS, SHARED)
    assert first is not None
    assert CudaLayers.taken(BLOCKS, SHARED) is None
    first.close()
    first.close()  # nothing more
    second = CudaLayers.taken(BLOCKS, SHARED)
    assert second is not None
    assert CudaLayers.taken(BLOCKS, SHARED) is None
    del second  # as where a load fails half-way
    third = CudaLayers.taken(BLOCKS, SHARED)
    assert third is not None
    third.close()
