"""How a gateway has its model served: kv schemes, rows at once, the deterministic mode; from loading to answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.kv_scheme import check_scheme
from mlx_notebook.errors import ModelLoadError, OverBudget
from mlx_notebook.gateway.gateway import Gateway
from tests.engine.driving import request, run_row, with_backend
from tests.engine.test_batch_quantised import wide
from tests.small_models import random_prompt, small

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = {"group_size": 32}
SCHEMES: dict[str, Any] = {
    "native": "native",
    "8 bits": {"bits": 8, **GROUPS},
    "4 bits": {"bits": 4, **GROUPS},
    "4 bits later": {"bits": 4, "start": 20, **GROUPS},
    "by layer": [{"layer": 3, "bits": 4, **GROUPS}],
}
PROMPTS = [random_prompt(length, seed=length) for length in (3, 9, 18, 40)]
COUNT = 12


def answers(gateway: Gateway, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    handles = gateway.submit(prompts, raw=True, max_tokens=COUNT, temperature=0.0, cache_prompt=False)
    return [tuple(result.token_ids) for result in handles.results()]


@pytest.mark.slow
@pytest.mark.parametrize("kv", SCHEMES.values(), ids=list(SCHEMES))
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next"])
def test_a_scheme_reaches_the_rows_and_their_projection(kind: str, kv: Any) -> None:
    scheme = check_scheme(kv)
    with Gateway.from_loaded(*wide(kind), kv=kv, deterministic=True, batch=8) as gateway:
        together = answers(gateway, PROMPTS)
        alone = [answers(gateway, [prompt])[0] for prompt in PROMPTS]
        projected = gateway.estimate(PROMPTS, raw=True, max_tokens=COUNT).largest_bytes

    def work(backend: Any) -> tuple[list[list[int]], int]:
        eos = list(wide(kind)[1].eos_token_ids)
        asked = [request(at, prompt, max_tokens=COUNT, eos=eos) for at, prompt in enumerate(PROMPTS)]
        rows = [run_row(backend, row, 128).tokens for row in asked]
        return rows, backend.capabilities.cost.of(max(map(len, PROMPTS)) + COUNT)

    direct, cost = with_backend(wide(kind), work, kv_scheme=scheme, deterministic=True, max_rows=8)
    assert together == alone == [tuple(row) for row in direct]
    assert projected == cost


def test_a_scheme_leaves_room_for_more_rows() -> None:
    """A row too large for a budget natively fits in it at four bits."""
    prompt, tokens = random_prompt(100), 28
    sizes = {}
    for name in ("native", "4 bits"):
        with Gateway.from_loaded(*wide("llama"), kv=SCHEMES[name]) as gateway:
            sizes[name] = gateway.estimate(prompt, raw=True, max_tokens=tokens).largest_bytes
    assert sizes["4 bits"] * 2 < sizes["native"]
    budget = (sizes["4 bits"] + sizes["native"]) // 2
    with Gateway.from_loaded(*wide("llama"), kv_budget=budget) as gateway, pytest.raises(OverBudget) as caught:
        gateway.submit(prompt, raw=True, max_tokens=tokens)
    assert (caught.value.needed, caught.value.budget) == (sizes["native"], budget)
    with Gateway.from_loaded(*wide("llama"), kv=SCHEMES["4 bits"], kv_budget=budget) as gateway:
        assert gateway.generate(prompt, raw=True, max_tokens=tokens, temperature=0.0).generated_tokens == tokens


def test_a_kv_config_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kv_config.json"
    path.write_text(json.dumps(SCHEMES["by layer"]))
    with Gateway.from_loaded(*wide("llama"), kv=str(path)) as gateway:
        read = gateway.estimate([1] * 64, raw=True, max_tokens=64).largest_bytes
    with Gateway.from_loaded(*wide("llama"), kv=SCHEMES["by layer"]) as gateway:
        assert gateway.estimate([1] * 64, raw=True, max_tokens=64).largest_bytes == read


def test_heads_that_groups_do_not_divide_are_named_at_load() -> None:
    with pytest.raises(ModelLoadError, match=r"layer 0: keys have 16 values a head.* 64 do not divide") as caught:
        Gateway.from_loaded(*small("llama"), kv="8bit")
    assert caught.value.model == "loaded"


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_at_once_are_those_of_batch(*, deterministic: bool) -> None:
    seen: set[int] = set()
    with Gateway.from_loaded(*small("llama"), batch=2, deterministic=deterministic) as gateway:

        def look(*_: object) -> None:
            stats = gateway.stats()
            seen.add(stats.active_rows + stats.prefill_rows)

        handles = gateway.submit(PROMPTS, raw=True, max_tokens=COUNT, on_token=look)
        assert all(result.generated_tokens for result in handles.results())
    assert max(seen) == 2


@pytest.mark.parametrize("start", [0, pytest.param(70, marks=pytest.mark.slow)])
def test_a_prefix_is_reused_only_where_its_columns_are_what_they_would_be(start: int) -> None:
    """An entry that was quantised since is no use to a row that would not be so yet."""
    long = random_prompt(150, seed=1)
    parting = [[*long[:at], *random_prompt(40, seed=at)] for at in (50, 100)]
    options: dict[str, Any] = {"raw": True, "max_tokens": COUNT, "temperature": 0.0}
    kv = {"bits": 4, "start": start, **GROUPS}
    with Gateway.from_loaded(*wide("llama"), kv=kv, deterministic=True, batch=8, prefill_chunk=16) as gateway:
        gateway.submit(long, **options).result()
        for prompt in parting:
            result = gateway.submit(prompt, **options).result()
            fresh = gateway.submit(prompt, cache_prompt=False, **options).result()
            assert (fresh.cached_tokens, result.cached_tokens) == (0, 96 if len(prompt) > 100 else 48 * (start == 0))
            assert result.token_ids == fresh.token_ids
