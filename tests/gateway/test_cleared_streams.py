"""MLX lets anybody clear the streams of a thread: on the engine's it costs the row whose code does it, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.errors import RowFailed
from mlx_notebook.gateway.gateway import Gateway
from tests.small_models import random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = ["llama", "gemma3_text", "qwen3_next"]
COUNT = 24


def clearing(at: int, then: BaseException | None = None) -> Callable[..., Any]:
    """A callback or a processor that clears the thread's streams when it is called for the so many-th time."""
    calls: list[object] = []

    def called(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == at:
            mx.clear_streams()
            if then is not None:
                raise then
        return given[1] if len(given) == 2 else None

    return called


def unchanged(_tokens: mx.array, logits: mx.array) -> mx.array:
    return logits


BESIDE: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 3},
    "penalised": {"temperature": 0.9, "seed": 4, "repetition_penalty": 1.2, "logprobs": 2},
    "shaped": {"regex": "[a-z ]{60}", "repetition_penalty": 1.1, "temperature": 0.7, "seed": 5},
    "hosted": {"logits_processors": [unchanged], "repetition_penalty": 1.1},
    "called": {"on_token": lambda *_: None},
}

CODES: dict[str, Callable[[int], dict[str, Any]]] = {
    "a callback": lambda at: {"on_token": clearing(at)},
    "a processor": lambda at: {"logits_processors": [clearing(at)]},
    "a callback that raises too": lambda at: {"on_token": clearing(at, KeyboardInterrupt("mine"))},
}


@pytest.fixture(params=KINDS)
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with Gateway.from_loaded(*small(request.param)) as made:
        yield made


def asked(gateway: Gateway, **more: dict[str, Any]) -> dict[str, Any]:
    """A row of each kind, and `more`; all begin together."""
    with gateway.lease():
        return {
            name: gateway.submit(random_prompt(7 + at, seed=at), raw=True, max_tokens=COUNT, **options)
            for at, (name, options) in enumerate({**BESIDE, **more}.items())
        }


@pytest.mark.parametrize("at", [1, 5])
@pytest.mark.parametrize("code", CODES)
def test_the_row_fails_by_name_and_the_others_say_what_they_would_have(gateway: Gateway, code: str, at: int) -> None:
    expected = {name: handle.result() for name, handle in asked(gateway).items()}
    handles = asked(gateway, bad=CODES[code](at))
    error = handles.pop("bad").exception()
    assert isinstance(error, RowFailed)
    said = "mine" if "raises" in code else "cleared the streams of the engine thread"
    assert said in str(error)
    for name, handle in handles.items():
        assert handle.result().token_ids == expected[name].token_ids, name
        assert handle.result().logprobs == expected[name].logprobs
    again = {name: handle.result() for name, handle in asked(gateway).items()}
    assert {name: result.token_ids for name, result in again.items()} == {
        name: result.token_ids for name, result in expected.items()
    }
    assert gateway.run_exclusive(lambda: mx.sum(mx.ones(3)).item()) == 3.0
    assert gateway.stats().failed == 1


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_function_on_the_engine_thread_does_it_between_rows(*, deterministic: bool) -> None:
    prompt = random_prompt(40, seed=9)
    how: dict[str, Any] = {"raw": True, "max_tokens": 8}
    with Gateway.from_loaded(*small("llama"), deterministic=deterministic, batch=8) as gateway:
        expected = gateway.generate(prompt, **how).token_ids
        gateway.run_exclusive(mx.clear_streams)
        assert gateway.generate(prompt, **how).token_ids == expected  # its beginning is in the prompt cache
        gateway.run_exclusive(mx.clear_streams)
        others = [random_prompt(11 + at, seed=at) for at in range(3)]
        said = [result.token_ids for result in gateway.generate(others, **how)]
        gateway.run_exclusive(mx.clear_streams)
        assert [result.token_ids for result in gateway.generate(others, cache_prompt=False, **how)] == said
        assert gateway.run_exclusive(lambda: mx.sum(mx.ones(3)).item()) == 3.0
        assert gateway.stats().failed == 0


def test_so_does_a_policy(gateway: Gateway) -> None:
    calls: list[int] = []

    def policy(rows: Any, _now: Any = None) -> Any:
        calls.append(len(rows))
        mx.clear_streams()
        return [row.id for row in rows]

    with Gateway.from_loaded(gateway_model(gateway), gateway.tokenizer, policy=policy) as other:
        expected = [gateway.generate(random_prompt(9, seed=at), raw=True, max_tokens=6).token_ids for at in range(4)]
        results = other.generate([random_prompt(9, seed=at) for at in range(4)], raw=True, max_tokens=6)
        assert [result.token_ids for result in results] == expected
        assert calls


def gateway_model(gateway: Gateway) -> Any:
    with gateway.lease():
        return gateway.model
