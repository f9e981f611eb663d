"""What attention is left: heads as columns of a product, angles read off any rope; and who cannot have that."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx.nn.layers.positional_encoding import RoPE
from mlx_lm.models.rope_utils import initialize_rope

from mlx_notebook.engine import mlx_backend
from mlx_notebook.engine.attention import AttentionRoute
from mlx_notebook.engine.parity import choose_store
from mlx_notebook.engine.stores.choose import _makers
from mlx_notebook.engine.stores.joined import joined
from mlx_notebook.engine.stores.late import Heads, Late, LateRope, Seen, angles, key_of, turned
from mlx_notebook.engine.stores.page_ops import StockPages
from mlx_notebook.engine.stores.pool import PoolStore
from tests.engine.driving import with_backend
from tests.engine.mixed_work import run_all
from tests.small_models import CONTEXT, VOCAB, fill_with_noise, small, tiny_tokenizer

if TYPE_CHECKING:
    from mlx_notebook.engine.mlx_backend import MlxBackend

WIDTH = 64
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
OFFSETS = mx.array([0, 3, 900, 7_001], dtype=mx.int32)


def ropes() -> dict[str, Any]:
    return {
        "plain": RoPE(WIDTH, base=10_000),
        "large base, scaled positions": RoPE(WIDTH, base=500_000, scale=0.5),
        "llama 3": initialize_rope(WIDTH, 500_000, False, LLAMA3, 131_072),
        "yarn, which scales too": initialize_rope(WIDTH, 10_000, False, YARN, 16_384),
    }


@pytest.mark.parametrize("name", list(ropes()))
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_turning_by_the_angles_is_what_the_rope_does(name: str, dtype: mx.Dtype) -> None:
    rope = ropes()[name]
    assert key_of(rope, WIDTH) is not None
    x = mx.random.normal((4, 3, 1, WIDTH), key=mx.random.key(1)).astype(dtype)
    got = turned(x, angles(rope, WIDTH, OFFSETS))
    assert got.dtype == dtype
    noise = 1e-3 if dtype == mx.float32 else 5e-2
    assert mx.allclose(got.astype(mx.float32), rope(x, offset=OFFSETS).astype(mx.float32), atol=noise)
    assert not mx.allclose(got[1].astype(mx.float32), x[1].astype(mx.float32), atol=0.1)


def adds(x: mx.array, offset: Any = 0) -> mx.array:
    """No turn of pairs: what it adds does not scale with what it gets."""
    return x + offset[:, None, None, None]  # type: ignore[no-any-return]


def asks(x: mx.array, offset: Any, length: int) -> mx.array:  # noqa: ARG001
    """Wants more than a position."""
    return x * length


@pytest.mark.parametrize(
    "rope", [RoPE(WIDTH, traditional=True), RoPE(WIDTH // 2), adds, asks], ids=["pairs", "half", "adds", "asks"]
)
def test_what_does_something_else_stays(rope: Any) -> None:
    assert key_of(rope, WIDTH) is None
    late = Late(WIDTH, StockPages().split)
    assert late.rope(rope) is rope
    assert late.found == 0


def heads_of(product: mx.array, late: Late) -> list[Any]:
    return list(late.split(product, [4 * WIDTH, 6 * WIDTH]))


@pytest.fixture
def late() -> Late:
    return Late(WIDTH, StockPages().split)


@pytest.fixture
def product() -> mx.array:
    return mx.random.normal((4, 1, 8 * WIDTH), key=mx.random.key(3))


def test_layers_share_angles_where_they_turn_alike(late: Late, product: mx.array) -> None:
    asked = []

    class Counting(RoPE):
        def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
            asked.append(offset)
            return super().__call__(x, offset)  # type: ignore[no-any-return]

    alike = [late.rope(Counting(WIDTH)) for _ in range(3)]
    other = late.rope(Counting(WIDTH, base=1_000))
    assert all(type(rope) is LateRope for rope in (*alike, other))
    assert late.found == 4
    asked.clear()
    queries = heads_of(product, late)[0]
    turns = [rope(queries, offset=OFFSETS).turn for rope in (*alike, other)]
    assert turns[0] is turns[1] is turns[2] is not turns[3]
    assert len(asked) == 2
    late.clear()
    assert alike[0](queries, offset=OFFSETS).turn is not turns[0]


def test_heads_are_what_a_model_would_have_made(late: Late, product: mx.array) -> None:
    rope: Any = RoPE(WIDTH)
    waiting = late.rope(rope)
    for heads, (start, stop) in zip(heads_of(product, late), ((0, 4), (4, 6), (6, 8)), strict=True):
        made = product[..., start * WIDTH : stop * WIDTH].reshape(4, 1, stop - start, -1).transpose(0, 2, 1, 3)
        shaped = heads.reshape(4, 1, stop - start, -1).transpose(0, 2, 1, 3)
        assert shaped.count == stop - start
        assert mx.array_equal(shaped.array(), made)
        assert mx.allclose(waiting(shaped, offset=OFFSETS).array(), rope(made, offset=OFFSETS), atol=1e-4)


@pytest.mark.parametrize(
    "use",
    [
        lambda heads: heads.reshape(4, 1, 2, 2 * WIDTH),
        lambda heads: heads.reshape(4, 1, -1, WIDTH // 2),
        lambda heads: heads.transpose(0, 1, 3, 2),
        lambda heads: heads * 0.5,
        lambda heads: mx.fast.rms_norm(heads, None, 1e-5),
        lambda _: Seen(mx.zeros((4, 1, 8))).reshape(4, 8),
        lambda _: Seen(mx.zeros((4, 1, 8))).transpose(0, 1, 2, 3),
    ],
)
def test_what_heads_cannot_do_fails_and_is_not_guessed(use: Any, late: Late, product: mx.array) -> None:
    with pytest.raises(TypeError):
        use(heads_of(product, late)[0])


def test_nothing_is_turned_twice(late: Late, product: mx.array) -> None:
    waiting = late.rope(RoPE(WIDTH))
    once = waiting(heads_of(product, late)[0], offset=OFFSETS)
    with pytest.raises(TypeError, match="twice"):
        waiting(once, offset=OFFSETS)


def test_switched_off_all_is_as_the_model_has_it(late: Late, product: mx.array) -> None:
    late.on = False
    parts = heads_of(product, late)
    assert all(isinstance(part, mx.array) for part in parts)
    rope: Any = RoPE(WIDTH)
    x = mx.random.normal((2, 2, 5, WIDTH), key=mx.random.key(1))
    assert mx.array_equal(late.rope(rope)(x, offset=7), rope(x, offset=7))


class Unturned(StockPages):
    """Attends to heads before they are turned."""

    def attend_heads(self, pool: Any, queries: Heads, keys: Heads, *args: Any) -> Seen:
        return super().attend_heads(pool, replace(queries, turn=None), keys, *args)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("ops", [StockPages(), Unturned()], ids=["right", "wrong"])
def test_the_probe_takes_the_plain_way_where_late_is_not_for_a_model(kind: str, ops: StockPages) -> None:
    model = small(kind)[0] if kind == "llama" else normed_heads()
    route = AttentionRoute(model)
    state = Late(model.layers[0].self_attn.rope.dims, ops.split)
    twin = joined(model, state.split, state)
    assert state.found == len(model.layers)

    def make(on: bool) -> PoolStore:
        state.on = on
        return PoolStore(model, ops, twin=twin, late=state)

    choice = choose_store(model, first=[partial(make, True), partial(make, False)])
    route.close()
    assert choice.store is not None
    assert choice.store.name == "pool"
    served = kind == "llama" and type(ops) is StockPages
    assert state.on is served
    assert len(choice.findings) == (0 if served else 1), choice.findings


def test_a_model_that_norms_its_heads_is_served_without_and_says_what_it_says_in_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = fill_with_noise(normed_heads(), 0, 2.0), tiny_tokenizer()

    def pools(model: Any) -> list[Any]:
        return _makers(model, StockPages(), model.layers[0].self_attn.rope.dims)

    def work(backend: MlxBackend) -> tuple[str, tuple[str, ...], list[list[int]]]:
        return backend.store, backend.store_findings, [one.tokens for one in run_all(backend)]

    store, findings, expected = with_backend(pair, work)
    assert (store, findings) == ("rows", ())
    monkeypatch.setattr(mlx_backend, "pools", pools)
    store, (refused,), tokens = with_backend(pair, work)
    assert store == "pool"
    assert "rms_norm" in refused
    assert tokens == expected


def normed_heads() -> Any:
    """Qwen 3: norms queries and keys before it turns them."""
    from mlx_lm.models.qwen3 import Model, ModelArgs

    model = Model(
        ModelArgs(
            model_type="qwen3",
            hidden_size=64,
            num_hidden_layers=2,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=VOCAB,
            max_position_embeddings=CONTEXT,
            rope_theta=10_000.0,
            head_dim=16,
            tie_word_embeddings=True,
        )
    )
    mx.eval(model.parameters())
    return model
