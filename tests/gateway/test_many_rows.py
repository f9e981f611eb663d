"""Sixty-four rows on a real model: interrupts, cancels, failures, closing, dying; and what the others say meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.errors import Cancelled, GatewayClosed, GatewayDead, RowFailed
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.handles import Handles
from mlx_notebook.gateway.lease import device_lease
from tests.gateway.fakes import interrupt_when, wait_for
from tests.gateway.real_rows import faltering
from tests.gateway.test_interrupts import main_waits
from tests.small_models import random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

ROWS = 64
PROMPTS = [random_prompt(3 + at % 11, seed=at) for at in range(ROWS)]
# No end of sequence: the long ones run till they are cut.
LONG: dict[str, Any] = {"raw": True, "max_tokens": 400, "logit_bias": {2: -100.0}}
SHORT: dict[str, Any] = {"raw": True, "max_tokens": 6, "logit_bias": {2: -100.0}}


@pytest.fixture(params=["llama", "gemma3_text"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def gateway(kind: str) -> Iterator[Gateway]:
    with Gateway.from_loaded(*small(kind), batch=ROWS, deterministic=True, prefill_chunk=8) as made:
        yield made


def all_decode(gateway: Gateway, rows: int = ROWS) -> bool:
    return gateway.stats().active_rows == rows


def is_as_new(gateway: Gateway, said: list[tuple[int, ...]]) -> None:
    """Nothing is held any more, and rows say what they would have said."""
    assert gateway.wait_idle()
    assert not gateway._loop.scheduler.rows
    backend: Any = gateway._loop._backend
    assert not backend._rows
    assert backend.held_bytes() == gateway._loop.scheduler.memory.prefixes.nbytes
    again = gateway.generate(PROMPTS[: len(said)], **SHORT)
    assert [result.token_ids for result in again] == said
    wait_for(lambda: device_lease().holder is None)


def short_ones(gateway: Gateway, rows: int) -> list[tuple[int, ...]]:
    """What the first rows say, each alone."""
    return [gateway.generate(prompt, **SHORT).token_ids for prompt in PROMPTS[:rows]]


def test_an_interrupt_of_a_blocking_generate_cancels_all_of_its_rows_and_no_other(gateway: Gateway) -> None:
    said = short_ones(gateway, 3)
    other = gateway.submit(PROMPTS[0], **{**LONG, "max_tokens": 60})
    interrupting = interrupt_when(lambda: main_waits() and gateway.stats().active_rows > 1)
    with pytest.raises(KeyboardInterrupt):
        gateway.generate(PROMPTS, **LONG)
    interrupting.result()
    result = other.result()
    assert (result.finish_reason, result.generated_tokens) == ("length", 60)
    assert result.token_ids[:6] == said[0]
    assert gateway.wait_idle()
    stats = gateway.stats()
    assert (stats.submitted, stats.finished, stats.cancelled) == (3 + 1 + ROWS, 4, ROWS)
    is_as_new(gateway, said)


def test_one_cancelled_while_its_prompt_is_read_leaves_the_others_as_they_were(gateway: Gateway) -> None:
    said = short_ones(gateway, 5)
    long_prompt = random_prompt(300, seed=99)
    gateway.pause()
    rows = [gateway.submit(prompt, **SHORT) for prompt in PROMPTS[:2]]
    cut = gateway.submit(long_prompt, **SHORT)
    rows += [gateway.submit(prompt, **SHORT) for prompt in PROMPTS[2:5]]
    while cut.progress().prefilled == 0:
        gateway.step(1)
    assert cut.status == "prefill"
    cut.cancel()
    gateway.resume()
    assert isinstance(cut.exception(), Cancelled)
    assert [row.result().token_ids for row in rows] == said
    is_as_new(gateway, said)


def test_one_of_n_cancelled_leaves_the_other_samples_as_they_were(gateway: Gateway) -> None:
    how = {**SHORT, "temperature": 0.9, "seed": 7, "n": 6}
    alone = [result.token_ids for result in gateway.generate(PROMPTS[0], **how)]
    gateway.pause()
    samples = gateway.submit(PROMPTS[0], **how)
    assert isinstance(samples, Handles)
    while samples[-1].progress().generated_tokens < 2:
        gateway.step(1)
    samples[2].cancel()
    wait_for(samples[2].done)
    gateway.resume()
    ended = [sample.exception() for sample in samples]
    assert [type(error) for error in ended] == [type(None)] * 2 + [Cancelled] + [type(None)] * 3
    assert [s.result().token_ids for s in samples if not s.cancelled()] == alone[:2] + alone[3:]
    came = samples[2]._record.token_ids
    assert 2 <= len(came) < 6
    assert tuple(came) == alone[2][: len(came)]
    assert len(set(alone)) > 1


def failing_at(count: int, error: BaseException) -> Callable[..., None]:
    seen: list[int] = []

    def on_token(token_id: int, _text: str, _logprobs: object) -> None:
        seen.append(token_id)
        if len(seen) == count:
            raise error

    return on_token


def test_failed_rows_beside_sixty_others(gateway: Gateway) -> None:
    said = {at: gateway.generate(PROMPTS[at], **SHORT).token_ids for at in range(3, ROWS, 4)}
    with gateway.lease():  # so that all of them join together
        rows = [
            gateway.submit(
                prompt, on_token=failing_at(1 + at % 5, ValueError("mine")) if at % 16 == 3 else None, **SHORT
            )
            for at, prompt in enumerate(PROMPTS)
        ]
    for at, row in enumerate(rows):
        error = row.exception()
        if at % 16 == 3:
            assert isinstance(error, RowFailed)
            assert error.result is not None
            assert error.result.token_ids == said[at][: 1 + at % 5]
        else:
            assert row.result().token_ids == said.get(at, row.token_ids)
    stats = gateway.stats()
    assert (stats.failed, stats.finished) == (4, len(said) + ROWS - 4)
    is_as_new(gateway, short_ones(gateway, 3))


def test_closing_settles_sixty_four_running_rows_at_once_and_restart_begins_anew(gateway: Gateway) -> None:
    said = short_ones(gateway, 3)
    rows = gateway.submit(PROMPTS, **LONG)
    late = gateway.submit(PROMPTS[0], **LONG)  # for whom there is no place
    wait_for(lambda: all_decode(gateway))
    assert late.status == "queued"
    gateway.close()
    assert all(row.done() for row in (*rows, late))
    for row in (*rows, late):
        error = row.exception()
        assert isinstance(error, Cancelled)
        assert error.result is not None
        assert error.result.finish_detail == "closed"
    assert device_lease().holder is None
    with pytest.raises(GatewayClosed):
        gateway.submit(PROMPTS[0])
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("mlx-notebook engine")]
    assert threads == []
    gateway.restart()
    is_as_new(gateway, said)


def test_a_dying_engine_tells_sixty_four_rows_and_restart_begins_anew(gateway: Gateway) -> None:
    said = short_ones(gateway, 3)
    rows = gateway.submit(PROMPTS, **LONG)
    wait_for(lambda: all_decode(gateway))
    backend: Any = gateway._loop._backend

    def defect(_instruction: object) -> object:
        raise RuntimeError("a defect")

    backend.decode = defect
    errors = [row.exception() for row in rows]
    assert all(isinstance(error, GatewayDead) for error in errors)
    with pytest.raises(GatewayDead, match="a defect"):
        gateway.submit(PROMPTS[0])
    assert gateway._engine.join(None)
    assert device_lease().holder is None
    assert backend.held_bytes() == 0
    del backend
    gateway.restart()
    is_as_new(gateway, said)


@pytest.mark.parametrize("times", [1, 2])
def test_a_failed_forward_of_sixty_four_rows(kind: str, times: int) -> None:
    """Once, they are read again and say the same; twice, those that it met get the error and the next ones work."""
    model, tokenizer, faults = faltering(kind)
    with Gateway.from_loaded(model, tokenizer, batch=ROWS) as gateway:
        said = [result.token_ids for result in gateway.generate(PROMPTS, **SHORT)]
        gateway.pause()
        rows = gateway.submit(PROMPTS, **SHORT)
        for _ in range(times):
            # All of them are in the batch again, with something committed since.
            before = [row.progress().generated_tokens for row in rows]
            while min(row.progress().generated_tokens for row in rows) <= min(before):
                gateway.step(1)
            faults.pending = 1
            gateway.step(1)
            assert faults.pending == 0
        gateway.resume()
        if times == 1:
            assert [row.result().token_ids for row in rows] == said
        else:
            ended = [row.exception() for row in rows]
            failed = [at for at, error in enumerate(ended) if isinstance(error, RowFailed)]
            assert failed
            assert all("no room" in str(ended[at]) for at in failed)
            assert all(ended[at] is None or at in failed for at in range(ROWS))
            assert all(row.result().token_ids == said[at] for at, row in enumerate(rows) if at not in failed)
        is_as_new(gateway, said[:3])
