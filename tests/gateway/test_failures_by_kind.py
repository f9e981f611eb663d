"""Everything that may fail, at every layer kind: who sees it, that the others say what they would have said, and that
the next request works. `docs/design.md` has the table."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.errors import GatewayDead, RowFailed
from mlx_notebook.gateway.policies import UserPolicy
from mlx_notebook.notebook.publisher import Publisher
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.gateway.failing_rows import WAYS
from tests.gateway.fakes import wait_for
from tests.gateway.served_rows import BATCH, BESIDE, COUNT, EVERYBODY, GO_ON, LATER, Served
from tests.small_models import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

AT = 4


@pytest.fixture(scope="module", params=tiered(KINDS, *QUICK_KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=tiered({"deterministic": True, "free": False}, "deterministic"))
def served(request: pytest.FixtureRequest, kind: str) -> Iterator[Served]:
    made = Served(kind, deterministic=request.param)
    yield made
    made.gateway.close()


def a_chunk(shape: tuple[int, ...]) -> bool:
    return shape[1] > 1


def a_step(shape: tuple[int, ...]) -> bool:
    return shape[1] == 1


def submitted(served: Served, *names: str) -> dict[str, Any]:
    return {name: served.ask(name) for name in names}


def until_all_decode(served: Served, rows: dict[str, Any]) -> None:
    """Turn by turn; nobody may end meanwhile."""
    while any(handle.status != "decode" for handle in rows.values()):
        assert not any(handle.done() for handle in rows.values())
        served.gateway.step(1)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_a_rows_own_fails_it_alone(served: Served, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = served.gateway
    with ExitStack() as opened, monkeypatch.context() as patch:
        failing = WAYS[way](AT, patch, opened)
        gateway.pause()
        bad = served.submit(13, **failing.options)
        rows = submitted(served, *BESIDE)
        gateway.resume()
        with pytest.raises(RowFailed) as caught:
            bad.result()
        rows |= submitted(served, *LATER)
        for name, handle in rows.items():
            served.check(name, handle)
    told = caught.value.result
    assert told is not None
    assert failing.says in str(caught.value)
    assert failing.says in caught.value.traceback_text
    assert (told.finish_reason, told.generated_tokens) == ("error", failing.came)
    own = {name: value for name, value in failing.options.items() if name not in ("on_token", "logits_processors")}
    well = served.submit(13, **{**own, "max_tokens": COUNT}).result()  # nothing of it was cached but its prompt
    assert told.token_ids == well.token_ids[: failing.came]
    assert well.text.startswith(told.text)
    assert well.cached_tokens < 13
    served.works()


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_joiners_prefill_fails_it_alone(served: Served, chunk: int) -> None:
    gateway = served.gateway
    gateway.pause()
    rows = submitted(served, *BESIDE)
    until_all_decode(served, rows)
    served.faults.fail(1, a_chunk, passing=chunk - 1)
    joiner = served.submit(41, cache_prompt=False)
    gateway.resume()
    with pytest.raises(RowFailed, match="no room") as caught:
        joiner.result()
    assert caught.value.result is not None
    assert caught.value.result.generated_tokens == 0
    rows |= submitted(served, *LATER)
    for name, handle in rows.items():
        served.check(name, handle)
    assert served.submit(41, **GO_ON).result().generated_tokens == COUNT
    served.works()


@pytest.mark.parametrize("forwards", [1, 2])
def test_of_joiners_that_are_read_together_only_one_that_fails_alone_as_well_fails(kind: str, forwards: int) -> None:
    served = Served(kind, deterministic=False, chunk=None)  # else prompts are read one by one
    gateway = served.gateway
    gateway.pause()
    rows = submitted(served, *BESIDE)
    until_all_decode(served, rows)
    served.faults.fail(forwards, a_chunk)
    joiners = [served.submit(3 + at, cache_prompt=False, **GO_ON) for at in range(2)]
    gateway.resume()
    ends = [handle.exception() for handle in joiners]
    assert served.faults.pending == 0
    assert [isinstance(end, RowFailed) for end in ends] == [forwards == 2, False]
    assert joiners[1].result().token_ids == served.submit(4, cache_prompt=False, **GO_ON).result().token_ids
    for name, handle in rows.items():
        served.check(name, handle)
    served.works()
    gateway.close()


@pytest.mark.parametrize("at", [0, 2])
def test_a_failed_forward_is_made_good(served: Served, at: int) -> None:
    gateway = served.gateway
    gateway.pause()
    rows = submitted(served, *BESIDE, *LATER)
    until_all_decode(served, rows)
    if at:
        gateway.step(at)
    served.faults.fail(1, a_step)
    gateway.step(1)
    assert served.faults.pending == 0
    gateway.resume()
    for name, handle in rows.items():
        served.check(name, handle)
        assert [span.name for span in handle.trace].count("prefill_chunk") > 1
    served.works()


def test_where_it_fails_again_all_who_run_see_it_and_the_queue_is_served(served: Served) -> None:
    gateway = served.gateway
    gateway.pause()
    rows = {**submitted(served, *BESIDE, *LATER)}
    assert len(rows) == BATCH
    waiting = submitted(served, *BESIDE)
    for _ in range(2):
        until_all_decode(served, rows)
        served.faults.fail(1, a_step)
        gateway.step(1)
        assert served.faults.pending == 0
    for name, handle in rows.items():
        with pytest.raises(RowFailed, match="no room") as caught:
            handle.result()
        assert caught.value.result is not None
        told = caught.value.result
        assert told.token_ids == served.alone[name].token_ids[: told.generated_tokens]
    assert not any(handle.done() for handle in waiting.values())
    gateway.resume()
    for name, handle in waiting.items():
        served.check(name, handle)
    served.works()


def test_a_policy_that_fails_is_reported_once_and_rows_come_in_turn(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    def policy(_waiting: list[Any], _running: list[Any]) -> list[int]:
        raise ValueError("no order today")

    gateway = served.gateway
    gateway.pause()
    gateway.loop.policy = UserPolicy(policy)
    try:
        with caplog.at_level(logging.WARNING, "mlx_notebook"):
            rows = [served.ask(name) for name in (*EVERYBODY, *EVERYBODY)]
            gateway.resume()
            for name, handle in zip((*EVERYBODY, *EVERYBODY), rows, strict=True):
                served.check(name, handle)
    finally:
        gateway.loop.policy = None
    assert len([record for record in caplog.records if "no order today" in record.getMessage()]) == 1
    began = [handle.result().queue_ms for handle in rows]
    assert max(began[:BATCH]) <= min(began[BATCH:])
    served.works()


class Raising:
    """A view that cannot show what it looks at."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def tick(self) -> bool:
        raise KeyError(f"no place for {self._handle.text_so_far!r}")

    def stop(self) -> None:
        raise AssertionError("it was removed")


def test_an_observer_that_fails_is_removed_and_reported_once(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    publisher, ends = Publisher(), []
    with caplog.at_level(logging.ERROR, "mlx_notebook"):
        rows = submitted(served, *BESIDE, *LATER)
        for handle in rows.values():
            publisher.follow(Raising(handle))
            handle.add_done_callback(lambda handle: 1 // (handle.id * 0))
            handle.add_done_callback(lambda handle: ends.append(handle.id))
        for name, handle in rows.items():
            served.check(name, handle)
        wait_for(lambda: not publisher.following)
        wait_for(lambda: len(ends) == len(rows))
        publisher.shutdown()
    said = [record.getMessage() for record in caplog.records]
    assert sum("stopped showing its rows" in one for one in said) == len(rows)
    assert sorted(ends) == sorted(handle.id for handle in rows.values())
    served.works()


@pytest.mark.parametrize("deterministic", tiered([True, False], True))
def test_the_engines_death_is_everybodys_and_a_restart_brings_it_back(kind: str, *, deterministic: bool) -> None:
    served = Served(kind, deterministic=deterministic)
    gateway = served.gateway
    gateway.pause()
    rows = submitted(served, *BESIDE, *LATER)
    until_all_decode(served, rows)
    gateway.step(2)
    waiting = submitted(served, *BESIDE)
    backend: Any = gateway.loop._backend

    def defect(_instruction: object) -> object:
        raise RuntimeError("a defect")

    backend.decode = defect
    gateway.resume()
    for handle in (*rows.values(), *waiting.values()):
        assert isinstance(handle.exception(), GatewayDead)
    for name, handle in rows.items():
        tokens = tuple(handle._record.token_ids)
        assert 0 < len(tokens) < COUNT
        assert tokens == served.alone[name].token_ids[: len(tokens)]
        assert served.alone[name].text.startswith(handle.text_so_far)
    with pytest.raises(GatewayDead, match="a defect"):
        served.ask("short")
    assert backend.held_bytes() == 0
    gateway.restart()
    served.works()
    gateway.close()
